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

/// The deadline of each timer that runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers([Option<Instant>; Timer::ALL.len()]);

impl Timers {
    fn slot(&mut self, timer: Timer) -> Option<&mut Option<Instant>> {
        self.0.get_mut(timer as usize)
    }

    /// Starts a timer, or moves it.
    pub(crate) fn set(&mut self, timer: Timer, deadline: Instant) {
        if let Some(slot) = self.slot(timer) {
            *slot = Some(deadline);
        }
    }

    /// Starts a timer that does not run.
    pub(crate) fn start(&mut self, timer: Timer, deadline: Instant) {
        if let Some(slot) = self.slot(timer) {
            slot.get_or_insert(deadline);
        }
    }

    pub(crate) fn stop(&mut self, timer: Timer) {
        if let Some(slot) = self.slot(timer) {
            *slot = None;
        }
    }

    pub(crate) fn stop_all(&mut self) {
        *self = Self::default();
    }

    /// Stops a timer that is due, and returns it.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        let is_due = |slot: &Option<Instant>| slot.is_some_and(|deadline| deadline <= now);
        let mut timers = Timer::ALL.into_iter().zip(&mut self.0);
        let (timer, slot) = timers.find(|(_, slot)| is_due(slot))?;
        *slot = None;
        Some(timer)
    }

    /// The next deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }
}
