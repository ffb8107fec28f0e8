//! The packet checker beside the tests: each emulator of a pair compares what its NICs send with the rules of the specification
//! (docs/capture.md). `restart` has none, because it ends with the server; nor have the guests of `packages`.
//!
//! A busy machine cannot cause that nothing is judged: the checker loses a packet only while earlier ones wait in its ring, and it judges
//! these later. The checkers of `pingpong`, `odp` and `perftest` took 3.0 s of a processor in 894 s of tests, beside 11.8 s of the engine. On a
//! machine whose two processors were busy with other work as well they judged 60 % of the packets, on the same machine in `interop` all.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::sight::watched::until;
use super::violating::violates;
use crate::cluster::{Cluster, Nic};
use crate::command::{say, tail};
use crate::emulator;
use crate::workspace::Workspace;

/// Violations that a failed test shows.
const SHOWN: usize = 5;
/// Time for the first frame that is judged after a test. The checker has the lowest priority: a busy machine may delay it.
const LATEST: Duration = Duration::from_secs(60);
/// Counter of the RoCE packets that a NIC has sent.
const SENT: &str = "tx_roce_packets";

/// What `faultline ctl check` prints.
#[derive(Debug, Deserialize)]
struct Findings {
    frames: u64,
    packets: u64,
    lost: u64,
    responses_without_requests: u64,
    mixed: u64,
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

    /// Names of the project's NICs.
    fn nics(&self) -> impl Iterator<Item = &str> {
        let nics = self.interfaces.iter().filter(|of| of.kind == "nic");
        nics.map(|nic| nic.name.as_str())
    }

    /// Fails if NICs have sent packets, and no captured frame was a judged packet. On a busy machine frames are lost,
    /// which is no failure: the judged number then depends on how many of the captured frames were packets.
    fn ensure_judged(&self) -> Result<()> {
        ensure!(
            self.packets > 0 || self.lost > 0,
            "NICs have sent packets, and none of {} frames was judged as one",
            self.frames
        );
        Ok(())
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
            "{} packets judged ({share} %), {of_nics} violations by NICs, {} by others, {} responses without a request, {} in mixed connections",
            self.packets,
            self.violation_count - of_nics,
            self.responses_without_requests,
            self.mixed
        )
    }
}

/// The checker of an emulator.
struct Check {
    /// `faultline`.
    program: PathBuf,
    control: PathBuf,
    /// Names of the NICs.
    nics: Vec<String>,
    /// Violations by NICs that a test before has had.
    seen: u64,
    /// Frames that were judged until the last look.
    frames: u64,
    /// Packets that the NICs had sent after it.
    sent: u64,
    /// Its log.
    log: PathBuf,
}

/// The checkers of a pair.
pub struct Checks(Vec<Check>);

impl Checks {
    /// Starts them.
    pub fn start(workspace: &Workspace, cluster: &Cluster) -> Result<Self> {
        // The adapters behind the ports of a cluster are other emulators' NICs, unless one guest has rxe.
        let ready = !matches!(cluster.plan.nic, Nic::Mixed | Nic::Vhost);
        let mut checks = Vec::new();
        for (number, emulator) in cluster.emulators().enumerate() {
            let program = emulator::build(workspace, cluster.plan.profile)?;
            let log = cluster.dir.join(format!("packets{number}.log"));
            checks.push(Check::start(program, emulator.control.clone(), log, ready)?);
        }
        Ok(Self(checks))
    }

    /// Violations by NICs since the last call, and checkers that have judged no packet of NICs since then. The
    /// violations of a test that causes them on purpose do not count.
    pub fn troubles(&mut self, test: &str, cluster: &Cluster) -> Vec<String> {
        let mut troubles = Vec::new();
        for (check, emulator) in self.0.iter_mut().zip(cluster.emulators()) {
            // The end of an emulator is reported elsewhere.
            if emulator.ended().is_some() {
                continue;
            }
            let found = match check.look() {
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
}

impl Check {
    fn start(program: PathBuf, control: PathBuf, log: PathBuf, ready: bool) -> Result<Self> {
        let mut check = Self {
            program,
            control,
            nics: Vec::new(),
            seen: 0,
            frames: 0,
            sent: 0,
            log,
        };
        let start: &[&str] = match ready {
            true => &["check", "start", "--ready"],
            false => &["check", "start"],
        };
        let output = check.run(start)?;
        ensure!(
            output.status.success(),
            "the packet checker does not start:\n{}",
            tail(&output.stderr, 20)
        );
        let found: Findings = check.ctl(&["check", "show"])?;
        check.nics = found.nics().map(str::to_owned).collect();
        check.sent = check.packets_sent()?;
        Ok(check)
    }

    /// The findings until now. Fails if the NICs have sent packets since the last look, and none of them was judged.
    fn look(&mut self) -> Result<Findings> {
        let new = self.packets_sent()?.saturating_sub(self.sent);
        let what = format!("a judgement of the {new} packets that NICs have sent");
        let found = until(&what, LATEST, || {
            let found: Findings = self.ctl(&["check", "show"])?;
            // A packet that was not captured was lost because others were still to be judged.
            let is_judged = new == 0 || found.frames > self.frames;
            Ok(is_judged.then_some(found))
        })?;
        if new > 0 {
            found.ensure_judged()?;
        }
        self.frames = found.frames;
        // Packets until now may be among those frames: the next look is about later ones.
        self.sent = self.packets_sent()?;
        Ok(found)
    }

    /// RoCE packets that the NICs have sent. A reset of a NIC sets its number to 0.
    fn packets_sent(&self) -> Result<u64> {
        let mut sum = 0;
        for nic in &self.nics {
            let counters: BTreeMap<String, u64> = self.ctl(&["counters", nic, "--all"])?;
            let sent = counters.get(SENT);
            sum += sent.with_context(|| format!("{nic} has no counter {SENT}"))?;
        }
        Ok(sum)
    }

    /// Output of `faultline ctl`. The exit status of `check stop` shows whether there were violations.
    fn ctl<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T> {
        let output = self.run(arguments)?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            let arguments = arguments.join(" ");
            let (status, stderr) = (output.status, tail(&output.stderr, 20));
            format!("faultline ctl {arguments} ({status}):\n{stderr}")
        })
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        emulator::ctl(&self.program, &self.control)
            .arg("--json")
            .args(arguments)
            .output()
            .context("starting faultline")
    }
}

/// Writes the log, and says how much was judged.
impl Drop for Check {
    fn drop(&mut self) {
        // An emulator that has ended has no answer.
        let Ok(found) = self.ctl::<Findings>(&["check", "stop"]) else {
            return;
        };
        let _ = std::fs::write(&self.log, found.text());
        say(format!("packet checker: {}", found.summary()));
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
            frames: 33,
            packets: 30,
            lost: 20,
            responses_without_requests: 1,
            mixed: 3,
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
    fn a_checker_that_judges_no_packet_fails() {
        let found = |packets, lost| Findings {
            packets,
            lost,
            ..findings()
        };
        assert!(found(1, 0).ensure_judged().is_ok());
        // A busy machine.
        assert!(found(0, 20).ensure_judged().is_ok());
        let error = found(0, 0).ensure_judged().unwrap_err().to_string();
        assert!(error.contains("none of 33 frames"), "{error}");
        assert_eq!(findings().nics().collect::<Vec<_>>(), ["nic0", "nic1"]);
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
