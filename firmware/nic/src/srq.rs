//! Shared receive queues.

use crate::receive_queue::RecvRing;
use crate::references::References;
use crate::tag::list::TagList;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    /// Protection domain of its buffers.
    pub pd: u32,
    /// User context that created it.
    pub uctx: u32,
    /// Queue pairs that use it.
    pub refs: References,
    /// The event SRQ_ERROR has been raised: a process can break a ring again and again, and a driver must be able to read
    /// all events.
    pub error_reported: bool,
    /// Event when fewer are posted; 0 = none.
    pub limit: u32,
    /// The requests.
    pub ring: RecvRing,
    /// XRC: domain, and completion queue of the receives.
    pub xrc: Option<(u32, u32)>,
    /// Tag matching.
    pub tags: Option<Box<TagList>>,
}

impl Srq {
    /// Its own completion queue for receives; without one, those of the queue pairs are used.
    pub(crate) fn cqn(&self) -> Option<u32> {
        let of_tags = self.tags.as_ref().map(|tags| tags.cqn);
        self.xrc.map(|(_, cqn)| cqn).or(of_tags)
    }
}
