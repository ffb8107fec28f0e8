//! JUnit files: the results of a run for CI systems; and a reader that uses an XML parser, as these do.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::tally::{Case, Verdict};
use crate::command::capture;
use crate::host;
use crate::scenario::verdict::escaped;
use crate::workspace::Workspace;

const READ: &str = include_str!("../../recipes/read-junit.py");

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
