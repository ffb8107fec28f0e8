//! The end of commands that run for a time, by a signal.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::status::{SIGINT, SIGTERM, after_signal};

/// No signal has come.
const NONE: u8 = 0;

/// SIGINT and SIGTERM ask a command to end with the results that it has. A second signal ends it at once.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicU8>);

impl Stop {
    /// Handles both signals from now on.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let first = Arc::new(AtomicU8::new(NONE));
        let stop = Self(Arc::clone(&first));
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
                let number = tokio::select! {
                    _ = interrupt.recv() => SIGINT,
                    _ = terminate.recv() => SIGTERM,
                };
                if first.swap(number, Ordering::Relaxed) != NONE {
                    std::process::exit(after_signal(number).into());
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
        self.0.load(Ordering::Relaxed) != NONE
    }

    /// The exit status of a command that a signal has interrupted; `None`: no signal has come.
    pub(crate) fn status(&self) -> Option<ExitCode> {
        let number = self.0.load(Ordering::Relaxed);
        (number != NONE).then(|| ExitCode::from(after_signal(number)))
    }
}
