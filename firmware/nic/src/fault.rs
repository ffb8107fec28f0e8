//! The fault unit: what happens when a page is not there.
//!
//! A miss in a region on demand becomes a *fault*: a record in the driver's fault queue with a token, and a list
//! of queue pairs that wait for its answer. Misses on a range whose fault is outstanding join it. The driver
//! maps the pages and resumes the token; every waiting queue pair is then called directly, so nothing depends on
//! a timeout. What a queue pair does while it waits is its own affair (`qp/fault.rs`).
//!
//! The number of faults is bounded, by a limit of its own and by the room in the queue, and no process gets more of it
//! than it leaves to others. A fault that nobody answers fails after a time, so that no driver, however broken, holds a
//! queue pair for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use faultline_abi::admin::Counter;
use faultline_abi::event::{self, Eqe, REQUESTER, WRITE};
use faultline_abi::{Status, U32, U64};
use faultline_wire::aeth::rnr_timer_code;
use smallvec::SmallVec;

use crate::core::{Core, Pd};
use crate::dma::Dma;
use crate::eq::Eq;
use crate::mkey::Absent;
use crate::nic::Nic;
use crate::page_table::PAGE_SHIFT;
use crate::time::{Instant, Nanos};
use crate::work;

mod places;

use places::Places;

/// Queue pairs that are called at once because there is room; the others are called in the next turn.
const CALLS: usize = 32;

/// Name of an outstanding fault. Tokens are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// Stands for all faults that found no room: who waits for it tries again when there is some.
    pub(crate) const ROOM: Self = Self(0);

    #[cfg(test)]
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

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
pub(crate) struct Faulter {
    pub qpn: u32,
    /// It is the requester of a connection that can't go on.
    pub requester: bool,
}

/// What became of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raised {
    /// There is a record of it, made now or earlier.
    Waiting(Token),
    /// The queue or the table is full.
    NoRoom,
    /// Nobody listens for faults.
    NoQueue,
}

#[derive(Debug)]
struct Fault {
    /// User context that owns the key, whose share of the places the fault takes.
    uctx: u32,
    key: u32,
    /// Number of the first page, and of the last.
    pages: (u64, u64),
    write: bool,
    raised: Instant,
    /// By number, each once: a peer can have one ask any number of times.
    waiters: Waiters,
}

type Waiters = SmallVec<[u32; 2]>;

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
    /// Key, first page and whether it is a write: a fault's place for those who come later.
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
    fn learn(&mut self, took: u64) {
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
    fn covering(&self, absent: &Absent) -> Option<Token> {
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

    fn insert(&mut self, now: Instant, qpn: u32, uctx: u32, absent: &Absent) -> Token {
        let token = Token(self.next);
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

    fn remove(&mut self, token: Token) -> Option<Fault> {
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

    fn of_key(&self, key: u32) -> Vec<Token> {
        self.by_page
            .range((key, 0, false)..=(key, u64::MAX, true))
            .map(|(_, token)| *token)
            .collect()
    }

    fn join(&mut self, token: Token, qpn: u32) {
        if let Some(fault) = self.faults.get_mut(&token) {
            fault.join(qpn);
            self.by_waiter.insert((qpn, token));
        }
    }

    /// The queue pair waits for nothing any more. Gives the work that this was.
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

impl Core {
    /// The user context that owns a key: that of its protection domain. A fault is charged to it, and not to the queue
    /// pair's: an XRC target belongs to no process, and serves several.
    fn owner_of(&self, key: u32) -> u32 {
        self.domain_of(key).map_or(0, |pd| pd.uctx)
    }

    fn domain_of(&self, key: u32) -> Option<&Pd> {
        self.pds.get(self.mkeys.get(key)?.pd)
    }

    /// RNR timer code for a miss of this key whose fault is outstanding. One that has found no room waits for a place of
    /// its context, so for as long as the oldest fault of that does.
    pub(crate) fn rnr_timer(&self, now: Instant, token: Option<Token>, key: u32) -> u8 {
        let place = || self.faults.places.oldest_of(self.owner_of(key));
        let age = token
            .filter(|token| *token != Token::ROOM)
            .or_else(place)
            .and_then(|token| self.faults.faults.get(&token))
            .map_or(0, |fault| now.0.saturating_sub(fault.raised.0));
        let usual = self.domain_of(key).map(|pd| pd.repair);
        usual.unwrap_or_default().rnr_timer(age)
    }

    /// The queue pair is called when there is room for a fault of this key.
    pub(crate) fn wait_for_room(&mut self, now: Instant, qpn: u32, key: u32) {
        let owner = self.owner_of(key);
        self.faults.places.wait(now, qpn, owner);
    }

    /// Makes a fault of a miss, or joins the one that is outstanding; `waiting` is what the queue pair waits for
    /// already.
    pub(crate) fn raise_fault<M: Dma>(
        &mut self,
        mem: &M,
        now: Instant,
        who: Faulter,
        waiting: Option<Token>,
        need: &Need,
    ) -> Raised {
        if let Some(token) = self.faults.covering(&need.absent) {
            self.counters.inc(Counter::page_faults_joined);
            if waiting != Some(token) {
                self.faults.join(token, who.qpn);
            }
            return Raised::Waiting(token);
        }
        let Some(eqn) = self.faults.eqn else {
            return Raised::NoQueue;
        };
        let owner = self.owner_of(need.absent.key);
        let limit = self.config.limits.max_faults;
        let room = self.faults.places.has_room(owner, limit);
        let Some(eq) = self.eqs.get_mut(eqn).filter(|eq| room && eq.has_room()) else {
            self.counters.inc(Counter::page_fault_overflow);
            return Raised::NoRoom;
        };
        let absent = &need.absent;
        let token = self.faults.insert(now, who.qpn, owner, absent);
        let mut flags = 0;
        if absent.write {
            flags |= WRITE;
        }
        if who.requester {
            flags |= REQUESTER;
        }
        let record = Eqe {
            kind: event::PAGE_FAULT,
            object: U32::new(who.qpn),
            token: U64::new(token.0),
            va: U64::new(absent.va),
            key: U32::new(absent.key),
            bytes: U32::new(absent.bytes),
            hint_bytes: U64::new(need.hint),
            fault_flags: U32::new(flags),
            psn: U32::new(need.psn),
            ..Eqe::default()
        };
        let raised = eq.write(mem, now, record);
        self.act_on(raised);
        self.counters.inc(Counter::page_faults);
        Raised::Waiting(token)
    }
}

impl Nic {
    /// RESUME: the driver has answered a fault. Gives the number of queue pairs that waited.
    pub(crate) fn resume_fault<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        token: u64,
        repaired: bool,
    ) -> Result<u32, Status> {
        let fault = self
            .core
            .faults
            .remove(Token(token))
            .ok_or(Status::BadToken)?;
        let mkey = self.core.mkeys.get(fault.key).filter(|_| repaired);
        if let Some(pd) = mkey.and_then(|mkey| self.core.pds.get_mut(mkey.pd)) {
            pd.repair.learn(now.0.saturating_sub(fault.raised.0));
        }
        self.core.counters.inc(match repaired {
            true => Counter::page_faults_resumed,
            false => Counter::page_faults_failed,
        });
        let waiters = fault.waiters.len() as u32;
        self.answer(Token(token), fault.waiters, repaired);
        self.continue_answers(now, mem);
        self.retry_for_room(now, mem);
        Ok(waiters)
    }

    /// Queue pairs are to be called that have waited for a fault.
    fn answer(&mut self, token: Token, waiters: Waiters, repaired: bool) {
        self.core.faults.answers.push_back(Answer {
            token,
            waiters,
            called: 0,
            repaired,
        });
    }

    /// Calls queue pairs whose faults have been answered, until there are none or others must have their turn: all that
    /// there are may wait for one page.
    pub(crate) fn continue_answers<M: Dma>(&mut self, now: Instant, mem: &M) {
        let turn = self.core.begin_turn();
        while let Some(answer) = self.core.faults.answers.front_mut() {
            let (token, repaired) = (answer.token, answer.repaired);
            let Some(number) = answer.waiters.get(answer.called).copied() else {
                self.core.faults.answers.pop_front();
                self.core.ingress.fault_answered(now, token);
                continue;
            };
            answer.called += 1;
            if self.core.is_over(turn) {
                if let Some(answer) = self.core.faults.answers.front_mut() {
                    answer.called -= 1;
                }
                self.core.put_off(now);
                return;
            }
            self.core.charge(work::OPERATION);
            if let Some(qp) = Self::qp_mut(&mut self.qps, &mut self.gsi, number) {
                self.core.counters.choose(qp.counters);
                qp.fault_answered(&mut self.core, now, mem, token, repaired);
                self.core.counters.choose(None);
            }
        }
    }

    /// Memory has become durable that a FLUSH was for ([`Dma::persist`]), or can't.
    pub fn persisted(&mut self, qpn: u32, number: u64, well: bool) {
        if let Some(qp) = Self::qp_mut(&mut self.qps, &mut self.gsi, qpn) {
            self.core.counters.choose(qp.counters);
            qp.persisted(&mut self.core, number, well);
            self.core.counters.choose(None);
        }
    }

    /// The region is gone: who waits for its pages tries again, and finds that out.
    pub(crate) fn cancel_faults<M: Dma>(&mut self, now: Instant, mem: &M, key: u32) {
        for token in self.core.faults.of_key(key) {
            if let Some(fault) = self.core.faults.remove(token) {
                self.answer(token, fault.waiters, true);
            }
        }
        self.continue_answers(now, mem);
        self.retry_for_room(now, mem);
    }

    /// Calls queue pairs that found no room: as many as there are places, for each may take one. If some of them do
    /// not, others are called in the next turn.
    pub(crate) fn retry_for_room<M: Dma>(&mut self, now: Instant, mem: &M) {
        let limit = self.core.config.limits.max_faults;
        let calls = self.core.faults.places.free(limit).min(CALLS);
        for _ in 0..calls {
            // Those that wait for an answer come first, and then this.
            if !self.has_records_left() || !self.core.faults.answers.is_empty() {
                return;
            }
            let Some(qpn) = self.core.faults.places.next(limit) else {
                return;
            };
            self.answer(Token::ROOM, Waiters::from_slice(&[qpn]), true);
            self.continue_answers(now, mem);
        }
        if self.core.faults.places.has_next(limit) && self.has_records_left() {
            self.core.put_off(now);
        }
    }

    /// Whether the queue of fault records has room.
    fn has_records_left(&self) -> bool {
        let eqn = self.core.faults.eqn;
        let eq = eqn.and_then(|eqn| self.core.eqs.get(eqn));
        eq.is_some_and(Eq::has_room)
    }

    /// Faults that nobody has answered in time fail, and leave their places to those that wait for one.
    pub(crate) fn expire_faults<M: Dma>(&mut self, now: Instant, mem: &M) {
        let timeout = self.core.config.fault_timeout;
        let turn = self.core.begin_turn();
        let mut places = false;
        while !self.core.is_over(turn)
            && let Some((token, fault)) = self.core.faults.faults.first_key_value()
            && fault.raised + timeout <= now
        {
            let token = *token;
            let Some(fault) = self.core.faults.remove(token) else {
                break;
            };
            places = true;
            self.core.counters.inc(Counter::page_fault_timeouts);
            self.answer(token, fault.waiters, false);
            self.continue_answers(now, mem);
        }
        while !self.core.is_over(turn)
            && let Some(since) = self.core.faults.places.oldest()
            && since + timeout <= now
            && let Some(qpn) = self.core.faults.places.pop_oldest()
        {
            self.core.counters.inc(Counter::page_fault_timeouts);
            self.answer(Token::ROOM, Waiters::from_slice(&[qpn]), false);
            self.continue_answers(now, mem);
        }
        if places {
            self.retry_for_room(now, mem);
        }
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
        assert!(write.get() > read.get());
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
