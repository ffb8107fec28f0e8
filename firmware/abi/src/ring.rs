//! The steps on a doorbell ring: how software appends, and how the device takes.
//!
//! Any number of threads append at once, of processes that may be stopped or killed between any two
//! instructions. None of them may hold up the others.
//!
//! # The slots
//!
//! Doorbell i, counted from zero in 64 bits, goes into slot `i % 256`. A slot holds one of
//!
//! - *free for i*: type 0, all 64 bits are the lap number `i >> 8` (56 bits, so they end below the type). A zeroed
//!   page is free for the first lap;
//! - *doorbell i*: type not 0, with the lap bit of i.
//!
//! Two steps change a slot. Software: *free for i* → *doorbell i*, by compare-and-exchange. The device, which takes
//! doorbells in order: *doorbell i* → *free for i + 256*, by a plain store, as nothing else changes a slot that
//! holds a doorbell. So a slot goes through its states in one order, none of them comes again for 2^64 doorbells,
//! and a compare-and-exchange succeeds only in the state that its thread has seen, however long ago that was.
//! Without the lap number in the free slot a thread that is late by a lap would store a doorbell that belongs to
//! the lap before: the device would not take it, and no one could store over it.
//!
//! # The hint
//!
//! `producer` tells software which slot is free. It is the truth about nothing: claim and store are the same
//! exchange, there is no claim without a doorbell. The thread that has stored doorbell i exchanges `producer` from
//! i to i + 1; if it is stopped before, the next thread finds at i a slot that is not free for i and makes that
//! exchange itself ([`append`] helps). `producer` moves from i to i + 1 only after doorbell i was stored, so no
//! slot below it has ever been left out: the device, which waits for doorbell i before it looks at i + 1, waits
//! at no hole.
//!
//! What a thread at i = `producer` finds in the slot:
//!
//! | Slot | Meaning | Step |
//! |---|---|---|
//! | free for i | | exchange it for the doorbell |
//! | a doorbell with the other lap bit | doorbell i - 256 has not been taken: full, if `producer` is i still | report |
//! | anything else | doorbell i was stored, and perhaps taken already | exchange `producer` for i + 1, begin again |
//!
//! A late thread, whose i is not `producer` any more, fails in each exchange. An exchange fails only because that
//! of another thread succeeded, so one of any number of threads always makes progress.
//!
//! # The device
//!
//! It takes doorbell i when the slot holds a doorbell with the lap bit of i; one load tells. It never reads
//! `producer`. Garbage in a ring delays or loses doorbells of the page's own context; [`append`] gives up after
//! [`TRIES`] rounds, so that garbage does not keep it either.

use crate::doorbell::{self, Doorbell};

/// Rounds after which [`append`] takes the ring for full. More than there are slots, each of which may need help.
pub const TRIES: u32 = 4 * doorbell::RING_ENTRIES as u32;

/// The words of a doorbell page, wherever they are.
pub trait RingMemory {
    /// log2 of the number of slots. Only models have fewer than a page.
    const LAP_SHIFT: u32 = doorbell::LAP_SHIFT as u32;

    /// Loads `producer`.
    fn producer(&self) -> u64;

    /// Exchanges `producer` for `from + 1` if it is `from`.
    fn advance(&self, from: u64);

    /// Loads the slot of the doorbell with this index; Acquire.
    fn slot(&self, index: u64) -> u64;

    /// Exchanges the slot of the doorbell with this index for `bits` if it is `free`; Release. Returns true if it was.
    fn fill(&self, index: u64, free: u64, bits: u64) -> bool;

    /// Stores into the slot of the doorbell with this index; Release. For the device.
    fn free(&self, index: u64, free: u64);

    /// Loads `asleep`.
    fn asleep(&self) -> bool;

    /// A full barrier: no later load is done before the stores ahead of it are visible.
    fn barrier(&self);
}

/// A ring stays full for as long as the device takes no doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What a slot is to a thread that wants to append doorbell i.
enum Slot {
    Free,
    Untaken,
    Passed,
}

fn free_mark<R: RingMemory>(index: u64) -> u64 {
    index >> R::LAP_SHIFT
}

fn look<R: RingMemory>(ring: &R, index: u64) -> Slot {
    let bits = ring.slot(index);
    if bits == free_mark::<R>(index) {
        Slot::Free
    } else if doorbell::is_doorbell(bits) && !is_filled::<R>(bits, index) {
        Slot::Untaken
    } else {
        Slot::Passed
    }
}

/// Appends a doorbell, whose type is not zero. Afterwards the ringer must ask [`must_kick`].
///
/// # Errors
///
/// [`Full`]: the doorbell was not stored. Wait and try again, or write it to the kick page.
#[inline]
pub fn append<R: RingMemory>(ring: &R, bell: Doorbell) -> Result<(), Full> {
    debug_assert!(
        doorbell::is_doorbell(bell.to_bits()),
        "a doorbell of type 0"
    );
    for _ in 0..TRIES {
        let index = ring.producer();
        match look(ring, index) {
            Slot::Free => {
                let bits = bell.to_slot(index, R::LAP_SHIFT);
                if ring.fill(index, free_mark::<R>(index), bits) {
                    ring.advance(index);
                    return Ok(());
                }
            }
            // Or a doorbell of the next lap, if `index` is old.
            Slot::Untaken if ring.producer() == index => return Err(Full),
            Slot::Untaken => {}
            Slot::Passed => ring.advance(index),
        }
    }
    Err(Full)
}

/// Whether the doorbell that has just been appended must be written to the kick page too.
#[inline]
pub fn must_kick<R: RingMemory>(ring: &R) -> bool {
    // The device sets `asleep`, executes a barrier, and looks at the ring once more.
    ring.barrier();
    ring.asleep()
}

/// Index behind the last doorbell that was stored, those included whose thread has not come to `producer`. They have
/// all been handled when `consumer` is there.
pub fn end<R: RingMemory>(ring: &R) -> u64 {
    for _ in 0..TRIES {
        let index = ring.producer();
        match look(ring, index) {
            Slot::Passed => ring.advance(index),
            Slot::Free | Slot::Untaken => return index,
        }
    }
    ring.producer()
}

/// Whether the contents of a slot are the doorbell with this index.
#[inline]
fn is_filled<R: RingMemory>(bits: u64, index: u64) -> bool {
    doorbell::is_doorbell(bits)
        && bits >> doorbell::PHASE_SHIFT == doorbell::lap_bit(index, R::LAP_SHIFT)
}

/// The device: whether the doorbell with this index is there.
#[inline]
pub fn is_there<R: RingMemory>(ring: &R, index: u64) -> bool {
    is_filled::<R>(ring.slot(index), index)
}

/// The device: takes the doorbell with this index if it is there, and makes its slot free for the next lap.
#[inline]
pub fn take<R: RingMemory>(ring: &R, index: u64) -> Option<Doorbell> {
    let bits = ring.slot(index);
    if !is_filled::<R>(bits, index) {
        return None;
    }
    let next = index.wrapping_add(1 << R::LAP_SHIFT);
    ring.free(index, free_mark::<R>(next));
    Some(Doorbell::from_bits(bits))
}
