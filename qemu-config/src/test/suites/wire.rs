//! Two guests whose emulators are connected by a wire. Each kind of wire is a suite of its own with these tests;
//! `cargo lab test --wiring KIND SUITE` runs any other suite on it.

use super::pingpong::ping;
use super::rdmacm::cm;
use super::row::{GuestSuite, GuestTest, Sides, perf, roles, suite, tcp, torture, verbs};
use crate::exchange::Ready;
use crate::test::facts::On::{First, Nothing};
use crate::test::facts::runs;

pub const SUITE_UNIX: GuestSuite = suite(
    "wire-unix",
    "Two emulators reach each other over a unix socket.",
    runs(
        Nothing,
        First,
        "the framing of wire-tcp on another kind of socket",
    ),
    TESTS,
);

pub const SUITE_TCP: GuestSuite = suite(
    "wire-tcp",
    "Two emulators reach each other over TCP.",
    runs(
        Nothing,
        First,
        "services that other suites have on one emulator",
    ),
    TESTS,
)
.with_runs(
    &["rc_mtu_4096", "rping"],
    runs(
        First,
        First,
        "frames between two emulators; guests of its own",
    ),
);

pub const SUITE_BRIDGE: GuestSuite = suite(
    "wire-bridge",
    "Two emulators reach each other by TAP devices on a bridge. Needs root.",
    runs(
        Nothing,
        First,
        "a port that wire-vxlan shows with an encapsulation",
    ),
    TESTS,
);

pub const SUITE_VXLAN: GuestSuite = suite(
    "wire-vxlan",
    "Two emulators reach each other over VXLAN between network namespaces. Needs \
     root.",
    runs(
        Nothing,
        First,
        "services that other suites have on one emulator",
    ),
    TESTS,
)
.with_runs(
    &["ping6", "rc_mtu_4096"],
    runs(First, First, "encapsulated frames; guests of its own"),
);

const PING: &str = "IPv4 and IPv6 packets are answered.";
const RDMA: &str = "The program works over this wire.";

const TESTS: &[GuestTest] = &[
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP").shows(PING),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6").shows(PING),
    verbs("rc", "ibv_rc_pingpong -c").shows(RDMA),
    verbs("rc_mtu_4096", "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 50").shows(RDMA),
    verbs("ud", "ibv_ud_pingpong -c -s 1024").shows(RDMA),
    verbs("xsrq", "ibv_xsrq_pingpong -m 1024 -n 100")
        .expecting("")
        .shows(RDMA),
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    )
    .shows(RDMA),
    perf("write_bw_rc", "ib_write_bw -n 500").shows(RDMA),
    perf("read_bw_rc", "ib_read_bw -n 500").shows(RDMA),
    roles("write_bw_on_demand", "ready_crosses", "", Ready::Tcp(18515))
        .shows("READY ends RNR waits across this wire, without a setting.")
        .evicted(),
    torture("torture", "", "", 10)
        .faulting(Sides::Both)
        .shows("No event of memory does harm between two emulators."),
    tcp("tcp").shows("64 MiB over TCP arrive unchanged."),
];
