//! The newest records of the trace of a process.

use std::collections::VecDeque;

use faultline_control::view::TraceHeader as PartHeader;
use faultline_telemetry::{Record, TraceEvent};
use hyper::Method;

use super::super::client::Remote;
use super::super::trace::parts_of;

/// Records of a request, the most that the server gives.
const PART: u64 = 4096;
/// Requests for each sample. A process under load makes more records than could be read.
const PARTS: u64 = 8;
/// Diagnostics that are kept.
const KEPT: usize = 20_000;

/// The newest diagnostics.
#[derive(Debug, Default)]
pub(super) struct Tail {
    next: u64,
    /// False before the first call: what was recorded before it is not missed.
    counts_skipped: bool,
    /// Names of the NICs, by number.
    pub(super) nics: Vec<String>,
    pub(super) diagnostics: VecDeque<Record>,
    /// Records that were passed over.
    pub(super) skipped: u64,
}

impl Tail {
    /// Reads the records that have come since the last call, the newest if they are too many. Returns their diagnostics.
    pub(super) async fn read(&mut self, remote: &Remote) -> anyhow::Result<Vec<Record>> {
        let (newest, _) = part(remote, u64::MAX, 1).await?;
        self.go_on(newest.next);
        self.nics = newest.nics;
        let mut new = Vec::new();
        while self.next < newest.next {
            let limit = newest.next.saturating_sub(self.next).min(PART);
            let (header, records) = part(remote, self.next, limit).await?;
            if header.next <= self.next {
                break;
            }
            self.next = header.next;
            self.skip(header.lost);
            new.extend(
                records
                    .into_iter()
                    .filter(|record| matches!(record.event, TraceEvent::Nic(_))),
            );
        }
        self.diagnostics.extend(&new);
        let old = self.diagnostics.len().saturating_sub(KEPT);
        self.diagnostics.drain(..old);
        self.counts_skipped = true;
        Ok(new)
    }
}

impl Tail {
    /// Decides where to read on, if the newest record has the number before this one.
    fn go_on(&mut self, newest: u64) {
        if newest < self.next {
            // Another process.
            *self = Self::default();
        }
        let first = newest.saturating_sub(PART.saturating_mul(PARTS));
        if self.next < first {
            self.skip(first.saturating_sub(self.next));
            self.next = first;
        }
    }

    /// Counts records that could not be read.
    fn skip(&mut self, records: u64) {
        if self.counts_skipped {
            self.skipped = self.skipped.saturating_add(records);
        }
    }
}

async fn part(remote: &Remote, from: u64, limit: u64) -> anyhow::Result<(PartHeader, Vec<Record>)> {
    let path = format!("/v1/trace?from={from}&limit={limit}");
    let text = remote.bytes(Method::GET, &path, Vec::new()).await?;
    parts_of(&path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_passed_over() {
        let mut tail = Tail::default();
        tail.go_on(100);
        assert_eq!((tail.next, tail.skipped), (0, 0));
        let most = PART * PARTS;
        tail.go_on(most + 5);
        assert_eq!(
            (tail.next, tail.skipped),
            (5, 0),
            "older ones are not missed"
        );
        tail.counts_skipped = true;
        tail.next = most + 5;
        tail.go_on(2 * most + 5);
        assert_eq!((tail.next, tail.skipped), (most + 5, 0));
        tail.go_on(3 * most);
        assert_eq!((tail.next, tail.skipped), (2 * most, most - 5));
        // Another process.
        tail.go_on(7);
        assert_eq!((tail.next, tail.skipped), (0, 0));
    }

    #[test]
    fn overwritten_records_count_after_the_first_call() {
        let mut tail = Tail::default();
        tail.skip(3);
        assert_eq!(tail.skipped, 0);
        tail.counts_skipped = true;
        tail.skip(3);
        assert_eq!(tail.skipped, 3);
    }
}
