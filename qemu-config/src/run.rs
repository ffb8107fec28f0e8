//! `cargo lab run`: a user's script in freshly booted guests.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use faultline_files::check_writable;

use crate::cluster::{Cluster, Plan, in_parallel};
use crate::command::say;
use crate::guest::{Guest, Outcome, Status};
use crate::protocol::Exec;
use crate::scenario::verdict::{self, Check};
use crate::workspace::Workspace;

/// The exit status of a script that was killed because it exceeded its time limit, as of `timeout`.
const TIMED_OUT: u8 = 124;

/// The commands of a run, and the place of its results.
#[derive(Debug, Args)]
pub struct Request {
    /// The script
    #[arg(long, value_name = "FILE")]
    pub script: PathBuf,
    /// Seconds after which the script is killed
    #[arg(long, value_name = "S", default_value_t = 600)]
    pub timeout: u64,
    /// Write the results to this file as JUnit XML: a test case for each guest
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Put logs and artefacts into this folder, instead of a new one below target/lab
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
}

/// Boots the plan's guests, runs the script in all of them at the same time, and copies their artefacts to the host. Returns an exit
/// status: see [`exit_status`].
pub fn run(workspace: &Workspace, plan: &Plan, request: &Request) -> Result<u8> {
    let script = &request.script;
    ensure!(script.is_file(), "there is no script {}", script.display());
    request.junit.as_deref().map(check_writable).transpose()?;
    let limit = Duration::from_secs(request.timeout);
    let text =
        fs::read_to_string(script).with_context(|| format!("reading {}", script.display()))?;
    let name = script
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    let dir = match &request.results {
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
            std::path::absolute(dir)?
        }
        None => workspace.new_run(&format!("run-{}", tidy(&name)))?,
    };
    say(format!("logs and artefacts: {}", workspace.shown(&dir)));
    let cluster = Cluster::boot(workspace, plan, &dir)?;
    let started = Instant::now();
    let outcomes = in_parallel(cluster.guests.clone(), |guest| run_in(&guest, &text, limit))?;
    let seconds = started.elapsed().as_secs_f64();
    for (guest, outcome) in cluster.guests.iter().zip(&outcomes) {
        if !outcome.success() {
            say(format!("guest {}: {}", guest.index, outcome.describe()));
        }
    }
    let troubles = cluster.troubles();
    for trouble in &troubles {
        say(trouble);
    }
    cluster.save_logs();
    if let Some(junit) = &request.junit {
        let checks: Vec<Check> = outcomes.iter().enumerate().map(check).collect();
        let text = verdict::junit(&name, seconds, &checks, &troubles);
        fs::write(junit, text).with_context(|| format!("writing {}", junit.display()))?;
    }
    let ends: Vec<&Status> = outcomes.iter().map(|outcome| &outcome.status).collect();
    let status = exit_status(&ends, !troubles.is_empty());
    say(format!(
        "{}; logs and artefacts: {}",
        if status == 0 { "success" } else { "FAILED" },
        workspace.shown(&dir)
    ));
    Ok(status)
}

/// A guest's script as a test case.
fn check((index, outcome): (usize, &Outcome)) -> Check {
    Check {
        name: format!("guest {index}"),
        passed: outcome.success(),
        found: outcome.describe(),
        expected: "exit status 0".to_owned(),
    }
}

/// The status of the first script that has failed; 1 if all have succeeded and there were troubles.
fn exit_status(ends: &[&Status], is_troubled: bool) -> u8 {
    let codes = ends.iter().map(|end| match end {
        Status::Exited(code) => u8::try_from(*code).unwrap_or(1),
        Status::TimedOut => TIMED_OUT,
    });
    let failed = codes.into_iter().find(|&code| code != 0);
    failed.unwrap_or(u8::from(is_troubled))
}

fn run_in(guest: &Arc<Guest>, script: &str, limit: Duration) -> Result<Outcome> {
    // Run as a file, so that `$0` and `set -e` mean what the author expects.
    guest.put("/run/lab-script", script.as_bytes())?;
    let exec = Exec {
        script:
            "chmod 755 /run/lab-script
                 read -r first </run/lab-script
                 case $first in '#!'*) exec /run/lab-script ;; *) exec bash /run/lab-script ;; esac"
                .to_owned(),
        // bash reads this file before a script, so its functions are defined in scripts, too.
        env: vec![("BASH_ENV".to_owned(), "/lab/lib.sh".to_owned())],
        ..Exec::default()
    };
    let mut printer = Prefixed::new(format!("[g{}] ", guest.index));
    let outcome = guest
        .start(&exec)?
        .wait(limit, &mut |bytes| printer.print(bytes))?;
    printer.finish();
    fs::write(guest.dir.join("output.log"), &outcome.both)
        .context("keeping the script's output")?;
    guest.fetch_folder("/tmp/artefacts", &guest.dir.join("artefacts"))?;
    Ok(outcome)
}

/// A name that is safe in a path.
fn tidy(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(40)
        .collect()
}

/// Prints whole lines with a prefix, so that the output of several guests stays readable.
pub struct Prefixed {
    prefix: String,
    rest: Vec<u8>,
}

impl Prefixed {
    /// A printer with this prefix.
    pub fn new(prefix: String) -> Self {
        Self {
            prefix,
            rest: Vec::new(),
        }
    }

    /// Prints the lines that `bytes` completes.
    pub fn print(&mut self, bytes: &[u8]) {
        for line in self.lines(bytes) {
            emit(&line);
        }
    }

    /// Prints an unfinished last line.
    pub fn finish(&mut self) {
        if !self.rest.is_empty() {
            self.print(b"\n");
        }
    }

    /// Passes the lines that `bytes` completes to `sink`, without their line ends.
    pub fn pass(&mut self, bytes: &[u8], sink: &dyn Fn(&str)) {
        for line in self.lines(bytes) {
            sink(String::from_utf8_lossy(&line).trim_end());
        }
    }

    /// Passes an unfinished last line to `sink`.
    pub fn pass_rest(&mut self, sink: &dyn Fn(&str)) {
        if !self.rest.is_empty() {
            self.pass(b"\n", sink);
        }
    }

    fn lines(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let mut line = self.prefix.clone().into_bytes();
            line.extend(self.rest.drain(..=end));
            lines.push(line);
        }
        lines
    }
}

fn emit(line: &[u8]) {
    // An error means that the reader has closed the pipe: it needs no more output.
    let _ = std::io::stdout().lock().write_all(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prefixed_once_complete() {
        let mut printer = Prefixed::new("[g1] ".into());
        assert!(printer.lines(b"one").is_empty());
        assert_eq!(
            printer.lines(b" more\ntwo\nthr"),
            [b"[g1] one more\n".to_vec(), b"[g1] two\n".to_vec()]
        );
        assert_eq!(printer.lines(b"\n"), [b"[g1] thr\n".to_vec()]);
    }

    #[test]
    fn the_exit_status_is_that_of_a_script() {
        let [good, three, late] = [Status::Exited(0), Status::Exited(3), Status::TimedOut];
        assert_eq!(exit_status(&[&good, &good], false), 0);
        assert_eq!(exit_status(&[&good, &good], true), 1);
        assert_eq!(exit_status(&[&good, &three, &late], true), 3);
        assert_eq!(exit_status(&[&late, &three], false), TIMED_OUT);
        assert_eq!(exit_status(&[&Status::Exited(-1)], false), 1);
    }

    #[test]
    fn names_are_tidied() {
        assert_eq!(tidy("my script/1.sh"), "my-script-1-sh");
    }
}
