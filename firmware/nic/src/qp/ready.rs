//! Membership in the ready queue: queues with frames to send, or packets to deliver.

use faultline_wire::PrioritySet;

use crate::core::Core;

/// Membership of a queue in the ready queue.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    queued: bool,
    /// Its turn has ended, and it has more work.
    interrupted: bool,
    /// Paused priorities whose resumption it waits for.
    waits_for: PrioritySet,
}

impl Readiness {
    /// Puts the queue with this number into the ready queue.
    #[inline]
    pub(crate) fn wake(&mut self, core: &mut Core, number: u32) {
        if !self.queued {
            self.queued = true;
            core.enqueue_ready(number);
        }
    }

    /// Ends the turn of the queue, which has more work.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Ends the turn of the queue with this number, which has more work, whether it is in the ready queue or not.
    pub(crate) fn yield_turn(&mut self, core: &mut Core, number: u32) {
        match self.queued {
            true => self.interrupt(),
            false => self.wake(core, number),
        }
    }

    /// The queue with this number was removed from the ready queue. It is appended again if it has more work.
    #[inline]
    pub(crate) fn left(&mut self, core: &mut Core, number: u32) {
        self.queued = false;
        if std::mem::take(&mut self.interrupted) {
            self.wake(core, number);
        }
    }

    /// The queue with this number has a frame of a paused priority: it is woken when the pause ends. Meanwhile it may be woken for
    /// other reasons.
    pub(crate) fn wait_for_priority(&mut self, core: &mut Core, number: u32, priority: u8) {
        if !self.waits_for.contains(priority) {
            self.waits_for = self.waits_for.with(priority);
            core.flow_control.wait(priority, number);
        }
    }

    /// The pause of a priority for which the queue with this number has waited is over.
    pub(crate) fn pause_ended(&mut self, core: &mut Core, number: u32, priority: u8) {
        self.waits_for = self.waits_for.without(PrioritySet::NONE.with(priority));
        self.wake(core, number);
    }

    /// The queue with this number is destroyed: it waits for no priority any more.
    pub(crate) fn stop_waiting(&mut self, core: &mut Core, number: u32) {
        let waits_for = std::mem::take(&mut self.waits_for);
        let looked_at = core.flow_control.forget(waits_for, number);
        core.charge(looked_at as u64);
    }
}
