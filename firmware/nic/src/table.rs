//! Tables of objects, and the 24-bit numbers under which guests know them.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "numbers and slots are limited by `max`, of 24 bits"
)]

use std::collections::VecDeque;

use crate::number::len32;
use crate::work::count_steps;

/// Objects by number.
///
/// The low bits of a number are the slot, the bits above count how often the slot was used, so that a stale
/// number does not soon name another object. Freed slots are used again as late as possible.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    slot_bits: u32,
    first: u32,
    max: u32,
    live: u32,
}

#[derive(Debug)]
struct Slot<T> {
    number: u32,
    object: Option<Box<T>>,
}

/// All object numbers have 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;

impl<T> Table<T> {
    /// A table for `max` objects whose first number is `first`.
    pub(crate) fn new(max: u32, first: u32) -> Self {
        let slot_bits = (max + first).next_power_of_two().trailing_zeros().min(24);
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            slot_bits,
            first,
            max,
            live: 0,
        }
    }

    /// A table whose numbers are always slot numbers, because they name something else too, such as a page.
    pub(crate) fn without_generations(max: u32, first: u32) -> Self {
        Self {
            slot_bits: 24,
            ..Self::new(max, first)
        }
    }

    /// Adds the object that `make` creates from its number. Returns `None` if the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        if self.live >= self.max {
            return None;
        }
        let fresh = len32(self.slots.len());
        let index = if fresh < self.max {
            self.slots.push(Slot {
                number: fresh + self.first,
                object: None,
            });
            fresh
        } else {
            self.free.pop_front()?
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.object = Some(Box::new(make(slot.number)));
        self.live += 1;
        Some(slot.number)
    }

    /// The bits of a number that are the slot: no two objects have the same at a time.
    pub(crate) fn slot_mask(&self) -> u32 {
        (1 << self.slot_bits) - 1
    }

    fn index(&self, number: u32) -> Option<usize> {
        let slot = number & self.slot_mask();
        slot.checked_sub(self.first).map(|index| index as usize)
    }

    /// The object with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        count_steps(1);
        let slot = self.slots.get(self.index(number)?)?;
        if slot.number != number {
            return None;
        }
        slot.object.as_deref()
    }

    /// The object with this number.
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        count_steps(1);
        let index = self.index(number)?;
        let slot = self.slots.get_mut(index)?;
        if slot.number != number {
            return None;
        }
        slot.object.as_deref_mut()
    }

    /// Whether there is an object with this number.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.get(number).is_some()
    }

    /// Removes the object with this number.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.index(number)?;
        let slot = self.slots.get_mut(index)?;
        if slot.number != number {
            return None;
        }
        let object = slot.object.take()?;
        slot.number = slot.number.wrapping_add(1 << self.slot_bits) & NUMBER_MASK;
        self.free.push_back(len32(index));
        self.live -= 1;
        Some(*object)
    }

    /// Number of objects.
    pub(crate) fn len(&self) -> usize {
        self.live as usize
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Number of places that [`Table::iter`] looks at: those of objects, and those that are free again.
    pub(crate) fn place_count(&self) -> usize {
        self.slots.len()
    }

    /// All places from `from` on, with the objects that have one.
    pub(crate) fn places(&self, from: u32) -> impl Iterator<Item = (u32, Option<(u32, &T)>)> {
        // No step for a place before `from`: the last part of a list takes no longer than the first.
        let slots = self.slots.get(from as usize..).unwrap_or_default();
        (from..=u32::MAX).zip(slots).map(|(place, slot)| {
            let object = slot.object.as_deref();
            (place, object.map(|object| (slot.number, object)))
        })
    }

    /// All objects with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots
            .iter()
            .inspect(|_| count_steps(1))
            .filter_map(|slot| Some((slot.number, slot.object.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_numbers_find_nothing() {
        let mut table = Table::new(2, 2);
        let a = table.insert_with(|n| n).unwrap();
        let b = table.insert_with(|n| n).unwrap();
        assert_eq!((a, b), (2, 3));
        assert_eq!(table.insert_with(|n| n), None);
        assert_eq!(table.remove(a), Some(2));
        assert_eq!(table.remove(a), None);
        let c = table.insert_with(|n| n).unwrap();
        assert_ne!(c, a);
        assert_eq!(table.get(a), None);
        assert_eq!(table.get(c), Some(&c));
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(u32::MAX), None);
        assert_eq!(table.len(), 2);
        let numbers = |from| table.places(from).map(|(place, o)| (place, o.map(|o| o.0)));
        let all: Vec<_> = numbers(0).collect();
        assert_eq!(all.len(), 2);
        assert!(numbers(1).eq(all.iter().skip(1).copied()));
        assert_eq!(table.places(u32::MAX).count(), 0);
    }

    #[test]
    fn numbers_stay_within_24_bits() {
        let mut table = Table::new(1, 0);
        for _ in 0..100_000 {
            let n = table.insert_with(|_| ()).unwrap();
            assert!(n <= NUMBER_MASK);
            table.remove(n).unwrap();
        }
    }
}
