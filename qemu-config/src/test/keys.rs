//! The suite `keys`: operations of work requests on memory keys, and the delay of an invalidation.

use std::path::Path;

use super::cargo::count_cargo_test;
use super::facts::{Facts, On, SuiteFacts, facts, runs};
use super::host::When;
use super::pyverbs::Test;
use super::tally::Tally;
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
        "An invalidation beside saturated queue pairs takes one pass of the engine.",
    ),
];

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

/// Runs the steps of this time whose names contain `filter`. They are in programs that `host` builds, too.
pub fn run_host(workspace: &Workspace, filter: &str, when: When, dir: &Path, tally: &mut Tally) {
    if when != When::Beside {
        return;
    }
    for (step, program, tests) in [
        ("simulator", ["--test", "simulator"], "keys::"),
        ("delay", ["--bin", "faultline-counts"], "delay::"),
    ] {
        if step.contains(filter) {
            let [kind, name] = program;
            let words = [
                "test",
                "--workspace",
                "--all-features",
                kind,
                name,
                "--",
                tests,
            ];
            count_cargo_test(workspace, dir, &format!("keys::{step}"), &words, &[], tally);
        }
    }
}
