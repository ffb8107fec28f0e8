//! Rules for packets.

use faultline_nic::Instant;
use faultline_wire::Opcode;

use super::request::Subject;
use super::running::Rules;
use super::unmet::Unmet;
use super::view::{NicView, PacketFacts, PacketSide};
use crate::frames::{HeldFrame, LIVE, Taking};
use crate::plan::{Answer, Effect, PacketMatch, Thing};
use crate::trigger::Direction;

/// Properties of a packet that rules examine.
#[derive(Clone, Copy, Debug)]
struct Facts {
    opcode: Option<Opcode>,
    answer: Option<Answer>,
    /// PSN relative to the first of the connection.
    psn: Option<u32>,
    /// Transmission, from 1.
    iter: Option<u32>,
    /// Octets on the wire.
    bytes: usize,
}

impl PacketMatch {
    fn fits(&self, facts: &Facts) -> bool {
        self.unmet(facts).is_none()
    }

    /// The first condition that does not hold.
    fn unmet(&self, facts: &Facts) -> Option<Unmet> {
        let psn =
            |only: crate::value::Range| facts.psn.is_some_and(|psn| only.contains(psn.into()));
        let opcode = facts.opcode;
        let is_named = opcode.map_or(self.opcodes.raw, |opcode| self.opcodes.contains(opcode));
        if !is_named || self.answer.is_some_and(|only| facts.answer != Some(only)) {
            Some(Unmet::Opcode)
        } else if !self.psn.is_none_or(psn) {
            Some(Unmet::Psn)
        } else if self.iter.is_some_and(|only| facts.iter != Some(only)) {
            Some(Unmet::Iter)
        } else {
            None
        }
    }
}

impl Rules {
    /// Notes for each site which rules and expectations concern its packets.
    pub(super) fn index_packet_rules(&mut self) {
        for (index, running) in self.rules.iter().enumerate() {
            let rule = &running.rule;
            let Thing::Packet(packets) = &rule.thing else {
                continue;
            };
            if let Some(port) = rule.port {
                if let Some(sides) = self.ports.get_mut(port) {
                    let side = sides.of_mut(packets.dir);
                    side.add(packets, rule.conditions.qpn);
                    side.rules.push(index);
                }
            } else {
                for side in sides(&mut self.nics, rule.nic, packets.dir) {
                    side.add(packets, rule.conditions.qpn);
                    side.rules.push(index);
                }
            }
        }
        for (index, expectation) in self.plan.expectations.iter().enumerate() {
            if let Some(packets) = &expectation.packets {
                for side in sides(&mut self.nics, expectation.nic, packets.dir) {
                    side.add(packets, None);
                    side.expectations.push(index);
                }
            }
        }
    }

    /// True if rules or expectations concern packets of a site in a direction.
    #[inline]
    pub fn takes_packets(&self, site: usize, dir: Direction) -> bool {
        let side = self.side(site, dir);
        side.is_some_and(|side| !side.rules.is_empty() || !side.expectations.is_empty())
    }

    /// True if no rule or expectation can match this packet, and none follows it. This holds for most packets, so it is
    /// asked first.
    ///
    /// Calls `qpn` for the queue pair only if rules or expectations concern the opcode.
    #[inline]
    pub fn ignores_packet(
        &self,
        (site, dir): (usize, Direction),
        opcode: Option<Opcode>,
        qpn: impl FnOnce() -> u32,
    ) -> bool {
        let ignores = |side: &PacketSide| !side.follows && !side.concerns(opcode, qpn);
        self.side(site, dir).is_none_or(ignores) && !self.frames.waits_to_be_overtaken()
    }

    /// A packet of queue pair `qpn` is about to be passed on: of the sender in direction `Tx` of a NIC, else of the destination. If
    /// a rule takes it, the caller does not pass it on, but its octets to [`Rules::take_frame`].
    pub fn packet(
        &mut self,
        now: Instant,
        site: usize,
        dir: Direction,
        qpn: u32,
        packet: PacketFacts<'_>,
    ) -> Option<Taking> {
        let side = self.side(site, dir)?;
        let opcode = packet.header.map(|header| header.bth.opcode);
        let (is_named, follows) = (side.names(opcode), side.follows);
        let followed = match (packet.header, self.nics.get_mut(site)) {
            (Some(header), Some(view)) if follows => view.follow_packet(dir, qpn, header),
            _ => None,
        };
        let mut taking = None;
        if is_named {
            let facts = Facts {
                opcode,
                answer: packet.header.and_then(Answer::of),
                psn: followed.and_then(|(psn, _)| psn),
                iter: followed.map(|(_, iter)| iter),
                bytes: packet.bytes,
            };
            self.count_packet(site, dir, &facts);
            taking = self.try_packet_rules(now, (site, dir), qpn, &facts);
        }
        if taking.is_none() {
            self.frames.passed(now, site, dir);
        }
        taking
    }

    /// Changes and keeps the octets of a packet that a rule takes, as [`Rules::packet`] has returned.
    pub fn take_frame(&mut self, now: Instant, taking: Taking, mut frame: HeldFrame) {
        // The rule that has made a frame invalid is kept as the reason for its fate, whatever later rules do.
        if !frame.by.is_some_and(|before| before.kind.spoils()) {
            frame.by = Some(taking.by());
        }
        let place = match frame.site.checked_sub(self.nics.len()) {
            None => format!("NIC {}", frame.site),
            Some(port) => format!("port {port}"),
        };
        let before = (self.frames.dropped, self.frames.not_reordered);
        self.frames
            .take(now, taking.change, frame, &mut self.random);
        // One problem for all of them is enough.
        if before.0 == 0 && self.frames.dropped > 0 {
            self.note_problem(format!(
                "{place}: packets were dropped: too many octets were delayed at a time"
            ));
        }
        if before.1 == 0 && self.frames.not_reordered > 0 {
            self.note_problem(format!(
                "{place}: packets were not reordered: too many waited to be overtaken at a time"
            ));
        }
    }

    fn count_packet(&mut self, nic: usize, dir: Direction, facts: &Facts) {
        let Some(view) = self.nics.get(nic) else {
            return;
        };
        for index in &view.packets.of(dir).expectations {
            let expectation = self.plan.expectations.get(*index);
            let packets = expectation.and_then(|expectation| expectation.packets);
            if packets.is_some_and(|packets| packets.fits(facts)) {
                self.counts.expected(*index);
            }
        }
    }

    fn try_packet_rules(
        &mut self,
        now: Instant,
        (site, dir): (usize, Direction),
        qpn: u32,
        facts: &Facts,
    ) -> Option<Taking> {
        let subject = Subject {
            qpn: Some(qpn),
            ..Subject::default()
        };
        let mut decided = None;
        let mut place = 0;
        while let Some(index) = self.packet_rule(site, dir, place) {
            place = place.saturating_add(1);
            let Some(Thing::Packet(packets)) =
                self.rules.get(index).map(|running| &running.rule.thing)
            else {
                continue;
            };
            if let Some(unmet) = packets.unmet(facts) {
                self.missed(index, unmet);
                continue;
            }
            if !self.holds(now, index, site, &subject)
                || !self.reaches_bytes(index, site, facts.bytes)
                || !self.is_due(index, site)
            {
                continue;
            }
            match self.rules.get(index).map(|running| &running.rule.effect) {
                Some(Effect::Packet(change)) if decided.is_none() => {
                    let change = *change;
                    let rule = match self.number {
                        0 => index,
                        live => usize::from(live | LIVE),
                    };
                    decided = Some(Taking { rule, change });
                    self.note_fired(index, site);
                }
                Some(Effect::Nic(action)) => {
                    let action = action.clone();
                    self.note_fired(index, site);
                    self.act(now, site, &action, subject);
                }
                Some(Effect::Count) => self.note_fired(index, site),
                _ => {}
            }
        }
        decided
    }

    /// Index of the rule at a place of a site's list.
    fn packet_rule(&self, site: usize, dir: Direction, place: usize) -> Option<usize> {
        self.side(site, dir)?.rules.get(place).copied()
    }

    /// True unless a rule asks for multiples of a number of bytes, and none is reached with this packet.
    fn reaches_bytes(&mut self, index: usize, site: usize, bytes: usize) -> bool {
        let Some(running) = self.rules.get_mut(index) else {
            return false;
        };
        let Thing::Packet(PacketMatch {
            bytes: Some(step), ..
        }) = running.rule.thing
        else {
            return true;
        };
        let Some(total) = running.bytes.get_mut(site) else {
            return false;
        };
        let before = total.checked_div(step);
        *total = total.saturating_add(bytes as u64);
        let reaches = total.checked_div(step) != before;
        if !reaches {
            self.missed(index, Unmet::Bytes);
        }
        reaches
    }
}

/// The sides of all NICs, or of only one of them.
fn sides(
    nics: &mut [NicView],
    only: Option<usize>,
    dir: Direction,
) -> impl Iterator<Item = &mut PacketSide> {
    let nics = nics.iter_mut().enumerate();
    let named = nics.filter(move |(nic, _)| only.is_none_or(|only| only == *nic));
    named.map(move |(_, view)| view.packets.of_mut(dir))
}
