//! A link that pauses a priority of another process. `device/simulation/tests/flow_control.rs` has the rules of pauses.

use std::path::PathBuf;

use faultline_config::{Config, PollMode};
use faultline_control::ports::{LinkModelView, PriorityView};
use faultline_harness::testbed::{Fabric, Node};
use faultline_harness::traffic::exchange_over;
use faultline_harness::{Link, Qp, QpType, Rng, SendWr, connect};

use crate::observed::request;

/// A link of 100 Mb/s, which engines fill also on a busy machine. It pauses priority 3, and has room for frames under
/// way then.
const LINK: &str = "{ rate_mbps = 100, queue_bytes = 400000, pause_bytes = 40000, pfc = [3] }";
/// Class selector 3.
const CLASS: u8 = 3 << 5;

fn link(traffic_class: u8) -> Link {
    Link {
        path_mtu: 3,
        // None: packets that only wait are never repeated, whatever time threads wait for a processor.
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
    fn link_to(&self, nic: &str) -> LinkModelView {
        let text = request(&self.socket(), "GET", "/v1/links", "");
        let links: Vec<LinkModelView> = serde_json::from_str(&text).unwrap();
        let mut links = links.into_iter();
        let is_it = |link: &LinkModelView| {
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

/// Frames of another process wait in the ring of the port and in the socket. The port is on the first engine of the receiving process, the
/// NIC on the second one.
#[test]
fn a_priority_that_crosses_a_port_and_an_engine_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("wire").display());
    let port = |key: &str| {
        format!("[[port]]\nname = \"wire\"\nkind = \"stream\"\n{key} = \"{address}\"\n")
    };
    let near = Stage::new(&["a"], &port("listen"));
    let nic = format!("[[nic]]\nname = \"b\"\nlink_rx = {LINK}\n");
    let far = format!("engines = 2\n{nic}{}reconnect_ms = 5\n", port("connect"));
    let far = Stage::new(&["first", "b"], &far);
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
