//! Tokens of page faults.

/// Name of an outstanding fault. Tokens are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// Represents all faults that found no room: a queue pair that waits for it tries again when there is some.
    pub(crate) const ROOM: Self = Self(0);

    /// The number in the fault record.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The fault with this number in a RESUME command.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}
