//! Entries with stable indices, and lists through them.
//!
//! An entry is a member of several lists at once, by one [`Link`] for each. Adding and removing an entry takes constant
//! time and allocates nothing, except while the slab grows to the largest number of entries so far.

use crate::number::len32;

/// The entry with this index. If it does not exist, it is created with all entries below it.
pub(super) fn entry<T: Default>(entries: &mut Vec<T>, index: u32) -> Option<&mut T> {
    let index = index as usize;
    if index >= entries.len() {
        entries.resize_with(index.saturating_add(1), T::default);
    }
    entries.get_mut(index)
}

/// Index that names no entry.
const NONE: u32 = u32::MAX;

/// Entries by index. The index of a removed entry is used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

/// The neighbours of an entry in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    previous: u32,
    next: u32,
}

/// The ends of a list through the entries of one slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self {
            previous: NONE,
            next: NONE,
        }
    }
}

impl Default for List {
    fn default() -> Self {
        Self {
            first: NONE,
            last: NONE,
        }
    }
}

impl<T> Slab<T> {
    /// Index that the next inserted entry gets.
    pub(crate) fn next_index(&self) -> u32 {
        let fresh = len32(self.entries.len());
        self.free.last().copied().unwrap_or(fresh)
    }

    /// Adds an entry. Returns its index.
    pub(crate) fn insert(&mut self, entry: T) -> u32 {
        let index = self.next_index();
        match self.entries.get_mut(index as usize) {
            Some(slot) => {
                self.free.pop();
                *slot = Some(entry);
            }
            None => self.entries.push(Some(entry)),
        }
        index
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// Removes an entry that is a member of no list.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len().saturating_sub(self.free.len())
    }
}

impl Link {
    /// Index of the entry behind this one.
    #[inline]
    pub(crate) fn next(self) -> Option<u32> {
        (self.next != NONE).then_some(self.next)
    }
}

impl List {
    /// Index of the first entry.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Appends an entry that is not in the list. `link` selects the link of this list.
    #[inline]
    pub(crate) fn push_back<T>(
        &mut self,
        slab: &mut Slab<T>,
        index: u32,
        link: impl Fn(&mut T) -> &mut Link,
    ) {
        if let Some(entry) = slab.get_mut(index) {
            *link(entry) = Link {
                previous: self.last,
                next: NONE,
            };
        }
        match slab.get_mut(self.last) {
            Some(last) => link(last).next = index,
            None => self.first = index,
        }
        self.last = index;
    }

    /// Removes an entry that is in the list.
    #[inline]
    pub(crate) fn remove<T>(
        &mut self,
        slab: &mut Slab<T>,
        index: u32,
        link: impl Fn(&mut T) -> &mut Link,
    ) {
        let Some(entry) = slab.get_mut(index) else {
            return;
        };
        let Link { previous, next } = std::mem::take(link(entry));
        match slab.get_mut(previous) {
            Some(entry) => link(entry).next = next,
            None => self.first = next,
        }
        match slab.get_mut(next) {
            Some(entry) => link(entry).previous = previous,
            None => self.last = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Entry {
        value: u32,
        link: Link,
    }

    fn values(slab: &Slab<Entry>, list: List) -> Vec<u32> {
        let follow = |index: &u32| slab.get(*index).map(|entry| entry.link.next);
        let forward: Vec<u32> = std::iter::successors(list.first(), follow)
            .filter_map(|index| Some(slab.get(index)?.value))
            .collect();
        let follow = |index: &u32| slab.get(*index).map(|entry| entry.link.previous);
        let mut backward: Vec<u32> = std::iter::successors(Some(list.last), follow)
            .filter_map(|index| Some(slab.get(index)?.value))
            .collect();
        backward.reverse();
        assert_eq!(forward, backward);
        forward
    }

    #[test]
    fn lists_keep_their_order_and_indices_are_used_again() {
        let mut slab = Slab::default();
        let mut list = List::default();
        let add = |slab: &mut Slab<Entry>, list: &mut List, value: u32| {
            let link = Link::default();
            let index = slab.insert(Entry { value, link });
            list.push_back(slab, index, |entry| &mut entry.link);
            index
        };
        let indices = [10, 11, 12, 13].map(|value| add(&mut slab, &mut list, value));
        assert_eq!(values(&slab, list), [10, 11, 12, 13]);
        for (n, left) in [(1, vec![10, 12, 13]), (3, vec![10, 12]), (0, vec![12])] {
            list.remove(&mut slab, indices[n], |entry| &mut entry.link);
            assert!(slab.remove(indices[n]).is_some());
            assert!(slab.remove(indices[n]).is_none());
            assert_eq!(values(&slab, list), left);
            assert_eq!(slab.len(), left.len());
        }
        for value in 20..23 {
            assert!(add(&mut slab, &mut list, value) < 4);
        }
        assert_eq!(values(&slab, list), [12, 20, 21, 22]);
        assert_eq!(add(&mut slab, &mut list, 23), 4);
    }
}
