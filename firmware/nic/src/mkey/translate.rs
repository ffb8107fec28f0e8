//! Translation of key and address to guest memory, and checks of ranges.

use super::access::{Access, KeyRange, KeyUser, Miss};
use super::key::{Kind, Mkey};
use super::table::Mkeys;
use crate::number::low32;
use crate::page_table::{Leaf, PAGE_SHIFT};
use crate::segments::{Segments, follows, push_segment};
use crate::tlb::{SeenMiss, Tlb};
use crate::work;

/// Pages that [`Mkeys::ranges`] looks up, and pieces that it returns, at most.
const MAX_RANGE_LOOKUPS: u32 = 1 << 14;
const MAX_RANGES: usize = 256;

const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;

/// How much of a range is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All of it.
    All,
    /// All of it, or the caller translates it again.
    AllOrAgain,
    /// As much as [`Segments`] takes without an allocation, or the caller translates it again.
    WithoutAllocation,
}

/// A step of a page walk: the part of a range that one leaf holds, or a part without a leaf, up to the end of its page.
struct Step {
    va: u64,
    leaf: Option<Leaf>,
    bytes: u64,
    /// Bytes of the range from `va` on.
    left: u64,
}

/// A page walk: the leaves of a range, in order. `lookup` returns the leaf that holds an address.
struct PageWalk<L> {
    va: u64,
    left: u64,
    lookup: L,
}

impl<L: FnMut(u64) -> Option<Leaf>> Iterator for PageWalk<L> {
    type Item = Step;

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "offsets in a page; a step is not longer than what is left"
    )]
    fn next(&mut self) -> Option<Step> {
        if self.left == 0 {
            return None;
        }
        let (va, left) = (self.va, self.left);
        let leaf = (self.lookup)(va);
        let to_page_end = PAGE_SIZE - (va & (PAGE_SIZE - 1));
        let bytes = leaf.map_or(to_page_end, |leaf| leaf.len).min(left);
        // Only a region that ends at the last address can wrap, and then no bytes remain.
        self.va = va.wrapping_add(bytes);
        self.left = left - bytes;
        Some(Step {
            va,
            leaf,
            bytes,
            left,
        })
    }
}

impl Mkey {
    /// The leaf of a step, if it allows the access.
    fn require_leaf(&self, step: &Step, access: Access) -> Result<Leaf, Miss> {
        step.leaf
            .filter(|leaf| leaf.writable || !access.writes())
            .ok_or_else(|| self.miss(step.va, low32(step.left), access))
    }

    /// Appends the segments of guest memory behind a range that has been checked, and begins at `va` in the region.
    /// Returns the number of bytes for which there was room.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a part is not longer than what is left of the range"
    )]
    fn append_segments(
        &self,
        va: u64,
        range: &KeyRange,
        extent: Extent,
        tlb: &Tlb,
        out: &mut Segments,
    ) -> Result<u32, Miss> {
        let &KeyRange { len, access, .. } = range;
        let Some(table) = &self.table else {
            push_segment(out, self.base.wrapping_add(va), len);
            return Ok(len);
        };
        let lookup = |va| {
            tlb.lookup(self.epoch, va, || {
                tlb.see(|| SeenMiss {
                    qpn: range.user.qpn,
                    key: range.key,
                    va,
                });
                table.lookup(va)
            })
        };
        let (mut at, mut left) = (va, u64::from(len));
        // Pages that follow each other become one segment here: the list is touched once for each segment.
        let (mut addr, mut bytes) = (0u64, 0u32);
        while left > 0 {
            let leaf = match lookup(at) {
                Some(leaf) if leaf.writable || !access.writes() => leaf,
                found => {
                    if found.is_none() && extent != Extent::All {
                        tlb.forget_miss();
                    }
                    return Err(self.miss(at, low32(left), access));
                }
            };
            let part = leaf.len.min(left);
            if bytes > 0 && leaf.addr == addr.wrapping_add(u64::from(bytes)) {
                bytes += low32(part);
            } else {
                push_segment(out, addr, bytes);
                let is_full = extent == Extent::WithoutAllocation && out.len() >= out.inline_size();
                if is_full && !follows(out, leaf.addr) {
                    return Ok(len - low32(left));
                }
                (addr, bytes) = (leaf.addr, low32(part));
            }
            // Only a region that ends at the last address can wrap, and then no bytes remain.
            at = at.wrapping_add(part);
            left -= part;
        }
        push_segment(out, addr, bytes);
        Ok(len)
    }

    /// Checks that all pages of a range are present. The range has been checked before, and pages of pinned regions are
    /// always present. `looked_up` is called for each page that is looked up.
    fn require(&self, va: u64, len: u32, access: Access, looked_up: impl Fn()) -> Result<(), Miss> {
        let Some(table) = self.table.as_ref().filter(|_| self.is_on_demand()) else {
            return Ok(());
        };
        let mut walk = PageWalk {
            va,
            left: u64::from(len),
            lookup: |va| {
                looked_up();
                table.lookup(va)
            },
        };
        walk.try_for_each(|step| self.require_leaf(&step, access).map(drop))
    }
}

impl Mkeys {
    /// The region behind a range, and the address in the region at which the range begins, if the key allows the access.
    #[inline]
    fn find(&self, range: &KeyRange) -> Result<(&Mkey, u64), Miss> {
        let &KeyRange {
            key,
            user,
            va,
            len,
            access,
        } = range;
        let mkey = self.get(key).ok_or(Miss::Key)?;
        if mkey.pd != user.pd {
            return Err(Miss::Pd);
        }
        match &mkey.kind {
            Kind::Region | Kind::Device { .. } | Kind::Fast { valid: true, .. } => {
                let at = va.checked_add(mkey.shift()).ok_or(Miss::Bounds)?;
                mkey.check(at, len, access)?;
                Ok((mkey, at))
            }
            // A window has an rkey only.
            Kind::Window {
                bound: Some(bound), ..
            } if access.is_remote() && bound.qpn.is_none_or(|qpn| qpn == user.qpn) => {
                mkey.check(va, len, access)?;
                let region = self.get(bound.region).ok_or(Miss::Key)?;
                Ok((region, bound.base.wrapping_add(va.wrapping_sub(mkey.iova))))
            }
            _ => Err(Miss::Key),
        }
    }

    /// Appends the segments of guest memory behind a range.
    #[inline]
    pub fn translate(&self, range: &KeyRange, out: &mut Segments) -> Result<(), Miss> {
        let (region, at) = self.find(range)?;
        region
            .append_segments(at, range, Extent::All, &self.tlb, out)
            .map(drop)
            .map_err(|miss| miss.named(at.wrapping_sub(range.va)))
    }

    /// As [`Mkeys::translate`], for a caller that translates the range again after an error. An absent page is counted then.
    #[inline]
    pub fn try_translate(&self, range: &KeyRange, out: &mut Segments) -> Result<(), Miss> {
        let (region, at) = self.find(range)?;
        region
            .append_segments(at, range, Extent::AllOrAgain, &self.tlb, out)
            .map(drop)
            .map_err(|miss| miss.named(at.wrapping_sub(range.va)))
    }

    /// As [`Mkeys::try_translate`], but stops when [`Segments`] would need an allocation. Returns the number of bytes.
    #[inline]
    pub fn translate_part(&self, range: &KeyRange, out: &mut Segments) -> Result<u32, Miss> {
        let (region, at) = self.find(range)?;
        region
            .append_segments(at, range, Extent::WithoutAllocation, &self.tlb, out)
            .map_err(|miss| miss.named(at.wrapping_sub(range.va)))
    }

    /// Checks that a range may be accessed and that all of its pages are present.
    pub fn require(&self, range: &KeyRange) -> Result<(), Miss> {
        let (region, at) = self.find(range)?;
        region
            .require(at, range.len, range.access, || self.work.add(work::PAGE))
            .map_err(|miss| miss.named(at.wrapping_sub(range.va)))
    }

    /// Checks that a range may be accessed, whether its pages are present or not.
    pub fn check(&self, range: &KeyRange) -> Result<(), Miss> {
        self.find(range).map(drop)
    }

    /// Checks that a range, or (None) all memory behind a key, may be flushed.
    pub fn check_flush(
        &self,
        key: u32,
        user: KeyUser,
        range: Option<(u64, u32)>,
        access: Access,
    ) -> Result<(), Miss> {
        let first = self.get(key).ok_or(Miss::Key)?.first();
        let (va, len) = range.unwrap_or((first, 0));
        self.check(&key_range(key, user, va, len, access))
    }

    /// Guest memory (address, bytes) behind a range or (None) behind all of a key, without pages that are not present.
    /// Returns None if there are too many pieces or too many pages to look up.
    pub fn ranges(
        &self,
        key: u32,
        user: KeyUser,
        range: Option<(u64, u32)>,
        access: Access,
    ) -> Option<Vec<(u64, u64)>> {
        let mkey = self.get(key)?;
        let (va, len) = match range {
            Some((va, len)) => (va, u64::from(len)),
            None => (mkey.first(), mkey.length),
        };
        let found = self.find(&key_range(key, user, va, 0, access));
        let (region, at) = found.ok()?;
        let Some(table) = &region.table else {
            return Some(vec![(region.base.wrapping_add(at), len)]);
        };
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut walk = PageWalk {
            va: at,
            left: len,
            lookup: |va| {
                self.work.add(work::PAGE);
                table.lookup(va)
            },
        };
        for _ in 0..MAX_RANGE_LOOKUPS {
            let Some(step) = walk.next() else {
                return (ranges.len() <= MAX_RANGES).then_some(ranges);
            };
            match (step.leaf, ranges.last_mut()) {
                (None, _) => {}
                (Some(leaf), Some((addr, len))) if addr.wrapping_add(*len) == leaf.addr => {
                    *len = len.saturating_add(step.bytes);
                }
                (Some(leaf), _) => ranges.push((leaf.addr, step.bytes)),
            }
        }
        None
    }
}

#[inline]
fn key_range(key: u32, user: KeyUser, va: u64, len: u32, access: Access) -> KeyRange {
    KeyRange {
        key,
        user,
        va,
        len,
        access,
    }
}
