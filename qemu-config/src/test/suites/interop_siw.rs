//! The project's iWARP NIC in the first guest and the kernel's `siw` over virtio-net in the second, on one switch. In most tests the client is
//! siw; in those whose names end in `_back` it is the NIC. In those with `tcp` the peer is a program with a socket: it has MPA, and the
//! kernel has TCP.

use super::iwarp::{BW, perf};
use super::rdmacm::cm;
use super::row::{Commands, DONE, GuestSuite, GuestTest, roles, suite, test};
use super::ulp::disk;
use crate::exchange::Ready;
use crate::test::facts::by_name;

pub const SUITE: GuestSuite = suite(
    "interop-siw",
    "The iWARP NIC works with Linux `siw`, and with TCP sockets. In `…_back` the NIC is the client.",
    by_name("siw is built from the kernel's source"),
    TESTS,
);

const RPING: &str = "SENDs, READs and WRITEs return rping's data.";
const DISK: &str = "fio verifies a disk over NVMe.";
const NFS: &str = "Files over NFS are verified.";
const TCP: &str =
    "A program with a socket exchanges rping's messages with the NIC; `ss` shows no anomaly.";

/// One of perftest's programs. Its server listens for the second connection when its last message on the first one is complete, and its
/// client connects when that has arrived. `siw` reports at once that a connection is refused, and the client crashes where it would try again
/// after an event.
const fn perf_late(
    name: &'static str,
    program: &'static str,
    server: &'static str,
    client: &'static str,
) -> GuestTest {
    let commands = Commands::Two(server, client);
    test(name, commands, Ready::Cm(program), 90, "#bytes").shows(BW)
}

/// rping of the NIC, and `tcp_peer` with the guest's own TCP, under what `netem` does to the frames of the peer's guest.
const fn tcp(name: &'static str, client: &'static str) -> GuestTest {
    test(
        name,
        Commands::Two("rping -s -V -a $MY_IP -C 300 -S 16000", client),
        Ready::Cm("rping"),
        120,
        DONE,
    )
    .shows(TCP)
}

/// The same with the program as the passive end.
const fn tcp_back(name: &'static str, server: &'static str) -> GuestTest {
    test(
        name,
        Commands::Two(
            server,
            "rping -c -v -V -a $PEER_IP -C 300 -S 16000 | cut -c 1-40",
        ),
        Ready::Tcp(7174),
        120,
        "rdma-ping-299:",
    )
    .reversed()
    .shows(TCP)
}

const TESTS: &[GuestTest] = &[
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -v -V -a $PEER_IP -C 100",
    )
    .expecting("rdma-ping-99:")
    .shows(RPING),
    cm(
        "rping_back",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -v -V -a $PEER_IP -C 100",
    )
    .reversed()
    .expecting("rdma-ping-99:")
    .shows(RPING),
    cm(
        "rping_ipv6",
        "rping -s -V -a $MY_IP6 -C 50 -S 65535",
        "rping -c -v -V -a $PEER_IP6 -C 50 -S 65535 | cut -c 1-40",
    )
    .expecting("rdma-ping-49:")
    .shows(RPING),
    cm(
        "rping_ipv6_back",
        "rping -s -V -a $MY_IP6 -C 50 -S 65535",
        "rping -c -v -V -a $PEER_IP6 -C 50 -S 65535 | cut -c 1-40",
    )
    .reversed()
    .expecting("rdma-ping-49:")
    .shows(RPING),
    perf_late(
        "send_bw",
        "ib_send_bw",
        "ib_send_bw -R -F -n 300",
        "late_connections ib_send_bw -R -F -n 300 $PEER_IP",
    ),
    perf("send_bw_back", "ib_send_bw", "ib_send_bw").reversed(),
    perf_late(
        "write_bw",
        "ib_write_bw",
        "ib_write_bw -R -F -n 300",
        "late_connections ib_write_bw -R -F -n 300 $PEER_IP",
    ),
    perf("write_bw_back", "ib_write_bw", "ib_write_bw").reversed(),
    perf_late(
        "read_bw",
        "ib_read_bw",
        "ib_read_bw -R -F -n 300",
        "late_connections ib_read_bw -R -F -n 300 $PEER_IP",
    ),
    perf("read_bw_back", "ib_read_bw", "ib_read_bw").reversed(),
    disk(
        "nvme_random",
        "ulp_nvme disk",
        "ulp_nvme client randrw 1 16",
    )
    .shows(DISK),
    disk(
        "nvme_random_back",
        "ulp_nvme disk",
        "ulp_nvme client randrw 1 16",
    )
    .reversed()
    .shows(DISK),
    roles("nfs", "ulp_nfs", "files", Ready::KernelCm)
        .within(240)
        .shows(NFS),
    roles("nfs_back", "ulp_nfs", "files", Ready::KernelCm)
        .within(240)
        .reversed()
        .shows(NFS),
    tcp("tcp", "tcp_peer client"),
    tcp("tcp_lossy", "tcp_peer client loss 1%"),
    tcp("tcp_reordered", "tcp_peer client delay 2ms reorder 75%"),
    tcp_back("tcp_back", "tcp_peer server"),
    tcp_back("tcp_lossy_back", "tcp_peer server loss 1%"),
    tcp_back(
        "tcp_reordered_back",
        "tcp_peer server delay 2ms reorder 75%",
    ),
];
