//! `cargo lab test`: the suites, what they print, what they count.

mod debug;
mod guest;
mod host;
mod keys;
mod needs;
mod pair;
mod pyverbs;
mod pyverbs_tests;
mod robustness;
mod sanitizers;
mod scripts;
mod suites;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use self::pair::Pairs;
use crate::cluster::{Nic, Plan};
use crate::command::say;
use crate::host::ensure_packages;
use crate::image::{Base, Kernel};
use crate::qemu::Qemu;
use crate::workspace::Workspace;

/// The suites that run when none is named, and on every change. The others run by name: they take too long.
const DEFAULT: &[&str] = &[
    "host",
    "pingpong",
    "rdmacm",
    "perftest",
    "verbs",
    "pyverbs",
    "odp",
    "coherence",
    "pinned",
    "tags",
    "keys",
    "torture",
    "ulp",
    "apps",
    "swap",
    "robustness",
];

/// Those of them that run on the first kernel only, unless they are named: each boots guests of its own, has
/// minutes of traffic, or does what does not depend on the guest's kernel. So all together stay well below an hour.
const ON_ONE_KERNEL: &[&str] = &["keys", "ulp", "apps", "swap", "robustness"];

/// Tests of other suites of which the same holds: they take long, and others of their suite show on the
/// second kernel what they would (streams over TCP, WRITEs of each size, what happens to DAX files), or a short form does.
const LONG: &[&str] = &[
    "pingpong::tcp_1_gib",
    "perftest::write_bw_all_sizes",
    "odp::write_bw_all_sizes",
    "coherence::dax_truncated",
    "coherence::dax_punched",
    "torture::pinned",
    "torture::everything",
    "torture::everything_implicit",
];

/// Their short forms, which run on the other kernels instead.
const SHORT: &[&str] = &["torture::everything_short"];

/// Tests that run by name only: longer forms of their neighbours, and the torture's events in groups, which tell of what
/// kind a fault is that all events at once have shown.
const BY_NAME: &[&str] = &[
    "torture::replaced",
    "torture::protected",
    "torture::deregistered",
    "torture::forked",
    "torture::swapped",
    "torture::merged",
    "torture::huge_pages",
    "torture::moved",
    "torture::exited",
    "torture::everything_other_seed",
    "torture::everything_many_qps",
    "apps::mpi_rc_long",
    "apps::mpi_ud_long",
    "swap::three_times",
];

/// What came of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It did what it should.
    Passed,
    /// It did not; the text says what happened.
    Failed(String),
    /// It could not run; the text says why.
    Skipped(String),
}

/// A test that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    name: String,
    /// What happened.
    why: String,
}

impl Failure {
    /// Lines of the reason that the summary repeats: so many of its first, so many of its last.
    const SHOWN: (usize, usize) = (3, 20);

    /// For the end of the output, which may be all that somebody has.
    fn summary(&self) -> String {
        let (first, last) = Self::SHOWN;
        let mut why: Vec<&str> = self.why.trim_end().lines().collect();
        if let Some(cut) = why.len().checked_sub(first + last).filter(|cut| *cut > 0) {
            why.splice(first..first + cut, ["…"]);
        }
        let lines = why.iter().map(|line| format!("\n        {line}"));
        format!("    {}{}", self.name, lines.collect::<String>())
    }
}

/// Counts and prints results.
#[derive(Debug, Default)]
pub struct Tally {
    passed: usize,
    /// Those of them that failed at first, with what was wrong.
    retried: Vec<Failure>,
    /// How often guests were booted again because they died while booting.
    boots_repeated: usize,
    failed: Vec<Failure>,
    skipped: usize,
}

impl Tally {
    /// Counts one test and prints its line; a failure's output and log location follow.
    pub fn add(&mut self, name: &str, elapsed: Duration, verdict: Verdict) {
        self.add_after(name, elapsed, verdict, &[]);
    }

    /// The same of a test that was run again because of each of `reasons`. If it passed, the summary says so.
    pub fn add_after(
        &mut self,
        name: &str,
        elapsed: Duration,
        verdict: Verdict,
        reasons: &[&'static str],
    ) {
        if verdict == Verdict::Passed && !reasons.is_empty() {
            self.retried.push(Failure {
                name: name.to_owned(),
                why: reasons.join("\n"),
            });
        }
        let seconds = elapsed.as_secs_f64();
        match verdict {
            Verdict::Passed => {
                self.passed += 1;
                println!("test {name} ... ok ({seconds:.1} s)");
            }
            Verdict::Failed(why) => {
                println!(
                    "test {name} ... FAILED ({seconds:.1} s)\n{}",
                    why.trim_end()
                );
                self.failed.push(Failure {
                    name: name.to_owned(),
                    why,
                });
            }
            Verdict::Skipped(why) => {
                self.skipped += 1;
                println!("test {name} ... skipped: {why}");
            }
        }
    }

    /// Counts tests that another runner has run.
    pub fn add_counts(&mut self, passed: usize, failed: Vec<Failure>, skipped: usize) {
        self.passed += passed;
        self.failed.extend(failed);
        self.skipped += skipped;
    }

    fn count(&self) -> usize {
        self.passed + self.failed.len() + self.skipped
    }

    fn summary(&self) -> String {
        let mut summary = format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped
        );
        let further = [
            (self.retried.len(), "passed after a retry"),
            (self.boots_repeated, "boots repeated"),
        ];
        for (count, what) in further {
            if count > 0 {
                summary += &format!(", {count} {what}");
            }
        }
        summary
    }
}

/// A named set of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// What needs no guest: formatting, lints, unit tests, builds.
    Host,
    /// A table of exchanges between two guests.
    Guest(&'static str),
    /// On-demand paging as rdma-core's own tests and other people's programs see it.
    Odp,
    /// Memory keys that work requests change.
    Keys,
    /// All of rdma-core's own tests that are for every device.
    Pyverbs,
    /// Things dying under traffic.
    Robustness,
    /// Some of the others on a kernel that looks for mistakes, and what only that can do.
    DebugKernel,
    /// Tests of the emulator, built with sanitizers.
    Sanitizers,
}

impl Suite {
    fn all() -> Vec<Self> {
        let mut all = vec![Self::Host];
        all.extend(suites::SUITES.iter().map(|&name| Self::Guest(name)));
        all.extend([
            Self::Odp,
            Self::Keys,
            Self::Pyverbs,
            Self::Robustness,
            Self::DebugKernel,
            Self::Sanitizers,
        ]);
        all
    }

    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Guest(name) => name,
            Self::Odp => "odp",
            Self::Keys => "keys",
            Self::Pyverbs => "pyverbs",
            Self::Robustness => "robustness",
            Self::DebugKernel => "debug-kernel",
            Self::Sanitizers => "sanitizers",
        }
    }

    /// Those of its tests that are rdma-core's.
    fn pyverbs(self) -> Vec<pyverbs::Test> {
        match self {
            Self::Odp => pyverbs::module("test_odp").collect(),
            Self::Keys => keys::PYVERBS.to_vec(),
            Self::Pyverbs => pyverbs::all().collect(),
            Self::Host
            | Self::Guest(_)
            | Self::Robustness
            | Self::DebugKernel
            | Self::Sanitizers => Vec::new(),
        }
    }

    fn tests(self) -> Vec<String> {
        let others: Vec<&str> = match self {
            Self::Host => host::STEPS.to_vec(),
            Self::Keys => keys::STEPS.to_vec(),
            Self::Robustness => robustness::TESTS.iter().map(|&(name, _)| name).collect(),
            Self::DebugKernel => [&debug::SUITES[..], &[debug::CHECKPATCH]].concat(),
            Self::Sanitizers => sanitizers::STEPS.to_vec(),
            Self::Guest(_) | Self::Odp | Self::Pyverbs => Vec::new(),
        };
        let pyverbs = self.pyverbs().into_iter().map(|test| test.name);
        let table = suites::table(self.name())
            .iter()
            .map(|test| test.name.to_owned());
        let named = others.into_iter().chain(pyverbs).map(str::to_owned);
        named.chain(table).collect()
    }
}

/// What to run and on what.
#[derive(Debug, Clone)]
pub struct Options {
    /// Suites by name; all if empty. `suite::word` runs only the tests whose name contains the word.
    pub suites: Vec<String>,
    /// Guest kernels.
    pub kernels: Vec<Kernel>,
    /// The device under test.
    pub nic: Nic,
    /// Virtual CPUs of each guest; the suite's own choice if `None`.
    pub cpus: Option<u32>,
}

impl Options {
    /// Whether a suite has tests in guests of a kernel.
    fn runs_on(&self, suite: Suite, kernel: Kernel) -> bool {
        let again = self.kernels.first() != Some(&kernel);
        let left_out = self.suites.is_empty() && again && ON_ONE_KERNEL.contains(&suite.name());
        let on_host = matches!(suite, Suite::Host | Suite::Sanitizers | Suite::DebugKernel);
        !left_out && !on_host
    }

    /// The tests of a suite that are rdma-core's. If everything runs, they all do so once.
    fn pyverbs(&self, suite: Suite) -> Vec<pyverbs::Test> {
        match self.suites.is_empty() && suite != Suite::Pyverbs {
            true => Vec::new(),
            false => suite.pyverbs(),
        }
    }

    /// Whether a test of a suite does not run on a kernel, because everything runs.
    fn leaves_out(&self, suite: &str, test: &str, kernel: Kernel) -> bool {
        let is_in = |names: &[&str]| {
            let mut names = names.iter();
            names.any(|name| name.split_once("::") == Some((suite, test)))
        };
        let again = self.kernels.first() != Some(&kernel);
        self.suites.is_empty() && (is_in(BY_NAME) || is_in(if again { LONG } else { SHORT }))
    }
}

/// Prints every suite and its tests.
pub fn list() {
    for suite in Suite::all() {
        println!("{}", suite.name());
        for test in suite.tests() {
            println!("    {}::{test}", suite.name());
        }
    }
}

/// Runs the chosen suites; true if nothing failed.
pub fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let chosen = choose(&options.suites)?;
    let dir = workspace.new_run("test")?;
    say(format!("logs: {}", workspace.shown(&dir)));
    let started = Instant::now();
    let mut tally = Tally::default();
    let mut counts = vec![0; chosen.len()];
    let with_guests = |suite| {
        let mut kernels = options.kernels.iter();
        kernels.any(|&kernel| options.runs_on(suite, kernel))
    };
    thread::scope(|scope| {
        let beside = chosen.contains(&(Suite::Host, String::new()))
            && chosen.iter().any(|(suite, _)| with_guests(*suite));
        let mut fetching = beside.then(|| scope.spawn(|| fetch(workspace)));
        for ((suite, filter), count) in chosen.iter().zip(&mut counts) {
            // Others measure.
            if *suite != Suite::Host
                && let Some(fetching) = fetching.take()
            {
                let _ = fetching.join();
            }
            let before = tally.count();
            run_on_host(workspace, *suite, filter, options, &dir, &mut tally);
            *count += tally.count() - before;
        }
    });
    for &kernel in &options.kernels {
        let mut jobs = Vec::new();
        for (number, (suite, filter)) in chosen.iter().enumerate() {
            if options.runs_on(*suite, kernel) {
                let of_suite = jobs_of(workspace, *suite, filter, kernel, options);
                jobs.extend(of_suite.into_iter().map(|job| (number, job)));
            }
        }
        let mut pairs = Pairs::new(workspace, &dir, kernel);
        for (number, job) in by_plan(jobs, |(_, job)| &job.plan) {
            let before = tally.count();
            job.run(workspace, &dir, &mut pairs, &mut tally);
            counts[number] += tally.count() - before;
        }
        pairs.leave();
        tally.boots_repeated += pairs.boots_repeated();
    }
    if !tally.retried.is_empty() {
        println!("\npassed after a retry:");
        for test in &tally.retried {
            println!("{}", test.summary());
        }
    }
    if !tally.failed.is_empty() {
        println!("\nfailed:");
        for failure in &tally.failed {
            println!("{}", failure.summary());
        }
        println!("logs: {}", workspace.shown(&dir));
    }
    say(format!(
        "tests took {:.0} s",
        started.elapsed().as_secs_f64()
    ));
    println!("{}", tally.summary());
    let unknown: Vec<String> = chosen
        .iter()
        .zip(counts)
        .filter(|&(_, count)| count == 0)
        .map(|((suite, filter), _)| format!("{}::{filter}", suite.name()))
        .collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        bail!("there is no test {unknown}; `cargo lab test --list` tells which there are");
    }
    Ok(tally.failed.is_empty())
}

/// Fetches and unpacks what later steps need, which keeps one processor busy at most. They wait for it, and tell what
/// went wrong when they try themselves.
fn fetch(workspace: &Workspace) {
    let fetched = ensure_packages(workspace)
        .and_then(|()| Base::obtain(workspace))
        .and_then(|_| Qemu::obtain(workspace));
    if let Err(error) = fetched {
        say(format!(
            "what guests consist of could not be fetched yet: {error:#}"
        ));
    }
}

/// Runs what a suite does without guests of the chosen kernels.
fn run_on_host(
    workspace: &Workspace,
    suite: Suite,
    filter: &str,
    options: &Options,
    dir: &Path,
    tally: &mut Tally,
) {
    match suite {
        Suite::Host => host::run(workspace, filter, dir, tally),
        Suite::Keys => keys::run_host(workspace, filter, dir, tally),
        Suite::DebugKernel => debug::run(workspace, filter, options, dir, tally),
        Suite::Sanitizers => sanitizers::run(workspace, filter, dir, tally),
        Suite::Guest(_) | Suite::Odp | Suite::Pyverbs | Suite::Robustness => (),
    }
}

/// Tests of a suite that need the same guests.
struct Job {
    /// Suite and kernel.
    label: String,
    plan: Plan,
    tests: Tests,
}

enum Tests {
    Pyverbs(Vec<pyverbs::Test>),
    Robustness(Vec<(&'static str, robustness::Test)>),
    Table(Vec<suites::GuestTest>),
}

/// The tests of a suite in guests of a kernel whose names contain `filter`.
fn jobs_of(
    workspace: &Workspace,
    suite: Suite,
    filter: &str,
    kernel: Kernel,
    options: &Options,
) -> Vec<Job> {
    let plan = needs::plan(workspace.root(), suite.name(), kernel, options);
    let mut jobs = Vec::new();
    let mut add = |plan, tests| {
        let label = format!("{}::{}", suite.name(), kernel.name());
        jobs.push(Job { label, plan, tests });
    };
    let mut pyverbs = options.pyverbs(suite);
    pyverbs.retain(|test| test.name.contains(filter));
    if !pyverbs.is_empty() {
        add(plan.clone(), Tests::Pyverbs(pyverbs));
    }
    let robustness = match suite {
        Suite::Robustness => robustness::chosen(filter),
        _ => Vec::new(),
    };
    if !robustness.is_empty() {
        add(plan.clone(), Tests::Robustness(robustness));
    }
    let mut table = guest::chosen(suite.name(), filter, kernel, options);
    table.sort_by_key(|test| test.cpus);
    for tests in table.chunk_by(|a, b| a.cpus == b.cpus) {
        let plan = Plan {
            cpus: tests[0].cpus.or(plan.cpus),
            ..plan.clone()
        };
        add(plan, Tests::Table(tests.to_vec()));
    }
    jobs
}

/// Brings together what needs the same guests, in the order in which these are first needed.
fn by_plan<T>(mut items: Vec<T>, plan: impl Fn(&T) -> &Plan) -> Vec<T> {
    let mut plans: Vec<Plan> = Vec::new();
    for item in &items {
        if !plans.contains(plan(item)) {
            plans.push(plan(item).clone());
        }
    }
    items.sort_by_key(|item| plans.iter().position(|known| known == plan(item)));
    items
}

impl Job {
    fn run(&self, workspace: &Workspace, dir: &Path, pairs: &mut Pairs<'_>, tally: &mut Tally) {
        let started = Instant::now();
        let (label, plan) = (&self.label, &self.plan);
        let result = match &self.tests {
            Tests::Pyverbs(tests) => pyverbs::run(tests, plan, label, dir, pairs, tally),
            Tests::Robustness(tests) => {
                robustness::run(workspace, tests, plan, label, dir, pairs, tally)
            }
            Tests::Table(tests) => guest::run(workspace, tests, plan, label, pairs, tally),
        };
        if let Err(error) = result {
            tally.add(
                &format!("{label}::boot"),
                started.elapsed(),
                Verdict::Failed(format!("{error:#}")),
            );
        }
        // Jobs of a suite differ in this.
        let leaks = match (&self.tests, plan.cpus) {
            (Tests::Pyverbs(_), _) => format!("{label}::pyverbs"),
            (_, Some(cpus)) => format!("{label}::{cpus}_cpus"),
            (_, None) => label.clone(),
        };
        pairs.leave_without_leaks(&leaks, tally);
    }
}

/// The suites that `words` name, with the filter of each.
fn choose(words: &[String]) -> Result<Vec<(Suite, String)>> {
    let all = Suite::all();
    if words.is_empty() {
        return Ok(all
            .into_iter()
            .filter(|suite| DEFAULT.contains(&suite.name()))
            .map(|suite| (suite, String::new()))
            .collect());
    }
    words
        .iter()
        .map(|word| {
            let (name, filter) = word.split_once("::").unwrap_or((word, ""));
            match all.iter().find(|suite| suite.name() == name) {
                Some(&suite) => Ok((suite, filter.to_owned())),
                None => {
                    let names: Vec<&str> = all.iter().map(|suite| suite.name()).collect();
                    bail!("there is no suite {name:?}; there are {}", names.join(", "))
                }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_chosen_by_name_and_filter() {
        let chosen = choose(&["pingpong::rc".to_owned(), "host".to_owned()]).unwrap();
        assert_eq!(
            chosen,
            [
                (Suite::Guest("pingpong"), "rc".to_owned()),
                (Suite::Host, String::new())
            ]
        );
        assert!(choose(&["nonsense".to_owned()]).is_err());
        assert_eq!(choose(&[]).unwrap().len(), DEFAULT.len());
        assert_eq!(choose(&["torture".to_owned()]).unwrap().len(), 1);
        assert!(ON_ONE_KERNEL.iter().all(|name| DEFAULT.contains(name)));
    }

    #[test]
    fn long_tests_are_left_out_if_everything_runs() {
        let mut options = Options {
            suites: Vec::new(),
            kernels: Kernel::BOTH.to_vec(),
            nic: Nic::Faultline,
            cpus: None,
        };
        let [first, second] = Kernel::BOTH;
        for name in LONG.iter().chain(BY_NAME) {
            let (suite, test) = name.split_once("::").unwrap();
            assert!(suites::table(suite).iter().any(|known| known.name == test));
            assert_eq!(
                options.leaves_out(suite, test, first),
                BY_NAME.contains(name)
            );
            assert!(options.leaves_out(suite, test, second));
        }
        for name in SHORT {
            let (suite, test) = name.split_once("::").unwrap();
            assert!(suites::table(suite).iter().any(|known| known.name == test));
            assert!(options.leaves_out(suite, test, first));
            assert!(!options.leaves_out(suite, test, second));
        }
        assert!(!options.leaves_out("pingpong", "rc", second));
        let all = options.pyverbs(Suite::Pyverbs);
        for suite in [Suite::Odp, Suite::Keys] {
            assert!(options.pyverbs(suite).is_empty());
            assert!(suite.pyverbs().iter().all(|test| all.contains(test)));
        }
        options.suites = vec!["pingpong".to_owned()];
        assert_eq!(options.pyverbs(Suite::Odp), Suite::Odp.pyverbs());
        assert!(!options.leaves_out("pingpong", "tcp_1_gib", second));
        assert!(!options.leaves_out("swap", "three_times", first));
    }

    #[test]
    fn tests_of_the_same_guests_come_together() {
        let plan = |cpus| Plan {
            cpus,
            ..Plan::default()
        };
        let items = [
            (1, None),
            (2, Some(2)),
            (3, None),
            (4, Some(4)),
            (5, Some(2)),
        ];
        let items: Vec<(u32, Plan)> = items.map(|(n, cpus)| (n, plan(cpus))).to_vec();
        let order: Vec<u32> = by_plan(items, |item| &item.1)
            .into_iter()
            .map(|item| item.0)
            .collect();
        assert_eq!(order, [1, 3, 2, 5, 4]);
    }

    #[test]
    fn the_summary_counts() {
        let mut tally = Tally::default();
        tally.add("a", Duration::ZERO, Verdict::Passed);
        tally.add("b", Duration::ZERO, Verdict::Failed("why".into()));
        let other = Failure {
            name: "c".into(),
            why: (0..24).map(|n| format!("{n}\n")).collect(),
        };
        tally.add_counts(3, vec![other], 2);
        assert_eq!(tally.summary(), "4 passed, 2 failed, 2 skipped");
        let failures: Vec<String> = tally.failed.iter().map(Failure::summary).collect();
        let last: Vec<String> = (4..24).map(|n| n.to_string()).collect();
        let lines = format!("c 0 1 2 … {}", last.join(" ")).replace(' ', "\n        ");
        assert_eq!(
            failures,
            ["    b\n        why".to_owned(), format!("    {lines}")]
        );
    }

    #[test]
    fn the_summary_counts_retries_of_tests_that_passed() {
        let mut tally = Tally::default();
        tally.add_after("a", Duration::ZERO, Verdict::Passed, &["QEMU died"]);
        tally.add_after("b", Duration::ZERO, Verdict::Passed, &[]);
        let failed = Verdict::Failed("why".into());
        tally.add_after("c", Duration::ZERO, failed, &["QEMU died"; 2]);
        let summary = "2 passed, 1 failed, 0 skipped, 1 passed after a retry";
        assert_eq!(tally.summary(), summary);
        let retried: Vec<String> = tally.retried.iter().map(Failure::summary).collect();
        assert_eq!(retried, ["    a\n        QEMU died"]);
        tally.boots_repeated = 2;
        assert_eq!(tally.summary(), format!("{summary}, 2 boots repeated"));
    }

    #[test]
    fn test_names_are_unique_within_a_suite() {
        for suite in Suite::all() {
            let mut names = suite.tests();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{}", suite.name());
            assert!(count > 0, "{}", suite.name());
        }
    }
}
