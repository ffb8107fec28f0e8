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

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, VecDeque};

use faultline_abi::admin::Counter;
use faultline_abi::event::{self, Eqe, REQUESTER, WRITE};
use faultline_abi::{Status, U32, U64};
use faultline_wire::aeth::rnr_timer_code;
use smallvec::SmallVec;

use crate::core::Core;
use crate::dma::Dma;
use crate::mkey::Absent;
use crate::nic::Nic;
use crate::page_table::PAGE_SHIFT;
use crate::time::{Instant, Nanos};

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
    /// User context, whose share of the places the fault takes.
    pub uctx: u32,
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
    uctx: u32,
    key: u32,
    /// Number of the first page, and of the last.
    pages: (u64, u64),
    write: bool,
    raised: Instant,
    /// By number, each once: a peer can have one ask any number of times.
    waiters: SmallVec<[u32; 2]>,
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
    /// How many a user context has; none is not listed.
    by_context: BTreeMap<u32, usize>,
    next: u64,
    /// Those that found no room, and since when.
    for_room: VecDeque<(Instant, Faulter)>,
    /// The same: each stands in line once.
    in_line: BTreeSet<u32>,
    /// What a repair takes, in nanoseconds: a running mean.
    repair: u64,
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
            by_context: BTreeMap::new(),
            next: 1,
            for_room: VecDeque::new(),
            in_line: BTreeSet::new(),
            repair: FIRST_REPAIR_NS,
        }
    }
}

impl FaultUnit {
    /// Outstanding faults.
    pub fn len(&self) -> usize {
        self.faults.len()
    }

    /// Whether a context may have one more: as long as it has fewer than are free for all. So one can take half of them,
    /// and pages that never come, behind a file system that has stopped, hold up only who asked for them. The kernel
    /// does not fight itself.
    fn has_room(&self, uctx: u32, limit: u32) -> bool {
        let free = (limit as usize).saturating_sub(self.len());
        let own = self.by_context.get(&uctx).copied().unwrap_or(0);
        free > 0 && (uctx == 0 || own < free)
    }

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

    fn insert(&mut self, now: Instant, who: Faulter, absent: &Absent) -> Token {
        let token = Token(self.next);
        self.next += 1;
        let first = absent.va >> PAGE_SHIFT;
        // The range was checked against the region, which does not wrap.
        let last = absent.va.saturating_add(u64::from(absent.bytes.max(1)) - 1) >> PAGE_SHIFT;
        *self.by_context.entry(who.uctx).or_default() += 1;
        let fault = Fault {
            uctx: who.uctx,
            key: absent.key,
            pages: (first, last),
            write: absent.write,
            raised: now,
            waiters: SmallVec::from_slice(&[who.qpn]),
        };
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
        if let Entry::Occupied(mut own) = self.by_context.entry(fault.uctx) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
        Some(fault)
    }

    fn of_key(&self, key: u32) -> Vec<Token> {
        self.faults
            .iter()
            .filter(|(_, fault)| fault.key == key)
            .map(|(token, _)| *token)
            .collect()
    }

    /// The queue pair is called when there is room again.
    pub fn wait_for_room(&mut self, now: Instant, who: Faulter) {
        if self.in_line.insert(who.qpn) {
            self.for_room.push_back((now, who));
        }
    }

    /// Takes the first one in line, of the last `left`, who may have a fault now. `left` are those not looked at.
    fn next_for_room(&mut self, limit: u32, left: &mut usize) -> Option<u32> {
        while *left > 0 {
            let at = self.for_room.len() - *left;
            *left -= 1;
            let (_, who) = *self.for_room.get(at)?;
            if self.has_room(who.uctx, limit) {
                self.for_room.remove(at);
                self.in_line.remove(&who.qpn);
                return Some(who.qpn);
            }
        }
        None
    }

    /// When the oldest fault, or the oldest that waits for room, has waited too long.
    pub fn next_deadline(&self, timeout: Nanos) -> Option<Instant> {
        let oldest = self.faults.values().next().map(|fault| fault.raised);
        let for_room = self.for_room.front().map(|(since, _)| *since);
        let first = match (oldest, for_room) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        first.map(|since| since + timeout)
    }

    /// RNR timer code for a miss whose fault is this old: what a repair takes as a rule, or as long again as it
    /// has taken already, so that retries become rarer the longer it takes.
    pub fn rnr_timer(&self, now: Instant, token: Option<Token>) -> u8 {
        let age = token
            .and_then(|token| self.faults.get(&token))
            .map_or(0, |fault| now.0.saturating_sub(fault.raised.0));
        self.rnr_timer_after(age)
    }

    /// The same for something else that takes time, and has taken so many nanoseconds already.
    pub fn rnr_timer_after(&self, age: u64) -> u8 {
        let wait = self.repair.max(age);
        rnr_timer_code(wait.clamp(*RNR_RANGE.start(), *RNR_RANGE.end()))
    }

    fn learn(&mut self, took: u64) {
        self.repair = (self.repair * 7 + took) / 8;
    }
}

impl Core {
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
        if let Some(token) = self.faults.covering(&need.absent)
            && let Some(fault) = self.faults.faults.get_mut(&token)
        {
            self.counters.inc(Counter::page_faults_joined);
            if waiting != Some(token) {
                fault.join(who.qpn);
            }
            return Raised::Waiting(token);
        }
        let Some(eqn) = self.faults.eqn else {
            return Raised::NoQueue;
        };
        let room = self
            .faults
            .has_room(who.uctx, self.config.limits.max_faults);
        let Some(eq) = self.eqs.get_mut(eqn).filter(|eq| room && eq.has_room()) else {
            self.counters.inc(Counter::page_fault_overflow);
            return Raised::NoRoom;
        };
        let absent = &need.absent;
        let token = self.faults.insert(now, who, absent);
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
        if repaired {
            self.core.faults.learn(now.0.saturating_sub(fault.raised.0));
        }
        self.core.counters.inc(match repaired {
            true => Counter::page_faults_resumed,
            false => Counter::page_faults_failed,
        });
        let waiters = fault.waiters.len() as u32;
        self.answer(now, mem, Token(token), &fault.waiters, repaired);
        self.retry_for_room(now, mem);
        Ok(waiters)
    }

    fn answer<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        token: Token,
        waiters: &[u32],
        repaired: bool,
    ) {
        for number in waiters {
            if let Some(qp) = Self::qp_mut(&mut self.qps, &mut self.gsi, *number) {
                self.core.counters.choose(qp.counters);
                qp.fault_answered(&mut self.core, now, mem, token, repaired);
                self.core.counters.choose(None);
            }
        }
        self.core.ingress.fault_answered(now, token);
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
                self.answer(now, mem, token, &fault.waiters, true);
            }
        }
        self.retry_for_room(now, mem);
    }

    /// Calls those that found no room, as far as there is some.
    pub(crate) fn retry_for_room<M: Dma>(&mut self, now: Instant, mem: &M) {
        let limit = self.core.config.limits.max_faults;
        let mut left = self.core.faults.for_room.len();
        while let Some(eq) = self.core.faults.eqn.and_then(|eqn| self.core.eqs.get(eqn))
            && eq.has_room()
            && let Some(qpn) = self.core.faults.next_for_room(limit, &mut left)
        {
            self.answer(now, mem, Token::ROOM, &[qpn], true);
        }
    }

    /// Faults that nobody has answered in time fail.
    pub(crate) fn expire_faults<M: Dma>(&mut self, now: Instant, mem: &M) {
        let timeout = self.core.config.fault_timeout;
        while let Some((token, fault)) = self.core.faults.faults.first_key_value()
            && fault.raised + timeout <= now
        {
            let token = *token;
            let Some(fault) = self.core.faults.remove(token) else {
                break;
            };
            self.core.counters.inc(Counter::page_fault_timeouts);
            self.answer(now, mem, token, &fault.waiters, false);
        }
        while let Some((since, who)) = self.core.faults.for_room.front()
            && *since + timeout <= now
        {
            let qpn = who.qpn;
            self.core.faults.for_room.pop_front();
            self.core.faults.in_line.remove(&qpn);
            self.core.counters.inc(Counter::page_fault_timeouts);
            self.answer(now, mem, Token::ROOM, &[qpn], false);
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

    fn who(qpn: u32, uctx: u32) -> Faulter {
        Faulter {
            qpn,
            uctx,
            requester: false,
        }
    }

    #[test]
    fn no_context_takes_what_others_need() {
        const LIMIT: u32 = 16;
        let mut unit = FaultUnit::default();
        let take = |unit: &mut FaultUnit, uctx| {
            let mut tokens = Vec::new();
            while unit.has_room(uctx, LIMIT) {
                let page = absent(unit.next << PAGE_SHIFT, 1, false);
                tokens.push(unit.insert(Instant(0), who(uctx, uctx), &page));
            }
            tokens
        };
        let greedy = take(&mut unit, 1);
        assert_eq!(greedy.len(), 8);
        assert_eq!(take(&mut unit, 2).len(), 4);
        assert_eq!(take(&mut unit, 3).len(), 2);
        // The kernel takes what is left.
        let kernel = take(&mut unit, 0);
        assert_eq!(kernel.len(), 2);
        assert!(!unit.has_room(4, LIMIT));
        for token in kernel {
            unit.remove(token);
        }
        assert!(unit.has_room(4, LIMIT) && !unit.has_room(1, LIMIT));
        for token in greedy {
            unit.remove(token);
        }
        assert_eq!(unit.by_context, BTreeMap::from([(2, 4), (3, 2)]));
        assert!(unit.has_room(1, LIMIT));
    }

    #[test]
    fn a_miss_joins_a_fault_that_will_bring_its_page() {
        let mut unit = FaultUnit::default();
        let now = Instant(0);
        let read = unit.insert(now, who(1, 1), &absent(0x1800, 0x1000, false));
        let write = unit.insert(now, who(1, 1), &absent(0x8000, 1, true));
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
        assert_ne!(unit.insert(now, who(1, 1), &absent(0x8000, 1, true)), write);
        assert!(write.get() > read.get());
    }

    #[test]
    fn nobody_waits_twice() {
        let mut unit = FaultUnit::default();
        let token = unit.insert(Instant(0), who(5, 1), &absent(0, 1, false));
        for qpn in [3, 5, 3, 9, 5, 4] {
            unit.faults.get_mut(&token).unwrap().join(qpn);
            unit.wait_for_room(Instant(1), who(qpn, 1));
        }
        let fault = unit.remove(token).unwrap();
        assert_eq!(fault.waiters.as_slice(), [3, 4, 5, 9]);
        let line: Vec<u32> = unit.for_room.iter().map(|(_, who)| who.qpn).collect();
        assert_eq!(line, [3, 5, 9, 4]);
    }

    #[test]
    fn retries_become_rarer_the_longer_a_repair_takes() {
        use faultline_wire::aeth::rnr_timer_ns;
        let mut unit = FaultUnit::default();
        let token = unit.insert(Instant(0), who(1, 1), &absent(0, 1, false));
        let wait =
            |unit: &FaultUnit, now: u64| rnr_timer_ns(unit.rnr_timer(Instant(now), Some(token)));
        assert!((100_000..200_000).contains(&wait(&unit, 0)));
        assert!((1_000_000..2_000_000).contains(&wait(&unit, 1_000_000)));
        assert!(wait(&unit, u64::MAX) <= 41_000_000);
        for _ in 0..100 {
            unit.learn(12_000);
        }
        assert!((10_000..30_000).contains(&wait(&unit, 0)));
    }
}
