//! A model of the latency of hardware: time in which the NIC sends no frames, in addition to that of look-ups in page tables
//! ([`NicConfig::lookup`](crate::NicConfig::lookup)).
//!
//! The NIC is one pipeline: the latency of one queue pair delays the others, too. Arriving packets are not delayed, but
//! their answers are.

use std::collections::{BTreeMap, HashMap};

use crate::time::Nanos;

/// Latency of the steps that hardware takes for each work request. Zero: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// From the doorbell of a send queue until the NIC begins to handle it.
    pub doorbell: Nanos,
    /// For each work request that the doorbell announces: the DMA reads of the request and of its data. They do not overlap.
    pub pcie: Nanos,
    /// Queue pairs whose state the NIC keeps; 0: all.
    pub qp_cache_entries: u32,
    /// Time to read the state of a queue pair that is not in the cache, when it sends or receives.
    pub qp_cache_miss: Nanos,
    /// Bytes of payload that the NIC handles at a time; 0: any number.
    pub payload_unit: u32,
    /// Time for each such unit of a packet's payload that is begun, when the packet is sent or received.
    pub payload_unit_time: Nanos,
    /// From a page fault to its record: the part of a fault's service time outside of the driver.
    pub fault_service: Nanos,
    /// Wait of a requester after an RNR NAK, in per cent of the NAK's timer; 0: exactly the timer.
    pub rnr_wait_percent: u32,
}

impl Latency {
    pub(crate) fn caches(self) -> bool {
        self.qp_cache_entries > 0 && self.qp_cache_miss.0 > 0
    }

    /// Time for the payload of a run of packets of equal length.
    pub(crate) fn of_payload(self, bytes: usize, packets: u32) -> Nanos {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let packets = u64::from(packets);
        let each = bytes.checked_div(packets).unwrap_or(bytes);
        let units = match self.payload_unit {
            0 => 0,
            unit => each.div_ceil(u64::from(unit)).saturating_mul(packets),
        };
        Nanos(self.payload_unit_time.0.saturating_mul(units))
    }

    /// Wait of a requester after an RNR NAK with this timer. Adapters wait longer than the timer, never less.
    pub(crate) fn rnr_wait(self, timer: Nanos) -> Nanos {
        let percent = u64::from(self.rnr_wait_percent).max(100);
        Nanos(timer.0.saturating_mul(percent) / 100)
    }
}

/// The queue pairs whose state is in the NIC. A new one replaces the least recently used one.
#[derive(Debug, Default)]
pub(crate) struct QpCache {
    uses: u64,
    last_use: HashMap<u32, u64>,
    by_use: BTreeMap<u64, u32>,
}

impl QpCache {
    /// Uses a queue pair; the cache keeps `entries` at most. Returns false if its state was not in the cache.
    pub(crate) fn touch(&mut self, qpn: u32, entries: u32) -> bool {
        self.uses = self.uses.wrapping_add(1);
        let before = self.last_use.insert(qpn, self.uses);
        if let Some(before) = before {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, qpn);
        let most = usize::try_from(entries).unwrap_or(usize::MAX);
        if self.by_use.len() > most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.last_use.remove(&oldest);
        }
        before.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_that_a_packet_begins_takes_time() {
        let latency = Latency {
            payload_unit: 128,
            payload_unit_time: Nanos(10),
            ..Latency::default()
        };
        let sizes = [
            (0, 1),
            (1, 1),
            (128, 1),
            (129, 1),
            (256, 1),
            (258, 2),
            (512, 2),
        ];
        let times = sizes.map(|(bytes, packets)| latency.of_payload(bytes, packets).0);
        assert_eq!(times, [0, 10, 10, 20, 20, 40, 40]);
        assert_eq!(Latency::default().of_payload(129, 1), Nanos(0));
    }

    #[test]
    fn the_least_recently_used_queue_pair_is_replaced() {
        let mut cache = QpCache::default();
        let mut touched = |qpn| cache.touch(qpn, 2);
        let hits = [1, 2, 1, 3, 1, 2, 3].map(&mut touched);
        // 3 replaces 2, then 2 replaces 3, and 3 replaces 1.
        assert_eq!(hits, [false, false, true, false, true, false, false]);
        assert!(cache.touch(2, 2) && !cache.touch(1, 2));
    }
}
