//! A window over the frames of a file: what stands before a request that it presupposes is judged behind it.
//!
//! A capture of several receive queues, or of two directions by two processors, has packets of different queues in the order in which they were
//! read. A network may also change the order of packets on their way to the place of the capture. Neither is the work of an adapter.

use std::collections::VecDeque;

use faultline_checker::Frame;

use crate::frame_checker::{FrameChecker, Origin};

/// Frames that are held.
const FRAMES: usize = 128;
/// Time in nanoseconds by which a frame may be late.
const LATE: u64 = 10_000_000;

/// A frame of a file.
#[derive(Debug)]
pub(crate) struct Held {
    /// Its number in the file, from 1.
    pub number: u64,
    /// Its time in nanoseconds.
    pub at: u64,
    /// The frame, filled with zeros if it is cut.
    pub octets: Vec<u8>,
    /// Number of its first octets that are known.
    pub known: usize,
    pub origin: Origin,
}

impl Held {
    fn frame(&self) -> Frame<'_> {
        match self.known < self.octets.len() {
            true => Frame::cut(&self.octets, self.known),
            false => self.octets.as_slice().into(),
        }
    }
}

/// The frames that are held.
#[derive(Debug, Default)]
pub(crate) struct Window {
    held: VecDeque<Held>,
}

impl Window {
    /// Takes one more frame, and judges the oldest ones if there are too many.
    pub(crate) fn push(&mut self, frame_checker: &mut FrameChecker, held: Held) {
        self.held.push_back(held);
        while self.held.len() > FRAMES {
            self.release(frame_checker);
        }
    }

    /// Judges all frames.
    pub(crate) fn empty(&mut self, frame_checker: &mut FrameChecker) {
        while !self.held.is_empty() {
            self.release(frame_checker);
        }
    }

    /// Judges the oldest frame, and before it what it presupposes.
    fn release(&mut self, frame_checker: &mut FrameChecker) {
        let Some(first) = self.held.pop_front() else {
            return;
        };
        let mut later = None;
        while let Some(request) = frame_checker.checker().awaits(first.frame()) {
            let is_it =
                |held: &Held| held.at.saturating_sub(first.at) <= LATE && request.is(held.frame());
            let place = self.held.iter().position(is_it);
            let Some(held) = place.and_then(|place| self.held.remove(place)) else {
                break;
            };
            later.get_or_insert(held.number);
            frame_checker.show(held.number, held.at, held.frame(), held.origin);
        }
        frame_checker.show(first.number, first.at, first.frame(), first.origin);
        if let Some(later) = later {
            frame_checker.note_order(first.at, first.frame(), later);
        }
    }
}
