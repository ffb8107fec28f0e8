//! The suites `debug-kernel` and `race-kernel`: which parts of other suites run on kernels that are configured to find errors. Each kernel
//! is built from Debian's source with a small configuration (`qemu-config/*-kernel.config`).
//!
//! Races of the kernel with itself fail nothing on the race kernel: `races.log` of the guest lists them. Races of the kernel in which the
//! driver takes part are in `qemu-config/src/races.rs`.

use super::facts::{Facts, SuiteFacts, by_name, facts};

/// What `debug-kernel` says of itself.
pub const DEBUG: SuiteFacts = SuiteFacts {
    name: "debug-kernel",
    shows: "KASAN, lockdep, DEBUG_ATOMIC_SLEEP and kmemleak find nothing.",
    runs: by_name("builds a kernel for twenty minutes"),
};

/// What `race-kernel` says of itself.
pub const RACE: SuiteFacts = SuiteFacts {
    name: "race-kernel",
    shows: "KCSAN finds no data race of the driver.",
    runs: by_name("builds a kernel for twenty minutes"),
};

/// The suites that `debug-kernel` runs on its kernel.
pub const DEBUG_PARTS: &[Facts] = &[
    part("pingpong"),
    part("odp"),
    part("keys"),
    part("torture"),
    part("recover"),
];

/// The suites, or tests of suites, that `race-kernel` runs on its kernel: those with work on several processors, in
/// interrupts and in deferred work at a time.
pub const RACE_PARTS: &[Facts] = &[
    part("pingpong"),
    part("rdmacm"),
    part("odp"),
    part("keys"),
    part("torture::everything_short"),
    part("recover::fatal"),
    part("recover::removed_while_recovering"),
];

/// The step of `debug-kernel` that needs no guest.
pub const CHECKPATCH: Facts = facts(
    "checkpatch",
    "checkpatch finds nothing, and no code tests the kernel's version.",
);

const fn part(name: &'static str) -> Facts {
    facts(name, "These tests pass on this kernel.")
}
