//! A run of a plan, and what must hold in it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use faultline_abi::admin::EQ_FAULTS;
use faultline_abi::cqe::SUCCESS;
use faultline_abi::event::Eqe;
use faultline_abi::qp::QPT_RC;
use faultline_abi::wqe::{WR_READ, WR_SEND, WR_WRITE};
use faultline_nic::FaultPolicy;
use faultline_simulator::driver::Eq;
use faultline_simulator::{Cq, Error, Qp, Send};

use super::memory::Region;
use super::plan::{Event, Flow, MESSAGE, PART, Plan, Request, What};
use crate::process::{Process, ProcessHost};

/// The run must end within this time: retries and faults of any plan end before.
const LIMIT: u64 = 60_000_000_000;
/// Addresses of regions.
const VA: u64 = 0x7f00_0000_0000;

/// What a run has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Packets that NICs have sent.
    pub packets: u64,
    /// Frames that were dropped.
    pub dropped: u64,
    /// Page faults that were answered.
    pub faults: u64,
    /// Moves of NICs to another engine.
    pub moves: u64,
    /// When it has ended, in nanoseconds.
    pub time: u64,
    /// Hash of all frames with their times and fates.
    pub hash: u64,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Packets that violate a rule of the specification.
    Packets(Vec<String>),
    /// A sink has not what was sent to it: the flow, the side, and the first offset.
    Data(usize, &'static str, usize),
    /// The device has changed an unused page of this NIC.
    UnusedPage(usize),
    /// A side of a flow has so many completions instead of so many.
    Completions(usize, usize, usize),
    /// A request of a flow has ended with this status and vendor error.
    Status(usize, u8, u8),
    /// The clock does not advance.
    Stuck,
    /// A driver's command has failed.
    Driver(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(violations) => {
                let first = violations.first().map_or("", String::as_str);
                write!(f, "{} violations, the first: {first}", violations.len())
            }
            Self::Data(flow, side, offset) => {
                write!(
                    f,
                    "flow {flow}: the {side} is wrong from offset {offset} on"
                )
            }
            Self::UnusedPage(nic) => {
                write!(f, "NIC {nic} has written to a page that is not mapped")
            }
            Self::Completions(flow, found, wanted) => {
                write!(f, "flow {flow}: {found} completions instead of {wanted}")
            }
            Self::Status(flow, status, vendor) => {
                write!(
                    f,
                    "flow {flow}: a request has ended with status {status}, vendor error {vendor}"
                )
            }
            Self::Stuck => write!(f, "the clock does not advance"),
            Self::Driver(error) => write!(f, "a driver: {error}"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Driver(error.to_string())
    }
}

/// One side of a flow.
#[derive(Debug)]
struct Side {
    host: usize,
    cq: Cq,
    qp: Qp,
    /// Source, sink, sink of SENDs.
    region: Region,
}

#[derive(Debug)]
struct RunningFlow<'a> {
    plan: &'a Flow,
    requester: Side,
    responder: Side,
    /// Requests posted, and those whose completions have come.
    posted: usize,
    ended: usize,
    /// Completions of receives.
    received: usize,
    next_at: u64,
}

/// The pager of a host.
#[derive(Debug)]
struct Pager {
    eq: Eq,
    waiting: VecDeque<(u64, Eqe)>,
    delay: u64,
}

struct Run<'a> {
    plan: &'a Plan,
    process: Process,
    flows: Vec<RunningFlow<'a>>,
    pagers: Vec<Pager>,
    events: VecDeque<Event>,
    /// NICs whose links come up again, by time.
    links_up: BTreeMap<u64, Vec<usize>>,
    report: Report,
}

/// What an octet of a source is.
fn octet(flow: usize, side: u64, offset: u64) -> u8 {
    let mixed = offset
        .wrapping_mul(0x9e37_79b9)
        .wrapping_add(side.wrapping_mul(77))
        .wrapping_add((flow as u64).wrapping_mul(131));
    (mixed ^ (mixed >> 13)).to_le_bytes()[0]
}

fn side(
    host: &mut ProcessHost,
    (index, flow): (usize, usize),
    (which, on_demand): (u64, bool),
) -> Result<Side, Failure> {
    let (cq, qp) = host.rc_pair(6)?;
    let len = PART.saturating_mul(3);
    let mut region = Region::new(&mut host.driver, host.pd, (VA, len), on_demand)?;
    region.fill(&host.driver, |offset| match offset < PART {
        true => octet(flow, which, offset),
        false => 0,
    });
    Ok(Side {
        host: index,
        cq,
        qp,
        region,
    })
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Result<Self, Failure> {
        let mut process = Process::new(&plan.shape())?;
        let mut pagers = Vec::new();
        for (host, nic) in process.hosts.iter_mut().zip(&plan.nics) {
            let eq = host.driver.create_eq(EQ_FAULTS, 2, 8)?;
            host.driver.arm_eq(&eq);
            pagers.push(Pager {
                eq,
                waiting: VecDeque::new(),
                delay: nic.pager_delay,
            });
        }
        let mut flows = Vec::new();
        for (index, flow) in plan.flows.iter().enumerate() {
            flows.push(Self::connect(&mut process, plan, (index, flow))?);
        }
        Ok(Self {
            plan,
            process,
            flows,
            pagers,
            events: VecDeque::new(),
            links_up: BTreeMap::new(),
            report: Report::default(),
        })
    }

    fn connect(
        process: &mut Process,
        plan: &'a Plan,
        (index, flow): (usize, &'a Flow),
    ) -> Result<RunningFlow<'a>, Failure> {
        let ends = [(flow.from, 0), (flow.to, 1)];
        let mut sides = Vec::new();
        for (nic, which) in ends {
            let on_demand = plan.nics.get(nic).is_some_and(|nic| nic.on_demand);
            let host = process.hosts.get_mut(nic);
            let host = host.ok_or_else(|| Failure::Driver(format!("no NIC {nic}")))?;
            sides.push(side(host, (nic, index), (which, on_demand))?);
        }
        let (Some(mut responder), Some(requester)) = (sides.pop(), sides.pop()) else {
            return Err(Failure::Stuck);
        };
        for (own, peer) in [(&requester, &responder), (&responder, &requester)] {
            let to_peer = process.hosts.get(peer.host).map(|host| host.path(&peer.qp));
            let Some(mut path) = to_peer else {
                continue;
            };
            path.path_mtu = flow.path_mtu;
            if let Some(host) = process.hosts.get_mut(own.host) {
                host.driver.connect(own.qp.qpn, QPT_RC, &path)?;
            }
        }
        if let Some(host) = process.hosts.get_mut(responder.host) {
            for slot in 0..flow.sends() {
                let at = sink_of_send(slot);
                let sge = responder.region.sge(at, MESSAGE);
                let tag = u32::try_from(slot).unwrap_or(0);
                host.driver.post_recv(&mut responder.qp, tag, &[sge]);
            }
        }
        Ok(RunningFlow {
            plan: flow,
            requester,
            responder,
            posted: 0,
            ended: 0,
            received: 0,
            next_at: 0,
        })
    }

    fn run(mut self) -> Result<Report, Failure> {
        let start = self.process.now();
        for flow in &mut self.flows {
            flow.next_at = start;
        }
        let events = self.plan.events.iter().map(|event| Event {
            at: start.saturating_add(event.at),
            ..*event
        });
        self.events = events.collect();
        let limit = start.saturating_add(LIMIT);
        loop {
            let now = self.process.now();
            self.take_events(now)?;
            self.post_due(now);
            // An answer may raise the next fault at this instant.
            while self.serve_faults(now)? {}
            self.take_completions()?;
            if self.process.is_stuck() {
                return Err(Failure::Stuck);
            }
            let is_over = self
                .flows
                .iter()
                .all(|flow| flow.ended == flow.plan.requests.len());
            if is_over && self.events.is_empty() && self.links_up.is_empty() {
                break;
            }
            let next = self.next_at().unwrap_or(limit);
            if now >= limit {
                break;
            }
            if !self.process.step(next.min(limit)) {
                self.process.advance_to(next.min(limit));
            }
        }
        // What is still on its way arrives: duplicates, and acknowledgements.
        self.process.run_for(10_000_000);
        self.judge(start)
    }

    /// When the software of a host does something next.
    fn next_at(&self) -> Option<u64> {
        let pagers = self.pagers.iter().filter_map(|pager| pager.waiting.front());
        let faults = pagers.map(|(at, _)| *at);
        let events = self.events.front().map(|event| event.at);
        let links = self.links_up.keys().next().copied();
        let is_open = |flow: &&RunningFlow<'_>| flow.posted < flow.plan.requests.len();
        let posts = self.flows.iter().filter(is_open).map(|flow| flow.next_at);
        faults.chain(events).chain(links).chain(posts).min()
    }

    fn take_events(&mut self, now: u64) -> Result<(), Failure> {
        while let Some(entry) = self.links_up.first_entry()
            && *entry.key() <= now
        {
            for nic in entry.remove() {
                self.set_link(nic, true);
            }
        }
        while let Some(event) = self.events.front().copied()
            && event.at <= now
        {
            self.events.pop_front();
            let nic = event.nic;
            match event.what {
                What::Move(engine) => {
                    self.process.move_nics(&[nic], engine);
                    self.report.moves = self.report.moves.saturating_add(1);
                }
                What::Drop(dir, count) => {
                    let drop = |port: &mut faultline_fabric::nic_port::NicPort| {
                        port.faults.drop_frames(dir, count);
                    };
                    self.process.with_port(nic, drop);
                }
                What::LinkDown(time) => {
                    self.set_link(nic, false);
                    let up = now.saturating_add(time);
                    self.links_up.entry(up).or_default().push(nic);
                }
                What::Evict => self.evict(nic)?,
                What::Stall(stalls) => {
                    let policy = match stalls {
                        true => FaultPolicy::Stall,
                        false => FaultPolicy::Rnr,
                    };
                    for side in sides(&self.flows).filter(|side| side.host == nic) {
                        let qpn = side.qp.qpn;
                        self.process
                            .with_port(nic, |port| port.nic.set_fault_policy(qpn, policy));
                    }
                }
            }
        }
        Ok(())
    }

    fn set_link(&self, nic: usize, up: bool) {
        self.process
            .with_port(nic, |port| port.link_changed |= port.nic.change_link(up));
    }

    fn evict(&mut self, nic: usize) -> Result<(), Failure> {
        for flow in &mut self.flows {
            for side in [&mut flow.requester, &mut flow.responder] {
                if side.host == nic
                    && let Some(host) = self.process.hosts.get_mut(nic)
                {
                    side.region.evict(&mut host.driver)?;
                }
            }
        }
        Ok(())
    }

    fn post_due(&mut self, now: u64) {
        for flow in &mut self.flows {
            while flow.next_at <= now
                && let Some(request) = flow.plan.requests.get(flow.posted)
            {
                flow.posted = flow.posted.saturating_add(1);
                flow.next_at = flow.next_at.saturating_add(flow.plan.gap);
                let (from, to) = (&mut flow.requester, &flow.responder);
                let Some(host) = self.process.hosts.get_mut(from.host) else {
                    continue;
                };
                let (opcode, local, remote, len) = match *request {
                    Request::Write(at, len) => (WR_WRITE, u64::from(at), sink(at), len),
                    Request::Read(at, len) => (WR_READ, sink(at), u64::from(at), len),
                    Request::Send(at, len) => (WR_SEND, u64::from(at), 0, len),
                };
                let (remote_addr, _, rkey) = to.region.sge(remote, 0);
                let send = Send {
                    opcode,
                    sges: &[from.region.sge(local, len)],
                    remote_addr,
                    rkey,
                    ..Send::default()
                };
                host.driver.post_send(&mut from.qp, &send);
            }
        }
    }

    /// Reads fault records, and answers those that are due. Returns true if there were any.
    fn serve_faults(&mut self, now: u64) -> Result<bool, Failure> {
        let mut worked = false;
        for (index, pager) in self.pagers.iter_mut().enumerate() {
            let Some(host) = self.process.hosts.get_mut(index) else {
                continue;
            };
            let mut any = false;
            while let Some(record) = host.driver.poll_event(&mut pager.eq) {
                let due = now.saturating_add(pager.delay);
                pager.waiting.push_back((due, record));
                (any, worked) = (true, true);
            }
            if any {
                host.driver.arm_eq(&pager.eq);
            }
            while pager.waiting.front().is_some_and(|(at, _)| *at <= now)
                && let Some((_, record)) = pager.waiting.pop_front()
            {
                worked = true;
                self.report.faults = self.report.faults.saturating_add(1);
                let key = record.key.get();
                let sides = self
                    .flows
                    .iter_mut()
                    .flat_map(|flow| [&mut flow.requester, &mut flow.responder]);
                let mut of_host = sides.filter(|side| side.host == index);
                if let Some(side) = of_host.find(|side| side.region.key == key) {
                    side.region.answer(&mut host.driver, &record)?;
                }
            }
        }
        Ok(worked)
    }

    fn take_completions(&mut self) -> Result<(), Failure> {
        for (index, flow) in self.flows.iter_mut().enumerate() {
            if let Some(host) = self.process.hosts.get_mut(flow.requester.host) {
                while let Some(cqe) = host.driver.poll(&mut flow.requester.cq) {
                    if cqe.status != SUCCESS {
                        return Err(Failure::Status(index, cqe.status, cqe.vendor_err));
                    }
                    flow.ended = flow.ended.saturating_add(1);
                }
            }
            if let Some(host) = self.process.hosts.get_mut(flow.responder.host) {
                while let Some(cqe) = host.driver.poll(&mut flow.responder.cq) {
                    if cqe.status != SUCCESS {
                        return Err(Failure::Status(index, cqe.status, cqe.vendor_err));
                    }
                    flow.received = flow.received.saturating_add(1);
                }
            }
        }
        Ok(())
    }

    fn judge(mut self, start: u64) -> Result<Report, Failure> {
        if self.process.is_stuck() {
            return Err(Failure::Stuck);
        }
        self.take_completions()?;
        for (index, flow) in self.flows.iter().enumerate() {
            let wanted = flow.plan.requests.len();
            if flow.ended != wanted {
                return Err(Failure::Completions(index, flow.ended, wanted));
            }
            let wanted = flow.plan.sends();
            if flow.received != wanted {
                return Err(Failure::Completions(index, flow.received, wanted));
            }
        }
        for (index, flow) in self.flows.iter().enumerate() {
            let [requester, responder] = expected(index, flow.plan);
            for (side, name, expected) in [
                (&flow.requester, "sink of READs", requester),
                (&flow.responder, "sink of WRITEs and SENDs", responder),
            ] {
                let Some(host) = self.process.hosts.get(side.host) else {
                    continue;
                };
                let content = side.region.content(&host.driver);
                let mut octets = content.iter().zip(&expected);
                if let Some(offset) = octets.position(|(is, wanted)| is != wanted) {
                    return Err(Failure::Data(index, name, offset));
                }
                if !side.region.is_unused_untouched(&host.driver) {
                    return Err(Failure::UnusedPage(side.host));
                }
            }
        }
        let watched = self.process.watched();
        if !watched.violations.is_empty() {
            return Err(Failure::Packets(watched.violations));
        }
        Ok(Report {
            packets: watched.packets,
            dropped: watched.dropped,
            time: self.process.now().saturating_sub(start),
            hash: watched.hash,
            ..self.report
        })
    }
}

fn sides<'a>(flows: &'a [RunningFlow<'_>]) -> impl Iterator<Item = &'a Side> {
    flows
        .iter()
        .flat_map(|flow| [&flow.requester, &flow.responder])
}

/// The place in the sink of what is at this place of a source.
fn sink(at: u32) -> u64 {
    PART.saturating_add(at.into())
}

/// The place of a SEND, counted from 0.
fn sink_of_send(slot: usize) -> u64 {
    let slots = PART.checked_div(MESSAGE.into()).unwrap_or(1);
    let slot = (slot as u64).checked_rem(slots).unwrap_or(0);
    PART.saturating_mul(2)
        .saturating_add(slot.saturating_mul(MESSAGE.into()))
}

/// What the regions of both sides have at the end.
fn expected(index: usize, flow: &Flow) -> [Vec<u8>; 2] {
    let source = |side| (0..PART).map(move |offset| octet(index, side, offset));
    let len = usize::try_from(PART.saturating_mul(3)).unwrap_or(0);
    let [mut requester, mut responder] = [0, 1].map(|side| {
        let mut all: Vec<u8> = source(side).collect();
        all.resize(len, 0);
        all
    });
    let copy = |from: &[u8], at: u32, to: &mut [u8], place: u64, len: u32| {
        let (at, place) = (at as usize, usize::try_from(place).unwrap_or(0));
        let len = len as usize;
        if let (Some(to), Some(from)) = (
            to.get_mut(place..place.saturating_add(len)),
            from.get(at..at.saturating_add(len)),
        ) {
            to.copy_from_slice(from);
        }
    };
    let mut slot = 0usize;
    for request in &flow.requests {
        match *request {
            Request::Write(at, len) => copy(&requester, at, &mut responder, sink(at), len),
            Request::Read(at, len) => copy(&responder, at, &mut requester, sink(at), len),
            Request::Send(at, len) => {
                copy(&requester, at, &mut responder, sink_of_send(slot), len);
                slot = slot.saturating_add(1);
            }
        }
    }
    [requester, responder]
}

/// Runs a plan.
///
/// # Errors
/// Something that must hold did not.
pub fn run(plan: &Plan) -> Result<Report, Failure> {
    Run::new(plan)?.run()
}
