//! Queue pairs.
//!
//! A QP consists of the state that its two halves share ([`Endpoint`]), a [`Requester`] with the send queue, a
//! [`Responder`] with the receive queue, and the state machine that connects them. The halves own their state and
//! return the event that the QP must handle: a frame, a failure of the send queue, a fatal error of the peer. The transports differ in
//! `requester/` and `responder/` (connections), `datagram.rs`, and `raw.rs` (raw Ethernet). `congested.rs` slows a connection down whose
//! path has congestion.

mod congested;
mod datagram;
pub(crate) mod endpoint;
pub(crate) mod fault_policy;
mod next_run;
pub(crate) mod page_wait;
mod peer;
mod raw;
pub(crate) mod ready;
mod receive;
mod receiver;
mod requester;
mod responder;
pub(crate) mod sge;
pub(crate) mod state;
mod state_counts;
mod tag;
pub(crate) mod types;
mod work_queue;
pub(crate) mod work_request;

use faultline_abi::qp::{self as abi, QpAttr};
use faultline_abi::{cqe, event};
use faultline_wire::bth::Psn;
use faultline_wire::mtu::PathMtu;

use crate::budget::{Budget, Held};
use crate::congestion::Congestion;
use crate::context::Context;
use crate::core::{Core, MAX_LOOSE_FRAMES};
use crate::diagnostic::{Diagnostic, KeyUse};
use crate::dma::Dma;
use crate::fault::Call;
use crate::flow_control::BlockedOn;
use crate::frame::{FrameKind, TxFrame};
use crate::gid_table::Source;
use crate::number::len32;
use crate::path::Path;
use crate::receive_queue::RecvRing;
use crate::references::References;
use crate::ring::Ring;
use crate::time::{Instant, earlier};

use endpoint::Endpoint;
pub use fault_policy::FaultPolicy;
use ready::Readiness;
use receiver::Parts;
pub(crate) use receiver::Receiver;
use requester::{Requester, Sent};
use responder::{Received, Responder};
pub use state_counts::StateCounts;
pub(crate) use types::QpConfig;
use types::{Failure, Fatal, FrameRoom};
pub use types::{Psns, QpType, State, StateCause};
pub(crate) use work_queue::WorkQueue;
use work_request::{DeviceRequest, SendWr};

/// A queue pair: its identity and attributes, a requester, a responder, and the state machine that connects them.
#[derive(Debug)]
pub(crate) struct Qp {
    /// Number, configuration and attributes.
    pub(crate) endpoint: Endpoint,
    /// Indirection tables, groups and flows that refer to it. It can't be destroyed while there are any.
    pub references: References,
    requester: Requester,
    responder: Responder,
    ready: Readiness,
    /// Congestion state of its path, from the first mark or CNP on.
    congestion: Option<Box<Congestion>>,
    /// The packet sent last was a reply.
    answered: bool,
    /// A flush continues in the next turn.
    is_flushing: bool,
    /// Earliest timer that the core has.
    timer_at: Option<Instant>,
    /// Its share of the budget, however idle it is.
    _held: Held,
}

impl Qp {
    /// A QP in RESET. `held` is its share of the budget, however idle it is.
    pub(crate) fn new(
        number: u32,
        config: QpConfig,
        fault_policy: FaultPolicy,
        (sq, rq): (Option<Ring>, Option<RecvRing>),
        held: Held,
    ) -> Self {
        Self {
            endpoint: Endpoint::new(number, config, fault_policy),
            references: References::default(),
            requester: Requester::new(sq),
            responder: Responder::new(rq),
            ready: Readiness::default(),
            congestion: None,
            answered: false,
            is_flushing: false,
            timer_at: None,
            _held: held,
        }
    }

    /// Its next PSNs.
    pub(crate) fn psns(&self) -> Psns {
        Psns {
            next_sent: self.requester.next_psn(),
            next_received: self.responder.expected_psn(),
        }
    }

    /// Send work requests that are posted and not completed.
    pub(crate) fn sends_pending(&self) -> u32 {
        self.requester.outstanding()
    }

    /// Whether it waits for a page.
    pub(crate) fn waits_for_page(&self) -> bool {
        self.requester.is_waiting() || self.responder.is_waiting()
    }

    /// State.
    pub(crate) fn state(&self) -> State {
        self.endpoint.state
    }

    /// All attributes, as QUERY_QP returns them.
    pub(crate) fn query(&self) -> QpAttr {
        let state = self.endpoint.state;
        let mut attr = self.endpoint.attr;
        attr.state = state as u8;
        attr.cur_state = state as u8;
        attr.sq_draining = u8::from(state == State::Sqd && !self.requester.is_idle());
        // IBTA 11.2.5.3: the PSNs that come next.
        if state >= State::Rtr {
            attr.rq_psn.set(self.responder.expected_psn().get());
        }
        if state >= State::Rts {
            attr.sq_psn.set(self.requester.next_psn().get());
        }
        attr
    }

    /// Handles a send doorbell. Returns false if the index is out of range.
    pub(crate) fn ring_send<M: Dma>(&mut self, cx: &mut Context<'_, M>, producer: u32) -> bool {
        let is_news = self.requester.is_news(producer);
        let requests = self.requester.announced_by(producer);
        if !self.requester.post(producer) {
            return false;
        }
        match self.endpoint.state {
            _ if !is_news => {}
            State::Rts => {
                cx.core.charge_doorbell(cx.now, requests);
                if !self.is_flushing {
                    let carried_out = self.requester.carry_out_at_once(&self.endpoint, cx);
                    self.check_send_queue(cx, carried_out);
                }
                self.wake(cx.core);
            }
            State::Err | State::Sqe => self.begin_flush(cx),
            // RESET, INIT, RTR: posting is the caller's mistake (IBTA 10.8.2). The request waits.
            _ => {}
        }
        true
    }

    /// Handles a receive doorbell, which software rings only if the record requests it.
    pub(crate) fn ring_receive<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        if self.endpoint.state == State::Err {
            self.flush(cx);
        }
    }

    /// Enters the ready queue, if it is not in it.
    #[inline]
    fn wake(&mut self, core: &mut Core) {
        self.ready.wake(core, self.endpoint.number);
    }

    /// Begins a wait of this QP, which is woken when the event happens.
    fn wait(&mut self, core: &mut Core, wait: BlockedOn) {
        if let BlockedOn::Priority(priority) = wait {
            let number = self.endpoint.number;
            self.ready.wait_for_priority(core, number, priority);
        }
    }

    /// Holds the QP until it is released. Returns false if it has no connection.
    pub(crate) fn hold(&mut self) -> bool {
        let is_connected = self.endpoint.config.kind.is_connected();
        self.endpoint.is_held |= is_connected;
        is_connected
    }

    /// It is not held any more.
    pub(crate) fn end_hold(&mut self, core: &mut Core) {
        if std::mem::take(&mut self.endpoint.is_held) {
            self.wake(core);
        }
    }

    /// The pause of a priority for which it has waited is over.
    pub(crate) fn pause_ended(&mut self, core: &mut Core, priority: u8) {
        self.ready.pause_ended(core, self.endpoint.number, priority);
    }

    /// Records that it was removed from the ready queue.
    #[inline]
    pub(crate) fn left_ready_queue(&mut self, core: &mut Core) {
        self.ready.left(core, self.endpoint.number);
    }

    /// Makes `frame` the next packet, or a run or train of as many as carry `most` bytes. Returns false if there is none. What this QP
    /// sent before has been delivered or copied.
    #[inline]
    pub(crate) fn poll_transmit<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        most: usize,
        frame: &mut TxFrame,
    ) -> bool {
        if self.is_flushing {
            self.flush(cx);
            // Work requests that were posted after the end of SQE wait for those that are flushed.
            if self.is_flushing && self.endpoint.state.sends() {
                return false;
            }
        }
        if self.responder.has_parked_to_deliver() {
            self.deliver_parked(cx);
        }
        if self.congestion.is_some() {
            return self.poll_congested(cx, most, frame);
        }
        let room = self.room(most);
        self.poll_packet(cx, room, frame)
    }

    /// True if the next poll would return no frame and complete no work request. The next poll of an unreliable queue
    /// pair completes the work request of this frame.
    #[inline(always)]
    pub(crate) fn has_sent_all(&self) -> bool {
        self.endpoint.is_reliable()
            && !self.is_flushing
            && self.congestion.is_none()
            && !self.responder.has_replies()
            && !self.responder.has_parked_to_deliver()
            && !self.requester.has_more(&self.endpoint)
    }

    /// The entry of the GID table from which its last packet is sent.
    #[inline]
    pub(crate) fn source(&self) -> Option<Source> {
        match &self.endpoint.path {
            Some(path) => Some(path.source()),
            None => self.requester.datagram_source(),
        }
    }

    /// Limits of a frame, given the most bytes of its payload.
    #[inline]
    fn room(&self, bytes: usize) -> FrameRoom {
        let bytes = len32(bytes);
        let packets = bytes.checked_div(self.endpoint.mtu);
        FrameRoom {
            run: packets.unwrap_or(1).max(1),
            train: bytes,
        }
    }

    /// The next reply or request.
    #[inline]
    fn poll_packet<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        room: FrameRoom,
        frame: &mut TxFrame,
    ) -> bool {
        if self.responder.has_replies()
            && let Some(wait) = self.endpoint.must_wait(cx.core)
        {
            self.wait(cx.core, wait);
            // Completions and local operations need no packet.
            return self.poll_send_queue(cx, room, frame);
        }
        // While a READ is answered, every other packet may be a request: a peer that reads does not keep this
        // side from sending.
        let own_turn = self.responder.is_answering_read() && std::mem::take(&mut self.answered);
        if own_turn && self.poll_send_queue(cx, room, frame) {
            return true;
        }
        if self.poll_reply(cx, room, frame) {
            self.answered = true;
            return true;
        }
        self.poll_send_queue(cx, room, frame)
    }

    /// Makes `frame` the next reply packet.
    #[inline(always)]
    fn poll_reply<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        room: FrameRoom,
        frame: &mut TxFrame,
    ) -> bool {
        match self.responder.poll(&self.endpoint, cx, room.run, frame) {
            Ok(found) => found,
            Err(fatal) => {
                self.fail_with(cx, fatal);
                // The next packet is the NAK with the reason. It needs no memory, so no page can be missing.
                let polled = self.responder.poll(&self.endpoint, cx, room.run, frame);
                polled.unwrap_or(false)
            }
        }
    }

    fn poll_send_queue<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        room: FrameRoom,
        frame: &mut TxFrame,
    ) -> bool {
        let (requester, qp) = (&mut self.requester, &self.endpoint);
        let polled = match qp.config.kind {
            QpType::Rc | QpType::Uc | QpType::XrcIni => requester.poll(qp, cx, room, frame),
            QpType::XrcTgt => return false,
            QpType::Ud | QpType::Gsi => requester.poll_datagram(qp, cx, frame),
            QpType::Raw => requester.poll_raw(qp, cx, frame),
        };
        self.sync_timer(cx.core);
        match self.check_send_queue(cx, polled) {
            Some(Sent::Frame) => return true,
            Some(Sent::Nothing) => self.check_drained(cx),
            Some(Sent::TurnOver) => self.ready.interrupt(),
            Some(Sent::Paused(wait)) => self.wait(cx.core, wait),
            None => {}
        }
        false
    }

    /// Ends the send queue if the requester reports a failure.
    #[inline]
    fn check_send_queue<M: Dma, T>(
        &mut self,
        cx: &mut Context<'_, M>,
        result: Result<T, Failure>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(failure) => {
                self.fail_request(cx, failure);
                None
            }
        }
    }

    /// Fails the oldest work request, and with it the send queue (IBTA 10.3.1.6, 10.3.1.7).
    fn fail_request<M: Dma>(&mut self, cx: &mut Context<'_, M>, failure: Failure) {
        let wr = self.requester.pop();
        if let Some(wr) = &wr {
            self.report_refused_key(cx, wr, failure);
            self.endpoint.complete_send(cx, wr, Some(failure));
        }
        if wr.is_some_and(|wr| matches!(wr.device, Some(DeviceRequest::Fin(_)))) {
            // It has no completion that could report this.
            self.fail_with_event(cx, event::QP_FATAL);
        } else if self.endpoint.is_reliable() {
            let status = failure.status;
            self.fail(cx, StateCause::SendFailed { status });
        } else {
            let status = failure.status;
            let cause = StateCause::SendFailed { status };
            self.endpoint.set_state(cx, State::Sqe, cause);
            self.begin_flush(cx);
        }
    }

    /// Flushes the send queue, and in ERR the receive queue (IBTA 10.3.1.6, 10.3.1.7).
    fn begin_flush<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        self.requester.begin_flush();
        self.flush(cx);
    }

    /// Continues the flush until the turn is over: the queues of a guest may be long, and others wait.
    fn flush<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let turn = cx.core.begin_turn();
        let qp = &self.endpoint;
        let is_over = self.requester.flush(qp, cx, turn)
            && (qp.state != State::Err || self.responder.flush_queue(qp, cx, turn));
        self.is_flushing = !is_over;
        if self.is_flushing {
            self.ready.yield_turn(cx.core, qp.number);
        }
    }

    /// Reports which local key has refused a work request.
    fn report_refused_key<M: Dma>(&self, cx: &mut Context<'_, M>, wr: &SendWr, failure: Failure) {
        if failure.status != cqe::LOC_PROT_ERR || failure.vendor == cqe::DMA {
            return;
        }
        let mut ranges = wr.key_ranges(&self.endpoint);
        if let Some(range) = ranges.find(|range| cx.core.mkeys.check(range).is_err()) {
            cx.diagnose(Diagnostic::KeyRefused {
                qpn: self.endpoint.number,
                key: range.key,
                va: range.va,
                by: KeyUse::Local,
            });
        }
    }

    /// In SQD: raises the event, if one was requested, when all requests that had begun are complete (IBTA 10.3.1.5).
    fn check_drained<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let qp = &mut self.endpoint;
        let is_idle = self.requester.is_idle() && !self.is_flushing;
        if qp.state == State::Sqd && is_idle && qp.attr.sqd_notify != 0 {
            qp.attr.sqd_notify = 0;
            cx.raise_async(event::SQ_DRAINED, qp.number);
        }
    }

    /// Handles a timer of this QP that is due, or that has moved since.
    pub(crate) fn handle_timer<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        self.timer_at = None;
        let congestion = self.congestion.as_mut();
        if congestion.is_some_and(|known| known.end_wait(cx.now)) {
            self.wake(cx.core);
        }
        if self.endpoint.state.sends() {
            let due = self.requester.handle_timer(&self.endpoint, cx);
            if self.check_send_queue(cx, due) == Some(true) {
                self.wake(cx.core);
            }
        }
        self.sync_timer(cx.core);
    }

    /// Ensures that the core calls when the requester's next deadline is due. The core may call earlier, so moving a
    /// deadline to a later time costs nothing.
    #[inline]
    fn sync_timer(&mut self, core: &mut Core) {
        let sending = self.congestion.as_ref().and_then(|known| known.deadline());
        if let Some(at) = earlier(self.requester.deadline(), sending)
            && self.timer_at.is_none_or(|known| at < known)
        {
            core.start_timer(at, self.timer_at.replace(at), self.endpoint.number);
        }
    }

    /// Removes everything that the core keeps of the queue pair, which is about to be destroyed.
    pub(crate) fn release(&mut self, core: &mut Core) {
        self.stop_waiting(core);
        self.ready.stop_waiting(core, self.endpoint.number);
        self.leave_final_acks(core);
        if let Some(at) = self.timer_at.take() {
            core.stop_timer(at, self.endpoint.number);
        }
    }

    /// Passes the outstanding acknowledgements to the core, which sends them after the end of the queue pair. The application may destroy
    /// the queue pair because it has seen the data, so the peer must get the acknowledgement.
    fn leave_final_acks(&mut self, core: &mut Core) {
        while core.loose_frames.len() < MAX_LOOSE_FRAMES
            && let Some(header) = self.responder.take_short_reply(&self.endpoint)
        {
            let frame = (FrameKind::Roce(header), self.source());
            core.loose_frames.push_back(frame);
        }
    }

    /// Reserves memory for the answers to `limit` READs and atomics. Returns false if the budget has none left.
    pub(crate) fn reserve_answers(&mut self, budget: &Budget, limit: u8) -> bool {
        self.responder.reserve_answers(budget, limit)
    }

    /// Ends all waits for pages, and drops the parked packets.
    fn stop_waiting(&mut self, core: &mut Core) {
        core.forget_queue(self.endpoint.number);
        self.requester.stop_waiting();
        self.responder.stop_waiting(&self.endpoint, core);
    }

    /// Handles the answer to a fault that this queue pair may wait for.
    pub(crate) fn fault_answered<M: Dma>(&mut self, cx: &mut Context<'_, M>, call: Call) {
        let qp = &self.endpoint;
        self.requester.fault_answered(qp, cx, call);
        self.sync_timer(cx.core);
        self.responder_fault_answered(cx, call);
        self.wake(cx.core);
    }

    /// Handles the end of the write-back with this number, which a FLUSH may wait for.
    pub(crate) fn persisted(&mut self, core: &mut Core, number: u64, well: bool) {
        self.responder.persisted(&self.endpoint, core, number, well);
        if self.responder.has_replies() {
            self.wake(core);
        }
    }

    /// Completes the tagged buffers of the queue pair as flushed: they belong to the SRQ, and the queue pair forgets
    /// its work.
    pub(crate) fn flush_tagged<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let qp = &self.endpoint;
        // A flush that is over has completed them.
        let is_flushed = qp.state == State::Err && !self.is_flushing;
        if !is_flushed && qp.tag_list(cx.core).is_some() {
            self.requester.flush_tagged(qp, cx);
            self.responder.flush_current(qp, cx);
        }
    }

    /// Changes attributes and state. `state.rs` has checked the command against the table.
    pub(crate) fn apply<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        change: &QpAttr,
        path: Option<Path>,
    ) {
        let mask = change.mask.get();
        let old = self.endpoint.state;
        state::merge(&mut self.endpoint.attr, change);
        if let Some(path) = path {
            self.endpoint.path = Some(path);
            self.endpoint.forget_peer();
            cx.core.peers.forget(self.endpoint.number);
        }
        // A new path keeps a UDP source port that was requested.
        if mask & (abi::QP_ATTR_UDP_SPORT | abi::QP_ATTR_AV | abi::QP_ATTR_DEST_QPN) != 0
            && let Some(path) = &mut self.endpoint.path
        {
            let (local, attr) = (self.endpoint.number, &self.endpoint.attr);
            path.set_udp_port(attr.udp_sport.get(), local, attr.dest_qpn.get());
        }
        if mask & abi::QP_ATTR_PATH_MTU != 0
            && let Ok(mtu) = PathMtu::from_code(change.path_mtu)
        {
            self.endpoint.mtu = len32(mtu.bytes());
        }
        if mask & abi::QP_ATTR_RQ_PSN != 0 {
            self.responder
                .set_expected_psn(Psn::new(change.rq_psn.get()));
        }
        if mask & abi::QP_ATTR_SQ_PSN != 0 {
            self.requester.set_next_psn(Psn::new(change.sq_psn.get()));
        }
        self.requester
            .set_retries(self.endpoint.attr.retry_cnt, self.endpoint.attr.rnr_retry);
        if mask & abi::QP_ATTR_STATE == 0 {
            return;
        }
        let Some(new) = State::from_abi(change.state) else {
            return;
        };
        self.enter(cx, old, new);
    }

    /// Enters another state; the transition has been checked.
    pub(crate) fn enter<M: Dma>(&mut self, cx: &mut Context<'_, M>, old: State, new: State) {
        match new {
            State::Err => self.fail(cx, StateCause::Command),
            State::Reset => {
                self.stop_waiting(cx.core);
                cx.core.forget_delayed_completions(self.endpoint.number);
                self.flush_tagged(cx);
                self.leave_final_acks(cx.core);
                self.endpoint
                    .set_state(cx, State::Reset, StateCause::Command);
                self.reset(cx.core, cx.mem);
            }
            State::Rts => {
                self.endpoint.set_state(cx, State::Rts, StateCause::Command);
                if old == State::Rtr {
                    self.responder.set_established();
                }
                self.wake(cx.core);
            }
            State::Sqd => {
                self.endpoint.set_state(cx, State::Sqd, StateCause::Command);
                self.check_drained(cx);
            }
            other => self.endpoint.set_state(cx, other, StateCause::Command),
        }
    }

    /// Clears all state except the configuration of CREATE_QP.
    fn reset<M: Dma>(&mut self, core: &Core, mem: &M) {
        self.endpoint.reset(core.config.fault_policy);
        self.requester.reset();
        self.responder.reset(mem);
        self.is_flushing = false;
        self.congestion = None;
    }
}

impl Receiver for Qp {
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
        self.begin_flush(cx);
        if self.responder.has_replies() {
            self.wake(cx.core);
        }
        if self.endpoint.config.srqn.is_some() {
            cx.raise_async(event::LAST_WQE_REACHED, self.endpoint.number);
        }
    }

    #[inline]
    fn check_received<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        received: Result<Received, Fatal>,
    ) -> bool {
        match received {
            Ok(Received::Done | Received::Held) => {}
            Ok(Received::Rendezvous(slot)) => {
                self.requester.add_rendezvous(slot);
                self.wake(cx.core);
            }
            Err(fatal) => self.fail_with(cx, fatal),
        }
        if self.responder.has_replies() {
            self.wake(cx.core);
        }
        received != Ok(Received::Held)
    }
}
