//! `faultline ctl scenario`: a scenario on the NICs of a running process.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use faultline_control::scenario::{ScenarioStart, ScenarioView, Signal, TaskDone, VerdictView};
use faultline_scenario as scenario;
use faultline_scenario::read::MAX_BYTES;
use faultline_scenario::value::Time;
use hyper::Method;

use super::client::Client;
use super::scenario::load::unread_profile;
use super::scenario::report::{JunitCheck, junit_report, junit_suite};
use super::show;
use super::status::UnusableInput;
use super::table::table;

const PATH: &str = "/v1/scenario";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ScenarioCommand {
    /// Start a scenario. Its traffic and programs are not used: the guests run their own. The NICs must have its profile.
    Start {
        /// The scenario's file; -: standard input.
        file: PathBuf,
        /// Seed instead of the file's.
        #[arg(long)]
        seed: Option<u64>,
        /// Limit of the run instead of the file's, such as 30s.
        #[arg(long, value_name = "TIME")]
        limit: Option<Time>,
        /// Be the scenario's runner: execute the tasks that `show` lists in the guests, and report each with `done`.
        #[arg(long)]
        runner: bool,
    },
    /// Show the scenario that runs: how often its rules have acted.
    Show,
    /// Signal a name to the scenario: the trigger `signal`.
    Signal {
        /// The name.
        name: String,
    },
    /// Report that a task of the scenario was executed in the guest.
    Done {
        /// Id of the task, as `show` lists it.
        task: u64,
        /// Why it could not be executed. The run fails then.
        #[arg(long, value_name = "TEXT")]
        error: Option<String>,
    },
    /// End the scenario and print the verdict. Fails if it has not passed.
    Stop {
        /// Write the verdict to this file as JUnit XML.
        #[arg(long, value_name = "FILE")]
        junit: Option<PathBuf>,
    },
}

impl ScenarioCommand {
    pub(crate) fn run(self, client: &Client, json: bool) -> anyhow::Result<()> {
        match self {
            Self::Start {
                file,
                seed,
                limit,
                runner,
            } => {
                let text = read(&file)?;
                let start = ScenarioStart {
                    name: file.display().to_string(),
                    profile: profile_text(&file, &text)?,
                    text,
                    seed,
                    limit_ms: limit.map(|limit| limit.nanos().div_ceil(1_000_000)),
                    runner,
                };
                let view: ScenarioView = client.send(Method::POST, PATH, &start)?;
                show(json, &view, running)
            }
            Self::Show => show(json, &client.get::<ScenarioView>(PATH)?, running),
            Self::Signal { name } => {
                let path = format!("{PATH}/signals");
                client.send::<()>(Method::POST, &path, &Signal { name })
            }
            Self::Done { task, error } => {
                let path = format!("{PATH}/tasks/{task}");
                client.send::<()>(Method::POST, &path, &TaskDone { error })
            }
            Self::Stop { junit } => {
                // Before the scenario ends: its verdict is given once.
                if let Some(file) = &junit {
                    faultline_files::check_writable(file)?;
                }
                let verdict: VerdictView = client.send(Method::DELETE, PATH, &())?;
                if let Some(file) = junit {
                    std::fs::write(&file, junit_of(&verdict)?)
                        .with_context(|| format!("can't write {}", file.display()))?;
                }
                show(json, &verdict, stopped)?;
                if !verdict.passed {
                    bail!("scenario {} has failed", verdict.name);
                }
                Ok(())
            }
        }
    }
}

/// Reads a file, or standard input if its name is `-`.
fn read(file: &Path) -> anyhow::Result<String> {
    let text = match file.as_os_str() == "-" {
        true => faultline_files::read_text(std::io::stdin().lock(), MAX_BYTES),
        false => faultline_files::read(file, MAX_BYTES),
    };
    text.with_context(|| UnusableInput::unread(file.display()))
}

/// The text of the profile that a scenario names by its path. The server reports all other problems of the file.
fn profile_text(file: &Path, text: &str) -> anyhow::Result<Option<String>> {
    let named = scenario::read::read("", text).ok();
    let named = named.and_then(|scenario| scenario.profile);
    let Some(name) = named.filter(|name| scenario::profile::is_path(name)) else {
        return Ok(None);
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    let profile = faultline_files::read_named(folder, &name, scenario::profile::MAX_BYTES);
    let profile = profile.with_context(|| format!("can't read the profile {name}"));
    profile
        .map(Some)
        .map_err(|error| unread_profile(&file.display().to_string(), text, &error).into())
}

fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

fn problems(problems: &[String]) -> String {
    problems
        .iter()
        .map(|problem| format!("problem: {problem}\n"))
        .collect()
}

fn running(view: &ScenarioView) -> String {
    let rows: Vec<_> = view
        .rules
        .iter()
        .map(|rule| {
            vec![
                rule.name.clone(),
                rule.fired.to_string(),
                rule.expected.clone(),
            ]
        })
        .collect();
    let tasks: String = view
        .tasks
        .iter()
        .map(|task| format!("task {}: {} of NIC {}\n", task.id, task.action, task.nic))
        .collect();
    let state = if view.ended { "has ended" } else { "runs" };
    format!(
        "{} {state}, {} since its start\n{}{tasks}{}",
        view.name,
        seconds(view.running_ns),
        table(&["RULE", "FIRED", "EXPECTED"], &rows),
        problems(&view.problems)
    )
}

/// The verdict as JUnit XML, as `faultline scenario run` writes it.
fn junit_of(view: &VerdictView) -> anyhow::Result<String> {
    let checks = view.checks.iter().map(|check| JunitCheck {
        name: &check.name,
        passed: check.passed,
        found: &check.found,
        expected: &check.expected,
    });
    junit_report([junit_suite(&view.name, checks, &view.problems)])
}

fn stopped(view: &VerdictView) -> String {
    let rows: Vec<_> = view
        .checks
        .iter()
        .map(|check| {
            let result = if check.passed { "ok" } else { "FAILED" };
            vec![
                check.name.clone(),
                result.to_owned(),
                check.found.clone(),
                check.expected.clone(),
            ]
        })
        .collect();
    let result = if view.passed { "passed" } else { "failed" };
    format!(
        "{} {result} after {}\n{}{}",
        view.name,
        seconds(view.time_ns),
        table(&["CHECK", "RESULT", "FOUND", "EXPECTED"], &rows),
        problems(&view.problems)
    )
}
