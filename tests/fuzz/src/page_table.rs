//! Page tables against a model.

use faultline_abi::translation::{READ, WRITE};
use faultline_nic::page_table::PageTable;
use rangemap::RangeMap;

use crate::input::Input;

const PAGE: u32 = 12;
const PAGES: u64 = 1 << PAGE;

/// log2 of the pages of a leaf of this level.
const fn pages_shift(level: u8) -> u32 {
    level as u32 * 9
}

/// Pages of a leaf: DMA page less page, rights, level.
type Value = (u64, u64, u8);

/// Leaves by page number.
#[derive(Default)]
struct Model(RangeMap<u64, Value>);

impl Model {
    fn block(page: u64, level: u8) -> std::ops::Range<u64> {
        let start = page >> pages_shift(level) << pages_shift(level);
        start..start + (1 << pages_shift(level))
    }

    fn map(&mut self, page: u64, level: u8, dma_page: u64, rights: u64) {
        // Larger leaves become leaves of the next size.
        for above in (level + 1..6).rev() {
            if let Some(&(delta, old, found)) = self.0.get(&page)
                && found == above
            {
                self.0
                    .insert(Self::block(page, above), (delta, old, above - 1));
            }
        }
        let block = Self::block(page, level);
        self.0.remove(block.clone());
        if rights != 0 {
            let delta = dma_page.wrapping_sub(block.start);
            self.0.insert(block, (delta, rights, level));
        }
    }

    fn invalidate(&mut self, first: u64, last: u64) -> u64 {
        let mut gone = Vec::new();
        for (range, &(_, _, level)) in self.0.overlapping(first..last + 1) {
            let start = Self::block(range.start.max(first), level).start;
            let end = Self::block((range.end - 1).min(last), level).end;
            gone.push((start..end, (end - start) >> pages_shift(level)));
        }
        for (range, _) in &gone {
            self.0.remove(range.clone());
        }
        gone.iter().map(|(_, leaves)| leaves).sum()
    }
}

/// Maps, invalidations and resets of one table, and look-ups at all places where something changes.
pub fn against_model(data: &[u8]) {
    let mut input = Input(data);
    let mut places = Vec::new();
    let range = |input: &mut Input<'_>, places: &mut Vec<u64>| {
        let first = input.u64() >> 17;
        let len = input.u32() >> (input.u8() % 32);
        let last = first + u64::from(len);
        places.clear();
        places.extend([first, last]);
        (first, last)
    };
    let (mut first, mut last) = range(&mut input, &mut places);
    let mut table = PageTable::new(first, last);
    let mut model = Model::default();
    for _ in 0..24 {
        if input.is_empty() {
            break;
        }
        let levels = (1..6u8)
            .find(|levels| {
                let shift = PAGE + pages_shift(*levels);
                first >> shift == last >> shift
            })
            .unwrap_or(6);
        let at = first + input.u64() % (last - first + 1);
        match input.u8() % 8 {
            0 => {
                (first, last) = range(&mut input, &mut places);
                table.reset(first, last);
                model = Model::default();
            }
            1 | 2 => {
                let end = (at + u64::from(input.u32())).min(last);
                let removed = table.invalidate(at, end);
                assert_eq!(
                    u64::from(removed),
                    model.invalidate(at >> PAGE, end >> PAGE)
                );
                places.extend([at, end]);
            }
            op => {
                let shift = PAGE as u8 + input.u8() % 19;
                let size = 1u64 << shift;
                let va = at & !(size - 1);
                let rights = u64::from(input.u8()) & (READ | WRITE);
                let entry = (u64::from(input.u32()) << PAGE & !(size - 1)) | rights;
                let only_present = op == 3;
                let level = ((shift - PAGE as u8) / 9).min(2).min(levels - 1);
                let leaf = PAGES << pages_shift(level);
                table.map_page(va, shift, entry, (first, last), only_present);
                let end = last.min(va + size - 1);
                let mut chunk = first.max(va) & !(leaf - 1);
                while chunk <= end {
                    let there = model.0.get(&(chunk.max(first) >> PAGE)).is_some();
                    if there || !only_present {
                        let dma = entry.wrapping_add(chunk - va) >> PAGE;
                        model.map(chunk >> PAGE, level, dma, rights);
                    }
                    chunk += leaf;
                }
                places.extend([at, va.max(first), end]);
            }
        }
        for place in &places {
            for va in [place.saturating_sub(PAGES), *place, place + PAGES] {
                if va < first || va > last {
                    continue;
                }
                let found = table.lookup(va);
                let expected = model.0.get(&(va >> PAGE));
                assert_eq!(found.is_some(), expected.is_some(), "{va:#x}");
                if let (Some(leaf), Some(&(delta, rights, level))) = (found, expected) {
                    let size = PAGES << pages_shift(level);
                    let addr = (va >> PAGE).wrapping_add(delta) << PAGE | va & (PAGES - 1);
                    assert_eq!(leaf.addr, addr, "{va:#x}");
                    assert_eq!(leaf.len, size - va % size, "{va:#x}");
                    assert_eq!(leaf.writable, rights & WRITE != 0, "{va:#x}");
                }
            }
        }
    }
}
