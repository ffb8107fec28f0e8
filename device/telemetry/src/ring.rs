//! The newest events of one NIC, in a ring of fixed size.

use faultline_nic::Instant;

use crate::event::{Record, TraceEvent};

/// An event in a ring. The ring is that of its NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// Number among the events of all NICs.
    pub(crate) number: u64,
    pub(crate) at: Instant,
    pub(crate) event: TraceEvent,
}

/// A ring of events, with increasing numbers.
#[derive(Debug)]
pub(crate) struct TraceRing {
    slots: Vec<Slot>,
    capacity: usize,
    /// Place of the next event.
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

    /// Keeps an event, in place of the oldest if the ring is full.
    #[inline]
    pub(crate) fn push(&mut self, slot: Slot) {
        match self.slots.get_mut(self.place) {
            Some(oldest) => *oldest = slot,
            None => self.slots.push(slot),
        }
        self.recorded += 1;
        self.place += 1;
        if self.place == self.capacity {
            self.place = 0;
        }
    }

    /// Events since the start.
    pub(crate) fn recorded(&self) -> u64 {
        self.recorded
    }

    /// The events from number `from` on, the oldest first, in two pieces.
    pub(crate) fn since(&self, from: u64) -> [&[Slot]; 2] {
        let (newer, older) = self.slots.split_at_checked(self.place).unwrap_or_default();
        [older, newer].map(|piece| {
            let first = piece.partition_point(|slot| slot.number < from);
            piece.get(first..).unwrap_or_default()
        })
    }
}

#[cfg(test)]
mod tests {
    use faultline_nic::Diagnostic;

    use super::*;

    #[test]
    fn the_oldest_gives_way() {
        let mut ring = TraceRing::new(4);
        let numbers = |ring: &TraceRing, from| -> Vec<u64> {
            let slots = ring.since(from).into_iter().flatten();
            slots.map(|slot| slot.number).collect()
        };
        assert_eq!(numbers(&ring, 0), Vec::<u64>::new());
        for number in 0..11 {
            ring.push(Slot {
                number: 10 * number,
                at: Instant(number),
                event: TraceEvent::Nic(Diagnostic::Reset),
            });
            let oldest = (number + 1).saturating_sub(4);
            let kept: Vec<u64> = (oldest..=number).map(|number| 10 * number).collect();
            assert_eq!(numbers(&ring, 0), kept);
        }
        assert_eq!(numbers(&ring, 85), [90, 100]);
        assert_eq!(numbers(&ring, 101), Vec::<u64>::new());
        assert_eq!(ring.recorded(), 11);
    }
}
