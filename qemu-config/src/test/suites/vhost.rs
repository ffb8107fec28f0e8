//! The project's NIC in the first guest, and the stock virtio-net driver on a vhost-user port with two pairs of queues in the second, with
//! `rdma_rxe` on it. In most tests the client is virtio-net; in those whose names end in `_back` it is the project's NIC.

use super::pingpong::ping;
use super::rdmacm::cm;
use super::row::{GuestSuite, GuestTest, client, perf, suite, tcp, verbs};
use crate::test::facts::On::{First, Nothing};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "vhost",
    "virtio-net works on a vhost-user port with two queue pairs, and `rdma_rxe` \
     on it. In `…_back` the NIC is the client.",
    runs(Nothing, First, "traffic that interop has too"),
    TESTS,
);

const QUEUES: Runs = runs(
    First,
    First,
    "queues and offloads of the vhost-user port; guests of its own",
);

const PING: &str = "Packets reach the other guest.";
const MTU: &str = "Frames that take several receive buffers arrive.";
const TCP: &str = "64 MiB over TCP, which the port segments, arrive.";
const RDMA: &str = "The program works with rxe on the port.";

const TESTS: &[GuestTest] = &[
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP").shows(PING),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6").shows(PING),
    // A frame of 4214 octets takes several receive buffers.
    ping("ping_mtu", "ping -c 3 -i 0.2 -W 5 -M do -s 4172 $PEER_IP").shows(MTU),
    ping(
        "ping_mtu_back",
        "ping -c 3 -i 0.2 -W 5 -M do -s 4172 $PEER_IP",
    )
    .reversed()
    .shows(MTU)
    .runs(QUEUES),
    // The port segments what the guest sends.
    tcp("tcp").shows(TCP).runs(QUEUES),
    tcp("tcp_back").reversed().shows(TCP).runs(QUEUES),
    client("offloads", "virtio_offloads")
        .shows("The guest is offered TCP segmentation and two queue pairs.")
        .runs(QUEUES),
    verbs("rc", "ibv_rc_pingpong -c").shows(RDMA).runs(QUEUES),
    verbs("rc_back", "ibv_rc_pingpong -c")
        .reversed()
        .shows(RDMA),
    verbs("rc_mtu_4096", "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 20").shows(RDMA),
    verbs("ud", "ibv_ud_pingpong -c -s 1024").shows(RDMA),
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    )
    .shows(RDMA),
    perf("write_bw_rc", "ib_write_bw -n 300").shows(RDMA),
    perf("write_bw_rc_back", "ib_write_bw -n 300")
        .reversed()
        .shows(RDMA),
];
