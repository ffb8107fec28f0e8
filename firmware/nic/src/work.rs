//! The cost of operations, by which a NIC determines the end of a turn.
//!
//! The unit is the time to write an entry of a page table, some nanoseconds. The values are rough measurements. It
//! matters only that no operation which a guest can request without limit is free.

use std::cell::Cell;

/// A completion.
pub(crate) const COMPLETION: u64 = 32;
/// An asynchronous event. Its cost is more than the time to write it, so that the driver has time to read events: the
/// number of those that wait is limited.
pub(crate) const EVENT: u64 = 256;
/// A request without packets, or a poll of a queue pair without frames to send.
pub(crate) const OPERATION: u64 = 32;
/// A doorbell, an operation on a tag list, a flow that a frame is compared with.
pub(crate) const LOOK: u64 = 8;
/// A node of a page table: 512 entries are written, in memory that the processor has not seen lately.
pub(crate) const NODE: u64 = 128;
/// A look-up in a page table.
pub(crate) const PAGE: u64 = 4;
/// A node of a page table is freed, or a window of a queue pair.
pub(crate) const FREE: u64 = 32;
/// A command, without the cost of the objects that it goes through.
pub(crate) const COMMAND: u64 = 128;
/// A frame for one receiver, without its bytes.
const FRAME: u64 = 64;
/// Bytes that are copied in one unit.
const BYTES: usize = 16;
/// The cost of one turn: about a millisecond.
pub const TURN: u64 = 1 << 18;

/// Counts work in places that the NIC's own count does not reach.
#[derive(Debug, Default)]
pub(crate) struct Meter(Cell<u64>);

impl Meter {
    pub(crate) fn add(&self, work: u64) {
        self.0.set(self.0.get().wrapping_add(work));
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }
}

/// Frames for one receiver, with `bytes` bytes in all.
pub(crate) fn of_frames(count: u32, bytes: usize) -> u64 {
    let bytes = (bytes / BYTES) as u64;
    u64::from(count).wrapping_mul(FRAME).wrapping_add(bytes)
}

/// Counts steps that have really been taken, so that tests can compare them with the work that was charged for them: an
/// entry that is looked at or written, an object that is looked up, an access to memory. Nothing in a release build.
#[inline(always)]
pub fn count_steps(count: u64) {
    #[cfg(debug_assertions)]
    STEPS.with(|steps| steps.set(steps.get().wrapping_add(count)));
    #[cfg(not(debug_assertions))]
    let _ = count;
}

#[cfg(debug_assertions)]
std::thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Steps that all NICs of this thread have taken. `None` in a release build, which does not count.
pub fn steps() -> Option<u64> {
    #[cfg(debug_assertions)]
    let steps = Some(STEPS.with(Cell::get));
    #[cfg(not(debug_assertions))]
    let steps = None;
    steps
}
