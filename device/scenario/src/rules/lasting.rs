//! Actions that last.

/// An action that lasts. What several of them have changed is undone when the last one ends.
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
