//! The stories: scenarios, and the events of their runs.

use anyhow::anyhow;
use faultline_nic::Nanos;
use faultline_scenario::read::read;
use faultline_simulation::trace::Detail;
use faultline_simulation::{Options, Outcome, simulate};

use super::rows::{Row, Rows, time};

/// A story and its scenario. Each has one connection, from `nic0` to `nic1`.
#[derive(Debug)]
pub(super) struct Story {
    /// Name on the command line.
    pub(super) name: &'static str,
    /// The scenario file.
    pub(super) text: &'static str,
}

/// All stories, in the order in which they are told.
pub(super) const STORIES: [Story; 3] = [
    Story {
        name: "absent-page",
        text: include_str!("stories/absent-page.toml"),
    },
    Story {
        name: "lost-ack",
        text: include_str!("stories/lost-ack.toml"),
    },
    Story {
        name: "port-down",
        text: include_str!("stories/port-down.toml"),
    },
];

impl Story {
    /// A line of the list.
    pub(super) fn line(&self) -> anyhow::Result<String> {
        let scenario = read(self.name, self.text).map_err(|problems| anyhow!("{problems}"))?;
        Ok(format!("{:<12} {}\n", self.name, scenario.title))
    }
}

/// A story that was told: the events of the run of its scenario.
#[derive(Debug)]
pub(super) struct Told {
    /// Name of the story.
    pub(super) name: String,
    /// Its subject.
    pub(super) title: String,
    /// The scenario file.
    pub(super) scenario: String,
    /// The steps, in the order of time.
    pub(super) rows: Vec<Row>,
    /// The result of the run, as sentences.
    pub(super) summary: Vec<String>,
    /// All expectations hold.
    pub(super) passed: bool,
}

/// Runs a scenario, and tells its events.
pub(super) fn tell(name: &str, text: &str) -> anyhow::Result<Told> {
    let scenario = read(name, text).map_err(|problems| anyhow!("{problems}"))?;
    let plan = scenario.plan_simulation();
    let plan = plan.map_err(|problems| {
        let said = problems.into_iter().map(|problem| problem.message);
        anyhow!("{name}: {}", said.collect::<Vec<_>>().join("; "))
    })?;
    let options = Options {
        trace: Detail::Events,
        ..Options::default()
    };
    let outcome = simulate(&scenario, &plan, options)?;
    let rules = plan.rules.iter().map(|rule| rule.name.clone()).collect();
    let rows = Rows::new(rules).of(&outcome.results.events);
    Ok(Told {
        name: name.to_owned(),
        title: scenario.title.clone(),
        scenario: text.to_owned(),
        summary: summary(&outcome, &rows),
        rows,
        passed: outcome.passed(),
    })
}

/// The result of a run, as sentences.
fn summary(outcome: &Outcome, rows: &[Row]) -> Vec<String> {
    let mut said = Vec::new();
    for traffic in &outcome.results.facts.traffic {
        let all = traffic.done.saturating_add(traffic.failed);
        let data = match traffic.wrong {
            0 => "their data is right",
            _ => "data is wrong",
        };
        said.push(format!(
            "{} of {all} messages are done, and {data}.",
            traffic.done
        ));
        if let (Some(Nanos(least)), Some(Nanos(most))) =
            (traffic.latencies.first(), traffic.latencies.last())
        {
            said.push(format!(
                "The fastest took {}, the slowest {}.",
                time(*least),
                time(*most)
            ));
        }
    }
    let count = |what: fn(&Row) -> bool| rows.iter().filter(|row| what(row)).count();
    said.push(format!(
        "Page faults: {}. RNR NAKs: {}. Packets lost: {}. Packets sent again: {}.",
        count(Row::is_fault),
        count(Row::is_rnr_nak),
        count(Row::is_lost),
        count(Row::is_repeated),
    ));
    let failed = outcome.verdict.checks.iter().filter(|check| !check.passed);
    let failed = failed.map(|check| {
        let (name, found, expected) = (&check.name, &check.found, &check.expected);
        format!("FAILED {name}: {found}, expected {expected}")
    });
    said.extend(failed);
    let problems = outcome.verdict.problems.iter();
    said.extend(problems.map(|problem| format!("FAILED {problem}")));
    said
}
