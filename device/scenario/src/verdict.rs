//! The verdict on a run: whether rules have fired and expectations hold.

use std::collections::BTreeMap;

use faultline_checker::{Checker, Rule, Severity};
use faultline_nic::{Instant, Nanos};
use faultline_telemetry::{DiagnosticKind, Stage};

use crate::expectation::{Ends, Expectation, Latency, Slowdown, TrafficResult};
use crate::plan::{Plan, PlannedExpectation};
use crate::rules::Rules;
use crate::value::{Range, Time};

/// Violations that a check shows.
const SHOWN_VIOLATIONS: usize = 3;

/// Results of a run that the rules have not counted. All times are since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// When all traffic, or the programs, had ended; `None` if they had not.
    pub ended: Option<Nanos>,
    /// The increase of the counters of each NIC, by name.
    pub counters: Vec<BTreeMap<String, u64>>,
    /// Simulated traffic in the order of the file.
    pub traffic: Vec<TrafficFact>,
}

/// One table `traffic` of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficFact {
    /// Its name.
    pub name: String,
    /// Messages that have completed without an error, their data intact.
    pub done: u64,
    /// Messages that have failed.
    pub failed: u64,
    /// Messages with wrong data.
    pub wrong: u64,
    /// Times from posting to completion of the messages without error, in ascending order.
    pub latencies: Vec<Nanos>,
    /// From its start until its last message had completed or failed.
    pub took: Option<Nanos>,
    /// The same in a run with this traffic only, and without rules; only if an expectation asks for it.
    pub took_alone: Option<Nanos>,
}

/// An expected result at the end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Name of the rule, timed action or expectation.
    pub name: String,
    /// It holds.
    pub passed: bool,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Rules, timed actions, expectations, in the order of the file.
    pub checks: Vec<Check>,
    /// Failures of actions and of the run itself.
    pub problems: Vec<String>,
}

impl Verdict {
    /// True if everything holds and there was no problem.
    pub fn passed(&self) -> bool {
        self.problems.is_empty() && self.checks.iter().all(|check| check.passed)
    }
}

/// Judges a run by its rules and facts, without expectations of violations: [`judge_packets`] judges them.
pub fn judge(rules: &Rules, facts: &Facts) -> Verdict {
    let plan = rules.plan();
    let fired = rules.fired().into_iter().map(|fired| Check {
        passed: fired.expected.contains(fired.times),
        found: format!("fired {} times", fired.times),
        expected: fired.expected.to_string(),
        name: fired.name,
    });
    let expectations = plan
        .expectations
        .iter()
        .enumerate()
        .filter_map(|(index, planned)| {
            let measured = measure(rules, facts, index, planned)?;
            Some(Check {
                name: planned.name.clone(),
                passed: measured.passed,
                found: measured.found,
                expected: measured.expected,
            })
        });
    let mut problems = rules.problems().to_vec();
    if rules.frames_dropped() > 0 {
        problems.push(format!(
            "{} frames were dropped because too many were kept for later",
            rules.frames_dropped()
        ));
    }
    problems.extend(too_late(plan, facts));
    Verdict {
        checks: fired.chain(expectations).collect(),
        problems,
    }
}

/// The run has not ended within its limit.
fn too_late(plan: &Plan, facts: &Facts) -> Option<String> {
    let limit = Time(plan.limit);
    match facts.ended {
        Some(ended) if ended <= plan.limit => None,
        Some(ended) => Some(format!(
            "the run ended after {}, its limit is {limit}",
            Time(ended)
        )),
        None => Some(format!("the run had not ended at its limit of {limit}")),
    }
}

/// Judges the expectations about violations by the findings of the packet checker.
pub fn judge_packets(plan: &Plan, checker: &Checker) -> Vec<Check> {
    let checks = plan.expectations.iter().filter_map(|planned| {
        let Expectation::Violation(violation) = &planned.expectation else {
            return None;
        };
        let rule = planned
            .code
            .and_then(|code| Rule::ALL.get(usize::from(code)));
        let is_meant = |other: Rule| match rule {
            Some(rule) => *rule == other,
            None => other.severity() == Severity::Violation,
        };
        let counts = checker.counts().iter();
        let counts = counts.filter(|(rule, _)| is_meant(**rule));
        let count: u64 = counts.map(|(_, count)| *count).sum();
        let found = checker.violations().iter().chain(checker.remarks());
        let meant = found.filter(|violation| is_meant(violation.rule));
        let first = meant.take(SHOWN_VIOLATIONS).map(ToString::to_string);
        let found: Vec<String> = [count.to_string()].into_iter().chain(first).collect();
        Some(Check {
            name: planned.name.clone(),
            passed: violation.count.contains(count),
            found: found.join("; "),
            expected: violation.count.to_string(),
        })
    });
    checks.collect()
}

struct Measured {
    passed: bool,
    found: String,
    expected: String,
}

fn in_range(found: u64, range: Range) -> Measured {
    Measured {
        passed: range.contains(found),
        found: found.to_string(),
        expected: range.to_string(),
    }
}

/// A value that does not exist does not hold.
fn missing(what: impl Into<String>, expected: String) -> Measured {
    Measured {
        passed: false,
        found: what.into(),
        expected,
    }
}

/// `None`: the packet checker measures it.
fn measure(
    rules: &Rules,
    facts: &Facts,
    index: usize,
    planned: &PlannedExpectation,
) -> Option<Measured> {
    let counted = rules.counts().of_expectation(index);
    Some(match &planned.expectation {
        Expectation::Violation(_) => return None,
        Expectation::Completion(completion) => in_range(counted, completion.count),
        Expectation::Event(event) => in_range(counted, event.count),
        Expectation::Packets(packets) => in_range(counted, packets.count),
        Expectation::Diagnostic(diagnostic) => {
            let mut kinds = DiagnosticKind::ALL.iter();
            let kind = kinds.find(|kind| kind.name() == diagnostic.kind);
            let counts = rules.counts();
            let found = kind.map_or(0, |kind| counts.diagnostics(planned.nic, *kind));
            in_range(found, diagnostic.count)
        }
        Expectation::Counter(counter) => {
            let nics = facts.counters.iter().enumerate();
            let named = nics.filter(|(nic, _)| planned.nic.is_none_or(|only| only == *nic));
            let values = named.filter_map(|(_, counters)| counters.get(&counter.name));
            in_range(values.sum(), counter.value)
        }
        Expectation::Ends(ends) => ended(facts.ended, ends),
        Expectation::Latency(latency) => latency_of(rules, facts, latency),
        Expectation::Traffic(traffic) => messages(facts, traffic),
        Expectation::Slowdown(slowdown) => slower(facts, slowdown),
    })
}

fn ended(ended: Option<Nanos>, ends: &Ends) -> Measured {
    let bounds = time_bounds(ends.after, ends.before);
    match ended {
        Some(time) => between(time, ends.after, ends.before, bounds),
        None => missing("not ended", bounds),
    }
}

fn time_bounds(min: Option<Time>, max: Option<Time>) -> String {
    match (min, max) {
        (Some(min), Some(max)) => format!("{min}..{max}"),
        (Some(min), None) => format!("{min}.."),
        (None, Some(max)) => format!("..{max}"),
        (None, None) => "any".to_owned(),
    }
}

fn between(time: Nanos, min: Option<Time>, max: Option<Time>, expected: String) -> Measured {
    Measured {
        passed: min.is_none_or(|min| time >= min.0) && max.is_none_or(|max| time <= max.0),
        found: Time(time).to_string(),
        expected,
    }
}

fn traffic<'a>(facts: &'a Facts, name: &str) -> Option<&'a TrafficFact> {
    facts.traffic.iter().find(|traffic| traffic.name == name)
}

fn latency_of(rules: &Rules, facts: &Facts, latency: &Latency) -> Measured {
    let bounds = time_bounds(latency.min, latency.max);
    let expected = format!("{} p{}: {bounds}", latency.of, latency.percentile);
    let mut times: Vec<Nanos> = match latency.of.as_str() {
        "message" => {
            let named = facts.traffic.iter().filter(|traffic| {
                let only = latency.traffic.as_deref();
                only.is_none_or(|only| only == traffic.name)
            });
            named
                .flat_map(|traffic| traffic.latencies.clone())
                .collect()
        }
        name => {
            let stage = Stage::ALL.into_iter().find(|stage| stage.name() == name);
            stage
                .map(|stage| rules.counts().durations(stage))
                .unwrap_or_default()
        }
    };
    let unanswered = match latency.of == Stage::Total.name() {
        true => rules.counts().unanswered(end_of(rules, facts)),
        false => Vec::new(),
    };
    times.extend(&unanswered);
    times.sort_unstable();
    let Some(time) = percentile(&times, latency.percentile) else {
        return missing("nothing measured", expected);
    };
    let mut measured = between(time, latency.min, latency.max, expected);
    if !unanswered.is_empty() {
        let count = unanswered.len();
        measured.found +=
            &format!(", with {count} faults without an answer, by their age at the end");
    }
    measured
}

/// The time at which the run has ended, or its limit.
fn end_of(rules: &Rules, facts: &Facts) -> Instant {
    let time = facts.ended.unwrap_or(rules.plan().limit);
    Instant(rules.start().0.saturating_add(time.0))
}

/// The smallest of the ascending `times` that at least `percent` of them do not exceed.
fn percentile(times: &[Nanos], percent: f64) -> Option<Nanos> {
    let last = times.len().checked_sub(1)?;
    let rank = (percent / 100.0 * times.len() as f64).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float in the range of an index; `as` saturates otherwise"
    )]
    let index = (rank as usize).saturating_sub(1).min(last);
    times.get(index).copied()
}

fn messages(facts: &Facts, expected: &TrafficResult) -> Measured {
    match traffic(facts, &expected.name) {
        Some(traffic) => {
            let mut measured = in_range(traffic.done, expected.done);
            if traffic.wrong > 0 {
                measured.passed = false;
                measured.found = format!("{}, {} with wrong data", traffic.done, traffic.wrong);
            }
            measured
        }
        None => missing("no such traffic", expected.done.to_string()),
    }
}

fn slower(facts: &Facts, slowdown: &Slowdown) -> Measured {
    let bound = |bound: Option<f64>| bound.map(|bound| bound.to_string()).unwrap_or_default();
    let expected = format!("{}..{} times", bound(slowdown.min), bound(slowdown.max));
    let traffic = traffic(facts, &slowdown.traffic);
    let Some((with, alone)) =
        traffic.and_then(|traffic| Some((traffic.took?, traffic.took_alone?)))
    else {
        return missing("nothing to compare", expected);
    };
    let factor = with.0 as f64 / alone.0.max(1) as f64;
    Measured {
        passed: slowdown.min.is_none_or(|min| factor >= min)
            && slowdown.max.is_none_or(|max| factor <= max),
        found: format!("{factor:.2} times"),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    fn judged(expectation: Expectation, facts: &Facts) -> Verdict {
        let plan = Plan {
            seed: 1,
            limit: Nanos::from_millis(10),
            rules: Vec::new(),
            timed: Vec::new(),
            expectations: vec![PlannedExpectation {
                name: "expect[0]".to_owned(),
                nic: None,
                expectation,
                code: None,
                packets: None,
            }],
        };
        judge(&Rules::new(plan, [], Instant(0)), facts)
    }

    fn facts() -> Facts {
        let traffic = TrafficFact {
            name: "victim".to_owned(),
            done: 5,
            latencies: (1..=5).map(Nanos::from_micros).collect(),
            took: Some(Nanos(300)),
            took_alone: Some(Nanos(200)),
            ..TrafficFact::default()
        };
        Facts {
            ended: Some(Nanos::from_millis(3)),
            traffic: vec![traffic],
            ..Facts::default()
        }
    }

    #[test]
    fn a_run_beyond_its_limit_fails() {
        let ends = || {
            Expectation::Ends(Ends {
                after: Some(Time::from_millis(3)),
                before: None,
            })
        };
        assert!(judged(ends(), &facts()).passed());
        let late = Facts {
            ended: Some(Nanos::from_millis(11)),
            ..facts()
        };
        assert!(!judged(ends(), &late).passed());
        let never = Facts {
            ended: None,
            ..facts()
        };
        let verdict = judged(ends(), &never);
        assert_eq!(verdict.problems.len(), 1);
        assert!(!verdict.checks[0].passed);
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let p = |percentile, min, max| {
            let latency = Latency {
                of: "message".to_owned(),
                traffic: Some("victim".to_owned()),
                percentile,
                min: Some(Time::from_micros(min)),
                max: Some(Time::from_micros(max)),
            };
            judged(Expectation::Latency(latency), &facts()).passed()
        };
        assert!(p(50.0, 3, 3) && p(100.0, 5, 5) && p(1.0, 1, 1) && p(80.0, 4, 4));
        assert!(!p(81.0, 4, 4));
    }

    #[test]
    fn wrong_data_and_missing_traffic_fail() {
        let done = |name: &str| {
            Expectation::Traffic(TrafficResult {
                name: name.to_owned(),
                done: Range::exactly(5),
            })
        };
        assert!(judged(done("victim"), &facts()).passed());
        assert!(!judged(done("other"), &facts()).passed());
        let mut wrong = facts();
        wrong.traffic[0].wrong = 1;
        assert!(!judged(done("victim"), &wrong).passed());
    }

    #[test]
    fn a_slowdown_is_compared_with_the_traffic_alone() {
        let factor = |min, max| {
            let slowdown = Slowdown {
                traffic: "victim".to_owned(),
                min: Some(min),
                max: Some(max),
            };
            judged(Expectation::Slowdown(slowdown), &facts()).passed()
        };
        assert!(factor(1.4, 1.6));
        assert!(!factor(1.6, 9.0) && !factor(1.0, 1.4));
    }

    #[test]
    fn violations_are_counted_by_rule_and_shown() {
        let text = "[[expect]]\nviolation = { count = 0 }\n\
                    [[expect]]\nviolation = { rule = \"ICRC\", count = 2 }\n\
                    [[expect]]\nviolation = { rule = \"msn\", count = \"1..\" }\n";
        let (_, plan) = crate::read::load("a.toml", text, &[]).unwrap();
        assert!(plan.checks_packets());
        let mut checker = Checker::new(faultline_checker::Place::Adapter);
        assert!(judge_packets(&plan, &checker)[0].passed);
        let mut frame = crate::frames::packet_of_test(1);
        *frame.last_mut().unwrap() ^= 1;
        checker.sent(5, 0, None, &frame);
        checker.sent(7, 0, None, &frame);
        let checks = judge_packets(&plan, &checker);
        let passed: Vec<bool> = checks.iter().map(|check| check.passed).collect();
        assert_eq!(passed, [false, true, false]);
        assert_eq!(
            (checks[0].name.as_str(), checks[0].expected.as_str()),
            ("expect[0] violation", "0")
        );
        let found = &checks[0].found;
        assert!(found.starts_with("2; frame 1, 0.000000005 s"), "{found}");
        assert!(found.contains("[icrc: IBTA 7.8.1, A17.3.3]"), "{found}");
        assert_eq!(checks[2].found, "0");
    }

    /// A file whose rules make no packet illegal is expected to have no violation; another one is not.
    #[test]
    fn legal_packets_are_expected_unless_a_rule_makes_illegal_ones() {
        let rule = |on: &str, action: &str| {
            let text = format!("[[rule]]\non = {{ {on} }}\ndo = {{ {action} }}\n");
            let scenario = crate::read::read("a.toml", &text).unwrap();
            let mut plan = scenario.plan_simulation().unwrap();
            plan.expect_legal_packets();
            plan
        };
        for (on, action, is_legal) in [
            ("dir = 'rx'", "drop = {}", true),
            ("dir = 'rx'", "delay = { by = '1us' }", true),
            ("dir = 'rx'", "duplicate = {}", true),
            ("dir = 'rx'", "reorder = { by = 2 }", true),
            ("dir = 'rx'", "ecn_mark = {}", true),
            ("dir = 'rx'", "corrupt = {}", false),
            ("dir = 'rx'", "truncate = { to = 60 }", false),
            ("request = 'any'", "drop = {}", true),
            ("request = 'any'", "fail = { with = 'psn' }", false),
            (
                "completion = 'any'",
                "fail = { with = 'loc_prot_err' }",
                true,
            ),
            ("fault = 'record'", "corrupt = {}", true),
            ("dir = 'rx'", "fatal = {}", true),
        ] {
            let plan = rule(on, action);
            assert_eq!(plan.checks_packets(), is_legal, "{on}: {action}");
            let illegal = (!is_legal).then_some("rule[0]");
            assert_eq!(plan.illegal_rule(), illegal, "{on}: {action}");
        }
    }

    /// An expectation about something that never was must not hold.
    #[test]
    fn a_stage_without_measurements_fails() {
        let latency = Latency {
            of: "total".to_owned(),
            traffic: None,
            percentile: 50.0,
            min: None,
            max: Some(Time::from_millis(1)),
        };
        assert!(!judged(Expectation::Latency(latency), &facts()).passed());
    }
}
