//! Wake-ups that drivers have missed, as emulators count them: a driver must not need the end of the engine's sleep to be served.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::command::capture;
use crate::emulator;

/// Limit for the emulator to find out whether a doorbell has missed it, which takes some seconds.
const DECISION_LIMIT: Duration = Duration::from_secs(60);

/// What `faultline ctl engine` shows of them.
#[derive(Debug, Deserialize)]
struct Wakeups {
    missed_wakeups: u64,
    awaited_kicks: u64,
}

/// How many wake-ups the drivers of an emulator's NICs have missed since its start.
pub fn missed(program: &Path, control: &Path) -> Result<u64> {
    let started = Instant::now();
    loop {
        let text = capture(emulator::ctl(program, control).args(["--json", "engine"]))?;
        let now: Wakeups =
            serde_json::from_str(&text).with_context(|| format!("reading {text:?}"))?;
        if now.awaited_kicks == 0 || now.missed_wakeups > 0 {
            return Ok(now.missed_wakeups);
        }
        ensure!(
            started.elapsed() < DECISION_LIMIT,
            "a write to a kick page is awaited for ever: {text}"
        );
        thread::sleep(Duration::from_millis(100));
    }
}
