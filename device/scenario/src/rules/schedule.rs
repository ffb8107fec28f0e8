//! Events at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use faultline_abi::doorbell::Doorbell;
use faultline_nic::Instant;

use super::lasting::Lasting;

/// A doorbell or an interrupt that is delayed, or repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// An interrupt.
    Interrupt {
        /// NIC.
        nic: usize,
        /// MSI-X vector.
        vector: u16,
    },
    /// A doorbell.
    Doorbell {
        /// NIC.
        nic: usize,
        /// Doorbell page.
        page: u32,
        /// The doorbell.
        bell: Doorbell,
    },
}

impl Late {
    pub(super) fn nic(&self) -> usize {
        match *self {
            Self::Interrupt { nic, .. } | Self::Doorbell { nic, .. } => nic,
        }
    }
}

/// An event at a time.
#[derive(Debug)]
pub(super) enum Due {
    /// A timed action, by its index in the plan.
    Timed(usize),
    /// The end of an action on a NIC.
    End(usize, Lasting),
    /// A doorbell or an interrupt.
    Late(Late),
    /// Injections of a rule begin.
    BeginPoint(usize),
    /// They end.
    EndPoint(usize),
}

/// An entry of the schedule. The order of entries of the same time is that in which they were made.
#[derive(Debug)]
struct Scheduled {
    at: Instant,
    order: u64,
    due: Due,
}

impl Scheduled {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.order)
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// What happens when.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    heap: BinaryHeap<Reverse<Scheduled>>,
    added: u64,
}

impl Schedule {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn add(&mut self, at: Instant, due: Due) {
        self.added = self.added.saturating_add(1);
        let order = self.added;
        self.heap.push(Reverse(Scheduled { at, order, due }));
    }

    /// Removes the doorbells and interrupts of a NIC.
    pub(super) fn forget_late(&mut self, nic: usize) {
        self.heap.retain(|Reverse(next)| match next.due {
            Due::Late(late) => late.nic() != nic,
            _ => true,
        });
    }

    /// Takes an entry that is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Due> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(next)| next.due)
    }

    /// When the next entry is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(next)| next.at)
    }
}
