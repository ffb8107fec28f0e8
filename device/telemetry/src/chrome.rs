//! A trace as JSON in Chrome's trace event format, which Perfetto reads.
//!
//! Times are microseconds with three decimals, so they are exact. The records are in the file once more, in the raw form, so
//! that a report can be made from it. They come after the events, because Perfetto reads nothing behind a key that it does
//! not know. There is no `displayTimeUnit`: some versions of Perfetto take it for the unit of the times.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::Write;

use serde::Deserialize;
use serde_json::Value;

use crate::timeline::{Event, Phase, Timeline, Track, TrackKind};
use crate::trace::{Trace, TraceError};

/// How each file begins.
pub(crate) const START: &[u8] = b"{\"traceEvents\":[";
/// Number of the first thread that stands for a track. Perfetto identifies a thread by its number alone, so it must not
/// be the number of a process.
const FIRST_THREAD: usize = 100_000;

/// The embedded records, for reading.
#[derive(Deserialize)]
struct Embedded {
    #[serde(rename = "faultlineTrace")]
    trace: Trace,
}

pub(crate) fn read(text: &[u8]) -> Result<Trace, TraceError> {
    let embedded: Embedded = serde_json::from_slice(text)?;
    embedded.trace.of_this_version()
}

pub(crate) fn write(trace: &Trace, out: &mut impl Write) -> Result<(), TraceError> {
    let timeline = Timeline::new(trace);
    out.write_all(START)?;
    let mut writer = Writer {
        out: &mut *out,
        first: true,
        begun: HashSet::new(),
        left: HashMap::new(),
        open: HashMap::new(),
    };
    for flow in timeline.events.iter().flat_map(|event| &event.flows) {
        let left = writer.left.entry(*flow).or_default();
        *left = left.saturating_add(1);
    }
    for (number, track) in timeline.tracks.iter().enumerate() {
        writer.track(number, track)?;
    }
    for event in &timeline.events {
        if let Some(track) = timeline.tracks.get(event.track) {
            writer.event(event, track)?;
        }
    }
    out.write_all(b"\n],\n\"faultlineTrace\":")?;
    serde_json::to_writer(&mut *out, trace)?;
    out.write_all(b"}\n")?;
    Ok(())
}

struct Writer<'a, W> {
    out: &'a mut W,
    first: bool,
    /// Arrows that have begun.
    begun: HashSet<u64>,
    /// Events to which an arrow still leads.
    left: HashMap<u64, usize>,
    /// Names of the slices of a fault that have not ended, by track: an end repeats the name.
    open: HashMap<usize, Vec<Value>>,
}

/// Microseconds.
fn time(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

/// The process that stands for a NIC. Number 0 is the idle process in a trace of Linux.
fn pid(track: &Track) -> u32 {
    u32::from(track.nic) + 1
}

impl<W: Write> Writer<'_, W> {
    fn line(&mut self, line: &str) -> Result<(), TraceError> {
        let comma: &[u8] = if self.first { b"\n" } else { b",\n" };
        self.first = false;
        self.out.write_all(comma)?;
        self.out.write_all(line.as_bytes())?;
        Ok(())
    }

    /// The name of a track, and its place among the others. The tracks of faults have none: Perfetto makes them from the events.
    fn track(&mut self, number: usize, track: &Track) -> Result<(), TraceError> {
        let (pid, tid) = (pid(track), FIRST_THREAD.saturating_add(number));
        let name = Value::from(track.name.as_str());
        match track.kind {
            None => self.line(&format!(
                r#"{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":{name}}}}}"#
            )),
            Some(TrackKind::Fault(..)) => Ok(()),
            Some(_) => self.line(&format!(
                r#"{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"args":{{"name":{name}}}}}"#
            )),
        }
    }

    fn event(&mut self, event: &Event, track: &Track) -> Result<(), TraceError> {
        let (pid, tid, ts) = (
            pid(track),
            FIRST_THREAD.saturating_add(event.track),
            time(event.at),
        );
        let name = Value::from(event.name.as_ref());
        let args: serde_json::Map<String, Value> = event
            .args
            .iter()
            .map(|(name, value)| (Cow::clone(name).into_owned(), value.clone()))
            .collect();
        let args = Value::from(args);
        let fault = matches!(track.kind, Some(TrackKind::Fault(..)));
        let open = self.open.entry(event.track).or_default();
        let name = match event.phase {
            Phase::Begin if fault => {
                open.push(name.clone());
                name
            }
            Phase::End if fault => open.pop().unwrap_or(name),
            _ => name,
        };
        // Faults overlap, so their slices are asynchronous; a local identifier puts them among the tracks of the NIC. An instant is a
        // slice without length, because arrows lead to slices only.
        let place = match fault {
            true => {
                format!(r#""pid":{pid},"tid":{tid},"id2":{{"local":"{tid:#x}"}},"cat":"fault""#)
            }
            false => format!(r#""pid":{pid},"tid":{tid}"#),
        };
        let line = match (&event.phase, fault) {
            (Phase::Begin, true) => {
                format!(r#"{{"ph":"b","ts":{ts},{place},"name":{name},"args":{args}}}"#)
            }
            (Phase::End, true) => format!(r#"{{"ph":"e","ts":{ts},{place},"name":{name}}}"#),
            (Phase::Begin, false) => {
                format!(r#"{{"ph":"B","ts":{ts},{place},"name":{name},"args":{args}}}"#)
            }
            (Phase::End, false) => format!(r#"{{"ph":"E","ts":{ts},{place}}}"#),
            (Phase::Instant, _) => {
                format!(r#"{{"ph":"X","ts":{ts},"dur":0,{place},"name":{name},"args":{args}}}"#)
            }
        };
        self.line(&line)?;
        // An arrow cannot lead to an asynchronous slice; the event "fault_raised" of the queue pair has it.
        for flow in &event.flows {
            self.flow(*flow, fault, &place, &ts)?;
        }
        Ok(())
    }

    fn flow(&mut self, flow: u64, skip: bool, place: &str, ts: &str) -> Result<(), TraceError> {
        let left = self.left.entry(flow).or_default();
        *left = left.saturating_sub(1);
        if skip {
            return Ok(());
        }
        let last = *left == 0;
        let phase = match (self.begun.insert(flow), last) {
            // An arrow needs two ends.
            (true, true) => return Ok(()),
            (true, false) => r#""ph":"s""#,
            (false, false) => r#""ph":"t""#,
            (false, true) => r#""ph":"f","bp":"e""#,
        };
        self.line(&format!(
            r#"{{{phase},"ts":{ts},{place},"id":{flow},"name":"flow","cat":"flow"}}"#
        ))
    }
}
