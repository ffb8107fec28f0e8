//! What comes back to a requester: acknowledgements, refusals, and the data of READs and atomics.
//!
//! Responses come in order. One that is missing is asked for again from there on (IBTA 9.7.5.1).

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_wire::aeth::{Aeth, NakCode, Syndrome, rnr_timer_ns};
use faultline_wire::bth::Psn;
use faultline_wire::opcode::OpKind;
use faultline_wire::packet::RoceHeader;

use super::requester::Unbuilt;
use super::responder::copy_payload;
use super::{Failure, Misplaced, Qp};
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Need;
use crate::frame::Payload;
use crate::mkey::Access;
use crate::time::Nanos;

/// Time between two READs of an adapter that asks again and again ([`crate::Pitfalls::flood`]).
const FLOOD_INTERVAL: Nanos = Nanos::from_micros(20);
/// `rnr_retry` value that means "for ever" (IBTA 9.7.5.2.8).
const RNR_FOREVER: u8 = 7;

impl Qp {
    /// Everything before `psn` has arrived at the peer.
    pub(super) fn acknowledge_until<M: Dma>(&mut self, cx: &mut Context<'_, M>, psn: Psn) {
        let req = &mut self.requester;
        // An answer that has not come holds back what follows it: an acknowledgement beyond it means that
        // the response was lost (IBTA 9.7.5.1.2).
        let mut until = psn;
        let awaiting = req.pending.oldest_awaiting();
        if let Some(wr) = awaiting.and_then(|at| req.pending.get(at)) {
            let missing = wr.first.add(wr.responses);
            if until.diff(missing) > 0 {
                until = missing;
            }
        }
        if until.diff(req.unacked) <= 0 {
            return;
        }
        req.unacked = until;
        req.recovering = None;
        (req.retries, req.rnr_retries) = (req.retry_limit, req.rnr_retry_limit);
        if self
            .waits
            .requester
            .is_some_and(|wait| until.diff(wait.psn) > 0)
        {
            // What missed the page has been done without it, before transmission went back.
            self.waits.requester = None;
        }
        self.restart_ack_timer(cx.now);
        let req = &mut self.requester;
        if until.diff(req.refused) > 0 {
            // Done all the same: the responder had what it lacked before the request came again.
            req.rnr_deadline = None;
        }
        // A cursor that an acknowledgement has overtaken (after a rewind) moves on.
        if req.cursor_psn().diff(until) < 0 {
            let before = req.cursor;
            req.skip_to(until);
            cx.core.charge((req.cursor - before) as u64);
        }
        self.retire(cx);
    }

    /// An acknowledgement or response arrives.
    pub(super) fn receive_response<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) {
        if !self.state.sends() {
            return;
        }
        let psn = header.bth.psn;
        let req = &self.requester;
        // Ghosts of acknowledgements: nothing such has been sent (IBTA 9.7.5.1).
        if psn.diff(req.high) >= 0 {
            return;
        }
        match header.bth.opcode.info().kind {
            OpKind::Ack => self.receive_ack(cx, header, psn),
            OpKind::AtomicAck => self.receive_atomic(cx, header),
            OpKind::ReadResponse => self.receive_read(cx, header, payload),
            _ => {}
        }
        if self.state.sends() {
            self.sync_timer(cx.core);
            self.wake(cx.core);
        }
    }

    fn receive_ack<M: Dma>(&mut self, cx: &mut Context<'_, M>, header: &RoceHeader, psn: Psn) {
        let Some(Aeth { syndrome, .. }) = header.aeth else {
            return;
        };
        match syndrome {
            Syndrome::Ack { .. } => {
                self.take_ready_notice(cx.core, psn);
                self.acknowledge_until(cx, psn.next());
                self.recover_lost_response(psn);
            }
            Syndrome::RnrNak { timer } => {
                if psn.diff(self.requester.unacked) < 0 {
                    return;
                }
                cx.count(Counter::rnr_nak_received);
                if self.acknowledge_before_nak(cx, psn) {
                    self.receive_rnr(cx, psn, timer);
                }
            }
            Syndrome::Nak(code) => {
                if psn.diff(self.requester.unacked) < 0 {
                    return;
                }
                if self.acknowledge_before_nak(cx, psn) {
                    self.receive_nak(cx, psn, code);
                }
            }
            Syndrome::Reserved(_) => {}
        }
    }

    /// What is before the refused request is acknowledged once more: the page that it lacked is there now.
    /// From others it is a repetition that comes late; the request is then refused once more.
    fn take_ready_notice(&mut self, core: &Core, acked: Psn) {
        let req = &mut self.requester;
        if core.config.ready_notice && req.rnr_deadline.is_some() && acked.next() == req.refused {
            req.rnr_deadline = None;
            req.rnr_retries = req.rnr_retry_limit;
        }
    }

    /// A NAK acknowledges what is before it. Gives false if a response before it is missing: that is asked for
    /// again first, and the NAK will come again.
    fn acknowledge_before_nak<M: Dma>(&mut self, cx: &mut Context<'_, M>, psn: Psn) -> bool {
        self.acknowledge_until(cx, psn);
        let missing = self.requester.unacked;
        if missing == psn {
            return true;
        }
        self.requester.go_back_for(missing);
        false
    }

    /// An acknowledgement went past a READ or atomic whose response is missing: ask again.
    fn recover_lost_response(&mut self, acked: Psn) {
        let req = &mut self.requester;
        if let Some(position) = req.oldest_awaiting(req.cursor)
            && let Some(wr) = req.pending.get(position)
        {
            let missing = wr.first.add(wr.responses);
            if acked.diff(missing) >= 0 {
                req.go_back_for(missing);
            }
        }
    }

    fn receive_rnr<M: Dma>(&mut self, cx: &mut Context<'_, M>, psn: Psn, timer: u8) {
        let req = &mut self.requester;
        if req.rnr_retry_limit != RNR_FOREVER {
            if req.rnr_retries == 0 {
                let failure = Failure::new(cqe::RNR_RETRY_EXC_ERR, cqe::REMOTE);
                self.fail_request(cx, failure);
                return;
            }
            req.rnr_retries -= 1;
        }
        req.rewind(psn);
        req.refused = psn;
        req.ack_deadline = None;
        req.rnr_deadline = Some(cx.now + Nanos(rnr_timer_ns(timer)));
        if cx.core.config.pitfalls.damming {
            let from = req.dammed.map_or(self.sq.producer, |(from, _)| from);
            req.dammed = Some((from, self.sq.producer));
        }
    }

    fn receive_nak<M: Dma>(&mut self, cx: &mut Context<'_, M>, psn: Psn, code: NakCode) {
        let status = match code {
            NakCode::PsnSequenceError => {
                cx.count(Counter::packet_seq_err);
                self.retry(cx, psn);
                return;
            }
            NakCode::InvalidRequest | NakCode::InvalidRdRequest => {
                cx.count(Counter::req_remote_invalid_request);
                cqe::REM_INV_REQ_ERR
            }
            NakCode::RemoteAccessError => {
                cx.count(Counter::req_remote_access_errors);
                cqe::REM_ACCESS_ERR
            }
            NakCode::RemoteOperationalError => cqe::REM_OP_ERR,
        };
        self.fail_request(cx, Failure::new(status, cqe::REMOTE));
    }

    /// Sends again from `psn`, if a retry is left.
    fn retry<M: Dma>(&mut self, cx: &mut Context<'_, M>, psn: Psn) {
        let req = &mut self.requester;
        if req.retries == 0 {
            self.fail_request(cx, Failure::new(cqe::RETRY_EXC_ERR, cqe::NONE));
            return;
        }
        req.retries -= 1;
        req.rewind(psn);
        self.restart_ack_timer(cx.now);
    }

    pub(super) fn handle_request_timer<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        if !self.state.sends() {
            return;
        }
        let req = &mut self.requester;
        if req.rnr_deadline.is_some_and(|at| at <= cx.now) {
            req.rnr_deadline = None;
            self.wake(cx.core);
            return;
        }
        if req.ack_deadline.is_some_and(|at| at <= cx.now) {
            req.ack_deadline = None;
            req.dammed = None;
            req.recovering = None;
            cx.count(Counter::local_ack_timeout_err);
            let from = req.unacked;
            self.retry(cx, from);
            self.wake(cx.core);
        }
    }

    /// The READ or atomic that a response belongs to, if it is the packet that comes next.
    fn match_response<M: Dma>(&mut self, cx: &mut Context<'_, M>, psn: Psn) -> Option<usize> {
        let req = &self.requester;
        let position = req.oldest_awaiting(req.pending.len())?;
        let wr = req.pending.get(position)?;
        let expected = wr.first.add(wr.responses);
        let ahead = psn.diff(expected);
        if ahead < 0 {
            return None; // a duplicate
        }
        // A response acknowledges every request before it.
        if ahead > 0 {
            self.acknowledge_until(cx, expected);
            self.requester.go_back_for(expected);
            return None;
        }
        self.acknowledge_until(cx, psn);
        self.requester.oldest_awaiting(self.requester.pending.len())
    }

    fn receive_atomic<M: Dma>(&mut self, cx: &mut Context<'_, M>, header: &RoceHeader) {
        let psn = header.bth.psn;
        let Some(position) = self.match_response(cx, psn) else {
            return;
        };
        let Some(wr) = self.requester.pending.get(position) else {
            return;
        };
        let Some(ack) = header.atomic_ack else { return };
        if !wr.is_atomic() {
            self.bad_response(cx, position);
            return;
        }
        let bytes = ack.original.to_le_bytes();
        let placed = self.scatter_response(cx, position, 0, 8, Payload::Bytes(&bytes));
        match placed {
            Ok(()) | Err(Misplaced::Lost) => {
                self.accept_response(cx, position, psn, 1);
            }
            Err(Misplaced::Absent(absent, hint)) => {
                let need = Need::new(absent, hint, psn.get());
                self.ask_again_for(cx, position, psn, need);
            }
            Err(Misplaced::Failed(failure)) => self.fail_at(cx, position, failure),
        }
    }

    /// A response has no place to go yet: it is asked for again when it has.
    fn ask_again_for<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        position: usize,
        psn: Psn,
        need: Need,
    ) {
        let failure = self.wait_or_fail(cx, Unbuilt::Absent(need));
        if let Some(failure) = failure {
            self.fail_at(cx, position, failure);
            return;
        }
        self.requester.recovering = Some(psn);
        self.requester.rewind(psn);
        if cx.core.config.pitfalls.flood {
            self.waits.requester = None;
            self.requester.rnr_deadline = Some(cx.now + FLOOD_INTERVAL);
        }
    }

    fn receive_read<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) {
        let psn = header.bth.psn;
        let Some(position) = self.match_response(cx, psn) else {
            return;
        };
        let Some(wr) = self.requester.pending.get(position) else {
            return;
        };
        let offset = wr.responses * self.mtu;
        let expected = (wr.landing() - offset.min(wr.landing())).min(self.mtu);
        let last = wr.responses + 1 == wr.psns;
        let ends = header.bth.opcode.is_last_or_only();
        if wr.is_atomic() || payload.len() != expected as usize || last != ends {
            self.bad_response(cx, position);
            return;
        }
        match self.scatter_response(cx, position, offset, expected, payload) {
            Ok(()) => self.accept_response(cx, position, psn, 1),
            // It will be asked for again, and given up in the end.
            Err(Misplaced::Lost) => {}
            Err(Misplaced::Absent(absent, hint)) => {
                let need = Need::new(absent, hint, psn.get());
                self.ask_again_for(cx, position, psn, need);
            }
            Err(Misplaced::Failed(failure)) => self.fail_at(cx, position, failure),
        }
    }

    /// Takes a run of READ responses as a whole, if it is what comes next.
    pub(super) fn receive_response_run<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> bool {
        let (psn, req) = (header.bth.psn, &self.requester);
        let last = psn.add(packets).prev();
        if !self.state.sends() || last.diff(req.high) >= 0 {
            return false;
        }
        let Some(position) = req.oldest_awaiting(req.pending.len()) else {
            return false;
        };
        let Some(wr) = req.pending.get(position) else {
            return false;
        };
        let expected = wr.is_read()
            && psn == wr.first.add(wr.responses)
            && wr.responses + packets < wr.psns
            && header.bth.opcode.info().kind == OpKind::ReadResponse
            && !header.bth.opcode.is_last_or_only();
        if !expected {
            return false;
        }
        let (offset, len) = (wr.responses * self.mtu, packets * self.mtu);
        if self
            .scatter_response(cx, position, offset, len, payload)
            .is_err()
        {
            return false;
        }
        self.acknowledge_until(cx, psn);
        // What was before it may have completed.
        if let Some(position) = self.requester.oldest_awaiting(self.requester.pending.len()) {
            self.accept_response(cx, position, last, packets);
        }
        self.sync_timer(cx.core);
        self.wake(cx.core);
        true
    }

    fn scatter_response<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        position: usize,
        offset: u32,
        len: u32,
        payload: Payload<'_, M>,
    ) -> Result<(), Misplaced> {
        let Some(wr) = self.requester.pending.get(position) else {
            return Ok(());
        };
        let segments = self
            .gather(cx.core, wr, offset, len, Access::LocalWrite)
            .map_err(|unbuilt| match unbuilt {
                Unbuilt::Failed(failure) => Misplaced::Failed(failure),
                Unbuilt::Absent(need) => Misplaced::Absent(need.absent, need.hint),
            })?;
        copy_payload(cx, &segments, payload, &mut 0)?;
        Ok(())
    }

    fn accept_response<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        position: usize,
        last: Psn,
        packets: u32,
    ) {
        self.requester.pending.answer(position, packets);
        self.acknowledge_until(cx, last.next());
    }

    /// The peer's response breaks the protocol (IBTA 9.9.2.4.2, bad response).
    fn bad_response<M: Dma>(&mut self, cx: &mut Context<'_, M>, position: usize) {
        let failure = Failure::new(cqe::BAD_RESP_ERR, cqe::PROTOCOL);
        self.fail_at(cx, position, failure);
    }

    /// A work request fails; those before it are complete, because responses come in order.
    fn fail_at<M: Dma>(&mut self, cx: &mut Context<'_, M>, position: usize, failure: Failure) {
        if let Some(wr) = self.requester.pending.get_mut(position) {
            wr.failed = Some(failure);
        }
        if position == 0 {
            self.fail_request(cx, failure);
        }
    }
}
