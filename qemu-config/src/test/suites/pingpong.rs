//! Other people's programs and the netdev between two guests: libibverbs' examples, ICMP, TCP, ethtool.

use super::row::{Commands, DONE, GuestSuite, GuestTest, client, roles, suite, test, verbs};
use crate::exchange::Ready;
use crate::test::facts::On::{Both, First, Nothing};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "pingpong",
    "Programs of libibverbs, ICMP, TCP and ethtool work between two guests.",
    runs(First, Both, "each service and each part of the netdev"),
    TESTS,
);

const SIZES: Runs = runs(
    Nothing,
    Both,
    "other sizes, and events of other services, than tests of the default run \
     have",
);
const NETDEV: Runs = runs(
    Both,
    Both,
    "the driver's use of the network interfaces of each kernel",
);

const PING: &str = "IPv4 and IPv6 packets are answered.";
const RC: &str = "RC SENDs arrive once and with their data, by polling and by events.";
const UC: &str = "UC SENDs arrive with their data.";
const UD: &str = "UD datagrams arrive with their data.";
const SRQ: &str = "SENDs of many queue pairs arrive through one SRQ.";
const PATH_MTU: &str = "Connections use each possible path MTU, over IPv4, IPv6 and VLAN, with each \
    service.";

/// A script that waits for its like in the other guest.
pub(super) const fn in_both(name: &'static str, command: &'static str) -> GuestTest {
    test(name, Commands::Two(command, command), Ready::Now, 120, DONE)
}

pub(super) const fn ping(name: &'static str, command: &'static str) -> GuestTest {
    client(name, command)
        .within(30)
        .expecting(" 0% packet loss")
}

const TESTS: &[GuestTest] = &[
    roles("netdev_queues", "netdev_queues", "", Ready::Tcp(5001))
        .on_cpus(2)
        .shows("TCP streams keep their data while queues and indirection tables change."),
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP").shows(PING),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6").shows(PING),
    ping("ping_large", "ping -c 3 -i 0.2 -s 20000 $PEER_IP")
        .shows("Fragments of a large packet arrive."),
    // proves: poll_cq, post_recv, post_send, add_gid, IBV_QPT_RC, IBV_QP_AV, IBV_QP_DEST_QPN
    // proves: IBV_WR_SEND, IBV_SEND_SIGNALED, IBV_WC_SUCCESS
    verbs("rc", "ibv_rc_pingpong -c").shows(RC),
    verbs("rc_events", "ibv_rc_pingpong -c -e").shows(RC),
    verbs("rc_1_byte", "ibv_rc_pingpong -c -s 1")
        .shows(RC)
        .runs(SIZES),
    verbs("rc_1_mib", "ibv_rc_pingpong -c -s 1048576 -n 50")
        .shows(RC)
        .runs(SIZES),
    verbs("rc_odd_size", "ibv_rc_pingpong -c -s 65537 -n 200")
        .shows(RC)
        .runs(SIZES),
    // proves: IBV_QP_PATH_MTU, IBV_MTU_256
    verbs("rc_mtu_256", "ibv_rc_pingpong -c -m 256")
        .shows("Messages arrive in packets of a path MTU of 256 bytes."),
    // proves: wr_send
    verbs("rc_new_send", "ibv_rc_pingpong -c -N")
        .shows("Requests of the `ibv_wr_*` builders arrive."),
    // proves: IBV_QPT_UC, IB_QPT_UC
    verbs("uc", "ibv_uc_pingpong -c").shows(UC),
    verbs("uc_events", "ibv_uc_pingpong -c -e")
        .shows(UC)
        .runs(SIZES),
    verbs("uc_64_kib", "ibv_uc_pingpong -c -s 65536 -n 200")
        .shows(UC)
        .runs(SIZES),
    // proves: IBV_QPT_UD, dgid, sgid_index
    verbs("ud", "ibv_ud_pingpong -c -s 1024").shows(UD),
    verbs("ud_events", "ibv_ud_pingpong -c -s 1024 -e")
        .shows(UD)
        .runs(SIZES),
    verbs("ud_1_byte", "ibv_ud_pingpong -c -s 1")
        .shows(UD)
        .runs(SIZES),
    // proves: post_srq_recv, IBV_SRQT_BASIC
    verbs("srq", "ibv_srq_pingpong -c -n 100").shows(SRQ),
    verbs("srq_events", "ibv_srq_pingpong -c -n 100 -e")
        .shows(SRQ)
        .runs(SIZES),
    verbs("srq_64_kib", "ibv_srq_pingpong -c -s 65536 -n 20 -q 4")
        .shows(SRQ)
        .runs(SIZES),
    // It prints no times.
    // proves: IBV_SRQT_XRC, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS
    verbs("xsrq", "ibv_xsrq_pingpong -m 1024 -n 100")
        .expecting("")
        .shows("XRC SENDs arrive through an SRQ."),
    test(
        "tcp_1_gib",
        Commands::Two(
            "lab stream-receive 5001",
            "lab stream-send $PEER_IP:5001 1073741824",
        ),
        Ready::Tcp(5001),
        300,
        "1073741824 bytes",
    )
    .shows("1 GiB over TCP arrives unchanged.")
    .runs(runs(
        Nothing,
        First,
        "offloads and netdev_queues have shorter streams",
    ))
    .too_slow(),
    roles("netdev_addresses", "netdev_addresses", "", Ready::Tcp(5001))
        .within(60)
        .shows("The netdev receives only frames to its addresses and groups.")
        .runs(NETDEV),
    client("netdev_own_address", "netdev_own_address")
        .shows("An interface gets no other MAC address, and sends nothing from its neighbour's."),
    roles(
        "netdev_strange_frames",
        "netdev_strange_frames",
        "",
        Ready::Tcp(5001),
    )
    .within(60)
    .shows(
        "The driver handles frames that the device would refuse, and the interface \
         stays up.",
    ),
    roles("offloads", "netdev_offloads", "", Ready::Tcp(5001))
        .shows(
            "The kernel leaves checksums and segmentation of TCP to the device as ethtool \
         says.",
        )
        .runs(NETDEV),
    client("ethtool", "netdev_ethtool")
        .within(180)
        .shows("What ethtool reads is true, and what it sets works.")
        .runs(NETDEV),
    // The lab's poll time is the first if guests leave no core to the engine, otherwise the second.
    client("idle_gaps", "idle_gaps 4000 20 && idle_gaps 4000 200")
        .within(300)
        .shows("The engine misses no doorbell while it falls asleep."),
    // The MTU of the interfaces, and path MTUs; the last is the largest that fits.
    in_both("path_mtu_4200", "path_mtu 4200 4096")
        .shows(PATH_MTU)
        .runs(runs(Nothing, Both, "path_mtu_9000 has more path MTUs")),
    in_both("path_mtu_9000", "path_mtu 9000 256 512 1024 2048 4096").shows(PATH_MTU),
];
