//! The test `action` of the suite `packages`: the script of the action for GitHub tests the package of the example repository, with the
//! inputs that the workflow of the example gives to the action, and runs a script that fails.
//!
//! It uses the lab of this tree, and its cache. The lab that runs this test holds neither the lock of the cache nor that of cargo meanwhile:
//! both are held during builds only, and this test runs alone. What GitHub does is not tested: checkout, cache and upload.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::junit;
use super::workflows::{ACTION, EXAMPLE, FROM_ELSEWHERE};
use crate::cluster::address;
use crate::command::{bound_to_us, run_logged, say, tail};
use crate::driver::copy_tree;
use crate::host::{self, Release};
use crate::image::Base;
use crate::progress;
use crate::workspace::Workspace;

/// The script of the action, and the repository that uses the action.
const SCRIPT: &str = "qemu-config/action/run.sh";
const REPOSITORY: &str = "qemu-config/action/example";

/// Logs that the action keeps of each guest.
const LOGS_OF_GUEST: [&str; 3] = ["serial.log", "dmesg.log", "output.log"];
/// Files of the example's program in each guest.
const ARTEFACTS: [&str; 2] = ["guest0/artefacts/server", "guest1/artefacts/client"];

/// A script that fails in the second guest, and its exit status.
const FAILING: (&str, i32) = (
    "#!/bin/bash\nif [ \"$GUEST_INDEX\" = 1 ]; then exit 7; fi\n",
    7,
);

/// Runs the test; logs go to `dir`.
pub fn run(workspace: &Workspace, dir: &Path) -> Result<()> {
    host::ensure_packages(workspace)?;
    let folder = tempfile::tempdir().context("making a folder for the example")?;
    let repository = folder.path();
    copy_tree(&workspace.root().join(REPOSITORY), repository)?;
    let base = Base::obtain(workspace, Release::Trixie)?;
    run_logged(
        "building the package of the example",
        &mut base.chroot(repository, "/mnt/make-package"),
        &dir.join("packages-action-build.log"),
    )?;
    let read = |file| {
        fs::read_to_string(workspace.root().join(file)).with_context(|| format!("reading {file}"))
    };
    let action = Action {
        workspace,
        repository,
        variables: variables(&read(ACTION)?, &read(EXAMPLE)?)?,
        dir,
    };
    action.run("example", &[], 0)?;
    let results = repository.join(action.variable("FAULTLINE_ARTEFACTS")?);
    action.expect_cases(
        &results,
        &[
            "rdma: guest 0: passed",
            "rdma: guest 1: passed",
            "rdma: no problems: passed",
        ],
    )?;
    has_logs_and_artefacts(&results)?;

    let (script, status) = FAILING;
    fs::write(repository.join("fails.sh"), script).context("writing a script")?;
    let inputs = [
        ("FAULTLINE_SCRIPT", "fails.sh"),
        ("FAULTLINE_ARTEFACTS", "failed"),
    ];
    action.run("failing-script", &inputs, status)?;
    action.expect_cases(
        &repository.join("failed"),
        &[
            "fails: guest 0: passed",
            &format!("fails: guest 1: failed: found exit status {status}, expected exit status 0"),
            "fails: no problems: passed",
        ],
    )
}

/// The action, as a workflow of a repository uses it.
struct Action<'a> {
    workspace: &'a Workspace,
    repository: &'a Path,
    /// The variables of its script.
    variables: Vec<(String, String)>,
    /// The folder of logs.
    dir: &'a Path,
}

impl Action<'_> {
    fn variable(&self, wanted: &str) -> Result<&str> {
        let mut variables = self.variables.iter();
        let found = variables.find(|(name, _)| name == wanted);
        let (_, value) = found.with_context(|| format!("{ACTION} does not set {wanted}"))?;
        Ok(value)
    }

    /// Runs the script, with these variables instead of those of the workflow. It must end with an exit status.
    fn run(&self, name: &str, variables: &[(&str, &str)], expected: i32) -> Result<()> {
        let path = self.dir.join(format!("packages-action-{name}.log"));
        let log = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        progress::begin(&format!("{SCRIPT}: {name}"));
        let started = Instant::now();
        let status = bound_to_us(self.workspace.root().join(SCRIPT))
            .env("GITHUB_WORKSPACE", self.repository)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("duplicating the log")?)
            .stderr(log)
            .status()
            .with_context(|| format!("starting {SCRIPT}"))?;
        let seconds = started.elapsed().as_secs_f64();
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        ensure!(
            status.code() == Some(expected),
            "{name}: {status} instead of {expected}:\n{}",
            tail(&text, 40)
        );
        let boot = boot_line(&String::from_utf8_lossy(&text))?;
        say(format!("{name}: {seconds:.1} s; {boot}"));
        Ok(())
    }

    /// The JUnit file in a folder must have these cases.
    fn expect_cases(&self, results: &Path, expected: &[&str]) -> Result<()> {
        let found = junit::cases(self.workspace, &results.join("junit.xml"))?;
        ensure!(found == expected, "{found:?} instead of {expected:?}");
        Ok(())
    }
}

/// The line in the lab's output that says how long the guests took to boot.
pub fn boot_line(output: &str) -> Result<String> {
    let mut lines = output.lines();
    let line = lines.find(|line| line.starts_with("lab: ") && line.contains(" ready in "));
    let line = line.with_context(|| format!("no guests have booted:\n{output}"))?;
    Ok(line.trim_start_matches("lab: ").to_owned())
}

/// The folder of the results has the logs, and the files of the example's program.
fn has_logs_and_artefacts(results: &Path) -> Result<()> {
    let mut logs = vec!["emulator.log".to_owned(), "versions".to_owned()];
    for guest in 0..ARTEFACTS.len() {
        logs.extend(LOGS_OF_GUEST.map(|log| format!("guest{guest}/{log}")));
    }
    for log in logs {
        ensure!(results.join(&log).is_file(), "there is no {log}");
    }
    for (guest, file) in ARTEFACTS.iter().enumerate() {
        let text =
            fs::read_to_string(results.join(file)).with_context(|| format!("reading {file}"))?;
        for part in [format!("GID ::ffff:{}", address(guest)).as_str(), "PASS"] {
            ensure!(
                text.lines().any(|line| line.ends_with(part)),
                "{file} has no line that ends with {part:?}:\n{text}"
            );
        }
    }
    Ok(())
}

/// The variables of the last step of the action, which runs the script: the inputs that a workflow gives to the action, and the defaults
/// of the others.
fn variables(action: &str, workflow: &str) -> Result<Vec<(String, String)>> {
    let (inputs, steps) = action
        .split_once("\nruns:\n")
        .context("action.yml has no steps")?;
    let (_, variables) = steps
        .rsplit_once("      env:\n")
        .context("the last step of action.yml has no variables")?;
    let begin = format!("- uses: {FROM_ELSEWHERE}\n        with:\n");
    let (_, given) = workflow
        .split_once(&begin)
        .context("the workflow gives no inputs to the action")?;
    let mut values = Vec::new();
    for line in variables.lines() {
        let variable = line.trim().split_once(": ${{ inputs.");
        let variable = variable.and_then(|(name, rest)| Some((name, rest.strip_suffix(" }}")?)));
        let (name, input) = variable.with_context(|| format!("{line:?} is not an input"))?;
        let value = given_value(given, input).or_else(|| default_value(inputs, input));
        let value =
            value.with_context(|| format!("the workflow does not give the input {input}"))?;
        values.push((name.to_owned(), value.to_owned()));
    }
    Ok(values)
}

/// The value of an input in the lines below `with:`.
fn given_value<'a>(given: &'a str, input: &str) -> Option<&'a str> {
    let mut lines = given
        .lines()
        .map_while(|line| line.strip_prefix("          "));
    lines.find_map(|line| line.strip_prefix(input)?.strip_prefix(": "))
}

/// The default of an input of an action.
fn default_value<'a>(inputs: &'a str, input: &str) -> Option<&'a str> {
    let (_, description) = inputs.split_once(&format!("\n  {input}:\n"))?;
    let mut lines = description
        .lines()
        .map_while(|line| line.strip_prefix("    "));
    let value = lines.find_map(|line| line.strip_prefix("default: "))?;
    Some(value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_of_the_example_are_read() {
        let action = include_str!("../../action/action.yml");
        let workflow = include_str!("../../action/example/.github/workflows/rdma.yml");
        let found = variables(action, workflow).unwrap();
        let expected = [
            ("FAULTLINE_SCRIPT", "tests/rdma.sh"),
            ("FAULTLINE_GUESTS", "2"),
            ("FAULTLINE_KERNEL", "stable"),
            ("FAULTLINE_PACKAGES", "hello-rdma.deb"),
            ("FAULTLINE_TIMEOUT", "600"),
            ("FAULTLINE_ARTEFACTS", "faultline"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found, expected);
        let without = workflow.replace("script: tests/rdma.sh", "guests: 3");
        let error = variables(action, &without).unwrap_err();
        assert!(error.to_string().contains("script"), "{error}");
    }

    #[test]
    fn the_time_of_the_boot_is_found() {
        let output = "lab: logs\nlab: 2 guests (6.12, TCG) ready in 11.0 s\n[g0] ready in x\n";
        assert_eq!(
            boot_line(output).unwrap(),
            "2 guests (6.12, TCG) ready in 11.0 s"
        );
        assert!(boot_line("[g0] x ready in 3 s\n").is_err());
    }
}
