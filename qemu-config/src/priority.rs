//! The priority of a cluster's processes: those of guests that boot while tests run in others have a low one until they are
//! needed.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, getpriority_process, setpriority_process};

use crate::half_speed::HalfSpeed;
use crate::processes::with_descendants;

/// Niceness of guests that boot while tests run. Their share beside the tests is a tenth: enough for the kernel's timeouts.
const BESIDE: i32 = 10;
/// Passes over the threads of a process, at most: a thread that appears during a pass has its creator's old niceness.
const PASSES: usize = 10;

/// The processes of a cluster, and whether they have the niceness of a thread that boots beside tests.
#[derive(Debug, Clone, Default)]
pub struct Priority(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    low: bool,
    /// The niceness of the thread that has raised it.
    raised: Option<i32>,
    /// Each with its niceness relative to the lab's.
    processes: Vec<(Pid, i32)>,
    /// Holds each process back.
    half_speed: Option<Arc<HalfSpeed>>,
}

impl Priority {
    /// That of guests that boot while tests run in others.
    pub fn low() -> Self {
        let priority = Self::default();
        priority.lock().low = true;
        priority
    }

    /// The normal one, for processes that get half a processor each.
    pub fn at_half_speed(half_speed: Arc<HalfSpeed>) -> Self {
        let priority = Self::default();
        priority.lock().half_speed = Some(half_speed);
        priority
    }

    /// True until [`Self::raise`] for a low one.
    pub fn is_low(&self) -> bool {
        self.lock().low
    }

    /// Adds a process whose niceness is to be this much above that of the lab.
    pub fn add(&self, process: Pid, above: i32) {
        let mut state = self.lock();
        state.processes.push((process, above));
        if let Some(half_speed) = &state.half_speed {
            half_speed.add(process);
        }
        if let Some(normal) = state.raised {
            set(process, normal + above);
        }
    }

    /// Raises the priority of all processes, also of those that will be added, to that of a cluster that does not boot beside
    /// tests.
    pub fn raise(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.low) {
            let normal = getpriority_process(None).unwrap_or_default();
            state.raised = Some(normal);
            for &(process, above) in &state.processes {
                set(process, normal + above);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if the priority of this thread's processes may be raised again after it was lowered.
pub fn may_be_raised() -> bool {
    getpriority_process(None).is_ok_and(|before| {
        setpriority_process(None, before + 1).is_ok() && setpriority_process(None, before).is_ok()
    })
}

/// Lowers the priority of this thread and of the processes that it will start.
pub fn lower_this_thread() {
    // Without it, guests boot faster and tests run slower.
    let _ = setpriority_process(None, BESIDE);
}

/// Gives this thread's priority to all threads of this process and to all its descendants. Without it, steps that have started beside guests would hardly run on a machine that does other work.
pub fn raise_all() {
    let Ok(normal) = getpriority_process(None) else {
        return;
    };
    set_with_descendants(rustix::process::getpid().as_raw_pid(), normal);
}

fn set_with_descendants(process: i32, nice: i32) {
    for process in with_descendants(process).filter_map(Pid::from_raw) {
        set(process, nice);
    }
}

/// Sets the niceness of all threads of a process, which Linux keeps for each thread. Without the right to it they keep
/// theirs.
fn set(process: Pid, nice: i32) {
    for _ in 0..PASSES {
        let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
        let Ok(tasks) = fs::read_dir(tasks) else {
            return;
        };
        let mut changed = false;
        for task in tasks.flatten() {
            let id = task.file_name().to_string_lossy().parse().ok();
            let Some(thread) = id.and_then(Pid::from_raw) else {
                continue;
            };
            if getpriority_process(Some(thread)).is_ok_and(|now| now != nice) {
                changed |= setpriority_process(Some(thread), nice).is_ok();
            }
        }
        if !changed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::command::Owned;
    use crate::processes::children;

    fn nice_of(process: &Owned) -> i32 {
        getpriority_process(Some(process.id())).unwrap()
    }

    #[test]
    fn descendants_are_raised_too() {
        if !may_be_raised() {
            return;
        }
        let start = || {
            lower_this_thread();
            Owned::spawn(Command::new("sh").args(["-c", "sleep 1000 & wait"])).unwrap()
        };
        let shell = std::thread::spawn(start).join().unwrap();
        let id = shell.id().as_raw_pid();
        let sleep = loop {
            if let [sleep] = children(id)[..] {
                break Pid::from_raw(sleep);
            }
            std::thread::yield_now();
        };
        assert_eq!(getpriority_process(sleep).unwrap(), BESIDE);
        let normal = getpriority_process(None).unwrap();
        set_with_descendants(id, normal);
        assert_eq!(nice_of(&shell), normal);
        assert_eq!(getpriority_process(sleep).unwrap(), normal);
        rustix::process::kill_process(sleep.unwrap(), rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn a_low_priority_is_kept_until_it_is_raised() {
        if !may_be_raised() {
            return;
        }
        let normal = getpriority_process(None).unwrap();
        let beside = |work: fn() -> Owned| {
            let thread = move || {
                lower_this_thread();
                work()
            };
            std::thread::spawn(thread).join().unwrap()
        };
        let start = || Owned::spawn(Command::new("sleep").arg("1000")).unwrap();
        let (first, second) = (beside(start), beside(start));
        let priority = Priority::low();
        priority.add(first.id(), -1);
        assert_eq!(nice_of(&first), BESIDE);
        priority.raise();
        assert_eq!(nice_of(&first), normal - 1);
        priority.add(second.id(), 0);
        assert_eq!(nice_of(&second), normal);
        assert!(!priority.is_low());
    }
}
