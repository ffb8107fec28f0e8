//! Rules and expectations that use the injection table of NICs.

use std::collections::BTreeSet;

use faultline_nic::{Outcome, Point};

use crate::plan::{Choice, Conditions};

/// What an entry of the injection table is for.
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
}

impl PointUse {
    /// True if the entry names its queue pairs one by one.
    pub(super) fn lists_pairs(&self) -> bool {
        self.conditions.connection.is_some() || self.conditions.process.is_some()
    }
}
