//! The suites, and which of their tests run when none is named.

use anyhow::{Result, bail};

use super::{
    host, keys, packages, pyverbs, recover, robustness, sanitizers, scenarios, sight, suites,
    user_network,
};
use crate::cluster::Nic;
use crate::image::Kernel;
use crate::wiring::Wiring;

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
    "sight",
    "scenarios",
    "torture",
    "ulp",
    "apps",
    "swap",
    "interop",
    "interop-lossy",
    "vhost",
    "engines",
    "wire-tcp",
    "wire-vxlan",
    "robustness",
    "recover",
    "restart",
    "packages",
];

/// Those of them that run on the first kernel only, unless they are named: each boots guests of its own, has
/// minutes of traffic, or does what does not depend on the guest's kernel. So all together stay well below an hour.
const ON_ONE_KERNEL: &[&str] = &[
    "perftest",
    "keys",
    "sight",
    "scenarios",
    "ulp",
    "apps",
    "swap",
    "interop",
    "interop-lossy",
    "vhost",
    "engines",
    "wire-tcp",
    "wire-vxlan",
    "robustness",
    "recover",
    "restart",
    "packages",
];

/// Tests of other suites of which the same holds: they take long, and others of their suite show on the
/// second kernel what they would (WRITEs of each size, what happens to DAX files), or a short form does.
const LONG: &[&str] = &[
    "odp::write_bw_all_sizes",
    "coherence::dax_truncated",
    "coherence::dax_punched",
    "torture::pinned",
    "torture::story",
    "torture::everything",
    "torture::everything_implicit",
];

/// Their short forms, which run on the other kernels instead.
const SHORT: &[&str] = &["torture::everything_short"];

/// Tests that run by name only: longer forms of other tests, and the torture's events in groups, which show the kind of
/// a fault that all events together have shown.
const BY_NAME: &[&str] = &[
    "pingpong::tcp_1_gib",
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
    "recover::fatal_traffic",
    "recover::fatal_faults",
    "recover::fatal_listener",
    "recover::fatal_disk",
    "recover::fatal_files",
    "recover::fatal_rds",
    "recover::fatal_lease",
    "recover::device_reset",
    "recover::device_reset_everything",
    "recover::function_reset_everything",
    "recover::command_timeout_everything",
    "recover::reload_everything",
    "recover::given_up",
    "recover::stopped_for_a_minute",
    "recover::again_and_again",
    "restart::aborted_everything",
    "restart::renewed_everything",
    "restart::killed_100_times",
    "robustness::module_removed_50_times_under_traffic",
    "packages::action",
    "packages::apt",
    "packages::container",
    "packages::kernel_update",
    "packages::libvirt",
    "packages::libvirt_confined",
    "packages::removal",
    "packages::series",
    "packages::tarball",
    "packages::tutorial",
    "packages::without_extensions",
    "packages::without_on_demand_paging",
];

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
    fn pyverbs(self) -> Vec<pyverbs::Test> {
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
    /// Suites by name; all if empty. `suite::word` runs only the tests whose name contains the word.
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
    /// The packet checker runs beside the tests in guests.
    pub checks_packets: bool,
}

impl Options {
    /// The kernel of tests that run on one only.
    pub fn first_kernel(&self) -> Kernel {
        self.kernels.first().copied().unwrap_or(Kernel::Stable)
    }

    /// True if a suite has tests in guests of a kernel.
    pub fn runs_on(&self, suite: Suite, kernel: Kernel) -> bool {
        let again = self.kernels.first() != Some(&kernel);
        let left_out = self.suites.is_empty() && again && ON_ONE_KERNEL.contains(&suite.name());
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
        !left_out && !on_host && !is_too_old
    }

    /// The tests of a suite that are rdma-core's. If everything runs, they all run once.
    pub fn pyverbs(&self, suite: Suite) -> Vec<pyverbs::Test> {
        match self.suites.is_empty() && suite != Suite::Pyverbs {
            true => Vec::new(),
            false => suite.pyverbs(),
        }
    }

    /// True if a test of a suite is omitted on a kernel because everything runs.
    pub fn leaves_out(&self, suite: &str, test: &str, kernel: Kernel) -> bool {
        let is_in = |names: &[&str]| {
            let mut names = names.iter();
            names.any(|name| name.split_once("::") == Some((suite, test)))
        };
        let again = self.kernels.first() != Some(&kernel);
        self.suites.is_empty() && (is_in(BY_NAME) || is_in(if again { LONG } else { SHORT }))
    }
}

/// The suites that `words` name, with the filter of each.
pub fn choose(words: &[String]) -> Result<Vec<(Suite, String)>> {
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
    use crate::test::violating::{VIOLATING, violates};

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
            wiring: Wiring::Switch,
            cpus: None,
            pairs: 1,
            checks_packets: true,
        };
        let [first, second] = Kernel::BOTH;
        let exists = |suite: &str, test: &str| {
            let suite = Suite::all().into_iter().find(|known| known.name() == suite);
            suite.is_some_and(|suite| suite.tests().iter().any(|known| known == test))
        };
        for name in LONG.iter().chain(BY_NAME) {
            let (suite, test) = name.split_once("::").unwrap();
            assert!(exists(suite, test));
            assert_eq!(
                options.leaves_out(suite, test, first),
                BY_NAME.contains(name)
            );
            assert!(options.leaves_out(suite, test, second));
        }
        for name in SHORT {
            let (suite, test) = name.split_once("::").unwrap();
            assert!(exists(suite, test));
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
        let on_demand = Suite::Guest(NEEDS_NEWER_RXE);
        assert!(Suite::all().contains(&on_demand));
        assert!(!options.runs_on(on_demand, first) && options.runs_on(on_demand, second));
        assert!(!options.leaves_out("swap", "three_times", first));
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
