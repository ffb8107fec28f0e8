//! The oracle: finds the connection of a packet, and keeps the violations.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;

use faultline_wire::ip::CONGESTION_EXPERIENCED;
use faultline_wire::packet::{Parsed, RoceHeader, parse_trusted};
use faultline_wire::{Bth, GSI_QPN, Gid, NakCode, OpKind, Psn, Service, Syndrome, WireError};

use crate::connection_manager::ConnectionManager;
use crate::finding::{Finding, addresses};
use crate::flow::{Adapter, FLOW_LIMIT, Flow, Key, PARTITION, Sender, is_connected};
use crate::frame::{Frame, Place, QueuePair};
use crate::log::FAR;
use crate::order::Presupposed;
use crate::packet::{Report, Seen};
use crate::recent::Recent;
use crate::rule::{Rule, Severity};

/// Most violations that are kept of each adapter, and of packets whose adapter is not known.
pub const VIOLATION_LIMIT: u64 = 1000;

/// Most remarks that are kept of each rule.
pub const REMARK_LIMIT: u64 = 10;

/// Opcodes of reliable datagrams, and from where on they are manufacturers' (IBTA table 38). Neither is judged.
const RELIABLE_DATAGRAMS: RangeInclusive<u8> = 0x40..=0x5f;
const MANUFACTURERS: u8 = 0xc0;

/// Responses to a queue pair whose flow is looked for.
const ATTEMPT_LIMIT: u32 = 64;

/// The two ends of a response: which requester it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ResponseKey {
    from: Gid,
    to: Gid,
    /// Queue pair of the requester.
    qpn: u32,
}

/// What a response belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfResponse {
    Flow(Key),
    /// A flow that is not judged.
    Mixed,
}

/// Checks packets.
#[derive(Debug)]
pub struct Oracle {
    place: Place,
    flows: Recent<Key, Flow, FLOW_LIMIT>,
    /// The flow that responses to a queue pair belong to.
    answers: Recent<ResponseKey, Key, FLOW_LIMIT>,
    /// Attempts to find the flow of responses, until one succeeds.
    attempts: HashMap<ResponseKey, u32>,
    /// By the adapter that has sent or received them: messages of the connection manager. `None`: neither is known.
    connections: HashMap<Option<Adapter>, ConnectionManager>,
    /// Senders and receivers of packets that have arrived with a mark of congestion.
    marked: HashSet<(Gid, Gid)>,
    /// Adapters that have agreed to READY with each other.
    ready: HashSet<Adapter>,
    /// All adapters have.
    all_ready: bool,
    /// Adapters behind a path that loses packets before they can be passed.
    remote: HashSet<Adapter>,
    /// Packets were lost before they could be passed.
    has_lost: bool,
    /// Queue pairs whose connections have begun since then.
    renewed: HashSet<(Adapter, u32)>,
    frames: u64,
    packets: u64,
    responses_without_flow: u64,
    mixed: u64,
    /// Nothing is known of the makers of the adapters.
    has_any_makers: bool,
    violations: Vec<Finding>,
    remarks: Vec<Finding>,
    counts: BTreeMap<Rule, u64>,
    /// Number of violations by adapter.
    by_adapter: BTreeMap<Option<Adapter>, u64>,
}

impl Oracle {
    /// An oracle that has seen nothing.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            flows: Recent::default(),
            answers: Recent::default(),
            attempts: HashMap::new(),
            connections: HashMap::new(),
            marked: HashSet::new(),
            ready: HashSet::new(),
            all_ready: false,
            remote: HashSet::new(),
            has_lost: false,
            renewed: HashSet::new(),
            frames: 0,
            packets: 0,
            responses_without_flow: 0,
            mixed: 0,
            has_any_makers: false,
            violations: Vec::new(),
            remarks: Vec::new(),
            counts: BTreeMap::new(),
            by_adapter: BTreeMap::new(),
        }
    }

    /// Packets that were judged.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Responses that were not judged because the queue pair that has sent them could not be told.
    pub fn responses_without_flow(&self) -> u64 {
        self.responses_without_flow
    }

    /// The violations, [`VIOLATION_LIMIT`] of each adapter at most.
    pub fn violations(&self) -> &[Finding] {
        &self.violations
    }

    /// What is suspicious, and notes: of each rule the first [`REMARK_LIMIT`].
    pub fn remarks(&self) -> &[Finding] {
        &self.remarks
    }

    /// Packets that were judged by themselves only: several adapters, software and an adapter, or several queue pairs have sent with the
    /// addresses and numbers of their connection.
    pub fn mixed(&self) -> u64 {
        self.mixed
    }

    /// Number of all findings of this severity.
    pub fn count(&self, severity: Severity) -> u64 {
        let counts = self.counts.iter();
        let counts = counts.filter(|(rule, _)| rule.severity() == severity);
        counts.map(|(_, count)| *count).sum()
    }

    /// Number of findings of each rule.
    pub fn counts(&self) -> &BTreeMap<Rule, u64> {
        &self.counts
    }

    /// Number of violations by packets that an adapter has sent; `None`: of packets whose adapter is not known.
    pub fn count_of(&self, adapter: Option<usize>) -> u64 {
        self.by_adapter.get(&adapter).copied().unwrap_or_default()
    }

    /// Says whether an adapter has agreed to READY with the others of which this was said. Without a call it has not.
    pub fn set_ready(&mut self, adapter: usize, agreed: bool) {
        if agreed {
            self.ready.insert(adapter);
        } else {
            self.ready.remove(&adapter);
        }
    }

    /// Says that all adapters have agreed to READY.
    pub fn set_all_ready(&mut self) {
        self.all_ready = true;
    }

    /// Says that nothing is known of the makers of adapters: the opcode of READY may be another manufacturer's.
    pub fn set_any_makers(&mut self) {
        self.has_any_makers = true;
    }

    /// Says that packets of an adapter are seen behind a path that may lose some of them: what they skip violates nothing. A packet
    /// that violates a rule by itself, or one about packets that were seen, does. Requests to the adapter are judged as on a link.
    pub fn set_remote(&mut self, adapter: usize) {
        self.remote.insert(adapter);
    }

    /// Counts a frame that is not judged.
    pub fn skip(&mut self) {
        self.frames = self.frames.saturating_add(1);
    }

    /// A frame passes a link. It is judged, and may arrive.
    pub fn passed<'a>(&mut self, at: u64, frame: impl Into<Frame<'a>>) {
        self.pass(at, None, frame.into());
    }

    /// A frame arrives at an adapter. It is judged, and nothing is known of its sender.
    pub fn passed_to<'a>(&mut self, at: u64, adapter: usize, frame: impl Into<Frame<'a>>) {
        self.pass(at, Some(adapter), frame.into());
    }

    fn pass(&mut self, at: u64, to: Option<Adapter>, frame: Frame<'_>) {
        self.judge(at, Sender::Unknown, None, frame);
        self.arrive(at, to, frame, false);
    }

    /// An adapter sends a frame that software has made. It is judged, and not charged to the adapter.
    pub fn sent_by_software<'a>(&mut self, at: u64, adapter: usize, frame: impl Into<Frame<'a>>) {
        self.judge(at, Sender::Software(adapter), None, frame.into());
    }

    /// An adapter sends a frame, from `queue_pair` if that is known.
    pub fn sent<'a>(
        &mut self,
        at: u64,
        adapter: usize,
        queue_pair: Option<QueuePair>,
        frame: impl Into<Frame<'a>>,
    ) {
        self.judge(at, Sender::Adapter(adapter), queue_pair, frame.into());
    }

    /// A frame arrives at an adapter.
    pub fn received<'a>(&mut self, at: u64, adapter: usize, frame: impl Into<Frame<'a>>) {
        self.arrive(at, Some(adapter), frame.into(), false);
    }

    /// A frame arrives at an adapter whose ingress waits, for a page fault: it is executed later.
    pub fn held<'a>(&mut self, at: u64, adapter: usize, frame: impl Into<Frame<'a>>) {
        self.arrive(at, Some(adapter), frame.into(), true);
    }

    /// A queue pair of an adapter is made or reset: its next packets belong to another connection.
    pub fn renew(&mut self, adapter: usize, qpn: u32) {
        let is_of = |key: &Key, flow: &Flow| {
            let is_responder = flow.to_adapter == Some(adapter) && key.qpn == qpn;
            let is_requester =
                flow.requester == Sender::Adapter(adapter) && flow.from_qpn == Some(qpn);
            is_responder || is_requester
        };
        self.flows.retain(|key, flow| !is_of(key, flow));
        let flows = &self.flows;
        self.answers.retain(|_, key| flows.contains(key));
        if self.has_lost && self.renewed.len() < FLOW_LIMIT {
            self.renewed.insert((adapter, qpn));
        }
    }

    /// Packets were lost before they could be passed: what is known of connections may be wrong, and is forgotten. Of connections that
    /// have begun before, the first packets that are passed now may repeat some that were lost.
    pub fn forget(&mut self) {
        self.forget_past();
        self.flows.clear();
        self.answers.clear();
        self.attempts.clear();
        self.connections.clear();
        self.marked.clear();
    }

    /// Connections that begin for the oracle may have begun before, unless they are renewed.
    fn forget_past(&mut self) {
        self.has_lost = true;
        self.renewed.clear();
    }

    /// Sets the number of the next frame, if frames are not passed in the order of the capture.
    pub fn set_number(&mut self, number: u64) {
        self.frames = number.saturating_sub(1);
    }

    /// Notes that the frame that was passed last stands before one, with this number, that it presupposes.
    pub fn note_order<'a>(&mut self, at: u64, frame: impl Into<Frame<'a>>, later: u64) {
        let header = frame.into().parse().ok().map(|parsed| parsed.header);
        let what = format!("frame {later}, which was sent before it, is behind it");
        self.keep((at, None), header, (Rule::Reordered, what));
    }

    /// A request that a frame presupposes, and that was not passed: the one before a request, or the one that a response answers.
    pub fn awaits<'a>(&self, frame: impl Into<Frame<'a>>) -> Option<Presupposed> {
        let header = parse_trusted(frame.into().octets()).ok()?.header;
        let (from, to) = addresses(&header);
        let info = header.bth.opcode.info();
        let (qpn, psn) = (header.bth.dest_qp, header.bth.psn);
        if info.kind.is_request() && is_connected(info.service) {
            let next = self.flows.get(&Key { from, to, qpn })?.next()?;
            let qpn = Some(qpn);
            return is_ahead(psn, next).then_some(Presupposed {
                from,
                to,
                qpn,
                psn: next,
            });
        }
        if !info.kind.is_response() || info.kind == OpKind::Ready {
            return None;
        }
        let requests = |qpn, psn| Presupposed {
            from: to,
            to: from,
            qpn,
            psn,
        };
        let answer = ResponseKey { from, to, qpn };
        if let Some(key) = self.answers.get(&answer) {
            let next = self.flows.get(key)?.next()?;
            // A sequence NAK names the request that is missing.
            let is_early = is_ahead(psn.next(), next) && !is_sequence_nak(&header);
            return is_early.then(|| requests(Some(key.qpn), next));
        }
        let attempts = self.attempts.get(&answer);
        if attempts.is_some_and(|attempts| *attempts >= ATTEMPT_LIMIT) {
            return None;
        }
        let is_sent =
            |(key, flow): (&Key, &Flow)| (key.from, key.to) == (to, from) && flow.has_sent(&header);
        (!self.flows.iter().any(is_sent)).then(|| requests(None, psn))
    }

    fn judge(&mut self, at: u64, sender: Sender, queue_pair: Option<QueuePair>, frame: Frame<'_>) {
        self.skip();
        let adapter = sender.adapter();
        let parsed = match frame.parse() {
            Ok(parsed) => parsed,
            // Not of RDMA.
            Err(WireError::NotRoce) => return,
            Err(WireError::UnknownOpcode(opcode)) if is_unjudged(opcode) => {
                self.note_opcode((at, adapter), None, opcode);
                return;
            }
            Err(error) => {
                self.packets = self.packets.saturating_add(1);
                let finding = (Rule::WellFormed, error.to_string());
                self.keep((at, adapter), None, finding);
                return;
            }
        };
        if parsed.header.bth.opcode.info().service == Service::Manufacturer
            && self.has_any_makers
            && !self.all_ready
        {
            let opcode = parsed.header.bth.opcode.to_u8();
            self.note_opcode((at, adapter), Some(parsed.header), opcode);
            return;
        }
        self.packets = self.packets.saturating_add(1);
        let mut findings = Vec::new();
        let mut report = |finding| findings.push(finding);
        crate::packet::check(&parsed, frame.octets(), &mut report);
        let seen = Seen {
            at,
            is_exact: self.place == Place::Adapter,
            may_have_gaps: adapter.is_some_and(|adapter| self.remote.contains(&adapter)),
        };
        let opcode = parsed.header.bth.opcode;
        if opcode.info().kind == OpKind::Cnp {
            self.judge_cnp(&parsed.header, &mut report);
        } else if opcode.is_response() {
            self.judge_response(seen, (sender, queue_pair), &parsed, &mut report);
        } else if is_connected(opcode.info().service) {
            let pair = adapter.and_then(|adapter| Some((adapter, queue_pair?.qpn)));
            let has_past = self.has_lost && !pair.is_some_and(|pair| self.renewed.contains(&pair));
            let seen = Seen {
                is_exact: seen.is_exact && !self.is_to_remote(&parsed.header),
                ..seen
            };
            let header = &parsed.header;
            self.restore_flow(header, &mut report);
            if let Some(flow) = self.flow_of_request(header, has_past, sender, queue_pair) {
                if adapter.is_some() {
                    flow.learn_mac(&parsed.header);
                }
                flow.request_sent(seen, &parsed, &mut report);
            }
        } else {
            self.read_message(sender.place(), frame, &parsed);
        }
        for finding in findings {
            self.keep((at, adapter), Some(parsed.header), finding);
        }
    }

    fn judge_response(
        &mut self,
        seen: Seen,
        (sender, queue_pair): (Sender, Option<QueuePair>),
        parsed: &Parsed<'_>,
        report: &mut dyn FnMut(Report),
    ) {
        let (adapter, kind) = (sender.adapter(), parsed.header.bth.opcode.info().kind);
        let key = self.flow_of_response(&parsed.header, sender, queue_pair);
        if key == Some(OfResponse::Mixed) {
            self.mixed = self.mixed.saturating_add(1);
        } else if let Some(OfResponse::Flow(key)) = key
            && let Some(flow) = self.flows.get_mut(&key)
        {
            if adapter.is_some() {
                flow.learn_mac(&parsed.header);
            }
            if kind == OpKind::Ready {
                let ends = [adapter, flow.requester.adapter()];
                let has_agreed =
                    |end: &Option<Adapter>| end.is_some_and(|end| self.ready.contains(&end));
                if !self.all_ready && !ends.iter().all(has_agreed) {
                    report((
                        Rule::Ready,
                        "the adapters have not agreed to READY".to_owned(),
                    ));
                }
            }
            flow.response_sent(seen, parsed, report);
        } else {
            let knows = self.all_ready || adapter.is_some_and(|from| self.ready.contains(&from));
            if kind == OpKind::Ready && !knows {
                report((
                    Rule::Ready,
                    "nothing is known of a connection to which it belongs".to_owned(),
                ));
            }
            self.responses_without_flow = self.responses_without_flow.saturating_add(1);
        }
    }

    /// Reads a message of the connection manager that an adapter sends or receives. Others may have forged it: it is of no meaning to
    /// other adapters.
    fn read_message(&mut self, place: Option<Adapter>, frame: Frame<'_>, parsed: &Parsed<'_>) {
        if parsed.header.bth.dest_qp == GSI_QPN && !frame.has_only_headers() && parsed.icrc_ok {
            let (from, to) = addresses(&parsed.header);
            let messages = self.connections.entry(place).or_default();
            messages.sent(from, to, parsed.payload);
        }
    }

    fn judge_cnp(&self, header: &RoceHeader, report: &mut dyn FnMut(Report)) {
        let (from, to) = addresses(header);
        if self.place == Place::Adapter && !self.marked.contains(&(to, from)) {
            report((
                Rule::Cnp,
                "no packet of the receiver has arrived with a mark of congestion".to_owned(),
            ));
        }
    }

    fn arrive(&mut self, at: u64, adapter: Option<Adapter>, frame: Frame<'_>, is_held: bool) {
        let Ok(parsed) = frame.parse() else {
            return;
        };
        if !parsed.icrc_ok {
            return;
        }
        let header = &parsed.header;
        // The iCRC does not cover the Ethernet header. Adapters drop what is for a queue pair and was sent to a group.
        if header.ethernet.dst.is_multicast() && header.bth.opcode.info().service != Service::Ud {
            return;
        }
        let (from, to) = addresses(header);
        if header.ip.ecn() == CONGESTION_EXPERIENCED && self.marked.len() < FLOW_LIMIT {
            self.marked.insert((from, to));
        }
        let opcode = header.bth.opcode;
        if opcode.is_response() {
            let qpn = header.bth.dest_qp;
            if let Some(key) = self.answers.get(&ResponseKey { from, to, qpn })
                && let Some(flow) = self.flows.get_mut(key)
                && flow.has_mac(header)
            {
                flow.response_received(at, &parsed, is_held);
            }
        } else if is_connected(opcode.info().service) {
            let qpn = header.bth.dest_qp;
            // Those of other partitions may be dropped.
            let is_taken = header.bth.pkey & PARTITION == Bth::DEFAULT_PKEY & PARTITION;
            if is_taken
                && let Some(flow) = self.flows.get_mut(&Key { from, to, qpn })
                && flow.has_mac(header)
            {
                flow.to_adapter = adapter.or(flow.to_adapter);
                flow.request_received(&parsed);
            }
        } else if adapter.is_some() {
            self.read_message(adapter, frame, &parsed);
        }
    }

    /// True if a request goes to an adapter some of whose responses may not have been seen.
    fn is_to_remote(&self, header: &RoceHeader) -> bool {
        let (from, to) = addresses(header);
        let qpn = header.bth.dest_qp;
        let is_remote = |flow: &Flow| flow.to_adapter.is_some_and(|to| self.remote.contains(&to));
        !self.remote.is_empty()
            && self
                .flows
                .get(&Key { from, to, qpn })
                .is_some_and(is_remote)
    }

    /// A single request with a distant PSN has begun no other connection if the next one continues the former.
    fn restore_flow(&mut self, header: &RoceHeader, report: &mut dyn FnMut(Report)) {
        let (from, to) = addresses(header);
        let qpn = header.bth.dest_qp;
        let key = Key { from, to, qpn };
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        let Some(before) = flow.before.take() else {
            return;
        };
        if !flow.is_far(header) || before.is_far(header) {
            return;
        }
        if let Some(last) = flow.next() {
            let last = last.prev().get();
            report((
                Rule::RequestPsn,
                format!("the request before it has PSN {last}, which is far from this one"),
            ));
        }
        *flow = *before;
    }

    /// The flow of a request, which begins if there is none. `has_past`: packets of it may have been lost before. `None`: it is not judged.
    fn flow_of_request(
        &mut self,
        header: &RoceHeader,
        mut has_past: bool,
        sender: Sender,
        queue_pair: Option<QueuePair>,
    ) -> Option<&mut Flow> {
        let (from, to) = addresses(header);
        let qpn = header.bth.dest_qp;
        let key = Key { from, to, qpn };
        let mut before = None;
        if let Some(flow) = self.flows.get_mut(&key) {
            // Of the first packets after the beginning of a capture the sender may not be known.
            let was_unknown = flow.requester == Sender::Unknown && sender != Sender::Unknown;
            let is_on_link = self.place == Place::Link;
            let is_other = |pair: QueuePair| flow.from_qpn.is_some_and(|qpn| qpn != pair.qpn);
            let has_other_qpn = queue_pair.is_some_and(is_other);
            flow.is_mixed |= !was_unknown && flow.requester != sender;
            flow.is_mixed |= is_on_link && has_other_qpn;
            if flow.is_mixed {
                self.mixed = self.mixed.saturating_add(1);
                return None;
            }
            // In a capture nothing tells that a queue pair has a new connection. If it has none, its responder knows more of it. A responder
            // outside of the process may have been reset: its queue pair has the number of a former one then.
            let is_far = is_on_link && flow.is_far(header);
            if was_unknown || has_other_qpn || is_far {
                before = self.flows.remove(&key).filter(|_| is_far).map(Box::new);
                self.answers.retain(|_, other| *other != key);
                has_past = true;
            }
        }
        if !self.flows.contains(&key) {
            let messages = self.connections.get_mut(&sender.place());
            let agreed_limit = messages.and_then(|said| said.begin(&key, header.bth.psn));
            let mut flow = Flow::new(sender, has_past, agreed_limit);
            if let Some(before) = before {
                flow.continue_from(before);
            }
            if let Some(oldest) = self.flows.insert(key, flow) {
                self.answers.retain(|_, other| *other != oldest);
                // It may come back.
                self.forget_past();
            }
        }
        let flow = self.flows.get_mut(&key)?;
        flow.set_read_limit(queue_pair.and_then(|pair| pair.read_limit));
        if let Some(QueuePair { qpn, mtu, .. }) = queue_pair {
            flow.from_qpn = Some(qpn);
            flow.set_mtu(mtu);
            // Responses to this queue pair are of this connection, also those that have left before this request was seen.
            let answer = ResponseKey {
                from: to,
                to: from,
                qpn,
            };
            self.answers.insert(answer, key);
        }
        Some(flow)
    }

    /// The flow that a response belongs to. The number of its sender is not in the packet. If it was not passed, the flow is
    /// that of the queue pair to which it goes; or, if numbers of requesters were not passed either, the only one between these
    /// adapters that has sent a request with this PSN and has no answers yet. `None`: there is none.
    fn flow_of_response(
        &mut self,
        header: &RoceHeader,
        sender: Sender,
        queue_pair: Option<QueuePair>,
    ) -> Option<OfResponse> {
        let (from, to) = addresses(header);
        let answer = ResponseKey {
            from,
            to,
            qpn: header.bth.dest_qp,
        };
        let known = self.answers.get(&answer).copied();
        if let Some(flow) = known.and_then(|key| self.flows.get_mut(&key))
            && !flow.is_answered_by(sender)
        {
            return Some(OfResponse::Mixed);
        }
        if let Some(QueuePair { qpn, mtu, .. }) = queue_pair {
            let key = Key {
                from: to,
                to: from,
                qpn,
            };
            let flow = self.flows.get_mut(&key)?;
            if !flow.is_answered_by(sender) {
                return Some(OfResponse::Mixed);
            }
            flow.set_mtu(mtu);
            self.answers.insert(answer, key);
            return Some(OfResponse::Flow(key));
        }
        if let Some(key) = known {
            return Some(OfResponse::Flow(key));
        }
        // Each attempt looks at all flows.
        if self.attempts.len() >= FLOW_LIMIT && !self.attempts.contains_key(&answer) {
            return None;
        }
        let attempts = self.attempts.entry(answer).or_default();
        if *attempts >= ATTEMPT_LIMIT {
            return None;
        }
        *attempts = attempts.saturating_add(1);
        let fits = |(key, flow): &(&Key, &Flow)| {
            let is_between = key.from == to && key.to == from;
            let is_open = flow.from_qpn.is_none() && !flow.is_answered;
            is_between && is_open && flow.has_sent(header)
        };
        let mut fitting = self.flows.iter().filter(fits).map(|(key, _)| *key);
        let key = fitting.next()?;
        if fitting.next().is_some() {
            return None;
        }
        self.attempts.remove(&answer);
        self.answers.insert(answer, key);
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.is_answered = true;
        }
        Some(OfResponse::Flow(key))
    }

    fn note_opcode(
        &mut self,
        place: (u64, Option<Adapter>),
        header: Option<RoceHeader>,
        opcode: u8,
    ) {
        let whose = match opcode {
            MANUFACTURERS.. => "a manufacturer's",
            _ => "of reliable datagrams",
        };
        let what = format!("the opcode {opcode:#04x} is {whose}, and not judged");
        self.keep(place, header, (Rule::UnjudgedOpcode, what));
    }

    fn keep(
        &mut self,
        (at, adapter): (u64, Option<Adapter>),
        header: Option<RoceHeader>,
        (rule, what): Report,
    ) {
        let finding = Finding {
            at,
            frame: self.frames,
            adapter,
            rule,
            header,
            what,
        };
        let count = self.counts.entry(rule).or_default();
        *count = count.saturating_add(1);
        if rule.severity() != Severity::Violation {
            if *count <= REMARK_LIMIT {
                self.remarks.push(finding);
            }
            return;
        }
        let of_adapter = self.by_adapter.entry(adapter).or_default();
        *of_adapter = of_adapter.saturating_add(1);
        if *of_adapter <= VIOLATION_LIMIT {
            self.violations.push(finding);
        }
    }
}

/// True if a PSN is behind the next one, and not far.
fn is_ahead(psn: Psn, next: Psn) -> bool {
    let ahead = psn.diff(next);
    ahead > 0 && ahead.unsigned_abs() <= FAR
}

fn is_sequence_nak(header: &RoceHeader) -> bool {
    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
    header.aeth.is_some_and(|aeth| aeth.syndrome == nak)
}

/// True for opcodes of packets about which nothing is known.
fn is_unjudged(opcode: u8) -> bool {
    opcode >= MANUFACTURERS || RELIABLE_DATAGRAMS.contains(&opcode)
}

#[cfg(test)]
mod tests {
    use faultline_wire::packet::seal;
    use faultline_wire::{Aeth, Bth, Ip, MacAddr, Opcode, Psn, Syndrome};

    use super::*;

    /// Requests from and responses to any number of queue pairs leave the table of responses bounded. A connection that is pushed out
    /// of it comes back with its next request.
    #[test]
    fn packets_with_any_queue_pair_fill_no_table() {
        /// First queue pair of the responder. A request of another queue pair to the same one begins another connection.
        const QPN: u32 = 1 << 21;
        /// Queue pairs of the other connection.
        const OTHER: [u32; 2] = [1 << 20, 18];
        let mut oracle = Oracle::new(Place::Adapter);
        let pass = |oracle: &mut Oracle, from: u8, opcode, dest_qp, sender: Option<u32>| {
            let gid = |adapter: u8| Gid::from_ipv4([10, 0, 0, adapter]);
            let mac = |adapter: u8| MacAddr([2, 0, 0, 0, 0, adapter]);
            let ip = Ip::from_gids(gid(from), gid(1 - from), 0, 0, 64);
            let bth = Bth::new(opcode, dest_qp, Psn::new(1));
            let mut header = RoceHeader::new(mac(1 - from), mac(from), ip, bth);
            header.aeth = opcode.is_response().then_some(Aeth {
                syndrome: Syndrome::ACK,
                msn: 1,
            });
            let mut frame = vec![0; header.frame_len(0)];
            header.emit(0, &mut frame).unwrap();
            seal(&mut frame).unwrap();
            let queue_pair = sender.map(|qpn| QueuePair {
                qpn,
                mtu: None,
                read_limit: None,
            });
            oracle.sent(0, from.into(), queue_pair, &frame);
        };
        let request = |oracle: &mut Oracle, qpn, sender| {
            pass(oracle, 0, Opcode::RcSendOnly, qpn, Some(sender));
        };
        request(&mut oracle, OTHER[1], OTHER[0]);
        for number in 0..3 * u32::try_from(FLOW_LIMIT).unwrap() {
            request(&mut oracle, QPN + number, number);
            pass(
                &mut oracle,
                1,
                Opcode::RcAcknowledge,
                number,
                Some(QPN + number),
            );
        }
        assert_eq!(oracle.flows.iter().count(), FLOW_LIMIT);
        assert_eq!(oracle.answers.iter().count(), FLOW_LIMIT);
        request(&mut oracle, OTHER[1], OTHER[0]);
        pass(&mut oracle, 1, Opcode::RcAcknowledge, OTHER[0], None);
        assert_eq!(oracle.responses_without_flow(), 0);
    }
}
