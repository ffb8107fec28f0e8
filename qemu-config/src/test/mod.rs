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
mod suite;
mod suites;
mod tally;

use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};

use self::pair::Pairs;
pub use self::suite::Options;
use self::suite::{Suite, choose};
use self::tally::{Tally, Verdict};
use crate::cluster::Plan;
use crate::command::say;
use crate::driver::Driver;
use crate::host::ensure_packages;
use crate::image::{Base, Image, Kernel};
use crate::programs::Programs;
use crate::progress::{Item, Progress};
use crate::qemu::Qemu;
use crate::workspace::Workspace;

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
    let jobs = jobs(workspace, options, &chosen);
    let progress = Progress::start(&expected(&chosen, &jobs), &workspace.cache()?);
    let with_guests = |suite| {
        let mut kernels = options.kernels.iter();
        kernels.any(|&kernel| options.runs_on(suite, kernel))
    };
    thread::scope(|scope| {
        let beside = chosen.contains(&(Suite::Host, String::new()))
            && chosen.iter().any(|(suite, _)| with_guests(*suite));
        let mut preparing = beside.then(|| scope.spawn(|| prepare(workspace, &dir, &jobs)));
        for ((suite, filter), count) in chosen.iter().zip(&mut counts) {
            // Others measure.
            if *suite != Suite::Host
                && let Some(preparing) = preparing.take()
            {
                let _ = preparing.join();
            }
            let before = tally.count();
            run_on_host(workspace, *suite, filter, options, &dir, &mut tally);
            *count += tally.count() - before;
        }
    });
    for (kernel, jobs) in jobs {
        let mut pairs = Pairs::new(workspace, &dir, kernel);
        for (number, job) in jobs {
            let before = tally.count();
            job.run(workspace, &dir, &mut pairs, &mut tally);
            counts[number] += tally.count() - before;
        }
        pairs.leave();
        tally.boots_repeated += pairs.boots_repeated();
    }
    drop(progress);
    tally.print_reasons(workspace.shown(&dir));
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
    Ok(tally.success())
}

/// Jobs in the order in which they run, each with the number of what was chosen that it belongs to.
type Jobs = Vec<(usize, Job)>;

/// What runs in guests, by kernel.
fn jobs(
    workspace: &Workspace,
    options: &Options,
    chosen: &[(Suite, String)],
) -> Vec<(Kernel, Jobs)> {
    let of_kernel = |&kernel: &Kernel| {
        let mut jobs = Vec::new();
        for (number, (suite, filter)) in chosen.iter().enumerate() {
            if options.runs_on(*suite, kernel) {
                let of_suite = jobs_of(workspace, *suite, filter, kernel, options);
                jobs.extend(of_suite.into_iter().map(|job| (number, job)));
            }
        }
        (kernel, by_plan(jobs, |(_, job)| &job.plan))
    };
    options.kernels.iter().map(of_kernel).collect()
}

/// What a run is expected to consist of. Of the debug kernel's suites only the names are known here.
fn expected(chosen: &[(Suite, String)], jobs: &[(Kernel, Jobs)]) -> Vec<Item> {
    let item = |name: String, least, is_test| Item {
        name,
        least,
        is_test,
    };
    let mut items = Vec::new();
    for (suite, filter) in chosen {
        let steps = suite.steps().iter().filter(|step| step.contains(filter));
        items.extend(steps.map(|step| item(format!("{}::{step}", suite.name()), 0, true)));
    }
    for (kernel, jobs) in jobs {
        for tests in jobs.chunk_by(|(_, a), (_, b)| a.plan == b.plan) {
            items.push(item(format!("{}::boot", kernel.name()), 0, false));
            let names = tests.iter().flat_map(|(_, job)| job.names());
            items.extend(names.map(|(name, least)| item(name, least, true)));
        }
    }
    items
}

/// Makes what later steps need while the suite `host` runs, which leaves processors idle where tests wait. They wait for it,
/// and tell what went wrong when they try themselves.
fn prepare(workspace: &Workspace, dir: &Path, jobs: &[(Kernel, Jobs)]) {
    let prepared = ensure_packages(workspace).and_then(|()| {
        let base = Base::obtain(workspace)?;
        Qemu::obtain(workspace)?;
        // Each as the step that needs it does: packages that are built together may have other features.
        for (step, words) in [
            ("build-emulator", &["-p", "faultline"][..]),
            (
                "build-bench",
                &["-p", "faultline-harness", "--bin", "bench"],
            ),
        ] {
            let words = [&["build", "--release", "--quiet"], words].concat();
            host::cargo(workspace, dir, step, &words)?;
        }
        for (kernel, jobs) in jobs {
            Driver::obtain(workspace, &base, *kernel)?;
            for (_, job) in jobs {
                Image::obtain(workspace, &base, &job.plan.packages)?;
            }
        }
        Programs::obtain(workspace, &base)
    });
    if let Err(error) = prepared {
        say(format!(
            "what guests consist of could not be made yet: {error:#}"
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
    /// The full names of its tests, with the seconds that each takes at least.
    fn names(&self) -> Vec<(String, u64)> {
        let full = |name: &str, least| (format!("{}::{name}", self.label), least);
        match &self.tests {
            Tests::Pyverbs(tests) => tests.iter().map(|test| full(test.name, 0)).collect(),
            Tests::Robustness(tests) => tests.iter().map(|(name, _)| full(name, 0)).collect(),
            Tests::Table(tests) => tests
                .iter()
                .map(|test| full(test.name, test.least_seconds()))
                .collect(),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
