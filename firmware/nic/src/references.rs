//! Counts of references, which keep an object from being destroyed.

/// The number of references to an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct References(u32);

#[expect(
    clippy::arithmetic_side_effects,
    reason = "each reference is an object or an entry of a table, of which the limits of the device allow fewer than 2^32, \
              and is removed once"
)]
impl References {
    /// An object begins to refer to this one.
    pub(crate) fn add(&mut self) {
        self.0 += 1;
    }

    /// An object no longer refers to this one.
    pub(crate) fn remove(&mut self) {
        self.0 -= 1;
    }

    /// True if an object refers to this one.
    pub(crate) fn any(self) -> bool {
        self.0 > 0
    }

    /// Number of references.
    pub(crate) fn count(self) -> u32 {
        self.0
    }
}
