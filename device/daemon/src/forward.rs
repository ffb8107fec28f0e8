//! Frames that NICs of the engine send.

use faultline_nic::{FrameKind, Instant, TxFrame};
use faultline_ports::{Egress, PortId, Route};
use faultline_scenario::trigger;
use faultline_telemetry::{Direction, FrameEvent};

use crate::engine::Engine;
use crate::port::{NicPort, number};
use faultline_capture::capture::Dropper;

impl Engine {
    /// Delivers a frame to its destinations: to NICs by reference, which copy the payload during the call, and to external ports
    /// as octets. `len` is its length. Returns the work of the NICs. The frame is not changed afterwards.
    pub(crate) fn forward(
        &mut self,
        from: PortId,
        now: Instant,
        frame: &mut TxFrame,
        len: usize,
    ) -> u64 {
        let by_port = |port: &mut NicPort| {
            port.drops_as_down(frame.packets) || port.link.drops_frame(Direction::Tx, frame)
        };
        let by_port = self.ports.get_mut(from).is_none_or(by_port);
        let dropper = if by_port {
            Some(Dropper::Port)
        } else if self.rules_see(from, trigger::Direction::Tx, frame) {
            let rule = self.rules_take_sent(from, now, frame);
            rule.map(Dropper::Rule)
        } else {
            None
        };
        let is_dropped = dropper.is_some();
        let is_on_line = !is_dropped
            && !self.lines.is_empty()
            && self.enters_line(now, from, (from, trigger::Direction::Tx), frame);
        let route = match is_dropped || is_on_line {
            true => None,
            false => {
                let addresses = (frame.src(), frame.dst());
                let tag = || frame.vlan_tag();
                Some(self.switch.forward(from, addresses, tag))
            }
        };
        // The packets on a modelled link were captured with what is done to them there.
        if self.captures.is_on() && !is_on_line {
            self.capture_sent((from, now), frame, route, dropper);
        }
        let sender = self
            .ports
            .get(from)
            .map_or(0, |port| port.nic.last_sender());
        let seen = self.recorder.frame(sender, frame, len);
        let mut taken_by = FrameEvent::NO_NIC;
        let work = match route {
            None => 0,
            Some(Route::To(to)) => {
                let work = self.leave_switch(from, to, now, frame);
                if work.is_some() {
                    taken_by = number(to);
                }
                work.unwrap_or_default()
            }
            Some(Route::Flood) => {
                if !self.links.is_empty() {
                    self.send_to_engines(now, from, None, frame);
                }
                self.flood(from, now, frame, seen.as_ref())
            }
            Some(Route::Forged) => {
                if let Some(port) = self.ports.get_mut(from) {
                    port.refuse_source(frame.src());
                }
                0
            }
            Some(Route::NoMember) => {
                self.count_no_member(from, frame.packets);
                0
            }
        };
        if let Some(seen) = seen {
            let sent = FrameEvent {
                to: taken_by,
                ..seen
            };
            self.recorder.sent(now, number(from), sent);
        }
        work
    }

    /// Delivers a frame to all ports of this engine but one. Returns the work of the NICs.
    pub(crate) fn flood(
        &mut self,
        from: PortId,
        now: Instant,
        frame: &mut TxFrame,
        seen: Option<&FrameEvent>,
    ) -> u64 {
        let count = self.ports.len().saturating_add(self.externals.len());
        let mut work = 0u64;
        for to in 0..count {
            if to == from || !self.has_port(to) {
                continue;
            }
            if let Some(done) = self.leave_switch(from, to, now, frame) {
                work = work.saturating_add(done);
                if let Some(seen) = seen {
                    self.recorder.received(number(to), seen);
                }
            }
        }
        work
    }

    /// True if the rules of a scenario must be asked about a frame.
    #[inline]
    fn rules_see(&self, nic: PortId, dir: trigger::Direction, frame: &TxFrame) -> bool {
        let scenario = self.scenario.as_ref();
        let qpn = || self.queue_pair_of(nic, dir, frame);
        scenario.is_some_and(|scenario| !scenario.ignores((nic, dir), frame, qpn))
    }

    /// The queue pair of a NIC that sends a frame, or is to receive it; 0: none.
    pub(crate) fn queue_pair_of(
        &self,
        nic: PortId,
        dir: trigger::Direction,
        frame: &TxFrame,
    ) -> u32 {
        match (dir, &frame.kind) {
            (trigger::Direction::Tx, _) => {
                let port = self.ports.get(nic);
                port.map_or(0, |port| port.nic.last_sender())
            }
            (trigger::Direction::Rx, FrameKind::Roce(header)) => header.bth.dest_qp,
            (trigger::Direction::Rx, FrameKind::Raw { .. }) => 0,
        }
    }

    /// Counts packets of a port that are dropped because of their VLAN.
    pub(crate) fn count_no_member(&mut self, from: PortId, packets: u32) {
        let external = from.checked_sub(self.ports.len());
        let counter = match external {
            None => self
                .ports
                .get_mut(from)
                .map(|port| &mut port.link.counts.vlan),
            Some(index) => self
                .externals
                .get_mut(index)
                .map(|port| &mut port.counts.vlan),
        };
        if let Some(counter) = counter {
            *counter = counter.saturating_add(packets.into());
        }
    }

    /// Delivers a frame to a port with the VLAN tag that it has there, unless the port is no member of its VLAN. Another engine gets
    /// it as it came in, and does this itself. Returns as [`Engine::deliver`].
    #[inline]
    pub(crate) fn leave_switch(
        &mut self,
        from: PortId,
        to: PortId,
        now: Instant,
        frame: &mut TxFrame,
    ) -> Option<u64> {
        if !self.switch.is_vlan_aware() || !self.has_port(to) {
            return self.deliver(from, to, now, frame);
        }
        let tag = frame.vlan_tag();
        match self.switch.egress(from, to, tag) {
            Egress::NoMember => None,
            Egress::Keep => self.deliver(from, to, now, frame),
            Egress::Tag(new) => {
                frame.set_vlan_tag(new);
                let work = self.deliver(from, to, now, frame);
                frame.set_vlan_tag(tag);
                work
            }
        }
    }

    /// Delivers a frame to a NIC by reference, or sends it through an external port. Returns the NIC's work; `None` if no NIC gets
    /// the frame.
    pub(crate) fn deliver(
        &mut self,
        from: PortId,
        to: PortId,
        now: Instant,
        frame: &TxFrame,
    ) -> Option<u64> {
        if to >= self.ports.len() {
            self.send_out(now, from, to, frame);
            return None;
        }
        if !self.lines.is_empty()
            && self.enters_line(now, from, (to, trigger::Direction::Rx), frame)
        {
            return None;
        }
        let Some(port) = self.ports.get_mut(to) else {
            self.send_out(now, from, to, frame);
            return None;
        };
        if !port.nic.accepts(frame.dst()) {
            return None;
        }
        let by_port =
            port.drops_as_down(frame.packets) || port.link.drops_frame(Direction::Rx, frame);
        let dropper = if by_port {
            Some(Dropper::Port)
        } else if self.rules_see(to, trigger::Direction::Rx, frame) {
            let rule = self.rules_take_received(from, to, now, frame);
            rule.map(Dropper::Rule)
        } else {
            None
        };
        if let Some(dropper) = dropper {
            if self.captures.is_on() {
                self.capture_not_received((from, to), now, frame, dropper);
            }
            return None;
        }
        let held_up = self.captures.is_on().then(|| self.before_receive(to));
        let (sender, ram) = (self.rams.get(from)?, self.rams.get(to)?);
        let port = self.ports.get_mut(to)?;
        let before = port.nic.work();
        port.nic.receive(now, ram, frame, sender);
        let work = port.nic.work().wrapping_sub(before);
        if let Some(token) = held_up {
            self.capture_received((from, to), now, frame, token);
        }
        Some(work)
    }
}
