//! Copies of FPDUs that have been sent, until the peer has acknowledged them.
//!
//! Most FPDUs are read from guest memory again if they are lost: the buffers of SENDs and WRITEs are the NIC's until they are acknowledged.
//! Two kinds are sent again from a copy:
//!
//! - *An FPDU that leaves in pieces.* Its CRC must fit all of them.
//! - *An FPDU of the answer to a READ.* Its memory may change meanwhile, or go. The answers to the READs of a queue pair show memory in the
//!   order of the READs (RFC 5040 section 5.5), also if the first one is lost and the second one is not.
//!
//! The copies are the guest's, whose memory a peer READs: they count in the budget of the NIC.

use std::collections::BTreeMap;

use super::kept::{KeptRoom, cost};
use crate::budget::Held;

/// Copies of FPDUs by offset in the stream.
#[derive(Debug, Default)]
pub(super) struct Copies {
    fpdus: BTreeMap<u64, Vec<u8>>,
    /// Bytes of all copies.
    bytes: usize,
    held: Option<[Held; 2]>,
}

impl Copies {
    /// The copy of the FPDU at an offset.
    pub(super) fn get(&self, start: u64) -> Option<&[u8]> {
        self.fpdus.get(&start).map(Vec::as_slice)
    }

    /// True if there is memory for a copy of `len` octets. There is always memory for one, so that a stream makes progress.
    pub(super) fn has_room(&self, room: KeptRoom<'_>, len: usize) -> bool {
        self.fpdus.is_empty() || room.fits(self.bytes, cost(len))
    }

    /// Adds the copy of an FPDU, whether there is memory or not.
    pub(super) fn add(&mut self, room: KeptRoom<'_>, start: u64, octets: Vec<u8>) {
        self.bytes = self.bytes.saturating_add(cost(octets.len()));
        let held = self.held.get_or_insert_with(|| room.none());
        self.fpdus.insert(start, octets);
        held.iter_mut().for_each(|held| held.set(self.bytes));
    }

    /// Drops the copies that end before an offset.
    pub(super) fn release(&mut self, acknowledged: u64) {
        let before = self.bytes;
        while let Some(first) = self.fpdus.first_entry()
            && first.key().saturating_add(first.get().len() as u64) <= acknowledged
        {
            self.bytes = self.bytes.saturating_sub(cost(first.remove().len()));
        }
        if self.fpdus.is_empty() {
            self.held = None;
        } else if let Some(held) = self.held.as_mut().filter(|_| self.bytes != before) {
            held.iter_mut().for_each(|held| held.set(self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::iwarp::kept::OVERHEAD;

    #[test]
    fn a_copy_is_kept_until_its_last_octet_is_acknowledged() {
        let (nic, shared) = (Budget::new(10_000), Budget::new(10_000));
        let room = KeptRoom::new(&nic, &shared, 0);
        let mut copies = Copies::default();
        copies.add(room, 100, vec![1; 50]);
        copies.add(room, 10, vec![2; 20]);
        copies.release(29);
        assert_eq!(copies.get(10), Some(&[2; 20][..]));
        assert_eq!(nic.used(), 70 + 2 * OVERHEAD);
        copies.release(149);
        assert_eq!(copies.get(10), None);
        assert_eq!(copies.get(100), Some(&[1; 50][..]));
        assert_eq!(copies.get(101), None);
        copies.release(150);
        assert_eq!((nic.used(), shared.used()), (0, 0));
    }

    #[test]
    fn a_connection_leaves_memory_to_others_and_has_always_one_copy() {
        let (nic, shared) = (Budget::new(1 << 20), Budget::new(10_000));
        let room = KeptRoom::new(&nic, &shared, 0);
        let octets = || vec![0; 1000];
        let mut streams: Vec<Copies> = (0..3).map(|_| Copies::default()).collect();
        let counts = streams.iter_mut().map(|copies| {
            (0..)
                .take_while(|n| {
                    let fits = copies.has_room(room, 1000);
                    if fits {
                        copies.add(room, n * 1000, octets());
                    }
                    fits
                })
                .count()
        });
        assert_eq!(counts.collect::<Vec<_>>(), [5, 2, 1]);
        let _spent = nic.take(nic.left());
        assert!(!streams[0].has_room(room, 1000));
        let mut last = Copies::default();
        assert!(last.has_room(room, 1000));
        last.add(room, 0, octets());
        assert!(!last.has_room(room, 1000));
    }
}
