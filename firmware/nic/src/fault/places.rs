//! Places for outstanding faults: how many each user context has, and which queue pairs wait for one.
//!
//! The next queue pair is found without a scan. Each context has a line of waiting queue pairs, and the contexts with a
//! line are ordered by the number of their places: if the first of them may not have another place, none may. A queue
//! pair waits at most once, and leaves its line when it is reset or destroyed, so the lines have at most as many
//! entries as there are queue pairs.
//!
//! While no queue pair waits, taking and freeing a place changes two counters only.

use std::collections::{BTreeMap, BTreeSet};

use super::slab::entry;
use crate::time::Instant;

/// A queue pair that waits for a place.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    qpn: u32,
    uctx: u32,
    since: Instant,
}

/// Places and waiting queue pairs of one user context.
#[derive(Debug, Default)]
struct Share {
    places: usize,
    /// Arrival numbers of its waiting queue pairs.
    line: BTreeSet<u64>,
}

/// Order of the contexts with a line: places, arrival of the first in line, context.
type Rank = (usize, u64, u32);

/// Places of all contexts.
#[derive(Debug, Default)]
pub(super) struct Places {
    used: usize,
    /// By number of the context, up to the highest that has had places or a line.
    shares: Vec<Share>,
    ranks: BTreeSet<Rank>,
    arrivals: u64,
    /// By arrival number, so the oldest is first.
    waiters: BTreeMap<u64, Waiter>,
    /// Arrival by number of the queue pair.
    by_qp: BTreeMap<u32, u64>,
}

impl Share {
    /// The kernel does not compete with itself, so its places do not count.
    fn rank(&self, uctx: u32) -> Option<Rank> {
        let places = if uctx == 0 { 0 } else { self.places };
        Some((places, *self.line.first()?, uctx))
    }
}

impl Places {
    /// True if a context may have another place: if it has fewer than are free. So one context can take half of the
    /// places, and pages that never become present (because a file system has stopped, for example) delay only the
    /// process that accesses them.
    pub(crate) fn has_room(&self, uctx: u32, limit: u32) -> bool {
        let own = self.shares.get(uctx as usize).map_or(0, |own| own.places);
        self.allows(if uctx == 0 { 0 } else { own }, limit)
    }

    fn allows(&self, own: usize, limit: u32) -> bool {
        own < self.free(limit)
    }

    /// Number of free places.
    pub(crate) fn free(&self, limit: u32) -> usize {
        (limit as usize).saturating_sub(self.used)
    }

    fn change(&mut self, uctx: u32, change: impl FnOnce(&mut Share)) {
        let Some(share) = entry(&mut self.shares, uctx) else {
            return;
        };
        let before = share.rank(uctx);
        change(share);
        let after = share.rank(uctx);
        if before == after {
            return;
        }
        if let Some(rank) = before {
            self.ranks.remove(&rank);
        }
        self.ranks.extend(after);
    }

    /// Counts another fault of a context.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "each place is taken and released once, and there are fewer than 2^32"
    )]
    pub(crate) fn take(&mut self, uctx: u32) {
        self.used += 1;
        self.change(uctx, |share| share.places += 1);
    }

    /// Counts one fault of a context less.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "each place is taken and released once, and there are fewer than 2^32"
    )]
    pub(crate) fn release(&mut self, uctx: u32) {
        self.used -= 1;
        self.change(uctx, |share| share.places -= 1);
    }

    /// Makes the queue pair wait for a place of this context, unless it waits already.
    pub(crate) fn wait(&mut self, since: Instant, qpn: u32, uctx: u32) {
        if self.by_qp.contains_key(&qpn) {
            return;
        }
        let arrival = self.arrivals;
        self.arrivals = self.arrivals.wrapping_add(1);
        self.by_qp.insert(qpn, arrival);
        self.waiters.insert(arrival, Waiter { qpn, uctx, since });
        self.change(uctx, |share| {
            share.line.insert(arrival);
        });
    }

    /// Ends the wait of a queue pair.
    pub(crate) fn leave(&mut self, qpn: u32) {
        if let Some(arrival) = self.by_qp.get(&qpn) {
            self.remove(*arrival);
        }
    }

    fn remove(&mut self, arrival: u64) -> Option<u32> {
        let Waiter { qpn, uctx, .. } = self.waiters.remove(&arrival)?;
        self.by_qp.remove(&qpn);
        self.change(uctx, |share| {
            share.line.remove(&arrival);
        });
        Some(qpn)
    }

    /// True if a waiting queue pair may have a place.
    pub(crate) fn has_next(&self, limit: u32) -> bool {
        self.ranks
            .first()
            .is_some_and(|(places, ..)| self.allows(*places, limit))
    }

    /// Removes the next queue pair that may have a place from its line, and returns it. It is of the context with the
    /// fewest places; of contexts with equally many, the queue pair that has waited longest is next.
    pub(crate) fn next(&mut self, limit: u32) -> Option<u32> {
        let (places, arrival, _) = *self.ranks.first()?;
        if !self.allows(places, limit) {
            return None;
        }
        self.remove(arrival)
    }

    /// Time since which the oldest has waited.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.waiters.values().next().map(|waiter| waiter.since)
    }

    /// Removes the oldest from its line, and returns it.
    pub(crate) fn pop_oldest(&mut self) -> Option<u32> {
        let arrival = *self.waiters.keys().next()?;
        self.remove(arrival)
    }

    /// Number of waiting queue pairs.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u32 = 16;

    fn take(places: &mut Places, uctx: u32, count: u64) {
        (0..count).for_each(|_| places.take(uctx));
    }

    fn release(places: &mut Places, uctx: u32, count: u64) {
        (0..count).for_each(|_| places.release(uctx));
    }

    #[test]
    fn no_context_takes_what_others_need() {
        let mut places = Places::default();
        let fill = |places: &mut Places, uctx| {
            let mut count = 0;
            while places.has_room(uctx, LIMIT) {
                places.take(uctx);
                count += 1;
            }
            count
        };
        assert_eq!(fill(&mut places, 1), 8);
        assert_eq!(fill(&mut places, 2), 4);
        assert_eq!(fill(&mut places, 3), 2);
        // The kernel takes the rest.
        assert_eq!(fill(&mut places, 0), 2);
        assert!(!places.has_room(4, LIMIT));
        release(&mut places, 0, 2);
        assert!(places.has_room(4, LIMIT) && !places.has_room(1, LIMIT));
        release(&mut places, 1, 8);
        let left: Vec<_> = places.shares.iter().map(|share| share.places).collect();
        assert_eq!(left, [0, 0, 4, 2]);
        assert!(places.has_room(1, LIMIT));
    }

    #[test]
    fn a_queue_pair_waits_once_and_leaves_nothing() {
        let mut places = Places::default();
        for qpn in [3, 5, 3, 9, 5, 4] {
            places.wait(Instant(1), qpn, 1);
        }
        assert_eq!(places.waiting(), 4);
        places.leave(9);
        places.leave(9);
        places.leave(77);
        let line: Vec<u32> = std::iter::from_fn(|| places.next(LIMIT)).collect();
        assert_eq!(line, [3, 5, 4]);
        assert!(places.ranks.is_empty() && places.by_qp.is_empty());
    }

    #[test]
    fn the_context_with_the_fewest_places_is_next() {
        let mut places = Places::default();
        take(&mut places, 1, 7);
        take(&mut places, 2, 7);
        for (at, qpn, uctx) in [(1, 10, 1), (2, 20, 2), (3, 30, 3), (4, 31, 3), (5, 5, 0)] {
            places.wait(Instant(at), qpn, uctx);
        }
        // Two places are free, for contexts with fewer than two.
        assert_eq!(places.next(LIMIT), Some(30));
        take(&mut places, 3, 1);
        // One place is free, and context 3 has one, so only the kernel may take it.
        assert_eq!(places.next(LIMIT), Some(5));
        assert_eq!(places.next(LIMIT), None);
        assert!(!places.has_next(LIMIT));
        release(&mut places, 2, 4);
        assert_eq!(places.next(LIMIT), Some(31));
        assert_eq!(places.next(LIMIT), Some(20));
        assert_eq!(places.next(LIMIT), None);
        release(&mut places, 1, 2);
        assert_eq!(places.oldest(), Some(Instant(1)));
        assert_eq!(places.next(LIMIT), Some(10));
        assert_eq!((places.oldest(), places.waiting()), (None, 0));
    }
}
