//! Kernel consumers: disks, file systems and sockets over RDMA.

use super::row::{Commands, DONE, GuestSuite, GuestTest, roles, suite, test};
use crate::exchange::Ready;
use crate::test::facts::On::{First, Nothing};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "ulp",
    "The kernel's consumers of RDMA work between two guests.",
    runs(
        First,
        First,
        "each consumer in the kernel; minutes, and guests of its own",
    ),
    TESTS,
);

const OTHER: Runs = runs(Nothing, First, "the same consumers with other requests");

const NVME: &str = "fio verifies a disk over NVMe at depths 1 to 64, on shared receive queues.";
const SRP: &str = "fio verifies a disk over SRP at depths 1 to 64.";

/// The server and a client that starts when the server's kernel listens.
pub(super) const fn disk(
    name: &'static str,
    server: &'static str,
    client: &'static str,
) -> GuestTest {
    test(
        name,
        Commands::Two(server, client),
        Ready::KernelCm,
        180,
        DONE,
    )
}

const fn rds(name: &'static str, command: &'static str) -> GuestTest {
    let commands = Commands::Address(command, "");
    test(name, commands, Ready::Tcp(18640), 120, DONE)
}

const TESTS: &[GuestTest] = &[
    disk(
        "nvme_random",
        "ulp_nvme server",
        "ulp_nvme client randrw 1 4 16 64",
    )
    .shows(NVME),
    disk(
        "nvme_sequential",
        "ulp_nvme server",
        "ulp_nvme client rw 1 4 16 64",
    )
    .shows(NVME)
    .runs(OTHER),
    // Each connection has receive queues of its own: with `use_srq`, `ib_srpt` of Linux 6.12 warns of a mistake of its own when a
    // connection ends (it returns a cache that it did not take).
    disk(
        "srp_random",
        "ulp_srp server",
        "ulp_srp client randrw 1 4 16 64",
    )
    .shows(SRP),
    disk(
        "srp_sequential",
        "ulp_srp server",
        "ulp_srp client rw 1 4 16 64",
    )
    .shows(SRP)
    .runs(OTHER),
    disk("iser", "ulp_iser server", "ulp_iser client 1 16")
        .shows("open-iscsi logs in to LIO over iSER; fio verifies the disk, and its content is there after a second login."),
    disk("rnbd", "ulp_rnbd server", "ulp_rnbd client 1 16")
        .shows("fio verifies a disk over RNBD, and its content is there after a reconnection.")
        .too_slow(),
    roles("smb_direct", "ulp_smb_direct", "40", Ready::KernelCm)
        .within(240)
        .shows("Files on SMB over RDMA (ksmbd and cifs) are right.")
        .too_slow(),
    roles("smc", "ulp_smc", "", Ready::When("ss -ltn | grep -q 18720"))
        .shows("Sockets of SMC are connected over RDMA and keep their data; Debian's 7.3 has no SMC."),
    roles("nfs", "ulp_nfs", "files", Ready::KernelCm)
        .within(240)
        .shows("Files on NFS over RDMA are right."),
    roles("nfs_build", "ulp_nfs", "", Ready::KernelCm)
        .within(240)
        .shows("More files on NFS over RDMA are right, and bzip2 builds there.")
        .runs(OTHER),
    rds("rds", "modprobe rds_rdma && rds_pair $MY_IP")
        .shows("RDS messages and RDMA in both directions keep their data.")
        .runs(OTHER),
    // The kernel does not pin files on a DAX device: it registers the windows on demand.
    rds(
        "rds_on_demand",
        "modprobe rds_rdma && rds_pair --file /mnt/dax/window $MY_IP",
    )
    .shows("The same on demand, for windows in a DAX file.")
    .not_faulting("the program writes its windows before the kernel registers them"),
];
