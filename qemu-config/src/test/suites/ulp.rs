//! Kernel consumers: disks, file systems and sockets over RDMA.

use super::row::{Commands, DONE, GuestTest, roles, test};
use crate::exchange::Ready;

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

pub const TESTS: &[GuestTest] = &[
    disk(
        "nvme_random",
        "ulp_nvme server",
        "ulp_nvme client randrw 1 4 16 64",
    ),
    disk(
        "nvme_sequential",
        "ulp_nvme server",
        "ulp_nvme client rw 1 4 16 64",
    ),
    disk(
        "srp_random",
        "ulp_srp server",
        "ulp_srp client randrw 1 4 16 64",
    ),
    disk(
        "srp_sequential",
        "ulp_srp server",
        "ulp_srp client rw 1 4 16 64",
    ),
    roles("nfs", "ulp_nfs", "", Ready::KernelCm).within(240),
    rds("rds", "modprobe rds_rdma && rds_pair $MY_IP"),
    // The kernel does not pin files on a DAX device: it registers the windows on demand.
    rds(
        "rds_on_demand",
        "modprobe rds_rdma && rds_pair --file /mnt/dax/window $MY_IP",
    ),
];
