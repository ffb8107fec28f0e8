//! The page table of a region in buckets: which pages are present, writable, or awaited.

use crate::mkey::Mkey;
use crate::nic::Nic;
use crate::page_table::PAGE_SHIFT;

/// Most buckets of a map.
pub const MAX_BUCKETS: u32 = 4096;
/// Entries of the page table that one call looks at.
const ENTRIES: usize = 1 << 16;
/// Faults without an answer that one call looks at, the oldest of the NIC.
const FAULTS: usize = 256;

/// Pages of an equal part of a region, each of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageBucket {
    /// Pages that the part was looked at for.
    pub pages: u64,
    /// Pages of these that are present.
    pub present: u64,
    /// Present pages that the device may write. The kernel of the guest marks them dirty when it releases them.
    pub writable: u64,
    /// Pages whose fault the driver has not answered.
    pub faulting: u64,
}

/// A part of the page table of a region, in buckets of equal size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageMap {
    /// First address of the region.
    pub iova: u64,
    /// Bytes of the region.
    pub length: u64,
    /// Pages of each bucket, a power of two. The last bucket may have fewer.
    pub bucket_pages: u64,
    /// Number of the first bucket of this part, from 0 at the beginning of the region.
    pub first: u64,
    /// The buckets.
    pub buckets: Vec<PageBucket>,
    /// The page at which the next part begins, from 0; `None`: this was the last. It may be in the last bucket of this part, whose other
    /// pages are then in the next part.
    pub next: Option<u64>,
}

impl Nic {
    /// The page table of a key in at most `buckets` (1 to [`MAX_BUCKETS`]) equal parts, from page `from` on. `None`: there is no such key,
    /// or it has no page table, as a window or device memory. Looks at a bounded number of entries: the rest is for further calls.
    pub fn page_map(&self, key: u32, buckets: u32, from: u64) -> Option<PageMap> {
        let mkey = self.core.mkeys.get(key)?;
        let mut map = Counted::new(mkey, buckets.clamp(1, MAX_BUCKETS).into())?;
        let next = map.count_leaves(mkey, from);
        let until = next.unwrap_or(map.pages);
        for (_, _, fault) in self.core.faults.unanswered().take(FAULTS) {
            if fault.key == key {
                let first = (fault.first_address() >> PAGE_SHIFT).saturating_sub(map.first_page);
                let end = first.saturating_add(fault.page_count());
                let (first, end) = (first.max(from), end.min(until));
                map.add(first, end, |bucket, pages| {
                    bucket.faulting = bucket.faulting.saturating_add(pages)
                });
            }
        }
        map.add(from, until, |bucket, pages| bucket.pages = pages);
        Some(map.part(mkey, from, next))
    }
}

/// The buckets of a whole region.
struct Counted {
    /// Number of the region's first page.
    first_page: u64,
    /// Pages of the region.
    pages: u64,
    /// log2 of the pages of a bucket.
    shift: u32,
    buckets: Vec<PageBucket>,
}

impl Counted {
    fn new(mkey: &Mkey, buckets: u64) -> Option<Self> {
        mkey.page_table()?;
        let first_page = mkey.first_address() >> PAGE_SHIFT;
        let pages = match mkey.length() {
            0 => 0,
            length => {
                let last = mkey
                    .first_address()
                    .saturating_add(length.saturating_sub(1));
                (last >> PAGE_SHIFT)
                    .saturating_sub(first_page)
                    .saturating_add(1)
            }
        };
        let shift = pages
            .div_ceil(buckets.max(1))
            .max(1)
            .next_power_of_two()
            .ilog2();
        let count = pages.div_ceil(1 << shift);
        Some(Self {
            first_page,
            pages,
            shift,
            buckets: vec![PageBucket::default(); usize::try_from(count).ok()?],
        })
    }

    /// Counts the leaves from page `from` on, as far as one call goes. Returns the page of the next call.
    fn count_leaves(&mut self, mkey: &Mkey, from: u64) -> Option<u64> {
        let rest = self.pages.checked_sub(from).filter(|rest| *rest > 0)?;
        let table = mkey.page_table()?;
        let first_page = self.first_page;
        let first = first_page.saturating_add(from);
        let last = first.saturating_add(rest.saturating_sub(1));
        let last = (last << PAGE_SHIFT) | ((1 << PAGE_SHIFT) - 1);
        let next = table.leaves(
            first << PAGE_SHIFT,
            last,
            ENTRIES,
            |first, last, writable| {
                let page = |address: u64| (address >> PAGE_SHIFT).saturating_sub(first_page);
                self.add(
                    page(first),
                    page(last).saturating_add(1),
                    |bucket, pages| {
                        bucket.present = bucket.present.saturating_add(pages);
                        if writable {
                            bucket.writable = bucket.writable.saturating_add(pages);
                        }
                    },
                );
            },
        );
        next.map(|address| (address >> PAGE_SHIFT).saturating_sub(first_page))
    }

    /// Calls `change` for each bucket of the pages from `first` to before `end`, with their number in it.
    fn add(&mut self, first: u64, end: u64, mut change: impl FnMut(&mut PageBucket, u64)) {
        let end = end.min(self.pages);
        let mut at = first;
        while at < end {
            let place = at >> self.shift;
            let next = place
                .saturating_add(1)
                .checked_shl(self.shift)
                .unwrap_or(end)
                .min(end);
            let bucket = usize::try_from(place)
                .ok()
                .and_then(|place| self.buckets.get_mut(place));
            if let Some(bucket) = bucket {
                change(bucket, next.saturating_sub(at));
            }
            at = next;
        }
    }

    /// The buckets of the pages from `from` to before `next`.
    fn part(mut self, mkey: &Mkey, from: u64, next: Option<u64>) -> PageMap {
        let end = next.unwrap_or(self.pages).div_ceil(1 << self.shift);
        self.buckets
            .truncate(usize::try_from(end).unwrap_or(usize::MAX));
        let first = (from >> self.shift).min(self.buckets.len() as u64);
        PageMap {
            iova: mkey.first_address(),
            length: mkey.length(),
            bucket_pages: 1 << self.shift,
            first,
            buckets: self
                .buckets
                .split_off(usize::try_from(first).unwrap_or(usize::MAX)),
            next,
        }
    }
}

#[cfg(test)]
mod tests {
    use faultline_abi::admin::CreateMkey;
    use faultline_abi::qp::ACCESS_LOCAL_WRITE;
    use faultline_abi::translation as tq;
    use faultline_abi::{U32, U64};

    use super::*;
    use crate::budget::Budget;
    use crate::mkey::{Mkeys, PageRange};

    const RW: u64 = tq::READ | tq::WRITE;

    fn region(iova: u64, length: u64) -> (Mkeys, u32) {
        let mut keys = Mkeys::new(8, true, Budget::new(1 << 30));
        let create = CreateMkey {
            pd: U32::new(1),
            access: U32::new(ACCESS_LOCAL_WRITE),
            iova: U64::new(iova),
            length: U64::new(length),
            page_shift: 12,
            ..CreateMkey::default()
        };
        let key = keys.create(&create).unwrap();
        (keys, key)
    }

    /// A part of the map that begins at page `from`, without faults.
    fn part(keys: &Mkeys, key: u32, buckets: u64, from: u64) -> PageMap {
        let mkey = keys.get(key).unwrap();
        let mut map = Counted::new(mkey, buckets).unwrap();
        let next = map.count_leaves(mkey, from);
        map.part(mkey, from, next)
    }

    #[test]
    fn a_tebibyte_has_buckets_of_a_gibibyte() {
        let (mut keys, key) = region(1 << 40, 1 << 40);
        let map = |keys: &mut Mkeys, at: u64, shift, rights| {
            let range = PageRange::new((1 << 40) + at, shift, 1);
            keys.map(key, &range, |_| (1 << 50) | rights).unwrap();
        };
        map(&mut keys, 5 << 30, 21, RW);
        map(&mut keys, (5 << 30) + (4 << 20), 12, tq::READ);
        map(&mut keys, 7 << 30, 30, tq::READ);
        map(&mut keys, (1 << 40) - 4096, 12, RW);
        let map = part(&keys, key, 1024, 0);
        assert_eq!(
            (map.bucket_pages, map.buckets.len(), map.next),
            (1 << 18, 1024, None)
        );
        let present = map
            .buckets
            .iter()
            .enumerate()
            .filter(|(_, bucket)| bucket.present > 0);
        let present: Vec<_> = present
            .map(|(n, bucket)| (n, bucket.present, bucket.writable))
            .collect();
        assert_eq!(present, [(5, 513, 512), (7, 1 << 18, 0), (1023, 1, 1)]);
        // A large leaf fills several buckets.
        let fine = part(&keys, key, u64::from(MAX_BUCKETS), 0);
        let filled = fine
            .buckets
            .iter()
            .filter(|bucket| bucket.present == 1 << 16);
        assert_eq!((fine.bucket_pages, filled.count()), (1 << 16, 4));
    }

    #[test]
    fn a_part_has_a_limit_of_entries() {
        let pages = 3 * ENTRIES as u64 + 100;
        // It begins inside a page.
        let (mut keys, key) = region(0x123, pages << PAGE_SHIFT);
        let (chunk, mut at) = (4096, 0);
        while at < pages {
            let count = chunk.min(pages - at);
            keys.map(key, &PageRange::new(at << PAGE_SHIFT, 12, count), |n| {
                ((at + n) << PAGE_SHIFT) | RW
            })
            .unwrap();
            at += count;
        }
        let (mut from, mut parts, mut present) = (Some(0), 0, 0);
        while let Some(page) = from {
            let map = part(&keys, key, 10, page);
            present += map.buckets.iter().map(|bucket| bucket.present).sum::<u64>();
            assert_eq!(map.first, page / map.bucket_pages);
            assert!(map.next.is_none_or(|next| next == page + ENTRIES as u64));
            (from, parts) = (map.next, parts + 1);
        }
        // The last page is absent.
        assert_eq!((parts, present), (4, pages));
    }

    #[test]
    fn a_region_without_a_byte_has_no_bucket() {
        let (keys, key) = region(0x1000, 0);
        let map = part(&keys, key, 1024, 0);
        assert_eq!((map.buckets, map.bucket_pages, map.next), (vec![], 1, None));
    }
}
