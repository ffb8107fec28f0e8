//! The protocol by which the engine sleeps and other threads wake it.
//!
//! No wake-up is lost, because of two store-load pairs (as in Dekker's algorithm), each with a full barrier between store
//! and load on both sides:
//!
//! - [`fall_asleep`] sets `asleep` in all doorbell pages and in the engine's flag, executes a barrier, checks for work once
//!   more, and waits only if there is none. Software that rings a doorbell appends it, executes a barrier, and reads
//!   `asleep` in its page ([`faultline_abi::ring::must_kick`]); if it is set, software writes the kick page, which becomes
//!   a request.
//! - A thread with a request sends it, executes a barrier, and reads the engine's flag ([`wake`]); if it is set, the thread
//!   writes the eventfd. Another engine does the same when it has put frames on a link, and when it has given used frames back, for
//!   which an engine with a full link may wait. So does the thread of a port that has made room, if the engine waits for that.
//!
//! Of two threads that each store and then load, at least one sees the other's store: either the engine finds the work in
//! its last check, or the other side finds it asleep.
//!
//! This module contains the order of the steps only; flags and barriers are type parameters, so that a model check covers
//! all interleavings of the code that the engine runs (`tests/sleep_model.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

/// A full barrier: no later load is done before the stores ahead of it are visible.
pub trait Barrier {
    /// Executes it.
    fn barrier();
}

/// The barrier of the processor.
#[derive(Clone, Copy, Debug)]
pub struct Processor;

impl Barrier for Processor {
    fn barrier() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// A thread that sleeps when it has no work.
pub trait Sleeper {
    /// Publishes whether it sleeps, to all sources of work.
    fn set_asleep(&self, asleep: bool);
    /// Returns true if there is work.
    fn has_work(&self) -> bool;
    /// Waits for a wake-up or another event. A wake-up since the last wait ends this one at once.
    fn wait(&self);
}

/// Sleeps, unless there is work.
pub fn fall_asleep<B: Barrier>(sleeper: &impl Sleeper) {
    sleeper.set_asleep(true);
    B::barrier();
    if !sleeper.has_work() {
        sleeper.wait();
    }
    sleeper.set_asleep(false);
}

/// The flag that the engine sets while it sleeps.
pub trait Flag {
    /// Returns true if it is set.
    fn is_set(&self) -> bool;
}

impl Flag for AtomicBool {
    fn is_set(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

/// Wakes the engine if it sleeps. To be called when a request has been sent.
pub fn wake<B: Barrier>(asleep: &impl Flag, wake_up: impl FnOnce()) {
    B::barrier();
    if asleep.is_set() {
        wake_up();
    }
}
