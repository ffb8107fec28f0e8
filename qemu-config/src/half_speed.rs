//! Processes that get half a processor each, as on a machine of half the speed: cgroups with a limit of processor time.
//!
//! Version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us`) of cgroups are known. The groups are removed at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Pid;

use crate::processes::with_descendants;

/// Microseconds after which a process gets new time. The default of Linux, 100 ms, would stop it for 50 ms at a time: a machine of
/// half the speed does not stop.
const PERIOD_US: u64 = 10_000;
/// Microseconds of processor time within each of them.
const QUOTA_US: u64 = PERIOD_US / 2;

/// Makes a group for each process.
#[derive(Debug)]
pub struct HalfSpeed {
    controller: Controller,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: Vec<PathBuf>,
    /// The first error.
    failed: Option<String>,
}

/// A folder in which groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Controller {
    V1(PathBuf),
    V2(PathBuf),
}

impl HalfSpeed {
    /// Fails if this process may not make groups, or the kernel has no limits of processor time.
    pub fn new() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/mounts").context("reading /proc/mounts")?;
        let own = fs::read_to_string("/proc/self/cgroup").context("reading /proc/self/cgroup")?;
        let controllers =
            |mount: &Path| fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
        let controller = Controller::find(&mounts, &own, controllers)?;
        controller.prepare()?;
        let half = Self {
            controller,
            state: Mutex::default(),
        };
        // An error is reported now, and not when guests boot.
        half.make_group().context(
            "--half-speed needs the right to make cgroups: run it as root, on a host (or in a container) with a writable /sys/fs/cgroup",
        )?;
        Ok(half)
    }

    /// Puts a process and its descendants into a group of their own. An error is kept for [`Self::ensure_added`].
    pub fn add(&self, process: Pid) {
        if let Err(error) = self.try_to_add(process) {
            let failed = &mut self.lock().failed;
            failed.get_or_insert_with(|| format!("{error:#}"));
        }
    }

    fn try_to_add(&self, process: Pid) -> Result<()> {
        let group = self.make_group()?;
        let procs = group.join("cgroup.procs");
        for id in with_descendants(process.as_raw_pid()) {
            fs::write(&procs, id.to_string())
                .with_context(|| format!("writing {id} to {}", procs.display()))?;
        }
        Ok(())
    }

    /// Fails if a process is not in its group: a run would show less than it says.
    pub fn ensure_added(&self) -> Result<()> {
        match &self.lock().failed {
            None => Ok(()),
            Some(error) => bail!("a process does not run at half the speed: {error}"),
        }
    }

    fn make_group(&self) -> Result<PathBuf> {
        let mut state = self.lock();
        let name = format!(
            "faultline-lab-{}-{}",
            std::process::id(),
            state.groups.len()
        );
        let group = self.controller.folder().join(name);
        fs::create_dir(&group).with_context(|| format!("making the cgroup {}", group.display()))?;
        state.groups.push(group.clone());
        drop(state);
        let set = |file: &str, value: String| {
            let file = group.join(file);
            fs::write(&file, &value)
                .with_context(|| format!("writing {value} to {}", file.display()))
        };
        match self.controller {
            Controller::V1(_) => {
                set("cpu.cfs_period_us", PERIOD_US.to_string())?;
                set("cpu.cfs_quota_us", QUOTA_US.to_string())?;
            }
            Controller::V2(_) => set("cpu.max", format!("{QUOTA_US} {PERIOD_US}"))?,
        }
        Ok(group)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HalfSpeed {
    fn drop(&mut self) {
        for group in self.lock().groups.drain(..) {
            // Its processes have ended with the guests. One that has not keeps its group.
            let _ = fs::remove_dir(group);
        }
    }
}

impl Controller {
    fn folder(&self) -> &Path {
        match self {
            Self::V1(folder) | Self::V2(folder) => folder,
        }
    }

    /// From the tables of mounts and of the groups of this process. `controllers`: those of a mount of version 2.
    fn find(mounts: &str, own: &str, controllers: impl Fn(&Path) -> String) -> Result<Self> {
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let &[_, mount, kind, options, ..] = fields.as_slice() else {
                continue;
            };
            let mount = Path::new(mount);
            let group = |id: &str| {
                let mut lines = own.lines().filter_map(|line| line.split_once(':'));
                lines.find_map(|(number, rest)| {
                    let (names, path) = rest.split_once(':')?;
                    let is_it = match id {
                        "" => number == "0",
                        id => names.split(',').any(|name| name == id),
                    };
                    is_it.then(|| mount.join(path.trim_start_matches('/')))
                })
            };
            if kind == "cgroup2"
                && controllers(mount)
                    .split_whitespace()
                    .any(|name| name == "cpu")
                && let Some(group) = group("")
            {
                return Ok(Self::V2(group));
            }
            if kind == "cgroup"
                && options.split(',').any(|name| name == "cpu")
                && let Some(group) = group("cpu")
            {
                return Ok(Self::V1(group));
            }
        }
        bail!("--half-speed needs the cgroup controller `cpu`, and no mount of this host has it")
    }

    /// Lets groups in this folder have limits.
    fn prepare(&self) -> Result<()> {
        let Self::V2(folder) = self else {
            return Ok(());
        };
        let file = folder.join("cgroup.subtree_control");
        let has_it = || {
            let now = fs::read_to_string(&file).unwrap_or_default();
            now.split_whitespace().any(|name| name == "cpu")
        };
        if !has_it() {
            let written = fs::write(&file, "+cpu");
            ensure!(
                written.is_ok() && has_it(),
                "--half-speed cannot enable the controller `cpu` in {}: {}; run the lab as root in the root cgroup, since another cgroup \
                 with processes of its own has no limits for groups below it",
                file.display(),
                written.map_or_else(
                    |error| error.to_string(),
                    |()| "it stays disabled".to_owned()
                )
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::command::Owned;

    /// Tells a hang from a busy machine.
    const HANG: Duration = Duration::from_secs(60);

    #[test]
    fn controllers_of_both_versions_are_found() {
        let none = |_: &Path| String::new();
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let own = "3:cpuset:/\n1:cpu,cpuacct:/a/b\n0::/c\n";
        let find = |mounts, controllers: &dyn Fn(&Path) -> String| {
            Controller::find(mounts, own, controllers)
        };
        assert_eq!(
            find(mounts, &none).unwrap(),
            Controller::V1("/sys/fs/cgroup/cpu/a/b".into())
        );
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(
            find(mounts, &|_| "memory cpu io\n".to_owned()).unwrap(),
            Controller::V2("/sys/fs/cgroup/c".into())
        );
        let error = find(mounts, &|_| "memory cpuset\n".to_owned()).unwrap_err();
        assert!(
            error.to_string().contains("no mount of this host"),
            "{error}"
        );
    }

    /// Where groups can be made, a busy process is held back.
    #[test]
    fn a_busy_process_is_held_back() {
        let Ok(half) = HalfSpeed::new() else {
            return;
        };
        let busy = Owned::spawn(Command::new("sh").args(["-c", "while :; do :; done"])).unwrap();
        half.add(busy.id());
        half.ensure_added().unwrap();
        let group = half.lock().groups.last().unwrap().clone();
        let held_back = || {
            let stat = fs::read_to_string(group.join("cpu.stat")).unwrap();
            let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
            lines.any(|(name, count)| name == "nr_throttled" && count != "0")
        };
        let started = Instant::now();
        while !held_back() {
            assert!(started.elapsed() < HANG, "it was never held back");
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(busy);
    }

    #[test]
    fn a_process_that_cannot_be_added_is_reported() {
        let Ok(half) = HalfSpeed::new() else {
            return;
        };
        // Larger than any that Linux gives: see proc_sys_kernel(5), pid_max.
        half.add(Pid::from_raw(1 << 22 | 1).unwrap());
        let error = half.ensure_added().unwrap_err().to_string();
        assert!(error.contains("cgroup.procs"), "{error}");
    }
}
