//! The view in a terminal: input, time and pictures.

use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{MissedTickBehavior, sleep};

use super::draw::View;
use super::keys::{Key, Keys};
use super::panels::Panel;
use super::rates::{Rows, Sort, rows};
use super::sample::{Reader, Snapshot, printable};
use super::screen::{Screen, input};

/// Time limit for the rest of an escape sequence, as over a slow connection.
const ESCAPE_TIME: Duration = Duration::from_millis(100);
/// Period in which the age of old data is shown anew.
const REDRAW: Duration = Duration::from_secs(1);
/// Rows that a page has.
const PAGE: usize = 10;

/// Environment variable that makes the view panic, in builds with debug assertions only: a test checks that the terminal
/// is restored.
#[cfg(debug_assertions)]
const PANIC_VARIABLE: &str = "FAULTLINE_TEST_TOP_PANIC";

/// The parts of the view.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) reader: Reader,
    pub(super) source: String,
    pub(super) interval: Duration,
    pub(super) limit: Option<usize>,
    pub(super) sort: Sort,
}

/// State of the loop.
struct State {
    view: View,
    limit: Option<usize>,
    newest: Rows,
    /// The rows that are shown while the display is paused.
    frozen: Option<Rows>,
    read_at: Instant,
    lost: Option<String>,
}

impl Watch {
    /// Shows the process until the user ends it. Fails at once if there is no process.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let first = self.reader.read().await?;
        let mut ends = Ends::new()?;
        let mut resized = signal(SignalKind::window_change())?;
        let newest = rows(None, &first);
        let mut state = State {
            view: View {
                source: self.source.clone(),
                interval: self.interval,
                rows: newest.clone(),
                age: Duration::ZERO,
                notice: None,
                selected: Panel::QueuePairs,
                scroll: 0,
                paused: false,
                sort: self.sort,
            },
            limit: self.limit,
            newest,
            frozen: None,
            read_at: Instant::now(),
            lost: None,
        };
        state.refresh();
        let mut screen = Screen::enter()?;
        let mut typed = input()?;
        let (samples, mut received) = channel(1);
        tokio::spawn(sample(self.reader, self.interval, first, samples));
        let mut keys = Keys::default();
        loop {
            state.view.age = state.read_at.elapsed();
            screen.show(|buffer| state.view.draw(buffer))?;
            #[cfg(debug_assertions)]
            if std::env::var_os(PANIC_VARIABLE).is_some() {
                panic!("{PANIC_VARIABLE} is set");
            }
            tokio::select! {
                rows = next(&mut received) => state.take(rows?),
                bytes = typed.recv() => {
                    // Without bytes, the terminal is closed.
                    let Some(bytes) = bytes else { return Ok(()) };
                    for key in keys.push(&bytes) {
                        if !state.press(key, &mut screen) {
                            return Ok(());
                        }
                    }
                }
                () = sleep(ESCAPE_TIME), if keys.are_pending() => {
                    if let Some(key) = keys.end() && !state.press(key, &mut screen) {
                        return Ok(());
                    }
                }
                () = ends.wait() => return Ok(()),
                _ = resized.recv() => screen.forget(),
                () = sleep(REDRAW) => {}
            }
        }
    }
}

/// Signals that end the view.
struct Ends([Signal; 3]);

impl Ends {
    fn new() -> anyhow::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn wait(&mut self) {
        let Self([terminate, interrupt, hangup]) = self;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Reads snapshots until the view ends. After an error it tries again at the next time.
async fn sample(
    reader: Reader,
    interval: Duration,
    mut before: Snapshot,
    samples: Sender<anyhow::Result<Rows>>,
) {
    let mut ticks = tokio::time::interval(interval);
    // The first snapshot has been read.
    ticks.reset();
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let sample = reader.read().await.map(|after| {
            let rows = rows(Some(&before), &after);
            before = after;
            rows
        });
        if samples.send(sample).await.is_err() {
            return;
        }
    }
}

async fn next(
    received: &mut Receiver<anyhow::Result<Rows>>,
) -> anyhow::Result<anyhow::Result<Rows>> {
    match received.recv().await {
        Some(rows) => Ok(rows),
        None => bail!("the task that reads from the control server has ended"),
    }
}

impl State {
    fn take(&mut self, rows: anyhow::Result<Rows>) {
        match rows {
            Ok(rows) => {
                self.newest = rows;
                self.read_at = Instant::now();
                self.lost = None;
            }
            Err(error) => self.lost = Some(printable(&format!("{error:#}"))),
        }
        self.refresh();
    }

    /// Updates the view.
    fn refresh(&mut self) {
        let view = &mut self.view;
        view.notice = self
            .lost
            .as_ref()
            .map(|error| format!("no connection, tries again: {error}"));
        view.paused = self.frozen.is_some();
        view.rows = self.frozen.as_ref().unwrap_or(&self.newest).clone();
        view.rows.sort(view.sort);
        if let Some(limit) = self.limit {
            view.rows.limit(limit);
        }
    }

    /// Handles a key. Returns false if it ends the view.
    fn press(&mut self, key: Key, screen: &mut Screen) -> bool {
        let view = &mut self.view;
        let last = view.last_scroll(screen.lines());
        match key {
            Key::Quit => return false,
            Key::NextPanel => view.select(1),
            Key::PreviousPanel => view.select(Panel::ALL.len().saturating_sub(1)),
            Key::Up => view.scroll = view.scroll.min(last).saturating_sub(1),
            Key::Down => view.scroll = view.scroll.saturating_add(1).min(last),
            Key::PageUp => view.scroll = view.scroll.min(last).saturating_sub(PAGE),
            Key::PageDown => view.scroll = view.scroll.saturating_add(PAGE).min(last),
            Key::Pause => {
                self.frozen = match self.frozen {
                    Some(_) => None,
                    None => Some(self.newest.clone()),
                };
                self.refresh();
            }
            Key::Sort => {
                view.sort = match view.sort {
                    Sort::Rate => Sort::Bytes,
                    Sort::Bytes => Sort::Qpn,
                    Sort::Qpn => Sort::Rate,
                };
                self.refresh();
            }
            Key::Redraw => screen.forget(),
        }
        true
    }
}
