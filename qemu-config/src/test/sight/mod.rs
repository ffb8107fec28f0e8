//! The suite `sight`: the host shows the same state and events of the device as the guests. `tour` executes the
//! tutorial's commands.

mod counts;
mod fatal;
pub mod host_shell;
mod link_speed;
mod sql;
mod storm;
mod tour;
pub mod tutorial;
pub mod watched;

use std::time::{Duration, Instant};

use anyhow::Result;

use self::watched::Watched;
use super::facts::{On, Row, SuiteFacts, row, runs};
use super::pair::Pairs;
use super::tally::{Tally, Verdict};
use crate::cluster::{Nic, Plan, TCG_RACE, is_tcg_race};
use crate::command::say;
use crate::progress;
use crate::workspace::Workspace;

/// A test in a pair of guests.
pub type Test = fn(&Watched<'_>) -> Result<()>;

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "sight",
    shows: "The host sees what the device does as the guests see it.",
    runs: runs(
        On::First,
        On::First,
        "observation of the device from outside",
    ),
};

/// The tests.
pub const TESTS: &[Row<Test>] = &[
    row::<Test>(
        "tour",
        "docs/tutorial-sight.md is executed, and prints what it shows.",
        tour::run,
    ),
    row::<Test>(
        "counts",
        "Trace, metrics, report, API, log and the guest's tracepoints agree on a \
         storm of page faults.",
        counts::run,
    ),
    row::<Test>(
        "link_speed",
        "Guests show the speed that `faultline ctl link --speed` sets.",
        link_speed::run,
    ),
    // The device has to be reset after it.
    row::<Test>(
        "fatal",
        "devlink reports an injected fatal error and its cause; `auto_recover false` \
         is kept.",
        fatal::run,
    ),
];

/// Attempts of a test whose guests die of an error of QEMU.
const ATTEMPTS: u32 = 3;

/// Runs tests in pairs of `plan`.
pub fn run(
    workspace: &Workspace,
    tests: &[Row<Test>],
    plan: &Plan,
    label: &str,
    pairs: &mut Pairs<'_>,
    tally: &mut Tally,
) -> Result<()> {
    for &Row { facts, run } in tests {
        let name = facts.name;
        if tally.is_over() {
            break;
        }
        let full = format!("{label}::{name}");
        if plan.nic != Nic::Faultline {
            let reason = "only for the NIC of this project".into();
            tally.add(&full, Duration::ZERO, Verdict::Skipped(reason));
            continue;
        }
        let (mut elapsed, mut result) = judge(workspace, pairs, plan, &full, (name, run))?;
        let mut retries = Vec::new();
        for _ in 1..tally.attempts(ATTEMPTS) {
            if !matches!(&result, Err(error) if is_tcg_race(&format!("{error:#}"))) {
                break;
            }
            say(format!("{TCG_RACE}; once more"));
            retries.push(TCG_RACE);
            (elapsed, result) = judge(workspace, pairs, plan, &full, (name, run))?;
        }
        let verdict = match result {
            Ok(()) => Verdict::Passed,
            Err(error) => Verdict::Failed(format!(
                "{error:#}\nlogs: {}",
                workspace.shown(&pairs.last_dir())
            )),
        };
        tally.add_after(&full, elapsed, verdict, &retries);
    }
    Ok(())
}

/// Runs a test in a pair, which is kept if it works afterwards. Returns how long it took, without booting.
fn judge(
    workspace: &Workspace,
    pairs: &mut Pairs<'_>,
    plan: &Plan,
    full: &str,
    (name, test): (&str, Test),
) -> Result<(Duration, Result<()>)> {
    let mut pair = pairs.take(plan)?;
    progress::begin(full);
    let started = Instant::now();
    let result = Watched::new(workspace, &pair.cluster, name).and_then(|watched| test(&watched));
    let elapsed = started.elapsed();
    let troubles = pair.troubles(full).join("\n");
    let result = match result {
        Err(error) if !troubles.is_empty() => Err(error.context(troubles)),
        Ok(()) if !troubles.is_empty() => Err(anyhow::Error::msg(troubles)),
        result => result,
    };
    let all_run = !pair.cluster.guests.iter().any(|guest| guest.is_off());
    match &result {
        Ok(()) if all_run => pairs.keep(pair),
        _ => pair.cluster.save_logs(),
    }
    Ok((elapsed, result))
}
