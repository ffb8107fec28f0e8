//! Runs cargo, and counts the tests that it runs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::tally::{Failure, Tally, Verdict};
use crate::command::{say, tail};
use crate::workspace::Workspace;
use crate::{processor_time, progress};

/// Runs cargo in the workspace with its output in a log; the output if it succeeds.
pub fn cargo(workspace: &Workspace, dir: &Path, step: &str, words: &[&str]) -> Result<String> {
    cargo_with(workspace, dir, step, words, &[])
}

/// The same with these environment variables.
pub fn cargo_with(
    workspace: &Workspace,
    dir: &Path,
    step: &str,
    words: &[&str],
    variables: &[(&str, String)],
) -> Result<String> {
    say(format!("cargo {} …", words.join(" ")));
    progress::begin(step);
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(words)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(workspace.root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = processor_time::output(&mut command).context("starting cargo")?;
    let log = dir.join(format!("{step}.log"));
    let mut text = output.stdout.clone();
    text.extend_from_slice(&output.stderr);
    fs::write(&log, &text).context("writing a log")?;
    let end = tail(&text, 60);
    ensure!(
        output.status.success(),
        "{end}\nlogs: {}",
        workspace.shown(&log)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `cargo test` with these environment variables, each test counted.
pub fn count_cargo_test(
    workspace: &Workspace,
    dir: &Path,
    name: &str,
    words: &[&str],
    variables: &[(&str, String)],
    tally: &mut Tally,
) {
    let started = Instant::now();
    let step = name.replace("::", "-");
    let result = cargo_with(workspace, dir, &step, words, variables);
    let log = dir.join(format!("{step}.log"));
    let text = fs::read_to_string(&log).unwrap_or_default();
    let suite = name.split("::").next().unwrap_or(name);
    let counts = count_tests(suite, &text);
    match result {
        // It did not build, or a test program died without naming a test.
        Err(error) if counts.failed.is_empty() => {
            let failed = Verdict::Failed(format!("{error:#}"));
            tally.add(name, started.elapsed(), failed);
        }
        Err(error) => progress::print(&format!("{error:#}")),
        Ok(_) => {}
    }
    report(name, started, counts, tally);
}

/// Prints and adds the counts of the tests that another runner has run in the step `name`.
pub fn report(name: &str, started: Instant, counts: Counts, tally: &mut Tally) {
    let elapsed = started.elapsed();
    progress::print(&format!(
        "{name}: {} passed, {} failed, {} ignored ({:.1} s)",
        counts.passed,
        counts.failed.len(),
        counts.ignored,
        elapsed.as_secs_f64()
    ));
    tally.add_counts(name, elapsed, counts.passed, counts.failed, counts.ignored);
}

/// Results of tests in the output of test programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: Vec<Failure>,
    pub ignored: usize,
}

impl Counts {
    /// Adds those of another program.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.ignored += other.ignored;
    }
}

/// Counts `test NAME ... RESULT` lines. The result may be on a later line if the test printed something in between, so
/// passed and ignored tests are taken from the summaries. The names of failed ones begin with that of the suite.
pub fn count_tests(suite: &str, text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text.lines() {
        if let Some(summary) = line.strip_prefix("test result: ") {
            let number = |word: &str| {
                summary
                    .split([';', '.'])
                    .find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
                    .unwrap_or(0)
            };
            counts.passed += number("passed");
            counts.ignored += number("ignored");
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            counts.failed.push(Failure {
                name: format!("{suite}::{name}"),
                why: complaint(text, name),
            });
        }
    }
    counts
}

/// The output of a failed test, without the backtrace.
fn complaint(text: &str, name: &str) -> String {
    let mut lines = text
        .lines()
        .skip_while(|line| *line != format!("---- {name} stdout ----"));
    lines.next();
    let ends = ["stack backtrace:", "failures:", "note: run with"];
    lines
        .take_while(|line| {
            !line.starts_with("---- ") && !ends.iter().any(|end| line.starts_with(end))
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_from_cargo_output() {
        let text = "running 3 tests\ntest a::b ... ok\ntest c ... FAILED\n\
                    failures:\n---- c stdout ----\nsent 3\npanicked at c.rs:1:\nall is lost\nstack backtrace:\n   0: f\n\
                    failures:\n    c\n\
                    test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
                    test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.0s\n";
        assert_eq!(
            count_tests("host", text),
            Counts {
                passed: 6,
                failed: vec![Failure {
                    name: "host::c".into(),
                    why: "sent 3\npanicked at c.rs:1:\nall is lost".into(),
                }],
                ignored: 1
            }
        );
    }
}
