//! What the engine copies for captures.

use faultline_nic::{FrameKind, Instant, TxFrame};
use faultline_ports::line::Effects;
use faultline_ports::{PortId, Route};
use faultline_scenario::rules::ByRule;
use faultline_scenario::trigger;
use faultline_telemetry::Direction;
use faultline_wire::Syndrome;

use crate::engine::Engine;
use crate::lines::Octets;
use faultline_capture::capture::{Dropper, Seen};
use faultline_capture::record::Fate;

impl Engine {
    /// A NIC sends a frame. `route`: where it goes, if it goes on at once. `dropper`: what drops it.
    #[cold]
    pub(crate) fn capture_sent(
        &mut self,
        (from, now): (PortId, Instant),
        frame: &TxFrame,
        route: Option<Route>,
        dropper: Option<Dropper>,
    ) {
        let (fate, rule) = match dropper {
            Some(dropper) => self.drop_of(from, frame, dropper),
            None => (Fate::Passed, None),
        };
        let fate = match (fate, route) {
            (Fate::Passed, Some(Route::Forged)) => Fate::Forged,
            (Fate::Passed, Some(Route::NoMember)) => Fate::NoMember,
            (fate, _) => fate,
        };
        let seen = Seen {
            at: now,
            port: from,
            direction: Direction::Tx,
            sender: self.sender(from),
            fate,
            effects: Effects::NONE,
            rule,
            token: self.awaited_fault(from, frame),
            is_raw: matches!(frame.kind, FrameKind::Raw { .. }),
        };
        if let Some(ram) = self.rams.get(from) {
            self.captures.frame(&seen, frame, ram);
        }
    }

    /// A frame of a NIC does not reach another one.
    #[cold]
    pub(crate) fn capture_not_received(
        &mut self,
        (from, to): (PortId, PortId),
        now: Instant,
        frame: &TxFrame,
        dropper: Dropper,
    ) {
        let (fate, rule) = self.drop_of(to, frame, dropper);
        self.capture_arrived((from, to), now, frame, (fate, rule, 0));
    }

    /// A NIC has received a frame of another one. `held_up`: what [`Engine::before_receive`] has returned.
    #[cold]
    pub(crate) fn capture_received(
        &mut self,
        (from, to): (PortId, PortId),
        now: Instant,
        frame: &TxFrame,
        held_up: u64,
    ) {
        self.take_faults();
        self.capture_arrived((from, to), now, frame, (Fate::Passed, None, held_up));
        self.captures.end_receive();
    }

    /// A NIC has received octets. `held_up`: what [`Engine::before_receive`] has returned.
    #[cold]
    pub(crate) fn capture_taken_octets(
        &mut self,
        now: Instant,
        to: PortId,
        held_up: u64,
        frame: Octets<'_>,
    ) {
        self.take_faults();
        let seen = Seen {
            token: held_up,
            ..Seen::of_octets(now, to, (Direction::Rx, Fate::Passed), frame.mark)
        };
        self.captures.octets(&seen, frame.bytes);
        self.captures.end_receive();
    }

    /// A NIC is about to receive a frame: the page faults that it reports until it is captured are those of this frame. Returns the
    /// fault that has stopped its ingress; 0: none.
    #[cold]
    pub(crate) fn before_receive(&mut self, to: PortId) -> u64 {
        self.take_faults();
        self.captures.end_receive();
        self.captures.stall(to)
    }

    /// Takes what the NICs report, if a capture names page faults.
    fn take_faults(&mut self) {
        if self.captures.names_faults() {
            self.take_diagnostics();
        }
    }

    fn capture_arrived(
        &mut self,
        (from, to): (PortId, PortId),
        now: Instant,
        frame: &TxFrame,
        (fate, rule, token): (Fate, Option<ByRule>, u64),
    ) {
        let seen = Seen {
            at: now,
            port: to,
            direction: Direction::Rx,
            sender: self.sender(from),
            fate,
            effects: Effects::NONE,
            rule,
            token,
            is_raw: matches!(frame.kind, FrameKind::Raw { .. }),
        };
        if let Some(ram) = self.rams.get(from) {
            self.captures.frame(&seen, frame, ram);
        }
    }

    /// A packet of a frame that a NIC sends enters its modelled link, with what is done to it there.
    #[cold]
    pub(crate) fn capture_on_line(
        &mut self,
        now: Instant,
        from: PortId,
        frame: &TxFrame,
        (effects, bytes): (Effects, &[u8]),
    ) {
        let seen = Seen {
            at: now,
            port: from,
            direction: Direction::Tx,
            sender: self.sender(from),
            fate: Fate::on_line(effects),
            effects,
            rule: None,
            token: self.awaited_fault(from, frame),
            is_raw: matches!(frame.kind, FrameKind::Raw { .. }),
        };
        self.captures.octets(&seen, bytes);
    }

    /// A frame enters a modelled link that leads to a NIC or to a peer: it is captured here if it is lost, else where it arrives.
    #[cold]
    pub(crate) fn capture_loss(
        &mut self,
        now: Instant,
        (port, dir): (PortId, trigger::Direction),
        effects: Effects,
        mut frame: Octets<'_>,
    ) {
        let fate = Fate::on_line(effects);
        if fate != Fate::Passed {
            let direction = match dir {
                trigger::Direction::Tx => Direction::Tx,
                trigger::Direction::Rx => Direction::Rx,
            };
            frame.mark.effects |= effects;
            self.capture_octets(now, port, (direction, fate), frame);
        }
    }

    /// A frame as octets is seen at a port.
    #[cold]
    pub(crate) fn capture_octets(
        &mut self,
        now: Instant,
        port: PortId,
        (direction, fate): (Direction, Fate),
        frame: Octets<'_>,
    ) {
        let seen = Seen::of_octets(now, port, (direction, fate), frame.mark);
        self.captures.octets(&seen, frame.bytes);
    }

    /// The queue pair that has sent the frame that is forwarded.
    fn sender(&self, nic: PortId) -> u32 {
        let port = self.ports.get(nic);
        port.map_or(self.links.sender, |port| port.nic.last_sender())
    }

    /// What becomes of a frame that is dropped at a port, and by which rule.
    fn drop_of(&self, id: PortId, frame: &TxFrame, dropper: Dropper) -> (Fate, Option<ByRule>) {
        match dropper {
            Dropper::Port => (self.fate_at_port(id, frame), None),
            Dropper::Rule(rule) => (Fate::Rule, Some(rule)),
        }
    }

    /// Why a port has dropped a frame.
    fn fate_at_port(&self, id: PortId, frame: &TxFrame) -> Fate {
        match self.ports.get(id) {
            Some(port) if !port.is_down() && port.link.is_too_long(frame) => Fate::TooLong,
            Some(port) if !port.is_down() => Fate::Requested,
            _ => Fate::LinkDown,
        }
    }

    /// The page fault for which an RNR NAK lets its requester wait; 0: none.
    fn awaited_fault(&mut self, nic: PortId, frame: &TxFrame) -> u64 {
        let FrameKind::Roce(header) = &frame.kind else {
            return 0;
        };
        let syndrome = header.aeth.map(|aeth| aeth.syndrome);
        if !matches!(syndrome, Some(Syndrome::RnrNak { .. })) {
            return 0;
        }
        // The diagnostic that names the fault may wait in the NIC.
        self.take_diagnostics();
        let qpn = self.sender(nic);
        self.captures.refusal(nic, qpn, header.bth.psn.get())
    }
}
