//! The test `container` of the suite `packages`: what `qemu-config/action/Containerfile` makes, without a container engine. A root of Debian 13 is
//! in place of the image that the file begins with, and the host's Rust toolchain is mounted where that image has its own. Each instruction
//! does what an engine would do. The lab in the root makes all that guests need, from Debian's packages, and runs a script in guests.
//!
//! Not tested: layers, the toolchain of the image, and what an engine denies to a container.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::action::boot_line;
use super::junit;
use crate::command::{bound_to_us, run_logged, say};
use crate::driver::remove_others;
use crate::host::{self, Release};
use crate::image::bootstrap;
use crate::workspace::Workspace;

const CONTAINERFILE: &str = "qemu-config/action/Containerfile";
/// Names of files that COPY leaves out.
const IGNORED: &str = ".dockerignore";
const ENTER: &str = include_str!("../../recipes/enter-container.sh");

/// The image that the file begins with, and the packages of it that cargo needs. The image has more.
const IMAGE: &str = "rust:1-trixie";
const PACKAGES: &[&str] = &["ca-certificates", "gcc", "libc6-dev"];
/// Variables of the image.
const VARIABLES: [(&str, &str); 4] = [
    ("RUSTUP_HOME", "/usr/local/rustup"),
    ("CARGO_HOME", "/usr/local/cargo"),
    (
        "PATH",
        "/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("HOME", "/root"),
];
/// Variables of the host that engines give to containers.
const PROXIES: [&str; 6] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// Runs in each guest: a connection of its NIC with itself, with checked data.
const SCRIPT: &str = "#!/bin/bash
set -eu
ibv_rc_pingpong -c -d \"$RDMA_DEV\" -g \"$GID_INDEX\" &
lab_until 10 lab_listens 18515
ibv_rc_pingpong -c -d \"$RDMA_DEV\" -g \"$GID_INDEX\" localhost
wait $!
";

/// Runs the test; logs go to `dir`.
pub fn run(workspace: &Workspace, dir: &Path) -> Result<()> {
    host::ensure_packages(workspace)?;
    host::require_root("making a container's root")?;
    let cache = workspace.cache()?;
    // Those of tests that were killed.
    remove_others(&cache, "container-")?;
    // Beside the images: it has images of its own, too large for a file system in memory.
    let folder = tempfile::Builder::new()
        .prefix("container-")
        // apt fetches packages as a user of its own.
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir_in(cache)
        .context("making a folder for a container")?;
    let mut container = Container {
        root: folder.path().join("root"),
        homes: toolchain()?,
        variables: variables(),
        folder: "/".to_owned(),
        entry: Vec::new(),
        dir,
    };
    let text = fs::read_to_string(workspace.root().join(CONTAINERFILE))
        .with_context(|| format!("reading {CONTAINERFILE}"))?;
    for instruction in instructions(&text)? {
        container.follow(workspace, &instruction)?;
    }
    container.run_in_guests(workspace)
}

/// RUSTUP_HOME and CARGO_HOME of this host.
fn toolchain() -> Result<[PathBuf; 2]> {
    let home = PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?);
    let homes = [("RUSTUP_HOME", ".rustup"), ("CARGO_HOME", ".cargo")].map(|(variable, name)| {
        std::env::var_os(variable).map_or_else(|| home.join(name), PathBuf::from)
    });
    for (folder, part) in homes.iter().zip(["toolchains", "bin"]) {
        let part = folder.join(part);
        ensure!(
            part.is_dir(),
            "there is no {}: install Rust with rustup for this test",
            part.display()
        );
    }
    Ok(homes)
}

/// The variables of the image, and those of the host that an engine passes on.
fn variables() -> Vec<(String, String)> {
    let image = VARIABLES.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let proxies = PROXIES
        .iter()
        .filter_map(|&name| Some((name.to_owned(), std::env::var(name).ok()?)));
    image.into_iter().chain(proxies).collect()
}

/// The state of a build, and its results.
struct Container<'a> {
    root: PathBuf,
    /// Folders that are mounted at the image's RUSTUP_HOME and CARGO_HOME.
    homes: [PathBuf; 2],
    variables: Vec<(String, String)>,
    /// The working directory.
    folder: String,
    /// The words of ENTRYPOINT.
    entry: Vec<String>,
    /// The folder of logs.
    dir: &'a Path,
}

impl Container<'_> {
    fn follow(&mut self, workspace: &Workspace, instruction: &Instruction) -> Result<()> {
        match instruction {
            Instruction::From(image) => self.begin(image)?,
            Instruction::Copy(to) => copy(workspace.root(), &self.inside(to))?,
            Instruction::Workdir(folder) => {
                fs::create_dir_all(self.inside(folder))
                    .with_context(|| format!("creating {folder}"))?;
                folder.clone_into(&mut self.folder);
            }
            Instruction::Env(name, value) => self.variables.push((name.clone(), value.clone())),
            Instruction::Run(script) => {
                let mut command = self.command(&["/bin/sh", "-c", script]);
                run_logged(&format!("RUN {script}"), &mut command, &self.log("build"))?;
            }
            Instruction::Entrypoint(words) => self.entry.clone_from(words),
        }
        Ok(())
    }

    /// Makes the root.
    fn begin(&self, image: &str) -> Result<()> {
        ensure!(
            image == IMAGE,
            "{CONTAINERFILE} begins with {image}; the root of this test is that of {IMAGE}"
        );
        let options = ["--variant=minbase"];
        let log = self.log("root");
        bootstrap(Release::Trixie, PACKAGES, &options, &self.root, &log)?;
        for (_, folder) in &VARIABLES[..2] {
            fs::create_dir_all(self.inside(folder))
                .with_context(|| format!("creating {folder}"))?;
        }
        Ok(())
    }

    /// Runs a script in guests, as a user's command does that mounts a folder with the script at /tests.
    fn run_in_guests(&self, workspace: &Workspace) -> Result<()> {
        let tests = self.inside("/tests");
        fs::create_dir_all(&tests).context("creating /tests")?;
        fs::write(tests.join("rdma.sh"), SCRIPT).context("writing a script")?;
        let mut words: Vec<&str> = self.entry.iter().map(String::as_str).collect();
        words.extend(["run", "--script", "/tests/rdma.sh"]);
        words.extend(["--junit", "/tests/junit.xml"]);
        let log = self.log("run");
        run_logged(&words.join(" "), &mut self.command(&words), &log)?;
        let output = fs::read_to_string(&log).context("reading the output of the container")?;
        say(boot_line(&output)?);
        let found = junit::cases(workspace, &tests.join("junit.xml"))?;
        let expected = ["guest 0", "guest 1", "no problems"];
        let expected = expected.map(|case| format!("rdma: {case}: passed"));
        ensure!(found == expected, "{found:?} instead of {expected:?}");
        Ok(())
    }

    /// A command in the root. All processes and mounts of the namespaces that it makes end with it.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = bound_to_us("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--"])
            .args(["sh", "-euc", ENTER, "sh"])
            .arg(&self.root)
            .args(&self.homes)
            .arg(&self.folder);
        let variables = self.variables.iter();
        command.args(variables.map(|(name, value)| format!("{name}={value}")));
        command.args(words);
        command
    }

    /// The path of a file of the container on the host.
    fn inside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("packages-container-{name}.log"))
    }
}

/// Copies a source tree without the files of [`IGNORED`].
fn copy(tree: &Path, to: &Path) -> Result<()> {
    let text =
        fs::read_to_string(tree.join(IGNORED)).with_context(|| format!("reading {IGNORED}"))?;
    let ignored = ignored_names(&text)?;
    fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
    let mut command = Command::new("cp");
    command.args(["-a", "--"]);
    for entry in fs::read_dir(tree).with_context(|| format!("reading {}", tree.display()))? {
        let entry = entry?;
        if !ignored.iter().any(|name| entry.file_name() == *name) {
            command.arg(entry.path());
        }
    }
    crate::command::capture(command.arg(to))?;
    Ok(())
}

/// The lines of an ignore file, which must be names of files or folders in the top folder.
fn ignored_names(text: &str) -> Result<Vec<&str>> {
    let lines = text.lines().map(str::trim);
    let names: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    for name in &names {
        ensure!(
            !name.contains(['/', '*', '?', '[', '!', '\\']),
            "{IGNORED}: this test knows names without wildcards and slashes, not {name:?}"
        );
    }
    Ok(names)
}

/// An instruction of a Containerfile, of those kinds that this one has.
#[derive(Debug, PartialEq, Eq)]
enum Instruction {
    From(String),
    /// Copies the whole source tree.
    Copy(String),
    Workdir(String),
    Env(String, String),
    Run(String),
    Entrypoint(Vec<String>),
}

/// The instructions of a Containerfile. Those of other kinds or forms are errors.
fn instructions(text: &str) -> Result<Vec<Instruction>> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let unknown = || format!("{CONTAINERFILE}: this test cannot follow {line:?}");
        if line.ends_with('\\') {
            bail!(unknown());
        }
        let (word, rest) = line.split_once(' ').with_context(unknown)?;
        let owned = rest.to_owned();
        found.push(match word {
            "FROM" => Instruction::From(owned),
            "COPY" => Instruction::Copy(rest.strip_prefix(". ").with_context(unknown)?.to_owned()),
            "WORKDIR" => Instruction::Workdir(owned),
            "ENV" => {
                let (name, value) = rest.split_once('=').with_context(unknown)?;
                Instruction::Env(name.to_owned(), value.to_owned())
            }
            "RUN" => Instruction::Run(owned),
            "ENTRYPOINT" => {
                Instruction::Entrypoint(serde_json::from_str(rest).with_context(unknown)?)
            }
            _ => bail!(unknown()),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_the_containerfile_are_read() {
        let found = instructions(include_str!("../../action/Containerfile")).unwrap();
        let owned = |text: &str| text.to_owned();
        assert_eq!(found[0], Instruction::From(owned(IMAGE)));
        assert_eq!(found[1], Instruction::Copy(owned("/faultline")));
        assert_eq!(found[2], Instruction::Workdir(owned("/faultline")));
        let words = ["cargo", "lab"].map(owned).to_vec();
        assert_eq!(found.last(), Some(&Instruction::Entrypoint(words)));
        assert!(
            matches!(&found[4], Instruction::Run(script) if script.contains("cargo lab image"))
        );
        for other in [
            "USER x",
            "COPY a /b",
            "ENV a",
            "RUN a && \\",
            "ENTRYPOINT cargo lab",
        ] {
            assert!(instructions(other).is_err(), "{other}");
        }
    }

    #[test]
    fn copies_are_without_ignored_names() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, to) = (folder.path().join("tree"), folder.path().join("to"));
        for file in ["target/x", ".git/x", "docs/target/x", ".cargo/config.toml"] {
            let path = tree.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let ignored = include_str!("../../../.dockerignore");
        fs::write(tree.join(IGNORED), ignored).unwrap();
        copy(&tree, &to).unwrap();
        for (file, is_there) in [
            ("target", false),
            (".git", false),
            ("docs/target/x", true),
            (".cargo/config.toml", true),
        ] {
            assert_eq!(to.join(file).exists(), is_there, "{file}");
        }
        assert!(ignored_names("**/target\n").is_err());
    }
}
