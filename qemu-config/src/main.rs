//! The lab: guest images, QEMU command lines, and the commands that test, demonstrate and measure the project in guests.
#![forbid(unsafe_code)]

mod agent;
mod bench;
mod bench_netdev;
mod benchmark_page;
mod cluster;
mod command;
mod counts;
mod debug_kernel;
mod demo;
mod disk_space;
mod driver;
mod durations;
mod emulator;
mod exchange;
mod experiments;
mod figures;
mod fuzz;
mod guest;
mod half_speed;
mod host;
mod image;
mod initrd;
mod libraries;
mod package;
mod prepare;
mod priority;
mod processes;
mod processor_time;
mod programs;
mod progress;
mod protocol;
mod qemu;
mod races;
mod run;
mod scenario;
mod series;
mod shell;
mod socket_folder;
mod stream;
mod test;
mod upstream;
mod vmlinux;
mod wakeups;
mod wiring;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};

use cluster::{Nic, Plan};
use driver::{Driver, TestModules};
use host::Release;
use image::{Base, Image, Kernel};
use programs::{Programs, Selection};
use wiring::Wiring;
use workspace::Workspace;

/// Boots Linux guests on the Faultline NIC and runs things in them.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a script as root in every guest and copy its artefacts to the host
    ///
    /// The script sees GUEST_INDEX, GUEST_COUNT, MY_IP, PEER_IP (and MY_IP6, PEER_IP6), NETDEV, RDMA_DEV, GID_INDEX (and
    /// GID_INDEX6) and ARTEFACTS, a folder that is copied to the host afterwards; `lab barrier NAME` waits for all guests. The exit status is that of the script
    /// in the first guest in which it has failed (124: timed out), and 1 if it has succeeded but a kernel has reported an error.
    Run {
        #[command(flatten)]
        guests: GuestOptions,
        #[command(flatten)]
        request: run::Request,
    },
    /// Boot guests and use their consoles; Ctrl-] q ends them
    Shell {
        #[command(flatten)]
        guests: GuestOptions,
    },
    /// Run a program in two guests while a scenario makes faults in their NICs
    ///
    /// The program runs as `SCRIPT server ARGUMENTS` in the first guest and, when that listens on a TCP port or through the
    /// connection manager (or has not for ten seconds), as `SCRIPT client ARGUMENTS` in the second. It is any program or script, and sees the variables that
    /// `cargo lab run` gives to scripts. The exit status is 1 if a rule has not fired, an expectation does not hold, or the
    /// program has not the exit status that the scenario wants. docs/tutorial-faults.md is a tutorial.
    Scenario {
        #[command(flatten)]
        guests: GuestOptions,
        /// The scenario
        file: PathBuf,
        /// The program, instead of the one that the scenario names in `[guests]`
        #[arg(long, value_name = "FILE")]
        script: Option<PathBuf>,
        /// A file for the folder in which the program runs; may be given several times
        #[arg(long = "file", value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Seed of the random numbers, instead of the scenario's
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Write the result to this file as JUnit XML
        #[arg(long, value_name = "FILE")]
        junit: Option<PathBuf>,
    },
    /// Show the NIC at work between two guests
    Demo {
        #[command(flatten)]
        guests: GuestOptions,
    },
    /// Run test suites: by default one test of each guarantee
    Test(TestArguments),
    /// Measure: the emulator alone (no guest), or `guest` for guests side by side with rdma_rxe
    Bench {
        #[command(flatten)]
        how: bench::How,
        #[command(subcommand)]
        what: Option<BenchCommand>,
    },
    /// Measure the values that docs/experiments.md shows beside published figures, and write it and its pictures
    Experiments {
        #[command(flatten)]
        guests: GuestOptions,
        /// Repeat only the simulations; measured figures stay
        #[arg(long)]
        simulator: bool,
    },
    /// Fuzz parts of the emulator with libFuzzer, guided by coverage: all targets of tests/fuzz, or those that are named
    Fuzz {
        /// Targets
        targets: Vec<String>,
        /// Inputs for each
        #[arg(long, default_value_t = 10_000_000)]
        runs: u64,
        /// Put the inputs that add coverage into the repository's corpus
        #[arg(long)]
        merge: bool,
    },
    /// Build the parts of guests (image, drivers, programs) and print the contents
    Image {
        /// Packages to install on top of the base image
        #[arg(long, value_delimiter = ',')]
        packages: Vec<String>,
        /// A kernel of the image; it determines the release
        #[arg(long, value_enum, default_value_t = Kernel::Stable)]
        kernel: Kernel,
    },
    /// Make Debian packages of the emulator and of the guest's driver, in target/packages
    Package {
        /// The profile in which the emulator is built
        #[arg(long, value_enum, default_value_t = emulator::Profile::Release)]
        profile: emulator::Profile,
    },
    /// Make patches of the driver for the kernel, and of the provider for rdma-core, in target/series
    Series,
    /// Inside a guest: serve the lab
    #[command(hide = true)]
    Agent { port: PathBuf },
    /// Inside a guest: wait until every guest has reached this barrier
    #[command(hide = true)]
    Barrier { name: String },
    /// Inside a guest: send a stream whose bytes depend on their position
    #[command(hide = true)]
    StreamSend {
        address: String,
        /// Maximum length in bytes
        bytes: u64,
        /// Stop when this file exists
        #[arg(long)]
        until: Option<PathBuf>,
    },
    /// Inside a guest: receive and check such a stream
    #[command(hide = true)]
    StreamReceive { port: u16 },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
struct TestArguments {
    #[command(subcommand)]
    command: Option<TestCommand>,
    /// Suites, or `suite::word` for the tests whose names contain a word
    suites: Vec<String>,
    /// Print the suites and their tests, and which runs have them for which reasons
    #[arg(long)]
    list: bool,
    /// With --list: also the description of each suite and test, as a table
    #[arg(long, requires = "list")]
    long: bool,
    /// Run the tests of a release: further forms of the same guarantees, and both kernels
    #[arg(long, conflicts_with = "suites")]
    all: bool,
    /// Write the results to this file as JUnit XML as well; junit.xml in the folder of the run has them in any case
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    #[command(flatten)]
    environment: TestEnvironment,
}

#[derive(Debug, Subcommand)]
enum TestCommand {
    /// Repeat suites or tests on a busy machine, without retries, and stop at the first failure
    ///
    /// Guests that a test leaves usable are used again. The table at the end counts how often each test has passed and failed, and
    /// how often guests booted and had to be booted again. The exit status is 1 after a failure or a repeated boot.
    Soak {
        /// Suites, or `suite::word` for the tests whose names contain a word; by default the tests of `cargo lab test`
        suites: Vec<String>,
        /// How often each test runs
        #[arg(long, value_name = "N", default_value_t = 50)]
        times: usize,
        /// Busy threads beside the tests; by default twice as many as processors
        #[arg(long, value_name = "N")]
        load: Option<usize>,
        /// Go on after a failure
        #[arg(long)]
        keep_going: bool,
        #[command(flatten)]
        environment: TestEnvironment,
    },
}

/// What tests run on.
#[derive(Debug, Args)]
struct TestEnvironment {
    /// The guests' kernel
    #[arg(long, value_enum, default_value_t = Kernels::Both)]
    kernel: Kernels,
    /// What the guests' RDMA traffic runs on
    #[arg(long, value_enum, default_value_t = Nic::Faultline)]
    nic: Nic,
    /// What connects the guests' NICs
    #[arg(long, value_enum, default_value_t = Wiring::Switch)]
    wiring: Wiring,
    /// Virtual CPUs of each guest; by default two
    #[arg(long)]
    cpus: Option<u32>,
    /// Pairs of guests that run at the same time; by default two if cores and memory are there
    #[arg(long)]
    pairs: Option<usize>,
    /// Limit each emulator and each QEMU to half a processor, by cgroups
    #[arg(long)]
    half_speed: bool,
    /// Without the packet checker beside the tests, to measure its cost
    #[arg(long)]
    no_packet_check: bool,
}

impl TestEnvironment {
    fn options(self, run: test::Run, suites: Vec<String>) -> test::Options {
        test::Options {
            run,
            suites,
            kernels: self.kernel.list(),
            nic: self.nic,
            wiring: self.wiring,
            cpus: self.cpus,
            pairs: self.pairs.unwrap_or_else(test::pairs_of_host).max(1),
            half_speed: self.half_speed,
            checks_packets: !self.no_packet_check,
        }
    }
}

impl TestArguments {
    fn run(self) -> Result<bool> {
        if let Some(TestCommand::Soak {
            suites,
            times,
            load,
            keep_going,
            environment,
        }) = self.command
        {
            let soak = test::soak::Soak {
                times,
                load: load.unwrap_or_else(test::soak::load_of_host),
                keeps_going: keep_going,
            };
            let run = match suites.is_empty() {
                true => test::Run::Default,
                false => test::Run::Named,
            };
            let options = environment.options(run, suites);
            return test::soak::run(&Workspace::find()?, &options, soak);
        }
        if self.list {
            match self.long {
                true => test::list_long(),
                false => test::list(),
            }
            return Ok(true);
        }
        let run = match (self.all, self.suites.is_empty()) {
            (true, _) => test::Run::All,
            (false, true) => test::Run::Default,
            (false, false) => test::Run::Named,
        };
        let options = self.environment.options(run, self.suites);
        test::run(&Workspace::find()?, &options, self.junit.as_deref())
    }
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Latency and bandwidth in guests, on this NIC and on the kernel's software NIC
    Guest {
        #[command(flatten)]
        guests: GuestOptions,
    },
    /// TCP between the netdev of this NIC and virtio-net, beside two guests that QEMU connects
    Netdev {
        #[command(flatten)]
        guests: GuestOptions,
        #[command(flatten)]
        amount: bench_netdev::Amount,
    },
    /// Costs of metrics and traces, without guests; the same as `--only sight`
    Sight,
    /// One engine thread against two, without guests; the same as `--only engines`
    Engines,
    /// Costs of building and parsing the octets of packets, without guests; the same as `--only wire`
    Wire,
}

/// Kernels to test on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kernels {
    /// Debian 13's.
    Stable,
    /// That of Debian 13's backports.
    Backports,
    /// Both of these, one after the other.
    Both,
    /// That of Debian 12's backports.
    BookwormBackports,
    /// That of Debian testing.
    Forky,
}

impl Kernels {
    fn list(self) -> Vec<Kernel> {
        match self {
            Self::Stable => vec![Kernel::Stable],
            Self::Backports => vec![Kernel::Backports],
            Self::Both => Kernel::BOTH.to_vec(),
            Self::BookwormBackports => vec![Kernel::BookwormBackports],
            Self::Forky => vec![Kernel::Forky],
        }
    }
}

#[derive(Debug, Args)]
struct GuestOptions {
    /// Number of guests
    #[arg(long, value_name = "N", default_value_t = 2)]
    guests: usize,
    /// The guests' kernel
    #[arg(long, value_enum, default_value_t = Kernel::Stable)]
    kernel: Kernel,
    /// Packages to install into the guests (names, or paths of .deb files), separated by commas
    #[arg(long, value_delimiter = ',', value_name = "DEB,…")]
    packages: Vec<String>,
    /// Configuration file of the emulator
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Make the emulator's control socket here, for `faultline top`, `ctl` and `trace`
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Run the emulator with a supervisor (docs/recovery.md)
    #[arg(long)]
    supervisor: bool,
    /// What the guests' RDMA traffic runs on
    #[arg(long, value_enum, default_value_t = Nic::Faultline)]
    nic: Nic,
    /// What connects the guests' NICs
    #[arg(long, value_enum, default_value_t = Wiring::Switch)]
    wiring: Wiring,
    /// Virtual CPUs of each guest; by default two with KVM, one without
    #[arg(long)]
    cpus: Option<u32>,
    /// Memory of each guest in MiB
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    memory: u32,
    /// NUMA nodes of each guest
    #[arg(long, default_value_t = 1, value_name = "N")]
    nodes: u32,
    /// MiB of swap on compressed memory in each guest
    #[arg(long, default_value_t = 0, value_name = "MIB")]
    zram: u32,
    /// MiB of swap on a disk of each guest
    #[arg(long, default_value_t = 0, value_name = "MIB")]
    swap_disk: u32,
    /// MiB of persistent memory of each guest, with a DAX file system at /mnt/dax
    #[arg(long, default_value_t = 0, value_name = "MIB")]
    pmem: u32,
    /// Huge pages of 2 MiB in each guest
    #[arg(long, default_value_t = 0, value_name = "N")]
    huge_pages: u32,
    /// NICs of each guest besides the first
    #[arg(long, default_value_t = 0)]
    further_nics: u32,
    /// A virtual IOMMU in each guest, with which the guests' kernels map memory for each transfer
    #[arg(long)]
    viommu: bool,
    /// MTU of the guests' interfaces
    #[arg(long)]
    mtu: Option<u32>,
    /// Boot the kernel as it is packaged, not uncompressed. This takes a second longer, and suspend to memory needs it
    #[arg(long)]
    packaged_kernel: bool,
    /// Additional kernel command line
    #[arg(long, default_value = "", value_name = "WORDS")]
    append: String,
}

impl GuestOptions {
    /// For guests in which `odp_story` runs: memory is swapped out in it.
    fn plan_with_swap(self) -> Plan {
        let zram = self.zram.max(demo::SWAP);
        Self { zram, ..self }.plan()
    }

    fn plan(self) -> Plan {
        Plan {
            guests: self.guests,
            kernel: self.kernel,
            packages: self.packages,
            upstream: false,
            long_builds: Vec::new(),
            programs: Selection::All,
            config: self.config,
            nic_profile: None,
            control: self.control,
            supervisor: self.supervisor,
            stock: None,
            own_disks: Vec::new(),
            machines: None,
            nic: self.nic,
            wiring: self.wiring,
            profile: emulator::Profile::Quick,
            cpus: self.cpus,
            neighbours: 0,
            memory: self.memory,
            hardware: qemu::Hardware {
                nodes: self.nodes,
                zram: self.zram,
                swap_disk: self.swap_disk,
                pmem: self.pmem,
                huge_pages: self.huge_pages,
                further_nics: self.further_nics,
                viommu: self.viommu,
            },
            mtu: self.mtu,
            packaged_kernel: self.packaged_kernel,
            append: self.append,
        }
    }
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one command. Returns the exit status of the lab: that of the script, or 1 if a step failed.
fn dispatch(command: Command) -> Result<u8> {
    let passed = match command {
        Command::Agent { port } => {
            agent::serve(&port)?;
            true
        }
        Command::Barrier { name } => {
            agent::wait_at_barrier(&name)?;
            true
        }
        Command::Run { guests, request } => {
            return run::run(&Workspace::find()?, &guests.plan(), &request);
        }
        Command::Scenario {
            guests,
            file,
            script,
            files,
            seed,
            junit,
        } => {
            let request = scenario::Request {
                file,
                script,
                files,
                seed,
            };
            scenario::run(
                &Workspace::find()?,
                &guests.plan(),
                &request,
                junit.as_deref(),
            )?
        }
        Command::Shell { guests } => shell::run(&Workspace::find()?, &guests.plan())?,
        Command::Demo { guests } => demo::run(&Workspace::find()?, &guests.plan_with_swap())?,
        Command::Test(arguments) => arguments.run()?,
        Command::Bench { how, what } => measure(&how, what)?,
        Command::Experiments { guests, simulator } => {
            let mut plan = guests.plan_with_swap();
            // Pages move from one to the other.
            plan.hardware.nodes = plan.hardware.nodes.max(2);
            experiments::run(&Workspace::find()?, &plan, simulator)?
        }
        Command::Fuzz {
            targets,
            runs,
            merge,
        } => fuzz::run(&Workspace::find()?, &targets, runs, merge)?,
        Command::StreamSend {
            address,
            bytes,
            until,
        } => {
            println!("{}", stream::send(&address, bytes, until.as_deref())?);
            true
        }
        Command::StreamReceive { port } => {
            println!("{}", stream::receive(port)?);
            true
        }
        Command::Package { profile } => {
            package::run(&Workspace::find()?, profile)?;
            true
        }
        Command::Series => {
            series::run(&Workspace::find()?)?;
            true
        }
        Command::Image { packages, kernel } => {
            build_image(&packages, kernel.debian())?;
            true
        }
    };
    Ok(u8::from(!passed))
}

fn measure(how: &bench::How, what: Option<BenchCommand>) -> Result<bool> {
    let (json, only) = (how.json.as_deref(), how.only.as_deref());
    anyhow::ensure!(
        what.is_none() || how.is_usual(),
        "--counts, --docs and --against go without a word after `bench`"
    );
    let workspace = Workspace::find()?;
    match what {
        None if how.counts => {
            let bless = how.bless;
            counts::run(&workspace, &counts::Request { only, json, bless })
        }
        None if how.docs => bench::documented(&workspace, json),
        None => bench::harness(&workspace, json, only, how.against.as_deref()),
        Some(BenchCommand::Wire) => bench::harness(&workspace, json, Some("wire"), None),
        Some(BenchCommand::Sight) => bench::harness(&workspace, json, Some("sight"), None),
        Some(BenchCommand::Engines) => bench::harness(&workspace, json, Some("engines"), None),
        Some(BenchCommand::Guest { guests }) => {
            bench::guest(&workspace, &guests.plan_with_swap(), json)
        }
        Some(BenchCommand::Netdev { guests, amount }) => {
            bench_netdev::run(&workspace, &guests.plan(), json, amount)
        }
    }
}

/// Builds the parts of guests, and prints the versions.
fn build_image(packages: &[String], release: Release) -> Result<()> {
    let workspace = Workspace::find()?;
    host::ensure_packages(&workspace)?;
    println!("qemu {}", qemu::Qemu::obtain(&workspace)?.version);
    let base = Base::obtain(&workspace, release)?;
    let image = Image::obtain(&workspace, &base, packages)?;
    for &kernel in Kernel::of(release) {
        Driver::obtain(&workspace, &base, kernel)?;
        TestModules::obtain(&workspace, &base, kernel)?;
    }
    Programs::obtain(&workspace, &base, Selection::All)?;
    for (name, version) in base.versions()? {
        println!("{name} {version}");
    }
    println!("image {}", workspace.shown(&image.disk));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn packages_are_split_at_commas() {
        let words = [
            "lab",
            "run",
            "--packages",
            "fio,nvme-cli",
            "--guests",
            "3",
            "--script",
            "x",
        ];
        let Command::Run { guests, request } = Cli::parse_from(words).command else {
            panic!("not a run");
        };
        assert_eq!(guests.packages, ["fio", "nvme-cli"]);
        assert_eq!(
            (guests.guests, guests.kernel, request.timeout),
            (3, Kernel::Stable, 600)
        );
    }

    fn test_arguments(words: &[&str]) -> TestArguments {
        let words = ["lab", "test"].iter().chain(words);
        let Command::Test(arguments) = Cli::parse_from(words).command else {
            panic!("not a test");
        };
        arguments
    }

    #[test]
    fn tests_run_on_both_kernels_unless_told() {
        let arguments = test_arguments(&["pingpong"]);
        assert_eq!(arguments.environment.kernel.list(), Kernel::BOTH);
        assert_eq!(arguments.suites, ["pingpong"]);
        assert!(arguments.command.is_none());
        let arguments = test_arguments(&["--all", "--kernel", "stable"]);
        assert!(arguments.all && arguments.suites.is_empty());
        assert!(Cli::try_parse_from(["lab", "test", "--all", "odp"]).is_err());
    }

    #[test]
    fn a_soak_repeats_suites_or_the_default_run() {
        let arguments = test_arguments(&["soak", "odp", "torture::pinned", "--kernel", "stable"]);
        let Some(TestCommand::Soak {
            suites,
            times,
            load,
            keep_going,
            environment,
        }) = arguments.command
        else {
            panic!("not a soak");
        };
        assert_eq!(suites, ["odp", "torture::pinned"]);
        assert_eq!((times, load, keep_going), (50, None, false));
        assert_eq!(environment.kernel.list(), [Kernel::Stable]);
        assert!(!environment.half_speed);
        let Some(TestCommand::Soak { suites, .. }) = test_arguments(&["soak"]).command else {
            panic!("not a soak");
        };
        assert!(suites.is_empty());
        assert!(Cli::try_parse_from(["lab", "test", "--all", "soak", "odp"]).is_err());
    }

    #[test]
    fn counts_go_with_no_other_way_to_measure() {
        let docs = ["--docs", "--only", "latency"];
        for words in [
            &["--counts", "--against", "faultline"][..],
            &["--bless"],
            &docs,
        ] {
            let words = ["lab", "bench"].iter().chain(words);
            assert!(Cli::try_parse_from(words.clone()).is_err(), "{words:?}");
        }
        assert!(Cli::try_parse_from(["lab", "bench", "--counts", "--bless"]).is_ok());
    }

    #[test]
    fn bench_takes_json_before_and_after_its_subcommand() {
        for words in [
            ["lab", "bench", "--json", "f", "guest"],
            ["lab", "bench", "guest", "--json", "f"],
        ] {
            let Command::Bench { how, what } = Cli::parse_from(words).command else {
                panic!("not a bench")
            };
            assert_eq!(how.json, Some(PathBuf::from("f")));
            assert!(what.is_some());
        }
    }
}
