//! The events of all engines: packets are judged, and frames and diagnostics enter a hash.

use std::hash::{DefaultHasher, Hash, Hasher};

use faultline_fabric::frame::{Frame, Octets};
use faultline_fabric::outside::{Seen, Sight};
use faultline_fabric::{Fate, PortId};
use faultline_nic::{Instant, Nic};
use faultline_oracle::{Oracle, Place, QueuePair, Violation};
use faultline_scenario::trigger::Direction;
use faultline_simulator::Memory;

/// A summary of what was seen.
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

/// Judges packets, and counts.
#[derive(Debug)]
pub(super) struct Watch {
    oracle: Oracle,
    nics: usize,
    packets: u64,
    dropped: u64,
    hash: DefaultHasher,
    octets: Vec<u8>,
}

impl Watch {
    pub(super) fn new(nics: usize) -> Self {
        let mut oracle = Oracle::new(Place::Adapter);
        (0..nics).for_each(|nic| oracle.set_ready(nic, true));
        Self {
            oracle,
            nics,
            packets: 0,
            dropped: 0,
            hash: DefaultHasher::new(),
            octets: Vec::new(),
        }
    }

    pub(super) fn watched(&self) -> Watched {
        let violations = self.oracle.violations().iter();
        Watched {
            violations: violations.map(Violation::to_string).collect(),
            packets: self.packets,
            dropped: self.dropped,
            hash: self.hash.finish(),
        }
    }

    /// A queue pair of a NIC begins another connection.
    pub(super) fn renew(&mut self, nic: PortId, qpn: u32) {
        self.oracle.renew(nic, qpn);
    }

    pub(super) fn seen(&mut self, now: Instant, seen: &Seen<'_, Memory>) {
        match seen {
            Seen::Frame(sight) => self.frame(now, sight),
            Seen::Diagnostic {
                nic, diagnostic, ..
            } => (now.0, *nic, format!("{diagnostic:?}")).hash(&mut self.hash),
            _ => {}
        }
    }

    fn frame(&mut self, now: Instant, sight: &Sight<'_, Memory>) {
        let packets = sight.frame.packets();
        if sight.fate != Fate::Passed {
            self.dropped = self.dropped.saturating_add(packets.into());
        }
        let mut octets = std::mem::take(&mut self.octets);
        for packet in 0..packets {
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
            let (port, dir) = sight.place;
            (now.0, port, dir == Direction::Tx, sight.fate as u8).hash(&mut self.hash);
            bytes.hash(&mut self.hash);
            self.judge(now, sight, bytes);
        }
        self.octets = octets;
    }

    fn judge(&mut self, now: Instant, sight: &Sight<'_, Memory>, bytes: &[u8]) {
        let (port, dir) = sight.place;
        if port >= self.nics || sight.is_again {
            return;
        }
        match dir {
            // What is lost later was sent all the same.
            Direction::Tx => {
                self.packets = self.packets.saturating_add(1);
                let pair = sight
                    .device
                    .and_then(|nic| nic.queue_pair_info(sight.sender));
                let sender = pair.map(|pair| QueuePair {
                    qpn: sight.sender,
                    mtu: Some(pair.mtu),
                    read_limit: pair.max_rd_atomic.map(u32::from),
                });
                self.oracle.sent(now.0, port, sender, bytes);
            }
            Direction::Rx if sight.fate != Fate::Passed => {}
            Direction::Rx if sight.device.is_some_and(Nic::holds_input) => {
                self.oracle.held(now.0, port, bytes);
            }
            Direction::Rx => self.oracle.received(now.0, port, bytes),
        }
    }
}
