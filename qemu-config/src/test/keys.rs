//! The suite `keys`: what work requests do to memory keys, and how long an invalidation takes.

use std::path::Path;
use std::time::Instant;

use super::{Options, Tally, Verdict, host, needs, pyverbs};
use crate::image::Kernel;
use crate::workspace::Workspace;

/// Without guests: the simulator's tests, each counted, and the delay of an invalidation.
pub const STEPS: &[&str] = &["simulator", "delay"];

/// rdma-core's own, by module.
pub const PYVERBS: &[(&str, &[&str])] = &[
    (
        "test_mr",
        &[
            "test_mw_type1",
            "test_invalidate_mw_type1",
            "test_mw_type2",
            "test_mw_type2_invalidate_local",
            "test_mw_type2_invalidate_remote",
            "test_mw_type2_invalidate_dealloc",
            "test_reg_mw_wrong_type",
        ],
    ),
    (
        "test_qpex",
        &[
            "test_qp_ex_rc_bind_mw",
            "test_qp_ex_rc_flush",
            "test_qp_ex_rc_flush_type_violate",
            "test_qp_ex_rc_atomic_write",
        ],
    ),
];

/// Runs the steps whose names contain `filter`.
pub fn run_host(workspace: &Workspace, filter: &str, dir: &Path, tally: &mut Tally) {
    if "simulator".contains(filter) {
        let words = ["test", "-p", "faultline-simulator", "--test", "keys"];
        host::count_cargo_test(workspace, dir, "keys::simulator", &words, tally);
    }
    if "delay".contains(filter) {
        let started = Instant::now();
        let words = [
            "run",
            "--release",
            "--quiet",
            "-p",
            "faultline-harness",
            "--bin",
            "bench",
            "--",
            "--only",
            "keys",
        ];
        let verdict = match host::cargo(workspace, dir, "delay", &words) {
            Ok(figures) => {
                print!("{figures}");
                Verdict::Passed
            }
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        tally.add("keys::delay", started.elapsed(), verdict);
    }
}

/// Runs the tests of guests whose names contain `filter`.
pub fn run_guests(
    workspace: &Workspace,
    filter: &str,
    kernel: Kernel,
    options: &Options,
    label: &str,
    dir: &Path,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let plan = needs::plan(workspace.root(), "keys", kernel, options);
    for &tests in PYVERBS {
        pyverbs::run(workspace, tests, filter, &plan, label, dir, tally)?;
    }
    Ok(())
}
