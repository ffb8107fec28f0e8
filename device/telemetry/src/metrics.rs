//! Counts of the events of a NIC, as plain numbers that the engine thread owns.
//!
//! The size is fixed: values that a guest chooses select an element of an array.

use faultline_abi::regs::MSIX_VECTORS;
use faultline_nic::{Diagnostic, Instant};
use faultline_wire::Opcode;

use crate::event::{DoorbellPath, FrameEvent};
use crate::kind::{DiagnosticKind, Direction};
use crate::stage::{Service, Stage};

/// Types of doorbells: seven bits.
const DOORBELL_KINDS: usize = 128;

/// Counts one more.
#[inline]
fn increment(count: &mut u64) {
    *count = count.saturating_add(1);
}

/// Frames that were sent or received with one opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames; several packets may be one.
    pub frames: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire, without FCS.
    pub bytes: u64,
}

/// Traffic by BTH opcode. [`FrameEvent::RAW`] has the frames that are not RoCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opcodes([Traffic; 256]);

impl Default for Opcodes {
    fn default() -> Self {
        Self([Traffic::default(); 256])
    }
}

impl Opcodes {
    /// Counts frames that have all this opcode and length.
    #[inline]
    pub(crate) fn count(&mut self, frame: &FrameEvent, frames: u16) {
        if let Some(traffic) = self.0.get_mut(usize::from(frame.opcode)) {
            let frames = u64::from(frames);
            let add = |sum: &mut u64, each: u64| {
                *sum = sum.wrapping_add(each.wrapping_mul(frames));
            };
            add(&mut traffic.frames, 1);
            add(&mut traffic.packets, frame.packets.into());
            add(&mut traffic.bytes, frame.bytes.into());
        }
    }

    /// Traffic of the opcodes that have any.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Traffic)> {
        let numbered = (0..=u8::MAX).zip(self.0);
        numbered.filter(|(_, traffic)| traffic.frames > 0)
    }

    /// Requests by the opcode of their last packet. Retransmissions count again.
    pub fn messages(&self) -> impl Iterator<Item = (Opcode, u64)> {
        self.iter().filter_map(|(opcode, traffic)| {
            let opcode = Opcode::from_u8(opcode)?;
            let ends = opcode.is_request() && opcode.is_last_or_only();
            ends.then_some((opcode, traffic.packets))
        })
    }
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; Histogram::BUCKETS],
    sum_ns: u64,
    count: u64,
}

impl Histogram {
    /// Number of buckets: bounds of 1 µs, 2 µs, 4 µs, … 16.8 s, and infinity.
    pub const BUCKETS: usize = 26;

    /// Counts a duration.
    pub fn observe(&mut self, ns: u64) {
        // The first bound that is not less: the logarithm, rounded up, of whole microseconds, rounded up.
        let below = ns.div_ceil(1000).saturating_sub(1);
        let log = below.checked_ilog2().map_or(0, |log| log.saturating_add(1));
        let place = (log as usize).min(const { Self::BUCKETS - 1 });
        if let Some(bucket) = self.buckets.get_mut(place) {
            increment(bucket);
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
        increment(&mut self.count);
    }

    /// The buckets, not cumulative: upper bound in nanoseconds, `None` for the last, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bound = |bucket: usize| (bucket < const { Self::BUCKETS - 1 }).then(|| 1000 << bucket);
        (0..).map(bound).zip(self.buckets)
    }

    /// Sum of all durations in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Page faults by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Raised: the driver has a record.
    pub raised: u64,
    /// Misses that joined an outstanding fault.
    pub joined: u64,
    /// Answered by the driver.
    pub resumed: u64,
    /// Accesses that were executed after a fault; several for a fault that others have joined.
    pub done: u64,
    /// Answered by the driver with an error.
    pub failed: u64,
    /// Not answered in time.
    pub expired: u64,
    /// Cancelled because their region has changed.
    pub cancelled: u64,
    /// Raised and not answered. Too high by the answers among lost diagnostics.
    pub in_flight: u64,
}

impl FaultCounts {
    /// The counts with their names. `in_flight`, which decreases, is not one of them.
    pub fn by_state(&self) -> [(&'static str, u64); 7] {
        [
            ("raised", self.raised),
            ("joined", self.joined),
            ("resumed", self.resumed),
            ("done", self.done),
            ("failed", self.failed),
            ("expired", self.expired),
            ("cancelled", self.cancelled),
        ]
    }
}

/// The metrics of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicMetrics {
    /// Frames that it has sent.
    pub tx: Opcodes,
    /// Frames that it has taken.
    pub rx: Opcodes,
    /// Page faults.
    pub faults: FaultCounts,
    /// Diagnostics that were overwritten before the engine took them. They are in no other number here.
    pub lost_diagnostics: u64,
    /// By [`DoorbellPath`] and kind.
    doorbells: [[u64; DOORBELL_KINDS]; DoorbellPath::ALL.len()],
    interrupts: [u64; MSIX_VECTORS as usize],
    diagnostics: [u64; DiagnosticKind::COUNT],
    stages: [Histogram; Stage::COUNT],
}

impl Default for NicMetrics {
    fn default() -> Self {
        Self {
            tx: Opcodes::default(),
            rx: Opcodes::default(),
            faults: FaultCounts::default(),
            lost_diagnostics: 0,
            doorbells: [[0; DOORBELL_KINDS]; DoorbellPath::ALL.len()],
            interrupts: [0; MSIX_VECTORS as usize],
            diagnostics: [0; DiagnosticKind::COUNT],
            stages: Default::default(),
        }
    }
}

impl NicMetrics {
    /// Traffic in a direction.
    pub fn traffic(&self, direction: Direction) -> &Opcodes {
        match direction {
            Direction::Tx => &self.tx,
            Direction::Rx => &self.rx,
        }
    }

    /// Doorbells by path and type, of the types that have any.
    pub fn doorbells(&self) -> impl Iterator<Item = (DoorbellPath, u8, u64)> {
        let paths = DoorbellPath::ALL.into_iter().zip(self.doorbells);
        paths.flat_map(|(path, kinds)| {
            let counted = (0..).zip(kinds).filter(|(_, count)| *count > 0);
            counted.map(move |(kind, count)| (path, kind, count))
        })
    }

    /// Interrupts by vector.
    pub fn interrupts(&self) -> impl Iterator<Item = (u16, u64)> {
        (0..).zip(self.interrupts)
    }

    /// Diagnostics by kind.
    pub fn diagnostics(&self) -> impl Iterator<Item = (DiagnosticKind, u64)> {
        DiagnosticKind::ALL.iter().copied().zip(self.diagnostics)
    }

    /// Histogram of a stage of page faults.
    pub fn stage(&self, stage: Stage) -> &Histogram {
        let [record, interrupt, wait, map, post, data, total] = &self.stages;
        match stage {
            Stage::Record => record,
            Stage::Interrupt => interrupt,
            Stage::Wait => wait,
            Stage::Map => map,
            Stage::Post => post,
            Stage::Data => data,
            Stage::Total => total,
        }
    }

    #[inline]
    pub(crate) fn count_doorbell(&mut self, kind: u8, path: DoorbellPath) {
        let kind = usize::from(kind) % DOORBELL_KINDS;
        let kinds = self.doorbells.get_mut(path as usize);
        if let Some(count) = kinds.and_then(|kinds| kinds.get_mut(kind)) {
            increment(count);
        }
    }

    #[inline]
    pub(crate) fn count_interrupt(&mut self, vector: u16) {
        if let Some(count) = self.interrupts.get_mut(usize::from(vector)) {
            increment(count);
        }
    }

    fn observe(&mut self, stage: Stage, ns: u64) {
        if let Some(histogram) = self.stages.get_mut(stage as usize) {
            histogram.observe(ns);
        }
    }

    /// Counts a diagnostic of time `at`.
    pub(crate) fn count_diagnostic(&mut self, at: Instant, diagnostic: &Diagnostic) {
        let kind = DiagnosticKind::of(diagnostic) as usize;
        if let Some(count) = self.diagnostics.get_mut(kind) {
            increment(count);
        }
        match *diagnostic {
            Diagnostic::Reset => self.faults.in_flight = 0,
            Diagnostic::FaultRaised { .. } => {
                increment(&mut self.faults.raised);
                increment(&mut self.faults.in_flight);
            }
            Diagnostic::FaultJoined { .. } => increment(&mut self.faults.joined),
            Diagnostic::FaultResumed {
                raised,
                record_ns,
                driver,
                ..
            } => {
                increment(&mut self.faults.resumed);
                self.end_fault();
                for (stage, ns) in Service::new(raised, at, record_ns, driver).stages() {
                    self.observe(stage, ns);
                }
            }
            Diagnostic::FaultFailed { .. } => {
                increment(&mut self.faults.failed);
                self.end_fault();
            }
            Diagnostic::FaultExpired { .. } => {
                increment(&mut self.faults.expired);
                self.end_fault();
            }
            Diagnostic::FaultCancelled { .. } => {
                increment(&mut self.faults.cancelled);
                self.end_fault();
            }
            Diagnostic::FaultDone {
                resumed, raised, ..
            } => {
                increment(&mut self.faults.done);
                self.observe(Stage::Data, at.0.saturating_sub(resumed.0));
                self.observe(Stage::Total, at.0.saturating_sub(raised.0));
            }
            _ => {}
        }
    }

    fn end_fault(&mut self) {
        self.faults.in_flight = self.faults.in_flight.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use faultline_nic::DriverTimes;

    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_is_not_shorter() {
        let bucket_of = |ns| {
            let mut histogram = Histogram::default();
            histogram.observe(ns);
            let mut buckets = histogram.buckets();
            let (bound, _) = buckets.find(|(_, count)| *count == 1).unwrap();
            bound
        };
        for (ns, bound) in [
            (0, Some(1_000)),
            (1_000, Some(1_000)),
            (1_001, Some(2_000)),
            (2_000, Some(2_000)),
            (2_001, Some(4_000)),
            (16_777_216_000, Some(16_777_216_000)),
            (16_777_216_001, None),
            (u64::MAX, None),
        ] {
            assert_eq!(bucket_of(ns), bound, "{ns}");
        }
    }

    #[test]
    fn the_sum_of_a_histogram_does_not_wrap() {
        let mut histogram = Histogram::default();
        histogram.observe(u64::MAX);
        histogram.observe(5);
        assert_eq!((histogram.sum_ns(), histogram.count()), (u64::MAX, 2));
    }

    #[test]
    fn a_fault_is_counted_in_each_of_its_stages() {
        let mut metrics = NicMetrics::default();
        let raised = Instant(1_000_000);
        metrics.count_diagnostic(
            raised,
            &Diagnostic::FaultRaised {
                token: 7,
                qpn: 1,
                key: 2,
                va: 3,
                bytes: 4,
                psn: 5,
                write: true,
                requester: false,
            },
        );
        assert_eq!(metrics.faults.in_flight, 1);
        let driver = DriverTimes {
            wait_ns: 10_000,
            map_ns: 20_000,
            post_ns: 5_000,
        };
        let resumed = Instant(1_100_000);
        metrics.count_diagnostic(
            resumed,
            &Diagnostic::FaultResumed {
                token: 7,
                raised,
                waiters: 1,
                record_ns: 15_000,
                driver,
            },
        );
        metrics.count_diagnostic(
            Instant(1_108_000),
            &Diagnostic::FaultDone {
                token: 7,
                qpn: 1,
                resumed,
                raised,
            },
        );
        let sums = Stage::ALL.map(|stage| metrics.stage(stage).sum_ns());
        assert_eq!(
            sums,
            [15_000, 50_000, 10_000, 20_000, 5_000, 8_000, 108_000]
        );
        assert!(Stage::ALL.iter().all(|s| metrics.stage(*s).count() == 1));
        let faults = metrics.faults;
        assert_eq!(
            (faults.raised, faults.resumed, faults.done, faults.in_flight),
            (1, 1, 1, 0)
        );
    }

    #[test]
    fn numbers_that_a_guest_invents_are_counted_in_bounds() {
        let mut metrics = NicMetrics::default();
        (0..=u8::MAX).for_each(|kind| metrics.count_doorbell(kind, DoorbellPath::Kick));
        (0..=u16::MAX).for_each(|vector| metrics.count_interrupt(vector));
        assert_eq!(metrics.doorbells().map(|(_, _, n)| n).sum::<u64>(), 256);
        assert_eq!(metrics.interrupts().map(|(_, n)| n).sum::<u64>(), 16);
    }

    #[test]
    fn only_the_end_of_a_request_is_a_message() {
        let mut opcodes = Opcodes::default();
        let frame = |opcode: Opcode, packets| FrameEvent {
            to: 0,
            opcode: opcode.to_u8(),
            syndrome: FrameEvent::NO_SYNDROME,
            src_qpn: 1,
            dst_qpn: 2,
            psn: 0,
            packets,
            bytes: 100,
        };
        opcodes.count(&frame(Opcode::RcWriteFirst, 31), 1);
        opcodes.count(&frame(Opcode::RcWriteLast, 1), 1);
        opcodes.count(&frame(Opcode::RcReadRequest, 1), 1);
        opcodes.count(&frame(Opcode::RcReadResponseOnly, 1), 1);
        opcodes.count(&frame(Opcode::RcAcknowledge, 1), 1);
        let messages: Vec<_> = opcodes.messages().collect();
        assert_eq!(
            messages,
            [(Opcode::RcWriteLast, 1), (Opcode::RcReadRequest, 1)]
        );
        assert_eq!(opcodes.iter().map(|(_, t)| t.packets).sum::<u64>(), 35);
    }
}
