//! Tag matching.

use super::row::{GuestTest, Sides, pair};

pub const TESTS: &[GuestTest] = &[
    pair("pinned", "tag_matching", 18640),
    pair("on_demand", "tag_matching --on-demand", 18640).faulting(Sides::Both),
];
