//! librdmacm's example programs. `udpong` cannot run on any RoCE device: the datagrams of librdmacm's rsockets begin with an address handle
//! without a GID (`ds_add_qp_dest()` in `rsocket.c`, rdma-core 56.1), which only InfiniBand supports. `rconnect` fails on rdma_rxe too.

use super::row::{Commands, GuestSuite, GuestTest, roles, suite, test};
use crate::exchange::Ready;
use crate::test::facts::On::{Both, First, Nothing};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "rdmacm",
    "librdmacm's programs connect and exchange data.",
    runs(
        First,
        Both,
        "the connection manager, which is the same on both kernels",
    ),
    TESTS,
);

const SIZES: Runs = runs(
    Nothing,
    Both,
    "other sizes and numbers than tests of the default run have",
);

const RPING: &str = "SENDs, READs and WRITEs return rping's data.";
const UCMATOSE: &str = "Connections are made, carry messages, and end.";
const UDADDY: &str = "Datagrams reach the resolved queue pair.";
const XCLIENT: &str = "librdmacm's simplified API works over RC and XRC.";
const STREAM: &str = "A stream of rsockets keeps its data.";

/// The client starts when the server's program, which is the first word of its command, listens.
pub(super) const fn cm(
    name: &'static str,
    server: &'static str,
    client: &'static str,
) -> GuestTest {
    let ready = Ready::Cm(first_word(server));
    test(name, Commands::Two(server, client), ready, 60, "")
}

const fn first_word(command: &'static str) -> &'static str {
    let mut end = 0;
    while end < command.len() && command.as_bytes()[end] != b' ' {
        end += 1;
    }
    command.split_at(end).0
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

const TESTS: &[GuestTest] = &[
    // proves: create_ah, create_cq, get_port_immutable, poll_cq, post_recv, post_send
    // proves: req_notify_cq, IB_QPT_GSI, IB_WC_GRH, IB_WC_WITH_SMAC, IB_WC_WITH_NETWORK_HDR_TYPE
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    )
    .shows(RPING)
    .runs(runs(Both, Both, "one connection on each kernel")),
    cm(
        "rping_64_kib",
        "rping -s -V -a $MY_IP -C 50 -S 65535",
        "rping -c -V -a $PEER_IP -C 50 -S 65535",
    )
    .shows(RPING)
    .runs(SIZES),
    cm(
        "rping_ipv6",
        "rping -s -V -a $MY_IP6 -C 50",
        "rping -c -V -a $PEER_IP6 -C 50",
    )
    .shows(RPING),
    cm(
        "rping_self_modified",
        "rping -s -q -V -a $MY_IP -C 20",
        "rping -c -q -V -a $PEER_IP -C 20",
    )
    .shows(RPING)
    .runs(SIZES),
    cm(
        "ucmatose",
        "ucmatose -b $MY_IP -C 100",
        "ucmatose -s $PEER_IP -C 100",
    )
    .shows(UCMATOSE),
    cm(
        "ucmatose_many",
        "ucmatose -b $MY_IP -c 50 -C 10",
        "ucmatose -s $PEER_IP -c 50 -C 10",
    )
    .shows(UCMATOSE)
    .runs(SIZES),
    cm(
        "udaddy",
        "udaddy -b $MY_IP -C 100",
        "udaddy -s $PEER_IP -C 100",
    )
    .shows(UDADDY),
    cm(
        "udaddy_many",
        "udaddy -b $MY_IP -c 20",
        "udaddy -s $PEER_IP -c 20",
    )
    .shows(UDADDY)
    .runs(SIZES),
    cm("rdma_client", "rdma_server", "rdma_client -s $PEER_IP").shows(XCLIENT),
    cm(
        "rdma_xclient",
        "without_cqe_errors rdma_xserver -c r",
        "without_cqe_errors rdma_xclient -c r -s $PEER_IP",
    )
    .after(Ready::Cm("rdma_xserver"))
    .shows(XCLIENT)
    .runs(SIZES),
    cm(
        "rdma_xclient_xrc",
        "without_cqe_errors rdma_xserver -c x",
        "without_cqe_errors rdma_xclient -c x -s $PEER_IP",
    )
    .after(Ready::Cm("rdma_xserver"))
    .shows(XCLIENT),
    roles("rcopy", "rcopy_file", "", Ready::Cm("rcopy"))
        .within(60)
        .expecting("20000003 bytes in")
        .shows("A copied file of 20 MB has the same SHA-256."),
    roles("cmtime", "cm_times", "", Ready::Cm("cmtime"))
        .within(60)
        .expecting("")
        .shows("Twenty connections go through each step."),
    cm(
        "rstream",
        "rstream -b $MY_IP -T v -S 65536 -C 20",
        "rstream -s $PEER_IP -T v -S 65536 -C 20",
    )
    .shows(STREAM),
    cm(
        "riostream",
        "riostream -b $MY_IP -T v -S 65536 -C 20",
        "riostream -s $PEER_IP -T v -S 65536 -C 20",
    )
    .shows(STREAM)
    .runs(SIZES),
    // proves: attach_mcast
    mckey("mckey").shows("Datagrams to a multicast group reach its member."),
];
