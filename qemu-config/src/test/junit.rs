//! JUnit files: the results of a run for CI systems; and a reader that uses an XML parser, as these do.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::case::{Case, Verdict};
use crate::command::capture;
use crate::host;
use crate::scenario::verdict::escaped;
use crate::workspace::Workspace;

const READ: &str = include_str!("../../recipes/read-junit.py");

/// The files of the current run.
static RUN: Mutex<Option<Unfinished>> = Mutex::new(None);

/// Content of the files during a run: the tests that have ended, and the others as failures. So a run that a signal
/// ends leaves its results.
#[derive(Debug)]
struct Unfinished {
    files: Vec<PathBuf>,
    started: Instant,
    /// Tests without a result.
    awaited: Vec<String>,
    ended: Vec<Case>,
}

impl Unfinished {
    fn end(&mut self, name: &str, cases: &[Case]) {
        let first = self.awaited.iter().position(|awaited| awaited == name);
        first.map(|at| self.awaited.remove(at));
        self.ended.extend_from_slice(cases);
    }

    fn text(&self) -> String {
        let awaited = self.awaited.iter().map(|name| Case {
            name: name.clone(),
            elapsed: Duration::ZERO,
            verdict: Verdict::Failed("the run has ended before this test".to_owned()),
        });
        let cases: Vec<Case> = self.ended.iter().cloned().chain(awaited).collect();
        text(self.started.elapsed(), &cases)
    }

    /// Errors are those of the results at the end of the run, too, which reports them.
    fn write(&self) {
        let text = self.text();
        for file in &self.files {
            let part = file.with_extension("xml.part");
            if fs::write(&part, &text).is_ok() && fs::rename(&part, file).is_err() {
                let _ = fs::remove_file(&part);
            }
        }
    }
}

fn run() -> MutexGuard<'static, Option<Unfinished>> {
    RUN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on these files have the results of the run, until [`forget`]. `awaited`: the tests that it is expected to have.
pub fn begin(files: &[&Path], awaited: Vec<String>) {
    // Others, such as FIFOs, are written once, at the end.
    let is_ours = |file: &&&Path| file.metadata().map_or(true, |found| found.is_file());
    let unfinished = Unfinished {
        files: files
            .iter()
            .filter(is_ours)
            .map(|file| file.to_path_buf())
            .collect(),
        started: Instant::now(),
        awaited,
        ended: Vec::new(),
    };
    unfinished.write();
    *run() = Some(unfinished);
}

/// A test has ended, or a step with several.
pub fn end(name: &str, cases: &[Case]) {
    if let Some(unfinished) = &mut *run() {
        unfinished.end(name, cases);
        unfinished.write();
    }
}

/// The run has ended: its owner writes the results.
pub fn forget() {
    *run() = None;
}

/// The results of a run. The class of a test is its suite with the kernel.
pub fn text(took: Duration, cases: &[Case]) -> String {
    let count = |is: fn(&Verdict) -> bool| cases.iter().filter(|case| is(&case.verdict)).count();
    let failures = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites>\n<testsuite name=\"cargo lab test\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\" time=\"{:.3}\">\n",
        cases.len(),
        took.as_secs_f64()
    );
    for case in cases {
        let (class, name) = case.name.rsplit_once("::").unwrap_or(("", &case.name));
        let (class, name) = (escaped(class), escaped(name));
        let head = format!(
            "<testcase classname=\"{class}\" name=\"{name}\" time=\"{:.3}\"",
            case.elapsed.as_secs_f64()
        );
        // Writing to a string does not fail.
        let _ = match &case.verdict {
            Verdict::Passed => writeln!(text, "{head}/>"),
            Verdict::Failed(why) => writeln!(
                text,
                "{head}><failure message=\"{}\"/></testcase>",
                escaped(why)
            ),
            Verdict::Skipped(why) => writeln!(
                text,
                "{head}><skipped message=\"{}\"/></testcase>",
                escaped(why)
            ),
        };
    }
    text + "</testsuite>\n</testsuites>\n"
}

/// The test cases of a file, each as `suite: case: passed` or `suite: case: failed: message`.
pub fn cases(workspace: &Workspace, file: &Path) -> Result<Vec<String>> {
    host::ensure_linters(workspace)?;
    read(file)
}

fn read(file: &Path) -> Result<Vec<String>> {
    let text = capture(Command::new("python3").args(["-c", READ]).arg(file))
        .with_context(|| format!("reading {}", file.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::verdict::{Check, junit};

    #[test]
    fn the_results_of_a_run_can_be_read() {
        let case = |name: &str, verdict| Case {
            name: name.to_owned(),
            elapsed: Duration::from_millis(1500),
            verdict,
        };
        let cases = [
            case("pingpong::stable::rc", Verdict::Passed),
            case("odp::stable::<a>", Verdict::Failed("1 & 2".into())),
            case("b", Verdict::Skipped("no device".into())),
        ];
        let text = text(Duration::from_secs(9), &cases);
        let head = "tests=\"3\" failures=\"1\" skipped=\"1\" time=\"9.000\"";
        assert!(text.contains(head), "{text}");
        let passed = "<testcase classname=\"pingpong::stable\" name=\"rc\" time=\"1.500\"/>";
        assert!(text.contains(passed), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("junit.xml");
        std::fs::write(&file, &text).unwrap();
        assert_eq!(
            read(&file).unwrap(),
            [
                "cargo lab test: rc: passed",
                "cargo lab test: <a>: failed: 1 & 2",
                "cargo lab test: b: passed"
            ]
        );
    }

    #[test]
    fn a_run_that_is_interrupted_leaves_its_results() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("junit.xml");
        let mut run = Unfinished {
            files: vec![file.clone()],
            started: Instant::now(),
            awaited: vec!["host::a".to_owned(), "host::b".to_owned()],
            ended: Vec::new(),
        };
        run.end(
            "host::a",
            &[Case {
                name: "host::a: 5 tests".to_owned(),
                elapsed: Duration::ZERO,
                verdict: Verdict::Passed,
            }],
        );
        run.write();
        assert_eq!(
            read(&file).unwrap(),
            [
                "cargo lab test: a: 5 tests: passed",
                "cargo lab test: b: failed: the run has ended before this test"
            ]
        );
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1);
    }

    #[test]
    fn cases_and_wrong_counts_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("junit.xml");
        let checks = ["a", "<b>"].map(|name| Check {
            name: name.to_owned(),
            passed: name == "a",
            found: "\"1\"".to_owned(),
            expected: "2".to_owned(),
        });
        let text = junit("x & y", 1.0, &checks, &[]);
        std::fs::write(&file, &text).unwrap();
        assert_eq!(
            read(&file).unwrap(),
            [
                "x & y: a: passed",
                "x & y: <b>: failed: found \"1\", expected 2",
                "x & y: no problems: passed"
            ]
        );
        for (right, wrong) in [("failures=\"1\"", "failures=\"0\""), ("</testsuite>", "")] {
            std::fs::write(&file, text.replace(right, wrong)).unwrap();
            assert!(read(&file).is_err(), "{wrong}");
        }
    }
}
