//! Two guests whose NICs are on two engine threads of one emulator. `cargo lab test --wiring engines SUITE` runs any
//! other suite with this wiring.

use super::pingpong::ping;
use super::rdmacm::cm;
use super::row::{GuestSuite, GuestTest, Sides, perf, suite, tcp, torture, verbs};
use crate::test::facts::On::{First, Nothing};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "engines",
    "NICs on two engine threads reach each other.",
    runs(
        Nothing,
        First,
        "services that other suites have on one engine",
    ),
    TESTS,
);

const BETWEEN: Runs = runs(
    First,
    First,
    "frames between two engine threads; guests of its own",
);

const PING: &str = "IPv4 and IPv6 packets are answered.";
const RDMA: &str = "The program works between two engines.";

const TESTS: &[GuestTest] = &[
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP").shows(PING),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6").shows(PING),
    verbs("rc", "ibv_rc_pingpong -c").shows(RDMA),
    verbs("rc_events", "ibv_rc_pingpong -c -e").shows(RDMA),
    verbs("rc_mtu_4096", "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 50")
        .shows(RDMA)
        .runs(BETWEEN),
    verbs("uc", "ibv_uc_pingpong -c").shows(RDMA),
    verbs("ud", "ibv_ud_pingpong -c -s 1024").shows(RDMA),
    verbs("xsrq", "ibv_xsrq_pingpong -m 1024 -n 100")
        .expecting("")
        .shows(RDMA),
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    )
    .shows(RDMA)
    .runs(BETWEEN),
    perf("send_bw_rc", "ib_send_bw -n 500").shows(RDMA),
    perf("write_bw_rc", "ib_write_bw -n 500").shows(RDMA),
    perf("write_lat_rc", "ib_write_lat -n 500").shows(RDMA),
    perf("read_bw_rc", "ib_read_bw -n 500").shows(RDMA),
    perf("atomic_bw_rc", "ib_atomic_bw -A FETCH_AND_ADD -n 500").shows(RDMA),
    perf("write_bw_both_ways", "ib_write_bw -b -n 500")
        .shows(RDMA)
        .runs(BETWEEN),
    perf("send_bw_on_demand", "ib_send_bw --odp -n 500")
        .shows(RDMA)
        .evicted(),
    perf("write_bw_on_demand", "ib_write_bw --odp -n 500")
        .shows(RDMA)
        .evicted(),
    perf("read_bw_on_demand", "ib_read_bw --odp -n 500")
        .shows(RDMA)
        .evicted(),
    torture("torture", "", "", 10)
        .faulting(Sides::Both)
        .shows("No event of memory does harm between two engines.")
        .runs(BETWEEN),
    tcp("tcp").shows("64 MiB over TCP arrive unchanged."),
];
