//! The opposite of expectations and rules. A scenario that also passes with the opposite of one of its expectations proves nothing:
//! tests run each scenario so, and it must fail.

use faultline_nic::Nanos;

use crate::expectation::Expectation;
use crate::plan::Plan;
use crate::value::{Range, Time};

/// The numbers that a range does not contain.
fn outside(range: Range) -> Vec<Range> {
    let below = range.first.checked_sub(1);
    let above = range.last.checked_add(1);
    let below = below.map(|last| Range { first: 0, last });
    below.into_iter().chain(above.map(Range::from)).collect()
}

/// The bounds that exclude all times between two bounds.
fn outside_times(min: Option<Time>, max: Option<Time>) -> Vec<(Option<Time>, Option<Time>)> {
    let before = min.and_then(|min| min.nanos().checked_sub(1));
    let after = max.and_then(|max| max.nanos().checked_add(1));
    let time = |ns| Some(Time(Nanos(ns)));
    let before = before.map(|ns| (None, time(ns)));
    let after = after.map(|ns| (time(ns), None));
    before.into_iter().chain(after).collect()
}

/// The negation of an expectation: none of these holds if it holds, and at least one holds if it does not.
pub fn opposites(expectation: &Expectation) -> Vec<Expectation> {
    let counts = |range: Range, change: &dyn Fn(Range) -> Expectation| {
        outside(range).into_iter().map(change).collect()
    };
    match expectation {
        Expectation::Completion(is) => counts(is.count, &|count| {
            let mut is = is.clone();
            is.count = count;
            Expectation::Completion(is)
        }),
        Expectation::Counter(is) => counts(is.value, &|value| {
            let mut is = is.clone();
            is.value = value;
            Expectation::Counter(is)
        }),
        Expectation::Diagnostic(is) => counts(is.count, &|count| {
            let mut is = is.clone();
            is.count = count;
            Expectation::Diagnostic(is)
        }),
        Expectation::Event(is) => counts(is.count, &|count| {
            let mut is = is.clone();
            is.count = count;
            Expectation::Event(is)
        }),
        Expectation::Packets(is) => counts(is.count, &|count| {
            let mut is = is.clone();
            is.count = count;
            Expectation::Packets(is)
        }),
        Expectation::Violation(is) => counts(is.count, &|count| {
            let mut is = is.clone();
            is.count = count;
            Expectation::Violation(is)
        }),
        Expectation::Traffic(is) => counts(is.done, &|done| {
            let mut is = is.clone();
            is.done = done;
            Expectation::Traffic(is)
        }),
        Expectation::Ends(is) => {
            let bounds = outside_times(is.after, is.before).into_iter();
            let opposite = |(after, before)| {
                let mut is = *is;
                (is.after, is.before) = (after, before);
                Expectation::Ends(is)
            };
            bounds.map(opposite).collect()
        }
        Expectation::Latency(is) => {
            let bounds = outside_times(is.min, is.max).into_iter();
            let opposite = |(min, max)| {
                let mut is = is.clone();
                (is.min, is.max) = (min, max);
                Expectation::Latency(is)
            };
            bounds.map(opposite).collect()
        }
        Expectation::Slowdown(is) => {
            let below = is.min.map(|min| (None, Some(min.next_down())));
            let above = is.max.map(|max| (Some(max.next_up()), None));
            let opposite = |(min, max)| {
                let mut is = is.clone();
                (is.min, is.max) = (min, max);
                Expectation::Slowdown(is)
            };
            below.into_iter().chain(above).map(opposite).collect()
        }
    }
}

impl Plan {
    /// All plans in which one expectation is replaced by one of its opposites, with the name of the expectation.
    pub fn with_opposite_expectations(&self) -> Vec<(String, Self)> {
        let mut plans = Vec::new();
        for (index, planned) in self.expectations.iter().enumerate() {
            for opposite in opposites(&planned.expectation) {
                let mut plan = self.clone();
                if let Some(changed) = plan.expectations.get_mut(index) {
                    changed.expectation = opposite;
                }
                plans.push((planned.name.clone(), plan));
            }
        }
        plans
    }

    /// All plans in which one rule that must fire never does, with the name of the rule.
    pub fn with_silent_rules(&self) -> Vec<(String, Self)> {
        let mut plans = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            if rule.fired.contains(0) {
                continue;
            }
            let mut plan = self.clone();
            if let Some(changed) = plan.rules.get_mut(index) {
                changed.choice.skip = u64::MAX;
            }
            plans.push((rule.name.clone(), plan));
        }
        plans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_a_range_or_in_one_of_its_opposites() {
        let ranges = [(0, 0), (0, u64::MAX), (3, 5), (7, u64::MAX), (0, 9)];
        for (first, last) in ranges {
            let range = Range { first, last };
            for number in [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, u64::MAX] {
                let others = outside(range);
                let excluded = others.iter().filter(|other| other.contains(number));
                assert_eq!(excluded.count(), usize::from(!range.contains(number)));
            }
        }
    }
}
