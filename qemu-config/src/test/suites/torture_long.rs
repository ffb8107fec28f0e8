//! The torture with all its events, for ten minutes each.

use super::row::{GuestTest, Sides, torture};

pub const TESTS: &[GuestTest] = &[
    torture("everything", "", "", 600).faulting(Sides::Both),
    torture("everything_implicit", "", "--implicit --seed 20261121", 600).faulting(Sides::Both),
];
