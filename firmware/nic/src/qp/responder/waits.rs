//! The pages and write-backs that a responder waits for.

use faultline_wire::bth::Psn;

use crate::fault::Token;
use crate::qp::page_wait::{PageWait, Repaired};
use crate::time::Instant;

/// A page of a request that was refused or held.
#[derive(Clone, Copy, Debug)]
pub(super) struct IngressWait {
    pub token: Token,
    pub how: PacketFate,
    /// True if the page belongs to a buffer of a receive work request, false if to memory that the peer named.
    pub receive: bool,
    /// The requester has sent the packet again after the driver had mapped the page and before it answered. For
    /// diagnostics only.
    pub carried_out: bool,
    /// A later packet has arrived since, without a NAK.
    pub gap: bool,
}

impl IngressWait {
    pub(super) fn new(token: Token, how: PacketFate, receive: bool) -> Self {
        Self {
            token,
            how,
            receive,
            carried_out: false,
            gap: false,
        }
    }
}

/// The handling of a packet whose page was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketFate {
    /// An RNR NAK was sent to the requester.
    Refused,
    Dropped,
    Stalled,
    Parked,
}

impl PacketFate {
    /// True if the requester sends the packet again. Then the next executed packet is that one.
    pub(super) fn is_sent_again(self) -> bool {
        match self {
            Self::Refused | Self::Dropped => true,
            Self::Stalled | Self::Parked => false,
        }
    }
}

/// Everything that a responder waits for.
#[derive(Debug, Default)]
pub(super) struct ResponderWaits {
    pub ingress: Option<IngressWait>,
    /// Memory that a READ is answered from.
    pub reply: Option<PageWait>,
    /// Memory of a received FLUSH that is not durable yet, or has just become durable.
    pub durable: Option<Durable>,
    /// The last fault of a request, until the request is executed. For diagnostics only.
    pub repaired: Option<Repaired>,
}

/// A FLUSH to persistence that is refused until memory is durable. Later packets are out of sequence meanwhile, so that
/// nothing overtakes it (IBTA annex A19).
#[derive(Clone, Copy, Debug)]
pub(super) struct Durable {
    pub psn: Psn,
    /// See [`Persist::Begun`](crate::dma::Persist).
    pub number: u64,
    pub since: Instant,
    /// The result of the write-back, if it has ended: true if it succeeded.
    pub ended: Option<bool>,
}
