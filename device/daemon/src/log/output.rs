//! Where log messages are written: standard error, by a thread of its own.
//!
//! Standard error may be a pipe whose reader is slow or has stopped. A thread that logs only puts the line into a bounded queue, so it
//! never waits for the reader. Lines without room are lost; the next written line contains their number. Standard error may also be a file
//! on a full disk. Refused lines are lost too, and the first accepted one contains their number.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait for the thread.
const CAPACITY: usize = 1024;
/// Longest line in bytes; the rest of a longer one is cut.
const MAX_LINE: usize = 8 << 10;
/// Maximum time for which the end of the process waits for a reader.
const PATIENCE: Duration = Duration::from_millis(500);

static LOST: AtomicU64 = AtomicU64::new(0);
/// Lines that could not be written.
static REFUSED: AtomicU64 = AtomicU64::new(0);
static OUTPUT: OnceLock<Sender<Item>> = OnceLock::new();

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// Requests a reply after all earlier lines are written.
    Flush(Sender<()>),
}

/// Lines that were lost since the start of the process, because standard error was not read fast enough or could not be written.
pub fn lost_lines() -> u64 {
    let unread = LOST.load(Ordering::Relaxed);
    unread.saturating_add(REFUSED.load(Ordering::Relaxed))
}

/// Returns true if text for this stream may have colours: it is a terminal, and the user has not set `NO_COLOR` (no-color.org).
pub fn is_coloured(stream: &impl IsTerminal) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !refused
}

/// The default level of the log.
const DEFAULT: LevelFilter = LevelFilter::INFO;

/// The filter that a text describes. An error says why it cannot be used.
fn filter_of(text: &str) -> Result<EnvFilter, String> {
    let filter = text.parse::<EnvFilter>();
    let filter = filter.map_err(|error| error.to_string())?;
    // A word that is no level is taken for the name of a module, and hides all others.
    let hides_all = text.parse::<Targets>().is_ok_and(|targets| {
        !targets.would_enable("faultline", &tracing::Level::ERROR) && !text.contains("faultline")
    });
    let is_wanted = text
        .split(',')
        .any(|part| part.trim().eq_ignore_ascii_case("off"));
    match hides_all && !is_wanted {
        true => Err(
            "it names no level (off, error, warn, info, debug, trace) for this program".to_owned(),
        ),
        false => Ok(filter),
    }
}

/// Writes log messages and reports of panics to standard error, from `level` on; by default with the filter of `RUST_LOG`, else from
/// `info` on. A filter that cannot be used, or that names nothing of this program, is reported and replaced by `info`. To be called once.
pub fn start(level: Option<LevelFilter>) {
    let (lines, receiver) = bounded(CAPACITY);
    let thread = std::thread::Builder::new()
        .name("log-output".to_owned())
        .spawn(move || run(&receiver, &mut std::io::stderr()));
    // Without a thread all lines are lost, which is counted.
    drop(thread);
    let _ = OUTPUT.set(lines.clone());
    let wanted = std::env::var_os(EnvFilter::DEFAULT_ENV).filter(|text| !text.is_empty());
    let wanted = wanted.filter(|_| level.is_none());
    let wanted = wanted.map(|text| text.to_string_lossy().into_owned());
    let found = wanted.as_deref().map(filter_of);
    let level = level.unwrap_or(DEFAULT);
    let default = || EnvFilter::default().add_directive(level.into());
    let (filter, problem) = match found {
        Some(Ok(filter)) => (filter, None),
        Some(Err(problem)) => (default(), Some(problem)),
        None => (default(), None),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_coloured(&std::io::stderr()))
        .with_writer(Lines(lines))
        .init();
    if let (Some(problem), Some(text)) = (problem, wanted) {
        tracing::warn!("RUST_LOG={text:?} is not used, and the level is {level}: {problem}");
    }
    // The usual hook writes to standard error in the thread that has panicked, which may never end then.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let trace = std::backtrace::Backtrace::capture();
        tracing::error!("thread {name} {panic}\n{trace}");
    }));
}

/// Waits until all lines are written. Returns false if standard error is not read; the caller should not write to it then.
pub fn finish() -> bool {
    let Some(output) = OUTPUT.get() else {
        return true;
    };
    let (reply, replied) = bounded(1);
    let sent = output.send_timeout(Item::Flush(reply), PATIENCE);
    sent.is_ok() && replied.recv_timeout(PATIENCE).is_ok()
}

/// Writes lines until the last sender is dropped.
fn run(items: &Receiver<Item>, output: &mut impl Write) {
    let mut reported = 0;
    let mut refused = Refused::default();
    for item in items {
        match item {
            Item::Line(line) => {
                let lost = LOST.load(Ordering::Relaxed);
                let count = lost.saturating_sub(reported);
                if count > 0 {
                    let _ = writeln!(
                        output,
                        "{count} log lines were lost: standard error was not read fast enough"
                    );
                    reported = lost;
                }
                refused.write(output, &line);
            }
            Item::Flush(reply) => {
                let _ = output.flush();
                let _ = reply.send(());
            }
        }
    }
}

/// Lines that standard error has refused.
#[derive(Debug, Default)]
struct Refused {
    /// Number of refused lines since the last written one.
    lines: u64,
    /// Reason of the last refusal.
    reason: Option<std::io::Error>,
}

impl Refused {
    /// Writes a line, and before it the number of refused ones.
    fn write(&mut self, output: &mut impl Write, line: &[u8]) {
        let mut text = Vec::new();
        if let Some(reason) = &self.reason {
            // The newline ends a partly written line.
            let lines = self.lines;
            text.extend(format!("\n{lines} log lines were lost: {reason}\n").as_bytes());
        }
        text.extend_from_slice(line);
        match output.write_all(&text) {
            Ok(()) => *self = Self::default(),
            Err(reason) => {
                self.lines = self.lines.saturating_add(1);
                REFUSED.fetch_add(1, Ordering::Relaxed);
                self.reason = Some(reason);
            }
        }
    }
}

/// The threads' end of the queue.
#[derive(Clone, Debug)]
struct Lines(Sender<Item>);

impl Write for Lines {
    /// A call has a whole line: the formatter buffers it.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut line = bytes.get(..MAX_LINE).unwrap_or(bytes).to_vec();
        if line.len() < bytes.len() {
            line.extend_from_slice(b" (cut)\n");
        }
        if self.0.try_send(Item::Line(line)).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_room_are_lost_and_counted() {
        let (sender, receiver) = bounded(2);
        let mut lines = Lines(sender);
        let before = lost_lines();
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            lines.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(lost_lines() - before, 2);
        drop(lines);
        let mut output = Vec::new();
        run(&receiver, &mut output);
        let text = String::from_utf8(output).unwrap();
        assert!(text.ends_with("one\ntwo\n"), "{text}");
        assert!(text.contains("log lines were lost"), "{text}");
    }

    #[test]
    fn lines_that_are_refused_are_counted_when_one_is_taken() {
        /// A file whose disk is full for this number of writes.
        struct Full(usize, Vec<u8>);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                if self.0 > 0 {
                    self.0 -= 1;
                    return Err(std::io::ErrorKind::StorageFull.into());
                }
                self.1.write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut output = Full(2, Vec::new());
        let mut refused = Refused::default();
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            refused.write(&mut output, line.as_bytes());
        }
        let text = String::from_utf8(output.1).unwrap();
        assert_eq!(
            text,
            "\n2 log lines were lost: no storage space\nthree\nfour\n"
        );
    }

    #[test]
    fn a_long_line_is_cut() {
        let (sender, receiver) = bounded(2);
        let mut lines = Lines(sender);
        lines.write_all(&vec![b'x'; 1 << 20]).unwrap();
        drop(lines);
        let mut output = Vec::new();
        run(&receiver, &mut output);
        assert!(output.ends_with(b"x (cut)\n") && output.len() < MAX_LINE + 200);
    }
}
