//! A trace as tracks with slices, instants and arrows, from which both Perfetto formats are written.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use faultline_abi::status::STATUSES;
use faultline_nic::{CommandQueue, Diagnostic, Instant};
use serde_json::Value;

use crate::analysis::{Analysis, Fault, Outcome, QueuePair, is_rnr_nak};
use crate::event::{FrameEvent, Record, TraceEvent};
use crate::kind::{DiagnosticKind, command_name, frame_name};
use crate::names::doorbell_name;
use crate::owners::Owners;
use crate::stage::Stage;
use crate::trace::{Trace, TraceHeader};

/// Arguments of an event.
pub(crate) type Args = Vec<(Cow<'static, str>, Value)>;

/// A row of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Track {
    pub(crate) nic: u16,
    /// `None`: the track of the NIC itself, above all others.
    pub(crate) kind: Option<TrackKind>,
    pub(crate) name: String,
    /// Index of the track of the NIC.
    pub(crate) parent: Option<usize>,
}

/// Kinds of tracks, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TrackKind {
    Device,
    /// Intervals without records.
    Gaps,
    Interrupts,
    Doorbells,
    Commands,
    /// A page fault, by number, and the number of an access that it has delayed. Access 0 is the first to be done.
    Fault(usize, usize),
    QueuePair(u32),
    QueuePairState(u32),
    QueuePairWaits(u32),
}

/// Begin, end, or instant of an event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Phase {
    Begin,
    End,
    Instant,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) at: u64,
    /// Index of the track.
    pub(crate) track: usize,
    pub(crate) phase: Phase,
    /// Empty for ends.
    pub(crate) name: Cow<'static, str>,
    pub(crate) args: Args,
    /// Arrows that pass through this event: each leads through all events with its number, in their order.
    pub(crate) flows: Vec<u64>,
}

/// All tracks and events. Events are sorted by time; those of a track nest.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) tracks: Vec<Track>,
    pub(crate) events: Vec<Event>,
}

impl Timeline {
    pub(crate) fn new(trace: &Trace) -> Self {
        let analysis = Analysis::new(&trace.records);
        let mut builder = Builder::new(trace, &analysis);
        let end = trace.records.iter().map(|record| record.at.0).max();
        builder.last = end.unwrap_or_default();
        for (number, fault) in analysis.faults.iter().enumerate() {
            builder.fault(number, fault);
        }
        builder.waits();
        builder.gaps();
        for &index in &analysis.order {
            if let Some(record) = trace.records.get(index) {
                builder.record(index, record);
            }
        }
        builder.close();
        let mut timeline = builder.timeline;
        // The sort is stable, so slices of a track still nest.
        timeline.events.sort_by_key(|event| event.at);
        timeline.remove_single_ends();
        timeline
    }

    /// Removes arrows whose other end is not in the trace.
    fn remove_single_ends(&mut self) {
        let mut ends: HashMap<u64, u32> = HashMap::new();
        for flow in self.events.iter().flat_map(|event| &event.flows) {
            let count = ends.entry(*flow).or_default();
            *count = count.saturating_add(1);
        }
        for event in &mut self.events {
            event
                .flows
                .retain(|flow| ends.get(flow).is_some_and(|ends| *ends > 1));
        }
    }
}

struct Builder<'a> {
    header: &'a TraceHeader,
    owners: Owners<'a>,
    analysis: &'a Analysis,
    timeline: Timeline,
    /// By NIC, kind, and generation of the number of a queue pair.
    tracks: BTreeMap<(u16, Option<TrackKind>, usize), usize>,
    /// Time of the last record.
    last: u64,
    flows: u64,
    /// Index of the event with which a fault begins.
    fault_events: HashMap<usize, usize>,
    /// Arrow of the RNR NAK that a queue pair has sent for a PSN.
    sent_naks: HashMap<(QueuePair, u32), u64>,
    /// Arrow of the RNR NAK that is on its way to a queue pair.
    arriving_naks: HashMap<(QueuePair, u32), u64>,
    /// Arrow of a wait, by number.
    wait_flows: HashMap<usize, u64>,
    /// Index of the event with which a wait begins.
    wait_events: HashMap<usize, usize>,
    /// The queue pair at the other end.
    peers: HashMap<QueuePair, QueuePair>,
    /// The faults that were raised for a packet of a queue pair: PSNs come again.
    by_packet: HashMap<(QueuePair, u32), Vec<usize>>,
    /// Slices that have not ended, and their tracks.
    open: BTreeMap<(u16, TrackKind), usize>,
}

impl<'a> Builder<'a> {
    fn new(trace: &'a Trace, analysis: &'a Analysis) -> Self {
        Self {
            header: &trace.header,
            owners: Owners::new(trace),
            analysis,
            timeline: Timeline::default(),
            tracks: BTreeMap::new(),
            last: 0,
            flows: 0,
            fault_events: HashMap::new(),
            sent_naks: HashMap::new(),
            arriving_naks: HashMap::new(),
            wait_flows: HashMap::new(),
            wait_events: HashMap::new(),
            peers: HashMap::new(),
            by_packet: HashMap::new(),
            open: BTreeMap::new(),
        }
    }

    /// The track of a kind at a time; it is made, and that of its NIC, if they do not exist yet.
    fn track(&mut self, nic: u16, kind: Option<TrackKind>, at: u64) -> usize {
        let at = Instant(at);
        let generation = match kind {
            Some(
                TrackKind::QueuePair(qpn)
                | TrackKind::QueuePairState(qpn)
                | TrackKind::QueuePairWaits(qpn),
            ) => self.owners.generation((nic, qpn), at),
            _ => 0,
        };
        if let Some(index) = self.tracks.get(&(nic, kind, generation)) {
            return *index;
        }
        let parent = kind.map(|_| self.track(nic, None, at.0));
        let qp = |qpn: u32| match self.owners.of((nic, qpn), at) {
            Some(owner) => format!("QP {qpn} ({} {})", owner.process, owner.pid),
            None => format!("QP {qpn}"),
        };
        let name = match kind {
            None => self.header.nic_name(nic),
            Some(TrackKind::Device) => "Device".to_owned(),
            Some(TrackKind::Gaps) => "Missing records".to_owned(),
            Some(TrackKind::Interrupts) => "Interrupts".to_owned(),
            Some(TrackKind::Doorbells) => "Doorbells".to_owned(),
            Some(TrackKind::Commands) => "Commands".to_owned(),
            // All have one name, so that Perfetto shows them together.
            Some(TrackKind::Fault(..)) => "Page faults".to_owned(),
            Some(TrackKind::QueuePair(qpn)) => qp(qpn),
            Some(TrackKind::QueuePairState(qpn)) => format!("{} state", qp(qpn)),
            Some(TrackKind::QueuePairWaits(qpn)) => format!("{} RNR waits", qp(qpn)),
        };
        let index = self.timeline.tracks.len();
        self.timeline.tracks.push(Track {
            nic,
            kind,
            name,
            parent,
        });
        self.tracks.insert((nic, kind, generation), index);
        index
    }

    fn push(
        &mut self,
        at: u64,
        (nic, kind): (u16, TrackKind),
        phase: Phase,
        name: Cow<'static, str>,
        args: Args,
    ) -> usize {
        let track = self.track(nic, Some(kind), at);
        self.push_to(at, track, phase, name, args)
    }

    fn push_to(
        &mut self,
        at: u64,
        track: usize,
        phase: Phase,
        name: Cow<'static, str>,
        args: Args,
    ) -> usize {
        let number = self.timeline.events.len();
        self.timeline.events.push(Event {
            at,
            track,
            phase,
            name,
            args,
            flows: Vec::new(),
        });
        number
    }

    fn instant(
        &mut self,
        at: u64,
        nic: u16,
        kind: TrackKind,
        name: impl Into<Cow<'static, str>>,
        args: Args,
    ) -> usize {
        self.push(at, (nic, kind), Phase::Instant, name.into(), args)
    }

    fn begin(
        &mut self,
        at: u64,
        nic: u16,
        kind: TrackKind,
        name: impl Into<Cow<'static, str>>,
        args: Args,
    ) -> usize {
        self.push(at, (nic, kind), Phase::Begin, name.into(), args)
    }

    fn end(&mut self, at: u64, nic: u16, kind: TrackKind) {
        self.push(at, (nic, kind), Phase::End, Cow::Borrowed(""), Args::new());
    }

    /// Ends a slice on the track on which it has begun: a queue pair may have got another one since.
    fn end_on(&mut self, at: u64, track: usize) {
        self.push_to(at, track, Phase::End, Cow::Borrowed(""), Args::new());
    }

    fn track_of(&self, event: usize) -> usize {
        let event = self.timeline.events.get(event);
        event.map_or(0, |event| event.track)
    }

    fn new_flow(&mut self) -> u64 {
        self.flows = self.flows.saturating_add(1);
        self.flows
    }

    fn add_flow(&mut self, event: usize, flow: u64) {
        if let Some(event) = self.timeline.events.get_mut(event) {
            event.flows.push(flow);
        }
    }

    /// A fault: a slice, and in it those of its stages. Further accesses that it has delayed have slices of their own.
    fn fault(&mut self, number: usize, fault: &Fault) {
        let (nic, kind) = (fault.nic, TrackKind::Fault(number, 0));
        let from = fault.raised.0;
        let answered = fault.ended.map(|(at, _)| at.0);
        let mut done = fault.done.clone();
        done.sort_by_key(|(_, at)| *at);
        let first = done.first().map(|(_, at)| at.0);
        let until = first.max(answered).unwrap_or(self.last).max(from);
        let event = self.begin(from, nic, kind, "fault", fault_args(fault));
        self.fault_events.insert(number, event);
        let mut at = from;
        if let Some((_, Outcome::Resumed(service))) = fault.ended {
            for (stage, ns) in service.stages() {
                self.begin(at, nic, kind, stage.name(), Args::new());
                at = at.saturating_add(ns).min(until);
                self.end(at, nic, kind);
            }
            if let Some((qpn, _)) = done.first() {
                self.data(nic, kind, *qpn, (at, until));
            }
        }
        self.end(until, nic, kind);
        for (access, (qpn, until)) in done.iter().enumerate().skip(1) {
            let kind = TrackKind::Fault(number, access);
            let until = until.0.max(at);
            let args = vec![("token".into(), Value::from(fault.token))];
            self.begin(from, nic, kind, "fault access", args);
            self.data(nic, kind, *qpn, (at, until));
            self.end(until, nic, kind);
        }
        if let Some(access) = fault.access {
            let packet = ((nic, access.qpn), access.psn);
            self.by_packet.entry(packet).or_default().push(number);
        }
    }

    /// The stage in which an access is repeated.
    fn data(&mut self, nic: u16, kind: TrackKind, qpn: u32, (from, until): (u64, u64)) {
        let args = vec![("qpn".into(), Value::from(qpn))];
        self.begin(from, nic, kind, Stage::Data.name(), args);
        self.end(until, nic, kind);
    }

    /// Intervals without records. A trace that begins with a gap has an instant there.
    fn gaps(&mut self) {
        for gap in &self.header.gaps {
            let args = vec![("records".into(), Value::from(gap.lost))];
            let (nic, kind) = (gap.nic, TrackKind::Gaps);
            let until = gap.before.map_or(self.last, |at| at.0);
            match gap.after {
                Some(after) => {
                    self.begin(after.0, nic, kind, "records are missing", args);
                    self.end(until.max(after.0), nic, kind);
                }
                None => {
                    self.instant(until, nic, kind, "older records are missing", args);
                }
            }
        }
    }

    /// The waits after RNR NAKs, each on the track of its queue pair.
    fn waits(&mut self) {
        let analysis = self.analysis;
        let mut next: HashMap<QueuePair, u64> = HashMap::new();
        let mut slices = Vec::new();
        // From the last to the first: a wait ends at the latest when the next one of its queue pair begins.
        for (number, wait) in analysis.waits.iter().enumerate().rev() {
            let from = wait.received.0;
            let until = wait.ended.map_or(self.last, |at| at.0);
            let limit = next.insert(wait.queue_pair, from).unwrap_or(u64::MAX);
            slices.push((number, from, until.min(limit).max(from)));
        }
        for (number, from, until) in slices.into_iter().rev() {
            let Some(wait) = analysis.waits.get(number) else {
                continue;
            };
            let (nic, qpn) = wait.queue_pair;
            let kind = TrackKind::QueuePairWaits(qpn);
            let args = vec![
                ("psn".into(), Value::from(wait.psn)),
                ("delay_ns".into(), Value::from(wait.delay.0)),
                ("ended".into(), Value::from(wait.ended.is_some())),
            ];
            let event = self.begin(from, nic, kind, "RNR wait", args);
            self.wait_events.insert(number, event);
            self.end_on(until, self.track_of(event));
        }
    }

    fn record(&mut self, index: usize, record: &Record) {
        let (at, nic) = (record.at.0, record.nic);
        match &record.event {
            TraceEvent::Frame(frame) => self.frame(index, at, nic, frame),
            TraceEvent::Doorbell {
                page,
                kind,
                path,
                object,
                value,
            } => {
                let name = doorbell_name(*kind).unwrap_or_else(|| format!("doorbell_{kind}"));
                let args = vec![
                    ("page".into(), Value::from(*page)),
                    ("object".into(), Value::from(*object)),
                    ("value".into(), Value::from(*value)),
                    ("path".into(), Value::from(path.name())),
                ];
                self.instant(at, nic, TrackKind::Doorbells, name, args);
            }
            TraceEvent::Interrupt { vector } => {
                let args = vec![("vector".into(), Value::from(*vector))];
                let name = format!("vector {vector}");
                self.instant(at, nic, TrackKind::Interrupts, name, args);
            }
            TraceEvent::Nic(diagnostic) => self.diagnostic(index, at, nic, diagnostic),
        }
    }

    /// A frame at its sender and, if a NIC gets it, at its receiver, with an arrow between them.
    fn frame(&mut self, index: usize, at: u64, nic: u16, frame: &FrameEvent) {
        let name = frame_name(frame);
        let sender = self.instant(
            at,
            nic,
            TrackKind::QueuePair(frame.src_qpn),
            name.clone(),
            frame_args(frame, self.header),
        );
        let delivered = frame.to != FrameEvent::NO_NIC;
        let receiver = delivered.then(|| {
            let args = vec![
                ("psn".into(), Value::from(frame.psn)),
                ("from".into(), Value::from(self.header.nic_name(nic))),
                ("src_qpn".into(), Value::from(frame.src_qpn)),
            ];
            let kind = TrackKind::QueuePair(frame.dst_qpn);
            self.instant(at, frame.to, kind, format!("rx {name}"), args)
        });
        let here = (nic, frame.src_qpn);
        let there = (frame.to, frame.dst_qpn);
        if delivered && frame.opcode != FrameEvent::RAW && frame.src_qpn != 0 {
            self.peers.insert(here, there);
            self.peers.insert(there, here);
        }
        let nak = is_rnr_nak(frame)
            .then(|| self.sent_naks.remove(&(here, frame.psn)))
            .flatten();
        let flow = match (nak, receiver) {
            (Some(flow), _) => {
                self.arriving_naks.insert((there, frame.psn), flow);
                Some(flow)
            }
            (None, Some(_)) => Some(self.new_flow()),
            (None, None) => None,
        };
        if let Some(flow) = flow {
            self.add_flow(sender, flow);
            if let Some(receiver) = receiver {
                self.add_flow(receiver, flow);
            }
        }
        // The request that was refused, once more.
        let wait = self.analysis.wait_of.get(&index);
        if let Some(flow) = wait.and_then(|wait| self.wait_flows.get(wait)).copied() {
            self.add_flow(sender, flow);
        }
    }

    fn diagnostic(&mut self, index: usize, at: u64, nic: u16, diagnostic: &Diagnostic) {
        let name = DiagnosticKind::of(diagnostic).name();
        let args = diagnostic_args(diagnostic);
        let fault = self.analysis.fault_of.get(&index).copied();
        match *diagnostic {
            Diagnostic::Command {
                queue,
                opcode,
                status,
                object,
            } => {
                let name = command_name(queue, opcode.into());
                let queue = match queue {
                    CommandQueue::Admin => "admin",
                    CommandQueue::Translation => "translation",
                };
                let named = STATUSES.name(status);
                let status = named.map_or_else(|| Value::from(status), Value::from);
                let args = vec![
                    ("queue".into(), Value::from(queue)),
                    ("status".into(), status),
                    ("object".into(), hex(object.into())),
                ];
                self.instant(at, nic, TrackKind::Commands, name, args);
            }
            Diagnostic::QpState { qpn, to, .. } => {
                let kind = TrackKind::QueuePairState(qpn);
                self.end_open(at, nic, kind);
                let state = format!("{to:?}").to_ascii_uppercase();
                let event = self.begin(at, nic, kind, state, args);
                self.open.insert((nic, kind), self.track_of(event));
            }
            Diagnostic::Stalled { .. } => {
                self.end_open(at, nic, TrackKind::Device);
                let event = self.begin(at, nic, TrackKind::Device, "ingress stalled", args);
                self.open
                    .insert((nic, TrackKind::Device), self.track_of(event));
            }
            Diagnostic::StallEnded { .. } => self.end_open(at, nic, TrackKind::Device),
            Diagnostic::RnrNakSent { qpn, psn, .. } => {
                let event = self.instant(at, nic, TrackKind::QueuePair(qpn), name, args);
                let flow = self.new_flow();
                self.sent_naks.insert(((nic, qpn), psn), flow);
                self.add_flow(event, flow);
                self.link_fault(fault, flow);
            }
            Diagnostic::RnrNakReceived { qpn, psn, .. } => {
                let event = self.instant(at, nic, TrackKind::QueuePair(qpn), name, args);
                let Some(flow) = self.arriving_naks.remove(&((nic, qpn), psn)) else {
                    return;
                };
                self.add_flow(event, flow);
                if let Some(&wait) = self.analysis.wait_of.get(&index) {
                    self.wait_flows.insert(wait, flow);
                    if let Some(&slice) = self.wait_events.get(&wait) {
                        self.add_flow(slice, flow);
                    }
                }
            }
            Diagnostic::Retried { qpn, psn, .. } => {
                let event = self.instant(at, nic, TrackKind::QueuePair(qpn), name, args);
                let peer = self.peers.get(&(nic, qpn)).copied();
                let fault = peer.and_then(|peer| self.fault_of_packet(peer, psn, at));
                if fault.is_some() {
                    let flow = self.new_flow();
                    self.add_flow(event, flow);
                    self.link_fault(fault, flow);
                }
            }
            Diagnostic::FaultRaised { qpn, .. } | Diagnostic::FaultDone { qpn, .. } => {
                let event = self.instant(at, nic, TrackKind::QueuePair(qpn), name, args);
                let flow = self.new_flow();
                self.add_flow(event, flow);
                self.link_fault(fault, flow);
            }
            _ => {
                let kind = match diagnostic.queue_pair() {
                    Some(qpn) => TrackKind::QueuePair(qpn),
                    None => TrackKind::Device,
                };
                self.instant(at, nic, kind, name, args);
            }
        }
    }

    /// The newest fault that was raised for a packet until `at`.
    fn fault_of_packet(&self, pair: QueuePair, psn: u32, at: u64) -> Option<usize> {
        let faults = self.by_packet.get(&(pair, psn))?.iter().copied();
        let raised = |fault: &usize| self.analysis.faults.get(*fault).map(|f| f.raised);
        let before = faults.filter(|fault| raised(fault).is_some_and(|raised| raised.0 <= at));
        before.max_by_key(raised)
    }

    /// Leads an arrow from the beginning of a fault.
    fn link_fault(&mut self, fault: Option<usize>, flow: u64) {
        let event = fault.and_then(|fault| self.fault_events.get(&fault));
        if let Some(&event) = event {
            self.add_flow(event, flow);
        }
    }

    fn end_open(&mut self, at: u64, nic: u16, kind: TrackKind) {
        if let Some(track) = self.open.remove(&(nic, kind)) {
            self.end_on(at, track);
        }
    }

    /// Ends the slices that are open when the trace ends.
    fn close(&mut self) {
        for track in std::mem::take(&mut self.open).into_values() {
            self.end_on(self.last, track);
        }
    }
}

fn hex(value: u64) -> Value {
    Value::from(format!("{value:#x}"))
}

/// All fields of a diagnostic.
fn diagnostic_args(diagnostic: &Diagnostic) -> Args {
    let fields = match serde_json::to_value(diagnostic) {
        Ok(Value::Object(kinds)) => kinds.into_iter().next(),
        _ => None,
    };
    let Some((_, Value::Object(fields))) = fields else {
        return Args::new();
    };
    let arg = |(name, value): (String, Value)| {
        let number = value.as_u64().filter(|_| name == "va" || name == "key");
        (Cow::Owned(name), number.map_or(value, hex))
    };
    fields.into_iter().map(arg).collect()
}

fn fault_args(fault: &Fault) -> Args {
    let mut args: Args = vec![("token".into(), Value::from(fault.token))];
    if let Some(access) = fault.access {
        args.extend([
            ("qpn".into(), Value::from(access.qpn)),
            ("key".into(), hex(access.key.into())),
            ("va".into(), hex(access.va)),
            ("bytes".into(), Value::from(access.bytes)),
            ("psn".into(), Value::from(access.psn)),
            ("write".into(), Value::from(access.write)),
            ("requester".into(), Value::from(access.requester)),
        ]);
    }
    let outcome = fault
        .ended
        .map_or("in flight", |(_, outcome)| outcome.name());
    let done = u32::try_from(fault.done.len()).unwrap_or(u32::MAX);
    args.extend([
        ("outcome".into(), Value::from(outcome)),
        ("joined".into(), Value::from(fault.joined)),
        ("waiters".into(), Value::from(fault.waiters)),
        ("rnr_naks".into(), Value::from(fault.naks)),
        ("accesses_done".into(), Value::from(done)),
    ]);
    args
}

fn frame_args(frame: &FrameEvent, header: &TraceHeader) -> Args {
    let to = match frame.to {
        FrameEvent::NO_NIC => "-".to_owned(),
        to => header.nic_name(to),
    };
    vec![
        ("psn".into(), Value::from(frame.psn)),
        ("to".into(), Value::from(to)),
        ("dst_qpn".into(), Value::from(frame.dst_qpn)),
        ("packets".into(), Value::from(frame.packets)),
        ("bytes".into(), Value::from(frame.bytes)),
    ]
}

#[cfg(test)]
mod tests;
