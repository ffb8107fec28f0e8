//! Delayed effects, ordered by time.

use std::collections::BTreeMap;

use faultline_abi::cqe::Cqe;
use faultline_abi::event::Eqe;

use crate::diagnostic::DriverTimes;
use crate::fault::Token;
use crate::time::Instant;
use crate::work;

/// Largest number of delayed effects of a NIC.
pub const MAX_DELAYED: usize = 4096;

/// A delayed effect.
#[derive(Clone, Debug)]
pub(crate) enum Delayed {
    /// A completion is written.
    Completion {
        cqn: u32,
        /// The queue pair of the completion, whose number the entry may not have; 0: none.
        qpn: u32,
        cqe: Cqe,
    },
    /// An event is written.
    Event { eqn: u32, eqe: Eqe },
    /// A fault record is written to the fault queue.
    FaultRecord(Eqe),
    /// A fault is answered.
    Answer {
        token: Token,
        repaired: bool,
        driver: DriverTimes,
    },
    /// The admin queue continues.
    AdminQueue,
    /// The translation queue continues.
    TranslationQueue,
    /// The fault queue has room again.
    FaultRoom,
}

/// Delayed completions of one CQ.
#[derive(Clone, Copy, Debug)]
struct DelayedCq {
    /// Time of the last one.
    last: Instant,
    count: u32,
}

/// Delayed effects, the earliest first; those of the same time in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct DelayQueue {
    queue: BTreeMap<(Instant, u64), Delayed>,
    arrivals: u64,
    /// Completion queues with delayed completions.
    cqs: BTreeMap<u32, DelayedCq>,
}

impl DelayQueue {
    /// Adds an effect. Returns it if there is no room.
    pub(super) fn push(&mut self, at: Instant, what: Delayed) -> Result<(), Box<Delayed>> {
        if self.queue.len() >= MAX_DELAYED {
            return Err(Box::new(what));
        }
        let mut at = at;
        if let Delayed::Completion { cqn, .. } = what {
            let cq = self
                .cqs
                .entry(cqn)
                .or_insert(DelayedCq { last: at, count: 0 });
            cq.last = cq.last.max(at);
            cq.count = cq.count.saturating_add(1);
            at = cq.last;
        }
        self.queue.insert((at, self.arrivals), what);
        self.arrivals = self.arrivals.wrapping_add(1);
        Ok(())
    }

    #[inline]
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first effect if it is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Delayed> {
        self.next_due().filter(|at| *at <= now)?;
        let (_, what) = self.queue.pop_first()?;
        if let Delayed::Completion { cqn, .. } = what {
            self.forget_one(cqn);
        }
        Some(what)
    }

    fn forget_one(&mut self, cqn: u32) {
        let Some(cq) = self.cqs.get_mut(&cqn) else {
            return;
        };
        cq.count = cq.count.saturating_sub(1);
        if cq.count == 0 {
            self.cqs.remove(&cqn);
        }
    }

    pub(super) fn has_completions(&self) -> bool {
        !self.cqs.is_empty()
    }

    /// Time of the last delayed completion of a CQ: later completions must wait until then.
    pub(super) fn last_completion(&self, cqn: u32) -> Option<Instant> {
        self.cqs.get(&cqn).map(|cq| cq.last)
    }

    /// Takes the delayed completions that `wanted` selects by CQ and queue pair, in their order. Also returns the
    /// number of effects that were examined.
    pub(super) fn take_completions(
        &mut self,
        wanted: impl Fn(u32, u32) -> bool,
    ) -> (Vec<Cqe>, usize) {
        let looked_at = self.queue.len();
        work::count_steps(looked_at as u64);
        let mut taken = Vec::new();
        let mut of_cq = Vec::new();
        self.queue.retain(|_, what| match what {
            Delayed::Completion { cqn, qpn, cqe } if wanted(*cqn, *qpn) => {
                taken.push(*cqe);
                of_cq.push(*cqn);
                false
            }
            _ => true,
        });
        for cqn in of_cq {
            self.forget_one(cqn);
        }
        (taken, looked_at)
    }
}
