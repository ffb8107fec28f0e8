//! The packet checker beside the tests: each emulator of a pair compares what its NICs send with the rules of the specification
//! (docs/packet-checker.md).

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::violating::violates;
use crate::cluster::{Cluster, Nic};
use crate::command::{say, tail};
use crate::emulator;
use crate::workspace::Workspace;

/// Violations that a failed test shows.
const SHOWN: usize = 5;

/// What `faultline ctl check` prints.
#[derive(Debug, Deserialize)]
struct Findings {
    packets: u64,
    lost: u64,
    responses_without_requests: u64,
    violations: Vec<Found>,
    violation_count: u64,
    interfaces: Vec<Interface>,
}

#[derive(Debug, Deserialize)]
struct Found {
    interface: Option<String>,
    text: String,
}

#[derive(Debug, Deserialize)]
struct Interface {
    name: String,
    kind: String,
    violations: u64,
}

impl Findings {
    /// Violations by the project's NICs. Others are of adapters behind ports, and of packets that programs have made.
    fn of_nics(&self) -> u64 {
        let nics = self.interfaces.iter().filter(|of| of.kind == "nic");
        nics.map(|nic| nic.violations).sum()
    }

    /// The violations by NICs, from one on.
    fn texts(&self, from: u64) -> impl Iterator<Item = &str> {
        let is_nic = |name: &str| {
            let mut interfaces = self.interfaces.iter();
            interfaces.any(|of| of.kind == "nic" && of.name == name)
        };
        let found = self.violations.iter();
        let of_nics = found.filter(move |found| found.interface.as_deref().is_some_and(is_nic));
        of_nics
            .skip(usize::try_from(from).unwrap_or(usize::MAX))
            .map(|found| found.text.as_str())
    }

    /// All of it, for a log.
    fn text(&self) -> String {
        let mut text = String::new();
        for found in &self.violations {
            let interface = found.interface.as_deref().unwrap_or("made by a program");
            // Writing to a string does not fail.
            let _ = writeln!(text, "{interface}: {}", found.text);
        }
        text + &self.summary() + "\n"
    }

    fn summary(&self) -> String {
        let all = self.packets.saturating_add(self.lost / 2);
        let share = 100 * self.packets / all.max(1);
        let of_nics = self.of_nics();
        format!(
            "{} packets judged ({share} %), {of_nics} violations by NICs, {} by others, {} responses without a request",
            self.packets,
            self.violation_count - of_nics,
            self.responses_without_requests
        )
    }
}

/// The checker of an emulator.
struct Check {
    control: PathBuf,
    /// Violations by NICs that a test before has had.
    seen: u64,
    /// Its log.
    log: PathBuf,
}

/// The checkers of a pair.
pub struct Checks {
    program: PathBuf,
    checks: Vec<Check>,
}

impl Checks {
    /// Starts them.
    pub fn start(workspace: &Workspace, cluster: &Cluster) -> Result<Self> {
        let program = match cluster.emulator {
            Some(_) => emulator::build(workspace, cluster.plan.profile)?,
            None => PathBuf::new(),
        };
        let mut checks = Self {
            program,
            checks: Vec::new(),
        };
        for (number, emulator) in cluster.emulators().enumerate() {
            let mut arguments = vec!["check", "start"];
            // The adapters behind the ports of a cluster are other emulators' NICs, unless one guest has rxe.
            if !matches!(cluster.plan.nic, Nic::Mixed | Nic::Vhost) {
                arguments.push("--ready");
            }
            let output = checks.ctl(&emulator.control, &arguments)?;
            ensure!(output.1, "the packet checker does not start:\n{}", output.0);
            checks.checks.push(Check {
                control: emulator.control.clone(),
                seen: 0,
                log: cluster.dir.join(format!("packets{number}.log")),
            });
        }
        Ok(checks)
    }

    /// Violations by NICs since the last call. Those of a test that causes them on purpose do not count.
    pub fn troubles(&mut self, test: &str, cluster: &Cluster) -> Vec<String> {
        let mut troubles = Vec::new();
        for (number, emulator) in cluster.emulators().enumerate() {
            // What happens to an emulator that has ended is reported elsewhere.
            if emulator.ended().is_some() {
                continue;
            }
            let found = self.findings(&emulator.control, "show");
            let Some(check) = self.checks.get_mut(number) else {
                continue;
            };
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    troubles.push(format!("the packet checker: {error:#}"));
                    continue;
                }
            };
            let new = found.of_nics() - check.seen.min(found.of_nics());
            if new > 0 && violates(test).is_none() {
                troubles.push(format!("{new} packets violate the specification:"));
                let texts = found.texts(check.seen).take(SHOWN);
                troubles.extend(texts.map(str::to_owned));
            }
            check.seen = found.of_nics();
        }
        troubles
    }

    fn findings(&self, control: &Path, command: &str) -> Result<Findings> {
        let (text, _) = self.ctl(control, &["--json", "check", command])?;
        serde_json::from_str(&text).with_context(|| format!("it has answered {text:?}"))
    }

    /// Runs `faultline ctl`. Returns what it has printed, and true if it has succeeded.
    fn ctl(&self, control: &Path, arguments: &[&str]) -> Result<(String, bool)> {
        let output = emulator::ctl(&self.program, control)
            .args(arguments)
            .output()
            .context("starting faultline")?;
        let text = match output.stdout.is_empty() {
            true => tail(&output.stderr, 20),
            false => String::from_utf8_lossy(&output.stdout).into_owned(),
        };
        Ok((text, output.status.success()))
    }
}

/// Writes the logs, and says how much was judged.
impl Drop for Checks {
    fn drop(&mut self) {
        for check in &self.checks {
            // An emulator that has ended has no answer.
            let Ok(found) = self.findings(&check.control, "stop") else {
                continue;
            };
            let _ = std::fs::write(&check.log, found.text());
            say(format!("packet checker: {}", found.summary()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let interface = |name: &str, kind: &str, violations| Interface {
            name: name.to_owned(),
            kind: kind.to_owned(),
            violations,
        };
        let found = |interface: Option<&str>, text: &str| Found {
            interface: interface.map(str::to_owned),
            text: text.to_owned(),
        };
        Findings {
            packets: 30,
            lost: 20,
            responses_without_requests: 1,
            violations: vec![
                found(Some("nic0"), "a"),
                found(Some("virtio1"), "b"),
                found(None, "c"),
                found(Some("nic1"), "d"),
            ],
            violation_count: 5,
            interfaces: vec![
                interface("nic0", "nic", 1),
                interface("nic1", "nic", 1),
                interface("virtio1", "port", 2),
            ],
        }
    }

    #[test]
    fn only_violations_by_nics_fail_a_test() {
        let found = findings();
        assert_eq!(found.of_nics(), 2);
        assert_eq!(found.texts(0).collect::<Vec<_>>(), ["a", "d"]);
        assert_eq!(found.texts(1).collect::<Vec<_>>(), ["d"]);
        let summary = found.summary();
        let expected = "30 packets judged (75 %), 2 violations by NICs, 3 by others";
        assert!(summary.starts_with(expected), "{summary}");
        assert!(found.text().contains("made by a program: c\n"));
    }
}
