//! The receive queue of an iWARP queue pair, its own or a shared one.

use faultline_abi::cqe;

use crate::context::Context;
use crate::dma::Dma;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::Failure;
use crate::receive_queue::{RecvRing, RecvWr, TakeError};

/// Receive work requests.
#[derive(Debug)]
pub(super) struct Receives {
    /// `None`: they come from an SRQ.
    ring: Option<RecvRing>,
    /// The one that the current message fills.
    pub current: Option<RecvWr>,
}

impl Receives {
    pub(super) fn new(ring: Option<RecvRing>) -> Self {
        Self {
            ring,
            current: None,
        }
    }

    /// Empties the queue.
    pub(super) fn reset<M: Dma>(&mut self, mem: &M) {
        self.current = None;
        if let Some(ring) = &mut self.ring {
            ring.reset();
            ring.set_notify(mem, false);
        }
    }

    /// Takes a receive work request for a message that begins, and makes it the current one.
    pub(super) fn take<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
    ) -> Result<(), TakeError> {
        if self.current.is_some() {
            return Ok(());
        }
        let wr = match (&mut self.ring, qp.config.srqn) {
            (Some(ring), _) => ring.take(cx.mem)?,
            (None, Some(srqn)) => cx.take_shared(srqn)?,
            (None, None) => return Err(TakeError::Empty),
        };
        self.current = Some(wr);
        Ok(())
    }

    /// Requires a doorbell for receive work requests from now on, because the queue pair has failed.
    pub(super) fn notify_posted<M: Dma>(&self, mem: &M) {
        if let Some(ring) = &self.ring {
            ring.set_notify(mem, true);
        }
    }

    /// Completes the current work request with a failure. Returns false if there is none.
    pub(super) fn fail_current<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        failure: Failure,
    ) -> bool {
        let Some(wr) = self.current.take() else {
            return false;
        };
        qp.fail_receive(cx, &wr, failure);
        true
    }

    /// Completes the current work request with the result of its message.
    pub(super) fn complete<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        entry: cqe::Cqe,
    ) {
        if let Some(wr) = self.current.take() {
            qp.complete_receive(cx, &wr, entry);
        }
    }

    /// Flushes the work requests that are posted now, until the turn is over. Returns true if none is left.
    pub(super) fn flush<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        turn: u64,
    ) -> bool {
        self.fail_current(qp, cx, Failure::FLUSHED);
        let ring = self.ring.as_mut();
        ring.is_none_or(|ring| qp.flush_receives(cx, ring, turn))
    }
}
