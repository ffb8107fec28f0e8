//! What captures take of the frames that a fabric shows.

use faultline_fabric::frame::{Frame, Octets, is_rnr_nak};
use faultline_fabric::outside::Sight;
use faultline_fabric::{Fate, PortId};
use faultline_nic::{Dma, FrameKind, Instant, Nic};
use faultline_scenario::trigger::Direction;

use crate::capture::{Captures, Seen};

impl Captures {
    /// A NIC is about to receive a frame: the page faults that it reports until the frame is seen are those of this frame.
    pub fn arriving(&mut self, nic: PortId) {
        self.end_receive();
        self.stall_of_next = self.stall(nic);
    }

    /// A frame is seen at an interface.
    #[cold]
    pub fn sight<M: Dma>(&mut self, at: Instant, sight: &Sight<'_, M>) {
        let (port, direction) = sight.place;
        // At an external port, `Rx` is away from the peer.
        let is_received =
            direction == Direction::Rx && sight.fate == Fate::Passed && sight.device.is_some();
        let mut seen = Seen {
            at,
            port,
            direction,
            sender: sight.sender,
            fate: sight.fate,
            effects: sight.effects,
            rule: sight.rule,
            token: if is_received { self.stall_of_next } else { 0 },
            is_raw: false,
            is_again: sight.is_again,
            is_held: is_received && sight.device.is_some_and(Nic::holds_input),
        };
        match sight.sent.map(|sent| (sent, &sent.kind)) {
            Some((_, FrameKind::Raw { .. })) => {
                let makes = |nic: &Nic| nic.makes_segments(sight.sender);
                seen.is_raw = !sight.device.is_some_and(makes);
            }
            Some((sent, FrameKind::Roce(header)))
                if direction == Direction::Tx && is_rnr_nak(sent) =>
            {
                seen.token = self.refusal(port, sight.sender, header.bth.psn.get());
            }
            Some(_) | None => {}
        }
        match (sight.frame, sight.memory) {
            (Frame::Octets(Octets { bytes, .. }), _) => self.octets(&seen, bytes),
            (Frame::ByReference(frame), Some(memory)) => self.frame(&seen, frame, memory),
            (Frame::ByReference(_), None) => {}
        }
        if is_received {
            self.end_receive();
        }
    }
}
