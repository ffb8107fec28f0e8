//! One guest's memory changes in every way that the kernel has, while the other drives verified traffic on it.

use super::row::{GuestTest, Sides, pair, torture};

pub const TESTS: &[GuestTest] = &[
    // The program must find no fault where none exists, on regions that every device supports.
    torture("pinned", "", "--pinned", 5),
    torture("replaced", "--events munmap,mremap,dontneed,free", "", 12).faulting(Sides::Both),
    torture("protected", "--events mprotect", "", 12).faulting(Sides::Both),
    torture("deregistered", "--events dereg", "", 12).faulting(Sides::Both),
    torture("forked", "--events fork", "", 12).faulting(Sides::Both),
    torture("swapped", "--events pageout,swap,memcg", "", 12).faulting(Sides::Both),
    torture("merged", "--events ksm", "", 12).faulting(Sides::Both),
    torture("huge_pages", "--events split,collapse", "", 12).faulting(Sides::Both),
    torture("moved", "--events migrate,compact", "", 12).faulting(Sides::Both),
    torture("exited", "--events exit", "", 12).faulting(Sides::Both),
    torture("everything", "", "", 60).faulting(Sides::Both),
    torture("everything_short", "", "", 15).faulting(Sides::Both),
    torture("everything_other_seed", "", "--seed 20261121", 60).faulting(Sides::Both),
    torture("everything_many_qps", "", "--qps 12", 40).faulting(Sides::Both),
    torture("everything_implicit", "", "--implicit", 20).faulting(Sides::Both),
    // These guests have swap space.
    pair("story", "odp_story", 18610)
        .expecting("as it should be")
        .faulting(Sides::Server),
];
