//! Two guests whose emulators are connected by a wire. Each kind of wire is a suite of its own with these tests;
//! `cargo lab test --wiring KIND SUITE` runs any other suite on it.

use super::pingpong::ping;
use super::rdmacm::cm;
use super::row::{Commands, GuestTest, Sides, perf, test, torture, verbs};
use crate::exchange::Ready;

pub const TESTS: &[GuestTest] = &[
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP"),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6"),
    verbs("rc", "ibv_rc_pingpong -c"),
    verbs("rc_mtu_4096", "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 50"),
    verbs("ud", "ibv_ud_pingpong -c -s 1024"),
    verbs("xsrq", "ibv_xsrq_pingpong -m 1024 -n 100").expecting(""),
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    ),
    perf("write_bw_rc", "ib_write_bw -n 500"),
    perf("read_bw_rc", "ib_read_bw -n 500"),
    perf("write_bw_on_demand", "ib_write_bw --odp -n 100"),
    torture("torture", "", "", 10).faulting(Sides::Both),
    test(
        "tcp",
        Commands::Two(
            "lab stream-receive 5001",
            "lab stream-send $PEER_IP:5001 67108864",
        ),
        Ready::Tcp(5001),
        120,
        "67108864 bytes",
    ),
];
