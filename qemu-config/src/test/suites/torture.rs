//! One guest's memory changes in every way that the kernel has, while the other drives verified traffic on it.

use super::row::{GuestTest, pair, torture};

pub const TESTS: &[GuestTest] = &[
    // The program must find no fault where none exists, on regions that every device supports.
    torture("pinned", "", "--pinned", 3),
    torture("replaced", "--events munmap,mremap,dontneed,free", "", 12),
    torture("protected", "--events mprotect", "", 12),
    torture("deregistered", "--events dereg", "", 12),
    torture("forked", "--events fork", "", 12),
    torture("swapped", "--events pageout,swap,memcg", "", 12),
    torture("merged", "--events ksm", "", 12),
    torture("huge_pages", "--events split,collapse", "", 12),
    torture("moved", "--events migrate,compact", "", 12),
    torture("exited", "--events exit", "", 12),
    torture("everything", "", "", 40),
    torture("everything_short", "", "", 15),
    torture("everything_other_seed", "", "--seed 20261121", 60),
    torture("everything_many_qps", "", "--qps 12", 40),
    torture("everything_implicit", "", "--implicit", 15),
    // These guests have swap space.
    pair("story", "odp_story", 18610).expecting("as it should be"),
];
