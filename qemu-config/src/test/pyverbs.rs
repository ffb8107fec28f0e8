//! Test modules of rdma-core's own suite, which Debian ships with `python3-pyverbs`. Each of their tests counts as one.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::facts::{Facts, On, SuiteFacts, facts, runs};
use super::pair::Pairs;
use super::pyverbs_tests::MODULES;
use super::tally::{Tally, Verdict};
use crate::cluster::{Plan, in_parallel};
use crate::command::{say, tail};
use crate::guest::{Outcome, Status};
use crate::host::Release;
use crate::progress;

/// Tests of this name look for a graphics device of two makers, whose memory they share. Guests have none.
const NEEDS_GRAPHICS: &str = "test_dmabuf_";

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "pyverbs",
    shows: "All 181 tests of rdma-core for any device pass; a skip fails, but for ten \
        that need graphics memory.",
    runs: runs(
        On::First,
        On::Both,
        "all of rdma-core's tests, on one kernel in the default run",
    ),
};

/// All tests.
pub fn all() -> impl Iterator<Item = Test> {
    MODULES.iter().flat_map(|module| {
        let names = module.run.iter();
        names.map(|&name| Test {
            module: module.facts.name,
            name,
        })
    })
}

/// The tests of one module.
pub fn module(name: &str) -> impl Iterator<Item = Test> {
    all().filter(move |test| test.module == name)
}

/// A test of rdma-core's suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// The Python module.
    pub module: &'static str,
    /// The method.
    pub name: &'static str,
}

impl Test {
    /// Its facts: those of its module, under its own name.
    pub fn facts(self) -> Facts {
        let mut modules = MODULES.iter().map(|module| module.facts);
        let of_module = modules.find(|facts| facts.name == self.module);
        Facts {
            name: self.name,
            ..of_module.unwrap_or(facts(self.name, ""))
        }
    }
}

/// For all the tests of one call: Python alone needs seconds to start under TCG.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs tests in a pair of `plan`, half of them in each guest, in one call: each test connects a guest with itself.
pub fn run(
    chosen: &[Test],
    plan: &Plan,
    label: &str,
    dir: &Path,
    pairs: &mut Pairs<'_>,
    tally: &mut Tally,
) -> Result<()> {
    let mut pair = pairs.take(plan)?;
    progress::begin(&format!("{label}: {} tests of rdma-core", chosen.len()));
    let started = Instant::now();
    let [first, second] = halves(chosen);
    let work: Vec<_> = pair.cluster.guests.iter().zip([first, second]).collect();
    let outcomes = in_parallel(work, |(guest, tests)| match tests.is_empty() {
        true => Ok(None),
        false => guest
            .run(&script(&tests), LIMIT * plan.kernel.time_factor())
            .map(Some),
    })?;
    let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
    let timed_out = outcomes
        .iter()
        .any(|outcome| outcome.status == Status::TimedOut);
    let elapsed = started.elapsed() / chosen.len() as u32;
    let text: String = outcomes
        .iter()
        .map(|outcome| String::from_utf8_lossy(&outcome.both) + "\n")
        .collect();
    let log = dir.join(format!("{}.log", label.replace("::", "-")));
    std::fs::write(log, &text).context("keeping the output")?;
    // The names are those of Debian 13's release.
    let may_lack = plan.kernel.debian() != Release::Trixie;
    let mut counts = [0; 3];
    for &test in chosen {
        let verdict = match must_pass(test, verdict(&text, test)) {
            _ if may_lack && is_undefined(&text, test) => {
                Verdict::Skipped("this release of rdma-core does not have it".into())
            }
            Verdict::Failed(why) if timed_out => {
                Verdict::Failed(format!("{why} (the tests of a guest timed out)"))
            }
            other => other,
        };
        let [passed, skipped, failed] = &mut counts;
        *match &verdict {
            Verdict::Passed => passed,
            Verdict::Skipped(_) => skipped,
            Verdict::Failed(_) => failed,
        } += 1;
        tally.add(&format!("{label}::{}", test.name), elapsed, verdict);
    }
    let [passed, skipped, failed] = counts;
    say(format!(
        "{label}: of {} tests of rdma-core {passed} passed, {skipped} skipped, {failed} failed",
        chosen.len()
    ));
    let troubles = pair.troubles(label);
    if !troubles.is_empty() {
        let why = format!("{}\n{}", troubles.join("\n"), tail(text.as_bytes(), 30));
        tally.add(
            &format!("{label}::pyverbs::kernel"),
            started.elapsed(),
            Verdict::Failed(why),
        );
    }
    match failed == 0 && troubles.is_empty() {
        true => pairs.keep(pair),
        false => pair.cluster.save_logs(),
    }
    Ok(())
}

/// Two parts of about the same number of tests. Those of a module are together: they may use the same groups or ports.
fn halves(tests: &[Test]) -> [Vec<Test>; 2] {
    let mut modules: Vec<Vec<Test>> = Vec::new();
    for test in tests {
        match modules
            .iter_mut()
            .find(|module| module.iter().any(|known| known.module == test.module))
        {
            Some(module) => module.push(*test),
            None => modules.push(vec![*test]),
        }
    }
    // The largest first, each to the part that has fewer.
    modules.sort_by_key(|module| std::cmp::Reverse(module.len()));
    let mut parts = [Vec::new(), Vec::new()];
    for module in modules {
        let [first, second] = &mut parts;
        match first.len() <= second.len() {
            true => first.extend(module),
            false => second.extend(module),
        }
    }
    parts
}

fn script(tests: &[Test]) -> String {
    let patterns: String = tests
        .iter()
        .map(|test| format!(" -k 'tests.{}.*.{}'", test.module, test.name))
        .collect();
    format!("run_pyverbs{patterns}")
}

/// A skipped test counts as failed, because the device supports all of these tests; except for those that need another
/// device.
fn must_pass(test: Test, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Skipped(why) if !test.name.starts_with(NEEDS_GRAPHICS) => {
            Verdict::Failed(format!("skipped: {why}"))
        }
        other => other,
    }
}

/// True if `run_pyverbs` says that the guest's rdma-core does not define a test.
fn is_undefined(output: &str, test: Test) -> bool {
    let line = format!("not defined: {} {}", test.module, test.name);
    output.lines().any(|known| known == line)
}

/// The result of one test in Python's verbose output.
fn verdict(output: &str, test: Test) -> Verdict {
    let begin = format!("{} (tests.{}.", test.name, test.module);
    let Some(position) = output
        .match_indices(&begin)
        .map(|(at, _)| at)
        .find(|&at| at == 0 || output.as_bytes().get(at - 1) == Some(&b'\n'))
    else {
        return Verdict::Failed("it did not run".into());
    };
    let rest = output.get(position..).unwrap_or_default();
    // Output of the test may be between its name and its result.
    let end = rest
        .match_indices("\ntest_")
        .map(|(at, _)| at)
        .chain(rest.find("\n====="))
        .chain(rest.find("\n-----"))
        .min()
        .unwrap_or(rest.len());
    let own = rest.get(..end).unwrap_or(rest);
    let result = own
        .split_once(" ... ")
        .map_or(own, |(_, result)| result)
        .trim();
    if let Some(reason) = result.split_once("skipped ").map(|(_, reason)| reason) {
        let reason = reason.lines().next().unwrap_or_default();
        return Verdict::Skipped(reason.trim_matches(['\'', '"']).to_owned());
    }
    // Output of finalizers may be before and after it.
    if result.lines().any(|line| line == "ok") {
        return Verdict::Passed;
    }
    Verdict::Failed(format!("{result}\n{}", details(output, test.name)))
}

/// The traceback that Python prints at the end.
fn details(output: &str, test: &str) -> String {
    let wanted = [format!("ERROR: {test} ("), format!("FAIL: {test} (")];
    let Some(position) = wanted.iter().find_map(|head| output.find(head.as_str())) else {
        return String::new();
    };
    let rest = output.get(position..).unwrap_or_default();
    let end = rest.find("\n=====").unwrap_or(rest.len());
    tail(rest.get(..end).unwrap_or(rest).as_bytes(), 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "test_a (tests.test_odp.T.test_a) ... ok\n\
        test_ab (tests.test_odp.T.test_ab) ... skipped 'no ODP'\n\
        test_c (tests.test_odp.T.test_c) ... ERROR\n\
        test_d (tests.test_odp.T.test_d) ... a line of its own\nok\n\
        \n=====\nERROR: test_c (tests.test_odp.T.test_c)\n-----\nTraceback\nOops: it broke\n\n-----\nRan 4 tests\n";

    fn odp(name: &'static str) -> Test {
        Test {
            module: "test_odp",
            name,
        }
    }

    #[test]
    fn python_results_are_read() {
        assert_eq!(verdict(OUTPUT, odp("test_a")), Verdict::Passed);
        assert_eq!(verdict(OUTPUT, odp("test_d")), Verdict::Passed);
        assert_eq!(
            verdict(OUTPUT, odp("test_ab")),
            Verdict::Skipped("no ODP".into())
        );
        let Verdict::Failed(why) = verdict(OUTPUT, odp("test_c")) else {
            panic!("an error passed");
        };
        assert!(
            why.starts_with("ERROR") && why.contains("it broke"),
            "{why}"
        );
        let absent = Verdict::Failed("it did not run".into());
        assert_eq!(verdict(OUTPUT, odp("test_absent")), absent);
        let other = Test {
            module: "test_mr",
            name: "test_a",
        };
        assert_eq!(verdict(OUTPUT, other), absent);
    }

    #[test]
    fn undefined_tests_are_found() {
        let output = "not defined: test_odp test_ab\n";
        assert!(is_undefined(output, odp("test_ab")));
        assert!(!is_undefined(output, odp("test_a")));
        assert!(!is_undefined(OUTPUT, odp("test_absent")));
    }

    #[test]
    fn only_tests_that_need_another_device_may_skip() {
        let skipped = || Verdict::Skipped("why".into());
        assert_eq!(
            must_pass(odp("test_a"), skipped()),
            Verdict::Failed("skipped: why".into())
        );
        assert_eq!(must_pass(odp("test_dmabuf_lkey"), skipped()), skipped());
        let may_skip = all().filter(|test| test.name.starts_with(NEEDS_GRAPHICS));
        assert_eq!(may_skip.count(), 10);
    }

    #[test]
    fn only_the_chosen_tests_are_asked_for() {
        let script = script(&[odp("test_a"), odp("test_b")]);
        let wanted = "run_pyverbs -k 'tests.test_odp.*.test_a' -k 'tests.test_odp.*.test_b'";
        assert_eq!(script, wanted);
    }

    #[test]
    fn each_test_is_in_one_of_two_halves() {
        let tests: Vec<Test> = all().collect();
        let parts = halves(&tests);
        assert!(parts[0].len().abs_diff(parts[1].len()) <= 2);
        let both = || parts.iter().flatten();
        assert!(
            tests
                .iter()
                .all(|test| both().filter(|&known| known == test).count() == 1)
        );
        assert!(
            parts[0]
                .iter()
                .all(|test| { parts[1].iter().all(|other| other.module != test.module) })
        );
        let [first, second] = halves(&tests[..1]);
        assert_eq!((first.len(), second.len()), (1, 0));
    }

    #[test]
    fn there_are_181_tests_seventeen_of_them_on_demand() {
        assert_eq!(all().count(), 181);
        assert_eq!(module("test_odp").count(), 17);
    }
}
