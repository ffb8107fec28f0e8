//! The requests of a connection, in the order of their PSNs.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use faultline_wire::packet::RoceHeader;
use faultline_wire::{OpKind, Opcode, Psn, Reth};

use crate::memory;

/// Maximum number of stored requests of a connection.
pub const LOG_LIMIT: usize = 1 << 12;

/// Answered requests that a connection keeps if memory is short.
const LEAST: usize = 16;

/// More PSNs than are in flight on any real wire.
pub(crate) const FAR: u32 = 1 << 16;

/// The part of the answer to a READ, an atomic, a FLUSH or an ATOMIC WRITE that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Responses so far, from the first on without a gap.
    pub responses: u32,
    /// The value of an atomic response.
    pub value: Option<u64>,
}

/// A request packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub psn: Psn,
    pub opcode: Opcode,
    /// PSNs that it takes up: one for each response to a READ.
    pub span: u32,
    /// Bytes of payload; for a READ the requested bytes.
    pub bytes: u32,
    pub reth: Option<Reth>,
    /// A hash of its other extended headers.
    pub others: u64,
    /// Number of arrivals.
    pub arrivals: u32,
    /// Messages that have ended with this packet since the start of the log, modulo 2^24.
    pub ended: u32,
    pub answer: Answer,
}

impl Request {
    /// The request in a packet. Returns `None` for a READ of more than the smallest MTU if `mtu` is unknown, because its number of PSNs is
    /// unknown then.
    pub(crate) fn of_packet(header: &RoceHeader, payload: usize, mtu: Option<u32>) -> Option<Self> {
        let opcode = header.bth.opcode;
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        let (span, bytes) = match (opcode.info().kind, header.reth) {
            (OpKind::ReadRequest, Some(reth)) => (responses(reth.len, mtu)?, reth.len),
            _ => (1, payload),
        };
        Some(Self {
            psn: header.bth.psn,
            opcode,
            span,
            bytes,
            reth: header.reth,
            others: others(header),
            arrivals: 1,
            ended: 0,
            answer: Answer::default(),
        })
    }

    /// The PSN after its last one.
    pub(crate) fn end(&self) -> Psn {
        self.psn.add(self.span)
    }

    /// Returns true if the request has an answer of its own that is not complete.
    pub(crate) fn waits(&self) -> bool {
        self.opcode.info().kind.is_answered() && self.answer.responses < self.span
    }
}

/// A hash of the extended headers of a request without its RETH. A repetition has the same.
fn others(header: &RoceHeader) -> u64 {
    let RoceHeader {
        atomic,
        imm,
        ieth,
        xrceth,
        feth,
        ..
    } = header;
    let others = (atomic, imm, ieth, xrceth, feth);
    if others == (&None, &None, &None, &None, &None) {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    others.hash(&mut hasher);
    hasher.finish()
}

/// Responses to a READ.
fn responses(len: u32, mtu: Option<u32>) -> Option<u32> {
    /// Smallest path MTU.
    const SMALLEST: u32 = 256;
    if len <= SMALLEST {
        return Some(1);
    }
    mtu.map(|mtu| len.div_ceil(mtu.max(1)))
}

/// Requests in the order of their PSNs, without gaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    requests: VecDeque<Request>,
    /// Messages that have ended so far.
    ended: u32,
    /// Requests were forgotten, or the log does not begin with the connection.
    pub is_partial: bool,
}

impl Log {
    /// The PSN that follows the last request.
    pub(crate) fn next(&self) -> Option<Psn> {
        self.requests.back().map(Request::end)
    }

    /// PSN of the oldest request.
    pub(crate) fn first(&self) -> Option<Psn> {
        self.requests.front().map(|request| request.psn)
    }

    /// Adds a request at the end.
    pub(crate) fn push(&mut self, mut request: Request) {
        if request.opcode.is_last_or_only() {
            self.ended = self.ended.wrapping_add(1) & Psn::MAX;
        }
        request.ended = self.ended;
        if self.requests.len() >= LOG_LIMIT {
            self.requests.pop_front();
            self.is_partial = true;
        }
        self.requests.push_back(request);
    }

    /// True if a request with this PSN may have been forgotten.
    pub(crate) fn has_forgotten(&self, psn: Psn) -> bool {
        self.is_partial && self.first().is_some_and(|first| psn.diff(first) < 0)
    }

    /// Forgets requests that end before `answered`, except the last ones.
    pub(crate) fn trim(&mut self, answered: Psn) {
        let is_old = |request: &mut Request| request.end().diff(answered) <= 0;
        while self.requests.len() > LEAST && self.requests.pop_front_if(is_old).is_some() {
            self.is_partial = true;
        }
        self.requests.shrink_to_fit();
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        memory::array::<Request>(self.requests.capacity())
    }

    /// Index of the request that takes up this PSN.
    pub(crate) fn index(&self, psn: Psn) -> Option<usize> {
        let first = self.first()?;
        if psn.diff(first) < 0 || psn.diff(self.next()?) >= 0 {
            return None;
        }
        let after = self
            .requests
            .partition_point(|request| request.psn.diff(psn) <= 0);
        after.checked_sub(1)
    }

    /// The request that takes up this PSN.
    pub(crate) fn find(&self, psn: Psn) -> Option<&Request> {
        self.requests.get(self.index(psn)?)
    }

    /// Mutable variant of [`Log::find`].
    pub(crate) fn find_mut(&mut self, psn: Psn) -> Option<&mut Request> {
        let index = self.index(psn)?;
        self.requests.get_mut(index)
    }

    /// Requests from this PSN on.
    pub(crate) fn from(&self, psn: Psn) -> impl Iterator<Item = &Request> {
        let start = match self.first() {
            Some(first) if psn.diff(first) >= 0 => self.index(psn).unwrap_or(self.requests.len()),
            _ => 0,
        };
        self.requests.range(start.min(self.requests.len())..)
    }

    /// Messages that have ended with the request of this PSN or before it; at the PSN before the oldest: before the log.
    pub(crate) fn ended_at(&self, psn: Psn) -> Option<u32> {
        if let Some(request) = self.find(psn) {
            return Some(request.ended);
        }
        let oldest = self.requests.front()?;
        let own = u32::from(oldest.opcode.is_last_or_only());
        (psn == oldest.psn.prev()).then_some(oldest.ended.wrapping_sub(own) & Psn::MAX)
    }

    /// Messages that have ended in the whole log.
    pub(crate) fn ended(&self) -> u32 {
        self.ended
    }

    /// Forgets the request that takes up this PSN, and all later ones.
    pub(crate) fn cut(&mut self, psn: Psn) {
        let Some(index) = self.index(psn) else {
            return;
        };
        let gone = self.requests.range(index..);
        let ended = gone
            .filter(|request| request.opcode.is_last_or_only())
            .count();
        let ended = u32::try_from(ended).unwrap_or(u32::MAX);
        self.ended = self.ended.wrapping_sub(ended) & Psn::MAX;
        self.requests.truncate(index);
    }
}
