//! The rings between the fabric of an engine and the thread of an external port.

use std::sync::atomic::Ordering;

use faultline_fabric::outside::Peer;
use faultline_ports::channel::{EngineEnd, MAX_FRAME, PortStatus};

/// The engine's end of these rings.
#[derive(Debug)]
pub struct PeerRings(EngineEnd);

impl PeerRings {
    pub(crate) fn new(end: EngineEnd) -> Self {
        Self(end)
    }

    /// Status of the port's thread.
    pub(crate) fn status(&self) -> &PortStatus {
        self.0.status()
    }
}

impl Peer for PeerRings {
    const MAX_FRAME: usize = MAX_FRAME;

    #[inline]
    fn send(&mut self, frame: &[u8]) -> bool {
        self.0.send(frame)
    }

    #[inline]
    fn take(&mut self, frame: &mut Vec<u8>) -> bool {
        self.0.take(frame)
    }

    #[inline]
    fn peek(&mut self, first: &mut [u8]) -> Option<usize> {
        self.0.peek(first)
    }

    #[inline]
    fn has_frame(&self) -> bool {
        self.0.has_frame()
    }

    #[inline]
    fn is_connected(&self) -> bool {
        self.status().is_connected.load(Ordering::Relaxed)
    }

    fn connections(&self) -> u64 {
        self.status().connections.load(Ordering::Relaxed)
    }

    #[inline]
    fn has_half_of_room(&self) -> bool {
        self.0.has_half_of_room()
    }

    #[inline]
    fn has_most_of_room(&self) -> bool {
        self.0.has_most_of_room()
    }

    #[inline]
    fn taken(&self) -> u64 {
        self.0.taken()
    }

    fn quarter(&self) -> u64 {
        self.0.quarter()
    }

    #[inline]
    fn await_room(&mut self, awaits: bool) {
        self.0.await_room(awaits);
    }

    #[inline]
    fn flush(&mut self) {
        self.0.flush();
    }
}
