//! Programs of high-performance computing and storage, as users start them: no setting works around the device.

use super::row::{Commands, DONE, GuestTest, Sides, client, roles, test};
use crate::exchange::Ready;

/// A rank in each guest.
const fn ranks(name: &'static str, server: &'static str, client: &'static str) -> GuestTest {
    test(name, Commands::Two(server, client), Ready::Now, 90, DONE)
}

/// Each test of `ucx_perftest`.
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

const fn qperf(name: &'static str, tests: &'static str) -> GuestTest {
    let commands = Commands::Roles("apps_qperf", tests);
    test(name, commands, Ready::Tcp(19765), 90, DONE)
}

const fn fio(name: &'static str, verb: &'static str) -> GuestTest {
    roles(name, "apps_fio", verb, Ready::Cm).within(60)
}

pub const TESTS: &[GuestTest] = &[
    ucx("ucx_rc", "apps_ucx perftest rc 4"),
    ucx("ucx_rc_ipv6", "apps_ucx perftest rc 6"),
    ucx("ucx_ud", "apps_ucx perftest ud 4"),
    ucx("ucx_ud_ipv6", "apps_ucx perftest ud 6"),
    mpi("mpi_rc", "apps_ucx data rc 4"),
    mpi("mpi_rc_ipv6", "apps_ucx data rc 6"),
    mpi("mpi_ud", "apps_ucx data ud 4"),
    mpi("mpi_ud_ipv6", "apps_ucx data ud 6"),
    mpi("mpi_rc_long", "apps_ucx data rc 4 --rounds 60"),
    mpi("mpi_ud_long", "apps_ucx data ud 4 --rounds 60"),
    ranks(
        "mpi_on_demand",
        "apps_ucx on_demand server",
        "apps_ucx on_demand client",
    )
    .faulting(Sides::Both),
    fabric("fabric_msg", "-p verbs -e msg"),
    fabric("fabric_rxm", "-p 'verbs;ofi_rxm' -e rdm"),
    qperf("qperf_send", "rc_bw rc_lat"),
    qperf("qperf_write", "rc_rdma_write_bw rc_rdma_write_lat"),
    qperf("qperf_read", "rc_rdma_read_bw rc_rdma_read_lat"),
    qperf("qperf_atomic", "ver_rc_compare_swap ver_rc_fetch_add"),
    fio("fio_write", "write"),
    fio("fio_read", "read"),
    fio("fio_send", "send"),
    // Without hardware virtualization bpftrace takes half a minute to compile its programs.
    client("trace_tools", "apps_trace_tools").within(240),
];
