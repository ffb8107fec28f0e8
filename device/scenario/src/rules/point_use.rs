//! Rules and expectations that use the injection table of NICs.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Queue pairs that the entry names when a NIC gets it, by NIC, in ascending order. They are collected as connections are
    /// made, because to look for them all when the entry is added could take long.
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
