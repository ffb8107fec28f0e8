//! Counters, and the one place that counts.
//!
//! A queue pair may have its doings counted in a set instead of the device's counters. While it works that set is
//! chosen ([`Counters::choose`]), so that whoever counts need not know. Frames are counted for the device in any case.

use faultline_abi::Status;
use faultline_abi::admin::Counter;

use crate::table::Table;

type Values = [u64; Counter::COUNT];

/// A set, and who uses it.
#[derive(Debug)]
struct Set {
    values: Values,
    /// Queue pairs.
    refs: u32,
}

/// The 64-bit counters of a NIC.
#[derive(Debug)]
pub struct Counters {
    device: Values,
    sets: Table<Set>,
    chosen: Option<u32>,
}

impl Counters {
    /// All zero, with room for so many sets.
    pub fn new(max_sets: u32) -> Self {
        Self {
            device: [0; Counter::COUNT],
            sets: Table::new(max_sets, 1),
            chosen: None,
        }
    }

    /// Whether there are sets at all.
    #[inline]
    pub(crate) fn has_sets(&self) -> bool {
        !self.sets.is_empty()
    }

    /// What is counted from now on goes to this set; `None`: to the device's counters.
    #[inline]
    pub(crate) fn choose(&mut self, set: Option<u32>) {
        self.chosen = set;
    }

    /// Counts one.
    #[inline]
    pub fn inc(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Counts `n`.
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        let set = self.chosen.and_then(|set| self.sets.get_mut(set));
        let values = set.map_or(&mut self.device, |set| &mut set.values);
        let value = &mut values[counter as usize];
        *value = value.wrapping_add(n);
    }

    /// Takes over what is counted elsewhere.
    pub(crate) fn set(&mut self, counter: Counter, value: u64) {
        self.device[counter as usize] = value;
    }

    /// The value of one of the device's.
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
            refs: 0,
        };
        self.sets.insert_with(zero).ok_or(Status::NoResources)
    }

    /// Frees a set that no queue pair uses.
    pub(crate) fn free(&mut self, set: u32) -> Result<(), Status> {
        if self.sets.get(set).ok_or(Status::BadCounters)?.refs > 0 {
            return Err(Status::InUse);
        }
        self.sets.remove(set);
        Ok(())
    }

    /// A queue pair will use this set.
    pub(crate) fn hold(&mut self, set: u32) -> Result<(), Status> {
        self.sets.get_mut(set).ok_or(Status::BadCounters)?.refs += 1;
        Ok(())
    }

    /// A queue pair uses this set no more.
    pub(crate) fn release(&mut self, set: Option<u32>) {
        if let Some(set) = set.and_then(|set| self.sets.get_mut(set)) {
            set.refs -= 1;
        }
    }
}
