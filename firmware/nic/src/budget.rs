//! The memory budget of a NIC: a limit on the memory that its guest can make the device allocate.
//!
//! Page tables and the page lists of rings take as much memory as the guest requests. It may map the same page a
//! million times, or single pages far apart in an unlimited address space. Queue pairs and their outstanding requests
//! take memory, too. The process also serves other guests, so the total for a NIC is limited.
//!
//! When the budget is used up, commands that create objects or map pages are refused. Requests that are posted still
//! make progress: each queue pair executes one request at a time then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A limit in bytes, and the number of bytes that are reserved. Clones share both. Each object has several reservations, so one is a
/// reference and a number.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    used: AtomicUsize,
    max: usize,
    /// Cost of reading page lists, in the unit of [`crate::Nic::work`].
    work: AtomicU64,
}

impl Budget {
    /// A budget of `max` bytes, none of which is reserved.
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Shared {
            used: AtomicUsize::new(0),
            max,
            work: AtomicU64::new(0),
        }))
    }

    /// Total cost of reading page lists so far.
    #[inline]
    pub fn work(&self) -> u64 {
        self.0.work.load(Ordering::Relaxed)
    }

    /// Charges the reading of a list of `entries` entries.
    pub(crate) fn charge_list(&self, entries: u64) {
        // One thread drives the NIC, so the sum need not be computed atomically.
        let work = self.work().wrapping_add(entries);
        self.0.work.store(work, Ordering::Relaxed);
    }

    /// Number of reserved bytes.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.0.max.saturating_sub(self.used())
    }

    /// True if no bytes are left.
    pub fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// Reserves bytes. Returns `None` if the budget has fewer left.
    pub fn take(&self, bytes: usize) -> Option<Held> {
        (bytes <= self.left()).then(|| {
            let mut held = self.none();
            held.set(bytes);
            held
        })
    }

    /// A reservation of no bytes.
    pub fn none(&self) -> Held {
        Held {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

/// A reservation in the budget. Dropping it returns the bytes.
#[derive(Debug)]
pub struct Held {
    budget: Budget,
    bytes: usize,
}

impl Held {
    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the number of bytes, even if not enough are left.
    pub fn set(&mut self, bytes: usize) {
        // One thread drives the NIC, so the sum need not be computed atomically.
        let used = self.budget.used().saturating_sub(self.bytes);
        let used = used.saturating_add(bytes);
        self.budget.0.used.store(used, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_counts_until_it_is_dropped() {
        let budget = Budget::new(100);
        let mut a = budget.take(60).unwrap();
        assert!(budget.take(41).is_none());
        let b = budget.take(40).unwrap();
        assert!(budget.is_spent());
        drop(b);
        a.set(150);
        assert!(budget.is_spent() && budget.take(1).is_none());
        a.set(10);
        assert_eq!(budget.used(), 10);
        drop(a);
        assert_eq!(budget.used(), 0);
    }
}
