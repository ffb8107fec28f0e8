//! The first guest swaps to a disk of the second, over the NIC through which others access its memory.

use super::row::{Commands, DONE, GuestSuite, GuestTest, Sides, suite, test};
use crate::exchange::Ready;
use crate::test::facts::On::{First, Nothing};
use crate::test::facts::{by_name, runs};

pub const SUITE: GuestSuite = suite(
    "swap",
    "A guest can swap by NVMe through the NIC that accesses its memory.",
    runs(First, First, "guests of its own, and a minute of traffic"),
    TESTS,
);

const RNR: &str = "Under policy `rnr` a region as large as the memory is right.";

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
const TESTS: &[GuestTest] = &[
    swapped(
        "rnr",
        "ulp_nvme swap && odp_oversubscribe --times 1 --mib $GUEST_MIB",
        "ulp_nvme swap_server && odp_oversubscribe $PEER_IP",
        600,
    )
    .shows(RNR)
    .runs(runs(
        Nothing,
        First,
        "a minute; stall swaps over the same NIC, and oversubscribe under policy rnr",
    )),
    swapped(
        "three_times",
        "ulp_nvme swap && odp_oversubscribe --times 3 --mib $((3 * GUEST_MIB))",
        "ulp_nvme swap_server && odp_oversubscribe $PEER_IP",
        900,
    )
    .shows(RNR)
    .runs(by_name("rnr with a larger region")),
    swapped(
        "stall",
        "ulp_nvme swap && swap_deadlock --mib $GUEST_MIB",
        "ulp_nvme swap_server && swap_deadlock $PEER_IP",
        300,
    )
    .shows(
        "Under policy `stall` the device finds, reports and ends the deadlock with \
         its own ingress.",
    ),
];
