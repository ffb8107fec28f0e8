//! The input of the NIC while it is stopped.
//!
//! Under the policy `stall` a packet whose page is not there holds up everything behind it, whatever queue pair
//! that is for, as adapters do that have no better idea. The frames wait here in their order; those who feed the
//! NIC see [`crate::Nic::is_stalled`] and stop, as a switch does at an Ethernet PAUSE.

use std::collections::VecDeque;

use faultline_wire::packet::RoceHeader;

use crate::fault::Token;
use crate::steering::Taker;
use crate::time::{Instant, Nanos};

/// Frames that may wait. A switch that stops in time never fills this.
const MAX_FRAMES: usize = 4096;

/// A frame that waits, with its payload.
#[derive(Debug)]
pub(crate) struct HeldFrame {
    /// Header of a RoCE packet; none: the bytes are the whole frame.
    pub header: Option<RoceHeader>,
    /// Who alone waits for it: others may have had their copies. None: whom the headers name.
    pub only: Option<Taker>,
    pub bytes: Vec<u8>,
}

/// Why and since when nothing comes in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    pub qpn: u32,
    token: Token,
    since: Instant,
    /// Others must stop, too.
    pauses: bool,
}

/// Whoever has stopped the others leaves them alone for so many times as long. A process can choose the policy and
/// leave its faults alone; it must not have more than a tenth of everybody's time.
const QUIET: u64 = 9;

/// What waits in front of the NIC.
#[derive(Debug, Default)]
pub(crate) struct Ingress {
    stall: Option<Stall>,
    /// Until then others do not stop: what they send waits here, as far as there is room.
    quiet_until: Instant,
    frames: VecDeque<HeldFrame>,
}

impl Ingress {
    /// Stops until the fault is answered.
    pub fn stop(&mut self, now: Instant, qpn: u32, token: Token) {
        self.stall = Some(Stall {
            qpn,
            token,
            since: now,
            pauses: now >= self.quiet_until,
        });
    }

    /// The input goes on.
    fn end(&mut self, now: Instant) {
        if let Some(stall) = self.stall.take().filter(|stall| stall.pauses) {
            let took = now.0.saturating_sub(stall.since.0);
            self.quiet_until = now + Nanos(took.saturating_mul(QUIET));
        }
    }

    /// As new, after a reset at some time before a stop would have been given up.
    pub fn reset(&mut self, timeout: Nanos) {
        let quiet_until = match self.stall {
            Some(stall) => stall.since + Nanos(timeout.0.saturating_mul(QUIET + 1)),
            None => self.quiet_until,
        };
        *self = Self {
            quiet_until,
            ..Self::default()
        };
    }

    /// Whether others must stop.
    pub fn pauses_others(&self) -> bool {
        self.stall.is_some_and(|stall| stall.pauses)
    }

    pub fn is_stopped(&self) -> bool {
        self.stall.is_some()
    }

    /// Whether what arrives must wait behind other frames.
    pub fn must_queue(&self) -> bool {
        self.is_stopped() || !self.frames.is_empty()
    }

    /// Whether frames may be taken out.
    pub fn has_work(&self) -> bool {
        !self.is_stopped() && !self.frames.is_empty()
    }

    /// Appends a frame; gives false if there are too many.
    pub fn push(&mut self, frame: HeldFrame) -> bool {
        let fits = self.frames.len() < MAX_FRAMES;
        if fits {
            self.frames.push_back(frame);
        }
        fits
    }

    /// The frame that stopped the input is the first again.
    pub fn put_back(&mut self, frame: HeldFrame) {
        self.frames.push_front(frame);
    }

    pub fn pop(&mut self) -> Option<HeldFrame> {
        self.frames.pop_front()
    }

    /// Goes on, if this is the fault that was waited for.
    pub fn fault_answered(&mut self, now: Instant, token: Token) {
        if self.stall.is_some_and(|stall| stall.token == token) {
            self.end(now);
        }
    }

    /// When the input will have been stopped for too long.
    pub fn next_deadline(&self, timeout: Nanos) -> Option<Instant> {
        self.stall.map(|stall| stall.since + timeout)
    }

    /// Ends a stop that has taken too long: the frame in the way is lost.
    pub fn give_up(&mut self, now: Instant, timeout: Nanos) -> Option<Stall> {
        let stall = self.stall.filter(|stall| stall.since + timeout <= now)?;
        self.end(now);
        self.frames.pop_front();
        Some(stall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Token;

    #[test]
    fn a_reset_gives_nobody_more_of_the_others_time() {
        const TIMEOUT: Nanos = Nanos(100);
        let mut ingress = Ingress::default();
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
        // The last one took 10, for which it owes 90.
        ingress.reset(TIMEOUT);
        ingress.stop(Instant(2099), 2, Token::ROOM);
        assert!(!ingress.pauses_others());
    }
}
