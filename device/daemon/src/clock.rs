//! The clock of the engine's NICs. It stops while the engine is paused, so that a pause ends no timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use faultline_nic::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds, which a clock can count for 584 years.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Processor time of this thread.
pub(crate) fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The source of real time.
#[derive(Clone, Debug)]
enum RealTime {
    /// The time of the system since this start.
    System(std::time::Instant),
    /// Nanoseconds that a caller has set.
    Manual(Arc<AtomicU64>),
}

/// Two clocks with the same origin: real time, and the device clock, which can be stopped and advanced.
#[derive(Clone, Debug)]
pub struct Clock {
    source: RealTime,
    /// Device time less real time, in nanoseconds.
    offset: i128,
    /// Device time at which the clock was stopped.
    stopped: Option<Instant>,
}

impl Clock {
    /// Both clocks are 0 now.
    pub(crate) fn new() -> Self {
        Self::with(RealTime::System(std::time::Instant::now()))
    }

    /// Both clocks are 0 now, and advance when the nanoseconds in `time` do.
    pub(crate) fn manual(time: Arc<AtomicU64>) -> Self {
        Self::with(RealTime::Manual(time))
    }

    fn with(source: RealTime) -> Self {
        Self {
            source,
            offset: 0,
            stopped: None,
        }
    }

    /// Time since the start. Never stops.
    #[inline]
    pub(crate) fn real(&self) -> Instant {
        match &self.source {
            RealTime::System(start) => Instant(nanos(start.elapsed())),
            RealTime::Manual(time) => Instant(time.load(Ordering::Relaxed)),
        }
    }

    /// The device clock.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.at(self.real())
    }

    /// The device time at a real time.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the offset is a difference of two u64"
    )]
    pub(crate) fn at(&self, real: Instant) -> Instant {
        match self.stopped {
            Some(at) => at,
            None => {
                let now = i128::from(real.0) + self.offset;
                Instant(u64::try_from(now).unwrap_or_default())
            }
        }
    }

    /// Returns true while the device clock is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Stops the device clock.
    pub(crate) fn stop(&mut self) {
        self.stopped = Some(self.now());
    }

    /// Lets a stopped device clock continue at the time at which it was stopped.
    #[expect(clippy::arithmetic_side_effects, reason = "a difference of two u64")]
    pub(crate) fn resume(&mut self) {
        if let Some(at) = self.stopped.take() {
            self.offset = i128::from(at.0) - i128::from(self.real().0);
        }
    }

    /// Moves a stopped device clock forward.
    pub fn advance(&mut self, by: Duration) {
        if let Some(at) = &mut self.stopped {
            at.0 = at.0.saturating_add(nanos(by));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_pause_takes_no_device_time() {
        let mut clock = Clock::new();
        clock.stop();
        let stopped = clock.now();
        std::thread::sleep(20 * MS);
        assert_eq!(clock.now(), stopped);
        assert!(clock.real().0 >= 20_000_000);
        clock.stop();
        assert_eq!(clock.now(), stopped);
        clock.resume();
        let after = clock.now();
        assert!(after >= stopped && clock.real().0 - after.0 >= 20_000_000);
        std::thread::sleep(MS);
        assert!(clock.now().0 >= after.0 + 1_000_000);
    }

    #[test]
    fn a_stopped_clock_can_be_advanced_and_never_goes_back() {
        let mut clock = Clock::new();
        clock.advance(1000 * MS);
        assert!(clock.now().0 < 1_000_000_000, "it runs");
        clock.stop();
        let stopped = clock.now();
        clock.advance(1000 * MS);
        assert_eq!(clock.now().0, stopped.0 + 1_000_000_000);
        clock.resume();
        assert!(clock.now().0 >= stopped.0 + 1_000_000_000);
    }
}
