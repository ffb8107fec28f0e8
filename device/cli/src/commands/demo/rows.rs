//! The steps of a story, from the events of a run.

use std::collections::BTreeSet;

use faultline_abi::{cqe, event as kinds};
use faultline_nic::{Diagnostic, Nanos, RetryCause};
use faultline_scenario::trigger::Direction;
use faultline_simulation::event::{Event, Fate, Packet, Syndrome, What};
use faultline_telemetry::{DiagnosticKind, opcode_name};

/// Silence of at least this time, in nanoseconds, has a row of its own.
const GAP: u64 = 20_000;

/// The kind of a step, for its colour and sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Software posts work.
    Post,
    /// A packet, or something that needs no emphasis.
    Plain,
    /// A page fault.
    Fault,
    /// The driver has answered a page fault, or a completion reports success.
    Good,
    /// A request was refused for now.
    RnrNak,
    /// A packet that was sent before.
    Again,
    /// A packet is lost, or something has failed.
    Bad,
}

/// Where a step happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A packet leaves this NIC for the other one. `lost`: why it does not arrive.
    Arrow { from: usize, lost: Option<String> },
    /// Something at this host.
    Note { host: usize },
    /// Nothing happens for a time, which is the text.
    Gap,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// When it begins, in nanoseconds since the start.
    pub(super) at: u64,
    /// Where it happens.
    pub(super) shape: Shape,
    /// Its kind.
    pub(super) mark: Mark,
    /// What happens.
    pub(super) text: String,
}

impl Row {
    /// A page fault.
    pub(super) fn is_fault(&self) -> bool {
        self.mark == Mark::Fault
    }

    /// A request was refused for now.
    pub(super) fn is_rnr_nak(&self) -> bool {
        self.mark == Mark::RnrNak
    }

    /// A packet that does not arrive.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.shape, Shape::Arrow { lost: Some(_), .. })
    }

    /// A packet that was sent before.
    pub(super) fn is_repeated(&self) -> bool {
        self.text.ends_with(AGAIN)
    }
}

/// End of the text of a packet that was sent before.
const AGAIN: &str = ", again";

/// Makes steps of events.
pub(super) struct Rows {
    /// Names of the rules.
    rules: Vec<String>,
    /// PSN of the first packet: others are told relative to it.
    first_psn: Option<u32>,
    /// Requests that were sent: NIC and PSN.
    sent: BTreeSet<(usize, u32)>,
    /// Requests that were acknowledged by the responder's NIC: NIC and PSN.
    acknowledged: BTreeSet<(usize, u32)>,
}

impl Rows {
    /// For a run with rules of these names.
    pub(super) fn new(rules: Vec<String>) -> Self {
        Self {
            rules,
            first_psn: None,
            sent: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
        }
    }

    /// The steps of a run, with the times in which nothing happens.
    pub(super) fn of(mut self, events: &[Event]) -> Vec<Row> {
        let mut arrived = BTreeSet::new();
        let mut rows: Vec<Row> = Vec::new();
        // Before the first message, drivers read events of the start of their devices.
        let is_posted = |event: &Event| matches!(event.what, What::Posted { .. });
        let first = events.iter().position(is_posted).unwrap_or(0);
        let events = events.get(first..).unwrap_or_default();
        for (index, event) in events.iter().enumerate() {
            let after = events.iter().enumerate().skip(index.saturating_add(1));
            let row = match &event.what {
                What::Packet(packet) if packet.dir == Direction::Tx => {
                    let arrival = after
                        .filter(|(index, _)| !arrived.contains(index))
                        .find_map(|(index, later)| {
                            arrival_of(event, packet, later).map(|end| (index, end))
                        });
                    arrived.extend(arrival.map(|(index, _)| index));
                    Some(self.arrow(event, packet, arrival.map(|(_, end)| end)))
                }
                What::Packet(packet) => self.arrival(event, packet),
                other => note(other),
            };
            let Some((shape, mark, text)) = row else {
                continue;
            };
            let at = event.at.0;
            let shape = shape.unwrap_or(Shape::Note { host: event.nic });
            if let Some(last) = rows.last().map(|last| last.at)
                && at.saturating_sub(last) >= GAP
            {
                rows.push(Row {
                    at: last,
                    shape: Shape::Gap,
                    mark: Mark::Plain,
                    text: time(at.saturating_sub(last)),
                });
            }
            rows.push(Row {
                at,
                shape,
                mark,
                text,
            });
        }
        rows
    }

    /// A packet that is sent. `end` is its arrival at the other NIC.
    fn arrow(&mut self, event: &Event, packet: &Packet, end: Option<&Packet>) -> Step {
        let psn = self.relative(packet.psn);
        let name = name_of(packet);
        let mut text = format!("{name}, PSN {psn}");
        let is_request = packet.opcode.is_request();
        let mut mark = match packet.syndrome {
            Some(Syndrome::RnrNak { .. }) => Mark::RnrNak,
            Some(Syndrome::Nak(_)) => Mark::Bad,
            _ => Mark::Plain,
        };
        if let Some(Syndrome::Ack { .. }) = packet.syndrome {
            self.acknowledged.insert((event.nic, packet.psn));
        }
        if is_request && !self.sent.insert((event.nic, packet.psn)) {
            mark = Mark::Again;
            text += AGAIN;
        }
        let fates = [Some(packet), end].into_iter();
        let lost = fates.map(|seen| seen.map_or(Some("lost".to_owned()), |seen| self.loss(seen)));
        let lost = lost.flatten().next();
        if lost.is_some() {
            mark = Mark::Bad;
        }
        let from = event.nic;
        (Some(Shape::Arrow { from, lost }), mark, text)
    }

    /// Notable properties of a packet that has arrived.
    fn arrival(&self, event: &Event, packet: &Packet) -> Option<Step> {
        let is_known = self.acknowledged.contains(&(event.nic, packet.psn));
        let is_duplicate = packet.fate == Fate::Passed && packet.opcode.is_request() && is_known;
        is_duplicate.then(|| {
            let text = "a duplicate: it was acknowledged before".to_owned();
            (None, Mark::Again, text)
        })
    }

    /// The reason why a packet does not pass an interface.
    fn loss(&self, packet: &Packet) -> Option<String> {
        let why = match packet.fate {
            Fate::Passed => return None,
            Fate::Rule => {
                let name = packet.rule.and_then(|rule| self.rules.get(rule));
                match name {
                    Some(name) => format!("rule \"{name}\""),
                    None => "a rule".to_owned(),
                }
            }
            Fate::LinkDown | Fate::InterfaceDown => "the port is down".to_owned(),
            other => format!("lost: {other:?}"),
        };
        Some(why)
    }

    /// A PSN relative to the first one.
    fn relative(&mut self, psn: u32) -> u32 {
        let first = *self.first_psn.get_or_insert(psn);
        psn.wrapping_sub(first) & 0x00ff_ffff
    }
}

/// Shape (`None`: a note at the NIC of the event), kind and text of a step.
type Step = (Option<Shape>, Mark, String);

/// A later event, if it is the arrival of a sent packet.
fn arrival_of<'a>(event: &Event, sent: &Packet, later: &'a Event) -> Option<&'a Packet> {
    let What::Packet(packet) = &later.what else {
        return None;
    };
    let is_arrival = packet.dir == Direction::Rx
        && later.nic != event.nic
        && (packet.psn, packet.opcode) == (sent.psn, sent.opcode);
    is_arrival.then_some(packet)
}

/// The name of a packet, as the specification writes it.
fn name_of(packet: &Packet) -> String {
    match packet.syndrome {
        Some(Syndrome::RnrNak { .. }) => return "RNR NAK".to_owned(),
        Some(Syndrome::Nak(code)) => return format!("NAK {code:?}"),
        _ => {}
    }
    let name = opcode_name(packet.opcode.to_u8());
    let name = name.split_once('_').map_or(name.as_str(), |(_, name)| name);
    let (operation, position) = name.split_once('_').unwrap_or((name, ""));
    let name = match operation {
        "acknowledge" => return "ACK".to_owned(),
        // No opcode of the specification.
        "ready" => return "READY (Faultline's own: send again now)".to_owned(),
        operation => operation.to_uppercase(),
    };
    format!("{name} {}", position.replace('_', " "))
        .trim_end()
        .to_owned()
}

/// The meaning of an event that is no packet; `None` if the story omits it.
fn note(what: &What) -> Option<Step> {
    let (mark, text) = match what {
        What::Packet(_) => return None,
        What::Posted { message, bytes } => (
            Mark::Post,
            format!("posts message {message}, {bytes} bytes"),
        ),
        What::Asynchronous(kind) => {
            let name = kinds::KINDS.name(*kind).unwrap_or("unknown");
            let mark = if *kind == kinds::PORT_UP {
                Mark::Good
            } else {
                Mark::Bad
            };
            (mark, format!("the driver reads the event {name}"))
        }
        What::Completed { status, after } => {
            let name = cqe::STATUSES.name(*status).unwrap_or("unknown");
            let mark = if *status == cqe::SUCCESS {
                Mark::Good
            } else {
                Mark::Bad
            };
            let after = after.map_or(String::new(), |Nanos(ns)| {
                format!(", {} after the post", time(ns))
            });
            (mark, format!("completion {name}{after}"))
        }
        What::Diagnostic(diagnostic) => return diagnosis(diagnostic),
    };
    Some((None, mark, text))
}

/// The meaning of a diagnostic; `None` if the story omits it.
fn diagnosis(diagnostic: &Diagnostic) -> Option<Step> {
    let (mark, text) = match diagnostic {
        Diagnostic::FaultRaised { write, .. } => {
            let access = if *write { "write" } else { "read" };
            (
                Mark::Fault,
                format!("page fault: no page to {access}; the driver gets a record"),
            )
        }
        Diagnostic::FaultJoined { .. } => (Mark::Plain, "waits for the same page".to_owned()),
        Diagnostic::FaultResumed { .. } => (
            Mark::Good,
            "the driver has mapped the page, and answers".to_owned(),
        ),
        Diagnostic::FaultFailed { .. } => (
            Mark::Bad,
            "the driver answers that there is no page".to_owned(),
        ),
        Diagnostic::FaultExpired { .. } => {
            (Mark::Bad, "the fault was not answered in time".to_owned())
        }
        Diagnostic::FaultCancelled { .. } => {
            (Mark::Plain, "the region of the fault is gone".to_owned())
        }
        Diagnostic::RnrNakReceived { delay, .. } => (
            Mark::Plain,
            format!("refused for now: waits {} to send again", time(delay.0)),
        ),
        Diagnostic::Retried { cause, .. } => {
            let why = match cause {
                RetryCause::Timeout => "no ACK in time",
                RetryCause::SequenceNak => "the responder has missed a packet",
            };
            (Mark::Again, format!("{why}: sends again"))
        }
        Diagnostic::RetriesExhausted { .. } => (Mark::Bad, "the retries are used up".to_owned()),
        Diagnostic::QpState { .. }
        | Diagnostic::Command { .. }
        | Diagnostic::FaultContinued { .. }
        | Diagnostic::FaultDone { .. }
        | Diagnostic::RnrNakSent { .. }
        | Diagnostic::SequenceNakSent { .. }
        | Diagnostic::PacketDropped { .. }
        | Diagnostic::WorkFailed { .. }
        | Diagnostic::Injected { .. } => return None,
        other => (
            Mark::Bad,
            DiagnosticKind::of(other).name().replace('_', " "),
        ),
    };
    Some((None, mark, text))
}

/// A time with the unit that suits it.
pub(super) fn time(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{}.{} us", ns / 1_000, ns % 1_000 / 100),
        _ => format!("{}.{:03} ms", ns / 1_000_000, ns % 1_000_000 / 1_000),
    }
}
