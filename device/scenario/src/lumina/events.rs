//! The events: changes of data packets.

use super::report::{Report, Table};
use super::traffic::Traffic;
use super::yaml::{Node, Value};
use crate::problem::Path;
use crate::read::MAX_RULES;
use crate::traffic::Operation;
use crate::value::Range;

/// Keys of an event.
const KEYS: [&str; 4] = ["qpn", "psn", "type", "iter"];
/// Lumina counts transmissions with 16 bits.
const MAX_ITER: u64 = 0xffff;
/// PSNs have 24 bits.
const PSNS: u64 = 1 << 24;

/// A change of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Drop,
    Ecn,
    Corrupt,
}

impl Change {
    /// True if the packet does not reach its destination, so that the message is transmitted again.
    fn loses(self) -> bool {
        self != Self::Ecn
    }
}

/// An event of the file.
#[derive(Clone, Debug)]
struct Event {
    /// Its number in the file.
    index: usize,
    connection: u64,
    op: Operation,
    /// PSNs within the message.
    psns: Range,
    change: Change,
    /// Transmission of the message, from 1.
    iter: u64,
}

/// A rule of the scenario.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) connection: u64,
    pub(super) op: Operation,
    /// PSNs within the connection.
    pub(super) psns: Range,
    /// Transmission, counted over all messages of the connection.
    pub(super) iter: u64,
    pub(super) change: Change,
}

impl Report {
    /// Reads the events of the table `traffic`, and makes rules of them.
    pub(super) fn events(&mut self, table: &Table<'_>, traffic: &Traffic) -> Vec<Rule> {
        let path = table.path.key("data-pkt-events");
        let Some(node) = table.get("data-pkt-events") else {
            return Vec::new();
        };
        let nodes = match &node.value {
            Value::Sequence(nodes) => nodes.as_slice(),
            Value::Scalar(text) if matches!(text.as_str(), "" | "~" | "null") => &[],
            _ => {
                let message = format!("{}: a sequence of events is expected", node.shown());
                self.wrong(path, &node.span, message);
                return Vec::new();
            }
        };
        let psns = traffic.packets().saturating_mul(traffic.count);
        if !nodes.is_empty() && psns > PSNS {
            let message = format!(
                "the messages of a connection have {psns} packets, but there are {PSNS} PSNs: make `num-msgs-per-qp` or `message-size` smaller"
            );
            self.wrong(path, &node.span, message);
            return Vec::new();
        }
        let mut events = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            // A rule for each event: more of them can't be kept.
            if index >= MAX_RULES {
                let message = format!(
                    "the file has {} events, at most {MAX_RULES} are allowed",
                    nodes.len()
                );
                self.wrong(path.index(index), &node.span, message);
                return Vec::new();
            }
            events.extend(self.event(&path.index(index), node, (index, traffic)));
        }
        self.rules((&path, node), &events, traffic)
    }

    fn event(
        &mut self,
        path: &Path,
        node: &Node,
        (index, traffic): (usize, &Traffic),
    ) -> Option<Event> {
        let table = self.table(path.clone(), node)?;
        self.only(&table, &KEYS);
        let last = traffic.connections().saturating_sub(1);
        let connection = self.number(&table, "qpn", None, Range { first: 0, last });
        let psns = self.psns(&table, traffic.packets());
        let changes = [
            ("drop", Change::Drop),
            ("ecn", Change::Ecn),
            ("bit-error", Change::Corrupt),
            ("corrupt", Change::Corrupt),
        ];
        let change = self.name(&table, "type", &changes);
        let iters = Range {
            first: 1,
            last: MAX_ITER,
        };
        let iter = self.number(&table, "iter", None, iters);
        let (connection, change) = (connection?, change?);
        if change.loses() && traffic.depth > 1 {
            // Lumina refuses it as well: with several messages on the way, transmissions of one message are not known.
            let message = format!(
                "Lumina loses or corrupts packets only if `tx-depth` is 1; it is {}",
                traffic.depth
            );
            let span = table.get("type").map_or(&table.span, |node| &node.span);
            self.wrong(path.key("type"), span, message);
            return None;
        }
        Some(Event {
            index,
            connection,
            op: traffic.op_of(connection)?,
            psns: psns?,
            change,
            iter: iter?,
        })
    }

    /// PSNs within a message: a number, or `all`.
    fn psns(&mut self, table: &Table<'_>, packets: u64) -> Option<Range> {
        let last = packets.saturating_sub(1);
        let all = Range { first: 0, last };
        match table.get("psn").and_then(Node::text) {
            Some(text) if text.eq_ignore_ascii_case("all") => Some(all),
            _ => self.number(table, "psn", None, all).map(Range::exactly),
        }
    }

    /// Each event applies to each message.
    fn rules(
        &mut self,
        (path, node): (&Path, &Node),
        events: &[Event],
        traffic: &Traffic,
    ) -> Vec<Rule> {
        let mut rules = Vec::new();
        for event in events {
            let own = events
                .iter()
                .filter(|other| other.connection == event.connection);
            let again = retransmissions(own);
            let all = Range {
                first: 0,
                last: traffic.packets().saturating_sub(1),
            };
            // The packets of all messages follow each other, and so do their transmissions.
            let is_one = again == 0 && event.psns == all && event.iter == 1;
            let messages = if is_one { 1 } else { traffic.count };
            for message in 0..messages {
                if rules.len() >= MAX_RULES {
                    let message = format!(
                        "{} events for {} messages each: at most {MAX_RULES} rules are possible, make `num-msgs-per-qp` smaller",
                        events.len(),
                        traffic.count
                    );
                    self.wrong(path.clone(), &node.span, message);
                    return rules;
                }
                let before = message.saturating_mul(traffic.packets());
                let psns = match is_one {
                    true => Range {
                        first: 0,
                        last: traffic
                            .count
                            .saturating_mul(traffic.packets())
                            .saturating_sub(1),
                    },
                    false => Range {
                        first: event.psns.first.saturating_add(before),
                        last: event.psns.last.saturating_add(before),
                    },
                };
                let name = match messages {
                    1 => format!("event {}", event.index),
                    _ => format!("event {}, message {message}", event.index),
                };
                rules.push(Rule {
                    name,
                    connection: event.connection,
                    op: event.op,
                    psns,
                    iter: event.iter.saturating_add(message.saturating_mul(again)),
                    change: event.change,
                });
            }
        }
        rules
    }
}

/// Transmissions of a message after its first, with these events on its connection. Lumina counts them from 1 for each message,
/// rules count them over all messages.
fn retransmissions<'a>(events: impl Iterator<Item = &'a Event>) -> u64 {
    let lost = events.filter(|event| event.change.loses());
    let mut iters: Vec<u64> = lost.map(|event| event.iter).collect();
    iters.sort_unstable();
    iters.dedup();
    let each = (1..).zip(iters);
    // A packet of the third transmission can be lost only if there is a third one.
    each.take_while(|(expected, iter)| expected == iter).count() as u64
}
