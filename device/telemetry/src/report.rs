//! A report of a trace: stages of page faults, waits after RNR NAKs, retries, packets.

use std::fmt::{self, Write as _};

use faultline_nic::{Diagnostic, RetryCause};
use serde::Serialize;

use crate::analysis::{Analysis, Fault, Outcome};
use crate::event::{Record, TraceEvent};
use crate::owners::Owners;
use crate::stage::Stage;
use crate::trace::Trace;

/// Faults in the list of the slowest.
const SLOWEST: usize = 10;

/// Percentiles of durations, in nanoseconds. Each is one of the durations: the smallest that is not less than this part
/// of all (nearest rank).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Number of durations.
    pub count: usize,
    /// Median.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl Percentiles {
    fn new(mut durations: Vec<u64>) -> Self {
        durations.sort_unstable();
        let count = durations.len();
        let at = |thousandths: usize| {
            let rank = count.saturating_mul(thousandths).div_ceil(1000);
            let place = rank.saturating_sub(1);
            durations.get(place).copied().unwrap_or_default()
        };
        Self {
            count,
            p50: at(500),
            p90: at(900),
            p99: at(990),
            p999: at(999),
            max: at(1000),
        }
    }
}

/// Percentiles of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StageReport {
    /// Name of the stage.
    pub stage: &'static str,
    /// Its durations.
    #[serde(flatten)]
    pub percentiles: Percentiles,
}

/// One of the slowest faults, with the duration of each stage in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowFault {
    /// Name of the NIC.
    pub nic: String,
    /// Token.
    pub token: u64,
    /// Queue pair, key, address and process of the access, if the trace has its beginning.
    pub access: Option<SlowAccess>,
    /// Device clock when it was raised.
    pub raised: u64,
    /// Stages that are known: name, duration.
    pub stages: Vec<(&'static str, u64)>,
    /// RNR NAKs for it.
    pub rnr_naks: u32,
    /// Later misses on the same page.
    pub joined: u32,
}

/// The access for which a fault was raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowAccess {
    /// QP number.
    pub qpn: u32,
    /// Memory key.
    pub key: u32,
    /// First missing byte.
    pub va: u64,
    /// The process that owns the queue pair: name, number in the guest.
    pub process: Option<(String, u32)>,
}

/// How many faults had which outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcomes {
    /// All faults.
    pub all: u64,
    /// Resumed by the driver.
    pub resumed: u64,
    /// Answered with an error.
    pub failed: u64,
    /// Not answered in time.
    pub expired: u64,
    /// Cancelled by a change of their region.
    pub cancelled: u64,
    /// Ended by a reset.
    pub reset: u64,
    /// Not answered when the trace ends.
    pub in_flight: u64,
}

/// Packets, and those that were sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrafficReport {
    /// Frames.
    pub frames: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire.
    pub bytes: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
    /// Times that packets were sent again after an acknowledgement timeout.
    pub timeouts: u64,
    /// Times that packets were sent again after a NAK for a PSN sequence error.
    pub sequence_naks: u64,
    /// Queue pairs whose retries were used up.
    pub retries_exhausted: u64,
}

/// A report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Records in the trace.
    pub records: usize,
    /// Records that the trace lacks.
    pub lost: u64,
    /// Intervals between two records of a NIC whose records are missing.
    pub gaps: usize,
    /// Time from the first record to the last, in nanoseconds.
    pub span: u64,
    /// Packets.
    pub traffic: TrafficReport,
    /// Page faults.
    pub faults: Outcomes,
    /// Each stage of the page faults.
    pub stages: Vec<StageReport>,
    /// Waits from an RNR NAK until the request was sent again.
    pub rnr_waits: Percentiles,
    /// The slowest faults.
    pub slowest: Vec<SlowFault>,
}

/// The stages of a fault with their durations; each delayed access has a [`Stage::Data`] and a [`Stage::Total`].
pub(crate) fn durations(fault: &Fault) -> Vec<(Stage, u64)> {
    let Some((resumed, Outcome::Resumed(service))) = fault.ended else {
        return Vec::new();
    };
    let mut stages: Vec<_> = service.stages().collect();
    let mut done: Vec<u64> = fault.done.iter().map(|(_, at)| at.0).collect();
    done.sort_unstable();
    for at in done {
        stages.push((Stage::Data, at.saturating_sub(resumed.0)));
        stages.push((Stage::Total, at.saturating_sub(fault.raised.0)));
    }
    stages
}

/// Time until the first access was executed.
pub(crate) fn total(fault: &Fault) -> Option<u64> {
    let stages = durations(fault);
    let total = stages.iter().find(|(stage, _)| *stage == Stage::Total);
    total.map(|(_, ns)| *ns)
}

impl Report {
    /// Makes the report of a trace.
    pub fn new(trace: &Trace) -> Self {
        let analysis = Analysis::new(&trace.records);
        let times = || trace.records.iter().map(|record| record.at.0);
        let (first, last) = (times().min(), times().max());
        let stages = Stage::ALL.map(|stage| {
            let all = analysis.faults.iter().flat_map(durations);
            let of_stage = all.filter(|(s, _)| *s == stage).map(|(_, ns)| ns);
            StageReport {
                stage: stage.name(),
                percentiles: Percentiles::new(of_stage.collect()),
            }
        });
        let waits = analysis.waits.iter().filter_map(|wait| {
            let ended = wait.ended?;
            Some(ended.0.saturating_sub(wait.received.0))
        });
        Self {
            records: trace.records.len(),
            lost: trace.header.lost,
            gaps: (trace.header.gaps.iter())
                .filter(|gap| gap.after.is_some())
                .count(),
            span: last
                .unwrap_or_default()
                .saturating_sub(first.unwrap_or_default()),
            traffic: traffic(&trace.records),
            faults: outcomes(&analysis.faults),
            stages: stages.into(),
            rnr_waits: Percentiles::new(waits.collect()),
            slowest: slowest(trace, &analysis.faults),
        }
    }
}

fn outcomes(faults: &[Fault]) -> Outcomes {
    let mut counts = Outcomes::default();
    for fault in faults {
        counts.all = counts.all.saturating_add(1);
        let count = match fault.ended {
            Some((_, Outcome::Resumed(_))) => &mut counts.resumed,
            Some((_, Outcome::Failed)) => &mut counts.failed,
            Some((_, Outcome::Expired)) => &mut counts.expired,
            Some((_, Outcome::Cancelled)) => &mut counts.cancelled,
            Some((_, Outcome::Reset)) => &mut counts.reset,
            None => &mut counts.in_flight,
        };
        *count = count.saturating_add(1);
    }
    counts
}

fn traffic(records: &[Record]) -> TrafficReport {
    let mut traffic = TrafficReport::default();
    for record in records {
        let count = match &record.event {
            TraceEvent::Frame(frame) => {
                traffic.packets = traffic.packets.saturating_add(frame.packets.into());
                traffic.bytes = traffic.bytes.saturating_add(frame.bytes.into());
                &mut traffic.frames
            }
            TraceEvent::Nic(Diagnostic::RnrNakReceived { .. }) => &mut traffic.rnr_naks,
            TraceEvent::Nic(Diagnostic::Retried { cause, .. }) => match cause {
                RetryCause::Timeout => &mut traffic.timeouts,
                RetryCause::SequenceNak => &mut traffic.sequence_naks,
            },
            TraceEvent::Nic(Diagnostic::RetriesExhausted { .. }) => &mut traffic.retries_exhausted,
            _ => continue,
        };
        *count = count.saturating_add(1);
    }
    traffic
}

fn slowest(trace: &Trace, faults: &[Fault]) -> Vec<SlowFault> {
    let mut done: Vec<(u64, &Fault)> = faults
        .iter()
        .filter_map(|fault| Some((total(fault)?, fault)))
        .collect();
    done.sort_by_key(|(ns, fault)| (std::cmp::Reverse(*ns), fault.raised));
    let owners = Owners::new(trace);
    let owner = |pair, at| {
        let owner = owners.of(pair, at)?;
        Some((owner.process.clone(), owner.pid))
    };
    done.iter()
        .take(SLOWEST)
        .map(|(_, fault)| {
            let mut stages: Vec<_> = Vec::new();
            for (stage, ns) in durations(fault) {
                // Of several accesses, the first.
                if !stages.iter().any(|(name, _)| *name == stage.name()) {
                    stages.push((stage.name(), ns));
                }
            }
            SlowFault {
                nic: trace.header.nic_name(fault.nic),
                token: fault.token,
                access: fault.access.map(|access| SlowAccess {
                    qpn: access.qpn,
                    key: access.key,
                    va: access.va,
                    process: owner((fault.nic, access.qpn), fault.raised),
                }),
                raised: fault.raised.0,
                stages,
                rnr_naks: fault.naks,
                joined: fault.joined,
            }
        })
        .collect()
}

/// A duration in nanoseconds with a unit and about three digits.
pub(crate) fn duration(ns: f64) -> String {
    let scaled = |unit: f64, name: &str| {
        let value = ns / unit;
        let digits = match value {
            v if v < 9.995 => 2,
            v if v < 99.95 => 1,
            _ => 0,
        };
        format!("{value:.digits$} {name}")
    };
    match ns {
        ns if ns < 999.5 => format!("{ns:.0} ns"),
        ns if ns < 999.5e3 => scaled(1e3, "µs"),
        ns if ns < 999.5e6 => scaled(1e6, "ms"),
        _ => scaled(1e9, "s"),
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, values: &Percentiles) -> fmt::Result {
    write!(f, "  {name:<12}{:>8}", values.count)?;
    if values.count == 0 {
        return writeln!(f);
    }
    for ns in [values.p50, values.p90, values.p99, values.p999, values.max] {
        write!(f, "{:>10}", duration(ns as f64))?;
    }
    writeln!(f)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (traffic, faults) = (&self.traffic, &self.faults);
        writeln!(
            f,
            "{} records in {}; {} older records were lost",
            self.records,
            duration(self.span as f64),
            self.lost
        )?;
        if self.gaps > 0 {
            writeln!(
                f,
                "of these, some are missing in {} gaps between the others: figures are too low there",
                self.gaps
            )?;
        }
        writeln!(
            f,
            "{} packets in {} frames, {} bytes",
            traffic.packets, traffic.frames, traffic.bytes
        )?;
        writeln!(
            f,
            "sent again: {} after RNR NAKs, {} after timeouts, {} after sequence NAKs; retries used up: {}",
            traffic.rnr_naks, traffic.timeouts, traffic.sequence_naks, traffic.retries_exhausted
        )?;
        write!(f, "page faults: {}", faults.all)?;
        for (name, count) in [
            ("resumed", faults.resumed),
            ("failed", faults.failed),
            ("expired", faults.expired),
            ("cancelled", faults.cancelled),
            ("ended by a reset", faults.reset),
            ("in flight", faults.in_flight),
        ] {
            if count > 0 {
                write!(f, ", {count} {name}")?;
            }
        }
        write!(f, "\n\n  {:<12}{:>8}", "stage", "count")?;
        for name in ["p50", "p90", "p99", "p99.9", "max"] {
            write!(f, "{name:>10}")?;
        }
        writeln!(f)?;
        for stage in &self.stages {
            row(f, stage.stage, &stage.percentiles)?;
        }
        row(f, "RNR wait", &self.rnr_waits)?;
        if self.slowest.is_empty() {
            return Ok(());
        }
        write!(f, "\nslowest faults\n  {:<12}{:>10}", "NIC", "token")?;
        for stage in SLOWEST_COLUMNS {
            write!(f, "{stage:>10}")?;
        }
        writeln!(f, "  access")?;
        for fault in &self.slowest {
            fault.fmt(f)?;
        }
        Ok(())
    }
}

/// Stages of the slowest faults, in the order of their columns.
const SLOWEST_COLUMNS: [&str; 7] = [
    "total",
    "record",
    "interrupt",
    "wait",
    "map",
    "post",
    "data",
];

impl fmt::Display for SlowFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:<12}{:>10}", self.nic, format!("{:#x}", self.token))?;
        for name in SLOWEST_COLUMNS {
            let stage = self.stages.iter().find(|(stage, _)| *stage == name);
            let text = stage.map_or("-".to_owned(), |(_, ns)| duration(*ns as f64));
            write!(f, "{text:>10}")?;
        }
        let mut access = String::new();
        if let Some(SlowAccess {
            qpn,
            key,
            va,
            process,
        }) = &self.access
        {
            write!(access, "QP {qpn}, key {key:#x}, address {va:#x}")?;
            if let Some((name, pid)) = process {
                write!(access, ", {name} {pid}")?;
            }
        }
        writeln!(f, "  {access}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples::{any_record, trace, write_to_absent_page};

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let percentiles = Percentiles::new((1..=1000).rev().collect());
        assert_eq!(
            percentiles,
            Percentiles {
                count: 1000,
                p50: 500,
                p90: 900,
                p99: 990,
                p999: 999,
                max: 1000,
            }
        );
        let one = Percentiles::new(vec![7]);
        assert_eq!((one.p50, one.p999, one.max), (7, 7, 7));
        assert_eq!(Percentiles::new(Vec::new()), Percentiles::default());
    }

    #[test]
    fn durations_have_a_unit() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (999.0, "999 ns"),
            (1e3, "1.00 µs"),
            (12_345.0, "12.3 µs"),
            (123_456.0, "123 µs"),
            (9_996.0, "10.0 µs"),
            (999_999.0, "1.00 ms"),
            (1.5e6, "1.50 ms"),
            (61e9, "61.0 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn a_report_divides_the_time_of_a_fault_into_stages() {
        let mut records = write_to_absent_page(1000, 7, 5);
        records.extend(write_to_absent_page(900_000, 8, 6));
        let report = Report::new(&trace(records));
        let stages: Vec<_> = report
            .stages
            .iter()
            .map(|s| (s.stage, s.percentiles.count, s.percentiles.p50))
            .collect();
        assert_eq!(
            stages,
            [
                ("record", 2, 15_000),
                ("interrupt", 2, 50_000),
                ("wait", 2, 10_000),
                ("map", 2, 20_000),
                ("post", 2, 5_000),
                ("data", 2, 8_000),
                ("total", 2, 108_000)
            ]
        );
        assert_eq!((report.faults.all, report.faults.resumed), (2, 2));
        assert_eq!((report.rnr_waits.count, report.rnr_waits.max), (2, 108_000));
        assert_eq!((report.traffic.packets, report.traffic.rnr_naks), (8, 2));
        let slowest = &report.slowest[0];
        assert_eq!((slowest.token, slowest.rnr_naks), (7, 1));
        let text = report.to_string();
        for line in [
            "page faults: 2, 2 resumed",
            "  record             2   15.0 µs   15.0 µs   15.0 µs   15.0 µs   15.0 µs",
            "  right              0x7    108 µs   15.0 µs   50.0 µs   10.0 µs   20.0 µs   5.00 µs   8.00 µs  QP 18, key 0x1200, address 0x7f0000001000",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "{line:?} is not in\n{text}"
            );
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["stages"][6]["p50"], 108_000);
        assert_eq!(json["slowest"][0]["access"]["qpn"], 18);
    }

    #[test]
    fn a_trace_without_records_has_a_report() {
        let text = Report::new(&trace(Vec::new())).to_string();
        assert!(text.contains("page faults: 0\n"), "{text}");
    }

    /// The histograms of the metrics and the report see the same durations.
    #[test]
    fn report_and_metrics_agree() {
        let mut recorder = crate::Recorder::new(100, 2, true);
        let mut records = write_to_absent_page(1000, 7, 5);
        records.extend(write_to_absent_page(900_000, 8, 6));
        for record in &records {
            recorder.event(record.at, record.nic, record.event);
        }
        let metrics = recorder.snapshot(1);
        let report = Report::new(&trace(records));
        for (stage, reported) in Stage::ALL.iter().zip(&report.stages) {
            let histogram = metrics.stage(*stage);
            assert_eq!(histogram.count(), reported.percentiles.count as u64);
            assert_eq!(histogram.sum_ns(), 2 * reported.percentiles.max);
        }
        assert_eq!(metrics.faults.raised, report.faults.all);
    }

    proptest! {
        #[test]
        fn any_records_have_a_report(records in prop::collection::vec(any_record(), 0..200)) {
            let count = records.len();
            let report = Report::new(&trace(records));
            prop_assert!(report.faults.all <= count as u64);
            prop_assert!(report.to_string().lines().count() < 40);
            prop_assert!(serde_json::to_string(&report).is_ok());
        }
    }
}
