//! `cargo lab test`: the suites, what they print, what they count.

mod debug;
mod guest;
mod host;
mod job;
mod keys;
mod leaks;
mod needs;
mod pair;
mod pyverbs;
mod pyverbs_tests;
mod robustness;
mod sanitizers;
mod schedule;
mod scripts;
mod suite;
mod suites;
mod tally;

use std::collections::VecDeque;
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};

use self::job::{Job, by_plan, jobs_of};
use self::schedule::Batch;
pub use self::schedule::pairs_of_host;
pub use self::suite::Options;
use self::suite::{Suite, choose};
use self::tally::Tally;
use crate::command::say;
use crate::driver::Driver;
use crate::host::ensure_packages;
use crate::image::{Base, Image, Kernel};
use crate::programs::Programs;
use crate::progress::{self, Item, Progress};
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
    let batches = batches(workspace, options, &chosen);
    let items = expected(&chosen, &batches, options.pairs);
    let progress = Progress::start(&items, &workspace.cache()?);
    let with_guests = |suite| {
        let mut kernels = options.kernels.iter();
        kernels.any(|&kernel| options.runs_on(suite, kernel))
    };
    thread::scope(|scope| {
        let beside = chosen.contains(&(Suite::Host, String::new()))
            && chosen.iter().any(|(suite, _)| with_guests(*suite));
        let mut preparing = beside.then(|| scope.spawn(|| prepare(workspace, &dir, &batches)));
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
    let (pairs, choices) = (options.pairs, chosen.len());
    progress::begin("");
    let in_guests = schedule::run(workspace, &dir, batches, pairs, choices, &mut tally);
    for (count, more) in counts.iter_mut().zip(in_guests) {
        *count += more;
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

/// What runs in guests: a batch for each kernel and each kind of guests.
fn batches(workspace: &Workspace, options: &Options, chosen: &[(Suite, String)]) -> Vec<Batch> {
    let of_kernel = |&kernel: &Kernel| {
        let mut jobs = Vec::new();
        for (number, (suite, filter)) in chosen.iter().enumerate() {
            if options.runs_on(*suite, kernel) {
                let of_suite = jobs_of(workspace, *suite, filter, kernel, options);
                jobs.extend(of_suite.into_iter().map(|job| (number, job)));
            }
        }
        let mut left: VecDeque<(usize, Job)> = by_plan(jobs, |(_, job)| &job.plan).into();
        let mut batches = Vec::new();
        while let Some((_, first)) = left.front() {
            let same = left.iter().take_while(|(_, job)| job.plan == first.plan);
            let count = same.count();
            let jobs = left.drain(..count).collect();
            batches.push(Batch { kernel, jobs });
        }
        batches
    };
    options.kernels.iter().flat_map(of_kernel).collect()
}

/// What a run is expected to consist of. Of the debug kernel's suites only the names are known here.
fn expected(chosen: &[(Suite, String)], batches: &[Batch], pairs: usize) -> Vec<Item> {
    let item = |name: String, least, is_test, beside| Item {
        name,
        least,
        is_test,
        beside,
    };
    let mut items = Vec::new();
    for (suite, filter) in chosen {
        let steps = suite.steps().iter().filter(|step| step.contains(filter));
        items.extend(steps.map(|step| item(format!("{}::{step}", suite.name()), 0, true, 1)));
    }
    for batch in batches {
        items.push(item(pair::boot_name(batch.kernel), 0, false, pairs));
        let names = batch.jobs.iter().flat_map(|(_, job)| job.names());
        items.extend(names.map(|(name, least)| item(name, least, true, pairs)));
    }
    items
}

/// Makes what later steps need while the suite `host` runs, which leaves processors idle where tests wait. They wait for it,
/// and tell what went wrong when they try themselves.
fn prepare(workspace: &Workspace, dir: &Path, batches: &[Batch]) {
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
        for batch in batches {
            Driver::obtain(workspace, &base, batch.kernel)?;
            for (_, job) in &batch.jobs {
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
