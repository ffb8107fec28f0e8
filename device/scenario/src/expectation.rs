//! Expected results of a run: the tables `expect`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trigger::Direction;
use crate::value::{Range, Time};

/// What must hold. Exactly one key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Expectation {
    /// The number of completions with a status.
    Completion(Completion),
    /// The increase of a counter of a NIC.
    Counter(Counter),
    /// The number of diagnostics of a kind.
    Diagnostic(Diagnostic),
    /// The number of asynchronous events.
    Event(Event),
    /// The number of packets.
    Packets(Packets),
    /// The number of violations of the specification by packets that the NICs have sent (docs/capture.md). In the
    /// simulator, `violation = { count = 0 }` is expected of each file that has no other expectation of violations,
    /// whose rules make no packet illegal, and whose NICs imitate no defect.
    Violation(Violation),
    /// The traffic of the simulation, or the programs, have ended by this time.
    Ends(Ends),
    /// A percentile of a latency.
    Latency(Latency),
    /// Messages of one part of the simulated traffic.
    Traffic(TrafficResult),
    /// The time of one part of the simulated traffic with the rules and all other traffic, relative to its time alone.
    Slowdown(Slowdown),
}

/// Completions, without flushed ones unless their status is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    /// Name of the NIC, as in a rule. By default the sum over all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// The N-th connection of the NIC, as in triggers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qp: Option<u32>,
    /// Status (`enum ibv_wc_status` without `IBV_WC_`).
    pub status: String,
    /// How many.
    pub count: Range,
}

/// A counter of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// Name of the NIC, as in a rule. By default the sum over all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Name, as `rdma statistic` and the control API have it.
    pub name: String,
    /// The increase since the start of the run.
    pub value: Range,
}

/// Diagnostics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Diagnostic {
    /// Name of the NIC, as in a rule. By default the sum over all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Kind, such as `retries_exhausted`.
    pub kind: String,
    /// How many.
    pub count: Range,
}

/// Asynchronous events, and completion events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Name of the NIC, as in a rule. By default the sum over all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Kind, such as `qp_fatal` or `port_down`.
    pub kind: String,
    /// How many.
    pub count: Range,
}

/// Packets on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Packets {
    /// Name of the NIC, as in a rule. By default the sum over all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Sent (the default) or received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<Direction>,
    /// Opcode, as in triggers.
    pub opcode: String,
    /// How many.
    pub count: Range,
}

/// Packets that violate a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Violation {
    /// Name of the rule of the packet checker, such as `msn`. By default all that are violations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// How many.
    pub count: Range,
}

/// The end of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ends {
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Time>,
    /// At the latest at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Time>,
}

/// A latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// `message` (from posting to completion, simulated traffic), or a stage of page faults as in `faultline report`, such as
    /// `total`, which counts a fault without an answer with its age at the end.
    pub of: String,
    /// Name of the traffic, if `of` is `message`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<String>,
    /// Which percentile, such as 50 or 99.9; 100 is the maximum.
    pub percentile: f64,
    /// Shortest time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Time>,
    /// Longest time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Time>,
}

/// Messages of one part of the traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrafficResult {
    /// Name of the traffic.
    pub name: String,
    /// Messages that have completed without an error, their data intact.
    pub done: Range,
}

/// A comparison with a run of the same seed that has only this traffic, and no rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slowdown {
    /// Name of the traffic.
    pub traffic: String,
    /// Smallest ratio of the times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Largest ratio of the times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}
