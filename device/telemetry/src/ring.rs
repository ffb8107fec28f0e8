//! The newest events of one NIC, in a ring of fixed size.

use faultline_nic::Instant;

use crate::event::{Record, TraceEvent};

/// An event in a ring, or a burst of frames that differ only in their PSNs. The ring is that of their NIC. A slot fills a cache
/// line, so that one write to memory keeps it.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Slot {
    /// Number of the first event among the events of all NICs.
    number: u64,
    at: Instant,
    /// The first event.
    event: TraceEvent,
    /// Number of events, which follow each other, and in the other bits the events that the ring had kept before.
    count_and_ordinal: u64,
}

const _: () = assert!(size_of::<Slot>() == 64, "a slot is not a cache line");

/// Bits of the count of a slot. The others have the ordinal, modulo 2^48.
const COUNT_BITS: u32 = u16::BITS;
const ORDINAL_MASK: u64 = u64::MAX >> COUNT_BITS;

impl Slot {
    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the low bits are the count"
    )]
    fn count(&self) -> u16 {
        self.count_and_ordinal as u16
    }

    /// The number after that of the last event.
    fn end(&self) -> u64 {
        self.number.saturating_add(self.count().into())
    }

    /// `count` of the events, without the first `skipped`.
    fn events(&self, skipped: u16, count: u16) -> impl Iterator<Item = TraceEvent> {
        let event = self.event;
        (skipped..skipped.saturating_add(count)).map(move |place| match event {
            TraceEvent::Frame(frame) => TraceEvent::Frame(frame.later(place)),
            other => other,
        })
    }
}

/// A ring of events, with increasing numbers.
#[derive(Debug, Default)]
pub(crate) struct TraceRing {
    slots: Vec<Slot>,
    /// Slots, and events that readers get: bursts do not make a copy of the ring larger.
    capacity: usize,
    /// Place of the next slot.
    place: usize,
    /// Events since the start.
    recorded: u64,
}

/// A copy of a part of the events of all NICs.
#[derive(Clone, Debug, PartialEq)]
pub struct TracePart {
    /// Number of the first record; that of the next one if there are no records.
    pub first: u64,
    /// Number from which the next part begins.
    pub next: u64,
    /// Records from the requested one up to `next` that were overwritten before they could be copied.
    pub lost: u64,
    /// The records, the oldest first.
    pub records: Vec<Record>,
    /// Their numbers.
    pub numbers: Vec<NumberSpan>,
}

/// Records with numbers that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberSpan {
    /// Number of the first of them.
    pub first: u64,
    /// Number of records.
    pub count: usize,
}

impl NumberSpan {
    /// The number after the last one.
    fn end(&self) -> u64 {
        self.first.saturating_add(self.count as u64)
    }

    /// Appends records to those of a list.
    fn append(spans: &mut Vec<Self>, first: u64, count: usize) {
        match spans.last_mut().filter(|last| last.end() == first) {
            Some(last) => last.count = last.count.saturating_add(count),
            None => spans.push(Self { first, count }),
        }
    }
}

impl TracePart {
    /// Makes one part of those of several engines, of which each begins at number `from`. It has up to `limit` records, in the order
    /// of their times.
    pub fn merge(parts: Vec<Self>, from: u64, limit: usize) -> Self {
        // No engine has an event below this number that is not in its part.
        let known = parts.iter().map(|part| part.next).min().unwrap_or(from);
        let mut spans: Vec<(NumberSpan, &[Record])> = Vec::new();
        for part in &parts {
            let mut records = part.records.as_slice();
            for span in &part.numbers {
                let (own, rest) = records.split_at_checked(span.count).unwrap_or_default();
                records = rest;
                spans.push((*span, own));
            }
        }
        spans.sort_by_key(|(span, _)| span.first);
        let mut merged = Self {
            first: known,
            next: known,
            lost: 0,
            records: Vec::new(),
            numbers: Vec::new(),
        };
        for (span, records) in spans {
            let room = limit.saturating_sub(merged.records.len());
            let below = usize::try_from(known.saturating_sub(span.first)).unwrap_or(usize::MAX);
            let count = span.count.min(below);
            if count > room {
                merged.next = merged.next.min(span.first.saturating_add(room as u64));
            }
            let count = count.min(room);
            if count == 0 {
                continue;
            }
            if merged.records.is_empty() {
                merged.first = span.first;
            }
            let records = records.get(..count).unwrap_or_default();
            merged.records.extend_from_slice(records);
            NumberSpan::append(&mut merged.numbers, span.first, count);
        }
        merged.first = merged.first.min(merged.next);
        let passed = merged.next.saturating_sub(from);
        merged.lost = passed.saturating_sub(merged.records.len() as u64);
        merged.records.sort_by_key(|record| record.at);
        merged
    }
}

impl TraceRing {
    /// An empty ring for this many events.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            slots: Vec::with_capacity(capacity),
            capacity,
            place: 0,
            recorded: 0,
        }
    }

    /// Keeps `count` events from a number on, in place of the oldest if the ring is full; of more than one, all are
    /// frames. `event` makes the first one in its slot, because copying a value that was just stored in parts waits for
    /// these stores.
    #[inline]
    pub(crate) fn push(
        &mut self,
        number: u64,
        at: Instant,
        count: u16,
        event: impl FnOnce() -> TraceEvent,
    ) {
        if self.capacity == 0 {
            return;
        }
        let slot = || Slot {
            number,
            at,
            event: event(),
            count_and_ordinal: self.recorded << COUNT_BITS | u64::from(count),
        };
        match self.slots.get_mut(self.place) {
            Some(oldest) => *oldest = slot(),
            None => self.slots.push(slot()),
        }
        self.recorded = self.recorded.saturating_add(count.into());
        self.place = self.place.saturating_add(1);
        if self.place == self.capacity {
            self.place = 0;
        }
    }

    /// Events since the start.
    pub(crate) fn recorded(&self) -> u64 {
        self.recorded
    }

    /// The events from number `from` on, the oldest first.
    pub(crate) fn since(&self, from: u64) -> Events<'_> {
        let (newer, older) = self.slots.split_at_checked(self.place).unwrap_or_default();
        let is_over = |slot: &Slot| slot.end() <= from || self.excess(slot) >= slot.count().into();
        let pieces = [older, newer].map(|piece| {
            let first = piece.partition_point(is_over);
            piece.get(first..).unwrap_or_default()
        });
        let mut events = Events { pieces, skipped: 0 };
        if let Some(first) = events.slot() {
            let passed = from.saturating_sub(first.number);
            let skipped = passed.max(self.excess(first));
            events.skipped = u16::try_from(skipped).unwrap_or(u16::MAX);
        }
        events
    }

    /// Events of a slot, from its first one on, that are too old: newer ones fill the capacity. Can be more than the slot has.
    fn excess(&self, slot: &Slot) -> u64 {
        let ordinal = slot.count_and_ordinal >> COUNT_BITS;
        let age = self.recorded.wrapping_sub(ordinal) & ORDINAL_MASK;
        age.saturating_sub(self.capacity as u64)
    }
}

/// Events of a ring that were not taken.
pub(crate) struct Events<'a> {
    pieces: [&'a [Slot]; 2],
    /// Events of the first slot that were taken.
    skipped: u16,
}

impl<'a> Events<'a> {
    /// The slot of the next event.
    fn slot(&self) -> Option<&'a Slot> {
        self.pieces.iter().find_map(|piece| piece.first())
    }

    /// Number of the next event.
    pub(crate) fn next_number(&self) -> Option<u64> {
        let slot = self.slot()?;
        Some(slot.number.saturating_add(self.skipped.into()))
    }

    /// Takes those whose numbers are below `bound`, until `records` has `limit`. Returns the number after that of the last one
    /// that was taken.
    pub(crate) fn take(
        &mut self,
        nic: u16,
        bound: u64,
        limit: usize,
        (records, numbers): (&mut Vec<Record>, &mut Vec<NumberSpan>),
    ) -> Option<u64> {
        let mut next = None;
        while let Some(slot) = self.slot() {
            let number = slot.number.saturating_add(self.skipped.into());
            let room = limit.saturating_sub(records.len()) as u64;
            let until = slot.end().min(bound).min(number.saturating_add(room));
            let Some(count @ 1..) = until.checked_sub(number) else {
                break;
            };
            let count = u16::try_from(count).unwrap_or(u16::MAX);
            records.extend(slot.events(self.skipped, count).map(|event| Record {
                at: slot.at,
                nic,
                event,
            }));
            NumberSpan::append(numbers, number, count.into());
            next = Some(until);
            self.skipped = self.skipped.saturating_add(count);
            if self.skipped >= slot.count() {
                self.skipped = 0;
                let piece = self.pieces.iter_mut().find(|piece| !piece.is_empty());
                if let Some(piece) = piece {
                    *piece = piece.get(1..).unwrap_or_default();
                }
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use faultline_nic::{Diagnostic, TxFrame};

    use super::*;
    use crate::event::FrameEvent;

    fn push_one(ring: &mut TraceRing, number: u64) {
        let event = || TraceEvent::Nic(Diagnostic::Reset);
        ring.push(number, Instant(number), 1, event);
    }

    /// The numbers and PSNs of all events from a number on.
    fn events(ring: &TraceRing, from: u64) -> Vec<(u64, u32)> {
        let mut events = ring.since(from);
        let mut all = Vec::new();
        while let Some(number) = events.next_number() {
            let mut records = Vec::new();
            let taken = events.take(0, u64::MAX, 1, (&mut records, &mut Vec::new()));
            assert_eq!(taken, Some(number + 1));
            let psn = match records[0].event {
                TraceEvent::Frame(frame) => frame.psn,
                _ => 0,
            };
            all.push((number, psn));
        }
        all
    }

    fn numbers(ring: &TraceRing, from: u64) -> Vec<u64> {
        events(ring, from)
            .iter()
            .map(|(number, _)| *number)
            .collect()
    }

    #[test]
    fn the_oldest_gives_way() {
        let mut ring = TraceRing::new(4);
        assert_eq!(numbers(&ring, 0), Vec::<u64>::new());
        for number in 0..11 {
            push_one(&mut ring, 10 * number);
            let oldest = (number + 1).saturating_sub(4);
            let kept: Vec<u64> = (oldest..=number).map(|number| 10 * number).collect();
            assert_eq!(numbers(&ring, 0), kept);
        }
        assert_eq!(numbers(&ring, 85), [90, 100]);
        assert_eq!(numbers(&ring, 101), Vec::<u64>::new());
        assert_eq!(ring.recorded(), 11);
    }

    #[test]
    fn each_frame_of_a_burst_is_an_event() {
        let mut ring = TraceRing::new(8);
        let frame = FrameEvent {
            psn: 0xff_ffff,
            packets: 2,
            ..FrameEvent::new(&TxFrame::default(), 1, 60)
        };
        push_one(&mut ring, 3);
        ring.push(4, Instant(4), 5, || TraceEvent::Frame(frame));
        push_one(&mut ring, 9);
        let burst = [(4, 0xff_ffff), (5, 1), (6, 3), (7, 5), (8, 7)];
        assert_eq!(events(&ring, 0)[1..6], burst);
        assert_eq!(events(&ring, 6), [(6, 3), (7, 5), (8, 7), (9, 0)]);
        assert_eq!((ring.recorded(), numbers(&ring, 9)), (7, vec![9]));
        // The newest eight are kept, also if the oldest are a part of a burst.
        (10..14).for_each(|number| push_one(&mut ring, number));
        assert_eq!(numbers(&ring, 0), [6, 7, 8, 9, 10, 11, 12, 13]);
        ring.push(14, Instant(14), 100, || TraceEvent::Frame(frame));
        assert_eq!(numbers(&ring, 0), (106..114).collect::<Vec<u64>>());
        // A bound, and a limit, within a burst.
        let (mut records, mut spans) = (Vec::new(), Vec::new());
        let mut part = ring.since(0);
        let mut take = |bound, limit| part.take(0, bound, limit, (&mut records, &mut spans));
        assert_eq!(take(108, 100), Some(108));
        assert_eq!(take(108, 100), None);
        assert_eq!(take(200, 5), Some(111));
        let (first, count) = (106, 5);
        assert_eq!(spans, [NumberSpan { first, count }]);
        assert_eq!((records.len(), part.next_number()), (5, Some(111)));
    }
}
