//! Results of tests: lines when they end, counts and reasons at the end of a run.

use std::fmt::Display;
use std::time::Duration;

pub use super::case::{Case, Verdict};
use super::junit;
use crate::progress;

/// A test that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Name of the test.
    pub name: String,
    /// The reason.
    pub why: String,
}

impl Failure {
    /// Lines of the reason that the summary repeats: of its beginning, and of its end.
    const SHOWN: (usize, usize) = (3, 20);

    /// For the end of the output, because often only that is shown.
    fn summary(&self) -> String {
        let (first, last) = Self::SHOWN;
        let mut why: Vec<&str> = self.why.trim_end().lines().collect();
        if let Some(cut) = why.len().checked_sub(first + last).filter(|cut| *cut > 0) {
            why.splice(first..first + cut, ["…"]);
        }
        let lines = why.iter().map(|line| format!("\n        {line}"));
        format!("    {}{}", self.name, lines.collect::<String>())
    }
}

/// Counts and prints results.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// A test whose guests die of an error of QEMU fails, instead of being run again.
    pub no_retries: bool,
    /// No test begins after one that has failed.
    pub stops_at_failure: bool,
    /// All ended tests.
    cases: Vec<Case>,
    passed: usize,
    /// Those of them that failed at first, with the reasons.
    retried: Vec<Failure>,
    /// How often guests were booted again because they died while they booted.
    pub boots_repeated: usize,
    failed: Vec<Failure>,
    skipped: usize,
}

impl Tally {
    /// Counts one test and prints its line; a failure's output and log location follow.
    pub fn add(&mut self, name: &str, elapsed: Duration, verdict: Verdict) {
        self.add_after(name, elapsed, verdict, &[]);
    }

    /// The same of a test that was run again because of each of `reasons`. If it passed, the summary says so.
    pub fn add_after(
        &mut self,
        name: &str,
        elapsed: Duration,
        verdict: Verdict,
        reasons: &[&'static str],
    ) {
        if verdict == Verdict::Passed && !reasons.is_empty() {
            self.retried.push(Failure {
                name: name.to_owned(),
                why: reasons.join("\n"),
            });
        }
        progress::end(name, elapsed, 1);
        let case = Case {
            name: name.to_owned(),
            elapsed,
            verdict: verdict.clone(),
        };
        junit::end(name, std::slice::from_ref(&case));
        self.cases.push(case);
        let seconds = elapsed.as_secs_f64();
        match verdict {
            Verdict::Passed => {
                self.passed += 1;
                progress::print(&format!("test {name} ... ok ({seconds:.1} s)"));
            }
            Verdict::Failed(why) => {
                progress::print(&format!(
                    "test {name} ... FAILED ({seconds:.1} s)\n{}",
                    why.trim_end()
                ));
                self.failed.push(Failure {
                    name: name.to_owned(),
                    why,
                });
            }
            Verdict::Skipped(why) => {
                self.skipped += 1;
                progress::print(&format!("test {name} ... skipped: {why}"));
            }
        }
    }

    /// Counts the tests that another runner has run in the step `name`.
    pub fn add_counts(
        &mut self,
        name: &str,
        elapsed: Duration,
        passed: usize,
        failed: Vec<Failure>,
        skipped: usize,
    ) {
        progress::end(name, elapsed, passed + failed.len() + skipped);
        let passing = (passed > 0).then(|| Case {
            name: format!("{name}: {passed} tests"),
            elapsed,
            verdict: Verdict::Passed,
        });
        let failing = failed.iter().map(|failure| Case {
            name: failure.name.clone(),
            elapsed: Duration::ZERO,
            verdict: Verdict::Failed(failure.why.clone()),
        });
        let cases: Vec<Case> = passing.into_iter().chain(failing).collect();
        junit::end(name, &cases);
        self.cases.extend(cases);
        self.passed += passed;
        self.failed.extend(failed);
        self.skipped += skipped;
    }

    /// Adds the results that another thread has counted.
    pub fn merge(&mut self, other: Self) {
        let Self {
            no_retries: _,
            stops_at_failure: _,
            cases,
            passed,
            retried,
            boots_repeated,
            failed,
            skipped,
        } = other;
        self.cases.extend(cases);
        self.passed += passed;
        self.retried.extend(retried);
        self.boots_repeated += boots_repeated;
        self.failed.extend(failed);
        self.skipped += skipped;
    }

    /// The ended tests.
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// How often a test is run, at most, of which `attempts` are allowed because QEMU itself may let its guests die.
    pub fn attempts(&self, attempts: u32) -> u32 {
        if self.no_retries { 1 } else { attempts }
    }

    /// True if no further test is to begin.
    pub fn is_over(&self) -> bool {
        self.stops_at_failure && !self.success()
    }

    /// Number of tests that have ended.
    pub fn count(&self) -> usize {
        self.passed + self.failed.len() + self.skipped
    }

    /// True if no test failed.
    pub fn success(&self) -> bool {
        self.failed.is_empty()
    }

    /// The tests that were skipped, those with the same reason together. Of tests that other runners have skipped only the number is known.
    fn skipped(&self) -> String {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for case in &self.cases {
            let Verdict::Skipped(why) = &case.verdict else {
                continue;
            };
            match reasons.iter_mut().find(|(known, _)| known == why) {
                Some((_, names)) => names.push(&case.name),
                None => reasons.push((why, vec![&case.name])),
            }
        }
        let lines = reasons.iter().map(|(why, names)| {
            let names = names.join(", ");
            format!("    {names}: {why}\n")
        });
        lines.collect()
    }

    /// Prints the reasons of tests that failed, for good or at first, or were skipped; the logs are in `logs`.
    pub fn print_reasons(&self, logs: impl Display) {
        let skipped = self.skipped();
        if !skipped.is_empty() {
            print!("\nskipped:\n{skipped}");
        }
        if !self.retried.is_empty() {
            println!("\npassed after a retry:");
            for test in &self.retried {
                println!("{}", test.summary());
            }
        }
        if !self.failed.is_empty() {
            println!("\nfailed:");
            for failure in &self.failed {
                println!("{}", failure.summary());
            }
            println!("logs: {logs}");
        }
    }

    /// The closing line.
    pub fn summary(&self) -> String {
        let mut summary = format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped
        );
        let further = [
            (self.retried.len(), "passed after a retry"),
            (self.boots_repeated, "boots repeated"),
        ];
        for (count, what) in further {
            if count > 0 {
                summary += &format!(", {count} {what}");
            }
        }
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts() {
        let mut tally = Tally::default();
        tally.add("a", Duration::ZERO, Verdict::Passed);
        tally.add("b", Duration::ZERO, Verdict::Failed("why".into()));
        let other = Failure {
            name: "c".into(),
            why: (0..24).map(|n| format!("{n}\n")).collect(),
        };
        tally.add_counts("u", Duration::ZERO, 3, vec![other], 2);
        assert_eq!(tally.summary(), "4 passed, 2 failed, 2 skipped");
        let failures: Vec<String> = tally.failed.iter().map(Failure::summary).collect();
        let last: Vec<String> = (4..24).map(|n| n.to_string()).collect();
        let lines = format!("c 0 1 2 … {}", last.join(" ")).replace(' ', "\n        ");
        assert_eq!(
            failures,
            ["    b\n        why".to_owned(), format!("    {lines}")]
        );
    }

    #[test]
    fn skipped_tests_are_listed_with_their_reasons() {
        let mut tally = Tally::default();
        tally.add("a", Duration::ZERO, Verdict::Passed);
        assert_eq!(tally.skipped(), "");
        for (name, why) in [
            ("host::counts", "another compiler"),
            ("b", "no root"),
            ("c", "no root"),
        ] {
            tally.add(name, Duration::ZERO, Verdict::Skipped(why.to_owned()));
        }
        let expected = "    host::counts: another compiler\n    b, c: no root\n";
        assert_eq!(tally.skipped(), expected);
        assert_eq!(tally.summary(), "1 passed, 0 failed, 3 skipped");
    }

    #[test]
    fn the_summary_counts_retries_of_tests_that_passed() {
        let mut tally = Tally::default();
        tally.add_after("a", Duration::ZERO, Verdict::Passed, &["QEMU died"]);
        tally.add_after("b", Duration::ZERO, Verdict::Passed, &[]);
        let failed = Verdict::Failed("why".into());
        tally.add_after("c", Duration::ZERO, failed, &["QEMU died"; 2]);
        let summary = "2 passed, 1 failed, 0 skipped, 1 passed after a retry";
        assert_eq!(tally.summary(), summary);
        let mut all = Tally::default();
        all.add("d", Duration::ZERO, Verdict::Skipped("why".into()));
        all.merge(tally.clone());
        all.merge(tally.clone());
        let twice = "4 passed, 2 failed, 1 skipped, 2 passed after a retry";
        assert_eq!(all.summary(), twice);
        let retried: Vec<String> = tally.retried.iter().map(Failure::summary).collect();
        assert_eq!(retried, ["    a\n        QEMU died"]);
        tally.boots_repeated = 2;
        assert_eq!(tally.summary(), format!("{summary}, 2 boots repeated"));
    }
}
