//! The project's NIC in the first guest, and the stock virtio-net driver on a vhost-user port with two pairs of queues in the second, with
//! `rdma_rxe` on it. In most tests the client is virtio-net; in those whose names end in `_back` it is the project's NIC.

use super::pingpong::ping;
use super::rdmacm::cm;
use super::row::{Commands, GuestTest, client, perf, test, verbs};
use crate::exchange::Ready;

pub const TESTS: &[GuestTest] = &[
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP"),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6"),
    // A frame of 4214 octets takes several receive buffers.
    ping("ping_mtu", "ping -c 3 -i 0.2 -W 5 -M do -s 4172 $PEER_IP"),
    ping(
        "ping_mtu_back",
        "ping -c 3 -i 0.2 -W 5 -M do -s 4172 $PEER_IP",
    )
    .reversed(),
    // The port segments what the guest sends.
    tcp("tcp"),
    tcp("tcp_back").reversed(),
    client("offloads", "virtio_offloads"),
    verbs("rc", "ibv_rc_pingpong -c"),
    verbs("rc_back", "ibv_rc_pingpong -c").reversed(),
    verbs("rc_mtu_4096", "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 20"),
    verbs("ud", "ibv_ud_pingpong -c -s 1024"),
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    ),
    perf("write_bw_rc", "ib_write_bw -n 300"),
    perf("write_bw_rc_back", "ib_write_bw -n 300").reversed(),
];

const fn tcp(name: &'static str) -> GuestTest {
    test(
        name,
        Commands::Two(
            "lab stream-receive 5001",
            "lab stream-send $PEER_IP:5001 67108864",
        ),
        Ready::Tcp(5001),
        120,
        "67108864 bytes",
    )
}
