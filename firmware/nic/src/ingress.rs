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
}

/// What waits in front of the NIC.
#[derive(Debug, Default)]
pub(crate) struct Ingress {
    stall: Option<Stall>,
    frames: VecDeque<HeldFrame>,
}

impl Ingress {
    /// Stops until the fault is answered.
    pub fn stop(&mut self, now: Instant, qpn: u32, token: Token) {
        self.stall = Some(Stall {
            qpn,
            token,
            since: now,
        });
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
    pub fn fault_answered(&mut self, token: Token) {
        if self.stall.is_some_and(|stall| stall.token == token) {
            self.stall = None;
        }
    }

    /// When the input will have been stopped for too long.
    pub fn next_deadline(&self, timeout: Nanos) -> Option<Instant> {
        self.stall.map(|stall| stall.since + timeout)
    }

    /// Ends a stop that has taken too long: the frame in the way is lost.
    pub fn give_up(&mut self, now: Instant, timeout: Nanos) -> Option<Stall> {
        let stall = self.stall.filter(|stall| stall.since + timeout <= now)?;
        self.stall = None;
        self.frames.pop_front();
        Some(stall)
    }
}
