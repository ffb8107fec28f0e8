//! Programs of high-performance computing and storage, as users start them: no setting works around the device.

use super::row::{Commands, DONE, GuestSuite, GuestTest, Sides, client, roles, suite, test};
use crate::exchange::Ready;
use crate::test::facts::On::{First, Nothing};
use crate::test::facts::{Runs, by_name, runs};

pub const SUITE: GuestSuite = suite(
    "apps",
    "Debian's HPC and storage programs work; no setting hides a property of the \
     device.",
    runs(
        Nothing,
        First,
        "services and programs of which the default run has one each",
    ),
    TESTS,
);

const ONCE: Runs = runs(First, First, "each program once; guests of its own");
const LONGER: Runs = by_name("longer forms of mpi_rc and mpi_ud");

const UCX: &str = "ucx_perftest's operations complete under Open MPI.";
const MPI: &str = "MPI messages, collectives and windows over UCX keep their data.";
const FABRIC: &str = "fi_pingpong of libfabric verifies its data.";
const QPERF: &str = "qperf moves data over RC.";
const FIO: &str = "fio's engine `rdma` completes; messages are verified.";

/// A rank in each guest.
const fn ranks(name: &'static str, server: &'static str, client: &'static str) -> GuestTest {
    test(name, Commands::Two(server, client), Ready::Now, 90, DONE)
}

/// Each test of `ucx_perftest`. The active messages of UCX 1.18 have no data to verify.
pub(super) const fn ucx(name: &'static str, client: &'static str) -> GuestTest {
    ranks(name, "apps_ucx server", client)
}

/// MPI with verified data.
pub(super) const fn mpi(name: &'static str, client: &'static str) -> GuestTest {
    ranks(name, "apps_ucx server data", client)
}

const fn fabric(name: &'static str, command: &'static str) -> GuestTest {
    let commands = Commands::Address("fi_pingpong -d $RDMA_DEV -c -I 5 -S all", command);
    test(name, commands, Ready::Tcp(47592), 60, "bytes")
}

/// They end by time: with a number of messages (`-n`) qperf's READs and atomics do not end, and when its server is then killed, its region is
/// destroyed before its queue pair, and the client reports "Remote access failure".
const fn qperf(name: &'static str, tests: &'static str) -> GuestTest {
    let commands = Commands::Roles("apps_qperf", tests);
    test(name, commands, Ready::Tcp(19765), 90, DONE)
}

const fn fio(name: &'static str, verb: &'static str) -> GuestTest {
    roles(name, "apps_fio", verb, Ready::Cm("fio")).within(60)
}

const TESTS: &[GuestTest] = &[
    ucx("ucx_rc", "apps_ucx perftest rc 4")
        .shows(UCX)
        .runs(ONCE),
    ucx("ucx_rc_ipv6", "apps_ucx perftest rc 6").shows(UCX),
    ucx("ucx_ud", "apps_ucx perftest ud 4").shows(UCX),
    ucx("ucx_ud_ipv6", "apps_ucx perftest ud 6").shows(UCX),
    mpi("mpi_rc", "apps_ucx data rc 4").shows(MPI).runs(ONCE),
    mpi("mpi_rc_ipv6", "apps_ucx data rc 6").shows(MPI),
    mpi("mpi_ud", "apps_ucx data ud 4").shows(MPI),
    mpi("mpi_ud_ipv6", "apps_ucx data ud 6").shows(MPI),
    mpi("mpi_rc_long", "apps_ucx data rc 4 --rounds 60")
        .shows(MPI)
        .runs(LONGER),
    mpi("mpi_ud_long", "apps_ucx data ud 4 --rounds 60")
        .shows(MPI)
        .runs(LONGER),
    // UCX does so (`UCX_REG_NONBLOCK_MEM_TYPES=host`) on any device with IBV_ODP_SUPPORT. UCX 1.18 prints "flush(remote) is not
    // supported" for each fence over RC: it supports this for mlx5 only.
    ranks(
        "mpi_on_demand",
        "apps_ucx on_demand server",
        "apps_ucx on_demand client",
    )
    .faulting(Sides::Both)
    .shows("UCX registers changing memory on demand, and both devices fault.")
    .runs(ONCE),
    fabric("fabric_msg", "-p verbs -e msg")
        .shows(FABRIC)
        .runs(ONCE),
    fabric("fabric_rxm", "-p 'verbs;ofi_rxm' -e rdm").shows(FABRIC),
    qperf("qperf_send", "rc_bw rc_lat").shows(QPERF).runs(ONCE),
    qperf("qperf_write", "rc_rdma_write_bw rc_rdma_write_lat").shows(QPERF),
    qperf("qperf_read", "rc_rdma_read_bw rc_rdma_read_lat").shows(QPERF),
    qperf("qperf_atomic", "ver_rc_compare_swap ver_rc_fetch_add")
        .shows("qperf verifies the results of atomics."),
    fio("fio_write", "write").shows(FIO).runs(ONCE),
    fio("fio_read", "read").shows(FIO),
    fio("fio_send", "send").shows(FIO),
    // Without hardware virtualization bpftrace takes half a minute to compile its programs.
    client("trace_tools", "apps_trace_tools")
        .within(240)
        .shows("`bpftrace` and `perf trace` see as many page faults as the device counts."),
];
