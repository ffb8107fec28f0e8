//! Fault records that can't be written yet: an operator holds the queue, or delayed records have found no room.

use std::collections::VecDeque;

use faultline_abi::event::Eqe;

use crate::time::Instant;

/// Records that are kept before the fault queue counts as full.
const MAX_KEPT: usize = 4096;

/// The state of the fault queue that its ring does not show.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// An operator holds the queue: no record is written.
    pub held: bool,
    /// The queue counts as full.
    pub full: bool,
    /// End of an injected overrun: until then, no queue pair is called for room.
    pub no_room_until: Instant,
    /// Kept records, the oldest first.
    kept: VecDeque<Eqe>,
}

impl Records {
    /// The state after a reset: the operator's switches remain, the records are dropped.
    pub(crate) fn after_reset(&self) -> Self {
        Self {
            held: self.held,
            full: self.full,
            ..Self::default()
        }
    }

    /// True if the record of a new fault can be accepted. `room`: the ring has room.
    pub(crate) fn has_room(&self, room: bool) -> bool {
        match (self.full, self.held) {
            (true, _) => false,
            (_, true) => self.kept.len() < MAX_KEPT,
            // New records would overtake those that are kept.
            (_, false) => room && self.kept.is_empty(),
        }
    }

    /// True if records must be kept even if the ring has room.
    pub(crate) fn must_keep(&self) -> bool {
        self.held || !self.kept.is_empty()
    }

    /// Keeps a record. The limit does not apply here: [`Records::has_room`] refuses new faults beyond it. Only delayed
    /// records, whose number is limited too, and duplicates exceed it; duplicates are dropped beyond twice the limit.
    pub(crate) fn keep(&mut self, record: Eqe) {
        if self.kept.len() < 2 * MAX_KEPT {
            self.kept.push_back(record);
        }
    }

    /// Whether kept records may be written if there is room.
    pub(crate) fn may_write_kept(&self) -> bool {
        !self.held && !self.full
    }

    /// Takes the oldest.
    pub(crate) fn take_kept(&mut self) -> Option<Eqe> {
        self.kept.pop_front()
    }

    /// Number of records that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }
}
