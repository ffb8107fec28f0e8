//! Traffic: connections, their messages, and the check of the data.

use std::collections::{BTreeMap, VecDeque};

use faultline_abi::cqe::{self, Cqe};
use faultline_abi::event;
use faultline_abi::qp::{QPT_RC, QPT_UC, QPT_UD};
use faultline_abi::wqe as wr;
use faultline_scenario::random::Rng;
use faultline_scenario::traffic::{Operation, Service, Traffic};

use crate::driver::{ALL_ACCESS, Cq, CqConfig, Qp, QpConfig, Send, Sge};
use crate::error::SimulationError;
use crate::event::What;
use crate::iwarp::{Private, listener_path};
use crate::pager::PAGE;
use crate::software::{Buffer, Software, failed, gid_of, nic_name};

/// TCP port of listeners.
const PORT: u16 = 4420;
/// Ports of the ends that open connections begin behind this one.
const FIRST_PORT: u16 = 40_000;
const QKEY: u32 = 0x1111_2222;
/// Global route header in front of a received datagram.
const GRH: u64 = 40;
/// Largest region of a connection, unless its outstanding messages need more.
const MAX_REGION: u64 = 16 << 20;
/// Time for which messages of unreliable services may be under way after the last completion.
const ARRIVAL: u64 = 100_000_000;
/// Most messages that may have been lost before the message of a receive.
const MAX_MISSING: u32 = 4096;

/// All connections of one table `traffic`.
#[derive(Debug)]
pub(crate) struct Flow {
    pub traffic: Traffic,
    /// Hosts of the requester and of the responder.
    pub hosts: [usize; 2],
    /// Their completion queues.
    pub cqs: [Cq; 2],
    /// Their owners: the kernel, or a process.
    owners: [Owner; 2],
    /// Its connections are of iWARP.
    is_iwarp: bool,
}

/// User context and protection domain of queue pairs.
#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    uctx: u32,
    pd: u32,
}

/// A message whose completion has not been read.
#[derive(Clone, Copy, Debug)]
struct Message {
    number: u32,
    posted: u64,
}

/// A message whose completion has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub posted: u64,
    pub status: u8,
}

/// A connection, or a pair of datagram queue pairs.
#[derive(Debug)]
pub(crate) struct Connection {
    pub flow: usize,
    /// Number in its flow.
    number: u32,
    qps: [Qp; 2],
    buffers: [Buffer; 2],
    ah: u32,
    /// Identifies the connection's data.
    data: u64,
    slots: u32,
    outstanding: BTreeMap<u32, Message>,
    posted: u32,
    next_post: u64,
    /// Receives that are to be posted: when, and the slot.
    receives: VecDeque<(u64, u32)>,
    /// Number of the first message that the receiver has neither received nor counted as lost.
    expected: u32,
    /// Messages that have completed with success.
    pub succeeded: u32,
    /// Messages that have failed, or that were not posted because the connection had failed.
    pub failed: u32,
    /// Messages that the responder has found intact.
    pub arrived: u32,
    /// The first message with wrong data.
    pub wrong: Option<String>,
    /// Messages with wrong data.
    pub wrong_count: u32,
    has_failed: bool,
    /// When the last completion was read.
    last: u64,
    pub deregistered: bool,
}

/// Byte `offset` of message `message`.
fn byte(data: u64, message: u32, offset: u64) -> u8 {
    let key = data ^ u64::from(message).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mixed = key.wrapping_add(offset).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes().first().copied().unwrap_or_default()
}

/// The data of a message.
fn message_data(data: u64, message: u32, len: u32) -> Vec<u8> {
    (0..u64::from(len))
        .map(|offset| byte(data, message, offset))
        .collect()
}

impl Shape<'_> {
    fn is_atomic(self) -> bool {
        matches!(self.0.op, Operation::FetchAdd | Operation::CompareSwap)
    }

    /// True if the responder needs receives.
    fn has_receives(self) -> bool {
        matches!(self.0.op, Operation::Send | Operation::WriteImm)
    }

    fn kind(self) -> u8 {
        match self.0.service {
            Service::Rc => QPT_RC,
            Service::Uc => QPT_UC,
            Service::Ud => QPT_UD,
        }
    }

    fn is_reliable(self) -> bool {
        self.0.service == Service::Rc
    }

    fn first_receives(self) -> u32 {
        self.0.receives.unwrap_or(self.0.depth)
    }

    /// Bytes of each scatter/gather entry: of equal length but for the last.
    fn piece_lens(self) -> Vec<u32> {
        let sges = u32::from(self.0.sges).max(1);
        let each = self.0.size.div_ceil(sges);
        let mut left = self.0.size;
        let piece = |_| {
            let len = each.min(left);
            left = left.saturating_sub(len);
            len
        };
        (0..sges).map(piece).filter(|len| *len > 0).collect()
    }

    /// Distance between the entries of a message in the requester's region.
    fn piece_stride(self) -> u64 {
        let each = u64::from(self.0.size.div_ceil(u32::from(self.0.sges).max(1)));
        match self.0.fresh_pages {
            true => each.next_multiple_of(PAGE),
            false => each,
        }
    }

    /// Distance between the messages in the regions of requester and responder.
    fn strides(self) -> [u64; 2] {
        let size = u64::from(self.0.size);
        let grh = if self.0.service == Service::Ud {
            GRH
        } else {
            0
        };
        let local = self.piece_stride().saturating_mul(u64::from(self.0.sges));
        let remote = size.saturating_add(grh);
        let unit = if self.0.fresh_pages { PAGE } else { 8 };
        [local.max(size), remote].map(|stride| stride.max(1).next_multiple_of(unit))
    }

    fn slots(self) -> u32 {
        let least = self.0.depth.max(self.first_receives()).max(1);
        if !self.0.fresh_pages {
            return least;
        }
        let [local, remote] = self.strides();
        let most = MAX_REGION.checked_div(local.max(remote)).unwrap_or(0);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        self.0.count.min(most).max(least)
    }
}

/// A table `traffic`, and the sizes that follow from it.
#[derive(Clone, Copy)]
struct Shape<'a>(&'a Traffic);

/// The host of this number.
fn host(hosts: &mut [Software], index: usize) -> Result<&mut Software, SimulationError> {
    hosts.get_mut(index).ok_or_else(|| no_host(index))
}

fn no_host(index: usize) -> SimulationError {
    SimulationError::Value {
        key: "traffic".to_owned(),
        value: nic_name(index),
        allowed: "there is no such host".to_owned(),
    }
}

/// Opens an iWARP connection between two queue pairs. Its ports are those of no other connection of the run.
fn connect_stream(
    all: &mut [Software],
    [from, to]: [usize; 2],
    [from_qpn, to_qpn]: [u32; 2],
) -> Result<(), SimulationError> {
    let refused = |index| failed(index, "connection");
    for (index, qpn) in [(from, from_qpn), (to, to_qpn)] {
        let host = host(all, index)?;
        host.driver
            .to_init(qpn, ALL_ACCESS)
            .map_err(refused(index))?;
    }
    let number = host(all, from)?.qpns.len();
    let local_port = FIRST_PORT.saturating_add(u16::try_from(number).unwrap_or(u16::MAX));
    let path = Software::stream_path(from, to, local_port, PORT);
    let any = listener_path(gid_of(to), PORT);
    let depth = u16::from(host(all, to)?.max_rd_atomic());
    let limits = Private {
        ird: depth,
        ord: depth,
        ..Private::default()
    };
    let listener = host(all, to)?.driver.listen(any, 1).map_err(refused(to))?;
    let active = host(all, from)?;
    active
        .driver
        .open(from_qpn, path, &limits)
        .map_err(refused(from))?;
    let request = host(all, to)?
        .await_connection(event::CONNECTION_REQUEST, listener)
        .map_err(refused(to))?;
    let request = u32::try_from(request).unwrap_or(u32::MAX);
    let passive = host(all, to)?;
    passive
        .driver
        .accept(to_qpn, request, &limits)
        .map_err(refused(to))?;
    for (index, qpn) in [(to, to_qpn), (from, from_qpn)] {
        let host = host(all, index)?;
        host.await_connection(event::CONNECTED, qpn)
            .map_err(refused(index))?;
    }
    let passive = host(all, to)?;
    passive.driver.unlisten(listener).map_err(refused(to))
}

impl Flow {
    /// Creates the completion queues.
    pub(crate) fn new(
        all: &mut [Software],
        traffic: &Traffic,
        hosts: [usize; 2],
    ) -> Result<Self, SimulationError> {
        let shape = Shape(traffic);
        let entries = [
            traffic.depth,
            shape.first_receives().saturating_add(traffic.depth),
        ];
        let mut owners = [Owner::default(); 2];
        for (owner, index) in owners.iter_mut().zip(hosts) {
            let host = host(all, index)?;
            *owner = Owner {
                uctx: 0,
                pd: host.pd,
            };
            if let Some(process) = &traffic.process {
                let context = host.driver.alloc_uctx_of(process);
                owner.uctx = context.map_err(failed(index, "user context"))?;
                let pd = host.driver.alloc_pd_of(owner.uctx);
                owner.pd = pd.map_err(failed(index, "protection domain"))?;
            }
        }
        let mut create = |index: usize, owner: Owner, each: u32| {
            let entries = each.saturating_mul(traffic.connections).max(1);
            let log_depth = entries.next_power_of_two().ilog2().max(4);
            let host = host(all, index)?;
            let config = CqConfig {
                log_depth: u8::try_from(log_depth).unwrap_or(u8::MAX),
                eqn: host.eq.eqn,
                uctx: owner.uctx,
            };
            let cq = host.driver.create_cq(config);
            cq.map_err(failed(index, "completion queue"))
        };
        let [from, to] = hosts;
        let [sends, receives] = entries;
        let [sender, responder] = owners;
        let cqs = [
            create(from, sender, sends)?,
            create(to, responder, receives)?,
        ];
        Ok(Self {
            traffic: traffic.clone(),
            hosts,
            cqs,
            owners,
            is_iwarp: host(all, from)?.driver.is_iwarp(),
        })
    }

    /// True if its software waits for completion events.
    pub(crate) fn waits(&self) -> bool {
        self.traffic.wait == faultline_scenario::traffic::Wait::Events
    }
}

impl Connection {
    /// Creates and connects the queue pairs, and registers the memory.
    pub(crate) fn new(
        all: &mut [Software],
        flow: &Flow,
        flow_index: usize,
        number: u32,
        rng: &mut Rng,
    ) -> Result<Self, SimulationError> {
        let traffic = &flow.traffic;
        let shape = Shape(traffic);
        let slots = shape.slots();
        let entries = traffic.depth.max(shape.first_receives()).max(1);
        let log_depth = entries.next_power_of_two().ilog2();
        let mut qps = Vec::new();
        let mut buffers = Vec::new();
        let memories = [traffic.local, traffic.remote];
        let sides = flow.hosts.iter().zip(&flow.cqs).zip(flow.owners);
        let memories = memories.into_iter().zip(shape.strides());
        for (((&index, cq), owner), (memory, stride)) in sides.zip(memories) {
            let host = host(all, index)?;
            let config = QpConfig {
                kind: shape.kind(),
                pd: owner.pd,
                uctx: owner.uctx,
                send_cqn: cq.cqn,
                recv_cqn: cq.cqn,
                srqn: None,
                log_depth: u8::try_from(log_depth).unwrap_or(u8::MAX),
                max_sge: 4,
                flags: faultline_abi::admin::QP_FLAG_SIG_ALL,
            };
            let qp = host.driver.create_qp(&config);
            let qp = qp.map_err(failed(index, "queue pair"))?;
            host.qpns.push(qp.qpn);
            qps.push(qp);
            let len = stride.saturating_mul(u64::from(slots));
            let buffer = host.register(owner.pd, len, memory);
            buffers.push(buffer.map_err(failed(index, "the regions of its traffic"))?);
        }
        let mut ends = qps.into_iter().zip(buffers);
        let (Some((from_qp, local)), Some((to_qp, remote))) = (ends.next(), ends.next()) else {
            return Err(no_host(flow.hosts.len()));
        };
        let (qps, buffers) = ([from_qp, to_qp], [local, remote]);
        let ah = connect(all, flow, &qps, rng)?;
        let receives = match shape.has_receives() {
            true => (0..shape.first_receives()).map(|slot| (0, slot)).collect(),
            false => VecDeque::new(),
        };
        Ok(Self {
            flow: flow_index,
            number,
            qps,
            buffers,
            ah,
            data: rng.next_u64(),
            slots,
            outstanding: BTreeMap::new(),
            posted: 0,
            next_post: traffic.start.nanos(),
            receives,
            expected: 0,
            succeeded: 0,
            failed: 0,
            arrived: 0,
            wrong: None,
            wrong_count: 0,
            has_failed: false,
            last: 0,
            deregistered: false,
        })
    }

    /// Registers the responder's memory of all connections of a flow on the queue pair of the first one.
    pub(crate) fn register_fast(
        all: &mut [Software],
        flow: &mut Flow,
        connections: &mut [Self],
    ) -> Result<(), SimulationError> {
        let [_, to] = flow.hosts;
        let host = host(all, to)?;
        let remote = |each: &Self| {
            let [_, remote] = each.buffers;
            remote
        };
        let buffers: Vec<Buffer> = connections.iter().map(remote).collect();
        let Some(first) = connections.first_mut() else {
            return Ok(());
        };
        let ([_, qp], [_, cq]) = (&mut first.qps, &mut flow.cqs);
        for buffer in buffers {
            let registered = host.register_fast((qp, cq), &buffer);
            registered.map_err(failed(to, "a fast registration"))?;
        }
        Ok(())
    }

    /// Numbers of the queue pairs of requester and responder.
    pub(crate) fn qpns(&self) -> [u32; 2] {
        let [from, to] = &self.qps;
        [from.qpn, to.qpn]
    }

    /// Key of the responder's memory.
    pub(crate) fn remote_key(&self) -> u32 {
        let [_, remote] = &self.buffers;
        remote.key
    }

    /// True if nothing more is to happen.
    pub(crate) fn is_finished(&self, flow: &Flow, now: u64) -> bool {
        let shape = Shape(&flow.traffic);
        let all_completed = self.succeeded.saturating_add(self.failed) >= flow.traffic.count;
        if !all_completed || !self.outstanding.is_empty() {
            return false;
        }
        if !shape.has_receives() || flow.traffic.op == Operation::WriteImm && shape.is_reliable() {
            return true;
        }
        let has_arrived = self.arrived.saturating_add(self.wrong_count) >= self.succeeded;
        match shape.is_reliable() {
            true => has_arrived || self.has_failed,
            false => has_arrived || now >= self.last.saturating_add(ARRIVAL),
        }
    }

    /// The event for which an unfinished connection waits.
    pub(crate) fn describe(&self, flow: &Flow, flow_index: usize) -> String {
        let [from, to] = flow.hosts.map(nic_name);
        let [from_qpn, to_qpn] = self.qpns();
        let name = match flow.traffic.name.as_str() {
            "" => format!("traffic[{flow_index}]"),
            name => name.to_owned(),
        };
        let what = match self.outstanding.values().next() {
            Some(first) => format!(
                "{} of {} messages have not completed, the first of them (number {}) since {} ns",
                self.outstanding.len(),
                flow.traffic.count,
                first.number,
                first.posted
            ),
            None => format!(
                "{} of {} messages have completed, {} have arrived",
                self.succeeded.saturating_add(self.failed),
                flow.traffic.count,
                self.arrived
            ),
        };
        format!(
            "{name}, connection {} ({from} QP {from_qpn} to {to} QP {to_qpn}): {what}",
            self.number
        )
    }

    /// Fails all messages that have not completed: the requester's host has no device any more.
    pub(crate) fn abandon(&mut self, flow: &Flow) {
        self.has_failed = true;
        self.outstanding.clear();
        self.failed = flow.traffic.count.saturating_sub(self.succeeded);
    }

    /// Posts the receives and sends that are possible now. Returns true if there were some.
    pub(crate) fn post(&mut self, all: &mut [Software], flow: &Flow, now: u64) -> bool {
        let mut any = false;
        while let Some((at, slot)) = self.receives.front().copied()
            && at <= now
        {
            self.receives.pop_front();
            self.post_receive(all, flow, slot);
            any = true;
        }
        let depth = usize::try_from(flow.traffic.depth).unwrap_or(usize::MAX);
        while !self.has_failed
            && self.posted < flow.traffic.count
            && self.outstanding.len() < depth
            && self.next_post <= now
        {
            self.post_message(all, flow, now);
            self.next_post = now.saturating_add(flow.traffic.gap.nanos());
            any = true;
        }
        any
    }

    /// Time of the next post, apart from posts that completions permit.
    pub(crate) fn next_at(&self, flow: &Flow) -> Option<u64> {
        let receive = self.receives.front().map(|(at, _)| *at);
        let depth = usize::try_from(flow.traffic.depth).unwrap_or(usize::MAX);
        let may_send =
            !self.has_failed && self.posted < flow.traffic.count && self.outstanding.len() < depth;
        let send = may_send.then_some(self.next_post);
        let shape = Shape(&flow.traffic);
        let completed = self.succeeded.saturating_add(self.failed);
        let is_arriving = !shape.is_reliable() && completed >= flow.traffic.count;
        let arrival = is_arriving.then_some(self.last.saturating_add(ARRIVAL));
        receive.into_iter().chain(send).chain(arrival).min()
    }

    fn offset(&self, flow: &Flow, side: usize, slot: u32) -> u64 {
        let strides = Shape(&flow.traffic).strides();
        let stride = strides.get(side).copied().unwrap_or(0);
        stride.saturating_mul(u64::from(slot))
    }

    fn slot(&self, message: u32) -> u32 {
        message.checked_rem(self.slots).unwrap_or(0)
    }

    fn post_receive(&mut self, all: &mut [Software], flow: &Flow, slot: u32) {
        let [_, to] = flow.hosts;
        let [_, remote] = self.buffers;
        let grh = if flow.traffic.service == Service::Ud {
            GRH
        } else {
            0
        };
        let len = u64::from(flow.traffic.size).saturating_add(grh);
        let offset = self.offset(flow, 1, slot);
        let sge: Sge = (
            remote.va.wrapping_add(offset),
            u32::try_from(len).unwrap_or(u32::MAX),
            remote.key,
        );
        let [_, qp] = &mut self.qps;
        if let Some(host) = all.get_mut(to) {
            if flow.traffic.op == Operation::Send {
                // Octets of an earlier message must not be taken for those of this one.
                let stale = vec![!0; usize::try_from(len).unwrap_or(0)];
                host.write(&remote, offset, &stale);
            }
            host.driver.post_recv(qp, slot, &[sge]);
        }
    }

    fn post_message(&mut self, all: &mut [Software], flow: &Flow, now: u64) {
        let [from, to] = flow.hosts;
        let [local, remote] = self.buffers;
        let number = self.posted;
        let slot = self.slot(number);
        let local_offset = self.offset(flow, 0, slot);
        let shape = Shape(&flow.traffic);
        let remote_offset = match shape.is_atomic() {
            // All atomics change one word.
            true => 0,
            false => self.offset(flow, 1, slot),
        };
        let data = message_data(self.data, number, flow.traffic.size);
        let other: Vec<u8> = data.iter().map(|byte| !byte).collect();
        // The destination has other octets before the message arrives.
        let at_responder = match flow.traffic.op {
            Operation::Read => Some(&data),
            Operation::Write | Operation::WriteImm => Some(&other),
            Operation::Send | Operation::FetchAdd | Operation::CompareSwap => None,
        };
        if let (Some(bytes), Some(host)) = (at_responder, all.get_mut(to)) {
            host.write(&remote, remote_offset, bytes);
        }
        let Some(host) = all.get_mut(from) else {
            return;
        };
        let mut sges: Vec<Sge> = Vec::new();
        let mut rest = match flow.traffic.op {
            Operation::Read | Operation::FetchAdd | Operation::CompareSwap => other.as_slice(),
            Operation::Send | Operation::Write | Operation::WriteImm => data.as_slice(),
        };
        let mut offset = local_offset;
        for len in shape.piece_lens() {
            let (part, after) = rest.split_at(rest.len().min(len as usize));
            rest = after;
            host.write(&local, offset, part);
            sges.push((local.va.wrapping_add(offset), len, local.key));
            offset = offset.wrapping_add(shape.piece_stride());
        }
        let [qp, peer] = &mut self.qps;
        let mut send = Send {
            opcode: match flow.traffic.op {
                Operation::Send => wr::WR_SEND,
                Operation::Write => wr::WR_WRITE,
                Operation::WriteImm => wr::WR_WRITE_IMM,
                Operation::Read => wr::WR_READ,
                Operation::FetchAdd => wr::WR_FETCH_ADD,
                Operation::CompareSwap => wr::WR_COMP_SWAP,
            },
            sges: &sges,
            ..Send::default()
        };
        match flow.traffic.op {
            Operation::Send if flow.traffic.service == Service::Ud => {
                send.ah = self.ah;
                send.remote_qpn = peer.qpn;
                send.qkey = QKEY;
            }
            Operation::Send => {}
            Operation::Write | Operation::Read => {
                send.remote_addr = remote.va.wrapping_add(remote_offset);
                send.rkey = remote.key;
            }
            Operation::WriteImm => {
                send.remote_addr = remote.va.wrapping_add(remote_offset);
                send.rkey = remote.key;
                send.imm = number.to_be_bytes();
            }
            Operation::FetchAdd => {
                send.remote_addr = remote.va;
                send.rkey = remote.key;
                send.compare_add = 1;
            }
            Operation::CompareSwap => {
                send.remote_addr = remote.va;
                send.rkey = remote.key;
                send.compare_add = u64::from(number);
                send.swap = u64::from(number).wrapping_add(1);
            }
        }
        let index = qp.sends_posted();
        self.posted = number.saturating_add(1);
        self.outstanding.insert(
            index,
            Message {
                number,
                posted: now,
            },
        );
        host.driver.bus.event(What::Posted {
            message: number,
            bytes: flow.traffic.size,
        });
        host.driver.post_send(qp, &send);
    }

    /// Handles a completion of the requester. Returns the message that it completes, if any.
    pub(crate) fn sent(
        &mut self,
        all: &[Software],
        flow: &Flow,
        cqe: &Cqe,
        now: u64,
    ) -> Option<Completed> {
        let message = self.outstanding.remove(&cqe.wqe.get())?;
        self.last = now;
        let completed = Completed {
            posted: message.posted,
            status: cqe.status,
        };
        if cqe.status != cqe::SUCCESS {
            self.has_failed = true;
            let unposted = flow.traffic.count.saturating_sub(self.posted);
            self.posted = flow.traffic.count;
            self.failed = self.failed.saturating_add(unposted).saturating_add(1);
            return Some(completed);
        }
        self.succeeded = self.succeeded.saturating_add(1);
        match flow.traffic.op {
            Operation::Read => self.check(all, flow, 0, message.number),
            // A WRITE of iWARP completes when its data is acknowledged, which may be held for a page then (RFC 5040 section 5.5).
            Operation::Write | Operation::WriteImm if flow.is_iwarp => {
                self.arrived = self.arrived.saturating_add(1);
            }
            Operation::Write | Operation::WriteImm if flow.traffic.service == Service::Rc => {
                self.check(all, flow, 1, message.number);
            }
            Operation::FetchAdd | Operation::CompareSwap => {
                self.check_atomic(all, flow, message.number);
            }
            Operation::Send | Operation::Write | Operation::WriteImm => {}
        }
        Some(completed)
    }

    /// Checks the data of a message at an end: 0 the requester's, 1 the responder's.
    fn check(&mut self, all: &[Software], flow: &Flow, side: usize, message: u32) {
        let slot = self.slot(message);
        let found = self.read(all, flow, side, slot, flow.traffic.size);
        if found == message_data(self.data, message, flow.traffic.size) {
            self.arrived = self.arrived.saturating_add(1);
        } else {
            self.note_wrong(message, flow);
        }
    }

    fn note_wrong(&mut self, message: u32, flow: &Flow) {
        self.wrong_count = self.wrong_count.saturating_add(1);
        let number = self.number;
        self.wrong.get_or_insert_with(|| {
            format!(
                "{:?} message {message} of connection {number} has wrong data",
                flow.traffic.op
            )
        });
    }

    /// The data of a slot.
    fn read(&self, all: &[Software], flow: &Flow, side: usize, slot: u32, len: u32) -> Vec<u8> {
        let (Some(buffer), Some(index)) = (self.buffers.get(side), flow.hosts.get(side)) else {
            return Vec::new();
        };
        let Some(host) = all.get(*index) else {
            return Vec::new();
        };
        let offset = self.offset(flow, side, slot);
        if side == 1 {
            let grh = if flow.traffic.service == Service::Ud {
                GRH
            } else {
                0
            };
            return host.read(buffer, offset.wrapping_add(grh), len as usize);
        }
        let shape = Shape(&flow.traffic);
        let mut data = Vec::new();
        let mut at = offset;
        for piece in shape.piece_lens() {
            data.extend(host.read(buffer, at, piece as usize));
            at = at.wrapping_add(shape.piece_stride());
        }
        data
    }

    /// The word that an atomic returns is the number of those before it.
    fn check_atomic(&mut self, all: &[Software], flow: &Flow, message: u32) {
        let found = self.read(all, flow, 0, self.slot(message), flow.traffic.size);
        if found == u64::from(message).to_le_bytes() {
            self.arrived = self.arrived.saturating_add(1);
        } else {
            self.note_wrong(message, flow);
        }
    }

    /// Handles a completion of the responder.
    pub(crate) fn received(&mut self, all: &[Software], flow: &Flow, cqe: &Cqe, now: u64) {
        if cqe.status != cqe::SUCCESS {
            return;
        }
        let slot = cqe.wqe.get();
        match flow.traffic.op {
            Operation::Send => self.receive_send(all, flow, slot),
            Operation::WriteImm if flow.traffic.service != Service::Rc => {
                let message = u32::from_be_bytes(cqe.imm.to_bytes());
                self.check(all, flow, 1, message);
            }
            _ => {}
        }
        let at = now.saturating_add(flow.traffic.receive_delay.nanos());
        self.receives.push_back((at, slot));
    }

    /// Determines the message that a receive contains. Unreliable services may have lost some before it.
    fn receive_send(&mut self, all: &[Software], flow: &Flow, slot: u32) {
        let found = self.read(all, flow, 1, slot, flow.traffic.size);
        let last = match Shape(&flow.traffic).is_reliable() {
            true => self.expected.saturating_add(1),
            false => self.posted.min(self.expected.saturating_add(MAX_MISSING)),
        };
        let first = self.expected;
        let message = (first..last)
            .find(|message| found == message_data(self.data, *message, flow.traffic.size));
        match message {
            Some(message) => {
                self.expected = message.saturating_add(1);
                self.arrived = self.arrived.saturating_add(1);
            }
            None => {
                self.expected = self.expected.saturating_add(1);
                self.note_wrong(first, flow);
            }
        }
    }

    /// Messages that have completed without an error, their data intact.
    pub(crate) fn done(&self, flow: &Flow) -> u32 {
        let shape = Shape(&flow.traffic);
        match flow.traffic.op {
            // The responder does not learn of them.
            Operation::Write if !shape.is_reliable() => self.succeeded,
            _ if shape.is_reliable() => self.succeeded.min(self.arrived),
            _ => self.arrived,
        }
    }
}

/// Connects the queue pairs of a connection. Returns the address handle for datagrams.
fn connect(
    all: &mut [Software],
    flow: &Flow,
    qps: &[Qp; 2],
    rng: &mut Rng,
) -> Result<u32, SimulationError> {
    let traffic = &flow.traffic;
    let kind = Shape(traffic).kind();
    let [from, to] = flow.hosts;
    let [from_qp, to_qp] = qps;
    if flow.is_iwarp {
        set_fault_policy(all, flow, to_qp)?;
        connect_stream(all, flow.hosts, [from_qp.qpn, to_qp.qpn])?;
        return Ok(0);
    }
    let psn = |rng: &mut Rng| u32::try_from(rng.below(1 << 24)).unwrap_or(0);
    let (request, response) = (psn(rng), psn(rng));
    let psns = [(request, response), (response, request)];
    let ends = [(from, from_qp, to, to_qp), (to, to_qp, from, from_qp)];
    for ((index, qp, peer, peer_qp), (own, other)) in ends.into_iter().zip(psns) {
        let host = host(all, index)?;
        let refused = || failed(index, "connection");
        let limit = host.max_rd_atomic();
        if kind == QPT_UD {
            host.driver
                .activate(qp.qpn, kind, QKEY)
                .map_err(refused())?;
            continue;
        }
        let mut path = Software::path_to(peer, peer_qp.qpn);
        path.path_mtu = mtu_code(traffic.mtu);
        (path.sq_psn, path.rq_psn) = (own, other);
        path.rd_atomic = path.rd_atomic.min(limit);
        path.timeout = traffic.timeout;
        path.retry_cnt = traffic.retry_count;
        path.rnr_retry = traffic.rnr_retry;
        path.min_rnr_timer = traffic.min_rnr_timer;
        host.driver
            .connect(qp.qpn, kind, &path)
            .map_err(refused())?;
    }
    set_fault_policy(all, flow, to_qp)?;
    if kind != QPT_UD {
        return Ok(0);
    }
    let host = host(all, from)?;
    let av = Software::path_to(to, 0).av();
    let ah = host.driver.create_ah(flow.owners[0].pd, av);
    ah.map_err(failed(from, "address handle"))
}

/// Sets the fault policy of the responder's queue pair.
fn set_fault_policy(all: &mut [Software], flow: &Flow, qp: &Qp) -> Result<(), SimulationError> {
    let Some(policy) = &flow.traffic.fault_policy else {
        return Ok(());
    };
    let known = faultline_nic::FaultPolicy::ALL;
    let Some(policy) = known.into_iter().find(|known| known.name() == policy) else {
        let names = known.map(faultline_nic::FaultPolicy::name);
        return Err(SimulationError::Value {
            key: "traffic.fault_policy".to_owned(),
            value: format!("{policy:?}"),
            allowed: format!("it must be one of {}", names.join(", ")),
        });
    };
    let [_, to] = flow.hosts;
    let host = host(all, to)?;
    let changed = host.driver.set_fault_policy(qp.qpn, policy.number());
    changed.map_err(failed(to, "fault policy"))
}

/// Code of a path MTU (IBTA 9.6).
fn mtu_code(mtu: u16) -> u8 {
    match mtu {
        ..512 => 1,
        512..1024 => 2,
        1024..2048 => 3,
        2048..4096 => 4,
        4096.. => 5,
    }
}
