//! Model check of the sleep and wake protocol: the steps that the engine runs (`faultline_daemon::engines::sleep`) and those of a ringer
//! (`faultline_abi::ring`), in every interleaving.
//!
//! The words and the barrier are the model's; a ring has two slots, requests are a count, and so is the eventfd. A wake-up is lost if the
//! engine waits although there is a doorbell or a request, and the eventfd was not written. The check must fail for a model without one of
//! the barriers or without the last check of the rings.

#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;

use faultline_abi::doorbell::{Doorbell, SQ};
use faultline_abi::ring::{self, RingMemory};
use faultline_daemon::engines::sleep::{Barrier, Flag, Sleeper, fall_asleep, wake};
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread::{self, JoinHandle};

struct Full;

impl Barrier for Full {
    fn barrier() {
        fence(SeqCst);
    }
}

struct Missing;

impl Barrier for Missing {
    fn barrier() {}
}

/// Parts that a model has: the barriers of a ringer, a requester and the engine, and the engine's last check of the rings.
trait Parts: 'static {
    type Ringer: Barrier;
    type Requester: Barrier;
    type Engine: Barrier;
    const LOOKS_AGAIN: bool = true;
}

#[derive(Default)]
struct Words {
    producer: AtomicU64,
    slots: [AtomicU64; 2],
    page_asleep: AtomicU32,
    asleep: Asleep,
    requests: AtomicU32,
    eventfd: AtomicU32,
}

#[derive(Default)]
struct Asleep(AtomicU32);

impl Flag for Asleep {
    fn is_set(&self) -> bool {
        self.0.load(Relaxed) != 0
    }
}

/// The page as a thread with this barrier sees it.
struct Page<'a, B>(&'a Words, std::marker::PhantomData<B>);

impl<B: Barrier> RingMemory for Page<'_, B> {
    const LAP_SHIFT: u32 = 1;

    fn producer(&self) -> u64 {
        self.0.producer.load(Acquire)
    }

    fn advance(&self, from: u64) {
        let producer = &self.0.producer;
        let _ = producer.compare_exchange(from, from + 1, Release, Relaxed);
    }

    fn slot(&self, index: u64) -> u64 {
        self.0.slots[index as usize % 2].load(Acquire)
    }

    fn fill(&self, index: u64, free: u64, bits: u64) -> bool {
        let slot = &self.0.slots[index as usize % 2];
        slot.compare_exchange(free, bits, Release, Relaxed).is_ok()
    }

    fn free(&self, index: u64, free: u64) {
        self.0.slots[index as usize % 2].store(free, Release);
    }

    fn asleep(&self) -> bool {
        self.0.page_asleep.load(Relaxed) != 0
    }

    fn barrier(&self) {
        B::barrier();
    }
}

fn page<B: Barrier>(words: &Words) -> Page<'_, B> {
    Page(words, std::marker::PhantomData)
}

fn request<P: Parts>(words: &Words) {
    words.requests.fetch_add(1, Release);
    wake::<P::Requester>(&words.asleep, || {
        words.eventfd.fetch_add(1, AcqRel);
    });
}

fn ring<P: Parts>(words: &Words, value: u32) {
    let bell = Doorbell {
        kind: SQ,
        object: 1,
        value,
    };
    let page = page::<P::Ringer>(words);
    ring::append(&page, bell).expect("the ring has room");
    if ring::must_kick(&page) {
        request::<P>(words);
    }
}

struct Engine<P> {
    words: Arc<Words>,
    others: RefCell<Vec<JoinHandle<()>>>,
    lost: std::sync::Arc<AtomicBool>,
    parts: std::marker::PhantomData<P>,
}

impl<P: Parts> Engine<P> {
    fn is_work_there(&self) -> bool {
        self.words.requests.load(Acquire) != 0
            || ring::peek(&page::<Full>(&self.words), 0).is_some()
    }
}

impl<P: Parts> Sleeper for Engine<P> {
    fn set_asleep(&self, asleep: bool) {
        self.words.asleep.0.store(u32::from(asleep), SeqCst);
        self.words.page_asleep.store(u32::from(asleep), SeqCst);
    }

    fn has_work(&self) -> bool {
        P::LOOKS_AGAIN && self.is_work_there()
    }

    /// Waits for the end of all other threads: after that, no event can wake the engine.
    fn wait(&self) {
        for other in self.others.take() {
            other.join().expect("no thread panics");
        }
        if self.is_work_there() && self.words.eventfd.load(Acquire) == 0 {
            self.lost.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
}

/// Returns true if an interleaving of the engine, ringers and requesters loses a wake-up.
fn loses_a_wakeup<P: Parts>(ringers: u32, requesters: u32) -> bool {
    let lost = std::sync::Arc::new(AtomicBool::new(false));
    let seen = lost.clone();
    let mut builder = loom::model::Builder::new();
    if ringers + requesters > 1 {
        builder.preemption_bound = Some(3);
    }
    builder.check(move || {
        let words = Arc::new(Words::default());
        let ringer = |value| {
            let words = words.clone();
            thread::spawn(move || ring::<P>(&words, value))
        };
        let requester = |_| {
            let words = words.clone();
            thread::spawn(move || request::<P>(&words))
        };
        let others = (0..ringers)
            .map(ringer)
            .chain((0..requesters).map(requester))
            .collect();
        let engine = Engine::<P> {
            words: words.clone(),
            others: RefCell::new(others),
            lost: seen.clone(),
            parts: std::marker::PhantomData,
        };
        fall_asleep::<P::Engine>(&engine);
        for other in engine.others.take() {
            other.join().expect("no thread panics");
        }
    });
    lost.load(std::sync::atomic::Ordering::SeqCst)
}

struct Sound;

impl Parts for Sound {
    type Ringer = Full;
    type Requester = Full;
    type Engine = Full;
}

#[test]
fn no_wakeup_is_lost() {
    assert!(!loses_a_wakeup::<Sound>(1, 0));
    assert!(!loses_a_wakeup::<Sound>(0, 1));
    assert!(!loses_a_wakeup::<Sound>(2, 0));
    assert!(!loses_a_wakeup::<Sound>(1, 1));
}

struct NoLastLook;

impl Parts for NoLastLook {
    type Ringer = Full;
    type Requester = Full;
    type Engine = Full;
    const LOOKS_AGAIN: bool = false;
}

#[test]
fn the_model_finds_a_missing_last_look() {
    assert!(loses_a_wakeup::<NoLastLook>(1, 0));
    assert!(loses_a_wakeup::<NoLastLook>(0, 1));
}

struct NoBarrierOfTheRinger;

impl Parts for NoBarrierOfTheRinger {
    type Ringer = Missing;
    type Requester = Full;
    type Engine = Full;
}

struct NoBarrierOfTheRequester;

impl Parts for NoBarrierOfTheRequester {
    type Ringer = Full;
    type Requester = Missing;
    type Engine = Full;
}

struct NoBarrierOfTheEngine;

impl Parts for NoBarrierOfTheEngine {
    type Ringer = Full;
    type Requester = Full;
    type Engine = Missing;
}

#[test]
fn the_model_finds_each_missing_barrier() {
    assert!(loses_a_wakeup::<NoBarrierOfTheRinger>(1, 0));
    assert!(loses_a_wakeup::<NoBarrierOfTheRequester>(0, 1));
    assert!(loses_a_wakeup::<NoBarrierOfTheEngine>(1, 0));
    assert!(loses_a_wakeup::<NoBarrierOfTheEngine>(0, 1));
}
