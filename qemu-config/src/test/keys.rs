//! The suite `keys`: operations of work requests on memory keys, and the duration of an invalidation.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::cargo::{cargo, count_cargo_test};
use super::facts::{Facts, On, SuiteFacts, facts, runs};
use super::host::When;
use super::pyverbs::Test;
use super::tally::{Tally, Verdict};
use crate::bench::harness_arguments;
use crate::emulator::Profile;
use crate::progress;
use crate::workspace::Workspace;

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "keys",
    shows: "Memory keys behave as docs/memory-keys.md says.",
    runs: runs(
        On::First,
        On::First,
        "memory keys; the device's part does not depend on the kernel",
    ),
};

/// Without guests.
pub const STEPS: &[Facts] = &[
    facts("simulator", "The simulator's tests of keys pass."),
    facts(
        "delay",
        "An invalidation takes at most 20 times as long beside a saturated queue \
         pair.",
    ),
];

/// Largest allowed ratio of the duration of an invalidation while another queue pair saturates the device, to that on
/// an idle device.
const MOST_DELAY: f64 = 20.0;
/// Measurements of it, at most. Of a hundred invalidations one waits for a processor on most busy hosts.
const TRIES: usize = 10;

/// rdma-core's own.
pub const PYVERBS: &[Test] = &[
    of("test_mr", "test_mw_type1"),
    of("test_mr", "test_invalidate_mw_type1"),
    of("test_mr", "test_mw_type2"),
    of("test_mr", "test_mw_type2_invalidate_local"),
    of("test_mr", "test_mw_type2_invalidate_remote"),
    of("test_mr", "test_mw_type2_invalidate_dealloc"),
    of("test_mr", "test_reg_mw_wrong_type"),
    of("test_qpex", "test_qp_ex_rc_bind_mw"),
    of("test_qpex", "test_qp_ex_rc_flush"),
    of("test_qpex", "test_qp_ex_rc_flush_type_violate"),
    of("test_qpex", "test_qp_ex_rc_atomic_write"),
];

const fn of(module: &'static str, name: &'static str) -> Test {
    Test { module, name }
}

/// Runs the steps of this time whose names contain `filter`.
pub fn run_host(workspace: &Workspace, filter: &str, when: When, dir: &Path, tally: &mut Tally) {
    let measures = "delay".contains(filter);
    match when {
        When::Before => {}
        When::Beside => {
            if "simulator".contains(filter) {
                // The same programs as `host` builds.
                let words = [
                    "test",
                    "--workspace",
                    "--all-features",
                    "--test",
                    "simulator",
                    "--",
                    "keys::",
                ];
                count_cargo_test(workspace, dir, "keys::simulator", &words, &[], tally);
            }
            if measures {
                let words = ["build", "--profile", Profile::Quick.name(), "--quiet"];
                let bench = ["--bin", "bench"];
                let words = [&words[..], &bench[..]].concat();
                // The measurement builds it again, and reports errors.
                let _ = cargo(workspace, dir, "build-bench", &words);
            }
        }
        When::After if measures => measure(workspace, dir, tally),
        When::After => {}
    }
}

fn measure(workspace: &Workspace, dir: &Path, tally: &mut Tally) {
    let started = Instant::now();
    let (result, retries) = least_delay(workspace, dir);
    let verdict = match result {
        Ok(ratio) if ratio <= MOST_DELAY => Verdict::Passed,
        Ok(ratio) => Verdict::Failed(format!(
            "an invalidation on a saturated device takes {ratio:.0} times as long as on an idle one"
        )),
        Err(error) => Verdict::Failed(format!("{error:#}")),
    };
    let reasons = vec!["its first measurement was too long"; retries];
    tally.add_after("keys::delay", started.elapsed(), verdict, &reasons);
}

/// The smallest of some measurements, if the first ones are too long, and the number of measurements after the first.
/// Other work of the machine can only increase them.
fn least_delay(workspace: &Workspace, dir: &Path) -> (Result<f64>, usize) {
    let mut least = f64::INFINITY;
    let mut retries = 0;
    loop {
        match delay(workspace, dir) {
            Ok(ratio) => least = least.min(ratio),
            Err(error) => return (Err(error), retries),
        }
        if least <= MOST_DELAY || retries + 1 == TRIES {
            return (Ok(least), retries);
        }
        retries += 1;
    }
}

/// Measures, prints the results, and returns the ratio of the longest of a hundred invalidations on a saturated device
/// to one on an idle device.
fn delay(workspace: &Workspace, dir: &Path) -> Result<f64> {
    let json = dir.join("delay.json");
    let shown = json.display().to_string();
    let mut words = harness_arguments(Profile::Quick).to_vec();
    words.extend(["--only", "keys", "--json", &shown]);
    let missed = cargo(workspace, dir, "delay", &words).err();
    let figures = match std::fs::read(&json) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(error) => return Err(missed.unwrap_or(error.into())),
    };
    let figures: Vec<Value> = figures;
    let mut found = None;
    for figure in &figures {
        let name = figure["name"].as_str().unwrap_or_default();
        let ratio = figure["ratio"].as_f64();
        let value = figure["value"].as_f64().unwrap_or(f64::NAN);
        let times = ratio.map_or(String::new(), |ratio| format!(", {ratio:.1} x"));
        progress::print(&format!("{name}: {value:.2} us{times}"));
        if name.ends_with("saturated device, maximum of 100") {
            found = ratio;
        }
    }
    found.context("the benchmark has no figure of a saturated device")
}
