//! The rate of challenge acknowledgments (RFC 5961 section 7).

use crate::time::{Instant, Nanos};

const INTERVAL: Nanos = Nanos::from_millis(5000);
const ACKS: u8 = 10;

/// Limits acknowledgments of segments that the peer may not have sent. Each connection has its own limit, because a common one
/// tells an attacker whether another connection exists (CVE-2016-5696).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChallengeLimit {
    since: Instant,
    sent: u8,
}

impl ChallengeLimit {
    /// True if one more may be sent now; counts it.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        if self.sent == 0 || now.since(self.since) >= INTERVAL {
            *self = Self {
                since: now,
                sent: 0,
            };
        }
        let allowed = self.sent < ACKS;
        if allowed {
            self.sent = self.sent.saturating_add(1);
        }
        allowed
    }
}
