//! A scenario that runs on the NICs of the engine. Its rules are in the fabric.

use std::collections::BTreeMap;

use faultline_fabric::PortId;
use faultline_nic::Nanos;
use faultline_scenario::rules::Fired;
use faultline_scenario::verdict::Verdict;

/// A scenario that runs.
#[derive(Debug)]
pub struct RunningScenario {
    /// Its name.
    pub name: String,
    /// Counters of each NIC at the start, in the order of `Counter::ALL`.
    pub(crate) counters: Vec<Vec<u64>>,
    /// Tasks for the runner. `None`: no runner is attached.
    pub runner: Option<RunnerTasks>,
}

/// Actions that only software in a guest can execute, such as moves of its GIDs. The *runner*, the client that has
/// started the scenario, reads them, executes them, and reports each.
#[derive(Debug, Default)]
pub struct RunnerTasks {
    /// Ids of tasks are counted from 0.
    next: u64,
    pending: BTreeMap<u64, RunnerTask>,
}

/// An action for the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerTask {
    /// The NIC whose guest it is for.
    pub nic: PortId,
    /// What to do.
    pub action: GuestAction,
}

/// An action that only software in a guest can execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestAction {
    /// Moves its addresses to other entries of the GID table.
    MoveGids,
}

impl GuestAction {
    /// Name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::MoveGids => "move_gids",
        }
    }
}

impl RunnerTasks {
    /// Most tasks that wait at a time.
    const MOST: usize = 64;

    /// Adds a task. Fails if too many wait.
    pub(crate) fn add(&mut self, task: RunnerTask) -> Result<(), String> {
        if self.pending.len() >= Self::MOST {
            return Err(format!(
                "{} was not done: {} actions wait for the runner of the scenario already",
                task.action.name(),
                Self::MOST
            ));
        }
        self.pending.insert(self.next, task);
        self.next = self.next.saturating_add(1);
        Ok(())
    }

    /// Tasks that wait, with their ids, the oldest first.
    pub fn pending(&self) -> impl Iterator<Item = (u64, RunnerTask)> {
        self.pending.iter().map(|(id, task)| (*id, *task))
    }

    /// The runner has finished a task. `None`: no such task waits.
    pub(crate) fn done(&mut self, id: u64) -> Option<RunnerTask> {
        self.pending.remove(&id)
    }
}

/// A scenario that has ended.
#[derive(Clone, Debug)]
pub struct StoppedScenario {
    /// Its name.
    pub name: String,
    /// From start to stop.
    pub time: Nanos,
    /// Whether its expectations were met.
    pub verdict: Verdict,
}

/// A scenario that its action `end` has ended.
#[derive(Debug)]
pub struct EndedScenario {
    /// Its verdict.
    pub stopped: StoppedScenario,
    /// How often each of its rules has fired.
    pub fired: Vec<Fired>,
}
