//! Scenarios on a running process: started, observed and stopped through the control socket.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use faultline_abi::admin::EQ_ASYNC;
use faultline_abi::regs;
use faultline_config::Config;
use faultline_control::scenario::{ScenarioView, VerdictView};
use faultline_harness::testbed::{Fabric, Node, connect_nodes, until};
use faultline_harness::traffic::impatient;
use faultline_harness::{QpType, SendWr, connect};
use serde_json::{Value, json};

use crate::held_clock::HeldClock;
use crate::observed::{exchange, request};
use crate::traced::trace;

/// A scenario that passes.
const NO_VIOLATION: &str = "[[expect]]\nviolation = { count = 0 }\n";
const PATH: &str = "/v1/scenario";

/// Two NICs, `a` and `b`, and a control socket.
struct Stage {
    fabric: Fabric,
}

impl Stage {
    fn new() -> Self {
        Self::with(Config::default())
    }

    /// With NICs that have these settings.
    fn with(config: Config) -> Self {
        let fabric = Fabric::start_controlled(config, &["a", "b"]).unwrap();
        Self { fabric }
    }

    fn socket(&self) -> PathBuf {
        self.fabric.control()
    }

    fn nodes(&self) -> (Node, Node) {
        let node = |name| self.fabric.node(name).unwrap();
        (node("a"), node("b"))
    }

    #[track_caller]
    fn start(&self, text: &str) {
        let body = json!({"name": "test.toml", "text": text}).to_string();
        request(&self.socket(), "POST", PATH, &body);
    }

    #[track_caller]
    fn show(&self) -> ScenarioView {
        serde_json::from_str(&request(&self.socket(), "GET", PATH, "")).unwrap()
    }

    #[track_caller]
    fn stop(&self) -> VerdictView {
        serde_json::from_str(&request(&self.socket(), "DELETE", PATH, "")).unwrap()
    }

    /// The records of a NIC in the trace.
    fn trace_of(&self, nic: usize) -> Vec<Value> {
        let (header, mut records) = trace(&self.socket(), "/v1/trace");
        assert_eq!(header["lost"], 0);
        records.retain(|record| record["nic"] == nic);
        records
    }

    /// The scenario has passed.
    #[track_caller]
    fn passed(&self) {
        let verdict = self.stop();
        assert!(verdict.passed, "{verdict:#?}");
        self.fabric.assert_passes_are_short();
    }
}

/// When a record of the trace was made, in nanoseconds.
fn at(record: &Value) -> u64 {
    record["at"].as_u64().unwrap()
}

/// A SEND from `a` to `b` over a new connection; its data is checked.
#[track_caller]
pub(crate) fn send(a: &mut Node, b: &mut Node, len: usize) {
    let (mut qa, mut qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    connect(&qa, &qb, &impatient()).unwrap();
    a.buf.fill_pattern(0, len, 7);
    qb.post_recv(1, &[b.mr.sge(0, len)]).unwrap();
    let sges = [a.mr.sge(0, len)];
    qa.post_send(&SendWr::send(&sges).signaled()).unwrap();
    b.good_completion();
    a.good_completion();
    assert_eq!(b.buf.pattern_mismatch(0, len, 7), None);
}

#[test]
fn a_lost_ack_is_asked_for_again() {
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    stage.start(
        r#"
        [[rule]]
        nic = "nic0"
        on = { qp = 0, dir = "rx", opcode = "ACK", nth = 1 }
        do = { drop = { times = 2 } }
        [[expect]]
        diagnostic = { nic = "a", kind = "retried", count = "2.." }
        [[expect]]
        counter = { nic = "b", name = "duplicate_request", value = "2.." }
        [[expect]]
        completion = { status = "SUCCESS", count = 2 }
        [[expect]]
        packets = { nic = "a", opcode = "rc_send_only", count = "3.." }
        "#,
    );
    send(&mut a, &mut b, 100);
    assert_eq!(stage.show().rules[0].fired, 2);
    stage.passed();
}

#[test]
fn a_rule_that_has_not_fired_fails_the_run_and_so_does_an_expectation() {
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    stage.start(
        r#"
        [[rule]]
        name = "no such packet"
        on = { opcode = "READ" }
        do = { drop = {} }
        [[expect]]
        completion = { status = "RETRY_EXC_ERR", count = "1.." }
        [[expect]]
        completion = { status = "SUCCESS", count = 2 }
        "#,
    );
    send(&mut a, &mut b, 100);
    let verdict = stage.stop();
    assert!(!verdict.passed);
    let results: Vec<bool> = verdict.checks.iter().map(|check| check.passed).collect();
    assert_eq!(results, [false, false, true], "{verdict:#?}");
    assert_eq!(verdict.checks[0].name, "no such packet");
    assert_eq!(verdict.checks[0].found, "fired 0 times");
}

/// Also those that wake the device, by its kick page.
#[test]
fn doorbells_are_late_or_there_twice() {
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    stage.start(
        r#"
        [[rule]]
        nic = "a"
        on = { doorbell = "sq", nth = 1 }
        do = { delay = { by = "50ms" } }
        [[rule]]
        nic = "a"
        on = { doorbell = "sq", nth = 2 }
        do = { duplicate = {} }
        "#,
    );
    let kicks = a.nic.kicks();
    for _ in 0..3 {
        until("asleep", || a.nic.asleep(a.context.page()));
        qb.post_recv(1, &[b.mr.sge(0, 8)]).unwrap();
        let sges = [a.mr.sge(0, 8)];
        qa.post_send(&SendWr::send(&sges).signaled()).unwrap();
        b.good_completion();
        let wc = a.good_completion();
        qa.retire(&wc);
    }
    assert!(a.nic.kicks() > kicks, "no doorbell has waked the device");
    // By the device's own clock: how long this machine takes does not matter.
    let records = stage.trace_of(0);
    let sends = |path| {
        let of_path = records.iter().filter(move |record| {
            let bell = &record["event"]["Doorbell"];
            bell["kind"] == "sq" && bell["path"] == path
        });
        of_path.map(at).collect::<Vec<u64>>()
    };
    let (taken, late) = (sends("Page"), sends("Late"));
    assert_eq!((taken.len(), late.len()), (3, 3));
    let due = taken[0] + 50_000_000;
    assert!(late[0] >= due, "{taken:?} {late:?}");
    let sent = records
        .iter()
        .filter(|record| record["event"]["Frame"].is_object())
        .map(at)
        .find(|at| *at >= taken[0]);
    assert!(sent.unwrap() >= due, "{sent:?} {taken:?}");
    stage.passed();
}

#[test]
fn an_interrupt_is_lost() {
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    stage.start(
        r#"
        [[rule]]
        nic = "b"
        on = { interrupt = 1, nth = 1 }
        do = { drop = {} }
        "#,
    );
    b.eq.arm().unwrap();
    b.cq.arm(false).unwrap();
    send(&mut a, &mut b, 8);
    // The rule counts the interrupt when it loses it.
    until("lost", || stage.show().rules[0].fired == 1);
    assert!(!b.eq.signalled());
    // The event is there; only the interrupt is not.
    assert!(b.eq.poll().is_some());
    stage.passed();
}

#[test]
fn a_removed_device_reads_as_ones_until_the_next_client() {
    let stage = Stage::new();
    let (a, b) = stage.nodes();
    stage.start(
        r#"
        [[rule]]
        nic = "a"
        on = { signal = "now" }
        do = { remove = {} }
        "#,
    );
    assert_ne!(a.nic.read_reg(regs::STATUS).unwrap(), u32::MAX);
    request(
        &stage.socket(),
        "POST",
        "/v1/scenario/signals",
        r#"{"name": "now"}"#,
    );
    // The request is carried out in the next pass.
    until("removed", || {
        a.nic.read_reg(regs::STATUS).unwrap() == u32::MAX
    });
    stage.passed();
    drop((a, b));
    let (mut a, mut b) = stage.nodes();
    send(&mut a, &mut b, 100);
}

#[test]
fn a_pause_and_a_link_that_is_down_end_with_the_scenario() {
    const PAUSE: Duration = Duration::from_millis(150);
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    // The pause begins later than this, and packets that are sent in it arrive after its end.
    let start = Instant::now();
    stage.start(
        r#"
        [[at]]
        time = "0s"
        do = { pause = { for = "150ms" } }
        "#,
    );
    send(&mut a, &mut b, 100);
    assert!(start.elapsed() >= PAUSE);
    stage.passed();
    stage.start(
        r#"
        [[at]]
        time = "0s"
        nic = "b"
        do = { port_down = {} }
        "#,
    );
    let link = || request(&stage.socket(), "GET", "/v1/nics/b/link", "");
    until("down", || link().contains(r#""up":false"#));
    stage.passed();
    assert!(link().contains(r#""up":true"#));
    send(&mut a, &mut b, 100);
}

/// Only a guest can move its GIDs. Without a runner this is a problem of the run, with one it is a task.
#[test]
fn moves_of_gids_are_left_to_the_runner() {
    const FLAP: &str = r#"
        [[at]]
        time = "0s"
        nic = "b"
        do = { port_down = { for = "1ms", move_gid = true } }
        [[rule]]
        nic = "b"
        on = { signal = "again" }
        do = { port_down = { for = "1ms", move_gid = true } }
        fired = "0.."
    "#;
    let stage = Stage::new();
    let socket = stage.socket();
    stage.start(FLAP);
    until("a problem", || !stage.show().problems.is_empty());
    let verdict = stage.stop();
    assert!(!verdict.passed);
    assert!(
        verdict.problems[0].contains("NIC b: move_gid: the GID table belongs to the guest"),
        "{verdict:#?}"
    );

    let body = json!({"name": "test.toml", "text": FLAP, "runner": true}).to_string();
    let start = || drop(request(&socket, "POST", PATH, &body));
    let wait_for_task = |id| {
        until("a task", || {
            stage.show().tasks.first().map(|task| task.id) == Some(id)
        });
    };
    let done = |id: u64, body: &str| exchange(&socket, "POST", &format!("{PATH}/tasks/{id}"), body);
    start();
    wait_for_task(0);
    let task = stage.show().tasks.remove(0);
    assert_eq!(
        (task.nic.as_str(), task.index, task.action.as_str()),
        ("b", 1, "move_gids")
    );
    assert!(done(1, "{}").starts_with("HTTP/1.1 404 "));
    assert!(done(0, "{}").starts_with("HTTP/1.1 204 "));
    assert!(done(0, "{}").starts_with("HTTP/1.1 404 "));
    assert!(stage.show().tasks.is_empty());
    stage.passed();

    // Failed and open tasks of the runner are problems.
    start();
    wait_for_task(0);
    assert!(done(0, r#"{"error": "no such device"}"#).starts_with("HTTP/1.1 204 "));
    request(
        &socket,
        "POST",
        &format!("{PATH}/signals"),
        r#"{"name": "again"}"#,
    );
    wait_for_task(1);
    let verdict = stage.stop();
    assert!(!verdict.passed);
    assert_eq!(
        verdict.problems,
        [
            "NIC b: move_gids failed in the guest: no such device",
            "NIC b: move_gids (task 1) was not carried out by the runner of the scenario",
        ]
    );
}

/// The body of a request is as long as a file may be.
#[test]
fn the_longest_file_is_accepted() {
    let stage = Stage::new();
    let rule = "[[rule]]\non = { opcode = \"CNP\" }\ndo = { count = {} }\nfired = 0\n";
    let fill = |bytes: usize| format!("{rule}# {}", "\"".repeat(bytes - rule.len() - 2));
    stage.start(&fill(1 << 20));
    stage.passed();
    let body = json!({"name": "a", "text": fill((1 << 20) + 1)}).to_string();
    let answer = exchange(&stage.socket(), "POST", PATH, &body);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("at most 1048576 are allowed"), "{answer}");
}

#[test]
fn a_completion_fails_and_a_command_is_refused() {
    let stage = Stage::new();
    let (mut a, b) = stage.nodes();
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    stage.start(
        r#"
        [[rule]]
        nic = "a"
        on = { completion = "SUCCESS", nth = 1 }
        do = { fail = { with = "LOC_PROT_ERR" } }
        [[rule]]
        nic = "b"
        on = { command = "alloc_pd", nth = 1 }
        do = { fail = { with = "no_resources" } }
        "#,
    );
    let sges = [a.mr.sge(0, 8)];
    let write = SendWr::write(&sges, b.mr.remote(0)).signaled();
    qa.post_send(&write).unwrap();
    assert_eq!(a.completion().status, faultline_abi::cqe::LOC_PROT_ERR);
    assert!(b.nic.pd().is_err());
    assert!(b.nic.pd().is_ok());
    stage.passed();
}

/// No rule acts after the end, and the verdict waits.
#[test]
fn an_end_ends_the_run() {
    let stage = Stage::new();
    let (mut a, mut b) = stage.nodes();
    stage.start(
        r#"
        [[rule]]
        on = { dir = "tx", opcode = "SEND" }
        do = { count = {} }
        fired = 1
        [[rule]]
        nic = "a"
        on = { completion = "SUCCESS" }
        do = { end = {} }
        [[at]]
        nic = "b"
        time = "0s"
        do = { mtu = { bytes = 500 } }
        "#,
    );
    send(&mut a, &mut b, 100);
    until("ended", || stage.show().ended);
    // Longer than the MTU of the scenario: it is as before.
    send(&mut a, &mut b, 2000);
    let started = exchange(
        &stage.socket(),
        "POST",
        PATH,
        &json!({"name": "b", "text": NO_VIOLATION}).to_string(),
    );
    assert!(started.starts_with("HTTP/1.1 409 "), "{started}");
    assert_eq!(stage.show().rules[0].fired, 1);
    stage.passed();
}

/// The control API's pause and that of a scenario do not end each other.
#[test]
fn a_pause_of_the_scenario_does_not_end_one_of_the_api() {
    let stage = Stage::new();
    let (_a, _b) = stage.nodes();
    let paused = |paused: bool| {
        let body = json!({"paused": paused}).to_string();
        request(&stage.socket(), "PUT", "/v1/engine", &body)
    };
    let is_paused = || {
        let engine = request(&stage.socket(), "GET", "/v1/engine", "");
        engine.contains("\"paused\":true")
    };
    // Longer than the test lasts on any machine: the end of the scenario ends it.
    stage.start("[[at]]\ntime = \"0s\"\ndo = { pause = { for = \"1000s\" } }\nnic = \"a\"\n");
    until("paused", is_paused);
    paused(true);
    paused(false);
    assert!(is_paused(), "the scenario has paused it");
    paused(true);
    stage.passed();
    assert!(is_paused(), "the API has paused it");
    paused(false);
    assert!(!is_paused());
}

#[test]
fn the_example_with_a_signal_passes_and_fails_without_it() {
    let stage = Stage::new();
    let (a, _b) = stage.nodes();
    let _events = a.nic.event_queue(0, EQ_ASYNC, 5).unwrap();
    let text = include_str!("../../scenarios/examples/signal.toml");
    stage.start(text);
    let verdict = stage.stop();
    assert!(verdict.checks.iter().all(|check| !check.passed));
    stage.start(text);
    let socket = stage.socket();
    let clock = HeldClock::hold(&socket);
    let path = format!("{PATH}/signals");
    request(&socket, "POST", &path, r#"{"name": "now"}"#);
    assert_eq!(stage.show().rules[0].fired, 1);
    let is_up = || request(&socket, "GET", "/v1/nics/a/link", "").contains(r#""up":true"#);
    for (advance, up) in [(0, false), (299, false), (1, true)] {
        clock.advance(Duration::from_millis(advance));
        assert_eq!(is_up(), up, "after {advance} ms more");
    }
    clock.release();
    stage.passed();
}

/// A NIC has its profile from its creation on.
#[test]
fn a_scenario_with_another_profile_than_the_nics_is_refused() {
    let mut config = Config::default();
    config.set_profile("slow-host".parse().unwrap()).unwrap();
    let stage = Stage::with(config);
    let start = |profile: &str, file: Option<&str>| {
        let text = format!("profile = \"{profile}\"\n{NO_VIOLATION}");
        let body = json!({"name": "a.toml", "text": text, "profile": file}).to_string();
        exchange(&stage.socket(), "POST", PATH, &body)
    };
    let answer = start("small", None);
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    assert!(
        answer.contains("slow-host") && answer.contains("--profile small"),
        "{answer}"
    );
    let answer = start("smal", None);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("did you mean `small`?"), "{answer}");
    let answer = start("./a.toml", None);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let slow = Some(include_str!(
        "../../../device/scenario/src/profiles/slow-host.toml"
    ));
    for (profile, file) in [("slow-host", None), ("./a.toml", slow)] {
        let answer = start(profile, file);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        stage.passed();
    }
}

#[test]
fn wrong_requests_are_explained() {
    let stage = Stage::new();
    let socket = stage.socket();
    let start = |text: &str| {
        let body = json!({"name": "wrong.toml", "text": text}).to_string();
        exchange(&socket, "POST", PATH, &body)
    };
    let answer = start("[[rule]]\non = { opcode = \"SENT\" }\ndo = { drop = {} }\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(
        answer.contains("wrong.toml") && answer.contains("SENT"),
        "{answer}"
    );
    for (method, path) in [("GET", PATH), ("DELETE", PATH)] {
        let answer = exchange(&socket, method, path, "");
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
    stage.start(NO_VIOLATION);
    let answer = start(NO_VIOLATION);
    assert!(answer.starts_with("HTTP/1.1 409 "), "{answer}");
    let signal = r#"{"name": "nothing waits for this"}"#;
    let answer = exchange(&socket, "POST", "/v1/scenario/signals", signal);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    stage.passed();
}
