//! Time limits of waits for events that must happen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long is waited for anything that must happen. It only tells a hang from a busy machine, so it is longer than a thread that
/// wants to run waits for a processor on any machine that tests run on. No test depends on its length, and nothing that a test
/// shows is a matter of it: what must happen at a time is shown by the device clock, and what must not happen by something that
/// happens after it.
pub const LONG: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "never: {what}");
        // The thread that is waited for may need this processor.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sets a flag when it is dropped, so that a thread which looks at the flag ends also if a test panics.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
