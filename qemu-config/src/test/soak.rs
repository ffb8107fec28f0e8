//! `cargo lab test soak`: tests again and again on a busy machine, without retries. A test that fails once in it is not reliable: it is
//! mended, or the cause that it shares with others. It is not repeated, and its limit is not raised.
//!
//! Tests run beside compilers and other guests. A thread that wants to run may wait for a processor for tenths of a second, and a guest for
//! seconds. A test that fails then, although the NIC does what it should, has one of these causes:
//!
//! - *Something must happen within a time of the wall clock, or between two moments.* The device clock is held instead: virtual time in the
//!   simulator, `HeldClock` of `tests/harness/tests/observed` in a process, a rule of a scenario or `faultline ctl pause` and `step` in guests.
//! - *Something must not happen, and the test sleeps before it looks.* It waits for something that comes later by the same way: an exchange
//!   on the same engine, a line that is logged afterwards, the count of the rule that has acted. Nothing is shown by `sleep`.
//! - *A count is read once.* It is awaited (`until`, in guests `lab_until`), and then compared exactly.
//! - *A rate or a share of the machine is measured.* The cause is counted: requests, packets sent again on a held clock, processor time
//!   of a thread (`schedstat`). Figures are the benchmark's.
//! - *A limit that only guards against a hang is short.* There is one for all, `LONG` (60 s) of the harness; in guests limits are multiplied by
//!   the lab's factor for slow kernels. A lower limit ("not before 150 ms") holds if its beginning is read before the cause; an upper limit
//!   holds on no machine, unless it is part of the product.
//! - *Another test or program uses what is measured.* Counters belong to the object: a process, a cgroup, a queue pair.
//! - *A peer ends before its last packet has been answered.* Programs of others run under `linger` (`tests/guest/lingering.c`).
//! - *A program of others has a limit or an error of its own.* One list names it with its reason (`is_tcg_race`, `races.rs`), and only it is
//!   repeated or excepted.
//! - *QEMU waits for the answer to an access that was on its way when its server ended, and the guest stands still.* Limits of tests in which an
//!   emulator ends are longer than QEMU's, which the lab sets to 65 s.
//! - *QEMU holds its global lock until a stopped device answers, and under TCG other virtual CPUs need it to send an interrupt.* The call and
//!   what it starts run on one virtual CPU.
//! - *A guest's kernel measures a wrong rate of its time stamp counter.* The kernel is told the rate of the host's (`tsc_early_khz`).
//! - *Inputs are random.* The seed is printed. A failure is an error of the test or of the NIC, never of the run.
//!
//! A connection whose peer does not vanish has the default timeout; `impatient()` is for peers that vanish.

use std::collections::{BTreeMap, HashMap};
use std::hint::spin_loop;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, ensure};

use super::host::When;
use super::pair::Pairs;
use super::results::Results;
use super::schedule::Batch;
use super::suite::{Options, choose};
use super::tally::{Case, Verdict};
use super::{Session, batches, expected, write_junit};
use crate::command::say;
use crate::progress::Progress;
use crate::workspace::Workspace;

/// Name of boots in the table.
const BOOT: &str = "boot";

/// How tests are repeated.
#[derive(Debug, Clone, Copy)]
pub struct Soak {
    /// How often each test runs.
    pub times: usize,
    /// Busy threads beside the tests.
    pub load: usize,
    /// Go on after a failure.
    pub keeps_going: bool,
}

/// Busy threads for a machine: twice its processors, so that guests and emulator get a third of their time.
pub fn load_of_host() -> usize {
    2 * thread::available_parallelism().map_or(1, usize::from)
}

/// Threads that do nothing, at the lab's own priority. They stop when this is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let busy = |_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            })
        };
        let threads = (0..count).map(busy).collect();
        Self { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Repeats the chosen tests; true if each has passed each time and no boot was repeated.
pub fn run(workspace: &Workspace, options: &Options, soak: Soak) -> Result<bool> {
    ensure!(soak.times > 0, "--times 0 runs no test: use 1 or more");
    let chosen = choose(&options.suites, options.run)?;
    let half_speed = options.half_speed()?;
    let dir = workspace.new_run("soak")?;
    let batches = batches(workspace, options, &chosen);
    let items = expected(&chosen, &batches, options);
    say(format!(
        "logs: {}; {} times with {} busy threads{}",
        workspace.shown(&dir),
        soak.times,
        soak.load,
        if options.half_speed {
            ", emulators and QEMUs at half a processor each"
        } else {
            ""
        }
    ));
    let repeated: Vec<_> = (0..soak.times).flat_map(|_| items.clone()).collect();
    let mut progress = Progress::start(&repeated, &workspace.cache()?);
    // Durations under load are not those of other runs.
    progress.forget();
    let load = Load::start(soak.load);
    let mut results = Results::new(chosen.len());
    results.tally.no_retries = true;
    results.tally.stops_at_failure = !soak.keeps_going;
    let made = Mutex::new(HashMap::new());
    let session = Session {
        workspace,
        options,
        chosen: &chosen,
        dir: &dir,
        made: &made,
    };
    let mut pairs = Pairs::new(workspace, &dir, options.checks_packets);
    pairs = pairs.at_half_speed(half_speed.clone());
    let started = std::time::Instant::now();
    in_guests(&session, &batches, &mut pairs, soak, &mut results);
    for _ in 0..soak.times {
        for when in [When::Before, When::Beside, When::After] {
            if !results.tally.is_over() {
                session.run_on_host(when, &mut results);
            }
        }
    }
    drop(load);
    let (boots, boots_repeated) = (pairs.boots(), pairs.boots_repeated());
    drop(pairs);
    let longest = progress.end();
    let tally = &mut results.tally;
    tally.boots_repeated = boots_repeated;
    write_junit(&dir, None, started.elapsed(), tally)?;
    keep_first_failure(&dir, tally.cases())?;
    tally.print_reasons(workspace.shown(&dir));
    print!("{longest}");
    println!("{}", table(tally.cases(), boots, boots_repeated));
    println!("{}", tally.summary());
    if let Some(half_speed) = half_speed {
        half_speed.ensure_added()?;
    }
    session.ensure_all_ran(&results.counts)?;
    Ok(results.tally.success() && boots_repeated == 0)
}

/// Repeats the tests of each batch in the same guests, as long as these can be used again.
fn in_guests(
    session: &Session<'_>,
    batches: &[Batch],
    pairs: &mut Pairs<'_>,
    soak: Soak,
    results: &mut Results,
) {
    for batch in batches {
        for _ in 0..soak.times {
            for (choice, job) in &batch.jobs {
                let boots_failed = pairs.boots_repeated() > 0 && !soak.keeps_going;
                if results.tally.is_over() || boots_failed {
                    pairs.leave();
                    return;
                }
                let before = results.tally.count();
                job.run(session.workspace, session.dir, pairs, &mut results.tally);
                results.counts[*choice] += results.tally.count() - before;
            }
        }
        pairs.leave();
    }
}

/// Writes which test failed first, and why, beside the logs.
fn keep_first_failure(dir: &Path, cases: &[Case]) -> Result<()> {
    let Some(text) = first_failure(cases) else {
        return Ok(());
    };
    let file = dir.join("first-failure.txt");
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

fn first_failure(cases: &[Case]) -> Option<String> {
    let failed = |case: &&Case| matches!(case.verdict, Verdict::Failed(_));
    let position = cases.iter().position(|case| failed(&case))?;
    let case = cases.get(position)?;
    let same = cases.iter().take(position + 1);
    let repetition = same.filter(|other| other.name == case.name).count();
    let Verdict::Failed(why) = &case.verdict else {
        return None;
    };
    Some(format!(
        "{} failed when it ran for the {repetition}. time:\n{why}\n",
        case.name
    ))
}

/// How often each test has passed and failed.
fn table(cases: &[Case], boots: usize, boots_repeated: usize) -> String {
    let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for case in cases {
        let [passed, failed] = counts.entry(&case.name).or_default();
        match &case.verdict {
            Verdict::Passed => *passed += 1,
            Verdict::Failed(_) => *failed += 1,
            Verdict::Skipped(_) => {}
        }
    }
    if boots + boots_repeated > 0 {
        counts.insert(BOOT, [boots, boots_repeated]);
    }
    let names = counts.keys().map(|name| name.chars().count());
    let width = names.max().unwrap_or_default().max("test".len());
    let mut text = format!("{:width$}  passed  failed", "test");
    for (name, [passed, failed]) in counts {
        text += &format!("\n{name:width$}  {passed:6}  {failed:6}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test::tally::Tally;

    fn case(name: &str, verdict: Verdict) -> Case {
        Case {
            name: name.to_owned(),
            elapsed: Duration::ZERO,
            verdict,
        }
    }

    #[test]
    fn the_table_counts_each_test_and_boots() {
        let cases = [
            case("pingpong::stable::rc", Verdict::Passed),
            case("a", Verdict::Passed),
            case("pingpong::stable::rc", Verdict::Failed("why".into())),
            case("pingpong::stable::rc", Verdict::Passed),
            case("b", Verdict::Skipped("no device".into())),
        ];
        assert_eq!(
            table(&cases, 2, 1),
            "test                  passed  failed\n\
             a                          1       0\n\
             b                          0       0\n\
             boot                       2       1\n\
             pingpong::stable::rc       2       1"
        );
        assert_eq!(table(&[], 0, 0), "test  passed  failed");
    }

    #[test]
    fn the_first_failure_is_named_with_its_repetition() {
        let cases = [
            case("a", Verdict::Passed),
            case("b", Verdict::Passed),
            case("a", Verdict::Failed("wrong bytes".into())),
            case("b", Verdict::Failed("later".into())),
        ];
        assert_eq!(
            first_failure(&cases).unwrap(),
            "a failed when it ran for the 2. time:\nwrong bytes\n"
        );
        assert_eq!(first_failure(&cases[..2]), None);
    }

    #[test]
    fn a_soak_stops_at_the_first_failure_and_retries_nothing() {
        let mut tally = Tally::default();
        tally.no_retries = true;
        tally.stops_at_failure = true;
        assert_eq!(tally.attempts(3), 1);
        assert_eq!(Tally::default().attempts(3), 3);
        tally.add("a", Duration::ZERO, Verdict::Passed);
        assert!(!tally.is_over());
        tally.add("a", Duration::ZERO, Verdict::Failed("why".into()));
        assert!(tally.is_over());
        tally.stops_at_failure = false;
        assert!(!tally.is_over());
    }

    #[test]
    fn load_ends_when_it_is_dropped() {
        let load = Load::start(2);
        assert_eq!(load.threads.len(), 2);
        drop(load);
    }
}
