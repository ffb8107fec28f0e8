//! A scenario with its rules, and the verdict on it.

use std::cell::RefCell;
use std::rc::Rc;

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Diagnostic, Instant, Nic};
use faultline_scenario::expectation::Expectation;
use faultline_scenario::file::Scenario;
use faultline_scenario::plan::Plan;
use faultline_scenario::rules::{
    CallerRequest, HeldFrame, Late as LateThing, NicRequest, PacketFacts, Rules,
};
use faultline_scenario::traffic::Simulator;
use faultline_scenario::trigger::Direction;
use faultline_scenario::verdict::{Verdict, judge, judge_packets};

use crate::error::SimulationError;
use crate::observer::{Frame, Late, Nothing, Observer, Operation, PassedFrame};
use crate::run::{Ending, Options, Results, profile_of, run};
use crate::trace::Detail;

/// What has come of a scenario.
#[derive(Debug)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// What has happened.
    pub results: Results,
}

impl Outcome {
    /// True if all rules have fired as often as they must, all expectations hold, and there was no problem.
    pub fn passed(&self) -> bool {
        self.verdict.passed()
    }
}

/// The rules of a plan as an observer.
#[derive(Debug)]
struct RunningRules {
    plan: Plan,
    /// `None` before the start.
    rules: Option<Rules>,
}

impl Observer for RunningRules {
    fn start(&mut self, now: Instant, nics: &[&Nic]) {
        let nics = nics.iter().copied();
        self.rules = Some(Rules::new(self.plan.clone(), nics, now));
    }

    fn frame(
        &mut self,
        now: Instant,
        nic: usize,
        dir: Direction,
        qpn: u32,
        frame: &Frame<'_>,
    ) -> bool {
        let Some(rules) = self.rules.as_mut().filter(|r| r.takes_packets(nic, dir)) else {
            return true;
        };
        let facts = PacketFacts {
            header: frame.header,
            bytes: frame.bytes.len(),
        };
        let Some(taking) = rules.packet(now, nic, dir, qpn, facts) else {
            return true;
        };
        let held = HeldFrame {
            site: nic,
            dir,
            by: None,
            origin: frame.origin,
            note: 0,
            bytes: frame.bytes.to_vec(),
        };
        rules.take_frame(now, taking, held);
        false
    }

    fn next_frame(&mut self, now: Instant) -> Option<PassedFrame> {
        let frame = self.rules.as_mut()?.poll_frame(now)?;
        Some(PassedFrame {
            nic: frame.site,
            dir: frame.dir,
            origin: frame.origin,
            bytes: frame.bytes,
        })
    }

    fn interrupt(&mut self, now: Instant, nic: usize, vector: u16) -> bool {
        let rules = self.rules.as_mut();
        rules.is_none_or(|rules| rules.interrupt(now, nic, vector))
    }

    fn doorbell(&mut self, now: Instant, nic: usize, page: u32, bell: Doorbell) -> bool {
        let rules = self.rules.as_mut();
        rules.is_none_or(|rules| rules.doorbell(now, nic, page, bell))
    }

    fn next_late(&mut self, _: Instant) -> Option<Late> {
        Some(match self.rules.as_mut()?.poll_late()? {
            LateThing::Interrupt { nic, vector } => Late::Interrupt { nic, vector },
            LateThing::Doorbell { nic, page, bell } => Late::Doorbell { nic, page, bell },
        })
    }

    fn diagnostic(&mut self, now: Instant, nic: usize, diagnostic: &Diagnostic, device: &Nic) {
        if let Some(rules) = &mut self.rules {
            rules.diagnostic(now, nic, diagnostic, device);
        }
    }

    fn lost_diagnostics(&mut self, nic: usize, lost: u64) {
        if let Some(rules) = &mut self.rules {
            rules.lost_diagnostics(nic, lost);
        }
    }

    fn next_operation(&mut self, _: Instant) -> Option<(usize, Operation)> {
        let rules = self.rules.as_mut()?;
        loop {
            let (nic, request) = rules.poll_request()?;
            let operation = match request {
                NicRequest::Caller(CallerRequest::Link(up)) => Operation::Link(up),
                NicRequest::Caller(CallerRequest::MoveGids) => Operation::MoveGids,
                NicRequest::Caller(CallerRequest::Mtu(mtu)) => Operation::Mtu(mtu),
                NicRequest::Caller(CallerRequest::Reset) => Operation::Reset,
                NicRequest::Caller(CallerRequest::Remove) => Operation::Remove,
                NicRequest::Caller(CallerRequest::Speed(mbps)) => Operation::Speed(mbps),
                NicRequest::Caller(CallerRequest::Pause(time)) => Operation::Pause(time),
                // The rules themselves remember the end.
                NicRequest::Caller(CallerRequest::End) => continue,
                request => Operation::Nic(Box::new(|nic, now, memory| {
                    request.carry_out(nic, now, memory).map(drop)
                })),
            };
            return Some((nic, operation));
        }
    }

    fn note_problem(&mut self, problem: String) {
        if let Some(rules) = &mut self.rules {
            rules.note_problem(problem);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.rules.as_ref()?.next_deadline()
    }

    fn handle_deadline(&mut self, now: Instant) {
        if let Some(rules) = &mut self.rules {
            rules.advance(now);
        }
    }

    fn has_ended(&self) -> bool {
        self.rules.as_ref().is_some_and(Rules::has_ended)
    }
}

/// Adds the expectation that no NIC violates a rule of the specification, unless the plan expects something of violations already, one
/// of its rules makes packets illegal, or the NICs imitate a defect of real adapters.
///
/// # Errors
/// The scenario has a profile that does not exist.
pub fn expect_legal_packets(
    scenario: &Scenario,
    plan: &mut Plan,
    options: &Options<'_>,
) -> Result<(), SimulationError> {
    let Simulator { damming, flood, .. } = scenario.simulator;
    let pitfalls = profile_of(scenario, options)?.nic.pitfalls;
    if !damming && !flood && pitfalls.is_none_or(|pitfalls| pitfalls.is_empty()) {
        plan.expect_legal_packets();
    }
    Ok(())
}

/// Runs a scenario with its rules and judges it, also by [`expect_legal_packets`]. The seed is that of the plan if the options have none.
///
/// # Errors
/// The scenario can't be simulated.
pub fn simulate(
    scenario: &Scenario,
    plan: &Plan,
    options: Options<'_>,
) -> Result<Outcome, SimulationError> {
    let seed = options.seed.unwrap_or(plan.seed);
    let (fault_service, profile) = (options.fault_service, options.profile.clone());
    let mut plan = Plan {
        seed,
        ..plan.clone()
    };
    expect_legal_packets(scenario, &mut plan, &options)?;
    let observer = Rc::new(RefCell::new(RunningRules {
        plan: plan.clone(),
        rules: None,
    }));
    let options = Options {
        seed: Some(seed),
        check_packets: plan.checks_packets(),
        ..options
    };
    let mut results = run(scenario, options, Rc::clone(&observer) as _)?;
    for expectation in &plan.expectations {
        if let Expectation::Slowdown(slowdown) = &expectation.expectation {
            let options = Options {
                seed: Some(seed),
                fault_service,
                profile: profile.clone(),
                trace: Detail::Nothing,
                ..Options::default()
            };
            take_alone(scenario, options, &slowdown.traffic, &mut results)?;
        }
    }
    let observer = observer.borrow();
    let mut verdict = match &observer.rules {
        Some(rules) => judge(rules, &results.facts),
        None => Verdict::default(),
    };
    if let Some(checker) = &results.packets_checked {
        verdict.checks.extend(judge_packets(&plan, checker));
    }
    verdict.problems.append(&mut results.problems);
    match &results.ending {
        Ending::Finished | Ending::Ended => {}
        Ending::Stuck(stuck) => verdict.problems.push(stuck.to_string()),
        Ending::Limit(stuck) => verdict.problems.extend(stuck.waiting.iter().cloned()),
    }
    Ok(Outcome { verdict, results })
}

/// Measures how long a traffic takes alone and without rules.
fn take_alone(
    scenario: &Scenario,
    options: Options<'_>,
    name: &str,
    results: &mut Results,
) -> Result<(), SimulationError> {
    let index = scenario.traffic.iter().position(|t| t.name == name);
    let measured = results.facts.traffic.iter_mut().find(|t| t.name == name);
    let (Some(index), Some(measured)) = (index, measured) else {
        return Ok(());
    };
    let options = Options {
        only_traffic: Some(index),
        ..options
    };
    let alone = run(scenario, options, Rc::new(RefCell::new(Nothing)))?;
    measured.took_alone = alone.facts.traffic.first().and_then(|traffic| traffic.took);
    Ok(())
}
