//! Tests of the choice of tests: the default run keeps at least one test of each guarantee, and of each row of
//! `docs/requirements.md` that tests in guests show in minutes. `--all` adds tests that take longer or show the same in
//! another way.

use std::fs;
use std::path::{Path, PathBuf};

use super::facts::{On, Run};
use super::suite::Suite;
use super::suites::tables;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

#[test]
fn every_suite_and_test_has_its_purpose_and_reason() {
    let is_sentence = |text: &str| text.ends_with('.') && text.contains(' ');
    for suite in Suite::all() {
        let facts = suite.facts();
        assert!(is_sentence(facts.shows), "{}", facts.name);
        assert!(!facts.runs.reason.is_empty(), "{}", facts.name);
        for test in suite.tests() {
            let name = format!("{}::{}", facts.name, test.name);
            assert!(is_sentence(test.shows), "{name}: {:?}", test.shows);
            let has_reason = test.runs.is_none_or(|runs| !runs.reason.is_empty());
            assert!(has_reason, "{name}");
            // Otherwise it need not say it.
            assert_ne!(test.runs, Some(facts.runs), "{name}");
        }
    }
}

#[test]
fn a_run_of_everything_has_all_of_the_default_run() {
    for suite in Suite::all() {
        for test in suite.tests() {
            let runs = suite.runs(test.name);
            for is_first in [true, false] {
                let is_left_out = runs.default.includes(is_first) && !runs.all.includes(is_first);
                assert!(!is_left_out, "{}::{}: {runs}", suite.name(), test.name);
            }
        }
    }
}

/// Requirements without a test in the default run, because it takes too long.
const TOO_LONG: &[&str] = &["R8", "R10", "R23", "R30"];

/// Tests of which the default run has a shorter form with the same program and events.
const SHORTENED: &[(&str, &str)] = &[("everything", "everything_short")];

/// True if the default run has a test in guests that a document names.
fn is_in_default_run(test: &str) -> bool {
    let is_chosen = |suite: &str, test: &str| {
        let suite = Suite::named(suite).expect(suite);
        suite.runs(test).on(Run::Default) != On::Nothing
    };
    if let Some(name) = test.strip_prefix("lab::") {
        let Some((suite, test)) = name.split_once("::") else {
            return is_chosen(name, "");
        };
        let shorter = SHORTENED.iter().find(|(long, _)| *long == test);
        return is_chosen(suite, shorter.map_or(test, |&(_, short)| short));
    }
    if test.starts_with("pyverbs::") {
        return is_chosen("pyverbs", test.trim_start_matches("pyverbs::"));
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
    tables().any(|(suite, table)| {
        table.iter().any(|row| {
            let exchange = row.exchange();
            let has_it = runs(&exchange.server) || runs(&exchange.client);
            has_it && is_chosen(suite, row.facts.name)
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
