//! Tag matching.

use super::row::{GuestSuite, GuestTest, Sides, pair, suite};
use crate::test::facts::On::{Both, First};
use crate::test::facts::runs;

pub const SUITE: GuestSuite = suite(
    "tags",
    "Tag matching delivers messages in random order.",
    runs(
        First,
        Both,
        "tag matching, in which the kernel has a small part",
    ),
    TESTS,
);

const TAGS: &str = "Each message, eager or by rendezvous, expected or not, reaches its buffer; \
    removed buffers and full lists are reported.";

const TESTS: &[GuestTest] = &[
    pair("pinned", "tag_matching", 18640).shows(TAGS),
    pair("on_demand", "tag_matching --on-demand", 18640)
        .faulting(Sides::Both)
        .shows(TAGS),
];
