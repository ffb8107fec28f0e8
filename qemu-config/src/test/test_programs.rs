//! The test programs of the workspace, built once by cargo and run in two parts: those in real time, and the others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use super::cargo::{Counts, cargo, count_cargo_test, count_tests, report};
use super::tally::{Failure, Tally, Verdict};
use crate::command::tail;
use crate::workspace::Workspace;
use crate::{processor_time, progress};

/// Packages whose tests run a device and its clients in real time. On a busy machine these would not wait long enough.
const REAL_TIME: &[&str] = &[
    "device/cli",
    "device/control",
    "device/daemon",
    "device/vfio-user",
    "tests/harness",
];

/// A program with tests.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    path: PathBuf,
    /// Its package's.
    folder: PathBuf,
}

impl Program {
    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Runs it as cargo does; returns its output, and whether it succeeded.
    fn run(&self) -> Result<(String, bool)> {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = processor_time::output(&mut command)
            .with_context(|| format!("starting {}", self.path.display()))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            text.push_str(&format!("{}: {}\n", self.path.display(), output.status));
        }
        Ok((text, output.status.success()))
    }
}

/// Builds all of them and runs those whose tests are in real time, or the others and the documentation's examples. Each
/// test is counted.
pub fn run(workspace: &Workspace, dir: &Path, step: &str, real_time: bool, tally: &mut Tally) {
    let started = Instant::now();
    let name = format!("host::{step}");
    let result = build(workspace, dir, step).and_then(|programs| {
        let is_chosen = |program: &&Program| {
            let mut folders = REAL_TIME.iter().map(|folder| workspace.root().join(folder));
            folders.any(|folder| folder == program.folder) == real_time
        };
        let log = dir.join(format!("{step}.log"));
        let mut text = String::new();
        let mut counts = Counts::default();
        for program in programs.iter().filter(is_chosen) {
            progress::begin(&program.name());
            let (output, succeeded) = program.run()?;
            counts.add(of_program(program, &output, succeeded));
            text.push_str(&output);
        }
        fs::write(&log, &text).context("writing a log")?;
        Ok(counts)
    });
    match result {
        Ok(counts) => report(&name, started, counts, tally),
        Err(error) => tally.add(
            &name,
            started.elapsed(),
            Verdict::Failed(format!("{error:#}")),
        ),
    }
    if !real_time {
        examples(workspace, dir, tally);
    }
}

/// The tests of a program that has printed `output`. One that dies without naming a test is itself a failure.
fn of_program(program: &Program, output: &str, succeeded: bool) -> Counts {
    let mut counts = count_tests("host", output);
    if !succeeded && counts.failed.is_empty() {
        counts.failed.push(Failure {
            name: format!("host::{}", program.name()),
            why: tail(output.as_bytes(), 20),
        });
    }
    counts
}

fn build(workspace: &Workspace, dir: &Path, step: &str) -> Result<Vec<Program>> {
    let words = [
        "test",
        "--workspace",
        "--all-features",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ];
    let messages = cargo(workspace, dir, &format!("{step}-build"), &words)?;
    Ok(programs(&messages))
}

/// The test programs in cargo's JSON messages.
fn programs(messages: &str) -> Vec<Program> {
    let program = |message: Value| {
        let is_test = message.pointer("/profile/test")?.as_bool()?;
        let path = PathBuf::from(message.get("executable")?.as_str()?);
        let manifest = Path::new(message.get("manifest_path")?.as_str()?);
        let folder = manifest.parent()?.to_owned();
        is_test.then_some(Program { path, folder })
    };
    messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(program)
        .collect()
}

/// Runs the examples in the documentation.
fn examples(workspace: &Workspace, dir: &Path, tally: &mut Tally) {
    let words = [
        "test",
        "--workspace",
        "--all-features",
        "--no-fail-fast",
        "--doc",
    ];
    count_cargo_test(workspace, dir, "host::cargo-test-doc", &words, &[], tally);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargo_messages() {
        let messages = r#"
            {"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":false},"executable":"/t/a"}
            {"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":true},"executable":null}
            {"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":true},"executable":"/t/a-1"}
            {"reason":"build-finished","success":true}
        "#;
        let program = Program {
            path: "/t/a-1".into(),
            folder: "/w/a".into(),
        };
        assert_eq!(programs(messages), [program]);
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let program = Program {
            path: "/t/a-1".into(),
            folder: "/w/a".into(),
        };
        let counts = of_program(&program, "running 2 tests\ntest x ... ok\n", false);
        assert_eq!(counts.failed[0].name, "host::a-1");
        let counts = of_program(&program, "test result: ok. 2 passed; 0 failed\n", true);
        assert_eq!((counts.passed, counts.failed.len()), (2, 0));
    }
}
