//! Page tables of regions, read once for all browsers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use faultline_control::pages::{PageBucketView, PageMapView};
use tokio::sync::Mutex;

use super::super::client::{Remote, segment};

/// Most parts of a page table that a browser's request makes this program ask for. They have 4 million entries.
const PARTS: usize = 64;
/// Most page tables that are kept.
const KEPT: usize = 16;

/// Page tables that were read lately, by name of the NIC and key.
#[derive(Debug)]
pub(super) struct Maps {
    remote: Remote,
    interval: Duration,
    kept: Mutex<HashMap<(String, u32), (Instant, PageMapView)>>,
}

impl Maps {
    pub(super) fn new(remote: Remote, interval: Duration) -> Self {
        Self {
            remote,
            interval,
            kept: Mutex::default(),
        }
    }

    /// The page table of a key, at most an interval old. Requests wait for each other, so that each interval has one reading of a table.
    pub(super) async fn read(&self, nic: &str, key: u32) -> anyhow::Result<PageMapView> {
        let mut kept = self.kept.lock().await;
        let name = (nic.to_owned(), key);
        kept.retain(|_, (at, _)| at.elapsed() < self.interval);
        if let Some((_, map)) = kept.get(&name) {
            return Ok(map.clone());
        }
        let path = format!("/v1/nics/{}/regions/{key}/pages", segment(nic));
        let mut map: PageMapView = self.remote.get(&path).await?;
        for _ in 1..PARTS {
            let Some(from) = map.next else { break };
            let part = self.remote.get(&format!("{path}?from={from}")).await?;
            add(&mut map, part);
        }
        if kept.len() < KEPT {
            kept.insert(name, (Instant::now(), map.clone()));
        }
        Ok(map)
    }
}

/// Adds the next part of a page table.
fn add(map: &mut PageMapView, part: PageMapView) {
    // The region has changed meanwhile.
    if (part.iova, part.length, part.bucket_pages) != (map.iova, map.length, map.bucket_pages) {
        *map = part;
        return;
    }
    let place = usize::try_from(part.first.saturating_sub(map.first)).unwrap_or(usize::MAX);
    for (bucket, more) in (place..).zip(part.buckets) {
        match map.buckets.get_mut(bucket) {
            Some(bucket) => {
                *bucket = PageBucketView {
                    pages: bucket.pages.saturating_add(more.pages),
                    present: bucket.present.saturating_add(more.present),
                    writable: bucket.writable.saturating_add(more.writable),
                    faulting: bucket.faulting.saturating_add(more.faulting),
                }
            }
            None => map.buckets.push(more),
        }
    }
    map.next = part.next;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(first: u64, pages: &[u64], next: Option<u64>) -> PageMapView {
        let bucket = |pages: &u64| PageBucketView {
            pages: *pages,
            present: *pages / 2,
            ..PageBucketView::default()
        };
        PageMapView {
            iova: 0x1000,
            length: 10 << 12,
            bucket_pages: 4,
            first,
            buckets: pages.iter().map(bucket).collect(),
            next,
        }
    }

    #[test]
    fn parts_of_a_bucket_are_added() {
        let mut map = part(0, &[4, 2], Some(6));
        add(&mut map, part(1, &[2, 2], None));
        let mut expected = part(0, &[4, 4, 2], None);
        expected.buckets[1].present = 2;
        assert_eq!(map, expected);
        // A region with another length under the same key.
        let other = PageMapView {
            length: 1 << 12,
            ..part(0, &[1], None)
        };
        add(&mut map, other.clone());
        assert_eq!(map, other);
    }
}
