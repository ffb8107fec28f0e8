//! The records of a capture, from the rings of all engines.

use faultline_ports::channel::EnginesEnd;

use crate::capture::RecordHead;

/// Records of several engines, in the order of their times.
#[derive(Debug)]
pub(crate) struct CaptureRecords {
    end: EnginesEnd,
    /// By engine: the next record. Empty: it has none.
    next: Vec<Vec<u8>>,
}

impl CaptureRecords {
    pub(crate) fn new(mut end: EnginesEnd) -> Self {
        let next = end.rings().iter().map(|_| Vec::new()).collect();
        Self { end, next }
    }

    /// Takes the next record. `None`: there is none.
    ///
    /// A record that has caused another one is earlier, and is in its ring before the other one is. So if a ring is empty after the
    /// next records of all others were taken, nothing in it is earlier than these because it has caused them.
    pub(crate) fn take<R>(&mut self, use_record: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut has_taken = true;
        while std::mem::take(&mut has_taken) {
            for (ring, next) in self.end.rings().iter_mut().zip(&mut self.next) {
                has_taken |= next.is_empty() && ring.pop(next).is_some();
            }
        }
        let time = |record: &Vec<u8>| RecordHead::split(record).map(|(head, _)| head.at);
        let records = self.next.iter_mut().filter(|next| !next.is_empty());
        let first = records.min_by_key(|record| time(record))?;
        let result = use_record(first);
        first.clear();
        Some(result)
    }

    /// True if the capture has ended. What is in the rings may be taken still.
    pub(crate) fn is_stopped(&self) -> bool {
        self.end.is_stopped()
    }

    /// Waits until there is a record, or the capture has ended.
    pub(crate) fn wait(&self) {
        self.end.wait();
    }
}
