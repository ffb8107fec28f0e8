//! The data of the page, as JSON.

use std::collections::BTreeMap;

use faultline_control::diagnostics::DiagnosticView;
use faultline_control::pages::PageMapView;
use faultline_control::ports::{LinkModelView, PortView};
use faultline_control::rules::LiveRuleView;
use faultline_control::scenario::ScenarioView;
use faultline_control::view::{ClientView, EngineView, LinkView, NicView};
use faultline_telemetry::{
    DiagnosticKind, Outcomes, Record, Report, SlowFault, StageReport, Trace, TraceEvent,
    TraceHeader, diagnostic_fields,
};
use serde::Serialize;
use serde_json::Value;

use super::super::top::rates::Rows;

/// Events that a live view has, the newest.
const LIVE_EVENTS: usize = 500;

/// A running process.
#[derive(Debug, Serialize)]
pub(super) struct Live {
    /// Path of the control socket.
    pub(super) source: String,
    /// Time between two samples.
    pub(super) interval_s: f64,
    pub(super) engine: EngineView,
    pub(super) rows: Rows,
    pub(super) nics: Vec<NicDetails>,
    pub(super) ports: Vec<PortView>,
    pub(super) links: Vec<LinkModelView>,
    /// `null`: none runs.
    pub(super) scenario: Option<ScenarioView>,
    /// Live rules.
    pub(super) rules: Vec<LiveRuleView>,
    pub(super) faults: FaultTimes,
    pub(super) events: Vec<Event>,
    /// Records of the trace that were not read, because there were too many.
    pub(super) skipped: u64,
}

/// Details of a NIC beside its rates.
#[derive(Debug, Serialize)]
pub(super) struct NicDetails {
    name: String,
    mac: String,
    client: Option<ClientView>,
    link: LinkView,
    lost_diagnostics: u64,
}

impl From<&NicView> for NicDetails {
    fn from(nic: &NicView) -> Self {
        Self {
            name: nic.name.clone(),
            mac: nic.mac.clone(),
            client: nic.client.clone(),
            link: nic.link.clone(),
            lost_diagnostics: nic.lost_diagnostics,
        }
    }
}

/// A recorded run.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    /// Name of the file.
    pub(super) source: String,
    /// From the first record to the last.
    pub(super) span_ns: u64,
    pub(super) records: usize,
    /// Records that the trace lacks.
    pub(super) lost: u64,
    pub(super) nics: Vec<NicTotals>,
    pub(super) queue_pairs: Vec<PairTotals>,
    /// Regions with page faults. The pages of a region that no fault names count as absent.
    pub(super) regions: Vec<RunRegion>,
    pub(super) faults: FaultTimes,
    pub(super) events: Vec<Event>,
    /// Older events that are not in `events`.
    pub(super) older_events: usize,
}

/// Packets of a NIC in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct NicTotals {
    pub(super) name: String,
    pub(super) tx_packets: u64,
    pub(super) rx_packets: u64,
    pub(super) tx_bytes: u64,
    pub(super) rx_bytes: u64,
    pub(super) page_faults: u64,
    pub(super) rnr_naks_sent: u64,
    pub(super) retries: u64,
}

/// Packets of a queue pair in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PairTotals {
    pub(super) nic: String,
    pub(super) qpn: u32,
    pub(super) peer_qpn: Option<u32>,
    pub(super) program: Option<String>,
    pub(super) pid: Option<u32>,
    pub(super) tx_packets: u64,
    pub(super) rx_packets: u64,
    pub(super) tx_bytes: u64,
    pub(super) rx_bytes: u64,
    pub(super) page_faults: u64,
}

/// The pages of a region that have had faults.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RunRegion {
    pub(super) nic: String,
    pub(super) key: u32,
    #[serde(flatten)]
    pub(super) map: PageMapView,
}

/// Times of page faults, by stage.
#[derive(Debug, Serialize)]
pub(super) struct FaultTimes {
    outcomes: Outcomes,
    stages: Vec<StageReport>,
    slowest: Vec<SlowFault>,
}

impl From<Report> for FaultTimes {
    fn from(report: Report) -> Self {
        Self {
            outcomes: report.faults,
            stages: report.stages,
            slowest: report.slowest,
        }
    }
}

impl FaultTimes {
    /// The faults of these records.
    pub(super) fn of_records(header: TraceHeader, records: Vec<Record>) -> Self {
        Report::new(&Trace { header, records }).into()
    }
}

/// A diagnostic of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Event {
    /// Device clock in nanoseconds.
    at: u64,
    /// Name of the NIC.
    nic: String,
    kind: String,
    fields: Value,
    program: Option<String>,
}

impl Event {
    /// The event of a record; `None`: it is a frame, a doorbell or an interrupt.
    pub(super) fn of_record(header: &TraceHeader, record: &Record) -> Option<Self> {
        let TraceEvent::Nic(diagnostic) = &record.event else {
            return None;
        };
        Some(Self {
            at: record.at.0,
            nic: header.nic_name(record.nic),
            kind: DiagnosticKind::of(diagnostic).name().to_owned(),
            fields: diagnostic_fields(diagnostic),
            program: None,
        })
    }

    pub(super) fn of_diagnostic(nic: &str, view: DiagnosticView) -> Self {
        Self {
            at: view.at,
            nic: nic.to_owned(),
            kind: view.kind,
            fields: view.fields,
            program: view.program,
        }
    }
}

/// The newest events, each once, whichever list it comes from.
#[derive(Debug, Default)]
pub(super) struct EventLog(BTreeMap<(u64, String, String, String), Event>);

impl EventLog {
    pub(super) fn add(&mut self, event: Event) {
        let key = (
            event.at,
            event.nic.clone(),
            event.kind.clone(),
            event.fields.to_string(),
        );
        let known = self.0.entry(key).or_insert_with(|| event.clone());
        if known.program.is_none() {
            known.program = event.program;
        }
        while self.0.len() > LIVE_EVENTS {
            self.0.pop_first();
        }
    }

    /// The events, the newest first.
    pub(super) fn newest(&self) -> Vec<Event> {
        self.0.values().rev().cloned().collect()
    }

    /// Forgets all: another process answers.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(at: u64, program: Option<&str>) -> Event {
        Event {
            at,
            nic: "a".to_owned(),
            kind: "reset".to_owned(),
            fields: json!({}),
            program: program.map(str::to_owned),
        }
    }

    #[test]
    fn an_event_of_two_lists_is_shown_once() {
        let mut log = EventLog::default();
        log.add(event(7, None));
        log.add(event(7, Some("rping")));
        log.add(event(7, None));
        log.add(event(9, None));
        assert_eq!(log.newest(), [event(9, None), event(7, Some("rping"))]);
    }

    #[test]
    fn the_oldest_events_are_forgotten() {
        let mut log = EventLog::default();
        (0..600).for_each(|at| log.add(event(at, None)));
        let newest = log.newest();
        assert_eq!(newest.len(), LIVE_EVENTS);
        assert_eq!((newest[0].at, newest[LIVE_EVENTS - 1].at), (599, 100));
    }
}
