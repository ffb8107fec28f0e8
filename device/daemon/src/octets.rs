//! Frames as octets: those of ports that lead out of the process, of modelled links, and those that rules of a scenario have taken.
//!
//! Rules are on the side of the NIC, or of the switch, of a modelled link. So a frame passes, in either direction:
//!
//! ```text
//! NIC ── rules ── link ── switch ── rules ── link ── peer of an external port
//! ```

use faultline_nic::{Instant, Origin, TxFrame};
use faultline_ports::{Clash, Egress, PortId, Route, vlan};
use faultline_scenario::rules::{HeldFrame, PacketFacts};
use faultline_scenario::trigger::Direction;
use faultline_telemetry::{Direction as LinkDirection, FrameEvent};
use faultline_wire::packet::parse_trusted;
use faultline_wire::{MacAddr, PrioritySet};

use crate::engine::{Engine, TURN_BYTES, TURN_PACKETS};
use crate::lines::Octets;
use crate::notice::Notice;
use crate::port::{NicPort, number};
use faultline_capture::capture::Mark;
use faultline_capture::record::Fate;

impl Engine {
    /// Takes frames that have come in through external ports, as many of each as one turn allows. Returns true if there were
    /// any. While a NIC pauses its senders they stay where they are, as behind a switch.
    pub(crate) fn run_externals(&mut self, now: Instant) -> bool {
        if self.externals.is_empty() || self.senders_are_paused() {
            return false;
        }
        let mut worked = false;
        let mut frame = std::mem::take(&mut self.scratch);
        for index in 0..self.externals.len() {
            let nics = self.ports.len();
            let id = nics.saturating_add(index);
            // If single priorities are paused, other frames go on up to the first one of these: the ring is one queue.
            let paused = self.paused_priorities(id);
            if paused == PrioritySet::ALL {
                continue;
            }
            let (mut frames, mut octets) = (0, 0);
            while frames < TURN_PACKETS && octets < TURN_BYTES && !self.links.is_any_full() {
                let Some(port) = self.externals.get_mut(index) else {
                    break;
                };
                if !paused.is_empty()
                    && let Some(priority) = port.next_priority()
                    && paused.contains(priority)
                {
                    break;
                }
                let Some(fate) = port.take(&mut frame) else {
                    break;
                };
                self.take_octets(now, id, (fate, &frame));
                frames = frames.saturating_add(1);
                octets = octets.saturating_add(frame.len());
                worked = true;
            }
        }
        self.scratch = frame;
        worked
    }

    /// A frame of the peer of an external port begins its way, unless the port drops it.
    fn take_octets(&mut self, now: Instant, from: PortId, (fate, bytes): (Fate, &[u8])) {
        // Any adapter may be behind the port.
        let mut frame = Octets::new(Origin::Unknown, bytes);
        let line = match fate {
            Fate::Passed if !self.lines.is_empty() => {
                self.lines.send(now, from, Direction::Rx, frame)
            }
            _ => None,
        };
        if self.captures.is_on() {
            frame.mark.effects = line.unwrap_or_default();
            let fate = match fate {
                Fate::Passed => Fate::on_line(frame.mark.effects),
                fate => fate,
            };
            self.capture_octets(now, from, (LinkDirection::Rx, fate), frame);
        }
        if fate == Fate::Passed && line.is_none() {
            self.enter_from_port(now, from, frame);
        }
    }

    /// A frame of the peer of an external port goes to the switch, unless rules take it.
    pub(crate) fn enter_from_port(&mut self, now: Instant, from: PortId, frame: Octets<'_>) {
        if !self.rules_take_octets(now, (from, Direction::Rx), frame) {
            self.forward_octets(now, from, frame);
        }
    }

    /// True if a NIC pauses all that send to it.
    pub(crate) fn senders_are_paused(&self) -> bool {
        let pauses = |port: &NicPort| port.bus_master && port.nic.is_stalled();
        self.ports.values().any(pauses)
    }

    /// True if a frame has come in that a pass would take.
    pub(crate) fn has_external_frame(&self) -> bool {
        self.externals.iter().any(|port| port.has_frame())
            && !self.senders_are_paused()
            && !self.links.is_any_full()
    }

    /// Wakes threads of external ports for which this pass had frames, or made room.
    pub(crate) fn flush_externals(&mut self) {
        for port in &mut self.externals {
            port.flush();
        }
    }

    /// Looks which external ports hold senders, and lets queue pairs go on that are not held any more.
    pub(crate) fn update_holds(&mut self, now: Instant) {
        let mut has_changed = false;
        for (index, port) in self.externals.iter_mut().enumerate() {
            port.update_hold(now);
            has_changed |= self.holds.publish(index, port.holds());
        }
        if has_changed && !self.links.is_empty() {
            self.links.wake_all();
        }
        for (nic, queue_pair) in self.holds.take_released() {
            if let Some(port) = self.ports.get_mut(nic) {
                port.nic.release(queue_pair);
            }
        }
    }

    /// Holds the queue pair that has sent the last frame of a NIC of this engine, if the external port to which the frame has gone holds
    /// senders.
    pub(crate) fn hold_sender(&mut self, from: PortId, to: Option<PortId>) {
        let index = to.and_then(|to| to.checked_sub(self.ports.len()));
        let may_hold = |index: &usize| self.holds.holds(*index) && self.holds.has_room();
        if let Some(index) = index.filter(may_hold)
            && let Some(port) = self.ports.get_mut(from)
            && let Some(queue_pair) = port.nic.hold_sender()
        {
            self.holds.add(index, from, queue_pair);
        }
    }

    /// Lets all queue pairs of a NIC go on.
    pub(crate) fn release_nic(&mut self, id: PortId) {
        if let Some(port) = self.ports.get_mut(id) {
            for queue_pair in self.holds.take_nic(id) {
                port.nic.release(queue_pair);
            }
        }
    }

    /// Sends a frame of a NIC through an external port, packet by packet.
    pub(crate) fn send_external(
        &mut self,
        now: Instant,
        from: PortId,
        to: PortId,
        frame: &TxFrame,
    ) {
        let mut bytes = std::mem::take(&mut self.scratch);
        for packet in 0..frame.packets {
            let Some(ram) = self.rams.get(from) else {
                break;
            };
            // Memory that cannot be read any more: the packet is lost, and the sender repeats it or fails.
            if frame.write_packet(packet, ram, &mut bytes).is_ok() {
                self.leave_by_port(now, to, Octets::new(Origin::Unknown, &bytes));
            } else if let Some(port) = self.ports.get_mut(from) {
                port.nic.payload_not_read();
            }
        }
        self.scratch = bytes;
        if let Some(index) = to.checked_sub(self.ports.len())
            && let Some(port) = self.externals.get_mut(index)
            && port.begins_hold(now)
        {
            self.holds.publish(index, true);
        }
        self.hold_sender(from, Some(to));
    }

    /// A frame comes out of the switch at an external port, whose rules may take it.
    fn leave_by_port(&mut self, now: Instant, to: PortId, frame: Octets<'_>) {
        if !self.rules_take_octets(now, (to, Direction::Tx), frame) {
            self.pass_to_peer(now, to, frame);
        }
    }

    /// A frame goes to the peer of an external port, past its rules: over the link, if that has a model.
    pub(crate) fn pass_to_peer(&mut self, now: Instant, to: PortId, frame: Octets<'_>) {
        let dir = Direction::Tx;
        let line = match self.lines.is_empty() {
            true => None,
            false => self.lines.send(now, to, dir, frame),
        };
        match line {
            None => self.send_octets(now, to, frame),
            Some(effects) if self.captures.is_on() => {
                self.capture_loss(now, (to, dir), effects, frame);
            }
            Some(_) => {}
        }
    }

    /// A frame that rules have kept leaves a NIC, past its rules: over the link, if that has a model.
    pub(crate) fn pass_from_nic(&mut self, now: Instant, from: PortId, frame: Octets<'_>) {
        let line = match self.lines.is_empty() {
            true => None,
            false => self.lines.send(now, from, Direction::Tx, frame),
        };
        // Its capture says already that rules have taken it.
        if line.is_none() {
            self.forward_octets(now, from, frame);
        }
    }

    /// Forwards octets that have come in through a port, or have left a NIC.
    pub(crate) fn forward_octets(&mut self, now: Instant, from: PortId, frame: Octets<'_>) {
        let Some((dst, src)) = addresses(frame.bytes) else {
            return;
        };
        let tag = || vlan::tag_of(frame.bytes);
        let route = self.switch.forward(from, (src, dst), tag);
        if let Some(clash) = self.switch.take_clash() {
            self.report_clash(clash);
        }
        match route {
            Route::To(to) if to == from && from >= self.ports.len() => {}
            Route::To(to) if self.has_port(to) => {
                self.leave_switch_as_octets(now, (from, to), frame);
            }
            Route::To(to) => {
                let octets = (frame.mark.origin, frame.bytes);
                self.links.send_octets((now, from), Some(to), octets);
            }
            Route::Flood => {
                self.flood_octets(now, from, frame);
                let octets = (frame.mark.origin, frame.bytes);
                self.links.send_octets((now, from), None, octets);
            }
            Route::NoMember => self.count_no_member(from, 1),
            Route::Forged => {
                if let Some(port) = self.ports.get_mut(from) {
                    port.refuse_source(src);
                }
            }
        }
    }

    /// Logs that the peer of an external port uses the address of a NIC of this process, once for each of both.
    #[cold]
    fn report_clash(&mut self, clash: Clash) {
        let index = clash.sender.checked_sub(self.ports.len());
        if let Some(port) = index.and_then(|index| self.externals.get_mut(index))
            && port.is_first_clash(clash.owner)
        {
            let notice = Notice::AddressInUse {
                address: clash.address,
                port: port.name().to_owned(),
            };
            self.log.of_nic(clash.owner).notice(notice);
        }
    }

    /// Passes octets to all ports of this engine but one.
    fn flood_octets(&mut self, now: Instant, from: PortId, frame: Octets<'_>) {
        let count = self.ports.len().saturating_add(self.externals.len());
        for to in (0..count).filter(|to| *to != from) {
            self.leave_switch_as_octets(now, (from, to), frame);
        }
    }

    /// Passes octets of another engine to the ports of this one.
    pub(crate) fn receive_linked_octets(
        &mut self,
        now: Instant,
        from: PortId,
        (origin, bytes): (Origin, &[u8]),
    ) {
        let Some((dst, src)) = addresses(bytes) else {
            return;
        };
        let frame = Octets::new(origin, bytes);
        let tag = || vlan::tag_of(bytes);
        match self.switch.forward(from, (src, dst), tag) {
            Route::To(to) if self.has_port(to) => {
                self.leave_switch_as_octets(now, (from, to), frame);
            }
            Route::Flood => self.flood_octets(now, from, frame),
            // The table has changed since the other engine has read it.
            Route::To(_) | Route::Forged | Route::NoMember => {}
        }
    }

    /// Octets leave the switch with the VLAN tag that they have at the port, unless it is no member of their VLAN.
    fn leave_switch_as_octets(
        &mut self,
        now: Instant,
        (from, to): (PortId, PortId),
        frame: Octets<'_>,
    ) {
        if !self.switch.is_vlan_aware() {
            return self.receive_octets(now, to, frame);
        }
        let tag = vlan::tag_of(frame.bytes);
        match self.switch.egress(from, to, tag) {
            Egress::NoMember => {}
            Egress::Keep => self.receive_octets(now, to, frame),
            Egress::Tag(new) => {
                let mut bytes = std::mem::take(&mut self.tag_scratch);
                vlan::write_with_tag(frame.bytes, new, &mut bytes);
                let frame = Octets {
                    mark: frame.mark,
                    bytes: &bytes,
                };
                self.receive_octets(now, to, frame);
                self.tag_scratch = bytes;
            }
        }
    }

    /// Octets come out of the switch: an external port sends them, a NIC receives them.
    fn receive_octets(&mut self, now: Instant, to: PortId, frame: Octets<'_>) {
        if to >= self.ports.len() {
            self.leave_by_port(now, to, frame);
            return;
        }
        let dir = Direction::Rx;
        let line = match self.lines.is_empty() {
            true => None,
            false => self.lines.send(now, to, dir, frame),
        };
        match line {
            None => self.arrive_octets(now, to, frame),
            Some(effects) if self.captures.is_on() => {
                self.capture_loss(now, (to, dir), effects, frame);
            }
            Some(_) => {}
        }
    }

    /// Sends octets to the peer of an external port.
    pub(crate) fn send_octets(&mut self, now: Instant, to: PortId, frame: Octets<'_>) {
        let index = to.checked_sub(self.ports.len());
        if let Some(port) = index.and_then(|index| self.externals.get_mut(index)) {
            let fate = port.send(frame.bytes);
            if self.captures.is_on() {
                self.capture_octets(now, to, (LinkDirection::Tx, fate), frame);
            }
        }
    }

    /// Octets arrive at a NIC, whose rules may take them.
    pub(crate) fn arrive_octets(&mut self, now: Instant, to: PortId, frame: Octets<'_>) {
        let bytes = frame.bytes;
        let fate = |port: &mut NicPort| {
            if port.drops_as_down(1) {
                Fate::LinkDown
            } else if !port.link.drops_octets(LinkDirection::Rx, bytes) {
                Fate::Passed
            } else if port.link.are_too_long(bytes) {
                Fate::TooLong
            } else {
                Fate::Requested
            }
        };
        let Some(fate) = self.ports.get_mut(to).map(fate) else {
            return;
        };
        if fate != Fate::Passed {
            if self.captures.is_on() {
                self.capture_octets(now, to, (LinkDirection::Rx, fate), frame);
            }
            return;
        }
        if !self.rules_take_octets(now, (to, Direction::Rx), frame) {
            self.deliver_octets(now, to, frame);
        }
    }

    /// Lets rules take octets at a NIC or a port. Returns true if they have.
    fn rules_take_octets(
        &mut self,
        now: Instant,
        (site, dir): (PortId, Direction),
        frame: Octets<'_>,
    ) -> bool {
        let Some(rules) = self.rules().filter(|rules| rules.takes_packets(site, dir)) else {
            return false;
        };
        let bytes = frame.bytes;
        let parsed = parse_trusted(bytes).ok();
        let header = parsed.as_ref().map(|parsed| &parsed.header);
        let destination = header.map_or(0, |header| header.bth.dest_qp);
        let facts = PacketFacts {
            header,
            bytes: bytes.len(),
        };
        let Some(taking) = rules.packet(now, site, dir, destination, facts) else {
            return false;
        };
        let held = HeldFrame {
            site,
            dir,
            by: frame.mark.rule,
            origin: frame.mark.origin,
            note: frame.mark.effects.bits(),
            bytes: bytes.to_vec(),
        };
        rules.take_frame(now, taking, held);
        if self.captures.is_on() {
            let direction = match dir {
                Direction::Tx => LinkDirection::Tx,
                Direction::Rx => LinkDirection::Rx,
            };
            let frame = Octets {
                mark: Mark {
                    rule: Some(taking.by()),
                    ..frame.mark
                },
                ..frame
            };
            self.capture_octets(now, site, (direction, Fate::Rule), frame);
        }
        true
    }

    /// Octets arrive at a NIC, past its rules.
    pub(crate) fn deliver_octets(&mut self, now: Instant, to: PortId, frame: Octets<'_>) {
        let Octets { mark, bytes } = frame;
        let Some(port) = self.ports.get_mut(to) else {
            return;
        };
        let accepted = addresses(bytes).is_some_and(|(dst, _)| port.nic.accepts(dst));
        if !accepted || port.drops_as_down(1) {
            return;
        }
        let held_up = self.captures.is_on().then(|| self.before_receive(to));
        let (Some(port), Some(ram)) = (self.ports.get_mut(to), self.rams.get(to)) else {
            return;
        };
        let parsed = parse_trusted(bytes).ok();
        let header = parsed.as_ref().map(|parsed| &parsed.header);
        let event = FrameEvent::of_packet(header, bytes.len());
        self.recorder.received(number(to), &event);
        port.nic.receive_bytes_from(now, ram, mark.origin, bytes);
        if let Some(token) = held_up {
            self.capture_taken_octets(now, to, token, frame);
        }
    }
}

/// Destination and source address of a frame.
fn addresses(bytes: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let dst = bytes.first_chunk::<6>()?;
    let src = bytes.get(6..)?.first_chunk::<6>()?;
    Some((MacAddr(*dst), MacAddr(*src)))
}
