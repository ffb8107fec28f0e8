//! The suites, and the choice of tests: by name, or by the runs that suites and tests have in their rows.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::checking_kernels::{self, CHECKPATCH, DEBUG_PARTS, RACE_PARTS};
use super::facts::{Facts, On, Run, Runs, SuiteFacts, all};
use super::suites::{self, GuestSuite, GuestTest};
use super::{
    host, iwarp_recover, keys, packages, pyverbs, recover, robustness, sanitizers, scenarios,
    sight, user_network,
};
use crate::cluster::Nic;
use crate::half_speed::HalfSpeed;
use crate::image::Kernel;
use crate::wiring::Wiring;

/// The suite that needs on-demand regions of rxe, which kernels before Linux 6.15 do not have.
const NEEDS_NEWER_RXE: &str = "interop-on-demand";

/// A named set of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Without guests: formatting, lints, unit tests, builds.
    Host,
    /// A table of exchanges between two guests.
    Guest(&'static GuestSuite),
    /// On-demand paging in rdma-core's own tests and in third-party programs.
    Odp,
    /// Memory keys that work requests change.
    Keys,
    /// All of rdma-core's own tests that are for every device.
    Pyverbs,
    /// Programs, drivers and emulators that die under traffic.
    Robustness,
    /// Devices that stop, and work again.
    Recover,
    /// Emulators that end behind a supervisor.
    Restart,
    /// iWARP adapters that stop, or go, and come back.
    IwarpRecover,
    /// Observation of the device from outside.
    Sight,
    /// Injected faults under programs in guests.
    Scenarios,
    /// Debian packages, and guests in which they are installed.
    Packages,
    /// Some of the others on a kernel that is configured to find errors, and tests that need it.
    DebugKernel,
    /// Some of the others on a kernel that is configured to find data races.
    RaceKernel,
    /// Tests of the emulator, built with sanitizers.
    Sanitizers,
    /// Networks of the host beyond a stream port.
    UserNetwork,
}

impl Suite {
    /// All suites.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Host];
        all.extend(suites::SUITES.iter().map(|&suite| Self::Guest(suite)));
        all.extend([
            Self::Odp,
            Self::Keys,
            Self::Pyverbs,
            Self::Robustness,
            Self::Recover,
            Self::Restart,
            Self::IwarpRecover,
            Self::Sight,
            Self::Scenarios,
            Self::Packages,
            Self::DebugKernel,
            Self::RaceKernel,
            Self::Sanitizers,
            Self::UserNetwork,
        ]);
        all
    }

    /// The suite of this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::all().into_iter();
        all.find(|suite| suite.name() == name)
    }

    /// What it says of itself.
    pub fn facts(self) -> SuiteFacts {
        match self {
            Self::Host => host::SUITE,
            Self::Guest(suite) => suite.facts,
            Self::Odp => suites::ODP.facts,
            Self::Keys => keys::SUITE,
            Self::Pyverbs => pyverbs::SUITE,
            Self::Robustness => robustness::SUITE,
            Self::Recover => recover::SUITE,
            Self::Restart => recover::RESTART_SUITE,
            Self::IwarpRecover => iwarp_recover::SUITE,
            Self::Sight => sight::SUITE,
            Self::Scenarios => scenarios::SUITE,
            Self::Packages => packages::SUITE,
            Self::DebugKernel => checking_kernels::DEBUG,
            Self::RaceKernel => checking_kernels::RACE,
            Self::Sanitizers => sanitizers::SUITE,
            Self::UserNetwork => user_network::SUITE,
        }
    }

    /// The name by which it is chosen.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Its table of exchanges between guests; empty if it has none.
    pub fn table(self) -> &'static [GuestTest] {
        match self {
            Self::Guest(suite) => suite.tests,
            Self::Odp => suites::ODP.tests,
            Self::DebugKernel => suites::DEBUG_KERNEL,
            _ => &[],
        }
    }

    /// Those of its tests that are rdma-core's.
    pub fn pyverbs(self) -> Vec<pyverbs::Test> {
        match self {
            Self::Odp => pyverbs::module("test_odp").collect(),
            Self::Keys => keys::PYVERBS.to_vec(),
            Self::Pyverbs => pyverbs::all().collect(),
            Self::Host
            | Self::Guest(_)
            | Self::Robustness
            | Self::Recover
            | Self::Restart
            | Self::IwarpRecover
            | Self::Sight
            | Self::Scenarios
            | Self::Packages
            | Self::DebugKernel
            | Self::RaceKernel
            | Self::Sanitizers
            | Self::UserNetwork => Vec::new(),
        }
    }

    /// Its steps without guests.
    pub fn steps(self) -> Vec<Facts> {
        match self {
            Self::Host => all(host::TESTS),
            Self::Keys => keys::STEPS.to_vec(),
            Self::Packages => all(packages::TESTS),
            Self::DebugKernel => vec![CHECKPATCH],
            Self::Sanitizers => all(sanitizers::TESTS),
            Self::UserNetwork => user_network::TESTS.to_vec(),
            Self::Scenarios => scenarios::STEPS.to_vec(),
            Self::Guest(_) | Self::Odp | Self::Pyverbs | Self::RaceKernel => Vec::new(),
            Self::Robustness | Self::Recover | Self::Restart => Vec::new(),
            Self::IwarpRecover | Self::Sight => Vec::new(),
        }
    }

    /// Its tests and steps.
    pub fn tests(self) -> Vec<Facts> {
        let functions = match self {
            Self::Robustness => all(robustness::TESTS),
            Self::Recover => all(recover::TESTS),
            Self::Restart => all(recover::RESTARTS),
            Self::IwarpRecover => all(iwarp_recover::TESTS),
            Self::Sight => all(sight::TESTS),
            Self::Scenarios => all(scenarios::TESTS),
            Self::DebugKernel => DEBUG_PARTS.to_vec(),
            Self::RaceKernel => RACE_PARTS.to_vec(),
            _ => Vec::new(),
        };
        let pyverbs = self.pyverbs().into_iter().map(|test| match self {
            Self::Pyverbs => test.facts(),
            // Without names, only the suite that has all of them runs them.
            _ => Facts {
                runs: None,
                ..test.facts()
            },
        });
        let table = match self {
            Self::Guest(suite) => suite.all(),
            _ => self.table().iter().map(|test| test.facts).collect(),
        };
        let named = functions.into_iter().chain(self.steps());
        named.chain(pyverbs).chain(table).collect()
    }

    /// The runs without names that have a test: its own, or those of the suite.
    pub fn runs(self, test: &str) -> Runs {
        let mut tests = self.tests().into_iter();
        let own = tests
            .find(|facts| facts.name == test)
            .and_then(|facts| facts.runs);
        own.unwrap_or(self.facts().runs)
    }
}

/// The tests to run, and the device and guests to run them on.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which tests.
    pub run: Run,
    /// Suites by name, if the run is named. `suite::word` runs only the tests whose name contains the word.
    pub suites: Vec<String>,
    /// Guest kernels.
    pub kernels: Vec<Kernel>,
    /// The device under test.
    pub nic: Nic,
    /// What connects the guests' NICs.
    pub wiring: Wiring,
    /// Virtual CPUs of each guest; the suite's own choice if `None`.
    pub cpus: Option<u32>,
    /// Pairs of guests that run at the same time.
    pub pairs: usize,
    /// Emulators and QEMUs get half a processor each.
    pub half_speed: bool,
    /// The packet checker runs beside the tests in guests.
    pub checks_packets: bool,
}

impl Options {
    /// The cgroup that limits the processes of guests, if they are to run at half speed.
    pub fn half_speed(&self) -> Result<Option<Arc<HalfSpeed>>> {
        let half_speed = self.half_speed.then(HalfSpeed::new).transpose()?;
        Ok(half_speed.map(Arc::new))
    }

    /// The kernel of tests that run on one only.
    pub fn first_kernel(&self) -> Kernel {
        self.kernels.first().copied().unwrap_or(Kernel::Stable)
    }

    /// True if a suite may have tests in guests of a kernel.
    pub fn runs_on(&self, suite: Suite, kernel: Kernel) -> bool {
        let on_host = matches!(
            suite,
            Suite::Host
                | Suite::Packages
                | Suite::Sanitizers
                | Suite::DebugKernel
                | Suite::RaceKernel
                | Suite::UserNetwork
        );
        let is_too_old =
            suite.name() == NEEDS_NEWER_RXE && !matches!(kernel, Kernel::Backports | Kernel::Forky);
        !on_host && !is_too_old
    }

    /// The tests of a suite that are rdma-core's. In a run without names, only the suite that has all of them runs them.
    pub fn pyverbs(&self, suite: Suite, kernel: Kernel) -> Vec<pyverbs::Test> {
        if self.run != Run::Named && suite != Suite::Pyverbs {
            return Vec::new();
        }
        let mut tests = suite.pyverbs();
        tests.retain(|test| !self.leaves_out(suite, test.name, kernel));
        tests
    }

    /// True if this run does not have a test of a suite on a kernel.
    pub fn leaves_out(&self, suite: Suite, test: &str, kernel: Kernel) -> bool {
        let is_first = self.kernels.first() == Some(&kernel);
        !suite.runs(test).on(self.run).includes(is_first)
    }
}

/// The suites that `words` name, with the filter of each; those with tests in a run without names.
pub fn choose(words: &[String], run: Run) -> Result<Vec<(Suite, String)>> {
    let all = Suite::all();
    if run != Run::Named {
        let has_tests = |suite: &Suite| {
            let mut tests = suite.tests().into_iter();
            tests.any(|test| suite.runs(test.name).on(run) != On::Nothing)
        };
        let suites = all.into_iter().filter(has_tests);
        return Ok(suites.map(|suite| (suite, String::new())).collect());
    }
    words
        .iter()
        .map(|word| {
            let (name, filter) = word.split_once("::").unwrap_or((word, ""));
            match Suite::named(name) {
                Some(suite) => Ok((suite, filter.to_owned())),
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
    use crate::test::violating::{VIOLATING, violates};

    #[test]
    fn suites_are_chosen_by_name_and_filter() {
        let pingpong = Suite::named("pingpong").unwrap();
        let chosen = choose(&["pingpong::rc".to_owned(), "host".to_owned()], Run::Named).unwrap();
        assert_eq!(
            chosen,
            [(pingpong, "rc".to_owned()), (Suite::Host, String::new())]
        );
        assert!(choose(&["nonsense".to_owned()], Run::Named).is_err());
        assert_eq!(
            choose(&["torture".to_owned()], Run::Named).unwrap().len(),
            1
        );
        let default = choose(&[], Run::Default).unwrap();
        let all = choose(&[], Run::All).unwrap();
        assert!(default.iter().all(|chosen| all.contains(chosen)));
        assert!(default.len() < all.len() && all.len() < Suite::all().len());
    }

    #[test]
    fn tests_are_left_out_as_their_rows_say() {
        let mut options = Options {
            run: Run::Default,
            suites: Vec::new(),
            kernels: Kernel::BOTH.to_vec(),
            nic: Nic::Faultline,
            wiring: Wiring::Switch,
            cpus: None,
            pairs: 1,
            half_speed: false,
            checks_packets: true,
        };
        let [first, second] = Kernel::BOTH;
        let of = |suite| Suite::named(suite).unwrap();
        assert!(!options.leaves_out(of("pingpong"), "rc", first));
        assert!(options.leaves_out(of("pingpong"), "rc", second));
        assert!(!options.leaves_out(of("pingpong"), "ethtool", second));
        assert!(!options.leaves_out(of("interop"), "rc", first));
        assert!(options.leaves_out(of("interop"), "rc", second));
        assert!(options.leaves_out(of("torture"), "everything", first));
        assert!(options.leaves_out(Suite::Host, "book", first));
        assert!(!options.leaves_out(Suite::Host, "clippy", first));
        for suite in [Suite::Odp, Suite::Keys] {
            assert!(options.pyverbs(suite, first).is_empty());
            let all = Suite::Pyverbs.pyverbs();
            assert!(suite.pyverbs().iter().all(|test| all.contains(test)));
        }
        let count = |options: &Options, kernel| options.pyverbs(Suite::Pyverbs, kernel).len();
        assert_eq!(count(&options, first), Suite::Pyverbs.pyverbs().len());
        assert!((1..count(&options, first)).contains(&count(&options, second)));
        options.run = Run::All;
        assert!(!options.leaves_out(of("torture"), "everything", first));
        assert!(!options.leaves_out(Suite::Host, "book", first));
        assert_eq!(count(&options, second), count(&options, first));
        assert!(options.leaves_out(of("swap"), "three_times", first));
        options.run = Run::Named;
        options.suites = vec!["pingpong".to_owned()];
        assert_eq!(options.pyverbs(Suite::Odp, second), Suite::Odp.pyverbs());
        assert!(!options.leaves_out(of("pingpong"), "tcp_1_gib", second));
        assert!(!options.leaves_out(of("swap"), "three_times", first));
        let on_demand = of(NEEDS_NEWER_RXE);
        assert!(!options.runs_on(on_demand, first) && options.runs_on(on_demand, second));
    }

    #[test]
    fn tests_that_violate_the_specification_exist_and_are_found() {
        for (name, reason) in VIOLATING {
            let (suite, test) = name.split_once("::").unwrap_or((name, ""));
            let tests = Suite::named(suite).unwrap().tests();
            assert!(test.is_empty() || tests.iter().any(|known| known.name == test));
            let full = name.replace("::", "::stable::");
            assert_eq!(violates(&full), Some(*reason));
        }
        assert_eq!(violates("verbs::stable::attributes"), None);
        assert_eq!(violates("pingpong::stable"), None);
    }

    #[test]
    fn test_names_are_unique_within_a_suite() {
        for suite in Suite::all() {
            let tests = suite.tests().into_iter();
            let mut names: Vec<&str> = tests.map(|test| test.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{}", suite.name());
            assert!(count > 0, "{}", suite.name());
        }
    }
}
