//! Changes of mappings under regions: what the device must observe, and what the changes must not wait for.

use super::row::{GuestTest, Sides, alone, pair, torture};

pub const TESTS: &[GuestTest] = &[
    pair("stale_cache", "odp_coherence cache", 18620).faulting(Sides::Client),
    alone("watched_cache", "watch_cache"),
    alone("restored_regions", "decoherence"),
    pair("lost_memory", "odp_coherence lost", 18620).faulting(Sides::Both),
    alone("stuck_pages", "odp_stuck /mnt/dax").faulting(Sides::Client),
    alone("stuck_targets", "odp_stuck /mnt/dax xrc").faulting(Sides::Client),
    alone("slow_page_behind", "odp_faults slow /mnt/dax").faulting(Sides::Client),
    torture(
        "dax_truncated",
        "--dax /mnt/dax --events truncate",
        "--qps 1",
        8,
    )
    .faulting(Sides::Both),
    torture("dax_punched", "--dax /mnt/dax --events punch", "--qps 1", 8).faulting(Sides::Both),
    torture(
        "dax_everything",
        "--dax /mnt/dax --events truncate,punch,mprotect,dereg,fork",
        "--qps 1",
        8,
    )
    .faulting(Sides::Both),
];
