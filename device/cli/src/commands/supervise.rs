//! `faultline serve --supervisor`: starts the server, and starts it again when it has ended.

use std::ffi::OsString;
use std::io::Result;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use faultline_config::Config;
use faultline_daemon::server::supervisor::Supervisor;
use rustix::process::{Pid, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A server that ends before has failed to start, or will fail again.
const QUICK: Duration = Duration::from_secs(1);
/// Pause after the second such server in a row; it doubles with each.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(3200);
/// Time limit for the end of a server, before it is killed.
const END: Duration = Duration::from_secs(10);

/// The signals that a supervisor handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    renew: Signal,
}

/// Why a supervisor no longer waits.
enum Event<T = ExitStatus> {
    /// The awaited event has come.
    Ended(T),
    /// The supervisor is to end.
    Stop(&'static str),
    /// The server is to be started anew.
    Renew,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let handle = |kind, name| signal(kind).with_context(|| format!("can't handle {name}"));
        Ok(Self {
            terminate: handle(SignalKind::terminate(), "SIGTERM")?,
            interrupt: handle(SignalKind::interrupt(), "SIGINT")?,
            renew: handle(SignalKind::hangup(), "SIGHUP")?,
        })
    }

    /// Waits until something has ended, a server or a pause, or for a signal.
    async fn next<T>(&mut self, ended: impl Future<Output = Result<T>>) -> Result<Event<T>> {
        tokio::select! {
            result = ended => result.map(Event::Ended),
            _ = self.terminate.recv() => Ok(Event::Stop("SIGTERM")),
            _ = self.interrupt.recv() => Ok(Event::Stop("SIGINT")),
            _ = self.renew.recv() => Ok(Event::Renew),
        }
    }
}

/// How servers are started.
struct Servers {
    program: PathBuf,
    arguments: Vec<OsString>,
    supervisor: Supervisor,
}

impl Servers {
    fn new(config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            program: std::env::current_exe().context("can't find the program")?,
            arguments: std::env::args_os()
                .skip(1)
                .filter(|argument| argument != "--supervisor")
                .collect(),
            supervisor: Supervisor::start(config)?,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg("--kept-in");
        command.arg(self.supervisor.folder()).kill_on_drop(true);
        command
    }

    fn start(&self) -> anyhow::Result<Child> {
        let child = self.command().spawn();
        child.with_context(|| format!("can't start {}", self.program.display()))
    }

    /// Asks the program, which may be a new one, whether it would start with the configuration, which may have changed.
    async fn would_start(&self) -> bool {
        let mut command = self.command();
        command.arg("--check").stdout(Stdio::null());
        let status = tokio::time::timeout(END, command.status()).await;
        matches!(status, Ok(Ok(status)) if status.success())
    }

    /// Starts a server and waits until it ends.
    async fn serve(&self, signals: &mut Signals) -> anyhow::Result<Event> {
        let mut child = self.start()?;
        let event = self.wait(&mut child, signals).await?;
        if !matches!(event, Event::Ended(_)) {
            end(&mut child).await?;
        }
        Ok(event)
    }

    /// Waits for an event that ends a server.
    async fn wait(&self, child: &mut Child, signals: &mut Signals) -> Result<Event> {
        loop {
            match signals.next(child.wait()).await? {
                Event::Renew => {}
                event => return Ok(event),
            }
            let check = self.would_start();
            tokio::pin!(check);
            // The old server may end meanwhile, and a further SIGHUP requests the restart that is under way.
            let starts = loop {
                tokio::select! {
                    starts = &mut check => break starts,
                    event = signals.next(child.wait()) => match event? {
                        Event::Renew => {}
                        event => return Ok(event),
                    },
                }
            };
            if starts {
                tracing::info!("SIGHUP: starting the server anew");
                return Ok(Event::Renew);
            }
            tracing::error!(
                "SIGHUP: a new server would not start, see above: the old one continues"
            );
        }
    }
}

/// Ends a server in good order, or kills it.
async fn end(child: &mut Child) -> Result<()> {
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) {
        // It may have ended already.
        let _ = kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(END, child.wait()).await.is_err() {
        tracing::warn!("the server does not end: killing it");
        child.kill().await?;
    }
    Ok(())
}

/// The pause after `quick` servers in a row that have ended at once.
fn pause(quick: u32) -> Duration {
    let Some(doublings) = quick.checked_sub(2) else {
        return Duration::ZERO;
    };
    let pause = PAUSE.saturating_mul(2_u32.saturating_pow(doublings));
    pause.min(MAX_PAUSE)
}

/// Holds the clients' connections, and starts servers, until a signal ends it.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run(config: Config) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let servers = Servers::new(&config)?;
    // Before a server has run for a while, the cause is most likely an error of the configuration. Later the clients'
    // connections are held in any case: the next server may work, or the program may be installed again.
    let mut has_run = false;
    let mut quick: u32 = 0;
    loop {
        let start = Instant::now();
        let event = servers.serve(&mut signals).await;
        let is_quick = start.elapsed() < QUICK;
        has_run |= !is_quick;
        quick = match (is_quick, &event) {
            (true, Ok(Event::Ended(_)) | Err(_)) => quick.saturating_add(1),
            _ => 0,
        };
        let why = match event {
            Ok(Event::Stop(name)) => {
                tracing::info!("{name}: ending");
                return Ok(());
            }
            Ok(Event::Renew) => continue,
            Ok(Event::Ended(status)) => format!("the server has ended ({status})"),
            Err(error) => format!("{error:#}"),
        };
        if !has_run {
            bail!("the server can't be started, see above: {why}");
        }
        let pause = pause(quick);
        tracing::error!("{why}: starting it again, after {pause:?}");
        let paused = async {
            tokio::time::sleep(pause).await;
            Ok(())
        };
        // SIGHUP ends the pause.
        if let Event::Stop(name) = signals.next(paused).await? {
            tracing::info!("{name}: ending");
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let millis = [0, 0, 100, 200, 400, 800, 1600, 3200, 3200];
        let pauses: Vec<Duration> = (0..9).map(pause).collect();
        assert_eq!(pauses, millis.map(Duration::from_millis));
        assert_eq!(pause(u32::MAX), MAX_PAUSE);
    }
}
