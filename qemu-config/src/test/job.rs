//! Jobs: tests of one suite that need the same guests, on one kernel.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::facts::{Row, chosen};
use super::pair::Pairs;
use super::suite::{Options, Suite};
use super::suites::GuestTest;
use super::tally::{Tally, Verdict};
use super::{guest, iwarp_recover, leaks, needs, pyverbs, recover, robustness, scenarios, sight};
use crate::cluster::Plan;
use crate::image::Kernel;
use crate::workspace::Workspace;

/// Tests of a suite that need the same guests.
pub struct Job {
    /// Suite and kernel.
    label: String,
    /// The guests.
    pub plan: Plan,
    tests: Tests,
}

enum Tests {
    Pyverbs(Vec<pyverbs::Test>),
    Robustness(Vec<Row<robustness::Test>>),
    Sight(Vec<Row<sight::Test>>),
    Table(Vec<GuestTest>),
}

/// The tests of a suite in guests of a kernel whose names contain `filter`.
pub fn jobs_of(
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
    let mut pyverbs = options.pyverbs(suite, kernel);
    pyverbs.retain(|test| test.name.contains(filter));
    if !pyverbs.is_empty() {
        add(plan.clone(), Tests::Pyverbs(pyverbs));
    }
    let mut robustness = match suite {
        Suite::Robustness => chosen(robustness::TESTS, filter),
        _ => Vec::new(),
    };
    robustness.retain(|test| !options.leaves_out(suite, test.facts.name, kernel));
    if !robustness.is_empty() {
        add(plan.clone(), Tests::Robustness(robustness));
    }
    let mut sight = match suite {
        Suite::Sight => chosen(sight::TESTS, filter),
        Suite::Scenarios => chosen(scenarios::TESTS, filter),
        Suite::Recover => chosen(recover::TESTS, filter),
        Suite::Restart => chosen(recover::RESTARTS, filter),
        Suite::IwarpRecover => chosen(iwarp_recover::TESTS, filter),
        _ => Vec::new(),
    };
    sight.retain(|test| !options.leaves_out(suite, test.facts.name, kernel));
    let plan_of = |name| match suite {
        Suite::Scenarios => scenarios::plan_of(workspace.root(), name, &plan),
        Suite::IwarpRecover => iwarp_recover::plan_of(name, &plan),
        _ => plan.clone(),
    };
    let sight = sight
        .into_iter()
        .map(|test| (plan_of(test.facts.name), test));
    let sight = by_plan(sight.collect(), |(plan, _)| plan);
    for same in sight.chunk_by(|a, b| a.0 == b.0) {
        let tests = same.iter().map(|(_, test)| *test);
        add(same[0].0.clone(), Tests::Sight(tests.collect()));
    }
    let mut table = guest::chosen(suite, filter, kernel, options);
    let cpus = |test: &GuestTest| test.cpus.or(plan.cpus);
    table.sort_by_key(cpus);
    for tests in table.chunk_by(|a, b| cpus(a) == cpus(b)) {
        let long_builds: BTreeSet<_> = tests.iter().filter_map(|test| test.long_build).collect();
        let plan = Plan {
            cpus: cpus(&tests[0]),
            long_builds: long_builds.into_iter().collect(),
            ..plan.clone()
        };
        add(plan, Tests::Table(tests.to_vec()));
    }
    jobs
}

/// Sorts the items so that those with the same guests follow each other, in the order in which the guests are first needed.
pub fn by_plan<T>(mut items: Vec<T>, plan: impl Fn(&T) -> &Plan) -> Vec<T> {
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
    pub fn names(&self) -> Vec<(String, u64)> {
        let full = |name: &str, least| (format!("{}::{name}", self.label), least);
        match &self.tests {
            Tests::Pyverbs(tests) => tests.iter().map(|test| full(test.name, 0)).collect(),
            Tests::Robustness(tests) => tests.iter().map(|test| full(test.facts.name, 0)).collect(),
            Tests::Sight(tests) => tests.iter().map(|test| full(test.facts.name, 0)).collect(),
            Tests::Table(tests) => tests
                .iter()
                .map(|test| full(test.facts.name, test.least_seconds()))
                .collect(),
        }
    }

    /// The guests that its tests need, in order. Configurations are written to `dir`.
    pub fn plans(&self, dir: &Path) -> Result<Vec<Plan>> {
        match &self.tests {
            Tests::Robustness(tests) => tests
                .iter()
                .map(|test| robustness::plan_of(test.facts.name, &self.plan, dir))
                .collect(),
            Tests::Pyverbs(_) | Tests::Sight(_) | Tests::Table(_) => Ok(vec![self.plan.clone()]),
        }
    }

    /// Runs its tests. Tests that need other guests than the present ones get new ones.
    pub fn run(&self, workspace: &Workspace, dir: &Path, pairs: &mut Pairs<'_>, tally: &mut Tally) {
        let started = Instant::now();
        let (label, plan) = (&self.label, &self.plan);
        let result = match &self.tests {
            Tests::Pyverbs(tests) => pyverbs::run(tests, plan, label, dir, pairs, tally),
            Tests::Robustness(tests) => {
                robustness::run(workspace, tests, plan, label, dir, pairs, tally)
            }
            Tests::Sight(tests) => sight::run(workspace, tests, plan, label, pairs, tally),
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
        let name = match (&self.tests, plan.cpus) {
            (Tests::Pyverbs(_), _) => format!("{label}::pyverbs"),
            (_, Some(cpus)) => format!("{label}::{cpus}_cpus"),
            (_, None) => label.clone(),
        };
        leaks::leave_without(pairs, &name, tally);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Nic;
    use crate::prepare::LongBuild;
    use crate::test::Run;
    use crate::wiring::Wiring;

    #[test]
    fn guests_get_slow_builds_only_if_a_test_needs_them() {
        let long_builds = |run, filter| -> Vec<LongBuild> {
            let options = Options {
                run,
                suites: Vec::new(),
                kernels: vec![Kernel::Stable],
                nic: Nic::Faultline,
                wiring: Wiring::Switch,
                cpus: None,
                pairs: 1,
                half_speed: false,
                checks_packets: true,
            };
            let workspace = Workspace::at(Path::new("/nowhere"));
            let mut suites = Suite::all().into_iter();
            let suite = suites.find(|suite| suite.name() == "programs");
            let jobs = jobs_of(&workspace, suite.unwrap(), filter, Kernel::Stable, &options);
            let [job] = &jobs[..] else {
                panic!("{} jobs", jobs.len());
            };
            job.plan.long_builds.clone()
        };
        assert_eq!(long_builds(Run::Default, ""), []);
        assert_eq!(long_builds(Run::Named, "macvlan"), []);
        assert_eq!(long_builds(Run::Named, "rust_"), [LongBuild::Libraries]);
        assert_eq!(long_builds(Run::Named, "valkey"), [LongBuild::Valkey]);
        let both = [LongBuild::Libraries, LongBuild::Valkey];
        assert_eq!(long_builds(Run::Named, ""), both);
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
}
