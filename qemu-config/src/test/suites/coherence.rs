//! Changes of mappings under regions: the device must observe them, and they must not wait for one another.

use super::row::{Commands, DONE, GuestSuite, GuestTest, Sides, alone, pair, suite, test, torture};
use crate::exchange::Ready;
use crate::test::facts::On::{Both, First, Nothing};
use crate::test::facts::{Runs, by_name, runs};

pub const SUITE: GuestSuite = suite(
    "coherence",
    "The device sees each change of a mapping, and changes do not wait for one \
     another.",
    runs(
        First,
        Both,
        "what the device must observe of changes, and what must not wait for it",
    ),
    TESTS,
);

const MEMORY: Runs = runs(
    Both,
    Both,
    "what the memory management of each kernel reports",
);
const ONE: Runs = runs(Nothing, First, "dax_everything has both events");

const PEERS: Runs = runs(Nothing, First, "remapped_fenced, with other regions");

/// The example `restore_pair`: its owner and its writers.
const fn remapped(name: &'static str, command: &'static str) -> GuestTest {
    let commands = Commands::Address(command, "-d $RDMA_DEV -g $GID_INDEX");
    test(name, commands, Ready::Tcp(18640), 600, DONE)
}

const DAX: &str = "Torture is right on a DAX file that is truncated or punched.";

const TESTS: &[GuestTest] = &[
    pair("stale_cache", "odp_coherence cache", 18620)
        .faulting(Sides::Client)
        .shows(
            "A registration cache by address sends stale data with pinned regions (the \
             control), not with on-demand ones.",
        ),
    alone("watched_cache", "watch_cache").shows("Range watches report the changes of a mapping."),
    alone("restored_regions", "decoherence /mnt/dax")
        .shows(
            "Pinned regions whose mapping changes keep, lose or lease their old pages as \
         chosen.",
        )
        .runs(MEMORY),
    alone("pressure_cache", "pressure_cache")
        .within(300)
        .shows("A registration cache lives within a memory limit that ends a naive one."),
    remapped("remapped_leased", "restore_pair -m lease -n 1000 -w 2")
        .shows("No write of peers fails while their target is remapped 1000 times.")
        .runs(by_name(
            "a lease ends unanswered where a guest stalls for seconds, as under TCG on a busy host",
        )),
    remapped("remapped_fenced", "restore_pair -m fence -n 100 -w 2")
        .shows("Without a lease the writes fail that reach lost memory; its rkey stays."),
    remapped(
        "remapped_on_demand",
        "restore_pair -m on-demand -n 1000 -w 2",
    )
    .faulting(Sides::Server)
    .shows("On demand, peers learn nothing of it.")
    .runs(PEERS),
    pair("lost_memory", "odp_coherence lost", 18620)
        .faulting(Sides::Both)
        .shows(
            "A request that touches removed memory ends with the right status; nothing \
             else is affected.",
        )
        .runs(MEMORY),
    alone("stuck_pages", "odp_stuck /mnt/dax")
        .faulting(Sides::Client)
        .shows("A process's faults are served while forty of another wait."),
    alone("stuck_targets", "odp_stuck /mnt/dax xrc")
        .within(180)
        .faulting(Sides::Client)
        .shows("The same, with more XRC targets than places for faults.")
        .runs(runs(Nothing, First, "stuck_pages, with more targets")),
    alone("stuck_contexts", "odp_stuck /mnt/dax contexts")
        .within(180)
        .faulting(Sides::Client)
        .shows("The same beside a dozen contexts of another user."),
    alone("slow_page_behind", "odp_faults slow /mnt/dax")
        .faulting(Sides::Client)
        .shows("A page is written while its successor is awaited."),
    torture(
        "dax_truncated",
        "--dax /mnt/dax --events truncate",
        "--qps 1",
        8,
    )
    .faulting(Sides::Both)
    .shows(DAX)
    .runs(ONE),
    torture("dax_punched", "--dax /mnt/dax --events punch", "--qps 1", 8)
        .faulting(Sides::Both)
        .shows(DAX)
        .runs(ONE),
    torture(
        "dax_everything",
        "--dax /mnt/dax --events truncate,punch,mprotect,dereg,fork",
        "--qps 1",
        8,
    )
    .faulting(Sides::Both)
    .shows(DAX),
];
