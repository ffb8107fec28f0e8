//! Limit on packets that are sent and not acknowledged.

/// Largest window in packets. It bounds the number of packets that one loss repeats.
const FULL: i32 = 1024;
/// Packets after a timeout.
const AFTER_TIMEOUT: i32 = 1;

/// The window of a requester: full, or small since a timeout. A peer that has not answered may be slow without having
/// lost packets: a full window of duplicates would keep it busy until no retry is left. So the window starts again with
/// one packet and grows with each acknowledged packet, as in slow start (RFC 5681, section 3.1). It stays small where
/// an acknowledgement always takes longer than the timeout.
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

    /// Packets that may be sent, counted from the oldest that is not acknowledged.
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
