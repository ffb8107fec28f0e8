//! The timers of a connection.

use crate::time::Instant;

/// A timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Retransmission (RFC 6298).
    Retransmit,
    /// Window probe (RFC 9293 section 3.8.6.1).
    Persist,
    /// Delayed acknowledgment.
    DelayedAck,
    /// Keep-alive probe.
    KeepAlive,
    /// End of TIME-WAIT.
    TimeWait,
}

impl Timer {
    const ALL: [Self; 5] = [
        Self::Retransmit,
        Self::Persist,
        Self::DelayedAck,
        Self::KeepAlive,
        Self::TimeWait,
    ];
}

/// The deadline of each timer. One that does not run has [`NEVER`], so that a timer takes no more than a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers([Instant; Timer::ALL.len()]);

/// The deadline of a timer that does not run. Times are sums that saturate, and this one is five centuries away.
const NEVER: Instant = Instant(u64::MAX);

impl Default for Timers {
    fn default() -> Self {
        Self([NEVER; Timer::ALL.len()])
    }
}

impl Timers {
    /// Starts a timer, or moves it.
    pub(crate) fn set(&mut self, timer: Timer, deadline: Instant) {
        if let Some(slot) = self.0.get_mut(timer as usize) {
            *slot = deadline;
        }
    }

    /// Starts a timer that does not run.
    pub(crate) fn start(&mut self, timer: Timer, deadline: Instant) {
        if self.0.get(timer as usize) == Some(&NEVER) {
            self.set(timer, deadline);
        }
    }

    /// True if a timer runs and is due.
    pub(crate) fn is_due(&self, timer: Timer, now: Instant) -> bool {
        let deadline = self.0.get(timer as usize);
        deadline.is_some_and(|deadline| *deadline != NEVER && *deadline <= now)
    }

    pub(crate) fn stop(&mut self, timer: Timer) {
        self.set(timer, NEVER);
    }

    pub(crate) fn stop_all(&mut self) {
        *self = Self::default();
    }

    /// Stops a timer that is due, and returns it.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let mut timers = Timer::ALL.into_iter();
        let timer = timers.find(|timer| self.is_due(*timer, now))?;
        self.stop(timer);
        Some(timer)
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        let first = self.0.iter().min().copied();
        first.filter(|deadline| *deadline != NEVER)
    }
}
