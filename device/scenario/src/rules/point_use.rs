//! Rules and expectations that use the injection table of NICs.

use std::collections::{BTreeMap, BTreeSet};

use faultline_nic::injection::ALWAYS;
use faultline_nic::{Outcome, Point};

use crate::expectation::Expectation;
use crate::plan::{Choice, Conditions, Effect, Plan, Thing};

/// Each match counts.
const EACH: Choice = Choice {
    skip: 0,
    every: 1,
    times: u64::MAX,
    per_million: ALWAYS,
};

/// The purpose of an entry of the injection table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Rule(usize),
    Expectation(usize),
}

/// A rule or an expectation about a point.
#[derive(Clone, Debug)]
pub(super) struct PointUse {
    pub(super) purpose: Purpose,
    pub(super) nic: Option<usize>,
    pub(super) point: Point,
    pub(super) code: Option<u16>,
    pub(super) conditions: Conditions,
    pub(super) choice: Choice,
    pub(super) outcome: Outcome,
    pub(super) active: bool,
    /// NICs that have an entry. Its id is the index of the use.
    pub(super) nics: BTreeSet<usize>,
    /// Queue pairs that the entry names when a NIC gets it, by NIC, in ascending order. They are collected when
    /// connections are made, because a search for all of them could take long.
    pub(super) pairs: BTreeMap<usize, Vec<u32>>,
}

impl PointUse {
    /// True if the entry names its queue pairs one by one.
    pub(super) fn lists_pairs(&self) -> bool {
        self.conditions.connection.is_some() || self.conditions.process.is_some()
    }

    /// Adds a queue pair to those that the entry of a NIC will name.
    pub(super) fn collect(&mut self, nic: usize, qpn: u32) {
        let pairs = self.pairs.entry(nic).or_default();
        if let Err(place) = pairs.binary_search(&qpn) {
            pairs.insert(place, qpn);
        }
    }

    /// Removes a queue pair from those that the entry of a NIC will name.
    pub(super) fn forget(&mut self, nic: usize, qpn: u32) {
        if let Some(pairs) = self.pairs.get_mut(&nic)
            && let Ok(place) = pairs.binary_search(&qpn)
        {
            pairs.remove(place);
        }
    }
}

/// The uses of a plan: of its rules, then of its expectations.
pub(super) fn uses_of(plan: &Plan) -> Vec<PointUse> {
    let rules = plan.rules.iter().enumerate().filter_map(|(index, rule)| {
        let Thing::Point(point, code) = rule.thing else {
            return None;
        };
        Some(PointUse {
            purpose: Purpose::Rule(index),
            nic: rule.nic,
            point,
            code,
            conditions: rule.conditions.clone(),
            choice: rule.choice,
            outcome: match rule.effect {
                Effect::Inject(outcome) => outcome,
                _ => Outcome::Report,
            },
            active: false,
            nics: BTreeSet::new(),
            pairs: BTreeMap::new(),
        })
    });
    let expectations = plan.expectations.iter().enumerate();
    let expectations = expectations.filter_map(|(index, planned)| {
        let (point, connection) = match &planned.expectation {
            Expectation::Completion(completion) => (Point::Completion, completion.qp),
            Expectation::Event(_) => (Point::Event, None),
            _ => return None,
        };
        Some(PointUse {
            purpose: Purpose::Expectation(index),
            nic: planned.nic,
            point,
            code: planned.code,
            conditions: Conditions {
                connection,
                ..Conditions::default()
            },
            choice: EACH,
            outcome: Outcome::Report,
            active: false,
            nics: BTreeSet::new(),
            pairs: BTreeMap::new(),
        })
    });
    rules.chain(expectations).collect()
}
