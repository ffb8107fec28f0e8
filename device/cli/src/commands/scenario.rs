//! `faultline scenario`: scenarios in the simulator.

mod import;
pub(super) mod load;
pub(super) mod report;
mod seeds;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::StringValueParser;
use faultline_daemon::log::output::is_coloured;
use faultline_files::check_writable;
use faultline_simulation::trace::Detail;
use faultline_simulation::{Options, simulate};

use super::profile_names::ProfileNames;
use super::status::{FAILED, NOTHING_JUDGED, UNUSABLE};
use super::stop::Stop;
use super::{complain, print, print_text};
use load::{Failure, FinishedRun, ProcessNames, Until, for_guests, load};
use quick_junit::TestSuite;
use report::{
    dump, json_of, junit_report, suite_for_guests, suite_of, suite_of_failure, suite_of_seeds,
    text_of,
};

/// Run, check or import scenarios: faults on purpose, at precise moments, with expectations.
#[derive(Debug, clap::Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    action: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Run(Run),
    Check(Check),
    Import(import::Import),
}

/// Run scenarios in the simulator.
///
/// The same file and seed give the same trace, and so the same hash. The exit status is 1 if a scenario fails, 2 if a file can't
/// be read, 3 if all files are for guests. A signal (Ctrl-C) ends it after the run that it is in.
#[derive(Debug, clap::Args)]
struct Run {
    /// Scenario files (TOML).
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Seed of all random numbers, instead of that of the file.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Profile of the NICs, instead of that of the file: the name of one that comes with Faultline, or the path of a file.
    #[arg(long, value_name = "NAME|FILE", value_parser = ProfileNames(StringValueParser::new()))]
    profile: Option<String>,
    /// Try all these seeds, both ends included, and print those that fail.
    #[arg(long, value_name = "A..B", conflicts_with_all = ["seed", "until", "verbose"])]
    seeds: Option<seeds::Seeds>,
    /// End at the first event that matches, and print the state of all NICs as JSON. A trigger as the key `on` of a rule, such as
    /// '{ diagnostic = "retries_exhausted" }'.
    #[arg(long, value_name = "TRIGGER")]
    until: Option<Until>,
    /// Write the results as JUnit XML into this file.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Print JSON, one object in each line.
    #[arg(long)]
    json: bool,
    /// Print all that happens: packets, interrupts, completions, diagnostics.
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
}

/// Check scenario files without running them.
#[derive(Debug, clap::Args)]
struct Check {
    /// Scenario files (TOML).
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Check them for the NICs and ports of this configuration of `faultline serve`, instead of for the simulator.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Why a file has no result.
fn words(failure: &Failure, styled: bool) -> String {
    match failure {
        Failure::Wrong(problems) => problems.draw(styled),
        Failure::ForGuests(name) => for_guests(name),
        Failure::Other(error) => format!("Error: {error:#}"),
    }
}

/// Prints why a file has no result.
fn complain_of(failure: &Failure) {
    complain(words(failure, is_coloured(&std::io::stderr())));
}

impl Command {
    /// Executes the command.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        match &self.action {
            Subcommand::Run(run) => run.run(),
            Subcommand::Check(check) => check.run(),
            Subcommand::Import(import) => import.run(),
        }
    }
}

impl Check {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let process = self.config.as_deref().map(ProcessNames::of_config);
        let process = process.transpose()?;
        let mut status = ExitCode::SUCCESS;
        for path in &self.files {
            match load::check(path, process.as_ref()) {
                Ok(said) => print_text(&(said + "\n"))?,
                Err(failure) => {
                    complain_of(&failure);
                    status = ExitCode::from(UNUSABLE);
                }
            }
        }
        Ok(status)
    }
}

impl Run {
    fn run(&self) -> anyhow::Result<ExitCode> {
        if let Some(path) = &self.junit {
            check_writable(path)?;
        }
        let stop = Stop::new()?;
        let mut status = 0;
        let (mut ran, mut judged) = (0_usize, 0_usize);
        let mut suites = Vec::new();
        let mut files = self.files.iter();
        for path in files.by_ref() {
            ran = ran.saturating_add(1);
            let result = match &self.seeds {
                Some(seeds) => self.search(path, seeds, &stop, &mut suites),
                None => self.run_one(path).and_then(|ran| {
                    let passed = ran.outcome.passed();
                    self.show(&ran)?;
                    suites.push(suite_of(&ran));
                    Ok(passed)
                }),
            };
            judged = judged.saturating_add(usize::from(result.is_ok()));
            match result {
                Ok(true) => {}
                Ok(false) => status = status.max(FAILED),
                Err(Failure::ForGuests(name)) => {
                    print_text(&(for_guests(&name) + "\n"))?;
                    suites.push(suite_for_guests(&name));
                }
                Err(failure) => {
                    complain_of(&failure);
                    let name = path.display().to_string();
                    suites.push(suite_of_failure(&name, words(&failure, false)));
                    status = UNUSABLE;
                }
            }
            if stop.is_wanted() {
                break;
            }
        }
        for path in files {
            let name = path.display().to_string();
            suites.push(suite_of_failure(&name, "interrupted before it".to_owned()));
        }
        if let Some(path) = &self.junit {
            let shown = path.display();
            let xml = junit_report(suites)?;
            fs::write(path, xml).with_context(|| format!("can't write {shown}"))?;
        }
        if let Some(interrupted) = stop.status() {
            let files = self.files.len();
            complain(format!(
                "interrupted: {ran} of {files} files were run, the last perhaps in part"
            ));
            return Ok(interrupted);
        }
        if status == 0 && judged == 0 {
            return Ok(ExitCode::from(NOTHING_JUDGED));
        }
        Ok(ExitCode::from(status))
    }

    fn run_one(&self, path: &Path) -> Result<FinishedRun, Failure> {
        let loaded = load(path, self.until.as_ref(), self.profile.as_deref())?;
        let mut states = Vec::new();
        let mut inspect =
            |index: usize, nic: &mut faultline_nic::Nic| states.push(dump(index, nic));
        let mut options = Options {
            seed: self.seed,
            trace: match self.verbose {
                true => Detail::Lines,
                false => Detail::Hash,
            },
            profile: loaded.profile.clone(),
            ..Options::default()
        };
        if self.until.is_some() {
            options.inspect = Some(&mut inspect);
        }
        let outcome = simulate(&loaded.scenario, &loaded.plan, options);
        let outcome = outcome.with_context(|| loaded.name.clone())?;
        Ok(FinishedRun {
            loaded,
            outcome,
            dump: states,
        })
    }

    /// Prints the result of a scenario.
    fn show(&self, ran: &FinishedRun) -> anyhow::Result<()> {
        if self.verbose {
            let mut lines = ran.outcome.results.trace.lines().join("\n");
            lines.push('\n');
            print(lines.as_bytes())?;
        }
        if self.json {
            return print(format!("{}\n", json_of(ran)).as_bytes());
        }
        if !ran.dump.is_empty() {
            return print(format!("{}\n", serde_json::to_string_pretty(&ran.dump)?).as_bytes());
        }
        print_text(&text_of(ran))
    }

    /// Tries all seeds. Returns true if none fails.
    fn search(
        &self,
        path: &Path,
        seeds: &seeds::Seeds,
        stop: &Stop,
        suites: &mut Vec<TestSuite>,
    ) -> Result<bool, Failure> {
        let loaded = load(path, None, self.profile.as_deref())?;
        let found = seeds.try_all(&loaded, stop);
        let found = found.with_context(|| loaded.name.clone())?;
        suites.push(suite_of_seeds(&loaded.name, &found, seeds.count()));
        if self.json {
            let json = serde_json::json!({
                "file": loaded.name,
                "seeds": found.tried,
                "failed": found.failed.iter().map(|failed| failed.seed).collect::<Vec<_>>(),
            });
            print(format!("{json}\n").as_bytes())?;
        } else {
            print_text(&seeds.text_of(&loaded.name, &found))?;
        }
        Ok(found.failed.is_empty())
    }
}
