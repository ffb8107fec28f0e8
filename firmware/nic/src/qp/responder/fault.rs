//! Handling of missing pages by a responder.
//!
//! A queue pair may wait for three pages at once: one of a local buffer of its requester, one for a request that has
//! arrived, and one that a READ is answered from. The first and the last delay only its own packets. The fault policy
//! (`fault_policy.rs`) determines the handling of the request.

use faultline_abi::admin::Counter;
use faultline_abi::event;
use faultline_wire::aeth::Syndrome;

use super::refusal::{IngressNeed, Rejection};
use super::waits::{IngressWait, PacketFate};
use super::{Received, Responder, report_rnr_nak};
use crate::context::Context;
use crate::core::Core;
use crate::diagnostic::Diagnostic;
use crate::dma::Dma;
use crate::fault::{Call, Need, RaisedFault, Token, WaitKind};
use crate::qp::endpoint::Endpoint;
use crate::qp::fault_policy::Reaction;
use crate::qp::page_wait::{LOST_BUFFER, PageWait, Repaired, await_page};
use crate::qp::types::{Fatal, QpType};

impl Responder {
    /// Waits for a page that a READ is answered from. Returns false if the driver has no queue for faults.
    pub(super) fn await_reply_page<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        need: &Need,
    ) -> bool {
        let token = await_page(cx, qp.fault_source(WaitKind::Reply), need);
        self.waits.reply = token.map(|token| PageWait::new(token, need));
        token.is_some()
    }

    /// Handles a missing page of a request of a reliable connection.
    pub(super) fn request_faulted<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        need: IngressNeed,
    ) -> Result<Received, Fatal> {
        match qp.fault_policy().reactions().reliable {
            Reaction::Stall => return self.stall(qp, cx, need),
            Reaction::Fail => {
                let receive = need.receive.then_some(LOST_BUFFER);
                let rejection = Rejection::operational(receive);
                return Err(self.reject(qp, cx, self.expected, rejection));
            }
            Reaction::Drop => {
                self.refuse_for_page(qp, cx, need, PacketFate::Dropped)?;
                cx.count(Counter::page_fault_drops);
            }
            // A packet that the requester sends again is never parked.
            Reaction::RnrNak | Reaction::Park => {
                let token = self.refuse_for_page(qp, cx, need, PacketFate::Refused)?;
                cx.count(Counter::page_fault_rnr);
                report_rnr_nak(qp, cx, self.expected, token);
                let timer = cx.core.rnr_timer(cx.now, token, need.need.absent.key);
                self.acknowledge(self.expected, Syndrome::RnrNak { timer });
            }
        }
        Ok(Received::Done)
    }

    /// Raises or joins the fault of a request, and drops the request, which the requester sends again. Returns the
    /// fault, if there was room for one. If the driver has no queue for faults, the request is refused for good.
    fn refuse_for_page<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        need: IngressNeed,
        how: PacketFate,
    ) -> Result<Option<Token>, Fatal> {
        let source = qp.fault_source(WaitKind::Request);
        let token = match cx.raise_fault(source, &need.need) {
            RaisedFault::Waiting(token) => Some(token),
            // The requester sends it again anyway.
            RaisedFault::NoRoom => None,
            RaisedFault::NoQueue => return Err(self.refuse_for_good(qp, cx, need.receive)),
        };
        self.waits.ingress = token.map(|token| IngressWait::new(token, how, need.receive));
        // Later packets are out of sequence, and need no NAK of their own.
        self.nak_sent = true;
        // Before the repair, when the answer matters.
        qp.query_peer(cx);
        Ok(token)
    }

    /// Stops the ingress of the NIC.
    pub(super) fn stall<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        need: IngressNeed,
    ) -> Result<Received, Fatal> {
        let source = qp.fault_source(WaitKind::Request);
        let Some(token) = await_page(cx, source, &need.need) else {
            self.request_lost(qp, cx, need.receive)?;
            return Ok(Received::Done);
        };
        cx.count(Counter::stalls);
        cx.diagnose(Diagnostic::Stalled { qpn: qp.number });
        cx.core.ingress.stop(cx.now, qp.number, token);
        let wait = IngressWait::new(token, PacketFate::Stalled, need.receive);
        self.waits.ingress = Some(wait);
        Ok(Received::Held)
    }

    /// Handles the answer to a fault that this responder may wait for.
    pub(crate) fn fault_answered<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        call: Call,
    ) -> Result<(), Fatal> {
        let Call {
            token, repaired, ..
        } = call;
        if let Some(wait) = self.waits.reply.take_if(|wait| wait.token == token) {
            // Not if an earlier response must be repeated first.
            if repaired {
                if let Some(fault) = Repaired::new(call, cx.now) {
                    fault.report(qp, cx);
                }
            } else if self.next_reply_psn() == Some(wait.psn) {
                return Err(self.reply_lost(qp, cx));
            }
        }
        let Some(wait) = self.waits.ingress.take_if(|wait| wait.token == token) else {
            return Ok(());
        };
        if wait.carried_out {
            // The request was repeated and found its page before this answer. A failure has no effect any more.
            if repaired && let Some(fault) = Repaired::new(call, cx.now) {
                fault.report(qp, cx);
            }
            return Ok(());
        }
        if repaired {
            // An earlier fault of the same packet is done.
            self.fault_done(qp, cx);
            self.waits.repaired = Repaired::new(call, cx.now);
            match wait.how {
                PacketFate::Refused => self.tell_ready(qp, cx.core),
                PacketFate::Dropped => self.end_drop(qp, cx.core, wait.gap),
                PacketFate::Stalled | PacketFate::Parked => {}
            }
            return Ok(());
        }
        if wait.how == PacketFate::Parked {
            self.unpark(qp, cx.core);
        }
        self.request_lost(qp, cx, wait.receive)
    }

    /// Records that a packet was executed, so the fault that it has caused is done.
    #[inline]
    pub(super) fn fault_done<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>) {
        if let Some(wait) = &mut self.waits.ingress {
            wait.carried_out |= wait.how.is_sent_again();
        }
        if let Some(repaired) = self.waits.repaired.take() {
            repaired.report(qp, cx);
        }
    }

    /// Notifies the requester that the resource of a request with an RNR NAK is available now, so that it does not wait for its timer.
    pub(super) fn tell_ready(&mut self, qp: &Endpoint, core: &mut Core) {
        if qp.exchanges_ready(core) {
            core.counters.add_in(qp.counters, Counter::ready_notices, 1);
            self.say_ready();
        }
    }

    /// Requests a dropped packet again after its page has become present. `gap`: a later packet has arrived since. Without one, an adapter
    /// that has lost the packet would send no NAK: a peer that does not exchange READY must wait for its ACK timeout.
    fn end_drop(&mut self, qp: &Endpoint, core: &Core, gap: bool) {
        if gap || qp.exchanges_ready(core) {
            self.ask_again();
        } else {
            self.nak_sent = false;
        }
    }

    /// Handles a page of a request that will not become present.
    pub(super) fn request_lost<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        receive: bool,
    ) -> Result<(), Fatal> {
        if qp.is_reliable() {
            return Err(self.refuse_for_good(qp, cx, receive));
        }
        if !receive {
            // The peer named this memory, so only its message is lost.
            self.lose_message();
            return Ok(());
        }
        if let Some(wr) = self.current.take() {
            qp.fail_receive(cx, &wr, LOST_BUFFER);
        }
        match qp.config.kind {
            // One bad buffer must not stop an interface.
            QpType::Raw => Ok(()),
            _ => Err(Fatal::with(event::QP_FATAL)),
        }
    }

    /// Refuses a request of a reliable connection whose page will not become present.
    fn refuse_for_good<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        receive: bool,
    ) -> Fatal {
        let rejection = match (receive, &self.current) {
            (true, _) => Rejection::operational(Some(LOST_BUFFER)),
            (false, Some(_)) => Rejection::ACCESS_WITH_RECEIVE,
            (false, None) => Rejection::ACCESS,
        };
        self.reject(qp, cx, self.expected, rejection)
    }

    /// Drops the expected packet. The rest of its message is of no use without it; a datagram has no rest.
    pub(super) fn lose_message(&mut self) {
        self.message = None;
        self.skipping = true;
        self.expected = self.expected.next();
    }
}
