//! The suite `host`: what needs no guest.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::scripts;
use super::tally::{Failure, Tally, Verdict};
use crate::command::{say, tail};
use crate::driver::Driver;
use crate::image::{Base, Kernel};
use crate::progress;
use crate::workspace::Workspace;

/// The steps, as `--list` shows them; `cargo test` counts each of its tests.
pub const STEPS: &[&str] = &[
    "fmt",
    "dependencies",
    "scripts",
    "clippy",
    "rustdoc",
    "cargo-test",
    "driver-stable",
    "driver-backports",
    "provider",
    "compatibility",
];

/// Runs the steps whose names contain `filter`.
pub fn run(workspace: &Workspace, filter: &str, dir: &Path, tally: &mut Tally) {
    for &step in STEPS.iter().filter(|step| step.contains(filter)) {
        let started = Instant::now();
        if step == "cargo-test" {
            unit_tests(workspace, dir, tally);
            continue;
        }
        let result = match step {
            "fmt" => cargo(workspace, dir, step, &["fmt", "--all", "--check"]).map(|_| None),
            "clippy" => {
                let words = [
                    "clippy",
                    "--workspace",
                    "--all-features",
                    "--all-targets",
                    "--",
                    "-D",
                    "warnings",
                ];
                cargo(workspace, dir, step, &words).map(|_| None)
            }
            "rustdoc" => {
                let words = [
                    "doc",
                    "--workspace",
                    "--no-deps",
                    "--document-private-items",
                ];
                let strict = [("RUSTDOCFLAGS", "-D warnings".to_owned())];
                cargo_with(workspace, dir, step, &words, &strict).map(|_| None)
            }
            "scripts" => scripts::check(workspace, dir).map(|()| None),
            "dependencies" => dependencies(workspace).map(|()| None),
            "provider" => provider(workspace).map(|()| None),
            "compatibility" => compatibility(workspace, dir).map(|()| None),
            "driver-stable" => driver(workspace, Kernel::Stable),
            _ => driver(workspace, Kernel::Backports),
        };
        let verdict = match result {
            Ok(None) => Verdict::Passed,
            Ok(Some(why)) => Verdict::Skipped(why),
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        tally.add(&format!("host::{step}"), started.elapsed(), verdict);
    }
}

/// Runs cargo in the workspace with its output in a log; the output if it succeeds.
pub(super) fn cargo(
    workspace: &Workspace,
    dir: &Path,
    step: &str,
    words: &[&str],
) -> Result<String> {
    cargo_with(workspace, dir, step, words, &[])
}

/// The same with these environment variables.
fn cargo_with(
    workspace: &Workspace,
    dir: &Path,
    step: &str,
    words: &[&str],
    variables: &[(&str, String)],
) -> Result<String> {
    say(format!("cargo {} …", words.join(" ")));
    progress::begin(step);
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(words)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(workspace.root())
        .stdin(Stdio::null())
        .output()
        .context("starting cargo")?;
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

fn unit_tests(workspace: &Workspace, dir: &Path, tally: &mut Tally) {
    let words = ["test", "--workspace", "--all-features", "--no-fail-fast"];
    count_cargo_test(workspace, dir, "host::cargo-test", &words, &[], tally);
}

/// `cargo test` with these environment variables, each test counted.
pub(super) fn count_cargo_test(
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
    let elapsed = started.elapsed();
    progress::print(&format!(
        "{name}: {} passed, {} failed, {} ignored ({:.1} s)",
        counts.passed,
        counts.failed.len(),
        counts.ignored,
        elapsed.as_secs_f64()
    ));
    if let Err(error) = &result {
        if counts.failed.is_empty() {
            // It did not build, or a test program died without naming a test.
            tally.add(
                name,
                started.elapsed(),
                Verdict::Failed(format!("{error:#}")),
            );
        } else {
            progress::print(&format!("{error:#}"));
        }
    }
    tally.add_counts(name, elapsed, counts.passed, counts.failed, counts.ignored);
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: Vec<Failure>,
    ignored: usize,
}

/// Counts `test NAME ... RESULT` lines. The result may be on a later line if the test printed something in between, so
/// passed and ignored tests are taken from the summaries. The names of failed ones begin with that of the suite.
fn count_tests(suite: &str, text: &str) -> Counts {
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

/// What a failed test has printed, without the backtrace.
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

/// `firmware` is what would be silicon: it never depends on `device`.
fn dependencies(workspace: &Workspace) -> Result<()> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(workspace.root())
        .output()
        .context("starting cargo")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        tail(&output.stderr, 20)
    );
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("reading cargo's metadata")?;
    let bad = wrong_edges(&metadata, &workspace.root().to_string_lossy());
    ensure!(
        bad.is_empty(),
        "firmware must not depend on device:\n{}",
        bad.join("\n")
    );
    Ok(())
}

/// Dependencies of packages below `firmware/` on packages elsewhere in the workspace.
fn wrong_edges(metadata: &Value, root: &str) -> Vec<String> {
    let firmware = format!("{root}/firmware/");
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut bad = Vec::new();
    let packages = metadata
        .get("packages")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for package in packages {
        if !text(package.get("manifest_path")).starts_with(&firmware) {
            continue;
        }
        let dependencies = package
            .get("dependencies")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        for dependency in dependencies {
            let path = text(dependency.get("path"));
            // Tests may use anything; what ships may not.
            let is_dev = dependency.get("kind").and_then(Value::as_str) == Some("dev");
            if !path.is_empty() && !is_dev && !format!("{path}/").starts_with(&firmware) {
                bad.push(format!(
                    "{} -> {}",
                    text(package.get("name")),
                    text(dependency.get("name"))
                ));
            }
        }
    }
    bad
}

/// Builds the guest driver; warnings of the compiler are failures.
fn driver(workspace: &Workspace, kernel: Kernel) -> Result<Option<String>> {
    if !workspace.guest_driver().join("kernel/Kbuild").exists() {
        return Ok(Some("there is no guest-driver/kernel/Kbuild".into()));
    }
    crate::host::ensure_packages(workspace)?;
    let base = Base::obtain(workspace)?;
    let driver = Driver::obtain(workspace, &base, kernel)?;
    let warnings = driver.warnings();
    ensure!(
        warnings.is_empty(),
        "the module builds with warnings:\n{warnings}"
    );
    Ok(None)
}

/// Runs the provider's own test.
fn provider(workspace: &Workspace) -> Result<()> {
    crate::host::ensure_packages(workspace)?;
    let base = Base::obtain(workspace)?;
    crate::driver::test_provider(workspace, &base)
}

/// Compares the tables of what is supported with the headers that say what there is.
fn compatibility(workspace: &Workspace, dir: &Path) -> Result<()> {
    crate::host::ensure_packages(workspace)?;
    let base = Base::obtain(workspace)?;
    let headers = crate::driver::verbs_headers(workspace, &base)?;
    let headers: Vec<String> = headers
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let mut words = vec!["run", "-p", "faultline-layout", "--bin", "headers", "--"];
    words.push("docs/compatibility.md");
    words.extend(headers.iter().map(String::as_str));
    cargo(workspace, dir, "compatibility", &words).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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

    #[test]
    fn an_edge_from_firmware_to_device_is_found() {
        let metadata = json!({"packages": [
            {"name": "nic", "manifest_path": "/w/firmware/nic/Cargo.toml", "dependencies": [
                {"name": "wire", "path": "/w/firmware/wire", "kind": null},
                {"name": "ports", "path": "/w/device/ports", "kind": null},
                {"name": "harness", "path": "/w/tests/harness", "kind": "dev"},
                {"name": "bytes", "kind": null}]},
            {"name": "daemon", "manifest_path": "/w/device/daemon/Cargo.toml", "dependencies": [
                {"name": "nic", "path": "/w/firmware/nic", "kind": null}]}]});
        assert_eq!(wrong_edges(&metadata, "/w"), ["nic -> ports"]);
    }
}
