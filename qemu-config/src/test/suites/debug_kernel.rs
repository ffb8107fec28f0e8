//! Tests that need the debug kernel; the suite has further parts.

use super::row::{GuestTest, alone};

pub const TESTS: &[GuestTest] = &[alone("failing_allocations", "fail_nth")
    .shows("Each allocation fails once in each verb, and nothing is leaked or damaged.")];
