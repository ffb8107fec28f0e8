//! A connection of a flow: from its making until its queue pairs are destroyed. A flow has another one after a reset.

use faultline_abi::admin::{
    DEALLOC_XRCD, DESTROY_AH, DESTROY_CQ, DESTROY_MKEY, DESTROY_QP, DESTROY_SRQ,
};
use faultline_abi::cqe::{
    COMP_SWAP, Cqe, FETCH_ADD, LOC_PROT_ERR, RDMA_READ, RDMA_WRITE, RECV, REM_ACCESS_ERR,
    REM_INV_REQ_ERR, REM_OP_ERR, RETRY_EXC_ERR, SEND, SUCCESS, WR_FLUSH_ERR,
};
use faultline_abi::qp::{QPS_ERR, QPT_UD, QPT_XRC_TGT};
use faultline_abi::wqe::{WR_COMP_SWAP, WR_FETCH_ADD, WR_READ, WR_SEND, WR_SEND_IMM, WR_WRITE};
use faultline_nic::FaultPolicy;

use super::memory::Region;
use super::places::{COUNTER, LEN, RESULTS, SLOTS, octet, operands, sink, slot};
use super::plan::{Flow, GRH, MESSAGE, PART, Plan, Request, Transport};
use super::processes::PlanProcesses;
use super::report::{Failure, Report};
use crate::driver::{Connect, Cq, Driver, Qp, QpConfig, Send, Srq};
use crate::host::Host;
use crate::process::ProcessBus;

/// Addresses of regions.
const VA: u64 = 0x7f00_0000_0000;
/// log2 of the depth of queues.
const LOG_DEPTH: u8 = 6;
const QKEY: u32 = 0x1234;

/// One side of a connection.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) host: usize,
    cq: Cq,
    /// `None`: a target of XRC.
    qp: Option<Qp>,
    pub(super) qpn: u32,
    srq: Option<Srq>,
    /// Domain of the target of XRC.
    xrcd: Option<u32>,
    /// Address handle of datagrams.
    ah: Option<u32>,
    pub(super) region: Region,
    /// The NIC of one side was reset, so the connection has only the other side.
    pub(super) is_gone: bool,
    is_destroyed: bool,
}

/// A step of the opening of a connection of iWARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// The responder listens, by this listener.
    Listening(u32),
    /// The responder has accepted the request.
    Accepted,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    pub(super) plan: &'a Flow,
    pub(super) index: usize,
    /// Number of the connection of the flow.
    pub(super) generation: usize,
    /// Its requests.
    pub(super) requests: &'a [Request],
    /// Nothing loses, repeats or reorders its messages, although its service may not repair that.
    pub(super) keeps_messages: bool,
    loses_packets: bool,
    repeats_packets: bool,
    is_separated: bool,
    /// A queue pair has had the policy `terminate`, or a pager answers that faults have failed.
    pub(super) may_terminate: bool,
    /// A pager answers that faults have failed.
    may_fail: bool,
    pub(super) requester: Side,
    pub(super) responder: Side,
    /// Requests posted, and those that have completed.
    pub(super) posted: usize,
    pub(super) ended: usize,
    pub(super) successes: usize,
    has_failed: bool,
    /// The request of each completion of a receive; `None`: it has failed.
    pub(super) received: Vec<Option<usize>>,
    pub(super) has_receive_failed: bool,
    is_closing: bool,
    /// A connection of iWARP is not made yet.
    pub(super) opening: Option<Opening>,
    pub(super) next_at: u64,
}

impl Side {
    /// A side without queue pair.
    fn new(
        host: &mut Host<ProcessBus>,
        index: usize,
        on_demand: bool,
        octet: impl Fn(u64) -> u8,
    ) -> Result<Self, Failure> {
        let cq = host.cq(8)?;
        let mut region = Region::new(&mut host.driver, host.pd, (VA, LEN), on_demand)?;
        region.fill(&host.driver, |offset| match offset < PART {
            true => octet(offset),
            false => 0,
        });
        Ok(Self {
            host: index,
            cq,
            qp: None,
            qpn: 0,
            srq: None,
            xrcd: None,
            ah: None,
            region,
            is_gone: false,
            is_destroyed: false,
        })
    }

    fn create_qp(&mut self, host: &mut Host<ProcessBus>, kind: u8) -> Result<(), Failure> {
        let qp = host.driver.create_qp(&QpConfig {
            srqn: self.srq.as_ref().map(|srq| srq.srqn),
            log_depth: LOG_DEPTH,
            max_sge: 2,
            ..host.qp_config(kind, &self.cq)
        })?;
        self.qpn = qp.qpn;
        self.qp = Some(qp);
        Ok(())
    }

    /// Makes what receives.
    fn create_receiver(
        &mut self,
        host: &mut Host<ProcessBus>,
        transport: Transport,
    ) -> Result<(), Failure> {
        if transport == Transport::Xrc {
            let domain = host.driver.alloc_xrcd()?;
            let srq = host.driver.create_xrc_srq(host.pd, domain, self.cq.cqn)?;
            (self.srq, self.xrcd) = (Some(srq), Some(domain));
            self.qpn = host.driver.create_xrc_target(domain)?;
            return Ok(());
        }
        if transport.has_srq() {
            self.srq = Some(host.driver.create_srq(host.pd, 0, LOG_DEPTH, 2, 0)?);
        }
        self.create_qp(host, transport.requester())
    }

    /// Sets the fault policy of its queue pair.
    pub(super) fn set_policy(&self, processes: &PlanProcesses, policy: FaultPolicy) {
        processes.with_port(self.host, |port| {
            port.nic.set_fault_policy(self.qpn, policy)
        });
    }

    fn destroy(&self, driver: &mut Driver<ProcessBus>) -> Result<(), Failure> {
        driver.command(DESTROY_QP, self.qpn, &())?;
        if let Some(srq) = &self.srq {
            driver.command(DESTROY_SRQ, srq.srqn, &())?;
        }
        if let Some(domain) = self.xrcd {
            driver.command(DEALLOC_XRCD, domain, &())?;
        }
        if let Some(ah) = self.ah {
            driver.command(DESTROY_AH, ah, &())?;
        }
        driver.command(DESTROY_CQ, self.cq.cqn, &())?;
        driver.command(DESTROY_MKEY, self.region.key, &())?;
        Ok(())
    }

    pub(super) fn post_receives(&mut self, host: &mut Host<ProcessBus>, transport: Transport) {
        for index in 0..SLOTS {
            let place = self.region.sge(slot(index), MESSAGE);
            let tag = u32::try_from(index).unwrap_or(0);
            let driver = &mut host.driver;
            match (&mut self.srq, &mut self.qp) {
                (Some(srq), _) if transport.has_srq() => driver.post_srq_recv(srq, tag, &[place]),
                (_, Some(qp)) => driver.post_recv(qp, tag, &[place]),
                _ => {}
            }
        }
    }
}

impl<'a> Connection<'a> {
    /// Makes a connection for the requests of a flow from `first` on.
    pub(super) fn open(
        processes: &mut PlanProcesses,
        plan: &'a Plan,
        index: usize,
        (generation, first): (usize, usize),
    ) -> Result<Option<Self>, Failure> {
        let Some(flow) = plan.flows.get(index) else {
            return Ok(None);
        };
        let on_demand = |nic: usize| plan.nics.get(nic).is_some_and(|nic| nic.on_demand);
        let Some(host) = processes.host(flow.from) else {
            return Ok(None);
        };
        let source = |side| move |offset| octet((index, generation), side, offset);
        let mut requester = Side::new(host, flow.from, on_demand(flow.from), source(0))?;
        requester.create_qp(host, flow.transport.requester())?;
        let to_requester = host.path(requester.qpn);
        let Some(host) = processes.host(flow.to) else {
            return Ok(None);
        };
        let mut responder = Side::new(host, flow.to, on_demand(flow.to), source(1))?;
        responder.create_receiver(host, flow.transport)?;
        let to_responder = host.path(responder.qpn);
        let psn = u32::try_from(generation.saturating_mul(0x10_0000)).unwrap_or(0) & 0xff_ffff;
        let along = |path: Connect| Connect {
            path_mtu: flow.path_mtu,
            sq_psn: psn,
            rq_psn: psn,
            // ECT(0), of RFC 3168.
            traffic_class: if flow.ecn { 2 } else { 0 },
            ..path
        };
        let (mut may_terminate, mut may_fail) = (false, false);
        // The responder first: a request does not wait for it.
        for (side, path, is_responder) in [
            (&mut responder, along(to_requester), true),
            (&mut requester, along(to_responder), false),
        ] {
            let Some(host) = processes.host(side.host) else {
                continue;
            };
            match flow.transport {
                Transport::Ud => {
                    host.driver.activate(side.qpn, QPT_UD, QKEY)?;
                    side.ah = Some(host.driver.create_ah(host.pd, path.av())?);
                }
                Transport::Xrc if is_responder => {
                    host.driver.connect(side.qpn, QPT_XRC_TGT, &path)?;
                }
                Transport::Iwarp => {}
                other => host.driver.connect(side.qpn, other.requester(), &path)?,
            }
            if is_responder && flow.transport != Transport::Iwarp {
                side.post_receives(host, flow.transport);
            }
            if let Some(nic) = plan.nics.get(side.host) {
                side.set_policy(processes, nic.policy);
                may_terminate |= nic.on_demand && nic.policy == FaultPolicy::Terminate;
                may_fail |= plan.fails_faults(side.host);
            }
        }
        let mut connection = Self {
            plan: flow,
            index,
            generation,
            requests: flow.requests.get(first..).unwrap_or(&[]),
            keeps_messages: plan.keeps_messages(flow),
            loses_packets: plan.loses_packets(flow),
            repeats_packets: plan.repeats_packets(flow),
            is_separated: plan.is_separated(flow),
            may_terminate: may_terminate || may_fail,
            may_fail,
            requester,
            responder,
            posted: 0,
            ended: 0,
            successes: 0,
            has_failed: false,
            received: Vec::new(),
            has_receive_failed: false,
            is_closing: false,
            opening: None,
            next_at: processes.wired.now(),
        };
        if flow.transport == Transport::Iwarp {
            connection.open_stream(processes, plan)?;
        }
        Ok(Some(connection))
    }

    pub(super) fn sides(&mut self) -> [&mut Side; 2] {
        [&mut self.requester, &mut self.responder]
    }

    pub(super) fn is_of(&self, nic: usize) -> bool {
        self.requester.host == nic || self.responder.host == nic
    }

    /// The NIC of a side was reset: outstanding requests end, and no more are posted.
    pub(super) fn cut(&mut self, nic: usize) {
        self.requests = self.requests.get(..self.posted).unwrap_or(&[]);
        for side in self.sides() {
            side.is_gone |= side.host == nic;
        }
    }

    /// True if a side was reset.
    pub(super) fn is_cut(&self) -> bool {
        self.requester.is_gone || self.responder.is_gone
    }

    /// True if all requests have ended.
    pub(super) fn is_over(&self) -> bool {
        self.requester.is_gone || self.ended == self.requests.len()
    }

    /// SENDs among its requests, as their indices.
    pub(super) fn sends(&self) -> impl Iterator<Item = usize> {
        let requests = self.requests.iter().enumerate();
        requests
            .filter(|(_, request)| matches!(request, Request::Send(..)))
            .map(|(index, _)| index)
    }

    /// Posts the requests that are due.
    pub(super) fn post_due(&mut self, processes: &mut PlanProcesses, now: u64) {
        while self.opening.is_none()
            && self.next_at <= now
            && let Some(request) = self.requests.get(self.posted).copied()
        {
            let index = self.posted;
            self.posted = self.posted.saturating_add(1);
            self.next_at = self.next_at.saturating_add(self.plan.gap);
            let Some(host) = processes.host(self.requester.host) else {
                continue;
            };
            let result = RESULTS.saturating_add(8u64.saturating_mul(index as u64));
            let (opcode, (local, len), remote) = match request {
                Request::Write(at, len) => (WR_WRITE, (u64::from(at), len), sink(at)),
                Request::Read(at, len) => (WR_READ, (sink(at), len), u64::from(at)),
                Request::Send(at, len) => (self.opcode_of_send(index), (u64::from(at), len), 0),
                Request::FetchAdd(_) => (WR_FETCH_ADD, (result, 8), COUNTER),
                Request::CompareSwap(_) => (WR_COMP_SWAP, (result, 8), COUNTER),
            };
            let (compare_add, swap) = operands(self.requests, index);
            let (remote_addr, _, rkey) = self.responder.region.sge(remote, 0);
            let datagram = self.plan.transport == Transport::Ud;
            let send = Send {
                opcode,
                imm: u32::try_from(index).unwrap_or(0).to_be_bytes(),
                sges: &[self.requester.region.sge(local, len)],
                remote_addr,
                rkey,
                compare_add,
                swap,
                ah: self.requester.ah.unwrap_or(0),
                remote_qpn: match &self.responder.srq {
                    Some(srq) if self.plan.transport == Transport::Xrc => srq.srqn,
                    _ if datagram => self.responder.qpn,
                    _ => 0,
                },
                qkey: QKEY,
                ..Send::default()
            };
            if let Some(qp) = &mut self.requester.qp {
                host.driver.post_send(qp, &send);
            }
        }
    }

    /// Immediate data names the message, where the order does not determine it.
    fn opcode_of_send(&self, index: usize) -> u8 {
        let transport = self.plan.transport;
        let is_plain = transport.is_reliable() && index.is_multiple_of(2);
        match is_plain || transport == Transport::Iwarp {
            true => WR_SEND,
            false => WR_SEND_IMM,
        }
    }

    /// Takes completions, each of which must be the next one.
    pub(super) fn take_completions(
        &mut self,
        processes: &mut PlanProcesses,
        report: &mut Report,
    ) -> Result<(), Failure> {
        for is_requester in [true, false] {
            loop {
                let side = match is_requester {
                    true => &mut self.requester,
                    false => &mut self.responder,
                };
                let host = processes.host(side.host).filter(|_| !side.is_gone);
                let Some(host) = host else {
                    break;
                };
                let Some(cqe) = host.driver.poll(&mut side.cq) else {
                    break;
                };
                match is_requester {
                    true => self.take_sent(&cqe, report)?,
                    false => self.take_received(&cqe, processes)?,
                }
            }
        }
        Ok(())
    }

    /// Fails if a completion has another value than the expected one.
    fn expect(&self, what: &'static str, found: u64, wanted: u64) -> Result<(), Failure> {
        match found == wanted {
            true => Ok(()),
            false => Err(Failure::Order(self.index, what, found, wanted)),
        }
    }

    fn take_sent(&mut self, cqe: &Cqe, report: &mut Report) -> Result<(), Failure> {
        let wr = u64::from(cqe.wqe.get());
        self.expect("work request of a completion", wr, self.ended as u64)?;
        let qpn = u64::from(cqe.qpn.get());
        self.expect("queue pair of a request", qpn, self.requester.qpn.into())?;
        let request = self.requests.get(self.ended).copied();
        let request = request.filter(|_| self.ended < self.posted);
        let Some(request) = request else {
            return Err(Failure::Completions(
                self.index,
                self.ended.saturating_add(1),
                self.posted,
            ));
        };
        self.ended = self.ended.saturating_add(1);
        let status = cqe.status;
        if status != SUCCESS {
            return self.take_error(cqe, report);
        }
        if self.has_failed {
            self.expect("status after an error", status.into(), WR_FLUSH_ERR.into())?;
        }
        if self.is_separated && self.plan.transport.is_reliable() {
            self.expect("status across VLANs", status.into(), RETRY_EXC_ERR.into())?;
        }
        let (opcode, len) = match request {
            Request::Write(..) => (RDMA_WRITE, None),
            Request::Read(_, len) => (RDMA_READ, Some(len)),
            Request::Send(..) => (SEND, None),
            Request::FetchAdd(_) => (FETCH_ADD, Some(8)),
            Request::CompareSwap(_) => (COMP_SWAP, Some(8)),
        };
        self.expect("opcode of a request", cqe.opcode.into(), opcode.into())?;
        if let Some(len) = len {
            self.expect(
                "length of a response",
                cqe.byte_len.get().into(),
                len.into(),
            )?;
        }
        self.successes = self.successes.saturating_add(1);
        report.add(self.plan.transport.count(), 1);
        if matches!(request, Request::FetchAdd(_) | Request::CompareSwap(_)) {
            report.add("atomics", 1);
        }
        Ok(())
    }

    /// A request ends with an error, or is flushed.
    fn take_error(&mut self, cqe: &Cqe, report: &mut Report) -> Result<(), Failure> {
        let status = cqe.status;
        if self.has_failed {
            return self.expect("status after an error", status.into(), WR_FLUSH_ERR.into());
        }
        let is_reliable = self.plan.transport.is_reliable();
        let is_iwarp = self.plan.transport == Transport::Iwarp;
        let is_permitted = match status {
            LOC_PROT_ERR => self.may_fail,
            _ if !is_reliable => false,
            RETRY_EXC_ERR => {
                // Under policy `terminate` the NAK may be lost.
                let is_lost = self.may_terminate && self.loses_packets;
                self.is_separated || self.responder.is_gone || is_lost
            }
            REM_OP_ERR => self.may_terminate,
            // The Terminate message says "catastrophic" (RFC 5040 section 4.8).
            REM_INV_REQ_ERR => is_iwarp && self.may_terminate,
            // A connection of iWARP has ended.
            WR_FLUSH_ERR if is_iwarp => self.may_terminate || self.responder.is_gone,
            REM_ACCESS_ERR => self.may_fail,
            _ => false,
        };
        if !is_permitted {
            return Err(Failure::Status(self.index, status, cqe.vendor_err));
        }
        self.has_failed = true;
        let name = match (status, self.is_separated, self.responder.is_gone) {
            (LOC_PROT_ERR | REM_ACCESS_ERR, _, _) => "connections ended by a failed fault",
            (REM_OP_ERR, _, _) => "connections ended by policy",
            (_, true, _) => "connections across VLANs",
            (_, _, true) => "connections ended by a reset",
            _ => "connections ended without answer",
        };
        report.add(name, 1);
        Ok(())
    }

    fn take_received(&mut self, cqe: &Cqe, processes: &mut PlanProcesses) -> Result<(), Failure> {
        let count = self.received.len();
        let tag = u64::from(cqe.wqe.get());
        self.expect("work request of a receive", tag, count as u64)?;
        let qpn = u64::from(cqe.qpn.get());
        self.expect("queue pair of a receive", qpn, self.responder.qpn.into())?;
        if cqe.status != SUCCESS {
            // A connection of iWARP ends at both sides.
            let is_reset = self.plan.transport == Transport::Iwarp && self.is_cut();
            let is_permitted = match cqe.status {
                WR_FLUSH_ERR => self.is_closing || self.may_terminate || is_reset,
                LOC_PROT_ERR => self.may_terminate && !self.has_receive_failed,
                _ => false,
            };
            if !is_permitted {
                return Err(Failure::Status(self.index, cqe.status, cqe.vendor_err));
            }
            self.has_receive_failed = true;
            self.received.push(None);
            return Ok(());
        }
        if self.has_receive_failed {
            let wanted = WR_FLUSH_ERR.into();
            self.expect("status of a receive after an error", 0, wanted)?;
        }
        if self.is_separated {
            self.expect("receives across VLANs", 1, 0)?;
        }
        self.expect("opcode of a receive", cqe.opcode.into(), RECV.into())?;
        let imm = u32::from_be_bytes(cqe.imm.to_bytes()) as usize;
        let has_imm = |index: usize| self.opcode_of_send(index) == WR_SEND_IMM;
        let index = match self.plan.transport.is_reliable() || self.keeps_messages {
            true => self.sends().nth(count).unwrap_or(usize::MAX),
            false => imm,
        };
        if has_imm(index) {
            self.expect("message of a receive", imm as u64, index as u64)?;
        }
        if !self.repeats_packets && self.received.contains(&Some(index)) {
            self.expect("arrivals of a message", 2, 1)?;
        }
        let Some(Request::Send(_, len)) = self.requests.get(index).copied() else {
            return Err(Failure::Order(
                self.index,
                "message of a receive",
                imm as u64,
                0,
            ));
        };
        let len = len.saturating_add(self.headers());
        self.expect("length of a message", cqe.byte_len.get().into(), len.into())?;
        self.received.push(Some(index));
        let Some(host) = processes.host(self.responder.host) else {
            return Ok(());
        };
        self.judge_message(&host.driver, count)
    }

    /// A message has the octets that were sent.
    pub(super) fn judge_message(
        &self,
        driver: &Driver<ProcessBus>,
        index: usize,
    ) -> Result<(), Failure> {
        let request = self.received.get(index).copied().flatten();
        let request = request.and_then(|request| self.requests.get(request));
        let Some(Request::Send(at, len)) = request.copied() else {
            return Ok(());
        };
        let place = slot(index).saturating_add(self.headers().into());
        let octets = self.responder.region.read(driver, place, len);
        let wanted = (u64::from(at)..).map(|at| octet((self.index, self.generation), 0, at));
        let mut pairs = octets.iter().zip(wanted);
        match pairs.position(|(is, wanted)| *is != wanted) {
            None => Ok(()),
            Some(offset) => Err(Failure::Data(self.index, "a message", offset)),
        }
    }

    /// Octets in front of the payload of a message.
    pub(super) fn headers(&self) -> u32 {
        match self.plan.transport {
            Transport::Ud => GRH,
            _ => 0,
        }
    }

    /// Brings the queue pairs to state ERR, which flushes receives.
    pub(super) fn close(&mut self, processes: &mut PlanProcesses) -> Result<(), Failure> {
        self.is_closing = true;
        for side in self.sides() {
            if !side.is_gone
                && let Some(host) = processes.host(side.host)
            {
                host.driver.set_state(side.qpn, QPS_ERR)?;
            }
        }
        Ok(())
    }

    /// Ends the listener of a connection that was not made.
    fn stop_listening(&mut self, processes: &mut PlanProcesses) -> Result<(), Failure> {
        if let Some(Opening::Listening(listener)) = self.opening.take()
            && !self.responder.is_gone
            && let Some(host) = processes.host(self.responder.host)
        {
            host.driver.unlisten(listener)?;
        }
        Ok(())
    }

    /// Destroys the objects of the connection, after [`Connection::close`].
    pub(super) fn destroy(&mut self, processes: &mut PlanProcesses) -> Result<(), Failure> {
        self.stop_listening(processes)?;
        for side in self.sides() {
            if !side.is_gone
                && !std::mem::replace(&mut side.is_destroyed, true)
                && let Some(host) = processes.host(side.host)
            {
                side.destroy(&mut host.driver)?;
            }
        }
        Ok(())
    }

    /// Checks a closed connection.
    pub(super) fn judge(&self, report: &mut Report) -> Result<(), Failure> {
        if !self.is_over() {
            let wanted = self.requests.len();
            return Err(Failure::Completions(self.index, self.ended, wanted));
        }
        let arrived = self.received.iter().flatten().count();
        let sends = self.sends().count();
        let is_reliable = self.plan.transport.is_reliable();
        let is_whole = !self.is_cut() && !self.has_failed;
        if is_whole && (is_reliable || self.keeps_messages) && !self.may_terminate {
            // All messages have arrived.
            if arrived != sends {
                return Err(Failure::Completions(self.index, arrived, sends));
            }
        }
        if !self.responder.is_gone {
            // Receives without message were flushed.
            if !self.plan.transport.has_srq() && self.received.len() != SLOTS {
                let found = self.received.len();
                return Err(Failure::Completions(self.index, found, SLOTS));
            }
            let flushed = self.received.iter().filter(|found| found.is_none());
            report.add("receives flushed", flushed.count() as u64);
            if !is_reliable {
                report.add("lost messages", sends.saturating_sub(arrived) as u64);
            }
        }
        Ok(())
    }

    /// True if each successful request was executed.
    pub(super) fn is_exact(&self) -> bool {
        match self.plan.transport {
            // TCP acknowledges octets that wait for pages.
            Transport::Iwarp => !self.is_cut() && !self.has_failed && !self.may_terminate,
            transport if transport.is_reliable() => true,
            _ => self.keeps_messages && !self.may_terminate,
        }
    }
}
