//! The suites that are tables: one file each, a row for each test. The commands of a row are in the guest: a program of
//! `tests/guest`, a script of `tests/guest/scripts`, or a program of Debian.

mod apps;
mod coherence;
mod debug_kernel;
mod engines;
mod interop;
mod odp;
pub mod oversubscribe;
mod perftest;
mod pingpong;
mod pinned;
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

pub use self::row::{GuestTest, Sides};

/// The suites that consist of a table. Those that need the same guests run in this order.
pub const SUITES: &[&str] = &[
    "pingpong",
    "rdmacm",
    "perftest",
    "verbs",
    "tags",
    "torture",
    "torture-long",
    "oversubscribe",
    "coherence",
    "pinned",
    "ulp",
    "apps",
    "swap",
    "interop",
    "interop-lossy",
    "interop-on-demand",
    "interop-programs",
    "interop-programs-lossy",
    "vhost",
    "engines",
    "wire-unix",
    "wire-tcp",
    "wire-bridge",
    "wire-vxlan",
];

/// The table of a suite; empty if it has none. `odp` and `debug-kernel` have further tests.
pub fn table(suite: &str) -> &'static [GuestTest] {
    match suite {
        "apps" => apps::TESTS,
        "coherence" => coherence::TESTS,
        "debug-kernel" => debug_kernel::TESTS,
        "interop" => interop::TESTS,
        "interop-lossy" => interop::LOSSY,
        "interop-on-demand" => interop::ON_DEMAND,
        "interop-programs" => interop::PROGRAMS,
        "interop-programs-lossy" => interop::PROGRAMS_LOSSY,
        "odp" => odp::TESTS,
        "oversubscribe" => oversubscribe::TESTS,
        "perftest" => perftest::TESTS,
        "pingpong" => pingpong::TESTS,
        "pinned" => pinned::TESTS,
        "rdmacm" => rdmacm::TESTS,
        "swap" => swap::TESTS,
        "tags" => tags::TESTS,
        "torture" => torture::TESTS,
        "torture-long" => torture_long::TESTS,
        "ulp" => ulp::TESTS,
        "verbs" => verbs::TESTS,
        "vhost" => vhost::TESTS,
        "engines" => engines::TESTS,
        "wire-unix" | "wire-tcp" | "wire-bridge" | "wire-vxlan" => wire::TESTS,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_has_a_table() {
        assert!(SUITES.iter().all(|suite| !table(suite).is_empty()));
        assert!(table("robustness").is_empty());
    }
}
