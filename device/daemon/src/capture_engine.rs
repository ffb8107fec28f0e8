//! What the engine copies for captures.

use faultline_nic::{FrameKind, Instant, TxFrame};
use faultline_ports::line::Effects;
use faultline_ports::{PortId, Route};
use faultline_scenario::trigger;
use faultline_telemetry::Direction;
use faultline_wire::Syndrome;

use crate::capture::{Fate, Seen};
use crate::engine::Engine;
use crate::lines::Octets;

impl Engine {
    /// A NIC sends a frame. `route`: where it goes, if it goes on at once. `drop`: it is dropped, by the port if true, else by a rule.
    #[cold]
    pub(crate) fn capture_sent(
        &mut self,
        (from, now): (PortId, Instant),
        frame: &TxFrame,
        route: Option<Route>,
        drop: Option<bool>,
    ) {
        let fate = match (drop, route) {
            (Some(true), _) => self.fate_at_port(from, frame),
            (Some(false), _) => Fate::Rule,
            (None, Some(Route::Forged)) => Fate::Forged,
            (None, Some(Route::NoMember)) => Fate::NoMember,
            (None, _) => Fate::Passed,
        };
        let seen = Seen {
            at: now,
            port: from,
            direction: Direction::Tx,
            sender: self.sender(from),
            fate,
            effects: Effects::NONE,
            token: self.awaited_fault(from, frame),
            is_raw: matches!(frame.kind, FrameKind::Raw { .. }),
        };
        if let Some(ram) = self.rams.get(from) {
            self.captures.frame(&seen, frame, ram);
        }
    }

    /// A frame of a NIC arrives at another one. `drop`: it is dropped, by the port if true, else by a rule.
    #[cold]
    pub(crate) fn capture_received(
        &mut self,
        (from, to): (PortId, PortId),
        now: Instant,
        frame: &TxFrame,
        drop: Option<bool>,
    ) {
        let fate = match drop {
            None => Fate::Passed,
            Some(true) => self.fate_at_port(to, frame),
            Some(false) => Fate::Rule,
        };
        let seen = Seen {
            at: now,
            port: to,
            direction: Direction::Rx,
            sender: self.sender(from),
            fate,
            effects: Effects::NONE,
            token: 0,
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
        let seen = Seen {
            at: now,
            port,
            direction,
            sender: 0,
            fate,
            effects: frame.mark.effects,
            token: 0,
            is_raw: false,
        };
        self.captures.octets(&seen, frame.bytes);
    }

    /// The queue pair that has sent the frame that is forwarded.
    fn sender(&self, nic: PortId) -> u32 {
        let port = self.ports.get(nic);
        port.map_or(self.links.sender, |port| port.nic.last_sender())
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
