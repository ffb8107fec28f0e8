//! The connection of a queue pair.

use faultline_abi::iwarp::{CLOSE_REASONS, FINISHED, REFUSED, RESET, TIMED_OUT};
use faultline_tcp::{Connection, Outcome, State as TcpState};
use faultline_wire::rdmap::TerminateCode;

use super::connections::from_tcp;
use super::deliver::Inbound;
use super::page_wait::PageWait;
use super::path::StreamPath;
use super::send::{Content, Framing, Octets, Sender};
use super::setup::Offer;
use crate::budget::{Budget, Held};
use crate::number::len32;
use crate::time::{Instant, earlier};

use super::connections::to_tcp;

const _: () = assert!(CLOSE_REASONS.constants.len() == 9);

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Close {
    /// FAULTLINE_CLOSE_*.
    pub reason: u8,
    /// The code of the Terminate message, if there was one.
    pub code: Option<TerminateCode>,
}

/// A connection of a queue pair.
#[derive(Debug)]
pub(super) struct Stream {
    pub path: StreamPath,
    pub connection: Connection,
    pub inbound: Inbound,
    pub sender: Sender,
    /// What this end has offered.
    pub own: Offer,
    /// What the peer has offered.
    pub peer: Offer,
    /// This end has opened the connection.
    pub is_active: bool,
    /// The page that outgoing segments wait for.
    pub page: Option<PageWait>,
    /// End of the setup or of the close, or the time at which RTR is repeated.
    pub deadline: Option<Instant>,
    /// Why it ends, if that has begun.
    pub close: Option<Close>,
    /// The driver knows that it has ended.
    pub is_reported: bool,
    /// Both ends have sent their setup frames.
    pub was_open: bool,
    /// Its share of the budget.
    pub held: Held,
}

impl Stream {
    /// True if this end may send FPDUs (RFC 5044 section 7.1: the passive side waits for the first one of the peer).
    pub(super) fn may_send(&self) -> bool {
        self.is_active || self.inbound.has_fpdu
    }

    /// Appends a message to the stream. Returns false if the connection takes no more.
    pub(super) fn push(
        &mut self,
        budget: &Budget,
        now: Instant,
        (framing, content): (Framing, Content),
        len: u32,
    ) -> bool {
        let max = self.connection.max_payload();
        let octets = self.sender.push(budget, (framing, content), len, max);
        self.connection.send(octets, to_tcp(now))
    }

    /// Appends a message of the NIC.
    pub(super) fn push_own(
        &mut self,
        budget: &Budget,
        now: Instant,
        framing: Framing,
        octets: Octets,
    ) -> bool {
        let len = len32(octets.len());
        self.push(budget, now, (framing, Content::Own(octets)), len)
    }

    /// Counts its memory, except for messages and kept octets, which count where they are.
    pub(super) fn account(&mut self) {
        let of_offers = [&self.own, &self.peer].map(|offer| offer.private.capacity());
        let parts = of_offers.into_iter().chain([self.connection.allocated()]);
        let bytes = parts.fold(size_of::<Self>(), usize::saturating_add);
        if self.held.bytes() != bytes {
            self.held.set(bytes);
        }
    }

    /// The next time at which something is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        earlier(self.connection.next_deadline().map(from_tcp), self.deadline)
    }

    /// True if the connection has ended for its peer too, or both have closed.
    pub(super) fn is_over(&self) -> bool {
        let is_over = matches!(
            self.connection.state(),
            TcpState::Closed | TcpState::TimeWait
        );
        // Data that the peer has sent before its FIN may still wait for a page, or for the next turn.
        let finished = matches!(self.connection.outcome(), None | Some(Outcome::Finished));
        let waits = self.inbound.page.is_some() || self.inbound.waits_for_turn;
        let waits = waits && self.connection.is_held();
        is_over && !(finished && waits)
    }

    /// Why the connection has ended.
    pub(super) fn closed(&self) -> Close {
        if let Some(close) = self.close {
            return close;
        }
        let reason = match self.connection.outcome() {
            None | Some(Outcome::Finished) => FINISHED,
            Some(Outcome::Reset | Outcome::Aborted) => RESET,
            Some(Outcome::Refused) => REFUSED,
            Some(Outcome::TimedOut) => TIMED_OUT,
        };
        Close { reason, code: None }
    }
}
