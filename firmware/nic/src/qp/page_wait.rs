//! Waiting for a missing page, or for room for its fault.

use faultline_abi::cqe;
use faultline_wire::bth::Psn;

use super::types::Failure;
use crate::context::Context;
use crate::dma::Dma;
use crate::fault::{FaultSource, Need, RaisedFault, Token};

/// How a work request fails if a page of its buffers does not come.
pub(super) const LOST_BUFFER: Failure = Failure::new(cqe::LOC_PROT_ERR, cqe::DMA);

/// A missing page that keeps a queue pair from sending.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageWait {
    pub token: Token,
    /// First packet that can't be sent, or response that has no place. Packets before it are still sent again.
    pub psn: Psn,
}

impl PageWait {
    pub fn new(token: Token, need: &Need) -> Self {
        Self {
            token,
            psn: Psn::new(need.psn),
        }
    }
}

/// Raises a fault and waits for it, or for room for it. `waiting` is the fault that the queue pair waits for already.
/// `None`: the driver has no queue for faults.
pub(super) fn await_page<M: Dma>(
    cx: &mut Context<'_, M>,
    source: FaultSource,
    waiting: Option<Token>,
    need: &Need,
) -> Option<Token> {
    match cx.raise_fault(source, need) {
        RaisedFault::Waiting(token) => Some(token),
        RaisedFault::NoRoom => {
            if waiting != Some(Token::ROOM) {
                cx.core.wait_for_room(cx.now, source.qpn, need.absent.key);
            }
            Some(Token::ROOM)
        }
        RaisedFault::NoQueue => None,
    }
}
