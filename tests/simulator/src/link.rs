//! A link that a test models.

use faultline_nic::Origin;
use faultline_wire::PrioritySet;

/// The link from one host to the others. What the host sends passes it instead of the wire.
pub trait Link {
    /// Sends a frame.
    fn send(&mut self, now: u64, origin: Origin, frame: &[u8]);

    /// Takes the next frame that has arrived.
    fn receive(&mut self, now: u64) -> Option<(Origin, Vec<u8>)>;

    /// When [`Link::receive`] may have a frame, or something changes at the link.
    fn next_deadline(&self) -> Option<u64>;

    /// The priorities that the host must not send now. Asked before each turn of its NIC.
    fn paused(&mut self, now: u64) -> PrioritySet;
}
