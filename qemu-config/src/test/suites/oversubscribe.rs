//! A region much larger than the guest's memory.

use super::row::{Commands, DONE, GuestSuite, GuestTest, Sides, suite, test};
use crate::exchange::Ready;
use crate::test::facts::On::{First, Nothing};
use crate::test::facts::runs;

pub const SUITE: GuestSuite = suite(
    "oversubscribe",
    "A region may be larger than its guest's memory.",
    runs(Nothing, First, "seven minutes"),
    TESTS,
);

/// Ratio of the two.
pub const TIMES: u32 = 10;

const TESTS: &[GuestTest] = &[test(
    "ten_times_memory",
    Commands::Two(
        "odp_oversubscribe ${NIC_LIMITS%% *} --mib $((10 * GUEST_MIB))",
        "odp_oversubscribe $PEER_IP",
    ),
    Ready::Tcp(18610),
    // Twice the time with a disk of a busy host.
    1500,
    DONE,
)
.faulting(Sides::Server)
.shows(
    "A user who may lock 8 MiB uses ten times the memory on demand; the data is \
     right, and no process is killed.",
)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_is_as_large_as_is_said() {
        let server = TESTS[0].exchange().server;
        assert!(
            server.contains(&format!("$(({TIMES} * GUEST_MIB))")),
            "{server}"
        );
    }
}
