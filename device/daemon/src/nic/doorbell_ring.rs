//! The doorbell ring of one page in shared memory: [`faultline_abi::ring`] has the algorithm.

use std::mem::offset_of;

use faultline_abi::doorbell::{self, DoorbellPage};
use faultline_abi::ring::RingMemory;
use faultline_memory::{Page, SharedPages};

const ALIVE: usize = offset_of!(DoorbellPage, alive);
const ASLEEP: usize = offset_of!(DoorbellPage, asleep);
const PRODUCER: usize = offset_of!(DoorbellPage, producer);
const RING: usize = offset_of!(DoorbellPage, ring);

/// The ring of a doorbell page, for the device and for a user-space driver.
#[derive(Clone, Copy, Debug)]
pub struct DoorbellRing<'a>(pub Page<'a>);

#[expect(
    clippy::arithmetic_side_effects,
    reason = "an offset in the page, as DoorbellPage has RING_ENTRIES entries"
)]
pub(crate) const fn slot(index: u64) -> usize {
    RING + (index % doorbell::RING_ENTRIES) as usize * 8
}

impl RingMemory for DoorbellRing<'_> {
    #[inline(always)]
    fn producer(&self) -> u64 {
        self.0.load_u64(PRODUCER)
    }

    #[inline(always)]
    fn advance(&self, from: u64) {
        self.0
            .compare_exchange_u64(PRODUCER, from, from.wrapping_add(1));
    }

    #[inline(always)]
    fn slot(&self, index: u64) -> u64 {
        self.0.load_u64(slot(index))
    }

    #[inline(always)]
    fn fill(&self, index: u64, free: u64, bits: u64) -> bool {
        self.0.compare_exchange_u64(slot(index), free, bits) == free
    }

    #[inline(always)]
    fn free(&self, index: u64, free: u64) {
        self.0.store_u64(slot(index), free);
    }

    #[inline(always)]
    fn asleep(&self) -> bool {
        self.0.load_u32(ASLEEP) != 0
    }

    #[inline(always)]
    fn barrier(&self) {
        SharedPages::fence();
    }
}

/// Prepares a doorbell page for a new context: all zero but for `alive`.
pub(crate) fn prepare(page: &Page<'_>) {
    page.zero();
    page.store_u32(ALIVE, 1);
}
