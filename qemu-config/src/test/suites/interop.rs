//! The project's NIC in the first guest and the kernel's `rdma_rxe` over virtio-net in the second, on one switch. In most tests
//! the client is rxe; in those whose names end in `_back` it is the project's NIC.

use super::apps::{mpi, ucx};
use super::pingpong::ping;
use super::rdmacm::{cm, mckey, mckey_by};
use super::row::{
    Commands, DONE, GuestTest, Sides, pair, perf, perf_ipv6, roles, test, verbs, verbs_ipv6,
};
use super::ulp::disk;
use crate::exchange::Ready;

/// READs, WRITEs, SENDs and atomics of pinned memory, whose data is compared on both sides. `NIC_LIMITS` is about memory that is
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

pub const TESTS: &[GuestTest] = &[
    ping("ping", "ping -c 3 -i 0.2 -W 5 $PEER_IP"),
    ping("ping6", "ping -c 3 -i 0.2 -W 5 $PEER_IP6"),
    verbs("rc", "ibv_rc_pingpong -c -n 200"),
    verbs("rc_back", "ibv_rc_pingpong -c -n 200").reversed(),
    verbs("rc_mtu_256", "ibv_rc_pingpong -c -m 256 -n 200"),
    verbs("rc_mtu_256_back", "ibv_rc_pingpong -c -m 256 -n 200").reversed(),
    verbs("rc_mtu_512", "ibv_rc_pingpong -c -m 512 -s 65537 -n 50"),
    verbs(
        "rc_mtu_512_back",
        "ibv_rc_pingpong -c -m 512 -s 65537 -n 50",
    )
    .reversed(),
    verbs("rc_mtu_2048", "ibv_rc_pingpong -c -m 2048 -s 65537 -n 50"),
    verbs(
        "rc_mtu_2048_back",
        "ibv_rc_pingpong -c -m 2048 -s 65537 -n 50",
    )
    .reversed(),
    verbs("rc_mtu_4096", "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 20"),
    verbs(
        "rc_mtu_4096_back",
        "ibv_rc_pingpong -c -m 4096 -s 1048576 -n 20",
    )
    .reversed(),
    verbs_ipv6("rc_ipv6", "ibv_rc_pingpong -c -n 200"),
    verbs_ipv6("rc_ipv6_back", "ibv_rc_pingpong -c -n 200").reversed(),
    verbs("uc", "ibv_uc_pingpong -c -n 200"),
    verbs("uc_back", "ibv_uc_pingpong -c -n 200").reversed(),
    verbs("ud", "ibv_ud_pingpong -c -s 1024 -n 200"),
    verbs("ud_back", "ibv_ud_pingpong -c -s 1024 -n 200").reversed(),
    verbs_ipv6("ud_ipv6", "ibv_ud_pingpong -c -s 1024 -n 200"),
    verbs_ipv6("ud_ipv6_back", "ibv_ud_pingpong -c -s 1024 -n 200").reversed(),
    verbs("srq", "ibv_srq_pingpong -c -n 100"),
    verbs("srq_back", "ibv_srq_pingpong -c -n 100").reversed(),
    cm(
        "rping",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    ),
    cm(
        "rping_back",
        "rping -s -V -a $MY_IP -C 100",
        "rping -c -V -a $PEER_IP -C 100",
    )
    .reversed(),
    cm(
        "rping_ipv6",
        "rping -s -V -a $MY_IP6 -C 50",
        "rping -c -V -a $PEER_IP6 -C 50",
    ),
    cm(
        "rping_ipv6_back",
        "rping -s -V -a $MY_IP6 -C 50",
        "rping -c -V -a $PEER_IP6 -C 50",
    )
    .reversed(),
    cm(
        "ucmatose",
        "ucmatose -b $MY_IP -C 100",
        "ucmatose -s $PEER_IP -C 100",
    ),
    cm(
        "ucmatose_back",
        "ucmatose -b $MY_IP -C 100",
        "ucmatose -s $PEER_IP -C 100",
    )
    .reversed(),
    // rxe sends the first datagram only: its counters `sent_pkts` and `rdma_sends` are 1 then, although mckey, which does not
    // look at the status, gets a completion for each.
    mckey_by(
        "multicast",
        "mckey -m 239.77.0.1 -b $MY_IP -C 1",
        "mckey -m 239.77.0.1 -b $MY_IP -C 10 -s",
    ),
    mckey("multicast_back").reversed(),
    perf("send_bw_rc", "ib_send_bw -n 300"),
    perf("send_bw_rc_back", "ib_send_bw -n 300").reversed(),
    perf("send_bw_uc", "ib_send_bw -c UC -n 300"),
    perf("send_bw_uc_back", "ib_send_bw -c UC -n 300").reversed(),
    perf("send_bw_ud", "ib_send_bw -c UD -s 1024 -n 300"),
    perf("send_bw_ud_back", "ib_send_bw -c UD -s 1024 -n 300").reversed(),
    perf("send_lat_rc", "ib_send_lat -n 100"),
    perf("send_lat_rc_back", "ib_send_lat -n 100").reversed(),
    perf("write_bw_rc", "ib_write_bw -n 300"),
    perf("write_bw_rc_back", "ib_write_bw -n 300").reversed(),
    perf_ipv6("write_bw_rc_ipv6", "ib_write_bw -n 300"),
    perf_ipv6("write_bw_rc_ipv6_back", "ib_write_bw -n 300").reversed(),
    perf("write_bw_uc", "ib_write_bw -c UC -n 300"),
    perf("write_bw_uc_back", "ib_write_bw -c UC -n 300").reversed(),
    perf("write_lat_rc", "ib_write_lat -n 100"),
    perf("read_bw_rc", "ib_read_bw -n 300"),
    // rxe answers 128 READs and atomics at a time, of which perftest would use all.
    perf("read_bw_rc_back", "ib_read_bw -o 16 -n 300").reversed(),
    // In this test the server is to use as many as its client.
    perf("read_lat_rc", "ib_read_lat -o 16 -n 100"),
    perf("read_lat_rc_back", "ib_read_lat -o 16 -n 100").reversed(),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw -A FETCH_AND_ADD -n 300",
    ),
    perf(
        "atomic_bw_cmp_swap_back",
        "ib_atomic_bw -A CMP_AND_SWAP -o 16 -n 300",
    )
    .reversed(),
    roles("traffic_class_back", "traffic_class", "", Ready::Now).reversed(),
    compared("compared"),
    compared("compared_back").reversed(),
    // rxe has no raw queue pairs: the peer of this one is a packet socket.
    pair("raw_back", "raw_frames", 18690).reversed(),
];

/// The tests of reliable services, for a link that loses frames. Without `linger` one ping-pong of a hundred fails, because the last
/// acknowledgement is lost and the queue pair that could repeat it is gone; and one rping of a hundred, because its request to
/// disconnect (DREQ) is lost, and Linux repeats it only as long as the identifier of the connection exists.
pub const LOSSY: &[GuestTest] = &[
    verbs("rc", "linger ibv_rc_pingpong -c"),
    verbs("rc_back", "linger ibv_rc_pingpong -c").reversed(),
    verbs(
        "rc_mtu_4096",
        "linger ibv_rc_pingpong -c -m 4096 -s 1048576 -n 20",
    ),
    verbs(
        "rc_mtu_256_back",
        "linger ibv_rc_pingpong -c -m 256 -s 65537 -n 50",
    )
    .reversed(),
    verbs("srq", "linger ibv_srq_pingpong -c -n 50"),
    cm(
        "rping",
        "linger rping -s -V -a $MY_IP -C 50",
        "linger rping -c -V -a $PEER_IP -C 50",
    ),
    cm(
        "rping_back",
        "linger rping -s -V -a $MY_IP -C 50",
        "linger rping -c -V -a $PEER_IP -C 50",
    )
    .reversed(),
    cm(
        "rping_ipv6",
        "linger rping -s -V -a $MY_IP6 -C 50",
        "linger rping -c -V -a $PEER_IP6 -C 50",
    ),
    perf("send_bw_rc", "ib_send_bw -n 300"),
    perf("write_bw_rc", "ib_write_bw -n 300"),
    perf("write_bw_rc_back", "ib_write_bw -n 300").reversed(),
    perf("read_bw_rc", "ib_read_bw -n 300"),
    perf("read_bw_rc_back", "ib_read_bw -o 16 -n 300").reversed(),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw -A FETCH_AND_ADD -n 300",
    ),
    perf(
        "atomic_bw_cmp_swap_back",
        "ib_atomic_bw -A CMP_AND_SWAP -o 16 -n 300",
    )
    .reversed(),
    perf("write_bw_both_ways", "ib_write_bw -b -n 150").impaired(),
];

/// On-demand regions at both ends, for kernels whose rxe has them (Linux 6.15). It has none of implicit ones.
pub const ON_DEMAND: &[GuestTest] = &[
    verbs("rc", "ibv_rc_pingpong -c -o -n 200"),
    verbs("rc_back", "ibv_rc_pingpong -c -o -n 200").reversed(),
    verbs("rc_mtu_256", "ibv_rc_pingpong -c -o -m 256 -s 65537 -n 50"),
    verbs(
        "rc_mtu_4096_back",
        "ibv_rc_pingpong -c -o -m 4096 -s 1048576 -n 20",
    )
    .reversed(),
    verbs_ipv6("rc_ipv6", "ibv_rc_pingpong -c -o -n 200"),
    verbs("srq", "ibv_srq_pingpong -c -o -n 100"),
    verbs("srq_back", "ibv_srq_pingpong -c -o -n 100").reversed(),
    perf("send_bw", "ib_send_bw --odp -n 300"),
    perf("send_bw_back", "ib_send_bw --odp -n 300").reversed(),
    perf("write_bw", "ib_write_bw --odp -n 300"),
    perf("write_bw_back", "ib_write_bw --odp -n 300").reversed(),
    perf("read_bw", "ib_read_bw --odp -n 300"),
    perf("read_bw_back", "ib_read_bw --odp -o 16 -n 300").reversed(),
    perf(
        "atomic_bw_fetch_add",
        "ib_atomic_bw --odp -A FETCH_AND_ADD -n 300",
    ),
    perf(
        "atomic_bw_cmp_swap_back",
        "ib_atomic_bw --odp -A CMP_AND_SWAP -o 16 -n 300",
    )
    .reversed(),
    // Absent pages, which are written, swapped out and read back.
    pair("story", "odp_story", 18610)
        .expecting("as it should be")
        .faulting(Sides::Server),
    pair("story_back", "odp_story", 18610)
        .expecting("all right; the owner's NIC counts no page faults")
        .reversed(),
];

/// Kernel consumers and programs, with verified data but for `ucx_perftest`; the server of the disk and of the file system is the project's
/// NIC, and rxe in tests whose names end in `_back`.
pub const PROGRAMS: &[GuestTest] = &[
    disk(
        "nvme_random",
        "ulp_nvme server",
        "ulp_nvme client randrw 1 4 16 64",
    ),
    disk(
        "nvme_random_back",
        "ulp_nvme disk",
        "ulp_nvme client randrw 1 4 16 64",
    )
    .reversed(),
    roles("nfs", "ulp_nfs", "", Ready::KernelCm).within(240),
    roles("nfs_back", "ulp_nfs", "", Ready::KernelCm)
        .within(240)
        .reversed(),
    // Over IPv4 UCX aborts in the guest with rxe, also between two of these.
    ucx("ucx_rc_ipv6", "apps_ucx perftest rc 6"),
    ucx("ucx_ud_ipv6", "apps_ucx perftest ud 6"),
    mpi("mpi_rc_ipv6", "apps_ucx data rc 6"),
    mpi("mpi_ud_ipv6", "apps_ucx data ud 6"),
];

/// The same with less work on a link that loses frames: a loss at the end of a message costs a timeout of half a second.
pub const PROGRAMS_LOSSY: &[GuestTest] = &[
    disk(
        "nvme_random",
        "ulp_nvme server",
        "ulp_nvme client randrw 4 64",
    )
    .within(600)
    .impaired(),
    disk(
        "nvme_random_back",
        "ulp_nvme disk",
        "ulp_nvme client randrw 4 64",
    )
    .within(600)
    .reversed(),
    nfs_files("nfs"),
    nfs_files("nfs_back").reversed(),
    ucx("ucx_rc_ipv6", "apps_ucx perftest rc 6").within(600),
    mpi("mpi_rc_ipv6", "apps_ucx data rc 6").within(600),
];
