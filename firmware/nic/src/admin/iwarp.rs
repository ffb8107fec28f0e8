//! Commands on listeners, requests and connections of an iWARP adapter.

use faultline_abi::iwarp::{
    Accept, Connect, ConnectionInfo, ConnectionParam, CreateListener, ENHANCED, MAX_PRIVATE_DATA,
    PRIVATE_CUT, QueryConnection,
};
use faultline_abi::qp::{
    QP_ATTR_ACCESS_FLAGS, QP_ATTR_CUR_STATE, QP_ATTR_FAULT_POLICY, QP_ATTR_MAX_DEST_RD_ATOMIC,
    QP_ATTR_MAX_QP_RD_ATOMIC, QP_ATTR_PKEY_INDEX, QP_ATTR_PORT, QP_ATTR_STATE, QpAttr,
};
use faultline_abi::{Status, U16, U32};
use faultline_wire::Gid;
use faultline_wire::mpa::MpaRole;

use super::command::Answer;
use crate::context::Context;
use crate::dma::Dma;
use crate::gid_table::{MAX_VLAN, NO_VLAN};
use crate::iwarp::{
    Connections, Listening, Offer, Owner, Request, SETUP_TIMEOUT, Stage, StreamConfig, StreamPath,
    agreed, is_any, to_tcp,
};
use crate::nic::Nic;
use crate::number::{len16, len32};
use crate::qp::{State, state};
use crate::time::Instant;
use crate::work;

impl Nic {
    fn connections(&mut self) -> Result<&mut Connections, Status> {
        let connections = self.core.connections.as_deref_mut();
        connections.ok_or(Status::NotSupported)
    }

    pub(super) fn create_listener(&mut self, cmd: &CreateListener) -> Result<u32, Status> {
        let path = &cmd.path;
        let unused = [
            path.remote_ip != [0; 16],
            path.remote_port.get() != 0,
            path.dmac != [0; 6],
            path.sl != 0,
            path.traffic_class != 0,
            path.reserved0 != 0,
            path.reserved1 != [0; 6],
            cmd.reserved != [0; 6],
        ];
        if unused.contains(&true) {
            return Err(Status::ReservedNotZero);
        }
        let max = self.core.config.limits.max_backlog;
        let port = path.local_port.get();
        let vlan = match path.vlan.get() {
            0 => NO_VLAN,
            vlan => vlan,
        };
        let backlog = u32::from(cmd.backlog.get());
        let local = Gid(path.local_ip);
        if port == 0 || local.is_multicast() {
            return Err(Status::BadAddress);
        }
        if !(1..=max).contains(&backlog) || (vlan != NO_VLAN && vlan > MAX_VLAN) {
            return Err(Status::BadAttribute);
        }
        let tag = (vlan != NO_VLAN).then_some(vlan);
        if !is_any(local) && !self.core.gids.has_address(local, tag) {
            return Err(Status::BadAddress);
        }
        let held = self.core.budget.take(size_of::<Listening>());
        let connections = self.connections()?;
        if connections.is_listening(local, port, vlan) {
            return Err(Status::AddressInUse);
        }
        let listening = Listening {
            local,
            port,
            vlan,
            requests: 0,
            backlog,
            _held: held.ok_or(Status::NoResources)?,
        };
        connections.listen(listening).ok_or(Status::NoResources)
    }

    /// Ends a listener, and its connections that are being opened. Requests that the driver knows stay.
    pub(super) fn destroy_listener<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        listener: u32,
    ) -> Result<(), Status> {
        let connections = self.connections()?;
        if !connections.unlisten(listener) {
            return Err(Status::BadListener);
        }
        let is_opening = |(_, request): &(u32, &Request)| {
            request.listener == listener && request.stage == Stage::Opening
        };
        let opening = connections.requests.iter().filter(is_opening);
        let ended: Vec<u32> = opening.map(|(number, _)| number).collect();
        let looked_at = u64::try_from(connections.requests.place_count()).unwrap_or(u64::MAX);
        for number in &ended {
            if let Some(request) = connections.requests.get_mut(*number) {
                request.connection.abort();
            }
        }
        self.core.charge(looked_at.saturating_mul(work::LOOK));
        for number in ended {
            self.progress_request(now, mem, number);
        }
        Ok(())
    }

    /// Reads the private data of a command, and checks the other properties.
    fn offer<M: Dma>(&self, mem: &M, param: &ConnectionParam) -> Result<Offer, Status> {
        let max = self.core.config.limits.max_rd_atomic;
        let (ird, ord) = (param.ird.get(), param.ord.get());
        let len = u32::from(param.private_len.get());
        let too_deep = u32::from(ird.max(ord)) > max;
        if param.flags.get() != 0 || len > MAX_PRIVATE_DATA || too_deep {
            return Err(Status::BadAttribute);
        }
        let mut private = vec![0; len as usize];
        if len > 0 {
            mem.read(param.private_addr.get(), &mut private)
                .map_err(|_| Status::DmaError)?;
        }
        Ok(Offer {
            ird: Some(ird),
            ord: Some(ord),
            enhanced: true,
            rtr_write: true,
            markers: false,
            reject: false,
            private,
        })
    }

    /// Checks that a queue pair can get a connection.
    fn idle_stream(&mut self, qpn: u32) -> Result<(), Status> {
        self.queue_pair(qpn)?;
        let qp = self.queues.stream_mut(qpn).ok_or(Status::BadQpType)?;
        match qp.endpoint.state {
            State::Init => Ok(()),
            _ => Err(Status::WrongState),
        }
    }

    pub(super) fn connect<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        qpn: u32,
        cmd: &Connect,
    ) -> Result<(), Status> {
        self.connections()?;
        self.idle_stream(qpn)?;
        let path = StreamPath::parse(&cmd.path, &self.core.gids, self.core.netdev.mtu)?;
        let own = self.offer(mem, &cmd.param)?;
        let over = match self.connections()?.owner(&path.tuple) {
            None => None,
            Some(Owner::Request(_)) => return Err(Status::AddressInUse),
            Some(Owner::QueuePair(other)) => {
                let qp = self.queues.stream_mut(other);
                if qp.is_some_and(|qp| !qp.is_over()) {
                    return Err(Status::AddressInUse);
                }
                Some(other)
            }
        };
        let connections = self.connections()?;
        if let Some(other) = over {
            connections.remove_owner(&path.tuple, Owner::QueuePair(other));
        }
        let start = connections.secret.start(&path.tuple, to_tcp(now));
        let qp = self.queues.stream_mut(qpn).ok_or(Status::BadQp)?;
        let mut cx = Context::new(&mut self.core, now, mem, qp.endpoint.counters);
        let tcp = path.tcp_config();
        qp.connect(&mut cx, StreamConfig { path, own }, tcp, start);
        Ok(())
    }

    pub(super) fn accept<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        qpn: u32,
        cmd: &Accept,
    ) -> Result<(), Status> {
        self.connections()?;
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        self.idle_stream(qpn)?;
        let mut own = self.offer(mem, &cmd.param)?;
        let number = cmd.request.get();
        let connections = self.connections()?;
        let request = connections.requests.get(number).ok_or(Status::BadRequest)?;
        match request.stage {
            Stage::Announced => {}
            Stage::Gone => return Err(Status::RequestGone),
            Stage::Opening | Stage::Rejected => return Err(Status::BadRequest),
        }
        let request = connections.remove_request(number);
        let Request {
            path,
            connection,
            offer: peer,
            ..
        } = request.ok_or(Status::BadRequest)?;
        // The reply has the revision of the request, and answers what it asks for.
        own.enhanced = peer.enhanced;
        own.rtr_write = peer.rtr_write;
        let qp = self.queues.stream_mut(qpn).ok_or(Status::BadQp)?;
        let mut cx = Context::new(&mut self.core, now, mem, qp.endpoint.counters);
        qp.accept(&mut cx, StreamConfig { path, own }, connection, peer);
        Ok(())
    }

    pub(super) fn reject<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u32,
        cmd: &Accept,
    ) -> Result<(), Status> {
        self.connections()?;
        if cmd.reserved.get() != 0 || cmd.request.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let own = self.offer(mem, &cmd.param)?;
        let connections = self.connections()?;
        let requests = &mut connections.requests;
        let request = requests.get_mut(number).ok_or(Status::BadRequest)?;
        match request.stage {
            Stage::Gone => drop(connections.remove_request(number)),
            Stage::Opening | Stage::Rejected => return Err(Status::BadRequest),
            Stage::Announced => {
                let reply = Offer {
                    enhanced: request.offer.enhanced,
                    rtr_write: false,
                    reject: true,
                    ..own
                };
                request.reply = reply.to_frame(MpaRole::Reply);
                request.stage = Stage::Rejected;
                request.deadline = now + SETUP_TIMEOUT;
                let len = len32(request.reply.len());
                request.connection.send(len.into(), to_tcp(now));
                request.connection.close(to_tcp(now));
                self.progress_request(now, mem, number);
            }
        }
        Ok(())
    }

    pub(super) fn query_request<M: Dma>(
        &mut self,
        mem: &M,
        number: u32,
        cmd: &QueryConnection,
    ) -> Result<Answer, Status> {
        let connections = self.connections()?;
        let request = connections.requests.get(number);
        let request =
            request.filter(|request| matches!(request.stage, Stage::Announced | Stage::Gone));
        let request = request.ok_or(Status::BadRequest)?;
        let depth = |stated: Option<u16>| U16::new(stated.unwrap_or(0));
        let offer = &request.offer;
        let mut info = ConnectionInfo {
            path: request.path.to_abi(),
            listener: U32::new(request.listener),
            ..ConnectionInfo::default()
        };
        (info.param.ird, info.param.ord) = (depth(offer.ird), depth(offer.ord));
        describe(mem, &mut info.param, offer, cmd)?;
        Ok(Answer::with_value(number, &info))
    }

    pub(super) fn query_connection<M: Dma>(
        &mut self,
        mem: &M,
        qpn: u32,
        cmd: &QueryConnection,
    ) -> Result<Answer, Status> {
        self.connections()?;
        self.queue_pair(qpn)?;
        let qp = self.queues.stream_mut(qpn).ok_or(Status::BadQpType)?;
        let (path, own, peer, close) = qp.connection().ok_or(Status::WrongState)?;
        let (ird, ord) = agreed(own, peer);
        let mut info = ConnectionInfo {
            path: path.to_abi(),
            close_reason: close.map_or(0, |close| close.reason),
            ..ConnectionInfo::default()
        };
        if let Some(code) = close.and_then(|close| close.code) {
            info.terminate_type = code.layer << 4 | code.error_type;
            info.terminate_code = code.code;
        }
        (info.param.ird, info.param.ord) = (U16::new(ird), U16::new(ord));
        describe(mem, &mut info.param, peer, cmd)?;
        Ok(Answer::with_value(qpn, &info))
    }

    pub(super) fn modify_stream_qp<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u32,
        change: &QpAttr,
    ) -> Result<(), Status> {
        const KNOWN: u32 = QP_ATTR_STATE
            | QP_ATTR_CUR_STATE
            | QP_ATTR_ACCESS_FLAGS
            | QP_ATTR_PKEY_INDEX
            | QP_ATTR_PORT
            | QP_ATTR_MAX_QP_RD_ATOMIC
            | QP_ATTR_MAX_DEST_RD_ATOMIC
            | QP_ATTR_FAULT_POLICY;
        let max = self.core.config.limits.max_rd_atomic;
        let qp = self.queues.stream_mut(number).ok_or(Status::BadQp)?;
        let from = qp.endpoint.state;
        let mask = change.mask.get();
        let to = state::target(from, change)?;
        // A connection enters RTR and RTS, or the queue pair SQE, by itself.
        let is_possible = to == from
            || matches!(
                (from, to),
                (_, State::Reset | State::Err)
                    | (State::Reset, State::Init)
                    | (State::Rts, State::Sqd)
            );
        if !is_possible {
            return Err(Status::BadTransition);
        }
        if mask & !KNOWN != 0 {
            return Err(Status::ExtraAttribute);
        }
        state::check_values(mask, change, max)?;
        let mut cx = Context::new(&mut self.core, now, mem, qp.endpoint.counters);
        qp.apply(&mut cx, change, to);
        Ok(())
    }
}

/// Writes the private data of the peer, and describes it.
fn describe<M: Dma>(
    mem: &M,
    param: &mut ConnectionParam,
    offer: &Offer,
    cmd: &QueryConnection,
) -> Result<(), Status> {
    if cmd.reserved != [0; 6] {
        return Err(Status::ReservedNotZero);
    }
    let room = usize::from(cmd.len.get());
    let data = offer.private.get(..room).unwrap_or(&offer.private);
    if !data.is_empty() {
        mem.write(cmd.addr.get(), data)
            .map_err(|_| Status::DmaError)?;
    }
    let is_cut = data.len() < offer.private.len();
    let flag = |on: bool, flag: u16| if on { flag } else { 0 };
    param.private_len = U16::new(len16(offer.private.len()));
    param.flags = U16::new(flag(is_cut, PRIVATE_CUT) | flag(offer.enhanced, ENHANCED));
    Ok(())
}
