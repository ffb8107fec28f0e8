//! Responses to a requester: acknowledgements, NAKs, and the data of READs and atomics.
//!
//! Responses arrive in order. If one is missing, transmission goes back to its request (IBTA 9.7.5.1).

#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets are in a message of at most 2^31 bytes, and packets times the MTU are less than one MTU more"
)]

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_wire::aeth::{Aeth, NakCode, Syndrome, rnr_timer_ns};
use faultline_wire::bth::Psn;
use faultline_wire::opcode::OpKind;
use faultline_wire::packet::RoceHeader;

use super::gone_back::GoneBack;
use super::window::Window;
use super::{BuildError, MessageRange, Requester};
use crate::context::Context;
use crate::diagnostic::{Diagnostic, RetryCause};
use crate::dma::Dma;
use crate::fault::Need;
use crate::origin::Origin;
use crate::payload::Payload;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::{Failure, PlaceError};
use crate::segments::Segments;
use crate::time::Nanos;

/// Time between two repetitions of a READ by an adapter with flood ([`crate::Pitfalls::flood`]).
const FLOOD_INTERVAL: Nanos = Nanos::from_micros(20);
/// `rnr_retry` value that means "for ever" (IBTA 9.7.5.2.8).
const RNR_FOREVER: u8 = 7;

impl Requester {
    /// Records that everything before `psn` has arrived at the peer.
    pub(super) fn acknowledge_until<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
    ) -> Result<(), Failure> {
        // An outstanding response holds back the acknowledgement of later requests: an acknowledgement beyond it means
        // that the response was lost (IBTA 9.7.5.1.2).
        let mut until = psn;
        let awaiting = self.pending.oldest_awaiting();
        if let Some(wr) = awaiting.and_then(|at| self.pending.get(at)) {
            let missing = wr.first.add(wr.responses);
            if until.diff(missing) > 0 {
                until = missing;
            }
        }
        if until.diff(self.unacked) <= 0 {
            return Ok(());
        }
        self.widen(until);
        self.unacked = until;
        self.credits.acknowledged(until);
        self.gone_back = GoneBack::default();
        (self.retries, self.rnr_retries) = (self.retry_limit, self.rnr_retry_limit);
        if self.page.is_some_and(|wait| until.diff(wait.psn) > 0) {
            // The request that missed the page was executed before transmission went back.
            self.page = None;
        }
        self.restart_ack_timer(qp, cx.now);
        if until.diff(self.refused) > 0 {
            // The refused request was executed without a repetition: the resource that caused the RNR NAK is available.
            self.rnr_deadline = None;
        }
        // After a rewind, an acknowledgement may be beyond the cursor, which then moves to it.
        if self.cursor_psn().diff(until) < 0 {
            let before = self.cursor;
            self.skip_to(until);
            cx.core.charge((self.cursor - before) as u64);
        }
        self.retire(qp, cx)
    }

    /// Receives an acknowledgement or response.
    pub(crate) fn receive<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Failure> {
        let psn = header.bth.psn;
        // Ghost acknowledgement: no such packet has been sent (IBTA 9.7.5.1).
        if psn.diff(self.high) >= 0 {
            return Ok(());
        }
        // An older acknowledgement may belong to an earlier connection.
        if let Some(aeth) = &header.aeth
            && psn.next().diff(self.unacked) >= 0
        {
            self.credits.take(aeth);
        }
        match header.bth.opcode.info().kind {
            OpKind::Ack => self.receive_ack(qp, cx, header, psn),
            OpKind::AtomicAck => self.receive_atomic(qp, cx, header),
            OpKind::ReadResponse => self.receive_read(qp, cx, header, payload),
            OpKind::Ready => {
                self.receive_ready(qp, cx, psn);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn receive_ack<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        psn: Psn,
    ) -> Result<(), Failure> {
        let Some(Aeth { syndrome, .. }) = header.aeth else {
            return Ok(());
        };
        match syndrome {
            Syndrome::Ack { .. } => {
                self.acknowledge_until(qp, cx, psn.next())?;
                if self.recover_lost_response(psn) {
                    cx.count(Counter::implied_nak_seq_err);
                }
            }
            Syndrome::RnrNak { timer } => {
                if psn.diff(self.unacked) < 0 {
                    return Ok(());
                }
                cx.count(Counter::rnr_nak_received);
                if self.acknowledge_before_nak(qp, cx, psn)? {
                    self.receive_rnr(qp, cx, psn, timer)?;
                }
            }
            Syndrome::Nak(code) => {
                if psn.diff(self.unacked) >= 0 {
                    self.receive_nak(qp, cx, psn, code)?;
                }
            }
            Syndrome::Reserved(_) => {}
        }
        Ok(())
    }

    /// READY: the page of the request that got an RNR NAK is present now, so the wait is over. A late READY has no
    /// effect, or leads to another RNR NAK. From an adapter that is not known to be a Faultline the opcode may have any
    /// meaning.
    fn receive_ready<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>, psn: Psn) {
        if !qp.exchanges_ready(cx.core) {
            cx.count(Counter::ready_refused);
            // It may be a Faultline whose answer was lost.
            qp.query_peer(cx);
            return;
        }
        cx.count(Counter::ready_received);
        if self.rnr_deadline.is_some() && psn == self.refused {
            self.rnr_deadline = None;
            // A peer on a wire could refuse and call without end.
            if qp.peer == Origin::Faultline {
                self.rnr_retries = self.rnr_retry_limit;
            }
        }
    }

    /// A NAK acknowledges all earlier requests. Returns false if a response before it is missing: transmission goes back to its request
    /// first, and a peer that is not in error will repeat the NAK.
    fn acknowledge_before_nak<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
    ) -> Result<bool, Failure> {
        self.acknowledge_until(qp, cx, psn)?;
        let missing = self.unacked;
        if missing != psn && self.go_back_for(missing) {
            cx.count(Counter::implied_nak_seq_err);
        }
        Ok(missing == psn)
    }

    /// Goes back to a READ or atomic whose response is missing, because an acknowledgement is beyond it. Returns true if it does.
    fn recover_lost_response(&mut self, acked: Psn) -> bool {
        let Some(position) = self.oldest_awaiting(self.cursor) else {
            return false;
        };
        let Some(wr) = self.pending.get(position) else {
            return false;
        };
        let missing = wr.first.add(wr.responses);
        acked.diff(missing) >= 0 && self.go_back_for(missing)
    }

    fn receive_rnr<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
        timer: u8,
    ) -> Result<(), Failure> {
        // It is a duplicate: the request was not repeated since, so there was no further retry, and the wait continues.
        let is_again = self.refused_waits && self.refused == psn && self.cursor_psn() == psn;
        if is_again && self.rnr_deadline.is_some() {
            return Ok(());
        }
        let delay = cx.core.config.latency.rnr_wait(Nanos(rnr_timer_ns(timer)));
        cx.diagnose(Diagnostic::RnrNakReceived {
            qpn: qp.number,
            psn: psn.get(),
            delay,
        });
        if self.rnr_retry_limit != RNR_FOREVER && !is_again {
            if self.rnr_retries == 0 {
                cx.diagnose(Diagnostic::RetriesExhausted {
                    qpn: qp.number,
                    psn: psn.get(),
                    rnr: true,
                });
                return Err(Failure::new(cqe::RNR_RETRY_EXC_ERR, cqe::REMOTE));
            }
            self.rnr_retries -= 1;
        }
        cx.count(Counter::rnr_nak_retry_err);
        self.rewind(psn);
        (self.refused, self.refused_waits) = (psn, true);
        self.ack_deadline = None;
        self.rnr_deadline = Some(cx.now + delay);
        if cx.core.config.pitfalls.damming {
            // Requests that an earlier RNR wait has lost stay lost. An empty range does not count: later requests are not lost by it.
            let lost = self.dammed.filter(|(from, until)| from != until);
            let from = lost.map_or(self.producer, |(from, _)| from);
            self.dammed = Some((from, self.producer));
        }
        Ok(())
    }

    fn receive_nak<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
        code: NakCode,
    ) -> Result<(), Failure> {
        let is_next = self.acknowledge_before_nak(qp, cx, psn)?;
        let status = match code {
            NakCode::PsnSequenceError if !is_next => return Ok(()),
            NakCode::PsnSequenceError => {
                cx.count(Counter::packet_seq_err);
                // It is sent next anyway, or was sent after another NAK for it.
                if self.cursor_psn() == psn || !self.gone_back.for_request(psn) {
                    return Ok(());
                }
                return self.retry(qp, cx, psn, RetryCause::SequenceNak);
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
        // A peer in error repeats no response. One that another packet has overtaken counts as lost.
        let status = if is_next { status } else { cqe::RETRY_EXC_ERR };
        Err(Failure::new(status, cqe::REMOTE))
    }

    /// Sends again from `psn`, if a retry is left.
    fn retry<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
        cause: RetryCause,
    ) -> Result<(), Failure> {
        let (qpn, first) = (qp.number, psn.get());
        if self.retries == 0 {
            cx.diagnose(Diagnostic::RetriesExhausted {
                qpn,
                psn: first,
                rnr: false,
            });
            return Err(Failure::new(cqe::RETRY_EXC_ERR, cqe::NONE));
        }
        self.retries -= 1;
        cx.diagnose(Diagnostic::Retried {
            qpn,
            psn: first,
            cause,
        });
        self.rewind(psn);
        self.restart_ack_timer(qp, cx.now);
        Ok(())
    }

    /// Handles a timer that is due, or that has moved since. Returns true if there may be a frame to send.
    pub(crate) fn handle_timer<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
    ) -> Result<bool, Failure> {
        if self.rnr_deadline.is_some_and(|at| at <= cx.now) {
            self.rnr_deadline = None;
            return Ok(true);
        }
        if self.ack_deadline.is_none_or(|at| at > cx.now) {
            return Ok(false);
        }
        if qp.must_wait(cx.core).is_some() {
            // No packet can be repeated now, so no retry is used up.
            self.restart_ack_timer(qp, cx.now);
            return Ok(false);
        }
        self.ack_deadline = None;
        self.dammed = None;
        self.gone_back = GoneBack::default();
        self.window = Window::SMALL;
        cx.count(Counter::local_ack_timeout_err);
        self.retry(qp, cx, self.unacked, RetryCause::Timeout)?;
        Ok(true)
    }

    /// The READ or atomic that a response belongs to, if it is the expected response.
    fn match_response<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
    ) -> Result<Option<usize>, Failure> {
        let Some(position) = self.pending.oldest_awaiting() else {
            return Ok(None);
        };
        let Some(wr) = self.pending.get(position) else {
            return Ok(None);
        };
        let expected = wr.first.add(wr.responses);
        let ahead = psn.diff(expected);
        if ahead < 0 {
            return Ok(None); // a duplicate
        }
        // A response acknowledges every request before it.
        if ahead > 0 {
            self.acknowledge_until(qp, cx, expected)?;
            if self.go_back_for(expected) {
                cx.count(Counter::implied_nak_seq_err);
            }
            return Ok(None);
        }
        self.acknowledge_until(qp, cx, psn)?;
        Ok(self.pending.oldest_awaiting())
    }

    fn receive_atomic<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
    ) -> Result<(), Failure> {
        let psn = header.bth.psn;
        let Some(position) = self.match_response(qp, cx, psn)? else {
            return Ok(());
        };
        let Some(wr) = self.pending.get(position) else {
            return Ok(());
        };
        let Some(ack) = header.atomic_ack else {
            return Ok(());
        };
        if !wr.is_atomic() {
            return self.bad_response(position);
        }
        let bytes = ack.original.to_le_bytes();
        let placed = self.scatter(qp, cx, position, (0, 8), Payload::Bytes(&bytes));
        match placed {
            Ok(()) | Err(PlaceError::Lost) => self.accept_response(qp, cx, position, (psn, 1)),
            Err(error) => self.not_placed(qp, cx, (position, psn), error),
        }
    }

    /// Handles response data that was not written to the buffers of its work request.
    fn not_placed<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        (position, psn): (usize, Psn),
        error: PlaceError,
    ) -> Result<(), Failure> {
        match error {
            // The ACK timer sends the request again.
            PlaceError::Lost => Ok(()),
            PlaceError::Absent(absent, hint) => {
                let need = Need::new(absent, hint, psn.get());
                self.repeat_when_present(qp, cx, position, need)
            }
            PlaceError::Failed(failure) => self.fail_at(position, failure),
        }
    }

    /// Waits for a missing page of the buffer of a response. The request is sent again when the page is present.
    fn repeat_when_present<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        position: usize,
        need: Need,
    ) -> Result<(), Failure> {
        let psn = Psn::new(need.psn);
        if let Some(failure) = self.wait_or_fail(qp, cx, BuildError::Absent(need)) {
            return self.fail_at(position, failure);
        }
        self.gone_back.for_response(psn);
        self.rewind(psn);
        if cx.core.config.pitfalls.flood {
            self.page = None;
            self.rnr_deadline = Some(cx.now + FLOOD_INTERVAL);
        }
        Ok(())
    }

    fn receive_read<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Failure> {
        let psn = header.bth.psn;
        let Some(position) = self.match_response(qp, cx, psn)? else {
            return Ok(());
        };
        let Some(wr) = self.pending.get(position) else {
            return Ok(());
        };
        let offset = wr.responses * qp.mtu;
        let expected = (wr.read_len() - offset.min(wr.read_len())).min(qp.mtu);
        let last = wr.responses + 1 == wr.psns;
        let ends = header.bth.opcode.is_last_or_only();
        if wr.is_atomic() || payload.len() != expected as usize || last != ends {
            return self.bad_response(position);
        }
        match self.scatter(qp, cx, position, (offset, expected), payload) {
            Ok(()) => self.accept_response(qp, cx, position, (psn, 1)),
            Err(error) => self.not_placed(qp, cx, (position, psn), error),
        }
    }

    /// Accepts a run of READ responses as a whole. Returns false without a change if the run is not the one that is expected next or can't
    /// be placed yet.
    pub(crate) fn receive_run<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> Result<bool, Failure> {
        let psn = header.bth.psn;
        let last = psn.add(packets).prev();
        let awaiting = self.pending.oldest_awaiting();
        let Some((position, wr)) = awaiting.and_then(|at| Some((at, self.pending.get(at)?))) else {
            return Ok(false);
        };
        let expected = last.diff(self.high) < 0
            && wr.is_read()
            && psn == wr.first.add(wr.responses)
            && wr.responses + packets < wr.psns
            && header.bth.opcode.info().kind == OpKind::ReadResponse
            && !header.bth.opcode.is_last_or_only();
        let range = (wr.responses * qp.mtu, packets * qp.mtu);
        if !expected || self.scatter(qp, cx, position, range, payload).is_err() {
            return Ok(false);
        }
        self.acknowledge_until(qp, cx, psn)?;
        // The requests before it may be complete now.
        if let Some(position) = self.pending.oldest_awaiting() {
            self.accept_response(qp, cx, position, (last, packets))?;
        }
        Ok(true)
    }

    /// Copies response data to the buffers of the work request: `len` bytes at `offset` of the message.
    fn scatter<M: Dma>(
        &self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        position: usize,
        (offset, len): (u32, u32),
        payload: Payload<'_, M>,
    ) -> Result<(), PlaceError> {
        let Some(wr) = self.pending.get(position) else {
            return Ok(());
        };
        let mut segments = Segments::new();
        let range = MessageRange::to_receive(offset, len);
        self.gather(qp, cx.core, wr, range, &mut segments)
            .map_err(|error| match error {
                BuildError::Failed(failure) => PlaceError::Failed(failure),
                BuildError::Absent(need) => PlaceError::Absent(need.absent, need.hint),
            })?;
        cx.copy_payload(&segments, payload, &mut 0)?;
        Ok(())
    }

    /// Counts response packets up to PSN `last`.
    fn accept_response<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        position: usize,
        (last, packets): (Psn, u32),
    ) -> Result<(), Failure> {
        self.pending.answer(position, packets);
        self.acknowledge_until(qp, cx, last.next())
    }

    /// Handles a response that violates the protocol (IBTA 9.9.2.4.2, bad response).
    fn bad_response(&mut self, position: usize) -> Result<(), Failure> {
        self.fail_at(position, Failure::new(cqe::BAD_RESP_ERR, cqe::PROTOCOL))
    }

    /// Fails a work request, at once if it is the oldest. Those before it are complete, because responses arrive in
    /// order.
    fn fail_at(&mut self, position: usize, failure: Failure) -> Result<(), Failure> {
        if let Some(wr) = self.pending.get_mut(position) {
            wr.failed = Some(failure);
        }
        match position {
            0 => Err(failure),
            _ => Ok(()),
        }
    }
}
