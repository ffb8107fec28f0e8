//! The parameters of the traffic.

use super::report::{Report, Table};
use crate::problem::Problem;
use crate::traffic::Operation;
use crate::value::Range;

/// Keys of `traffic`.
const KEYS: [&str; 13] = [
    "num-qps",
    "rdma-verb",
    "num-msgs-per-qp",
    "mtu",
    "message-size",
    "listen-port",
    "multi-gid",
    "barrier-sync",
    "tx-depth",
    "min-retransmit-timeout",
    "max-retransmit-retry",
    "dscp-list",
    "data-pkt-events",
];
/// Most connections, of all verbs together, in a simulation.
const MAX_CONNECTIONS: u64 = 4096;
/// Longest message of a simulation.
const MAX_SIZE: u64 = 16 << 20;
/// Most messages that a connection of a simulation has on the way.
const MAX_DEPTH: u64 = 1024;

/// Traffic of one verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) op: Operation,
    pub(super) connections: u64,
}

/// All traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    /// One for each verb, in the order in which their connections are numbered.
    pub(super) flows: Vec<Flow>,
    /// Messages on each connection.
    pub(super) count: u64,
    /// Bytes of a message.
    pub(super) size: u64,
    pub(super) mtu: u64,
    pub(super) depth: u64,
    pub(super) timeout: u64,
    pub(super) retry_count: u64,
}

impl Traffic {
    /// Packets of a message.
    pub(super) fn packets(&self) -> u64 {
        self.size.div_ceil(self.mtu.max(1)).max(1)
    }

    pub(super) fn connections(&self) -> u64 {
        self.flows.iter().map(|flow| flow.connections).sum()
    }

    /// Verb of a connection.
    pub(super) fn op_of(&self, connection: u64) -> Option<Operation> {
        let mut first = 0u64;
        let mut flows = self.flows.iter();
        let flow = flows.find(|flow| {
            first = first.saturating_add(flow.connections);
            connection < first
        });
        flow.map(|flow| flow.op)
    }
}

const fn range(first: u64, last: u64) -> Range {
    Range { first, last }
}

impl Report {
    /// Reads the table `traffic`, except for its events. `None` if something is wrong.
    pub(super) fn traffic(&mut self, table: &Table<'_>) -> Option<Traffic> {
        self.only(table, &KEYS);
        for (key, message) in [
            (
                "listen-port",
                "the simulation needs no port: it is left out",
            ),
            (
                "dscp-list",
                "the simulation has one traffic class: it is left out",
            ),
        ] {
            if let Some((key, node)) = table.entry(key) {
                self.warn(table.path.key(&key.name), key, node, message);
            }
        }
        for (key, message) in [
            ("multi-gid", "all connections use the same GIDs"),
            ("barrier-sync", "connections do not wait for each other"),
        ] {
            if let Some((key, node)) = table.entry(key)
                && !is_false(node.text())
            {
                self.warn(table.path.key(&key.name), key, node, message);
            }
        }
        let verbs: &[(&str, &[Operation])] = &[
            ("write", &[Operation::Write]),
            ("read", &[Operation::Read]),
            ("send", &[Operation::Send]),
            ("send_read", &[Operation::Send, Operation::Read]),
        ];
        let ops = self.name(table, "rdma-verb", verbs);
        let connections = ops.and_then(|ops| self.numbers_of_connections(table, ops.len()));
        let count = self.number(table, "num-msgs-per-qp", None, range(1, 1_000_000));
        let size = self.number(table, "message-size", None, range(1, MAX_SIZE));
        let mtus: Vec<(&str, u64)> = [
            ("256", 256),
            ("512", 512),
            ("1024", 1024),
            ("2048", 2048),
            ("4096", 4096),
        ]
        .into();
        let mtu = self.name(table, "mtu", &mtus);
        let depth = self.number(table, "tx-depth", Some(1), range(1, MAX_DEPTH));
        let timeout = self.number(table, "min-retransmit-timeout", Some(14), range(0, 31));
        let retry_count = self.number(table, "max-retransmit-retry", Some(7), range(0, 7));
        let flows = ops?.iter().zip(connections?);
        Some(Traffic {
            flows: flows
                .map(|(&op, connections)| Flow { op, connections })
                .collect(),
            count: count?,
            size: size?,
            mtu: mtu?,
            depth: depth?,
            timeout: timeout?,
            retry_count: retry_count?,
        })
    }

    /// `num-qps`: one number for each verb, with commas between.
    fn numbers_of_connections(&mut self, table: &Table<'_>, verbs: usize) -> Option<Vec<u64>> {
        let Some(node) = table.get("num-qps") else {
            self.missing(table, "num-qps");
            return None;
        };
        let text = node.text().unwrap_or_default();
        let numbers: Vec<u64> = text
            .split(',')
            .filter_map(|number| number.trim().parse().ok())
            .filter(|number| range(1, MAX_CONNECTIONS).contains(*number))
            .collect();
        let sum: u64 = numbers.iter().sum();
        if numbers.len() == verbs && text.split(',').count() == verbs && sum <= MAX_CONNECTIONS {
            return Some(numbers);
        }
        let expected = match verbs {
            1 => "a number is expected",
            _ => "two numbers are expected, such as 4,2: one for each verb",
        };
        let message = format!(
            "{}: {expected}, at least 1, and at most {MAX_CONNECTIONS} together",
            node.shown()
        );
        let mut problem = Problem::of_span(node.span.clone(), message);
        problem.path = table.path.key("num-qps");
        self.problems.push(problem);
        None
    }
}

/// False or nothing, as YAML 1.1 has it.
fn is_false(text: Option<&str>) -> bool {
    let text = text.unwrap_or_default().to_lowercase();
    matches!(text.as_str(), "false" | "no" | "off" | "null" | "~" | "")
}
