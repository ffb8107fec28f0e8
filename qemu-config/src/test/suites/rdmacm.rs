//! librdmacm's example programs.

use super::row::{Commands, GuestTest, roles, test};
use crate::exchange::Ready;

pub(super) const fn cm(
    name: &'static str,
    server: &'static str,
    client: &'static str,
) -> GuestTest {
    test(name, Commands::Two(server, client), Ready::Cm, 60, "")
}

/// Datagrams to a multicast group.
pub(super) const fn mckey(name: &'static str) -> GuestTest {
    mckey_by(
        name,
        "mckey -m 239.77.0.1 -b $MY_IP -C 10",
        "mckey -m 239.77.0.1 -b $MY_IP -C 10 -s",
    )
}

/// The same by other commands, for group 239.77.0.1.
pub(super) const fn mckey_by(
    name: &'static str,
    server: &'static str,
    client: &'static str,
) -> GuestTest {
    test(
        name,
        Commands::Two(server, client),
        // The kernel of the server is in the group; its queue pair follows.
        Ready::When("grep -q 01004DEF /proc/net/igmp && sleep 1"),
        60,
        "",
    )
}

pub const TESTS: &[GuestTest] = &[
    // proves: create_ah, create_cq, get_port_immutable, poll_cq, post_recv, post_send
    // proves: req_notify_cq, IB_QPT_GSI, IB_WC_GRH, IB_WC_WITH_SMAC, IB_WC_WITH_NETWORK_HDR_TYPE
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    ),
    cm(
        "rping_64_kib",
        "rping -s -V -a $MY_IP -C 50 -S 65535",
        "rping -c -V -a $PEER_IP -C 50 -S 65535",
    ),
    cm(
        "rping_ipv6",
        "rping -s -V -a $MY_IP6 -C 50",
        "rping -c -V -a $PEER_IP6 -C 50",
    ),
    cm(
        "rping_self_modified",
        "rping -s -q -V -a $MY_IP -C 20",
        "rping -c -q -V -a $PEER_IP -C 20",
    ),
    cm(
        "ucmatose",
        "ucmatose -b $MY_IP -C 100",
        "ucmatose -s $PEER_IP -C 100",
    ),
    cm(
        "ucmatose_many",
        "ucmatose -b $MY_IP -c 50 -C 10",
        "ucmatose -s $PEER_IP -c 50 -C 10",
    ),
    cm(
        "udaddy",
        "udaddy -b $MY_IP -C 100",
        "udaddy -s $PEER_IP -C 100",
    ),
    cm(
        "udaddy_many",
        "udaddy -b $MY_IP -c 20",
        "udaddy -s $PEER_IP -c 20",
    ),
    cm("rdma_client", "rdma_server", "rdma_client -s $PEER_IP"),
    cm(
        "rdma_xclient",
        "without_cqe_errors rdma_xserver -c r",
        "without_cqe_errors rdma_xclient -c r -s $PEER_IP",
    ),
    cm(
        "rdma_xclient_xrc",
        "without_cqe_errors rdma_xserver -c x",
        "without_cqe_errors rdma_xclient -c x -s $PEER_IP",
    ),
    roles("rcopy", "rcopy_file", "", Ready::Cm)
        .within(60)
        .expecting("20000003 bytes in"),
    roles("cmtime", "cm_times", "", Ready::Cm)
        .within(60)
        .expecting(""),
    cm(
        "rstream",
        "rstream -b $MY_IP -T v -S 65536 -C 20",
        "rstream -s $PEER_IP -T v -S 65536 -C 20",
    ),
    cm(
        "riostream",
        "riostream -b $MY_IP -T v -S 65536 -C 20",
        "riostream -s $PEER_IP -T v -S 65536 -C 20",
    ),
    // proves: attach_mcast
    mckey("mckey"),
];
