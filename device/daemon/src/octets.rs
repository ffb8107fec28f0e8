//! Frames as octets: those of ports that lead out of the process, and those that rules of a scenario have taken.

use faultline_nic::{Instant, Origin, TxFrame};
use faultline_ports::{PortId, Route};
use faultline_scenario::rules::{HeldFrame, PacketFacts};
use faultline_scenario::trigger::Direction;
use faultline_telemetry::{Direction as LinkDirection, FrameEvent};
use faultline_wire::MacAddr;
use faultline_wire::packet::parse_trusted;

use crate::capture::{Fate, Seen};
use crate::engine::{Engine, TURN_BYTES, TURN_PACKETS};
use crate::port::{NicPort, number};

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
            if !self.lines.is_empty() && self.lines.pause(now, id, nics) {
                continue;
            }
            let (mut frames, mut octets) = (0, 0);
            while frames < TURN_PACKETS && octets < TURN_BYTES && !self.links.is_any_full() {
                let taken = self
                    .externals
                    .get_mut(index)
                    .map_or(0, |port| port.take(&mut frame));
                if taken == 0 {
                    break;
                }
                if !frame.is_empty() {
                    self.take_octets(now, id, &frame);
                }
                frames = frames.saturating_add(1);
                octets = octets.saturating_add(taken);
                worked = true;
            }
        }
        self.scratch = frame;
        worked
    }

    /// A frame of the peer of an external port begins its way.
    fn take_octets(&mut self, now: Instant, from: PortId, bytes: &[u8]) {
        if self.captures.is_on() {
            let passes = (LinkDirection::Rx, Fate::Passed);
            self.capture_octets(now, from, passes, bytes);
        }
        // Any adapter may be behind the port.
        let frame = (Origin::Unknown, bytes);
        if self.lines.is_empty() || !self.lines.send(now, from, Direction::Rx, frame) {
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

    /// Sends a frame of a NIC through an external port, packet by packet.
    pub(crate) fn send_external(
        &mut self,
        now: Instant,
        from: PortId,
        to: PortId,
        frame: &TxFrame,
    ) {
        let index = to.checked_sub(self.ports.len());
        let (Some(port), Some(ram)) = (
            index.and_then(|index| self.externals.get_mut(index)),
            self.rams.get(from),
        ) else {
            return;
        };
        for packet in 0..frame.packets {
            // Memory that cannot be read any more: the packet is lost, and the sender repeats it or fails.
            if frame.write_packet(packet, ram, &mut self.scratch).is_err() {
                if let Some(port) = self.ports.get_mut(from) {
                    port.nic.payload_not_read();
                }
                continue;
            }
            let is_on_line = !self.lines.is_empty()
                && self
                    .lines
                    .send(now, to, Direction::Tx, (Origin::Unknown, &self.scratch));
            if is_on_line {
                continue;
            }
            let fate = port.send(&self.scratch);
            if self.captures.is_on() {
                let sender = self.ports.get(from);
                let seen = Seen {
                    at: now,
                    port: to,
                    direction: LinkDirection::Tx,
                    sender: sender.map_or(0, |port| port.nic.last_sender()),
                    fate,
                    token: 0,
                    is_raw: false,
                };
                self.captures.octets(&seen, &self.scratch);
            }
        }
    }

    /// Forwards octets that have come in through a port, or that rules have kept of what a NIC has sent.
    pub(crate) fn forward_octets(
        &mut self,
        now: Instant,
        from: PortId,
        (origin, bytes): (Origin, &[u8]),
    ) {
        let Some((dst, src)) = addresses(bytes) else {
            return;
        };
        match self.switch.forward(from, src, dst) {
            Route::To(to) if to == from && from >= self.ports.len() => {}
            Route::To(to) if self.has_port(to) => self.receive_octets(now, to, (origin, bytes)),
            Route::To(to) => self
                .links
                .send_octets((now, from), Some(to), (origin, bytes)),
            Route::Flood => {
                self.flood_octets(now, from, (origin, bytes));
                self.links.send_octets((now, from), None, (origin, bytes));
            }
            Route::Forged => {
                if let Some(port) = self.ports.get_mut(from) {
                    port.refuse_source(src);
                }
            }
        }
    }

    /// Passes octets to all ports of this engine but one.
    fn flood_octets(&mut self, now: Instant, from: PortId, (origin, bytes): (Origin, &[u8])) {
        let count = self.ports.len().saturating_add(self.externals.len());
        for to in (0..count).filter(|to| *to != from) {
            self.receive_octets(now, to, (origin, bytes));
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
        match self.switch.forward(from, src, dst) {
            Route::To(to) if self.has_port(to) => self.receive_octets(now, to, (origin, bytes)),
            Route::Flood => self.flood_octets(now, from, (origin, bytes)),
            Route::To(_) | Route::Forged => {}
        }
    }

    /// Octets come out of the switch: an external port sends them, a NIC receives them.
    fn receive_octets(&mut self, now: Instant, to: PortId, (origin, bytes): (Origin, &[u8])) {
        let is_external = to >= self.ports.len();
        let dir = match is_external {
            true => Direction::Tx,
            false => Direction::Rx,
        };
        if !self.lines.is_empty() && self.lines.send(now, to, dir, (origin, bytes)) {
            return;
        }
        match is_external {
            true => self.send_octets(to, bytes),
            false => self.arrive_octets(now, to, (origin, bytes)),
        }
    }

    /// Sends octets to the peer of an external port.
    pub(crate) fn send_octets(&mut self, to: PortId, bytes: &[u8]) {
        let index = to.checked_sub(self.ports.len());
        if let Some(port) = index.and_then(|index| self.externals.get_mut(index)) {
            let fate = port.send(bytes);
            if self.captures.is_on() {
                let now = self.now();
                self.capture_octets(now, to, (LinkDirection::Tx, fate), bytes);
            }
        }
    }

    /// Octets arrive at a NIC, whose rules may take them.
    pub(crate) fn arrive_octets(
        &mut self,
        now: Instant,
        to: PortId,
        (origin, bytes): (Origin, &[u8]),
    ) {
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
                self.capture_octets(now, to, (LinkDirection::Rx, fate), bytes);
            }
            return;
        }
        if let Some(rules) = self.rules() {
            let parsed = parse_trusted(bytes).ok();
            let header = parsed.as_ref().map(|parsed| &parsed.header);
            let destination = header.map_or(0, |header| header.bth.dest_qp);
            let facts = PacketFacts {
                header,
                bytes: bytes.len(),
            };
            if let Some(change) = rules.packet(now, to, Direction::Rx, destination, facts) {
                let held = HeldFrame {
                    nic: to,
                    dir: Direction::Rx,
                    origin,
                    bytes: bytes.to_vec(),
                };
                rules.take_frame(now, change, held);
                if self.captures.is_on() {
                    let taken = (LinkDirection::Rx, Fate::Rule);
                    self.capture_octets(now, to, taken, bytes);
                }
                return;
            }
        }
        self.deliver_octets(now, to, (origin, bytes));
    }

    /// Octets arrive at a NIC, past its rules.
    pub(crate) fn deliver_octets(
        &mut self,
        now: Instant,
        to: PortId,
        (origin, bytes): (Origin, &[u8]),
    ) {
        let (Some(port), Some(ram)) = (self.ports.get_mut(to), self.rams.get(to)) else {
            return;
        };
        let accepted = addresses(bytes).is_some_and(|(dst, _)| port.nic.accepts(dst));
        if !accepted || port.drops_as_down(1) {
            return;
        }
        if self.captures.is_on() {
            let seen = Seen {
                at: now,
                port: to,
                direction: LinkDirection::Rx,
                sender: 0,
                fate: Fate::Passed,
                token: 0,
                is_raw: false,
            };
            self.captures.octets(&seen, bytes);
        }
        let parsed = parse_trusted(bytes).ok();
        let header = parsed.as_ref().map(|parsed| &parsed.header);
        let event = FrameEvent::of_packet(header, bytes.len());
        self.recorder.received(number(to), &event);
        port.nic.receive_bytes_from(now, ram, origin, bytes);
    }
}

/// Destination and source address of a frame.
fn addresses(bytes: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let dst = bytes.first_chunk::<6>()?;
    let src = bytes.get(6..)?.first_chunk::<6>()?;
    Some((MacAddr(*dst), MacAddr(*src)))
}
