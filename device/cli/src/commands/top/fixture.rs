//! Snapshots for tests.

use std::time::Duration;

use faultline_control::objects::{ContextView, FaultView, QueuePairView, RegionView};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::sample::{NicSample, Part, Snapshot, Timed};

pub(super) fn from_json<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A snapshot of a process at this time after its start, without NICs.
pub(super) fn snapshot(ms: u64) -> Snapshot {
    let engine = json!({
        "paused": false, "poll": "adaptive", "poll_time_us": 50, "uptime_ns": ms * 1_000_000,
        "device_time_ns": ms * 1_000_000, "passes": 0, "sleeps": 0, "busy_ns": ms * 250_000,
        "longest_pass_ns": 0, "control_requests": 0,
    });
    Snapshot {
        engine: Timed {
            at: Duration::from_millis(ms),
            item: from_json(engine),
        },
        nics: Vec::new(),
    }
}

/// A NIC of a snapshot, with these counters and no objects.
pub(super) fn nic(snapshot: &Snapshot, name: &str, messages: u64, counters: Value) -> NicSample {
    let nic = json!({
        "name": name, "mac": "02:00:00:00:00:01", "state": "running", "fatal_cause": 0, "bus_master": true,
        "stalled": false, "heartbeat": 1, "held_memory": 0, "waiting_notices": 0, "lost_diagnostics": 0,
        "queue_depths": {}, "fullest_cq_unread": 0, "fullest_cq_entries": 0,
        "tx_messages": messages, "rx_messages": 0,
        "link": {
            "up": true, "mtu": null, "speed_mbps": 100_000, "too_long": 0, "tx_dropped": 0, "rx_dropped": 0, "vlan_dropped": 0,
            "interrupts_lost": 0, "tx_drops_pending": 0, "rx_drops_pending": 0, "interrupt_losses_pending": 0,
        },
        "config": {
            "mac": "02:00:00:00:00:01", "transport": "roce", "on_demand": true, "fault_policy": "rnr", "fault_timeout_ns": 1,
            "stall_timeout_ns": 1, "pause_sharers": 1, "park_bytes": 1, "table_bytes": 1, "ready": "known", "mig_req": 1, "congestion_control": "none",
            "lookup_ns": 0, "pitfalls": [],
        },
        "objects": {
            "protection_domains": 1, "memory_keys": 2, "completion_queues": 1, "queue_pairs": 3,
            "shared_receive_queues": 0, "address_handles": 0, "contexts": 1, "timers": 0, "fault_waits": 0,
        },
        "limits": {}, "counters": counters,
    });
    let at = snapshot.engine.at;
    NicSample {
        nic: Timed {
            at,
            item: from_json(nic),
        },
        pairs: part(at, Vec::new()),
        regions: part(at, Vec::new()),
        contexts: part(at, Vec::new()),
        faults: part(at, Vec::new()),
    }
}

pub(super) fn part<T>(at: Duration, items: Vec<T>) -> Part<T> {
    Part {
        items: items.into_iter().map(|item| Timed { at, item }).collect(),
        cut: false,
    }
}

/// A queue pair that has sent this many packets.
pub(super) fn pair(qpn: u32, packets: u64) -> QueuePairView {
    from_json(json!({
        "qpn": qpn, "kind": "rc", "state": "RTS", "context": 1, "pd": 1, "send_cq": 0, "recv_cq": 0, "srq": null,
        "peer_qpn": 9, "path_mtu": 1024, "fault_policy": "rnr", "sends_pending": 4, "waits_for_page": false,
        "tx_packets": packets, "tx_bytes": packets * 1000, "rx_packets": packets, "rx_bytes": 0,
    }))
}

pub(super) fn region(key: u32, present: u32) -> RegionView {
    from_json(json!({
        "key": key, "pd": 1, "iova": 0x7f00_0000_0000u64, "length": 1 << 20, "access": ["local_write"],
        "on_demand": true, "present_entries": present, "table_bytes": 4096,
    }))
}

pub(super) fn fault(token: u64, age_ms: u64) -> FaultView {
    from_json(json!({
        "token": token, "key": 0x205, "va": 0x7f00_0000_3000u64, "pages": 1, "write": true, "context": 1,
        "age_ns": age_ms * 1_000_000, "waiters": 2, "qpn": 17,
    }))
}

pub(super) fn context(number: u32, program: &str) -> ContextView {
    from_json(json!({"context": number, "objects": 3, "pid": 345, "program": program}))
}

/// Two snapshots with a second between them: two NICs, a storm of page faults, and a queue pair that is new.
pub(super) fn storm() -> (Snapshot, Snapshot) {
    let counters = |scale: u64| {
        json!({
            "tx_packets": scale * 1_200_000, "rx_packets": scale * 1_100_000, "tx_bytes": scale * 4_200_000_000,
            "rx_bytes": scale * 88_000_000, "page_faults": scale * 310, "rnr_nak_sent": scale * 12,
            "rnr_nak_received": scale * 3, "retransmitted_packets": scale * 7, "local_ack_timeout_err": 0,
        })
    };
    let [first, second] = [(1, 10_000), (2, 11_000)].map(|(scale, ms)| {
        let mut snapshot = snapshot(ms);
        let at = snapshot.engine.at;
        let mut busy = nic(&snapshot, "nic0", scale * 600_000, counters(scale));
        (
            busy.nic.item.fullest_cq_unread,
            busy.nic.item.fullest_cq_entries,
        ) = (96, 128);
        let new = (scale == 2).then(|| pair(40, 1));
        let pairs = [pair(17, scale * 1000), pair(18, scale * 500_000)];
        busy.pairs = part(at, pairs.into_iter().chain(new).collect());
        busy.contexts = part(at, vec![context(1, "ib_write_bw")]);
        busy.faults = part(at, vec![fault(0x801, 3), fault(0x7ff, 1500)]);
        let present = u32::try_from(scale).unwrap() * 100;
        busy.regions = part(at, vec![region(0x101, 50), region(0x205, present)]);
        let mut idle = nic(&snapshot, "nic1", 0, json!({"tx_packets": 0}));
        idle.nic.item.link.up = false;
        snapshot.nics = vec![busy, idle];
        snapshot
    });
    (first, second)
}
