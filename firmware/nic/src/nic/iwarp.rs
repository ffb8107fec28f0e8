//! TCP segments that arrive, and connections that have no queue pair yet.

use faultline_abi::admin::Counter;
use faultline_abi::event;
use faultline_abi::iwarp::REQUEST_TIMEOUT_MS;
use faultline_tcp::{Connection, Data, Receiver, State as TcpState, Verdict, reset_for};
use faultline_wire::MacAddr;
use faultline_wire::mpa::MpaRole;

use super::Nic;
use crate::counters::CounterSet;
use crate::dma::Dma;
use crate::frame::{Frame, TxFrame};
use crate::gid_table::Source;
use crate::iwarp::{
    Arrived, MAX_SETUP, Offer, Owner, Request, SETUP_TIMEOUT, Stage, StreamPath, parse_setup,
    to_tcp,
};
use crate::payload::Payload;
use crate::queues::Queue;
use crate::steering::FrameTarget;
use crate::time::{Instant, Nanos};
use crate::work;

/// A request that receives the setup frame of its peer.
struct SetupReceiver<'a, 'p, M> {
    octets: &'a mut Vec<u8>,
    data: Payload<'p, M>,
    /// What the peer has said.
    offer: Option<Offer>,
    is_bad: bool,
}

impl<M: Dma> Receiver for SetupReceiver<'_, '_, M> {
    fn deliver(&mut self, data: Data) -> Verdict {
        // The peer sends nothing behind it before it has the reply.
        let faultline_tcp::Source::Segment { at } = data.source else {
            return Verdict::Refused;
        };
        if self.offer.is_some() || self.is_bad {
            return Verdict::Refused;
        }
        let before = self.octets.len();
        let room = MAX_SETUP.saturating_sub(before);
        let part = self
            .data
            .part(at as usize, room.min(data.len as usize))
            .to_vec();
        let Ok(part) = part else {
            return Verdict::Refused;
        };
        self.octets.extend_from_slice(&part);
        let taken = match parse_setup(self.octets, MpaRole::Request) {
            Ok(None) => part.len(),
            Ok(Some((offer, len))) => {
                self.offer = Some(offer);
                len.saturating_sub(before)
            }
            Err(_) => {
                self.is_bad = true;
                part.len()
            }
        };
        match u32::try_from(taken) {
            Ok(taken @ 1..) => Verdict::Taken(taken),
            _ => Verdict::Refused,
        }
    }

    fn keep(&mut self, _: Data) -> bool {
        false
    }
}

impl Nic {
    /// Receives a frame to this address if it is a segment of a connection, or for a listener. Returns false if it is neither.
    pub(crate) fn receive_segment<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        dst: MacAddr,
        frame: Frame<'_, M>,
    ) -> bool {
        let Some(connections) = &self.core.connections else {
            return false;
        };
        if !self.core.netdev.is_up() {
            return false;
        }
        let head = frame.payload.head().unwrap_or_default();
        let Some(arrived) = Arrived::parse(&head, frame.payload.len()) else {
            return false;
        };
        let tuple = &arrived.tuple;
        let vlan = arrived.ethernet.vlan.map(|tag| tag.vid);
        let own = self.core.gids.find(tuple.local, vlan);
        let Some((_, source)) = own.filter(|(entry, _)| entry.mac == dst) else {
            return false;
        };
        let listener = connections.listener_for(tuple.local, tuple.local_port, vlan);
        let owner = connections.owner(tuple);
        if !self.is_in_vlan(owner, &arrived) {
            return false;
        }
        let owner = owner.filter(|owner| self.receives_for(*owner, &arrived));
        if owner.is_none() && listener.is_none() {
            return false;
        }
        self.core.charge(work::of_frames(1, frame.payload.len()));
        if !frame.checked && !arrived.is_intact(&frame.payload) {
            self.core.counters.inc(Counter::rx_csum_errors);
            return true;
        }
        match (owner, listener) {
            (Some(Owner::QueuePair(qpn)), _) => {
                self.receive_for_stream(now, mem, qpn, &arrived, frame);
            }
            (Some(Owner::Request(number)), _) => {
                self.receive_for_request(now, mem, number, &arrived, frame.payload);
            }
            (None, Some(listener)) => {
                self.receive_for_listener(now, mem, listener, &arrived, source);
            }
            (None, None) => {}
        }
        true
    }

    /// True if a segment came in the VLAN of its connection, if there is one.
    fn is_in_vlan(&mut self, owner: Option<Owner>, arrived: &Arrived) -> bool {
        let ethernet = &arrived.ethernet;
        match owner {
            None => true,
            Some(Owner::QueuePair(qpn)) => {
                let qp = self.queues.stream_mut(qpn);
                qp.is_some_and(|qp| qp.is_way_back(ethernet))
            }
            Some(Owner::Request(number)) => {
                let connections = self.core.connections.as_ref();
                let request = connections.and_then(|shared| shared.requests.get(number));
                request.is_some_and(|request| request.path.is_way_back(ethernet))
            }
        }
    }

    /// True if a segment is for this owner. One that is in TIME-WAIT gets only segments of its own connection: another one, here or of the
    /// guest's own stack, may have its ports (RFC 9293 section 3.10.7.4).
    fn receives_for(&mut self, owner: Owner, arrived: &Arrived) -> bool {
        let Owner::QueuePair(qpn) = owner else {
            return true;
        };
        let qp = self.queues.stream_mut(qpn);
        qp.is_some_and(|qp| qp.receives(&arrived.segment))
    }

    fn receive_for_stream<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        qpn: u32,
        arrived: &Arrived,
        frame: Frame<'_, M>,
    ) {
        let Some((Queue::Stream(qp), mut cx)) = self.queue_in_context(now, mem, qpn) else {
            return;
        };
        if !qp.receive(&mut cx, arrived, &frame.payload) {
            let target = FrameTarget::untagged(qpn);
            cx.put_back(None, target, frame.payload);
        }
        self.core.charge_lookups(now);
        self.core.charge_queue_pair(now, qpn);
        let len = arrived.segment.len as usize;
        self.core.charge_payload(now, len, 1);
    }

    /// A segment to a listener that is of no connection: a SYN opens one.
    fn receive_for_listener<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        listener: u32,
        arrived: &Arrived,
        source: Source,
    ) {
        let mtu = self.core.netdev.mtu;
        let Some(connections) = &mut self.core.connections else {
            return;
        };
        let Some(path) = StreamPath::back(arrived, source, mtu) else {
            return;
        };
        let segment = &arrived.segment;
        let start = connections.secret.start(&path.tuple, to_tcp(now));
        let config = path.tcp_config();
        let Some(connection) = Connection::accept(config, segment, start, to_tcp(now)) else {
            if let Some(reset) = reset_for(segment) {
                connections.send_reset(now, &path, &reset);
            }
            return;
        };
        let listening = connections.listeners.get_mut(listener);
        let held = self.core.budget.take(size_of::<Request>());
        // The SYN is dropped; the peer sends it again.
        let (Some(listening), Some(held)) = (listening, held) else {
            return;
        };
        if listening.requests >= listening.backlog {
            return;
        }
        let request = Request {
            listener,
            path,
            connection,
            stage: Stage::Opening,
            octets: Vec::new(),
            offer: Offer::default(),
            reply: Vec::new(),
            deadline: now + SETUP_TIMEOUT,
            timer_at: None,
            _held: held,
        };
        let Some(number) = connections.requests.insert_with(|_| request) else {
            return;
        };
        if let Some(listening) = connections.listeners.get_mut(listener) {
            listening.requests = listening.requests.saturating_add(1);
        }
        connections.set_owner(&path.tuple, Owner::Request(number));
        self.progress_request(now, mem, number);
    }

    fn receive_for_request<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u32,
        arrived: &Arrived,
        frame: Payload<'_, M>,
    ) {
        let connections = self.core.connections.as_mut();
        let Some(request) = connections.and_then(|shared| shared.requests.get_mut(number)) else {
            return;
        };
        let mut receiver = SetupReceiver {
            octets: &mut request.octets,
            data: arrived.data(&frame),
            offer: None,
            is_bad: request.stage != Stage::Opening,
        };
        let (connection, segment) = (&mut request.connection, &arrived.segment);
        connection.receive(segment, to_tcp(now), &mut receiver);
        let SetupReceiver { offer, is_bad, .. } = receiver;
        if is_bad && request.stage == Stage::Opening {
            request.connection.abort();
        }
        if let Some(offer) = offer {
            request.offer = offer;
            request.octets = Vec::new();
            request.stage = Stage::Announced;
            request.deadline = now + Nanos::from_millis(REQUEST_TIMEOUT_MS.into());
            let listener = request.listener;
            let kind = event::CONNECTION_REQUEST;
            self.context(now, mem)
                .raise_connection(kind, listener, number.into());
        }
        self.progress_request(now, mem, number);
    }

    /// Sends what a request has to send, and ends it if its connection has ended.
    pub(crate) fn progress_request<M: Dma>(&mut self, now: Instant, mem: &M, number: u32) {
        let Some(connections) = &mut self.core.connections else {
            return;
        };
        let Some(request) = connections.requests.get_mut(number) else {
            return;
        };
        let has_left = request.connection.is_finished_by_peer();
        if has_left && matches!(request.stage, Stage::Opening | Stage::Announced) {
            request.connection.abort();
        }
        let (path, mut segments) = (request.path, Vec::new());
        while let Some(transmit) = request.connection.poll_transmit(to_tcp(now), |_, max| max) {
            let from = usize::try_from(transmit.offset).unwrap_or(usize::MAX);
            let data = request.reply.get(from..).unwrap_or_default();
            let data = data.get(..transmit.len as usize).unwrap_or(data);
            segments.push((transmit, data.to_vec()));
        }
        let state = request.connection.state();
        let is_over = matches!(state, TcpState::Closed | TcpState::TimeWait);
        let stage = request.stage;
        for (transmit, data) in segments {
            connections.send(&path, &transmit, &data);
        }
        match stage {
            Stage::Opening | Stage::Rejected if is_over => drop(connections.remove_request(number)),
            Stage::Announced if is_over => self.end_request(now, mem, number),
            _ => connections.sync_timer(number),
        }
    }

    /// A request ends before the driver has answered.
    fn end_request<M: Dma>(&mut self, now: Instant, mem: &M, number: u32) {
        if let Some(connections) = &mut self.core.connections {
            if let Some(request) = connections.requests.get_mut(number) {
                request.stage = Stage::Gone;
                let tuple = request.path.tuple;
                connections.remove_owner(&tuple, Owner::Request(number));
            }
            connections.sync_timer(number);
        }
        self.context(now, mem)
            .raise_connection(event::REQUEST_GONE, number, 0);
    }

    /// Handles timers of requests, until the turn is over.
    pub(crate) fn handle_connection_timers<M: Dma>(&mut self, now: Instant, mem: &M, turn: u64) {
        while !self.core.is_over(turn)
            && let Some(connections) = &mut self.core.connections
            && let Some(number) = connections.pop_timer(now)
        {
            if let Some(request) = connections.requests.get_mut(number) {
                request.connection.handle_deadline(to_tcp(now));
                if request.deadline <= now {
                    request.connection.abort();
                }
            }
            self.core.charge(work::OPERATION);
            self.progress_request(now, mem, number);
        }
    }

    /// Makes `frame` the next segment that belongs to no queue pair. Returns false if there is none.
    pub(super) fn poll_shared_segment<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        frame: &mut TxFrame,
    ) -> bool {
        let is_running = self.is_running();
        let paused = self.core.flow_control.paused();
        let connections = self.core.connections.as_mut().filter(|_| is_running);
        let Some(source) = connections.and_then(|shared| shared.poll_out(paused, frame)) else {
            return false;
        };
        let barred = self.core.bars_sent(frame, Some(source));
        (self.last_sender, self.last_len, self.last_barred) = (0, frame.len(), barred);
        if let Some(cause) = barred {
            self.note_barred(now, 0, cause, 1);
            return true;
        }
        self.core.charge(work::of_frames(1, self.last_len));
        self.count_sent(CounterSet::DEVICE, frame);
        self.loop_back(now, mem, 0, frame);
        true
    }
}
