//! The packet checker of a running process, through the control socket.

use std::path::PathBuf;
use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_capture::check::Findings;
use faultline_config::Config;
use faultline_control::scenario::VerdictView;
use faultline_harness::frames::{raw_qp, send};
use faultline_harness::testbed::{Fabric, Node, connect_nodes};
use faultline_harness::traffic::{exchange_anew, impatient};
use faultline_harness::{Link, QpType, Rng, SendWr, connect};
use faultline_wire::packet::{RoceHeader, seal};
use faultline_wire::{Bth, Ip, Ipv4, MacAddr, Opcode, Psn};
use serde_json::{Value, json};

use crate::held_clock::HeldClock;
use crate::observed::{exchange as http, request};

/// Half of a node's memory is for sent data, half for received data.
const IN: usize = Node::BUF / 2;
const PATH: &str = "/v1/check";

/// NICs `a` and `b`, and a control socket.
struct Stage {
    fabric: Fabric,
}

impl Stage {
    fn new() -> Self {
        Self::with("")
    }

    /// With these settings.
    fn with(config: &str) -> Self {
        let config = Config::from_toml(config).unwrap();
        let fabric = Fabric::start_controlled(config, &["a", "b"]).unwrap();
        Self { fabric }
    }

    fn nodes(&self) -> (Node, Node) {
        let node = |name| self.fabric.node(name).unwrap();
        (node("a"), node("b"))
    }

    fn socket(&self) -> PathBuf {
        self.fabric.control()
    }

    #[track_caller]
    fn start(&self) {
        request(&self.socket(), "POST", PATH, "{}");
    }

    #[track_caller]
    fn show(&self) -> Findings {
        serde_json::from_str(&request(&self.socket(), "GET", PATH, "")).unwrap()
    }

    #[track_caller]
    fn stop(&self) -> Findings {
        serde_json::from_str(&request(&self.socket(), "DELETE", PATH, "")).unwrap()
    }

    fn counter(&self, nic: &str, counter: Counter) -> u64 {
        let path = format!("/v1/nics/{nic}/counters");
        let counters = request(&self.socket(), "GET", &path, "");
        let counters: Value = serde_json::from_str(&counters).unwrap();
        counters[counter.name()].as_u64().unwrap()
    }
}

#[test]
fn the_nics_violate_no_rule() {
    connect_many_times(1);
}

/// The captured packets of the engines are judged in an order in which each response is after its request.
#[test]
fn the_nics_of_two_engines_violate_no_rule() {
    connect_many_times(2);
}

/// Many connections with the same numbers and PSNs, one after the other.
fn connect_many_times(engines: usize) {
    let stage = Stage::with(&format!("engines = {engines}"));
    let (mut a, mut b) = stage.nodes();
    stage.start();
    let mut rng = Rng::new(5);
    for _ in 0..50 {
        exchange_anew(&mut a, &mut b, &mut rng);
    }
    let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    for _ in 0..20 {
        // The same queue pairs with other connections, whose PSNs are the same.
        qa.to_reset().unwrap();
        qb.to_reset().unwrap();
        connect(&qa, &qb, &Link::default()).unwrap();
        let sges = [a.mr.sge(0, 50_000)];
        for wr in [
            SendWr::write(&sges, b.mr.remote(IN)),
            SendWr::read(&sges, b.mr.remote(IN)),
        ] {
            qa.post_send(&wr.signaled()).unwrap();
            let wc = a.good_completion();
            qa.retire(&wc);
        }
    }
    let found = stage.stop();
    assert_eq!(found.violation_count, 0, "{}", found.text());
    assert_eq!((found.lost, found.cut), (0, 0), "{}", found.text());
    assert_eq!(found.responses_without_requests, 0);
    let names: Vec<_> = found.interfaces.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let sent: u64 = ["a", "b"]
        .map(|nic| stage.counter(nic, Counter::tx_roce_packets))
        .iter()
        .sum();
    assert_eq!(found.packets, sent, "each packet is judged once");
    stage.fabric.assert_passes_are_short();
}

#[test]
fn a_violation_is_found_with_its_nic_and_its_rule() {
    lose_requests(1);
}

#[test]
fn a_violation_is_found_on_two_engines() {
    lose_requests(2);
}

/// A NIC that loses requests leaves gaps in its PSNs.
fn lose_requests(engines: usize) {
    let config = format!("engines = {engines}\n[defaults]\npitfalls = ['damming']");
    let stage = Stage::with(&config);
    let (mut a, b) = stage.nodes();
    stage.start();
    let (mut qa, mut qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    let link = Link {
        // 81.92 ms.
        rnr_timer: 26,
        // 537 ms, then the lost request is repeated. The one behind the gap waits for the device when the clock
        // continues.
        timeout: 17,
        ..Link::default()
    };
    connect(&qa, &qb, &link).unwrap();
    let sges = [a.mr.sge(0, 100)];
    let send = SendWr::send(&sges).signaled();
    let socket = stage.socket();
    let clock = HeldClock::hold(&socket);
    qa.post_send(&send).unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!(stage.counter("a", Counter::rnr_nak_received), 1);
    // It is lost, because the queue pair waits.
    qa.post_send(&send).unwrap();
    clock.advance(Duration::ZERO);
    for tag in 0..3 {
        qb.post_recv(tag, &[b.mr.sge(IN, 100)]).unwrap();
    }
    clock.advance(Duration::from_millis(82));
    let wc = a.good_completion();
    qa.retire(&wc);
    qa.post_send(&send).unwrap();
    clock.release();
    for _ in 0..2 {
        let wc = a.good_completion();
        qa.retire(&wc);
    }
    let shown = stage.show();
    assert_eq!(shown.violation_count, 1, "{}", shown.text());
    let found = stage.stop();
    assert_eq!(found.violations, shown.violations);
    let violation = &found.violations[0];
    assert_eq!(violation.rule, "request-psn");
    assert_eq!(violation.interface.as_deref(), Some("a"));
    let counts: Vec<_> = found.interfaces.iter().map(|i| i.violations).collect();
    assert_eq!(counts, [1, 0]);
}

/// Packets that software sends on a raw queue pair are no violations of its NIC.
#[test]
fn a_forged_packet_is_not_charged_to_its_nic() {
    forge("");
}

/// On a modelled link a frame becomes octets, and is still one of software.
#[test]
fn a_forged_packet_on_a_modelled_link_is_not_charged_to_its_nic() {
    forge("[defaults]\nlink_tx = { delay_ns = 1000 }\n");
}

fn forge(config: &str) {
    let stage = Stage::with(config);
    let (mut a, b) = stage.nodes();
    stage.start();
    let mut raw = raw_qp(&a, &a.cq, 4).unwrap();
    let ip = Ipv4 {
        src: [10, 0, 0, 1],
        dst: [10, 0, 0, 2],
        ttl: 64,
        dont_fragment: true,
        ..Ipv4::default()
    };
    let bth = Bth::new(Opcode::RcSendOnly, 7, Psn::new(1));
    let (from, to) = (MacAddr(a.nic.mac()), MacAddr(b.nic.mac()));
    let header = RoceHeader::new(to, from, Ip::V4(ip), bth);
    let mut frame = vec![0; header.frame_len(0)];
    header.emit(0, &mut frame).unwrap();
    seal(&mut frame).unwrap();
    *frame.last_mut().unwrap() ^= 1;
    send(&mut a, &mut raw, &frame);
    let found = stage.stop();
    assert_eq!(found.violation_count, 1, "{}", found.text());
    assert_eq!(found.violations[0].rule, "icrc");
    assert_eq!(found.violations[0].interface, None);
    assert!(found.interfaces.iter().all(|i| i.violations == 0));
}

#[test]
fn one_checker_runs_at_a_time() {
    let stage = Stage::new();
    let answer = http(&stage.socket(), "GET", PATH, "");
    assert!(answer.contains("404") && answer.contains("no packet checker runs"));
    stage.start();
    let answer = http(&stage.socket(), "POST", PATH, "{}");
    assert!(answer.contains("409") && answer.contains("runs already"));
    // It is one of the captures.
    let captures = request(&stage.socket(), "GET", "/v1/captures", "");
    let captures: Value = serde_json::from_str(&captures).unwrap();
    assert_eq!(captures.as_array().unwrap().len(), 1);
    stage.stop();
    let captures = request(&stage.socket(), "GET", "/v1/captures", "");
    assert_eq!(captures, "[]");
    let answer = http(&stage.socket(), "DELETE", PATH, "");
    assert!(answer.contains("404"), "{answer}");
}

/// A scenario that expects something of violations has a checker of its own.
#[test]
fn a_scenario_expects_violations_or_none() {
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    let run = |a: &mut Node, b: &mut Node, count: &str| -> VerdictView {
        let text = format!(
            "[[rule]]\nnic = 'a'\non = {{ dir = 'rx', opcode = 'ACK', nth = 1 }}\ndo = {{ drop = {{}} }}\n\
             [[expect]]\nviolation = {{ count = {count} }}\n"
        );
        let body = json!({"name": "test.toml", "text": text}).to_string();
        request(&stage.socket(), "POST", "/v1/scenario", &body);
        let captures = request(&stage.socket(), "GET", "/v1/captures", "");
        assert_ne!(captures, "[]");
        let (mut qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
        connect(&qa, &qb, &impatient()).unwrap();
        let sges = [a.mr.sge(0, 5000)];
        let write = SendWr::write(&sges, b.mr.remote(IN)).signaled();
        qa.post_send(&write).unwrap();
        let wc = a.good_completion();
        qa.retire(&wc);
        let verdict = request(&stage.socket(), "DELETE", "/v1/scenario", "");
        let captures = request(&stage.socket(), "GET", "/v1/captures", "");
        assert_eq!(captures, "[]");
        serde_json::from_str(&verdict).unwrap()
    };
    let none = run(&mut a, &mut b, "0");
    assert!(none.passed, "{none:?}");
    let check = none.checks.last().unwrap();
    assert_eq!(
        (check.name.as_str(), check.found.as_str()),
        ("expect[0] violation", "0")
    );
    let some = run(&mut a, &mut b, "'1..'");
    assert!(!some.passed, "{some:?}");
}
