//! The layout of the memory of a connection, and values that follow from it.

use super::plan::{MESSAGE, PART, Request};

/// Receives of a connection, each with a slot for a message.
pub(super) const SLOTS: usize = 32;
/// Place of the counter of the responder, behind source, sink and slots.
pub(super) const COUNTER: u64 = PART * 2 + SLOTS as u64 * MESSAGE as u64;
/// Place of the results of the requester's atomics, 8 octets for each request.
pub(super) const RESULTS: u64 = COUNTER + 64;
/// Octets of a region.
pub(super) const LEN: u64 = COUNTER + 4096;

/// The value of an octet of a source.
pub(super) fn octet((flow, generation): (usize, usize), side: u64, offset: u64) -> u8 {
    let mixed = offset
        .wrapping_mul(0x9e37_79b9)
        .wrapping_add(side.wrapping_mul(77))
        .wrapping_add((generation as u64).wrapping_mul(59))
        .wrapping_add((flow as u64).wrapping_mul(131));
    (mixed ^ (mixed >> 13)).to_le_bytes()[0]
}

/// The offset in the sink of the octet at this offset of a source.
pub(super) fn sink(at: u32) -> u64 {
    PART.saturating_add(at.into())
}

/// The offset of the slot of a message.
pub(super) fn slot(index: usize) -> u64 {
    let before = (index as u64).saturating_mul(MESSAGE.into());
    PART.saturating_mul(2).saturating_add(before)
}

/// The counter after the first `count` requests.
pub(super) fn counter_after(requests: &[Request], count: usize) -> u64 {
    let mut counter = 0u64;
    for (index, request) in requests.iter().enumerate().take(count) {
        match *request {
            Request::FetchAdd(add) => counter = counter.wrapping_add(add.into()),
            Request::CompareSwap(true) => counter = swapped(index),
            _ => {}
        }
    }
    counter
}

/// The value that a compare-and-swap request writes.
fn swapped(index: usize) -> u64 {
    (index as u64)
        .wrapping_add(1)
        .wrapping_mul(0x0101_0101_0101_0101)
}

/// The operands of an atomic: addend or compare value, and swap value.
pub(super) fn operands(requests: &[Request], index: usize) -> (u64, u64) {
    let counter = counter_after(requests, index);
    match requests.get(index) {
        Some(Request::FetchAdd(add)) => (u64::from(*add), 0),
        Some(Request::CompareSwap(true)) => (counter, swapped(index)),
        Some(Request::CompareSwap(false)) => (!counter, swapped(index)),
        _ => (0, 0),
    }
}
