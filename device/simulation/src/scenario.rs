//! A scenario with its rules, and the verdict on it.

use faultline_scenario::expectation::Expectation;
use faultline_scenario::file::Scenario;
use faultline_scenario::plan::Plan;
use faultline_scenario::traffic::Simulator;
use faultline_scenario::verdict::{Verdict, judge, judge_packets};

use crate::error::SimulationError;
use crate::run::{Ending, Options, Results, play, profile_of, run};
use crate::trace::Detail;

/// The result of a scenario.
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

/// Adds the expectation that no NIC violates a rule of the specification, unless the plan has an expectation about
/// violations, one of its rules makes packets illegal, or the NICs imitate a defect of real adapters.
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
    let options = Options {
        seed: Some(seed),
        check_packets: plan.checks_packets(),
        ..options
    };
    let (mut results, rules) = play(scenario, options, Some(plan.clone()))?;
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
    let mut verdict = rules.map_or_else(Verdict::default, |rules| judge(&rules, &results.facts));
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
    let alone = run(scenario, options)?;
    measured.took_alone = alone.facts.traffic.first().and_then(|traffic| traffic.took);
    Ok(())
}
