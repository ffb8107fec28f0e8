//! An iWARP queue pair: its states, and the events that change them.
//!
//! | state | verbs of the RDMA Consortium | connection |
//! |---|---|---|
//! | RESET, INIT | Idle | none |
//! | RTR | Idle, connecting | is being opened; the setup request is on its way |
//! | RTS | RTS | carries FPDUs |
//! | SQD | Closing | both ends close in order |
//! | SQE | Terminate | a Terminate message is on its way |
//! | ERR | Error | has ended, or ends |

use faultline_abi::event;
use faultline_abi::iwarp::{ABORTED, REJECTED, SETUP, TIMED_OUT};
use faultline_abi::qp::{QP_ATTR_STATE, QpAttr};
use faultline_tcp::{Config as TcpConfig, Connection, Segment, Start};
use faultline_wire::Ethernet;
use faultline_wire::ddp::DdpTarget;
use faultline_wire::mpa::MpaRole;
use faultline_wire::rdmap::{RdmapOpcode, TerminateCode};

use super::arrived::Arrived;
use super::connections::{Owner, to_tcp};
use super::deliver::{Delivery, Inbound, Phase};
use super::page_wait::PageOf;
use super::path::StreamPath;
use super::receives::Receives;
use super::refusal::{End, Refused};
use super::send::{Framing, Octets, Sender};
use super::setup::Offer;
use super::stream::{Close, Stream};
use super::work::SendQueue;
use crate::budget::Held;
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Call;
use crate::frame::Frame;
use crate::gid_table::Source;
use crate::payload::Payload;
use crate::qp::endpoint::Endpoint;
use crate::qp::fault_policy::FaultPolicy;
use crate::qp::page_wait::LOST_BUFFER;
use crate::qp::ready::Readiness;
use crate::qp::state;
use crate::qp::types::{Failure, QpConfig, State, StateCause};
use crate::receive_queue::RecvRing;
use crate::references::References;
use crate::ring::Ring;
use crate::time::{Instant, Nanos};

/// Longest time from CONNECT to the reply of the peer, whose driver has as long for its answer.
const CONNECT_TIMEOUT: Nanos =
    Nanos::from_millis(faultline_abi::iwarp::REQUEST_TIMEOUT_MS as u64 + 10_000);
/// A time limit of the setup or the close that ends while the ingress is stopped is longer by this: the answer may wait there.
const DEAF_TIMEOUT: Nanos = Nanos::from_millis(500);
/// Time after which RTR is repeated if the peer has sent nothing. `siw` of Linux does not notice one that arrives before it has begun to wait.
const RTR_INTERVAL: Nanos = Nanos::from_millis(1_000);
/// Longest time in which a peer closes after this end.
pub(super) const CLOSE_TIMEOUT: Nanos = Nanos::from_millis(10_000);

/// Properties of a new connection.
#[derive(Debug)]
pub(crate) struct StreamConfig {
    pub path: StreamPath,
    /// What this end offers.
    pub own: Offer,
}

/// An iWARP queue pair.
#[derive(Debug)]
pub(crate) struct StreamQp {
    /// Number, configuration and attributes.
    pub endpoint: Endpoint,
    /// Objects that refer to it: none do.
    pub references: References,
    pub(super) work: SendQueue,
    pub(super) receives: Receives,
    pub(super) stream: Option<Box<Stream>>,
    pub(super) ready: Readiness,
    pub(super) is_flushing: bool,
    /// The event LAST_WQE_REACHED follows the last completion.
    has_last_receive: bool,
    /// Earliest timer that the core has.
    timer_at: Option<Instant>,
    _held: Held,
}

impl StreamQp {
    /// A queue pair in RESET. `held` is its share of the budget.
    pub(crate) fn new(
        number: u32,
        config: QpConfig,
        fault_policy: FaultPolicy,
        (sq, rq): (Ring, Option<RecvRing>),
        held: Held,
    ) -> Self {
        Self {
            endpoint: Endpoint::new(number, config, fault_policy),
            references: References::default(),
            work: SendQueue::new(sq),
            receives: Receives::new(rq),
            stream: None,
            ready: Readiness::default(),
            is_flushing: false,
            has_last_receive: false,
            timer_at: None,
            _held: held,
        }
    }

    /// All attributes, as QUERY_QP returns them.
    pub(crate) fn query(&self) -> QpAttr {
        let state = self.endpoint.state;
        let mut attr = self.endpoint.attr;
        attr.state = state as u8;
        attr.cur_state = state as u8;
        attr.sq_draining = u8::from(state == State::Sqd && !self.work.is_idle());
        attr
    }

    /// Way, properties of both ends, and end of its connection.
    pub(crate) fn connection(&self) -> Option<(&StreamPath, &Offer, &Offer, Option<Close>)> {
        let stream = self.stream.as_deref()?;
        let close = stream.is_reported.then(|| stream.closed());
        Some((&stream.path, &stream.own, &stream.peer, close))
    }

    /// True if a frame is from the side of its peer: in the VLAN of its connection.
    pub(crate) fn is_way_back(&self, ethernet: &Ethernet) -> bool {
        let stream = self.stream.as_deref();
        stream.is_some_and(|stream| stream.path.is_way_back(ethernet))
    }

    /// The entry of the GID table from which its segments are sent.
    pub(crate) fn source(&self) -> Option<Source> {
        Some(self.stream.as_deref()?.path.source)
    }

    /// True if a segment with the ends of its connection is for it: not if only TIME-WAIT is left, and the segment is of another one.
    pub(crate) fn receives(&self, segment: &Segment) -> bool {
        let stream = self.stream.as_deref();
        stream.is_some_and(|stream| stream.connection.receives(segment))
    }

    /// True if its connection has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.stream.as_deref().is_none_or(Stream::is_over)
    }

    /// Send work requests that are posted and not completed.
    pub(crate) fn sends_pending(&self) -> u32 {
        self.work.outstanding()
    }

    /// Whether it waits for a page.
    pub(crate) fn waits_for_page(&self) -> bool {
        let stream = self.stream.as_deref();
        stream.is_some_and(|stream| stream.page.is_some() || stream.inbound.page.is_some())
    }

    /// Handles a send doorbell. Returns false if the index is out of range.
    pub(crate) fn ring_send<M: Dma>(&mut self, cx: &mut Context<'_, M>, producer: u32) -> bool {
        let is_news = self.work.is_news(producer);
        let requests = self.work.announced_by(producer);
        if !self.work.post(producer) {
            return false;
        }
        match self.endpoint.state {
            _ if !is_news => {}
            State::Rts => {
                cx.core.charge_doorbell(cx.now, requests);
                self.wake(cx.core);
            }
            State::Err => self.begin_flush(cx),
            // The request waits until the queue pair is connected, or is flushed.
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

    /// Opens a connection.
    pub(crate) fn connect<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        config: StreamConfig,
        tcp: TcpConfig,
        start: Start,
    ) {
        let ends = config.path.tuple;
        let connection = Connection::connect(tcp, ends.local_port, ends.remote_port, start);
        let setup = config.own.to_frame(MpaRole::Request);
        let inbound = Inbound::new(Phase::Reply, config.path.mss());
        self.begin_stream(cx, config, connection, inbound, &setup);
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.is_active = true;
            stream.deadline = Some(cx.now + CONNECT_TIMEOUT);
        }
        self.endpoint.set_state(cx, State::Rtr, StateCause::Command);
        self.progress(cx);
    }

    /// Accepts a request: its connection becomes that of this queue pair.
    pub(crate) fn accept<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        config: StreamConfig,
        connection: Connection,
        peer: Offer,
    ) {
        let setup = config.own.to_frame(MpaRole::Reply);
        let inbound = Inbound::new(Phase::Fpdus, config.path.mss());
        self.begin_stream(cx, config, connection, inbound, &setup);
        if let Some(stream) = self.stream.as_deref_mut().filter(|_| peer.markers) {
            stream.sender.insert_markers();
        }
        self.established(cx, peer);
        self.progress(cx);
    }

    fn begin_stream<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        config: StreamConfig,
        connection: Connection,
        inbound: Inbound,
        setup: &[u8],
    ) {
        let number = self.endpoint.number;
        if let Some(connections) = &mut cx.core.connections {
            connections.set_owner(&config.path.tuple, Owner::QueuePair(number));
        }
        let mut stream = Box::new(Stream {
            path: config.path,
            connection,
            inbound,
            sender: Sender::default(),
            own: config.own,
            peer: Offer::default(),
            is_active: false,
            page: None,
            deadline: None,
            close: None,
            held: cx.core.budget.none(),
            is_reported: false,
            was_open: false,
        });
        let octets = Octets::from_slice(setup);
        stream.push_own(&cx.core.budget, cx.now, Framing::Setup, octets);
        stream.account();
        self.stream = Some(stream);
    }

    /// Both ends have sent their setup frames.
    fn established<M: Dma>(&mut self, cx: &mut Context<'_, M>, peer: Offer) {
        let Some(stream) = self.stream.as_deref_mut() else {
            return;
        };
        let (ird, ord) = agreed(&stream.own, &peer);
        self.endpoint.attr.max_rd_atomic = u8::try_from(ord).unwrap_or(u8::MAX);
        self.endpoint.attr.max_dest_rd_atomic = u8::try_from(ird).unwrap_or(u8::MAX);
        stream.deadline = None;
        stream.was_open = true;
        let sends_rtr = stream.is_active && stream.own.rtr_write && peer.rtr_write;
        stream.peer = peer;
        if sends_rtr {
            stream.deadline = Some(cx.now + RTR_INTERVAL);
            send_rtr(stream, cx);
        }
        self.endpoint.set_state(cx, State::Rts, StateCause::Command);
        cx.raise_connection(event::CONNECTED, self.endpoint.number, 0);
    }

    /// Receives a segment of its connection. Returns false if it has stopped the ingress and must be held.
    pub(crate) fn receive<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        arrived: &Arrived,
        frame: &Payload<'_, M>,
    ) -> bool {
        let traffic = &mut self.endpoint.traffic;
        traffic.rx_packets = traffic.rx_packets.wrapping_add(1);
        let octets = u64::from(arrived.segment.len);
        traffic.rx_bytes = traffic.rx_bytes.wrapping_add(octets);
        let is_stalled = self.deliver(cx, arrived.data(frame), Some(arrived));
        self.progress(cx);
        !is_stalled
    }

    /// True if a segment is of its connection.
    fn is_of(&self, arrived: &Arrived) -> bool {
        let stream = self.stream.as_deref();
        stream.is_some_and(|stream| stream.path.tuple == arrived.tuple)
    }

    /// Receives a segment that has waited in front of the NIC.
    pub(crate) fn receive_again<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        frame: Frame<'_, M>,
    ) -> bool {
        let head = frame.payload.head().unwrap_or_default();
        match Arrived::parse(&head, frame.payload.len()) {
            Some(arrived) if self.is_of(&arrived) => self.receive(cx, &arrived, &frame.payload),
            // The queue pair has another connection since.
            _ => true,
        }
    }

    /// Passes a segment, or (`None`) octets that are kept, to the connection. Returns true if the ingress has stopped.
    pub(super) fn deliver<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        data: Payload<'_, M>,
        arrived: Option<&Arrived>,
    ) -> bool {
        let Some(stream) = self.stream.as_deref_mut() else {
            return false;
        };
        let now = to_tcp(cx.now);
        let turn = cx.core.begin_turn();
        stream.inbound.waits_for_turn = false;
        let connection = &mut stream.connection;
        let mut delivery = Delivery {
            qp: &self.endpoint,
            cx,
            data,
            max_payload: connection.max_payload(),
            inbound: &mut stream.inbound,
            sender: &mut stream.sender,
            work: &mut self.work,
            receives: &mut self.receives,
            turn,
            pushed: 0,
            reply: None,
            end: None,
            is_stalled: false,
        };
        match arrived {
            Some(arrived) => {
                if connection.receive(&arrived.segment, now, &mut delivery) {
                    stream.path.follow_peer(arrived.ethernet.src);
                }
                if delivery.inbound.has_more(connection.taken()) {
                    connection.resume(now, &mut delivery);
                }
            }
            None => connection.resume(now, &mut delivery),
        }
        let Delivery {
            pushed,
            reply,
            end,
            is_stalled,
            ..
        } = delivery;
        if pushed > 0 {
            connection.send(pushed, now);
        }
        if let Some(reply) = reply {
            self.replied(cx, reply);
        }
        match end {
            None => {}
            Some(End::BadSetup) => self.abort(cx, SETUP),
            Some(End::Refused(refused)) => self.terminate(cx, &refused),
            Some(End::Terminated(code)) => self.terminated(cx, code),
        }
        is_stalled
    }

    /// The reply to the setup request has arrived.
    fn replied<M: Dma>(&mut self, cx: &mut Context<'_, M>, reply: Offer) {
        if !reply.reject {
            self.established(cx, reply);
            return;
        }
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.peer = reply;
        }
        self.abort(cx, REJECTED);
    }

    /// Does what an event of the connection has made possible: completions, changes of state, timers.
    pub(super) fn progress<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        if let Some(stream) = self.stream.as_deref_mut() {
            let acknowledged = stream.connection.acknowledged();
            stream.page.take_if(|page| page.until <= acknowledged);
            stream.sender.release(&cx.core.budget, acknowledged);
            stream.account();
            // Its completions come before the end of the connection.
            let retired = self.work.retire(&self.endpoint, cx, acknowledged);
            if let Err(failure) = retired {
                self.fail_request(cx, failure);
            }
        }
        self.check_end(cx);
        self.sync_timer(cx.core);
        if self.stream.is_some() {
            self.wake(cx.core);
        }
    }

    /// Fails the oldest work request, and with it the connection.
    pub(super) fn fail_request<M: Dma>(&mut self, cx: &mut Context<'_, M>, failure: Failure) {
        if let Some(request) = self.work.pop(&cx.core.budget) {
            self.work
                .complete_failed(&self.endpoint, cx, &request, failure);
        }
        let code = TerminateCode::RDMAP_LOCAL_CATASTROPHIC;
        self.terminate(cx, &Refused::new(code, &[], 0));
    }

    /// Goes to the error state and flushes both queues.
    pub(super) fn fail<M: Dma>(&mut self, cx: &mut Context<'_, M>, cause: StateCause) {
        if self.endpoint.state == State::Err {
            return;
        }
        self.endpoint.set_state(cx, State::Err, cause);
        self.receives.notify_posted(cx.mem);
        self.stop_waiting(cx.core);
        self.has_last_receive = self.endpoint.config.srqn.is_some();
        self.begin_flush(cx);
    }

    /// The error state with an asynchronous event that says why.
    pub(crate) fn fail_with_event<M: Dma>(&mut self, cx: &mut Context<'_, M>, kind: u8) {
        if self.endpoint.state == State::Err {
            return;
        }
        self.abort(cx, ABORTED);
        self.endpoint.report_failure(cx, kind);
    }

    pub(super) fn begin_flush<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        self.work.begin_flush();
        self.flush(cx);
    }

    /// Flushes the send queue, and in ERR the receive queue, until the turn is over.
    pub(super) fn flush<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let turn = cx.core.begin_turn();
        let qp = &self.endpoint;
        let is_over = self.work.flush(qp, cx, turn)
            && (qp.state != State::Err || self.receives.flush(qp, cx, turn));
        self.is_flushing = !is_over;
        if self.is_flushing {
            self.ready.yield_turn(cx.core, qp.number);
        } else if std::mem::take(&mut self.has_last_receive) {
            cx.raise_async(event::LAST_WQE_REACHED, qp.number);
        }
    }

    /// Ends all waits for pages.
    fn stop_waiting(&mut self, core: &mut Core) {
        core.forget_queue(self.endpoint.number);
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.page = None;
            stream.inbound.page = None;
            stream.inbound.phase = Phase::Ended;
        }
    }

    /// Handles a timer of this queue pair that is due, or that has moved since.
    pub(crate) fn handle_timer<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        self.timer_at = None;
        // Segments of the peer, and PAUSE for its port, wait for a page of this end.
        let is_deaf = cx.core.ingress.holds_frames();
        if let Some(stream) = self.stream.as_deref_mut() {
            if is_deaf {
                stream.connection.wait_longer(to_tcp(cx.now));
                let earliest = cx.now + DEAF_TIMEOUT;
                stream.deadline = stream.deadline.map(|at| at.max(earliest));
            }
            stream.connection.handle_deadline(to_tcp(cx.now));
            if stream.deadline.is_some_and(|at| at <= cx.now) {
                stream.deadline = None;
                match self.endpoint.state {
                    State::Rts if stream.inbound.has_fpdu => {}
                    State::Rts => send_rtr(stream, cx),
                    // The Terminate message may still arrive.
                    State::Sqe => {
                        stream.deadline = Some(cx.now + CLOSE_TIMEOUT);
                        self.fail(cx, StateCause::Completion);
                    }
                    _ => self.abort(cx, TIMED_OUT),
                }
            }
        }
        self.progress(cx);
    }

    /// Ensures that the core calls when the next deadline is due.
    pub(super) fn sync_timer(&mut self, core: &mut Core) {
        let next = self.stream.as_deref().and_then(Stream::next_deadline);
        if let Some(at) = next
            && self.timer_at.is_none_or(|known| at < known)
        {
            core.start_timer(at, self.timer_at.replace(at), self.endpoint.number);
        }
    }

    /// Handles the answer to a fault that this queue pair may wait for.
    pub(crate) fn fault_answered<M: Dma>(&mut self, cx: &mut Context<'_, M>, call: Call) {
        let Some(stream) = self.stream.as_deref_mut() else {
            return;
        };
        let of_send = stream.page.take_if(|page| page.token == call.token);
        let (inbound, taken) = (&mut stream.inbound, stream.connection.taken());
        let is_held = inbound.page.take_if(|token| *token == call.token).is_some();
        // The peer sends it again.
        let is_refused = inbound.refused == Some((taken, call.token));
        // Both directions may have waited for the same page.
        if let Some(page) = of_send.filter(|_| !call.repaired) {
            self.data_lost(cx, page.of);
        }
        if !call.repaired && (is_held || is_refused) {
            // Memory of a receive, or memory that the peer has named.
            let code = match self.receives.fail_current(&self.endpoint, cx, LOST_BUFFER) {
                true => TerminateCode::RDMAP_LOCAL_CATASTROPHIC,
                false => TerminateCode::RDMAP_ACCESS,
            };
            self.terminate(cx, &Refused::new(code, &[], 0));
        } else if is_held {
            self.deliver(cx, Payload::Bytes(&[]), None);
        }
        self.progress(cx);
    }

    /// A page of data that is to leave will not become present.
    fn data_lost<M: Dma>(&mut self, cx: &mut Context<'_, M>, of: PageOf) {
        let code = match of {
            PageOf::Landing => {
                self.work.fail_newest(LOST_BUFFER);
                return;
            }
            PageOf::Data(index) => {
                if let Some(request) = self.work.get_mut(index) {
                    request.wr.failed = Some(LOST_BUFFER);
                }
                TerminateCode::RDMAP_LOCAL_CATASTROPHIC
            }
            PageOf::Source => TerminateCode::RDMAP_ACCESS,
        };
        self.terminate_unsent(cx, code);
    }

    /// Changes attributes and state. The command has been checked.
    pub(crate) fn apply<M: Dma>(&mut self, cx: &mut Context<'_, M>, change: &QpAttr, to: State) {
        let from = self.endpoint.state;
        state::merge(&mut self.endpoint.attr, change);
        if change.mask.get() & QP_ATTR_STATE == 0 {
            return;
        }
        match to {
            State::Reset => self.reset(cx),
            State::Err => self.abort(cx, ABORTED),
            State::Sqd if from == State::Rts => {
                self.close(cx);
                self.progress(cx);
            }
            State::Init if from == State::Reset => {
                self.endpoint.set_state(cx, to, StateCause::Command);
            }
            _ => {}
        }
    }

    fn reset<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        self.reset_connection(cx.core, cx.now, ABORTED);
        self.stop_waiting(cx.core);
        cx.core.forget_delayed_completions(self.endpoint.number);
        self.endpoint
            .set_state(cx, State::Reset, StateCause::Command);
        self.endpoint.reset(cx.core.config.fault_policy);
        self.stream = None;
        self.work.reset();
        self.receives.reset(cx.mem);
        self.is_flushing = false;
        self.has_last_receive = false;
    }

    /// Removes everything that the core keeps of the queue pair, which is about to be destroyed.
    pub(crate) fn release(&mut self, core: &mut Core, now: Instant) {
        self.reset_connection(core, now, ABORTED);
        self.stop_waiting(core);
        self.ready.stop_waiting(core, self.endpoint.number);
        if let Some(at) = self.timer_at.take() {
            core.stop_timer(at, self.endpoint.number);
        }
    }

    fn wake(&mut self, core: &mut Core) {
        self.ready.wake(core, self.endpoint.number);
    }

    /// Records that it was removed from the ready queue.
    pub(crate) fn left_ready_queue(&mut self, core: &mut Core) {
        self.ready.left(core, self.endpoint.number);
    }

    /// The pause of a priority for which it has waited is over.
    pub(crate) fn pause_ended(&mut self, core: &mut Core, priority: u8) {
        self.ready.pause_ended(core, self.endpoint.number, priority);
    }

    /// It is not held any more.
    pub(crate) fn end_hold(&mut self, core: &mut Core) {
        if std::mem::take(&mut self.endpoint.is_held) {
            self.wake(core);
        }
    }
}

/// Sends the WRITE without data that lets the passive side send (RFC 6581 section 9).
fn send_rtr<M: Dma>(stream: &mut Stream, cx: &Context<'_, M>) {
    let framing = Framing::Ddp {
        opcode: RdmapOpcode::Write,
        target: DdpTarget::Tagged { stag: 0, offset: 0 },
    };
    stream.push_own(&cx.core.budget, cx.now, framing, Octets::new());
}

/// READs that this end serves, and that it may request: the smaller of both ends' numbers, as far as the peer has said them.
pub(crate) fn agreed(own: &Offer, peer: &Offer) -> (u16, u16) {
    let of = |own: Option<u16>, peer: Option<u16>| {
        let own = own.unwrap_or(0);
        peer.map_or(own, |peer| own.min(peer))
    };
    (of(own.ird, peer.ord), of(own.ord, peer.ird))
}
