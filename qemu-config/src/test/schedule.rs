//! Which guests run when. A pair of guests and its device keep up to two processors busy, so two pairs run side by side if the
//! host has four.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::job::Job;
use super::pair::{Pairs, boot_name};
use super::results::Results;
use crate::image::Kernel;
use crate::progress;
use crate::workspace::Workspace;

/// Pairs of guests that run at the same time, at most. Tests with more pairs have not been tried.
const MOST_PAIRS: usize = 2;
/// MiB that a pair of guests needs on the host: memory, persistent memory and QEMU's translated code of two guests.
const PAIR_MIB: u64 = 3400;

/// Jobs that need the same guests, in the order in which they run.
pub struct Batch {
    /// The guests' kernel.
    pub kernel: Kernel,
    /// Each with the number of the choice that it belongs to.
    pub jobs: Vec<(usize, Job)>,
}

impl Batch {
    /// Seconds that its tests and a boot are expected to take.
    fn seconds(&self) -> f64 {
        let names = self.jobs.iter().flat_map(|(_, job)| job.names());
        let tests: f64 = names
            .map(|(name, least)| progress::expected(&name).max(least as f64))
            .sum();
        tests + progress::expected(&boot_name(self.kernel))
    }
}

/// How many pairs of guests this host can run at the same time.
pub fn pairs_of_host() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    pairs_of(cores, available_mib(&meminfo))
}

/// One for every two cores, as far as they have the memory. An unknown amount is taken for enough. With a core for each, two
/// pairs took longer than one after the other: swap through the NIC five times as long.
fn pairs_of(cores: usize, available_mib: Option<u64>) -> usize {
    let by_memory = available_mib.map_or(MOST_PAIRS, |mib| (mib / PAIR_MIB) as usize);
    (cores / 2).min(by_memory).clamp(1, MOST_PAIRS)
}

/// `MemAvailable` of `/proc/meminfo`.
fn available_mib(meminfo: &str) -> Option<u64> {
    let rest = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

/// Runs all batches, `pairs` of them at a time, the longest first, so that all workers end at about the same time.
pub fn run(
    workspace: &Workspace,
    dir: &Path,
    mut batches: Vec<Batch>,
    pairs: usize,
    results: &mut Results,
) {
    batches.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    let queue = Mutex::new(batches);
    let choices = results.counts.len();
    let work = || {
        let _shown = progress::take_part();
        let mut results = Results::new(choices);
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(batch) = next else {
                return results;
            };
            let mut pairs = Pairs::new(workspace, dir, batch.kernel);
            for (choice, job) in &batch.jobs {
                let before = results.tally.count();
                job.run(workspace, dir, &mut pairs, &mut results.tally);
                results.counts[*choice] += results.tally.count() - before;
            }
            pairs.leave();
            results.tally.boots_repeated += pairs.boots_repeated();
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..pairs).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            results.merge(worker.join());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_need_cores_and_memory() {
        assert_eq!(pairs_of(4, Some(2 * PAIR_MIB)), 2);
        assert_eq!(pairs_of(4, Some(2 * PAIR_MIB - 1)), 1);
        assert_eq!(pairs_of(4, Some(0)), 1);
        assert_eq!(pairs_of(3, Some(100 * PAIR_MIB)), 1);
        assert_eq!(pairs_of(1, Some(100 * PAIR_MIB)), 1);
        assert_eq!(pairs_of(64, None), MOST_PAIRS);
    }

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal:       24689116 kB\nMemFree:  1 kB\nMemAvailable:   10485760 kB\n";
        assert_eq!(available_mib(text), Some(10_240));
        assert_eq!(available_mib("MemTotal: 1 kB\n"), None);
    }
}
