//! The runner of a scenario: executes in the guests the actions that the emulator cannot execute, and ends the programs
//! when the scenario ends the run.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::control::SHORT;
use crate::cluster::Cluster;
use crate::command::tail;
use crate::emulator::ctl;
use crate::guest::Guest;

/// Time from one look at the scenario to the next.
const PERIOD: Duration = Duration::from_millis(100);

/// Output of `faultline ctl scenario show --json`.
#[derive(Debug, Deserialize)]
struct View {
    ended: bool,
    tasks: Vec<Task>,
}

/// Something that only software in a guest can do.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Task {
    id: u64,
    /// Number of the NIC, and so of the guest.
    index: usize,
    action: String,
}

/// Watches a scenario.
pub(super) struct Runner<'a> {
    cluster: &'a Cluster,
    faultline: &'a Path,
    control: &'a Path,
    /// The programs have ended.
    is_over: AtomicBool,
    /// The scenario has ended the run.
    has_ended: AtomicBool,
    /// The program that ends with the scenario: its guest, and the number of the command.
    program: Mutex<Option<(&'a Guest, u32)>>,
    /// Guests whose GIDs have moved.
    moved: Mutex<BTreeSet<usize>>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(cluster: &'a Cluster, faultline: &'a Path, control: &'a Path) -> Self {
        Self {
            cluster,
            faultline,
            control,
            is_over: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            program: Mutex::new(None),
            moved: Mutex::new(BTreeSet::new()),
        }
    }

    /// The program has ended: there is nothing to watch any more.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// True if the action `end` has ended the run.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Names the command that is killed when the scenario ends the run.
    pub(super) fn kill_at_end(&self, guest: &'a Guest, id: u32) {
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        *program = Some((guest, id));
        if self.has_ended() {
            guest.kill(id);
        }
    }

    /// Executes the requests of the scenario until the programs have ended.
    ///
    /// # Errors
    /// If the scenario does not answer, or a guest has ended. Failures of actions in a guest are reported to the
    /// scenario.
    pub(super) fn watch(&self) -> Result<()> {
        while !self.is_over.load(Ordering::Relaxed) {
            let view = self.view()?;
            for task in &view.tasks {
                let result = self.carry_out(task);
                self.report(task.id, result.err())?;
            }
            if view.ended && !self.has_ended.swap(true, Ordering::Relaxed) {
                let program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((guest, id)) = *program {
                    guest.kill(id);
                }
            }
            thread::sleep(PERIOD);
        }
        Ok(())
    }

    fn view(&self) -> Result<View> {
        let output = ctl(self.faultline, self.control)
            .args(["--json", "scenario", "show"])
            .output()
            .context("starting faultline")?;
        ensure!(
            output.status.success(),
            "the scenario cannot be shown:\n{}",
            tail(&output.stderr, 20)
        );
        serde_json::from_slice(&output.stdout).context("reading the state of the scenario")
    }

    fn carry_out(&self, task: &Task) -> Result<()> {
        ensure!(
            task.action == "move_gids",
            "the lab knows no action {:?}",
            task.action
        );
        let guest = self.cluster.guests.get(task.index);
        let guest = guest.with_context(|| format!("there is no guest {}", task.index))?;
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        moved.insert(task.index);
        guest.must("lab_move_gid", SHORT).map(drop)
    }

    fn report(&self, id: u64, error: Option<anyhow::Error>) -> Result<()> {
        let mut command = ctl(self.faultline, self.control);
        command.args(["scenario", "done", &id.to_string()]);
        if let Some(error) = error {
            command.args(["--error", &format!("{error:#}")]);
        }
        let output = command.output().context("starting faultline")?;
        ensure!(
            output.status.success(),
            "the scenario does not accept that task {id} is done:\n{}",
            tail(&output.stderr, 20)
        );
        Ok(())
    }

    /// Moves GIDs back to their entries, which later programs expect.
    pub(super) fn restore(&self) -> Result<()> {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        for index in moved.iter() {
            if let Some(guest) = self.cluster.guests.get(*index) {
                guest
                    .must("lab_restore_gid", SHORT)
                    .context("moving a GID back")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_read() {
        let text = r#"{"name": "a", "running_ns": 5, "ended": false, "rules": [], "problems": [],
            "tasks": [{"id": 3, "nic": "nic1", "index": 1, "action": "move_gids"}]}"#;
        let view: View = serde_json::from_str(text).unwrap();
        let task = Task {
            id: 3,
            index: 1,
            action: "move_gids".to_owned(),
        };
        assert_eq!((view.ended, view.tasks), (false, vec![task]));
    }
}
