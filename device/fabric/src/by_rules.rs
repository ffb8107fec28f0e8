//! Effects of scenario rules on frames, doorbells and NICs.
//!
//! Without a scenario, a frame, doorbell or interrupt costs one test of a flag.

use faultline_nic::{FrameKind, Instant};
use faultline_scenario::rules::{ByRule, CallerRequest, HeldFrame, Late, PacketFacts, Rules};
use faultline_scenario::trigger::Direction;

use crate::fabric::Fabric;
use crate::frame::{Frame, Mark, Octets};
use crate::link_model::Effects;
use crate::outside::{Outside, Place, Seen};
use crate::switch::PortId;

impl<O: Outside> Fabric<O> {
    /// Offers a frame that has entered at port `from` to the rules of a port. Returns the rule that has taken it.
    #[inline(always)]
    pub(crate) fn rules_take(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        place: Place,
        frame: Frame<'_>,
    ) -> Option<ByRule> {
        let rules = self.rules.as_ref()?;
        let ignores = match frame {
            Frame::ByReference(sent) => {
                let opcode = match &sent.kind {
                    FrameKind::Roce(header) => Some(header.bth.opcode),
                    FrameKind::Raw { .. } => None,
                };
                rules.ignores_packet(place, opcode, || self.queue_pair_of(place, frame))
            }
            // The headers of octets are not parsed here.
            Frame::Octets(_) => !rules.takes_packets(place.0, place.1),
        };
        match ignores {
            true => None,
            false => self.ask_rules(out, now, from, place, frame),
        }
    }

    #[cold]
    fn ask_rules(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        (site, dir): Place,
        frame: Frame<'_>,
    ) -> Option<ByRule> {
        // The previous frame may have been the last one that had to overtake them.
        self.pass_kept_frames(out, now);
        let header = frame.header();
        let qpn = self.queue_pair_of((site, dir), frame);
        let facts = PacketFacts {
            header: header.as_ref(),
            bytes: frame.length(),
        };
        let rules = self.rules.as_mut()?;
        let taking = rules.packet(now, site, dir, qpn, facts)?;
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
            rules.take_frame(now, taking, held);
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
    pub(crate) fn passes_single_packets(&self) -> bool {
        let takes = |rules: &Rules| {
            (0..self.nics.ports()).any(|nic| {
                rules.takes_packets(nic, Direction::Tx) || rules.takes_packets(nic, Direction::Rx)
            })
        };
        self.rules.as_deref().is_some_and(takes)
    }

    /// Advances the time of the rules. Returns true if they have pending work: the owner then calls [`Fabric::poll_request`] until it
    /// returns `None`, and [`Fabric::pass_kept`].
    pub fn advance_rules(&mut self, now: Instant) -> bool {
        match &mut self.rules {
            Some(rules) if rules.has_work(now) => {
                rules.advance(now);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Executes the next request of the rules. Returns its NIC, and the part for the owner: a request that only the owner can execute, a
    /// completed request about the port (link, speed, MTU), or an error to be reported.
    pub fn poll_request(
        &mut self,
        now: Instant,
    ) -> Option<(PortId, Result<Option<CallerRequest>, String>)> {
        let (id, request) = self.rules.as_mut()?.poll_request()?;
        let (Some(port), Some(memory)) = (self.nics.get_mut(id), self.memories.get(id)) else {
            return Some((id, Ok(None)));
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
        Some((id, result))
    }

    /// Passes the frames, doorbells and interrupts that rules have kept until `now`. Returns true if there were any.
    pub fn pass_kept(&mut self, out: &mut O, now: Instant) -> bool {
        let mut worked = self.pass_kept_frames(out, now);
        while let Some(late) = self.rules.as_mut().and_then(|rules| rules.poll_late()) {
            worked = true;
            let has_bus_master = |nic| self.nics.get(nic).is_some_and(|port| port.bus_master);
            match late {
                Late::Doorbell { nic, page, bell } if has_bus_master(nic) => {
                    out.seen(now, Seen::LateDoorbell { nic, page, bell });
                    self.doorbell(now, nic, page, bell);
                }
                Late::Interrupt { nic, vector } if has_bus_master(nic) => {
                    out.interrupt(now, nic, vector);
                }
                Late::Doorbell { .. } | Late::Interrupt { .. } => {}
            }
        }
        worked
    }

    /// Passes the frames that rules have kept until `now`. Returns true if there were any. It is called after a rule has taken a frame and
    /// before rules examine the next one, so a frame that is only changed keeps its place. If another rule takes a kept frame again, the
    /// same call passes it once more.
    #[cold]
    #[inline(never)]
    pub(crate) fn pass_kept_frames(&mut self, out: &mut O, now: Instant) -> bool {
        if std::mem::replace(&mut self.passes_kept, true) {
            return false;
        }
        let mut worked = false;
        while let Some(kept) = self.rules.as_mut().and_then(|rules| rules.poll_frame(now)) {
            worked = true;
            let octets = Octets {
                mark: Mark {
                    origin: kept.origin,
                    effects: Effects::from_bits(kept.note),
                    rule: kept.by,
                },
                bytes: &kept.bytes,
            };
            let is_external = kept.site >= self.nics.ports();
            match kept.dir {
                Direction::Tx if is_external => self.pass_to_peer(out, now, kept.site, octets),
                Direction::Rx if is_external => self.cross_switch(out, now, kept.site, octets),
                Direction::Tx => self.leave_nic_after_rules(out, now, kept.site, octets),
                Direction::Rx => self.receive_after_rules(out, now, kept.site, octets),
            }
        }
        self.passes_kept = false;
        worked
    }
}
