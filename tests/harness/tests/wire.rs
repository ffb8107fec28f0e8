//! Two processes of Faultline whose switches are connected by a wire.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_config::{Config, PollMode};
use faultline_control::scenario::VerdictView;
use faultline_harness::frames::{Frame, Network, raw_qp, send};
use faultline_harness::testbed::{Fabric, LONG, Node, connect_nodes, until};
use faultline_harness::traffic::{exchange, exchange_at_all_mtus, exchange_over};
use faultline_harness::{Counters, Link, QpType, Rng, SendWr, connect};
use serde_json::json;

use crate::held_clock::HeldClock;
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

/// A connection lives through the loss of the wire, because the transport repeats what was lost.
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

/// Every frame passes two links that lose, double, reorder and spoil frames. The data arrives nevertheless, once and in order.
#[test]
fn data_survives_links_that_lose_double_reorder_and_spoil_frames() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("wire").display());
    let bad = "{ loss = 0.01, duplicate = 0.01, reorder = 0.02, corrupt = 0.01, delay_ns = 2000, seed = 3 }";
    let nic = format!("[defaults]\nlink_tx = {bad}\n");
    let port = format!("link_rx = {bad}\n");
    let fabric_a = process("a", &format!("{nic}{}{port}", stream("listen", &address)));
    let fabric_b = process("b", &format!("{nic}{}{port}", stream("connect", &address)));
    let (mut a, mut b) = (fabric_a.node("a").unwrap(), fabric_b.node("b").unwrap());
    // The peer may not run for tens of milliseconds on a busy machine.
    let link = Link {
        path_mtu: 3,
        timeout: 14,
        ..Link::default()
    };
    exchange_over(&link, 60, (&mut a, &mut b), &mut Rng::new(7));
    let counters = a.nic.counters().unwrap();
    assert!(counters[Counter::rx_icrc_errors] > 0 && counters[Counter::out_of_sequence] > 0);
}

/// What both NICs count after WRITEs through a link of 1 Gb/s with a queue of 48 KB. The link has the device clock, which is held:
/// the counts are the same on each machine. `keys` are further ones of the link, `settings` those of the NICs.
fn through_a_short_queue(keys: &str, settings: &str) -> [Counters; 2] {
    /// Half of the time that a packet takes on the link.
    const TICK: Duration = Duration::from_micros(4);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control");
    let link = format!("link_tx = {{ rate_mbps = 1000, queue_bytes = 48000{keys} }}");
    let control = format!("[control]\nsocket = \"{}\"\n", socket.display());
    let config = format!("[defaults]\n{link}\n{settings}{control}");
    let config = Config {
        poll: PollMode::Adaptive,
        ..Config::from_toml(&config).unwrap()
    };
    let fabric = Fabric::start_with(config, &["a", "b"]).unwrap();
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let link = Link {
        path_mtu: 3,
        timeout: 14,
        ..Link::default()
    };
    let (mut qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    connect(&qa, &qb, &link).unwrap();
    let half = Node::BUF / 2;
    let clock = HeldClock::hold(&socket);
    for seed in 0..10 {
        a.buf.fill_pattern(0, half, seed);
        let sges = [a.mr.sge(0, half)];
        let write = SendWr::write(&sges, b.mr.remote(half)).signaled();
        qa.post_send(&write).unwrap();
        let (mut tick, mut passed) = (TICK, Duration::ZERO);
        let wc = loop {
            if let Some(wc) = a.cq.poll() {
                break wc;
            }
            assert!(
                passed < LONG,
                "no completion in {passed:?} of the device clock"
            );
            passed += tick;
            // Nothing but a timer is waited for where nothing happens for some time.
            tick = match clock.advance(tick) {
                true => TICK,
                false => (2 * tick).min(256 * TICK),
            };
        };
        assert!(wc.is_ok(), "{wc:?}");
        qa.retire(&wc);
        assert_eq!(b.buf.pattern_mismatch(half, half, seed), None);
    }
    clock.release();
    [&a, &b].map(|node| node.nic.counters().unwrap())
}

#[test]
fn a_queue_that_is_too_short_loses_frames() {
    let [a, _] = through_a_short_queue("", "");
    assert!(a[Counter::retransmitted_packets] > 0);
}

#[test]
fn a_link_that_pauses_its_sender_loses_nothing() {
    let [a, b] = through_a_short_queue(", pause_bytes = 16000", "");
    assert_eq!(a[Counter::retransmitted_packets], 0);
    assert_eq!(b[Counter::out_of_sequence], 0);
}

/// The receiver tells of marks, the sender becomes slower, and the queue overflows less.
#[test]
fn a_sender_reacts_to_congestion() {
    let [without, _] = through_a_short_queue("", "");
    let settings = "dcqcn = { line_rate_mbps = 1000 }\n";
    let [a, b] = through_a_short_queue(", ecn_bytes = 6000", settings);
    assert!(b[Counter::np_ecn_marked_roce_packets] > 0);
    assert!(b[Counter::np_cnp_sent] > 0);
    assert_eq!(a[Counter::rp_cnp_handled], b[Counter::np_cnp_sent]);
    let [lost, before] = [&a, &without].map(|nic| nic[Counter::retransmitted_packets]);
    println!("{lost} packets were sent again, {before} without DCQCN");
    // With the clock held it is 3,280 of 7,365 each time. Before a timeout made a window of one packet, the sender without DCQCN repeated
    // its whole window then, and a quarter of its packets was the limit.
    assert!(
        lost < before / 2,
        "{lost} packets were sent again, {before} without DCQCN"
    );
}

/// The rules of a process act on what passes its port, in both directions, also on frames that are not RoCE. The connection repeats
/// what is lost.
#[test]
fn rules_for_a_port_change_what_passes_it() {
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
