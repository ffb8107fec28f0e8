//! A bash on the host that runs commands one after the other, as a user's does.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command::{Owned, bound_to_us};

/// Printed after each command, with its exit status.
const END: &str = "end of command:";

/// The shell. Variables and the working directory last from command to command.
pub struct HostShell {
    /// Killed with this value.
    _process: Owned,
    input: std::process::ChildStdin,
    lines: Receiver<String>,
}

/// What a command came to.
pub struct Ended {
    /// Its exit status.
    pub status: i32,
    /// What it has printed, on both.
    pub output: String,
}

impl HostShell {
    /// Starts it in a directory.
    pub fn start(directory: &Path) -> Result<Self> {
        let mut command = bound_to_us("bash");
        command
            .args(["--noprofile", "--norc"])
            .current_dir(directory)
            .env_remove("FAULTLINE_CONTROL")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = Owned::spawn(&mut command).context("starting bash")?;
        let (input, output) = child.pipes().context("bash has no pipes")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut shell = Self {
            _process: child,
            input,
            lines,
        };
        shell.write("exec 2>&1\n")?;
        Ok(shell)
    }

    /// Runs a command to its end.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Ended> {
        // The command must not read the input of the shell. Its last line may lack an end.
        self.write(&format!(
            "{{ {command}\n}} </dev/null; printf '\\n{END}%d\\n' $?\n"
        ))?;
        let end = Instant::now() + limit;
        let mut output = String::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                bail!(
                    "{command:?} did not end in {} s; it said:\n{output}",
                    limit.as_secs()
                );
            };
            match line.strip_prefix(END) {
                Some(status) => {
                    let status = status.parse().context("reading an exit status")?;
                    let output = output.strip_suffix('\n').unwrap_or(&output).to_owned();
                    return Ok(Ended { status, output });
                }
                None => {
                    output.push_str(&line);
                    output.push('\n');
                }
            }
        }
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.input
            .write_all(text.as_bytes())
            .context("the shell of the host has ended")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_the_directory_last() {
        let directory = tempfile::tempdir().unwrap();
        let mut shell = HostShell::start(directory.path()).unwrap();
        let mut run = |command: &str| {
            let ended = shell.run(command, Duration::from_secs(10)).unwrap();
            (ended.status, ended.output)
        };
        assert_eq!(run("export A=1; mkdir b; cd b"), (0, String::new()));
        assert_eq!(run("echo $A; basename $PWD; cat"), (0, "1\nb\n".into()));
        assert_eq!(run("printf x; echo y >&2; (exit 3)"), (3, "xy\n".into()));
        assert!(shell.run("sleep 60", Duration::from_millis(100)).is_err());
    }
}
