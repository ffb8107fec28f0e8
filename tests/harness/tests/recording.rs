//! Records and counts of the engine at the boundary of the NICs: traces under load, frames, doorbells, interrupts.

use std::sync::atomic::{AtomicBool, Ordering};

use faultline_abi::doorbell::{self, Doorbell};
use faultline_config::{Config, PollMode};
use faultline_harness::frames::{Frame, raw_qp, send};
use faultline_harness::testbed::{Fabric, Node, SetOnDrop, connect_nodes, until};
use faultline_harness::{Qp, QpType, SendWr};
use serde_json::{Value, json};

use crate::observed::request;
use crate::traced::trace;

struct Process {
    fabric: Fabric,
}

impl Process {
    fn start(names: &[&str], config: Config) -> Self {
        let fabric = Fabric::start_controlled(config, names).unwrap();
        Self { fabric }
    }

    fn node(&self, name: &str) -> Node {
        self.fabric.node(name).unwrap()
    }

    fn request(&self, method: &str, path: &str, body: &str) -> String {
        request(&self.fabric.control(), method, path, body)
    }

    /// The sum of the series of a metric that have all of these labels.
    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let text = self.request("GET", "/metrics", "");
        let start = format!("{name}{{");
        let lines = text.lines().filter(|line| line.starts_with(&start));
        let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        lines
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// Header and records of all that the trace has.
    fn snapshot(&self) -> (Value, Vec<Value>) {
        trace(&self.fabric.control(), "/v1/trace/snapshot")
    }
}

/// Fills the send queue with 8-byte WRITEs, and waits for their completions.
fn write_round((node, qp): (&mut Node, &mut Qp), peer: &Node) {
    let remote = peer.mr.remote(0);
    let count = qp.room();
    for n in 1..=count {
        let wr = SendWr::write_inline(b"8 octets", remote);
        qp.stage(&if n == count { wr.signaled() } else { wr })
            .unwrap();
    }
    qp.ring().unwrap();
    let done = node.good_completion();
    qp.retire(&done);
}

#[test]
fn a_snapshot_is_whole_at_full_rate_and_a_flood_leaves_the_records_of_others() {
    const KEPT: usize = 3 * 2000;
    let process = Process::start(
        &["a", "b", "quiet"],
        Config {
            trace_records: KEPT,
            ..Config::default()
        },
    );
    let quiet = process.node("quiet");
    let (mut a, b) = (process.node("a"), process.node("b"));
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                write_round((&mut a, &mut qa), &b);
            }
        });
        let _ended = SetOnDrop(&stop);
        let is_turned = |header: &Value| {
            let recorded = header["recorded"].as_array().unwrap();
            recorded[0].as_u64().unwrap() > 3 * KEPT as u64
        };
        until("enough records", || is_turned(&process.snapshot().0));
        for _ in 0..3 {
            let (header, records) = process.snapshot();
            let recorded: Vec<u64> = serde_json::from_value(header["recorded"].clone()).unwrap();
            for (nic, recorded) in recorded.iter().enumerate() {
                let kept = records.iter().filter(|record| record["nic"] == nic).count() as u64;
                let share = KEPT as u64 / 3;
                assert_eq!(kept, share.min(*recorded), "NIC {nic} of {recorded}");
            }
            let all: u64 = recorded.iter().sum();
            assert_eq!(header["next"], all);
            assert_eq!(header["lost"], all - records.len() as u64);
            let times = records.iter().map(|record| record["at"].as_u64().unwrap());
            assert!(times.is_sorted_by(|a, b| *a <= b + 1_000_000), "order");
            assert!(recorded[2] > 0 && recorded[2] < 1000, "{recorded:?}");
        }
    });
    drop(quiet);
}

#[test]
fn a_frame_is_counted_at_each_nic_that_takes_it() {
    let process = Process::start(&["a", "b", "c", "d"], Config::default());
    let mut a = process.node("a");
    let others = ["b", "c", "d"].map(|name| process.node(name));
    let mut raw = raw_qp(&a, &a.cq, 6).unwrap();
    process.request("PUT", "/v1/nics/d/link", r#"{"up": false}"#);
    let frame = Frame {
        src: a.nic.mac(),
        dst: [0xff; 6],
        ..Frame::to(&a.nic)
    };
    send(&mut a, &mut raw, &frame.bytes());
    let received = |nic, direction| {
        let labels = [("nic", nic), ("direction", direction), ("opcode", "raw")];
        process.metric("faultline_frames_total", &labels)
    };
    assert_eq!(received("a", "tx"), 1);
    let all = ["a", "b", "c", "d"].map(|nic| received(nic, "rx"));
    assert_eq!(all, [0, 1, 1, 0]);
    let down = [("nic", "d"), ("reason", "down")];
    assert_eq!(
        process.metric("faultline_link_dropped_packets_total", &down),
        1
    );
    // Dropped by request.
    let drop_one = json!({"action": "drop_frames", "direction": "rx", "count": 1});
    process.request("POST", "/v1/nics/b/actions", &drop_one.to_string());
    send(&mut a, &mut raw, &frame.bytes());
    let all = ["a", "b", "c", "d"].map(|nic| received(nic, "rx"));
    assert_eq!(all, [0, 1, 2, 0]);
    let dropped = [("nic", "b"), ("reason", "rx_request")];
    assert_eq!(
        process.metric("faultline_link_dropped_packets_total", &dropped),
        1
    );
    drop(others);
}

#[test]
fn a_doorbell_of_the_kick_page_is_recorded() {
    let process = Process::start(&["a"], Config::default());
    let a = process.node("a");
    let bell = Doorbell {
        kind: doorbell::NOP,
        object: 4711,
        value: 0,
    };
    let labels = [("nic", "a"), ("kind", "nop"), ("path", "kick")];
    let before = process.metric("faultline_doorbells_total", &labels);
    a.nic.kick(0, bell).unwrap();
    let after = process.metric("faultline_doorbells_total", &labels);
    assert_eq!(after - before, 1);
    let (_, records) = process.snapshot();
    let kicked = records.iter().any(|record| {
        let bell = &record["event"]["Doorbell"];
        bell["path"] == "Kick" && bell["object"] == 4711
    });
    assert!(kicked, "{records:#?}");
}

#[test]
fn a_suppressed_interrupt_is_not_counted_as_sent() {
    let process = Process::start(&["a", "b"], Config::default());
    let (mut a, b) = (process.node("a"), process.node("b"));
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let lose = json!({"action": "lose_interrupts", "count": 1});
    process.request("POST", "/v1/nics/a/actions", &lose.to_string());
    let sent = || process.metric("faultline_interrupts_total", &[("nic", "a")]);
    let suppressed = || process.metric("faultline_interrupts_suppressed_total", &[("nic", "a")]);
    let before = sent();
    a.eq.arm().unwrap();
    a.cq.arm(false).unwrap();
    write_round((&mut a, &mut qa), &b);
    until("an interrupt is suppressed", || suppressed() > 0);
    assert_eq!((sent(), suppressed()), (before, 1));
}

#[test]
fn a_stopped_recorder_records_nothing() {
    let process = Process::start(
        &["a", "b"],
        Config {
            poll: PollMode::Adaptive,
            trace_records: 0,
            metrics: false,
            ..Config::default()
        },
    );
    let (mut a, b) = (process.node("a"), process.node("b"));
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    write_round((&mut a, &mut qa), &b);
    let (header, records) = process.snapshot();
    assert_eq!((records.len(), &header["next"]), (0, &json!(0)));
    assert_eq!(process.metric("faultline_frames_total", &[]), 0);
    let packets = process.metric("faultline_device_tx_packets_total", &[("nic", "a")]);
    assert!(packets > 0, "the device counts as before");
}
