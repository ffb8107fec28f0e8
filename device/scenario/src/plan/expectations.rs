//! Names and bounds of expectations.

use faultline_nic::Nanos;

use super::PlannedExpectation;
use super::check::Checker;
use super::names;
use crate::expectation::{Ends, Expectation, Latency, Slowdown};
use crate::problem::Path;
use crate::traffic::Traffic;
use crate::value::Range;

/// Meaning of the names in an expectation.
#[derive(Debug, Default)]
struct Found {
    nic: Option<usize>,
    code: Option<u16>,
    packets: Option<super::PacketMatch>,
}

/// The key of an expectation in a file.
pub(crate) fn expectation_name(expectation: &Expectation) -> &'static str {
    match expectation {
        Expectation::Completion(_) => "completion",
        Expectation::Counter(_) => "counter",
        Expectation::Diagnostic(_) => "diagnostic",
        Expectation::Event(_) => "event",
        Expectation::Packets(_) => "packets",
        Expectation::Violation(_) => "violation",
        Expectation::Ends(_) => "ends",
        Expectation::Latency(_) => "latency",
        Expectation::Traffic(_) => "traffic",
        Expectation::Slowdown(_) => "slowdown",
    }
}

impl Checker<'_> {
    /// Checks an expectation. `path` is that of the element of `expect`.
    pub(super) fn expectation(
        &mut self,
        path: &Path,
        expectation: &Expectation,
        traffic: &[Traffic],
    ) -> PlannedExpectation {
        let kind = expectation_name(expectation);
        let inner = path.key(kind);
        let found = match expectation {
            Expectation::Completion(completion) => {
                self.count(inner.key("count"), completion.count);
                let status = &completion.status;
                Found {
                    nic: self.nic(inner.key("nic"), completion.nic.as_deref()),
                    code: self.name(inner.key("status"), &names::COMPLETION_STATUSES, status),
                    ..Found::default()
                }
            }
            Expectation::Counter(counter) => {
                self.count(inner.key("value"), counter.value);
                Found {
                    nic: self.nic(inner.key("nic"), counter.nic.as_deref()),
                    code: self.name(inner.key("name"), &names::COUNTERS, &counter.name),
                    ..Found::default()
                }
            }
            Expectation::Diagnostic(diagnostic) => {
                self.count(inner.key("count"), diagnostic.count);
                Found {
                    nic: self.nic(inner.key("nic"), diagnostic.nic.as_deref()),
                    code: self.name(inner.key("kind"), &names::DIAGNOSTICS, &diagnostic.kind),
                    ..Found::default()
                }
            }
            Expectation::Event(event) => {
                self.count(inner.key("count"), event.count);
                Found {
                    nic: self.nic(inner.key("nic"), event.nic.as_deref()),
                    code: self.name(inner.key("kind"), &names::EVENTS, &event.kind),
                    ..Found::default()
                }
            }
            Expectation::Packets(packets) => {
                self.count(inner.key("count"), packets.count);
                let opcode = inner.key("opcode");
                Found {
                    nic: self.nic(inner.key("nic"), packets.nic.as_deref()),
                    packets: self.packet_match(&opcode, packets.dir, &packets.opcode),
                    ..Found::default()
                }
            }
            Expectation::Violation(violation) => {
                self.count(inner.key("count"), violation.count);
                let rule = violation.rule.as_deref();
                Found {
                    code: rule
                        .and_then(|rule| self.name(inner.key("rule"), &names::PACKET_RULES, rule)),
                    ..Found::default()
                }
            }
            Expectation::Ends(ends) => {
                self.ends(&inner, ends);
                Found::default()
            }
            Expectation::Latency(latency) => Found {
                code: self.latency(&inner, latency, traffic),
                ..Found::default()
            },
            Expectation::Traffic(result) => {
                self.count(inner.key("done"), result.done);
                self.traffic_name(inner.key("name"), &result.name, traffic);
                Found::default()
            }
            Expectation::Slowdown(slowdown) => {
                self.slowdown(&inner, slowdown, traffic);
                Found::default()
            }
        };
        PlannedExpectation {
            name: format!("{path} {kind}"),
            nic: found.nic,
            expectation: expectation.clone(),
            code: found.code,
            packets: found.packets,
        }
    }

    /// Refuses a range that holds all numbers.
    fn count(&mut self, path: Path, count: Range) {
        if count == Range::from(0) {
            let message =
                format!("{count} holds always: a bound is needed, such as \"1..\" or \"..8\"");
            self.wrong_value(path, message);
        }
    }

    /// Refuses absent bounds, and a lower bound above the upper one.
    fn bounds<T: PartialOrd + std::fmt::Display>(
        &mut self,
        path: &Path,
        lower: (&str, Option<T>),
        upper: (&str, Option<T>),
    ) {
        match (lower.1, upper.1) {
            (None, None) => {
                let message = format!("a bound is needed: `{}` or `{}`", lower.0, upper.0);
                self.wrong_key(path.clone(), message);
            }
            (Some(least), Some(most)) if least > most => {
                let message = format!(
                    "{most} is less than `{}`, which is {least}: nothing is between them",
                    lower.0
                );
                self.wrong_value(path.key(upper.0), message);
            }
            _ => {}
        }
    }

    fn ends(&mut self, path: &Path, ends: &Ends) {
        self.bounds(path, ("after", ends.after), ("before", ends.before));
        for (key, time) in [("after", ends.after), ("before", ends.before)] {
            if let Some(time) = time {
                let _: Nanos = self.time(path.key(key), time);
            }
        }
    }

    fn latency(&mut self, path: &Path, latency: &Latency, traffic: &[Traffic]) -> Option<u16> {
        self.bounds(path, ("min", latency.min), ("max", latency.max));
        let percentile = latency.percentile;
        // Also false for a NaN.
        if !(percentile > 0.0 && percentile <= 100.0) {
            let message =
                format!("{percentile} is no percentile: it must be greater than 0 and at most 100");
            self.wrong_value(path.key("percentile"), message);
        }
        let code = self.name(path.key("of"), &names::LATENCIES, &latency.of);
        match &latency.traffic {
            Some(_) if code.is_some_and(|code| code != 0) => {
                let message = "`traffic` belongs to `of = \"message\"`";
                self.wrong_key(path.key("traffic"), message);
            }
            Some(name) => self.traffic_name(path.key("traffic"), name, traffic),
            None => {}
        }
        code
    }

    fn slowdown(&mut self, path: &Path, slowdown: &Slowdown, traffic: &[Traffic]) {
        self.traffic_name(path.key("traffic"), &slowdown.traffic, traffic);
        self.bounds(path, ("min", slowdown.min), ("max", slowdown.max));
        for (key, factor) in [("min", slowdown.min), ("max", slowdown.max)] {
            if let Some(factor) = factor.filter(|factor| !(factor.is_finite() && *factor > 0.0)) {
                let message = format!("{factor} is no factor: it must be greater than 0");
                self.wrong_value(path.key(key), message);
            }
        }
    }

    fn traffic_name(&mut self, path: Path, name: &str, traffic: &[Traffic]) {
        let named = traffic.iter().map(|traffic| traffic.name.as_str());
        let named: Vec<&str> = named.filter(|known| !known.is_empty()).collect();
        if named.is_empty() {
            let message = format!("no traffic has a name, and {name:?} is asked for: give it one");
            self.wrong_value(path, message);
        } else if !named.contains(&name) {
            self.unknown(path, "traffic", name, named);
        }
    }
}
