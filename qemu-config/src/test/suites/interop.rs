//! The project's NIC in the first guest and the kernel's `rdma_rxe` over virtio-net in the second, on one switch. In most tests
//! the client is rxe; in those whose names end in `_back` it is the project's NIC.

use super::apps::{mpi, ucx};
use super::pingpong::ping;
use super::rdmacm::{cm, mckey, mckey_by};
use super::row::{
    Commands, DONE, GuestSuite, GuestTest, Sides, pair, perf, perf_ipv6, roles, suite, test, verbs,
    verbs_ipv6,
};
use super::ulp::disk;
use crate::exchange::Ready;
use crate::test::facts::On::{Both, First, Nothing};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "interop",
    "The NIC and `rdma_rxe` work together. In `…_back` the NIC is the client.",
    runs(
        Nothing,
        First,
        "sizes, addresses and directions of which the default run has one each",
    ),
    TESTS,
);

pub const SUITE_LOSSY: GuestSuite = suite(
    "interop-lossy",
    "The same on a link that loses and reorders 1 % of the frames.",
    runs(
        Nothing,
        First,
        "operations of which the default run has one each",
    ),
    LOSSY_TESTS,
);

pub const SUITE_ON_DEMAND: GuestSuite = suite(
    "interop-on-demand",
    "The same with on-demand regions at both ends, which rxe has from Linux 6.15 \
     on.",
    runs(
        Nothing,
        Both,
        "rdma_rxe with on-demand regions, which the first kernel does not have",
    ),
    ON_DEMAND_TESTS,
);

pub const SUITE_PROGRAMS: GuestSuite = suite(
    "interop-programs",
    "Kernel consumers and programs work with rxe at the other end.",
    runs(
        Nothing,
        First,
        "consumers and programs of ulp and apps with rdma_rxe",
    ),
    PROGRAMS_TESTS,
);

pub const SUITE_PROGRAMS_LOSSY: GuestSuite = suite(
    "interop-programs-lossy",
    "The same, shorter, on the lossy link.",
    runs(Nothing, Nothing, "ten minutes"),
    PROGRAMS_LOSSY_TESTS,
);

const ONCE: Runs = runs(
    First,
    First,
    "each service and operation once with rdma_rxe, and compared data; guests of \
     its own",
);
const LOSSY_ONCE: Runs = runs(
    First,
    First,
    "recovery from losses with rdma_rxe; guests of its own",
);

const PING: &str = "IPv4 and IPv6 packets are answered.";
const SERVICE: &str = "Ping-pongs of this service, path MTU and address keep their data.";
const CM: &str = "The connection manager connects both, and data is right.";
const MULTICAST: &str = "Multicast datagrams arrive.";
const PERF: &str = "perftest's operation completes.";
const COMPARED: &str = "READs, WRITEs, SENDs and atomics have the expected data, results and \
    completions.";
const LOSSY: &str = "The service recovers from each loss, and its data is right.";
const LOSSY_PERF: &str = "perftest's operation completes in spite of losses.";
const ON_DEMAND: &str = "The operation works on on-demand regions.";
const STORY: &str = "4096 absent pages are written, swapped out and read back.";
const NVME: &str = "fio verifies a disk over NVMe.";
const NFS: &str = "Files over NFS are verified.";
const UCX_MPI: &str = "Open MPI and UCX work over IPv6.";

/// READs, WRITEs, SENDs and atomics of pinned memory. Both sides compare the data. `NIC_LIMITS` is about memory that is
/// registered on demand.
const fn compared(name: &'static str) -> GuestTest {
    test(
        name,
        Commands::Two(
            "odp_torture --pinned",
            "odp_torture --pinned --seconds 2 $PEER_IP",
        ),
        Ready::Tcp(18600),
        60,
        DONE,
    )
}

const fn nfs_files(name: &'static str) -> GuestTest {
    let commands = Commands::Two("ulp_nfs server", "ulp_nfs client files");
    test(name, commands, Ready::KernelCm, 600, DONE)
}

const TESTS: &[GuestTest] = &[
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP").shows(PING),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6").shows(PING),
    verbs("rc", "ibv_rc_pingpong -c -n 200")
        .shows(SERVICE)
        .runs(ONCE),
    verbs("rc_back", "ibv_rc_pingpong -c -n 200")
        .reversed()
        .shows(SERVICE)
        .runs(ONCE),
    verbs("rc_mtu_256", "ibv_rc_pingpong -c -m 256 -n 200").shows(SERVICE),
    verbs("rc_mtu_256_back", "ibv_rc_pingpong -c -m 256 -n 200")
        .reversed()
        .shows(SERVICE),
    verbs("rc_mtu_512", "ibv_rc_pingpong -c -m 512 -s 65537 -n 50").shows(SERVICE),
    verbs(
        "rc_mtu_512_back",
        "ibv_rc_pingpong -c -m 512 -s 65537 -n 50",
    )
    .reversed()
    .shows(SERVICE),
    verbs("rc_mtu_2048", "ibv_rc_pingpong -c -m 2048 -s 65537 -n 50").shows(SERVICE),
    verbs(
        "rc_mtu_2048_back",
        "ibv_rc_pingpong -c -m 2048 -s 65537 -n 50",
    )
    .reversed()
    .shows(SERVICE),
    verbs("rc_mtu_4096", "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 20")
        .shows(SERVICE)
        .runs(ONCE),
    verbs(
        "rc_mtu_4096_back",
        "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 20",
    )
    .reversed()
    .shows(SERVICE),
    verbs_ipv6("rc_ipv6", "ibv_rc_pingpong -c -n 200").shows(SERVICE),
    verbs_ipv6("rc_ipv6_back", "ibv_rc_pingpong -c -n 200")
        .reversed()
        .shows(SERVICE),
    verbs("uc", "ibv_uc_pingpong -c -n 200").shows(SERVICE),
    verbs("uc_back", "ibv_uc_pingpong -c -n 200")
        .reversed()
        .shows(SERVICE)
        .runs(ONCE),
    verbs("ud", "ibv_ud_pingpong -c -s 1024 -n 200")
        .shows(SERVICE)
        .runs(ONCE),
    verbs("ud_back", "ibv_ud_pingpong -c -s 1024 -n 200")
        .reversed()
        .shows(SERVICE),
    verbs_ipv6("ud_ipv6", "ibv_ud_pingpong -c -s 1024 -n 200").shows(SERVICE),
    verbs_ipv6("ud_ipv6_back", "ibv_ud_pingpong -c -s 1024 -n 200")
        .reversed()
        .shows(SERVICE),
    verbs("srq", "ibv_srq_pingpong -c -n 100").shows(SERVICE),
    verbs("srq_back", "ibv_srq_pingpong -c -n 100")
        .reversed()
        .shows(SERVICE)
        .runs(ONCE),
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    )
    .shows(CM)
    .runs(ONCE),
    cm(
        "rping_back",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    )
    .reversed()
    .shows(CM),
    cm(
        "rping_ipv6",
        "rping -s -V -a $MY_IP6 -C 50",
        "rping -c -V -a $PEER_IP6 -C 50",
    )
    .shows(CM),
    cm(
        "rping_ipv6_back",
        "rping -s -V -a $MY_IP6 -C 50",
        "rping -c -V -a $PEER_IP6 -C 50",
    )
    .reversed()
    .shows(CM)
    .runs(ONCE),
    cm(
        "ucmatose",
        "ucmatose -b $MY_IP -C 100",
        "ucmatose -s $PEER_IP -C 100",
    )
    .shows(CM),
    cm(
        "ucmatose_back",
        "ucmatose -b $MY_IP -C 100",
        "ucmatose -s $PEER_IP -C 100",
    )
    .reversed()
    .shows(CM),
    // rxe sends the first datagram only: its counters `sent_pkts` and `rdma_sends` are 1 then, although mckey, which does not
    // look at the status, gets a completion for each.
    mckey_by(
        "multicast",
        "mckey -m 239.77.0.1 -b $MY_IP -C 1",
        "mckey -m 239.77.0.1 -b $MY_IP -C 10 -s",
    )
    .shows(MULTICAST)
    .runs(ONCE),
    mckey("multicast_back").reversed().shows(MULTICAST),
    perf("send_bw_rc", "ib_send_bw -n 300").shows(PERF),
    perf("send_bw_rc_back", "ib_send_bw -n 300")
        .reversed()
        .shows(PERF),
    perf("send_bw_uc", "ib_send_bw -c UC -n 300").shows(PERF),
    perf("send_bw_uc_back", "ib_send_bw -c UC -n 300")
        .reversed()
        .shows(PERF),
    perf("send_bw_ud", "ib_send_bw -c UD -s 1024 -n 300").shows(PERF),
    perf("send_bw_ud_back", "ib_send_bw -c UD -s 1024 -n 300")
        .reversed()
        .shows(PERF),
    perf("send_lat_rc", "ib_send_lat -n 100").shows(PERF),
    perf("send_lat_rc_back", "ib_send_lat -n 100")
        .reversed()
        .shows(PERF),
    perf("write_bw_rc", "ib_write_bw -n 300").shows(PERF),
    perf("write_bw_rc_back", "ib_write_bw -n 300")
        .reversed()
        .shows(PERF)
        .runs(ONCE),
    perf_ipv6("write_bw_rc_ipv6", "ib_write_bw -n 300").shows(PERF),
    perf_ipv6("write_bw_rc_ipv6_back", "ib_write_bw -n 300")
        .reversed()
        .shows(PERF),
    perf("write_bw_uc", "ib_write_bw -c UC -n 300").shows(PERF),
    perf("write_bw_uc_back", "ib_write_bw -c UC -n 300")
        .reversed()
        .shows(PERF),
    perf("write_lat_rc", "ib_write_lat -n 100").shows(PERF),
    perf("read_bw_rc", "ib_read_bw -n 300")
        .shows(PERF)
        .runs(ONCE),
    // rxe answers 128 READs and atomics at a time; perftest would use all.
    perf("read_bw_rc_back", "ib_read_bw -o 16 -n 300")
        .reversed()
        .shows(PERF),
    // In this test the server is to use as many as its client.
    perf("read_lat_rc", "ib_read_lat -o 16 -n 100").shows(PERF),
    perf("read_lat_rc_back", "ib_read_lat -o 16 -n 100")
        .reversed()
        .shows(PERF),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw -A FETCH_AND_ADD -n 300",
    )
    .shows(PERF),
    perf(
        "atomic_bw_cmp_swap_back",
        "ib_atomic_bw -A CMP_AND_SWAP -o 16 -n 300",
    )
    .reversed()
    .shows(PERF)
    .runs(ONCE),
    roles("traffic_class_back", "traffic_class", "", Ready::Now)
        .reversed()
        .shows(
            "Each packet has traffic class, UDP source port, VLAN and priority of its \
             address vector.",
        )
        .runs(ONCE),
    compared("compared").shows(COMPARED).runs(ONCE),
    compared("compared_back")
        .reversed()
        .shows(COMPARED)
        .runs(ONCE),
    // rxe has no raw queue pairs: the peer of this one is a packet socket.
    pair("raw_back", "raw_frames", 18690)
        .reversed()
        .shows("Frames of a raw queue pair come back unchanged and in order.")
        .runs(ONCE),
];

/// `linger` runs it, so it is not the first word.
const RPING_LISTENS: Ready = Ready::Cm("rping");

/// The tests of reliable services, for a link that loses frames. Without `linger` one ping-pong of a hundred fails, because the last
/// acknowledgement is lost and the queue pair that could repeat it is gone; and one rping of a hundred, because its request to
/// disconnect (DREQ) is lost, and Linux repeats it only as long as the identifier of the connection exists.
const LOSSY_TESTS: &[GuestTest] = &[
    verbs("rc", "linger ibv_rc_pingpong -c")
        .shows(LOSSY)
        .runs(LOSSY_ONCE),
    verbs("rc_back", "linger ibv_rc_pingpong -c")
        .reversed()
        .shows(LOSSY),
    verbs(
        "rc_mtu_4096",
        "linger ibv_rc_pingpong -c -m 4096 -s 1048576 -n 20",
    )
    .shows(LOSSY),
    verbs(
        "rc_mtu_256_back",
        "linger ibv_rc_pingpong -c -m 256 -s 65537 -n 50",
    )
    .reversed()
    .shows(LOSSY),
    verbs("srq", "linger ibv_srq_pingpong -c -n 50").shows(LOSSY),
    cm(
        "rping",
        "linger rping -s -V -a $MY_IP -C 50",
        "linger rping -c -V -a $PEER_IP -C 50",
    )
    .after(RPING_LISTENS)
    .shows(LOSSY),
    cm(
        "rping_back",
        "linger rping -s -V -a $MY_IP -C 50",
        "linger rping -c -V -a $PEER_IP -C 50",
    )
    .after(RPING_LISTENS)
    .reversed()
    .shows(LOSSY)
    .runs(LOSSY_ONCE),
    cm(
        "rping_ipv6",
        "linger rping -s -V -a $MY_IP6 -C 50",
        "linger rping -c -V -a $PEER_IP6 -C 50",
    )
    .after(RPING_LISTENS)
    .shows(LOSSY),
    perf("send_bw_rc", "ib_send_bw -n 300").shows(LOSSY_PERF),
    perf("write_bw_rc", "ib_write_bw -n 300").shows(LOSSY_PERF),
    perf("write_bw_rc_back", "ib_write_bw -n 300")
        .reversed()
        .shows(LOSSY_PERF),
    perf("read_bw_rc", "ib_read_bw -n 300")
        .shows(LOSSY_PERF)
        .runs(LOSSY_ONCE),
    perf("read_bw_rc_back", "ib_read_bw -o 16 -n 300")
        .reversed()
        .shows(LOSSY_PERF),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw -A FETCH_AND_ADD -n 300",
    )
    .shows(LOSSY_PERF),
    perf(
        "atomic_bw_cmp_swap_back",
        "ib_atomic_bw -A CMP_AND_SWAP -o 16 -n 300",
    )
    .reversed()
    .shows(LOSSY_PERF),
    perf("write_bw_both_ways", "ib_write_bw -b -n 150")
        .impaired()
        .shows("The same both ways; the link has lost and reordered frames in both.")
        .runs(LOSSY_ONCE),
];

/// With which pages are taken from this project's NIC.
const PERIOD: &str = "200ms";

/// On-demand regions at both ends, for kernels whose rxe has them (Linux 6.15). It has none of implicit ones.
///
/// The events of torture are not here, because rxe of Linux 7.3 fails them:
///
/// - *As the requester* it does not send a fenced request (IBV_SEND_FENCE) again that got an RNR NAK, if it has sent READs or atomics
///   behind it while it waits. In a capture (`torture::everything` with `--nic mixed`) the RNR NAK is the last packet to such a queue pair,
///   and the last requests from it are READs or atomics. Likely its fence waits for all READs and atomics that are under way, also for those
///   behind it.
/// - *As the owner of memory* that is unmapped and mapped again it completes receives with a local QP operation error, and loses WRITEs. Two
///   guests with rxe do the same (`cargo lab test --kernel backports --nic rxe torture::everything_short`).
const ON_DEMAND_TESTS: &[GuestTest] = &[
    verbs("rc", "ibv_rc_pingpong -c -o -n 200")
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    verbs("rc_back", "ibv_rc_pingpong -c -o -n 200")
        .reversed()
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    verbs("rc_mtu_256", "ibv_rc_pingpong -c -o -m 256 -s 65537 -n 50")
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    verbs(
        "rc_mtu_4096_back",
        "ibv_rc_pingpong -c -o -m 4096 -s 1048576 -n 20",
    )
    .reversed()
    .shows(ON_DEMAND)
    .evicted_every(PERIOD),
    verbs_ipv6("rc_ipv6", "ibv_rc_pingpong -c -o -n 200")
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    verbs("srq", "ibv_srq_pingpong -c -o -n 100")
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    verbs("srq_back", "ibv_srq_pingpong -c -o -n 100")
        .reversed()
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    perf("send_bw", "ib_send_bw --odp -n 300")
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    perf("send_bw_back", "ib_send_bw --odp -n 300")
        .reversed()
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    perf("write_bw", "ib_write_bw --odp -n 300")
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    perf("write_bw_back", "ib_write_bw --odp -n 300")
        .reversed()
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    perf("read_bw", "ib_read_bw --odp -n 300")
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    perf("read_bw_back", "ib_read_bw --odp -o 16 -n 300")
        .reversed()
        .shows(ON_DEMAND)
        .evicted_every(PERIOD),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw --odp -A FETCH_AND_ADD -n 3000",
    )
    .shows(ON_DEMAND)
    .evicted_every(PERIOD),
    perf(
        "atomic_bw_cmp_swap_back",
        "ib_atomic_bw --odp -A CMP_AND_SWAP -o 16 -n 3000",
    )
    .reversed()
    .shows(ON_DEMAND)
    .evicted_every(PERIOD),
    // Absent pages, which are written, swapped out and read back.
    pair("story", "odp_story", 18610)
        .expecting("as it should be")
        .faulting(Sides::Server)
        .shows(STORY),
    pair("story_back", "odp_story", 18610)
        .expecting("all right; the owner's NIC counts no page faults")
        .reversed()
        .shows(STORY)
        .not_faulting("the absent pages are those of rdma_rxe, which counts no page faults"),
];

/// Kernel consumers and programs, with verified data but for `ucx_perftest`; the server of the disk and of the file system is the project's
/// NIC, and rxe in tests whose names end in `_back`.
const PROGRAMS_TESTS: &[GuestTest] = &[
    disk(
        "nvme_random",
        "ulp_nvme server",
        "ulp_nvme client randrw 1 4 16 64",
    )
    .shows(NVME),
    disk(
        "nvme_random_back",
        "ulp_nvme disk",
        "ulp_nvme client randrw 1 4 16 64",
    )
    .reversed()
    .shows(NVME),
    roles("nfs", "ulp_nfs", "", Ready::KernelCm)
        .within(240)
        .shows(NFS),
    roles("nfs_back", "ulp_nfs", "", Ready::KernelCm)
        .within(240)
        .reversed()
        .shows(NFS),
    // Over IPv4 UCX aborts in the guest with rxe, also between two of these.
    ucx("ucx_rc_ipv6", "apps_ucx perftest rc 6").shows(UCX_MPI),
    ucx("ucx_ud_ipv6", "apps_ucx perftest ud 6").shows(UCX_MPI),
    mpi("mpi_rc_ipv6", "apps_ucx data rc 6").shows(UCX_MPI),
    mpi("mpi_ud_ipv6", "apps_ucx data ud 6").shows(UCX_MPI),
];

/// The same with less work on a link that loses frames: a loss at the end of a message costs a timeout of half a second.
const PROGRAMS_LOSSY_TESTS: &[GuestTest] = &[
    disk(
        "nvme_random",
        "ulp_nvme server",
        "ulp_nvme client randrw 4 64",
    )
    .within(600)
    .impaired()
    .shows(NVME),
    disk(
        "nvme_random_back",
        "ulp_nvme disk",
        "ulp_nvme client randrw 4 64",
    )
    .within(600)
    .reversed()
    .shows(NVME),
    nfs_files("nfs").shows(NFS),
    nfs_files("nfs_back").reversed().shows(NFS),
    ucx("ucx_rc_ipv6", "apps_ucx perftest rc 6")
        .within(600)
        .shows(UCX_MPI),
    mpi("mpi_rc_ipv6", "apps_ucx data rc 6")
        .within(600)
        .shows(UCX_MPI),
];
