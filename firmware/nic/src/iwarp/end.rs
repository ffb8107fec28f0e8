//! The end of a connection: Terminate messages, closes in order, resets, and what the driver learns.

use faultline_abi::admin::Counter;
use faultline_abi::iwarp::{ABORTED, SETUP, TERMINATED, TERMINATED_BY_PEER};
use faultline_abi::{cqe, event};
use faultline_wire::ddp::queue;
use faultline_wire::rdmap::{RdmapOpcode, TerminateCode};

use super::connections::{Owner, to_tcp};
use super::deliver::Phase;
use super::kept::Kept;
use super::qp::{CLOSE_TIMEOUT, StreamQp};
use super::refusal::{Refused, counter_of, status_of};
use super::send::Framing;
use super::stream::{Close, Stream};
use crate::context::Context;
use crate::core::Core;
use crate::diagnostic::Diagnostic;
use crate::dma::Dma;
use crate::qp::types::{Failure, State, StateCause};
use crate::time::{Instant, Nanos};

/// Longest time in which a peer acknowledges a Terminate message.
const TERMINATE_TIMEOUT: Nanos = Nanos::from_millis(2_000);

impl StreamQp {
    /// Sends a Terminate message and closes. It follows the last FPDU that has begun to leave; everything behind that
    /// FPDU is discarded. If this end has sent a FIN, it cannot send the message, and resets the connection.
    pub(super) fn terminate<M: Dma>(&mut self, cx: &mut Context<'_, M>, refused: &Refused) {
        let Some(stream) = self.stream.as_deref_mut() else {
            return;
        };
        if stream.close.is_some() {
            return;
        }
        stream.inbound.phase = Phase::Ended;
        let (now, budget) = (cx.now, &cx.core.budget);
        let end = stream.sender.sent_fpdus();
        if stream.connection.retract(end, to_tcp(now)) {
            stream.sender.truncate(budget, end);
            self.work.forget_unsent(end);
            stream.page = None;
        }
        let target = stream.sender.untagged(queue::TERMINATE, 0);
        let opcode = RdmapOpcode::Terminate;
        let framing = Framing::Ddp { opcode, target };
        if !stream.push_own(budget, now, framing, refused.message()) {
            self.abort(cx, ABORTED);
            return;
        }
        let code = refused.code;
        stream.close = Some(Close {
            reason: TERMINATED,
            code: Some(code),
        });
        stream.connection.close(to_tcp(now));
        stream.deadline = Some(now + TERMINATE_TIMEOUT);
        if let Some(counter) = counter_of(code) {
            cx.count(counter);
        }
        let qpn = self.endpoint.number;
        cx.diagnose(Diagnostic::TerminateSent { qpn, code });
        self.endpoint
            .set_state(cx, State::Sqe, StateCause::Completion);
        self.receives.notify_posted(cx.mem);
    }

    /// Ends the stream because octets that are to leave cannot be read. If that has begun, these octets were sent before, and an
    /// acknowledgment may be on its way; if none comes, the time limit of the close ends the connection.
    pub(super) fn terminate_unsent<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        code: TerminateCode,
    ) {
        let has_begun = |stream: &Stream| stream.close.is_some();
        if !self.stream.as_deref().is_some_and(has_begun) {
            self.terminate(cx, &Refused::new(code, &[], 0));
        }
    }

    /// The peer has sent a Terminate message.
    pub(super) fn terminated<M: Dma>(&mut self, cx: &mut Context<'_, M>, code: TerminateCode) {
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.close.get_or_insert(Close {
                reason: TERMINATED_BY_PEER,
                code: Some(code),
            });
            stream.connection.close(to_tcp(cx.now));
            stream.deadline = Some(cx.now + CLOSE_TIMEOUT);
        }
        let qpn = self.endpoint.number;
        cx.diagnose(Diagnostic::TerminateReceived { qpn, code });
        let status = status_of(code);
        match status {
            cqe::REM_ACCESS_ERR => cx.count(Counter::req_remote_access_errors),
            cqe::REM_INV_REQ_ERR => cx.count(Counter::req_remote_invalid_request),
            _ => {}
        }
        if let Some(stream) = self.stream.as_deref() {
            let acknowledged = stream.connection.acknowledged();
            // A failed one is flushed below.
            let _ = self.work.retire(&self.endpoint, cx, acknowledged);
        }
        // The oldest work request stands for the one that the peer has refused, which may be complete.
        if let Some(request) = self.work.pop(&cx.core.budget) {
            let refused = Failure::new(status, cqe::NONE);
            self.work
                .complete_failed(&self.endpoint, cx, &request, refused);
        }
        self.fail(cx, StateCause::Completion);
    }

    /// Ends the connection abruptly, and tells the driver.
    pub(super) fn abort<M: Dma>(&mut self, cx: &mut Context<'_, M>, reason: u8) {
        self.reset_connection(cx.core, cx.now, reason);
        self.fail(cx, StateCause::Command);
        self.report_end(cx);
    }

    /// Ends the connection abruptly, with a reset to the peer.
    pub(super) fn reset_connection(&mut self, core: &mut Core, now: Instant, reason: u8) {
        let owner = Owner::QueuePair(self.endpoint.number);
        let (Some(stream), Some(connections)) = (self.stream.as_deref_mut(), &mut core.connections)
        else {
            return;
        };
        stream.close.get_or_insert(Close { reason, code: None });
        stream.connection.abort();
        stream.deadline = None;
        while let Some(transmit) = stream.connection.poll_transmit(to_tcp(now), |_, _| 0) {
            connections.send(&stream.path, &transmit, &[]);
        }
        connections.remove_owner(&stream.path.tuple, owner);
    }

    /// Acts on the end of the connection, or of the stream that arrives.
    pub(super) fn check_end<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let Some(stream) = self.stream.as_deref_mut() else {
            return;
        };
        let is_over = stream.is_over();
        let acknowledged = stream.connection.acknowledged() >= stream.sender.pushed();
        let finished = stream.connection.is_finished_by_peer();
        let state = self.endpoint.state;
        if is_over {
            // TIME-WAIT has a time of its own.
            stream.deadline = None;
            let owner = Owner::QueuePair(self.endpoint.number);
            let is_closed = stream.connection.state() == faultline_tcp::State::Closed;
            if let Some(connections) = cx.core.connections.as_mut().filter(|_| is_closed) {
                connections.remove_owner(&stream.path.tuple, owner);
            }
            self.fail(cx, StateCause::Completion);
            self.report_end(cx);
        } else if state == State::Sqe && acknowledged {
            stream.deadline = Some(cx.now + CLOSE_TIMEOUT);
            self.fail(cx, StateCause::Completion);
        } else if finished && state == State::Rtr {
            self.abort(cx, SETUP);
        } else if finished && state == State::Rts {
            self.peer_closed(cx);
        }
    }

    /// The peer has closed in order: so does this end.
    fn peer_closed<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        self.close(cx);
        self.begin_flush(cx);
        cx.raise_connection(event::PEER_CLOSED, self.endpoint.number, 0);
    }

    /// Closes in order.
    pub(super) fn close<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.connection.close(to_tcp(cx.now));
            stream.deadline = Some(cx.now + CLOSE_TIMEOUT);
        }
        self.endpoint.set_state(cx, State::Sqd, StateCause::Command);
    }

    /// Tells the driver once that the connection has ended.
    fn report_end<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let Some(stream) = self.stream.as_deref_mut() else {
            return;
        };
        if std::mem::replace(&mut stream.is_reported, true) {
            return;
        }
        stream.sender.forget_copies();
        stream.inbound.kept = Kept::default();
        let kind = match stream.was_open {
            true => event::CONNECTION_CLOSED,
            false => event::CONNECT_FAILED,
        };
        let (qpn, reason) = (self.endpoint.number, stream.closed().reason);
        cx.diagnose(Diagnostic::ConnectionEnded { qpn, reason });
        cx.raise_connection(kind, qpn, reason.into());
    }
}
