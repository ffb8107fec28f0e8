//! How the engine falls asleep, and how other threads wake it.
//!
//! No wake-up is lost, by two pairs of a store and a load (Dekker), each with a full barrier between them on both sides:
//!
//! - [`fall_asleep`] says everywhere that the engine sleeps, executes a barrier, looks for work once more, and only then
//!   waits. A ringer appends a doorbell, executes a barrier, and reads `asleep` in its page
//!   ([`faultline_abi::ring::must_kick`]); if it is set it kicks, which becomes a request.
//! - A thread with a request sends it, executes a barrier, and reads the engine's flag ([`wake`]); if it is set it writes
//!   the eventfd.
//!
//! Of two threads that each store and then load, at least one sees the other's store: either the engine finds the work in
//! its last look, or the other side finds it asleep.
//!
//! This module has the order of the steps and no words of its own, so that a model check goes through all interleavings of
//! the code that the engine runs (`tests/sleep_model.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

/// A full barrier: no later load is done before the stores ahead of it are visible.
pub trait Barrier {
    /// Executes it.
    fn barrier();
}

/// The processor's.
#[derive(Clone, Copy, Debug)]
pub struct Processor;

impl Barrier for Processor {
    fn barrier() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// What falls asleep.
pub trait Sleeper {
    /// Says to all who could bring work whether it sleeps.
    fn say(&self, asleep: bool);
    /// Whether there is work.
    fn has_work(&self) -> bool;
    /// Waits until it is woken, or has another reason to go on. A wake-up since the last wait ends this one.
    fn wait(&self);
}

/// Sleeps, unless there is work.
pub fn fall_asleep<B: Barrier>(sleeper: &impl Sleeper) {
    sleeper.say(true);
    B::barrier();
    if !sleeper.has_work() {
        sleeper.wait();
    }
    sleeper.say(false);
}

/// The engine's word that it sleeps.
pub trait Flag {
    /// Whether it is set.
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
