//! Counters, and the one place that counts.

use faultline_abi::admin::Counter;

/// The 64-bit counters of a NIC.
#[derive(Clone, Debug)]
pub struct Counters([u64; Counter::COUNT]);

impl Counters {
    /// All zero.
    pub const fn new() -> Self {
        Self([0; Counter::COUNT])
    }

    /// Counts one.
    pub fn inc(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Counts `n`.
    pub fn add(&mut self, counter: Counter, n: u64) {
        let value = &mut self.0[counter as usize];
        *value = value.wrapping_add(n);
    }

    /// Takes over what is counted elsewhere.
    pub(crate) fn set(&mut self, counter: Counter, value: u64) {
        self.0[counter as usize] = value;
    }

    /// The value of one.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// All values, in the order of [`Counter::ALL`].
    pub fn values(&self) -> &[u64] {
        &self.0
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}
