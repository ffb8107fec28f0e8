//! Results of the threads of a test run.

use std::thread;
use std::time::Duration;

use super::tally::{Tally, Verdict};

/// The results of a thread, or of all of them.
pub struct Results {
    /// All.
    pub tally: Tally,
    /// Number of tests of each choice.
    pub counts: Vec<usize>,
}

impl Results {
    /// Nothing yet of so many choices.
    pub fn new(choices: usize) -> Self {
        Self {
            tally: Tally::default(),
            counts: vec![0; choices],
        }
    }

    /// Adds those of a thread that has ended.
    pub fn merge(&mut self, ended: thread::Result<Self>) {
        match ended {
            Ok(other) => {
                self.tally.merge(other.tally);
                for (count, more) in self.counts.iter_mut().zip(other.counts) {
                    *count += more;
                }
            }
            // A test that has no result must not look like one that passed.
            Err(_) => self.tally.add(
                "lab::worker",
                Duration::ZERO,
                Verdict::Failed("a thread of the lab panicked; its results are lost".into()),
            ),
        }
    }
}
