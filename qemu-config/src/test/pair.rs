//! The pairs of guests that tests run in: one after the other, each for as many tests as it is good for.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use super::debug;
use super::tally::Tally;
use crate::cluster::{Cluster, Plan};
use crate::image::Kernel;
use crate::progress;
use crate::workspace::Workspace;

/// Two guests.
pub struct Pair {
    /// They.
    pub cluster: Cluster,
    /// How much of their serial output has been looked at.
    seen: Vec<usize>,
}

impl Pair {
    /// What the kernels have complained of since the last call, and the emulator's end. A pair that has any is no
    /// ground for further tests.
    pub fn troubles(&mut self) -> Vec<String> {
        let seen = &mut self.seen;
        self.cluster.troubles_in(|guest| {
            let serial = guest.serial();
            let seen = &mut seen[guest.index];
            let unseen = serial.get(*seen..).unwrap_or_default();
            // Up to the last whole line: the kernel may be writing one.
            let whole = unseen.rfind('\n').map_or("", |end| &unseen[..=end]);
            *seen += whole.len();
            whole.to_owned()
        })
    }
}

/// Boots pairs, and keeps the last one for the next test that wants it.
pub struct Pairs<'a> {
    workspace: &'a Workspace,
    /// Where the pairs have their folders.
    dir: &'a Path,
    kernel: Kernel,
    boots: u32,
    boots_repeated: usize,
    kept: Option<Pair>,
}

impl<'a> Pairs<'a> {
    /// None so far.
    pub fn new(workspace: &'a Workspace, dir: &'a Path, kernel: Kernel) -> Self {
        Self {
            workspace,
            dir,
            kernel,
            boots: 0,
            boots_repeated: 0,
            kept: None,
        }
    }

    /// A pair of `plan`: the one that is kept, or a new one. The kept one ends if it is another.
    pub fn take(&mut self, plan: &Plan) -> Result<Pair> {
        if let Some(pair) = self.kept.take_if(|pair| pair.cluster.plan == *plan) {
            return Ok(pair);
        }
        self.leave();
        // Somebody else may have booted pairs of this kernel.
        self.boots += 1;
        while self.last_dir().exists() {
            self.boots += 1;
        }
        let dir = self.last_dir();
        std::fs::create_dir_all(&dir)?;
        let name = format!("{}::boot", self.kernel.name());
        progress::begin(&name);
        let started = Instant::now();
        let cluster = Cluster::boot(self.workspace, plan, &dir)?;
        progress::end(&name, started.elapsed(), 0);
        self.boots_repeated += cluster.repeated;
        let seen = vec![0; cluster.guests.len()];
        Ok(Pair { cluster, seen })
    }

    /// How often guests were booted again because they died while booting.
    pub fn boots_repeated(&self) -> usize {
        self.boots_repeated
    }

    /// Keeps a pair that works.
    pub fn keep(&mut self, pair: Pair) {
        self.kept = Some(pair);
    }

    /// The folder of the pair that was booted last.
    pub fn last_dir(&self) -> PathBuf {
        self.dir
            .join(format!("{}{}", self.kernel.name(), self.boots))
    }

    /// Ends the pair that is kept.
    pub fn leave(&mut self) {
        if let Some(pair) = self.kept.take() {
            pair.cluster.save_logs();
        }
    }

    /// Ends the pair that is kept if its kernel can tell what has leaked; that is a test of `label`.
    pub fn leave_without_leaks(&mut self, label: &str, tally: &mut Tally) {
        if self.kernel == Kernel::Debug
            && let Some(pair) = &mut self.kept
        {
            debug::look_for_leaks(pair, label, tally);
            self.leave();
        }
    }
}
