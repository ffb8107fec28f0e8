//! Completion queues.

use faultline_abi::cqe::{CQE_SOLICITED, Cqe};
use zerocopy::IntoBytes;

use crate::dma::Dma;
use crate::eq::Ticket;
use crate::ring::{Ring, write_entry};
use crate::time::{Instant, Nanos};

const CQE_SIZE: usize = size_of::<Cqe>();

/// What a CQ waits for before it tells its event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// What happened when an entry was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// Nobody waits.
    Quiet,
    /// The event queue must hear of it.
    Notify,
    /// The event queue must hear of it then, unless more completions come before.
    Wait(Instant),
    /// The queue was full, or can't be written. It takes no more entries.
    Failed,
    /// It had failed before.
    Lost,
}

/// How many completions a notice may wait for, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions; 0: only the period counts.
    pub count: u16,
    /// From the first of them on.
    pub period: Nanos,
}

impl Moderation {
    fn lets_wait(self) -> bool {
        self.count != 1 && self.period.0 > 0
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// User context whose doorbell page may arm it.
    pub uctx: u32,
    /// Event queue of its notices.
    pub eqn: u32,
    /// Queue pairs and SRQs that use it.
    pub refs: u32,
    ring: Ring,
    producer: u32,
    consumer: u32,
    armed: Armed,
    /// One past the last entry that counts as solicited.
    solicited_until: u32,
    failed: bool,
    /// A notice waits for room in the event queue.
    pub(crate) notice_waits: Option<Ticket>,
    /// When notices are made.
    pub(crate) moderation: Moderation,
    /// Completions of which a notice that waits will tell.
    gathered: u32,
    /// When that notice is made at the latest.
    pub(crate) due: Option<Instant>,
}

impl Cq {
    /// An empty queue.
    pub fn new(ring: Ring, uctx: u32, eqn: u32) -> Self {
        Self {
            uctx,
            eqn,
            refs: 0,
            ring,
            producer: 0,
            consumer: 0,
            armed: Armed::No,
            solicited_until: 0,
            failed: false,
            notice_waits: None,
            moderation: Moderation::default(),
            gathered: 0,
            due: None,
        }
    }

    /// Appends an entry.
    pub fn push<M: Dma>(&mut self, mem: &M, now: Instant, mut cqe: Cqe) -> Pushed {
        if self.failed {
            return Pushed::Lost;
        }
        if self.used() >= self.ring.depth() {
            match mem.load_u32(self.ring.record()) {
                Ok(consumer) if self.is_valid_consumer(consumer) => self.consumer = consumer,
                _ => {}
            }
            if self.used() >= self.ring.depth() {
                self.failed = true;
                return Pushed::Failed;
            }
        }
        cqe.timestamp.set(now.0);
        cqe.phase = self.ring.phase(self.producer);
        let counts = cqe.flags & CQE_SOLICITED != 0 || cqe.status != 0;
        if write_entry(mem, self.ring.entry(self.producer), cqe.as_bytes()).is_err() {
            self.failed = true;
            return Pushed::Failed;
        }
        self.producer = self.producer.wrapping_add(1);
        if counts {
            self.solicited_until = self.producer;
        }
        let notify = match self.armed {
            Armed::No => false,
            Armed::Solicited => counts,
            Armed::Any => true,
        };
        if !notify {
            return Pushed::Quiet;
        }
        if self.moderation.lets_wait() && cqe.status == 0 {
            return self.gather(now);
        }
        self.armed = Armed::No;
        Pushed::Notify
    }

    /// A completion that may wait.
    fn gather(&mut self, now: Instant) -> Pushed {
        self.gathered += 1;
        if self.gathered == u32::from(self.moderation.count) {
            self.armed = Armed::No;
            return Pushed::Notify;
        }
        if self.due.is_some() {
            return Pushed::Quiet;
        }
        let at = now + self.moderation.period;
        self.due = Some(at);
        Pushed::Wait(at)
    }

    /// Records that the notice is made. Returns the time at which its moderation period would have ended.
    pub(crate) fn told(&mut self) -> Option<Instant> {
        self.armed = Armed::No;
        self.gathered = 0;
        self.due.take()
    }

    /// Handles an arm doorbell. Returns true if the notice is due at once, because an entry that counts is unread.
    pub fn arm(&mut self, consumer: u32, solicited: bool) -> bool {
        if !self.is_valid_consumer(consumer) {
            // Overtaken by a resize, or nonsense: one notice too many does no harm.
            self.armed = Armed::No;
            return true;
        }
        self.consumer = consumer;
        let until = if solicited {
            self.solicited_until
        } else {
            self.producer
        };
        // Signed: `solicited_until` may lie behind the consumer.
        if (until.wrapping_sub(consumer) as i32) > 0 {
            self.armed = Armed::No;
            return true;
        }
        self.armed = match (self.armed, solicited) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
        false
    }

    /// Moves the unread entries, from `consumer` on, to the start of another ring, where counts begin anew.
    /// Gives false if they don't fit or can't be moved; then nothing has changed. Gives the number of those that were moved,
    /// too.
    pub fn resize<M: Dma>(&mut self, mem: &M, ring: Ring, consumer: u32) -> (bool, u32) {
        if !self.is_valid_consumer(consumer) {
            return (false, 0);
        }
        let unread = self.producer.wrapping_sub(consumer);
        if unread > ring.depth() {
            return (false, 0);
        }
        for i in 0..unread {
            let mut entry = [0; CQE_SIZE];
            let old = self.ring.entry(consumer.wrapping_add(i));
            if mem.read(old, &mut entry).is_err() {
                return (false, i);
            }
            entry[CQE_SIZE - 1] = ring.phase(i);
            if write_entry(mem, ring.entry(i), &entry).is_err() {
                return (false, i);
            }
        }
        // Indices that went on would meet zeroed entries whose phase looks new.
        let solicited = self.solicited_until.wrapping_sub(consumer);
        self.solicited_until = if solicited <= unread { solicited } else { 0 };
        self.consumer = 0;
        self.producer = unread;
        self.ring = ring;
        (true, unread)
    }

    fn used(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    fn is_valid_consumer(&self, consumer: u32) -> bool {
        self.producer.wrapping_sub(consumer) <= self.ring.depth()
    }
}
