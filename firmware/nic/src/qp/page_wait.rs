//! Waiting for a missing page, or for room for its fault.

use faultline_abi::cqe;
use faultline_wire::bth::Psn;

use super::endpoint::Endpoint;
use super::types::Failure;
use crate::context::Context;
use crate::diagnostic::Diagnostic;
use crate::dma::Dma;
use crate::fault::{Call, FaultSource, Need, RaisedFault, Token};
use crate::time::Instant;

/// Failure of a work request if a page of its buffers does not become present.
pub(crate) const LOST_BUFFER: Failure = Failure::new(cqe::LOC_PROT_ERR, cqe::DMA);

/// Bytes of the buffer of a response that must be present before the request is sent.
pub(crate) const LANDING_AHEAD: u32 = 1 << 20;
/// Bytes of a READ that must be present before it is accepted.
pub(crate) const READ_AHEAD: u32 = 64 << 10;

/// A missing page that keeps a queue pair from sending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageWait {
    pub token: Token,
    /// First packet that can't be sent, or response that has no place. Packets before it are still sent again.
    pub psn: Psn,
}

impl PageWait {
    pub(crate) fn new(token: Token, need: &Need) -> Self {
        Self {
            token,
            psn: Psn::new(need.psn),
        }
    }
}

/// A repaired fault whose access has not been executed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repaired {
    token: Token,
    raised: Instant,
    resumed: Instant,
}

impl Repaired {
    /// Records a repair at `now`. Returns `None` if the driver did not repair the fault, because no access follows
    /// then.
    pub(crate) fn new(call: Call, now: Instant) -> Option<Self> {
        call.resumed.then_some(Self {
            token: call.token,
            raised: call.raised,
            resumed: now,
        })
    }

    /// Reports that the access was executed.
    pub(crate) fn report<M: Dma>(&self, qp: &Endpoint, cx: &mut Context<'_, M>) {
        cx.diagnose(Diagnostic::FaultDone {
            token: self.token.number(),
            qpn: qp.number,
            resumed: self.resumed,
            raised: self.raised,
        });
    }
}

/// Raises a fault and waits for its answer, or for room for it, which a queue pair waits for once only. Returns `None`
/// if the driver has no queue for faults.
pub(crate) fn await_page<M: Dma>(
    cx: &mut Context<'_, M>,
    source: FaultSource,
    need: &Need,
) -> Option<Token> {
    match cx.raise_fault(source, need) {
        RaisedFault::Waiting(token) => Some(token),
        RaisedFault::NoRoom => {
            cx.core.wait_for_room(cx.now, source.qpn, need.absent.key);
            Some(Token::ROOM)
        }
        RaisedFault::NoQueue => None,
    }
}
