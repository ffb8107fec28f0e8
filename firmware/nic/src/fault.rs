//! The fault unit: handling of pages that are not present.
//!
//! A miss in a region on demand becomes a *fault*: a record in the driver's fault queue with a token, and a list
//! of queue pairs that wait for its answer. Misses on a range whose fault is outstanding join it. The driver
//! maps the pages and resumes the token; every waiting queue pair is then called directly, so nothing depends on
//! a timeout. What a queue pair does while it waits is in `qp/responder/fault.rs`.
//!
//! The number of faults is bounded, by a limit of its own and by the room in the queue, and no process gets more of it
//! than it leaves to others. A fault that the driver does not answer fails after a time, so that a broken driver does not
//! block a queue pair for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use faultline_wire::aeth::rnr_timer_code;
use smallvec::SmallVec;

use crate::mkey::Absent;
use crate::page_table::PAGE_SHIFT;
use crate::time::{Instant, Nanos};
use crate::work;

mod places;
mod token;

use places::Places;
pub use token::Token;

/// A page that must be there before a transfer can go on, and what is known of the rest of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// The first missing byte, and how many are demanded.
    pub absent: Absent,
    /// Bytes from there that the rest of the message will need.
    pub hint: u64,
    /// PSN of the packet.
    pub psn: u32,
}

impl Need {
    pub(crate) fn new(absent: Absent, hint: u64, psn: u32) -> Self {
        Self {
            absent,
            hint: hint.max(u64::from(absent.bytes)),
            psn,
        }
    }
}

/// Who misses a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultSource {
    pub qpn: u32,
    /// It is the requester of a connection that can't go on.
    pub requester: bool,
}

/// What became of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RaisedFault {
    /// There is a record of it, made now or earlier.
    Waiting(Token),
    /// The queue or the table is full.
    NoRoom,
    /// Nobody listens for faults.
    NoQueue,
}

#[derive(Debug)]
pub(crate) struct Fault {
    /// User context that owns the key, whose share of the places the fault takes.
    pub uctx: u32,
    pub key: u32,
    /// Number of the first page, and of the last.
    pub pages: (u64, u64),
    pub write: bool,
    pub raised: Instant,
    /// By number, each once: a peer can have one ask any number of times.
    pub waiters: Waiters,
}

pub(crate) type Waiters = SmallVec<[u32; 2]>;

/// A queue pair to call because its fault has been answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub qpn: u32,
    pub token: Token,
    /// False: the page will not come.
    pub repaired: bool,
}

/// An answer of which not all queue pairs know that waited for it.
#[derive(Debug)]
struct Answer {
    token: Token,
    waiters: Waiters,
    /// How many of them have been called.
    called: usize,
    repaired: bool,
}

impl Fault {
    fn join(&mut self, qpn: u32) {
        if let Err(at) = self.waiters.binary_search(&qpn) {
            self.waiters.insert(at, qpn);
        }
    }
}

/// Faults that are outstanding.
#[derive(Debug)]
pub(crate) struct FaultUnit {
    /// The queue that gets the records.
    pub eqn: Option<u32>,
    /// By token: the first is the oldest.
    faults: BTreeMap<Token, Fault>,
    /// Faults by key, first page and whether the access writes, for misses that join them.
    by_page: BTreeMap<(u32, u64, bool), Token>,
    /// Answers that have come, the oldest first.
    answers: VecDeque<Answer>,
    /// Queue pairs and the faults that they wait for.
    by_waiter: BTreeSet<(u32, Token)>,
    /// Whose the places are, and which queue pairs wait for one.
    places: Places,
    next: u64,
}

/// Shortest and longest time that a requester is told to wait, in nanoseconds.
const RNR_RANGE: core::ops::RangeInclusive<u64> = 10_000..=40_000_000;
/// What a repair is thought to take before one was seen.
const FIRST_REPAIR_NS: u64 = 100_000;

impl Default for FaultUnit {
    fn default() -> Self {
        Self {
            eqn: None,
            faults: BTreeMap::new(),
            by_page: BTreeMap::new(),
            answers: VecDeque::new(),
            by_waiter: BTreeSet::new(),
            places: Places::default(),
            next: 1,
        }
    }
}

/// What a repair takes, in nanoseconds: a running mean over the keys of one protection domain. Other processes' pages
/// do not count, nor does a single page that takes a minute: a repair counts as twice the mean at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepairTime(u64);

impl Default for RepairTime {
    fn default() -> Self {
        Self(FIRST_REPAIR_NS)
    }
}

impl RepairTime {
    pub fn learn(&mut self, took: u64) {
        let took = took.clamp(self.0 / 2, self.0 * 2);
        let mean = (self.0 * 7 + took) / 8;
        self.0 = mean.clamp(*RNR_RANGE.start(), *RNR_RANGE.end());
    }

    /// RNR timer code for something that has taken so many nanoseconds already: what a repair takes as a rule, or as
    /// long again, so that retries become rarer the longer it takes.
    pub fn rnr_timer(self, age: u64) -> u8 {
        rnr_timer_code(self.0.max(age).clamp(*RNR_RANGE.start(), *RNR_RANGE.end()))
    }
}

impl FaultUnit {
    /// A fault whose answer will bring this page.
    pub fn covering(&self, absent: &Absent) -> Option<Token> {
        let page = absent.va >> PAGE_SHIFT;
        let find = |write: bool| {
            let (_, token) = self
                .by_page
                .range((absent.key, 0, false)..=(absent.key, page, true))
                .rev()
                // Neighbours in the order may be of the other kind.
                .take(2)
                .find(|((_, _, kind), _)| *kind == write)?;
            let fault = self.faults.get(token)?;
            (fault.pages.1 >= page).then_some(*token)
        };
        find(true).or_else(|| if absent.write { None } else { find(false) })
    }

    pub fn insert(&mut self, now: Instant, qpn: u32, uctx: u32, absent: &Absent) -> Token {
        let token = Token::from_number(self.next);
        self.next += 1;
        let first = absent.va >> PAGE_SHIFT;
        // The range was checked against the region, which does not wrap.
        let last = absent.va.saturating_add(u64::from(absent.bytes.max(1)) - 1) >> PAGE_SHIFT;
        self.places.take(uctx, token);
        let fault = Fault {
            uctx,
            key: absent.key,
            pages: (first, last),
            write: absent.write,
            raised: now,
            waiters: SmallVec::from_slice(&[qpn]),
        };
        self.by_waiter.insert((qpn, token));
        self.by_page
            .insert((absent.key, first, absent.write), token);
        self.faults.insert(token, fault);
        token
    }

    pub fn remove(&mut self, token: Token) -> Option<Fault> {
        let fault = self.faults.remove(&token)?;
        let place = (fault.key, fault.pages.0, fault.write);
        if self.by_page.get(&place) == Some(&token) {
            self.by_page.remove(&place);
        }
        for qpn in &fault.waiters {
            self.by_waiter.remove(&(*qpn, token));
        }
        self.places.give_back(fault.uctx, token);
        Some(fault)
    }

    pub fn of_key(&self, key: u32) -> Vec<Token> {
        self.by_page
            .range((key, 0, false)..=(key, u64::MAX, true))
            .map(|(_, token)| *token)
            .collect()
    }

    pub fn join(&mut self, token: Token, qpn: u32) {
        if let Some(fault) = self.faults.get_mut(&token) {
            fault.join(qpn);
            self.by_waiter.insert((qpn, token));
        }
    }

    /// The queue pair no longer waits for a page. Returns the work that this was.
    pub fn forget(&mut self, qpn: u32) -> u64 {
        self.places.leave(qpn);
        let mut work = 0;
        while let Some(&(other, token)) = self.by_waiter.range((qpn, Token::ROOM)..).next()
            && other == qpn
        {
            self.by_waiter.remove(&(qpn, token));
            if let Some(fault) = self.faults.get_mut(&token)
                && let Ok(at) = fault.waiters.binary_search(&qpn)
            {
                fault.waiters.remove(at);
                work += work::of_move(fault.waiters.len() * size_of::<u32>());
            }
        }
        work
    }

    /// Queue pairs that wait for room, and pairs of a queue pair and a fault that it waits for.
    pub fn waits(&self) -> usize {
        self.places.waiting() + self.by_waiter.len()
    }

    /// Whether the context may have one more fault.
    pub fn has_room(&self, uctx: u32, limit: u32) -> bool {
        self.places.has_room(uctx, limit)
    }

    /// The queue pair waits for a place of this context.
    pub fn wait_for_room(&mut self, now: Instant, qpn: u32, uctx: u32) {
        self.places.wait(now, qpn, uctx);
    }

    /// Nanoseconds for which a fault is outstanding; of one that has found no room, those of the oldest fault of its context.
    pub fn age(&self, now: Instant, token: Option<Token>, uctx: u32) -> u64 {
        token
            .filter(|token| *token != Token::ROOM)
            .or_else(|| self.places.oldest_of(uctx))
            .and_then(|token| self.faults.get(&token))
            .map_or(0, |fault| now.0.saturating_sub(fault.raised.0))
    }

    /// Places that no context has.
    pub fn free_places(&self, limit: u32) -> usize {
        self.places.free(limit)
    }

    /// Takes the next queue pair that waits for room and may have it.
    pub fn next_for_room(&mut self, limit: u32) -> Option<u32> {
        self.places.next(limit)
    }

    /// Whether there is such a queue pair.
    pub fn has_next_for_room(&self, limit: u32) -> bool {
        self.places.has_next(limit)
    }

    /// The fault has been answered: its waiters are to be called.
    pub fn answer(&mut self, token: Token, waiters: Waiters, repaired: bool) {
        self.answers.push_back(Answer {
            token,
            waiters,
            called: 0,
            repaired,
        });
    }

    /// Whether queue pairs are to be called whose fault has been answered.
    pub fn is_answering(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Takes the oldest answer, if all its waiters have been called.
    pub fn pop_answered(&mut self) -> Option<Token> {
        let answer = self
            .answers
            .pop_front_if(|answer| answer.called == answer.waiters.len())?;
        Some(answer.token)
    }

    /// The next queue pair to call.
    pub fn next_call(&mut self) -> Option<Call> {
        let answer = self.answers.front_mut()?;
        let qpn = *answer.waiters.get(answer.called)?;
        answer.called += 1;
        Some(Call {
            qpn,
            token: answer.token,
            repaired: answer.repaired,
        })
    }

    /// Takes the oldest fault, if it has been outstanding for this long.
    pub fn pop_expired(&mut self, now: Instant, timeout: Nanos) -> Option<(Token, Fault)> {
        let (token, fault) = self.faults.first_key_value()?;
        let (token, expired) = (*token, fault.raised + timeout <= now);
        if !expired {
            return None;
        }
        Some((token, self.remove(token)?))
    }

    /// Takes the queue pair that has waited for room longest, if it has waited this long.
    pub fn pop_expired_waiter(&mut self, now: Instant, timeout: Nanos) -> Option<u32> {
        let since = self.places.oldest()?;
        if since + timeout > now {
            return None;
        }
        self.places.pop_oldest()
    }

    /// When the oldest fault, or the oldest that waits for room, has waited too long.
    pub fn next_deadline(&self, timeout: Nanos) -> Option<Instant> {
        let oldest = self.faults.values().next().map(|fault| fault.raised);
        let for_room = self.places.oldest();
        let first = match (oldest, for_room) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        first.map(|since| since + timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent(va: u64, bytes: u32, write: bool) -> Absent {
        Absent {
            key: 7,
            va,
            named: va,
            bytes,
            write,
        }
    }

    #[test]
    fn a_miss_joins_a_fault_that_will_bring_its_page() {
        let mut unit = FaultUnit::default();
        let now = Instant(0);
        let read = unit.insert(now, 1, 1, &absent(0x1800, 0x1000, false));
        let write = unit.insert(now, 1, 1, &absent(0x8000, 1, true));
        assert_eq!(unit.covering(&absent(0x2fff, 1, false)), Some(read));
        assert_eq!(unit.covering(&absent(0x1000, 1, false)), Some(read));
        assert_eq!(unit.covering(&absent(0x3000, 1, false)), None);
        assert_eq!(unit.covering(&absent(0x2000, 1, true)), None);
        assert_eq!(unit.covering(&absent(0x8fff, 1, false)), Some(write));
        assert_eq!(unit.covering(&absent(0x8fff, 1, true)), Some(write));
        let other = Absent {
            key: 8,
            ..absent(0x8000, 1, false)
        };
        assert_eq!(unit.covering(&other), None);
        assert!(unit.remove(write).is_some() && unit.remove(write).is_none());
        assert_eq!(unit.covering(&absent(0x8fff, 1, true)), None);
        assert_ne!(unit.insert(now, 1, 1, &absent(0x8000, 1, true)), write);
        assert!(write.number() > read.number());
    }

    #[test]
    fn a_queue_pair_waits_once_and_is_forgotten() {
        let mut unit = FaultUnit::default();
        let token = unit.insert(Instant(0), 5, 1, &absent(0, 1, false));
        let other = unit.insert(Instant(0), 9, 1, &absent(0x5000, 1, false));
        for qpn in [3, 5, 3, 9, 5, 4] {
            unit.join(token, qpn);
        }
        assert_eq!(unit.waits(), 5);
        unit.forget(9);
        unit.forget(77);
        assert_eq!(unit.waits(), 3);
        let fault = unit.remove(token).unwrap();
        assert_eq!(fault.waiters.as_slice(), [3, 4, 5]);
        assert!(unit.remove(other).unwrap().waiters.is_empty());
        assert_eq!(unit.waits(), 0);
    }

    #[test]
    fn retries_become_rarer_the_longer_a_repair_takes() {
        use faultline_wire::aeth::rnr_timer_ns;
        let mut repair = RepairTime::default();
        let wait = |repair: RepairTime, age: u64| rnr_timer_ns(repair.rnr_timer(age));
        assert!((100_000..200_000).contains(&wait(repair, 0)));
        assert!((1_000_000..2_000_000).contains(&wait(repair, 1_000_000)));
        assert!(wait(repair, u64::MAX) <= 41_000_000);
        for _ in 0..100 {
            repair.learn(12_000);
        }
        assert!((10_000..30_000).contains(&wait(repair, 0)));
        // One page in ten that takes a minute changes nothing for the others.
        for n in 0..1000 {
            repair.learn(if n % 10 == 0 { 60_000_000_000 } else { 12_000 });
        }
        assert!((10_000..30_000).contains(&wait(repair, 0)));
        for _ in 0..100 {
            repair.learn(20_000_000);
        }
        assert!((10_000_000..41_000_000).contains(&wait(repair, 0)));
        for _ in 0..200 {
            repair.learn(0);
        }
        assert!(wait(repair, 0) < 20_000);
    }
}
