//! Guests with a virtual IOMMU: the device reaches only the memory that its driver has mapped for it, at addresses that are not those
//! of the guest's memory.

use super::pingpong::ping;
use super::row::{GuestSuite, GuestTest, Sides, alone, client, perf, suite, tcp, verbs};
use super::ulp::disk;
use crate::test::facts::by_name;

pub const SUITE: GuestSuite = suite(
    "iommu",
    "Behind a virtual IOMMU (`intel-iommu`), all mappings strict.",
    by_name("own guests; each mapping of the guest's kernel is a message to the emulator"),
    TESTS,
);

const TESTS: &[GuestTest] = &[
    // Without a group of its own the device has the memory of the guest as it is, and the rest of the suite shows nothing.
    client(
        "translated",
        "group=$(readlink -f /sys/class/infiniband/$RDMA_DEV/device/iommu_group) && cat $group/type && \
         grep -qx DMA $group/type",
    )
    .expecting("DMA")
    .shows("The device's addresses are translated."),
    ping("ping_large", "ping -c 3 -i 0.2 -s 20000 $PEER_IP").shows("Frames arrive unchanged."),
    tcp("tcp").shows("TCP data arrive unchanged."),
    verbs("rc", "ibv_rc_pingpong -c").shows("Data arrive unchanged."),
    verbs("rc_on_demand", "ibv_rc_pingpong -c -o")
        .evicted()
        .shows("Data arrive unchanged while pages come and go."),
    verbs("rc_implicit", "ibv_rc_pingpong -c -O")
        .faulting(Sides::Both)
        .shows("Implicit regions work."),
    alone("writes_kept", "odp_faults kept")
        .faulting(Sides::Client)
        .shows("Data that the device wrote survives reclaim."),
    alone("huge_entries", "odp_faults huge")
        .faulting(Sides::Client)
        .shows("A huge page takes one fault, until a part of it is invalidated."),
    perf("write_bw_on_demand", "ib_write_bw --odp -n 500")
        .evicted()
        .shows("Perftest works on demand."),
    disk(
        "nvme_random",
        "ulp_nvme server",
        "ulp_nvme client randrw 1 16",
    )
    .shows("fio verifies a disk over NVMe."),
];
