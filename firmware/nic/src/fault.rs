//! The fault unit: handling of pages that are not present.
//!
//! A miss in an on-demand region becomes a *fault*: a record in the driver's fault queue with a token, and a list of
//! queue pairs that wait for its answer. Misses on a range whose fault is outstanding join it. The driver maps the
//! pages and resumes the token; every waiting queue pair is then called directly, so nothing depends on a timeout.
//! `qp/responder/fault.rs` describes what a queue pair does while it waits.
//!
//! The number of faults is bounded, by a limit of its own and by the room in the queue. A process may have at most as
//! many faults as places remain for others. A fault that the driver does not answer fails after a time, so that a
//! broken driver does not block a queue pair for ever.
//!
//! A fault is an entry of a slab and a member of lists: by age, by user context, and of the queue pairs that wait for
//! it. Only the search by page needs a tree. So a fault and its repair take a time that does not depend on the number of
//! faults, contexts and queue pairs, except for three operations on this tree.

use std::collections::{BTreeMap, VecDeque};

use faultline_wire::aeth::rnr_timer_code;

use crate::mkey::Absent;
use crate::page_table::PAGE_SHIFT;
use crate::time::{Instant, Nanos, earlier};

mod places;
mod raise;
mod records;
mod slab;
#[cfg(test)]
mod tests;
mod token;
mod waits;

use places::Places;
use records::Records;
use slab::{Link, List, Slab, entry};
pub(crate) use token::Token;
pub(crate) use waits::WaitKind;
use waits::Waits;

/// A page that must be present before a transfer can continue, and the extent of the rest of the message.
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

/// The part of a queue pair that misses a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultSource {
    pub qpn: u32,
    pub wait: WaitKind,
}

/// Result of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RaisedFault {
    /// The fault has a record, written now or earlier.
    Waiting(Token),
    /// The queue or the table is full.
    NoRoom,
    /// The driver has no queue for faults.
    NoQueue,
}

/// A fault without an answer, or with an answer that has not reached all waiters.
#[derive(Debug)]
pub(crate) struct Fault {
    pub token: Token,
    /// User context that owns the key, whose share of the places the fault takes.
    pub uctx: u32,
    pub key: u32,
    /// Numbers of the first page and of the last.
    pages: (u64, u64),
    pub write: bool,
    pub raised: Instant,
    /// When its record was written, or the first of its records.
    recorded: Option<Instant>,
    answered: bool,
    by_age: Link,
    by_context: Link,
}

impl Fault {
    /// Address of the first page.
    pub(crate) fn first_address(&self) -> u64 {
        self.pages.0 << PAGE_SHIFT
    }

    /// Number of pages.
    pub(crate) fn page_count(&self) -> u64 {
        self.pages.1.saturating_sub(self.pages.0).saturating_add(1)
    }
}

/// A fault that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resumed {
    pub token: Token,
    pub key: u32,
    /// Address of the first page.
    pub va: u64,
    pub raised: Instant,
    /// When its record was written.
    pub recorded: Option<Instant>,
    /// Queue pairs that waited.
    pub waiters: u32,
    /// The one that has waited longest; 0: none.
    pub qpn: u32,
}

impl Resumed {
    /// From the miss until the record was written, in nanoseconds.
    pub(crate) fn record_ns(&self) -> u32 {
        let recorded = self.recorded.unwrap_or(self.raised);
        u32::try_from(recorded.0.saturating_sub(self.raised.0)).unwrap_or(u32::MAX)
    }
}

/// A queue pair to call because its fault has been answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub qpn: u32,
    pub token: Token,
    /// When the fault was raised.
    pub raised: Instant,
    /// False: the page will not become present.
    pub repaired: bool,
    /// True if the driver has resumed the fault; false if the fault was cancelled, or if the queue pair has waited only
    /// for room.
    pub resumed: bool,
}

/// An answer that has not reached all waiting queue pairs.
#[derive(Clone, Copy, Debug)]
struct Answer {
    to: Answered,
    repaired: bool,
    resumed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Answered {
    /// The queue pairs that wait for the fault with this index.
    Fault(u32),
    /// A queue pair that has waited for room. `None`: it has been called.
    Room(Option<u32>),
}

/// The fault unit of a NIC.
#[derive(Debug)]
pub(crate) struct FaultUnit {
    /// The queue that gets the records.
    pub eqn: Option<u32>,
    /// Records that can't be written yet.
    pub records: Records,
    /// Most faults at a time.
    limit: u32,
    faults: Slab<Fault>,
    /// Number of bits of the indices of faults.
    index_bits: u32,
    /// Faults that have not been answered, the oldest first.
    by_age: List,
    /// The same of each user context.
    by_context: Vec<List>,
    /// The same, for misses that join them.
    by_page: BTreeMap<PageKey, u32>,
    /// Queue pairs and the faults that they wait for.
    waits: Waits,
    /// Answers whose waiters must be called, the oldest first.
    answers: VecDeque<Answer>,
    /// Number of places of each context, and the queue pairs that wait for one.
    places: Places,
    /// Running number of the next fault.
    next: u64,
}

/// Key, page and whether the access writes, in this order. One number is compared faster than three.
type PageKey = u128;

fn page_key(key: u32, page: u64, write: bool) -> PageKey {
    u128::from(key) << 64 | u128::from(page << 1 | u64::from(write))
}

/// The key of a [`PageKey`].
fn key_of(place: PageKey) -> u32 {
    ((place >> 64) & 0xffff_ffff) as u32
}

/// Shortest and longest RNR timer for a requester, in nanoseconds.
const RNR_RANGE: core::ops::RangeInclusive<u64> = 10_000..=40_000_000;
/// Expected duration of the first repair.
const FIRST_REPAIR_NS: u64 = 100_000;

/// Expected duration of a repair in nanoseconds: a running mean over the keys of one protection domain. Pages of other
/// processes do not count. A repair counts as twice the mean at most, so that a single page that takes a minute has
/// little weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepairTime(u64);

impl Default for RepairTime {
    fn default() -> Self {
        Self(FIRST_REPAIR_NS)
    }
}

impl RepairTime {
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "both durations are within RNR_RANGE or twice of it"
    )]
    pub(crate) fn learn(&mut self, took: u64) {
        let took = took.clamp(self.0 / 2, self.0 * 2);
        let mean = (self.0 * 7 + took) / 8;
        self.0 = mean.clamp(*RNR_RANGE.start(), *RNR_RANGE.end());
    }

    /// RNR timer code for a repair that has taken `age` nanoseconds: the expected duration, or `age` if that is longer, so that
    /// retries become rarer the longer the repair takes.
    pub(crate) fn rnr_timer(self, age: u64) -> u8 {
        rnr_timer_code(self.0.max(age).clamp(*RNR_RANGE.start(), *RNR_RANGE.end()))
    }
}

impl FaultUnit {
    /// No faults, and room for `limit`. `slot_mask`: see [`Table::slot_mask`](crate::table::Table::slot_mask) of the queue
    /// pairs.
    pub(crate) fn new(limit: u32, slot_mask: u32) -> Self {
        Self {
            eqn: None,
            records: Records::default(),
            limit,
            faults: Slab::default(),
            index_bits: limit.checked_ilog2().map_or(0, |log| log.saturating_add(1)),
            by_age: List::default(),
            by_context: Vec::new(),
            by_page: BTreeMap::new(),
            waits: Waits::new(slot_mask),
            answers: VecDeque::new(),
            places: Places::default(),
            next: 1,
        }
    }

    /// Index of a fault whose repair will make this page present.
    fn covering(&self, absent: &Absent) -> Option<u32> {
        let page = absent.va >> PAGE_SHIFT;
        let mut found = None;
        // The entries next to this page may be those of the other kind of access.
        let before = self.by_page.range(..=page_key(absent.key, page, true));
        for (place, index) in before.rev().take(2) {
            if key_of(*place) != absent.key {
                break;
            }
            let fault = self.faults.get(*index)?;
            if fault.pages.1 < page || (absent.write && !fault.write) {
                continue;
            }
            if fault.write {
                return Some(*index);
            }
            found = Some(*index);
        }
        found
    }

    /// Joins the fault that is outstanding for this page, if there is one.
    pub(crate) fn join(&mut self, source: FaultSource, absent: &Absent) -> Option<Token> {
        let index = self.covering(absent)?;
        self.waits.join(index, source.qpn, source.wait);
        Some(self.faults.get(index)?.token)
    }

    /// Whether a fault is outstanding for this page.
    pub(crate) fn is_covered(&self, absent: &Absent) -> bool {
        self.covering(absent).is_some()
    }

    /// Adds a fault, for which the context `uctx` has room, and a queue pair that waits for it.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        source: FaultSource,
        uctx: u32,
        absent: &Absent,
    ) -> Token {
        let token = self.insert_without_waiter(now, uctx, absent);
        let index = token.index(self.index_bits);
        self.waits.join(index, source.qpn, source.wait);
        token
    }

    /// Adds a fault for which no queue pair waits.
    pub(crate) fn insert_without_waiter(
        &mut self,
        now: Instant,
        uctx: u32,
        absent: &Absent,
    ) -> Token {
        let token = Token::new(self.next, self.faults.next_index(), self.index_bits);
        self.next = self.next.wrapping_add(1);
        let first = absent.va >> PAGE_SHIFT;
        // The range was checked against the region, which does not wrap.
        let last = absent
            .va
            .saturating_add(u64::from(absent.bytes).saturating_sub(1))
            >> PAGE_SHIFT;
        let index = self.faults.insert(Fault {
            token,
            uctx,
            key: absent.key,
            pages: (first, last),
            write: absent.write,
            raised: now,
            recorded: None,
            answered: false,
            by_age: Link::default(),
            by_context: Link::default(),
        });
        self.by_age
            .push_back(&mut self.faults, index, |fault| &mut fault.by_age);
        if let Some(list) = entry(&mut self.by_context, uctx) {
            list.push_back(&mut self.faults, index, |fault| &mut fault.by_context);
        }
        let place = page_key(absent.key, first, absent.write);
        self.by_page.insert(place, index);
        self.places.take(uctx);
        token
    }

    /// Index of the fault with this token, if it has not been answered.
    fn index_of(&self, token: Token) -> Option<u32> {
        let index = token.index(self.index_bits);
        let fault = self.faults.get(index)?;
        (fault.token == token && !fault.answered).then_some(index)
    }

    /// The fault with this token, if it has not been answered, and the queue pair that has waited longest.
    pub(crate) fn find(&self, token: Token) -> Option<(&Fault, Option<u32>)> {
        let index = self.index_of(token)?;
        Some((self.faults.get(index)?, self.waits.first(index)))
    }

    /// A record of the fault was written.
    pub(crate) fn note_record(&mut self, token: Token, now: Instant) {
        if let Some(index) = self.index_of(token)
            && let Some(fault) = self.faults.get_mut(index)
        {
            fault.recorded.get_or_insert(now);
        }
    }

    /// Whether the fault with this token has not been answered.
    pub(crate) fn is_outstanding(&self, token: Token) -> bool {
        self.index_of(token).is_some()
    }

    /// Number of faults without an answer, and of faults whose waiters have not all been called.
    pub(crate) fn outstanding(&self) -> usize {
        self.faults.len()
    }

    /// Answers the fault with this token, so that its waiters will be called. Returns `None` if no such fault is
    /// outstanding.
    pub(crate) fn answer(&mut self, token: Token, repaired: bool) -> Option<Resumed> {
        let index = self.index_of(token)?;
        self.answer_index(index, repaired, repaired)
    }

    fn answer_index(&mut self, index: u32, repaired: bool, resumed: bool) -> Option<Resumed> {
        let fault = self.faults.get_mut(index)?;
        fault.answered = true;
        let Fault {
            token,
            uctx,
            key,
            raised,
            recorded,
            ..
        } = *fault;
        let va = fault.first_address();
        let place = page_key(key, fault.pages.0, fault.write);
        self.by_age
            .remove(&mut self.faults, index, |fault| &mut fault.by_age);
        if let Some(list) = self.by_context.get_mut(uctx as usize) {
            list.remove(&mut self.faults, index, |fault| &mut fault.by_context);
        }
        self.by_page.remove(&place);
        self.answers.push_back(Answer {
            to: Answered::Fault(index),
            repaired,
            resumed,
        });
        Some(Resumed {
            token,
            key,
            va,
            raised,
            recorded,
            waiters: self.waits.count(index),
            qpn: self.waits.first(index).unwrap_or_default(),
        })
    }

    /// Cancels a fault of this key: its waiters try again. Returns `None` if the key has no fault.
    pub(crate) fn cancel_next(&mut self, key: u32) -> Option<Resumed> {
        let mut faults = self.by_page.range(page_key(key, 0, false)..);
        let (_, index) = faults.next().filter(|(place, _)| key_of(**place) == key)?;
        self.answer_index(*index, true, false)
    }

    /// Fails the oldest fault if it has been outstanding for `timeout`.
    pub(crate) fn expire(&mut self, now: Instant, timeout: Nanos) -> Option<Resumed> {
        let oldest = self.by_age.first();
        let expired = oldest.filter(|index| {
            let fault = self.faults.get(*index);
            fault.is_some_and(|fault| fault.raised + timeout <= now)
        });
        self.answer_index(expired?, false, false)
    }

    /// Ends all waits of a queue pair.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.places.leave(qpn);
        self.waits.leave(qpn);
    }

    /// Faults that have not been answered, the oldest first, each with the number of queue pairs that wait for it, and with
    /// the queue pair that has waited longest.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = (u32, Option<u32>, &Fault)> {
        let next = |index: &u32| self.faults.get(*index)?.by_age.next();
        let indices = std::iter::successors(self.by_age.first(), next);
        indices.filter_map(|index| {
            let fault = self.faults.get(index)?;
            Some((self.waits.count(index), self.waits.first(index), fault))
        })
    }

    /// Queue pairs that wait for room, and pairs of a queue pair and a fault that it waits for.
    pub(crate) fn waits(&self) -> usize {
        self.places.waiting().saturating_add(self.waits.len())
    }

    /// Whether the context may have one more fault.
    pub(crate) fn has_room(&self, uctx: u32) -> bool {
        self.places.has_room(uctx, self.limit)
    }

    /// Assigns a new context to a user; 0: the driver has named none.
    pub(crate) fn open_context(&mut self, uctx: u32, user: u32) {
        self.places.open(uctx, user);
    }

    /// Closes a context.
    pub(crate) fn close_context(&mut self, uctx: u32) {
        self.places.close(uctx);
    }

    /// Makes the queue pair wait for a place of this context.
    pub(crate) fn wait_for_room(&mut self, now: Instant, qpn: u32, uctx: u32) {
        self.places.wait(now, qpn, uctx);
    }

    /// Nanoseconds for which a fault has been outstanding. Without a token, because there was no room for the fault:
    /// those of the oldest fault of the context.
    pub(crate) fn age(&self, now: Instant, token: Option<Token>, uctx: u32) -> u64 {
        let index = match token {
            Some(token) if token != Token::ROOM => self.index_of(token),
            _ => {
                let list = self.by_context.get(uctx as usize);
                list.and_then(|list| list.first())
            }
        };
        let fault = index.and_then(|index| self.faults.get(index));
        fault.map_or(0, |fault| now.0.saturating_sub(fault.raised.0))
    }

    /// Number of free places.
    pub(crate) fn free_places(&self) -> usize {
        self.places.free(self.limit)
    }

    /// Answers the next queue pair that waits for room and may have it, so that it will be called. Returns false if
    /// there is none.
    pub(crate) fn answer_next_for_room(&mut self) -> bool {
        let next = self.places.next(self.limit);
        self.answer_for_room(next, true)
    }

    /// Answers a queue pair that has waited for room, so that it will be called. Returns false if there is none.
    fn answer_for_room(&mut self, qpn: Option<u32>, repaired: bool) -> bool {
        if qpn.is_some() {
            let to = Answered::Room(qpn);
            let resumed = false;
            self.answers.push_back(Answer {
                to,
                repaired,
                resumed,
            });
        }
        qpn.is_some()
    }

    /// True if there is room for a queue pair that waits for it.
    pub(crate) fn has_next_for_room(&self) -> bool {
        self.places.has_next(self.limit)
    }

    /// True if queue pairs must be called whose faults have been answered.
    pub(crate) fn is_answering(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Takes the oldest answer if all of its waiters have been called. This frees the place of the fault.
    pub(crate) fn pop_answered(&mut self) -> Option<Token> {
        let index = match self.answers.front()?.to {
            Answered::Fault(index) if self.waits.count(index) == 0 => index,
            Answered::Room(None) => {
                self.answers.pop_front();
                return Some(Token::ROOM);
            }
            Answered::Fault(_) | Answered::Room(Some(_)) => return None,
        };
        self.answers.pop_front();
        let fault = self.faults.remove(index)?;
        self.places.release(fault.uctx);
        Some(fault.token)
    }

    /// The next queue pair to call.
    pub(crate) fn next_call(&mut self) -> Option<Call> {
        let Answer {
            to,
            repaired,
            resumed,
        } = self.answers.front_mut()?;
        let (repaired, resumed) = (*repaired, *resumed);
        let (qpn, token, raised) = match to {
            Answered::Fault(index) => {
                let fault = self.faults.get(*index)?;
                (self.waits.pop(*index)?, fault.token, fault.raised)
            }
            Answered::Room(qpn) => (qpn.take()?, Token::ROOM, Instant(0)),
        };
        Some(Call {
            qpn,
            token,
            raised,
            repaired,
            resumed,
        })
    }

    /// Ends the longest wait for room, if it has reached `timeout`: its queue pair learns that there is no room.
    /// Returns false if no wait is so long.
    pub(crate) fn expire_waiter(&mut self, now: Instant, timeout: Nanos) -> bool {
        let expired = self.places.oldest();
        if expired.is_none_or(|since| since + timeout > now) {
            return false;
        }
        let oldest = self.places.pop_oldest();
        self.answer_for_room(oldest, false)
    }

    /// The time at which the oldest fault, or the oldest wait for room, reaches `timeout`.
    #[inline]
    pub(crate) fn next_deadline(&self, timeout: Nanos) -> Option<Instant> {
        let oldest = self.by_age.first().and_then(|index| self.faults.get(index));
        let oldest = oldest.map(|fault| fault.raised);
        let for_room = self.places.oldest();
        earlier(oldest, for_room).map(|since| since + timeout)
    }
}
