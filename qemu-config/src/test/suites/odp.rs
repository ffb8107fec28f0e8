//! On-demand regions with third-party programs and those of the project. rdma-core's `test_odp` is the rest of the
//! suite.

use super::row::{GuestTest, Sides, alone, perf, verbs};

pub const TESTS: &[GuestTest] = &[
    // Its threads must run at the same time.
    alone("hostile_process", "hostile_process")
        .on_cpus(2)
        .faulting(Sides::Client),
    alone("fault_policies", "fault_policy").faulting(Sides::Client),
    alone("dma_buf", "dma_buf_regions"),
    alone("refused_changes", "key_refused").faulting(Sides::Client),
    alone("zero_based", "zero_based").faulting(Sides::Client),
    alone("writes_kept", "odp_faults kept").faulting(Sides::Client),
    alone("faults_refused", "odp_faults refused").faulting(Sides::Client),
    alone("read_ahead", "odp_faults ahead").faulting(Sides::Client),
    alone("huge_entries", "odp_faults huge").faulting(Sides::Client),
    alone("empty_regions", "empty_regions").faulting(Sides::Client),
    alone("region_statistics", "region_statistics").faulting(Sides::Client),
    alone("fault_trace", "fault_trace").faulting(Sides::Client),
    alone("absent_receive", "absent_receive").faulting(Sides::Client),
    alone("file_regions", "file_regions").faulting(Sides::Client),
    alone("implicit_space", "implicit_space").faulting(Sides::Client),
    alone("key_scope", "key_scope").faulting(Sides::Client),
    alone("translation_cache", "translation_cache").faulting(Sides::Client),
    verbs("rc", "ibv_rc_pingpong -c -o"),
    verbs("rc_events", "ibv_rc_pingpong -c -o -e"),
    verbs("rc_odd_size", "ibv_rc_pingpong -c -o -s 65537 -n 200"),
    verbs("rc_prefetch", "ibv_rc_pingpong -c -o -P"),
    // The region gets its first part when it is first used.
    verbs("rc_implicit", "ibv_rc_pingpong -c -O").faulting(Sides::Both),
    verbs("rc_implicit_prefetch", "ibv_rc_pingpong -c -O -P"),
    // proves: IBV_ODP_SUPPORT_SRQ_RECV
    verbs("srq", "ibv_srq_pingpong -c -o -n 100"),
    // It prints no times.
    // proves: IBV_ODP_SUPPORT_SRQ_RECV
    verbs("xsrq", "ibv_xsrq_pingpong -o -m 1024 -n 100").expecting(""),
    perf("send_bw", "ib_send_bw --odp -n 500"),
    perf("send_lat", "ib_send_lat --odp -n 500"),
    perf("write_bw", "ib_write_bw --odp -n 500"),
    perf("write_lat", "ib_write_lat --odp -n 500"),
    perf("write_bw_all_sizes", "ib_write_bw --odp -a -n 10"),
    perf("read_bw", "ib_read_bw --odp -n 500"),
    perf("read_lat", "ib_read_lat --odp -n 500"),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw --odp -A FETCH_AND_ADD -n 500",
    ),
    perf(
        "atomic_lat_cmp_swap",
        "ib_atomic_lat --odp -A CMP_AND_SWAP -n 500",
    ),
];
