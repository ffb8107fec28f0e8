//! External ports of a fabric: frames from their peers, and holds.

use faultline_nic::{Instant, Origin};
use faultline_wire::PrioritySet;

use crate::fabric::Fabric;
use crate::frame::Octets;
use crate::nic_port::NicPort;
use crate::outside::{Outside, Seen};
use crate::switch::{Clash, PortId};

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

    /// Returns true if a NIC pauses its senders.
    #[inline]
    pub fn senders_are_paused(&self) -> bool {
        self.nics.values().any(NicPort::pauses_senders)
    }

    /// Returns true if a frame waits that the next pass would take.
    #[inline]
    pub(crate) fn has_external_frame(&self, out: &O) -> bool {
        self.externals.iter().any(|port| port.has_frame())
            && !self.senders_are_paused()
            && !out.is_any_full()
    }

    /// Wakes peers of external ports for new frames or new room.
    #[inline]
    pub(crate) fn flush_externals(&mut self) {
        for port in &mut self.externals {
            port.flush();
        }
    }

    /// Updates the holds of external ports, and resumes queue pairs that are not held any more. Returns true if other fabrics must be
    /// woken for this.
    #[inline]
    pub(crate) fn update_holds(&mut self, now: Instant) -> bool {
        let mut has_changed = false;
        for (index, port) in self.externals.iter_mut().enumerate() {
            port.update_hold(now);
            has_changed |= self.holds.publish(index, port.holds());
        }
        if self.holds.has_released() {
            self.release_senders();
        }
        has_changed
    }

    /// Resumes the queue pairs of ports that no longer hold senders.
    #[cold]
    fn release_senders(&mut self) {
        for (nic, queue_pair) in self.holds.take_released() {
            if let Some(port) = self.nics.get_mut(nic) {
                port.nic.release(queue_pair);
            }
        }
    }

    /// Holds the queue pair that has sent the last frame of a NIC of this fabric, if the external port of its destination holds senders.
    #[inline]
    pub(crate) fn hold_sender(&mut self, from: PortId, to: Option<PortId>) {
        let index = to.and_then(|to| to.checked_sub(self.nics.ports()));
        let may_hold = |index: &usize| self.holds.holds(*index) && self.holds.has_room(from);
        if let Some(index) = index.filter(may_hold)
            && let Some(port) = self.nics.get_mut(from)
            && let Some(queue_pair) = port.nic.hold_sender()
        {
            self.holds.add(index, from, queue_pair);
        }
    }

    /// Resumes all held queue pairs of a NIC.
    pub(crate) fn release_nic(&mut self, id: PortId) {
        if let Some(port) = self.nics.get_mut(id) {
            for queue_pair in self.holds.take_nic(id) {
                port.nic.release(queue_pair);
            }
        }
    }

    /// A NIC has sent a frame to an external port; `unread` of its packets could not be read. The port may begin to hold senders.
    #[inline]
    pub(crate) fn end_send_to_peer(
        &mut self,
        now: Instant,
        (from, to): (PortId, PortId),
        unread: u32,
    ) {
        if let Some(port) = self.nics.get_mut(from) {
            port.nic.payload_not_read(unread);
        }
        if let Some(index) = to.checked_sub(self.nics.ports())
            && let Some(port) = self.externals.get_mut(index)
            && port.begins_hold(now)
        {
            self.holds.publish(index, true);
        }
        self.hold_sender(from, Some(to));
    }

    /// The peer of an external port uses the address of a NIC of the process.
    #[cold]
    pub(crate) fn report_clash(&mut self, out: &mut O, now: Instant, clash: Clash) {
        if let Some(port) = self.external_mut(clash.sender)
            && port.is_first_clash(clash.owner)
        {
            let seen = Seen::AddressInUse {
                nic: clash.owner,
                address: clash.address,
                port: port.name(),
            };
            out.seen(now, seen);
        }
    }
}
