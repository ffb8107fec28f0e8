//! How many packets may be sent and not acknowledged.

/// Packets at most. Bounds what one loss costs.
const FULL: i32 = 1024;
/// Packets after a timeout.
const AFTER_TIMEOUT: i32 = 1;

/// The window of a requester: full, or small since a timeout. A peer that has not answered may be slow and not have lost anything: a
/// full window of duplicates would keep it busy until no retry is left. So the window begins with one packet again and grows by what is
/// acknowledged, as in slow start (RFC 5681, section 3.1). It stays small where an acknowledgement always takes longer than the timeout.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// `None`: full.
    small: Option<i32>,
}

impl Window {
    /// The window after a timeout.
    pub(super) const SMALL: Self = Self {
        small: Some(AFTER_TIMEOUT),
    };

    /// Packets that may be sent before more are acknowledged, from the oldest that is not.
    pub(super) fn packets(self) -> i32 {
        self.small.unwrap_or(FULL)
    }

    /// The same, if it is small.
    pub(super) fn small(self) -> Option<i32> {
        self.small
    }

    /// Grows by packets that have been acknowledged.
    pub(super) fn grow(&mut self, acknowledged: i32) {
        let grown = self.small.map(|small| small.saturating_add(acknowledged));
        self.small = grown.filter(|small| *small < FULL);
    }
}
