//! Flow control of a NIC's frames: by priority (IEEE 802.1Qbb), and by connection.
//!
//! The caller sets the paused priorities ([`Nic::set_paused_priorities`](crate::Nic::set_paused_priorities)). A queue pair whose next
//! frame has one of them leaves the ready queue and waits here; other queue pairs continue. This NIC does not request pauses of single
//! priorities: under fault policy `stall` it pauses all ([`crate::ingress`]).
//!
//! A single connection is held if its path is too slow ([`Nic::hold_sender`](crate::Nic::hold_sender)), until it is released.

use std::collections::VecDeque;

use faultline_wire::priority::{PRIORITIES, PrioritySet};

/// The event that a queue pair waits for before it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockedOn {
    /// The end of the pause of a priority.
    Priority(u8),
    /// A call of [`Nic::release`](crate::Nic::release).
    Release,
}

/// Paused priorities, and the queues that wait for the end of the pauses.
#[derive(Debug, Default)]
pub(crate) struct FlowControl {
    paused: PrioritySet,
    /// By priority: numbers of queues, in the order in which they have begun to wait. Each is there at most once
    /// ([`crate::qp::Qp`] knows whether it is).
    waiting: [VecDeque<u32>; PRIORITIES],
    /// The priorities for which a queue waits.
    waited_for: PrioritySet,
}

impl FlowControl {
    /// The priorities that are paused.
    #[inline]
    pub(crate) fn paused(&self) -> PrioritySet {
        self.paused
    }

    /// Sets the priorities that are paused.
    #[inline]
    pub(crate) fn set_paused(&mut self, paused: PrioritySet) {
        self.paused = paused;
    }

    /// A queue waits for the end of the pause of a priority.
    pub(crate) fn wait(&mut self, priority: u8, number: u32) {
        if let Some(waiting) = self.waiting.get_mut(usize::from(priority)) {
            waiting.push_back(number);
            self.waited_for = self.waited_for.with(priority);
        }
    }

    /// True if a priority is paused, or a queue waits.
    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        !self.paused.or(self.waited_for).is_empty()
    }

    /// True if a queue waits whose priority is not paused any more.
    #[inline]
    pub(crate) fn has_released(&self) -> bool {
        !self.waited_for.without(self.paused).is_empty()
    }

    /// Takes a queue whose priority is not paused any more. Returns the priority, and the number of the queue.
    pub(crate) fn pop_released(&mut self) -> Option<(u8, u32)> {
        let priority = self.waited_for.without(self.paused).iter().next()?;
        let waiting = self.waiting.get_mut(usize::from(priority))?;
        let number = waiting.pop_front();
        if waiting.is_empty() {
            self.waited_for = self.waited_for.without(PrioritySet::NONE.with(priority));
        }
        Some((priority, number?))
    }

    /// Removes a queue that waits for these priorities, because it is destroyed. Returns the number of entries that were looked at.
    pub(crate) fn forget(&mut self, priorities: PrioritySet, number: u32) -> usize {
        let mut looked_at = 0usize;
        for priority in priorities.iter() {
            if let Some(waiting) = self.waiting.get_mut(usize::from(priority)) {
                looked_at = looked_at.saturating_add(waiting.len());
                waiting.retain(|waits| *waits != number);
                if waiting.is_empty() {
                    self.waited_for = self.waited_for.without(PrioritySet::NONE.with(priority));
                }
            }
        }
        looked_at
    }

    /// Number of queues that wait; one that waits for several priorities counts for each.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_resume_in_the_order_of_their_waits() {
        let (three, four) = (PrioritySet::NONE.with(3), PrioritySet::NONE.with(4));
        let mut flow = FlowControl::default();
        flow.set_paused(three.or(four));
        for (priority, number) in [(3, 7), (4, 7), (3, 5), (4, 9)] {
            flow.wait(priority, number);
        }
        assert!(!flow.has_released() && flow.pop_released().is_none());
        flow.set_paused(four);
        assert!(flow.has_released());
        assert_eq!(flow.pop_released(), Some((3, 7)));
        assert_eq!(flow.pop_released(), Some((3, 5)));
        assert!(!flow.has_released() && flow.pop_released().is_none());
        assert_eq!(flow.waiting(), 2);
        assert_eq!(flow.forget(four, 7), 2);
        flow.set_paused(PrioritySet::NONE);
        assert_eq!(flow.pop_released(), Some((4, 9)));
        assert!(!flow.has_released());
        assert_eq!(flow.waiting(), 0);
    }

    #[test]
    fn the_last_forgotten_queue_leaves_nothing() {
        let mut flow = FlowControl::default();
        flow.wait(6, 2);
        flow.forget(PrioritySet::NONE.with(6), 2);
        assert!(!flow.has_released());
        assert_eq!(flow.pop_released(), None);
    }
}
