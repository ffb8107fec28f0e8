//! The parts of a scenario's file that the lab reads. The emulator reads and checks the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// A scenario to play.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The scenario's file.
    pub file: PathBuf,
    /// The program, instead of the file's.
    pub script: Option<PathBuf>,
    /// Further files for the folder in which the program runs.
    pub files: Vec<PathBuf>,
    /// Seed, instead of the file's.
    pub seed: Option<u64>,
}

/// The program that runs in both guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// The program.
    pub script: PathBuf,
    /// Its arguments after `server` or `client`.
    pub arguments: Vec<String>,
    /// Exit status that the client must have.
    pub status: i32,
    /// Time for the client.
    pub limit: Duration,
    /// Profile of the NICs: its name, or the path of a file.
    pub nic_profile: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Scenario {
    limit: Option<String>,
    profile: Option<String>,
    guests: Option<Guests>,
    #[serde(default)]
    traffic: Vec<toml::Table>,
}

#[derive(Debug, Deserialize)]
struct Guests {
    script: String,
    #[serde(default)]
    arguments: Vec<String>,
    #[serde(default)]
    status: u8,
}

/// The limit of a file without one, as in `device/scenario`.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);

fn read(path: &Path) -> Result<Scenario> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not a scenario", path.display()))
}

/// Returns true if a scenario names programs for guests.
#[cfg(test)]
pub fn has_programs(path: &Path) -> Result<bool> {
    Ok(read(path)?.guests.is_some())
}

/// Returns true if a scenario has traffic for the simulator.
pub fn has_traffic(path: &Path) -> Result<bool> {
    Ok(!read(path)?.traffic.is_empty())
}

impl Request {
    /// A scenario with the program that its file names.
    pub fn of_file(file: PathBuf) -> Self {
        Self {
            file,
            script: None,
            files: Vec::new(),
            seed: None,
        }
    }

    /// The programs in the guests. A program on the command line has no arguments and must succeed, unless the file
    /// says otherwise.
    pub fn programs(&self) -> Result<Programs> {
        let scenario = read(&self.file)?;
        let limit = match &scenario.limit {
            Some(text) => humantime::parse_duration(text)
                .with_context(|| format!("{}: limit = {text:?}", self.file.display()))?,
            None => DEFAULT_LIMIT,
        };
        let (named, arguments, status) = match scenario.guests {
            Some(guests) => (Some(guests.script), guests.arguments, guests.status),
            None => (None, Vec::new(), 0),
        };
        let folder = self.file.parent().unwrap_or(Path::new(""));
        let script = match (&self.script, named) {
            (Some(script), _) => script.clone(),
            (None, Some(named)) => folder.join(named),
            (None, None) => anyhow::bail!(
                "{} names no program for guests: add `[guests]` with `script = \"…\"`, or give --script",
                self.file.display()
            ),
        };
        // As the emulator reads it: a slash or the ending `.toml` makes it the path of a file.
        let nic_profile = match scenario.profile {
            Some(name) if name.contains('/') || name.ends_with(".toml") => {
                Some(profile_file(folder, &name)?.display().to_string())
            }
            name => name,
        };
        for file in std::iter::once(&script).chain(&self.files) {
            ensure!(file.is_file(), "there is no file {}", file.display());
        }
        Ok(Programs {
            script,
            arguments,
            status: i32::from(status),
            limit,
            nic_profile,
        })
    }
}

/// The file of a profile. The scenario may come from someone else, so the file must be in its folder, as for the
/// emulator.
fn profile_file(folder: &Path, name: &str) -> Result<PathBuf> {
    let here = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let path = folder.join(name);
    let found = |path: &Path| {
        let found = path.canonicalize();
        found.with_context(|| format!("the profile {name}"))
    };
    ensure!(
        found(&path)?.starts_with(found(here)?),
        "the profile {name} is not in the folder of the scenario"
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scenario in a folder with a program `run.sh`.
    fn request(text: &str) -> (tempfile::TempDir, Request) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.toml"), text).unwrap();
        fs::write(dir.path().join("run.sh"), "").unwrap();
        let request = Request::of_file(dir.path().join("a.toml"));
        (dir, request)
    }

    #[test]
    fn the_program_is_beside_the_file() {
        let text = "limit = \"20s\"\nprofile = \"slow-host\"\n[guests]\nscript = \"run.sh\"\narguments = [\"-e\"]\nstatus = 1\n[[rule]]\non = { opcode = \"ACK\" }\n";
        let (dir, request) = request(text);
        let programs = request.programs().unwrap();
        assert_eq!(
            programs,
            Programs {
                script: dir.path().join("run.sh"),
                arguments: vec!["-e".to_owned()],
                status: 1,
                limit: Duration::from_secs(20),
                nic_profile: Some("slow-host".to_owned()),
            }
        );
    }

    #[test]
    fn a_program_of_the_command_line_replaces_it() {
        let (dir, mut request) = request("title = \"no guests\"");
        let error = request.programs().unwrap_err().to_string();
        assert!(error.contains("--script"), "{error}");
        request.script = Some(dir.path().join("run.sh"));
        let programs = request.programs().unwrap();
        assert_eq!((programs.status, programs.limit), (0, DEFAULT_LIMIT));
        request.files = vec![dir.path().join("absent")];
        let error = request.programs().unwrap_err().to_string();
        assert!(error.contains("there is no file"), "{error}");
    }

    #[test]
    fn a_profile_is_a_name_or_a_file_beside_the_scenario() {
        let profile = |text: &str| {
            let (dir, request) = request(&format!("{text}\n[guests]\nscript = \"run.sh\""));
            (request.programs().unwrap().nic_profile, dir)
        };
        assert_eq!(profile("title = \"none\"").0, None);
        assert_eq!(profile("profile = \"ideal\"").0, Some("ideal".to_owned()));
        // The file of the scenario is one beside it.
        // The file of the scenario is one.
        let (found, dir) = profile("profile = \"a.toml\"");
        assert_eq!(found, Some(dir.path().join("a.toml").display().to_string()));
        let outside = "profile = \"/etc/passwd\"\n[guests]\nscript = \"run.sh\"";
        let (_dir, request) = request(outside);
        let error = request.programs().unwrap_err().to_string();
        assert!(error.contains("not in the folder"), "{error}");
    }

    #[test]
    fn a_wrong_limit_is_named() {
        let (_dir, request) = request("limit = \"soon\"\n[guests]\nscript = \"run.sh\"");
        let error = request.programs().unwrap_err().to_string();
        assert!(error.ends_with("a.toml: limit = \"soon\""), "{error}");
    }
}
