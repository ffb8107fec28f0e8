//! The view of a recorded run.

use std::collections::{BTreeMap, BTreeSet};

use faultline_control::pages::{PageBucketView, PageMapView};
use faultline_nic::Diagnostic;
use faultline_telemetry::{FrameEvent, Record, Report, Trace, TraceEvent};

use super::page;
pub(crate) use super::view::Run;
use super::view::{Event, NicTotals, PairTotals, RunRegion};

/// Events of a page, the newest: a file stays readable.
const EVENTS: usize = 5000;
/// Most buckets of a region.
const BUCKETS: u64 = 1024;
/// log2 of the smallest page.
const PAGE_SHIFT: u32 = 12;

impl Run {
    /// The view of a trace with this name and report.
    pub(crate) fn new(source: String, trace: &Trace, report: Report) -> Self {
        let totals = Totals::new(trace);
        let events = trace.records.iter().rev();
        let mut events = events.filter_map(|record| Event::of_record(&trace.header, record));
        Self {
            source,
            span_ns: report.span,
            records: report.records,
            lost: report.lost,
            regions: regions(trace),
            events: events.by_ref().take(EVENTS).collect(),
            older_events: events.count(),
            nics: totals.nics,
            queue_pairs: totals.pairs.into_values().collect(),
            faults: report.into(),
        }
    }

    /// The page as one file.
    pub(crate) fn page(&self) -> anyhow::Result<String> {
        page::with_data(&serde_json::to_string(self)?)
    }
}

/// Packets and faults of a run, by NIC and by queue pair.
struct Totals {
    nics: Vec<NicTotals>,
    pairs: BTreeMap<(u16, u32), PairTotals>,
}

impl Totals {
    fn new(trace: &Trace) -> Self {
        let named = |name: &String| NicTotals {
            name: name.clone(),
            ..NicTotals::default()
        };
        let mut totals = Self {
            nics: trace.header.nics.iter().map(named).collect(),
            pairs: BTreeMap::new(),
        };
        for record in &trace.records {
            match &record.event {
                TraceEvent::Frame(frame) => totals.add_frame(trace, record.nic, frame),
                TraceEvent::Nic(diagnostic) => totals.add_diagnostic(trace, record, diagnostic),
                TraceEvent::Doorbell { .. } | TraceEvent::Interrupt { .. } => {}
            }
        }
        for owner in &trace.header.queue_pairs {
            if let Some(pair) = totals.pairs.get_mut(&(owner.nic, owner.qpn)) {
                pair.program = Some(owner.process.clone());
                pair.pid = Some(owner.pid);
            }
        }
        totals
    }

    fn pair(&mut self, trace: &Trace, nic: u16, qpn: u32) -> &mut PairTotals {
        self.pairs.entry((nic, qpn)).or_insert_with(|| PairTotals {
            nic: trace.header.nic_name(nic),
            qpn,
            ..PairTotals::default()
        })
    }

    fn add_frame(&mut self, trace: &Trace, from: u16, frame: &FrameEvent) {
        let (packets, bytes) = (u64::from(frame.packets), u64::from(frame.bytes));
        if let Some(nic) = self.nics.get_mut(usize::from(from)) {
            nic.tx_packets = nic.tx_packets.saturating_add(packets);
            nic.tx_bytes = nic.tx_bytes.saturating_add(bytes);
        }
        if let Some(nic) = self.nics.get_mut(usize::from(frame.to)) {
            nic.rx_packets = nic.rx_packets.saturating_add(packets);
            nic.rx_bytes = nic.rx_bytes.saturating_add(bytes);
        }
        let peer = |qpn: u32| (qpn != 0).then_some(qpn);
        if frame.src_qpn != 0 {
            let pair = self.pair(trace, from, frame.src_qpn);
            pair.tx_packets = pair.tx_packets.saturating_add(packets);
            pair.tx_bytes = pair.tx_bytes.saturating_add(bytes);
            pair.peer_qpn = peer(frame.dst_qpn).or(pair.peer_qpn);
        }
        if frame.dst_qpn != 0 && frame.to != FrameEvent::NO_NIC {
            let pair = self.pair(trace, frame.to, frame.dst_qpn);
            pair.rx_packets = pair.rx_packets.saturating_add(packets);
            pair.rx_bytes = pair.rx_bytes.saturating_add(bytes);
            pair.peer_qpn = peer(frame.src_qpn).or(pair.peer_qpn);
        }
    }

    fn add_diagnostic(&mut self, trace: &Trace, record: &Record, diagnostic: &Diagnostic) {
        if let Diagnostic::FaultRaised { qpn, .. } = *diagnostic {
            let pair = self.pair(trace, record.nic, qpn);
            pair.page_faults = pair.page_faults.saturating_add(1);
        }
        let Some(nic) = self.nics.get_mut(usize::from(record.nic)) else {
            return;
        };
        let count = match diagnostic {
            Diagnostic::FaultRaised { .. } => &mut nic.page_faults,
            Diagnostic::RnrNakSent { .. } => &mut nic.rnr_naks_sent,
            Diagnostic::Retried { .. } => &mut nic.retries,
            _ => return,
        };
        *count = count.saturating_add(1);
    }
}

/// Pages of a region that have had faults.
#[derive(Default)]
struct Pages {
    present: BTreeSet<u64>,
    writable: BTreeSet<u64>,
    faulting: BTreeSet<u64>,
}

/// The regions that have had faults, with the state of the first page of each fault at the end of the trace.
fn regions(trace: &Trace) -> Vec<RunRegion> {
    let mut regions: BTreeMap<(u16, u32), Pages> = BTreeMap::new();
    let mut open: BTreeMap<(u16, u64), (u32, u64, bool)> = BTreeMap::new();
    for record in &trace.records {
        let TraceEvent::Nic(diagnostic) = &record.event else {
            continue;
        };
        match *diagnostic {
            Diagnostic::FaultRaised {
                token,
                key,
                va,
                write,
                ..
            } => {
                let page = va >> PAGE_SHIFT;
                open.insert((record.nic, token), (key, page, write));
                let pages = regions.entry((record.nic, key)).or_default();
                pages.faulting.insert(page);
            }
            Diagnostic::FaultResumed { token, .. } => {
                end(
                    &mut regions,
                    record.nic,
                    open.remove(&(record.nic, token)),
                    true,
                );
            }
            Diagnostic::FaultFailed { token, .. }
            | Diagnostic::FaultExpired { token, .. }
            | Diagnostic::FaultCancelled { token, .. } => {
                end(
                    &mut regions,
                    record.nic,
                    open.remove(&(record.nic, token)),
                    false,
                );
            }
            Diagnostic::Reset => {
                regions.retain(|(nic, _), _| *nic != record.nic);
                open.retain(|(nic, _), _| *nic != record.nic);
            }
            _ => {}
        }
    }
    let regions = regions.into_iter();
    let views = regions.filter_map(|((nic, key), pages)| {
        Some(RunRegion {
            nic: trace.header.nic_name(nic),
            key,
            map: pages.map()?,
        })
    });
    views.collect()
}

fn end(
    regions: &mut BTreeMap<(u16, u32), Pages>,
    nic: u16,
    fault: Option<(u32, u64, bool)>,
    is_present: bool,
) {
    let Some((key, page, write)) = fault else {
        return;
    };
    let Some(pages) = regions.get_mut(&(nic, key)) else {
        return;
    };
    pages.faulting.remove(&page);
    if is_present {
        pages.present.insert(page);
        if write {
            pages.writable.insert(page);
        }
    }
}

impl Pages {
    /// The pages from the first to the last that has had a fault, in buckets. `None`: there are none, as behind a reset.
    fn map(&self) -> Option<PageMapView> {
        let all = || self.present.iter().chain(&self.faulting).copied();
        let (first, last) = (all().min()?, all().max()?);
        let pages = last.saturating_sub(first).saturating_add(1);
        let shift = pages.div_ceil(BUCKETS).next_power_of_two().ilog2();
        let mut buckets =
            vec![PageBucketView::default(); usize::try_from(pages.div_ceil(1 << shift)).ok()?];
        let mut left = pages;
        for bucket in &mut buckets {
            bucket.pages = left.min(1 << shift);
            left = left.saturating_sub(bucket.pages);
        }
        let mut count = |pages: &BTreeSet<u64>, field: fn(&mut PageBucketView) -> &mut u64| {
            for page in pages {
                let place = page.saturating_sub(first) >> shift;
                let bucket = usize::try_from(place)
                    .ok()
                    .and_then(|place| buckets.get_mut(place));
                if let Some(bucket) = bucket {
                    let field = field(bucket);
                    *field = field.saturating_add(1);
                }
            }
        };
        count(&self.present, |bucket| &mut bucket.present);
        count(&self.writable, |bucket| &mut bucket.writable);
        count(&self.faulting, |bucket| &mut bucket.faulting);
        Some(PageMapView {
            iova: first << PAGE_SHIFT,
            length: pages << PAGE_SHIFT,
            bucket_pages: 1 << shift,
            first: 0,
            buckets,
            next: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use faultline_nic::{DriverTimes, Instant};
    use faultline_telemetry::TraceHeader;

    use super::*;

    fn raised(token: u64, page: u64, write: bool) -> Diagnostic {
        Diagnostic::FaultRaised {
            token,
            qpn: 17,
            key: 5,
            va: (page << PAGE_SHIFT) + 8,
            bytes: 64,
            psn: 0,
            write,
            requester: false,
        }
    }

    fn resumed(token: u64) -> Diagnostic {
        Diagnostic::FaultResumed {
            token,
            raised: Instant(0),
            waiters: 1,
            record_ns: 0,
            driver: DriverTimes::default(),
        }
    }

    fn run(events: &[TraceEvent]) -> Run {
        let record = |(at, event): (u64, &TraceEvent)| Record {
            at: Instant(at),
            nic: 0,
            event: *event,
        };
        let trace = Trace {
            header: TraceHeader::new(vec!["a".to_owned(), "b".to_owned()]),
            records: (0..).zip(events).map(record).collect(),
        };
        Run::new("x".to_owned(), &trace, Report::new(&trace))
    }

    fn of_nic(diagnostics: &[Diagnostic]) -> Run {
        run(&diagnostics
            .iter()
            .map(|diagnostic| TraceEvent::Nic(*diagnostic))
            .collect::<Vec<_>>())
    }

    #[test]
    fn pages_have_the_state_of_their_last_fault() {
        let cancelled = Diagnostic::FaultCancelled {
            token: 4,
            raised: Instant(0),
            qpn: 17,
            key: 5,
            va: 0,
        };
        let found = of_nic(&[
            raised(1, 100, true),
            raised(2, 101, false),
            raised(3, 103, false),
            raised(4, 102, true),
            resumed(1),
            resumed(2),
            cancelled,
        ]);
        let map = &found.regions[0].map;
        assert_eq!(
            (map.iova, map.length, map.bucket_pages),
            (100 << 12, 4 << 12, 1)
        );
        let buckets: Vec<_> = map
            .buckets
            .iter()
            .map(|b| (b.present, b.writable, b.faulting))
            .collect();
        assert_eq!(buckets, [(1, 1, 0), (1, 0, 0), (0, 0, 0), (0, 0, 1)]);
        assert_eq!(
            (found.nics[0].page_faults, found.queue_pairs[0].page_faults),
            (4, 4)
        );
        // A reset removes the region.
        assert!(
            of_nic(&[raised(1, 100, true), Diagnostic::Reset])
                .regions
                .is_empty()
        );
    }

    #[test]
    fn a_large_region_has_few_buckets() {
        let found = of_nic(&[
            raised(1, 0, true),
            raised(2, (1 << 28) - 1, true),
            resumed(1),
        ]);
        let map = &found.regions[0].map;
        assert_eq!(
            (map.length, map.bucket_pages, map.buckets.len()),
            (1 << 40, 1 << 18, 1024)
        );
        let pages: u64 = map.buckets.iter().map(|bucket| bucket.pages).sum();
        assert_eq!(pages, 1 << 28);
        assert_eq!((map.buckets[0].present, map.buckets[1023].faulting), (1, 1));
    }

    #[test]
    fn packets_count_at_both_ends() {
        let frame = FrameEvent {
            to: 1,
            opcode: 0x0a,
            syndrome: FrameEvent::NO_SYNDROME,
            src_qpn: 2,
            dst_qpn: 9,
            psn: 0,
            packets: 3,
            bytes: 300,
        };
        let lost = FrameEvent {
            to: FrameEvent::NO_NIC,
            ..frame
        };
        let found = run(&[TraceEvent::Frame(frame), TraceEvent::Frame(lost)]);
        let [from, to] = &found.nics[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (from.tx_packets, from.tx_bytes, from.rx_packets),
            (6, 600, 0)
        );
        assert_eq!((to.rx_packets, to.rx_bytes, to.tx_packets), (3, 300, 0));
        let pairs: Vec<_> = found
            .queue_pairs
            .iter()
            .map(|p| (p.qpn, p.peer_qpn, p.tx_packets, p.rx_packets))
            .collect();
        assert_eq!(pairs, [(2, Some(9), 6, 0), (9, Some(2), 0, 3)]);
    }
}
