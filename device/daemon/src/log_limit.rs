//! Rate limit for log messages that a guest can cause: the log is shared with other guests and with the host.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Largest number of messages in one period.
const MESSAGES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(60);

/// The rate limit of one NIC.
#[derive(Debug)]
pub(crate) struct LogLimit {
    nic: String,
    /// Start of the period, and the messages in it.
    period: Cell<(Instant, u32)>,
    suppressed: Cell<u64>,
}

impl LogLimit {
    pub(crate) fn new(nic: &str) -> Self {
        Self {
            nic: nic.to_owned(),
            period: Cell::new((Instant::now(), 0)),
            suppressed: Cell::new(0),
        }
    }

    /// The name of the NIC.
    pub(crate) fn nic(&self) -> &str {
        &self.nic
    }

    /// Returns true if a message may be logged now. Logs the number of suppressed messages first.
    pub(crate) fn allows(&self) -> bool {
        let allowed = self.allows_at(Instant::now());
        if allowed {
            self.report_suppressed();
        }
        allowed
    }

    /// Logs the number of suppressed messages, if any.
    pub(crate) fn report_suppressed(&self) {
        let count = self.suppressed.take();
        if count > 0 {
            tracing::warn!(nic = %self.nic, "suppressed {count} messages that its guest has caused");
        }
    }

    fn allows_at(&self, now: Instant) -> bool {
        let (mut start, mut count) = self.period.get();
        if now.saturating_duration_since(start) >= PERIOD {
            (start, count) = (now, 0);
        }
        let allowed = count < MESSAGES;
        match allowed {
            true => self.period.set((start, count + 1)),
            false => self.suppressed.set(self.suppressed.get() + 1),
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_a_minute_are_limited() {
        let limit = LogLimit::new("nic0");
        let start = Instant::now();
        let allowed = |after: u64| {
            let now = start + Duration::from_secs(after);
            (0..1000).filter(|_| limit.allows_at(now)).count()
        };
        assert_eq!(allowed(0), 20);
        assert_eq!(allowed(59), 0);
        assert_eq!(limit.suppressed.take(), 1980);
        assert_eq!(allowed(61), 20);
        assert_eq!(allowed(122), 20);
        assert_eq!(limit.suppressed.get(), 1960);
    }
}
