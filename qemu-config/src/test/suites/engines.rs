//! Two guests whose NICs are on two engine threads of one emulator. `cargo lab test --wiring engines SUITE` runs any other suite so.

use super::pingpong::ping;
use super::rdmacm::cm;
use super::row::{Commands, GuestTest, Sides, perf, test, torture, verbs};
use crate::exchange::Ready;

pub const TESTS: &[GuestTest] = &[
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP"),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6"),
    verbs("rc", "ibv_rc_pingpong -c"),
    verbs("rc_events", "ibv_rc_pingpong -c -e"),
    verbs("rc_mtu_4096", "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 50"),
    verbs("uc", "ibv_uc_pingpong -c"),
    verbs("ud", "ibv_ud_pingpong -c -s 1024"),
    verbs("xsrq", "ibv_xsrq_pingpong -m 1024 -n 100").expecting(""),
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    ),
    perf("send_bw_rc", "ib_send_bw -n 500"),
    perf("write_bw_rc", "ib_write_bw -n 500"),
    perf("write_lat_rc", "ib_write_lat -n 500"),
    perf("read_bw_rc", "ib_read_bw -n 500"),
    perf("atomic_bw_rc", "ib_atomic_bw -A FETCH_AND_ADD -n 500"),
    perf("write_bw_both_ways", "ib_write_bw -b -n 500"),
    perf("send_bw_on_demand", "ib_send_bw --odp -n 500"),
    perf("write_bw_on_demand", "ib_write_bw --odp -n 500"),
    perf("read_bw_on_demand", "ib_read_bw --odp -n 500"),
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
