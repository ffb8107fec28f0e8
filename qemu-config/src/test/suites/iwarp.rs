//! iWARP adapters. Their queue pairs are connected by rdma_cm only.

use super::rdmacm::cm;
use super::row::{
    Commands, GuestSuite, GuestTest, Sides, client, pair, roles, suite, test, torture,
};
use super::ulp::disk;
use crate::exchange::Ready;
use crate::test::facts::On::First;
use crate::test::facts::{Runs, by_name, runs};

pub const SUITE: GuestSuite = suite(
    "iwarp",
    "iWARP adapters move data over TCP.",
    by_name("the default run has these operations over RoCE, and three tests of this suite"),
    TESTS,
);

pub const SUITE_LOSSY: GuestSuite = suite(
    "iwarp-lossy",
    "The same on links that lose and reorder 1 % of the frames.",
    by_name("minutes"),
    LOSSY_TESTS,
);

const ONCE: Runs = runs(First, First, "a process, and the kernel");

/// rping succeeds although the connection ends early: its last line tells.
const RPING: &str = "SENDs, READs and WRITEs return rping's data.";
pub(super) const BW: &str = "The operation completes, many at a time.";
const MSG: &str = "fi_pingpong verifies its data.";
const DISK: &str = "What fio writes to a disk of the other guest, it reads again.";
const NFS: &str = "Files on NFS over RDMA are right.";
const ISER: &str = "fio verifies a disk over iSER.";
const STORY: &str = "Absent pages that a peer wrote are swapped out and read back.";
const TORTURE: &str = "Verified traffic stays right while memory changes.";

/// One of perftest's programs, connected by rdma_cm.
pub(super) const fn perf(
    name: &'static str,
    program: &'static str,
    command: &'static str,
) -> GuestTest {
    let commands = Commands::Address(command, "-R -F -n 300");
    test(name, commands, Ready::Cm(program), 90, "#bytes").shows(BW)
}

const fn msg(name: &'static str) -> GuestTest {
    let commands = Commands::Address(
        "fi_pingpong -p verbs -e msg -d $RDMA_DEV -c -I 5 -S 65536",
        "",
    );
    test(name, commands, Ready::Tcp(47592), 60, "bytes").shows(MSG)
}

const fn story(name: &'static str) -> GuestTest {
    pair(name, "odp_story", 18610)
        .expecting("as it should be")
        .faulting(Sides::Server)
        .shows(STORY)
}

/// Memory changes in every way that the kernel has, and the options of the victim and of both.
const fn tortured(name: &'static str, victim: &'static str, both: &'static str) -> GuestTest {
    torture(name, victim, both, 15)
        .faulting(Sides::Both)
        .shows(TORTURE)
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
    roles("addresses", "iwarp_addresses", "", Ready::Now)
        .shows("Connections use addresses and VLANs that are added later."),
    roles("namespaces", "iwarp_namespaces", "", Ready::Now)
        .shows("The adapter has the connections of its network namespace only, also after a reset, and works in another one."),
    perf("write_bw_on_demand", "ib_write_bw", "ib_write_bw --odp").evicted(),
    perf("send_bw", "ib_send_bw", "ib_send_bw"),
    perf("write_bw", "ib_write_bw", "ib_write_bw"),
    perf("read_bw", "ib_read_bw", "ib_read_bw"),
    msg("pingpong_msg"),
    story("story").runs(ONCE),
    pair("stale_cache", "odp_coherence cache", 18620)
        .faulting(Sides::Client)
        .shows("A registration cache by address sends stale data with pinned regions only."),
    pair("lost_memory", "odp_coherence lost", 18620)
        .faulting(Sides::Both)
        .shows(
            "A request that touches removed memory ends the connection; nothing else is affected.",
        ),
    tortured("torture", "", ""),
    tortured("torture_implicit", "", "--implicit"),
    tortured("torture_drop", "--policy drop", ""),
    tortured("torture_stall", "--policy stall", ""),
    // Before the other one: the target keeps its module and its parameters.
    disk(
        "nvme_shared_receives",
        "ulp_nvme server",
        "ulp_nvme client randrw 1 16",
    )
    .shows("fio verifies a disk; connections receive from a shared queue."),
    // The target reads by registrations that the READ invalidates.
    // proves: IB_WR_RDMA_READ_WITH_INV
    disk(
        "nvme_random",
        "ulp_nvme disk",
        "ulp_nvme client randrw 1 4 16",
    )
    .shows(DISK)
    .runs(ONCE),
    roles("nfs", "ulp_nfs", "files", Ready::KernelCm)
        .within(240)
        .shows(NFS),
    // LIO has a socket at the port of the portal.
    disk("iser", "ulp_iser server", "ulp_iser client 1 16").shows(ISER),
];

/// One of each program. Only the longer ones send so many frames that some are lost in each direction.
const LOSSY_TESTS: &[GuestTest] = &[
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 1000 -S 8000",
        "rping -c -v -V -a $PEER_IP -C 1000 -S 8000 | cut -c 1-40",
    )
    .within(120)
    .impaired()
    .expecting("rdma-ping-999:")
    .shows(RPING),
    cm(
        "rping_ipv6",
        "rping -s -V -a $MY_IP6 -C 1000 -S 8000",
        "rping -c -v -V -a $PEER_IP6 -C 1000 -S 8000 | cut -c 1-40",
    )
    .within(120)
    .expecting("rdma-ping-999:")
    .shows(RPING),
    perf("send_bw", "ib_send_bw", "ib_send_bw"),
    perf("write_bw", "ib_write_bw", "ib_write_bw"),
    perf("read_bw", "ib_read_bw", "ib_read_bw"),
    msg("pingpong_msg").within(120),
    story("story").within(300),
    pair("stale_cache", "odp_coherence cache", 18620)
        .faulting(Sides::Client)
        .shows("Regions on demand send what the memory has."),
    tortured("torture", "", ""),
    disk(
        "nvme_random",
        "ulp_nvme disk",
        "ulp_nvme client randrw 4 16",
    )
    .within(600)
    .shows(DISK),
    roles("nfs", "ulp_nfs", "files", Ready::KernelCm)
        .within(600)
        .shows(NFS),
    disk("iser", "ulp_iser server", "ulp_iser client 4 16")
        .within(600)
        .shows(ISER),
];
