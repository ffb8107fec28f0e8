//! The suites, and the choice of tests by name. [`selection`] has those of runs without names.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::selection::{On, Run};
use super::{
    host, keys, packages, pyverbs, recover, robustness, sanitizers, scenarios, selection, sight,
    suites, user_network,
};
use crate::cluster::Nic;
use crate::half_speed::HalfSpeed;
use crate::image::Kernel;
use crate::wiring::Wiring;

/// The suite that needs on-demand regions of rxe, which kernels before Linux 6.15 do not have.
const NEEDS_NEWER_RXE: &str = "interop-on-demand";

/// The suites that `debug-kernel` runs on its kernel.
pub const DEBUG_KERNEL: [&str; 5] = ["pingpong", "odp", "keys", "torture", "recover"];

/// The suites, or tests of suites, that `race-kernel` runs on its kernel: those with work on several processors, in
/// interrupts and in deferred work at a time.
pub const RACE_KERNEL: [&str; 7] = [
    "pingpong",
    "rdmacm",
    "odp",
    "keys",
    "torture::everything_short",
    "recover::fatal",
    "recover::removed_while_recovering",
];

/// Tests of these that show nothing on these kernels that shorter ones do not, and would take another half hour.
pub const TOO_SLOW: [&str; 3] = ["tcp_1_gib", "everything_other_seed", "everything_many_qps"];

/// The step of `debug-kernel` that needs no guest: the style of the kernel code.
pub const CHECKPATCH: &str = "checkpatch";

/// A named set of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Without guests: formatting, lints, unit tests, builds.
    Host,
    /// A table of exchanges between two guests.
    Guest(&'static str),
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
        all.extend(suites::SUITES.iter().map(|&name| Self::Guest(name)));
        all.extend([
            Self::Odp,
            Self::Keys,
            Self::Pyverbs,
            Self::Robustness,
            Self::Recover,
            Self::Restart,
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

    /// The name by which it is chosen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Guest(name) => name,
            Self::Odp => "odp",
            Self::Keys => "keys",
            Self::Pyverbs => "pyverbs",
            Self::Robustness => "robustness",
            Self::Recover => "recover",
            Self::Restart => "restart",
            Self::Sight => "sight",
            Self::Scenarios => "scenarios",
            Self::Packages => "packages",
            Self::DebugKernel => "debug-kernel",
            Self::RaceKernel => "race-kernel",
            Self::Sanitizers => "sanitizers",
            Self::UserNetwork => "user-network",
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
            | Self::Sight
            | Self::Scenarios
            | Self::Packages
            | Self::DebugKernel
            | Self::RaceKernel
            | Self::Sanitizers
            | Self::UserNetwork => Vec::new(),
        }
    }

    /// The name of a test in the table of runs: that of its module if it is rdma-core's.
    pub fn key(self, test: &str) -> &str {
        match self {
            Self::Pyverbs => {
                let known = pyverbs::all().find(|known| known.name == test);
                known.map_or(test, |known| known.module)
            }
            _ => test,
        }
    }

    /// Its steps without guests.
    pub fn steps(self) -> &'static [&'static str] {
        match self {
            Self::Host => &host::STEPS,
            Self::Keys => keys::STEPS,
            Self::Packages => packages::STEPS,
            Self::DebugKernel => &[CHECKPATCH],
            Self::Sanitizers => &sanitizers::STEPS,
            Self::UserNetwork => &user_network::STEPS,
            Self::Guest(_) | Self::Odp | Self::Pyverbs | Self::RaceKernel => &[],
            Self::Robustness | Self::Recover | Self::Restart | Self::Sight => &[],
            Self::Scenarios => scenarios::STEPS,
        }
    }

    /// The names of its tests and steps.
    pub fn tests(self) -> Vec<String> {
        let others: Vec<&str> = match self {
            Self::Robustness => robustness::TESTS.iter().map(|&(name, _)| name).collect(),
            Self::Recover => recover::TESTS.iter().map(|&(name, _)| name).collect(),
            Self::Restart => recover::RESTARTS.iter().map(|&(name, _)| name).collect(),
            Self::Sight => sight::TESTS.iter().map(|&(name, _)| name).collect(),
            Self::Scenarios => {
                let tests = scenarios::TESTS.iter().map(|&(name, _)| name);
                tests.chain(scenarios::STEPS.iter().copied()).collect()
            }
            Self::DebugKernel => [&DEBUG_KERNEL[..], &[CHECKPATCH]].concat(),
            Self::RaceKernel => RACE_KERNEL.to_vec(),
            Self::Host
            | Self::Keys
            | Self::Packages
            | Self::Sanitizers
            | Self::UserNetwork
            | Self::Guest(_)
            | Self::Odp
            | Self::Pyverbs => self.steps().to_vec(),
        };
        let pyverbs = self.pyverbs().into_iter().map(|test| test.name);
        let table = suites::table(self.name())
            .iter()
            .map(|test| test.name.to_owned());
        let named = others.into_iter().chain(pyverbs).map(str::to_owned);
        named.chain(table).collect()
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
    /// What holds the processes of guests back, if they are to run at half speed.
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
        tests.retain(|test| !self.leaves_out(suite.name(), test.module, kernel));
        tests
    }

    /// True if this run does not have a test of a suite on a kernel. rdma-core's tests are named by their module.
    pub fn leaves_out(&self, suite: &str, test: &str, kernel: Kernel) -> bool {
        let is_first = self.kernels.first() == Some(&kernel);
        !selection::on(self.run, suite, test).includes(is_first)
    }
}

/// The suites that `words` name, with the filter of each; those with tests in a run without names.
pub fn choose(words: &[String], run: Run) -> Result<Vec<(Suite, String)>> {
    let all = Suite::all();
    if run != Run::Named {
        let has_tests = |suite: &Suite| {
            let mut tests = suite.tests().into_iter();
            tests.any(|test| selection::on(run, suite.name(), suite.key(&test)) != On::Nothing)
        };
        let suites = all.into_iter().filter(has_tests);
        return Ok(suites.map(|suite| (suite, String::new())).collect());
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
    use crate::test::violating::{VIOLATING, violates};

    #[test]
    fn suites_are_chosen_by_name_and_filter() {
        let chosen = choose(&["pingpong::rc".to_owned(), "host".to_owned()], Run::Named).unwrap();
        assert_eq!(
            chosen,
            [
                (Suite::Guest("pingpong"), "rc".to_owned()),
                (Suite::Host, String::new())
            ]
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
    fn tests_are_left_out_as_the_table_says() {
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
        assert!(!options.leaves_out("pingpong", "rc", first));
        assert!(!options.leaves_out("pingpong", "rc", second));
        assert!(!options.leaves_out("interop", "rc", first));
        assert!(options.leaves_out("interop", "rc", second));
        assert!(options.leaves_out("torture", "everything", first));
        for suite in [Suite::Odp, Suite::Keys] {
            assert!(options.pyverbs(suite, first).is_empty());
            let all = Suite::Pyverbs.pyverbs();
            assert!(suite.pyverbs().iter().all(|test| all.contains(test)));
        }
        let of = |options: &Options, kernel| options.pyverbs(Suite::Pyverbs, kernel).len();
        assert_eq!(of(&options, first), Suite::Pyverbs.pyverbs().len());
        assert!((1..of(&options, first)).contains(&of(&options, second)));
        options.run = Run::All;
        assert!(!options.leaves_out("torture", "everything", first));
        assert_eq!(of(&options, second), of(&options, first));
        assert!(options.leaves_out("swap", "three_times", first));
        options.run = Run::Named;
        options.suites = vec!["pingpong".to_owned()];
        assert_eq!(options.pyverbs(Suite::Odp, second), Suite::Odp.pyverbs());
        assert!(!options.leaves_out("pingpong", "tcp_1_gib", second));
        assert!(!options.leaves_out("swap", "three_times", first));
        let on_demand = Suite::Guest(NEEDS_NEWER_RXE);
        assert!(Suite::all().contains(&on_demand));
        assert!(!options.runs_on(on_demand, first) && options.runs_on(on_demand, second));
    }

    #[test]
    fn tests_that_violate_the_specification_exist_and_are_found() {
        for (name, reason) in VIOLATING {
            let (suite, test) = name.split_once("::").unwrap_or((name, ""));
            let suite = Suite::all().into_iter().find(|known| known.name() == suite);
            let tests = suite.unwrap().tests();
            assert!(test.is_empty() || tests.iter().any(|known| known == test));
            let full = name.replace("::", "::stable::");
            assert_eq!(violates(&full), Some(*reason));
        }
        assert_eq!(violates("verbs::stable::attributes"), None);
        assert_eq!(violates("pingpong::stable"), None);
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
