//! What a guest can make the device hold.
//!
//! Page tables and the page lists of rings take as much memory as their guest says, and it may say anything: the
//! same page a million times, or one page here and one there in an address space without end. So do queue pairs and
//! the requests that they have under way. The process serves other guests too. So there is a limit for all of a
//! NIC's together.
//!
//! Who creates or maps is refused when nothing is left. What goes on anyway, goes on by itself: a queue pair has one
//! request at a time then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes that may be held, and those that are.
#[derive(Clone, Debug)]
pub struct Budget {
    used: Arc<AtomicUsize>,
    max: usize,
    /// What it took to read lists, in the unit of [`crate::Nic::work`].
    work: Arc<AtomicU64>,
}

impl Budget {
    /// Nothing is held of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self {
            used: Arc::default(),
            max,
            work: Arc::default(),
        }
    }

    /// What it took so far to read the lists that are held.
    pub fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    /// A list of so many entries is read.
    pub(crate) fn charge_list(&self, entries: u64) {
        // One thread has the NIC.
        let work = self.work().wrapping_add(entries);
        self.work.store(work, Ordering::Relaxed);
    }

    /// Bytes that are held.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether there is nothing left.
    pub fn is_spent(&self) -> bool {
        self.used() >= self.max
    }

    /// Holds so many bytes, if they are left.
    pub fn take(&self, bytes: usize) -> Option<Held> {
        let left = self.max.saturating_sub(self.used());
        (bytes <= left).then(|| {
            let mut held = self.none();
            held.set(bytes);
            held
        })
    }

    /// Holds nothing yet.
    pub fn none(&self) -> Held {
        Held {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

/// A part of the budget; given back when it is dropped.
#[derive(Debug)]
pub struct Held {
    budget: Budget,
    bytes: usize,
}

impl Held {
    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// It is so many bytes now, be they left or not.
    pub fn set(&mut self, bytes: usize) {
        // One thread has the NIC.
        let used = self.budget.used().saturating_sub(self.bytes);
        let used = used.saturating_add(bytes);
        self.budget.used.store(used, Ordering::Relaxed);
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
    fn what_is_held_counts_until_it_is_dropped() {
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
