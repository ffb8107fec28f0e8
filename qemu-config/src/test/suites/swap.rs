//! The first guest swaps to a disk of the second, over the NIC through which others access its memory.

use super::row::{Commands, DONE, GuestTest, Sides, test};
use crate::exchange::Ready;

const fn swapped(
    name: &'static str,
    server: &'static str,
    client: &'static str,
    seconds: u64,
) -> GuestTest {
    test(
        name,
        Commands::Two(server, client),
        Ready::Now,
        seconds,
        DONE,
    )
    .faulting(Sides::Server)
}

/// The memory of a guest is always smaller than its region.
pub const TESTS: &[GuestTest] = &[
    swapped(
        "rnr",
        "ulp_nvme swap && odp_oversubscribe --times 1 --mib $GUEST_MIB",
        "ulp_nvme swap_server && odp_oversubscribe $PEER_IP",
        600,
    ),
    swapped(
        "three_times",
        "ulp_nvme swap && odp_oversubscribe --times 3 --mib $((3 * GUEST_MIB))",
        "ulp_nvme swap_server && odp_oversubscribe $PEER_IP",
        900,
    ),
    swapped(
        "stall",
        "ulp_nvme swap && swap_deadlock --mib $GUEST_MIB",
        "ulp_nvme swap_server && swap_deadlock $PEER_IP",
        300,
    ),
];
