//! The suite `host`: tests without guests.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::book;
use super::cargo::{cargo, cargo_with};
use super::facts::{On, Row, SuiteFacts, chosen, row, runs};
use super::migration;
use super::scripts;
use super::tally::{Tally, Verdict};
use super::test_programs;
use super::workflows;
use crate::command::tail;
use crate::host::Release;
use crate::image::{Base, Kernel};
use crate::processor_time;
use crate::workspace::Workspace;

/// The time at which a step without guests runs, in a run with guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// First.
    Before,
    /// At the same time, on processors that guests leave idle: its result depends on no time.
    Beside,
    /// Last, alone on the machine.
    After,
}

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "host",
    shows: "The tree keeps its rules, builds without warnings, and passes all tests \
        without guests.",
    runs: runs(
        On::First,
        On::First,
        "the rules of the source tree, unit tests and builds",
    ),
};

/// A step of the suite.
#[derive(Clone, Copy)]
pub struct Step {
    when: When,
    run: Run,
}

/// The action of a step.
#[derive(Clone, Copy)]
enum Run {
    /// One test, which may be skipped for a reason.
    One(fn(&Workspace, &Path) -> Result<Option<String>>),
    /// The test programs of the workspace: those whose tests run in real time or the others, each test counted.
    Programs { real_time: bool },
}

/// The steps; of the test programs each test is counted.
pub const TESTS: &[Row<Step>] = &[
    one(
        "fmt",
        "The formatting is rustfmt's.",
        When::Beside,
        |workspace, dir| cargo(workspace, dir, "fmt", &["fmt", "--all", "--check"]).map(|_| None),
    ),
    one(
        "dependencies",
        "No package of `firmware` depends on one of `device`.",
        When::Beside,
        |workspace, _| dependencies(workspace).map(|()| None),
    ),
    one(
        "scripts",
        "shellcheck and ruff find nothing in the scripts.",
        When::Beside,
        |workspace, dir| scripts::check(workspace, dir).map(|()| None),
    ),
    one(
        "workflows",
        "actionlint finds nothing in workflows and action, and finds planted errors.",
        When::Beside,
        |workspace, dir| workflows::check(workspace, dir).map(|()| None),
    ),
    one(
        "book",
        "The documentation builds as a book, whose links lead somewhere.",
        When::Beside,
        |workspace, dir| book::check(workspace, dir).map(|()| None),
    )
    .runs(runs(
        On::Nothing,
        On::First,
        "mdBook is built for it; cargo-test finds links that lead nowhere, and pages that the book lacks",
    )),
    one(
        "clippy",
        "clippy finds nothing.",
        When::Beside,
        |workspace, dir| {
            let words = [
                "clippy",
                "--workspace",
                "--all-features",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ];
            cargo(workspace, dir, "clippy", &words).map(|_| None)
        },
    ),
    one(
        "rustdoc",
        "The documentation of the code has no warnings.",
        When::Beside,
        |workspace, dir| {
            let words = [
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
            ];
            let strict = [("RUSTDOCFLAGS", "-D warnings".to_owned())];
            cargo_with(workspace, dir, "rustdoc", &words, &strict).map(|_| None)
        },
    ),
    row(
        "cargo-test",
        "Unit tests, simulations and examples pass; docs/experiments.md is what its \
         simulations give.",
        Step {
            when: When::Beside,
            run: Run::Programs { real_time: false },
        },
    ),
    one(
        "perfetto",
        "SQL over a trace finds what its report says.",
        When::Beside,
        |workspace, dir| perfetto(workspace, dir).map(|()| None),
    ),
    one(
        "tshark",
        "tshark decodes a capture with every opcode, and iWARP.",
        When::Beside,
        |workspace, dir| {
            crate::host::ensure_tshark(workspace)?;
            ignored_test(workspace, dir, ("harness", "capture::tshark"), &[])?;
            for name in ["iwarp_tshark::tshark_decodes", "iwarp_tshark::tshark_finds"] {
                ignored_test(workspace, dir, ("simulator", name), &[])?;
            }
            Ok(None)
        },
    ),
    one(
        "browser",
        "A browser shows a recorded run and a running process: rows, heat map, names of controls, contrast, no error, no \
         request to elsewhere.",
        When::Beside,
        |workspace, dir| {
            crate::host::ensure_chromium(workspace)?;
            for name in ["ui_browser::a_recording", "ui_browser::a_running"] {
                ignored_test(workspace, dir, ("cli", name), &[])?;
            }
            Ok(None)
        },
    ),
    one(
        "migration",
        "QEMU treats a migration as docs/decisions/010-migration.md says.",
        When::Beside,
        |workspace, dir| migration::check(workspace, dir).map(|()| None),
    ),
    one("driver-stable", DRIVER, When::Beside, |workspace, _| {
        driver(workspace, Kernel::Stable)
    }),
    one("driver-backports", DRIVER, When::Beside, |workspace, _| {
        driver(workspace, Kernel::Backports)
    }),
    one(
        "provider",
        "The provider passes its own tests.",
        When::Beside,
        |workspace, _| provider(workspace).map(|()| None),
    ),
    one(
        "counts",
        "No shape of work takes more instructions than its baseline.",
        When::Beside,
        crate::counts::step,
    ),
    one(
        "compatibility",
        "docs/compatibility.md has a row for each declaration of the headers.",
        When::Beside,
        |workspace, dir| compatibility(workspace, dir).map(|()| None),
    ),
    row(
        "cargo-test-real-time",
        "Emulator and socket pass their tests in real time.",
        Step {
            when: When::After,
            run: Run::Programs { real_time: true },
        },
    ),
];

const DRIVER: &str = "Driver and test modules build without warnings of compiler, modpost and \
    sparse.";

const fn one(
    name: &'static str,
    shows: &'static str,
    when: When,
    run: fn(&Workspace, &Path) -> Result<Option<String>>,
) -> Row<Step> {
    let run = Run::One(run);
    row(name, shows, Step { when, run })
}

/// Runs the steps of this time whose names contain `filter` and for which `is_left_out` is false.
pub fn run(
    workspace: &Workspace,
    filter: &str,
    when: When,
    is_left_out: impl Fn(&str) -> bool,
    dir: &Path,
    tally: &mut Tally,
) {
    for Row { facts, run: step } in chosen(TESTS, filter) {
        if step.when != when || is_left_out(facts.name) {
            continue;
        }
        let started = Instant::now();
        processor_time::begin();
        let run = match step.run {
            Run::One(run) => run,
            Run::Programs { real_time } => {
                test_programs::run(workspace, dir, facts.name, real_time, tally);
                continue;
            }
        };
        let verdict = match run(workspace, dir) {
            Ok(None) => Verdict::Passed,
            Ok(Some(why)) => Verdict::Skipped(why),
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        tally.add(&format!("host::{}", facts.name), started.elapsed(), verdict);
    }
}

/// `firmware` contains parts that could be silicon: it must never depend on `device`.
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
            // Dependencies of tests are not restricted, those of released code are.
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
    let base = Base::obtain(workspace, kernel.debian())?;
    let warnings = crate::driver::module_warnings(workspace, &base, kernel)?;
    ensure!(
        warnings.is_empty(),
        "the module builds with warnings:\n{warnings}"
    );
    Ok(None)
}

/// Runs the provider's own test.
fn provider(workspace: &Workspace) -> Result<()> {
    crate::host::ensure_packages(workspace)?;
    let base = Base::obtain(workspace, Release::Trixie)?;
    crate::driver::test_provider(workspace, &base)
}

/// Compares what SQL says of a trace for Perfetto with the report of the same trace.
fn perfetto(workspace: &Workspace, dir: &Path) -> Result<()> {
    let perfetto = crate::host::perfetto(workspace)?;
    let paths = [
        ("PYTHONPATH", perfetto.packages.display().to_string()),
        (
            "TRACE_PROCESSOR",
            perfetto.trace_processor.display().to_string(),
        ),
    ];
    ignored_test(workspace, dir, ("telemetry", "perfetto::sql"), &paths)
}

/// Runs a test that is ignored by default because it needs another program: the name of its test program, and a part of its own.
fn ignored_test(
    workspace: &Workspace,
    dir: &Path,
    (program, name): (&str, &str),
    environment: &[(&str, String)],
) -> Result<()> {
    // With the features of all packages, with which everything is built already.
    let words = [
        "test",
        "--workspace",
        "--all-features",
        "--test",
        program,
        name,
        "--",
        "--ignored",
    ];
    let step = name.replace("::", "-");
    let output = cargo_with(workspace, dir, &step, &words, environment)?;
    ensure!(
        output.contains("1 passed"),
        "the test {name} was not run:\n{output}"
    );
    Ok(())
}

/// Compares the tables of supported features with the headers that declare all features.
fn compatibility(workspace: &Workspace, dir: &Path) -> Result<()> {
    crate::host::ensure_packages(workspace)?;
    let base = Base::obtain(workspace, Release::Trixie)?;
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
