//! Building and starting `faultline serve`.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{Owned, bound_to_us, capture, step, tail};
use crate::processes::children;
use crate::processor_time;
use crate::workspace::Workspace;

/// The step in which it is built.
pub const BUILDING: &str = "building the emulator";
const BINARY: &str = "faultline";

/// Time limit for the creation of the emulator's sockets.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Its niceness above that of the lab. A polling guest and a polling engine on the same core take turns in the scheduler's
/// slices of milliseconds, unless the engine may preempt the guest: measured on two cores, the median 8-byte write falls from
/// 2000 to 20 µs.
pub const NICENESS: i32 = -20;

/// How to start an emulator.
#[derive(Debug, Default)]
pub struct Settings<'a> {
    /// Configuration file.
    pub config: Option<&'a Path>,
    /// Path of its control socket, if it is not to be beside the other sockets.
    pub control: Option<&'a Path>,
    /// Profile of NICs that have none in the configuration file.
    pub nic_profile: Option<&'a str>,
    /// Engine threads, if not one.
    pub engines: usize,
    /// A supervisor holds the guests' connections, and starts the emulator again.
    pub supervisor: bool,
    /// The guests leave no core to the engine.
    pub crowded: bool,
    /// `[[port]]` tables for its configuration.
    pub ports: String,
    /// Network namespace in which it runs.
    pub namespace: Option<String>,
}

/// A running emulator.
pub struct Emulator {
    process: Mutex<Owned>,
    /// One vfio-user socket per NIC.
    pub sockets: Vec<PathBuf>,
    /// The socket of its control server.
    pub control: PathBuf,
}

/// A cargo profile in which the emulator is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// The profile of `cargo lab`: its dependencies are compiled already.
    Quick,
    /// The profile of users.
    Release,
}

impl Profile {
    /// Name for `cargo --profile`.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Quick => "quick",
            Profile::Release => "release",
        }
    }
}

/// Builds the `faultline` binary and returns its path. A lab builds it once in each profile: all guests of a run have the
/// same.
///
/// The lab names binaries to cargo, never packages: cargo then enables the features of all packages, so the common
/// crates of two binaries are compiled once.
pub fn build(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    static BUILT: Mutex<Vec<(Profile, PathBuf)>> = Mutex::new(Vec::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, program)) = built.iter().find(|(of, _)| *of == profile) {
        return Ok(program.clone());
    }
    let program = build_now(workspace, profile)?;
    built.push((profile, program.clone()));
    Ok(program)
}

/// The file that cargo makes in a profile. Once it is there, little is left to do.
pub fn binary(workspace: &Workspace, profile: Profile) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = workspace.root().join(target).join(profile.name());
    folder.join(BINARY)
}

fn build_now(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    let build = Build {
        profile,
        selection: ["--bin", BINARY],
        name: BINARY,
        is_reproducible: false,
    };
    step(BUILDING, || build.run(workspace))
}

/// What cargo builds, and how.
#[derive(Debug)]
pub struct Build<'a> {
    /// Profile.
    pub profile: Profile,
    /// The arguments that select the program.
    pub selection: [&'a str; 2],
    /// The program.
    pub name: &'a str,
    /// Without flags and incremental compilation of the environment, which would make other code.
    pub is_reproducible: bool,
}

impl Build<'_> {
    /// Runs cargo. Returns the path of the program.
    pub fn run(&self, workspace: &Workspace) -> Result<PathBuf> {
        let name = self.name;
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .args(["build", "--profile", self.profile.name(), "--quiet"])
            .args(self.selection)
            .arg("--message-format=json-render-diagnostics")
            .current_dir(workspace.root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if self.is_reproducible {
            command
                .env("CARGO_INCREMENTAL", "0")
                .env_remove("RUSTFLAGS")
                .env_remove("CARGO_ENCODED_RUSTFLAGS");
        }
        let output = processor_time::output(&mut command).context("starting cargo")?;
        ensure!(output.status.success(), "{name} does not build (see above)");
        executable(&String::from_utf8_lossy(&output.stdout), name)
            .with_context(|| format!("cargo named no executable {name}"))
    }
}

/// The path of a binary in cargo's JSON messages.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| {
            let target = message.get("target")?;
            let is_binary = target
                .get("kind")?
                .as_array()?
                .iter()
                .any(|kind| kind == "bin");
            (is_binary && target.get("name")? == name).then_some(())?;
            message.get("executable")?.as_str().map(PathBuf::from)
        })
}

/// `faultline ctl` on the emulator with this control socket.
pub fn ctl(program: &Path, control: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("ctl")
        .env("FAULTLINE_CONTROL", control)
        .stdin(Stdio::null());
    command
}

impl Settings<'_> {
    /// The configuration file, if there is anything to configure. It is the given one, or one at `path` with the ports as well.
    fn config_file(&self, path: &Path) -> Result<Option<PathBuf>> {
        if self.ports.is_empty() {
            return Ok(self.config.map(Path::to_owned));
        }
        let mut text = match self.config {
            Some(config) => fs::read_to_string(config)
                .with_context(|| format!("reading {}", config.display()))?,
            None => String::new(),
        };
        text.push('\n');
        text += &self.ports;
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(Some(path.to_owned()))
    }
}

impl Emulator {
    /// Starts one emulator with NICs of these numbers on one switch; sockets go to `sockets`, its log to `dir`.
    ///
    /// Must be called on a thread that lives as long as the emulator: it dies with it.
    pub fn start(
        program: &Path,
        nics: Range<usize>,
        settings: &Settings<'_>,
        sockets: &Path,
        dir: &Path,
    ) -> Result<Self> {
        // Of several emulators, the first has the names that it has alone.
        let suffix = match nics.start {
            0 => String::new(),
            first => first.to_string(),
        };
        let log = dir.join(format!("emulator{suffix}.log"));
        let file = File::create(&log).context("creating the emulator's log")?;
        // Without the right to a negative niceness, `nice` warns and runs the program all the same.
        let mut command = bound_to_us("nice");
        command.args(["-n", &NICENESS.to_string()]);
        if let Some(namespace) = &settings.namespace {
            command.args(["ip", "netns", "exec", namespace]);
        }
        command.arg(program).arg("serve");
        if settings.supervisor {
            command.arg("--supervisor");
        }
        if let Some(config) = settings.config_file(&dir.join(format!("emulator{suffix}.toml")))? {
            command.arg("--config").arg(config);
        }
        // The fewer processors there are, the sooner the engine must let a guest run.
        if settings.config.is_none() && settings.crowded {
            command.args(["--poll-time", "20"]);
        }
        if settings.engines > 1 {
            command.args(["--engines", &settings.engines.to_string()]);
        }
        if let Some(profile) = settings.nic_profile {
            command.args(["--profile", profile]);
        }
        let control = match settings.control {
            Some(control) => control.to_owned(),
            None => sockets.join(format!("control{suffix}.sock")),
        };
        command.arg("--control").arg(&control);
        let mut paths = Vec::new();
        for index in nics {
            let path = sockets.join(format!("nic{index}.sock"));
            command
                .arg("--nic")
                .arg(format!("nic{index}={}", path.display()));
            paths.push(path);
        }
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("duplicating the log")?)
            .stderr(file);
        let mut process = Owned::spawn(&mut command).context("starting the emulator")?;
        let started = Instant::now();
        let id = process.id();
        while !paths.iter().all(|path| is_listening(id, path)) {
            let said = || tail(&fs::read(&log).unwrap_or_default(), 20);
            if let Some(status) = process.ended() {
                bail!("the emulator ended at once ({status}):\n{}", said());
            }
            ensure!(
                started.elapsed() < START_LIMIT,
                "the emulator made no sockets in {} s:\n{}",
                START_LIMIT.as_secs(),
                said()
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Self {
            process: Mutex::new(process),
            sockets: paths,
            control,
        })
    }

    /// Its process.
    pub fn id(&self) -> Pid {
        self.lock().id()
    }

    /// Exit status of a process that has ended.
    pub fn ended(&self) -> Option<String> {
        self.lock().ended()
    }

    /// Kills it, as a crash would.
    pub fn kill(&self) {
        self.lock().kill();
    }

    /// Lets a supervisor start its server anew.
    pub fn renew(&self) -> Result<()> {
        self.lock().signal(Signal::HUP)
    }

    /// Kills the server behind a supervisor.
    pub fn end_server(&self, signal: Signal) -> Result<()> {
        let servers = children(self.id().as_raw_pid());
        let server = servers.into_iter().find_map(Pid::from_raw);
        let server = server.context("the supervisor has no server")?;
        kill_process(server, signal).context("ending the server")
    }

    /// Stops it, as a debugger would, until [`Self::go_on`].
    pub fn stop(&self) -> Result<()> {
        self.lock().signal(Signal::STOP)
    }

    /// Continues it after [`Self::stop`].
    pub fn go_on(&self) -> Result<()> {
        self.lock().signal(Signal::CONT)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Owned> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if a listening socket exists at `path` in the network namespace of a process. This must not connect, because each
/// connection is a client.
fn is_listening(process: Pid, path: &Path) -> bool {
    let table = format!("/proc/{}/net/unix", process.as_raw_pid());
    let Ok(table) = fs::read_to_string(table) else {
        return UnixStream::connect(path).is_ok();
    };
    listens(&table, &path.to_string_lossy())
}

/// True if the kernel's table of Unix sockets has a listening one (flag `__SO_ACCEPTCON`) at `path`.
fn listens(table: &str, path: &str) -> bool {
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(7..).is_some_and(|rest| rest.join(" ") == path)
            && fields.get(3) == Some(&"00010000")
    })
}

/// Runs `faultline --version`, to be recorded.
pub fn version(program: &Path) -> String {
    capture(Command::new(program).arg("--version"))
        .unwrap_or_else(|_| "unknown".into())
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_in_cargo_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"faultline"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"faultline"},"executable":"/t/faultline"}"#,
            "\nnot json\n"
        );
        assert_eq!(
            executable(messages, "faultline"),
            Some(PathBuf::from("/t/faultline"))
        );
        assert_eq!(executable(messages, "other"), None);
    }

    #[test]
    fn only_listening_sockets_count() {
        let table = "Num RefCount Protocol Flags Type St Inode Path\n\
                     0: 00000002 00000000 00010000 0001 01 1 /tmp/a\n\
                     0: 00000002 00000000 00000000 0001 03 2 /tmp/b\n";
        assert!(listens(table, "/tmp/a"));
        assert!(!listens(table, "/tmp/b"));
        assert!(!listens(table, "/tmp"));
    }
}
