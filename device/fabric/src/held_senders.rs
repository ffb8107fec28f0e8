//! Queue pairs that external ports hold, because their peers take frames too slowly.

use faultline_nic::Instant;

use crate::fabric::Fabric;
use crate::outside::Outside;
use crate::switch::PortId;

impl<O: Outside> Fabric<O> {
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
}
