//! Connected records of a trace: those of a page fault, and of a wait after an RNR NAK.

use std::collections::HashMap;

use faultline_nic::{Diagnostic, Instant, Nanos};
use faultline_wire::{Opcode, Syndrome};

use crate::event::{FrameEvent, Record, TraceEvent};
use crate::stage::Service;

/// A queue pair: number of the NIC, QP number.
pub(crate) type QueuePair = (u16, u32);

/// The end of a fault by the driver or the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The driver has resumed it.
    Resumed(Service),
    /// The driver has answered with an error.
    Failed,
    /// The driver has not answered in time.
    Expired,
    /// The region has changed.
    Cancelled,
    /// The device was reset.
    Reset,
}

impl Outcome {
    /// The name in traces and reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Resumed(_) => "resumed",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Reset => "reset",
        }
    }
}

/// The demand of the access that raised a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) qpn: u32,
    pub(crate) key: u32,
    pub(crate) va: u64,
    pub(crate) bytes: u32,
    pub(crate) psn: u32,
    pub(crate) write: bool,
    pub(crate) requester: bool,
}

/// A page fault.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) nic: u16,
    pub(crate) token: u64,
    pub(crate) raised: Instant,
    /// `None` if the record was overwritten.
    pub(crate) access: Option<Access>,
    /// Time and kind of its end; `None` if the trace ends before.
    pub(crate) ended: Option<(Instant, Outcome)>,
    /// Queue pairs that waited when it was resumed.
    pub(crate) waiters: u32,
    /// Later misses on the same page.
    pub(crate) joined: u32,
    /// Accesses that were executed: queue pair, time.
    pub(crate) done: Vec<(u32, Instant)>,
    /// RNR NAKs for it.
    pub(crate) naks: u32,
}

/// An RNR NAK that a requester has received, and the end of its wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RnrWait {
    pub(crate) queue_pair: QueuePair,
    pub(crate) psn: u32,
    pub(crate) received: Instant,
    /// The delay that the NAK asks for.
    pub(crate) delay: Nanos,
    /// When the request was sent again.
    pub(crate) ended: Option<Instant>,
}

/// The faults and waits of a trace.
#[derive(Debug, Default)]
pub(crate) struct Analysis {
    /// Indices of the records, in the order of time. Of those with the same time, causes come before effects.
    pub(crate) order: Vec<usize>,
    pub(crate) faults: Vec<Fault>,
    /// The fault that a record belongs to, by index of the record.
    pub(crate) fault_of: HashMap<usize, usize>,
    pub(crate) waits: Vec<RnrWait>,
    /// The wait that begins or ends with a record, by index of the record.
    pub(crate) wait_of: HashMap<usize, usize>,
}

/// The order of events with the same time. The engine records frames when it forwards them, and the diagnostics of a pass
/// at its end.
fn rank(event: &TraceEvent) -> u8 {
    match event {
        TraceEvent::Doorbell { .. } => 0,
        TraceEvent::Frame(frame) if is_rnr_nak(frame) || is_nak(frame) => 4,
        TraceEvent::Frame(_) => 1,
        TraceEvent::Nic(Diagnostic::RnrNakSent { .. } | Diagnostic::SequenceNakSent { .. }) => 3,
        TraceEvent::Nic(
            Diagnostic::FaultRaised { .. }
            | Diagnostic::FaultJoined { .. }
            | Diagnostic::FaultResumed { .. },
        ) => 2,
        TraceEvent::Nic(_) | TraceEvent::Interrupt { .. } => 5,
    }
}

/// True for an RNR NAK.
pub(crate) fn is_rnr_nak(frame: &FrameEvent) -> bool {
    has_syndrome(frame) && matches!(Syndrome::from_u8(frame.syndrome), Syndrome::RnrNak { .. })
}

fn is_nak(frame: &FrameEvent) -> bool {
    has_syndrome(frame) && matches!(Syndrome::from_u8(frame.syndrome), Syndrome::Nak(_))
}

fn has_syndrome(frame: &FrameEvent) -> bool {
    frame.syndrome != FrameEvent::NO_SYNDROME
}

fn is_request(frame: &FrameEvent) -> bool {
    Opcode::from_u8(frame.opcode).is_some_and(Opcode::is_request)
}

impl Analysis {
    pub(crate) fn new(records: &[Record]) -> Self {
        let mut order: Vec<usize> = (0..records.len()).collect();
        let key = |index: &usize| records.get(*index).map(|r| (r.at, rank(&r.event)));
        order.sort_by_key(key);
        let mut builder = Builder::default();
        for &index in &order {
            if let Some(record) = records.get(index) {
                builder.add(index, record);
            }
        }
        Self {
            order,
            ..builder.analysis
        }
    }
}

#[derive(Debug, Default)]
struct Builder {
    analysis: Analysis,
    /// By number of the NIC.
    nics: HashMap<u16, SinceReset>,
}

/// The state of a NIC since its last reset, so that the next reset takes no time for earlier state.
#[derive(Debug, Default)]
struct SinceReset {
    /// Faults, by their index.
    faults: Vec<usize>,
    /// The newest fault with this token.
    by_token: HashMap<u64, usize>,
    /// The wait of a requester, by QP number.
    waiting: HashMap<u32, usize>,
}

impl Builder {
    fn add(&mut self, index: usize, record: &Record) {
        match &record.event {
            TraceEvent::Nic(diagnostic) => self.add_diagnostic(index, record, diagnostic),
            TraceEvent::Frame(frame) => self.add_frame(index, record, frame),
            TraceEvent::Doorbell { .. } | TraceEvent::Interrupt { .. } => {}
        }
    }

    /// The fault with a token for which `belongs` is true; otherwise a new one, raised at `raised`.
    fn fault(
        &mut self,
        index: usize,
        id: (u16, u64),
        raised: Instant,
        belongs: impl Fn(&Fault) -> bool,
    ) -> Option<&mut Fault> {
        let faults = &mut self.analysis.faults;
        let since = self.nics.entry(id.0).or_default();
        let known = since.by_token.get(&id.1).copied();
        let number = match known.filter(|number| faults.get(*number).is_some_and(belongs)) {
            Some(number) => number,
            None => {
                let number = faults.len();
                faults.push(Fault {
                    nic: id.0,
                    token: id.1,
                    raised,
                    access: None,
                    ended: None,
                    waiters: 0,
                    joined: 0,
                    done: Vec::new(),
                    naks: 0,
                });
                since.by_token.insert(id.1, number);
                since.faults.push(number);
                number
            }
        };
        self.analysis.fault_of.insert(index, number);
        self.analysis.faults.get_mut(number)
    }

    /// The fault with a token, if its beginning is in the trace.
    fn known_fault(&mut self, index: usize, id: (u16, u64)) -> Option<&mut Fault> {
        let number = *self.nics.get(&id.0)?.by_token.get(&id.1)?;
        self.analysis.fault_of.insert(index, number);
        self.analysis.faults.get_mut(number)
    }

    fn end_fault(
        &mut self,
        index: usize,
        record: &Record,
        token: u64,
        raised: Instant,
        outcome: Outcome,
    ) {
        let open = |fault: &Fault| fault.ended.is_none();
        if let Some(fault) = self.fault(index, (record.nic, token), raised, open) {
            fault.raised = raised;
            fault.ended = Some((record.at, outcome));
        }
    }

    fn add_diagnostic(&mut self, index: usize, record: &Record, diagnostic: &Diagnostic) {
        let (at, nic) = (record.at, record.nic);
        match *diagnostic {
            Diagnostic::FaultRaised {
                token,
                qpn,
                key,
                va,
                bytes,
                psn,
                write,
                requester,
            } => {
                if let Some(fault) = self.fault(index, (nic, token), at, |_| false) {
                    fault.access = Some(Access {
                        qpn,
                        key,
                        va,
                        bytes,
                        psn,
                        write,
                        requester,
                    });
                }
            }
            Diagnostic::FaultJoined { token, .. } => {
                if let Some(fault) = self.known_fault(index, (nic, token)) {
                    fault.joined = fault.joined.saturating_add(1);
                }
            }
            Diagnostic::FaultResumed {
                token,
                raised,
                waiters,
                record_ns,
                driver,
            } => {
                let outcome = Outcome::Resumed(Service::new(raised, at, record_ns, driver));
                self.end_fault(index, record, token, raised, outcome);
                if let Some(fault) = self.known_fault(index, (nic, token)) {
                    fault.waiters = waiters;
                }
            }
            Diagnostic::FaultFailed { token, raised, .. } => {
                self.end_fault(index, record, token, raised, Outcome::Failed);
            }
            Diagnostic::FaultExpired { token, raised, .. } => {
                self.end_fault(index, record, token, raised, Outcome::Expired);
            }
            Diagnostic::FaultCancelled { token, raised, .. } => {
                self.end_fault(index, record, token, raised, Outcome::Cancelled);
            }
            Diagnostic::FaultContinued { token, .. } => {
                self.known_fault(index, (nic, token));
            }
            Diagnostic::FaultDone {
                token,
                qpn,
                resumed,
                raised,
            } => {
                let resumed_then = |fault: &Fault| match fault.ended {
                    Some((ended, Outcome::Resumed(_))) => ended == resumed,
                    _ => false,
                };
                if let Some(fault) = self.fault(index, (nic, token), raised, resumed_then) {
                    if fault.ended.is_none() {
                        let service = Service::new(raised, resumed, 0, Default::default());
                        fault.ended = Some((resumed, Outcome::Resumed(service)));
                    }
                    fault.done.push((qpn, at));
                }
            }
            Diagnostic::RnrNakSent { token, .. } if token != 0 => {
                if let Some(fault) = self.known_fault(index, (nic, token)) {
                    fault.naks = fault.naks.saturating_add(1);
                }
            }
            Diagnostic::RnrNakReceived { qpn, psn, delay } => {
                let wait = RnrWait {
                    queue_pair: (nic, qpn),
                    psn,
                    received: at,
                    delay,
                    ended: None,
                };
                self.add_wait(index, wait);
            }
            Diagnostic::Reset => {
                let since = self.nics.remove(&nic).unwrap_or_default();
                for number in since.faults {
                    if let Some(fault) = self.analysis.faults.get_mut(number) {
                        fault.ended.get_or_insert((at, Outcome::Reset));
                    }
                }
            }
            _ => {}
        }
    }

    fn add_wait(&mut self, index: usize, wait: RnrWait) {
        let number = self.analysis.waits.len();
        let (nic, qpn) = wait.queue_pair;
        self.analysis.waits.push(wait);
        let since = self.nics.entry(nic).or_default();
        since.waiting.insert(qpn, number);
        self.analysis.wait_of.insert(index, number);
    }

    /// A request that ends the wait after an RNR NAK.
    fn add_frame(&mut self, index: usize, record: &Record, frame: &FrameEvent) {
        let Some(since) = self.nics.get_mut(&record.nic) else {
            return;
        };
        let Some(&number) = since.waiting.get(&frame.src_qpn) else {
            return;
        };
        let Some(wait) = self.analysis.waits.get_mut(number) else {
            return;
        };
        // A frame of the same time is the one that was refused.
        if is_request(frame) && frame.psn == wait.psn && record.at > wait.received {
            wait.ended = Some(record.at);
            self.analysis.wait_of.insert(index, number);
            since.waiting.remove(&frame.src_qpn);
        }
    }
}
