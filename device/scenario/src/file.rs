//! The format of scenario files (TOML).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::expectation::Expectation;
use crate::traffic::{Guests, Simulator, Traffic};
use crate::trigger::Trigger;
use crate::value::{Range, Time};

/// A scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows, in one line.
    #[serde(default)]
    pub title: String,
    /// Where the story comes from: a paper, an issue of other software, a clause of a standard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Seed of all random numbers.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The run fails if it has not ended by then.
    #[serde(default = "default_limit")]
    pub limit: Time,
    /// Profile of the NICs: the name of one that comes with Faultline, or the path of a file in the folder of this one, or below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The hosts of a simulation. Other runs ignore this table.
    #[serde(default)]
    pub simulator: Simulator,
    /// The traffic of a simulation. In other runs, programs make the traffic.
    #[serde(default, rename = "traffic", skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<Traffic>,
    /// The programs of a run between guests. Other runs ignore this table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guests: Option<Guests>,
    /// What happens when something matches.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Actions at times of the run.
    #[serde(default, rename = "at", skip_serializing_if = "Vec::is_empty")]
    pub timed: Vec<Timed>,
    /// What must hold at the end.
    #[serde(default, rename = "expect", skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<Expectation>,
}

fn default_seed() -> u64 {
    1
}

fn default_limit() -> Time {
    Time::from_millis(60_000)
}

/// A rule: when something matches `on`, do `do`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name in messages and reports; by default `rule[N]`, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name of the NIC that observes; `nic0` is the first one of the configuration, `nic1` the second, and so on. By default all
    /// NICs, each with counts of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Name of the port that observes, instead of a NIC: a port that leads out of the process. The simulator has none. `tx` is to the
    /// peer of the port and `rx` from it. All frames match, also those that are not RoCE, unless `opcode` names some. `qpn` is the
    /// destination of a packet; `psn`, `iter`, `qp` and `process` are known at NICs only. Only changes of packets are possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// What matches.
    pub on: Trigger,
    /// What is done.
    #[serde(rename = "do")]
    pub action: Action,
    /// How often the action must have taken place at the end of the run. By default at least once, over all NICs.
    #[serde(default = "at_least_once")]
    pub fired: Range,
}

fn at_least_once() -> Range {
    Range::from(1)
}

/// An action at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// Name in messages and reports; by default `at[N]`, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name of the NIC, as in a rule. By default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Time since the start of the run.
    pub time: Time,
    /// Repeats the action with this period until the run ends, or `times` is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Time>,
    /// How often the action takes place if `every` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// What is done: an action on a NIC, not on a packet or another thing that a rule matches.
    #[serde(rename = "do")]
    pub action: Action,
}
