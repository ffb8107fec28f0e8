//! Records of the engine thread.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use faultline_nic::{Diagnostic, Instant, TxFrame};

use crate::event::{FrameEvent, Record, TraceEvent};
use crate::kind::Direction;
use crate::metrics::NicMetrics;
use crate::recent::Recent;
use crate::ring::{Events, TracePart, TraceRing};

/// Records the events of the NICs of an engine. It belongs to the engine thread; others get copies.
#[derive(Debug)]
pub struct Recorder {
    /// Events by NIC, so that one NIC cannot evict those of others. The rings of other engines' NICs are empty. An
    /// empty vector: no events are kept.
    rings: Vec<TraceRing>,
    numbers: Numbers,
    /// By number of the NIC. Empty: nothing is counted.
    nics: Vec<NicMetrics>,
    /// By number of the NIC. Empty: nothing is counted.
    recent: Vec<Recent>,
    /// The newest frames. They are counted and kept when another event or a reader comes.
    burst: Burst,
}

/// Numbers of events.
#[derive(Debug)]
enum Numbers {
    /// Those of the only engine: the next one.
    Own(u64),
    /// Those of all engines: the next one.
    Common(Arc<AtomicU64>),
}

impl Numbers {
    /// Takes `count` numbers for events. Returns the first.
    #[inline]
    fn take(&mut self, count: u16) -> u64 {
        let count = u64::from(count);
        match self {
            Self::Own(next) => {
                let first = *next;
                *next = first.saturating_add(count);
                first
            }
            Self::Common(next) => next.fetch_add(count, Ordering::Relaxed),
        }
    }

    fn next(&self) -> u64 {
        match self {
            Self::Own(next) => *next,
            Self::Common(next) => next.load(Ordering::Relaxed),
        }
    }
}

/// The records of a NIC. They move with the NIC to another engine.
#[derive(Debug)]
pub struct NicRecords {
    ring: Option<TraceRing>,
    metrics: Option<NicMetrics>,
    recent: Option<Recent>,
}

/// Frames that a NIC sends in one turn, equal except for their PSNs, which are consecutive. They are counted together,
/// and kept in one slot of the ring, so that a frame costs one comparison.
#[derive(Debug)]
struct Burst {
    at: Instant,
    nic: u16,
    /// Number of frames; 0: there is none.
    count: u16,
    first: FrameEvent,
    /// PSN of the frame that would continue it.
    next_psn: u32,
}

impl Recorder {
    /// Keeps the newest `records` events, of each NIC an equal part; 0: none. Counts if `metrics` is true.
    pub fn new(records: usize, nics: usize, metrics: bool) -> Self {
        Self::with_numbers(records, &vec![true; nics], metrics, Numbers::Own(0))
    }

    /// The recorders of several engines, whose events have common numbers. `of_nics`: engine by NIC.
    pub fn of_engines(
        records: usize,
        of_nics: &[usize],
        engines: usize,
        metrics: bool,
    ) -> Vec<Self> {
        let common = Arc::new(AtomicU64::new(0));
        let recorder = |engine| {
            let numbers = match engines {
                1 => Numbers::Own(0),
                _ => Numbers::Common(Arc::clone(&common)),
            };
            let own: Vec<bool> = of_nics.iter().map(|owner| *owner == engine).collect();
            Self::with_numbers(records, &own, metrics, numbers)
        };
        (0..engines).map(recorder).collect()
    }

    /// `own`: by NIC, whether it is one of this engine.
    fn with_numbers(records: usize, own: &[bool], metrics: bool, numbers: Numbers) -> Self {
        let nics = own.len();
        let share = records.checked_div(nics).unwrap_or_default().max(1);
        let rings = if records == 0 { &[] } else { own };
        let none = FrameEvent::new(&TxFrame::default(), 0, 0);
        let ring = |own: &bool| TraceRing::new(if *own { share } else { 0 });
        Self {
            rings: rings.iter().map(ring).collect(),
            numbers,
            nics: vec![NicMetrics::default(); if metrics { nics } else { 0 }],
            recent: vec![Recent::default(); if metrics { nics } else { 0 }],
            burst: Burst {
                at: Instant(0),
                nic: 0,
                count: 0,
                first: none,
                next_psn: 0,
            },
        }
    }

    /// Takes the records of a NIC, which moves to another engine.
    pub fn take_nic(&mut self, nic: u16) -> NicRecords {
        self.end_burst();
        let nic = usize::from(nic);
        NicRecords {
            ring: self.rings.get_mut(nic).map(std::mem::take),
            metrics: self.nics.get_mut(nic).map(std::mem::take),
            recent: self.recent.get_mut(nic).map(std::mem::take),
        }
    }

    /// Puts back the records that [`Recorder::take_nic`] of the other engine has taken.
    pub fn put_nic(&mut self, nic: u16, records: NicRecords) {
        let nic = usize::from(nic);
        if let (Some(to), Some(ring)) = (self.rings.get_mut(nic), records.ring) {
            *to = ring;
        }
        if let (Some(to), Some(metrics)) = (self.nics.get_mut(nic), records.metrics) {
            *to = metrics;
        }
        if let (Some(to), Some(recent)) = (self.recent.get_mut(nic), records.recent) {
            *to = recent;
        }
    }

    /// The record of a frame of queue pair `src_qpn`, for [`Recorder::sent`] and [`Recorder::received`]. `len` is the
    /// frame's [length](TxFrame::len), which the caller has calculated. `None`: nothing is recorded.
    #[inline]
    pub fn frame(&self, src_qpn: u32, frame: &TxFrame, len: usize) -> Option<FrameEvent> {
        let is_on = !(self.rings.is_empty() && self.nics.is_empty());
        is_on.then(|| FrameEvent::new(frame, src_qpn, len))
    }

    /// A NIC has sent a frame, and NIC [`FrameEvent::to`] has received it.
    #[inline]
    pub fn sent(&mut self, at: Instant, nic: u16, frame: FrameEvent) {
        let burst = &mut self.burst;
        let continues = (1..u16::MAX).contains(&burst.count)
            & (frame.psn == burst.next_psn)
            & (burst.at == at)
            & (burst.nic == nic)
            & burst.first.is_like(&frame);
        if continues {
            burst.count = burst.count.saturating_add(1);
        } else {
            self.end_burst();
            self.burst = Burst {
                at,
                nic,
                count: 1,
                first: frame,
                next_psn: 0,
            };
        }
        self.burst.next_psn = frame.later(1).psn;
    }

    /// Counts and keeps the frames of the burst.
    #[inline]
    fn end_burst(&mut self) {
        if self.burst.count > 0 {
            self.keep_burst();
        }
    }

    fn keep_burst(&mut self) {
        let burst = &mut self.burst;
        let count = std::mem::take(&mut burst.count);
        let first = &burst.first;
        if let Some(metrics) = self.nics.get_mut(usize::from(burst.nic)) {
            metrics.tx.count(first, count);
        }
        if let Some(metrics) = self.nics.get_mut(usize::from(first.to)) {
            metrics.rx.count(first, count);
        }
        if let Some(ring) = self.rings.get_mut(usize::from(burst.nic)) {
            let event = || TraceEvent::Frame(*first);
            let number = self.numbers.take(count);
            ring.push(number, burst.at, count, event);
        }
    }

    /// A NIC has received a frame that no NIC has sent to it alone.
    #[inline]
    pub fn received(&mut self, nic: u16, frame: &FrameEvent) {
        if let Some(metrics) = self.nic(nic) {
            metrics.rx.count(frame, 1);
        }
    }

    /// Doorbells, interrupts. The kind is known where it is called.
    #[inline(always)]
    pub fn event(&mut self, at: Instant, nic: u16, event: TraceEvent) {
        match event {
            TraceEvent::Frame(frame) => return self.sent(at, nic, frame),
            TraceEvent::Nic(diagnostic) => return self.diagnostic(at, nic, &diagnostic),
            TraceEvent::Doorbell { kind, path, .. } => {
                if let Some(metrics) = self.nic(nic) {
                    metrics.count_doorbell(kind, path);
                }
            }
            TraceEvent::Interrupt { vector } => {
                if let Some(metrics) = self.nic(nic) {
                    metrics.count_interrupt(vector);
                }
            }
        }
        self.end_burst();
        self.keep(at, nic, || event);
    }

    /// Keeps an event.
    #[inline]
    fn keep(&mut self, at: Instant, nic: u16, event: impl FnOnce() -> TraceEvent) {
        if let Some(ring) = self.rings.get_mut(usize::from(nic)) {
            let number = self.numbers.take(1);
            ring.push(number, at, 1, event);
        }
    }

    /// A NIC has reported something.
    #[inline]
    pub fn diagnostic(&mut self, at: Instant, nic: u16, diagnostic: &Diagnostic) {
        self.end_burst();
        if let Some(recent) = self.recent.get_mut(usize::from(nic)) {
            recent.push(at, diagnostic);
        }
        if let Some(metrics) = self.nic(nic) {
            metrics.count_diagnostic(at, diagnostic);
        }
        self.keep(at, nic, || TraceEvent::Nic(*diagnostic));
    }

    /// The newest diagnostics of a NIC, some of each kind, the newest first.
    pub fn recent(&self, nic: u16) -> Vec<(Instant, Diagnostic)> {
        let recent = self.recent.get(usize::from(nic));
        recent.map_or_else(Vec::new, Recent::newest)
    }

    /// A NIC has overwritten this many diagnostics.
    pub fn lost_diagnostics(&mut self, nic: u16, lost: u64) {
        if let Some(metrics) = self.nic(nic) {
            metrics.lost_diagnostics = metrics.lost_diagnostics.saturating_add(lost);
        }
    }

    /// Number of the next event.
    pub fn next_record(&mut self) -> u64 {
        self.end_burst();
        self.numbers.next()
    }

    /// Events of each NIC since the start.
    pub fn recorded(&mut self) -> Vec<u64> {
        self.end_burst();
        self.rings.iter().map(TraceRing::recorded).collect()
    }

    /// Copies up to `limit` events whose numbers are in a range to `records`, which should have room for them: its pages are in
    /// memory then. The events of all NICs are in the order in which they were recorded.
    pub fn trace_part(
        &mut self,
        range: Range<u64>,
        limit: usize,
        mut records: Vec<Record>,
    ) -> TracePart {
        self.end_burst();
        records.clear();
        let mut numbers = Vec::new();
        let until = range.end.min(self.numbers.next());
        let from = range.start.min(until);
        let mut rings: Vec<_> = self.rings.iter().map(|ring| ring.since(from)).collect();
        // The next event of each ring.
        let head = |events: &Events<'_>| events.next_number().filter(|next| *next < until);
        let heads = rings.iter().enumerate();
        let heads = heads.filter_map(|(nic, events)| Some(Reverse((head(events)?, nic))));
        let mut heads: BinaryHeap<_> = heads.collect();
        let first = heads.peek().map(|Reverse((number, _))| *number);
        let mut next = from;
        while records.len() < limit
            && let Some(Reverse((_, nic))) = heads.pop()
            && let Some(events) = rings.get_mut(nic)
        {
            // Those that come before the next event of any other ring.
            let bound = heads.peek().map_or(until, |Reverse((number, _))| *number);
            let number = u16::try_from(nic).unwrap_or(FrameEvent::NO_NIC);
            let to = (&mut records, &mut numbers);
            let end = events.take(number, bound, limit, to);
            next = end.unwrap_or(next);
            heads.extend(head(events).map(|next| Reverse((next, nic))));
        }
        if heads.is_empty() {
            next = until;
        }
        TracePart {
            first: first.unwrap_or(next),
            next,
            lost: next
                .saturating_sub(from)
                .saturating_sub(records.len() as u64),
            records,
            numbers,
        }
    }

    /// Copies the metrics of a NIC (20 KiB).
    pub fn snapshot(&mut self, nic: u16) -> NicMetrics {
        self.end_burst();
        self.nics.get(usize::from(nic)).cloned().unwrap_or_default()
    }

    /// Requests that a NIC has sent or received. Retransmissions count again.
    pub fn messages(&mut self, nic: u16, direction: Direction) -> u64 {
        self.end_burst();
        let metrics = self.nics.get(usize::from(nic));
        let counts = metrics.map(|metrics| metrics.traffic(direction).messages());
        counts.map_or(0, |counts| counts.map(|(_, count)| count).sum())
    }

    /// The metrics of a NIC; `None` for [`FrameEvent::NO_NIC`], and if nothing is counted.
    #[inline]
    fn nic(&mut self, nic: u16) -> Option<&mut NicMetrics> {
        self.nics.get_mut(usize::from(nic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::DoorbellPath;

    fn times(part: &TracePart) -> Vec<u64> {
        part.records.iter().map(|record| record.at.0).collect()
    }

    /// An event of a NIC.
    fn record(recorder: &mut Recorder, at: u64, nic: u16) {
        recorder.diagnostic(Instant(at), nic, &Diagnostic::Reset);
    }

    fn part(recorder: &mut Recorder, from: u64, limit: usize) -> TracePart {
        recorder.trace_part(from..u64::MAX, limit, Vec::new())
    }

    #[test]
    fn a_frame_is_counted_where_it_is_sent_and_where_it_arrives() {
        let mut recorder = Recorder::new(4, 3, true);
        let frame = recorder.frame(0, &TxFrame::default(), 60).unwrap();
        recorder.sent(Instant(1), 0, FrameEvent { to: 2, ..frame });
        recorder.sent(Instant(2), 0, frame);
        let frames = |recorder: &mut Recorder, nic| {
            let metrics = recorder.snapshot(nic);
            let sum = |side: &crate::Opcodes| side.iter().map(|(_, t)| t.frames).sum::<u64>();
            (sum(&metrics.tx), sum(&metrics.rx))
        };
        assert_eq!(frames(&mut recorder, 0), (2, 0));
        assert_eq!(frames(&mut recorder, 1), (0, 0));
        assert_eq!(frames(&mut recorder, 2), (0, 1));
        // A NIC that does not exist.
        assert_eq!(frames(&mut recorder, 9), (0, 0));
        recorder.received(9, &frame);
        recorder.sent(Instant(2), FrameEvent::NO_NIC, frame);
        assert_eq!(part(&mut recorder, 0, 10).next, 2);
    }

    #[test]
    fn events_and_losses_are_counted_by_kind() {
        let mut recorder = Recorder::new(0, 2, true);
        recorder.event(Instant(1), 1, TraceEvent::Interrupt { vector: 3 });
        for path in [DoorbellPath::Page, DoorbellPath::Kick, DoorbellPath::Kick] {
            let doorbell = TraceEvent::Doorbell {
                page: 0,
                kind: faultline_abi::doorbell::SQ,
                path,
                object: 5,
                value: 6,
            };
            recorder.event(Instant(1), 1, doorbell);
        }
        recorder.diagnostic(Instant(2), 1, &Diagnostic::Stalled { qpn: 4 });
        recorder.lost_diagnostics(1, 3);
        let metrics = recorder.snapshot(1);
        assert_eq!(metrics.interrupts().nth(3), Some((3, 1)));
        let doorbells: Vec<_> = metrics.doorbells().collect();
        assert_eq!(
            doorbells,
            [(DoorbellPath::Page, 1, 1), (DoorbellPath::Kick, 1, 2)]
        );
        let stalled = metrics
            .diagnostics()
            .find(|(kind, _)| kind.name() == "stalled");
        assert_eq!(stalled.map(|(_, count)| count), Some(1));
        assert_eq!(metrics.lost_diagnostics, 3);
        assert_eq!(part(&mut recorder, 0, 10).records, []);
    }

    #[test]
    fn a_stopped_recorder_does_nothing() {
        let mut recorder = Recorder::new(0, 2, false);
        assert!(recorder.frame(1, &TxFrame::default(), 60).is_none());
        record(&mut recorder, 1, 0);
        assert_eq!(recorder.snapshot(0), NicMetrics::default());
        assert_eq!((recorder.next_record(), recorder.recorded()), (0, vec![]));
    }

    #[test]
    fn a_reader_gets_each_record_once_or_a_report_of_its_loss() {
        let mut recorder = Recorder::new(4, 1, false);
        assert_eq!(times(&part(&mut recorder, 0, 10)), Vec::<u64>::new());
        (0..3).for_each(|at| record(&mut recorder, at, 0));
        let read = part(&mut recorder, 0, 2);
        assert_eq!((times(&read), read.lost, read.next), (vec![0, 1], 0, 2));
        (3..10).for_each(|at| record(&mut recorder, at, 0));
        let read = part(&mut recorder, read.next, 10);
        assert_eq!(
            (times(&read), read.lost, read.next),
            (vec![6, 7, 8, 9], 4, 10)
        );
        assert_eq!(
            times(&part(&mut recorder, read.next, 10)),
            Vec::<u64>::new()
        );
        // A reader of an earlier process.
        assert_eq!(part(&mut recorder, 1000, 10).next, 10);
    }

    #[test]
    fn a_flood_of_one_nic_leaves_the_records_of_another() {
        let mut recorder = Recorder::new(8, 2, false);
        record(&mut recorder, 0, 1);
        (1..1000).for_each(|at| record(&mut recorder, at, 0));
        record(&mut recorder, 1000, 1);
        let read = part(&mut recorder, 0, 100);
        assert_eq!(times(&read), [0, 996, 997, 998, 999, 1000]);
        let nics: Vec<u16> = read.records.iter().map(|record| record.nic).collect();
        assert_eq!(nics, [1, 0, 0, 0, 0, 1]);
        assert_eq!((read.first, read.next, read.lost), (0, 1001, 995));
        assert_eq!(recorder.recorded(), [999, 2]);
        // In parts, with the same loss.
        let first = part(&mut recorder, 0, 3);
        assert_eq!((times(&first), first.next), (vec![0, 996, 997], 998));
        let second = part(&mut recorder, first.next, 3);
        assert_eq!((times(&second), second.next), (vec![998, 999, 1000], 1001));
        assert_eq!(first.lost + second.lost, 995);
    }

    #[test]
    fn records_of_several_nics_keep_their_order() {
        let mut recorder = Recorder::new(3000, 3, false);
        // Many have the same time.
        let nics: Vec<u16> = (0..250u16).map(|n| n * n % 7 % 3).collect();
        for (n, nic) in (0..).zip(&nics) {
            record(&mut recorder, n / 10, *nic);
        }
        let mut read = Vec::new();
        let mut from = 0;
        while from < recorder.next_record() {
            let part = recorder.trace_part(from..u64::MAX, 7, Vec::new());
            assert!(part.next > from);
            from = part.next;
            read.extend(part.records.iter().map(|record| record.nic));
        }
        assert_eq!(read, nics);
        assert_eq!(part(&mut recorder, 0, 1000).records.len(), nics.len());
        let bounded = recorder.trace_part(10..20, 1000, Vec::new());
        assert_eq!((bounded.records.len(), bounded.next), (10, 20));
    }

    /// Two engines, whose events have common numbers.
    #[test]
    fn parts_of_several_engines_are_merged() {
        let mut recorders = Recorder::of_engines(8, &[0, 1], 2, false);
        let owner = |n: u64| u16::from(n.is_multiple_of(5) || n % 7 == 3);
        for n in 0..12 {
            record(&mut recorders[usize::from(owner(n))], n, owner(n));
        }
        let mut merged = |from, limit| {
            let parts = recorders.iter_mut().map(|r| part(r, from, limit));
            TracePart::merge(parts.collect(), from, limit)
        };
        // Of each NIC the newest four: those of NIC 1 are 0, 3, 5 and 10, those of NIC 0 are 7, 8, 9 and 11.
        let all = merged(0, 100);
        assert_eq!(times(&all), [0, 3, 5, 7, 8, 9, 10, 11]);
        assert_eq!((all.first, all.next, all.lost), (0, 12, 4));
        let mut read = Vec::new();
        let (mut from, mut lost) = (0, 0);
        while from < 12 {
            let part = merged(from, 2);
            assert!(part.next > from && part.records.len() <= 2, "{part:?}");
            (from, lost) = (part.next, lost + part.lost);
            read.extend(times(&part));
        }
        assert_eq!((read, lost), (times(&all), 4));
        assert_eq!(merged(12, 5).records, []);
        assert_eq!(merged(1000, 5).next, 12);
    }

    #[test]
    fn the_records_of_a_nic_move_with_it() {
        let mut recorders = Recorder::of_engines(8, &[0, 1], 2, true);
        record(&mut recorders[1], 1, 1);
        // Another engine has no room for events of a NIC that it does not own.
        record(&mut recorders[0], 2, 1);
        assert_eq!(recorders[0].recorded(), [0, 0]);
        let records = recorders[1].take_nic(1);
        recorders[0].put_nic(1, records);
        record(&mut recorders[0], 3, 1);
        assert_eq!(recorders[0].recorded(), [0, 2]);
        assert_eq!(times(&part(&mut recorders[0], 0, 10)), [1, 3]);
        assert_eq!(recorders[0].recent(1).len(), 2);
        assert_eq!(recorders[1].recorded(), [0, 0]);
        assert_eq!(recorders[1].recent(1), []);
    }

    /// The record of a burst is equal to the records of its frames one by one.
    #[test]
    fn a_burst_is_its_frames() {
        let mut recorder = Recorder::new(100, 2, true);
        let frame = recorder.frame(7, &TxFrame::default(), 60).unwrap();
        let frame = FrameEvent {
            to: 1,
            psn: 0xff_fffe,
            packets: 3,
            bytes: 100,
            ..frame
        };
        let next = |psn| FrameEvent { psn, ..frame };
        let sent = [
            (1, frame),
            (1, next(1)),
            (1, next(4)),
            // Another time, another length, a gap, and a frame twice.
            (2, next(7)),
            (
                2,
                FrameEvent {
                    bytes: 99,
                    ..next(10)
                },
            ),
            (2, next(14)),
            (2, next(14)),
            (2, next(17)),
        ];
        for (at, frame) in sent {
            recorder.sent(Instant(at), 0, frame);
        }
        assert_eq!(recorder.next_record(), 8);
        let kept = part(&mut recorder, 0, 100).records;
        let expected = sent.map(|(at, frame)| Record {
            at: Instant(at),
            nic: 0,
            event: TraceEvent::Frame(frame),
        });
        assert_eq!(kept, expected);
        let counts = |metrics: &crate::Opcodes| metrics.iter().map(|(_, t)| t).collect::<Vec<_>>();
        let all = crate::Traffic {
            frames: 8,
            packets: 24,
            bytes: 799,
        };
        assert_eq!(counts(&recorder.snapshot(0).tx), [all]);
        assert_eq!(counts(&recorder.snapshot(1).rx), [all]);
    }

    /// An event between two frames is between them in the trace, and readers see the newest frame.
    #[test]
    fn a_burst_ends_at_any_other_event() {
        let mut recorder = Recorder::new(100, 1, false);
        let frame = recorder.frame(7, &TxFrame::default(), 60).unwrap();
        for psn in 0..4 {
            recorder.sent(Instant(5), 0, FrameEvent { psn, ..frame });
            if psn == 1 {
                recorder.event(Instant(5), 0, TraceEvent::Interrupt { vector: 3 });
            }
        }
        let read = part(&mut recorder, 0, 100);
        let is_frame = |record: &Record| matches!(record.event, TraceEvent::Frame(_));
        let frames: Vec<bool> = read.records.iter().map(is_frame).collect();
        assert_eq!(frames, [true, true, false, true, true]);
        // The next frame would have continued the burst that a reader has ended.
        let frame = FrameEvent { psn: 4, ..frame };
        recorder.sent(Instant(5), 0, frame);
        let more = part(&mut recorder, read.next, 100);
        assert_eq!((more.first, more.next), (5, 6));
        let events: Vec<TraceEvent> = more.records.iter().map(|record| record.event).collect();
        assert_eq!(events, [TraceEvent::Frame(frame)]);
    }

    /// Prints the cost of recording a frame and of a copy; `cargo test --release -p faultline-telemetry -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures"]
    fn cost_of_a_frame() {
        use std::hint::black_box;
        let filler = Record {
            at: Instant(0),
            nic: 0,
            event: TraceEvent::Nic(Diagnostic::Reset),
        };
        for (what, records, metrics) in [
            ("metrics", 0, true),
            ("trace", 65_536, false),
            ("both", 65_536, true),
        ] {
            for pairs in [1, 2] {
                let mut recorder = Recorder::new(records, 2, metrics);
                let frame = TxFrame::default();
                // The shortest of many rounds: the machine may do other things.
                let mut best = f64::MAX;
                for round in 0..400u32 {
                    let start = std::time::Instant::now();
                    for psn in 0..32_000 {
                        let turn = round * 1000 + psn / 32;
                        if let Some(event) =
                            recorder.frame(psn % pairs, black_box(&frame), black_box(60))
                        {
                            let event = FrameEvent {
                                to: 1,
                                psn,
                                ..event
                            };
                            recorder.sent(Instant(turn.into()), 0, black_box(event));
                        }
                    }
                    best = best.min(start.elapsed().as_nanos() as f64 / 32_000.0);
                }
                println!("{what}, frames of {pairs} queue pairs in turns: {best:.2} ns each");
                let start = std::time::Instant::now();
                let part = recorder.trace_part(0..u64::MAX, 65_536, vec![filler; 65_536]);
                let us = start.elapsed().as_micros();
                println!("a copy of {}: {us} us", part.records.len());
            }
        }
    }
}
