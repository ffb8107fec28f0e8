//! A limit for messages that a guest can cause: a log is shared by all guests of the process, and by those of the host.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Messages in one period.
const MESSAGES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(60);

/// The limit of one NIC.
#[derive(Debug)]
pub(crate) struct LogLimit {
    nic: String,
    /// Start of the period, and the messages in it.
    period: Cell<(Instant, u32)>,
    left_out: Cell<u64>,
}

impl LogLimit {
    pub(crate) fn new(nic: &str) -> Self {
        Self {
            nic: nic.to_owned(),
            period: Cell::new((Instant::now(), 0)),
            left_out: Cell::new(0),
        }
    }

    /// The name of the NIC.
    pub(crate) fn nic(&self) -> &str {
        &self.nic
    }

    /// Whether a message may be logged now. Those that were left out before are mentioned first.
    pub(crate) fn allows(&self) -> bool {
        let allowed = self.allows_at(Instant::now());
        if allowed {
            self.tell();
        }
        allowed
    }

    /// Mentions the messages that were left out.
    pub(crate) fn tell(&self) {
        let count = self.left_out.take();
        if count > 0 {
            tracing::warn!(nic = %self.nic, "{count} messages that its guest has caused were left out");
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
            false => self.left_out.set(self.left_out.get() + 1),
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_messages_in_a_minute() {
        let limit = LogLimit::new("nic0");
        let start = Instant::now();
        let allowed = |after: u64| {
            let now = start + Duration::from_secs(after);
            (0..1000).filter(|_| limit.allows_at(now)).count()
        };
        assert_eq!(allowed(0), 20);
        assert_eq!(allowed(59), 0);
        assert_eq!(limit.left_out.take(), 1980);
        assert_eq!(allowed(61), 20);
        assert_eq!(allowed(122), 20);
        assert_eq!(limit.left_out.get(), 1960);
    }
}
