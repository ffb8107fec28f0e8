//! Calls of the parts of a NIC at injection points, and calls of an operator.

use super::delayed::Delayed;
use super::entry::{Facts, Injection, InjectionError, InjectionUse};
use super::point::{Outcome, Point};
use super::random::SplitMix64;
use super::table::Injections;
use crate::core::Core;
use crate::diagnostic::Diagnostic;
use crate::nic::Nic;
use crate::time::{Instant, Nanos};
use crate::work;

impl Core {
    /// Passes a point. Returns the outcome to apply; `None`: nothing is injected.
    #[cold]
    pub(crate) fn inject(&mut self, now: Instant, point: Point, facts: &Facts) -> Option<Outcome> {
        let entries = self.injections.table.len() as u64;
        work::count_steps(entries);
        self.charge(entries);
        let mut decided = None;
        let mut used_up = false;
        let Injections { table, random, .. } = &mut self.injections;
        for entry in table {
            let injection = entry.injection;
            if injection.point != point || !entry.matches(facts) {
                continue;
            }
            let outcome = injection.outcome;
            if decided.is_some() && outcome != Outcome::Report {
                entry.matches = entry.matches.saturating_add(1);
                continue;
            }
            if !entry.is_due(random) {
                continue;
            }
            entry.effects = entry.effects.saturating_add(1);
            used_up |= entry.is_used_up();
            if outcome != Outcome::Report {
                decided = Some(outcome);
            }
            self.diagnostics.push(
                now,
                Diagnostic::Injected {
                    id: injection.id,
                    point,
                    qpn: facts.qpn.unwrap_or(0),
                    object: facts.object.or(facts.key).unwrap_or(0),
                },
            );
        }
        if used_up {
            self.injections.update_mask();
            self.watch_lookups();
        }
        decided
    }

    /// Takes the first delayed effect if it is due.
    pub(crate) fn pop_delayed(&mut self, now: Instant) -> Option<Delayed> {
        let what = self.injections.delayed.pop(now)?;
        self.injections.update_mask();
        Some(what)
    }

    /// Delays an effect. Returns it if there is no room.
    pub(crate) fn delay(
        &mut self,
        now: Instant,
        by: Nanos,
        what: Delayed,
    ) -> Result<(), Box<Delayed>> {
        let delayed = self.injections.delayed.push(now + by, what);
        self.injections.update_mask();
        delayed
    }
}

impl Nic {
    /// Adds an entry to the injection table. It applies from now on, and survives resets of the device.
    pub fn add_injection(&mut self, injection: Injection) -> Result<(), InjectionError> {
        self.core.injections.add(injection)?;
        self.core.watch_lookups();
        Ok(())
    }

    /// Removes the entry with this id. Returns false if there is none. Effects that it has delayed still take place,
    /// and a command queue that it has stopped remains stopped.
    pub fn remove_injection(&mut self, id: u32) -> bool {
        let removed = self.core.injections.remove(id);
        self.core.watch_lookups();
        removed
    }

    /// Adds a queue pair to the entry with this id, whose filter has [`listed`](super::Filter::listed). An entry has at most as many as
    /// the NIC has queue pairs. Returns false if there is no such entry or no room.
    pub fn add_injection_pair(&mut self, id: u32, qpn: u32) -> bool {
        let most = usize::try_from(self.core.config.limits.max_qp).unwrap_or(usize::MAX);
        let pairs = self.core.injections.pairs_mut(id);
        let Some(pairs) = pairs.filter(|pairs| pairs.len() < most) else {
            return false;
        };
        if let Err(place) = pairs.binary_search(&qpn) {
            pairs.insert(place, qpn);
        }
        true
    }

    /// Replaces the queue pairs of the entry with this id by these, which are in ascending order. Takes constant time.
    /// Returns false if there is no such entry, or if it has no room for all of them.
    pub fn set_injection_pairs(&mut self, id: u32, new: Vec<u32>) -> bool {
        let most = usize::try_from(self.core.config.limits.max_qp).unwrap_or(usize::MAX);
        match self.core.injections.pairs_mut(id) {
            Some(pairs) if new.len() <= most => *pairs = new,
            _ => return false,
        }
        true
    }

    /// Removes a queue pair from the entry with this id.
    pub fn remove_injection_pair(&mut self, id: u32, qpn: u32) {
        if let Some(pairs) = self.core.injections.pairs_mut(id)
            && let Ok(place) = pairs.binary_search(&qpn)
        {
            pairs.remove(place);
        }
    }

    /// Removes all entries. Effects that they have delayed still take place.
    pub fn clear_injections(&mut self) {
        self.core.injections.clear();
        self.core.watch_lookups();
    }

    /// Starts the random numbers for [`Injection::per_million`]: the same seed and the same inputs have the same effects.
    pub fn seed_injections(&mut self, seed: u64) {
        self.core.injections.random = SplitMix64(seed);
    }

    /// The entries of the injection table in their order, and how often each has matched and had an effect.
    pub fn injections(&self) -> &[InjectionUse] {
        &self.core.injections.table
    }
}
