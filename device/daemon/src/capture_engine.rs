//! What the engine copies for captures.

use faultline_fabric::PortId;
use faultline_fabric::link_model::Effects;
use faultline_nic::{FrameKind, Instant, TxFrame};
use faultline_scenario::rules::ByRule;
use faultline_scenario::trigger::Direction;
use faultline_telemetry as telemetry;
use faultline_wire::Syndrome;

use crate::engine::Engine;
use faultline_capture::capture::Seen;
use faultline_fabric::Fate;
use faultline_fabric::Mark;
use faultline_fabric::frame::{Frame, Octets};

impl Engine {
    /// Captures a frame that has come in at port `from`, at the interface of a port. `fate`: what becomes of the frame there, and the
    /// rule that has taken it.
    #[cold]
    pub(crate) fn capture(
        &mut self,
        now: Instant,
        from: PortId,
        place: (PortId, Direction),
        fate: (Fate, Option<ByRule>),
        frame: Frame<'_>,
    ) {
        let seen = self.seen(now, from, place, fate, frame);
        self.capture_as(&seen, from, frame);
    }

    fn capture_as(&mut self, seen: &Seen, from: PortId, frame: Frame<'_>) {
        match frame {
            Frame::ByReference(frame) => {
                if let Some(ram) = self.rams.get(from) {
                    self.captures.frame(seen, frame, ram);
                }
            }
            Frame::Octets(Octets { bytes, .. }) => self.captures.octets(seen, bytes),
        }
    }

    /// What is known of a frame at an interface.
    fn seen(
        &mut self,
        now: Instant,
        from: PortId,
        (port, dir): (PortId, Direction),
        (fate, rule): (Fate, Option<ByRule>),
        frame: Frame<'_>,
    ) -> Seen {
        let mark = Mark {
            rule: rule.or(frame.mark().rule),
            ..frame.mark()
        };
        let seen = Seen::of_octets(now, port, (direction(dir), fate), mark);
        let Frame::ByReference(frame) = frame else {
            return seen;
        };
        Seen {
            sender: self.sender(from),
            token: match dir {
                Direction::Tx => self.awaited_fault(port, frame),
                Direction::Rx => 0,
            },
            is_raw: matches!(frame.kind, FrameKind::Raw { .. }),
            ..seen
        }
    }

    /// A NIC has received a frame. `stall`: what [`Engine::before_receive`] has returned.
    #[cold]
    pub(crate) fn capture_received(
        &mut self,
        now: Instant,
        (from, to): (PortId, PortId),
        stall: u64,
        frame: Frame<'_>,
    ) {
        self.take_faults();
        let place = (to, Direction::Rx);
        let seen = Seen {
            token: stall,
            ..self.seen(now, from, place, (Fate::Passed, None), frame)
        };
        self.capture_as(&seen, from, frame);
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

    /// A packet of a frame enters the modelled link of a port, which does this to it.
    #[cold]
    pub(crate) fn capture_on_link(
        &mut self,
        now: Instant,
        from: PortId,
        (port, dir): (PortId, Direction),
        (frame, octets): (Frame<'_>, Octets<'_>),
        effects: Effects,
    ) {
        let fate = (Fate::on_link(effects), None);
        let is_external = port >= self.ports.len();
        let goes_to_switch = is_external == (dir == Direction::Rx);
        let seen = if goes_to_switch {
            // A packet that rules have kept was captured when they took it.
            if octets.mark.rule.is_some() {
                return;
            }
            self.seen(now, from, (port, dir), fate, frame)
        } else {
            // A packet that is not lost is captured where it arrives.
            if fate.0 == Fate::Passed {
                return;
            }
            Seen::of_octets(now, port, (direction(dir), fate.0), octets.mark)
        };
        let seen = Seen {
            effects: seen.effects | effects,
            ..seen
        };
        self.captures.octets(&seen, octets.bytes);
    }

    /// The queue pair that has sent the frame that is forwarded.
    fn sender(&self, nic: PortId) -> u32 {
        let port = self.ports.get(nic);
        port.map_or(self.links.sender, |port| port.nic.last_sender())
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

/// A direction of rules as one of records.
fn direction(dir: Direction) -> telemetry::Direction {
    match dir {
        Direction::Tx => telemetry::Direction::Tx,
        Direction::Rx => telemetry::Direction::Rx,
    }
}
