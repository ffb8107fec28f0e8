//! What rules take, and what they request of NICs.
//!
//! Without rules, a frame, doorbell or interrupt costs one test of a flag.

use faultline_nic::{FrameKind, Instant};
use faultline_scenario::rules::{ByRule, CallerRequest, HeldFrame, PacketFacts};
use faultline_scenario::segment::SegmentFacts;
use faultline_scenario::trigger::Direction;

use crate::fabric::Fabric;
use crate::frame::Frame;
use crate::outside::{Outside, Place};
use crate::switch::PortId;

impl<O: Outside> Fabric<O> {
    /// Returns true if no rule of a port takes a frame.
    #[inline(always)]
    pub(crate) fn rules_ignore(&self, place: Place, frame: Frame<'_>) -> bool {
        let rules = &self.rules;
        if rules.is_empty() {
            return true;
        }
        match frame {
            Frame::ByReference(sent) => {
                let opcode = match &sent.kind {
                    FrameKind::Roce(header) => Some(header.bth.opcode),
                    FrameKind::Raw { .. } => None,
                };
                rules.ignores_packet(place, opcode, || self.queue_pair_of(place, frame))
            }
            // The headers of octets are not parsed here.
            Frame::Octets(_) => !rules.takes_packets(place.0, place.1),
        }
    }

    /// Offers a frame that has entered at port `from` to the rules of a port. Returns the rule that has taken it.
    pub(crate) fn offer_to_rules(
        &mut self,
        now: Instant,
        from: PortId,
        (site, dir): Place,
        frame: Frame<'_>,
    ) -> Option<ByRule> {
        let header = frame.header();
        let qpn = self.queue_pair_of((site, dir), frame);
        let segment = match header {
            None if self.rules.wants_segments((site, dir)) => frame
                .to_vec(self.memories.get(from))
                .and_then(|bytes| SegmentFacts::parse(&bytes)),
            _ => None,
        };
        let facts = PacketFacts {
            header: header.as_ref(),
            segment,
            bytes: frame.length(),
        };
        let taking = self.rules.packet(now, site, dir, qpn, facts)?;
        // A frame whose payload cannot be read is lost.
        if let Some(bytes) = frame.to_vec(self.memories.get(from)) {
            let mark = frame.mark();
            let held = HeldFrame {
                site,
                dir,
                by: mark.rule,
                origin: mark.origin,
                note: mark.effects.bits(),
                bytes,
            };
            self.rules.take_frame(now, taking, held);
        }
        Some(taking.by())
    }

    /// Returns the queue pair for conditions of rules: the sender where a NIC sends the frame, else the destination; 0: none.
    fn queue_pair_of(&self, (site, dir): Place, frame: Frame<'_>) -> u32 {
        match (dir, frame) {
            (Direction::Tx, Frame::ByReference(_)) => {
                let port = self.nics.get(site);
                port.map_or(0, |port| port.nic.last_sender())
            }
            _ => frame.header().map_or(0, |header| header.bth.dest_qp),
        }
    }

    /// Returns true if packets between NICs must be passed singly.
    #[inline]
    pub(crate) fn passes_single_packets(&self) -> bool {
        !self.rules.is_empty() && self.rules_take_packets()
    }

    #[cold]
    fn rules_take_packets(&self) -> bool {
        let takes = |nic, dir| self.rules.takes_packets(nic, dir);
        (0..self.nics.ports()).any(|nic| takes(nic, Direction::Tx) || takes(nic, Direction::Rx))
    }

    /// Takes the next request of the rules and executes the part that a fabric can execute. Returns its set of rules, its NIC, and the
    /// part for the owner or an error.
    fn poll_request(&mut self, now: Instant) -> Option<(u16, PortId, Executed)> {
        let (set, id, request) = self.rules.poll_request()?;
        let (Some(port), Some(memory)) = (self.nics.get_mut(id), self.memories.get(id)) else {
            return Some((set, id, Ok(None)));
        };
        let result = match request.accesses_memory() && !port.bus_master {
            true => Err(format!(
                "it can't access memory (bus mastering is off): {request:?}"
            )),
            false => request.carry_out(&mut port.nic, now, memory),
        };
        match result {
            // The event is written to memory, so it waits for a turn in which the function may access memory.
            Ok(Some(CallerRequest::Link(up))) => port.link_changed |= port.nic.change_link(up),
            Ok(Some(CallerRequest::Speed(mbps))) => {
                let mbps = mbps.unwrap_or(faultline_nic::DEFAULT_LINK_SPEED_MBPS);
                port.nic.set_link_speed(mbps);
            }
            Ok(Some(CallerRequest::Mtu(mtu))) => port.faults.set_mtu(mtu),
            Ok(_) | Err(_) => {}
        }
        Some((set, id, result))
    }
}

/// The part of a request that is left for the owner, or an error.
type Executed = Result<Option<CallerRequest>, String>;

/// The owner of a fabric, which executes requests of its rules.
pub trait RulesOwner {
    /// Its implementation of the calls of the fabric.
    type Outside: Outside;

    /// The fabric, and the receiver of its calls.
    fn fabric(&mut self) -> (&mut Fabric<Self::Outside>, &mut Self::Outside);

    /// Executes a request that a fabric cannot execute. Requests about the port (link, speed, MTU) are completed before.
    ///
    /// # Errors
    /// The text for the results.
    fn carry_out(
        &mut self,
        now: Instant,
        set: u16,
        nic: PortId,
        request: CallerRequest,
    ) -> Result<(), String>;

    /// Notes that a request of this set of rules to a NIC has failed.
    fn note_problem(&mut self, set: u16, nic: PortId, problem: String);

    /// Executes all requests of the rules, and passes the frames that rules have kept and released. Returns true if there were any.
    fn run_rules(&mut self, now: Instant) -> bool {
        let (fabric, _) = self.fabric();
        if !fabric.rules.has_work(now) {
            return false;
        }
        fabric.rules.advance(now);
        let mut worked = false;
        while let Some((set, nic, executed)) = self.fabric().0.poll_request(now) {
            worked = true;
            let result = match executed {
                Ok(None) => Ok(()),
                Ok(Some(request)) => self.carry_out(now, set, nic, request),
                Err(problem) => Err(problem),
            };
            if let Err(problem) = result {
                self.note_problem(set, nic, problem);
            }
        }
        let (fabric, out) = self.fabric();
        worked |= fabric.pass_kept(out, now);
        fabric.rules.sweep(now);
        worked
    }
}
