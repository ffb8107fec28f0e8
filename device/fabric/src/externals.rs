//! Frames of the peers of external ports.

use faultline_nic::{Instant, Origin};
use faultline_wire::PrioritySet;

use crate::fabric::Fabric;
use crate::frame::Octets;
use crate::outside::Outside;

impl<O: Outside> Fabric<O> {
    /// Takes frames of external ports, up to one turn for each port. Returns true if there were any. While a NIC pauses its senders, the
    /// frames stay in the rings.
    #[inline]
    pub(crate) fn take_from_externals(&mut self, out: &mut O, now: Instant) -> bool {
        let mut worked = false;
        let mut frame = std::mem::take(&mut self.octets);
        for index in 0..self.externals.len() {
            let id = self.nics.ports().saturating_add(index);
            // The ring is one queue: while single priorities are paused, frames are taken up to the first one of such a priority.
            let paused = self.paused_priorities(id);
            if paused == PrioritySet::ALL {
                continue;
            }
            let mut turn = self.begin_turn();
            while self.may_go_on(&turn) && !out.is_any_full() {
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
                // The sender behind the port is unknown.
                let packet = Octets::new(Origin::Unknown, &frame);
                self.leave_port(out, now, id, fate, packet);
                turn.take(1, frame.len(), 0);
                worked = true;
            }
        }
        self.octets = frame;
        worked
    }

    /// Wakes peers of external ports for new frames or new room.
    #[inline]
    pub(crate) fn flush_externals(&mut self) {
        for port in &mut self.externals {
            port.flush();
        }
    }
}
