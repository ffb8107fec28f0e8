//! iWARP adapters. Their queue pairs are connected by rdma_cm only.

use super::rdmacm::cm;
use super::row::{Commands, GuestSuite, GuestTest, client, suite, test};
use super::ulp::disk;
use crate::exchange::Ready;
use crate::test::facts::On::First;
use crate::test::facts::{Runs, by_name, runs};

pub const SUITE: GuestSuite = suite(
    "iwarp",
    "iWARP adapters move data over TCP.",
    by_name("the default run has these operations over RoCE, and two tests of this suite"),
    TESTS,
);

const ONCE: Runs = runs(First, First, "a process, and the kernel");

/// rping succeeds although the connection ends early: its last line tells.
const RPING: &str = "SENDs, READs and WRITEs return rping's data.";
const BW: &str = "The operation completes, many at a time.";

/// One of perftest's programs, connected by rdma_cm.
const fn perf(name: &'static str, program: &'static str, command: &'static str) -> GuestTest {
    let commands = Commands::Address(command, "-R -F -n 300");
    test(name, commands, Ready::Cm(program), 90, "#bytes")
}

const TESTS: &[GuestTest] = &[
    client("devinfo", "ibv_devinfo -v -d $RDMA_DEV")
        .within(30)
        .expecting("iWARP (1)")
        .shows("The transport is iWARP."),
    // proves: iw_accept, iw_add_ref, iw_connect, iw_create_listen, iw_destroy_listen
    // proves: iw_get_qp, iw_rem_ref, query_gid
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -v -V -a $PEER_IP -C 100",
    )
    .expecting("rdma-ping-99:")
    .shows(RPING)
    .runs(ONCE),
    cm(
        "rping_ipv6",
        "rping -s -V -a $MY_IP6 -C 50",
        "rping -c -v -V -a $PEER_IP6 -C 50",
    )
    .expecting("rdma-ping-49:")
    .shows(RPING),
    cm(
        "rping_any",
        "rping -s -V -C 50",
        "rping -c -v -V -a $PEER_IP -C 50",
    )
    .expecting("rdma-ping-49:")
    .shows(RPING),
    cm(
        "rping_64_kib",
        "rping -s -V -a $MY_IP -C 50 -S 65535",
        "rping -c -v -V -a $PEER_IP -C 50 -S 65535 | cut -c 1-40",
    )
    .expecting("rdma-ping-49:")
    .shows(RPING),
    cm(
        "ucmatose_many",
        "ucmatose -b $MY_IP -c 50 -C 10",
        "ucmatose -s $PEER_IP -c 50 -C 10",
    )
    .shows("Connections are made, carry messages, and end."),
    perf("write_bw_on_demand", "ib_write_bw", "ib_write_bw --odp")
        .shows(BW)
        .evicted(),
    perf("send_bw", "ib_send_bw", "ib_send_bw").shows(BW),
    perf("write_bw", "ib_write_bw", "ib_write_bw").shows(BW),
    perf("read_bw", "ib_read_bw", "ib_read_bw").shows(BW),
    test(
        "pingpong_msg",
        Commands::Address(
            "fi_pingpong -p verbs -e msg -d $RDMA_DEV -c -I 5 -S 65536",
            "",
        ),
        Ready::Tcp(47592),
        60,
        "bytes",
    )
    .shows("fi_pingpong verifies its data."),
    // The target reads by registrations that the READ invalidates.
    // proves: IB_WR_RDMA_READ_WITH_INV
    disk(
        "nvme_random",
        "ulp_nvme disk",
        "ulp_nvme client randrw 1 4 16",
    )
    .shows("What fio writes to a disk of the other guest, it reads again.")
    .runs(ONCE),
];
