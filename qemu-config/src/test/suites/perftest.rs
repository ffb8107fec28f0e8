//! perftest's programs.

use super::row::{GuestTest, perf};
use crate::exchange::Ready;

pub const TESTS: &[GuestTest] = &[
    perf("send_bw_rc", "ib_send_bw -n 500"),
    perf("send_bw_uc", "ib_send_bw -c UC -n 500"),
    perf("send_bw_ud", "ib_send_bw -c UD -s 1024 -n 500"),
    perf("send_lat_rc", "ib_send_lat -n 500"),
    perf("send_lat_uc", "ib_send_lat -c UC -n 500"),
    perf("send_lat_ud", "ib_send_lat -c UD -n 500"),
    perf("write_bw_rc", "ib_write_bw -n 500"),
    perf("write_bw_uc", "ib_write_bw -c UC -n 500"),
    perf("write_lat_rc", "ib_write_lat -n 500"),
    perf("write_lat_uc", "ib_write_lat -c UC -n 500"),
    perf("read_bw_rc", "ib_read_bw -n 500"),
    perf("read_lat_rc", "ib_read_lat -n 500"),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw -A FETCH_AND_ADD -n 500",
    ),
    perf("atomic_bw_cmp_swap", "ib_atomic_bw -A CMP_AND_SWAP -n 500"),
    perf(
        "atomic_lat_fetch_add",
        "ib_atomic_lat -A FETCH_AND_ADD -n 500",
    ),
    perf(
        "atomic_lat_cmp_swap",
        "ib_atomic_lat -A CMP_AND_SWAP -n 500",
    ),
    perf("write_bw_both_ways", "ib_write_bw -b -n 300"),
    perf("send_bw_both_ways", "ib_send_bw -b -n 300"),
    perf("send_bw_events", "ib_send_bw -e -n 300"),
    perf("write_bw_8_qps", "ib_write_bw -q 8 -n 100"),
    perf("write_bw_all_sizes", "ib_write_bw -a -n 10"),
    perf("send_lat_inline", "ib_send_lat -I 64 -s 64 -n 300"),
    perf("write_bw_cm", "ib_write_bw -R -n 300").after(Ready::Cm),
];
