//! `faultline top`: the current activity of a process.
//!
//! - `sample`: snapshots, read from the control server
//! - `rates`: two snapshots make rows with rates
//! - `panels`: rows as tables of text
//! - `draw`: the picture
//! - `screen`, `keys`: the terminal
//! - `watch`: the loop of the view

mod draw;
#[cfg(test)]
mod fixture;
mod keys;
mod panels;
mod rates;
mod sample;
mod screen;
mod watch;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::bail;
use tokio::time::{MissedTickBehavior, interval};

use super::client::Target;
use super::{complain, print_to_reader};
use panels::{Panel, engine};
use rates::{Rows, Sort, rows};
use sample::{MAX_OBJECTS, Reader, Snapshot, printable};
use watch::Watch;

/// Rows of each list that `--once` prints.
const TEXT_ROWS: usize = 20;
/// Shortest and longest interval in seconds.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=60.0;

/// Watch the NICs, queue pairs, page faults and regions of a running process.
///
/// Keys: q quit, Tab and left/right select a panel, up/down scroll it, s order of the queue pairs, p pause the display.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    #[command(flatten)]
    target: Target,
    /// Print the rates of one interval as text, and end.
    #[arg(long)]
    once: bool,
    /// Print JSON: one object a line for each interval; with --once a single one.
    #[arg(long)]
    json: bool,
    /// Time between two samples, 0.1 to 60.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Show only this NIC.
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,
    /// Most rows of each list; default: 20 for text, else all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    limit: Option<u16>,
    /// Order of the queue pairs.
    #[arg(long, default_value = "rate")]
    sort: Sort,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|value| INTERVALS.contains(value));
    let seconds = seconds.ok_or_else(|| "it must be 0.1 to 60 seconds".to_owned())?;
    Ok(Duration::from_secs_f64(seconds))
}

impl Top {
    /// Executes the command.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let is_text = self.once || self.json;
        let has_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if !is_text && !has_terminal {
            bail!("standard input and output must be a terminal: use --once or --json");
        }
        let (remote, runtime) = self.target.client()?.into_parts();
        let source = printable(&remote.socket().to_string_lossy());
        let reader = Reader::new(remote, self.nic.clone());
        let limit = self.limit.map(usize::from);
        if is_text {
            return runtime.block_on(self.print(reader, limit));
        }
        let watch = Watch {
            reader,
            source,
            interval: self.interval,
            limit,
            sort: self.sort,
        };
        runtime.block_on(watch.run())
    }

    /// Prints rows, once or for each interval.
    async fn print(&self, reader: Reader, limit: Option<usize>) -> anyhow::Result<()> {
        let mut before = reader.read().await?;
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is now.
        ticks.tick().await;
        let mut lost = false;
        loop {
            ticks.tick().await;
            let after = match reader.read().await {
                Ok(after) => after,
                Err(error) if self.once => return Err(error),
                Err(error) => {
                    if !std::mem::replace(&mut lost, true) {
                        let error = printable(&format!("{error:#}"));
                        complain(format!("no connection, tries again: {error}"));
                    }
                    continue;
                }
            };
            lost = false;
            let text = self.text(&before, &after, limit)?;
            if !print_to_reader(text.as_bytes())? || self.once {
                return Ok(());
            }
            before = after;
        }
    }

    fn text(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        limit: Option<usize>,
    ) -> anyhow::Result<String> {
        let mut rows = rows(Some(before), after);
        rows.sort(self.sort);
        if self.json {
            rows.limit(limit.unwrap_or(usize::MAX));
            return Ok(serde_json::to_string(&rows)? + "\n");
        }
        Ok(text(&rows, limit.unwrap_or(TEXT_ROWS)))
    }
}

/// The tables as text.
fn text(rows: &Rows, limit: usize) -> String {
    let mut text = engine(rows) + "\n";
    for panel in Panel::ALL {
        let count = panel.len(rows);
        let table = panel.table(rows, 0..limit.min(count));
        text += &format!("\n{}\n", table.title);
        for (line, _) in table.lines(2, usize::MAX) {
            text += &line;
            text.push('\n');
        }
        if count > limit {
            text += &format!(
                "and {} more: --limit N prints more\n",
                count.saturating_sub(limit)
            );
        }
    }
    if rows.incomplete.queue_pairs || rows.incomplete.regions {
        text += &format!(
            "\nOf all queue pairs, regions and contexts the first {MAX_OBJECTS} each are read.\n"
        );
    }
    text
}
