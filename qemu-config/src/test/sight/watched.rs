//! The objects of the suite's tests: a pair of guests, and the programs that show the work of its NICs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, Plan};
use crate::command::capture;
use crate::emulator;
use crate::guest::Guest;
use crate::workspace::Workspace;

/// Time for anything that takes a moment.
pub const SHORT: Duration = Duration::from_secs(60);
/// A pair of guests, and the programs that show the work of its NICs.
pub struct Watched<'a> {
    /// Name of the test.
    pub name: &'a str,
    pub workspace: &'a Workspace,
    pub plan: &'a Plan,
    pub cluster: &'a Cluster,
    pub server: &'a Guest,
    pub client: &'a Guest,
    /// The program `faultline`.
    pub program: PathBuf,
    /// Socket of the control server.
    pub control: PathBuf,
    /// For the files of the test.
    pub logs: PathBuf,
}

impl<'a> Watched<'a> {
    pub fn new(workspace: &'a Workspace, cluster: &'a Cluster, name: &'a str) -> Result<Self> {
        let [server, client] = cluster.guests.as_slice() else {
            bail!("there are not two guests")
        };
        let emulator = cluster.emulator.as_ref().context("there is no emulator")?;
        let logs = cluster.dir.join(format!("sight-{name}"));
        fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
        Ok(Self {
            name,
            workspace,
            plan: &cluster.plan,
            cluster,
            server,
            client,
            program: emulator::build(workspace, cluster.plan.profile)?,
            control: emulator.control.clone(),
            logs,
        })
    }

    /// Output of `faultline`. Files in its arguments are in the folder of the test.
    pub fn faultline(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("FAULTLINE_CONTROL", &self.control)
            .current_dir(&self.logs);
        capture(&mut command).with_context(|| arguments.join(" "))
    }

    /// The same of `faultline ctl`, as JSON.
    pub fn ctl(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.faultline(&[&["ctl", "--json"], arguments].concat())?;
        serde_json::from_str(&text).with_context(|| format!("reading {text:?}"))
    }

    /// Waits for a line with these words in the log of the process.
    pub fn expect_log(&self, words: &[&str], limit: Duration) -> Result<()> {
        until(
            &format!("a message with {words:?} in the log"),
            limit,
            || {
                let has =
                    |line: &String| words.iter().all(|word| line.split(' ').any(|w| w == *word));
                Ok(self.log()?.iter().any(has).then_some(()))
            },
        )
    }

    /// The lines of the process's log.
    pub fn log(&self) -> Result<Vec<String>> {
        let log = self.cluster.dir.join("emulator.log");
        let text = fs::read_to_string(&log).context("reading the log")?;
        Ok(text.lines().map(plain).collect())
    }
}

/// A line without escape sequences: a log may be coloured.
fn plain(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    text
}

/// Reads an SVG picture.
pub fn picture(file: &Path) -> Result<String> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("reading {shown}"))?;
    let is_picture = text.starts_with("<svg") && text.trim_end().ends_with("</svg>");
    ensure!(is_picture, "{shown} is not a picture");
    Ok(text)
}

/// Repeats `look` until it gives something.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(
            started.elapsed() < limit,
            "{what}: not within {} s",
            limit.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_removed() {
        assert_eq!(plain("\x1b[2ma\x1b[0m b=\x1b[3m1"), "a b=1");
    }
}
