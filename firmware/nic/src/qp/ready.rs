//! Membership in the ready queue: the queues that have something to send, or packets to deliver.

use crate::core::Core;

/// Whether a queue is in the ready queue.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    queued: bool,
    /// It gave way to others while it had work to do.
    interrupted: bool,
}

impl Readiness {
    /// Puts the queue with this number into the ready queue.
    pub(super) fn wake(&mut self, core: &mut Core, number: u32) {
        if !self.queued {
            self.queued = true;
            core.enqueue_ready(number);
        }
    }

    /// The queue gives way to others, and has more to do.
    pub(super) fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// The queue with this number was removed from the ready queue. It is appended again if it has more to do.
    pub(super) fn left(&mut self, core: &mut Core, number: u32) {
        self.queued = false;
        if std::mem::take(&mut self.interrupted) {
            self.wake(core, number);
        }
    }
}
