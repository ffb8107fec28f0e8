//! Durations of tests: those of earlier runs, scaled by the speed of the machine, and the longest ones of a run.
//!
//! A loop with a fixed amount of work measures the speed at the beginning of each run. Its time is kept with each duration. A test
//! is expected to take the median of its last durations, each divided by the loop's time of then and multiplied by that of now.
//! The loop runs on one processor and uses no memory: it shows a slower processor and a busy host, not a slow disk.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Steps of the loop: 0.2 s on a processor of 3 GHz.
const STEPS: u32 = 100_000_000;
/// Durations of a test that are kept.
const KEPT: usize = 5;
/// Entries of each list of the longest ones.
const LONGEST: usize = 10;
/// Shorter waits are not listed, in seconds.
const LEAST_WAIT: f64 = 1.0;
/// A test is reported as slower if it took this many times as long as expected, …
const SLOWER: f64 = 2.0;
/// … and longer than this, in seconds: the durations of short tests vary.
const LEAST_SLOW: f64 = 5.0;

/// Seconds that the loop takes now.
pub fn calibrate() -> f64 {
    let started = Instant::now();
    // Each step needs the result of the last one (xorshift64), so that nothing is calculated in parallel or left out.
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..STEPS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
    started.elapsed().as_secs_f64()
}

/// A duration, with the time of the loop in its run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Sample {
    seconds: f64,
    loop_seconds: f64,
}

/// A measurement of a test.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The test's name.
    pub name: String,
    /// How long it took.
    pub seconds: f64,
    /// Duration of the loop in the same run.
    pub loop_seconds: f64,
    /// Number of tests in it.
    pub count: usize,
}

/// Measurements of a test in earlier runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Past {
    /// The oldest first.
    samples: Vec<Sample>,
    /// Number of tests in it.
    count: usize,
}

/// Measurements of all tests in earlier runs, as the cache keeps them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct History(BTreeMap<String, Past>);

impl History {
    /// The content of a file. Without it, or from another version, times are guesses.
    pub fn read(file: &Path) -> Self {
        let text = fs::read(file).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Adds the measurements of a run to the present content of a file: another lab may have added its own after this
    /// one has read it. The file is written whole or not at all, because others read it without a lock.
    pub fn keep(file: &Path, measured: &[Measured]) -> Result<()> {
        let lock = File::create(file.with_extension("lock"))?;
        lock.lock()?;
        let mut history = Self::read(file);
        for measured in measured {
            history.add(measured);
        }
        let folder = file.parent().unwrap_or(Path::new("."));
        let mut partial = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer(&mut partial, &history)?;
        partial.persist(file)?;
        Ok(())
    }

    /// Seconds that a test is expected to take while the loop takes `loop_seconds`.
    pub fn expected(&self, name: &str, loop_seconds: f64) -> Option<f64> {
        let samples = &self.0.get(name)?.samples;
        let mut loops: Vec<f64> = samples
            .iter()
            .map(|sample| sample.seconds / sample.loop_seconds)
            .collect();
        loops.sort_by(f64::total_cmp);
        Some(loops.get(loops.len() / 2)? * loop_seconds)
    }

    /// Number of tests in a step that an earlier run has had.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.0.get(name).map(|past| past.count.max(1))
    }

    /// Adds a measurement.
    pub fn add(&mut self, measured: &Measured) {
        let &Measured {
            ref name,
            seconds,
            loop_seconds,
            count,
        } = measured;
        let past = self.0.entry(name.clone()).or_default();
        past.samples.push(Sample {
            seconds,
            loop_seconds,
        });
        let old = past.samples.len().saturating_sub(KEPT);
        past.samples.drain(..old);
        past.count = count;
    }
}

/// The parts of a run's time.
#[derive(Debug, Clone, Default)]
pub struct Times {
    tests: Vec<Test>,
    waits: Vec<(String, f64)>,
}

/// The time of a test, in seconds.
#[derive(Debug, Clone)]
struct Test {
    name: String,
    seconds: f64,
    /// If an earlier run has measured it.
    expected: Option<f64>,
    /// Processor time of its programs, of a test without guests.
    processors: Option<f64>,
}

impl Times {
    /// Adds a test.
    pub fn add_test(
        &mut self,
        name: &str,
        seconds: f64,
        expected: Option<f64>,
        processors: Option<f64>,
    ) {
        self.tests.push(Test {
            name: name.to_owned(),
            seconds,
            expected,
            processors,
        });
    }

    /// Adds a wait: for a boot, a build, or the other guest.
    pub fn add_wait(&mut self, what: String, seconds: f64) {
        self.waits.push((what, seconds));
    }

    /// The longest tests and waits, and tests that were slower than expected.
    pub fn text(&self, loop_seconds: f64) -> String {
        let mut text = String::new();
        let tests = self.tests.iter();
        let tests = tests.map(|test| (test.name.as_str(), test.seconds, test.processors));
        list(&mut text, "longest tests", tests);
        let waits = self
            .waits
            .iter()
            .filter(|(_, seconds)| *seconds >= LEAST_WAIT)
            .map(|(what, seconds)| (what.as_str(), *seconds, None));
        list(&mut text, "longest waits", waits);
        let slower = self.slower();
        if !slower.is_empty() {
            text += &format!(
                "slower than twice the expected time (the loop that measures this machine took {loop_seconds:.2} s):\n"
            );
        }
        for (name, seconds, expected) in slower {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{seconds:8.1} s instead of {expected:.1} s  {name}");
        }
        text
    }

    fn slower(&self) -> Vec<(&str, f64, f64)> {
        let known = self.tests.iter().filter_map(|test| {
            let (seconds, expected) = (test.seconds, test.expected?);
            let is_slow = seconds > LEAST_SLOW && seconds > SLOWER * expected;
            is_slow.then_some((test.name.as_str(), seconds, expected))
        });
        known.collect()
    }
}

/// Appends the longest entries: name, seconds, and seconds of processors if these are known.
fn list<'a>(
    text: &mut String,
    title: &str,
    entries: impl Iterator<Item = (&'a str, f64, Option<f64>)>,
) {
    let mut entries: Vec<_> = entries.collect();
    if entries.is_empty() {
        return;
    }
    entries.sort_by(|a, b| b.1.total_cmp(&a.1));
    entries.truncate(LONGEST);
    *text += &format!("{title}:\n");
    for (name, seconds, processors) in entries {
        let processors =
            processors.map_or_else(String::new, |used| format!(" ({used:.1} s of processors)"));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{seconds:8.1} s  {name}{processors}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_takes_time() {
        assert!(calibrate() > 0.0);
    }

    #[test]
    fn expected_times_are_scaled_by_the_speed_of_the_machine() {
        let mut history = History::default();
        assert_eq!(history.expected("a", 0.2), None);
        history.add(&measured("a", 10.0, 0.2, 3));
        assert_eq!(history.expected("a", 0.2), Some(10.0));
        // Half the speed.
        assert_eq!(history.expected("a", 0.4), Some(20.0));
        assert_eq!(history.count("a"), Some(3));
        // The median: one slow run changes nothing.
        history.add(&measured("a", 10.0, 0.2, 3));
        history.add(&measured("a", 90.0, 0.2, 3));
        assert_eq!(history.expected("a", 0.2), Some(10.0));
        // A run on a slower machine has the same weight.
        history.add(&measured("a", 40.0, 0.4, 3));
        history.add(&measured("a", 40.0, 0.4, 3));
        assert_eq!(history.expected("a", 0.2), Some(20.0));
        let text = serde_json::to_string(&history).unwrap();
        assert_eq!(serde_json::from_str::<History>(&text).unwrap(), history);
    }

    fn measured(name: &str, seconds: f64, loop_seconds: f64, count: usize) -> Measured {
        Measured {
            name: name.to_owned(),
            seconds,
            loop_seconds,
            count,
        }
    }

    #[test]
    fn labs_at_the_same_time_keep_the_durations_of_both() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("durations.json");
        History::keep(&file, &[measured("old", 1.0, 0.2, 1)]).unwrap();
        // Each has read the file at its start, and measures something else.
        let runs = 8;
        std::thread::scope(|scope| {
            for n in 0..runs {
                let file = &file;
                scope.spawn(move || {
                    assert!(History::read(file).count("old").is_some());
                    let own = measured(&format!("own{n}"), 2.0, 0.2, 1);
                    let common = measured("common", f64::from(n), 0.2, 1);
                    History::keep(file, &[own, common]).unwrap();
                });
            }
        });
        let history = History::read(&file);
        assert_eq!(history.count("old"), Some(1));
        for n in 0..runs {
            assert_eq!(history.expected(&format!("own{n}"), 0.2), Some(2.0));
        }
        assert_eq!(history.0["common"].samples.len(), KEPT);
    }

    #[test]
    fn only_the_last_durations_count() {
        let mut history = History::default();
        for seconds in [1.0, 1.0, 1.0, 7.0, 7.0, 7.0, 7.0, 7.0] {
            history.add(&measured("a", seconds, 1.0, 1));
        }
        assert_eq!(history.0["a"].samples.len(), KEPT);
        assert_eq!(history.expected("a", 1.0), Some(7.0));
    }

    #[test]
    fn slower_tests_are_found() {
        let mut times = Times::default();
        times.add_test("much", 12.1, Some(6.0), None);
        times.add_test("little", 11.9, Some(6.0), None);
        times.add_test("short", 4.9, Some(1.0), None);
        times.add_test("unknown", 100.0, None, None);
        assert_eq!(times.slower(), [("much", 12.1, 6.0)]);
        let text = times.text(0.25);
        assert!(
            text.contains("    12.1 s instead of 6.0 s  much\n"),
            "{text}"
        );
        assert!(text.contains("took 0.25 s"), "{text}");
    }

    #[test]
    fn the_longest_come_first_and_are_few() {
        let mut times = Times::default();
        assert_eq!(times.text(0.2), "");
        for n in 0..20 {
            let processors = (n == 18).then_some(30.25);
            times.add_test(&format!("t{n}"), f64::from(n), None, processors);
        }
        times.add_wait("boot of stable1".into(), 10.0);
        times.add_wait("a moment".into(), 0.9);
        let text = times.text(0.2);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "longest tests:");
        assert_eq!(lines[1], "    19.0 s  t19");
        assert_eq!(lines[2], "    18.0 s  t18 (30.2 s of processors)");
        assert_eq!(lines[10], "    10.0 s  t10");
        assert_eq!(
            lines[11..],
            ["longest waits:", "    10.0 s  boot of stable1"]
        );
    }
}
