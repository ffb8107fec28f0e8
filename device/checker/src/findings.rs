//! Stored findings, and counts of all findings.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::flow::Adapter;
use crate::memory;
use crate::rule::{Rule, Severity};

/// Maximum number of stored violations of each adapter, and of packets of unknown adapters.
pub const VIOLATION_LIMIT: u64 = 1000;

/// Maximum number of stored remarks of each rule.
pub const REMARK_LIMIT: u64 = 10;

/// Maximum number of findings for which memory is reserved in advance.
const MOST_SPARE: usize = 64;

/// Violations of an adapter.
#[derive(Clone, Copy, Debug, Default)]
struct OfAdapter {
    count: u64,
    kept: u64,
}

/// Findings.
#[derive(Debug)]
pub(crate) struct Findings {
    violations: Vec<Finding>,
    remarks: Vec<Finding>,
    counts: BTreeMap<Rule, u64>,
    by_adapter: BTreeMap<Option<Adapter>, OfAdapter>,
    /// Bytes of the texts of all findings.
    texts: usize,
    /// Maximum number of bytes of all findings.
    budget: usize,
}

impl Default for Findings {
    fn default() -> Self {
        Self {
            violations: Vec::new(),
            remarks: Vec::new(),
            counts: BTreeMap::new(),
            by_adapter: BTreeMap::new(),
            texts: 0,
            budget: usize::MAX,
        }
    }
}

impl Findings {
    /// Sets the maximum number of bytes of all findings.
    pub(crate) fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// The stored violations.
    pub(crate) fn violations(&self) -> &[Finding] {
        &self.violations
    }

    /// The other stored findings.
    pub(crate) fn remarks(&self) -> &[Finding] {
        &self.remarks
    }

    /// Number of findings of each rule.
    pub(crate) fn counts(&self) -> &BTreeMap<Rule, u64> {
        &self.counts
    }

    /// Number of violations by an adapter.
    pub(crate) fn count_of(&self, adapter: Option<Adapter>) -> u64 {
        let of_adapter = self.by_adapter.get(&adapter);
        of_adapter.map_or(0, |of_adapter| of_adapter.count)
    }

    /// Bytes that the findings take.
    pub(crate) fn bytes(&self) -> usize {
        let lists = [self.violations.capacity(), self.remarks.capacity()];
        let lists = lists.iter().map(|count| memory::array::<Finding>(*count));
        let maps = [
            memory::map::<Rule, u64>(self.counts.len()),
            memory::map::<Option<Adapter>, OfAdapter>(self.by_adapter.len()),
        ];
        lists.chain(maps).fold(self.texts, usize::saturating_add)
    }

    /// Counts a finding, and keeps it if there is room.
    pub(crate) fn add(&mut self, finding: Finding) {
        let count = self.counts.entry(finding.rule).or_default();
        *count = count.saturating_add(1);
        if finding.rule.severity() != Severity::Violation {
            if *count <= REMARK_LIMIT {
                self.texts = self.texts.saturating_add(text(&finding));
                self.remarks.push(finding);
            }
            return;
        }
        let of_adapter = self.by_adapter.entry(finding.adapter).or_default();
        of_adapter.count = of_adapter.count.saturating_add(1);
        if of_adapter.kept >= VIOLATION_LIMIT || !self.make_room(&finding) {
            return;
        }
        self.texts = self.texts.saturating_add(text(&finding));
        let of_adapter = self.by_adapter.entry(finding.adapter).or_default();
        of_adapter.kept = of_adapter.kept.saturating_add(1);
        self.violations.push(finding);
    }

    /// Makes room for a violation: without room, discards the last violations of the adapter with the most stored ones. Returns false if
    /// that is the adapter of this violation.
    fn make_room(&mut self, finding: &Finding) -> bool {
        loop {
            // A vector doubles its memory when it grows, which may exceed the budget.
            let has_place = self.violations.len() < self.violations.capacity();
            let spare = if has_place { 0 } else { MOST_SPARE };
            let needed = memory::array::<Finding>(spare).saturating_add(text(finding));
            if self.bytes().saturating_add(needed) <= self.budget {
                self.violations.reserve_exact(spare);
                return true;
            }
            let kept_of = |adapter| self.by_adapter.get(adapter).map_or(0, |of| of.kept);
            let most = self.by_adapter.iter().max_by_key(|(_, of)| of.kept);
            let Some((&adapter, most)) = most.filter(|(_, most)| most.kept > 0) else {
                return false;
            };
            // With one more, this adapter would have the most.
            if most.kept <= kept_of(&finding.adapter).saturating_add(1) {
                return false;
            }
            let last = self.violations.iter().rposition(|of| of.adapter == adapter);
            let Some(last) = last else {
                return false;
            };
            let gone = self.violations.remove(last);
            self.texts = self.texts.saturating_sub(text(&gone));
            let of_adapter = self.by_adapter.entry(adapter).or_default();
            of_adapter.kept = of_adapter.kept.saturating_sub(1);
        }
    }
}

/// Bytes of the text of a finding.
fn text(finding: &Finding) -> usize {
    memory::array::<u8>(finding.what.capacity())
}
