//! What a responder waits for.

use faultline_wire::bth::Psn;

use crate::fault::Token;
use crate::qp::page_wait::PageWait;
use crate::time::Instant;

/// A page of a request that was refused or held.
#[derive(Clone, Copy, Debug)]
pub(super) struct IngressWait {
    pub token: Token,
    pub how: PacketFate,
    /// It is a buffer of a receive work request, else memory that the peer named.
    pub receive: bool,
}

/// What has become of the packet of a missing page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketFate {
    /// The requester got an RNR NAK.
    Refused,
    Dropped,
    Stalled,
    Parked,
}

/// What a responder waits for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub ingress: Option<IngressWait>,
    /// Memory that a READ is answered from.
    pub reply: Option<PageWait>,
    /// Memory that a FLUSH has arrived for, and that is not durable yet, or has just become so.
    pub durable: Option<Durable>,
}

/// A FLUSH to persistence that has been refused until memory is durable. What follows it is out of sequence
/// meanwhile, so that nothing overtakes it (IBTA annex A19).
#[derive(Clone, Copy, Debug)]
pub(super) struct Durable {
    pub psn: Psn,
    /// See [`Persist::Begun`](crate::dma::Persist).
    pub number: u64,
    pub since: Instant,
    /// It has ended, and whether well.
    pub ended: Option<bool>,
}
