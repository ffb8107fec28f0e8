//! Pauses that link models and NICs request of the senders of this fabric and of others.

use faultline_wire::PrioritySet;

use crate::fabric::Fabric;
use crate::outside::Outside;
use crate::switch::PortId;

/// Stands for all senders of other fabrics in [`LinkModels::paused`](crate::link_models::LinkModels::paused).
const SENDER_OF_OTHER: PortId = PortId::MAX;

impl<O: Outside> Fabric<O> {
    /// Returns true if no frames of other fabrics may be taken, because all senders into this fabric are paused. Pauses of single
    /// priorities take effect at the sending NIC.
    #[inline]
    pub fn pauses_others(&self) -> bool {
        self.paused_for_others() == PrioritySet::ALL || self.senders_are_paused()
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
