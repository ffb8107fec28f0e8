//! The pairs of guests in which tests run: one after the other, each for as many tests as possible. While tests run in
//! one, the next one boots.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Scope;
use std::time::Instant;

use anyhow::{Context, Result};

use super::memory::room_for_a_pair;
use super::packets::Checks;
use crate::cluster::{Cluster, Plan};
use crate::command::say;
use crate::half_speed::HalfSpeed;
use crate::image::Kernel;
use crate::priority::{self, Priority};
use crate::progress;
use crate::races;
use crate::workspace::Workspace;

/// Pairs that boot, or wait, while tests run in another. Two, because some tests are shorter than a boot.
const MOST_AHEAD: usize = 2;

/// Name of the boot of a pair in the durations of a run.
pub fn boot_name(kernel: Kernel) -> String {
    format!("{}::boot", kernel.name())
}

/// Two guests.
pub struct Pair {
    /// The packet checkers of its emulators, if its tests have them. They end before the emulators.
    checks: Option<Checks>,
    /// Its guests.
    pub cluster: Cluster,
    /// Length of the serial output of each guest that has been checked.
    seen: Vec<usize>,
}

impl Pair {
    /// Errors that the kernels have reported since the last call, packets of NICs that violate the specification, and the end of the
    /// emulator. A pair with any is not used for further tests. `test` is the full name of the test that has run.
    pub fn troubles(&mut self, test: &str) -> Vec<String> {
        let seen = &mut self.seen;
        let mut troubles = self.cluster.troubles_in(|guest| {
            let serial = guest.serial();
            let seen = &mut seen[guest.index];
            let unseen = serial.get(*seen..).unwrap_or_default();
            // Up to the last complete line, and the last complete report of a data race, because the kernel may be
            // writing another one.
            let whole = unseen.rfind('\n').map_or("", |end| &unseen[..=end]);
            let whole = races::without_unfinished(whole);
            *seen += whole.len();
            whole.to_owned()
        });
        if let Some(checks) = &mut self.checks {
            troubles.extend(checks.troubles(test, &self.cluster));
        }
        troubles
    }
}

/// A pair to boot beside the tests.
struct Order {
    plan: Plan,
    dir: PathBuf,
    priority: Priority,
    result: Sender<Result<Cluster>>,
}

/// A thread that boots pairs beside the tests. It runs as long as they do, because QEMU dies with the thread that has
/// started it.
pub struct Booter(Sender<Order>);

impl Booter {
    /// Starts the thread. `None` if the priority of a process cannot be raised again: pairs that boot beside tests would
    /// hinder them, or be slow for ever.
    pub fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        workspace: &'scope Workspace,
    ) -> Option<Self> {
        let (sender, orders) = mpsc::channel::<Order>();
        priority::may_be_raised().then(|| {
            scope.spawn(move || {
                priority::lower_this_thread();
                for order in orders {
                    let cluster =
                        Cluster::boot_with(workspace, &order.plan, &order.dir, &order.priority);
                    // This fails if the run has ended, which needs the cluster no more.
                    let _ = order.result.send(cluster);
                }
            });
            Self(sender)
        })
    }
}

/// A pair that boots, or has booted, beside the tests.
struct Ahead {
    plan: Plan,
    dir: PathBuf,
    priority: Priority,
    result: Receiver<Result<Cluster>>,
}

/// Boots pairs, and keeps the last one for the next test that can use it.
pub struct Pairs<'a> {
    workspace: &'a Workspace,
    /// The folder for the folders of pairs.
    dir: &'a Path,
    /// The packet checker runs beside the tests.
    checks_packets: bool,
    /// What holds the processes of guests back.
    half_speed: Option<Arc<HalfSpeed>>,
    boots: usize,
    boots_repeated: usize,
    kept: Option<Pair>,
    last_dir: PathBuf,
    booter: Option<Booter>,
    /// The plans that tests will need, in this order.
    upcoming: VecDeque<Plan>,
    ahead: VecDeque<Ahead>,
}

impl<'a> Pairs<'a> {
    /// None so far.
    pub fn new(workspace: &'a Workspace, dir: &'a Path, checks_packets: bool) -> Self {
        Self {
            workspace,
            dir,
            checks_packets,
            half_speed: None,
            boots: 0,
            boots_repeated: 0,
            kept: None,
            last_dir: dir.to_owned(),
            booter: None,
            upcoming: VecDeque::new(),
            ahead: VecDeque::new(),
        }
    }

    /// The same, with guests whose processes get half a processor each.
    pub fn at_half_speed(self, half_speed: Option<Arc<HalfSpeed>>) -> Self {
        Self { half_speed, ..self }
    }

    /// The same, with the plans that tests will need; `booter` boots them beside the tests.
    pub fn ahead(self, booter: Option<Booter>, upcoming: Vec<Plan>) -> Self {
        Self {
            booter,
            upcoming: upcoming.into(),
            ..self
        }
    }

    /// A pair of `plan`: the one that is kept, the one that has booted beside the tests, or a new one. The kept one ends if
    /// it is another.
    pub fn take(&mut self, plan: &Plan) -> Result<Pair> {
        if let Some(pair) = self.kept.take_if(|pair| pair.cluster.plan == *plan) {
            return Ok(pair);
        }
        self.leave();
        let name = boot_name(plan.kernel);
        progress::begin(&name);
        let started = Instant::now();
        let cluster = match self.booted_beside(plan) {
            Some(cluster) => cluster,
            None => {
                self.last_dir = self.new_dir(plan.kernel)?;
                let priority = match &self.half_speed {
                    Some(half_speed) => Priority::at_half_speed(half_speed.clone()),
                    None => Priority::default(),
                };
                Cluster::boot_with(self.workspace, plan, &self.last_dir, &priority)?
            }
        };
        progress::end(&name, started.elapsed(), 0);
        let folder = self.last_dir.file_name().unwrap_or_default();
        progress::waited(
            &format!("boot of {}", folder.to_string_lossy()),
            started.elapsed(),
        );
        self.boots += 1;
        self.boots_repeated += cluster.repeated;
        let seen = vec![0; cluster.guests.len()];
        self.look_ahead(plan)?;
        // The checker ends with its process.
        let checks = match self.checks_packets && !cluster.plan.supervisor {
            true => Some(Checks::start(self.workspace, &cluster)?),
            false => None,
        };
        Ok(Pair {
            checks,
            cluster,
            seen,
        })
    }

    /// The pair that boots beside the tests, if it is of this plan; now it is needed.
    fn booted_beside(&mut self, plan: &Plan) -> Option<Cluster> {
        let ahead = self.ahead.pop_front_if(|ahead| ahead.plan == *plan)?;
        ahead.priority.raise();
        match ahead.result.recv() {
            Ok(Ok(cluster)) => {
                self.last_dir = ahead.dir;
                Some(cluster)
            }
            Ok(Err(error)) => {
                self.boots_repeated += 1;
                say(format!(
                    "guests did not boot beside tests; booting again: {error:#}"
                ));
                None
            }
            Err(_) => None,
        }
    }

    /// Begins to boot the guests for the time after a pair of `plan`.
    fn look_ahead(&mut self, plan: &Plan) -> Result<()> {
        // A pair that replaces one that has failed is not among them.
        if self.upcoming.contains(plan) {
            while self.upcoming.pop_front().is_some_and(|next| next != *plan) {}
        }
        while self.ahead.len() < MOST_AHEAD
            && let Some(booter) = &self.booter
            && let Some(next) = self.upcoming.get(self.ahead.len())
            && room_for_a_pair()
        {
            let dir = self.new_dir(next.kernel)?;
            let priority = Priority::low();
            let (sender, result) = mpsc::channel();
            let order = Order {
                plan: next.clone(),
                dir: dir.clone(),
                priority: priority.clone(),
                result: sender,
            };
            if booter.0.send(order).is_err() {
                break;
            }
            self.ahead.push_back(Ahead {
                plan: next.clone(),
                dir,
                priority,
                result,
            });
        }
        Ok(())
    }

    /// Makes the folder of the next pair: the first number that is free. Other threads may boot pairs of the same kernel:
    /// the one that makes a folder has its number.
    fn new_dir(&self, kernel: Kernel) -> Result<PathBuf> {
        let mut number = 1;
        loop {
            let dir = self.dir.join(format!("{}{number}", kernel.name()));
            match std::fs::create_dir(&dir) {
                Ok(()) => return Ok(dir),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => {
                    return Err(error).with_context(|| format!("creating {}", dir.display()));
                }
            }
        }
    }

    /// How often guests have booted.
    pub fn boots(&self) -> usize {
        self.boots
    }

    /// How often guests were booted again because they died while booting.
    pub fn boots_repeated(&self) -> usize {
        self.boots_repeated
    }

    /// Keeps a pair that works.
    pub fn keep(&mut self, pair: Pair) {
        self.kept = Some(pair);
    }

    /// The folder of the pair that was taken last.
    pub fn last_dir(&self) -> PathBuf {
        self.last_dir.clone()
    }

    /// Ends the pair that is kept.
    pub fn leave(&mut self) {
        if let Some(pair) = self.kept.take() {
            pair.cluster.save_logs();
        }
    }

    /// The pair that is kept.
    pub fn kept(&mut self) -> Option<&mut Pair> {
        self.kept.as_mut()
    }
}
