//! Completion queues.

use faultline_abi::cqe::{CQE_SOLICITED, Cqe};
use zerocopy::IntoBytes;

use crate::dma::Dma;
use crate::eq::Ticket;
use crate::references::References;
use crate::ring::{Ring, write_entry};
use crate::time::{Instant, Nanos};

const CQE_SIZE: usize = size_of::<Cqe>();

/// Completions for which a CQ is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// Result of writing an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// No event is needed.
    Quiet,
    /// The caller must write a completion event.
    Notify,
    /// Moderation: the caller must write a completion event at this time, unless an earlier completion causes it.
    Wait(Instant),
    /// The queue overflowed, or can't be written. It accepts no more entries.
    Failed,
    /// The queue had failed before; the entry was dropped.
    Lost,
}

/// CQ moderation: how long a completion event is delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moderation {
    /// Number of completions; 0: only the period applies.
    pub count: u16,
    /// Time after the first completion.
    pub period: Nanos,
}

impl Moderation {
    fn delays_events(self) -> bool {
        self.count != 1 && self.period.0 > 0
    }
}

/// How full a completion queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqFill {
    /// Completions that the driver has not read.
    pub unread: u32,
    /// Completions that fit.
    pub depth: u32,
}

impl CqFill {
    /// The used part, in millionths.
    pub fn share(self) -> u64 {
        let used = u64::from(self.unread).saturating_mul(1_000_000);
        used.checked_div(u64::from(self.depth)).unwrap_or_default()
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    /// User context whose doorbell page may arm it.
    pub uctx: u32,
    /// Event queue of its completion events.
    pub eqn: u32,
    /// Number of queue pairs and SRQs that use it.
    pub refs: References,
    ring: Ring,
    producer: u32,
    consumer: u32,
    armed: Armed,
    /// One past the last entry that is solicited or has an error.
    solicited_until: u32,
    failed: bool,
    /// Position of its completion event, if that waits for room in the event queue.
    pub(crate) event_waits: Option<Ticket>,
    /// Moderation of completion events.
    pub(crate) moderation: Moderation,
    /// Number of completions since the moderation period began.
    moderated: u32,
    /// End of the moderation period, if a completion event is delayed.
    pub(crate) event_due: Option<Instant>,
}

impl Cq {
    /// An empty queue.
    pub(crate) fn new(ring: Ring, uctx: u32, eqn: u32) -> Self {
        Self {
            uctx,
            eqn,
            refs: References::default(),
            ring,
            producer: 0,
            consumer: 0,
            armed: Armed::No,
            solicited_until: 0,
            failed: false,
            event_waits: None,
            moderation: Moderation::default(),
            moderated: 0,
            event_due: None,
        }
    }

    /// Appends an entry.
    pub(crate) fn push<M: Dma>(&mut self, mem: &M, now: Instant, mut cqe: Cqe) -> Pushed {
        if self.failed {
            return Pushed::Lost;
        }
        if self.used() >= self.ring.depth() {
            self.read_consumer(mem);
            if self.used() >= self.ring.depth() {
                self.failed = true;
                return Pushed::Failed;
            }
        }
        cqe.timestamp.set(now.0);
        cqe.phase = self.ring.phase(self.producer);
        let is_solicited = cqe.flags & CQE_SOLICITED != 0 || cqe.status != 0;
        if write_entry(mem, self.ring.entry(self.producer), cqe.as_bytes()).is_err() {
            self.failed = true;
            return Pushed::Failed;
        }
        self.producer = self.producer.wrapping_add(1);
        if is_solicited {
            self.solicited_until = self.producer;
        }
        let notify = match self.armed {
            Armed::No => false,
            Armed::Solicited => is_solicited,
            Armed::Any => true,
        };
        if !notify {
            return Pushed::Quiet;
        }
        if self.moderation.delays_events() && cqe.status == 0 {
            return self.moderate(now);
        }
        self.armed = Armed::No;
        Pushed::Notify
    }

    /// Capacity, entries written, and entries read (as of the last look at the record).
    pub(crate) fn indices(&self) -> (u32, u32, u32) {
        (self.ring.depth(), self.producer, self.consumer)
    }

    /// Completions that cause an event, as a word.
    pub(crate) fn armed_for(&self) -> &'static str {
        match self.armed {
            Armed::No => "no",
            Armed::Solicited => "solicited",
            Armed::Any => "any",
        }
    }

    /// True if it accepts no more entries.
    pub(crate) fn is_broken(&self) -> bool {
        self.failed
    }

    /// Number of entries that the driver has not read, by the consumer index in the record.
    pub(crate) fn unread<M: Dma>(&mut self, mem: &M) -> u32 {
        self.read_consumer(mem);
        self.used()
    }

    /// Fill level, by the consumer index in the record.
    pub(crate) fn fill<M: Dma>(&self, mem: &M) -> CqFill {
        let consumer = self.consumer_in(mem).unwrap_or(self.consumer);
        CqFill {
            unread: self.producer.wrapping_sub(consumer),
            depth: self.ring.depth(),
        }
    }

    fn read_consumer<M: Dma>(&mut self, mem: &M) {
        self.consumer = self.consumer_in(mem).unwrap_or(self.consumer);
    }

    /// The consumer index in the record, if it is valid.
    fn consumer_in<M: Dma>(&self, mem: &M) -> Option<u32> {
        let consumer = mem.load_u32(self.ring.record()).ok()?;
        self.is_valid_consumer(consumer).then_some(consumer)
    }

    /// Whether it accepts no more entries.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Accepts no more entries, as if it had overflowed.
    pub(crate) fn overrun(&mut self) -> Pushed {
        match std::mem::replace(&mut self.failed, true) {
            false => Pushed::Failed,
            true => Pushed::Lost,
        }
    }

    /// Counts a completion whose event is moderated.
    fn moderate(&mut self, now: Instant) -> Pushed {
        self.moderated = self.moderated.wrapping_add(1);
        if self.moderated == u32::from(self.moderation.count) {
            self.armed = Armed::No;
            return Pushed::Notify;
        }
        if self.event_due.is_some() {
            return Pushed::Quiet;
        }
        let at = now + self.moderation.period;
        self.event_due = Some(at);
        Pushed::Wait(at)
    }

    /// Records that the completion event is written. Returns the time at which its moderation period would have ended.
    pub(crate) fn event_written(&mut self) -> Option<Instant> {
        self.armed = Armed::No;
        self.moderated = 0;
        self.event_due.take()
    }

    /// Handles an arm doorbell. Returns true if the event is due at once, because an entry for which the CQ is armed is
    /// unread.
    pub(crate) fn arm(&mut self, consumer: u32, solicited: bool) -> bool {
        if !self.is_valid_consumer(consumer) {
            // Sent before a resize, or invalid: an additional event does no harm.
            self.armed = Armed::No;
            return true;
        }
        self.consumer = consumer;
        let until = if solicited {
            self.solicited_until
        } else {
            self.producer
        };
        // Signed: `solicited_until` may be less than the consumer index.
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

    /// Moves the unread entries, from `consumer` on, to the start of another ring, in which indices start at 0. Returns
    /// true and the number of copied entries; false if they don't fit or can't be copied, and nothing has changed then.
    pub(crate) fn resize<M: Dma>(&mut self, mem: &M, ring: Ring, consumer: u32) -> (bool, u32) {
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
        // With continued indices the phase of zeroed entries would look new.
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
