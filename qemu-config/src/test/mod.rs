//! `cargo lab test`: the suites, their output and their counts.

mod action;
mod apt;
mod book;
mod cargo;
mod case;
mod checking_kernels;
mod container;
mod debug;
mod document;
mod eviction;
mod facts;
mod failover;
mod guest;
mod host;
mod image_packages;
mod installed;
mod iwarp_recover;
mod job;
mod junit;
mod keys;
mod leaks;
#[cfg(test)]
mod least;
mod libvirt;
mod links;
mod memory;
mod migration;
mod needs;
#[cfg(test)]
mod on_demand;
mod own_vm;
mod packages;
mod packets;
mod page_faults;
mod pair;
mod pyverbs;
mod pyverbs_tests;
mod recover;
mod results;
mod robustness;
mod sanitizers;
mod scenarios;
mod schedule;
mod scripts;
#[cfg(test)]
mod selection;
mod sight;
pub mod soak;
mod spoofing;
mod suite;
mod suites;
mod tally;
mod test_programs;
mod traffic;
mod user_network;
mod violating;
mod workflows;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use faultline_files::check_writable;

pub use self::document::{list, list_long};
pub use self::facts::Run;
use self::host::When;
use self::job::{Job, by_plan, jobs_of};
use self::results::Results;
use self::schedule::Batch;
pub use self::schedule::pairs_of_host;
pub use self::suite::Options;
use self::suite::{Suite, choose};
use self::tally::Tally;
use crate::cluster::{self, Plan};
use crate::command::say;
use crate::emulator::{self, Profile};
use crate::image::Kernel;
use crate::priority;
use crate::processor_time;
use crate::progress::{self, Item, Progress};
use crate::workspace::Workspace;

/// Niceness of steps beside guests, until these have ended.
const LOWEST_PRIORITY: i32 = 19;

/// The chosen tests, and where their results go.
struct Session<'a> {
    workspace: &'a Workspace,
    options: &'a Options,
    chosen: &'a [(Suite, String)],
    dir: &'a Path,
    /// The results that tests of packages without guests leave to later tests.
    made: &'a Mutex<HashMap<String, packages::Made>>,
}

impl Session<'_> {
    /// Runs the steps after the guests: packages, which mostly wait for a guest of their own, beside the others.
    fn run_after(&self, results: &mut Results) {
        thread::scope(|scope| {
            let packages = scope.spawn(|| {
                let _shown = progress::take_part();
                let mut results = Results::new(self.chosen.len());
                self.run_some_on_host(When::After, &mut results, |suite| suite == Suite::Packages);
                results
            });
            self.run_some_on_host(When::After, results, |suite| suite != Suite::Packages);
            results.merge(packages.join());
        });
    }

    /// Runs the steps of this time without guests of the chosen kernels.
    fn run_on_host(&self, when: When, results: &mut Results) {
        self.run_some_on_host(when, results, |_| true);
    }

    fn run_some_on_host(&self, when: When, results: &mut Results, is_wanted: fn(Suite) -> bool) {
        for ((suite, filter), count) in self.chosen.iter().zip(&mut results.counts) {
            if !is_wanted(*suite) {
                continue;
            }
            let before = results.tally.count();
            run_on_host(self, *suite, filter, when, &mut results.tally);
            *count += results.tally.count() - before;
        }
    }

    /// Fails if a choice had no test.
    fn ensure_all_ran(&self, counts: &[usize]) -> Result<()> {
        let unknown: Vec<String> = self
            .chosen
            .iter()
            .zip(counts)
            .filter(|&(_, &count)| count == 0)
            .map(|((suite, filter), _)| format!("{}::{filter}", suite.name()))
            .collect();
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            bail!("there is no test {unknown}; `cargo lab test --list` tells which there are");
        }
        Ok(())
    }
}

/// Runs the chosen suites; true if nothing failed. The results go to the folder of the run as JUnit XML, and to `junit`.
pub fn run(workspace: &Workspace, options: &Options, junit: Option<&Path>) -> Result<bool> {
    let chosen = choose(&options.suites, options.run)?;
    let half_speed = options.half_speed()?;
    junit.map(check_writable).transpose()?;
    let dir = workspace.new_run("test")?;
    say(format!("logs: {}", workspace.shown(&dir)));
    let started = Instant::now();
    let batches = batches(workspace, options, &chosen);
    let items = expected(&chosen, &batches, options);
    let own = dir.join("junit.xml");
    let awaited = items.iter().filter(|item| item.is_test);
    let awaited = awaited.map(|item| item.name.clone()).collect();
    junit::begin(&[&[own.as_path()], junit.as_slice()].concat(), awaited);
    let progress = Progress::start(&items, &workspace.cache()?);
    if options.run != Run::Named {
        say(format!(
            "this will take about {} min",
            progress.expected().as_secs().div_ceil(60)
        ));
    }
    let made = Mutex::new(HashMap::new());
    let session = Session {
        workspace,
        options,
        chosen: &chosen,
        dir: &dir,
        made: &made,
    };
    let session = &session;
    let mut results = Results::new(chosen.len());
    session.run_on_host(When::Before, &mut results);
    progress::begin("");
    let guests = !batches.is_empty();
    thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let _shown = progress::take_part();
            if guests {
                // On Linux this concerns this thread and its children.
                let _ = rustix::process::nice(LOWEST_PRIORITY);
            }
            let mut results = Results::new(chosen.len());
            session.run_on_host(When::Beside, &mut results);
            results
        });
        if guests {
            let plans = plans_to_prepare(&batches);
            // The guests wait for it, and report an error of a build. Pairs that boot beside tests would build with their priority.
            scope.spawn(move || {
                let started = Instant::now();
                // This takes as long as building everything else that the first guests consist of.
                let _ = emulator::build(workspace, Profile::Quick);
                progress::waited("build of the emulator", started.elapsed());
                for plan in plans {
                    let _ = cluster::prepare(workspace, &plan);
                }
            });
        }
        schedule::run(
            workspace,
            &dir,
            batches,
            options,
            half_speed.as_ref(),
            &mut results,
        );
        let ended = Instant::now();
        priority::raise_all();
        results.merge(beside.join());
        progress::waited(
            "steps without guests, after the last guests",
            ended.elapsed(),
        );
    });
    session.run_after(&mut results);
    let Results { tally, counts } = results;
    let longest = progress.end();
    junit::forget();
    write_junit(&dir, junit, started.elapsed(), &tally)?;
    tally.print_reasons(workspace.shown(&dir));
    print!("{longest}");
    let used = processor_time::of_all().unwrap_or_default();
    say(format!(
        "tests took {:.0} s, and {:.0} s of processors with all guests and builds",
        started.elapsed().as_secs_f64(),
        used.as_secs_f64()
    ));
    println!("{}", tally.summary());
    if let Some(half_speed) = half_speed {
        half_speed.ensure_added()?;
    }
    session.ensure_all_ran(&counts)?;
    Ok(tally.success())
}

/// A plan of each kind of guests that is built differently.
fn plans_to_prepare(batches: &[Batch]) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    for (_, job) in batches.iter().flat_map(|batch| &batch.jobs) {
        let is_same = |plan: &Plan| {
            plan.kernel == job.plan.kernel
                && plan.packages == job.plan.packages
                && plan.long_builds == job.plan.long_builds
        };
        if !plans.iter().any(is_same) {
            plans.push(job.plan.clone());
        }
    }
    plans
}

/// Writes the results to the folder of the run, and to `copy`.
fn write_junit(dir: &Path, copy: Option<&Path>, took: Duration, tally: &Tally) -> Result<()> {
    let text = junit::text(took, tally.cases());
    let own = dir.join("junit.xml");
    for file in [Some(own.as_path()), copy].into_iter().flatten() {
        std::fs::write(file, &text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// The tests in guests: a batch for each kernel and each kind of guests.
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

/// The expected steps of a run. Of the debug kernel's suites only the names are known here.
fn expected(chosen: &[(Suite, String)], batches: &[Batch], options: &Options) -> Vec<Item> {
    let pairs = options.pairs;
    let item = |name: String, least, is_test, beside| Item {
        name,
        least,
        is_test,
        beside,
    };
    let mut items = Vec::new();
    // Nearly all steps run beside the guests.
    let beside = if batches.is_empty() { 1 } else { pairs + 1 };
    for (suite, filter) in chosen {
        let left_out = |step: &str| options.leaves_out(*suite, step, options.first_kernel());
        let steps = suite.steps().into_iter().map(|step| step.name);
        let steps = steps.filter(|step| step.contains(filter) && !left_out(step));
        items.extend(steps.map(|step| item(format!("{}::{step}", suite.name()), 0, true, beside)));
    }
    for batch in batches {
        items.push(item(pair::boot_name(batch.kernel), 0, false, pairs));
        let names = batch.jobs.iter().flat_map(|(_, job)| job.names());
        items.extend(names.map(|(name, least)| item(name, least, true, pairs)));
    }
    items
}

/// Runs the steps of a suite at this time without guests of the chosen kernels.
fn run_on_host(session: &Session<'_>, suite: Suite, filter: &str, when: When, tally: &mut Tally) {
    let &Session {
        workspace,
        options,
        dir,
        made,
        ..
    } = session;
    match suite {
        Suite::Host => {
            let kernel = options.first_kernel();
            let is_left_out = |step: &str| options.leaves_out(suite, step, kernel);
            host::run(workspace, filter, when, is_left_out, dir, tally);
        }
        Suite::Keys => keys::run_host(workspace, filter, when, dir, tally),
        // It boots guests of its own, when the others have ended.
        Suite::Packages if when != When::Before => {
            let kernel = options.first_kernel();
            let is_left_out = |test: &str| options.leaves_out(suite, test, kernel);
            let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
            if when == When::Beside {
                let new = packages::make(workspace, filter, kernel, is_left_out, dir, tally);
                made.extend(new.map(|new| (filter.to_owned(), new)));
                return;
            }
            if let Some(made) = made.remove(filter) {
                packages::run(workspace, filter, is_left_out, dir, tally, made);
            }
            packages::run_alone(workspace, filter, is_left_out, dir, tally);
        }
        Suite::DebugKernel | Suite::RaceKernel if when == When::Before => {
            debug::run(workspace, suite, filter, options, dir, tally);
        }
        Suite::Sanitizers if when == When::Before => {
            sanitizers::run(workspace, filter, dir, tally);
        }
        Suite::UserNetwork if when == When::Before => {
            user_network::run(workspace, filter, dir, tally);
        }
        Suite::Packages | Suite::DebugKernel | Suite::RaceKernel | Suite::Sanitizers => (),
        Suite::UserNetwork => (),
        Suite::Guest(_) | Suite::Odp | Suite::Pyverbs | Suite::Robustness => (),
        Suite::Recover | Suite::Restart | Suite::IwarpRecover | Suite::Sight => (),
        Suite::Scenarios => scenarios::run_host(workspace, filter, when, dir, tally),
    }
}
