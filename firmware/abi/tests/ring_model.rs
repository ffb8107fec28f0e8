//! Model check of the steps on a doorbell ring: all interleavings of some threads that append and the device that
//! takes, on the code that harness and device run (`faultline_abi::ring`), in a ring of two slots.
//!
//! A thread may stop for ever at any of its accesses to the ring: doorbells of other threads must still reach the
//! device. Four broken schemes show that the check notices: a slot that is claimed before the doorbell is stored, a
//! free slot without its lap number, threads that do not help, and a device that leaves a slot as an exchange has
//! written it back.

#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64 as Count, Ordering::SeqCst as Always};

use faultline_abi::doorbell::{Doorbell, SQ};
use faultline_abi::ring::{self, Full, RingMemory};
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// `EXCHANGE`: loads and stores are exchanges too. loom then tries all orders of the accesses, which it does not for a
/// store behind two loads, but each sees the newest value. Else the accesses are as in a page, and loads may see old
/// values.
#[derive(Default)]
struct Words<const EXCHANGE: bool> {
    producer: AtomicU64,
    slots: [AtomicU64; 2],
}

impl<const EXCHANGE: bool> Words<EXCHANGE> {
    fn word(&self, index: u64) -> &AtomicU64 {
        &self.slots[index as usize % 2]
    }

    fn load(word: &AtomicU64) -> u64 {
        match EXCHANGE {
            true => word.fetch_or(0, AcqRel),
            false => word.load(Acquire),
        }
    }
}

impl<const EXCHANGE: bool> RingMemory for Words<EXCHANGE> {
    const LAP_SHIFT: u32 = 1;

    fn producer(&self) -> u64 {
        Self::load(&self.producer)
    }

    fn advance(&self, from: u64) {
        let producer = &self.producer;
        let _ = producer.compare_exchange(from, from + 1, AcqRel, Relaxed);
    }

    fn slot(&self, index: u64) -> u64 {
        Self::load(self.word(index))
    }

    fn fill(&self, index: u64, free: u64, bits: u64) -> bool {
        let slot = self.word(index);
        slot.compare_exchange(free, bits, AcqRel, Relaxed).is_ok()
    }

    fn free(&self, index: u64, free: u64) {
        match EXCHANGE {
            true => {
                self.word(index).swap(free, AcqRel);
            }
            false => self.word(index).store(free, Release),
        }
    }

    fn asleep(&self) -> bool {
        false
    }

    fn barrier(&self) {
        fence(SeqCst);
    }
}

/// The ring to which threads append, and the steps of an append.
trait Scheme: Send + Sync + Default + 'static {
    /// How often a thread loses its turn before it is through. Three find no more in most schemes, and take five times as long.
    const PREEMPTIONS: usize = 2;

    fn append(&self, steps: &Steps, value: u32) -> Result<(), Full>;
    fn take(&self, index: u64) -> Option<u32>;
}

/// How many accesses a thread makes before it stops for ever.
struct Steps(Cell<u32>);

impl Steps {
    fn step(&self) {
        match self.0.get() {
            0 => resume_unwind(Box::new(())),
            left => self.0.set(left - 1),
        }
    }
}

/// A ring as a thread sees it that stops after some accesses.
struct Mortal<'a, R>(&'a R, &'a Steps);

impl<R: RingMemory> RingMemory for Mortal<'_, R> {
    const LAP_SHIFT: u32 = R::LAP_SHIFT;

    fn producer(&self) -> u64 {
        self.1.step();
        self.0.producer()
    }

    fn advance(&self, from: u64) {
        self.1.step();
        self.0.advance(from);
    }

    fn slot(&self, index: u64) -> u64 {
        self.1.step();
        self.0.slot(index)
    }

    fn fill(&self, index: u64, free: u64, bits: u64) -> bool {
        self.1.step();
        self.0.fill(index, free, bits)
    }

    fn free(&self, index: u64, free: u64) {
        self.0.free(index, free);
    }

    fn asleep(&self) -> bool {
        self.0.asleep()
    }

    fn barrier(&self) {
        self.0.barrier();
    }
}

const fn bell(value: u32) -> Doorbell {
    Doorbell {
        kind: SQ,
        object: 1,
        value,
    }
}

/// The real steps.
impl<const EXCHANGE: bool> Scheme for Words<EXCHANGE> {
    fn append(&self, steps: &Steps, value: u32) -> Result<(), Full> {
        ring::append(&Mortal(self, steps), bell(value))
    }

    fn take(&self, index: u64) -> Option<u32> {
        ring::take(self, index).map(|bell| bell.value)
    }
}

/// A slot is claimed, then filled.
#[derive(Default)]
struct ClaimedFirst {
    words: Words<true>,
    consumer: AtomicU64,
}

impl Scheme for ClaimedFirst {
    fn append(&self, steps: &Steps, value: u32) -> Result<(), Full> {
        loop {
            steps.step();
            let index = self.words.producer();
            if index - self.consumer.fetch_or(0, AcqRel) >= 2 {
                return Err(Full);
            }
            steps.step();
            let claim = &self.words.producer;
            if claim
                .compare_exchange(index, index + 1, AcqRel, Relaxed)
                .is_ok()
            {
                steps.step();
                let bits = bell(value).to_slot(index, Words::<true>::LAP_SHIFT);
                self.words.word(index).swap(bits, AcqRel);
                return Ok(());
            }
        }
    }

    fn take(&self, index: u64) -> Option<u32> {
        let bell = ring::peek(&self.words, index)?;
        self.consumer.swap(index + 1, AcqRel);
        Some(bell.value)
    }
}

/// The real steps on a free slot that does not say for which lap.
#[derive(Default)]
struct WithoutLap(Words<true>);

impl RingMemory for WithoutLap {
    const LAP_SHIFT: u32 = 1;

    fn producer(&self) -> u64 {
        self.0.producer()
    }

    fn advance(&self, from: u64) {
        self.0.advance(from);
    }

    fn slot(&self, index: u64) -> u64 {
        match self.0.slot(index) {
            // Free, for whatever the reader wants.
            0 => index >> 1,
            bits => bits,
        }
    }

    fn fill(&self, index: u64, _: u64, bits: u64) -> bool {
        self.0.fill(index, 0, bits)
    }

    fn free(&self, index: u64, _: u64) {
        self.0.free(index, 0);
    }

    fn asleep(&self) -> bool {
        self.0.asleep()
    }

    fn barrier(&self) {
        self.0.barrier();
    }
}

impl Scheme for WithoutLap {
    fn append(&self, steps: &Steps, value: u32) -> Result<(), Full> {
        ring::append(&Mortal(self, steps), bell(value))
    }

    fn take(&self, index: u64) -> Option<u32> {
        ring::take(self, index).map(|bell| bell.value)
    }
}

/// The real steps, but a thread advances `producer` only behind its own doorbells.
#[derive(Default)]
struct WithoutHelp(Words<true>);

impl Scheme for WithoutHelp {
    fn append(&self, steps: &Steps, value: u32) -> Result<(), Full> {
        for _ in 0..4 {
            steps.step();
            let index = self.0.producer();
            let bits = bell(value).to_slot(index, Words::<true>::LAP_SHIFT);
            steps.step();
            if self.0.fill(index, index >> Words::<true>::LAP_SHIFT, bits) {
                steps.step();
                self.0.advance(index);
                return Ok(());
            }
        }
        Err(Full)
    }

    fn take(&self, index: u64) -> Option<u32> {
        ring::take(&self.0, index).map(|bell| bell.value)
    }
}

/// The real steps, with exchanges as a guest with one processor may execute them: the threads take turns, but for the
/// device an exchange is a load and a store. One that fails stores what it has loaded. `FREES_AGAIN`: the device is the real
/// one.
#[derive(Default)]
struct WritesBack<const FREES_AGAIN: bool> {
    words: Words<true>,
    processor: Mutex<()>,
}

impl<const FREES_AGAIN: bool> RingMemory for WritesBack<FREES_AGAIN> {
    const LAP_SHIFT: u32 = 1;

    fn producer(&self) -> u64 {
        self.words.producer()
    }

    fn advance(&self, from: u64) {
        // The device does not see it.
        self.words.advance(from);
    }

    fn slot(&self, index: u64) -> u64 {
        self.words.slot(index)
    }

    fn fill(&self, index: u64, free: u64, bits: u64) -> bool {
        let _turn = self.processor.lock().unwrap();
        let slot = self.words.word(index);
        let old = slot.fetch_or(0, AcqRel);
        let is_free = old == free;
        slot.swap(if is_free { bits } else { old }, AcqRel);
        is_free
    }

    fn free(&self, index: u64, free: u64) {
        self.words.free(index, free);
    }

    fn asleep(&self) -> bool {
        false
    }

    fn barrier(&self) {
        fence(SeqCst);
    }
}

impl<const FREES_AGAIN: bool> Scheme for WritesBack<FREES_AGAIN> {
    /// The device, between look and exchange, and within the exchange.
    const PREEMPTIONS: usize = 3;

    fn append(&self, steps: &Steps, value: u32) -> Result<(), Full> {
        ring::append(&Mortal(self, steps), bell(value))
    }

    fn take(&self, index: u64) -> Option<u32> {
        if !FREES_AGAIN {
            ring::peek(self, index)?;
        }
        ring::take(self, index).map(|bell| bell.value)
    }
}

/// Threads: how many doorbells each rings, and after how many accesses it stops for ever.
type Plan = &'static [(u32, u32)];

const NEVER: u32 = u32::MAX;

/// Whether in some interleaving a doorbell whose `append` has returned does not arrive, comes twice or out of order,
/// or a thread finds a ring full from which the device has taken everything. The device takes `takes` times while
/// the threads append, then all there is. `prelude` doorbells have gone through the ring before.
fn fails<S: Scheme>(plan: Plan, takes: usize, prelude: u32) -> bool {
    let failed = std::sync::Arc::new(AtomicBool::new(false));
    let rounds = std::sync::Arc::new(Count::new(0));
    let (seen, counted) = (failed.clone(), rounds.clone());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(S::PREEMPTIONS);
    builder.check(move || {
        counted.fetch_add(1, Always);
        let ring = Arc::new(S::default());
        let mut index = 0;
        for _ in 0..prelude {
            let steps = Steps(Cell::new(NEVER));
            assert_eq!(ring.append(&steps, 99), Ok(()));
            assert_eq!(ring.take(index), Some(99));
            index += 1;
        }
        let threads: Vec<_> = (0u32..)
            .zip(plan)
            .map(|(number, &(bells, steps))| {
                let ring = ring.clone();
                thread::spawn(move || {
                    let steps = Steps(Cell::new(steps));
                    let rung = Cell::new(0);
                    // Stopped threads have rung the doorbells for which `append` has returned.
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        for i in 0..bells {
                            if ring.append(&steps, number * 16 + i).is_err() {
                                return;
                            }
                            rung.set(i + 1);
                        }
                    }));
                    rung.get()
                })
            })
            .collect();
        let mut taken: Vec<u32> = Vec::new();
        for _ in 0..takes {
            if let Some(value) = ring.take(index) {
                taken.push(value);
                index += 1;
            }
        }
        let rung: Vec<u32> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let drain = |index: &mut u64, taken: &mut Vec<u32>| {
            while let Some(value) = ring.take(*index) {
                taken.push(value);
                *index += 1;
            }
        };
        drain(&mut index, &mut taken);
        // All that is stopped is stopped; there is room now.
        let last = ring.append(&Steps(Cell::new(NEVER)), 1000);
        drain(&mut index, &mut taken);
        let arrived = |number: u32| {
            let of: Vec<u32> = taken.iter().copied().filter(|v| v / 16 == number).collect();
            let expected: Vec<u32> = (0..of.len() as u32).map(|i| number * 16 + i).collect();
            of == expected && of.len() as u32 >= rung[number as usize]
        };
        let good = (0..plan.len() as u32).all(arrived);
        if !good || last.is_err() || taken.last() != Some(&1000) {
            seen.store(true, Always);
        }
    });
    println!("{plan:?}: {} interleavings", rounds.load(Always));
    failed.load(Always)
}

fn holds(plan: Plan, takes: usize, prelude: u32) {
    assert!(!fails::<Words<true>>(plan, takes, prelude), "{plan:?}");
    assert!(!fails::<Words<false>>(plan, takes, prelude), "{plan:?}");
}

#[test]
fn every_doorbell_arrives_once_and_in_order() {
    holds(&[(4, NEVER)], 3, 0);
    holds(&[(1, NEVER), (1, NEVER)], 2, 0);
    holds(&[(2, NEVER), (1, NEVER)], 3, 1);
    holds(&[(2, NEVER), (2, NEVER)], 2, 0);
}

/// A thread makes up to four accesses for a doorbell, to load the index, look, fill and advance, and more when it
/// helps.
#[test]
fn a_thread_that_stops_for_ever_holds_up_no_other() {
    const STOPS: [Plan; 6] = [
        &[(1, 0), (2, NEVER)],
        &[(1, 1), (2, NEVER)],
        &[(1, 2), (2, NEVER)],
        &[(1, 3), (2, NEVER)],
        &[(1, 4), (2, NEVER)],
        &[(1, 5), (2, NEVER)],
    ];
    for plan in STOPS {
        holds(plan, 2, 0);
        holds(plan, 2, 1);
    }
    // Two that stop, one behind the other.
    holds(&[(1, 3), (1, 3), (1, NEVER)], 1, 0);
}

/// Those of `holds` that have two threads: one that is alone fails in no exchange.
#[test]
fn exchanges_need_not_be_atomic_for_the_device() {
    const PLANS: [(Plan, usize, u32); 4] = [
        (&[(1, NEVER), (1, NEVER)], 2, 0),
        (&[(2, NEVER), (1, NEVER)], 3, 1),
        (&[(1, 3), (2, NEVER)], 2, 0),
        (&[(1, 3), (2, NEVER)], 2, 1),
    ];
    for (plan, takes, prelude) in PLANS {
        let fails = fails::<WritesBack<true>>(plan, takes, prelude);
        assert!(!fails, "{plan:?}");
    }
}

#[test]
fn the_model_finds_a_slot_that_was_written_back() {
    assert!(fails::<WritesBack<false>>(&[(1, NEVER), (1, NEVER)], 2, 0));
}

#[test]
fn the_model_finds_a_claim_before_the_store() {
    assert!(!fails::<ClaimedFirst>(&[(1, NEVER), (1, NEVER)], 2, 0));
    assert!(fails::<ClaimedFirst>(&[(1, 2), (1, NEVER)], 2, 0));
}

#[test]
fn the_model_finds_a_missing_lap_number() {
    assert!(fails::<WithoutLap>(&[(1, NEVER), (2, NEVER)], 3, 0));
}

#[test]
fn the_model_finds_missing_help() {
    assert!(fails::<WithoutHelp>(&[(1, 2), (1, NEVER)], 2, 0));
}

#[test]
fn the_device_finds_doorbells_that_it_has_not_taken() {
    loom::model(|| {
        let words = Words::<false>::default();
        let held = |next| [1, 2, 3].map(|value| ring::holds(&words, next, bell(value)));
        assert_eq!(held(0), [false, false, false]);
        assert!(!ring::must_take(&words, 0));
        ring::append(&words, bell(1)).unwrap();
        ring::append(&words, bell(2)).unwrap();
        assert_eq!(held(0), [true, true, false]);
        // A doorbell of another lap is to be freed.
        assert!([0, 1, 2].iter().all(|next| ring::must_take(&words, *next)));
        assert_eq!(ring::take(&words, 0), Some(bell(1)));
        // In the slot of the first one, of the next lap.
        ring::append(&words, bell(3)).unwrap();
        assert_eq!(held(1), [false, true, true]);
        assert_eq!(ring::take(&words, 1), Some(bell(2)));
        assert_eq!(held(2), [false, false, true]);
    });
}

/// Garbage in a ring ends in an error, not in a loop.
#[test]
fn garbage_does_not_keep_a_thread() {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20 * ring::TRIES as usize;
    builder.check(|| {
        let words = Words::<false>::default();
        for word in &words.slots {
            word.store(0xff_ffff, Relaxed);
        }
        assert_eq!(ring::append(&words, bell(1)), Err(Full));
        ring::end(&words);
    });
}
