//! Reads JUnit files with an XML parser, as CI systems do. The lab only writes them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::capture;
use crate::host;
use crate::workspace::Workspace;

const READ: &str = include_str!("../../recipes/read-junit.py");

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
