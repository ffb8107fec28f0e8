//! Places for outstanding faults: how many each user context and each user has, and which queue pairs wait for one.
//!
//! A user of the guest has one context for each device that a process opens, in any number of processes. So contexts have a limit,
//! which divides the places between processes, and users have one, which no number of contexts exceeds.
//!
//! The next queue pair is found without a scan. Each context has a line of waiting queue pairs. The contexts of a user
//! that have a line are ordered by their number of places. Users are ordered by the number of places of their first
//! context, or by their own if that is the stricter limit: if the first user may not have another place, no user may. A
//! queue pair waits at most once, and leaves its line when it is reset or destroyed, so the lines have at most as many
//! entries as there are queue pairs.
//!
//! While no queue pair waits, taking and freeing a place changes three counters only.

use std::collections::{BTreeMap, BTreeSet};

use super::slab::entry;
use crate::number::len32;
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
    /// Index of its user.
    user: u32,
    places: usize,
    /// Arrival numbers of its waiting queue pairs.
    line: BTreeSet<u64>,
}

/// Contexts without a user: that of the kernel, and those of drivers that name no users. They have no limit in common.
const NOBODY: u32 = 0;

/// Places of the contexts of one user.
#[derive(Debug, Default)]
struct User {
    uid: u32,
    contexts: u32,
    places: usize,
    /// Its contexts with a line.
    ranks: BTreeSet<Rank>,
}

/// Order of the contexts of a user that have a line: places, arrival of the first in line, context.
type Rank = (usize, u64, u32);

/// Order of the users with such contexts: places that count, arrival of the first of the first context, index of the user.
type UserRank = (usize, u64, u32);

/// Places of all contexts.
#[derive(Debug, Default)]
pub(super) struct Places {
    used: usize,
    /// By number of the context, up to the highest that has had places, a line or a user.
    shares: Vec<Share>,
    /// By index, [`NOBODY`] first.
    users: Vec<User>,
    /// Indices without a user.
    unused: Vec<u32>,
    by_uid: BTreeMap<u32, u32>,
    ranks: BTreeSet<UserRank>,
    arrivals: u64,
    /// By arrival number, so the oldest is first.
    waiters: BTreeMap<u64, Waiter>,
    /// Arrival by number of the queue pair.
    by_qp: BTreeMap<u32, u64>,
}

impl Share {
    /// The kernel does not compete with itself, so its places do not count.
    fn counted(&self, uctx: u32) -> usize {
        if uctx == 0 { 0 } else { self.places }
    }

    fn rank(&self, uctx: u32) -> Option<Rank> {
        Some((self.counted(uctx), *self.line.first()?, uctx))
    }
}

impl User {
    /// Number of its places on the scale of contexts: a context may have as many places as are free, a user three times
    /// as many.
    fn counted(&self, index: u32) -> usize {
        if index == NOBODY { 0 } else { self.places / 3 }
    }

    fn rank(&self, index: u32) -> Option<UserRank> {
        let (places, arrival, _) = *self.ranks.first()?;
        Some((places.max(self.counted(index)), arrival, index))
    }
}

impl Places {
    /// True if a context may have another place: if it has fewer than are free, and its user fewer than three times as many. So one
    /// context can take half of the places, one user three quarters, and pages that never become present (because a file system has
    /// stopped, for example) delay only the process that accesses them, or processes of its user.
    pub(crate) fn has_room(&self, uctx: u32, limit: u32) -> bool {
        let share = self.shares.get(uctx as usize);
        let own = share.map_or(0, |share| share.counted(uctx));
        let user = share.map_or(NOBODY, |share| share.user);
        let all = self.users.get(user as usize);
        self.allows(own.max(all.map_or(0, |all| all.counted(user))), limit)
    }

    fn allows(&self, own: usize, limit: u32) -> bool {
        own < self.free(limit)
    }

    /// Number of free places.
    pub(crate) fn free(&self, limit: u32) -> usize {
        (limit as usize).saturating_sub(self.used)
    }

    /// Assigns a new context to a user; 0: the driver has named none.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "there are fewer contexts than 2^32"
    )]
    pub(crate) fn open(&mut self, uctx: u32, uid: u32) {
        if uid == 0 {
            return;
        }
        let index = match self.by_uid.get(&uid) {
            Some(index) => *index,
            None => self.add_user(uid),
        };
        if let Some(user) = self.users.get_mut(index as usize) {
            user.contexts += 1;
            self.belongs_to(uctx, index);
        }
    }

    /// Closes a context.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "each context is opened once before it is closed"
    )]
    pub(crate) fn close(&mut self, uctx: u32) {
        let index = match self.shares.get(uctx as usize) {
            Some(share) if share.user != NOBODY => share.user,
            _ => return,
        };
        self.belongs_to(uctx, NOBODY);
        if let Some(user) = self.users.get_mut(index as usize) {
            user.contexts -= 1;
            if user.contexts == 0 {
                self.by_uid.remove(&user.uid);
                self.unused.push(index);
            }
        }
    }

    fn add_user(&mut self, uid: u32) -> u32 {
        let index = self.unused.pop();
        let index = index.unwrap_or_else(|| len32(self.users.len()).max(1));
        if let Some(user) = entry(&mut self.users, index) {
            user.uid = uid;
        }
        self.by_uid.insert(uid, index);
        index
    }

    /// Moves a context, with its places and its line, to another user.
    fn belongs_to(&mut self, uctx: u32, index: u32) {
        let Some(share) = entry(&mut self.shares, uctx) else {
            return;
        };
        let before = std::mem::replace(&mut share.user, index);
        let (places, rank) = (share.places, share.rank(uctx));
        self.change_user(before, |user| {
            user.places = user.places.saturating_sub(places);
            if let Some(rank) = &rank {
                user.ranks.remove(rank);
            }
        });
        self.change_user(index, |user| {
            user.places = user.places.saturating_add(places);
            user.ranks.extend(rank);
        });
    }

    fn change_user(&mut self, index: u32, change: impl FnOnce(&mut User)) {
        let Some(user) = entry(&mut self.users, index) else {
            return;
        };
        let before = user.rank(index);
        change(user);
        let after = user.rank(index);
        if before == after {
            return;
        }
        if let Some(rank) = before {
            self.ranks.remove(&rank);
        }
        self.ranks.extend(after);
    }

    /// Changes a context, and the number of places of its user.
    fn change(&mut self, uctx: u32, change: impl FnOnce(&mut Share)) {
        let Some(share) = entry(&mut self.shares, uctx) else {
            return;
        };
        let (before, had) = (share.rank(uctx), share.places);
        change(share);
        let (after, has, user) = (share.rank(uctx), share.places, share.user);
        self.change_user(user, |user| {
            user.places = user.places.wrapping_sub(had).wrapping_add(has);
            if before != after {
                if let Some(rank) = &before {
                    user.ranks.remove(rank);
                }
                user.ranks.extend(after);
            }
        });
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

    /// Removes one fault from the count of a context.
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

    /// Removes the next queue pair that may have a place from its line, and returns it. The context with the fewest
    /// places is first, unless its user's places count more; among equals, the queue pair that has waited longest.
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
    fn no_context_takes_the_share_of_others() {
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
    fn no_user_takes_the_share_of_others() {
        let mut places = Places::default();
        for uctx in 1..10 {
            places.open(uctx, 77);
        }
        places.open(10, 78);
        let mut taken = 0;
        for uctx in 1..10 {
            while places.has_room(uctx, LIMIT) {
                places.take(uctx);
                taken += 1;
            }
        }
        assert_eq!(taken, 12);
        // The second user's context comes before those that have waited longer, and is not kept from its place by them.
        for uctx in 1..11 {
            places.wait(Instant(u64::from(uctx)), uctx, uctx);
        }
        assert_eq!(places.next(LIMIT), Some(10));
        take(&mut places, 10, 1);
        assert_eq!(places.next(LIMIT), None);
        // The places of a closed context are those of no user.
        places.close(1);
        assert!(places.has_room(9, LIMIT));
        for uctx in 1..11 {
            places.leave(uctx);
            places.close(uctx);
        }
        assert!(places.ranks.is_empty() && places.by_uid.is_empty());
        assert_eq!((places.users.len(), places.unused.len()), (3, 2));
        places.open(3, 79);
        assert_eq!(places.users.len(), 3);
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
