//! The checker: finds the connection of a packet, and keeps the violations.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::RangeInclusive;

use faultline_wire::ip::CONGESTION_EXPERIENCED;
use faultline_wire::packet::{Parsed, RoceHeader, parse_trusted};
use faultline_wire::{
    Bth, GSI_QPN, Gid, NakCode, OpKind, PeerQuery, Psn, Service, Syndrome, WireError,
};

use crate::finding::{Finding, addresses};
use crate::findings::Findings;
use crate::flow::{Adapter, FLOW_LIMIT, Flow, Key, PARTITION, Sender, is_connected};
use crate::frame::{Frame, Place, QueuePair};
use crate::iwarp::{Judged, Origin, SegmentHeader, Streams};
use crate::log::FAR;
use crate::memory;
use crate::order::Presupposed;
use crate::packet::{Report, Seen};
use crate::rule::{Rule, Severity};
use crate::tracks::{ResponseKey, Tracks};

/// Opcodes of reliable datagrams, and from where on they are manufacturers' (IBTA table 38). Neither is judged.
const RELIABLE_DATAGRAMS: RangeInclusive<u8> = 0x40..=0x5f;
const MANUFACTURERS: u8 = 0xc0;

/// Divisors of the memory budget: the shares of findings and of iWARP connections, and a reserve for attempts and for flows that grow
/// before memory is released.
const FINDINGS: usize = 4;
const STREAMS: usize = 16;
const RESERVE: usize = 32;

/// Maximum number of responses to a queue pair for which the checker searches the flow.
const ATTEMPT_LIMIT: u32 = 64;

/// The flow of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfResponse {
    Flow(Key),
    /// A flow that is not judged.
    Mixed,
}

/// Headers of the frame of a finding.
#[derive(Clone, Copy, Debug)]
enum Headers {
    None,
    Roce(RoceHeader),
    Segment(SegmentHeader),
}

impl Headers {
    fn of(header: Option<RoceHeader>) -> Self {
        header.map_or(Self::None, Self::Roce)
    }
}

/// Checks packets.
#[derive(Debug)]
pub struct Checker {
    place: Place,
    tracks: Tracks,
    streams: Streams,
    /// Failed searches for the flow of responses, by their ends.
    attempts: BTreeMap<ResponseKey, u32>,
    /// Senders and receivers of packets that have arrived with an ECN mark.
    marked: HashSet<(Gid, Gid)>,
    /// Adapters that exchange READY.
    ready: HashSet<Adapter>,
    /// All adapters exchange READY.
    all_ready: bool,
    /// Requesters that have answered the peer query of their responder: it may send them READY. [`FLOW_LIMIT`] at most.
    answers: BTreeSet<ResponseKey>,
    /// Adapters behind a path that loses packets before they can be passed.
    remote: HashSet<Adapter>,
    frames: u64,
    packets: u64,
    segments: u64,
    unjudged_segments: u64,
    responses_without_flow: u64,
    mixed: u64,
    /// The manufacturers of the adapters are unknown.
    has_any_makers: bool,
    findings: Findings,
}

impl Checker {
    /// Creates a checker without packets.
    pub fn new(place: Place) -> Self {
        Self {
            place,
            tracks: Tracks::default(),
            streams: Streams::default(),
            attempts: BTreeMap::new(),
            marked: HashSet::new(),
            ready: HashSet::new(),
            all_ready: false,
            answers: BTreeSet::new(),
            remote: HashSet::new(),
            frames: 0,
            packets: 0,
            segments: 0,
            unjudged_segments: 0,
            responses_without_flow: 0,
            mixed: 0,
            has_any_makers: false,
            findings: Findings::default(),
        }
    }

    /// Sets the maximum number of bytes of all connections and findings. Without a call only their numbers are limited. Adapters have
    /// equal shares; the unused part of a share is available to the others.
    pub fn limit_memory(&mut self, bytes: usize) {
        let (findings, streams) = (bytes / FINDINGS, bytes / STREAMS);
        self.findings.set_budget(findings);
        self.streams.set_budget(streams);
        let others = [findings, streams, bytes / RESERVE];
        let tracks = others.into_iter().fold(bytes, usize::saturating_sub);
        self.tracks.set_budget(tracks);
    }

    /// Bytes that connections and findings take.
    pub fn bytes(&self) -> usize {
        let attempts = memory::map::<ResponseKey, u32>(self.attempts.len());
        let answers = memory::map::<ResponseKey, ()>(self.answers.len());
        let tracks = self.tracks.bytes();
        let findings = self.findings.bytes();
        let all = [attempts, answers, tracks, findings, self.streams.bytes()];
        all.into_iter().fold(0, usize::saturating_add)
    }

    /// Number of times that data of a connection was discarded because of the memory budget or the limit of connections.
    pub fn forgotten(&self) -> u64 {
        let streams = self.streams.forgotten();
        self.tracks.forgotten().saturating_add(streams)
    }

    /// RoCE packets that were judged.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// TCP segments of iWARP connections that were judged.
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// TCP segments of iWARP connections that were not judged, because the beginning of the connection was not seen, or several senders
    /// have used its addresses and ports.
    pub fn unjudged_segments(&self) -> u64 {
        self.unjudged_segments
    }

    /// Responses that were not judged because the sending queue pair is unknown.
    pub fn responses_without_flow(&self) -> u64 {
        self.responses_without_flow
    }

    /// The violations, [`VIOLATION_LIMIT`](crate::VIOLATION_LIMIT) of each adapter at most.
    pub fn violations(&self) -> &[Finding] {
        self.findings.violations()
    }

    /// Suspicious packets and notes: for each rule the first [`REMARK_LIMIT`](crate::REMARK_LIMIT).
    pub fn remarks(&self) -> &[Finding] {
        self.findings.remarks()
    }

    /// Packets that were judged singly, because several adapters, software and an adapter, or several queue pairs have sent packets with
    /// the addresses and numbers of their connection.
    pub fn mixed(&self) -> u64 {
        self.mixed
    }

    /// Number of all findings of this severity.
    pub fn count(&self, severity: Severity) -> u64 {
        let counts = self.counts().iter();
        let counts = counts.filter(|(rule, _)| rule.severity() == severity);
        counts.map(|(_, count)| *count).sum()
    }

    /// Number of findings of each rule.
    pub fn counts(&self) -> &BTreeMap<Rule, u64> {
        self.findings.counts()
    }

    /// Number of violations by packets that an adapter has sent; `None`: of packets whose adapter is not known.
    pub fn count_of(&self, adapter: Option<usize>) -> u64 {
        self.findings.count_of(adapter)
    }

    /// Sets whether an adapter exchanges READY with the other adapters for which this is set. The default is false. Queue pairs whose
    /// answer to a peer query was passed get READY as well.
    pub fn set_ready(&mut self, adapter: usize, agreed: bool) {
        if agreed {
            self.ready.insert(adapter);
        } else {
            self.ready.remove(&adapter);
        }
    }

    /// States that all adapters exchange READY.
    pub fn set_all_ready(&mut self) {
        self.all_ready = true;
    }

    /// States that the manufacturers of adapters are unknown: the opcode of READY may be another manufacturer's.
    pub fn set_any_makers(&mut self) {
        self.has_any_makers = true;
    }

    /// States that packets of an adapter are seen behind a path that may lose some of them: gaps are no violations. Rules about single
    /// packets and about packets that were seen still apply. Requests to the adapter are judged as on a link.
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

    /// A frame arrives at an adapter. It is judged; its sender is unknown.
    pub fn passed_to<'a>(&mut self, at: u64, adapter: usize, frame: impl Into<Frame<'a>>) {
        self.pass(at, Some(adapter), frame.into());
    }

    fn pass(&mut self, at: u64, to: Option<Adapter>, frame: Frame<'_>) {
        self.judge(at, Sender::Unknown, None, frame);
        self.arrive(at, to, frame, false);
    }

    /// An adapter sends a frame that software has built. It is judged, and violations are not attributed to the adapter.
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

    /// A queue pair of an adapter is created or reset: its next packets belong to another connection.
    pub fn restart_queue_pair(&mut self, adapter: usize, qpn: u32) {
        self.tracks.restart_queue_pair(adapter, qpn);
    }

    /// Packets were lost before they were passed: discards the state of all connections, which may be wrong. The next packets of these
    /// connections may repeat lost ones.
    pub fn forget(&mut self) {
        self.tracks.forget();
        self.streams.forget();
        self.attempts.clear();
        self.marked.clear();
    }

    /// Sets the number of the next frame, if frames are not passed in the order of the capture.
    pub fn set_number(&mut self, number: u64) {
        self.frames = number.saturating_sub(1);
    }

    /// Reports that the last frame presupposes a later one, with number `later`.
    pub fn note_order<'a>(&mut self, at: u64, frame: impl Into<Frame<'a>>, later: u64) {
        let header = frame.into().parse().ok().map(|parsed| parsed.header);
        let what = format!("frame {later}, which was sent before it, is behind it");
        self.keep((at, None), Headers::of(header), (Rule::Reordered, what));
    }

    /// Returns the request that a frame presupposes and that was not passed: the previous request, or the request of a response.
    pub fn awaits<'a>(&self, frame: impl Into<Frame<'a>>) -> Option<Presupposed> {
        let header = parse_trusted(frame.into().octets()).ok()?.header;
        let (from, to) = addresses(&header);
        let info = header.bth.opcode.info();
        let (qpn, psn) = (header.bth.dest_qp, header.bth.psn);
        if info.kind.is_request() && is_connected(info.service) {
            let next = self.tracks.get(&Key { from, to, qpn })?.next()?;
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
        if let Some(key) = self.tracks.answer(&answer) {
            let next = self.tracks.get(&key)?.next()?;
            // A sequence NAK has the PSN of the missing request.
            let is_early = is_ahead(psn.next(), next) && !is_sequence_nak(&header);
            return is_early.then(|| requests(Some(key.qpn), next));
        }
        let attempts = self.attempts.get(&answer);
        if attempts.is_some_and(|attempts| *attempts >= ATTEMPT_LIMIT) {
            return None;
        }
        let is_sent =
            |(key, flow): (&Key, &Flow)| (key.from, key.to) == (to, from) && flow.has_sent(&header);
        (!self.tracks.iter().any(is_sent)).then(|| requests(None, psn))
    }

    fn judge(&mut self, at: u64, sender: Sender, queue_pair: Option<QueuePair>, frame: Frame<'_>) {
        self.skip();
        let adapter = sender.adapter();
        let parsed = match frame.parse() {
            Ok(parsed) => parsed,
            Err(WireError::NotRoce) => {
                self.read_query(frame);
                self.judge_segment(at, sender, queue_pair.is_some(), frame);
                return;
            }
            Err(WireError::UnknownOpcode(opcode)) if is_unjudged(opcode) => {
                self.note_opcode((at, adapter), None, opcode);
                return;
            }
            Err(error) => {
                self.packets = self.packets.saturating_add(1);
                let finding = (Rule::WellFormed, error.to_string());
                self.keep((at, adapter), Headers::None, finding);
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
            let seen = Seen {
                is_exact: seen.is_exact && !self.is_to_remote(&parsed.header),
                ..seen
            };
            let header = &parsed.header;
            self.restore_flow(header, &mut report);
            if let Some(flow) = self.flow_of_request(header, sender, queue_pair) {
                if adapter.is_some() {
                    flow.learn_mac(&parsed.header);
                }
                flow.request_sent(seen, &parsed, &mut report);
                self.tracks.recount(&Key::of_request(header));
            }
        } else {
            self.read_message(sender.place(), frame, &parsed);
        }
        for finding in findings {
            self.keep((at, adapter), Headers::Roce(parsed.header), finding);
        }
    }

    /// Reads a frame that may be a peer query with an answer: its sender executes READY of the other end.
    fn read_query(&mut self, frame: Frame<'_>) {
        let Some((_, query)) = PeerQuery::parse(frame.octets()) else {
            return;
        };
        if query.echo != 0 {
            if self.answers.len() >= FLOW_LIMIT {
                self.answers.pop_first();
            }
            self.answers.insert(ResponseKey {
                from: query.to.gid,
                to: query.from.gid,
                qpn: query.from.qpn,
            });
        }
    }

    /// True if the receiver of a READY has answered the peer query of its sender.
    fn has_answered(&self, header: &RoceHeader) -> bool {
        let (from, to) = addresses(header);
        let qpn = header.bth.dest_qp;
        self.answers.contains(&ResponseKey { from, to, qpn })
    }

    /// Judges a frame that may be a segment of an iWARP connection.
    fn judge_segment(&mut self, at: u64, sender: Sender, is_of_pair: bool, frame: Frame<'_>) {
        let adapter = sender.adapter();
        let origin = Origin {
            sender,
            is_exact: adapter.is_some_and(|adapter| !self.remote.contains(&adapter)),
            is_of_pair,
        };
        let mut findings = Vec::new();
        let mut report = |finding| findings.push(finding);
        let (judged, header) = self.streams.sent(frame, origin, &mut report);
        let count = match judged {
            Judged::Not => return,
            Judged::Yes => &mut self.segments,
            Judged::Unjudged => &mut self.unjudged_segments,
        };
        *count = count.saturating_add(1);
        let headers = header.map_or(Headers::None, Headers::Segment);
        for finding in findings {
            self.keep((at, adapter), headers, finding);
        }
    }

    fn judge_response(
        &mut self,
        seen: Seen,
        (sender, queue_pair): (Sender, Option<QueuePair>),
        parsed: &Parsed<'_>,
        report: &mut dyn FnMut(Report),
    ) {
        let adapter = sender.adapter();
        let is_ready = parsed.header.bth.opcode.info().kind == OpKind::Ready;
        let has_agreed = is_ready && (self.all_ready || self.has_answered(&parsed.header));
        let key = self.flow_of_response(&parsed.header, sender, queue_pair);
        // The answer of an adapter behind a path may have been passed before the first frame, or lost.
        let mut is_unjudged = false;
        if key == Some(OfResponse::Mixed) {
            self.mixed = self.mixed.saturating_add(1);
        } else if let Some(OfResponse::Flow(key)) = key
            && let Some(flow) = self.tracks.get_mut(&key)
        {
            if adapter.is_some() {
                flow.learn_mac(&parsed.header);
            }
            if is_ready && !has_agreed {
                let ends = [adapter, flow.requester.adapter()];
                let is_ready =
                    |end: Option<Adapter>| end.is_some_and(|end| self.ready.contains(&end));
                let is_remote =
                    |end: Option<Adapter>| end.is_some_and(|end| self.remote.contains(&end));
                if ends.into_iter().any(is_remote) {
                    is_unjudged = true;
                } else if !ends.into_iter().all(is_ready) {
                    let what = "the adapters have not agreed to READY";
                    report((Rule::Ready, what.to_owned()));
                }
            }
            flow.response_sent(seen, parsed, report);
            self.tracks.recount(&key);
        } else {
            let knows = |from| self.ready.contains(&from) || self.remote.contains(&from);
            if is_ready && !has_agreed && !adapter.is_some_and(knows) {
                report((
                    Rule::Ready,
                    "nothing is known of a connection to which it belongs".to_owned(),
                ));
            }
            self.responses_without_flow = self.responses_without_flow.saturating_add(1);
        }
        if is_unjudged {
            let opcode = parsed.header.bth.opcode.to_u8();
            self.note_opcode((seen.at, adapter), Some(parsed.header), opcode);
        }
    }

    /// Reads a message of the connection manager that an adapter sends or receives. It may be forged, so it has no effect on other
    /// adapters.
    fn read_message(&mut self, place: Option<Adapter>, frame: Frame<'_>, parsed: &Parsed<'_>) {
        if parsed.header.bth.dest_qp == GSI_QPN && !frame.has_only_headers() && parsed.icrc_ok {
            let ends = addresses(&parsed.header);
            self.tracks.read_message(place, ends, parsed.payload);
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
            self.streams.arrived(frame);
            return;
        };
        if !parsed.icrc_ok {
            return;
        }
        let header = &parsed.header;
        // The iCRC does not cover the Ethernet header. Adapters drop packets of connections that are sent to a group address.
        if header.ethernet.dst.is_multicast() && header.bth.opcode.info().service != Service::Ud {
            return;
        }
        let (from, to) = addresses(header);
        if self.place == Place::Adapter
            && header.ip.ecn() == CONGESTION_EXPERIENCED
            && self.marked.len() < FLOW_LIMIT
        {
            self.marked.insert((from, to));
        }
        let opcode = header.bth.opcode;
        if opcode.is_response() {
            let qpn = header.bth.dest_qp;
            if let Some(key) = self.tracks.answer(&ResponseKey { from, to, qpn })
                && let Some(flow) = self.tracks.get_mut(&key)
                && flow.has_mac(header)
            {
                flow.response_received(at, &parsed, is_held);
                self.tracks.recount(&key);
            }
        } else if is_connected(opcode.info().service) {
            let key = Key::of_request(header);
            // Packets of other partitions may be dropped.
            let is_taken = header.bth.pkey & PARTITION == Bth::DEFAULT_PKEY & PARTITION;
            if is_taken
                && let Some(flow) = self.tracks.get_mut(&key)
                && flow.has_mac(header)
            {
                flow.to_adapter = adapter.or(flow.to_adapter);
                flow.request_received(&parsed);
                self.tracks.recount(&key);
            }
        } else if adapter.is_some() {
            self.read_message(adapter, frame, &parsed);
        }
    }

    /// True if a request goes to an adapter some of whose responses may not have been seen.
    fn is_to_remote(&self, header: &RoceHeader) -> bool {
        let is_remote = |flow: &Flow| flow.to_adapter.is_some_and(|to| self.remote.contains(&to));
        !self.remote.is_empty()
            && self
                .tracks
                .get(&Key::of_request(header))
                .is_some_and(is_remote)
    }

    /// If the request after one with a distant PSN continues the former connection, no other connection has begun.
    fn restore_flow(&mut self, header: &RoceHeader, report: &mut dyn FnMut(Report)) {
        let Some(flow) = self.tracks.get_mut(&Key::of_request(header)) else {
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
                format!("the previous request has PSN {last}, which is far from this one"),
            ));
        }
        *flow = *before;
    }

    /// Returns the flow of a request, and creates it if necessary. `None`: the flow is not judged.
    fn flow_of_request(
        &mut self,
        header: &RoceHeader,
        sender: Sender,
        queue_pair: Option<QueuePair>,
    ) -> Option<&mut Flow> {
        let (key, place) = (Key::of_request(header), sender.place());
        let is_seen = place.is_some_and(|adapter| !self.remote.contains(&adapter));
        let own_pair = queue_pair.filter(|_| sender.adapter().is_some());
        let own_qpn = own_pair.map(|pair| pair.qpn);
        let mut has_unseen_start = self.tracks.has_unseen_start(place, is_seen, own_qpn);
        let mut before = None;
        if let Some(flow) = self.tracks.get_mut(&key) {
            // The sender of the first packets of a capture may be unknown.
            let was_unknown = flow.requester == Sender::Unknown && sender != Sender::Unknown;
            let is_on_link = self.place == Place::Link;
            let is_other = |pair: QueuePair| flow.from_qpn.is_some_and(|qpn| qpn != pair.qpn);
            let has_other_qpn = queue_pair.is_some_and(is_other);
            flow.is_mixed |= !was_unknown && flow.requester != sender;
            flow.is_mixed |= is_on_link && has_other_qpn;
            if flow.is_mixed {
                self.mixed = self.mixed.saturating_add(1);
                // If the track is discarded, a later one may be of this sender.
                self.tracks.expect_unseen_starts(place);
                return None;
            }
            // A capture does not show that a queue pair begins a new connection; the responder of an old one may have received more
            // requests than were seen. A responder outside of the process may have been reset, so that its queue pair has the number of a
            // former one.
            let is_far = is_on_link && flow.is_far(header);
            if was_unknown || has_other_qpn || is_far {
                before = self.tracks.remove(&key).filter(|_| is_far).map(Box::new);
                has_unseen_start = true;
            }
        }
        if self.tracks.get(&key).is_none() {
            let agreed_limit = self.tracks.begin(place, &key, header.bth.psn);
            let mut flow = Flow::new(sender, has_unseen_start, agreed_limit);
            if let Some(before) = before {
                flow.continue_from(before);
            }
            self.tracks.insert(key, flow, place);
        }
        if let Some(QueuePair { qpn, .. }) = queue_pair {
            // Responses to this queue pair belong to this connection, including those sent before this request was seen.
            self.tracks.set_answer(key, qpn);
        }
        let flow = self.tracks.get_mut(&key)?;
        flow.set_read_limit(queue_pair.and_then(|pair| pair.read_limit));
        if let Some(QueuePair { qpn, mtu, .. }) = queue_pair {
            flow.from_qpn = Some(qpn);
            flow.set_mtu(mtu);
        }
        Some(flow)
    }

    /// Returns the flow of a response; `None` if it is unknown. A response does not contain the number of the sending queue pair. If the
    /// caller has not passed it, the flow is that of the destination queue pair; or, if the numbers of requesters are unknown too, the
    /// only flow between these adapters that has sent a request with this PSN and has no responses yet.
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
        let known = self.tracks.answer(&answer);
        if let Some(flow) = known.and_then(|key| self.tracks.get_mut(&key))
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
            let flow = self.tracks.get_mut(&key)?;
            if !flow.is_answered_by(sender) {
                return Some(OfResponse::Mixed);
            }
            flow.set_mtu(mtu);
            self.tracks.set_answer(key, answer.qpn);
            return Some(OfResponse::Flow(key));
        }
        if let Some(key) = known {
            return Some(OfResponse::Flow(key));
        }
        // Each search examines all flows.
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
        let fitting = self.tracks.iter().filter(fits).map(|(key, _)| *key);
        let fitting: Vec<Key> = fitting.take(2).collect();
        let [key] = fitting[..] else {
            return None;
        };
        self.attempts.remove(&answer);
        self.tracks.set_answer(key, answer.qpn);
        if let Some(flow) = self.tracks.get_mut(&key) {
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
        self.keep(place, Headers::of(header), (Rule::UnjudgedOpcode, what));
    }

    fn keep(
        &mut self,
        (at, adapter): (u64, Option<Adapter>),
        headers: Headers,
        (rule, what): Report,
    ) {
        let (header, segment) = match headers {
            Headers::None => (None, None),
            Headers::Roce(header) => (Some(header), None),
            Headers::Segment(header) => (None, Some(header)),
        };
        let finding = Finding {
            at,
            frame: self.frames,
            adapter,
            rule,
            header,
            segment,
            what,
        };
        self.findings.add(finding);
    }
}

/// Returns true if a PSN is greater than the expected one, and not distant.
fn is_ahead(psn: Psn, next: Psn) -> bool {
    let ahead = psn.diff(next);
    ahead > 0 && ahead.unsigned_abs() <= FAR
}

fn is_sequence_nak(header: &RoceHeader) -> bool {
    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
    header.aeth.is_some_and(|aeth| aeth.syndrome == nak)
}

/// Returns true for opcodes without rules.
fn is_unjudged(opcode: u8) -> bool {
    opcode >= MANUFACTURERS || RELIABLE_DATAGRAMS.contains(&opcode)
}

#[cfg(test)]
mod tests {
    use faultline_wire::packet::seal;
    use faultline_wire::{Aeth, Bth, Ip, MacAddr, Opcode, Psn, Syndrome};

    use super::*;

    /// The table of responses stays bounded with requests and responses of any number of queue pairs. A connection that was discarded
    /// returns with its next request.
    #[test]
    fn packets_with_any_queue_pair_fill_no_table() {
        /// First queue pair of the responder. A request of another queue pair to it begins another connection.
        const QPN: u32 = 1 << 21;
        /// Queue pairs of the other connection.
        const OTHER: [u32; 2] = [1 << 20, 18];
        let mut checker = Checker::new(Place::Adapter);
        let pass = |checker: &mut Checker, from: u8, opcode, dest_qp, sender: Option<u32>| {
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
            checker.sent(0, from.into(), queue_pair, &frame);
        };
        let request = |checker: &mut Checker, qpn, sender| {
            pass(checker, 0, Opcode::RcSendOnly, qpn, Some(sender));
        };
        request(&mut checker, OTHER[1], OTHER[0]);
        for number in 0..3 * u32::try_from(FLOW_LIMIT).unwrap() {
            request(&mut checker, QPN + number, number);
            pass(
                &mut checker,
                1,
                Opcode::RcAcknowledge,
                number,
                Some(QPN + number),
            );
        }
        assert_eq!(checker.tracks.counts(), [FLOW_LIMIT; 2]);
        request(&mut checker, OTHER[1], OTHER[0]);
        pass(&mut checker, 1, Opcode::RcAcknowledge, OTHER[0], None);
        assert_eq!(checker.responses_without_flow(), 0);
    }
}
