//! `faultline ctl inject` and `faultline ctl rules`: single rules on the NICs of a running process.

use std::time::Duration;

use faultline_control::rules::{LiveRuleStart, LiveRuleState, LiveRuleView, RuleSource};
use faultline_scenario::value::Time;
use hyper::Method;

use super::client::Client;
use super::show;
use super::table::table;

const PATH: &str = "/v1/rules";

/// A rule to start.
#[derive(Debug, clap::Args)]
pub(crate) struct Inject {
    /// The rule: 'nic = "a" on = { dir = "rx", opcode = "ACK" } do = { drop = {} }'. Without `nic`, all NICs.
    rule: String,
    /// It acts at most so often at each NIC, whatever the rule says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// It ends after this time of the device clock, such as 300ms.
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<Time>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RulesCommand {
    /// Remove a rule: what it has changed is as before.
    Remove {
        /// Id of the rule, as the list has it.
        id: u16,
    },
}

impl Inject {
    pub(crate) fn run(self, client: &Client, json: bool) -> anyhow::Result<()> {
        let start = LiveRuleStart {
            rule: RuleSource::Toml(self.rule),
            count: self.count,
            for_ms: self.lasts.map(|time| time.nanos().div_ceil(1_000_000)),
        };
        let rule: LiveRuleView = client.send(Method::POST, PATH, &start)?;
        show(json, &[rule][..], rules)
    }
}

/// Lists rules, or carries out a command on one.
pub(crate) fn run(
    command: Option<RulesCommand>,
    client: &Client,
    json: bool,
) -> anyhow::Result<()> {
    let list = match command {
        None => client.get::<Vec<LiveRuleView>>(PATH)?,
        Some(RulesCommand::Remove { id }) => {
            vec![client.send(Method::DELETE, &format!("{PATH}/{id}"), &())?]
        }
    };
    show(json, list.as_slice(), rules)
}

fn rules(list: &[LiveRuleView]) -> String {
    let rows: Vec<_> = list
        .iter()
        .map(|rule| {
            let left = rule.left_ns.map(|ns| {
                let left = Duration::from_millis(ns.div_ceil(1_000_000));
                format!("{:.3} s", left.as_secs_f64())
            });
            let state = match rule.state {
                LiveRuleState::Starting => "starting",
                LiveRuleState::Running => "running",
                LiveRuleState::Ended => "ended",
            };
            vec![
                rule.id.to_string(),
                state.to_owned(),
                rule.acted.to_string(),
                rule.matched
                    .map_or_else(|| "-".to_owned(), |n| n.to_string()),
                left.unwrap_or_else(|| "-".to_owned()),
                rule.rule.split_whitespace().collect::<Vec<_>>().join(" "),
            ]
        })
        .collect();
    let silent = list.iter().filter(|rule| rule.acted == 0);
    let misses = silent.filter_map(|rule| {
        let miss = rule.nearest.as_ref()?;
        let (id, count, keys) = (rule.id, miss.count, &miss.keys);
        Some(format!(
            "rule {id} has not acted: {count} times all matched but {keys}\n"
        ))
    });
    let problems = list.iter().flat_map(|rule| {
        let text = |problem: &String| format!("problem of rule {}: {problem}\n", rule.id);
        rule.problems.iter().map(text)
    });
    let head = ["ID", "STATE", "ACTED", "MATCHED", "LEFT", "RULE"];
    table(&head, &rows) + &misses.chain(problems).collect::<String>()
}
