//! `faultline trace` and `faultline report`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use faultline_control::objects::{ContextView, QueuePairView};
use faultline_control::view::TraceHeader as PartHeader;
use faultline_telemetry::{
    Gap, QueuePairOwner, Record, Report, Trace, TraceFormat, TraceHeader, latency_picture,
    time_line_picture,
};
use hyper::Method;
use serde::Serialize;

use super::client::{Client, Target, segment};
use super::ctl::all;
use super::print_text;
use super::status::UnusableInput;
use super::stop::Stop;
use super::ui::run::Run;

/// Largest trace that is read: some million events.
const MAX_BYTES: usize = 1 << 30;
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
    /// Continue for this many seconds, so that the trace may have more events than the process keeps. A signal (Ctrl-C)
    /// ends it before.
    #[arg(long, value_name = "S", default_value_t = 0)]
    follow: u64,
    /// Print the number of events as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Print a report of the page faults in a trace, by stage.
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
    /// Write a page for a browser into this HTML file. It needs no other file and no server.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Saved {
    file: String,
    events: usize,
    /// Older events that were overwritten before they could be read.
    lost: u64,
}

impl Save {
    /// Executes the command.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        // Before anything is read: a wrong name would lose it.
        let format = TraceFormat::of_path(&self.output)?;
        faultline_files::check_writable(&self.output)?;
        let stop = Stop::new()?;
        let follow = Duration::from_secs(self.follow);
        let trace = collect(&self.target.client()?, follow, &stop)?;
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
        let gaps = trace.header.gaps.iter();
        let gaps = gaps.filter(|gap| gap.after.is_some()).count();
        if gaps > 0 {
            text += &format!("the trace has {gaps} gaps, which are marked in it\n");
        }
        print_text(&text)
    }
}

/// Reads the records of the rings, and further ones in the time `follow` after the first request. Each answer has all
/// records of one point in time. The end follows from the device clock, because a process under load makes records
/// faster than they can be read. In a pause that clock stands still, so the collection also ends when the time is over
/// and there are no more records. A signal ends it, too.
fn collect(client: &Client, follow: Duration, stop: &Stop) -> anyhow::Result<Trace> {
    let start = Instant::now();
    let (header, records) = snapshot(client, 0)?;
    let end = header.now.saturating_add(nanoseconds(follow));
    let (mut next, mut now) = (header.next, header.now);
    let mut collected = Collected::new(&header);
    collected.add(&header, records);
    let (nics, first) = (header.nics, faultline_nic::Instant(header.now));
    collected.trace.header.queue_pairs = owners(client, &nics, first)?;
    while !collected.ends_at(end) && now < end && !stop.is_wanted() {
        let (header, records) = snapshot(client, next)?;
        let is_empty = records.is_empty();
        if header.next < next || (header.next == next && !is_empty) {
            bail!(
                "the answer to /v1/trace/snapshot is not what this version expects: record {} follows record {next}",
                header.next
            );
        }
        collected.add(&header, records);
        (next, now) = (header.next, header.now);
        if is_empty {
            if start.elapsed() >= follow {
                break;
            }
            sleep(PAUSE);
        }
    }
    if now > first.0 {
        // Those of queue pairs that were created meanwhile.
        let later = owners(client, &nics, faultline_nic::Instant(now))?;
        collected.trace.header.queue_pairs.extend(later);
    }
    Ok(collected.trace)
}

/// Answers to requests for the records, joined.
struct Collected {
    trace: Trace,
    /// Of each NIC: the number of its records since its start until the last answer, and the time of the last one in
    /// the trace.
    nics: Vec<(u64, Option<faultline_nic::Instant>)>,
}

impl Collected {
    fn new(header: &PartHeader) -> Self {
        Self {
            trace: Trace {
                header: TraceHeader::new(header.nics.clone()),
                records: Vec::new(),
            },
            nics: vec![(0, None); header.recorded.len()],
        }
    }

    /// Adds an answer that has all records after those of the answers before.
    fn add(&mut self, header: &PartHeader, records: Vec<Record>) {
        let head = &mut self.trace.header;
        head.lost = head.lost.saturating_add(header.lost);
        let numbered = (0..).zip(&mut self.nics);
        for ((nic, (known, last)), recorded) in numbered.zip(&header.recorded) {
            let mut own = records.iter().filter(|record| record.nic == nic);
            let first = own.clone().next().map(|record| record.at);
            let new = recorded.saturating_sub(*known);
            let lost = new.saturating_sub(own.clone().count() as u64);
            if lost > 0 {
                head.gaps.push(Gap {
                    nic,
                    after: *last,
                    before: first,
                    lost,
                });
            }
            *known = *recorded;
            *last = own.next_back().map(|record| record.at).or(*last);
        }
        self.trace.records.extend(records);
    }

    /// Returns true if there are records of this time or later. They are removed, and the gaps behind it.
    fn ends_at(&mut self, end: u64) -> bool {
        let is_late = |record: &Record| record.at.0 >= end;
        let last = self.trace.records.last();
        let ends = last.is_some_and(is_late);
        if ends {
            self.trace.records.retain(|record| !is_late(record));
            let gaps = &mut self.trace.header.gaps;
            gaps.retain(|gap| gap.after.is_none_or(|after| after.0 < end));
        }
        ends
    }
}

/// The processes that own the present queue pairs, as their guests have reported them.
fn owners(
    client: &Client,
    nics: &[String],
    at: faultline_nic::Instant,
) -> anyhow::Result<Vec<QueuePairOwner>> {
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
                at,
            })
        }));
    }
    Ok(owners)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn snapshot(client: &Client, from: u64) -> anyhow::Result<(PartHeader, Vec<Record>)> {
    let path = format!("/v1/trace/snapshot?from={from}");
    let mut text = Vec::new();
    client.request(Method::GET, &path, Vec::new(), |part| {
        text.extend_from_slice(part);
        Ok(())
    })?;
    parts_of(&path, &text)
}

/// Reads the header and the records of the answer to `path`, a JSON object a line.
pub(super) fn parts_of(path: &str, text: &[u8]) -> anyhow::Result<(PartHeader, Vec<Record>)> {
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
        let results = [&self.histogram, &self.time_line, &self.html];
        for path in results.into_iter().flatten() {
            faultline_files::check_writable(path)?;
        }
        let path = self.file.display();
        let unread = || UnusableInput::unread(&path);
        let file = File::open(&self.file).with_context(unread)?;
        let bytes = faultline_files::read_bytes(file, MAX_BYTES).with_context(unread)?;
        let trace = Trace::read(&bytes).with_context(unread)?;
        if let Some(file) = &self.histogram {
            save(file, &latency_picture(&trace)?)?;
        }
        if let Some(file) = &self.time_line {
            save(file, &time_line_picture(&trace)?)?;
        }
        let report = Report::new(&trace);
        if let Some(file) = &self.html {
            let name = self.file.file_name().unwrap_or_default();
            let run = Run::new(name.to_string_lossy().into_owned(), &trace, report.clone());
            save(file, &run.page()?)?;
        }
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

#[cfg(test)]
mod tests {
    use faultline_nic::{Diagnostic, Instant};
    use faultline_telemetry::TraceEvent;

    use super::*;

    fn records(nic: u16, times: &[u64]) -> Vec<Record> {
        let record = |at: &u64| Record {
            at: Instant(*at),
            nic,
            event: TraceEvent::Nic(Diagnostic::Reset),
        };
        times.iter().map(record).collect()
    }

    fn header(recorded: [u64; 2], lost: u64) -> PartHeader {
        PartHeader {
            first: 0,
            nics: vec!["a".to_owned(), "b".to_owned()],
            next: recorded.iter().sum(),
            lost,
            recorded: recorded.into(),
            now: 0,
        }
    }

    #[test]
    fn records_missing_between_two_answers_are_a_gap_of_their_nic() {
        let mut collected = Collected::new(&header([0, 0], 0));
        let mut first = records(0, &[50, 60]);
        first.extend(records(1, &[61]));
        collected.add(&header([12, 1], 10), first);
        let mut second = records(0, &[100, 110]);
        second.extend(records(1, &[111]));
        collected.add(&header([17, 2], 3), second);
        collected.add(&header([18, 2], 1), Vec::new());
        let gap = |after: Option<u64>, before: Option<u64>, lost| Gap {
            nic: 0,
            after: after.map(Instant),
            before: before.map(Instant),
            lost,
        };
        let expected = [
            gap(None, Some(50), 10),
            gap(Some(60), Some(100), 3),
            gap(Some(110), None, 1),
        ];
        assert_eq!(collected.trace.header.gaps, expected);
        assert_eq!(collected.trace.header.lost, 14);
        assert!(!collected.ends_at(112));
        assert!(collected.ends_at(100));
        assert_eq!(collected.trace.records.len(), 3);
        assert_eq!(collected.trace.header.gaps, expected[..2]);
    }
}
