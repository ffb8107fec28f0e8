//! Two processes of Faultline whose switches are connected by a wire.

use std::net::TcpListener;
use std::path::Path;

use faultline_abi::admin::Counter;
use faultline_config::{Config, PollMode};
use faultline_control::scenario::VerdictView;
use faultline_harness::frames::{Frame, Network, raw_qp, send};
use faultline_harness::paging::{PAGE, Pager};
use faultline_harness::testbed::{Fabric, LONG, Node, connect_nodes, until};
use faultline_harness::traffic::{exchange, exchange_at_all_mtus, exchange_over};
use faultline_harness::{Link, QpType, Rng, SendWr};
use serde_json::json;

use crate::observed::{exchange as http, request};

/// A process with one NIC, and this configuration.
fn process(nic: &str, config: &str) -> Fabric {
    let config = Config::from_toml(config).unwrap();
    let config = Config {
        poll: PollMode::Adaptive,
        ..config
    };
    Fabric::start_with(config, &[nic]).unwrap()
}

fn stream(key: &str, address: &str) -> String {
    format!(
        "[[port]]\nname = \"wire\"\nkind = \"stream\"\n{key} = \"{address}\"\n{}",
        match key {
            "connect" => "reconnect_ms = 5\n",
            _ => "",
        }
    )
}

/// Exchanges data at all MTUs, between NICs that are in two processes.
fn exchange_by_stream(listen: &str) {
    let fabric_a = process("a", &stream("listen", listen));
    let fabric_b = process("b", &stream("connect", listen));
    let (mut a, mut b) = (fabric_a.node("a").unwrap(), fabric_b.node("b").unwrap());
    let mut rng = Rng::new(7);
    exchange_at_all_mtus(&mut a, &mut b, &mut rng);
    fabric_a.assert_passes_are_short();
    fabric_b.assert_passes_are_short();
}

#[test]
fn rc_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    exchange_by_stream(&format!("unix:{}", folder.path().join("wire").display()));
}

#[test]
fn rc_over_tcp() {
    // Another process may take the port before this one listens; the system gives out others first.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    exchange_by_stream(&format!("tcp:{}", address.unwrap()));
}

/// A connection survives the loss of the wire, because the transport repeats lost packets.
#[test]
fn a_process_that_comes_back_finds_its_peers() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("wire").display());
    let fabric_a = process("a", &stream("connect", &address));
    let mut a = fabric_a.node("a").unwrap();
    for seed in 0..3 {
        let fabric_b = process("b", &stream("listen", &address));
        let mut b = fabric_b.node("b").unwrap();
        let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
        let mut rng = Rng::new(seed);
        exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
    }
}

/// Nothing is configured: the NICs find out that both are Faultlines. `device/simulation/tests/ready.rs` has the details.
#[test]
fn ready_crosses_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("wire").display());
    let fabric_a = process("a", &stream("listen", &address));
    let fabric_b = process("b", &stream("connect", &address));
    let (mut a, b) = (fabric_a.node("a").unwrap(), fabric_b.node("b").unwrap());
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let mut pager = Pager::new(&b, 512).unwrap();
    let mut pages = 0..512;
    until("READY", || {
        let at = pages.next().expect("READY before the last page") * PAGE;
        qa.post_send(&SendWr::write_inline(b"late", pager.mr.remote(at)).signaled())
            .unwrap();
        let record = pager.record(LONG).unwrap();
        pager.repair(&record).unwrap();
        qa.retire(&a.good_completion());
        a.nic.counters().unwrap()[Counter::ready_received] > 0
    });
    assert!(b.nic.counters().unwrap()[Counter::ready_notices] > 0);
    assert_eq!(a.nic.counters().unwrap()[Counter::ready_refused], 0);
}

/// Several packets of a message are one frame inside of a process, and each a frame of its own on a wire.
#[test]
fn long_messages_fill_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("wire").display());
    let fabric_a = process("a", &stream("listen", &address));
    let fabric_b = process("b", &stream("connect", &address));
    let (mut a, b) = (fabric_a.node("a").unwrap(), fabric_b.node("b").unwrap());
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let half = Node::BUF / 2;
    for seed in 0..50 {
        a.buf.fill_pattern(0, half, seed);
        let sges = [a.mr.sge(0, half)];
        let write = SendWr::write(&sges, b.mr.remote(half)).signaled();
        qa.post_send(&write).unwrap();
        qa.retire(&a.good_completion());
        assert_eq!(b.buf.pattern_mismatch(half, half, seed), None);
    }
}

/// `device/simulation/tests/links.rs` shows how much slower it becomes.
#[test]
fn a_sender_gets_congestion_notifications() {
    let config = "[defaults]\ndcqcn = { line_rate_mbps = 1000 }\nlink_tx = { rate_mbps = 1000, ecn_bytes = 6000 }\n";
    let config = Config::from_toml(config).unwrap();
    let fabric = Fabric::start_with(config, &["a", "b"]).unwrap();
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let sges = [a.mr.sge(0, Node::BUF / 2)];
    let write = SendWr::write(&sges, b.mr.remote(Node::BUF / 2)).signaled();
    until("a notification", || {
        qa.post_send(&write).unwrap();
        qa.retire(&a.good_completion());
        a.nic.counters().unwrap()[Counter::rp_cnp_handled] > 0
    });
    assert!(b.nic.counters().unwrap()[Counter::np_cnp_sent] > 0);
}

/// The rules of a process act on frames through its port, in both directions, also on frames that are not RoCE. The
/// connection repeats lost packets.
#[test]
fn rules_for_a_port_change_its_frames() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("wire").display());
    let socket = folder.path().join("control");
    let control = format!("[control]\nsocket = \"{}\"\n", socket.display());
    let fabric_a = process("a", &format!("{control}{}", stream("listen", &address)));
    let fabric_b = process("b", &stream("connect", &address));
    let (mut a, mut b) = (fabric_a.node("a").unwrap(), fabric_b.node("b").unwrap());
    let start = |text: &str| {
        let body = json!({"name": "test.toml", "text": text}).to_string();
        http(&socket, "POST", "/v1/scenario", &body)
    };
    let refused = start("[[rule]]\nport = 'wires'\non = { dir = 'rx' }\ndo = { drop = {} }");
    assert!(
        refused.contains("400") && refused.contains("did you mean `wire`?"),
        "{refused}"
    );
    let rule = |on: &str, action: &str, fired: &str| {
        format!("[[rule]]\nport = 'wire'\non = {{ {on} }}\ndo = {{ {action} }}\nfired = {fired}\n")
    };
    let text = [
        rule("dir = 'rx', opcode = 'SEND', nth = 2", "drop = {}", "1"),
        rule("dir = 'rx', opcode = 'WRITE', nth = 3", "corrupt = {}", "1"),
        rule("dir = 'tx', opcode = 'ACK', nth = 1", "drop = {}", "1"),
        rule(
            "dir = 'tx', opcode = 'READ', nth = 1",
            "delay = { by = '1ms' }",
            "1",
        ),
        rule("dir = 'rx', opcode = 'RAW', nth = 2", "duplicate = {}", "1"),
        rule("dir = 'rx', opcode = 'RAW'", "count = {}", "3"),
        rule("dir = 'rx', every = 5", "count = {}", "'4..'"),
    ];
    let started = start(&text.concat());
    assert!(started.contains(" 200 "), "{started}");
    let link = Link {
        path_mtu: 2,
        timeout: 14,
        ..Link::default()
    };
    exchange_over(&link, 3, (&mut a, &mut b), &mut Rng::new(7));
    let received = |node: &Node| node.nic.counters().unwrap()[Counter::rx_packets];
    let before = received(&a);
    let mut raw = raw_qp(&b, &b.cq, 4).unwrap();
    let frame = Frame {
        src: b.nic.mac(),
        network: Network::Other(0x88b5),
        data: &[7; 100],
        ..Frame::to(&a.nic)
    };
    for _ in 0..3 {
        send(&mut b, &mut raw, &frame.bytes());
    }
    // Three frames, one of them twice.
    until("received", || received(&a) >= before + 4);
    let verdict: VerdictView = stopped(&socket);
    assert!(verdict.passed, "{verdict:#?}");
    let counters = a.nic.counters().unwrap();
    assert_eq!(counters[Counter::rx_icrc_errors], 1);
}

fn stopped(socket: &Path) -> VerdictView {
    serde_json::from_str(&request(socket, "DELETE", "/v1/scenario", "")).unwrap()
}
