//! Reads scenario files.

use std::fs;
use std::path::Path;

use anyhow::Context;
use faultline_scenario::action::{Action, Nothing};
use faultline_scenario::file::{Rule, Scenario};
use faultline_scenario::plan::Plan;
use faultline_scenario::problem::{self, Problem, Problems};
use faultline_scenario::profile::{self, Profile};
use faultline_scenario::read::read;
use faultline_scenario::trigger::Trigger;
use faultline_scenario::value::Range;
use faultline_simulation::Outcome;
use serde::Deserialize;

/// Exit status if a file can't be read or simulated.
pub(super) const UNREADABLE: u8 = 2;
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
    /// Another reason.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

/// Reads a profile. A relative path begins at `folder`.
fn load_profile(name: &str, folder: &Path) -> Result<Profile, Failure> {
    if !profile::is_path(name) {
        let profile = profile::by_name(name);
        return profile.map_err(|message| Failure::Other(anyhow::anyhow!(message)));
    }
    let path = folder.join(name);
    let shown = path.display().to_string();
    let text = fs::read_to_string(&path);
    let text = text.with_context(|| format!("can't read the profile {shown}"))?;
    profile::read(&shown, &text).map_err(|problems| Failure::Wrong(Box::new(problems)))
}

/// The problem of a scenario whose profile cannot be read, at its key.
pub(crate) fn unread_profile(file: &str, text: &str, error: &anyhow::Error) -> Problems {
    let path = problem::Path::root().key("profile");
    let problem = Problem::of_value(path, format!("{error:#}"));
    Problems::new(file, text, vec![problem])
}

/// Reads a file. With `until`, the scenario ends at what this trigger matches. `profile` replaces that of the file.
pub(super) fn load(
    path: &Path,
    until: Option<&Until>,
    profile: Option<&str>,
) -> Result<Loaded, Failure> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| format!("can't read {name}"))?;
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
    let folder = path.parent().unwrap_or(Path::new(""));
    let profile = match (profile, &scenario.profile) {
        (Some(name), _) => Some(load_profile(name, Path::new(""))?),
        (None, Some(own)) => Some(load_profile(own, folder).map_err(|failure| match failure {
            Failure::Other(error) => wrong(unread_profile(&name, &text, &error)),
            Failure::Wrong(_) => failure,
        })?),
        (None, None) => None,
    };
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
