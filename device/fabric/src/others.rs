//! Frames of other fabrics of the process.

use faultline_nic::Instant;

use crate::fabric::Fabric;
use crate::frame::FrameMut;
use crate::outside::Outside;
use crate::switch::{PortId, Route};

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
}
