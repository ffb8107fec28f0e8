//! The schedule of guests. A pair of guests and its device keep up to two processors busy, so two pairs run at the same
//! time if the host has four.
//!
//! Where one pair runs at a time, the next two boot beside its tests, at a low priority, if there is memory and the lab may raise their priority
//! again. Guests wait often, and leave two fifths of two processors idle: the steps without guests that depend on no time run with that.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::job::Job;
use super::memory::{self, PAIR_MIB};
use super::pair::{Booter, Pairs, boot_name};
use super::results::Results;
use super::suite::Options;
use crate::cluster::Plan;
use crate::half_speed::HalfSpeed;
use crate::image::Kernel;
use crate::progress;
use crate::workspace::Workspace;

/// Largest number of pairs of guests that run at the same time. More have not been tried.
const MOST_PAIRS: usize = 2;

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

/// Number of pairs of guests that this host can run at the same time.
pub fn pairs_of_host() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    pairs_of(cores, memory::available_mib())
}

/// One pair for every two cores, as far as their memory suffices. An unknown amount of memory counts as enough. With
/// one core each, two pairs took longer than one after the other: swap through the NIC took five times as long.
fn pairs_of(cores: usize, available_mib: Option<u64>) -> usize {
    let by_memory = available_mib.map_or(MOST_PAIRS, |mib| (mib / PAIR_MIB) as usize);
    (cores / 2).min(by_memory).clamp(1, MOST_PAIRS)
}

/// Runs all batches, as many at a time as there are pairs, the longest first, so that all workers end at about the same time. One
/// worker knows the next batches, and boots their guests beside the tests.
pub fn run(
    workspace: &Workspace,
    dir: &Path,
    mut batches: Vec<Batch>,
    options: &Options,
    half_speed: Option<&Arc<HalfSpeed>>,
    results: &mut Results,
) {
    let pairs = options.pairs;
    batches.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    // At half speed a pair would boot during the tests of several others.
    let upcoming = match (pairs, half_speed) {
        (1, None) => plans(&batches, dir),
        _ => Vec::new(),
    };
    let queue = Mutex::new(batches);
    let choices = results.counts.len();
    let work = |booter| {
        let _shown = progress::take_part();
        let mut results = Results::new(choices);
        let pairs = Pairs::new(workspace, dir, options.checks_packets);
        let pairs = pairs.at_half_speed(half_speed.cloned());
        let mut pairs = pairs.ahead(booter, upcoming.clone());
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(batch) = next else {
                results.tally.boots_repeated += pairs.boots_repeated();
                return results;
            };
            for (choice, job) in &batch.jobs {
                let before = results.tally.count();
                job.run(workspace, dir, &mut pairs, &mut results.tally);
                results.counts[*choice] += results.tally.count() - before;
            }
            pairs.leave();
        }
    };
    let work = &work;
    thread::scope(|scope| {
        let worker = |_| {
            let booter = (!upcoming.is_empty())
                .then(|| Booter::start(scope, workspace))
                .flatten();
            scope.spawn(move || work(booter))
        };
        let workers: Vec<_> = (0..pairs).map(worker).collect();
        for worker in workers {
            results.merge(worker.join());
        }
    });
}

/// The guests that the tests of batches need, the last batch first.
fn plans(batches: &[Batch], dir: &Path) -> Vec<Plan> {
    let jobs = batches.iter().rev().flat_map(|batch| &batch.jobs);
    let mut plans: Vec<Plan> = jobs
        // A test whose guests have an error reports that itself.
        .filter_map(|(_, job)| job.plans(dir).ok())
        .flatten()
        .collect();
    plans.dedup();
    plans
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
}
