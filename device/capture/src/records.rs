//! The records of a capture, from the rings of all engines.

use std::sync::Arc;
use std::time::Duration;

use faultline_ports::channel::{EnginesEnd, FrameReceiver};

use crate::record::RecordHead;
use crate::share::CaptureShare;

/// Time between two looks at the bounds of engines.
const LOOK: Duration = Duration::from_millis(1);

/// Records of several engines, in the order of their times.
///
/// A record is taken when no engine can add an earlier one. Without that, a queue pair's new connection could be told after the first
/// packet of its peer on another engine: the peer's host may have learned of the connection elsewhere, before the record was written.
#[derive(Debug)]
pub struct CaptureRecords {
    end: EnginesEnd,
    share: Arc<CaptureShare>,
    /// By engine.
    next: Vec<Next>,
}

/// The next record of an engine.
#[derive(Debug, Default)]
struct Next {
    /// Its octets; empty if there is none.
    record: Vec<u8>,
    /// Its time, or the smallest time that it can have when there is one.
    time: u64,
}

impl Next {
    /// Looks into the ring of `engine` if there is no record. Returns true if there is one now.
    fn look(&mut self, ring: &mut FrameReceiver, engine: usize, share: &CaptureShare) -> bool {
        if !self.record.is_empty() {
            return false;
        }
        // Before the look into the ring, which then has all records before the bound.
        self.time = share.bound(engine);
        if ring.pop(&mut self.record).is_none() {
            return false;
        }
        self.time = RecordHead::split(&self.record).map_or(0, |(head, _)| head.at);
        true
    }
}

impl CaptureRecords {
    /// Takes records from the rings of `end`, as far as `share` says that no engine can add earlier ones.
    pub fn new(mut end: EnginesEnd, share: Arc<CaptureShare>) -> Self {
        let next = end.rings().iter().map(|_| Next::default()).collect();
        Self { end, share, next }
    }

    /// Takes the next record. `None`: there is none, or an engine may add an earlier one.
    ///
    /// If the last record that was found has a cause in another engine, the bound and the record of that engine are looked at again after
    /// it.
    pub fn take<R>(&mut self, use_record: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut has_found = true;
        while std::mem::take(&mut has_found) {
            let rings = self.end.rings().iter_mut().zip(&mut self.next);
            for (engine, (ring, next)) in rings.enumerate() {
                has_found |= next.look(ring, engine, &self.share);
            }
        }
        // Of equal times a record may be taken only if it is one.
        let first = self.next.iter_mut();
        let first = first.min_by_key(|next| (next.time, !next.record.is_empty()))?;
        if first.record.is_empty() {
            return None;
        }
        let result = use_record(&first.record);
        first.record.clear();
        Some(result)
    }

    /// True if the capture has ended. What is in the rings may be taken still.
    pub fn is_stopped(&self) -> bool {
        self.end.is_stopped()
    }

    /// Waits until there may be a record to take, or the capture has ended.
    pub fn wait(&self) {
        match self.next.iter().all(|next| next.record.is_empty()) {
            true => self.end.wait(),
            // No engine tells of its bound.
            false => std::thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use faultline_nic::Instant;
    use faultline_ports::channel::{self, EngineEnd};

    use super::*;

    fn head(at: u64) -> [u8; RecordHead::LEN] {
        let mut octets = [0; RecordHead::LEN];
        octets[..8].copy_from_slice(&at.to_le_bytes());
        octets
    }

    fn rings() -> (Vec<EngineEnd>, Arc<CaptureShare>, CaptureRecords) {
        let (ends, reader) = channel::from_engines(2, 1000).unwrap();
        let share = CaptureShare::new(0, 2);
        let records = CaptureRecords::new(reader, Arc::clone(&share));
        (ends, share, records)
    }

    fn take(records: &mut CaptureRecords) -> Option<u64> {
        records.take(|record| RecordHead::split(record).unwrap().0.at)
    }

    #[test]
    fn records_of_two_engines_are_taken_in_the_order_of_their_times() {
        let (mut ends, share, mut records) = rings();
        for (end, times) in ends.iter_mut().zip([[1, 4, 6], [2, 3, 9]]) {
            times.iter().for_each(|at| assert!(end.send(&head(*at))));
        }
        (0..2).for_each(|engine| share.set_bound(engine, None));
        let taken: Vec<u64> = std::iter::from_fn(|| take(&mut records)).collect();
        assert_eq!(taken, [1, 2, 3, 4, 6, 9]);
    }

    #[test]
    fn a_record_waits_until_no_engine_can_add_an_earlier_one() {
        let (mut ends, share, mut records) = rings();
        share.set_bound(0, Some(Instant(5)));
        assert!(ends[0].send(&head(6)));
        // Nothing is known of the other one.
        assert_eq!(take(&mut records), None);
        for at in [4, 6] {
            share.set_bound(1, Some(Instant(at)));
            assert_eq!(take(&mut records), None);
        }
        assert!(ends[1].send(&head(6)));
        share.set_bound(1, Some(Instant(7)));
        assert_eq!(take(&mut records), Some(6));
        assert_eq!(take(&mut records), None, "the first engine may add one");
        share.set_bound(0, None);
        assert_eq!(take(&mut records), Some(6));
        assert_eq!(take(&mut records), None);
    }
}
