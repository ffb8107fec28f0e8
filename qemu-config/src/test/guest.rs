//! Runs tests of the table.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::eviction::Eviction;
use super::links;
use super::page_faults::PageFaults;
use super::pair::{Pair, Pairs};
use super::suite::{Options, Suite};
use super::suites::GuestTest;
use super::tally::{Tally, Verdict};
use crate::cluster::{Plan, TCG_RACE, is_tcg_race};
use crate::command::say;
use crate::debug_kernel;
use crate::exchange;
use crate::image::Kernel;
use crate::progress;
use crate::workspace::Workspace;

/// Number of attempts of a test whose guests die of an error of QEMU.
const ATTEMPTS: u32 = 3;

/// The tests of a suite whose names contain `filter`.
pub fn chosen(suite: Suite, filter: &str, kernel: Kernel, options: &Options) -> Vec<GuestTest> {
    let is_slow = debug_kernel::config(kernel).is_some();
    let mut tests = suite.table().to_vec();
    tests.retain(|test| {
        let name = test.facts.name;
        name.contains(filter)
            && !(is_slow && test.is_too_slow)
            && !options.leaves_out(suite, name, kernel)
    });
    tests
}

/// Runs tests in pairs of `plan`: one for all of them, a fresh one if it dies.
pub fn run(
    workspace: &Workspace,
    tests: &[GuestTest],
    plan: &Plan,
    label: &str,
    pairs: &mut Pairs<'_>,
    tally: &mut Tally,
) -> Result<()> {
    for test in tests {
        if tally.is_over() {
            break;
        }
        let name = format!("{label}::{}", test.facts.name);
        let (mut elapsed, mut verdict) = judge(workspace, &name, test, plan, pairs)?;
        let mut retries = Vec::new();
        for _ in 1..tally.attempts(ATTEMPTS) {
            if !matches!(&verdict, Verdict::Failed(why) if is_tcg_race(why)) {
                break;
            }
            say(format!("{TCG_RACE}; once more"));
            retries.push(TCG_RACE);
            (elapsed, verdict) = judge(workspace, &name, test, plan, pairs)?;
        }
        tally.add_after(&name, elapsed, verdict, &retries);
    }
    Ok(())
}

/// Runs a test; returns how long it took, without booting.
fn judge(
    workspace: &Workspace,
    name: &str,
    test: &GuestTest,
    plan: &Plan,
    pairs: &mut Pairs<'_>,
) -> Result<(Duration, Verdict)> {
    let mut pair = pairs.take(plan)?;
    progress::begin(name);
    let started = Instant::now();
    let (verdict, usable) = judge_in(&mut pair, workspace, name, test);
    let elapsed = started.elapsed();
    if usable {
        pairs.keep(pair);
    } else {
        pair.cluster.save_logs();
    }
    Ok((elapsed, verdict))
}

/// Runs a test in a pair. Also returns whether the pair can be used again: not after a failure, because its state is
/// unknown then.
fn judge_in(
    pair: &mut Pair,
    workspace: &Workspace,
    name: &str,
    test: &GuestTest,
) -> (Verdict, bool) {
    let [first, second] = pair.cluster.guests.as_slice() else {
        return (Verdict::Failed("there are not two guests".into()), false);
    };
    let (server, client) = match test.is_reversed {
        true => (second, first),
        false => (first, second),
    };
    let mut problems = Vec::new();
    let faults = |cluster| PageFaults::read(workspace, cluster, test.is_reversed);
    let faults_before = test.faulting.map(|sides| (sides, faults(&pair.cluster)));
    let mut exchange = test.exchange();
    exchange.limit *= pair.cluster.plan.kernel.time_factor();
    let eviction = test
        .evicted
        .map(|period| Eviction::start(workspace, &pair.cluster, period, 2 * exchange.limit));
    match exchange::run(server, client, &exchange) {
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
        Err(error) => problems.push(format!("{error:#}")),
    }
    if let Some(eviction) = eviction
        && let Err(error) = eviction.and_then(Eviction::stop)
    {
        problems.push(format!("{error:#}"));
    }
    if test.is_impaired
        && let Err(error) = links::ensure_impaired(workspace, &pair.cluster)
    {
        problems.push(format!("{error:#}"));
    }
    if let Some((sides, before)) = faults_before {
        let judged = before.and_then(|before| faults(&pair.cluster)?.ensure_more(before, sides));
        problems.extend(judged.err().map(|error| format!("{error:#}")));
    }
    problems.extend(pair.troubles(name));
    if problems.is_empty() {
        return (Verdict::Passed, true);
    }
    let verdict = Verdict::Failed(format!(
        "server: {}\nclient: {}\n{}\nlogs: {}",
        exchange.server,
        exchange.client,
        problems.join("\n"),
        workspace.shown(&pair.cluster.dir)
    ));
    (verdict, false)
}
