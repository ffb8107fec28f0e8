//! Guests whose DMA uses bounce buffers (`swiotlb=force`), as in confidential guests: the other side does not see
//! buffers that a driver does not synchronize.

use super::pingpong::ping;
use super::row::{GuestSuite, GuestTest, client, roles, suite, tcp};
use crate::exchange::Ready;
use crate::test::facts::by_name;

pub const SUITE: GuestSuite = suite(
    "bounce-buffers",
    "DMA uses bounce buffers (`swiotlb=force`).",
    by_name("own guests"),
    TESTS,
);

const NETDEV: &str = "Data arrive unchanged.";

const TESTS: &[GuestTest] = &[
    ping("ping_large", "ping -c 3 -i 0.2 -s 20000 $PEER_IP").shows(NETDEV),
    tcp("tcp").shows(NETDEV),
    roles("netdev_queues", "netdev_queues", "", Ready::Tcp(5001))
        .on_cpus(2)
        .shows(NETDEV),
    roles("offloads", "netdev_offloads", "", Ready::Tcp(5001)).shows(NETDEV),
    client(
        "processes_refused",
        "! ibv_devinfo -d $RDMA_DEV 2>&1 && dmesg | grep 'DMA needs synchronization'",
    )
    .expecting("processes cannot use the device")
    .shows("Processes are refused."),
];
