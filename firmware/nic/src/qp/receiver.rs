//! Queues that receive through a [`Responder`]: queue pairs and work queues.

use super::endpoint::Endpoint;
use super::ready::Readiness;
use super::responder::{Received, Responder};
use super::types::{Fatal, State, StateCause};
use crate::context::Context;
use crate::dma::Dma;
use crate::fault::Call;
use crate::frame::Frame;

/// The parts of a receiver: number and state, responder, and membership in the ready queue.
pub(crate) type Parts<'a> = (&'a Endpoint, &'a mut Responder, &'a mut Readiness);

/// A queue with a responder.
pub(crate) trait Receiver {
    /// Its parts.
    fn parts(&mut self) -> Parts<'_>;

    /// Enters the error state and flushes its queues (IBTA 10.3.1.7). No effect in the error state.
    fn fail<M: Dma>(&mut self, cx: &mut Context<'_, M>, cause: StateCause);

    /// Acts on the result of the responder. Returns false if the packet has stopped the ingress and must be held.
    fn check_received<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        received: Result<Received, Fatal>,
    ) -> bool;

    /// Receives a frame from a flow with this tag. Returns false if it has stopped the ingress and must be held.
    fn receive_frame<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        tag: u32,
        frame: Frame<'_, M>,
    ) -> bool {
        let (endpoint, responder, _) = self.parts();
        let received = responder.receive_raw(endpoint, cx, tag, frame);
        self.check_received(cx, received)
    }

    /// Delivers packets that have waited for their page, until another one is missing or the turn is over.
    fn deliver_parked<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let turn = cx.core.begin_turn();
        loop {
            let (endpoint, responder, ready) = self.parts();
            if !responder.has_parked_to_deliver() {
                return;
            }
            if cx.core.is_over(turn) {
                ready.interrupt();
                return;
            }
            let received = responder.deliver_parked(endpoint, cx);
            self.check_received(cx, received);
        }
    }

    /// Handles the answer to a fault that the responder may wait for.
    fn responder_fault_answered<M: Dma>(&mut self, cx: &mut Context<'_, M>, call: Call) {
        let (endpoint, responder, _) = self.parts();
        if let Err(fatal) = responder.fault_answered(endpoint, cx, call) {
            self.fail_with(cx, fatal);
        }
    }

    /// Enters the error state, with an asynchronous event of this kind.
    fn fail_with_event<M: Dma>(&mut self, cx: &mut Context<'_, M>, kind: u8) {
        self.fail_with(cx, Fatal::with(kind));
    }

    /// Enters the error state, with the asynchronous event of a fatal error if it has one.
    fn fail_with<M: Dma>(&mut self, cx: &mut Context<'_, M>, fatal: Fatal) {
        if self.parts().0.state == State::Err {
            return;
        }
        self.fail(cx, fatal.cause());
        if let Some(kind) = fatal.event {
            self.parts().0.report_failure(cx, kind);
        }
    }
}
