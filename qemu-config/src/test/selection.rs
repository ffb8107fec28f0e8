//! Which tests a run has: one table, with a reason for each row.
//!
//! `cargo lab test` keeps at least one test of each guarantee, and of each row of `docs/requirements.md` that tests in guests show in minutes.
//! `cargo lab test --all` adds what takes longer or shows the same in another way. A named suite runs completely.

mod row;
mod table;

pub use self::row::{On, Row};
use self::table::TABLE;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Nothing in particular: the tests of each change.
    Default,
    /// `--all`: the tests of each release.
    All,
    /// Suites by their names.
    Named,
}

/// The row that names a test.
pub fn own_row(suite: &str, test: &str) -> Option<&'static Row> {
    let mut rows = TABLE.iter();
    rows.find(|row| row.suite == suite && row.tests.contains(&test))
}

/// The row of a test: one that names it, or that of its suite.
pub fn row(suite: &str, test: &str) -> &'static Row {
    let mut rows = TABLE.iter();
    let of_suite = rows.find(|row| row.suite == suite && row.tests.is_empty());
    own_row(suite, test)
        .or(of_suite)
        .unwrap_or_else(|| panic!("the table has no row for the suite {suite}"))
}

/// The kernels on which a run has a test.
pub fn on(run: Run, suite: &str, test: &str) -> On {
    match run {
        Run::Default => row(suite, test).default,
        Run::All => row(suite, test).all,
        Run::Named => On::Both,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::On::Nothing;
    use super::*;
    use crate::test::suite::Suite;
    use crate::test::suites;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn read(file: &str) -> String {
        fs::read_to_string(root().join(file)).unwrap()
    }

    #[test]
    fn every_suite_has_one_row_and_every_row_its_tests() {
        for suite in Suite::all() {
            let rows = TABLE.iter().filter(|row| row.suite == suite.name());
            let general = rows.clone().filter(|row| row.tests.is_empty()).count();
            assert_eq!(general, 1, "{}", suite.name());
            let tests = suite.tests();
            let known: BTreeSet<&str> = tests.iter().map(|test| suite.key(test)).collect();
            let mut seen = BTreeSet::new();
            for test in rows.flat_map(|row| row.tests) {
                assert!(known.contains(test), "{}::{test}", suite.name());
                assert!(seen.insert(test), "{}::{test} is in two rows", suite.name());
            }
        }
        let suites = Suite::all();
        let is_known = |row: &Row| suites.iter().any(|suite| suite.name() == row.suite);
        assert!(TABLE.iter().all(is_known));
        assert!(TABLE.iter().all(|row| !row.reason.is_empty()));
    }

    #[test]
    fn a_run_of_everything_has_all_of_the_default_run() {
        for row in TABLE {
            for is_first in [true, false] {
                let is_left_out = row.default.includes(is_first) && !row.all.includes(is_first);
                assert!(!is_left_out, "{}: {row}", row.suite);
            }
        }
    }

    /// Requirements without a test in the default run, because it takes too long.
    const TOO_LONG: &[&str] = &["R10"];

    /// Tests of which the default run has a shorter form with the same program and events.
    const SHORTENED: &[(&str, &str)] = &[("everything", "everything_short")];

    /// True if the default run has a test in guests that a document names.
    fn is_in_default_run(test: &str) -> bool {
        let is_chosen = |suite: &str, test: &str| on(Run::Default, suite, test) != Nothing;
        if let Some(name) = test.strip_prefix("lab::") {
            let Some((suite, test)) = name.split_once("::") else {
                return is_chosen(name, "");
            };
            let shorter = SHORTENED.iter().find(|(long, _)| *long == test);
            return is_chosen(suite, shorter.map_or(test, |&(_, short)| short));
        }
        if test.starts_with("pyverbs::") {
            let name = test.trim_start_matches("pyverbs::");
            return is_chosen("pyverbs", Suite::Pyverbs.key(name));
        }
        let Some(program) = test.strip_prefix("guest::") else {
            return false;
        };
        // Scripts that run a program are commands, too.
        let has_program = |word: &str| {
            let script = root().join(format!("tests/guest/scripts/{word}.sh"));
            let text = fs::read_to_string(script).unwrap_or_default();
            word == program || text.split_whitespace().any(|word| word == program)
        };
        let runs = |command: &str| command.split(' ').any(has_program);
        suites::SUITES.iter().chain(&["odp"]).any(|suite| {
            suites::table(suite).iter().any(|row| {
                let exchange = row.exchange();
                let has_it = runs(&exchange.server) || runs(&exchange.client);
                has_it && is_chosen(suite, row.name)
            })
        })
    }

    #[test]
    fn the_default_run_has_a_test_of_each_requirement() {
        let document = read("docs/requirements.md");
        let mut rows = 0;
        for line in document.lines().filter(|line| line.starts_with("| R")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let (row, in_guests) = (cells[1], cells[3]);
            let tests: Vec<&str> = in_guests.split('`').skip(1).step_by(2).collect();
            if row == "Row" || tests.is_empty() {
                continue;
            }
            rows += 1;
            let is_shown = tests.iter().any(|test| is_in_default_run(test));
            assert_eq!(is_shown, !TOO_LONG.contains(&row), "{row}: {tests:?}");
        }
        assert!(rows > 15, "{rows} rows");
    }

    /// `docs/compatibility.md` has a row for each verb and attribute.
    #[test]
    fn the_default_run_has_a_test_of_each_feature_that_guests_show() {
        let document = read("docs/compatibility.md");
        let mut rows = 0;
        let mut without = Vec::new();
        for line in document.lines().filter(|line| line.contains("| yes |")) {
            let names = line.split('`').skip(1).step_by(2);
            let prefixes = ["lab::", "guest::", "pyverbs::"];
            let is_in_guests = |test: &&str| prefixes.iter().any(|prefix| test.starts_with(prefix));
            let tests: Vec<&str> = names.filter(is_in_guests).collect();
            rows += usize::from(!tests.is_empty());
            if !tests.is_empty() && !tests.iter().any(|test| is_in_default_run(test)) {
                without.push(tests);
            }
        }
        assert!(without.is_empty(), "{without:?}");
        assert!(rows > 200, "{rows} rows");
    }
}
