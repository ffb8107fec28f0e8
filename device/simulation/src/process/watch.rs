//! The events of all engines: packets are judged, and frames and diagnostics enter a hash, or the record of a scenario.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use faultline_checker::{Checker, Finding, Place, QueuePair};
use faultline_fabric::frame::{Frame, Octets};
use faultline_fabric::outside::{Seen, Sight};
use faultline_fabric::{Fate, PortId};
use faultline_nic::{Instant, Nic};
use faultline_scenario::trigger::Direction;

use crate::event::What;
use crate::memory::Memory;
use crate::record::Record;
use crate::trace::Detail;

/// A summary of events.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Violations of the specification by packets of NICs.
    pub violations: Vec<String>,
    /// Packets that the NICs have sent.
    pub packets: u64,
    /// Frames that were dropped, whatever the reason.
    pub dropped: u64,
    /// Hash of all frames at all interfaces with their times and fates. It means something in the same build only.
    pub hash: u64,
}

/// The summary of a process.
#[derive(Debug, Default)]
struct Summary {
    packets: u64,
    dropped: u64,
    hash: DefaultHasher,
}

/// Judges packets, and keeps a summary of a process, or the record of a scenario.
#[derive(Debug)]
pub(crate) struct Watch {
    nics: usize,
    /// Origin of the times of the packet checker.
    start: u64,
    pub(crate) checker: Option<Checker>,
    summary: Option<Summary>,
    pub(crate) record: Option<Record>,
    octets: Vec<u8>,
}

fn checker() -> Checker {
    let mut checker = Checker::new(Place::Adapter);
    checker.set_all_ready();
    checker
}

impl Watch {
    /// For a process.
    pub(crate) fn new(nics: usize) -> Self {
        Self {
            nics,
            start: 0,
            checker: Some(checker()),
            summary: Some(Summary::default()),
            record: None,
            octets: Vec::new(),
        }
    }

    /// For a scenario.
    pub(crate) fn of_scenario(nics: usize, detail: Detail) -> Self {
        Self {
            checker: None,
            summary: None,
            record: Some(Record::new(detail, 0)),
            ..Self::new(nics)
        }
    }

    /// The traffic of a scenario begins. `checks`: packets are judged from now on.
    pub(crate) fn begin(&mut self, now: u64, checks: bool) {
        self.start = now;
        self.checker = checks.then(checker);
        if let Some(record) = &mut self.record {
            record.begin(now);
        }
    }

    pub(super) fn watched(&self) -> Watched {
        let checker = self.checker.iter();
        let violations = checker.flat_map(|checker| checker.violations());
        let violations = violations.map(Finding::to_string).collect();
        match &self.summary {
            None => Watched {
                violations,
                ..Watched::default()
            },
            Some(summary) => Watched {
                violations,
                packets: summary.packets,
                dropped: summary.dropped,
                hash: summary.hash.finish(),
            },
        }
    }

    /// A queue pair of a NIC begins another connection.
    pub(super) fn restart_queue_pair(&mut self, nic: PortId, qpn: u32) {
        if let Some(checker) = &mut self.checker {
            checker.restart_queue_pair(nic, qpn);
        }
    }

    /// An interrupt is on its way to the host of a NIC.
    pub(super) fn interrupt(&mut self, now: Instant, nic: PortId, vector: u16) {
        self.note(now.0, nic, format_args!("interrupt {vector}"));
    }

    /// Adds a line to the trace of a scenario.
    pub(crate) fn note(&mut self, now: u64, nic: PortId, what: fmt::Arguments<'_>) {
        if let Some(record) = &mut self.record {
            record.note(now, nic, what);
        }
    }

    /// Keeps an event of a scenario.
    pub(crate) fn event(&mut self, now: u64, nic: PortId, what: What) {
        if let Some(record) = &mut self.record {
            record.event(now, nic, what);
        }
    }

    pub(super) fn seen(&mut self, now: Instant, seen: &Seen<'_, Memory>) {
        match seen {
            Seen::Frame(sight) => self.frame(now, sight),
            Seen::Diagnostic {
                nic, diagnostic, ..
            } => {
                if let Some(summary) = &mut self.summary {
                    (now.0, *nic, format!("{diagnostic:?}")).hash(&mut summary.hash);
                }
                if let Some(record) = &mut self.record {
                    record.diagnostic(now, *nic, diagnostic);
                }
            }
            _ => {}
        }
    }

    fn frame(&mut self, now: Instant, sight: &Sight<'_, Memory>) {
        let mut octets = std::mem::take(&mut self.octets);
        for packet in 0..sight.frame.packets() {
            let bytes = match sight.frame {
                Frame::Octets(Octets { bytes, .. }) => bytes,
                Frame::ByReference(frame) => {
                    let Some(memory) = sight.memory else {
                        continue;
                    };
                    match Octets::of_packet(frame, packet, memory, &mut octets) {
                        Some(Octets { bytes, .. }) => bytes,
                        None => continue,
                    }
                }
            };
            self.packet(now, sight, bytes);
        }
        if let Some(summary) = &mut self.summary
            && sight.fate != Fate::Passed
        {
            let packets = u64::from(sight.frame.packets());
            summary.dropped = summary.dropped.saturating_add(packets);
        }
        self.octets = octets;
    }

    fn packet(&mut self, now: Instant, sight: &Sight<'_, Memory>, bytes: &[u8]) {
        let (port, dir) = sight.place;
        if let Some(summary) = &mut self.summary {
            (now.0, port, dir == Direction::Tx, sight.fate as u8).hash(&mut summary.hash);
            bytes.hash(&mut summary.hash);
        }
        if port >= self.nics || sight.is_again {
            return;
        }
        if let Some(record) = &mut self.record {
            record.packet(now.0, sight, bytes);
        }
        // A packet that is lost later was sent, too.
        if dir == Direction::Tx
            && let Some(summary) = &mut self.summary
        {
            summary.packets = summary.packets.saturating_add(1);
        }
        self.judge(now.0.saturating_sub(self.start), sight, bytes);
    }

    fn judge(&mut self, at: u64, sight: &Sight<'_, Memory>, bytes: &[u8]) {
        let (port, dir) = sight.place;
        let Some(checker) = &mut self.checker else {
            return;
        };
        match dir {
            Direction::Tx => {
                let device = sight.device;
                let pair = device.and_then(|nic| nic.queue_pair_info(sight.sender));
                let sender = pair.map(|pair| QueuePair {
                    qpn: sight.sender,
                    mtu: Some(pair.mtu),
                    read_limit: pair.max_rd_atomic.map(u32::from),
                });
                checker.sent(at, port, sender, bytes);
            }
            Direction::Rx if sight.fate != Fate::Passed => {}
            Direction::Rx if sight.device.is_some_and(Nic::holds_input) => {
                checker.held(at, port, bytes);
            }
            Direction::Rx => checker.received(at, port, bytes),
        }
    }
}
