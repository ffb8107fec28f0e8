//! Queue pairs that wait for faults: by fault, in the order of their arrival, and by queue pair.
//!
//! A queue pair has at most one wait of each [kind](WaitKind), so it has at most four entries, independent of its peers' requests.

use super::slab::{Link, List, Slab, entry};

/// The part of a queue pair that waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// The requester, for a local buffer.
    Send,
    /// The responder, for a request or datagram that has arrived.
    Request,
    /// The responder, for memory that a READ is answered from.
    Reply,
    /// No part: the packet was dropped. The queue pair counts as a waiter of the last such fault.
    Dropped,
}

/// A queue pair that waits for a fault.
#[derive(Debug)]
struct Wait {
    qpn: u32,
    /// Bits of the kinds that wait for this fault.
    kinds: u8,
    /// Index of the fault.
    fault: u32,
    /// Queue pairs that wait for the same fault.
    same_fault: Link,
    /// Waits of the same queue pair.
    same_qp: Link,
}

/// The queue pairs that wait for one fault.
#[derive(Clone, Copy, Debug, Default)]
struct Waiters {
    list: List,
    count: u32,
}

/// Waits of all queue pairs.
#[derive(Debug)]
pub(super) struct Waits {
    waits: Slab<Wait>,
    /// By index of the fault.
    by_fault: Vec<Waiters>,
    /// By slot of the queue pair in its table.
    by_qp: Vec<List>,
    /// The bits of a queue pair number that are the slot.
    slot_mask: u32,
}

impl Waits {
    /// No waits. `slot_mask`: see [`Table::slot_mask`](crate::table::Table::slot_mask).
    pub(crate) fn new(slot_mask: u32) -> Self {
        Self {
            waits: Slab::default(),
            by_fault: Vec::new(),
            by_qp: Vec::new(),
            slot_mask,
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.waits.len()
    }

    /// Number of queue pairs that wait for the fault with this index.
    pub(crate) fn count(&self, fault: u32) -> u32 {
        let waiters = self.by_fault.get(fault as usize);
        waiters.map_or(0, |waiters| waiters.count)
    }

    /// The queue pair that has waited longest for the fault with this index.
    pub(crate) fn first(&self, fault: u32) -> Option<u32> {
        let first = self.by_fault.get(fault as usize)?.list.first()?;
        self.waits.get(first).map(|wait| wait.qpn)
    }

    /// Makes the queue pair wait for the fault with this index. The same part of it no longer waits for another fault.
    pub(crate) fn join(&mut self, fault: u32, qpn: u32, kind: WaitKind) {
        let bit = 1 << kind as u8;
        let (mut same_fault, mut same_kind) = (None, None);
        let mut at = self.first_of(qpn);
        while let Some(index) = at
            && let Some(wait) = self.waits.get(index)
        {
            if wait.fault == fault {
                same_fault = Some(index);
            } else if wait.kinds & bit != 0 {
                same_kind = Some(index);
            }
            at = wait.same_qp.next();
        }
        match same_fault.and_then(|index| self.waits.get_mut(index)) {
            Some(wait) => wait.kinds |= bit,
            None => self.insert(fault, qpn, bit),
        }
        if let Some(index) = same_kind
            && let Some(wait) = self.waits.get_mut(index)
        {
            wait.kinds &= !bit;
            if wait.kinds == 0 {
                self.remove(index);
            }
        }
    }

    fn first_of(&self, qpn: u32) -> Option<u32> {
        let list = self.by_qp.get((qpn & self.slot_mask) as usize)?;
        list.first()
    }

    fn insert(&mut self, fault: u32, qpn: u32, kinds: u8) {
        let index = self.waits.insert(Wait {
            qpn,
            kinds,
            fault,
            same_fault: Link::default(),
            same_qp: Link::default(),
        });
        if let Some(waiters) = entry(&mut self.by_fault, fault) {
            waiters.count = waiters.count.saturating_add(1);
            let list = &mut waiters.list;
            list.push_back(&mut self.waits, index, |wait| &mut wait.same_fault);
        }
        if let Some(list) = entry(&mut self.by_qp, qpn & self.slot_mask) {
            list.push_back(&mut self.waits, index, |wait| &mut wait.same_qp);
        }
    }

    fn remove(&mut self, index: u32) -> Option<u32> {
        let wait = self.waits.get(index)?;
        let (qpn, fault) = (wait.qpn, wait.fault);
        if let Some(waiters) = self.by_fault.get_mut(fault as usize) {
            waiters.count = waiters.count.saturating_sub(1);
            let list = &mut waiters.list;
            list.remove(&mut self.waits, index, |wait| &mut wait.same_fault);
        }
        if let Some(list) = self.by_qp.get_mut((qpn & self.slot_mask) as usize) {
            list.remove(&mut self.waits, index, |wait| &mut wait.same_qp);
        }
        self.waits.remove(index);
        Some(qpn)
    }

    /// Takes the first queue pair that waits for the fault with this index.
    pub(crate) fn pop(&mut self, fault: u32) -> Option<u32> {
        let first = self.by_fault.get(fault as usize)?.list.first()?;
        self.remove(first)
    }

    /// Ends all waits of the queue pair.
    pub(crate) fn leave(&mut self, qpn: u32) {
        while let Some(index) = self.first_of(qpn) {
            self.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop_all(waits: &mut Waits, fault: u32) -> Vec<u32> {
        std::iter::from_fn(|| waits.pop(fault)).collect()
    }

    #[test]
    fn a_part_of_a_queue_pair_waits_once() {
        let mut waits = Waits::new(0xff);
        for fault in 0..100 {
            waits.join(fault, 5, WaitKind::Request);
            waits.join(fault, 5, WaitKind::Request);
            assert_eq!(waits.len(), 1);
        }
        assert_eq!((waits.count(98), waits.count(99)), (0, 1));
        waits.join(99, 5, WaitKind::Send);
        assert_eq!((waits.len(), waits.count(99)), (1, 1));
        // One of two leaves; the other still waits.
        waits.join(7, 5, WaitKind::Send);
        waits.join(8, 5, WaitKind::Reply);
        assert_eq!(waits.len(), 3);
        assert_eq!(pop_all(&mut waits, 99), [5]);
        assert_eq!(pop_all(&mut waits, 99), []);
        waits.leave(5);
        assert_eq!((waits.len(), waits.count(7), waits.count(8)), (0, 0, 0));
    }

    #[test]
    fn waiters_are_called_in_the_order_of_their_arrival() {
        let mut waits = Waits::new(0xff);
        for qpn in [3, 0x105, 9, 4, 3] {
            waits.join(2, qpn, WaitKind::Send);
        }
        waits.leave(9);
        waits.leave(77);
        assert_eq!(waits.count(2), 3);
        assert_eq!(pop_all(&mut waits, 2), [3, 0x105, 4]);
        assert_eq!(waits.len(), 0);
        assert_eq!(waits.pop(50), None);
    }
}
