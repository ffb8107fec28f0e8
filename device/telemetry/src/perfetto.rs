//! A trace in Perfetto's own format (protobuf).
//!
//! The messages have the fields that are written here, with the numbers of Perfetto's `trace.proto`. The records are in the
//! file once more, in a field that Perfetto does not know and skips, so that a report can be made from it.

use std::io::Write;

use prost::Message;
use serde_json::Value;

use crate::timeline::{Event, Phase, Timeline, Track, TrackKind};
use crate::trace::{Trace, TraceError, write_records};

/// How each file begins: the tag of `Trace.packet`.
pub(crate) const FIRST_BYTE: u8 = 0x0a;
/// All packets are of one writer.
const SEQUENCE: u32 = 1;
/// Records in a packet.
const CHUNK: usize = 1024;

#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
    /// Not a field of Perfetto: the raw form of a trace, or a part of it.
    #[prost(bytes = "vec", optional, tag = "20117")]
    faultline_records: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    /// 3: by `sibling_order_rank` of the children.
    #[prost(int32, optional, tag = "11")]
    child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    sibling_order_rank: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    /// 1: slice begins, 2: slice ends, 3: instant.
    #[prost(int32, optional, tag = "9")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    flow_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(bool, optional, tag = "2")]
    bool_value: Option<bool>,
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

pub(crate) fn write(trace: &Trace, out: &mut impl Write) -> Result<(), TraceError> {
    let timeline = Timeline::new(trace);
    // Incremental state begins here.
    let start = TracePacket {
        sequence_flags: Some(1),
        ..TracePacket::default()
    };
    packet(start, out)?;
    for track in timeline.tracks.iter().enumerate() {
        let descriptor = Some(descriptor(track));
        let named = TracePacket {
            track_descriptor: descriptor,
            ..TracePacket::default()
        };
        packet(named, out)?;
    }
    for event in &timeline.events {
        let track = timeline.tracks.get(event.track);
        let timed = TracePacket {
            timestamp: Some(event.at),
            track_event: Some(track_event(event, track)),
            ..TracePacket::default()
        };
        packet(timed, out)?;
    }
    let header = Trace {
        header: trace.header.clone(),
        records: Vec::new(),
    };
    let mut text = Vec::new();
    header.write_raw(&mut text)?;
    packet(raw(text), out)?;
    for part in trace.records.chunks(CHUNK) {
        let mut text = Vec::new();
        write_records(part, &mut text)?;
        packet(raw(text), out)?;
    }
    Ok(())
}

pub(crate) fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    let file = File::decode(bytes).map_err(|error| TraceError::Foreign(error.to_string()))?;
    let parts = file.packet.into_iter().filter_map(|p| p.faultline_records);
    let text: Vec<u8> = parts.flatten().collect();
    if text.is_empty() {
        return Err(TraceError::Foreign("it has no records".to_owned()));
    }
    Trace::read_raw(&text)
}

/// Appends a packet to the file.
fn packet(packet: TracePacket, out: &mut impl Write) -> Result<(), TraceError> {
    let packet = TracePacket {
        trusted_packet_sequence_id: Some(SEQUENCE),
        ..packet
    };
    out.write_all(&[FIRST_BYTE])?;
    out.write_all(&packet.encode_length_delimited_to_vec())?;
    Ok(())
}

fn raw(text: Vec<u8>) -> TracePacket {
    TracePacket {
        faultline_records: Some(text),
        ..TracePacket::default()
    }
}

/// The number of a track in the file; 0 means none.
fn uuid(track: usize) -> u64 {
    (track as u64).saturating_add(1)
}

fn descriptor((number, track): (usize, &Track)) -> TrackDescriptor {
    let Some(kind) = track.kind else {
        let process = ProcessDescriptor {
            pid: Some(i32::from(track.nic).saturating_add(1)),
            process_name: Some(track.name.clone()),
        };
        return TrackDescriptor {
            uuid: Some(uuid(number)),
            process: Some(process),
            child_ordering: Some(3),
            ..TrackDescriptor::default()
        };
    };
    let rank = match kind {
        TrackKind::Device | TrackKind::Gaps => 0,
        TrackKind::Interrupts => 1,
        TrackKind::Doorbells => 2,
        TrackKind::Commands => 3,
        TrackKind::Fault(..) => 4,
        TrackKind::QueuePair(qpn)
        | TrackKind::QueuePairState(qpn)
        | TrackKind::QueuePairWaits(qpn) => {
            i32::try_from(qpn).map_or(i32::MAX, |qpn| qpn.saturating_add(5))
        }
    };
    TrackDescriptor {
        uuid: Some(uuid(number)),
        name: Some(track.name.clone()),
        parent_uuid: track.parent.map(uuid),
        sibling_order_rank: Some(rank),
        ..TrackDescriptor::default()
    }
}

fn track_event(event: &Event, track: Option<&Track>) -> TrackEvent {
    let kind = match event.phase {
        Phase::Begin => 1,
        Phase::End => 2,
        Phase::Instant => 3,
    };
    let category = match track.and_then(|track| track.kind) {
        Some(TrackKind::Fault(..)) => "fault",
        Some(TrackKind::QueuePair(_)) => "packet",
        Some(TrackKind::QueuePairState(_) | TrackKind::QueuePairWaits(_)) => "queue pair",
        Some(TrackKind::Commands) => "command",
        Some(TrackKind::Doorbells) => "doorbell",
        Some(TrackKind::Interrupts) => "interrupt",
        Some(TrackKind::Device | TrackKind::Gaps) | None => "device",
    };
    let begins = event.phase != Phase::End;
    TrackEvent {
        debug_annotations: event.args.iter().map(annotation).collect(),
        kind: Some(kind),
        track_uuid: Some(uuid(event.track)),
        categories: begins.then(|| category.to_owned()).into_iter().collect(),
        name: begins.then(|| event.name.as_ref().to_owned()),
        flow_ids: event.flows.clone(),
    }
}

fn annotation((name, value): &(std::borrow::Cow<'static, str>, Value)) -> DebugAnnotation {
    let named = DebugAnnotation {
        name: Some(name.as_ref().to_owned()),
        ..DebugAnnotation::default()
    };
    match value {
        Value::Bool(value) => DebugAnnotation {
            bool_value: Some(*value),
            ..named
        },
        Value::Number(number) if number.is_u64() => DebugAnnotation {
            uint_value: number.as_u64(),
            ..named
        },
        Value::String(text) => DebugAnnotation {
            string_value: Some(text.clone()),
            ..named
        },
        other => DebugAnnotation {
            string_value: Some(other.to_string()),
            ..named
        },
    }
}
