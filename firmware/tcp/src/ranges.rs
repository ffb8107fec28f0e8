//! A bounded set of ranges of positions: octets received out of order, and octets that the peer has selectively acknowledged.

use smallvec::SmallVec;

use crate::pos::Pos;

/// The octets from `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: Pos,
    pub(crate) end: Pos,
}

/// Disjoint ranges in ascending order, with a gap between any two. There are at most `N`, so the peer cannot make them more. Most
/// connections have none and most losses cause one, so memory is allocated from the second one on, and returned with the last one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges<const N: usize>(SmallVec<[Range; 1]>);

impl<const N: usize> Ranges<N> {
    /// Adds octets. Returns false if that would need more than `N` ranges; the set is then unchanged.
    pub(crate) fn insert(&mut self, start: Pos, end: Pos) -> bool {
        if start >= end {
            return true;
        }
        let first = self.0.partition_point(|range| range.end < start);
        let last = self.0.partition_point(|range| range.start <= end);
        let mut union = Range { start, end };
        for touched in self.0.drain(first..last.max(first)) {
            union.start = union.start.min(touched.start);
            union.end = union.end.max(touched.end);
        }
        if self.0.len() == N {
            return false;
        }
        self.0.insert(first, union);
        true
    }

    /// True if [`Ranges::insert`] of this range would succeed.
    pub(crate) fn has_room(&self, start: Pos, end: Pos) -> bool {
        let touches = |range: &Range| range.start <= end && range.end >= start;
        self.0.len() < N || self.0.iter().any(touches)
    }

    /// Removes the octets before `pos`.
    pub(crate) fn remove_before(&mut self, pos: Pos) {
        self.0.retain(|range| range.end > pos);
        if let Some(range) = self.0.first_mut() {
            range.start = range.start.max(pos);
        }
        self.shrink();
    }

    /// Removes the range that holds `pos`.
    pub(crate) fn remove_at(&mut self, pos: Pos) {
        self.0
            .retain(|range| !(range.start..range.end).contains(&pos));
        self.shrink();
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns allocated memory that is not needed.
    fn shrink(&mut self) {
        if self.0.is_empty() && self.0.spilled() {
            self.clear();
        }
    }

    /// Octets of allocated memory.
    pub(crate) fn allocated(&self) -> usize {
        match self.0.spilled() {
            true => self.0.capacity().saturating_mul(size_of::<Range>()),
            false => 0,
        }
    }

    pub(crate) fn as_slice(&self) -> &[Range] {
        &self.0
    }

    /// The first octet at or after `pos` that is not in the set.
    pub(crate) fn next_missing(&self, pos: Pos) -> Pos {
        let holds = |range: &&Range| range.start <= pos && pos < range.end;
        self.0.iter().find(holds).map_or(pos, |range| range.end)
    }

    /// The first octet after `pos` that begins a range.
    pub(crate) fn next_start(&self, pos: Pos) -> Option<Pos> {
        let starts = self.0.iter().map(|range| range.start);
        starts.into_iter().find(|start| *start > pos)
    }

    /// The number of octets of the set in `from..to`.
    pub(crate) fn count(&self, from: Pos, to: Pos) -> u64 {
        let inside = |range: &Range| range.end.min(to) - range.start.max(from);
        self.0.iter().map(inside).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    proptest! {
        /// Compares the set with one of single octets.
        #[test]
        fn is_a_set_of_octets(steps in proptest::collection::vec((0..60u64, 0..9u64, 0..8u8), 0..40)) {
            let mut ranges = Ranges::<4>::default();
            let mut octets = BTreeSet::new();
            for (start, len, action) in steps {
                let (from, to) = (Pos(start), Pos(start + len));
                if action == 0 {
                    ranges.remove_before(from);
                    octets.retain(|octet| *octet >= start);
                } else {
                    let room = ranges.has_room(from, to) || len == 0;
                    prop_assert_eq!(ranges.insert(from, to), room);
                    if room {
                        octets.extend(start..start + len);
                    }
                }
                let listed: Vec<u64> = ranges.as_slice().iter().flat_map(|r| r.start.0..r.end.0).collect();
                prop_assert_eq!(&listed, &octets.iter().copied().collect::<Vec<_>>());
                let fits = ranges.allocated() <= 4 * size_of::<Range>();
                prop_assert!(fits && (!listed.is_empty() || ranges.allocated() == 0));
                let apart = ranges.as_slice().windows(2).all(|pair| pair[0].end < pair[1].start);
                prop_assert!(apart && ranges.as_slice().len() <= 4);
                let missing = (start..).find(|octet| !octets.contains(octet)).unwrap();
                prop_assert_eq!(ranges.next_missing(from), Pos(missing));
                prop_assert_eq!(ranges.count(from, to), octets.range(start..start + len).count() as u64);
                let starts = |octet: &u64| octets.contains(octet) && !octets.contains(&octet.wrapping_sub(1));
                let next = (start + 1..80).find(starts).map(Pos);
                prop_assert_eq!(ranges.next_start(from), next);
            }
        }
    }
}
