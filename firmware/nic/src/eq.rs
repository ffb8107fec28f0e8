//! Event queues.

use std::collections::{BTreeMap, VecDeque};

use faultline_abi::event::Eqe;
use zerocopy::IntoBytes;

use crate::dma::Dma;
use crate::references::References;
use crate::ring::{Ring, write_entry};
use crate::time::Instant;

/// The result of writing an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raised {
    /// No interrupt is needed: the queue is not armed.
    Quiet,
    /// The caller must raise this vector.
    Interrupt(u16),
    /// The event was dropped: too many events wait for room, or the ring can't be written.
    Failed,
}

/// Position of a CQ among those whose completion events wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// An event queue.
#[derive(Debug)]
pub(crate) struct Eq {
    /// MSI-X vector.
    pub vector: u16,
    /// Number of completion queues that use it.
    pub refs: References,
    ring: Ring,
    producer: u32,
    consumer: u32,
    armed: bool,
    /// Completion queues whose events found no room, oldest first, each at most once.
    waiting: BTreeMap<Ticket, u32>,
    next_ticket: u64,
    /// Other events that found no room. Processes cause them: a process whose queue pairs all fail at the same time must
    /// not be able to stop the device.
    overflow: VecDeque<Eqe>,
}

/// Largest number of events that wait for room.
const MAX_OVERFLOW: usize = 1 << 16;

impl Eq {
    /// An empty queue, not armed.
    pub(crate) fn new(ring: Ring, vector: u16) -> Self {
        Self {
            vector,
            refs: References::default(),
            ring,
            producer: 0,
            consumer: 0,
            armed: false,
            waiting: BTreeMap::new(),
            next_ticket: 0,
            overflow: VecDeque::new(),
        }
    }

    /// Capacity, entries written, and entries read (as of the driver's last arm doorbell).
    pub(crate) fn indices(&self) -> (u32, u32, u32) {
        (self.ring.depth(), self.producer, self.consumer)
    }

    /// True if the next event raises an interrupt.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Number of events that wait for room, without completion events.
    pub(crate) fn overflow(&self) -> usize {
        self.overflow.len()
    }

    /// Queues the completion event of a CQ until there is room. The CQ must not be queued already.
    pub(crate) fn wait_for_room(&mut self, cqn: u32) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket = self.next_ticket.wrapping_add(1);
        self.waiting.insert(ticket, cqn);
        ticket
    }

    /// Removes the waiting event of a CQ that is destroyed.
    pub(crate) fn stop_waiting(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
    }

    /// Number of CQs whose events wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if events wait and there is room.
    pub(crate) fn has_late_events(&self) -> bool {
        (!self.overflow.is_empty() || !self.waiting.is_empty()) && !self.is_full()
    }

    /// Takes a CQ whose event waits, if there is room for it.
    pub(crate) fn next_waiting(&mut self) -> Option<u32> {
        if self.has_room() {
            self.waiting.pop_first().map(|(_, cqn)| cqn)
        } else {
            None
        }
    }

    /// Takes another waiting event, if there is room for it.
    pub(crate) fn next_overflow(&mut self) -> Option<Eqe> {
        if self.is_full() {
            return None;
        }
        self.overflow.pop_front()
    }

    /// Returns true if there is room for one more event after those that wait.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full() && self.overflow.is_empty()
    }

    fn is_full(&self) -> bool {
        self.unread() >= self.ring.depth()
    }

    /// Number of entries that the driver has not read, as of its last arm doorbell.
    pub(crate) fn unread(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    /// Appends an event, or queues it until there is room.
    pub(crate) fn push<M: Dma>(&mut self, mem: &M, now: Instant, eqe: Eqe) -> Raised {
        if self.has_room() {
            return self.write(mem, now, eqe);
        }
        if self.overflow.len() >= MAX_OVERFLOW {
            return Raised::Failed;
        }
        self.overflow.push_back(eqe);
        Raised::Quiet
    }

    /// Writes an event for which there is room.
    pub(crate) fn write<M: Dma>(&mut self, mem: &M, now: Instant, mut eqe: Eqe) -> Raised {
        eqe.timestamp.set(now.0);
        eqe.phase = self.ring.phase(self.producer);
        if write_entry(mem, self.ring.entry(self.producer), eqe.as_bytes()).is_err() {
            return Raised::Failed;
        }
        self.producer = self.producer.wrapping_add(1);
        if !self.armed {
            return Raised::Quiet;
        }
        self.armed = false;
        Raised::Interrupt(self.vector)
    }

    /// Handles an arm doorbell. Returns true if the interrupt is due at once, because there are unread events; `None` if the
    /// index is out of range.
    pub(crate) fn arm(&mut self, consumer: u32) -> Option<bool> {
        let unread = self.producer.wrapping_sub(consumer);
        if unread > self.ring.depth() {
            return None;
        }
        self.consumer = consumer;
        self.armed = unread == 0;
        Some(unread != 0)
    }
}
