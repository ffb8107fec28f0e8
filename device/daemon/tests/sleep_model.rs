//! Model check of the sleep and wake protocol of doorbell pages (`engine.rs`, "Sleeping"; `abi/doorbell.rs`).
//!
//! The model has the words that matter and every interleaving of them: a ring of one slot per producer, the
//! `asleep` word, and the kick, which is the eventfd's counter. A doorbell that the engine neither finds in its
//! last look nor is woken for is a lost wake-up; a model without the last look, or without the producer's
//! barrier, must be caught.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread;

struct Page {
    asleep: AtomicU32,
    slots: [AtomicU64; 2],
    kicks: AtomicU32,
}

#[derive(Clone, Copy)]
struct Protocol {
    engine_looks_again: bool,
    producer_fences: bool,
}

fn ring(page: &Page, slot: usize, protocol: Protocol) {
    page.slots[slot].store(1, Release);
    if protocol.producer_fences {
        fence(SeqCst);
    }
    if page.asleep.load(Relaxed) != 0 {
        page.kicks.fetch_add(1, SeqCst);
    }
}

fn pending(page: &Page) -> bool {
    page.slots.iter().any(|slot| slot.load(Acquire) != 0)
}

/// One attempt of the engine to sleep. Gives whether it sleeps.
fn falls_asleep(page: &Page, protocol: Protocol) -> bool {
    page.asleep.store(1, SeqCst);
    fence(SeqCst);
    !(protocol.engine_looks_again && pending(page))
}

/// Whether some interleaving leaves the engine asleep with a doorbell that nobody kicks for.
fn loses_a_wakeup(producers: usize, protocol: Protocol) -> bool {
    let lost = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = lost.clone();
    loom::model(move || {
        let page = Arc::new(Page {
            asleep: AtomicU32::new(0),
            slots: [AtomicU64::new(0), AtomicU64::new(0)],
            kicks: AtomicU32::new(0),
        });
        let threads: Vec<_> = (0..producers)
            .map(|slot| {
                let page = page.clone();
                thread::spawn(move || ring(&page, slot, protocol))
            })
            .collect();
        let asleep = falls_asleep(&page, protocol);
        for thread in threads {
            thread.join().unwrap();
        }
        if asleep && pending(&page) && page.kicks.load(SeqCst) == 0 {
            seen.store(true, SeqCst);
        }
    });
    lost.load(SeqCst)
}

const SOUND: Protocol = Protocol {
    engine_looks_again: true,
    producer_fences: true,
};

#[test]
fn no_wakeup_is_lost() {
    assert!(!loses_a_wakeup(1, SOUND));
    assert!(!loses_a_wakeup(2, SOUND));
}

#[test]
fn the_model_finds_a_missing_last_look() {
    let broken = Protocol {
        engine_looks_again: false,
        ..SOUND
    };
    assert!(loses_a_wakeup(1, broken));
}

#[test]
fn the_model_finds_a_missing_barrier() {
    let broken = Protocol {
        producer_fences: false,
        ..SOUND
    };
    assert!(loses_a_wakeup(1, broken));
}
