//! Runs a suite of the table: one pair of guests for all its tests, a fresh pair if one dies or others are asked for.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::table::{self, GuestTest};
use super::{Options, Tally, Verdict, debug};
use crate::cluster::{Cluster, Plan, is_tcg_race};
use crate::command::say;
use crate::exchange;
use crate::image::Kernel;
use crate::workspace::Workspace;

/// How often a test is begun whose guests QEMU itself lets die.
const ATTEMPTS: u32 = 3;

/// The tests of a suite whose names contain `filter`.
pub fn chosen(suite: &str, filter: &str, kernel: Kernel, options: &Options) -> Vec<GuestTest> {
    let too_slow =
        |test: &GuestTest| kernel == Kernel::Debug && debug::TOO_SLOW.contains(&&*test.name);
    let mut tests = table::suite(suite);
    tests.retain(|test| {
        test.name.contains(filter)
            && !too_slow(test)
            && !options.leaves_out(suite, &test.name, kernel)
    });
    tests
}

/// Runs tests in guests of `plan`; begins in the pair that is `kept` if it is that, and keeps the last one.
pub fn run(
    workspace: &Workspace,
    tests: Vec<GuestTest>,
    plan: Plan,
    label: &str,
    dir: &Path,
    kept: &mut Option<Pair>,
    tally: &mut Tally,
) -> Result<()> {
    let kernel = plan.kernel;
    let mut room = Room {
        workspace,
        label,
        plan,
        dir,
        boots: 0,
        pair: kept.take(),
    };
    for mut test in tests {
        test.exchange.limit *= kernel.patience();
        let (mut elapsed, mut verdict) = room.judge(&test, tally)?;
        for _ in 1..ATTEMPTS {
            if !matches!(&verdict, Verdict::Failed(why) if is_tcg_race(why)) {
                break;
            }
            say("a guest died of QEMU's race with self-patching code; once more");
            (elapsed, verdict) = room.judge(&test, tally)?;
        }
        tally.add(&format!("{label}::{}", test.name), elapsed, verdict);
    }
    if kernel == Kernel::Debug {
        // What has leaked is told by suites.
        room.leave(tally);
    }
    *kept = room.pair;
    Ok(())
}

/// Ends the guests that are kept.
pub fn leave(kept: &mut Option<Pair>) {
    if let Some(pair) = kept.take() {
        pair.cluster.save_logs();
    }
}

/// Where the tests of a suite run one after the other.
struct Room<'a> {
    workspace: &'a Workspace,
    /// Suite and kernel.
    label: &'a str,
    plan: Plan,
    dir: &'a Path,
    boots: u32,
    pair: Option<Pair>,
}

impl Room<'_> {
    /// Runs a test in guests that are good for it; gives how long it took, without booting.
    fn judge(&mut self, test: &GuestTest, tally: &mut Tally) -> Result<(Duration, Verdict)> {
        let plan = Plan {
            cpus: test.cpus.or(self.plan.cpus),
            ..self.plan.clone()
        };
        if self
            .pair
            .as_ref()
            .is_some_and(|pair| pair.cluster.plan != plan)
        {
            self.leave(tally);
        }
        let pair = match self.pair.take() {
            Some(pair) => pair,
            None => self.boot(&plan)?,
        };
        let started = Instant::now();
        let (pair, verdict, usable) = pair.judge(self.workspace, test);
        let elapsed = started.elapsed();
        if usable {
            self.pair = Some(pair);
        } else {
            pair.cluster.save_logs();
        }
        Ok((elapsed, verdict))
    }

    fn boot(&mut self, plan: &Plan) -> Result<Pair> {
        self.boots += 1;
        let dir = self.dir.join(format!("boot{}", self.boots));
        std::fs::create_dir_all(&dir)?;
        Ok(Pair {
            cluster: Cluster::boot(self.workspace, plan, &dir)?,
            seen: vec![0; 2],
        })
    }

    /// Ends the guests that are there.
    fn leave(&mut self, tally: &mut Tally) {
        if let Some(pair) = &self.pair
            && pair.cluster.plan.kernel == Kernel::Debug
        {
            debug::look_for_leaks(&pair.cluster, self.label, tally);
        }
        leave(&mut self.pair);
    }
}

/// Two guests.
pub struct Pair {
    cluster: Cluster,
    /// How much of their serial output has been looked at.
    seen: Vec<usize>,
}

impl Pair {
    /// Runs one test. The pair comes back, and whether it can be used again.
    fn judge(mut self, workspace: &Workspace, test: &GuestTest) -> (Self, Verdict, bool) {
        let [server, client] = self.cluster.guests.as_slice() else {
            let verdict = Verdict::Failed("there are not two guests".into());
            return (self, verdict, false);
        };
        let result = exchange::run(server, client, &test.exchange);
        let mut problems = Vec::new();
        let mut usable = true;
        match &result {
            Ok(report) => {
                if !report.success() {
                    problems.push(report.text(40));
                } else if !report.client.text().contains(test.expect) {
                    problems.push(format!(
                        "the client did not say {:?}\n{}",
                        test.expect,
                        report.text(40)
                    ));
                }
            }
            Err(error) => {
                usable = false;
                problems.push(format!("{error:#}"));
            }
        }
        for (guest, seen) in self.cluster.guests.iter().zip(&mut self.seen) {
            let complaints = guest.complaints(*seen);
            *seen = guest.serial().len();
            // A kernel that has complained once is no ground for further tests.
            usable &= complaints.is_empty();
            problems.extend(
                complaints
                    .into_iter()
                    .map(|line| format!("guest {} kernel: {line}", guest.index)),
            );
        }
        if let Some(status) = self
            .cluster
            .emulator
            .as_ref()
            .and_then(crate::emulator::Emulator::ended)
        {
            usable = false;
            problems.push(format!("the emulator ended: {status}"));
        }
        let verdict = if problems.is_empty() {
            Verdict::Passed
        } else {
            let logs = workspace.shown(&self.cluster.dir).to_string();
            Verdict::Failed(format!(
                "server: {}\nclient: {}\n{}\nlogs: {logs}",
                test.exchange.server,
                test.exchange.client,
                problems.join("\n")
            ))
        };
        (self, verdict, usable)
    }
}
