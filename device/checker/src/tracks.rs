//! The tracks of connections: a [`Flow`] for each direction, the queue pairs of its responses, and other data of each adapter.
//!
//! All tracks together have a memory budget. If it is exceeded, the adapter with the largest memory loses data, so an adapter that uses
//! less than its share loses none: first old answered requests, then whole tracks, oldest first. After that, a connection is judged as if
//! it had begun before the first packet that was seen.

use std::collections::{BTreeMap, BTreeSet};

use faultline_wire::{Gid, Psn};

use crate::connection_manager::ConnectionManager;
use crate::flow::{Adapter, FLOW_LIMIT, Flow, Key, Sender};
use crate::memory;

/// Numbers of requester queue pairs of one track. A connection has one.
const MOST_NUMBERS: usize = 2;

/// The ends of a response. They identify the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResponseKey {
    pub from: Gid,
    pub to: Gid,
    /// Queue pair of the requester.
    pub qpn: u32,
}

/// A flow and its memory.
#[derive(Debug)]
struct Track {
    flow: Flow,
    /// The adapter that has caused the track, and whose share it uses.
    payer: Option<Adapter>,
    /// Its place among the tracks of this adapter.
    age: u64,
    /// Bytes that are counted for it.
    bytes: usize,
    /// Responses to these queue pairs belong to it.
    numbers: [Option<u32>; MOST_NUMBERS],
}

impl Track {
    /// Bytes of a track without its heap.
    const SIZE: usize = size_of::<Self>()
        .saturating_add(memory::ALLOCATION)
        .saturating_add(memory::entry::<Key, Box<Self>>())
        .saturating_add(memory::entry::<u64, Key>())
        .saturating_add(memory::entry::<ResponseKey, Key>().saturating_mul(MOST_NUMBERS));

    fn size(&self) -> usize {
        Self::SIZE.saturating_add(self.flow.heap())
    }
}

/// The data of an adapter.
#[derive(Debug, Default)]
struct Account {
    /// Its tracks, oldest first.
    ages: BTreeMap<u64, Key>,
    /// Bytes of all.
    bytes: usize,
    /// Messages of the connection manager that it has sent or received.
    messages: ConnectionManager,
    /// Bytes of these.
    message_bytes: usize,
    /// Tracks of this adapter were discarded: a later one of the same connection has an unseen start.
    has_lost: bool,
    /// Queue pairs that were restarted since tracks were discarded.
    restarted: BTreeSet<u32>,
}

impl Account {
    /// Bytes of an empty account.
    const SIZE: usize = memory::entry::<Option<Adapter>, Self>()
        .saturating_add(memory::map::<u64, Key>(1))
        .saturating_add(memory::map::<u32, ()>(1));
    /// Bytes of a restarted queue pair.
    const RESTARTED: usize = memory::entry::<u32, ()>();
}

/// The tracks.
#[derive(Debug)]
pub(crate) struct Tracks {
    tracks: BTreeMap<Key, Box<Track>>,
    /// The track of responses to a queue pair.
    answers: BTreeMap<ResponseKey, Key>,
    /// By adapter; `None`: unknown adapters.
    accounts: BTreeMap<Option<Adapter>, Account>,
    next_age: u64,
    /// Bytes of all.
    bytes: usize,
    /// The budget.
    budget: usize,
    /// Tracks of all adapters may have been discarded.
    has_lost: bool,
    /// Tracks of some adapter were discarded.
    has_dropped: bool,
    /// Number of times that data of an adapter was discarded.
    forgotten: u64,
}

impl Default for Tracks {
    fn default() -> Self {
        Self {
            tracks: BTreeMap::new(),
            answers: BTreeMap::new(),
            accounts: BTreeMap::new(),
            next_age: 0,
            bytes: 0,
            budget: usize::MAX,
            has_lost: false,
            has_dropped: false,
            forgotten: 0,
        }
    }
}

impl Tracks {
    /// Sets the memory budget of the tracks.
    pub(crate) fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Number of tracks, and of queue pairs whose responses belong to one. Checks the counted bytes.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> [usize; 2] {
        for (adapter, account) in &self.accounts {
            let tracks = account.ages.values().map(|key| &self.tracks[key]);
            let own = tracks.inspect(|track| assert_eq!(track.payer, *adapter));
            let tracks: usize = own.map(|track| track.size()).sum();
            let restarted = account.restarted.len() * Account::RESTARTED;
            let all = Account::SIZE + tracks + account.messages.bytes() + restarted;
            assert_eq!(account.bytes, all, "adapter {adapter:?}");
        }
        let accounts = self.accounts.values();
        let paid = |(tracks, bytes), of: &Account| (tracks + of.ages.len(), bytes + of.bytes);
        let all = (self.tracks.len(), self.bytes);
        assert_eq!(accounts.fold((0, 0), paid), all);
        [self.tracks.len(), self.answers.len()]
    }

    /// Bytes of the tracks.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of times that data of an adapter was discarded.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Flow> {
        self.tracks.get(key).map(|track| &track.flow)
    }

    /// The flow, to change it. A call of [`Tracks::recount`] must follow.
    pub(crate) fn get_mut(&mut self, key: &Key) -> Option<&mut Flow> {
        self.tracks.get_mut(key).map(|track| &mut track.flow)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Flow)> {
        self.tracks.iter().map(|(key, track)| (key, &track.flow))
    }

    /// Begins a track. `payer`: the adapter whose share it uses.
    pub(crate) fn insert(&mut self, key: Key, flow: Flow, payer: Option<Adapter>) {
        self.remove(&key);
        let age = self.next_age;
        self.next_age = age.wrapping_add(1);
        let track = Track {
            flow,
            payer,
            age,
            bytes: 0,
            numbers: [None; MOST_NUMBERS],
        };
        self.account(payer).ages.insert(age, key);
        self.tracks.insert(key, Box::new(track));
    }

    /// Ends a track.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<Flow> {
        let track = *self.tracks.remove(key)?;
        for qpn in track.numbers.into_iter().flatten() {
            self.remove_answer(key, qpn);
        }
        self.charge(track.payer, track.bytes, 0);
        self.account(track.payer).ages.remove(&track.age);
        Some(track.flow)
    }

    /// Returns the track of a response, by its destination queue pair.
    pub(crate) fn answer(&self, answer: &ResponseKey) -> Option<Key> {
        self.answers.get(answer).copied()
    }

    /// Responses to this queue pair belong to this track.
    pub(crate) fn set_answer(&mut self, key: Key, qpn: u32) {
        let Some(track) = self.tracks.get_mut(&key) else {
            return;
        };
        if !track.numbers.contains(&Some(qpn)) {
            let numbers = &mut track.numbers;
            numbers.rotate_right(1);
            let oldest = numbers.first_mut().and_then(|first| first.replace(qpn));
            if let Some(oldest) = oldest {
                self.remove_answer(&key, oldest);
            }
        }
        self.answers.insert(answer_to(&key, qpn), key);
    }

    /// Responses to this queue pair do not belong to this track.
    fn remove_answer(&mut self, key: &Key, qpn: u32) {
        let answer = answer_to(key, qpn);
        // Another track of the same queue pair may have replaced it.
        if self.answers.get(&answer) == Some(key) {
            self.answers.remove(&answer);
        }
    }

    /// A queue pair of an adapter begins another connection.
    pub(crate) fn restart_queue_pair(&mut self, adapter: Adapter, qpn: u32) {
        let is_of = |(key, flow): (&Key, &Flow)| {
            let is_responder = flow.to_adapter == Some(adapter) && key.qpn == qpn;
            let is_requester =
                flow.requester == Sender::Adapter(adapter) && flow.from_qpn == Some(qpn);
            (is_responder || is_requester).then_some(*key)
        };
        let gone: Vec<Key> = self.iter().filter_map(is_of).collect();
        for key in gone {
            self.remove(&key);
        }
        let has_lost = self.has_lost;
        let account = self.account(Some(adapter));
        if (has_lost || account.has_lost)
            && account.restarted.len() < FLOW_LIMIT
            && account.restarted.insert(qpn)
        {
            self.charge(Some(adapter), 0, Account::RESTARTED);
            self.make_room();
        }
    }

    /// Packets were lost: discards all tracks.
    pub(crate) fn forget(&mut self) {
        *self = Self {
            budget: self.budget,
            forgotten: self.forgotten,
            next_age: self.next_age,
            has_lost: true,
            has_dropped: true,
            ..Self::default()
        };
    }

    /// Returns true if the connection of a request may have begun before this request. `is_seen`: all packets of its adapter are seen.
    pub(crate) fn has_unseen_start(
        &self,
        adapter: Option<Adapter>,
        is_seen: bool,
        qpn: Option<u32>,
    ) -> bool {
        let account = self.accounts.get(&adapter);
        let is_restarted =
            account.is_some_and(|account| qpn.is_some_and(|qpn| account.restarted.contains(&qpn)));
        let has_lost = match is_seen {
            true => self.has_lost || account.is_some_and(|account| account.has_lost),
            // The track may have been charged to another adapter.
            false => self.has_dropped,
        };
        has_lost && !is_restarted
    }

    /// An adapter sends or receives a message for its connection manager.
    pub(crate) fn read_message(
        &mut self,
        adapter: Option<Adapter>,
        (from, to): (Gid, Gid),
        mad: &[u8],
    ) {
        self.account(adapter).messages.sent(from, to, mad);
        self.recount_messages(adapter);
        self.make_room();
    }

    /// A track begins with this PSN. Returns the limit of READs on which the connection manager has agreed.
    pub(crate) fn begin(&mut self, adapter: Option<Adapter>, key: &Key, first: Psn) -> Option<u32> {
        let limit = self.accounts.get_mut(&adapter)?.messages.begin(key, first);
        self.recount_messages(adapter);
        limit
    }

    fn recount_messages(&mut self, adapter: Option<Adapter>) {
        let account = self.account(adapter);
        let before = account.message_bytes;
        let now = account.messages.bytes();
        account.message_bytes = now;
        self.charge(adapter, before, now);
    }

    /// A flow has changed: counts its memory again, and makes room for it.
    pub(crate) fn recount(&mut self, key: &Key) {
        let Some(track) = self.tracks.get_mut(key) else {
            return;
        };
        let now = track.size();
        let before = std::mem::replace(&mut track.bytes, now);
        if now != before {
            let payer = track.payer;
            self.charge(payer, before, now);
            self.make_room();
        }
    }

    fn account(&mut self, adapter: Option<Adapter>) -> &mut Account {
        self.accounts.entry(adapter).or_insert_with(|| {
            self.bytes = self.bytes.saturating_add(Account::SIZE);
            Account {
                bytes: Account::SIZE,
                ..Account::default()
            }
        })
    }

    /// The memory of an adapter changes from `before` to `now`.
    fn charge(&mut self, adapter: Option<Adapter>, before: usize, now: usize) {
        let count = |bytes: usize| bytes.saturating_sub(before).saturating_add(now);
        let account = self.account(adapter);
        account.bytes = count(account.bytes);
        self.bytes = count(self.bytes);
    }

    fn make_room(&mut self) {
        loop {
            let accounts = self.accounts.iter();
            let largest = if self.tracks.len() > FLOW_LIMIT {
                accounts.max_by_key(|(_, account)| account.ages.len())
            } else if self.bytes > self.budget {
                accounts.max_by_key(|(_, account)| account.bytes)
            } else {
                return;
            };
            let Some(adapter) = largest.map(|(adapter, _)| *adapter) else {
                return;
            };
            let has_given = match self.tracks.len() > FLOW_LIMIT {
                true => self.drop_oldest(adapter),
                false => self.discard(adapter),
            };
            if !has_given {
                return;
            }
            self.forgotten = self.forgotten.saturating_add(1);
        }
    }

    /// Discards data of an adapter. Returns false if it has none.
    fn discard(&mut self, adapter: Option<Adapter>) -> bool {
        let account = self.account(adapter);
        let restarted = account.restarted.len().saturating_mul(Account::RESTARTED);
        let others = account.message_bytes.saturating_add(restarted);
        if others > account.bytes / 2 {
            account.messages = ConnectionManager::default();
            self.recount_messages(adapter);
            self.expect_unseen_starts(adapter);
            return true;
        }
        let oldest = account.ages.first_key_value();
        let Some((age, key)) = oldest.map(|(age, key)| (*age, *key)) else {
            return false;
        };
        let Some(track) = self.tracks.get_mut(&key) else {
            return false;
        };
        track.flow.trim();
        let (before, now) = (track.bytes, track.size());
        track.bytes = now;
        // A track that has old requests again at the next trim is in use.
        let has_trimmed = now <= before.saturating_sub(before / 4);
        if has_trimmed {
            track.age = self.next_age;
        }
        self.charge(adapter, before, now);
        if !has_trimmed {
            return self.drop_oldest(adapter);
        }
        let next = self.next_age;
        self.next_age = next.wrapping_add(1);
        let ages = &mut self.account(adapter).ages;
        ages.remove(&age);
        ages.insert(next, key);
        true
    }

    /// Ends the oldest track of an adapter. Returns false if it has none.
    fn drop_oldest(&mut self, adapter: Option<Adapter>) -> bool {
        let oldest = self.account(adapter).ages.first_key_value();
        let Some(flow) = oldest
            .map(|(_, key)| *key)
            .and_then(|key| self.remove(&key))
        else {
            return false;
        };
        self.has_dropped = true;
        let (Sender::Adapter(_), Some(qpn)) = (flow.requester, flow.from_qpn) else {
            self.expect_unseen_starts(adapter);
            return true;
        };
        let account = self.account(adapter);
        account.has_lost = true;
        if account.restarted.remove(&qpn) {
            self.charge(adapter, Account::RESTARTED, 0);
        }
        true
    }

    /// New tracks of an adapter have an unseen start, except those of queue pairs that are restarted from now on.
    pub(crate) fn expect_unseen_starts(&mut self, adapter: Option<Adapter>) {
        let account = self.account(adapter);
        account.has_lost = true;
        let gone = std::mem::take(&mut account.restarted).len();
        self.charge(adapter, gone.saturating_mul(Account::RESTARTED), 0);
    }
}

fn answer_to(key: &Key, qpn: u32) -> ResponseKey {
    ResponseKey {
        from: key.to,
        to: key.from,
        qpn,
    }
}
