//! Counters of the device, and sets of counters.
//!
//! The driver may bind a set to a queue pair: events of that queue pair are then counted in the set instead of the device's counters.
//! Callers select the set with a [`CounterSet`]. Frames are always counted for the device, too.

use faultline_abi::Status;
use faultline_abi::admin::Counter;

use crate::references::References;
use crate::table::Table;

/// Packets and bytes on the wire of a queue pair, repetitions included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Traffic {
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes of payload received.
    pub rx_bytes: u64,
}

type Values = [u64; Counter::COUNT];

/// A set of counters.
#[derive(Debug)]
struct Set {
    values: Values,
    /// Number of queue pairs that it is bound to.
    refs: References,
}

/// Selects the counters of an event: those of the device, or of a set that the driver has bound to a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CounterSet(Option<u32>);

impl CounterSet {
    /// The device's counters.
    pub(crate) const DEVICE: Self = Self(None);

    /// The set with this number; 0: the device's counters.
    pub(crate) fn from_number(set: u32) -> Self {
        Self(Some(set).filter(|set| *set != 0))
    }
}

/// The 64-bit counters of a NIC.
#[derive(Debug)]
pub struct Counters {
    device: Values,
    sets: Table<Set>,
}

impl Counters {
    /// All zero, with room for `max_sets` sets.
    pub fn new(max_sets: u32) -> Self {
        Self {
            device: [0; Counter::COUNT],
            sets: Table::new(max_sets, 1),
        }
    }

    /// Returns true if there are sets.
    #[inline]
    pub(crate) fn has_sets(&self) -> bool {
        !self.sets.is_empty()
    }

    /// Adds 1 to a counter of the device.
    #[inline]
    pub fn inc(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `n` to a counter of the device.
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        self.add_in(CounterSet::DEVICE, counter, n);
    }

    /// Adds `n` to a counter of a set.
    #[inline]
    pub(crate) fn add_in(&mut self, set: CounterSet, counter: Counter, n: u64) {
        let set = set.0.and_then(|set| self.sets.get_mut(set));
        let values = set.map_or(&mut self.device, |set| &mut set.values);
        let value = value_mut(values, counter);
        *value = value.wrapping_add(n);
    }

    /// Sets a counter that is counted elsewhere.
    pub(crate) fn set(&mut self, counter: Counter, value: u64) {
        *value_mut(&mut self.device, counter) = value;
    }

    /// The value of a counter of the device.
    #[expect(
        clippy::indexing_slicing,
        reason = "the numbers of counters are below COUNT"
    )]
    pub fn get(&self, counter: Counter) -> u64 {
        self.device[counter as usize]
    }

    /// All values of the device's counters, in the order of [`Counter::ALL`].
    pub fn values(&self) -> &[u64] {
        &self.device
    }

    /// All values of a set; of the device's counters if it is zero.
    pub fn values_of(&self, set: u32) -> Result<&[u64], Status> {
        match set {
            0 => Ok(&self.device),
            _ => Ok(&self.sets.get(set).ok_or(Status::BadCounters)?.values),
        }
    }

    /// Makes a set.
    pub(crate) fn alloc(&mut self) -> Result<u32, Status> {
        let zero = |_| Set {
            values: [0; Counter::COUNT],
            refs: References::default(),
        };
        self.sets.insert_with(zero).ok_or(Status::NoResources)
    }

    /// Frees a set that no queue pair uses.
    pub(crate) fn free(&mut self, set: u32) -> Result<(), Status> {
        if self.sets.get(set).ok_or(Status::BadCounters)?.refs.any() {
            return Err(Status::InUse);
        }
        self.sets.remove(set);
        Ok(())
    }

    /// Adds a reference of a queue pair to this set.
    pub(crate) fn hold(&mut self, set: CounterSet) -> Result<(), Status> {
        if let Some(set) = set.0 {
            self.sets
                .get_mut(set)
                .ok_or(Status::BadCounters)?
                .refs
                .add();
        }
        Ok(())
    }

    /// Removes a reference of a queue pair to this set.
    pub(crate) fn release(&mut self, set: CounterSet) {
        if let Some(set) = set.0.and_then(|set| self.sets.get_mut(set)) {
            set.refs.remove();
        }
    }
}

#[inline]
#[expect(
    clippy::indexing_slicing,
    reason = "the numbers of counters are below COUNT"
)]
fn value_mut(values: &mut Values, counter: Counter) -> &mut u64 {
    &mut values[counter as usize]
}
