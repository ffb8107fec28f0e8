//! Progress of `cargo lab test`, and of builds before guests boot: the number of tests that have ended, the expected
//! remaining time, and the current steps.
//!
//! On a terminal this is one line below all others, rewritten each second. Elsewhere (CI) it is plain lines, few enough
//! for a log: one for each twentieth of the expected time, and one when the same step has taken a minute, two, four, ….
//!
//! Expected times are those of earlier runs, which the cache keeps ([`crate::durations`]), scaled by the speed of this run so far.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use crate::durations::{History, Measured, Times, calibrate};
use crate::processor_time;

/// Largest number of plain lines about progress.
const PLAIN_LINES: u32 = 20;
/// Duration of a step after which the first line reports it.
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// By how much the measured beginning of a test may be later than that of its first part.
const PART: Duration = Duration::from_millis(100);
/// Columns of the line on a terminal, at most: longer ones would wrap and stay.
const COLUMNS: usize = 79;

/// Expected seconds of a test that no earlier run has measured.
const UNKNOWN: f64 = 2.0;
/// The same for longer tests, on a quiet machine with two processors, by the ends of their names.
const KNOWN: &[(&str, f64)] = &[
    ("boot", 10.0),
    // At the lowest priority, beside guests.
    ("host::clippy", 120.0),
    ("host::rustdoc", 60.0),
    ("host::cargo-test", 240.0),
    ("host::cargo-test-real-time", 60.0),
    ("module_removed_10_times_under_traffic", 15.0),
    ("emulator_killed_while_it_sleeps_under_load", 17.0),
    ("emulator_killed_under_traffic", 17.0),
    ("torture::everything", 63.0),
    ("everything_short", 30.0),
    ("everything_implicit", 23.0),
    ("nfs", 30.0),
    ("rnr", 60.0),
    ("stall", 22.0),
    ("tcp_1_gib", 17.0),
];

/// A step that a run is expected to have.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// A test, a step with several tests, or `KERNEL::boot`. Names may occur more than once.
    pub name: String,
    /// Seconds that it takes at least, if that is known.
    pub least: u64,
    /// True if it is a test, which is counted.
    pub is_test: bool,
    /// Number of such steps that run at the same time.
    pub beside: usize,
}

/// The time that a step took.
struct Took {
    elapsed: Duration,
    /// Processor time of its programs, if it is known.
    processors: Option<Duration>,
}

impl From<Duration> for Took {
    fn from(elapsed: Duration) -> Self {
        Self {
            elapsed,
            processors: None,
        }
    }
}

/// The current step of a thread.
#[derive(Debug)]
struct Activity {
    /// A test, or the event that the thread waits for.
    what: String,
    since: Duration,
    /// Duration at which the next line reports it.
    next_wait: Duration,
}

/// The state of a run. Times are since its start.
#[derive(Debug, Default)]
struct Meter {
    history: History,
    /// What this run adds to it.
    measured: Vec<Measured>,
    /// Seconds of the loop that measures the machine, at the start.
    loop_seconds: f64,
    times: Times,
    /// Ended steps of threads that are no tests, with their times: parts of a test that has not ended, or waits.
    waits: Vec<(ThreadId, String, Duration, Duration)>,
    /// Steps that have not ended, with their expected seconds.
    left: HashMap<String, Vec<f64>>,
    left_seconds: f64,
    ended_seconds: f64,
    /// Tests.
    total: usize,
    ended: usize,
    /// The current step of each thread that takes part.
    activities: Vec<(ThreadId, Activity)>,
    /// Plain lines so far.
    lines: u32,
}

impl Meter {
    fn new(items: &[Item], history: History, loop_seconds: f64) -> Self {
        let mut meter = Self::default();
        for item in items {
            let past = history.expected(&item.name, loop_seconds);
            let seconds = past.unwrap_or_else(|| guess(&item.name));
            // Its share of the run's time.
            let seconds = seconds.max(item.least as f64) / item.beside.max(1) as f64;
            meter
                .left
                .entry(item.name.clone())
                .or_default()
                .push(seconds);
            meter.left_seconds += seconds;
            if item.is_test {
                meter.total += history.count(&item.name).unwrap_or(1);
            }
        }
        meter.history = history;
        meter.loop_seconds = loop_seconds;
        meter
    }

    /// Begins a step or wait of a thread; ends it if `what` is empty.
    fn begin(&mut self, thread: ThreadId, what: &str, now: Duration) {
        let of_thread = |entry: &&mut (ThreadId, Activity)| entry.0 == thread;
        let known = self.activities.iter_mut().find(of_thread);
        if known.as_ref().is_some_and(|(_, known)| known.what == what) {
            return;
        }
        let activity = Activity {
            what: what.to_owned(),
            since: now,
            next_wait: FIRST_WAIT,
        };
        match known {
            Some((_, known)) => {
                let ended = std::mem::replace(known, activity);
                if !ended.what.is_empty() {
                    self.waits.push((thread, ended.what, ended.since, now));
                }
            }
            None => self.activities.push((thread, activity)),
        }
    }

    /// Ends a step of a thread: `count` tests, or no test if it is 0.
    fn end(
        &mut self,
        thread: ThreadId,
        name: &str,
        took: impl Into<Took>,
        now: Duration,
        count: usize,
    ) {
        let Took {
            elapsed: took,
            processors,
        } = took.into();
        // Its own activity, and parts of a test, are no waits.
        let mut activities = self.activities.iter_mut();
        if let Some((_, activity)) = activities.find(|(of, _)| *of == thread) {
            activity.what.clear();
        }
        if count > 0 {
            let began = now.saturating_sub(took);
            self.waits
                .retain(|(of, _, since, _)| *of != thread || *since + PART < began);
        }
        let seconds = self.left.get_mut(name).and_then(Vec::pop);
        self.left_seconds -= seconds.unwrap_or(0.0);
        self.ended_seconds += seconds.unwrap_or(0.0);
        let (took, machine) = (took.as_secs_f64(), self.loop_seconds);
        let past = self.history.expected(name, machine);
        let before = self.history.count(name);
        let measured = Measured {
            name: name.to_owned(),
            seconds: took,
            loop_seconds: machine,
            count,
        };
        self.history.add(&measured);
        self.measured.push(measured);
        if count > 0 {
            let processors = processors.map(|used| used.as_secs_f64());
            self.times.add_test(name, took, past, processors);
            self.ended += count;
            // An earlier run may have had another number of tests.
            let expected = match (seconds, before) {
                (None, _) => 0,
                (Some(_), before) => before.unwrap_or(1),
            };
            self.total = (self.total + count).saturating_sub(expected);
        }
    }

    /// The current step or wait of a thread; empty if there is none.
    fn activity(&self, thread: ThreadId) -> &str {
        let mut activities = self.activities.iter();
        let own = activities.find(|(of, _)| *of == thread);
        own.map_or("", |(_, activity)| &activity.what)
    }

    /// Expected remaining time.
    fn left(&self, now: Duration) -> Duration {
        // Until enough steps have ended, the machine is assumed to be as fast as expected.
        const WEIGHT: f64 = 60.0;
        let spent = self.spent(now);
        let pace = (now.as_secs_f64() + WEIGHT) / (self.ended_seconds + spent + WEIGHT);
        let seconds = (self.left_seconds - spent).max(0.0) * pace.clamp(0.5, 4.0);
        Duration::from_secs_f64(seconds)
    }

    /// The part of the expected time of current steps that has passed. A step that takes longer than expected keeps a tenth of it.
    fn spent(&self, now: Duration) -> f64 {
        let steps = self.current().filter_map(|activity| {
            let expected = self.left.get(&activity.what)?.last()?;
            let share = now.saturating_sub(activity.since).as_secs_f64()
                / self.current().count().max(1) as f64;
            Some(share.min(0.9 * expected))
        });
        steps.sum()
    }

    fn current(&self) -> impl Iterator<Item = &Activity> {
        let activities = self.activities.iter().map(|(_, activity)| activity);
        activities.filter(|activity| !activity.what.is_empty())
    }

    fn text(&self, now: Duration) -> String {
        let left = self.left(now);
        let counts = match self.total {
            // Nothing is known of the steps of an unexpected build.
            0 if left.is_zero() => None,
            0 => Some(in_words(left)),
            total => Some(format!(
                "{} of {total} tests, {}",
                self.ended,
                in_words(left)
            )),
        };
        let shown: Vec<String> = self
            .current()
            .map(|activity| {
                let since = now.saturating_sub(activity.since).as_secs();
                format!("{} ({since} s)", activity.what)
            })
            .collect();
        let steps = (!shown.is_empty()).then(|| shown.join(", "));
        let parts: Vec<String> = counts.into_iter().chain(steps).collect();
        parts.join("; ")
    }

    /// The lists of the longest tests and waits.
    fn longest(mut self) -> String {
        for (_, what, since, until) in self.waits {
            let seconds = until.saturating_sub(since).as_secs_f64();
            self.times.add_wait(what, seconds);
        }
        self.times.text(self.loop_seconds)
    }

    /// The next plain line, if it is time for one.
    fn plain_line(&mut self, now: Duration) -> Option<String> {
        let all = self.left_seconds + self.ended_seconds;
        let share = f64::from(PLAIN_LINES) * self.ended_seconds / all.max(1.0);
        let progressed = self.lines < PLAIN_LINES && share >= f64::from(self.lines + 1);
        let long = |(_, activity): &&mut (ThreadId, Activity)| {
            !activity.what.is_empty() && now.saturating_sub(activity.since) >= activity.next_wait
        };
        let waiting: Vec<&mut (ThreadId, Activity)> =
            self.activities.iter_mut().filter(long).collect();
        let waits = !waiting.is_empty();
        for (_, activity) in waiting {
            activity.next_wait *= 2;
        }
        if !progressed && !waits {
            return None;
        }
        // Fractions that one step has skipped need no lines of their own.
        self.lines = self.lines.max((share as u32).min(PLAIN_LINES));
        Some(self.text(now))
    }
}

/// A remaining time.
pub fn in_words(left: Duration) -> String {
    match left.as_secs() {
        seconds @ 0..=89 => format!("about {} s left", seconds.next_multiple_of(10)),
        seconds => format!("about {} min left", (seconds + 30) / 60),
    }
}

/// Expected seconds of a test that no run has measured.
fn guess(name: &str) -> f64 {
    let known = KNOWN.iter().find(|(end, _)| name.ends_with(end));
    known.map_or(UNKNOWN, |&(_, seconds)| seconds)
}

/// The run of this process, if it runs tests.
struct Run {
    meter: Meter,
    started: Instant,
    terminal: bool,
    /// True while the line is on the terminal.
    shown: bool,
    /// The threads that run tests.
    threads: Vec<ThreadId>,
}

impl Run {
    fn hide(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[2K");
        }
    }

    fn show(&mut self) {
        if self.terminal {
            let text = self.meter.text(self.started.elapsed());
            let text: String = text.chars().take(COLUMNS).collect();
            eprint!("\r\x1b[2K{text}");
            let _ = std::io::stderr().flush();
            self.shown = true;
        }
    }
}

static RUN: Mutex<Option<Run>> = Mutex::new(None);

fn run() -> MutexGuard<'static, Option<Run>> {
    RUN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports progress until it is dropped.
pub struct Progress {
    stop: Option<Sender<()>>,
    ticks: Option<JoinHandle<()>>,
    /// Where durations are kept, if they are.
    history: Option<PathBuf>,
}

impl Progress {
    /// Begins a run with these steps; `cache` keeps their durations.
    pub fn start(items: &[Item], cache: &Path) -> Self {
        let history = cache.join("durations.json");
        let past = History::read(&history);
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        *run() = Some(Run {
            meter: Meter::new(items, past, calibrate()),
            started: Instant::now(),
            terminal,
            shown: false,
            threads: vec![thread::current().id()],
        });
        let (stop, stopped) = mpsc::channel();
        let ticks = thread::spawn(move || {
            let second = Duration::from_secs(1);
            while stopped.recv_timeout(second) == Err(RecvTimeoutError::Timeout) {
                tick();
            }
        });
        Self {
            stop: Some(stop),
            ticks: Some(ticks),
            history: Some(history),
        }
    }

    /// Keeps none of the durations of this run.
    pub fn forget(&mut self) {
        self.history = None;
    }

    /// Expected duration of the run.
    pub fn expected(&self) -> Duration {
        run().as_ref().map_or(Duration::ZERO, |run| {
            Duration::from_secs_f64(run.meter.left_seconds)
        })
    }

    /// Ends the run. Returns the lists of its longest tests and waits.
    pub fn end(mut self) -> String {
        self.stop()
            .map_or_else(String::new, |run| run.meter.longest())
    }

    /// Stops the reports, and keeps the durations; `None` if that was done before.
    fn stop(&mut self) -> Option<Run> {
        drop(self.stop.take());
        if let Some(ticks) = self.ticks.take() {
            let _ = ticks.join();
        }
        let mut ended = run().take()?;
        ended.hide();
        // Without it the next run guesses.
        if let Some(file) = &self.history {
            let _ = History::keep(file, &ended.meter.measured);
        }
        Some(ended)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop();
    }
}

fn tick() {
    let mut run = run();
    let Some(run) = run.as_mut() else { return };
    if run.terminal {
        run.show();
    } else if let Some(line) = run.meter.plain_line(run.started.elapsed()) {
        eprintln!("lab: {line}");
    }
}

/// The part of a thread in the run; it ends when this is dropped.
pub struct Part(());

/// From now on, the steps of this thread are shown.
pub fn take_part() -> Part {
    if let Some(run) = run().as_mut() {
        run.threads.push(thread::current().id());
    }
    Part(())
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(run) = run().as_mut() {
            let thread = thread::current().id();
            run.threads.retain(|&known| known != thread);
            run.meter.activities.retain(|(known, _)| *known != thread);
        }
    }
}

/// Seconds that something is expected to take.
pub fn expected(name: &str) -> f64 {
    let past = run().as_ref().and_then(|run| {
        let meter = &run.meter;
        meter.history.expected(name, meter.loop_seconds)
    });
    past.unwrap_or_else(|| guess(name))
}

/// True while progress is reported.
pub fn is_running() -> bool {
    run().is_some()
}

/// The expected remaining time, if things are built and no tests run.
pub fn left_of_builds() -> Option<Duration> {
    let run = run();
    let run = run.as_ref().filter(|run| run.meter.total == 0)?;
    Some(run.meter.left(run.started.elapsed()))
}

/// Sets the current step or wait of this thread. Only threads that take part in the run are shown.
pub fn begin(what: &str) {
    if let Some(run) = run().as_mut()
        && run.threads.contains(&thread::current().id())
    {
        let now = run.started.elapsed();
        run.meter.begin(thread::current().id(), what, now);
    }
}

/// Records the end of a step: `count` tests, or no test if it is 0.
pub fn end(name: &str, took: Duration, count: usize) {
    // A part of a test ends no step.
    let processors = (count > 0).then(processor_time::end).flatten();
    if let Some(run) = run().as_mut() {
        let now = run.started.elapsed();
        let thread = thread::current().id();
        let took = Took {
            elapsed: took,
            processors,
        };
        run.meter.end(thread, name, took, now, count);
    }
}

/// Records a wait of this thread for the list of the longest ones. During a step its name is added.
pub fn waited(what: &str, took: Duration) {
    if let Some(run) = run().as_mut() {
        let what = match run.meter.activity(thread::current().id()) {
            "" => what.to_owned(),
            step => format!("{step}: {what}"),
        };
        run.meter.times.add_wait(what, took.as_secs_f64());
    }
}

/// Prints a line of results to standard output, above the line of progress.
pub fn print(line: &str) {
    above(|| println!("{line}"));
}

/// The same to standard error.
pub fn print_error(line: &str) {
    above(|| eprintln!("{line}"));
}

fn above(print: impl FnOnce()) {
    match run().as_mut() {
        Some(run) => {
            run.hide();
            print();
            run.show();
        }
        None => print(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of the loop.
    const LOOP: f64 = 0.25;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn this() -> ThreadId {
        thread::current().id()
    }

    fn items(names: &[&str]) -> Vec<Item> {
        let item = |name: &&str| Item {
            name: (*name).to_owned(),
            least: 0,
            is_test: !name.ends_with("boot"),
            beside: 1,
        };
        names.iter().map(item).collect()
    }

    fn past(entries: &[(&str, f64, usize)]) -> History {
        let mut history = History::default();
        for &(name, seconds, count) in entries {
            history.add(&Measured {
                name: name.to_owned(),
                seconds,
                loop_seconds: LOOP,
                count,
            });
        }
        history
    }

    #[test]
    fn tests_are_counted_and_boots_are_not() {
        let history = past(&[("a", 60.0, 1), ("unit", 60.0, 600), ("k::boot", 60.0, 0)]);
        let mut meter = Meter::new(&items(&["k::boot", "a", "unit"]), history, LOOP);
        assert_eq!(
            meter.text(Duration::ZERO),
            "0 of 601 tests, about 3 min left"
        );
        meter.begin(this(), "k::boot", Duration::ZERO);
        meter.end(this(), "k::boot", seconds(60), seconds(60), 0);
        meter.begin(this(), "a", seconds(60));
        assert_eq!(
            meter.text(seconds(61)),
            "0 of 601 tests, about 2 min left; a (1 s)"
        );
        meter.end(this(), "a", seconds(60), seconds(120), 1);
        // It turns out to be other tests than in the last run.
        meter.end(this(), "unit", seconds(60), seconds(180), 700);
        assert_eq!((meter.ended, meter.total), (701, 701));
        assert_eq!(meter.left(seconds(180)), Duration::ZERO);
        assert_eq!(meter.history.count("unit"), Some(700));
    }

    #[test]
    fn parallel_work_takes_half_the_time() {
        let history = past(&[("a", 600.0, 1), ("b", 600.0, 1)]);
        let mut both = items(&["a", "b"]);
        both.iter_mut().for_each(|item| item.beside = 2);
        let mut meter = Meter::new(&both, history, LOOP);
        assert_eq!(meter.left(Duration::ZERO), seconds(600));
        let other = thread::spawn(|| thread::current().id()).join().unwrap();
        meter.begin(this(), "a", Duration::ZERO);
        meter.begin(other, "b", seconds(10));
        let text = meter.text(seconds(20));
        assert!(text.ends_with("; a (20 s), b (10 s)"), "{text}");
        // Each is reported when it has taken a minute.
        let told: Vec<u64> = (20..100)
            .filter(|&now| meter.plain_line(seconds(now)).is_some())
            .collect();
        assert_eq!(told, [60, 70]);
        meter.begin(this(), "", seconds(100));
        meter.end(this(), "a", seconds(600), seconds(600), 1);
        let text = meter.text(seconds(610));
        assert!(text.ends_with("left; b (600 s)"), "{text}");
        assert_eq!(meter.history.expected("a", LOOP), Some(600.0));
    }

    #[test]
    fn builds_count_while_they_run() {
        let mut builds = items(&["emulator boot", "image boot"]);
        for (item, seconds) in builds.iter_mut().zip([200, 100]) {
            item.least = seconds;
            item.beside = 2;
        }
        let mut meter = Meter::new(&builds, History::default(), LOOP);
        assert_eq!(meter.text(Duration::ZERO), "about 3 min left");
        let other = thread::spawn(|| thread::current().id()).join().unwrap();
        meter.begin(this(), "emulator boot", Duration::ZERO);
        meter.begin(other, "image boot", Duration::ZERO);
        assert_eq!(meter.left(seconds(60)), seconds(90));
        meter.begin(other, "", seconds(100));
        meter.end(other, "image boot", seconds(100), seconds(100), 0);
        assert_eq!(
            meter.text(seconds(150)),
            "about 10 s left; emulator boot (150 s)"
        );
        meter.end(this(), "emulator boot", seconds(200), seconds(200), 0);
        assert_eq!(meter.text(seconds(200)), "");
    }

    #[test]
    fn unexpected_work_counts_too() {
        let mut meter = Meter::new(&items(&["a"]), History::default(), LOOP);
        meter.end(this(), "leaks", seconds(7), seconds(7), 1);
        assert_eq!((meter.ended, meter.total), (1, 2));
        meter.end(this(), "a", seconds(1), seconds(8), 1);
        assert_eq!((meter.ended, meter.total), (2, 2));
    }

    #[test]
    fn a_slow_machine_takes_longer() {
        let history = past(&[("a", 600.0, 1), ("b", 600.0, 1)]);
        let mut meter = Meter::new(&items(&["a", "b"]), history, LOOP);
        meter.end(this(), "a", seconds(1200), seconds(1200), 1);
        let left = meter.left(seconds(1200)).as_secs();
        assert!((1100..1200).contains(&left), "{left}");
    }

    #[test]
    fn expected_times_follow_the_speed_of_the_machine() {
        let history = past(&[("a", 600.0, 1)]);
        let meter = Meter::new(&items(&["a"]), history, 2.0 * LOOP);
        assert_eq!(meter.left(Duration::ZERO), seconds(1200));
    }

    #[test]
    fn steps_that_are_no_parts_of_tests_are_waits() {
        let mut meter = Meter::new(&items(&["a"]), History::default(), LOOP);
        let at = seconds;
        meter.begin(this(), "an image", at(0));
        meter.begin(this(), "k::boot", at(28));
        meter.end(this(), "k::boot", at(10), at(38), 0);
        meter.begin(this(), "a", at(38));
        assert_eq!(meter.activity(this()), "a");
        meter.begin(this(), "a part of it", at(40));
        meter.begin(this(), "another part of it", at(50));
        meter.end(this(), "a", at(22), at(60), 1);
        meter.begin(this(), "a script", at(60));
        meter.begin(this(), "", at(63));
        let text = meter.longest();
        assert_eq!(
            text,
            "longest tests:\n    22.0 s  a\nlongest waits:\n    28.0 s  an image\n     3.0 s  a script\n"
        );
    }

    #[test]
    fn tests_without_a_past_are_guessed() {
        assert_eq!(guess("pingpong::stable::rc"), UNKNOWN);
        assert_eq!(guess("torture::stable::everything_implicit"), 23.0);
        let item = Item {
            name: "torture-long::stable::x".to_owned(),
            least: 600,
            is_test: true,
            beside: 1,
        };
        let meter = Meter::new(&[item], History::default(), LOOP);
        assert_eq!(meter.left(Duration::ZERO), seconds(600));
    }

    #[test]
    fn plain_lines_are_few() {
        let names: Vec<String> = (0..1000).map(|n| format!("t{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut meter = Meter::new(&items(&names), History::default(), LOOP);
        let mut lines = 0;
        for (n, name) in names.iter().enumerate() {
            let now = seconds(2 * n as u64);
            meter.begin(this(), name, now);
            meter.end(this(), name, seconds(2), now, 1);
            lines += u32::from(meter.plain_line(now).is_some());
        }
        assert_eq!(lines, PLAIN_LINES);
    }

    #[test]
    fn a_long_wait_is_reported_at_increasing_intervals() {
        let mut meter = Meter::new(&items(&["a", "b"]), History::default(), LOOP);
        meter.begin(this(), "a", seconds(10));
        let told: Vec<u64> = (10..1000)
            .filter(|&now| meter.plain_line(seconds(now)).is_some())
            .collect();
        assert_eq!(told, [70, 130, 250, 490, 970]);
        meter.begin(this(), "b", seconds(1000));
        assert_eq!(meter.plain_line(seconds(1059)), None);
        let line = meter.plain_line(seconds(1060)).unwrap();
        assert!(line.ends_with("b (60 s)"), "{line}");
    }
}
