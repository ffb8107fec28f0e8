//! Live rules on a running process, through the control socket.

use std::path::PathBuf;
use std::time::Duration;

use faultline_config::Config;
use faultline_control::rules::{LiveRuleState, LiveRuleView};
use faultline_harness::QpType;
use faultline_harness::testbed::{Fabric, connect_nodes, until};
use serde_json::{Value, json};

use crate::held_clock::HeldClock;
use crate::observed::{exchange, request};
use crate::scenarios::send;

const PATH: &str = "/v1/rules";

/// Two NICs, `a` and `b`.
struct Stage {
    fabric: Fabric,
    socket: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let fabric = Fabric::start_controlled(Config::default(), &["a", "b"]).unwrap();
        let socket = fabric.control();
        Self { fabric, socket }
    }

    #[track_caller]
    fn inject(&self, body: &Value) -> LiveRuleView {
        let body = body.to_string();
        serde_json::from_str(&request(&self.socket, "POST", PATH, &body)).unwrap()
    }

    fn rules(&self) -> Vec<LiveRuleView> {
        serde_json::from_str(&request(&self.socket, "GET", PATH, "")).unwrap()
    }

    #[track_caller]
    fn remove(&self, id: u16) -> LiveRuleView {
        let path = format!("{PATH}/{id}");
        serde_json::from_str(&request(&self.socket, "DELETE", &path, "")).unwrap()
    }

    fn signal(&self, name: &str) {
        let body = json!({"name": name}).to_string();
        request(&self.socket, "POST", "/v1/scenario/signals", &body);
    }

    fn is_up(&self) -> bool {
        let link = request(&self.socket, "GET", "/v1/nics/a/link", "");
        link.contains(r#""up":true"#)
    }
}

/// The rules are given as TOML on one line and as JSON.
#[test]
fn a_rule_is_started_shown_and_removed() {
    let stage = Stage::new();
    let node = |name| stage.fabric.node(name).unwrap();
    let (mut a, mut b) = (node("a"), node("b"));
    let text = "nic = 'a' on = { dir = 'rx', opcode = 'ACK' } do = { drop = {} }";
    let dropped = stage.inject(&json!({"rule": text, "count": 2}));
    assert_eq!((dropped.id, dropped.state), (1, LiveRuleState::Running));
    assert_eq!(dropped.rule, text);
    let rule = json!({"name": "all", "on": {"dir": "tx", "opcode": "SEND"}, "do": {"count": {}}});
    assert_eq!(stage.inject(&json!({"rule": rule})).name, "all");
    send(&mut a, &mut b, 100);
    let [dropped, counted] = &stage.rules()[..] else {
        panic!("two rules");
    };
    assert_eq!((dropped.acted, dropped.left_ns), (2, None));
    assert!(dropped.matched >= Some(3), "{dropped:?}");
    assert!(counted.acted >= 3, "{counted:?}");
    assert_eq!(stage.remove(1).acted, 2);
    send(&mut a, &mut b, 100);
    assert_eq!(stage.rules().len(), 1);
    assert!(stage.remove(2).acted >= 4);
    stage.fabric.assert_passes_are_short();
}

#[test]
fn a_rule_undoes_what_it_has_changed() {
    let stage = Stage::new();
    let rule = "nic = 'a' on = { signal = 'x' } do = { port_down = {} }";
    let id = stage.inject(&json!({"rule": rule})).id;
    assert!(stage.is_up());
    stage.signal("x");
    until("down", || !stage.is_up());
    stage.remove(id);
    assert!(stage.is_up());
    // By the device's own clock.
    let clock = HeldClock::hold(&stage.socket);
    let id = stage.inject(&json!({"rule": rule, "for_ms": 50})).id;
    stage.signal("x");
    for (advance, is_up) in [(0, false), (49, false), (1, true)] {
        clock.advance(Duration::from_millis(advance));
        assert_eq!(stage.is_up(), is_up, "after {advance} ms more");
    }
    let [ended] = &stage.rules()[..] else {
        panic!("one rule");
    };
    assert_eq!((ended.id, ended.state), (id, LiveRuleState::Ended));
    assert_eq!((ended.acted, ended.left_ns), (1, Some(0)));
    clock.release();
    stage.remove(id);
    assert!(stage.rules().is_empty());
}

/// Neither ends what the other has changed.
#[test]
fn a_rule_runs_beside_a_scenario() {
    let stage = Stage::new();
    let rule = "nic = 'a'\non = { signal = 'x' }\ndo = { port_down = { move_gid = false } }\n";
    let id = stage.inject(&json!({"rule": rule})).id;
    let scenario = json!({"name": "x.toml", "text": format!("[[rule]]\n{rule}")}).to_string();
    request(&stage.socket, "POST", "/v1/scenario", &scenario);
    stage.signal("x");
    until("down", || !stage.is_up());
    let stopped = request(&stage.socket, "DELETE", "/v1/scenario", "");
    assert!(stopped.contains(r#""passed":true"#), "{stopped}");
    assert!(!stage.is_up(), "the live rule has taken it down, too");
    assert_eq!(stage.remove(id).acted, 1);
    assert!(stage.is_up());
    // One that starts while the link is down knows that it was up.
    request(&stage.socket, "POST", "/v1/scenario", &scenario);
    stage.signal("x");
    until("down", || !stage.is_up());
    let id = stage
        .inject(&json!({"rule": rule.replace("'x'", "'y'")}))
        .id;
    stage.signal("y");
    request(&stage.socket, "DELETE", "/v1/scenario", "");
    assert!(!stage.is_up());
    stage.remove(id);
    assert!(stage.is_up());
}

/// Whichever ends first.
#[test]
fn the_last_of_two_rules_restores_the_fault_policy() {
    let stage = Stage::new();
    let node = |name| stage.fabric.node(name).unwrap();
    let (a, b) = (node("a"), node("b"));
    let (qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let qpn = qa.number();
    let policy = || -> Value {
        let path = format!("/v1/nics/a/queue-pairs/{qpn}");
        let pair: Value = serde_json::from_str(&request(&stage.socket, "GET", &path, "")).unwrap();
        pair["fault_policy"].clone()
    };
    let before = policy();
    for first in [0, 1] {
        let ids = ["stall", "drop"].map(|policy| {
            let text = format!(
                "nic = 'a' on = {{ signal = '{policy}' }} do = {{ fault_policy = {{ qpn = {qpn}, policy = '{policy}' }} }}"
            );
            stage.inject(&json!({"rule": text})).id
        });
        for name in ["stall", "drop"] {
            stage.signal(name);
            until(name, || policy() == name);
        }
        stage.remove(ids[first]);
        assert_eq!(policy(), ["drop", "stall"][first], "the other rule lasts");
        stage.remove(ids[1 - first]);
        assert_eq!(policy(), before);
    }
}

#[test]
fn wrong_requests_are_refused_with_a_reason() {
    let stage = Stage::new();
    let right = json!("on = { dir = 'rx' } do = { count = {} }");
    let refused = |body: &Value, status: &str, reason: &str| {
        let answer = exchange(&stage.socket, "POST", PATH, &body.to_string());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{body}: {answer}"
        );
        assert!(answer.contains(reason), "{body}: {answer}");
    };
    let wrong = json!("on = { opcode = 'ACKK' } do = { drop = {} }");
    refused(&json!({"rule": wrong}), "400", "did you mean `ACK`?");
    let wrong = json!({"on": {"opcode": "ACKK"}, "do": {"drop": {}}});
    refused(&json!({"rule": wrong}), "400", "did you mean `ACK`?");
    refused(&json!({"rule": right, "count": 0}), "400", "never act");
    refused(&json!({"rule": right, "for_ms": 0}), "400", "more than 0");
    refused(&json!({"rule": right, "for": 1}), "400", "unknown field");
    refused(&json!({"rule": {"on": null}}), "400", "rule");
    refused(&json!({"rule": " ".repeat(5000)}), "400", "at most 4096");
    for _ in 0..16 {
        stage.inject(&json!({"rule": right}));
    }
    refused(&json!({"rule": right}), "409", "remove one");
    let answer = exchange(&stage.socket, "DELETE", "/v1/rules/17", "");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}
