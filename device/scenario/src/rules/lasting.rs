//! Actions that last.

/// A lasting action. The change of several of them is undone when the last one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasting {
    PortDown,
    Speed,
    Mtu,
    HoldFaults,
    FillFaults,
    Lookup,
}

impl Lasting {
    /// Number of kinds.
    pub(super) const COUNT: usize = 6;
}
