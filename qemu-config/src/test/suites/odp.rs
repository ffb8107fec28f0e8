//! On-demand regions with third-party programs and those of the project. rdma-core's `test_odp` is the rest of the
//! suite.

use super::row::{GuestSuite, GuestTest, Sides, alone, perf, suite, verbs};
use crate::test::facts::On::{Both, First, Nothing};
use crate::test::facts::{Runs, by_name, runs};

pub const SUITE: GuestSuite = suite(
    "odp",
    "On-demand paging works with programs that register on demand.",
    runs(First, Both, "on-demand paging: device and library"),
    TESTS,
);

const MEMORY: Runs = runs(
    Both,
    Both,
    "the driver's use of the memory management of each kernel",
);
const SIZES: Runs = runs(
    Nothing,
    First,
    "other sizes and latencies than tests of the default run have",
);

const PROGRAM: &str = "The program works on an on-demand region.";
const PREFETCH: &str = "The program works on a prefetched region.";

const TESTS: &[GuestTest] = &[
    // Its threads must run at the same time.
    alone("hostile_process", "hostile_process")
        .on_cpus(2)
        .faulting(Sides::Client)
        .shows("A process gains nothing by requests that no library makes.")
        .runs(runs(First, Both, "guests with two CPUs of its own")),
    alone("fault_policies", "fault_policy")
        .faulting(Sides::Client)
        .shows("Each fault policy has its effect on completions and counters."),
    alone("dma_buf", "dma_buf_regions")
        .shows("Dma-bufs may move; the device never writes to pages that they have left.")
        .runs(MEMORY)
        .not_faulting(
            "the pages of a buffer are mapped when it is registered, and again after it \
             has moved",
        ),
    alone("refused_changes", "key_refused")
        .faulting(Sides::Client)
        .shows("Refused changes, and faults of ended processes, lose no memory.")
        .runs(MEMORY),
    alone("zero_based", "zero_based")
        .faulting(Sides::Client)
        .shows("Zero-based regions work on demand."),
    alone("writes_kept", "odp_faults kept")
        .faulting(Sides::Client)
        .shows("Data that the device wrote survives reclaim.")
        .runs(MEMORY),
    alone("faults_refused", "odp_faults refused")
        .faulting(Sides::Client)
        .shows("A fault where no page can be present is refused at once."),
    alone("read_ahead", "odp_faults ahead")
        .faulting(Sides::Client)
        .shows("Sequential accesses fault rarely; no unnamed page is allocated.")
        .runs(MEMORY),
    alone("fault_cost", "fault_cost 3")
        .on_cpus(2)
        .faulting(Sides::Client)
        .shows("First touches fault once; prints their cost.")
        .runs(by_name("figures of a machine that does nothing else")),
    alone("position_cost", "position_cost")
        .within(300)
        .faulting(Sides::Client)
        .shows("Prints what a message costs, from pinned to implicit memory.")
        .runs(by_name("figures of a machine that does nothing else")),
    alone("huge_entries", "odp_faults huge")
        .faulting(Sides::Client)
        .shows("A huge page takes one fault, until a part of it is invalidated.")
        .runs(MEMORY),
    alone("empty_regions", "empty_regions")
        .faulting(Sides::Client)
        .shows("Empty regions serve empty requests only."),
    alone("region_statistics", "region_statistics")
        .faulting(Sides::Client)
        .shows("`rdma statistic` and `rdma resource` report what happened to regions."),
    alone("fault_trace", "fault_trace")
        .faulting(Sides::Client)
        .shows("Tracepoints and counters agree, token by token.")
        .runs(runs(
            Nothing,
            Both,
            "a quarter of a minute; sight::counts compares tracepoints and counters too",
        )),
    alone("absent_receive", "absent_receive")
        .faulting(Sides::Client)
        .shows("UC, UD and raw messages arrive in absent buffers, in order."),
    alone("file_regions", "file_regions")
        .faulting(Sides::Client)
        .shows("Files of page cache and tmpfs work; read-only mappings refuse writes.")
        .runs(MEMORY),
    alone("secret_memory", "secret_memory")
        .faulting(Sides::Client)
        .shows("Memory of memfd_secret is read and written by no request.")
        .runs(MEMORY),
    alone("implicit_space", "implicit_space")
        .faulting(Sides::Client)
        .shows(
            "Memory for an implicit region of 1 TiB is in proportion to its touched \
             pages, and is released.",
        ),
    alone("key_scope", "key_scope")
        .faulting(Sides::Client)
        .shows(
            "A key is valid in its protection domain only; errors of queue pairs \
             invalidate nothing else.",
        ),
    alone("translation_cache", "translation_cache")
        .faulting(Sides::Client)
        .shows("The translation cache counts hits, misses and shoot-downs."),
    verbs("rc", "ibv_rc_pingpong -c -o")
        .shows(PROGRAM)
        .evicted(),
    verbs("rc_events", "ibv_rc_pingpong -c -o -e")
        .shows(PROGRAM)
        .runs(SIZES)
        .evicted(),
    verbs("rc_odd_size", "ibv_rc_pingpong -c -o -s 65537 -n 200")
        .shows(PROGRAM)
        .runs(SIZES)
        .evicted(),
    verbs("rc_prefetch", "ibv_rc_pingpong -c -o -P")
        .shows(PREFETCH)
        .runs(SIZES)
        .evicted(),
    // The region gets its first part when it is first used.
    verbs("rc_implicit", "ibv_rc_pingpong -c -O")
        .faulting(Sides::Both)
        .shows("The program works on an implicit region.")
        .runs(MEMORY),
    verbs("rc_implicit_prefetch", "ibv_rc_pingpong -c -O -P")
        .shows(PREFETCH)
        .runs(SIZES)
        .evicted(),
    // proves: IBV_ODP_SUPPORT_SRQ_RECV
    verbs("srq", "ibv_srq_pingpong -c -o -n 100")
        .shows(PROGRAM)
        .evicted(),
    // It prints no times.
    // proves: IBV_ODP_SUPPORT_SRQ_RECV
    verbs("xsrq", "ibv_xsrq_pingpong -o -m 1024 -n 100")
        .expecting("")
        .shows(PROGRAM)
        .evicted(),
    perf("send_bw", "ib_send_bw --odp -n 500")
        .shows(PROGRAM)
        .runs(SIZES)
        .evicted(),
    perf("send_lat", "ib_send_lat --odp -n 500")
        .shows(PROGRAM)
        .runs(SIZES)
        .evicted(),
    perf("write_bw", "ib_write_bw --odp -n 500")
        .shows(PROGRAM)
        .evicted(),
    perf("write_lat", "ib_write_lat --odp -n 500")
        .shows(PROGRAM)
        .runs(SIZES)
        .evicted(),
    perf("write_bw_all_sizes", "ib_write_bw --odp -a -n 10")
        .shows(PROGRAM)
        .runs(SIZES)
        .evicted(),
    perf("read_bw", "ib_read_bw --odp -n 500")
        .shows(PROGRAM)
        .evicted(),
    perf("read_lat", "ib_read_lat --odp -n 500")
        .shows(PROGRAM)
        .runs(SIZES)
        .evicted(),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw --odp -A FETCH_AND_ADD -n 500",
    )
    .shows(PROGRAM)
    .evicted(),
    perf(
        "atomic_lat_cmp_swap",
        "ib_atomic_lat --odp -A CMP_AND_SWAP -n 500",
    )
    .shows(PROGRAM)
    .runs(SIZES)
    .evicted(),
];
