//! The packages that the image of some suites has.

/// Packages of all suites that need any, so that their guests have one image: storage, and the source of a program that is built on
/// NFS; programs of high-performance computing and of measurement.
pub fn packages() -> Vec<String> {
    [
        "bpftrace",
        "cifs-utils",
        "fio",
        "iperf",
        "ksmbd-tools",
        "libfabric-bin",
        // With its compiler.
        "libopenmpi-dev",
        "linux-perf",
        "netperf",
        "nfs-common",
        "nfs-kernel-server",
        "open-iscsi",
        "openmpi-bin",
        "qperf",
        "src:bzip2",
        "ucx-utils",
    ]
    .map(str::to_owned)
    .to_vec()
}
