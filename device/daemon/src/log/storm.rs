//! Summaries of events that are too frequent for a log line each: RNR NAKs and retransmissions.
//!
//! The engine counts; the log thread compares the counts at intervals.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use faultline_nic::Diagnostic;

/// Shortest time between two summaries of a storm.
const PERIOD: Duration = Duration::from_secs(60);

/// A frequent event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storm {
    /// The NIC refuses requests for now.
    RnrSent,
    /// The NIC's requests are refused for now.
    RnrReceived,
    /// The NIC sends packets again, after a timeout or a NAK for a sequence error.
    Retried,
}

impl Storm {
    pub(crate) const ALL: [Self; 3] = [Self::RnrSent, Self::RnrReceived, Self::Retried];

    /// The frequent event that a diagnostic reports, and its queue pair.
    #[inline]
    pub(crate) fn of(diagnostic: &Diagnostic) -> Option<(Self, u32)> {
        match *diagnostic {
            Diagnostic::RnrNakSent { qpn, .. } => Some((Self::RnrSent, qpn)),
            Diagnostic::RnrNakReceived { qpn, .. } => Some((Self::RnrReceived, qpn)),
            Diagnostic::Retried { qpn, .. } => Some((Self::Retried, qpn)),
            _ => None,
        }
    }

    /// The kind in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RnrSent => "rnr_sent_storm",
            Self::RnrReceived => "rnr_received_storm",
            Self::Retried => "retry_storm",
        }
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::RnrSent => "the NIC refuses requests for now (RNR NAK)",
            Self::RnrReceived => "requests of the NIC are refused for now (RNR NAK)",
            Self::Retried => "the NIC sends packets again (timeout or sequence NAK)",
        }
    }

    /// Number of events in this time from which they are reported. Page faults cause some RNR NAKs in ordinary work; retransmissions are
    /// rare.
    pub(crate) fn limit(self, time: Duration) -> u64 {
        let per_second = match self {
            Self::RnrSent | Self::RnrReceived => 200,
            Self::Retried => 20,
        };
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        (ms.saturating_mul(per_second) / 1000).max(per_second)
    }
}

/// Counts of frequent events of a NIC since the start. Only the engine thread writes them.
#[derive(Debug, Default)]
pub(crate) struct Repeated {
    counts: [AtomicU64; Storm::ALL.len()],
    last: [AtomicU32; Storm::ALL.len()],
}

impl Repeated {
    #[inline]
    pub(crate) fn count(&self, storm: Storm, qpn: u32) {
        let index = storm as usize;
        if let (Some(count), Some(last)) = (self.counts.get(index), self.last.get(index)) {
            // One thread writes, so this needs no atomic addition.
            let next = count.load(Ordering::Relaxed).wrapping_add(1);
            count.store(next, Ordering::Relaxed);
            last.store(qpn, Ordering::Relaxed);
        }
    }

    /// The count, and the queue pair of the last event.
    pub(crate) fn get(&self, storm: Storm) -> (u64, u32) {
        let index = storm as usize;
        let count = self.counts.get(index);
        let last = self.last.get(index);
        (
            count.map_or(0, |count| count.load(Ordering::Relaxed)),
            last.map_or(0, |last| last.load(Ordering::Relaxed)),
        )
    }
}

/// The log thread's state of a frequent event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StormWatch {
    /// Count at the last review.
    seen: u64,
    reported: Option<Instant>,
}

impl StormWatch {
    /// Compares the count with that of the last review. Returns the difference if it must be reported.
    pub(crate) fn review(&mut self, now: Instant, count: u64, limit: u64) -> Option<u64> {
        let new = count.saturating_sub(std::mem::replace(&mut self.seen, count));
        let is_silent = self
            .reported
            .is_some_and(|at| now.saturating_duration_since(at) < PERIOD);
        if new < limit || is_silent {
            return None;
        }
        self.reported = Some(now);
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_reported_at_once_and_then_once_a_minute() {
        let repeated = Repeated::default();
        let mut watch = StormWatch::default();
        let start = Instant::now();
        let five = Duration::from_secs(5);
        let limit = Storm::RnrSent.limit(five);
        assert_eq!(limit, 1000);
        let mut review = |seconds: u64, naks: u32| {
            (0..naks).for_each(|n| repeated.count(Storm::RnrSent, n));
            let (count, qpn) = repeated.get(Storm::RnrSent);
            assert!(naks == 0 || qpn == naks - 1);
            watch.review(start + Duration::from_secs(seconds), count, limit)
        };
        assert_eq!(review(5, 999), None);
        assert_eq!(review(10, 1000), Some(1000));
        assert_eq!(review(15, 5000), None);
        assert_eq!(review(69, 5000), None);
        assert_eq!(review(70, 5000), Some(5000));
        assert_eq!(review(200, 0), None);
        assert_eq!(repeated.get(Storm::Retried), (0, 0));
    }

    #[test]
    fn naks_and_retries_are_repetitions() {
        let sent = Diagnostic::RnrNakSent {
            qpn: 7,
            psn: 1,
            token: 0,
        };
        assert_eq!(Storm::of(&sent), Some((Storm::RnrSent, 7)));
        assert_eq!(Storm::of(&Diagnostic::Reset), None);
    }
}
