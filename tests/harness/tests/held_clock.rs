//! A device clock that a test moves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use faultline_harness::testbed::SetOnDrop;
use serde_json::Value;

use crate::observed::request;

/// The device clock of a process, which stands still from [`HeldClock::hold`] on and advances only as the test says. So a test about
/// time has the same result however busy the machine is. Several engines are one meanwhile.
pub struct HeldClock<'a> {
    socket: &'a Path,
}

impl<'a> HeldClock<'a> {
    /// Passes of a step. If each has done something, there may be more to do.
    const PASSES: u32 = 64;

    pub fn hold(socket: &'a Path) -> Self {
        request(socket, "PUT", "/v1/engine", r#"{"paused": true}"#);
        Self { socket }
    }

    /// Returns how many of the passes have done something. Each step has a connection of its own, because the server ends those that are
    /// idle or old, and a test may be stopped for any time.
    fn step(&self, advance_us: u128) -> u64 {
        let passes = Self::PASSES;
        let body = format!("{{\"passes\": {passes}, \"advance_us\": {advance_us}}}");
        let stepped = request(self.socket, "POST", "/v1/engine/step", &body);
        let stepped: Value = serde_json::from_str(&stepped).unwrap();
        stepped["worked"].as_u64().unwrap()
    }

    /// Advances the clock at once, and lets the NICs do all that is due then. Returns true if that was anything.
    pub fn advance(&self, by: Duration) -> bool {
        let first = self.step(by.as_micros());
        let mut worked = first;
        while worked == u64::from(Self::PASSES) {
            worked = self.step(0);
        }
        first > 0
    }

    /// Lets the NICs work while the clock stands still, for something that waits for them.
    pub fn standing<R>(&self, work: impl FnOnce() -> R) -> R {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = self.advance(Duration::ZERO);
                }
            });
            let _ended = SetOnDrop(&is_over);
            work()
        })
    }

    /// Lets the clock go on.
    pub fn release(self) {
        request(self.socket, "PUT", "/v1/engine", r#"{"paused": false}"#);
    }
}
