//! Log messages of a NIC: their span, and the rate limit for those that a guest can cause, because the log is shared with other
//! guests and with the host.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tracing::Span;

/// The span of a NIC's messages: it names the NIC, and filters can choose it (`RUST_LOG='[nic{name=a}]=debug'`).
pub fn nic_span(name: &str) -> Span {
    // A span of a lower level would be missing where only errors are logged.
    tracing::error_span!("nic", %name)
}

/// Largest number of messages in one period.
const MESSAGES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(60);

/// The rate limit of one NIC, or of one kind of messages of it. Its messages must be logged in the NIC's span.
#[derive(Debug)]
pub(crate) struct LogLimit {
    /// Kind of diagnostic.
    kind: Option<&'static str>,
    /// Start of the period, and the messages in it.
    period: Cell<(Instant, u32)>,
    suppressed: Cell<u64>,
}

impl LogLimit {
    pub(crate) fn new() -> Self {
        Self {
            kind: None,
            period: Cell::new((Instant::now(), 0)),
            suppressed: Cell::new(0),
        }
    }

    /// For messages of one kind.
    pub(crate) fn of_kind(kind: &'static str) -> Self {
        Self {
            kind: Some(kind),
            ..Self::new()
        }
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
        match self.kind {
            _ if count == 0 => {}
            Some(kind) => {
                tracing::warn!(kind, "suppressed {count} messages of this kind");
            }
            None => {
                tracing::warn!("suppressed {count} messages that its guest has caused");
            }
        }
    }

    /// Returns true if the period of the last message is over.
    pub(crate) fn is_over(&self) -> bool {
        self.period.get().0.elapsed() >= PERIOD
    }

    /// Messages that were suppressed and not reported.
    #[cfg(test)]
    pub(crate) fn suppressed(&self) -> u64 {
        self.suppressed.get()
    }

    fn allows_at(&self, now: Instant) -> bool {
        let (mut start, mut count) = self.period.get();
        if now.saturating_duration_since(start) >= PERIOD {
            (start, count) = (now, 0);
        }
        let allowed = count < MESSAGES;
        match allowed {
            true => self.period.set((start, count.saturating_add(1))),
            false => self.suppressed.set(self.suppressed.get().saturating_add(1)),
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_a_minute_are_limited() {
        let limit = LogLimit::new();
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
