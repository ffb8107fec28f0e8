//! Reads scenario files.

use std::path::Path;

use anyhow::Context;
use faultline_config::Config;
use faultline_scenario::action::{Action, Nothing};
use faultline_scenario::file::{Rule, Scenario};
use faultline_scenario::plan::Plan;
use faultline_scenario::problem::{self, Problem, Problems};
use faultline_scenario::profile::{self, Profile};
use faultline_scenario::read::{MAX_BYTES, read};
use faultline_scenario::trigger::Trigger;
use faultline_scenario::value::Range;
use faultline_simulation::Outcome;
use serde::Deserialize;

/// Name of the rule of `--until` in reports.
const UNTIL: &str = "--until";

/// The trigger of `--until`.
#[derive(Clone, Debug)]
pub(super) struct Until(Box<Trigger>);

impl std::str::FromStr for Until {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wrapped {
            on: Trigger,
        }
        let wrapped = toml::from_str::<Wrapped>(&format!("on = {text}"));
        let wrapped = wrapped.map_err(|error| error.message().to_owned())?;
        Ok(Self(Box::new(wrapped.on)))
    }
}

/// A scenario that was read and checked.
pub(super) struct Loaded {
    pub(super) name: String,
    pub(super) scenario: Scenario,
    pub(super) plan: Plan,
    /// The profile of the NICs, of the file or of the command line.
    pub(super) profile: Option<Profile>,
}

/// Why a scenario has no result.
pub(super) enum Failure {
    /// The file is wrong; the problems are drawn.
    Wrong(Box<Problems>),
    /// It has programs for guests and no traffic for the simulator. The name of the file.
    ForGuests(String),
    /// Another reason.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

/// Reads a profile of the command line.
fn load_profile(name: &str) -> Result<Profile, Failure> {
    profile_of(name, name, || {
        faultline_files::read(Path::new(name), profile::MAX_BYTES)
    })
}

/// Reads a profile that a scenario in this folder names.
fn named_profile(name: &str, folder: &Path) -> Result<Profile, Failure> {
    let shown = folder.join(name).display().to_string();
    let text = || faultline_files::read_named(folder, name, profile::MAX_BYTES);
    profile_of(name, &shown, text)
}

/// A profile by its name, or by the text of its file.
fn profile_of(
    name: &str,
    shown: &str,
    text: impl FnOnce() -> std::io::Result<String>,
) -> Result<Profile, Failure> {
    if !profile::is_path(name) {
        let profile = profile::by_name(name);
        return profile.map_err(|message| Failure::Other(anyhow::anyhow!(message)));
    }
    let text = text().with_context(|| format!("can't read the profile {shown}"))?;
    profile::read(shown, &text).map_err(|problems| Failure::Wrong(Box::new(problems)))
}

/// The problem of a scenario whose profile cannot be read, at its key.
pub(crate) fn unread_profile(file: &str, text: &str, error: &anyhow::Error) -> Problems {
    let path = problem::Path::root().key("profile");
    let problem = Problem::of_value(path, format!("{error:#}"));
    Problems::new(file, text, vec![problem])
}

/// The NICs and ports of a process, by name.
pub(super) struct ProcessNames {
    pub(super) nics: Vec<String>,
    pub(super) ports: Vec<String>,
}

impl ProcessNames {
    /// Those of a configuration of `faultline serve`.
    pub(super) fn of_config(path: &Path) -> anyhow::Result<Self> {
        let config = Config::from_file(path)?;
        let nics = config.nics.into_iter().map(|nic| nic.name);
        let ports = config.ports.into_iter().map(|port| port.name);
        Ok(Self {
            nics: nics.collect(),
            ports: ports.collect(),
        })
    }
}

/// The line about a file without traffic for the simulator.
pub(super) fn for_guests(name: &str) -> String {
    format!(
        "{name}: no problem; it is for guests, whose programs make the traffic: `cargo lab scenario {name}` boots them, \
         `faultline ctl scenario start {name}` uses your own"
    )
}

/// Reads a file and checks it for a process, or for the simulator. Returns the line to print about it.
pub(super) fn check(path: &Path, process: Option<&ProcessNames>) -> Result<String, Failure> {
    let Some(ProcessNames { nics, ports }) = process else {
        return match load(path, None, None) {
            Ok(loaded) => Ok(format!("{}: no problem", loaded.name)),
            Err(Failure::ForGuests(name)) => Ok(for_guests(&name)),
            Err(failure) => Err(failure),
        };
    };
    let (name, text) = read_file(path)?;
    let wrong = |problems| Failure::Wrong(Box::new(problems));
    let scenario = read(&name, &text).map_err(wrong)?;
    let plan = scenario.plan(nics, ports);
    plan.map_err(|problems| wrong(Problems::new(&name, &text, problems)))?;
    own_profile(&scenario, path, &text)?;
    Ok(format!("{name}: no problem"))
}

/// The name of a file, and its text.
fn read_file(path: &Path) -> anyhow::Result<(String, String)> {
    let name = path.display().to_string();
    let text =
        faultline_files::read(path, MAX_BYTES).with_context(|| format!("can't read {name}"))?;
    Ok((name, text))
}

/// The profile that a file names.
fn own_profile(scenario: &Scenario, path: &Path, text: &str) -> Result<Option<Profile>, Failure> {
    let Some(own) = &scenario.profile else {
        return Ok(None);
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let profile = named_profile(own, folder).map_err(|failure| match failure {
        Failure::Other(error) => {
            let name = path.display().to_string();
            Failure::Wrong(Box::new(unread_profile(&name, text, &error)))
        }
        Failure::Wrong(_) | Failure::ForGuests(_) => failure,
    });
    profile.map(Some)
}

/// Reads a file. With `until`, the scenario ends at the first match of this trigger. `profile` replaces that of the
/// file.
pub(super) fn load(
    path: &Path,
    until: Option<&Until>,
    profile: Option<&str>,
) -> Result<Loaded, Failure> {
    let (name, text) = read_file(path)?;
    let wrong = |problems| Failure::Wrong(Box::new(problems));
    let mut scenario = read(&name, &text).map_err(wrong)?;
    let plan = scenario.plan_simulation();
    let mut plan = plan.map_err(|problems| wrong(Problems::new(&name, &text, problems)))?;
    if let Some(Until(on)) = until {
        scenario.rules.push(Rule {
            name: Some(UNTIL.to_owned()),
            nic: None,
            port: None,
            on: Trigger::clone(on),
            action: Action::End(Nothing::default()),
            fired: Range::from(1),
        });
        plan = scenario.plan_simulation().map_err(|problems| {
            let said = problems.iter().map(|problem| problem.message.clone());
            anyhow::anyhow!("{UNTIL}: {}", said.collect::<Vec<_>>().join("; "))
        })?;
    }
    let given = profile.map(load_profile).transpose()?;
    let profile = match given {
        Some(profile) => Some(profile),
        None => own_profile(&scenario, path, &text)?,
    };
    if scenario.guests.is_some() && scenario.traffic.is_empty() {
        return Err(Failure::ForGuests(name));
    }
    Ok(Loaded {
        name,
        scenario,
        plan,
        profile,
    })
}

/// A scenario with its outcome, for reports.
pub(super) struct FinishedRun {
    pub(super) loaded: Loaded,
    pub(super) outcome: Outcome,
    /// The state of the NICs at the end, if it was asked for.
    pub(super) dump: Vec<serde_json::Value>,
}
