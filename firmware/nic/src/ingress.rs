//! The ingress of a NIC while it is stopped.
//!
//! Under fault policy `stall`, a packet whose page is missing stops all packets behind it, for any queue pair, as
//! simple adapters do. The frames are held here in their order. Senders read [`crate::Nic::is_stalled`] and pause, as a
//! switch does at an Ethernet PAUSE frame.
//!
//! A process can choose this policy and leave its faults unanswered, so pauses are limited. Of n NICs that can pause a
//! sender, each may do so for 1/n of the stall timeout at once, and must then not do so for 10 n - 1 times as long as
//! its pause took. So all of them together pause a sender for at most a tenth of the time, and at once for at most the
//! stall timeout.

use std::collections::VecDeque;

use faultline_wire::packet::RoceHeader;

use crate::fault::Token;
use crate::origin::Origin;
use crate::steering::FrameTarget;
use crate::time::{Instant, Nanos, earlier};

/// Largest number of held frames. A switch that pauses in time never exceeds it.
const MAX_FRAMES: usize = 4096;

/// A held frame, with its payload.
#[derive(Debug)]
pub(crate) struct HeldFrame {
    /// Header of a RoCE packet; none: the bytes are the whole frame.
    pub header: Option<RoceHeader>,
    /// Known properties of its sender.
    pub origin: Origin,
    /// The only receiver, if the others have received their copies. `None`: the receivers that the headers select.
    pub only: Option<FrameTarget>,
    pub bytes: Vec<u8>,
}

/// The reason and the beginning of a stop of the ingress.
#[derive(Clone, Copy, Debug)]
struct Stall {
    qpn: u32,
    token: Token,
    since: Instant,
    /// Senders must pause, too, until [`Ingress::end_pause`].
    pauses: bool,
    /// The queue pair has been reset or destroyed, and waits for no page any more.
    left: bool,
}

/// A stop of the ingress that its deadline has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallEnd {
    /// Duration of the stop.
    pub after: Nanos,
    /// The queue pair whose page has not become present in time.
    pub timed_out: Option<u32>,
}

/// All NICs together may pause a sender for 1/`PAUSED_PART` of the time.
const PAUSED_PART: u64 = 10;

/// The ingress of a NIC, with its held frames.
#[derive(Debug)]
pub(crate) struct Ingress {
    /// NICs that can pause a sender, this one included.
    sharers: u64,
    stall: Option<Stall>,
    /// Until then this NIC does not pause senders: frames are held as far as there is room.
    quiet_until: Instant,
    /// An operator has stopped the ingress, and pauses senders, until then.
    paused_until: Option<Instant>,
    frames: VecDeque<HeldFrame>,
}

impl Ingress {
    /// Number of frames that wait.
    pub(crate) fn held(&self) -> usize {
        self.frames.len()
    }

    /// An ingress that is not stopped.
    pub(crate) fn new(sharers: u32) -> Self {
        Self {
            sharers: u64::from(sharers.max(1)),
            stall: None,
            quiet_until: Instant(0),
            paused_until: None,
            frames: VecDeque::new(),
        }
    }

    /// The time at which this NIC may pause senders again, after a pause that began at `since` and took `took`
    /// nanoseconds.
    fn quiet_after(&self, since: Instant, took: u64) -> Instant {
        since + Nanos(took.saturating_mul(PAUSED_PART.saturating_mul(self.sharers)))
    }

    /// The longest pause.
    fn longest_pause(&self, timeout: Nanos) -> Nanos {
        Nanos(timeout.0.checked_div(self.sharers).unwrap_or(timeout.0))
    }

    /// Ends the pause of senders if it has taken as long as allowed. The ingress remains stopped.
    pub(crate) fn end_pause(&mut self, now: Instant, timeout: Nanos) {
        let longest = self.longest_pause(timeout);
        if let Some(stall) = self.stall
            && stall.pauses
            && stall.since + longest <= now
        {
            self.quiet_until = self.quiet_after(stall.since, now.0.saturating_sub(stall.since.0));
            self.stall = Some(Stall {
                pauses: false,
                ..stall
            });
        }
    }

    /// Stops the ingress until the fault is answered.
    pub(crate) fn stop(&mut self, now: Instant, qpn: u32, token: Token) {
        // A second stop, by another member of a multicast group for example, does not restart the time of the first.
        let (since, pauses) = match self.stall {
            Some(first) => (first.since, first.pauses),
            None => (now, now >= self.quiet_until),
        };
        self.stall = Some(Stall {
            qpn,
            token,
            since,
            pauses,
            left: false,
        });
    }

    /// Records that the queue pair waits for no page any more. The stop ends at the next deadline, which is due at
    /// once.
    pub(crate) fn forget(&mut self, qpn: u32) {
        if let Some(stall) = self.stall.as_mut().filter(|stall| stall.qpn == qpn) {
            stall.left = true;
        }
    }

    /// Ends the stop. Returns its duration.
    fn end(&mut self, now: Instant) -> Option<Nanos> {
        let stall = self.stall.take()?;
        let took = now.0.saturating_sub(stall.since.0);
        if stall.pauses {
            self.quiet_until = self.quiet_after(stall.since, took);
        }
        Some(Nanos(took))
    }

    /// Resets the ingress. A pause of senders counts as if it had taken the longest allowed time, because the time of
    /// the reset is not known here.
    pub(crate) fn reset(&mut self, timeout: Nanos) {
        if let Some(stall) = self.stall.take().filter(|stall| stall.pauses) {
            let longest = self.longest_pause(timeout);
            self.quiet_until = self.quiet_after(stall.since, longest.0);
        }
        self.paused_until = None;
        self.frames.clear();
    }

    /// Stops the ingress and pauses senders for an operator, without a limit of time.
    pub(crate) fn pause_until(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(Some(until));
    }

    /// Ends the pause of an operator if its time is over.
    pub(crate) fn end_operator_pause(&mut self, now: Instant) {
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    /// True if senders must pause.
    pub(crate) fn pauses_others(&self) -> bool {
        self.paused_until.is_some() || self.stall.is_some_and(|stall| stall.pauses)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.paused_until.is_some() || self.stall.is_some()
    }

    /// True if arriving frames must be held.
    pub(crate) fn holds_frames(&self) -> bool {
        self.is_stopped() || !self.frames.is_empty()
    }

    /// True if held frames may be taken out.
    pub(crate) fn has_work(&self) -> bool {
        !self.is_stopped() && !self.frames.is_empty()
    }

    /// Appends a frame. Returns false if there are too many.
    pub(crate) fn push(&mut self, frame: HeldFrame) -> bool {
        let fits = self.frames.len() < MAX_FRAMES;
        if fits {
            self.frames.push_back(frame);
        }
        fits
    }

    /// Puts the frame that stopped the ingress back to the front.
    pub(crate) fn put_back(&mut self, frame: HeldFrame) {
        self.frames.push_front(frame);
    }

    pub(crate) fn pop(&mut self) -> Option<HeldFrame> {
        self.frames.pop_front()
    }

    /// Ends the stop if it waits for this fault. Returns the duration of the stop.
    pub(crate) fn fault_answered(&mut self, now: Instant, token: Token) -> Option<Nanos> {
        let waits = self.stall.is_some_and(|stall| stall.token == token);
        waits.then(|| self.end(now)).flatten()
    }

    /// The time at which the stop has lasted too long, or the pause of an operator ends.
    pub(crate) fn next_deadline(&self, timeout: Nanos) -> Option<Instant> {
        let stall = self.stall.map(|stall| match stall {
            Stall { left: true, .. } => stall.since,
            Stall { pauses: true, .. } => stall.since + self.longest_pause(timeout),
            _ => stall.since + timeout,
        });
        earlier(stall, self.paused_until)
    }

    /// Ends a stop whose queue pair was reset or destroyed, and one that has lasted too long; in the second case the frame that caused it
    /// is lost.
    pub(crate) fn give_up(&mut self, now: Instant, timeout: Nanos) -> Option<StallEnd> {
        let stall = self.stall?;
        let timed_out = !stall.left && stall.since + timeout <= now;
        if !stall.left && !timed_out {
            return None;
        }
        let after = self.end(now)?;
        if timed_out {
            self.frames.pop_front();
        }
        Some(StallEnd {
            after,
            timed_out: timed_out.then_some(stall.qpn),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Token;

    #[test]
    fn a_reset_does_not_extend_the_time_that_others_pause() {
        const TIMEOUT: Nanos = Nanos(100);
        let mut ingress = Ingress::new(1);
        ingress.stop(Instant(1000), 2, Token::ROOM);
        assert!(ingress.pauses_others());
        ingress.reset(TIMEOUT);
        assert!(!ingress.is_stopped());
        for (now, pauses) in [(1010, false), (1999, false), (2000, true)] {
            ingress.stop(Instant(now), 2, Token::ROOM);
            assert_eq!(
                (ingress.is_stopped(), ingress.pauses_others()),
                (true, pauses)
            );
            ingress.fault_answered(Instant(now + 10), Token::ROOM);
        }
        // The last pause took 10, so no pause is allowed for 90.
        ingress.reset(TIMEOUT);
        ingress.stop(Instant(2099), 2, Token::ROOM);
        assert!(!ingress.pauses_others());
    }

    #[test]
    fn a_second_stop_does_not_forgive_the_first() {
        const TIMEOUT: Nanos = Nanos(100);
        let mut ingress = Ingress::new(1);
        ingress.stop(Instant(1000), 2, Token::ROOM);
        ingress.stop(Instant(1080), 3, Token::ROOM);
        assert_eq!(ingress.next_deadline(TIMEOUT), Some(Instant(1100)));
        assert!(ingress.pauses_others());
        ingress.fault_answered(Instant(1090), Token::ROOM);
        assert!(!ingress.is_stopped());
        // Both pauses together took 90, so no pause is allowed for 810.
        ingress.stop(Instant(1899), 2, Token::ROOM);
        ingress.stop(Instant(1901), 2, Token::ROOM);
        assert!(ingress.is_stopped() && !ingress.pauses_others());
    }

    #[test]
    fn a_destroyed_queue_pair_ends_the_stop() {
        const TIMEOUT: Nanos = Nanos(100);
        let mut ingress = Ingress::new(1);
        ingress.stop(Instant(1000), 2, Token::ROOM);
        ingress.forget(3);
        assert_eq!(ingress.next_deadline(TIMEOUT), Some(Instant(1100)));
        ingress.forget(2);
        assert_eq!(ingress.next_deadline(TIMEOUT), Some(Instant(1000)));
        let end = ingress.give_up(Instant(1010), TIMEOUT).unwrap();
        assert_eq!((end.after, end.timed_out), (Nanos(10), None));
        assert!(!ingress.is_stopped());
        ingress.stop(Instant(1099), 3, Token::ROOM);
        assert!(!ingress.pauses_others(), "what it took is owed");
    }

    #[test]
    fn several_share_a_tenth() {
        const TIMEOUT: Nanos = Nanos(90);
        let mut ingress = Ingress::new(3);
        ingress.stop(Instant(1000), 2, Token::ROOM);
        assert_eq!(ingress.next_deadline(TIMEOUT), Some(Instant(1030)));
        ingress.end_pause(Instant(1029), TIMEOUT);
        assert!(ingress.pauses_others());
        ingress.end_pause(Instant(1030), TIMEOUT);
        assert!(ingress.is_stopped() && !ingress.pauses_others());
        assert_eq!(ingress.next_deadline(TIMEOUT), Some(Instant(1090)));
        let end = ingress.give_up(Instant(1090), TIMEOUT).unwrap();
        assert_eq!((end.after, end.timed_out), (Nanos(90), Some(2)));
        // A pause may take 30 in each 900.
        for (now, pauses) in [(1899, false), (1900, true)] {
            ingress.stop(Instant(now), 2, Token::ROOM);
            assert_eq!(ingress.pauses_others(), pauses);
            ingress.reset(TIMEOUT);
        }
        ingress.stop(Instant(2799), 2, Token::ROOM);
        assert!(!ingress.pauses_others());
    }
}
