//! `faultline vopr`: random processes in virtual time, whose NICs must keep their promises.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use faultline_simulation::vopr::{Failure, Plan, run, shrink};

use super::stop::Stop;
use super::{complain, print};

/// Most runs that make a plan that fails smaller.
const SHRINKS: usize = 6000;

/// Run random processes in virtual time, and check that their NICs keep their promises.
///
/// A seed gives engines, NICs with link models, VLANs and memory on demand, perhaps two processes that are connected by
/// external ports, flows of RC, XRC, UC, UD and iWARP, and events: NICs move between engines, packets are dropped, links
/// go down, pages are taken away, fault policies change, guests reboot. Some plans have rules, as scenario files have
/// them. No packet may violate the specification, each request must end as the manual says, in order, memory must have
/// what was sent to it and nothing else, and NICs must give back all memory when their objects are destroyed. A plan
/// that fails is made smaller, as long as it fails in the same way, and printed. The exit status is then 1. A signal
/// ends the runs: with a number of seeds, the exit status is then 128 and the number of the signal.
#[derive(Debug, clap::Args)]
pub(crate) struct Vopr {
    /// The first seed. Without it seeds follow from the clock.
    seed: Option<u64>,
    /// Seeds to run, one after the other; 0: until one fails, or a signal comes. Without a first seed 0, otherwise 1.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

impl Vopr {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let fresh = since.map_or(0, |time| time.as_secs().wrapping_mul(1_000_000));
        let first = self.seed.unwrap_or(fresh);
        let count = self.count.unwrap_or(u64::from(self.seed.is_some()));
        let mut done = 0u64;
        let stop = Stop::new()?;
        while (count == 0 || done < count) && !stop.is_wanted() {
            let seed = first.wrapping_add(done);
            let plan = Plan::of_seed(seed);
            match run(&plan) {
                Ok(report) => {
                    let time = Duration::from_nanos(report.time);
                    let counts = report.counts.iter();
                    let counts: Vec<String> = counts
                        .map(|(name, count)| format!("{count} {name}"))
                        .collect();
                    let counts = counts.join(", ");
                    print(format!("seed {seed}: {counts}, {time:?}\n").as_bytes())?;
                }
                Err(failure) => {
                    print(failed(seed, &plan, &failure).as_bytes())?;
                    return Ok(ExitCode::FAILURE);
                }
            }
            done = done.saturating_add(1);
        }
        let interrupted = stop.status().filter(|_| count == 0 || done < count);
        if interrupted.is_some() {
            let wanted = match count {
                0 => String::new(),
                count => format!(" of {count}"),
            };
            complain(format!(
                "interrupted: {done}{wanted} seeds were run, and none failed"
            ));
        }
        // Without a number of seeds, a signal is the end.
        Ok(interrupted
            .filter(|_| count > 0)
            .unwrap_or(ExitCode::SUCCESS))
    }
}

fn failed(seed: u64, plan: &Plan, failure: &Failure) -> String {
    let smallest = shrink(plan, SHRINKS);
    let (smaller, of_smaller) = smallest.unwrap_or_else(|| (plan.clone(), failure.clone()));
    format!(
        "seed {seed}: {failure}\nThe smallest plan found that fails: {of_smaller}\n{smaller}Again: faultline vopr {seed}\n"
    )
}
