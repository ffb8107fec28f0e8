//! The pairs of guests that tests run in: one after the other, each for as many tests as it is good for.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::cluster::{Cluster, Plan};
use crate::image::Kernel;
use crate::progress;
use crate::workspace::Workspace;

/// What the boot of a pair is called in the durations of a run.
pub fn boot_name(kernel: Kernel) -> String {
    format!("{}::boot", kernel.name())
}

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
        let dir = self.new_dir()?;
        let name = boot_name(self.kernel);
        progress::begin(&name);
        let started = Instant::now();
        let cluster = Cluster::boot(self.workspace, plan, &dir)?;
        progress::end(&name, started.elapsed(), 0);
        self.boots_repeated += cluster.repeated;
        let seen = vec![0; cluster.guests.len()];
        Ok(Pair { cluster, seen })
    }

    /// Makes the folder of the next pair. Other threads may boot pairs of the same kernel: the one that makes a folder
    /// has its number.
    fn new_dir(&mut self) -> Result<PathBuf> {
        loop {
            self.boots += 1;
            let dir = self.last_dir();
            match std::fs::create_dir(&dir) {
                Ok(()) => return Ok(dir),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => (),
                Err(error) => {
                    return Err(error).with_context(|| format!("creating {}", dir.display()));
                }
            }
        }
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

    /// Their kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// The pair that is kept.
    pub fn kept(&mut self) -> Option<&mut Pair> {
        self.kept.as_mut()
    }
}
