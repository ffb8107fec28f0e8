//! Links that pause single priorities, in a running process.

use std::path::PathBuf;

use faultline_abi::admin::Counter;
use faultline_config::{Config, PollMode};
use faultline_control::ports::{LinkLineView, PriorityView};
use faultline_harness::testbed::{Fabric, Node, until};
use faultline_harness::traffic::exchange_over;
use faultline_harness::{Link, Qp, QpType, Reset, Rng, SendWr, connect};

use crate::observed::request;

/// A link of 100 Mb/s, which engines fill also on a busy machine. It pauses priority 3, and has room for what is under way then.
const LINK: &str = "{ rate_mbps = 100, queue_bytes = 400000, pause_bytes = 40000, pfc = [3] }";
/// Class selector 3.
const CLASS: u8 = 3 << 5;

fn link(traffic_class: u8) -> Link {
    Link {
        path_mtu: 3,
        // None: what only waits is never repeated, however long threads wait for a processor.
        timeout: 0,
        traffic_class,
        ..Link::default()
    }
}

/// A process with a control socket.
struct Stage {
    fabric: Fabric,
}

impl Stage {
    /// `config` is the rest of the configuration, and has the settings of all NICs.
    fn new(names: &[&str], config: &str) -> Self {
        let config = Config {
            poll: PollMode::Adaptive,
            ..Config::from_toml(config).unwrap()
        };
        let fabric = Fabric::start_controlled(config, names).unwrap();
        Self { fabric }
    }

    fn node(&self, name: &str) -> Node {
        self.fabric.node(name).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.fabric.control()
    }

    /// The link to this NIC.
    fn link_to(&self, nic: &str) -> LinkLineView {
        let text = request(&self.socket(), "GET", "/v1/links", "");
        let links: Vec<LinkLineView> = serde_json::from_str(&text).unwrap();
        let mut links = links.into_iter();
        let is_it = |link: &LinkLineView| {
            link.port == nic && serde_json::to_value(link.direction).unwrap() == "rx"
        };
        links.find(is_it).unwrap()
    }
}

fn connected(a: &Node, b: &Node, link: &Link) -> (Qp, Qp) {
    let (qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    connect(&qa, &qb, link).unwrap();
    (qa, qb)
}

/// Writes half of the buffer into that of the peer, eight times at once.
fn fill(a: &mut Node, qp: &mut Qp, b: &Node) {
    let half = Node::BUF / 2;
    let sges = [a.mr.sge(0, half)];
    for _ in 0..8 {
        let write = SendWr::write(&sges, b.mr.remote(half)).signaled();
        qp.post_send(&write).unwrap();
    }
}

/// Takes the completions of [`fill`].
fn finish(a: &mut Node, qp: &mut Qp) {
    for _ in 0..8 {
        let wc = a.good_completion();
        qp.retire(&wc);
    }
}

/// A sender of the process, on the engine of the receiver or on another one, is paused and loses nothing.
fn nothing_is_lost(engines: usize) {
    let config = format!(
        "engines = {engines}\n[[nic]]\nname = \"a\"\n[[nic]]\nname = \"b\"\nlink_rx = {LINK}\n"
    );
    let stage = Stage::new(&["a", "b"], &config);
    let (mut a, b) = (stage.node("a"), stage.node("b"));
    let half = Node::BUF / 2;
    let (mut qa, _qb) = connected(&a, &b, &link(CLASS));
    for seed in 0..3 {
        a.buf.fill_pattern(0, half, seed);
        fill(&mut a, &mut qa, &b);
        finish(&mut a, &mut qa);
        assert_eq!(b.buf.pattern_mismatch(half, half, seed), None);
    }
    let [a, b] = [&a, &b].map(|node| node.nic.counters().unwrap());
    assert_eq!(a[Counter::retransmitted_packets], 0);
    assert_eq!(b[Counter::out_of_sequence], 0);
    let link = stage.link_to("b");
    assert_eq!(link.queue_full, 0);
    let [
        PriorityView {
            priority: 3,
            pauses,
            paused_ns,
        },
    ] = link.priorities[..]
    else {
        panic!("{link:?}");
    };
    assert_eq!(pauses, link.pauses);
    assert!(pauses > 0 && paused_ns > 0, "{link:?}");
}

#[test]
fn a_priority_that_is_paused_loses_nothing() {
    nothing_is_lost(1);
}

#[test]
fn a_priority_of_a_sender_on_another_engine_loses_nothing() {
    nothing_is_lost(2);
}

/// Frames of another process wait in the ring of the port and in the socket. `engines` of the receiving process: the port is on the
/// first one, the NIC on the last one.
fn nothing_of_another_process_is_lost(engines: usize) {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("wire").display());
    let port = |key: &str| {
        format!("[[port]]\nname = \"wire\"\nkind = \"stream\"\n{key} = \"{address}\"\n")
    };
    let near = Stage::new(&["a"], &port("listen"));
    let nic = format!("[[nic]]\nname = \"b\"\nlink_rx = {LINK}\n");
    let far = format!(
        "engines = {engines}\n{nic}{}reconnect_ms = 5\n",
        port("connect")
    );
    let far = match engines {
        1 => Stage::new(&["b"], &far),
        _ => Stage::new(&["first", "b"], &far),
    };
    let (mut a, mut b) = (near.node("a"), far.node("b"));
    // The processes have found each other.
    exchange_over(&Link::default(), 1, (&mut a, &mut b), &mut Rng::new(1));
    let before = far.link_to("b");
    let (mut qa, _qb) = connected(&a, &b, &link(CLASS));
    let half = Node::BUF / 2;
    for seed in 0..3 {
        a.buf.fill_pattern(0, half, seed);
        fill(&mut a, &mut qa, &b);
        finish(&mut a, &mut qa);
        assert_eq!(b.buf.pattern_mismatch(half, half, seed), None);
    }
    let link = far.link_to("b");
    assert_eq!(link.queue_full, before.queue_full);
    assert!(link.priorities[0].pauses > 0, "{link:?}");
}

#[test]
fn a_priority_of_a_sender_in_another_process_loses_nothing() {
    nothing_of_another_process_is_lost(1);
}

#[test]
fn a_priority_that_crosses_a_port_and_an_engine_loses_nothing() {
    nothing_of_another_process_is_lost(2);
}

/// A link of 10 Mb/s, which stays paused for tens of milliseconds.
const SLOW: &str = "{ rate_mbps = 10, queue_bytes = 400000, pause_bytes = 20000, pfc = [3] }";

/// Whatever happens to the receiver while its link pauses the priority, the pause ends, and others of the priority go on.
#[test]
fn no_pause_lasts_for_ever() {
    let config = format!(
        "engines = 2\n[[nic]]\nname = \"a\"\n[[nic]]\nname = \"b\"\nlink_rx = {SLOW}\n\
         [[nic]]\nname = \"c\"\n[[nic]]\nname = \"d\"\n"
    );
    let stage = Stage::new(&["a", "b", "c", "d"], &config);
    let (mut a, mut c, mut d) = (stage.node("a"), stage.node("c"), stage.node("d"));
    let put = |method: &str, path: &str, body: &str| {
        request(&stage.socket(), method, path, body);
    };
    let text = "[[rule]]\\non = { dir = 'rx', opcode = 'REQUEST' }\\ndo = { count = {} }\\n";
    for round in 0..5 {
        let b = stage.node("b");
        let (mut qa, qb) = connected(&a, &b, &link(CLASS));
        let before = stage.link_to("b").pauses;
        fill(&mut a, &mut qa, &b);
        until("a pause", || stage.link_to("b").pauses > before);
        match round {
            0 => {
                put("PUT", "/v1/nics/b/link", r#"{"up": false}"#);
                put("PUT", "/v1/nics/b/link", r#"{"up": true}"#);
            }
            1 => put("PUT", "/v1/nics/a/link", r#"{"up": false}"#),
            2 => b.nic.reset(Reset::Function).unwrap(),
            // All NICs move to the first engine, with their links, and back.
            3 => {
                let body = format!("{{\"name\": \"test.toml\", \"text\": \"{text}\"}}");
                put("POST", "/v1/scenario", &body);
                put("DELETE", "/v1/scenario", "");
            }
            _ => {}
        }
        // The receiver goes away.
        drop((qb, b));
        exchange_over(&link(CLASS), 3, (&mut c, &mut d), &mut Rng::new(round));
        if round == 1 {
            put("PUT", "/v1/nics/a/link", r#"{"up": true}"#);
        }
        qa.to_error().unwrap();
        for _ in 0..8 {
            a.completion();
        }
    }
}
