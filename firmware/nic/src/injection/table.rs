//! The injection table of a NIC.

use super::delayed::DelayQueue;
use super::entry::{Injection, InjectionError, InjectionUse, MAX_INJECTIONS};
use super::point::Point;
use super::random::SplitMix64;
use crate::time::Instant;

/// The table of a NIC, and its delayed effects.
#[derive(Debug, Default)]
pub(crate) struct Injections {
    /// A bit for each point with injections that are not used up; for [`Point::Completion`] also while completions are
    /// delayed.
    mask: u8,
    pub(super) table: Vec<InjectionUse>,
    pub(super) random: SplitMix64,
    pub(super) delayed: DelayQueue,
}

impl Injections {
    /// False if nothing is injected at this point. Hot paths test this only.
    #[inline]
    pub(crate) fn has(&self, point: Point) -> bool {
        self.mask & point.bit() != 0
    }

    /// True if an injection at this point may apply to this queue pair.
    #[inline]
    pub(crate) fn concern(&self, point: Point, qpn: u32) -> bool {
        self.has(point) && self.table.iter().any(|entry| entry.concerns(point, qpn))
    }

    pub(super) fn add(&mut self, injection: Injection) -> Result<(), InjectionError> {
        injection.check()?;
        let id = injection.id;
        if self.table.iter().any(|entry| entry.injection.id == id) {
            return Err(InjectionError::DuplicateId(id));
        }
        if self.table.len() >= MAX_INJECTIONS {
            return Err(InjectionError::Full);
        }
        self.table.push(InjectionUse {
            injection,
            matches: 0,
            effects: 0,
            pairs: Vec::new(),
        });
        self.update_mask();
        Ok(())
    }

    pub(super) fn remove(&mut self, id: u32) -> bool {
        let before = self.table.len();
        self.table.retain(|entry| entry.injection.id != id);
        self.update_mask();
        self.table.len() != before
    }

    /// Queue pairs of the entry with this id.
    pub(super) fn pairs_mut(&mut self, id: u32) -> Option<&mut Vec<u32>> {
        let mut entries = self.table.iter_mut();
        let entry = entries.find(|entry| entry.injection.id == id)?;
        Some(&mut entry.pairs)
    }

    pub(super) fn clear(&mut self) {
        self.table.clear();
        self.update_mask();
    }

    pub(super) fn update_mask(&mut self) {
        let active = self.table.iter().filter(|entry| !entry.is_used_up());
        self.mask = active.fold(0, |mask, entry| mask | entry.injection.point.bit());
        if self.delayed.has_completions() {
            self.mask |= Point::Completion.bit();
        }
    }

    /// Drops all delayed effects, as a reset of the device does.
    pub(crate) fn reset(&mut self) {
        self.delayed = DelayQueue::default();
        self.update_mask();
    }

    /// The time at which the next delayed effect is due.
    #[inline]
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.delayed.next_due()
    }
}
