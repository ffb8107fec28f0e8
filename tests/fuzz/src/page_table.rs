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

    /// Larger leaves that hold `page` become leaves of the next size, down to `level`.
    fn split(&mut self, page: u64, level: u8) {
        for above in (level + 1..6).rev() {
            if let Some(&(delta, old, found)) = self.0.get(&page)
                && found == above
            {
                self.0
                    .insert(Self::block(page, above), (delta, old, above - 1));
            }
        }
    }

    /// Leaves of a level from that of page `first` to that of page `last`; `first` is mapped to `dma_page`. Larger leaves
    /// than these lie between the ends as a whole or hold an end.
    fn map(&mut self, (first, last): (u64, u64), level: u8, dma_page: u64, rights: u64) {
        self.split(first, level);
        self.split(last, level);
        let start = Self::block(first, level).start;
        let blocks = start..Self::block(last, level).end;
        self.0.remove(blocks.clone());
        if rights != 0 {
            let delta = dma_page.wrapping_sub(start);
            self.0.insert(blocks, (delta, rights, level));
        }
    }

    /// Of the leaves of a level from that of page `start` to that of page `last`, those whose first page in the table,
    /// which begins at `first`, is mapped: first and last page of each row of them.
    fn present(&self, (start, last): (u64, u64), level: u8, first: u64) -> Vec<(u64, u64)> {
        let pages = 1 << pages_shift(level);
        let mut found = Vec::new();
        for (range, _) in self.0.overlapping(start.max(first)..last + 1) {
            let (from, to) = (range.start.max(start), range.end.min(last + 1));
            // The first leaf may begin before the table does.
            let from = match range.start <= start.max(first) {
                true => start,
                false => from.next_multiple_of(pages),
            };
            if from < to {
                found.push((from, to - 1));
            }
        }
        found
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

/// Maps, invalidations and resets of one table, and look-ups where something has changed.
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
                let start = (first.max(va) & !(leaf - 1)) >> PAGE;
                let dma = |page: u64| entry.wrapping_add((page << PAGE).wrapping_sub(va)) >> PAGE;
                let whole = (start, end >> PAGE);
                let rows = match only_present {
                    true => model.present(whole, level, first >> PAGE),
                    false => vec![whole],
                };
                for row in rows {
                    model.map(row, level, dma(row.0), rights);
                }
                places.extend([at, va.max(first), end]);
            }
        }
        // All places are looked at in the end; with each step, that would be most of the work.
        let recent = places.len().saturating_sub(6);
        for place in &places[recent..] {
            check(&table, &model, *place, (first, last));
        }
    }
    for place in places {
        check(&table, &model, place, (first, last));
    }
}

/// Looks at a place and the pages beside it.
fn check(table: &PageTable, model: &Model, place: u64, (first, last): (u64, u64)) {
    for va in [
        place.saturating_sub(PAGES),
        place,
        place.saturating_add(PAGES),
    ] {
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
