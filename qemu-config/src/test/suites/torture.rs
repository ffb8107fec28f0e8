//! One guest's memory changes in every way that the kernel has, while the other drives verified traffic on it.

use super::row::{GuestSuite, GuestTest, Sides, alone, pair, suite, torture};
use crate::test::facts::On::{Both, First, Nothing};
use crate::test::facts::{Runs, by_name, runs};

pub const SUITE: GuestSuite = suite(
    "torture",
    "Verified traffic of one guest stays right while the memory of the other one \
     changes.",
    runs(
        Nothing,
        First,
        "longer forms of everything_short, and its traffic without events",
    ),
    TESTS,
);

const PART: Runs = by_name("parts and variants of everything, to find the cause of a failure");

const PARTS: &str = "One group of events does no harm.";
const EVENTS: &str = "No event of memory causes a wrong byte, status or completion, or leaves a \
    page pinned.";

const POLICIES: &str = "The same under this fault policy.";
const POLICY: Runs = runs(
    Nothing,
    First,
    "everything_short, with other fault policies",
);

const TESTS: &[GuestTest] = &[
    // The program must find no fault where none exists, on regions that every device supports.
    torture("pinned", "", "--pinned", 5).shows("The control: pinned regions, no events."),
    torture("replaced", "--events munmap,mremap,dontneed,free", "", 12)
        .faulting(Sides::Both)
        .shows(PARTS)
        .runs(PART),
    torture("protected", "--events mprotect", "", 12)
        .faulting(Sides::Both)
        .shows(PARTS)
        .runs(PART),
    torture("deregistered", "--events dereg", "", 12)
        .faulting(Sides::Both)
        .shows(PARTS)
        .runs(PART),
    torture("forked", "--events fork", "", 12)
        .faulting(Sides::Both)
        .shows(PARTS)
        .runs(PART),
    torture("swapped", "--events pageout,swap,memcg", "", 12)
        .faulting(Sides::Both)
        .shows(PARTS)
        .runs(PART),
    torture("merged", "--events ksm", "", 12)
        .faulting(Sides::Both)
        .shows(PARTS)
        .runs(PART),
    torture("huge_pages", "--events split,collapse", "", 12)
        .faulting(Sides::Both)
        .shows(PARTS)
        .runs(PART),
    torture("moved", "--events migrate,compact", "", 12)
        .faulting(Sides::Both)
        .shows(PARTS)
        .runs(PART),
    torture("exited", "--events exit", "", 12)
        .faulting(Sides::Both)
        .shows(PARTS)
        .runs(PART),
    torture("everything", "", "", 60)
        .faulting(Sides::Both)
        .shows(EVENTS),
    torture("everything_short", "", "", 15)
        .faulting(Sides::Both)
        .shows(EVENTS)
        .runs(runs(
            Both,
            Both,
            "every event of memory, on the memory management of each kernel",
        )),
    torture("everything_other_seed", "", "--seed 20261121", 60)
        .faulting(Sides::Both)
        .shows(EVENTS)
        .runs(PART)
        .too_slow(),
    torture("everything_many_qps", "", "--qps 12", 40)
        .faulting(Sides::Both)
        .shows(EVENTS)
        .runs(PART)
        .too_slow(),
    torture("everything_implicit", "", "--implicit", 20)
        .faulting(Sides::Both)
        .shows("The same holds in one implicit region."),
    torture("everything_drop", "--policy drop", "", 15)
        .faulting(Sides::Both)
        .shows(POLICIES)
        .runs(POLICY),
    torture("everything_stall", "--policy stall", "", 15)
        .faulting(Sides::Both)
        .shows(POLICIES)
        .runs(POLICY),
    // Each event is repeated until it has moved a page.
    alone("pages_taken", "pages_taken")
        .within(300)
        .faulting(Sides::Client)
        .shows("The kernel takes and moves on-demand memory under traffic, and no pinned page."),
    // These guests have swap space.
    pair("story", "odp_story", 18610)
        .expecting("as it should be")
        .faulting(Sides::Server)
        .shows("Absent pages that a peer wrote are swapped out and read back."),
];
