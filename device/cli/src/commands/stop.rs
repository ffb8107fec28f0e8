//! The end of commands that run for a time, by a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

/// Exit status after a second signal: as a shell reports SIGINT.
const AT_ONCE: i32 = 130;

/// SIGINT and SIGTERM ask a command to end with the results that it has. A second signal ends it at once.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Handles both signals from now on.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let is_wanted = Arc::new(AtomicBool::new(false));
        let stop = Self(Arc::clone(&is_wanted));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (mut interrupt, mut terminate) = {
            let _entered = runtime.enter();
            let handle = |kind, name| signal(kind).with_context(|| format!("can't handle {name}"));
            (
                handle(SignalKind::interrupt(), "SIGINT")?,
                handle(SignalKind::terminate(), "SIGTERM")?,
            )
        };
        let wait = async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if is_wanted.swap(true, Ordering::Relaxed) {
                    std::process::exit(AT_ONCE);
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(wait))?;
        Ok(stop)
    }

    /// Returns true after a signal.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
