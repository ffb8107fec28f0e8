//! A map that forgets its oldest entries.

use std::collections::{HashMap, VecDeque, hash_map};
use std::hash::Hash;

/// Entries of which the oldest is forgotten when there are `LIMIT` and another one is added.
#[derive(Debug)]
pub(crate) struct Recent<K, V, const LIMIT: usize> {
    values: HashMap<K, V>,
    /// Keys, oldest first.
    ages: VecDeque<K>,
}

impl<K, V, const LIMIT: usize> Default for Recent<K, V, LIMIT> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            ages: VecDeque::new(),
        }
    }
}

impl<K: Copy + Eq + Hash, V, const LIMIT: usize> Recent<K, V, LIMIT> {
    /// Sets the value of a key. A key that is present keeps its age. Returns the key that is forgotten for another one.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<K> {
        if self.values.insert(key, value).is_some() {
            return None;
        }
        self.ages.push_back(key);
        if self.ages.len() <= LIMIT {
            return None;
        }
        let oldest = self.ages.pop_front()?;
        self.values.remove(&oldest);
        Some(oldest)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.values.get_mut(key)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.values.contains_key(key)
    }

    /// All entries, in no order.
    pub(crate) fn iter(&self) -> hash_map::Iter<'_, K, V> {
        self.values.iter()
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let value = self.values.remove(key)?;
        self.ages.retain(|other| other != key);
        Some(value)
    }

    /// Removes the entries for which `is_kept` returns false.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&K, &V) -> bool) {
        let before = self.values.len();
        self.values.retain(|key, value| is_kept(key, value));
        if self.values.len() == before {
            return;
        }
        let values = &self.values;
        self.ages.retain(|key| values.contains_key(key));
    }

    pub(crate) fn clear(&mut self) {
        self.values.clear();
        self.ages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut recent: Recent<u8, u8, 3> = Recent::default();
        for key in 0..3 {
            assert_eq!(recent.insert(key, key), None);
        }
        assert_eq!(recent.insert(0, 7), None);
        assert_eq!(recent.insert(3, 3), Some(0));
        assert!(!recent.contains(&0));
        assert_eq!(recent.remove(&1), Some(1));
        assert_eq!(recent.remove(&1), None);
        // There is room again.
        assert_eq!(recent.insert(1, 8), None);
        assert_eq!(recent.insert(4, 4), Some(2));
        recent.retain(|key, _| *key != 3);
        assert_eq!(recent.insert(5, 5), None);
        assert_eq!(recent.insert(6, 6), Some(1));
        assert_eq!(recent.iter().count(), recent.ages.len());
        recent.clear();
        assert_eq!((recent.get(&4), recent.ages.len()), (None, 0));
    }
}
