//! Events of the NICs of a process: records, metrics, traces and reports.
//!
//! The engine records events; `docs/control.md` shows their origin and their readers.

#![forbid(unsafe_code)]
// Tests may panic at an overflow.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod analysis;
mod chrome;
mod event;
mod export;
mod kind;
mod metrics;
mod names;
mod owners;
mod perfetto;
mod prometheus;
mod recent;
mod recorder;
mod report;
mod ring;
#[cfg(test)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "random numbers become fields of any width"
)]
mod samples;
mod stage;
mod svg;
mod timeline;
mod trace;

pub use event::{DoorbellPath, FrameEvent, Record, TraceEvent};
pub use export::TraceFormat;
pub use kind::{DiagnosticKind, Direction, command_name, diagnostic_fields, frame_name};
pub use metrics::{FaultCounts, Histogram, NicMetrics, Opcodes, Traffic};
pub use names::{doorbell_name, opcode_name};
pub use prometheus::{
    EngineSnapshot, FabricSnapshot, LinkSnapshot, NicGauges, NicSnapshot, PortCounts, PortSnapshot,
    PrioritySnapshot, ProcessSnapshot, prometheus_text,
};
pub use recorder::{NicRecords, Recorder};
pub use report::{
    Outcomes, Percentiles, Report, SlowAccess, SlowFault, StageReport, TrafficReport,
};
pub use ring::{NumberSpan, TracePart};
pub use stage::{Service, Stage};
pub use svg::{PictureError, latency_picture, time_line_picture};
pub use trace::{Gap, QueuePairOwner, Trace, TraceError, TraceHeader};
