//! The page table of a memory region: a radix tree with 4 KiB, 2 MiB and 1 GiB leaves.
//!
//! Its height follows the length of the region and its size the number of pages that are mapped: 4 KiB of
//! table for up to 512 neighbouring entries.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "levels, slots and shifts follow from a height of at most six levels, and callers check that addresses are in the range of the table"
)]

use faultline_abi::translation::{ADDR_MASK as ENTRY_ADDR, READ as PTE_READ, WRITE as PTE_WRITE};

use crate::number::{len32, low32, to_usize};
use crate::work;

/// log2 of the smallest page.
pub const PAGE_SHIFT: u8 = 12;
const FANOUT_BITS: u8 = 9;
const FANOUT: usize = 1 << FANOUT_BITS;
/// Set in an entry that points to another node. The index of the node has the bits of a leaf's address.
const TABLE: u64 = 1 << 2;
const PERMISSIONS: u64 = PTE_READ | PTE_WRITE;

/// Greatest height: 64-bit addresses.
const MAX_LEVELS: usize = 6;

#[derive(Debug)]
pub(crate) struct Node {
    entries: [u64; FANOUT],
    /// Leaves in the entries and in all nodes below.
    leaves: u32,
    /// Entries that point to nodes. If this and `leaves` are 0, all entries are zero.
    tables: u32,
}

impl Node {
    /// Replaces an entry. The caller counts the leaves.
    fn replace(&mut self, slot: usize, entry: u64) -> u64 {
        let old = std::mem::replace(self.entry_mut(slot), entry);
        self.tables = self.tables + table_bit(entry) - table_bit(old);
        old
    }

    /// Makes all entries zero.
    fn clear(&mut self) {
        if self.leaves > 0 || self.tables > 0 {
            self.entries.fill(0);
        }
        (self.leaves, self.tables) = (0, 0);
    }

    #[expect(clippy::indexing_slicing, reason = "`PageTable::slot` is below FANOUT")]
    fn entry_mut(&mut self, slot: usize) -> &mut u64 {
        &mut self.entries[slot]
    }
}

/// The nodes of a page table. None is freed while the table exists.
#[derive(Debug, Default)]
pub(crate) struct Nodes(Vec<Box<Node>>);

impl Nodes {
    /// Bytes of memory that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len() * size_of::<Node>()
    }

    /// Frees the last node. Returns false if there is none.
    pub(crate) fn free_one(&mut self) -> bool {
        self.0.pop().is_some()
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "indices come from `alloc`, and no node is freed before the table"
    )]
    fn node(&mut self, index: u32) -> &mut Node {
        &mut self.0[index as usize]
    }

    fn entry(&mut self, index: u32, slot: usize) -> &mut u64 {
        self.node(index).entry_mut(slot)
    }
}

/// Result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// DMA address of the byte that was looked up.
    pub addr: u64,
    /// Number of bytes from there to the end of the leaf.
    pub len: u64,
    /// The device may write here.
    pub writable: bool,
}

/// A page table: entries by address.
#[derive(Debug)]
pub struct PageTable {
    /// Number of the first page, aligned so that large leaves stay aligned.
    base: u64,
    /// Height: 1 = the root holds 4 KiB leaves.
    levels: u8,
    nodes: Nodes,
    /// Nodes that are not in use, each with all nodes below it. The nodes below are freed when it is used again, so
    /// that removing any number of leaves takes one step.
    free: Vec<u32>,
    root: Option<u32>,
    /// Work since the last [`PageTable::take_work`].
    work: u64,
    /// [`PageTable::map`] has removed or replaced a leaf since the last [`PageTable::take_replaced`].
    has_replaced: bool,
}

impl PageTable {
    /// An empty table for the addresses from `iova` to `last`, inclusive.
    pub fn new(iova: u64, last: u64) -> Self {
        let mut table = Self {
            base: 0,
            levels: 1,
            nodes: Nodes::default(),
            free: Vec::new(),
            root: None,
            work: 0,
            has_replaced: false,
        };
        table.reset(iova, last);
        table
    }

    /// Removes all entries and sets the range of addresses. The table keeps its memory.
    pub fn reset(&mut self, iova: u64, last: u64) {
        let (first_page, last_page) = (iova >> PAGE_SHIFT, last >> PAGE_SHIFT);
        let mut levels = 1;
        // Large leaves need alignment, so the root covers an aligned range.
        while levels < 6 && first_page >> index_shift(levels) != last_page >> index_shift(levels) {
            levels += 1;
        }
        self.base = if levels < 6 {
            first_page >> index_shift(levels) << index_shift(levels)
        } else {
            0
        };
        self.levels = levels;
        self.free.extend(self.root.take());
    }

    /// Bytes of memory that the table has allocated, in use or free.
    pub fn allocated(&self) -> usize {
        self.nodes.bytes()
    }

    /// Number of leaves that are present, of any size.
    pub(crate) fn present(&self) -> u32 {
        let root = self.root.and_then(|root| self.nodes.0.get(root as usize));
        root.map_or(0, |root| root.leaves)
    }

    /// Work since the last call, in the unit of [`crate::Nic::work`].
    pub fn take_work(&mut self) -> u64 {
        std::mem::take(&mut self.work)
    }

    /// Returns true if a present leaf was replaced since the last call: earlier translations are invalid then.
    pub fn take_replaced(&mut self) -> bool {
        std::mem::take(&mut self.has_replaced)
    }

    /// Consumes the table and returns its memory.
    pub(crate) fn into_nodes(self) -> Nodes {
        self.nodes
    }

    fn slot(&self, page: u64, level: u8) -> usize {
        let relative = page.wrapping_sub(self.base);
        to_usize(relative >> index_shift(level)) & (FANOUT - 1)
    }

    /// The leaf that maps address `va`, which must be in the range of the table.
    #[inline]
    pub fn lookup(&self, va: u64) -> Option<Leaf> {
        work::count_steps(1);
        let page = va >> PAGE_SHIFT;
        let mut node = self.root?;
        let mut level = self.levels - 1;
        loop {
            let node_entries = &self.nodes.0.get(node as usize)?.entries;
            let entry = *node_entries.get(self.slot(page, level))?;
            if entry & TABLE != 0 {
                node = node_of(entry);
                level = level.checked_sub(1)?;
                continue;
            }
            if entry & PERMISSIONS == 0 {
                return None;
            }
            let size = 1u64 << leaf_shift(level);
            let offset = va & (size - 1);
            return Some(Leaf {
                addr: (entry & ENTRY_ADDR) + offset,
                len: size - offset,
                writable: entry & PTE_WRITE != 0,
            });
        }
    }

    /// Writes the entry for the leaf at `va`: `level` 0 is 4 KiB, 1 is 2 MiB, 2 is 1 GiB. An entry without
    /// permissions removes the leaf. Earlier entries of its range are removed. Returns false if the leaf is larger than
    /// the whole table.
    pub fn map(&mut self, va: u64, level: u8, entry: u64) -> bool {
        self.map_in_node(va, level, 1, |_| entry) > 0
    }

    /// Writes the entries of `count` pages of 4 KiB from `va` on, as [`PageTable::map`] does: `entry` returns the entry
    /// of the n-th page.
    pub fn map_pages(&mut self, va: u64, count: u64, mut entry: impl FnMut(u64) -> u64) {
        let mut done = 0;
        while done < count {
            let at = va + (done << PAGE_SHIFT);
            done += self.map_in_node(at, 0, count - done, |n| entry(done + n));
        }
    }

    /// As [`PageTable::map`] for up to `count` leaves from `va` on, as far as they are in one node. Returns their
    /// number: at least one, or 0 if a leaf is larger than the whole table.
    fn map_in_node(
        &mut self,
        va: u64,
        level: u8,
        count: u64,
        mut entry: impl FnMut(u64) -> u64,
    ) -> u64 {
        if level >= self.levels {
            return 0;
        }
        let mut entry = |n| match entry(n) {
            leaf if leaf & PERMISSIONS == 0 => 0,
            leaf => leaf & (ENTRY_ADDR | PERMISSIONS),
        };
        let first = entry(0);
        self.charge(1);
        let page = va >> PAGE_SHIFT;
        let root = match self.root {
            Some(root) => root,
            None if first == 0 => return 1,
            None => {
                let root = self.alloc(0, 0);
                self.root = Some(root);
                root
            }
        };
        let height = usize::from(self.levels);
        // The node of each level on the way down.
        let mut path = [root; MAX_LEVELS];
        let mut node = root;
        let mut at = self.levels - 1;
        while at > level {
            let slot = self.slot(page, at);
            let found = *self.nodes.entry(node, slot);
            if found & TABLE != 0 {
                node = node_of(found);
            } else if found == 0 && first == 0 {
                return 1;
            } else {
                // A larger leaf that is partly overwritten is replaced by a node of smaller leaves.
                let step = 1u64 << leaf_shift(at - 1);
                let fresh = self.alloc(found, if found != 0 { step } else { 0 });
                let table = (u64::from(fresh) << PAGE_SHIFT) | TABLE;
                self.nodes.node(node).replace(slot, table);
                let more = self.nodes.node(fresh).leaves - u32::from(found != 0);
                for above in path.iter().take(height).skip(usize::from(at)) {
                    self.nodes.node(*above).leaves += more;
                }
                node = fresh;
            }
            at -= 1;
            if let Some(at_level) = path.get_mut(usize::from(at)) {
                *at_level = node;
            }
        }
        let slot = self.slot(page, level);
        let count = count.min((FANOUT - slot) as u64);
        work::count_steps(count - 1);
        self.work += count - 1;
        let (mut added, mut removed) = (0, 0);
        for n in 0..count {
            let leaf = if n == 0 { first } else { entry(n) };
            let old = self.nodes.node(node).replace(slot + to_usize(n), leaf);
            added += u32::from(leaf != 0);
            removed += self.release(old);
        }
        self.has_replaced |= removed > 0;
        for node in path.iter().take(height).skip(usize::from(level)) {
            let leaves = &mut self.nodes.node(*node).leaves;
            *leaves = *leaves + added - removed;
        }
        count
    }

    /// Writes the part of a page of 2^`shift` bytes at `va` that is in the range from `first` to `last`, inclusive, in
    /// leaves as large as page and table allow. With `only_present` it replaces present leaves only. `va` and the
    /// address in the entry are multiples of the page size. Returns the number of leaves.
    pub fn map_page(
        &mut self,
        va: u64,
        shift: u8,
        entry: u64,
        (first, last): (u64, u64),
        only_present: bool,
    ) -> u32 {
        let level = level_of(shift).min(self.levels - 1);
        let leaf = 1u64 << leaf_shift(level);
        let end = last.min(va | ((1 << shift) - 1));
        let mut at = first.max(va) & !(leaf - 1);
        let mut written = 0;
        while at <= end {
            if only_present && self.lookup(at.max(first)).is_none() {
                self.charge(1);
            } else {
                self.map(at, level, entry.wrapping_add(at - va));
                written += 1;
            }
            match at.checked_add(leaf) {
                Some(next) => at = next,
                None => break,
            }
        }
        written
    }

    /// Removes every leaf that overlaps the addresses from `first` to `last`, inclusive. Returns their number.
    pub fn invalidate(&mut self, first: u64, last: u64) -> u32 {
        let Some(root) = self.root else { return 0 };
        let lo = (first >> PAGE_SHIFT).max(self.base).wrapping_sub(self.base);
        let hi = (last >> PAGE_SHIFT).wrapping_sub(self.base);
        let removed = self.invalidate_node(root, self.levels - 1, lo, hi);
        if self.nodes.node(root).leaves == 0 {
            self.free.extend(self.root.take());
        }
        removed
    }

    // `lo` and `hi` are page numbers relative to the start of the node. Nodes that are entirely in the range are not
    // traversed, so that the work is bounded by the height.
    fn invalidate_node(&mut self, node: u32, level: u8, lo: u64, hi: u64) -> u32 {
        let shift = index_shift(level);
        let (first, last) = (to_usize(lo >> shift), to_usize(hi >> shift).min(FANOUT - 1));
        let mut removed = 0;
        for slot in first..=last {
            self.charge(1);
            let entry = *self.nodes.entry(node, slot);
            if entry & TABLE != 0 {
                let start = (slot as u64) << shift;
                let child_lo = lo.saturating_sub(start);
                let child_hi = (hi - start).min((1 << shift) - 1);
                let child = node_of(entry);
                if child_lo > 0 || child_hi < (1 << shift) - 1 {
                    removed += self.invalidate_node(child, level - 1, child_lo, child_hi);
                    if self.nodes.node(child).leaves > 0 {
                        continue;
                    }
                }
            }
            self.nodes.node(node).replace(slot, 0);
            removed += self.release(entry);
        }
        self.nodes.node(node).leaves -= removed;
        removed
    }

    fn charge(&mut self, work: u64) {
        work::count_steps(1);
        self.work += work;
    }

    /// Allocates a node with leaves from `entry` on, `step` apart; an empty node if `entry` is 0.
    fn alloc(&mut self, entry: u64, step: u64) -> u32 {
        self.charge(work::NODE);
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.0.push(Box::new(Node {
                entries: [0; FANOUT],
                leaves: 0,
                tables: 0,
            }));
            len32(self.nodes.0.len() - 1)
        });
        let node = self.nodes.node(index);
        if node.tables > 0 {
            let below = node.entries.iter().filter(|below| **below & TABLE != 0);
            self.free.extend(below.map(|below| node_of(*below)));
        }
        node.clear();
        if entry != 0 {
            for (i, slot) in node.entries.iter_mut().enumerate() {
                *slot = entry.wrapping_add(i as u64 * step);
            }
            node.leaves = len32(FANOUT);
        }
        index
    }

    /// Frees the node or leaf of an entry. Returns the number of leaves.
    fn release(&mut self, entry: u64) -> u32 {
        if entry & TABLE == 0 {
            return u32::from(entry != 0);
        }
        let node = node_of(entry);
        self.free.push(node);
        self.nodes.node(node).leaves
    }
}

/// 1 if an entry points to a node.
fn table_bit(entry: u64) -> u32 {
    u32::from(entry & TABLE != 0)
}

/// The node that an entry with [`TABLE`] points to.
fn node_of(entry: u64) -> u32 {
    low32(entry >> PAGE_SHIFT)
}

/// log2 of the number of pages behind an entry of a node of this level.
fn index_shift(level: u8) -> u8 {
    FANOUT_BITS * level
}

/// log2 of the bytes of a leaf.
fn leaf_shift(level: u8) -> u8 {
    PAGE_SHIFT + FANOUT_BITS * level
}

/// Level of the largest leaves that a page of this size can be divided into.
fn level_of(page_shift: u8) -> u8 {
    match page_shift {
        30.. => 2,
        21.. => 1,
        _ => 0,
    }
}

/// log2 of the number of leaves of a page in a table that is high enough.
pub(crate) fn leaves_per_page(page_shift: u8) -> u8 {
    page_shift.saturating_sub(leaf_shift(level_of(page_shift)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RW: u64 = PTE_READ | PTE_WRITE;

    impl PageTable {
        /// Bytes of the nodes that are in use.
        fn memory(&self) -> usize {
            let mut nodes = Vec::from_iter(self.root);
            let mut count = 0;
            while let Some(node) = nodes.pop() {
                count += 1;
                let entries = self.nodes.0[node as usize].entries.iter();
                let tables = entries.filter(|entry| **entry & TABLE != 0);
                nodes.extend(tables.map(|entry| node_of(*entry)));
            }
            count * 4096
        }
    }

    #[test]
    fn small_table_finds_its_pages() {
        let mut table = PageTable::new(0x7000_0123, 0x7000_2fff);
        assert_eq!(table.levels, 1);
        assert!(table.map(0x7000_1000, 0, 0xabc000 | RW));
        assert!(table.map(0x7000_0000, 0, 0xdef000 | PTE_READ));
        let leaf = table.lookup(0x7000_1010).unwrap();
        assert_eq!(
            (leaf.addr, leaf.len, leaf.writable),
            (0xabc010, 0xff0, true)
        );
        assert!(!table.lookup(0x7000_0123).unwrap().writable);
        assert_eq!(table.lookup(0x7000_2000), None);
        assert_eq!(table.memory(), 4096);
    }

    #[test]
    fn large_leaves_split_and_fold() {
        let mut table = PageTable::new(0, (4 << 30) - 1);
        assert!(table.map(1 << 30, 2, (5 << 30) | RW));
        assert_eq!(
            table.lookup((1 << 30) + 0x1234_5678).unwrap().addr,
            (5 << 30) + 0x1234_5678
        );
        assert!(table.map((1 << 30) + 0x5000, 0, 0x9000 | PTE_READ));
        assert_eq!(table.lookup((1 << 30) + 0x5001).unwrap().addr, 0x9001);
        assert_eq!(
            table.lookup((1 << 30) + 0x4001).unwrap().addr,
            (5 << 30) + 0x4001
        );
        assert_eq!(
            table.lookup((1 << 30) + 0x20_0001).unwrap().addr,
            (5 << 30) + 0x20_0001
        );
        assert_eq!(table.memory(), 3 * 4096);
        // Removing the large leaf frees the nodes below it.
        assert!(table.map(1 << 30, 2, 0));
        assert_eq!(table.lookup((1 << 30) + 0x5001), None);
        assert_eq!(table.memory(), 4096);
    }

    #[test]
    fn invalidate_removes_overlapping_leaves_and_frees_nodes() {
        let mut table = PageTable::new(0, u64::MAX >> 16);
        for page in 0..2000u64 {
            assert!(table.map(page << 12, 0, (page << 12) | RW));
        }
        assert!(table.map(1 << 30, 1, (8 << 30) | RW));
        assert_eq!(table.invalidate(0x1fff, 0x3000), 3);
        assert_eq!(table.lookup(0x1000), None);
        assert!(table.lookup(0).is_some() && table.lookup(0x4000).is_some());
        assert_eq!(table.invalidate(0, u64::MAX >> 16), 1998);
        assert_eq!(table.memory(), 0);
        assert_eq!(table.invalidate(0, u64::MAX >> 16), 0);
    }

    #[test]
    fn invalidating_a_part_removes_the_whole_large_leaf() {
        let mut table = PageTable::new(0, (4 << 30) - 1);
        assert!(table.map(2 << 20, 1, (6 << 20) | RW));
        assert!(table.map(4 << 20, 1, (8 << 20) | RW));
        assert_eq!(table.invalidate((2 << 20) + 0x7000, (2 << 20) + 0x7fff), 1);
        assert_eq!(table.lookup(2 << 20), None);
        assert_eq!(table.lookup((4 << 20) - 1), None);
        assert_eq!(table.lookup(4 << 20).unwrap().addr, 8 << 20);
    }

    #[test]
    fn the_last_page_of_the_address_space_works() {
        let mut table = PageTable::new(0, u64::MAX);
        assert!(table.map(!0xfff, 0, 0x1000 | RW));
        assert_eq!(table.lookup(u64::MAX).unwrap().addr, 0x1fff);
        assert_eq!(table.invalidate(u64::MAX, u64::MAX), 1);
    }

    #[test]
    fn a_leaf_larger_than_the_table_is_refused() {
        let mut table = PageTable::new(0x1000, 0x1fff);
        assert!(!table.map(0, 1, RW));
    }
}
