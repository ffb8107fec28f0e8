//! Shares of the memory for packets that wait in the device for missing pages.
//!
//! The memory belongs to the NIC, and pages may never become present. So a user context may use at most as many bytes as remain free, as
//! with the places for page faults. The kernel has no such limit.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "the bytes of all parked packets are limited, and each packet gives back what it has taken"
)]

use std::collections::BTreeMap;

/// Number of reserved bytes, in all and by context.
#[derive(Debug, Default)]
pub(crate) struct Park {
    used: usize,
    by_context: BTreeMap<u32, usize>,
}

impl Park {
    /// Reserves bytes for a context. Returns false if they exceed its share of `limit` bytes.
    pub(crate) fn take(&mut self, uctx: u32, bytes: usize, limit: usize) -> bool {
        let free = limit.saturating_sub(self.used);
        let own = self.by_context.get(&uctx).copied().unwrap_or(0);
        if bytes > free || (uctx != 0 && own + bytes > free) {
            return false;
        }
        self.used += bytes;
        *self.by_context.entry(uctx).or_default() += bytes;
        true
    }

    /// Bytes that are reserved.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns bytes that were reserved.
    pub(crate) fn release(&mut self, uctx: u32, bytes: usize) {
        self.used -= bytes;
        if let Some(own) = self.by_context.get_mut(&uctx) {
            *own -= bytes;
            if *own == 0 {
                self.by_context.remove(&uctx);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_context_takes_the_share_of_others() {
        const LIMIT: usize = 1600;
        let mut park = Park::default();
        let fill =
            |park: &mut Park, uctx| (0..).take_while(|_| park.take(uctx, 100, LIMIT)).count();
        assert_eq!(fill(&mut park, 1), 8);
        assert_eq!(fill(&mut park, 2), 4);
        assert_eq!(fill(&mut park, 0), 4);
        assert!(!park.take(3, 1, LIMIT));
        park.release(1, 800);
        assert_eq!(fill(&mut park, 3), 4);
        park.release(0, 400);
        park.release(2, 400);
        park.release(3, 400);
        assert!(park.by_context.is_empty() && park.used == 0);
        assert!(!park.take(1, LIMIT + 1, LIMIT) && park.take(0, LIMIT, LIMIT));
    }
}
