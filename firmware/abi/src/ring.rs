//! The doorbell ring: a lock-free queue from many software threads to the device.
//!
//! Any number of threads append concurrently. Their processes may be stopped or killed between any two
//! instructions, which must not block the other threads.
//!
//! # The slots
//!
//! Doorbell i, counted from zero in 64 bits, is stored in slot `i % 256`. A slot is in one of two states:
//!
//! - *free for i*: type 0, all 64 bits are the lap number `i >> 8` (56 bits, so they end below the type). A zeroed
//!   page is free for the first lap;
//! - *doorbell i*: type not 0, with the lap bit of i.
//!
//! There are two transitions. Software: *free for i* → *doorbell i*, by compare-and-exchange. The device, which takes
//! doorbells in order: *doorbell i* → *free for i + 256*, by a plain store, because only the device changes a slot that
//! holds a doorbell. So the states of a slot have one order, no state repeats within 2^64 doorbells, and a
//! compare-and-exchange succeeds only if the slot is still in the state that the thread has read.
//! Without the lap number in a free slot, a thread that is delayed by a lap would store a doorbell with the lap bit of
//! the previous lap. The device would not take it, and no thread could replace it.
//!
//! # The hint
//!
//! `producer` is a hint that tells software which slot is free. It reserves no slot: reserving a slot and storing the
//! doorbell are the same exchange. The thread that has stored doorbell i exchanges `producer` from i to i + 1. If it is
//! stopped before that, the next thread finds that slot i is not free for i and advances `producer` itself ([`append`]
//! helps). `producer` changes from i to i + 1 only after doorbell i was stored, so every slot below it has been filled:
//! the device, which waits for doorbell i before it reads i + 1, never waits at an empty slot that software has passed.
//!
//! The cases for a thread at i = `producer`, by the contents of the slot:
//!
//! | Slot | Meaning | Step |
//! |---|---|---|
//! | free for i | no doorbell i yet | exchange it for the doorbell |
//! | a doorbell with the other lap bit | doorbell i - 256 has not been taken: the ring is full, if `producer` is still i | return [`Full`] |
//! | anything else | doorbell i was stored, and possibly taken | exchange `producer` for i + 1, start again |
//!
//! A delayed thread, whose i is less than `producer`, fails in each exchange. An exchange fails only if that of another
//! thread succeeded, so at least one thread always makes progress.
//!
//! # Exchanges that are atomic for software only
//!
//! The exchanges must be atomic for the threads that append. They need not be atomic for the device, and on a guest with
//! one virtual CPU they often are not: Linux removes LOCK prefixes of the kernel then, and QEMU's TCG executes LOCKed
//! instructions as a plain load and a plain store, unless the guest can have several virtual CPUs. On x86, a
//! compare-and-exchange that fails stores the value that it has loaded.
//!
//! - One that succeeds has found the slot free. The device does not change a free slot, so the exchange is as good as an
//!   atomic one. `producer` is never changed by the device.
//! - One that fails may store an old value. The device changes the slot between load and store only if the value is
//!   doorbell i, so *free for i + 256* becomes doorbell i again. For software the ring is full at this slot then.
//!   When the device arrives at i + 256, it finds a doorbell with the other lap bit where it has left a free slot itself. So
//!   this doorbell was taken before, and the device frees the slot once more ([`take`]). No other thread has changed the
//!   slot meanwhile, because software changes free slots only.
//!
//! # The device
//!
//! It takes doorbell i when the slot holds a doorbell with the lap bit of i, which it sees with one load. If the slot holds
//! a doorbell with the other lap bit, it frees the slot. It never reads `producer`. Invalid contents of a ring delay or lose doorbells of the page's own context; [`append`] ends after
//! [`TRIES`] rounds, so that invalid contents cannot keep it in a loop.

use crate::doorbell::{self, Doorbell};

/// Rounds after which [`append`] reports the ring as full. More than the number of slots, each of which may need help.
pub const TRIES: u32 = ((4 * doorbell::RING_ENTRIES) & 0xffff_ffff) as u32;

/// Access to the words of a doorbell page.
pub trait RingMemory {
    /// log2 of the number of slots. Only model checks have fewer slots than a page.
    const LAP_SHIFT: u32 = (doorbell::LAP_SHIFT & 63) as u32;

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

    /// A full barrier: no later load is done before the stores ahead of it are visible, also to a device that is another
    /// process. On x86 software in a guest needs MFENCE: LOCKed instructions need not be a barrier there (see above).
    fn barrier(&self);
}

/// The ring has no free slot. It stays full until the device takes a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// State of a slot for a thread that appends doorbell i.
enum Slot {
    /// Free for doorbell i.
    Free,
    /// Holds a doorbell of the previous lap, which the device has not taken.
    Untaken,
    /// Doorbell i was stored by another thread.
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

/// Appends a doorbell, whose type is not zero. The caller must call [`must_kick`] afterwards.
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

/// Returns true if the doorbell that was just appended must also be written to the kick page.
#[inline]
pub fn must_kick<R: RingMemory>(ring: &R) -> bool {
    // The device sets `asleep`, executes a barrier, and reads the ring once more.
    ring.barrier();
    ring.asleep()
}

/// Index one past the last doorbell that was stored, including those whose thread has not advanced `producer` yet. All of
/// them have been handled when `consumer` reaches it.
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

/// Returns true if the contents of a slot are the doorbell with this index.
#[inline]
fn is_filled<R: RingMemory>(bits: u64, index: u64) -> bool {
    doorbell::is_doorbell(bits)
        && bits >> doorbell::PHASE_SHIFT == doorbell::lap_bit(index, R::LAP_SHIFT)
}

/// Device side: the doorbell with this index, if it is in its slot.
#[inline]
pub fn peek<R: RingMemory>(ring: &R, index: u64) -> Option<Doorbell> {
    let bits = ring.slot(index);
    is_filled::<R>(bits, index).then(|| Doorbell::from_bits(bits))
}

/// Device side: true if [`take`] has something to do for this index: to take the doorbell, or to free the slot again.
#[inline]
pub fn must_take<R: RingMemory>(ring: &R, index: u64) -> bool {
    doorbell::is_doorbell(ring.slot(index))
}

/// Device side: takes the doorbell with this index if it is in its slot, and frees the slot for the next lap. A doorbell of
/// the previous lap, which was taken before, was written back by an exchange that has failed: its slot is freed again.
#[inline]
pub fn take<R: RingMemory>(ring: &R, index: u64) -> Option<Doorbell> {
    let bits = ring.slot(index);
    if is_filled::<R>(bits, index) {
        let next = index.wrapping_add(1 << R::LAP_SHIFT);
        ring.free(index, free_mark::<R>(next));
        return Some(Doorbell::from_bits(bits));
    }
    if doorbell::is_doorbell(bits) {
        ring.free(index, free_mark::<R>(index));
    }
    None
}

/// Device side: returns true if a doorbell is in the ring and was not taken. `next` is the index of the doorbell that is taken next.
pub fn holds<R: RingMemory>(ring: &R, next: u64, bell: Doorbell) -> bool {
    (0..1 << R::LAP_SHIFT)
        .map(|ahead| next.wrapping_add(ahead))
        .map_while(|index| {
            let bits = ring.slot(index);
            is_filled::<R>(bits, index).then(|| Doorbell::from_bits(bits))
        })
        .any(|held| held == bell)
}
