//! The peer of an external port: two queues of frames.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use faultline_fabric::outside::Peer;

/// Longest frame that a port passes: 64 KiB of IP and the headers in front of it.
const MAX_FRAME: usize = (64 << 10) + 64;

#[derive(Debug)]
struct Rings {
    to_peer: VecDeque<Vec<u8>>,
    from_peer: VecDeque<Vec<u8>>,
    /// Octets that wait in `to_peer`.
    waiting: usize,
    /// Octets that `to_peer` can have.
    room: usize,
    /// Octets that the peer has taken.
    taken: u64,
    is_connected: bool,
}

/// The end of the fabric.
#[derive(Debug)]
pub struct SimPeer(Rc<RefCell<Rings>>);

/// The end of the peer.
#[derive(Clone, Debug)]
pub struct PeerHandle(Rc<RefCell<Rings>>);

impl SimPeer {
    pub(super) fn new(room: usize) -> (Self, PeerHandle) {
        let rings = Rc::new(RefCell::new(Rings {
            to_peer: VecDeque::new(),
            from_peer: VecDeque::new(),
            waiting: 0,
            room,
            taken: 0,
            is_connected: true,
        }));
        (Self(Rc::clone(&rings)), PeerHandle(rings))
    }

    fn free(&self) -> usize {
        let rings = self.0.borrow();
        rings.room.saturating_sub(rings.waiting)
    }
}

impl PeerHandle {
    /// Takes the next frame that was sent to the peer.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut rings = self.0.borrow_mut();
        let frame = rings.to_peer.pop_front()?;
        rings.waiting = rings.waiting.saturating_sub(frame.len());
        rings.taken = rings.taken.saturating_add(frame.len() as u64);
        Some(frame)
    }

    /// Frames of the peer that the process has not taken yet.
    pub fn unread(&self) -> usize {
        self.0.borrow().from_peer.len()
    }

    /// Sends a frame into the process.
    pub fn send(&self, frame: Vec<u8>) {
        self.0.borrow_mut().from_peer.push_back(frame);
    }

    /// Connects the peer, or disconnects it.
    pub fn set_connected(&self, is_connected: bool) {
        self.0.borrow_mut().is_connected = is_connected;
    }
}

impl Peer for SimPeer {
    const MAX_FRAME: usize = MAX_FRAME;

    fn send(&mut self, frame: &[u8]) -> bool {
        let fits = frame.len() <= self.free();
        if fits {
            let mut rings = self.0.borrow_mut();
            rings.waiting = rings.waiting.saturating_add(frame.len());
            rings.to_peer.push_back(frame.to_vec());
        }
        fits
    }

    fn take(&mut self, frame: &mut Vec<u8>) -> bool {
        match self.0.borrow_mut().from_peer.pop_front() {
            None => false,
            Some(taken) => {
                *frame = taken;
                true
            }
        }
    }

    fn peek(&mut self, first: &mut [u8]) -> Option<usize> {
        let rings = self.0.borrow();
        let frame = rings.from_peer.front()?;
        let length = frame.len().min(first.len());
        first
            .get_mut(..length)?
            .copy_from_slice(frame.get(..length)?);
        Some(length)
    }

    fn has_frame(&self) -> bool {
        !self.0.borrow().from_peer.is_empty()
    }

    fn is_connected(&self) -> bool {
        self.0.borrow().is_connected
    }

    fn connections(&self) -> u64 {
        1
    }

    fn has_half_of_room(&self) -> bool {
        self.free() >= self.0.borrow().room / 2
    }

    fn has_most_of_room(&self) -> bool {
        self.free() >= (self.0.borrow().room / 4).saturating_mul(3)
    }

    fn taken(&self) -> u64 {
        self.0.borrow().taken
    }

    fn quarter(&self) -> u64 {
        (self.0.borrow().room / 4) as u64
    }

    fn await_room(&mut self, _: bool) {}

    fn flush(&mut self) {}
}
