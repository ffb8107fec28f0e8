//! The search for seeds with which a scenario fails.

use std::fmt::Write;
use std::num::NonZero;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{available_parallelism, scope};

use anyhow::bail;
use faultline_scenario::value::Range;
use faultline_simulation::trace::Detail;
use faultline_simulation::{Options, SimulationError, simulate};

use super::load::Loaded;
use crate::commands::stop::Stop;

/// Most seeds of one search.
const MAX_SEEDS: u64 = 1_000_000;
/// Failed seeds that are listed.
const LISTED: usize = 20;

/// Seeds from one to another, both included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeds(Range);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range: Range = text.parse()?;
        match range.last.checked_sub(range.first) {
            Some(more) if more < MAX_SEEDS => Ok(Self(range)),
            _ => Err(format!(
                "{text:?} are more than {MAX_SEEDS} seeds: give a first and a last one, such as 1..1000"
            )),
        }
    }
}

/// A seed with which the scenario fails.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) seed: u64,
    /// Checks that fail.
    pub(super) reasons: Vec<String>,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// Seeds that were tried: all, unless a signal has come.
    pub(super) tried: u64,
    /// Those that fail, in ascending order.
    pub(super) failed: Vec<Failed>,
}

impl Seeds {
    /// Number of seeds.
    pub(super) fn count(self) -> u64 {
        self.0.last.saturating_sub(self.0.first).saturating_add(1)
    }

    /// Runs the scenario with each seed, on all processors, until a signal comes.
    pub(super) fn try_all(self, loaded: &Loaded, stop: &Stop) -> anyhow::Result<Search> {
        let (next, tried) = (AtomicU64::new(0), AtomicU64::new(0));
        let is_impossible = AtomicBool::new(false);
        let found: Mutex<(Vec<Failed>, Option<SimulationError>)> = Mutex::default();
        let work = || {
            while !is_impossible.load(Ordering::Relaxed) && !stop.is_wanted() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.count() {
                    return;
                }
                let seed = self.0.first.saturating_add(number);
                let result = try_one(loaded, seed);
                tried.fetch_add(1, Ordering::Relaxed);
                let Ok(mut found) = found.lock() else {
                    return;
                };
                match result {
                    Ok(failed) => found.0.extend(failed),
                    Err(error) => {
                        is_impossible.store(true, Ordering::Relaxed);
                        found.1.get_or_insert(error);
                    }
                }
            }
        };
        scope(|threads| {
            for _ in 0..available_parallelism().map_or(1, NonZero::get) {
                threads.spawn(work);
            }
        });
        let Ok((mut failed, error)) = found.into_inner() else {
            bail!("a thread of the search has panicked");
        };
        if let Some(error) = error {
            return Err(error.into());
        }
        failed.sort_by_key(|failed| failed.seed);
        let tried = tried.into_inner();
        Ok(Search { tried, failed })
    }

    /// The result as text.
    pub(super) fn text_of(self, name: &str, search: &Search) -> String {
        let (count, Search { tried, failed }) = (self.count(), search);
        let tried = match *tried < count {
            true => format!("{tried} of {count} seeds that were tried"),
            false => format!("{count} seeds"),
        };
        let Some(first) = failed.first() else {
            return format!("{name}: passes with all {tried}\n");
        };
        let mut text = format!("{name}: fails with {} of {tried}:", failed.len());
        for failed in failed.iter().take(LISTED) {
            // Writing to a string does not fail.
            let _ = write!(text, " {}", failed.seed);
        }
        text.push_str(if failed.len() > LISTED {
            " …\n"
        } else {
            "\n"
        });
        let _ = writeln!(text, "  the smallest is {}:", first.seed);
        for reason in &first.reasons {
            let _ = writeln!(text, "    {reason}");
        }
        let _ = writeln!(
            text,
            "  repeat it: faultline scenario run {name} --seed {}",
            first.seed
        );
        text
    }
}

/// Runs the scenario with a seed.
fn try_one(loaded: &Loaded, seed: u64) -> Result<Option<Failed>, SimulationError> {
    let options = Options {
        seed: Some(seed),
        profile: loaded.profile.clone(),
        trace: Detail::Nothing,
        ..Options::default()
    };
    let outcome = simulate(&loaded.scenario, &loaded.plan, options)?;
    let checks = outcome.verdict.checks.iter().filter(|check| !check.passed);
    let reasons = checks.map(|check| {
        format!(
            "{}: {}, expected {}",
            check.name, check.found, check.expected
        )
    });
    let problems = outcome.verdict.problems.iter().cloned();
    Ok((!outcome.passed()).then(|| Failed {
        seed,
        reasons: reasons.chain(problems).collect(),
    }))
}
