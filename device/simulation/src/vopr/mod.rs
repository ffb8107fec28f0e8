//! A world that breaks itself: random processes whose NICs must keep their promises whatever happens to them.
//!
//! A seed gives a [`Plan`]: engines, NICs with link models, VLANs and memory on demand, connections with requests, and what happens
//! meanwhile: NICs move between engines, packets are dropped, links go down, pages are taken away. In each run must hold:
//!
//! - no packet of a NIC violates the specification ([`faultline_oracle`])
//! - each request ends, with success: nothing in a plan exceeds the retries of a connection
//! - sinks have what was sent to them, and nothing else was written
//! - the clock advances
//!
//! A plan that fails is made smaller while it fails ([`shrink`]). The paths of frames are those of the emulator
//! ([`crate::process`]).

mod memory;
mod plan;
mod run;

pub use plan::{Event, Flow, Plan, PlanNic, Request, What};
pub use run::{Failure, Report, run};

/// Makes a plan that fails smaller, as long as it fails. Returns the smallest one that was found, and its failure; `None` if the plan
/// does not fail. At most so many runs are made.
pub fn shrink(plan: &Plan, mut runs: usize) -> Option<(Plan, Failure)> {
    let mut smallest = plan.clone();
    let mut failure = run(plan).err()?;
    loop {
        let mut found = None;
        for smaller in smallest.smaller() {
            if runs == 0 {
                break;
            }
            runs = runs.saturating_sub(1);
            if let Err(error) = run(&smaller) {
                found = Some((smaller, error));
                break;
            }
        }
        match found {
            Some(found) => (smallest, failure) = found,
            None => return Some((smallest, failure)),
        }
    }
}
