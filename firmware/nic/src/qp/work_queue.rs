//! Work queues: receive queues of Ethernet frames, among which an indirection table distributes (`ibv_create_wq`).

use super::endpoint::Endpoint;
use super::fault_policy::FaultPolicy;
use super::ready::Readiness;
use super::responder::{Received, Responder};
use super::types::{Fatal, QpConfig, State, StateCause};
use crate::budget::Held;
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Call;
use crate::frame::Frame;
use crate::receive_queue::RecvRing;
use crate::references::References;

/// A work queue. Its state is RESET, RTS (that is RDY of `ibv_wq_state`) or ERR.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    /// Number and configuration, as of a raw queue pair.
    pub endpoint: Endpoint,
    /// Entries of indirection tables that name it. It can't be destroyed while there are any.
    pub references: References,
    responder: Responder,
    ready: Readiness,
    /// Its share of the budget.
    _held: Held,
}

impl WorkQueue {
    /// A work queue in RESET. The type in `config` is [`QpType::Raw`](super::QpType::Raw).
    pub(crate) fn new(
        number: u32,
        config: QpConfig,
        fault_policy: FaultPolicy,
        ring: RecvRing,
        held: Held,
    ) -> Self {
        Self {
            endpoint: Endpoint::new(number, config, fault_policy),
            references: References::default(),
            responder: Responder::new(Some(ring)),
            ready: Readiness::default(),
            _held: held,
        }
    }

    /// Handles a receive doorbell, which software rings only if the record requests it.
    pub(crate) fn ring_receive<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        if self.endpoint.state == State::Err {
            self.flush(cx);
        }
    }

    /// Flushes the queue until the turn is over; the rest waits for the next turn.
    fn flush<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let turn = cx.core.begin_turn();
        if !self.responder.flush_queue(&self.endpoint, cx, turn) {
            self.ready.yield_turn(cx.core, self.endpoint.number);
        }
    }

    /// Continues deferred work.
    pub(crate) fn poll<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        match self.endpoint.state {
            State::Err => self.flush(cx),
            _ => self.deliver_parked(cx),
        }
    }

    /// Receives a frame from a flow with this tag. Returns false if it has stopped the ingress and must be held.
    pub(crate) fn receive_frame<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        tag: u32,
        frame: Frame<'_, M>,
    ) -> bool {
        let received = self.responder.receive_raw(&self.endpoint, cx, tag, frame);
        self.check_received(cx, received)
    }

    /// Delivers frames that have waited for their page, until another one is missing or the turn is over.
    fn deliver_parked<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let turn = cx.core.begin_turn();
        while self.responder.has_parked_to_deliver() {
            if cx.core.is_over(turn) {
                self.ready.interrupt();
                return;
            }
            let received = self.responder.deliver_parked(&self.endpoint, cx);
            self.check_received(cx, received);
        }
    }

    /// Returns false if the frame has stopped the ingress and must be held.
    fn check_received<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        received: Result<Received, Fatal>,
    ) -> bool {
        if let Err(fatal) = received {
            self.fail_with(cx, fatal);
        }
        received != Ok(Received::Held)
    }

    /// Records that it was removed from the ready queue.
    pub(crate) fn left_ready_queue(&mut self, core: &mut Core) {
        self.ready.left(core, self.endpoint.number);
    }

    /// Handles the answer to a fault that it may wait for.
    pub(crate) fn fault_answered<M: Dma>(&mut self, cx: &mut Context<'_, M>, call: Call) {
        let wq = &self.endpoint;
        if let Err(fatal) = self.responder.fault_answered(wq, cx, call) {
            self.fail_with(cx, fatal);
        }
        self.ready.wake(cx.core, self.endpoint.number);
    }

    /// Enters another state. MODIFY_WQ has checked the transition.
    pub(crate) fn enter<M: Dma>(&mut self, cx: &mut Context<'_, M>, new: State) {
        match new {
            State::Err => self.fail(cx, StateCause::Command),
            State::Reset => {
                self.stop_waiting(cx.core);
                cx.core.forget_delayed_completions(self.endpoint.number);
                self.endpoint
                    .set_state(cx, State::Reset, StateCause::Command);
                self.endpoint.reset(cx.core.config.fault_policy);
                self.responder.reset(cx.mem);
            }
            other => self.endpoint.set_state(cx, other, StateCause::Command),
        }
    }

    /// Enters the error state and flushes the queue.
    fn fail<M: Dma>(&mut self, cx: &mut Context<'_, M>, cause: StateCause) {
        if self.endpoint.state == State::Err {
            return;
        }
        self.endpoint.set_state(cx, State::Err, cause);
        self.responder.notify_posted(cx.mem);
        self.stop_waiting(cx.core);
        self.responder.abandon(&self.endpoint, cx);
        self.flush(cx);
    }

    /// Enters the error state, with an asynchronous event that says why.
    pub(crate) fn fail_with_event<M: Dma>(&mut self, cx: &mut Context<'_, M>, kind: u8) {
        self.fail_with(cx, Fatal::with(kind));
    }

    fn fail_with<M: Dma>(&mut self, cx: &mut Context<'_, M>, fatal: Fatal) {
        if self.endpoint.state == State::Err {
            return;
        }
        self.fail(cx, fatal.cause());
        if let Some(kind) = fatal.event {
            self.endpoint.report_failure(cx, kind);
        }
    }

    /// Ends the wait for a page, and drops the parked frames. Must be called before it is destroyed.
    pub(crate) fn stop_waiting(&mut self, core: &mut Core) {
        core.forget_queue(self.endpoint.number);
        self.responder.stop_waiting(&self.endpoint, core);
    }
}
