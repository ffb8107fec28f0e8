//! What only the debug kernel can do; the suite has further parts.

use super::row::{GuestTest, alone};

pub const TESTS: &[GuestTest] = &[alone("failing_allocations", "fail_nth")];
