//! The translation cache in front of all page tables of a NIC.
//!
//! A line holds a leaf and the stamp of the region it belongs to. A change of a present entry of a region's page table gives
//! the region a new stamp, which drops all its lines at once (shoot-down). Absent pages have no lines.

use std::cell::{Cell, RefCell};

use crate::page_table::{Leaf, PAGE_SHIFT};

const LINES: usize = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// The leaf holds the addresses from here on; no line has length 0.
    first: u64,
    len: u64,
    addr: u64,
    epoch: u64,
    writable: bool,
}

/// The cache: direct-mapped.
#[derive(Debug)]
pub(crate) struct Tlb {
    lines: Box<[Cell<Line>]>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    /// Misses since [`Tlb::take_new_misses`].
    new_misses: Cell<u64>,
    /// Misses are recorded, for injections.
    watched: Cell<bool>,
    seen: RefCell<Vec<SeenMiss>>,
}

/// Misses that are recorded between two calls of [`Tlb::take_seen`], at most.
const MAX_SEEN: usize = 1024;

/// A recorded miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenMiss {
    /// Queue pair on whose behalf the page was looked up.
    pub qpn: u32,
    /// Memory key.
    pub key: u32,
    /// Address in the page table.
    pub va: u64,
}

impl Tlb {
    pub(crate) fn new() -> Self {
        Self {
            lines: (0..LINES).map(|_| Cell::new(Line::default())).collect(),
            hits: Cell::new(0),
            misses: Cell::new(0),
            new_misses: Cell::new(0),
            watched: Cell::new(false),
            seen: RefCell::default(),
        }
    }

    /// The leaf that holds `va`: from the cache, or else from `walk`.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a line does not wrap; `before` is the offset of `va` in its page, and the leaf begins at `va`; counts have 64 bits"
    )]
    pub(crate) fn lookup(
        &self,
        epoch: u64,
        va: u64,
        walk: impl FnOnce() -> Option<Leaf>,
    ) -> Option<Leaf> {
        let page = va >> PAGE_SHIFT;
        let slot = self.lines.get(page as usize & (LINES - 1))?;
        let line = slot.get();
        let offset = va.wrapping_sub(line.first);
        if line.epoch == epoch && offset < line.len {
            self.hits.set(self.hits.get() + 1);
            return Some(Leaf {
                addr: line.addr + offset,
                len: line.len - offset,
                writable: line.writable,
            });
        }
        self.misses.set(self.misses.get() + 1);
        self.new_misses.set(self.new_misses.get() + 1);
        let leaf = walk()?;
        // From the start of the page on; earlier addresses have other lines.
        let before = va & ((1 << PAGE_SHIFT) - 1);
        slot.set(Line {
            first: va - before,
            len: leaf.len + before,
            addr: leaf.addr - before,
            epoch,
            writable: leaf.writable,
        });
        Some(leaf)
    }

    /// Removes the last miss from the counts: its page is absent and will be looked up again, which counts as a miss
    /// then.
    #[cold]
    pub(crate) fn forget_miss(&self) {
        self.misses.set(self.misses.get().saturating_sub(1));
        self.new_misses.set(self.new_misses.get().saturating_sub(1));
    }

    /// Hits and misses so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits.get(), self.misses.get())
    }

    /// True if misses are recorded.
    pub(crate) fn watch(&self, watched: bool) {
        self.watched.set(watched);
    }

    /// Records a miss, if recording is on.
    #[inline]
    pub(crate) fn see(&self, miss: impl FnOnce() -> SeenMiss) {
        if self.watched.get() {
            let mut seen = self.seen.borrow_mut();
            if seen.len() < MAX_SEEN {
                seen.push(miss());
            }
        }
    }

    /// Takes the recorded misses.
    pub(crate) fn take_seen(&self) -> Vec<SeenMiss> {
        self.seen.take()
    }

    /// Misses since the last call.
    pub(crate) fn take_new_misses(&self) -> u64 {
        self.new_misses.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(addr: u64) -> Option<Leaf> {
        Some(Leaf {
            addr,
            len: 4096 - (addr & 0xfff),
            writable: true,
        })
    }

    #[test]
    fn a_line_answers_for_its_stamp_and_range_only() {
        let tlb = Tlb::new();
        assert_eq!(tlb.lookup(1, 0x1010, || leaf(0x5010)), leaf(0x5010));
        let never = || panic!("it is in the cache");
        assert_eq!(tlb.lookup(1, 0x1000, never), leaf(0x5000));
        assert_eq!(tlb.lookup(1, 0x1fff, never), leaf(0x5fff));
        assert_eq!(tlb.lookup(1, 0x2000, || leaf(0x9000)), leaf(0x9000));
        assert_eq!(tlb.lookup(2, 0x1000, || None), None);
        assert_eq!(tlb.counts(), (2, 3));
        assert_eq!((tlb.take_new_misses(), tlb.take_new_misses()), (3, 0));
    }
}
