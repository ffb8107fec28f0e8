//! What the engine thread records.

use faultline_nic::{Diagnostic, Instant, TxFrame};

use crate::event::{FrameEvent, Record, TraceEvent};
use crate::kind::Direction;
use crate::metrics::NicMetrics;
use crate::ring::{TracePart, TraceRing};

/// Records the events of all NICs of an engine. It belongs to the engine thread; others get copies.
#[derive(Debug)]
pub struct Recorder {
    ring: TraceRing,
    /// By number. A NIC gets its metrics with its first event, the only allocation after the start.
    nics: Vec<NicMetrics>,
}

impl Recorder {
    /// Keeps the newest `capacity` events.
    pub fn new(capacity: usize) -> Self {
        Self {
            ring: TraceRing::new(capacity),
            nics: Vec::new(),
        }
    }

    /// A frame of queue pair `src_qpn` of a NIC was forwarded to `to`, or to none or several NICs.
    #[inline]
    pub fn frame(&mut self, at: Instant, nic: u16, src_qpn: u32, to: u16, frame: &TxFrame) {
        let frame = FrameEvent::new(frame, src_qpn, to);
        if let Some(metrics) = self.nic(nic) {
            metrics.tx.count(&frame);
        }
        if let Some(metrics) = self.nic(to) {
            metrics.rx.count(&frame);
        }
        let event = TraceEvent::Frame(frame);
        self.ring.push(Record { at, nic, event });
    }

    /// Doorbells, interrupts.
    #[inline]
    pub fn event(&mut self, at: Instant, nic: u16, event: TraceEvent) {
        if let Some(metrics) = self.nic(nic) {
            match &event {
                TraceEvent::Frame(frame) => metrics.tx.count(frame),
                TraceEvent::Doorbell { kind, .. } => metrics.count_doorbell(*kind),
                TraceEvent::Interrupt { vector } => metrics.count_interrupt(*vector),
                TraceEvent::Nic(diagnostic) => metrics.count_diagnostic(at, diagnostic),
            }
        }
        self.ring.push(Record { at, nic, event });
    }

    /// A NIC has reported something.
    #[inline]
    pub fn diagnostic(&mut self, at: Instant, nic: u16, diagnostic: Diagnostic) {
        self.event(at, nic, TraceEvent::Nic(diagnostic));
    }

    /// A NIC has overwritten this many diagnostics.
    pub fn lost_diagnostics(&mut self, nic: u16, lost: u64) {
        if let Some(metrics) = self.nic(nic) {
            metrics.lost_diagnostics += lost;
        }
    }

    /// Copies a part of the trace: see [`TraceRing::part`].
    pub fn trace_part(&self, from: u64, limit: usize) -> TracePart {
        self.ring.part(from, limit)
    }

    /// Copies the metrics of a NIC (20 KiB).
    pub fn snapshot(&self, nic: u16) -> NicMetrics {
        self.nics.get(usize::from(nic)).cloned().unwrap_or_default()
    }

    /// Requests that a NIC has sent or received. What is sent again counts again.
    pub fn messages(&self, nic: u16, direction: Direction) -> u64 {
        let metrics = self.nics.get(usize::from(nic));
        let counts = metrics.map(|metrics| metrics.traffic(direction).messages());
        counts.map_or(0, |counts| counts.map(|(_, count)| count).sum())
    }

    /// The metrics of a NIC; `None` for [`FrameEvent::NOBODY`].
    #[inline]
    fn nic(&mut self, nic: u16) -> Option<&mut NicMetrics> {
        if usize::from(nic) >= self.nics.len() {
            self.add_nics(nic);
        }
        self.nics.get_mut(usize::from(nic))
    }

    #[cold]
    fn add_nics(&mut self, nic: u16) {
        if nic != FrameEvent::NOBODY {
            let count = usize::from(nic) + 1;
            self.nics.resize_with(count, NicMetrics::default);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_counted_where_it_is_sent_and_where_it_arrives() {
        let mut recorder = Recorder::new(4);
        let frame = TxFrame::default();
        recorder.frame(Instant(1), 0, 0, 2, &frame);
        recorder.frame(Instant(2), 0, 0, FrameEvent::NOBODY, &frame);
        let frames = |recorder: &Recorder, nic| {
            let metrics = recorder.snapshot(nic);
            let sum = |side: &crate::Opcodes| side.iter().map(|(_, t)| t.frames).sum::<u64>();
            (sum(&metrics.tx), sum(&metrics.rx))
        };
        assert_eq!(frames(&recorder, 0), (2, 0));
        assert_eq!(frames(&recorder, 1), (0, 0));
        assert_eq!(frames(&recorder, 2), (0, 1));
        // A NIC that the recorder has not seen.
        assert_eq!(frames(&recorder, 9), (0, 0));
        assert_eq!(recorder.trace_part(0, 10).records.len(), 2);
    }

    #[test]
    fn events_and_losses_are_counted_by_kind() {
        let mut recorder = Recorder::new(0);
        recorder.event(Instant(1), 1, TraceEvent::Interrupt { vector: 3 });
        let doorbell = TraceEvent::Doorbell {
            page: 0,
            kind: faultline_abi::doorbell::SQ,
            object: 5,
            value: 6,
        };
        recorder.event(Instant(1), 1, doorbell);
        recorder.diagnostic(Instant(2), 1, Diagnostic::Stalled { qpn: 4 });
        recorder.lost_diagnostics(1, 3);
        let metrics = recorder.snapshot(1);
        assert_eq!(metrics.interrupts().nth(3), Some((3, 1)));
        assert_eq!(metrics.doorbells().collect::<Vec<_>>(), [(1, 1)]);
        let stalled = metrics
            .diagnostics()
            .find(|(kind, _)| kind.name() == "stalled");
        assert_eq!(stalled.map(|(_, count)| count), Some(1));
        assert_eq!(metrics.lost_diagnostics, 3);
    }

    /// Prints the cost of recording a frame; `cargo test --release -p faultline-telemetry -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures"]
    fn cost_of_a_frame() {
        let mut recorder = Recorder::new(65_536);
        let frame = TxFrame::default();
        for round in 0..5 {
            let start = std::time::Instant::now();
            let count = 10_000_000u64;
            for at in 0..count {
                recorder.frame(Instant(at), 0, 7, 1, std::hint::black_box(&frame));
            }
            let ns = start.elapsed().as_nanos() as f64 / count as f64;
            println!("round {round}: {ns:.2} ns");
        }
        assert_eq!(recorder.snapshot(1).rx.iter().count(), 1);
    }
}
