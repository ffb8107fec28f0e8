//! The suites that are tables: one file each, a row for each test. The commands of a row are in the guest: a program of
//! `tests/guest`, a script of `tests/guest/scripts`, or a program of Debian.

mod apps;
mod bounce_buffers;
mod coherence;
mod debug_kernel;
mod engines;
mod interop;
mod interop_siw;
mod iommu;
mod iwarp;
mod odp;
pub mod oversubscribe;
mod perftest;
mod pingpong;
mod pinned;
mod programs;
mod rdmacm;
mod row;
mod swap;
mod tags;
mod torture;
mod torture_long;
mod ulp;
mod verbs;
mod vhost;
mod wire;

pub use self::row::{GuestSuite, GuestTest, Sides};

/// The suites that consist of a table. Those that need the same guests run in this order.
pub const SUITES: &[&GuestSuite] = &[
    &pingpong::SUITE,
    &rdmacm::SUITE,
    &perftest::SUITE,
    &verbs::SUITE,
    &tags::SUITE,
    &torture::SUITE,
    &torture_long::SUITE,
    &oversubscribe::SUITE,
    &coherence::SUITE,
    &pinned::SUITE,
    &iwarp::SUITE,
    &iwarp::SUITE_LOSSY,
    &bounce_buffers::SUITE,
    &iommu::SUITE,
    &ulp::SUITE,
    &apps::SUITE,
    &programs::SUITE,
    &swap::SUITE,
    &interop::SUITE,
    &interop::SUITE_LOSSY,
    &interop::SUITE_ON_DEMAND,
    &interop::SUITE_PROGRAMS,
    &interop::SUITE_PROGRAMS_LOSSY,
    &interop_siw::SUITE,
    &vhost::SUITE,
    &engines::SUITE,
    &wire::SUITE_UNIX,
    &wire::SUITE_TCP,
    &wire::SUITE_BRIDGE,
    &wire::SUITE_VXLAN,
];

/// The suite `odp`, which also has tests of rdma-core.
pub const ODP: &GuestSuite = &odp::SUITE;

/// The tests that need the debug kernel.
pub const DEBUG_KERNEL: &[GuestTest] = debug_kernel::TESTS;

/// All suites that have a table of exchanges, with the names of the suites.
#[cfg(test)]
pub fn tables() -> impl Iterator<Item = (&'static str, &'static [GuestTest])> {
    let suites = SUITES.iter().copied().chain([ODP]);
    suites.map(|suite| (suite.facts.name, suite.tests))
}
