//! Runs a suite of the table: one pair of guests for all its tests, a fresh pair if one dies.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::table::{self, GuestTest};
use super::{Options, Tally, Verdict, debug, needs};
use crate::cluster::Cluster;
use crate::exchange;
use crate::image::Kernel;
use crate::workspace::Workspace;

/// Runs the tests of `suite` whose names contain `filter`.
pub fn run(
    workspace: &Workspace,
    suite: &str,
    filter: &str,
    kernel: Kernel,
    options: &Options,
    dir: &Path,
    tally: &mut Tally,
) -> Result<()> {
    let tests: Vec<GuestTest> = table::suite(suite)
        .into_iter()
        .filter(|test| test.name.contains(filter))
        .collect();
    if tests.is_empty() {
        return Ok(());
    }
    let plan = needs::plan(workspace.root(), suite, kernel, options);
    let mut pair: Option<Pair> = None;
    let mut boots = 0;
    for mut test in tests {
        let name = format!("{suite}::{}::{}", kernel.name(), test.name);
        let current = match pair.take() {
            Some(pair) => pair,
            None => {
                boots += 1;
                let dir = dir.join(format!("boot{boots}"));
                std::fs::create_dir_all(&dir)?;
                Pair {
                    cluster: Cluster::boot(workspace, &plan, &dir)?,
                    seen: vec![0; 2],
                }
            }
        };
        test.exchange.limit *= kernel.patience();
        let (verdict, usable) = current.judge(workspace, &test, &name, tally);
        if usable {
            pair = Some(verdict);
        } else {
            verdict.cluster.save_logs();
        }
    }
    if let Some(pair) = pair {
        if kernel == Kernel::Debug {
            let prefix = format!("{suite}::{}", kernel.name());
            debug::look_for_leaks(&pair.cluster, &prefix, tally);
        }
        pair.cluster.save_logs();
    }
    Ok(())
}

/// Two guests and how much of their serial output has been looked at.
struct Pair {
    cluster: Cluster,
    seen: Vec<usize>,
}

impl Pair {
    /// Runs one test and counts it. The pair comes back, and whether it can be used again.
    fn judge(
        mut self,
        workspace: &Workspace,
        test: &GuestTest,
        name: &str,
        tally: &mut Tally,
    ) -> (Self, bool) {
        let started = Instant::now();
        let [server, client] = self.cluster.guests.as_slice() else {
            tally.add(
                name,
                started.elapsed(),
                Verdict::Failed("there are not two guests".into()),
            );
            return (self, false);
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
        tally.add(name, started.elapsed(), verdict);
        (self, usable)
    }
}
