//! The connections, and their memory.
//!
//! Each adapter has an equal share. Without room, the oldest connection of the adapter that takes most is discarded; its later segments
//! are not judged.

use std::collections::BTreeMap;

use faultline_wire::TcpFlags as F;
use faultline_wire::mpa::MpaRole;

use super::connection::{Connection, Kind};
use super::segment::{End, Segment, SegmentHeader};
use super::{fpdus, setup};
use crate::flow::{Adapter, Sender};
use crate::frame::Frame;
use crate::memory;
use crate::packet::Report;
use crate::rule::Rule;

/// Maximum number of stored connections.
pub(crate) const CONNECTION_LIMIT: usize = 1 << 10;

/// Where a segment comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub sender: Sender,
    /// All segments of the sender are seen.
    pub is_exact: bool,
    /// An iWARP queue pair has sent it.
    pub is_of_pair: bool,
}

/// Whether a segment was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// It is not known to be of an iWARP connection.
    Not,
    Yes,
    /// It is of an iWARP connection that is not judged.
    Unjudged,
}

/// Identifies a connection: its ends in ascending order.
type Key = [End; 2];

#[derive(Debug)]
struct Track {
    connection: Connection,
    payer: Option<Adapter>,
    age: u64,
    bytes: usize,
}

impl Track {
    /// Bytes of a track without its heap.
    const SIZE: usize = size_of::<Self>()
        .saturating_add(memory::ALLOCATION)
        .saturating_add(memory::entry::<Key, Box<Self>>())
        .saturating_add(memory::entry::<u64, Key>());
}

/// The connections of an adapter.
#[derive(Debug, Default)]
struct Account {
    /// Oldest first.
    ages: BTreeMap<u64, Key>,
    bytes: usize,
}

/// The connections.
#[derive(Debug)]
pub(crate) struct Streams {
    tracks: BTreeMap<Key, Box<Track>>,
    accounts: BTreeMap<Option<Adapter>, Account>,
    next_age: u64,
    bytes: usize,
    budget: usize,
    /// Number of connections that were discarded while they were judged.
    forgotten: u64,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            tracks: BTreeMap::new(),
            accounts: BTreeMap::new(),
            next_age: 0,
            bytes: 0,
            budget: usize::MAX,
            forgotten: 0,
        }
    }
}

impl Streams {
    /// Sets the memory budget.
    pub(crate) fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Bytes of the connections.
    pub(crate) fn bytes(&self) -> usize {
        let accounts = memory::map::<Option<Adapter>, Account>(self.accounts.len());
        self.bytes.saturating_add(accounts)
    }

    /// Number of connections that were discarded while they were judged.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Segments were lost: discards all connections.
    pub(crate) fn forget(&mut self) {
        *self = Self {
            budget: self.budget,
            forgotten: self.forgotten,
            ..Self::default()
        };
    }

    /// A frame arrives at its receiver.
    pub(crate) fn arrived(&mut self, frame: Frame<'_>) {
        let Some(Ok(segment)) = Segment::parse(frame) else {
            return;
        };
        if let Some(track) = self.tracks.get_mut(&key(segment.ends)) {
            track.connection.arrived(&segment);
        }
    }

    /// Judges a frame that is sent. Returns its header, if it is a segment of an iWARP connection.
    pub(crate) fn sent(
        &mut self,
        frame: Frame<'_>,
        origin: Origin,
        report: &mut dyn FnMut(Report),
    ) -> (Judged, Option<SegmentHeader>) {
        let segment = match Segment::parse(frame) {
            None => return (Judged::Not, None),
            Some(Ok(segment)) => segment,
            Some(Err(malformed)) => {
                // It may have been changed on its way.
                let is_changed = !origin.is_exact && malformed.is_intact == Some(false);
                let is_judged = |connection: &Connection| {
                    connection.kind == Kind::Iwarp
                        && !connection.is_of_other(malformed.ends, origin.sender)
                };
                let track = self.tracks.get(&key(malformed.ends));
                if is_changed || !track.is_some_and(|track| is_judged(&track.connection)) {
                    return (Judged::Not, None);
                }
                report((Rule::TcpSegment, malformed.error.to_string()));
                let [from, to] = malformed.ends;
                let seq = malformed.seq;
                return (Judged::Yes, Some(SegmentHeader { from, to, seq }));
            }
        };
        self.begin(&segment, origin, report);
        let key = key(segment.ends);
        let Some(track) = self.tracks.get_mut(&key) else {
            return (Judged::Not, None);
        };
        let connection = &mut track.connection;
        if connection.is_of_other(segment.ends, origin.sender) {
            connection.kind = Kind::Unjudged;
        }
        match connection.kind {
            // Its first data tells whether there is something to report.
            Kind::Candidate => {
                let mut reports = Vec::new();
                let by = (origin.sender, origin.is_exact);
                connection.sent(&segment, by, &mut |report| reports.push(report));
                if connection.kind == Kind::Iwarp {
                    reports.into_iter().for_each(report);
                }
            }
            Kind::Iwarp => connection.sent(&segment, (origin.sender, origin.is_exact), report),
            Kind::Foreign | Kind::Unjudged => {}
        }
        let judged = match connection.kind {
            Kind::Candidate => Judged::Not,
            Kind::Iwarp => Judged::Yes,
            Kind::Unjudged => Judged::Unjudged,
            Kind::Foreign => {
                self.remove(&key);
                return (Judged::Not, None);
            }
        };
        self.recount(&key);
        (judged, Some(segment.header()))
    }

    /// Begins a connection, if the segment is the first one of a connection.
    fn begin(&mut self, segment: &Segment<'_>, origin: Origin, report: &mut dyn FnMut(Report)) {
        let flags = segment.tcp.flags;
        let opens = flags.contains(F::SYN) && !flags.contains(F::ACK);
        let key = key(segment.ends);
        if let Some(track) = self.tracks.get(&key) {
            // Ends that open at the same time have one connection.
            let is_other = opens && track.connection.is_other(segment);
            let is_answer = track.connection.is_answer(segment);
            let is_of_other = track.connection.is_of_other(segment.ends, origin.sender);
            if !is_other || is_answer || is_of_other {
                return;
            }
        }
        let kind = match (opens, origin.is_of_pair) {
            (true, true) => Kind::Iwarp,
            (true, false) => Kind::Candidate,
            (false, true) if !flags.contains(F::RST) => Kind::Unjudged,
            (false, _) if is_iwarp(segment) => Kind::Unjudged,
            (false, _) => return,
        };
        if kind == Kind::Unjudged {
            let what = "the beginning of its connection was not seen: it is not judged".to_owned();
            report((Rule::UnjudgedStream, what));
        }
        self.insert(
            key,
            Connection::new(segment.ends, kind),
            origin.sender.place(),
        );
    }

    fn insert(&mut self, key: Key, connection: Connection, payer: Option<Adapter>) {
        self.remove(&key);
        let age = self.next_age;
        self.next_age = age.wrapping_add(1);
        let track = Track {
            connection,
            payer,
            age,
            bytes: 0,
        };
        self.accounts
            .entry(payer)
            .or_default()
            .ages
            .insert(age, key);
        self.tracks.insert(key, Box::new(track));
    }

    fn remove(&mut self, key: &Key) -> Option<Connection> {
        let track = *self.tracks.remove(key)?;
        self.charge(track.payer, track.bytes, 0);
        if let Some(account) = self.accounts.get_mut(&track.payer) {
            account.ages.remove(&track.age);
        }
        Some(track.connection)
    }

    fn charge(&mut self, payer: Option<Adapter>, before: usize, now: usize) {
        let count = |bytes: usize| bytes.saturating_sub(before).saturating_add(now);
        let account = self.accounts.entry(payer).or_default();
        account.bytes = count(account.bytes);
        self.bytes = count(self.bytes);
    }

    /// A connection has changed: counts its memory again, and makes room for it.
    fn recount(&mut self, key: &Key) {
        let Some(track) = self.tracks.get_mut(key) else {
            return;
        };
        let now = Track::SIZE.saturating_add(track.connection.heap());
        let before = std::mem::replace(&mut track.bytes, now);
        let payer = track.payer;
        self.charge(payer, before, now);
        while self.tracks.len() > CONNECTION_LIMIT || self.bytes > self.budget {
            let is_by_number = self.tracks.len() > CONNECTION_LIMIT;
            let share = |account: &Account| match is_by_number {
                true => account.ages.len(),
                false => account.bytes,
            };
            let accounts = self.accounts.values();
            let largest = accounts.max_by_key(|account| share(account));
            let oldest = largest.and_then(|account| account.ages.first_key_value());
            let Some(gone) = oldest
                .map(|(_, key)| *key)
                .and_then(|key| self.remove(&key))
            else {
                return;
            };
            if gone.kind == Kind::Iwarp {
                self.forgotten = self.forgotten.saturating_add(1);
            }
        }
    }
}

fn key([from, to]: [End; 2]) -> Key {
    match from <= to {
        true => [from, to],
        false => [to, from],
    }
}

/// True if the data of a segment is a setup frame or a whole FPDU: its connection is one of iWARP.
fn is_iwarp(segment: &Segment<'_>) -> bool {
    let data = segment.data;
    let is_setup = |role| data.len() >= setup::KEY && setup::may_be(data, role);
    is_setup(MpaRole::Request) || is_setup(MpaRole::Reply) || fpdus::begins(data)
}
