//! Counts for expectations.

use std::collections::BTreeMap;

use faultline_nic::{Diagnostic, Instant, Nanos};
use faultline_telemetry::{DiagnosticKind, Service, Stage};

use crate::plan::Plan;

/// Counts since the start of a run.
#[derive(Clone, Debug)]
pub struct Counts {
    /// By NIC and kind.
    diagnostics: Vec<[u64; DiagnosticKind::COUNT]>,
    /// Packets, completions and events, by the expectation that asks for them.
    expected: Vec<u64>,
    /// Durations of the stages of page faults.
    stages: [Vec<Nanos>; Stage::COUNT],
    /// Times at which unanswered faults were raised, by NIC and token.
    unanswered: BTreeMap<(usize, u64), Instant>,
}

/// Most durations of a stage that are kept, the first ones.
const MAX_DURATIONS: usize = 1 << 16;

impl Counts {
    pub(super) fn new(plan: &Plan, nics: usize) -> Self {
        Self {
            diagnostics: vec![[0; DiagnosticKind::COUNT]; nics],
            expected: vec![0; plan.expectations.len()],
            stages: Default::default(),
            unanswered: BTreeMap::new(),
        }
    }

    pub(super) fn diagnostic(&mut self, at: Instant, nic: usize, diagnostic: &Diagnostic) {
        let kind = DiagnosticKind::of(diagnostic) as usize;
        let counts = self.diagnostics.get_mut(nic);
        if let Some(count) = counts.and_then(|counts| counts.get_mut(kind)) {
            *count = count.saturating_add(1);
        }
        match *diagnostic {
            Diagnostic::FaultRaised { token, .. } if self.unanswered.len() < MAX_DURATIONS => {
                self.unanswered.insert((nic, token), at);
            }
            Diagnostic::FaultResumed {
                token,
                raised,
                record_ns,
                driver,
                ..
            } => {
                self.unanswered.remove(&(nic, token));
                for (stage, time) in Service::new(raised, at, record_ns, driver).stages() {
                    self.stage(stage, time);
                }
            }
            Diagnostic::FaultDone {
                raised, resumed, ..
            } => {
                self.stage(Stage::Data, at.0.saturating_sub(resumed.0));
                self.stage(Stage::Total, at.0.saturating_sub(raised.0));
            }
            // The driver has not answered in time: the age of the fault counts.
            Diagnostic::FaultExpired { token, .. } => {
                if let Some(raised) = self.unanswered.remove(&(nic, token)) {
                    self.stage(Stage::Total, at.0.saturating_sub(raised.0));
                }
            }
            Diagnostic::FaultFailed { token, .. } | Diagnostic::FaultCancelled { token, .. } => {
                self.unanswered.remove(&(nic, token));
            }
            Diagnostic::Reset => self.unanswered.retain(|(of, _), _| *of != nic),
            _ => {}
        }
    }

    fn stage(&mut self, stage: Stage, time: u64) {
        let durations = self.stages.get_mut(stage as usize);
        if let Some(durations) = durations.filter(|durations| durations.len() < MAX_DURATIONS) {
            durations.push(Nanos(time));
        }
    }

    pub(super) fn expected(&mut self, expectation: usize) {
        if let Some(count) = self.expected.get_mut(expectation) {
            *count = count.saturating_add(1);
        }
    }

    /// Diagnostics of a kind, of one NIC or of all.
    pub fn diagnostics(&self, nic: Option<usize>, kind: DiagnosticKind) -> u64 {
        let nics = self.diagnostics.iter().enumerate();
        let named = nics.filter(|(number, _)| nic.is_none_or(|only| only == *number));
        named
            .filter_map(|(_, counts)| counts.get(kind as usize))
            .sum()
    }

    /// Durations of a stage of page faults, in ascending order.
    pub fn durations(&self, stage: Stage) -> Vec<Nanos> {
        let durations = self.stages.get(stage as usize);
        let mut durations = durations.cloned().unwrap_or_default();
        durations.sort_unstable();
        durations
    }

    /// Ages at the time `end` of faults that have no answer then.
    pub fn unanswered(&self, end: Instant) -> Vec<Nanos> {
        let raised = self.unanswered.values();
        raised
            .map(|raised| Nanos(end.0.saturating_sub(raised.0)))
            .collect()
    }

    /// Packets, completions or events of the expectation with this index in the plan.
    pub fn of_expectation(&self, expectation: usize) -> u64 {
        self.expected.get(expectation).copied().unwrap_or_default()
    }
}
