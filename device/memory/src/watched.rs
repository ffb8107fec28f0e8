//! A list of words of several [`SharedPages`], which is read as a whole.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pages::SharedPages;

/// Words that are read without a branch between them.
const GROUP: usize = 4;

/// Words in shared pages. One look reads all of them, with three instructions each.
#[derive(Debug, Default)]
pub struct WatchedWords {
    /// They are in pages of `owners`. The last group may have a word several times.
    groups: Vec<[NonNull<AtomicU64>; GROUP]>,
    /// Number of words.
    len: usize,
    /// Keep the pages of `words` mapped.
    owners: Vec<Arc<SharedPages>>,
}

// SAFETY: the words are atomic and are in mappings that `owners` keep, which are Send and Sync.
unsafe impl Send for WatchedWords {}
// SAFETY: as above.
unsafe impl Sync for WatchedWords {}

impl WatchedWords {
    /// Removes all words.
    pub fn clear(&mut self) {
        self.groups.clear();
        self.owners.clear();
        self.len = 0;
    }

    /// Adds the words at these numbers of pages and offsets in the page. Pages that do not exist are left out.
    pub fn add(&mut self, pages: &Arc<SharedPages>, words: impl Iterator<Item = (usize, usize)>) {
        for word in words.filter_map(|(page, offset)| Some(pages.page(page)?.word(offset))) {
            let place = self.len % GROUP;
            match self
                .groups
                .last_mut()
                .and_then(|group| group.get_mut(place))
            {
                Some(free) if place > 0 => *free = word,
                _ => self.groups.push([word; GROUP]),
            }
            self.len = self.len.wrapping_add(1);
        }
        self.owners.push(Arc::clone(pages));
    }

    /// Returns true if one of the bits `mask` is set in one of the words. Acquire.
    #[inline(always)]
    pub fn any(&self, mask: u64) -> bool {
        // SAFETY: the word is in a page of `owners`, aligned, and is accessed by atomic operations only.
        let load = |word: NonNull<AtomicU64>| unsafe { word.as_ref() }.load(Ordering::Acquire);
        let groups = self.groups.iter();
        let bits = groups.fold(0, |bits, &[a, b, c, d]| {
            bits | load(a) | load(b) | load(c) | load(d)
        });
        bits & mask != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_watched_until_the_list_is_cleared() {
        let first = Arc::new(SharedPages::new("first", 3).unwrap());
        let second = Arc::new(SharedPages::new("second", 1).unwrap());
        let mut words = WatchedWords::default();
        assert!(!words.any(u64::MAX), "no words");
        words.add(&first, [(0, 8), (2, 4088), (3, 0)].into_iter());
        words.add(&second, [(0, 64), (0, 128), (0, 512)].into_iter());
        let of_second = [64, 128, 512].map(|offset| (&second, 0, offset));
        for (pages, page, offset) in [(&first, 0, 8), (&first, 2, 4088)]
            .into_iter()
            .chain(of_second)
        {
            let page = pages.page(page).unwrap();
            page.store_u64(offset, 0x100);
            assert!(words.any(0x100));
            assert!(!words.any(!0x100));
            page.store_u64(offset, 0);
            page.store_u64(offset ^ 16, u64::MAX);
            assert!(!words.any(u64::MAX), "another word");
        }
        second.page(0).unwrap().store_u64(64, 1);
        drop((first, second));
        assert!(words.any(1), "the pages are still mapped");
        words.clear();
        assert!(!words.any(u64::MAX));
    }
}
