//! What the engines of a capture, and the thread that takes its records, share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use faultline_nic::Instant;

/// Frames of an interface that a capture has, and that it has lost.
#[derive(Debug, Default)]
pub struct CaptureCount {
    /// Frames in the rings, until now.
    pub kept: AtomicU64,
    /// Frames for which there was no room.
    pub lost: AtomicU64,
}

/// States of a capture, in their order.
const BEGINS: u8 = 0;
const RUNS: u8 = 1;
const ENDED: u8 = 2;

/// Bound of an engine that adds no records.
const NONE: u64 = u64::MAX;

/// What is shared.
#[derive(Debug)]
pub struct CaptureShare {
    /// Frames are captured while it runs. An engine that has seen a change of it does so before it sends what another engine receives,
    /// which sees it then, too. So of a frame and what it has caused both are captured, unless the capture begins or ends between them.
    state: AtomicU8,
    /// By engine: it adds no record any more with a time before this one.
    bounds: Vec<AtomicU64>,
    /// By interface. Only the engine of the interface writes them.
    pub by_interface: Vec<CaptureCount>,
    /// Frames and notices that were lost in any engine.
    losses: AtomicU64,
    /// Time of the last of them.
    last_loss: AtomicU64,
}

impl CaptureShare {
    /// For a number of interfaces and engines.
    pub fn new(interfaces: usize, engines: usize) -> Arc<Self> {
        let counts = (0..interfaces).map(|_| CaptureCount::default());
        let bounds = (0..engines).map(|_| AtomicU64::new(0));
        Arc::new(Self {
            state: AtomicU8::new(BEGINS),
            bounds: bounds.collect(),
            by_interface: counts.collect(),
            losses: AtomicU64::new(0),
            last_loss: AtomicU64::new(0),
        })
    }

    /// All engines have begun the capture. Returns false if one has ended it already.
    pub fn run(&self) -> bool {
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let before = self.state.compare_exchange(BEGINS, RUNS, set, fetch);
        before.is_ok()
    }

    /// True between [`Self::run`] and [`Self::end`].
    pub fn is_running(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RUNS
    }

    /// An engine has ended the capture, and with it all do.
    pub fn end(&self) {
        self.state.store(ENDED, Ordering::Relaxed);
    }

    /// True after [`Self::end`].
    pub fn has_ended(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ENDED
    }

    /// The records of an engine until its next pass have this time, or later ones. `None`: there are none until then.
    pub fn set_bound(&self, engine: usize, from: Option<Instant>) {
        if let Some(bound) = self.bounds.get(engine) {
            // Who sees it sees the records before it.
            bound.store(from.map_or(NONE, |from| from.0), Ordering::Release);
        }
    }

    /// The smallest time of records that an engine has not added yet.
    pub fn bound(&self, engine: usize) -> u64 {
        let bound = self.bounds.get(engine);
        bound.map_or(NONE, |bound| bound.load(Ordering::Acquire))
    }

    /// Something was lost.
    pub fn note_loss(&self, at: Instant) {
        self.last_loss.fetch_max(at.0, Ordering::Relaxed);
        // Who sees the loss sees its time.
        self.losses.fetch_add(1, Ordering::Release);
    }

    /// Losses until now, and the time of the last one.
    pub fn losses(&self) -> (u64, Instant) {
        let losses = self.losses.load(Ordering::Acquire);
        (losses, Instant(self.last_loss.load(Ordering::Relaxed)))
    }
}
