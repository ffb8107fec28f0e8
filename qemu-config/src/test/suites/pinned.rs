//! Adapters without on-demand paging, with a PCI ID that the driver must be told.

use super::row::{Commands, GuestTest, alone, client, perf, test, torture, verbs};
use crate::exchange::Ready;

pub const TESTS: &[GuestTest] = &[
    alone("odp_refused", "odp_refused"),
    alone("zero_based", "zero_based --pinned"),
    alone("dma_buf", "dma_buf_regions"),
    client(
        "pingpong_odp_refused",
        "! ibv_rc_pingpong -o -d $RDMA_DEV -g $GID_INDEX 2>&1",
    )
    .within(60)
    .expecting("isn't ODP capable"),
    verbs("rc", "ibv_rc_pingpong -c"),
    perf("write_bw", "ib_write_bw -n 500"),
    torture("traffic", "", "--pinned", 5),
    test(
        "other_pci_id",
        Commands::Two(
            "other_pci_id",
            "ibv_rc_pingpong -c -d $RDMA_DEV -g $GID_INDEX $PEER_IP",
        ),
        Ready::Tcp(18515),
        60,
        "usec/iter",
    ),
];
