//! Replies of a responder, and the operations that are remembered to answer repetitions.

use faultline_wire::aeth::{NakCode, Syndrome};
use faultline_wire::bth::Psn;
use faultline_wire::reth::Reth;

use crate::mkey::KeyUser;

/// Memory that a READ is answered from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub addr: u64,
    pub rkey: u32,
    pub len: u32,
    /// The user of the key.
    pub user: KeyUser,
}

/// A READ or atomic that was executed, kept to answer a repetition (IBTA 9.7.5.1.3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Executed {
    pub psn: Psn,
    pub psns: u32,
    pub what: Operation,
}

/// The operation that was executed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Read(Source),
    Atomic {
        original: u64,
    },
    /// A FLUSH or an atomic write: answered by a READ response without data (IBTA A19.4.3).
    Done,
}

/// A reply to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub psn: Psn,
    /// Message sequence number.
    pub msn: u32,
    pub what: Answer,
    /// It answers a repetition, so it does not count against the limit again.
    pub again: bool,
}

/// The content of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Ack(Syndrome),
    Atomic {
        original: u64,
    },
    /// A READ response without data.
    Done,
    Read {
        from: Source,
        /// Packets that have been sent.
        sent: u32,
        /// The requester has repeated the request, and has not received an RNR NAK since.
        urged: bool,
    },
    /// The request with this PSN, which was refused by an RNR NAK, would now be accepted. It is the last reply in the queue.
    Ready,
}

impl Reply {
    /// PSN of the next packet of it.
    pub(crate) fn next_psn(&self) -> Psn {
        match self.what {
            Answer::Read { sent, .. } => self.psn.add(sent),
            _ => self.psn,
        }
    }

    /// True if it acknowledges or refuses, without a result.
    pub(crate) fn is_ack(&self) -> bool {
        matches!(self.what, Answer::Ack(_))
    }

    /// True if it is READY.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.what, Answer::Ready)
    }

    /// True if it answers this operation.
    pub(crate) fn is_for(&self, executed: &Executed) -> bool {
        let offset = self.psn.diff(executed.psn);
        !self.is_ack() && !self.is_ready() && offset >= 0 && offset < executed.psns as i32
    }

    /// True if it needs no memory.
    pub(crate) fn is_short(&self) -> bool {
        !matches!(self.what, Answer::Read { .. })
    }

    /// A NAK after which the connection is over.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.what, Answer::Ack(Syndrome::Nak(code)) if code != NakCode::PsnSequenceError)
    }
}

impl Operation {
    /// The answer to this operation; `again` if the request was repeated.
    pub(crate) fn answer(self, again: bool) -> Answer {
        match self {
            Self::Read(Source { len: 0, .. }) | Self::Done => Answer::Done,
            Self::Read(from) => Answer::Read {
                from,
                sent: 0,
                urged: again,
            },
            Self::Atomic { original } => Answer::Atomic { original },
        }
    }
}

/// The part of a READ that a repetition requests: the rest from one of its packets on (IBTA 9.7.5.1.1). `None`: the
/// repetition requests other memory.
pub(super) fn repeated_part(from: Source, reth: Reth, packet: u32, mtu: u32) -> Option<Source> {
    let skip = reth.addr.wrapping_sub(from.addr);
    let left = u64::from(from.len).checked_sub(skip);
    let inside = reth.rkey == from.rkey
        && left.is_some_and(|left| u64::from(reth.len) <= left)
        && skip == u64::from(packet).saturating_mul(u64::from(mtu));
    inside.then_some(Source {
        addr: reth.addr,
        len: reth.len,
        ..from
    })
}
