//! Work queues: receive queues of Ethernet frames, among which an indirection table distributes (`ibv_create_wq`).

use super::endpoint::Endpoint;
use super::fault_policy::FaultPolicy;
use super::ready::Readiness;
use super::receiver::{Parts, Receiver};
use super::responder::{Received, Responder};
use super::types::{Fatal, QpConfig, State, StateCause};
use crate::budget::Held;
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Call;
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

    /// Handles the answer to a fault that it may wait for.
    pub(crate) fn fault_answered<M: Dma>(&mut self, cx: &mut Context<'_, M>, call: Call) {
        self.responder_fault_answered(cx, call);
        self.ready.wake(cx.core, self.endpoint.number);
    }

    /// Continues deferred work.
    pub(crate) fn poll<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        match self.endpoint.state {
            State::Err => self.flush(cx),
            _ => self.deliver_parked(cx),
        }
    }

    /// Records that it was removed from the ready queue.
    pub(crate) fn left_ready_queue(&mut self, core: &mut Core) {
        self.ready.left(core, self.endpoint.number);
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

    /// Ends the wait for a page, and drops the parked frames. Must be called before it is destroyed.
    pub(crate) fn stop_waiting(&mut self, core: &mut Core) {
        core.forget_queue(self.endpoint.number);
        self.responder.stop_waiting(&self.endpoint, core);
    }
}

impl Receiver for WorkQueue {
    #[inline]
    fn parts(&mut self) -> Parts<'_> {
        (&self.endpoint, &mut self.responder, &mut self.ready)
    }

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
}
