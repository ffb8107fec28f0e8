//! NICs on several engine threads of one process, and the links between the engines.

use std::path::PathBuf;

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::qp::FAULT_POLICY_STALL;
use faultline_config::{Config, PollMode};
use faultline_control::view::EngineView;
use faultline_harness::paging::Pager;
use faultline_harness::testbed::{Fabric, LONG, Node, connect_nodes, until};
use faultline_harness::traffic::{
    Neighbours, Storm, exchange, exchange_anew, exchange_at_all_mtus,
};
use faultline_harness::{Link, QpOptions, QpType, Reset, Rng, SendWr, connect};
use serde_json::{Value, json};

use crate::observed::{exchange as http, request};

/// A process with two engines and a control socket.
struct Stage {
    fabric: Fabric,
}

impl Stage {
    /// With NICs of these names, in turn on the first and on the second engine.
    fn new(poll: PollMode, names: &[&str], config: &str) -> Self {
        let config = Config::from_toml(&format!("engines = 2\n{config}")).unwrap();
        let config = Config { poll, ..config };
        let fabric = Fabric::start_controlled(config, names).unwrap();
        Self { fabric }
    }

    fn two(poll: PollMode) -> (Self, Node, Node) {
        let stage = Self::new(poll, &["a", "b"], "");
        let (a, b) = (stage.node("a"), stage.node("b"));
        (stage, a, b)
    }

    fn node(&self, name: &str) -> Node {
        self.fabric.node(name).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.fabric.control()
    }

    #[track_caller]
    fn request(&self, method: &str, path: &str, body: &str) -> Value {
        let text = request(&self.socket(), method, path, body);
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// NICs by engine.
    fn nics(&self) -> Vec<Vec<String>> {
        let view: EngineView =
            serde_json::from_value(self.request("GET", "/v1/engine", "")).unwrap();
        view.threads.into_iter().map(|thread| thread.nics).collect()
    }
}

/// Octets of payload from which a link is full.
const FULL: u64 = 128 << 10;

fn counter(node: &Node, counter: Counter) -> u64 {
    node.nic.counters().unwrap()[counter]
}

#[test]
fn data_passes_between_engines_at_all_mtus_and_with_each_poll_mode() {
    for poll in [PollMode::Busy, PollMode::Adaptive, PollMode::Never] {
        let (stage, mut a, mut b) = Stage::two(poll);
        let mut rng = Rng::new(7);
        exchange_at_all_mtus(&mut a, &mut b, &mut rng);
        assert_eq!(counter(&a, Counter::rx_icrc_errors), 0);
        stage.fabric.assert_passes_are_short();
    }
}

/// All queues are full in both directions, so both links are full: nothing is lost, and nothing waits for ever.
#[test]
fn full_links_lose_nothing() {
    let (_stage, a, b) = Stage::two(PollMode::Adaptive);
    let mut rng = Rng::new(3);
    // The transport repeats nothing meanwhile.
    let mut pairs: Vec<_> = (0..8)
        .map(|_| {
            let options = QpOptions {
                send_depth: 6,
                ..QpOptions::default()
            };
            let [qa, qb] = [&a, &b].map(|node| {
                let cq = node.context.cq(&node.eq, 8).unwrap();
                let (context, pd) = (&node.context, &node.pd);
                let qp = context.qp(pd, QpType::Rc, &cq, &cq, None, &options);
                (qp.unwrap(), cq)
            });
            connect(&qa.0, &qb.0, &Link::default()).unwrap();
            [qa, qb]
        })
        .collect();
    let half = Node::BUF / 2;
    let seed = rng.next_u64();
    for (node, seed) in [(&a, seed), (&b, !seed)] {
        node.buf.fill_pattern(0, half, seed);
    }
    const ROUNDS: usize = 3;
    for _ in 0..ROUNDS {
        for pair in &mut pairs {
            for (index, node, peer) in [(0, &a, &b), (1, &b, &a)] {
                let sges = [node.mr.sge(0, half)];
                for _ in 0..8 {
                    let write = SendWr::write(&sges, peer.mr.remote(half)).signaled();
                    pair[index].0.post_send(&write).unwrap();
                }
            }
        }
        for (qp, cq) in pairs.iter_mut().flatten() {
            for _ in 0..8 {
                let wc = cq.poll_for(LONG).expect("a completion");
                assert!(wc.is_ok(), "{wc:?}");
                qp.retire(&wc);
            }
        }
    }
    assert_eq!(a.buf.pattern_mismatch(half, half, !seed), None);
    assert_eq!(b.buf.pattern_mismatch(half, half, seed), None);
    for node in [&a, &b] {
        assert_eq!(counter(node, Counter::out_of_sequence), 0);
    }
}

#[test]
fn nics_may_be_reset_and_clients_may_go_while_frames_are_on_a_link() {
    let stage = Stage::new(PollMode::Adaptive, &["a", "b", "c", "d"], "");
    // `c` and `d` are on the same two engines.
    let neighbours = Neighbours::start(&stage.fabric, ["c", "d"]).unwrap();
    let mut a = stage.node("a");
    let mut rng = Rng::new(5);
    let nic = stage.fabric.open("b").unwrap();
    for round in 0..6 {
        let b = Node::new(nic.clone()).unwrap();
        let mut storm = Storm::new([&a, &b], &mut rng).unwrap();
        for _ in 0..50 {
            storm.turn([&a, &b]);
        }
        let how = [Reset::Function, Reset::Device, Reset::Disable][round % 3];
        nic.reset(how).unwrap();
        let (status, _) = storm.end(0, &a, &b);
        assert_eq!(status, cqe::RETRY_EXC_ERR, "{how:?}");
        drop((storm, b));
        nic.start().unwrap();
        exchange_anew(&mut a, &mut Node::new(nic.clone()).unwrap(), &mut rng);
        neighbours.unharmed();
    }
    // The sender of the frames ends, with its memory.
    let b = Node::new(nic.clone()).unwrap();
    let mut storm = Storm::new([&b, &a], &mut rng).unwrap();
    for _ in 0..50 {
        storm.turn([&b, &a]);
    }
    b.nic.hang_up();
    let (status, _) = storm.end(1, &a, &b);
    assert_eq!(status, cqe::RETRY_EXC_ERR);
    drop((storm, b, nic));
    exchange_anew(&mut a, &mut stage.node("b"), &mut rng);
    neighbours.finish();
}

/// A NIC that pauses its senders fills the link to it. The sender waits; its neighbour on the same engine does not.
#[test]
fn a_paused_nic_holds_up_its_senders_only() {
    let config = "[defaults]\nstall_timeout_ms = 60000\n";
    let stage = Stage::new(PollMode::Adaptive, &["a", "b", "c", "d", "e"], config);
    let (mut a, b) = (stage.node("a"), stage.node("b"));
    // On the engine of a.
    let (mut c, mut e) = (stage.node("c"), stage.node("e"));
    // Without timers, which do not know that the packets wait.
    let link = Link {
        timeout: 0,
        ..Link::default()
    };
    let connected = |a: &Node, b: &Node| {
        let (qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
        connect(&qa, &qb, &link).unwrap();
        (qa, qb)
    };
    let (mut qa, qb) = connected(&a, &b);
    let mut pager = Pager::new(&b, 4).unwrap();
    qb.set_fault_policy(FAULT_POLICY_STALL).unwrap();
    let write = SendWr::write_inline(b"absent", pager.mr.remote(0)).signaled();
    qa.post_send(&write).unwrap();
    let record = pager.record(LONG).unwrap();
    // More than the link takes.
    let mut others: Vec<_> = (0..4).map(|_| connected(&a, &b)).collect();
    let sges = [a.mr.sge(0, Node::BUF / 2)];
    for (qp, _) in &mut others {
        let write = SendWr::write(&sges, b.mr.remote(Node::BUF / 2)).signaled();
        qp.post_send(&write).unwrap();
    }
    // The engine of both makes many passes for these.
    for _ in 0..10 {
        exchange_anew(&mut c, &mut e, &mut Rng::new(1));
    }
    assert!(a.cq.poll().is_none(), "the other NIC takes nothing");
    pager.repair(&record).unwrap();
    for _ in 0..=others.len() {
        a.good_completion();
    }
    assert_eq!(counter(&b, Counter::out_of_sequence), 0);
}

#[test]
fn the_first_engine_has_all_nics_in_a_pause_and_while_a_scenario_runs() {
    let stage = Stage::new(PollMode::Adaptive, &["a", "b", "c", "d"], "");
    let apart = [vec!["a", "c"], vec!["b", "d"]];
    let together = [vec!["a", "b", "c", "d"], vec![]];
    assert_eq!(stage.nics(), apart);
    let neighbours = Neighbours::start(&stage.fabric, ["c", "d"]).unwrap();
    let (mut a, mut b) = (stage.node("a"), stage.node("b"));
    let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let mut rng = Rng::new(4);
    for _ in 0..20 {
        stage.request("PUT", "/v1/engine", r#"{"paused": true}"#);
        assert_eq!(stage.nics(), together);
        // The doorbell waits for a step.
        let write = SendWr::write_inline(b"stepped", b.mr.remote(0)).signaled();
        qa.post_send(&write).unwrap();
        stage.request("POST", "/v1/engine/step", r#"{"passes": 4}"#);
        let wc = a.good_completion();
        qa.retire(&wc);
        stage.request("PUT", "/v1/engine", r#"{"paused": false}"#);
        assert_eq!(stage.nics(), apart);
        exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
        neighbours.unharmed();
    }
    let text = r#"
        [[rule]]
        on = { dir = "rx", opcode = "REQUEST", nth = 3, every = 7 }
        do = { drop = {} }
        fired = "2.."
    "#;
    let body = json!({"name": "test.toml", "text": text}).to_string();
    for _ in 0..5 {
        stage.request("POST", "/v1/scenario", &body);
        assert_eq!(stage.nics(), together);
        for _ in 0..5 {
            exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
        }
        let verdict = stage.request("DELETE", "/v1/scenario", "");
        assert_eq!(verdict["passed"], true, "{verdict:#}");
        assert_eq!(stage.nics(), apart);
        exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
    }
    let refused = http(&stage.socket(), "DELETE", "/v1/scenario", "");
    assert!(refused.starts_with("HTTP/1.1 4"), "{refused}");
    assert_eq!(stage.nics(), apart);
    neighbours.finish();
}

/// The control server shows the NICs of all engines.
#[test]
fn the_control_server_sees_all_engines() {
    let (stage, mut a, mut b) = Stage::two(PollMode::Adaptive);
    let mut rng = Rng::new(9);
    exchange_anew(&mut a, &mut b, &mut rng);
    for nic in ["a", "b"] {
        let view = stage.request("GET", &format!("/v1/nics/{nic}"), "");
        assert!(
            view["counters"]["rx_packets"].as_u64().unwrap() > 0,
            "{view}"
        );
        let action = r#"{"action": "drop_frames", "direction": "rx", "count": 1}"#;
        stage.request("POST", &format!("/v1/nics/{nic}/actions"), action);
    }
    let trace = request(&stage.socket(), "GET", "/v1/trace", "");
    let mut lines = trace.lines();
    let header: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(header["nics"], json!(["a", "b"]));
    assert_eq!(header["lost"], 0, "{header}");
    let recorded: Vec<u64> = serde_json::from_value(header["recorded"].clone()).unwrap();
    assert!(recorded.iter().all(|count| *count > 0), "{header}");
    assert_eq!(lines.count() as u64, recorded.iter().sum::<u64>());
    let metrics = request(&stage.socket(), "GET", "/metrics", "");
    for series in [
        "faultline_engine_passes_total{engine=\"0\"}",
        "faultline_engine_passes_total{engine=\"1\"}",
        "faultline_link_up{nic=\"a\"} 1",
        "faultline_link_up{nic=\"b\"} 1",
    ] {
        assert!(metrics.contains(series), "{series}: {metrics}");
    }
}

/// A process ends although a link is full and nothing takes its frames.
#[test]
fn a_process_ends_while_a_link_is_full() {
    let config = "[defaults]\nstall_timeout_ms = 60000\n";
    let stage = Stage::new(PollMode::Adaptive, &["a", "b"], config);
    let (a, b) = (stage.node("a"), stage.node("b"));
    let (mut qa, qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let mut pager = Pager::new(&b, 4).unwrap();
    qb.set_fault_policy(FAULT_POLICY_STALL).unwrap();
    let write = SendWr::write_inline(b"absent", pager.mr.remote(0)).signaled();
    qa.post_send(&write).unwrap();
    pager.record(LONG).unwrap();
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let before = counter(&a, Counter::tx_bytes);
    let sges = [a.mr.sge(0, Node::BUF / 2)];
    let write = SendWr::write(&sges, b.mr.remote(Node::BUF / 2)).signaled();
    qa.post_send(&write).unwrap();
    until("the link is full", || {
        counter(&a, Counter::tx_bytes) - before >= FULL
    });
    let end = std::thread::spawn(|| drop(stage));
    until("the process ends", || end.is_finished());
}
