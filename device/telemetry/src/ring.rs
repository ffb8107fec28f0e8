//! The newest events, in a ring of fixed size.

use crate::event::Record;

/// A ring of records. Each record has a number, beginning at 0; the ring has the newest.
#[derive(Debug)]
pub struct TraceRing {
    records: Vec<Record>,
    capacity: usize,
    /// Number of the next record.
    next: u64,
    /// Place of the next record: `next % capacity`, without a division for each record.
    place: usize,
}

/// A copy of a part of a ring.
#[derive(Clone, Debug, PartialEq)]
pub struct TracePart {
    /// Records from the requested one on that were overwritten before they could be copied.
    pub lost: u64,
    /// Number from which the next part begins.
    pub next: u64,
    /// The records, the oldest first.
    pub records: Vec<Record>,
}

impl TraceRing {
    /// An empty ring for this many records. With a capacity of 0 nothing is kept.
    pub fn new(capacity: usize) -> Self {
        Self {
            records: Vec::with_capacity(capacity),
            capacity,
            next: 0,
            place: 0,
        }
    }

    /// Keeps a record, in place of the oldest if the ring is full.
    #[inline]
    pub fn push(&mut self, record: Record) {
        if self.capacity == 0 {
            return;
        }
        match self.records.get_mut(self.place) {
            Some(slot) => *slot = record,
            None => self.records.push(record),
        }
        self.next += 1;
        self.place += 1;
        if self.place == self.capacity {
            self.place = 0;
        }
    }

    /// Index of the record with this number.
    #[inline]
    fn slot(&self, number: u64) -> usize {
        let capacity = self.capacity.max(1) as u64;
        usize::try_from(number % capacity).unwrap_or_default()
    }

    /// Copies up to `limit` records from number `from` on.
    pub fn part(&self, from: u64, limit: usize) -> TracePart {
        let oldest = self.next - self.records.len() as u64;
        let first = from.clamp(oldest, self.next);
        let until = self.next.min(first.saturating_add(limit as u64));
        let record = |number: u64| self.records.get(self.slot(number));
        TracePart {
            lost: first.saturating_sub(from),
            next: until,
            records: (first..until).filter_map(record).copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use faultline_nic::{Diagnostic, Instant};

    use super::*;
    use crate::event::TraceEvent;

    fn record(at: u64) -> Record {
        Record {
            at: Instant(at),
            nic: 0,
            event: TraceEvent::Nic(Diagnostic::Reset),
        }
    }

    fn times(part: &TracePart) -> Vec<u64> {
        part.records.iter().map(|record| record.at.0).collect()
    }

    #[test]
    fn a_reader_gets_each_record_once_or_is_told_of_its_loss() {
        let mut ring = TraceRing::new(4);
        assert_eq!(times(&ring.part(0, 10)), Vec::<u64>::new());
        (0..3).for_each(|at| ring.push(record(at)));
        let part = ring.part(0, 2);
        assert_eq!((times(&part), part.lost, part.next), (vec![0, 1], 0, 2));
        (3..10).for_each(|at| ring.push(record(at)));
        let part = ring.part(part.next, 10);
        assert_eq!(
            (times(&part), part.lost, part.next),
            (vec![6, 7, 8, 9], 4, 10)
        );
        assert_eq!(times(&ring.part(part.next, 10)), Vec::<u64>::new());
        // A reader of an earlier process.
        assert_eq!(ring.part(1000, 10).next, 10);
    }

    #[test]
    fn a_ring_without_room_keeps_nothing() {
        let mut ring = TraceRing::new(0);
        ring.push(record(1));
        assert_eq!(ring.part(0, 10).records, []);
    }
}
