//! Frames to and from other fabrics of the process, and pauses for their senders.

use faultline_nic::Instant;
use faultline_wire::PrioritySet;

use crate::fabric::Fabric;
use crate::frame::{Frame, FrameMut};
use crate::outside::Outside;
use crate::switch::{PortId, Route};

/// Stands for all senders of other fabrics in [`LinkModels::paused`](crate::link_models::LinkModels::paused).
const SENDER_OF_OTHER: PortId = PortId::MAX;

/// A frame of another fabric.
#[derive(Debug)]
pub struct OtherFrame<'a> {
    /// Time at which it was sent, by the clock of that fabric.
    pub at: Instant,
    /// The port at which it has entered that fabric.
    pub from: PortId,
    /// The queue pair that has sent it; 0: not known.
    pub sender: u32,
    /// The frame. The payload of a frame by reference is in the memory that this fabric has for port `from`.
    pub frame: FrameMut<'a>,
}

impl<O: Outside> Fabric<O> {
    /// Sends a frame to the fabric of another port; `to` is `None`: to all others.
    #[inline]
    pub(crate) fn send_to_others(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        to: Option<PortId>,
        frame: Frame<'_>,
    ) {
        if let Frame::Octets(_) = frame {
            // Only a frame beyond the maximum length is lost.
            let _ = out.cross(now, (from, 0), to, frame, None);
            return;
        }
        // A frame of another fabric is never sent to a fabric.
        if let Some(port) = self.nics.get_mut(from) {
            let sender = port.nic.last_sender();
            if !out.cross(now, (from, sender), to, frame, self.memories.get(from)) {
                port.nic.payload_not_read(frame.packets());
            }
            self.hold_sender(from, to);
        }
    }

    /// Returns true if no frames of other fabrics may be taken, because all senders into this fabric are paused. Pauses of single
    /// priorities take effect at the sending NIC.
    #[inline]
    pub fn pauses_others(&self) -> bool {
        self.paused_for_others() == PrioritySet::ALL || self.senders_are_paused()
    }

    /// The time of this pass, or of the latest frame of another fabric if that is later.
    pub fn time_after_others(&self, now: Instant) -> Instant {
        now.max(self.latest)
    }

    /// Delivers a frame of another fabric to the ports of this one. The clock is read once for each pass, so the frame may have a later
    /// time than this pass. Then `now` is advanced, because the effects of the frame are later than the frame.
    #[inline(always)]
    pub fn receive_from_other(&mut self, out: &mut O, now: &mut Instant, other: OtherFrame<'_>) {
        *now = (*now).max(Instant(other.at.0.saturating_add(1)));
        self.latest = *now;
        self.sender_of_other = other.sender;
        // The form is known in each of these calls.
        match other.frame {
            FrameMut::ByReference(frame) => {
                self.deliver_other(out, *now, other.from, FrameMut::ByReference(frame));
            }
            FrameMut::Octets(octets) => {
                self.deliver_other(out, *now, other.from, FrameMut::Octets(octets));
            }
        }
    }

    #[inline(always)]
    fn deliver_other(&mut self, out: &mut O, now: Instant, from: PortId, mut frame: FrameMut<'_>) {
        let Some(addresses) = frame.as_frame().addresses() else {
            return;
        };
        match self
            .switch
            .forward_of_sibling(from, addresses, || frame.as_frame().vlan_tag())
        {
            Route::To(to) if self.has_port(to) => {
                if self.egress(out, now, (from, to), &mut frame) {
                    self.note_received(out, now, (from, to), frame.as_frame());
                }
            }
            Route::Flood => {
                self.flood(out, now, from, frame);
            }
            // The table has changed since the other fabric has read it.
            Route::To(_) | Route::Forged | Route::NoMember => {}
        }
    }

    /// Priorities that link models of this fabric pause for senders of other fabrics.
    fn paused_for_others(&self) -> PrioritySet {
        self.links.paused(SENDER_OF_OTHER, self.nics.ports())
    }

    /// Publishes the priorities that link models of this fabric pause for senders of other fabrics, and reads those of the others. Returns
    /// true if the others must be woken for this.
    #[inline]
    pub fn share_pauses(&mut self) -> bool {
        // If all priorities are paused, frames stay on the engine links.
        let paused = self.paused_for_others();
        let single = match paused == PrioritySet::ALL {
            true => PrioritySet::NONE,
            false => paused,
        };
        let has_changed = self.shared_pauses.publish(single);
        self.shared_pauses.refresh();
        has_changed
    }

    /// Priorities that link models of all fabrics pause for a port of this one.
    #[inline]
    pub(crate) fn paused_priorities(&self, sender: PortId) -> PrioritySet {
        let of_others = self.shared_pauses.paused();
        match self.links.is_empty() {
            true => of_others,
            false => of_others.or(self.links.paused(sender, self.nics.ports())),
        }
    }
}
