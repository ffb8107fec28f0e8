//! The torture with all its events, for ten minutes each.

use super::row::{GuestSuite, GuestTest, Sides, suite, torture};
use crate::test::facts::On::Nothing;
use crate::test::facts::runs;

pub const SUITE: GuestSuite = suite(
    "torture-long",
    "Torture for ten minutes each finds no error.",
    runs(Nothing, Nothing, "twenty minutes"),
    TESTS,
);

const LONG: &str = "No event of memory causes an error.";

const TESTS: &[GuestTest] = &[
    torture("everything", "", "", 600)
        .faulting(Sides::Both)
        .shows(LONG),
    torture("everything_implicit", "", "--implicit --seed 20261121", 600)
        .faulting(Sides::Both)
        .shows(LONG),
];
