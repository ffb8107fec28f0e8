//! A bounded ring of frames that pass from one thread to another with their buffers, and back when they have been used.
//!
//! One thread sends, one receives; neither takes a lock. All frames are allocated when the ring is made. A frame is owned by
//! the sender, the ring, the receiver, or the ring back. The sender uses the frame that came back last first, because its
//! buffer is in a cache.

use std::fmt;

use rtrb::{Consumer, Producer, RingBuffer};

/// The end that sends.
pub struct FrameOut<T> {
    filled: Producer<Box<T>>,
    used: Consumer<Box<T>>,
    free: Vec<Box<T>>,
    frames: usize,
}

/// The end that receives.
pub struct FrameIn<T> {
    filled: Consumer<Box<T>>,
    used: Producer<Box<T>>,
}

impl<T> fmt::Debug for FrameOut<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameOut")
            .field("frames", &self.frames)
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for FrameIn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameIn").finish_non_exhaustive()
    }
}

/// Makes both ends of a ring with these frames.
pub fn ring<T>(frames: impl IntoIterator<Item = T>) -> (FrameOut<T>, FrameIn<T>) {
    let free: Vec<Box<T>> = frames.into_iter().map(Box::new).collect();
    // Both rings have room for all frames.
    let (filled, filled_in) = RingBuffer::new(free.len());
    let (used_out, used) = RingBuffer::new(free.len());
    let out = FrameOut {
        filled,
        used,
        frames: free.len(),
        free,
    };
    let received = FrameIn {
        filled: filled_in,
        used: used_out,
    };
    (out, received)
}

impl<T> FrameOut<T> {
    /// Takes a frame to fill. `None`: all are on their way.
    pub fn take_free(&mut self) -> Option<Box<T>> {
        self.free.pop()
    }

    /// Sends a frame of [`FrameOut::take_free`].
    pub fn send(&mut self, frame: Box<T>) {
        // There is room for all frames.
        if let Err(rtrb::PushError::Full(frame)) = self.filled.push(frame) {
            self.free.push(frame);
        }
    }

    /// Keeps a frame of [`FrameOut::take_free`] that is not sent.
    pub fn keep(&mut self, frame: Box<T>) {
        self.free.push(frame);
    }

    /// Takes a frame back that the receiver has used. `None`: there is none. The frame is free after the call.
    pub fn reclaim(&mut self) -> Option<&T> {
        let frame = self.used.pop().ok()?;
        self.free.push(frame);
        self.free.last().map(|frame| &**frame)
    }

    /// True if the receiver has given frames back that were not reclaimed.
    pub fn has_used(&self) -> bool {
        !self.used.is_empty()
    }

    /// Frames that were sent and not reclaimed.
    pub fn in_flight(&self) -> usize {
        self.frames.saturating_sub(self.free.len())
    }
}

impl<T> FrameIn<T> {
    /// Takes the next frame.
    pub fn take(&mut self) -> Option<Box<T>> {
        self.filled.pop().ok()
    }

    /// Returns a frame to the sender, which can fill it again.
    pub fn give_back(&mut self, frame: Box<T>) {
        // There is room for all frames. Without it the frame is freed here, and the sender has one less.
        let _ = self.used.push(frame);
    }

    /// True if there is no frame.
    pub fn is_empty(&self) -> bool {
        self.filled.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_pass_in_order_and_come_back() {
        let (mut out, mut received) = ring([0u32; 3]);
        for round in 0..10 {
            for n in 0..3 {
                let mut frame = out.take_free().unwrap();
                *frame = round * 3 + n;
                out.send(frame);
            }
            assert!(out.take_free().is_none(), "all are on their way");
            assert_eq!((out.in_flight(), out.has_used()), (3, false));
            for n in 0..3 {
                let frame = received.take().unwrap();
                assert_eq!(*frame, round * 3 + n);
                received.give_back(frame);
            }
            assert!(received.take().is_none() && received.is_empty());
            assert!(out.has_used());
            let reclaimed: Vec<u32> = std::iter::from_fn(|| out.reclaim().copied()).collect();
            assert_eq!(reclaimed, [round * 3, round * 3 + 1, round * 3 + 2]);
            assert_eq!(out.in_flight(), 0);
        }
    }

    #[test]
    fn a_frame_that_is_not_sent_stays_free() {
        let (mut out, received) = ring([1]);
        let frame = out.take_free().unwrap();
        assert_eq!(out.in_flight(), 1);
        out.keep(frame);
        assert_eq!(out.in_flight(), 0);
        assert!(received.is_empty());
    }

    #[test]
    fn threads_exchange_frames_without_loss_and_in_order() {
        let (mut out, mut received) = ring((0..8).map(|_| 0u64));
        const FRAMES: u64 = 100_000;
        let receiver = std::thread::spawn(move || {
            let mut next = 0;
            while next < FRAMES {
                match received.take() {
                    Some(frame) => {
                        assert_eq!(*frame, next);
                        next += 1;
                        received.give_back(frame);
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        let mut sent = 0;
        while sent < FRAMES {
            while out.reclaim().is_some() {}
            match out.take_free() {
                Some(mut frame) => {
                    *frame = sent;
                    out.send(frame);
                    sent += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        receiver.join().unwrap();
    }
}
