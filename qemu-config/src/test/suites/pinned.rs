//! Adapters without on-demand paging, with a PCI ID that the driver must be told, and GIDs of both versions of RoCE.

use super::row::{
    Commands, GuestSuite, GuestTest, alone, client, perf, suite, test, torture, verbs,
};
use crate::exchange::Ready;
use crate::test::facts::On::{Both, First, Nothing};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "pinned",
    "An adapter without on-demand paging serves the same programs with pinned \
     memory.",
    runs(First, Both, "adapters without on-demand paging"),
    TESTS,
);

const ALSO: Runs = runs(
    Nothing,
    Both,
    "verified traffic of pinned memory is also in interop::compared",
);

const TESTS: &[GuestTest] = &[
    alone("odp_refused", "odp_refused").shows(
        "On-demand requests get EOPNOTSUPP; pinned memory counts against the user's \
         limit.",
    ),
    alone("zero_based", "zero_based --pinned").shows("Zero-based regions work pinned."),
    alone("dma_buf", "dma_buf_regions").shows("Regions of dma-bufs work pinned."),
    client(
        "pingpong_odp_refused",
        "! ibv_rc_pingpong -o -d $RDMA_DEV -g $GID_INDEX 2>&1",
    )
    .within(60)
    .expecting("isn't ODP capable")
    .shows("A program learns that there is no on-demand paging."),
    verbs("rc", "ibv_rc_pingpong -c").shows("RC SENDs arrive with their data."),
    perf("write_bw", "ib_write_bw -n 500")
        .shows("WRITEs complete.")
        .runs(ALSO),
    torture("traffic", "", "--pinned", 5)
        .shows("Verified traffic is right on pinned memory.")
        .runs(ALSO),
    alone("gid_layout", "gid_layout").shows("GID 3 is IPv4."),
    test(
        "other_pci_id",
        Commands::Two(
            "other_pci_id",
            "ibv_rc_pingpong -c -d $RDMA_DEV -g $GID_INDEX $PEER_IP",
        ),
        Ready::Tcp(18515),
        60,
        "usec/iter",
    )
    .shows("The driver leaves an unknown PCI ID alone until `new_id` names it."),
];
