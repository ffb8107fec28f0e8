//! `faultline trace` and `faultline report`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use faultline::control::objects::{ContextView, QueuePairView};
use faultline_telemetry::{
    QueuePairOwner, Record, Report, Trace, TraceFormat, TraceHeader, latency_picture,
    time_line_picture,
};
use hyper::Method;
use serde::{Deserialize, Serialize};

use super::client::{Client, Target, segment};
use super::ctl::all;
use super::print_text;

/// Records that one request asks for; the control server gives no more.
const PART: u64 = 4096;
/// Pause before the next request, once all records have been read.
const PAUSE: Duration = Duration::from_millis(20);

/// Save the newest events of a running process.
///
/// The name of the file selects the form: .jsonl for one record in each line, .json or .pftrace for Perfetto
/// (ui.perfetto.dev). `faultline report` reads each of them.
#[derive(Debug, clap::Args)]
pub(crate) struct Save {
    /// Where to write the trace.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Go on for this many seconds, so that the trace may have more events than the process keeps.
    #[arg(long, value_name = "S", default_value_t = 0)]
    follow: u64,
    /// Print the number of events as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Print where the time of page faults in a trace has gone.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// A file that `faultline trace` has written.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Draw the distribution of the latency into this SVG file.
    #[arg(long, value_name = "FILE")]
    histogram: Option<PathBuf>,
    /// Draw the faults over time into this SVG file.
    #[arg(long, value_name = "FILE")]
    time_line: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Saved {
    file: String,
    events: usize,
    /// Older events that were overwritten before they could be read.
    lost: u64,
}

/// The first line of an answer.
#[derive(Deserialize)]
struct PartHeader {
    nics: Vec<String>,
    next: u64,
    lost: u64,
    /// The device clock in nanoseconds.
    now: u64,
}

impl Save {
    /// Executes the command.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        // Before anything is read: a wrong name would lose it.
        let format = TraceFormat::of_path(&self.output)?;
        let trace = collect(&self.target.client()?, Duration::from_secs(self.follow))?;
        let path = self.output.display();
        let file = File::create(&self.output).with_context(|| format!("can't create {path}"))?;
        let mut file = BufWriter::new(file);
        let written = trace.write(format, &mut file).map_err(anyhow::Error::from);
        let written = written.and_then(|()| Ok(file.flush()?));
        written.with_context(|| format!("can't write {path}"))?;
        let mut text = format!("{} events in {path}\n", trace.records.len());
        if self.json {
            let saved = Saved {
                file: path.to_string(),
                events: trace.records.len(),
                lost: trace.header.lost,
            };
            text = serde_json::to_string_pretty(&saved)? + "\n";
        } else if trace.header.lost > 0 {
            text += &format!(
                "{} older events were overwritten before they could be read: trace_records in the configuration keeps more\n",
                trace.header.lost
            );
        }
        print_text(&text)
    }
}

/// Reads the records of the ring, and those that come in the time `follow` after the first request. The device's clock
/// tells the end: a process under load makes records faster than they can be read. In a pause it stands still, so the end is
/// also when that time is over and there are no more records.
fn collect(client: &Client, follow: Duration) -> anyhow::Result<Trace> {
    let start = Instant::now();
    let (header, records) = part(client, 0)?;
    let end = header.now.saturating_add(nanoseconds(follow));
    let mut trace = Trace {
        header: TraceHeader::new(header.nics),
        records,
    };
    trace.header.queue_pairs = owners(client, &trace.header.nics)?;
    let (mut next, mut now) = (header.next, header.now);
    loop {
        let is_late = |record: &Record| record.at.0 >= end;
        let last = trace.records.last();
        if last.is_some_and(is_late) {
            trace.records.retain(|record| !is_late(record));
            return Ok(trace);
        }
        let (header, records) = part(client, next)?;
        if records.is_empty() {
            if now >= end || start.elapsed() >= follow {
                return Ok(trace);
            }
            sleep(PAUSE);
        }
        if header.next < next || (header.next == next && !records.is_empty()) {
            bail!(
                "the answer to /v1/trace is not what this version expects: record {} follows record {next}",
                header.next
            );
        }
        trace.header.lost = trace.header.lost.saturating_add(header.lost);
        trace.records.extend(records);
        (next, now) = (header.next, header.now);
    }
}

/// The processes that own the queue pairs that exist now, as their guests say.
fn owners(client: &Client, nics: &[String]) -> anyhow::Result<Vec<QueuePairOwner>> {
    let mut owners = Vec::new();
    for (nic, name) in (0..).zip(nics) {
        let path = format!("/v1/nics/{}", segment(name));
        let contexts: Vec<ContextView> = all(client, &format!("{path}/contexts"))?;
        let pairs: Vec<QueuePairView> = all(client, &format!("{path}/queue-pairs"))?;
        owners.extend(pairs.iter().filter_map(|pair| {
            let mut contexts = contexts.iter();
            let context = contexts.find(|context| context.context == pair.context)?;
            Some(QueuePairOwner {
                nic,
                qpn: pair.qpn,
                process: context.program.clone()?,
                pid: context.pid?,
            })
        }));
    }
    Ok(owners)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn part(client: &Client, from: u64) -> anyhow::Result<(PartHeader, Vec<Record>)> {
    let path = format!("/v1/trace?from={from}&limit={PART}");
    let mut text = Vec::new();
    client.request(Method::GET, &path, Vec::new(), |part| {
        text.extend_from_slice(part);
        Ok(())
    })?;
    let mut lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let strange = || format!("the answer to {path} is not what this version expects");
    let header = lines.next().with_context(strange)?;
    let header = serde_json::from_slice(header).with_context(strange)?;
    let records = lines.map(serde_json::from_slice).collect::<Result<_, _>>();
    Ok((header, records.with_context(strange)?))
}

impl Show {
    /// Executes the command.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let path = self.file.display();
        let bytes = std::fs::read(&self.file).with_context(|| format!("can't read {path}"))?;
        let trace = Trace::read(&bytes).with_context(|| format!("can't read {path}"))?;
        if let Some(file) = &self.histogram {
            save(file, &latency_picture(&trace)?)?;
        }
        if let Some(file) = &self.time_line {
            save(file, &time_line_picture(&trace)?)?;
        }
        let report = Report::new(&trace);
        let mut text = match self.json {
            true => serde_json::to_string_pretty(&report)?,
            false => report.to_string(),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        print_text(&text)
    }
}

fn save(path: &Path, picture: &str) -> anyhow::Result<()> {
    std::fs::write(path, picture).with_context(|| format!("can't write {}", path.display()))
}
