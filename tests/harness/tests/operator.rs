//! Operations of an operator through the control socket while a driver uses the device.

use std::path::PathBuf;
use std::time::Duration;

use faultline_abi::admin::EQ_ASYNC;
use faultline_abi::doorbell::{self, Doorbell};
use faultline_abi::{event, regs};
use faultline_config::Config;
use faultline_harness::Reset;
use faultline_harness::testbed::{Fabric, LONG, until};

use crate::held_clock::HeldClock;
use crate::observed::exchange;

/// A process with a NIC `a` and a control socket.
struct Operated {
    fabric: Fabric,
}

impl Operated {
    fn start() -> Self {
        let fabric = Fabric::start_controlled(Config::default(), &["a"]).unwrap();
        Self { fabric }
    }

    fn socket(&self) -> PathBuf {
        self.fabric.control()
    }

    #[track_caller]
    fn expect(&self, request: (&str, &str, &str), status: u16) {
        let answer = exchange(&self.socket(), request.0, request.1, request.2);
        let start = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&start), "{request:?}: {answer}");
    }
}

const LINK: &str = "/v1/nics/a/link";
const ACTIONS: &str = "/v1/nics/a/actions";

#[test]
fn without_bus_mastering_an_operator_causes_no_dma() {
    let operated = Operated::start();
    let nic = operated.fabric.open("a").unwrap();
    let mut events = nic.event_queue(0, EQ_ASYNC, 5).unwrap();
    // The first event is the state of the link.
    let first = events.wait(LONG).unwrap().expect("an event");
    assert_eq!(first.kind, event::PORT_UP);
    nic.set_d3hot(true).unwrap();
    operated.expect(("PUT", LINK, r#"{"up": false}"#), 200);
    operated.expect(("POST", ACTIONS, r#"{"action": "fail_faults"}"#), 409);
    // Passes in which it could write an event, and time for all of the device's timers.
    let socket = operated.socket();
    let clock = HeldClock::hold(&socket);
    for _ in 0..10 {
        clock.advance(Duration::from_secs(1));
    }
    clock.release();
    let early = events.poll();
    assert!(early.is_none(), "{early:?}");
    nic.set_d3hot(false).unwrap();
    let down = events.wait(LONG).unwrap().expect("an event in D0");
    assert_eq!(down.kind, event::PORT_DOWN);
    operated.expect(("POST", ACTIONS, r#"{"action": "fail_faults"}"#), 204);
    operated.expect(("PUT", LINK, r#"{"up": true}"#), 200);
    let up = events.wait(LONG).unwrap().expect("an event");
    assert_eq!(up.kind, event::PORT_UP);
}

#[test]
fn a_doorbell_from_before_a_reset_is_not_kept_in_a_pause() {
    let operated = Operated::start();
    let nic = operated.fabric.open("a").unwrap();
    operated.expect(("PUT", "/v1/engine", r#"{"paused": true}"#), 200);
    let bell = Doorbell {
        kind: doorbell::ADMIN,
        object: 0,
        value: 5,
    };
    nic.kick(0, bell).unwrap();
    nic.reset(Reset::Register).unwrap();
    std::thread::scope(|scope| {
        // It waits for its first command until the end of the pause.
        let started = scope.spawn(|| nic.start());
        until("enabled", || {
            nic.read_reg(regs::STATUS).unwrap() & regs::ENABLED != 0
        });
        operated.expect(("PUT", "/v1/engine", r#"{"paused": false}"#), 200);
        started.join().unwrap().unwrap();
    });
    // Only the commands that were posted were carried out.
    nic.counters().unwrap();
}
