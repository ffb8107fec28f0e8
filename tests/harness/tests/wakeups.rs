//! No doorbell is slept through: each of very many, rung at moments around those at which the engine falls asleep,
//! gives its completion.
//!
//! A lost doorbell does not hang for ever: the engine's heartbeat finds it within 250 ms, and the engine counts those that it finds.

use std::mem::offset_of;
use std::time::{Duration, Instant};

use faultline_abi::doorbell::{self, Doorbell, DoorbellPage};
use faultline_abi::{cqe, regs, ring};
use faultline_config::{Config, PollMode};
use faultline_harness::testbed::{Fabric, LONG, Node, until};
use faultline_harness::traffic::impatient;
use faultline_harness::{Link, QpType, Reset, Rng, SendWr, Wc, connect};
use serde_json::Value;

use crate::alone;
use crate::observed::request;

/// For each way to sleep.
const DOORBELLS: u32 = 50_000;
/// Adaptive: how long the engine looks for work before it sleeps. As long as it takes to be woken: otherwise it
/// sleeps again before the answer to a kick has arrived.
const POLL_TIME: Duration = Duration::from_micros(25);
/// A completion that takes longer will not come.
const HANG: Duration = LONG;

/// What proc(5) says of the engine's thread.
fn of_engine(file: &str) -> String {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let text = threads.flatten().find_map(|thread| {
        let comm = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        let text = || std::fs::read_to_string(thread.path().join(file)).ok();
        (comm.trim() == "engine").then(text)?
    });
    text.expect("no such thread")
}

/// Whether a doorbell stands in the ring of the node's page.
fn has_untaken(node: &Node) -> bool {
    let base = u64::from(node.context.page()) * u64::from(regs::PAGE_SIZE);
    let word = |at: usize| {
        let area = node.nic.doorbell_area();
        area.load_u64(base + at as u64).unwrap()
    };
    word(offset_of!(DoorbellPage, producer)) != word(offset_of!(DoorbellPage, consumer))
}

/// A process with a control socket.
struct Counting {
    fabric: Fabric,
}

/// Counts of the engine: missed wake-ups, and doorbells for which it does not know that yet.
type Counts = (u64, u64);

impl Counting {
    fn start(poll: PollMode, names: &[&str]) -> Self {
        let config = Config {
            poll,
            poll_time_us: POLL_TIME.as_micros() as u64,
            ..Config::default()
        };
        let fabric = Fabric::start_controlled(config, names).unwrap();
        Self { fabric }
    }

    /// Wakes the engine.
    fn counts(&self) -> Counts {
        let body = request(&self.fabric.control(), "GET", "/v1/engine", "");
        let engine: Value = serde_json::from_str(&body).expect("JSON");
        let number = |name: &str| engine[name].as_u64().expect(name);
        (number("missed_wakeups"), number("awaited_kicks"))
    }

    /// How many wake-ups were missed, when it is known of all doorbells.
    fn missed(&self) -> u64 {
        until("all doorbells are known", || self.counts().1 == 0);
        self.counts().0
    }
}

/// The completion of the request just posted.
#[track_caller]
fn awaited(node: &mut Node, number: u32) -> Wc {
    let start = Instant::now();
    let mut looks = 0u32;
    loop {
        if let Some(wc) = node.cq.poll() {
            return wc;
        }
        looks += 1;
        if !looks.is_multiple_of(128) {
            std::hint::spin_loop();
            continue;
        }
        std::thread::yield_now();
        assert!(
            start.elapsed() < HANG,
            "no completion of doorbell {number} within {HANG:?}"
        );
    }
}

/// With the processor kept or given away, as the engine may be on the same.
fn pause(longest: Duration, rng: &mut Rng) {
    let pause = Duration::from_nanos(rng.below(longest.as_nanos() as u64));
    let yielding = rng.below(2) == 0;
    let start = Instant::now();
    while start.elapsed() < pause {
        if yielding {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Rings doorbells with pauses up to `longest` between them, for messages of up to `max_len` bytes. Some are rung
/// before the one before is completed, while the engine is about to sleep. No other doorbells are rung, because they
/// would wake it.
fn ring(poll: PollMode, longest: Duration, max_len: u64) {
    let _alone = alone();
    let counting = Counting::start(poll, &["a", "b"]);
    let fabric = &counting.fabric;
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let (mut qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    // Without timers, which wake the engine too.
    let link = Link {
        timeout: 0,
        ..Link::default()
    };
    connect(&qa, &qb, &link).unwrap();
    let mut rng = Rng::new(1);
    let start = Instant::now();
    let mut number = 0;
    while number < DOORBELLS {
        let first = number;
        a.buf.store_u32(0, first);
        for _ in 0..1 + rng.below(6) {
            let sges = [a.mr.sge(0, rng.below(max_len) as usize + 4)];
            let write = SendWr::write(&sges, b.mr.remote(0)).signaled();
            qa.post_send(&write).unwrap();
            number += 1;
            pause(longest, &mut rng);
        }
        for id in first..number {
            // Every now and then the other direction too: arm, and sleep on the eventfd.
            let wc = if rng.below(64) == 0 {
                match a.cq.wait(&mut a.eq, HANG).unwrap() {
                    Some(wc) => wc,
                    None => panic!("no interrupt for doorbell {id} within {HANG:?}"),
                }
            } else {
                awaited(&mut a, id)
            };
            assert!(wc.is_ok() && wc.id == id, "{wc:?} for {id}");
            qa.retire(&wc);
        }
        assert_eq!(b.buf.load_u32(0), first);
        pause(longest, &mut rng);
    }
    let kicks = a.nic.kicks();
    println!(
        "{poll:?}: {number} doorbells in {:?}, {kicks} kicks",
        start.elapsed()
    );
    assert!(kicks > 0, "the engine never slept");
    assert_eq!(counting.missed(), 0, "missed wake-ups");
}

#[test]
fn no_doorbell_is_slept_through_by_an_engine_that_looks_a_while() {
    ring(PollMode::Adaptive, 2 * POLL_TIME, 1);
}

#[test]
fn no_doorbell_is_slept_through_by_an_engine_that_sleeps_at_once() {
    // Work that lasts about as long as it takes to be told that a kick has arrived.
    ring(PollMode::Never, Duration::from_micros(20), 1_000_000);
}

const NOTHING: Doorbell = Doorbell {
    kind: doorbell::NOP,
    object: 0,
    value: 0,
};

/// Appends a doorbell that does nothing, while the engine sleeps, and waits until it is taken when the sleep has ended by time.
fn append_to_a_sleeper(counting: &Counting, node: &Node) {
    let page = node.context.page();
    let bells = node.nic.bells(page).unwrap();
    loop {
        while !node.nic.asleep(page) {
            std::thread::yield_now();
        }
        ring::append(&bells, NOTHING).unwrap();
        let start = Instant::now();
        while has_untaken(node) {
            assert!(start.elapsed() < HANG, "a doorbell is not taken");
            std::thread::yield_now();
        }
        // Otherwise the engine was awake, for the last request or a heartbeat.
        if counting.counts() == (0, 1) {
            return;
        }
    }
}

#[test]
fn a_driver_that_does_not_look_at_asleep_is_counted() {
    let _alone = alone();
    let counting = Counting::start(PollMode::Never, &["a"]);
    let node = counting.fabric.node("a").unwrap();
    append_to_a_sleeper(&counting, &node);
    assert_eq!(counting.missed(), 1);
}

/// A driver may be stopped between any two instructions.
#[test]
fn a_driver_that_looks_late_is_not_counted() {
    let _alone = alone();
    let counting = Counting::start(PollMode::Never, &["a"]);
    let node = counting.fabric.node("a").unwrap();
    append_to_a_sleeper(&counting, &node);
    let page = node.context.page();
    // The engine has handled the doorbell, and its flag still requests a write to the kick page.
    assert!(ring::must_kick(&node.nic.bells(page).unwrap()));
    node.nic.kick(page, NOTHING).unwrap();
    assert_eq!(counting.counts(), (0, 0));
    // It awaits the next one all the same.
    append_to_a_sleeper(&counting, &node);
    assert_eq!(counting.missed(), 1);
}

/// The page may get another owner.
#[test]
fn a_removed_driver_is_not_counted() {
    let _alone = alone();
    let counting = Counting::start(PollMode::Never, &["a"]);
    let node = counting.fabric.node("a").unwrap();
    append_to_a_sleeper(&counting, &node);
    node.nic.reset(Reset::Function).unwrap();
    assert_eq!(counting.counts(), (0, 0));
}

/// Time that the engine has been on a processor.
fn processor_time() -> Duration {
    // Nanoseconds on a processor, then others.
    let clock = of_engine("schedstat");
    let first = clock.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(first.expect("schedstat is not as in proc(5)"))
}

/// A function that may not use DMA does nothing when its timers are due; it must not keep the engine awake either.
#[test]
fn an_engine_with_nothing_to_do_sleeps_even_if_timers_are_due() {
    const WATCHED: Duration = Duration::from_millis(300);
    let _alone = alone();
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let (mut qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    connect(&qa, &qb, &impatient()).unwrap();
    b.nic.reset(Reset::Function).unwrap();
    let write = SendWr::write_inline(b"nobody", b.mr.remote(0)).signaled();
    qa.post_send(&write).unwrap();
    a.nic.write_config(4, &0u16.to_le_bytes()).unwrap();
    // Not to wait for something: this is how long it is watched.
    let before = processor_time();
    std::thread::sleep(WATCHED);
    let used = processor_time() - before;
    assert!(used < WATCHED / 5, "the engine ran {used:?} in {WATCHED:?}");
    // The timer counts again with bus mastering.
    a.nic.write_config(4, &6u16.to_le_bytes()).unwrap();
    assert_eq!(awaited(&mut a, 0).status, cqe::RETRY_EXC_ERR);
}
