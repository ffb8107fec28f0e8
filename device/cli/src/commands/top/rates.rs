//! Rates: the differences of two snapshots divided by the time between them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use faultline_control::objects::{ContextView, Policy, QueuePairKind, QueuePairState};
use faultline_control::view::NicState;
use serde::Serialize;

use super::sample::{NicSample, Part, Snapshot, Timed};

/// Order of the queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sort {
    /// Packets each second, the most first.
    #[default]
    Rate,
    /// Bytes each second, the most first.
    Bytes,
    /// Number of the queue pair.
    Qpn,
}

/// A value for each second; `None` if it is not known: the object is new, or its counters were reset.
pub(super) type Rate = Option<f64>;

/// Everything that is shown.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rows {
    /// Time between the two snapshots.
    pub(super) interval_s: Option<f64>,
    pub(super) engine: EngineRow,
    pub(super) nics: Vec<NicRow>,
    pub(super) queue_pairs: Vec<PairRow>,
    /// Faults that the driver has not answered, the oldest first.
    pub(super) faults: Vec<FaultRow>,
    pub(super) regions: Vec<RegionRow>,
    pub(super) incomplete: Incomplete,
}

/// The lists that have only a part of the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Incomplete {
    pub(super) queue_pairs: bool,
    pub(super) faults: bool,
    pub(super) regions: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct EngineRow {
    pub(super) paused: bool,
    pub(super) uptime_ns: u64,
    /// Part of the time that it was in passes with work, 0 to 1.
    pub(super) busy: Rate,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct NicRow {
    pub(super) name: String,
    pub(super) state: NicState,
    pub(super) link_up: bool,
    pub(super) transport: String,
    pub(super) stalled: bool,
    pub(super) queue_pairs: u64,
    pub(super) memory_keys: u64,
    pub(super) faults_in_flight: usize,
    /// Used part of the fullest completion queue, 0 to 1; `None`: there is none.
    pub(super) fullest_cq: Option<f64>,
    pub(super) tx_packets_per_s: Rate,
    pub(super) rx_packets_per_s: Rate,
    pub(super) tx_bytes_per_s: Rate,
    pub(super) rx_bytes_per_s: Rate,
    /// Requests; retransmissions count again.
    pub(super) tx_messages_per_s: Rate,
    pub(super) rx_messages_per_s: Rate,
    pub(super) page_faults_per_s: Rate,
    pub(super) rnr_naks_sent_per_s: Rate,
    pub(super) rnr_naks_received_per_s: Rate,
    pub(super) retransmitted_packets_per_s: Rate,
    pub(super) ack_timeouts_per_s: Rate,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PairRow {
    pub(super) nic: String,
    pub(super) qpn: u32,
    pub(super) kind: QueuePairKind,
    pub(super) state: Option<QueuePairState>,
    pub(super) fault_policy: Policy,
    pub(super) peer_qpn: Option<u32>,
    #[serde(flatten)]
    pub(super) owner: Owner,
    pub(super) sends_pending: u32,
    pub(super) waits_for_page: bool,
    pub(super) tx_packets_per_s: Rate,
    pub(super) rx_packets_per_s: Rate,
    pub(super) tx_bytes_per_s: Rate,
    /// Payload only.
    pub(super) rx_bytes_per_s: Rate,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct FaultRow {
    pub(super) nic: String,
    pub(super) token: u64,
    /// The queue pair that has waited longest.
    pub(super) qpn: Option<u32>,
    pub(super) waiters: u32,
    pub(super) key: u32,
    pub(super) va: u64,
    pub(super) pages: u64,
    pub(super) write: bool,
    #[serde(flatten)]
    pub(super) owner: Owner,
    pub(super) age_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct RegionRow {
    pub(super) nic: String,
    pub(super) key: u32,
    pub(super) iova: u64,
    pub(super) length: u64,
    pub(super) on_demand: bool,
    pub(super) present_entries: u32,
    /// Pages that became present less those that were invalidated: negative if there are fewer now.
    pub(super) present_change_per_s: Rate,
    pub(super) table_bytes: u64,
}

/// A user context with its process, if the guest has reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Owner {
    /// 0: the kernel.
    pub(super) context: u32,
    pub(super) pid: Option<u32>,
    pub(super) program: Option<String>,
}

/// An earlier value and the time since then.
struct Since<'a, T> {
    before: &'a T,
    seconds: f64,
}

impl<T> Clone for Since<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Since<'_, T> {}

impl<'a, T> Since<'a, T> {
    fn new(before: &'a Timed<T>, at: Duration) -> Option<Self> {
        let seconds = at.checked_sub(before.at)?.as_secs_f64();
        (seconds > 0.0).then_some(Self {
            before: &before.item,
            seconds,
        })
    }
}

/// The rate of a counter.
fn rate<T>(since: Option<Since<'_, T>>, after: &T, value: impl Fn(&T) -> u64) -> Rate {
    let since = since?;
    let more = value(after).checked_sub(value(since.before))?;
    Some(more as f64 / since.seconds)
}

/// The rows of the second of two snapshots. Without the first there are no rates.
pub(crate) fn rows(before: Option<&Snapshot>, after: &Snapshot) -> Rows {
    // Another process answers at the same socket.
    let same = |before: &&Snapshot| before.engine.item.uptime_ns <= after.engine.item.uptime_ns;
    let before = before.filter(same);
    let since = before.and_then(|before| Since::new(&before.engine, after.engine.at));
    let engine = &after.engine.item;
    let busy = rate(since, engine, |engine| engine.busy_ns);
    let mut rows = Rows {
        interval_s: since.map(|since| since.seconds),
        engine: EngineRow {
            paused: engine.paused,
            uptime_ns: engine.uptime_ns,
            // Of all threads together.
            busy: busy.map(|ns| (ns / 1e9 / engine.threads.len().max(1) as f64).min(1.0)),
        },
        nics: Vec::new(),
        queue_pairs: Vec::new(),
        faults: Vec::new(),
        regions: Vec::new(),
        incomplete: Incomplete::default(),
    };
    for nic in &after.nics {
        let name = &nic.nic.item.name;
        let before = before.and_then(|before| {
            let mut nics = before.nics.iter();
            nics.find(|before| before.nic.item.name == *name)
        });
        rows.add_nic(before, nic);
    }
    rows.faults.sort_by(|a, b| b.age_ms.total_cmp(&a.age_ms));
    rows
}

impl Rows {
    fn add_nic(&mut self, before: Option<&NicSample>, after: &NicSample) {
        self.nics.push(nic_row(before, after));
        let owners: HashMap<u32, &ContextView> = after
            .contexts
            .items
            .iter()
            .map(|context| (context.item.context, &context.item))
            .collect();
        let owner = |context: u32| {
            let known = owners.get(&context);
            Owner {
                context,
                pid: known.and_then(|known| known.pid),
                program: known.and_then(|known| known.program.clone()),
            }
        };
        let nic = &after.nic.item.name;
        let earlier = by_number(before.map(|before| &before.pairs), |pair| pair.qpn);
        for Timed { at, item: pair } in &after.pairs.items {
            let since = earlier.get(&pair.qpn);
            let since = since.and_then(|before| Since::new(before, *at));
            self.queue_pairs.push(PairRow {
                nic: nic.clone(),
                qpn: pair.qpn,
                kind: pair.kind,
                state: pair.state,
                fault_policy: pair.fault_policy,
                peer_qpn: pair.peer_qpn,
                owner: owner(pair.context),
                sends_pending: pair.sends_pending,
                waits_for_page: pair.waits_for_page,
                tx_packets_per_s: rate(since, pair, |pair| pair.tx_packets),
                rx_packets_per_s: rate(since, pair, |pair| pair.rx_packets),
                tx_bytes_per_s: rate(since, pair, |pair| pair.tx_bytes),
                rx_bytes_per_s: rate(since, pair, |pair| pair.rx_bytes),
            });
        }
        for Timed { item: fault, .. } in &after.faults.items {
            self.faults.push(FaultRow {
                nic: nic.clone(),
                token: fault.token,
                qpn: fault.qpn,
                waiters: fault.waiters,
                key: fault.key,
                va: fault.va,
                pages: fault.pages,
                write: fault.write,
                owner: owner(fault.context),
                age_ms: fault.age_ns as f64 / 1e6,
            });
        }
        let earlier = by_number(before.map(|before| &before.regions), |region| region.key);
        for Timed { at, item: region } in &after.regions.items {
            let since = earlier.get(&region.key);
            let since = since.and_then(|before| Since::new(before, *at));
            let change = since.map(|since| {
                let more = f64::from(region.present_entries);
                (more - f64::from(since.before.present_entries)) / since.seconds
            });
            self.regions.push(RegionRow {
                nic: nic.clone(),
                key: region.key,
                iova: region.iova,
                length: region.length,
                on_demand: region.on_demand,
                present_entries: region.present_entries,
                present_change_per_s: change,
                table_bytes: region.table_bytes,
            });
        }
        self.incomplete.queue_pairs |= after.pairs.cut;
        self.incomplete.faults |= after.faults.cut;
        self.incomplete.regions |= after.regions.cut;
    }

    /// Sorts the queue pairs, and the regions by change and by pages present.
    pub(super) fn sort(&mut self, sort: Sort) {
        let sum = |a: Rate, b: Rate| a.unwrap_or(0.0) + b.unwrap_or(0.0);
        let weight = |pair: &PairRow| match sort {
            Sort::Rate => sum(pair.tx_packets_per_s, pair.rx_packets_per_s),
            Sort::Bytes => sum(pair.tx_bytes_per_s, pair.rx_bytes_per_s),
            Sort::Qpn => 0.0,
        };
        // Equal ones stay in the order of their numbers, so that rows do not jump.
        self.queue_pairs
            .sort_by(|a, b| (&a.nic, a.qpn).cmp(&(&b.nic, b.qpn)));
        self.queue_pairs
            .sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let change = |region: &RegionRow| region.present_change_per_s.unwrap_or(0.0).abs();
        self.regions
            .sort_by_key(|region| (Reverse(region.present_entries), region.key));
        self.regions.sort_by(|a, b| change(b).total_cmp(&change(a)));
    }

    /// Keeps the first rows of each list.
    pub(super) fn limit(&mut self, rows: usize) {
        self.nics.truncate(rows);
        self.queue_pairs.truncate(rows);
        self.faults.truncate(rows);
        self.regions.truncate(rows);
    }
}

fn nic_row(before: Option<&NicSample>, after: &NicSample) -> NicRow {
    let Timed { at, item: nic } = &after.nic;
    let since = before.and_then(|before| Since::new(&before.nic, *at));
    let counter = |name: &str| {
        rate(since, nic, |nic| {
            nic.counters.get(name).copied().unwrap_or(0)
        })
    };
    NicRow {
        name: nic.name.clone(),
        state: nic.state,
        link_up: nic.link.up,
        transport: nic.config.transport.clone(),
        stalled: nic.stalled,
        queue_pairs: nic.objects.queue_pairs,
        memory_keys: nic.objects.memory_keys,
        faults_in_flight: after.faults.items.len(),
        fullest_cq: (nic.fullest_cq_entries > 0)
            .then(|| nic.fullest_cq_unread as f64 / nic.fullest_cq_entries as f64),
        tx_packets_per_s: counter("tx_packets"),
        rx_packets_per_s: counter("rx_packets"),
        tx_bytes_per_s: counter("tx_bytes"),
        rx_bytes_per_s: counter("rx_bytes"),
        tx_messages_per_s: rate(since, nic, |nic| nic.tx_messages),
        rx_messages_per_s: rate(since, nic, |nic| nic.rx_messages),
        page_faults_per_s: counter("page_faults"),
        rnr_naks_sent_per_s: counter("rnr_nak_sent"),
        rnr_naks_received_per_s: counter("rnr_nak_received"),
        retransmitted_packets_per_s: counter("retransmitted_packets"),
        ack_timeouts_per_s: counter("local_ack_timeout_err"),
    }
}

fn by_number<T>(part: Option<&Part<T>>, number: impl Fn(&T) -> u32) -> HashMap<u32, &Timed<T>> {
    let items = part.into_iter().flat_map(|part| &part.items);
    items.map(|timed| (number(&timed.item), timed)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{from_json, nic, pair, part, snapshot, storm};
    use super::*;

    #[test]
    fn rates_are_differences_by_time() {
        let (mut before, after) = storm();
        // The time of each object counts, not that of the first request.
        for nic in &mut before.nics {
            nic.nic.at -= Duration::from_secs(1);
        }
        let rows = rows(Some(&before), &after);
        assert_eq!(rows.interval_s, Some(1.0));
        assert_eq!(rows.engine.busy, Some(0.25));
        let nic = &rows.nics[0];
        assert_eq!(nic.tx_packets_per_s, Some(600_000.0));
        assert_eq!(nic.tx_messages_per_s, Some(300_000.0));
        assert_eq!(nic.rnr_naks_sent_per_s, Some(6.0));
        assert_eq!(nic.faults_in_flight, 2);
        assert_eq!(
            (nic.fullest_cq, rows.nics[1].fullest_cq),
            (Some(0.75), None)
        );
        let pair = &rows.queue_pairs[0];
        assert_eq!((pair.qpn, pair.tx_packets_per_s), (17, Some(1000.0)));
        assert_eq!(pair.tx_bytes_per_s, Some(1e6));
        assert_eq!(pair.owner.program.as_deref(), Some("ib_write_bw"));
        assert_eq!(rows.queue_pairs[2].tx_packets_per_s, None, "it is new");
        let ages: Vec<_> = rows.faults.iter().map(|fault| fault.age_ms).collect();
        assert_eq!(ages, [1500.0, 3.0]);
        let changes: Vec<_> = rows
            .regions
            .iter()
            .map(|row| row.present_change_per_s)
            .collect();
        assert_eq!(changes, [Some(0.0), Some(100.0)]);
    }

    #[test]
    fn counters_that_were_reset_have_no_rate() {
        let with = |ms, packets| {
            let mut snapshot = snapshot(ms);
            let mut nic = nic(
                &snapshot,
                "a",
                0,
                json!({"tx_packets": packets, "rx_packets": 5}),
            );
            nic.pairs = part(snapshot.engine.at, vec![pair(2, packets)]);
            snapshot.nics.push(nic);
            snapshot
        };
        let reset = rows(Some(&with(1000, 50)), &with(2000, 10));
        assert_eq!(reset.nics[0].tx_packets_per_s, None);
        assert_eq!(reset.nics[0].rx_packets_per_s, Some(0.0));
        assert_eq!(reset.queue_pairs[0].tx_packets_per_s, None);
        // No time has passed.
        let same = rows(Some(&with(1000, 50)), &with(1000, 60));
        assert_eq!(same.nics[0].tx_packets_per_s, None);
        // Another process, whose counters are larger.
        let mut other = with(3000, 70);
        other.engine.item.uptime_ns = 10;
        let other = rows(Some(&with(2000, 60)), &other);
        assert_eq!((other.interval_s, other.engine.busy), (None, None));
        assert_eq!(other.nics[0].tx_packets_per_s, None);
        assert_eq!(other.queue_pairs[0].tx_packets_per_s, None);
        let first = rows(None, &with(1, 1));
        assert_eq!(first.nics[0].tx_packets_per_s, None);
    }

    #[test]
    fn rows_are_sorted_and_limited() {
        let (before, after) = storm();
        let mut rows = rows(Some(&before), &after);
        let mut order = |sort| {
            rows.sort(sort);
            let numbers = rows.queue_pairs.iter().map(|pair| pair.qpn);
            (numbers.collect::<Vec<_>>(), rows.regions[0].key)
        };
        assert_eq!(order(Sort::Rate), (vec![18, 17, 40], 0x205));
        assert_eq!(order(Sort::Qpn), (vec![17, 18, 40], 0x205));
        assert_eq!(order(Sort::Bytes), (vec![18, 17, 40], 0x205));
        rows.limit(1);
        assert_eq!((rows.nics.len(), rows.queue_pairs.len()), (1, 1));
        assert_eq!((rows.faults.len(), rows.regions.len()), (1, 1));
    }

    #[test]
    fn fewer_pages_are_a_negative_change() {
        let (after, before) = storm();
        let (mut before, mut after) = (before, after);
        std::mem::swap(&mut before.engine, &mut after.engine);
        for (before, after) in before.nics.iter_mut().zip(&mut after.nics) {
            for (before, after) in before
                .regions
                .items
                .iter_mut()
                .zip(&mut after.regions.items)
            {
                std::mem::swap(&mut before.at, &mut after.at);
            }
        }
        let rows = rows(Some(&before), &after);
        assert_eq!(rows.regions[1].present_change_per_s, Some(-100.0));
    }

    #[test]
    fn rows_are_json() {
        let (before, mut after) = storm();
        after.nics[0].pairs.cut = true;
        let json = serde_json::to_string(&rows(Some(&before), &after)).unwrap();
        let json: serde_json::Value = from_json(serde_json::from_str(&json).unwrap());
        assert_eq!(json["queue_pairs"][0]["program"], "ib_write_bw");
        assert_eq!(json["queue_pairs"][0]["state"], "RTS");
        assert_eq!(json["nics"][1]["link_up"], false);
        assert_eq!(json["incomplete"]["queue_pairs"], true);
        assert_eq!(json["incomplete"]["regions"], false);
        assert_eq!(json["faults"][0]["age_ms"], 1500.0);
    }
}
