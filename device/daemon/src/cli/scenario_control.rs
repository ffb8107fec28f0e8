//! `faultline ctl scenario`: a scenario on the NICs of a running process.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use faultline::control::scenario::{ScenarioStart, ScenarioView, Signal, VerdictView};
use faultline_scenario as scenario;
use hyper::Method;

use super::client::Client;
use super::show;
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
    },
    /// Show the scenario that runs: how often its rules have acted.
    Show,
    /// Signal a name to the scenario: the trigger `signal`.
    Signal {
        /// The name.
        name: String,
    },
    /// End the scenario and print the verdict. Fails if it has not passed.
    Stop,
}

impl ScenarioCommand {
    pub(crate) fn run(self, client: &Client, json: bool) -> anyhow::Result<()> {
        match self {
            Self::Start { file, seed } => {
                let text = read(&file)?;
                let start = ScenarioStart {
                    name: file.display().to_string(),
                    profile: profile_text(&file, &text)?,
                    text,
                    seed,
                };
                let view: ScenarioView = client.send(Method::POST, PATH, &start)?;
                show(json, &view, running)
            }
            Self::Show => show(json, &client.get::<ScenarioView>(PATH)?, running),
            Self::Signal { name } => {
                let path = format!("{PATH}/signals");
                client.send::<()>(Method::POST, &path, &Signal { name })
            }
            Self::Stop => {
                let verdict: VerdictView = client.send(Method::DELETE, PATH, &())?;
                show(json, &verdict, stopped)?;
                if !verdict.passed {
                    bail!("scenario {} has failed", verdict.name);
                }
                Ok(())
            }
        }
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    match file.as_os_str() == "-" {
        true => std::io::stdin().read_to_string(&mut text).map(drop),
        false => std::fs::read_to_string(file).map(|read| text = read),
    }
    .with_context(|| format!("can't read {}", file.display()))?;
    Ok(text)
}

/// The text of the profile that a scenario names by its path. What else is wrong in the file, the server says.
fn profile_text(file: &Path, text: &str) -> anyhow::Result<Option<String>> {
    let named = scenario::read::read("", text).ok();
    let named = named.and_then(|scenario| scenario.profile);
    let Some(name) = named.filter(|name| scenario::profile::is_path(name)) else {
        return Ok(None);
    };
    let path = file.parent().unwrap_or(Path::new("")).join(name);
    let profile = std::fs::read_to_string(&path);
    let profile = profile.with_context(|| format!("can't read {}", path.display()))?;
    Ok(Some(profile))
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
    let state = if view.ended { "has ended" } else { "runs" };
    format!(
        "{} {state}, {} since its start\n{}{}",
        view.name,
        seconds(view.running_ns),
        table(&["RULE", "FIRED", "EXPECTED"], &rows),
        problems(&view.problems)
    )
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
