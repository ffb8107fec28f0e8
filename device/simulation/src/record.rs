//! Results of the run of a scenario: its trace, counts of packets and diagnostics, and the times of page faults.

use std::collections::BTreeMap;
use std::fmt;

use faultline_fabric::Fate;
use faultline_fabric::outside::Sight;
use faultline_nic::{Diagnostic, Instant, Nanos};
use faultline_scenario::trigger::Direction;
use faultline_telemetry::DiagnosticKind;
use faultline_wire::packet::parse;

use crate::event::{Event, MAX_EVENTS, Packet, What};
use crate::trace::{Detail, Trace};

/// The times of a page fault, since the start of the traffic, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultTimes {
    /// The access met the absent page.
    pub raised: u64,
    /// The driver has answered.
    pub resumed: u64,
    /// The access was executed.
    pub done: u64,
}

/// Results of a run. Its times are since the start.
#[derive(Debug)]
pub(crate) struct Record {
    start: u64,
    pub trace: Trace,
    /// RoCE packets by NIC, direction and BTH opcode.
    pub packets: BTreeMap<(usize, Direction, u8), u64>,
    /// Diagnostics by NIC and kind.
    pub diagnostics: BTreeMap<(usize, &'static str), u64>,
    /// Page faults whose accesses were executed, in this order.
    pub faults: Vec<FaultTimes>,
    /// The events, if the trace is to have them.
    pub events: Vec<Event>,
}

impl Record {
    pub(crate) fn new(detail: Detail, start: u64) -> Self {
        Self {
            start,
            trace: Trace::new(detail),
            packets: BTreeMap::new(),
            diagnostics: BTreeMap::new(),
            faults: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The traffic begins.
    pub(crate) fn begin(&mut self, now: u64) {
        *self = Self::new(self.trace.detail(), now);
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&mut self, now: u64, nic: usize, what: fmt::Arguments<'_>) {
        self.trace.add(now.saturating_sub(self.start), nic, what);
    }

    /// Keeps an event.
    pub(crate) fn event(&mut self, now: u64, nic: usize, what: What) {
        if self.trace.detail() == Detail::Events && self.events.len() < MAX_EVENTS {
            let at = Nanos(now.saturating_sub(self.start));
            self.events.push(Event { at, nic, what });
        }
    }

    /// A packet at a NIC. Counts packets that it sends, also those that are dropped, and packets that it receives.
    pub(crate) fn packet<M>(&mut self, now: u64, sight: &Sight<'_, M>, bytes: &[u8]) {
        let ((nic, dir), fate) = (sight.place, sight.fate);
        let name = dir.name();
        let (len, end) = (bytes.len(), Ending(fate));
        let Ok(packet) = parse(bytes) else {
            return self.note(now, nic, format_args!("{name} raw {len} bytes{end}"));
        };
        let header = packet.header;
        if dir == Direction::Tx || fate == Fate::Passed {
            let class = (nic, dir, header.bth.opcode.to_u8());
            let count = self.packets.entry(class).or_default();
            *count = count.saturating_add(1);
        }
        let opcode = header.bth.opcode;
        let (qp, psn) = (header.bth.dest_qp, header.bth.psn.get());
        let syndrome = header.aeth.map(|aeth| aeth.syndrome);
        let seen = Packet {
            dir,
            opcode,
            psn,
            syndrome,
            fate,
            rule: sight.rule.map(|by| usize::from(by.rule)),
        };
        self.event(now, nic, What::Packet(seen));
        match header.aeth {
            Some(aeth) => self.note(
                now,
                nic,
                format_args!(
                    "{name} {opcode:?} qp {qp} psn {psn} {:?} {len} bytes{end}",
                    aeth.syndrome
                ),
            ),
            None => self.note(
                now,
                nic,
                format_args!("{name} {opcode:?} qp {qp} psn {psn} {len} bytes{end}"),
            ),
        }
    }

    /// A NIC has reported something.
    pub(crate) fn diagnostic(&mut self, now: Instant, nic: usize, diagnostic: &Diagnostic) {
        let kind = DiagnosticKind::of(diagnostic).name();
        let count = self.diagnostics.entry((nic, kind)).or_default();
        *count = count.saturating_add(1);
        if let Diagnostic::FaultDone {
            raised, resumed, ..
        } = diagnostic
        {
            self.faults.push(FaultTimes {
                raised: raised.0.saturating_sub(self.start),
                resumed: resumed.0.saturating_sub(self.start),
                done: now.0.saturating_sub(self.start),
            });
        }
        self.event(now.0, nic, What::Diagnostic(*diagnostic));
        self.note(now.0, nic, format_args!("diagnostic {diagnostic:?}"));
    }
}

/// The end of the line of a packet: its fate, unless it is passed.
struct Ending(Fate);

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Fate::Passed => Ok(()),
            fate => write!(f, " {fate:?}"),
        }
    }
}
