//! Other people's programs and the netdev between two guests: libibverbs' examples, ICMP, TCP, ethtool.

use super::row::{Commands, DONE, GuestTest, client, roles, test, verbs};
use crate::exchange::Ready;

/// A script that waits for its like in the other guest.
const fn in_both(name: &'static str, command: &'static str) -> GuestTest {
    test(name, Commands::Two(command, command), Ready::Now, 120, DONE)
}

pub(super) const fn ping(name: &'static str, command: &'static str) -> GuestTest {
    client(name, command)
        .within(30)
        .expecting(" 0% packet loss")
}

pub const TESTS: &[GuestTest] = &[
    roles("netdev_queues", "netdev_queues", "", Ready::Tcp(5001)).on_cpus(2),
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP"),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6"),
    ping("ping_large", "ping -c 3 -i 0.2 -s 20000 $PEER_IP"),
    // proves: poll_cq, post_recv, post_send, add_gid, IBV_QPT_RC, IBV_QP_AV, IBV_QP_DEST_QPN
    // proves: IBV_WR_SEND, IBV_SEND_SIGNALED, IBV_WC_SUCCESS
    verbs("rc", "ibv_rc_pingpong -c"),
    verbs("rc_events", "ibv_rc_pingpong -c -e"),
    verbs("rc_1_byte", "ibv_rc_pingpong -c -s 1"),
    verbs("rc_1_mib", "ibv_rc_pingpong -c -s 1048576 -n 50"),
    verbs("rc_odd_size", "ibv_rc_pingpong -c -s 65537 -n 200"),
    // proves: IBV_QP_PATH_MTU, IBV_MTU_256
    verbs("rc_mtu_256", "ibv_rc_pingpong -c -m 256"),
    // proves: wr_send
    verbs("rc_new_send", "ibv_rc_pingpong -c -N"),
    // proves: IBV_QPT_UC, IB_QPT_UC
    verbs("uc", "ibv_uc_pingpong -c"),
    verbs("uc_events", "ibv_uc_pingpong -c -e"),
    verbs("uc_64_kib", "ibv_uc_pingpong -c -s 65536 -n 200"),
    // proves: IBV_QPT_UD, dgid, sgid_index
    verbs("ud", "ibv_ud_pingpong -c -s 1024"),
    verbs("ud_events", "ibv_ud_pingpong -c -s 1024 -e"),
    verbs("ud_1_byte", "ibv_ud_pingpong -c -s 1"),
    // proves: post_srq_recv, IBV_SRQT_BASIC
    verbs("srq", "ibv_srq_pingpong -c -n 100"),
    verbs("srq_events", "ibv_srq_pingpong -c -n 100 -e"),
    verbs("srq_64_kib", "ibv_srq_pingpong -c -s 65536 -n 20 -q 4"),
    // It prints no times.
    // proves: IBV_SRQT_XRC, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS
    verbs("xsrq", "ibv_xsrq_pingpong -m 1024 -n 100").expecting(""),
    test(
        "tcp_1_gib",
        Commands::Two(
            "lab stream-receive 5001",
            "lab stream-send $PEER_IP:5001 1073741824",
        ),
        Ready::Tcp(5001),
        300,
        "1073741824 bytes",
    ),
    roles("netdev_addresses", "netdev_addresses", "", Ready::Tcp(5001)).within(60),
    client("netdev_own_address", "netdev_own_address"),
    roles(
        "netdev_strange_frames",
        "netdev_strange_frames",
        "",
        Ready::Tcp(5001),
    )
    .within(60),
    roles("offloads", "netdev_offloads", "", Ready::Tcp(5001)),
    client("ethtool", "netdev_ethtool").within(180),
    // The lab's poll time is the first if guests leave no core to the engine, otherwise the second.
    client("idle_gaps", "idle_gaps 4000 20 && idle_gaps 4000 200").within(300),
    // The MTU of the interfaces, and path MTUs, of which the last is the largest that fits.
    in_both("path_mtu_4200", "path_mtu 4200 4096"),
    in_both("path_mtu_9000", "path_mtu 9000 256 512 1024 2048 4096"),
];
