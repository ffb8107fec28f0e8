//! Running other programs: with their output in a log and on failure on the screen, and never outliving the lab.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::{processor_time, progress};

/// Lines of a failed program's log that are shown.
const SHOWN_LINES: usize = 40;

/// Prints one progress line. Progress goes to stderr so that stdout carries results only.
pub fn say(text: impl AsRef<str>) {
    progress::print_error(&format!("lab: {}", text.as_ref()));
}

/// Executes a step of a build, and prints its name, its duration, and the expected duration of the others.
pub fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // While builds run in parallel, the line of progress shows the step.
    if progress::left_of_builds().is_none() {
        say(format!("{what} …"));
    }
    progress::begin(what);
    let started = Instant::now();
    let result = work()?;
    progress::begin("");
    progress::end(what, started.elapsed(), 0);
    let left = match progress::left_of_builds() {
        Some(left) if !left.is_zero() => format!("; {}", progress::in_words(left)),
        _ => String::new(),
    };
    say(format!(
        "{what}: done in {:.1} s{left}",
        started.elapsed().as_secs_f64()
    ));
    Ok(result)
}

/// Runs `command` as a step, with its output in `log`.
///
/// # Errors
/// With the end of the log in the message if the program cannot be started or fails.
pub fn run_logged(what: &str, command: &mut Command, log: &Path) -> Result<()> {
    step(what, || run_into(what, command, log))
}

fn run_into(what: &str, command: &mut Command, log: &Path) -> Result<()> {
    let file = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("opening {}", log.display()))?;
    command
        .stdin(Stdio::null())
        .stdout(
            file.try_clone()
                .context("duplicating the log's descriptor")?,
        )
        .stderr(file);
    let status = processor_time::status(command)
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    if !status.success() {
        let text = fs::read(log).unwrap_or_default();
        bail!(
            "{what}: {status}\n{}\n(all of it: {})",
            tail(&text, SHOWN_LINES),
            log.display()
        );
    }
    Ok(())
}

/// Runs `command` and returns its output on stdout.
pub fn capture(command: &mut Command) -> Result<String> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = processor_time::output(command)
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!(
            "{} failed with {}: {}",
            command.get_program().display(),
            output.status,
            tail(&output.stderr, SHOWN_LINES)
        );
    }
    String::from_utf8(output.stdout).context("output is not UTF-8")
}

/// A command that is killed when the thread that starts it ends, however the lab ends.
///
/// `setpriv` sets the parent-death signal, which Rust's standard library cannot do without unsafe code.
pub fn bound_to_us(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A child process that is killed when this value is dropped.
#[derive(Debug)]
pub struct Owned(Child);

impl Owned {
    /// Starts `command` and takes charge of it.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        Ok(Self(child))
    }

    /// The exit status as text, if the process has ended.
    pub fn ended(&mut self) -> Option<String> {
        match self.0.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            Ok(None) => None,
            Err(error) => Some(format!("cannot be waited for: {error}")),
        }
    }

    /// Its standard input and output, once, if they are pipes.
    pub fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        self.0.stdin.take().zip(self.0.stdout.take())
    }

    /// Its number.
    pub fn id(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.id(), signal).context("sending a signal")
    }

    /// Kills the process and waits for it.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last `lines` lines of `text`, lossily decoded.
pub fn tail(text: &[u8], lines: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let all: Vec<&str> = text.trim_end().lines().collect();
    let skipped = all.len().saturating_sub(lines);
    all.into_iter().skip(skipped).collect::<Vec<_>>().join("\n")
}

/// The path of `program` in `PATH` or the system folders that a user's `PATH` often lacks.
pub fn which(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path)
        .chain(extra)
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_keeps_the_end() {
        assert_eq!(tail(b"a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail(b"a", 5), "a");
        assert_eq!(tail(b"", 5), "");
    }

    #[test]
    fn a_failing_command_reports_its_stderr() {
        let error =
            capture(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
    }

    #[test]
    fn an_owned_process_dies_with_its_value() {
        let mut child = Owned::spawn(Command::new("sleep").arg("1000")).unwrap();
        assert!(child.ended().is_none());
        let proc = format!("/proc/{}/stat", child.0.id());
        drop(child);
        assert!(!Path::new(&proc).exists());
    }
}
