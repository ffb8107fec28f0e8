//! perftest's programs.

use super::row::{GuestSuite, GuestTest, perf, suite};
use crate::exchange::Ready;
use crate::test::facts::On::{First, Nothing};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "perftest",
    "perftest's requests complete. It looks at no data.",
    runs(
        Nothing,
        First,
        "latencies and sizes of operations that the default run has by a bandwidth",
    ),
    TESTS,
);

const EACH: Runs = runs(
    First,
    First,
    "each operation once, events, inline data, several queue pairs, and the \
     connection manager",
);

const BW: &str = "The operation completes, many at a time.";
const LAT: &str = "The operation completes, one at a time.";

const TESTS: &[GuestTest] = &[
    perf("send_bw_rc", "ib_send_bw -n 500").shows(BW).runs(EACH),
    perf("send_bw_uc", "ib_send_bw -c UC -n 500").shows(BW),
    perf("send_bw_ud", "ib_send_bw -c UD -s 1024 -n 500")
        .shows(BW)
        .runs(EACH),
    perf("send_lat_rc", "ib_send_lat -n 500").shows(LAT),
    perf("send_lat_uc", "ib_send_lat -c UC -n 500").shows(LAT),
    perf("send_lat_ud", "ib_send_lat -c UD -n 500").shows(LAT),
    perf("write_bw_rc", "ib_write_bw -n 500")
        .shows(BW)
        .runs(EACH),
    perf("write_bw_uc", "ib_write_bw -c UC -n 500").shows(BW),
    perf("write_lat_rc", "ib_write_lat -n 500").shows(LAT),
    perf("write_lat_uc", "ib_write_lat -c UC -n 500").shows(LAT),
    perf("read_bw_rc", "ib_read_bw -n 500").shows(BW).runs(EACH),
    perf("read_lat_rc", "ib_read_lat -n 500").shows(LAT),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw -A FETCH_AND_ADD -n 500",
    )
    .shows(BW),
    perf("atomic_bw_cmp_swap", "ib_atomic_bw -A CMP_AND_SWAP -n 500")
        .shows(BW)
        .runs(EACH),
    perf(
        "atomic_lat_fetch_add",
        "ib_atomic_lat -A FETCH_AND_ADD -n 500",
    )
    .shows(LAT),
    perf(
        "atomic_lat_cmp_swap",
        "ib_atomic_lat -A CMP_AND_SWAP -n 500",
    )
    .shows(LAT),
    perf("write_bw_both_ways", "ib_write_bw -b -n 300").shows("Both guests send at once."),
    perf("send_bw_both_ways", "ib_send_bw -b -n 300").shows("Both guests send at once."),
    perf("send_bw_events", "ib_send_bw -e -n 300")
        .shows("Completions raise events.")
        .runs(EACH),
    perf("write_bw_8_qps", "ib_write_bw -q 8 -n 100")
        .shows("Eight queue pairs write at once.")
        .runs(EACH),
    perf("write_bw_all_sizes", "ib_write_bw -a -n 10")
        .shows("WRITEs of 2 bytes to 8 MiB complete."),
    perf("send_lat_inline", "ib_send_lat -I 64 -s 64 -n 300")
        .shows("SENDs of inline data complete.")
        .runs(EACH),
    perf("write_bw_cm", "ib_write_bw -R -n 300")
        .after(Ready::Cm("ib_write_bw"))
        .shows("WRITEs over the connection manager complete.")
        .runs(EACH),
];
