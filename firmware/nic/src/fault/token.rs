//! Tokens of page faults.

use crate::number::low32;

/// Name of an outstanding fault. Tokens are never used twice, and a later fault has a larger one.
///
/// The low bits are an index, the bits above are a running number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(u64);

impl Token {
    /// Stands for all faults that found no room: a queue pair that waits for this token tries again when there
    /// is room.
    pub(crate) const ROOM: Self = Self(0);

    /// The token of the fault with this index, which has fewer than `index_bits` bits. `running` is not zero.
    pub(super) fn new(running: u64, index: u32, index_bits: u32) -> Self {
        Self((running << index_bits) | u64::from(index))
    }

    /// Index of the fault.
    pub(super) fn index(self, index_bits: u32) -> u32 {
        low32(self.0 & !(u64::MAX << index_bits))
    }

    /// The number in the fault record.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The fault with this number in a RESUME command.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}
