//! Least durations of torture and least counts of events: one table. A test compares it with the suites, so that nothing becomes
//! shorter without a change of this file.

/// What a test must not fall below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Least {
    /// `suite::test`.
    test: &'static str,
    amount: Amount,
    /// The requirement of `docs/requirements.md`, or the guarantee, that asks for it.
    asked_by: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amount {
    /// Seconds of traffic while memory changes.
    Seconds(u64),
    /// Events that a test causes.
    Events(usize),
}

const fn seconds(test: &'static str, seconds: u64, asked_by: &'static str) -> Least {
    Least {
        test,
        amount: Amount::Seconds(seconds),
        asked_by,
    }
}

const fn events(test: &'static str, events: usize, asked_by: &'static str) -> Least {
    Least {
        test,
        amount: Amount::Events(events),
        asked_by,
    }
}

/// `everything_short` is the form of the default run; the longer ones are in `cargo lab test --all`. Torture runs up to
/// eight times as long, until each event has had an effect.
const TABLE: &[Least] = &[
    seconds(
        "torture::everything_short",
        15,
        "R1, R9: each event on each kernel",
    ),
    seconds(
        "torture::everything",
        60,
        "R1, R9: coincidences of events that a short run does not meet",
    ),
    seconds(
        "torture::everything_implicit",
        20,
        "R5: the same in one implicit region",
    ),
    seconds(
        "torture::everything_other_seed",
        60,
        "R1: another order of events",
    ),
    seconds(
        "torture::everything_many_qps",
        40,
        "R1: more queue pairs than events at a time",
    ),
    seconds("torture::pinned", 5, "R1: the control without events"),
    seconds("torture::replaced", 12, "R1: one group of events"),
    seconds("torture::protected", 12, "R1: one group of events"),
    seconds("torture::deregistered", 12, "R1: one group of events"),
    seconds("torture::forked", 12, "R1: one group of events"),
    seconds("torture::swapped", 12, "R1: one group of events"),
    seconds("torture::merged", 12, "R9: one group of events"),
    seconds("torture::huge_pages", 12, "R9: one group of events"),
    seconds("torture::moved", 12, "R9: one group of events"),
    seconds("torture::exited", 12, "R1: one group of events"),
    seconds("torture-long::everything", 600, "R1, R9: rare coincidences"),
    seconds(
        "torture-long::everything_implicit",
        600,
        "R5: rare coincidences",
    ),
    seconds(
        "coherence::dax_everything",
        8,
        "R15: both changes of files, among other events",
    ),
    seconds("coherence::dax_truncated", 8, "R15: one change"),
    seconds("coherence::dax_punched", 8, "R15: one change"),
    seconds(
        "pinned::traffic",
        5,
        "R2: verified traffic without on-demand paging",
    ),
    seconds(
        "engines::torture",
        10,
        "R1: invalidations and frames on different engines",
    ),
    seconds("wire-tcp::torture", 10, "R1: frames of another emulator"),
    seconds(
        "torture::everything_drop",
        15,
        "R7: packets for absent pages are dropped",
    ),
    seconds(
        "torture::everything_stall",
        15,
        "R7: all packets wait for an absent page",
    ),
    seconds("wire-vxlan::torture", 10, "R1: frames of another emulator"),
    seconds("wire-unix::torture", 10, "R1: frames of another emulator"),
    seconds("wire-bridge::torture", 10, "R1: frames of another emulator"),
    events(
        "robustness::module_removed_10_times_under_traffic",
        10,
        "removal of the driver at any moment",
    ),
    events(
        "robustness::module_removed_50_times_under_traffic",
        50,
        "removal of the driver at any moment",
    ),
    events(
        "recover::removed_while_recovering",
        4,
        "removal of the driver in each phase of a recovery",
    ),
    events(
        "recover::again_and_again",
        50,
        "a recovery loses neither objects nor memory",
    ),
    events(
        "restart::killed_100_times",
        100,
        "a restart loses neither objects nor memory",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::test::suite::Suite;
    use crate::test::suites::tables;
    use crate::test::{recover, robustness};

    #[test]
    fn torture_lasts_as_long_as_the_table_says() {
        let mut found = BTreeSet::new();
        for (suite, table) in tables() {
            for row in table.iter().filter(|row| row.least_seconds() > 0) {
                let name = row.facts.name;
                found.insert((format!("{suite}::{name}"), row.least_seconds()));
            }
        }
        let listed = TABLE.iter().filter_map(|row| match row.amount {
            Amount::Seconds(seconds) => Some((row.test.to_owned(), seconds)),
            Amount::Events(_) => None,
        });
        assert_eq!(found, listed.collect());
    }

    #[test]
    fn events_are_as_many_as_the_table_says() {
        let guests = 2;
        let found = [
            (
                "module_removed_10_times_under_traffic",
                guests * robustness::REMOVALS as usize,
            ),
            (
                "module_removed_50_times_under_traffic",
                guests * robustness::MANY_REMOVALS as usize,
            ),
            ("removed_while_recovering", recover::MOMENTS.len()),
            ("again_and_again", recover::TIMES),
            ("killed_100_times", recover::KILLS),
        ];
        let listed = TABLE.iter().filter_map(|row| match row.amount {
            Amount::Seconds(_) => None,
            Amount::Events(count) => Some((row.test.split_once("::").unwrap().1, count)),
        });
        assert_eq!(listed.collect::<Vec<_>>(), found);
    }

    #[test]
    fn each_row_is_about_a_test_and_has_a_reason() {
        for row in TABLE {
            let (suite, test) = row.test.split_once("::").unwrap();
            let tests = Suite::named(suite).unwrap().tests();
            assert!(tests.iter().any(|known| known.name == test), "{}", row.test);
            assert!(!row.asked_by.is_empty(), "{}", row.test);
        }
    }
}
