//! A map of limited size that discards its oldest entries.

use std::collections::{BTreeMap, VecDeque};

use crate::memory;

/// A map with at most `LIMIT` entries: a further one replaces the oldest.
#[derive(Debug)]
pub(crate) struct Recent<K, V, const LIMIT: usize> {
    values: BTreeMap<K, V>,
    /// Keys, oldest first.
    ages: VecDeque<K>,
}

impl<K, V, const LIMIT: usize> Default for Recent<K, V, LIMIT> {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            ages: VecDeque::new(),
        }
    }
}

impl<K: Copy + Ord, V, const LIMIT: usize> Recent<K, V, LIMIT> {
    /// Sets the value of a key. A key that is present keeps its age.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.values.insert(key, value).is_some() {
            return;
        }
        self.ages.push_back(key);
        if self.ages.len() > LIMIT
            && let Some(oldest) = self.ages.pop_front()
        {
            self.values.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let value = self.values.remove(key)?;
        self.ages.retain(|other| other != key);
        Some(value)
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        memory::map::<K, V>(self.values.len())
            .saturating_add(memory::array::<K>(self.ages.capacity()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut recent: Recent<u8, u8, 3> = Recent::default();
        for key in 0..3 {
            recent.insert(key, key);
        }
        recent.insert(0, 7);
        assert_eq!(recent.get(&0), Some(&7));
        recent.insert(3, 3);
        assert_eq!(recent.get(&0), None);
        assert_eq!(recent.remove(&1), Some(1));
        assert_eq!(recent.remove(&1), None);
        // A removed entry makes room.
        recent.insert(1, 8);
        assert_eq!(recent.get(&2), Some(&2));
        recent.insert(4, 4);
        assert_eq!(recent.get(&2), None);
        assert_eq!(recent.values.len(), recent.ages.len());
    }
}
