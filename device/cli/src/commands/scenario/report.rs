//! Results of scenarios, as text, JSON and JUnit XML.

use std::fmt::Write;

use anyhow::Context;
use faultline_abi::admin::Counter;
use faultline_control::objects::{ContextView, QueuePairView, RegionView};
use faultline_nic::inspect::Listing;
use faultline_nic::{Nanos, Nic};
use faultline_scenario::value::Time;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use serde::Serialize;
use serde_json::{Value, json};

use super::load::FinishedRun;
use super::seeds::Search;

/// Objects of a list that are taken at a time.
const PART: usize = 1024;

/// The median and the largest of ascending times, in words.
fn latencies(times: &[Nanos]) -> String {
    let median = times.get(times.len() / 2);
    match (median, times.last()) {
        (Some(median), Some(largest)) => format!(
            ", latency {} (median), {} (longest)",
            Time(*median),
            Time(*largest)
        ),
        _ => String::new(),
    }
}

/// An outcome as text.
pub(super) fn text_of(ran: &FinishedRun) -> String {
    let (scenario, results) = (&ran.loaded.scenario, &ran.outcome.results);
    let mut text = String::new();
    let word = |passed| if passed { "ok" } else { "FAILED" };
    let verdict = word(ran.outcome.passed());
    // Writing to a string does not fail.
    let title = match scenario.title.as_str() {
        "" => String::new(),
        title => format!(": {title}"),
    };
    let _ = writeln!(text, "{}: {verdict}{title}", ran.loaded.name);
    for check in &ran.outcome.verdict.checks {
        let _ = writeln!(
            text,
            "  {} {}: {}, expected {}",
            word(check.passed),
            check.name,
            check.found,
            check.expected
        );
    }
    for (index, traffic) in results.facts.traffic.iter().enumerate() {
        let name = match traffic.name.as_str() {
            "" => format!("traffic[{index}]"),
            name => name.to_owned(),
        };
        let wrong = match traffic.wrong {
            0 => String::new(),
            wrong => format!(", {wrong} with wrong data"),
        };
        let _ = writeln!(
            text,
            "  {name}: {} messages done, {} failed{wrong}{}",
            traffic.done,
            traffic.failed,
            latencies(&traffic.latencies)
        );
    }
    if scenario.traffic.is_empty() {
        text += "  note: without `[[traffic]]` the simulated programs do nothing\n";
    }
    for problem in &ran.outcome.verdict.problems {
        let _ = writeln!(text, "  FAILED {problem}");
    }
    for note in &results.notes {
        let _ = writeln!(text, "  {note}");
    }
    let _ = writeln!(
        text,
        "  seed {}, {} of virtual time, trace {}",
        results.seed,
        Time(results.time),
        results.trace.hash()
    );
    text
}

/// An outcome as JSON.
pub(super) fn json_of(ran: &FinishedRun) -> Value {
    let results = &ran.outcome.results;
    let checks = ran.outcome.verdict.checks.iter().map(|check| {
        json!({
            "name": check.name, "passed": check.passed,
            "found": check.found, "expected": check.expected,
        })
    });
    let percentile = |times: &[Nanos], percent: usize| {
        let index = times.len().saturating_mul(percent) / 100;
        let last = times.len().saturating_sub(1);
        times.get(index.min(last)).map(|time| time.0)
    };
    let traffic = results.facts.traffic.iter().map(|traffic| {
        json!({
            "name": traffic.name, "done": traffic.done, "failed": traffic.failed,
            "wrong": traffic.wrong, "took_ns": traffic.took.map(|time| time.0),
            "latency_ns": {
                "p50": percentile(&traffic.latencies, 50),
                "p99": percentile(&traffic.latencies, 99),
                "max": percentile(&traffic.latencies, 100),
            },
        })
    });
    let mut nics = Vec::new();
    let counts = results.facts.counters.iter();
    let counts = counts.zip(results.packets.iter().zip(&results.diagnostics));
    for (index, (counters, (packets, diagnostics))) in counts.enumerate() {
        let changed = counters.iter().filter(|(_, value)| **value != 0);
        let changed: serde_json::Map<String, Value> = changed
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect();
        nics.push(json!({
            "name": format!("nic{index}"), "counters": changed,
            "packets": packets, "diagnostics": diagnostics,
        }));
    }
    json!({
        "file": ran.loaded.name,
        "title": ran.loaded.scenario.title,
        "passed": ran.outcome.passed(),
        "seed": results.seed,
        "time_ns": results.time.0,
        "trace": results.trace.hash(),
        "checks": checks.collect::<Vec<_>>(),
        "problems": ran.outcome.verdict.problems,
        "notes": results.notes,
        "traffic": traffic.collect::<Vec<_>>(),
        "nics": nics,
        "state": ran.dump,
    })
}

/// A case of a JUnit suite. It has failed if there is a message.
fn case(name: &str, failure: Option<String>) -> TestCase {
    let mut status = TestCaseStatus::success();
    if let Some(message) = failure {
        status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        status.set_message(message);
    }
    TestCase::new(name.to_owned(), status)
}

/// A rule, timed action or expectation of a JUnit report.
pub(in crate::commands) struct JunitCheck<'a> {
    pub(in crate::commands) name: &'a str,
    pub(in crate::commands) passed: bool,
    pub(in crate::commands) found: &'a str,
    pub(in crate::commands) expected: &'a str,
}

/// The JUnit suite of a run: a case for each check, and one for the problems of the run.
pub(in crate::commands) fn junit_suite<'a>(
    name: &str,
    checks: impl Iterator<Item = JunitCheck<'a>>,
    problems: &[String],
) -> TestSuite {
    let mut suite = TestSuite::new(name);
    for check in checks {
        let found = || format!("{}, expected {}", check.found, check.expected);
        suite.add_test_case(case(check.name, (!check.passed).then(found)));
    }
    let failure = (!problems.is_empty()).then(|| problems.join("\n"));
    suite.add_test_case(case("run", failure));
    suite
}

/// A suite for a file: a case for each rule, expectation and problem.
pub(super) fn suite_of(ran: &FinishedRun) -> TestSuite {
    let verdict = &ran.outcome.verdict;
    let checks = verdict.checks.iter().map(|check| JunitCheck {
        name: &check.name,
        passed: check.passed,
        found: &check.found,
        expected: &check.expected,
    });
    junit_suite(&ran.loaded.name, checks, &verdict.problems)
}

/// A suite for the search for seeds with a file: a case for each seed that fails, and one if all pass, or not all were tried.
pub(super) fn suite_of_seeds(name: &str, search: &Search, count: u64) -> TestSuite {
    let mut suite = TestSuite::new(name.to_owned());
    let Search { tried, failed } = search;
    for failed in failed {
        let reasons = failed.reasons.join("\n");
        suite.add_test_case(case(&format!("seed {}", failed.seed), Some(reasons)));
    }
    let untried = (*tried < count).then(|| format!("only {tried} of {count} seeds were tried"));
    if failed.is_empty() || untried.is_some() {
        suite.add_test_case(case("seeds", untried));
    }
    suite
}

/// A suite for a file that the simulator cannot run.
pub(super) fn suite_for_guests(name: &str) -> TestSuite {
    let mut suite = TestSuite::new(name.to_owned());
    let mut status = TestCaseStatus::skipped();
    status.set_message("it is for guests");
    suite.add_test_case(TestCase::new("run", status));
    suite
}

/// A suite for a file that has no result.
pub(super) fn suite_of_failure(name: &str, why: String) -> TestSuite {
    let mut suite = TestSuite::new(name.to_owned());
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
    status.set_message(why);
    suite.add_test_case(TestCase::new("run", status));
    suite
}

/// Suites as JUnit XML.
pub(in crate::commands) fn junit_report(
    suites: impl IntoIterator<Item = TestSuite>,
) -> anyhow::Result<String> {
    let mut report = Report::new("faultline scenario");
    report.add_test_suites(suites);
    report.to_string().context("can't make JUnit XML")
}

/// The state of a NIC as in a dump of the control API.
pub(super) fn dump(index: usize, nic: &mut Nic) -> Value {
    let nic = &*nic;
    let counters = Counter::ALL.iter();
    let counters: serde_json::Map<String, Value> = counters
        .map(|counter| {
            let name = counter.name().to_owned();
            (name, json!(nic.counters().get(*counter)))
        })
        .collect();
    let faults = nic.faults(PART).into_iter().map(|fault| {
        json!({
            "token": fault.token, "key": fault.key, "address": fault.va, "pages": fault.pages,
            "write": fault.write, "context": fault.context, "raised_ns": fault.raised.0,
            "waiters": fault.waiters, "qpn": fault.qpn,
        })
    });
    json!({
        "nic": format!("nic{index}"),
        "queue_pairs": all_of::<_, QueuePairView>(nic, Nic::queue_pairs),
        "regions": all_of::<_, RegionView>(nic, Nic::regions),
        "contexts": all_of::<_, ContextView>(nic, Nic::contexts),
        "completion_queues": items(nic, Nic::completion_queues),
        "event_queues": items(nic, Nic::event_queues),
        "faults": faults.collect::<Vec<_>>(),
        "counters": counters,
    })
}

/// All objects of a list, as the control API shows them.
fn all_of<I, T: From<I> + Serialize>(
    nic: &Nic,
    list: fn(&Nic, u32, usize) -> Listing<I>,
) -> Vec<T> {
    items(nic, list).into_iter().map(T::from).collect()
}

/// All objects of a list.
fn items<I>(nic: &Nic, list: fn(&Nic, u32, usize) -> Listing<I>) -> Vec<I> {
    let mut objects = Vec::new();
    let mut from = Some(0);
    while let Some(place) = from {
        let part = list(nic, place, PART);
        objects.extend(part.items);
        from = part.next;
    }
    objects
}
