//! What things cost: how a NIC sees that others must have their turn.
//!
//! The unit is the time that an entry of a page table takes to write, some nanoseconds. The figures are what was
//! measured, roughly; what matters is that nothing which a guest can ask for without end is free.

/// A completion.
pub(crate) const COMPLETION: u64 = 32;
/// An asynchronous event. More than it takes to write: the driver must have time to read them, for there is an end to
/// how many may wait.
pub(crate) const EVENT: u64 = 256;
/// A request without packets, or a look at a queue pair that has nothing to send.
pub(crate) const OPERATION: u64 = 32;
/// A doorbell, an operation on a tag list, a flow that a frame is compared with.
pub(crate) const LOOK: u64 = 8;
/// A frame for one receiver, without its bytes.
const FRAME: u64 = 64;
/// Bytes that are copied in one unit.
const BYTES: usize = 16;
/// As much as one may do before others have their turn: about a millisecond.
pub const TURN: u64 = 1 << 18;

/// Frames for one receiver, with so many bytes in all.
pub(crate) fn of_frames(count: u32, bytes: usize) -> u64 {
    u64::from(count) * FRAME + (bytes / BYTES) as u64
}
