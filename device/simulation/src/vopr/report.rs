//! The result of a run: a report, or a failure.

use std::collections::BTreeMap;
use std::fmt;

use crate::driver::Error;
use crate::status::StatusName;

/// Counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Numbers of events, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// When it has ended, in nanoseconds.
    pub time: u64,
    /// Hash of all frames with their times and fates.
    pub hash: u64,
}

impl Report {
    /// Adds to a count.
    pub fn add(&mut self, name: &'static str, count: u64) {
        if count > 0 {
            let sum = self.counts.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// A count.
    pub fn get(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Packets that violate a rule of the specification.
    Packets(Vec<String>),
    /// Memory has wrong content: the flow, the kind of memory, and the first wrong offset.
    Data(usize, &'static str, usize),
    /// The device has changed memory of this NIC that it may not write: the kind of memory.
    Forbidden(usize, &'static str),
    /// A side of a flow has a wrong number of completions: the flow, the number found, and the number expected.
    Completions(usize, usize, usize),
    /// A completion of a flow is not the next one: the flow, the wrong property, the value found, and the value expected.
    Order(usize, &'static str, u64, u64),
    /// A request of a flow has ended with this status and vendor error.
    Status(usize, u8, u8),
    /// The ingress of this NIC was paused until its time limit, although pagers have answered.
    StallTimeout(usize),
    /// After its objects were destroyed, the NIC does not hold what it held before they were created.
    Held(usize, &'static str, usize, usize),
    /// A connection of iWARP was not made: the flow.
    NotConnected(usize),
    /// A rule has had a problem.
    Rules(String),
    /// The clock does not advance.
    Stuck,
    /// A driver's command has failed.
    Driver(String),
}

impl Failure {
    /// The kind of a failure. A plan that is made smaller must keep it.
    pub fn kind(&self) -> String {
        match self {
            Self::Packets(violations) => {
                // The rule is behind the last bracket.
                let first = violations.first().map_or("", String::as_str);
                let rule = first.rsplit_once('[').map_or(first, |(_, rule)| rule);
                format!("packets {rule}")
            }
            Self::Data(_, what, _) => format!("data {what}"),
            Self::Forbidden(_, what) => format!("forbidden {what}"),
            Self::Completions(_, found, wanted) => format!("completions {}", found < wanted),
            Self::Order(_, what, _, _) => format!("order {what}"),
            Self::Status(_, status, vendor) => format!("status {}", StatusName(*status, *vendor)),
            Self::StallTimeout(_) => "stall timeout".to_owned(),
            Self::Held(_, what, _, _) => format!("held {what}"),
            Self::NotConnected(_) => "not connected".to_owned(),
            Self::Rules(problem) => format!("rules {problem}"),
            Self::Stuck => "stuck".to_owned(),
            Self::Driver(error) => format!("driver {error}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(violations) => {
                let first = violations.first().map_or("", String::as_str);
                write!(f, "{} violations, the first: {first}", violations.len())
            }
            Self::Data(flow, what, offset) => {
                write!(f, "flow {flow}: {what}: wrong from offset {offset} on")
            }
            Self::Forbidden(nic, what) => write!(f, "NIC {nic} has written to {what}"),
            Self::Completions(flow, found, wanted) => {
                write!(f, "flow {flow}: {found} completions instead of {wanted}")
            }
            Self::Order(flow, what, found, wanted) => {
                write!(f, "flow {flow}: {what}: {found} instead of {wanted}")
            }
            Self::Status(flow, status, vendor) => {
                write!(
                    f,
                    "flow {flow}: a request has ended with {}",
                    StatusName(*status, *vendor)
                )
            }
            Self::StallTimeout(nic) => write!(
                f,
                "NIC {nic}: the ingress was paused until its time limit, although all faults were answered"
            ),
            Self::Held(nic, what, found, wanted) => write!(
                f,
                "NIC {nic} holds {found} {what} instead of {wanted} after its objects were destroyed"
            ),
            Self::NotConnected(flow) => write!(f, "flow {flow}: no connection was made"),
            Self::Rules(problem) => write!(f, "rules: {problem}"),
            Self::Stuck => write!(f, "the clock does not advance"),
            Self::Driver(error) => write!(f, "a driver: {error}"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Driver(error.to_string())
    }
}
