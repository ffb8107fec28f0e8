//! Tests that need a process of their own, one after the other: `wakeups` and `reboot` read the state and the processor time of
//! the one thread `engine` of this process, `readers` compares rates and uses up the snapshots that a process may have.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod observed;
mod readers;
mod reboot;
mod wakeups;

/// Held by each test while it runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
