//! A world that breaks itself: random processes whose NICs must keep their promises whatever happens to them.
//!
//! A seed gives a [`Plan`]: engines, NICs with link models, VLANs and memory on demand, perhaps two processes whose
//! external ports are connected, flows of all transports, and events: NICs move between engines, packets are dropped,
//! links go down, pages are taken away, fault policies change, guests reboot. In some plans rules of the scenario language change packets,
//! events and doorbells. Each run must satisfy:
//!
//! - no packet of a NIC violates the specification ([`faultline_checker`])
//! - each request ends: with success, or with the status that follows from policy `terminate`, a reboot of the responder's guest or VLANs
//!   that separate its NICs
//! - requests of a queue pair complete once, in the order in which they were posted; after an error all are flushed
//! - memory has what was sent to it, and nothing else was written; each atomic returns what the ones before it have left
//! - datagrams and messages of UC arrive whole or not at all; none is lost if nothing in the plan loses packets
//! - a NIC that was reset writes to no memory of its host until its driver has started again
//! - a stalled ingress goes on when pagers have answered, before its time limit
//! - the clock advances
//! - the objects and the memory of a NIC are those of its start when all connections are destroyed
//!
//! A plan that fails is made smaller while it fails ([`shrink`]). The paths of frames are those of the emulator
//! ([`crate::process`]).

mod choice;
mod expected;
mod flow;
mod generate;
mod memory;
mod places;
mod plan;
mod processes;
mod report;
mod rules;
mod run;
mod smaller;
mod stream;

pub use plan::{Event, Flow, Plan, PlanNic, PlanPort, Request, Transport, What};
pub use report::{Failure, Report};
pub use rules::{PlanRule, RuleEffect};
pub use run::run;

/// Runs of a smaller plan, with links that lose different packets.
const OTHER_LINKS: u64 = 4;

/// Makes a plan that fails smaller, as long as it fails in the same way. Returns the smallest one that was found, and its failure; `None` if the plan
/// does not fail. At most `runs` runs are made.
pub fn shrink(plan: &Plan, mut runs: usize) -> Option<(Plan, Failure)> {
    let mut smallest = plan.clone();
    let mut failure = run(plan).err()?;
    let kind = failure.kind();
    loop {
        let mut found = None;
        // With a smaller plan other packets may be lost, and the failure may not show. So each plan is tried with some
        // other seeds of its links.
        let smaller = smallest.smaller();
        let mut plans = smaller
            .iter()
            .flat_map(|plan| (0..OTHER_LINKS).map(|change| plan.with_other_links(change)));
        while found.is_none()
            && runs > 0
            && let Some(plan) = plans.next()
        {
            runs = runs.saturating_sub(1);
            let failure = run(&plan).err().filter(|failure| failure.kind() == kind);
            found = failure.map(|failure| (plan, failure));
        }
        match found {
            Some(found) => (smallest, failure) = found,
            None => return Some((smallest, failure)),
        }
    }
}
