//! Entries of the injection table.

use super::point::{Fact, Outcome, Point};
use super::random::SplitMix64;

/// Most injections of a NIC.
pub const MAX_INJECTIONS: usize = 64;
/// The value of [`Injection::per_million`] for an effect that always takes place.
pub const ALWAYS: u32 = 1_000_000;

/// The passes that an injection applies to. `None` matches everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Filter {
    /// QP number.
    pub qpn: Option<u32>,
    /// Only queue pairs that were added with [`Nic::add_injection_pair`](crate::Nic::add_injection_pair). Matches and effects are
    /// counted over all of them.
    pub listed: bool,
    /// Number of another object.
    pub object: Option<u32>,
    /// Memory key.
    pub key: Option<u32>,
    /// First and last address of a range.
    pub va: Option<(u64, u64)>,
    /// Opcode, status or kind, by point.
    pub code: Option<u16>,
    /// Least fill level of the queue.
    pub min_level: Option<u32>,
}

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Injection {
    /// Id that the caller has chosen; no two entries have the same one.
    pub id: u32,
    /// The point.
    pub point: Point,
    /// The passes that it applies to.
    pub filter: Filter,
    /// Matches before the first effect.
    pub skip: u64,
    /// Then each `every`-th match has an effect; 1: each. Not 0.
    pub every: u64,
    /// Number of effects; `u64::MAX`: no limit.
    pub times: u64,
    /// Probability of each effect in millionths; [`ALWAYS`]: no random number is drawn.
    pub per_million: u32,
    /// The effect.
    pub outcome: Outcome,
}

/// An entry of the table, with the numbers of its matches and effects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct InjectionUse {
    /// The entry.
    pub injection: Injection,
    /// Matches of its filter.
    pub matches: u64,
    /// Effects.
    pub effects: u64,
    /// Queue pairs of [`Filter::listed`], in ascending order. Dropping the list takes constant time.
    pub pairs: Vec<u32>,
}

/// Why an injection was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InjectionError {
    /// The table is full.
    #[error("the table has {MAX_INJECTIONS} injections already: remove one")]
    Full,
    /// The id is in use.
    #[error("injection {0} exists already: remove it, or choose another id")]
    DuplicateId(u32),
    /// The point does not have this outcome.
    #[error("{outcome:?} can't be injected at {point:?}")]
    Outcome {
        /// The point.
        point: Point,
        /// The outcome.
        outcome: Outcome,
    },
    /// The point does not have this fact.
    #[error("{point:?} has no {fact:?} to filter by")]
    Fact {
        /// The point.
        point: Point,
        /// The fact.
        fact: Fact,
    },
    /// The range of addresses is empty.
    #[error("the filter's last address {last:#x} is before its first one {first:#x}")]
    Range {
        /// First address.
        first: u64,
        /// Last address.
        last: u64,
    },
    /// `every` or `times` is 0, or `per_million` is 0 or too large.
    #[error(
        "the injection would never have an effect: `every` and `times` must be at least 1, and `per_million` from 1 to \
         {ALWAYS}"
    )]
    Never,
}

/// The facts of a pass through a point.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub qpn: Option<u32>,
    pub object: Option<u32>,
    pub key: Option<u32>,
    pub va: Option<u64>,
    pub code: Option<u16>,
    pub level: Option<u32>,
}

impl Filter {
    fn facts(&self) -> [(Fact, bool); 6] {
        [
            (Fact::Qpn, self.qpn.is_some() || self.listed),
            (Fact::Object, self.object.is_some()),
            (Fact::Key, self.key.is_some()),
            (Fact::Va, self.va.is_some()),
            (Fact::Code, self.code.is_some()),
            (Fact::Level, self.min_level.is_some()),
        ]
    }

    pub(super) fn matches(&self, facts: &Facts) -> bool {
        fn equal<T: PartialEq>(wanted: Option<T>, fact: Option<T>) -> bool {
            wanted.is_none() || wanted == fact
        }
        equal(self.qpn, facts.qpn)
            && equal(self.object, facts.object)
            && equal(self.key, facts.key)
            && equal(self.code, facts.code)
            && self
                .va
                .is_none_or(|(first, last)| facts.va.is_some_and(|va| (first..=last).contains(&va)))
            && self
                .min_level
                .is_none_or(|least| facts.level.is_some_and(|level| level >= least))
    }
}

impl Injection {
    pub(super) fn check(&self) -> Result<(), InjectionError> {
        let Self { point, outcome, .. } = *self;
        if !point.allows(outcome) {
            return Err(InjectionError::Outcome { point, outcome });
        }
        for (fact, used) in self.filter.facts() {
            if used && !point.has(fact) {
                return Err(InjectionError::Fact { point, fact });
            }
        }
        if let Some((first, last)) = self.filter.va.filter(|(first, last)| last < first) {
            return Err(InjectionError::Range { first, last });
        }
        let never = self.every == 0 || self.times == 0 || !(1..=ALWAYS).contains(&self.per_million);
        if never {
            return Err(InjectionError::Never);
        }
        Ok(())
    }
}

impl InjectionUse {
    pub(super) fn is_used_up(&self) -> bool {
        self.effects >= self.injection.times
    }

    /// True if its filter matches.
    pub(super) fn matches(&self, facts: &Facts) -> bool {
        let Filter { listed, .. } = self.injection.filter;
        self.injection.filter.matches(facts)
            && (!listed || facts.qpn.is_some_and(|qpn| self.lists(qpn)))
    }

    fn lists(&self, qpn: u32) -> bool {
        self.pairs.binary_search(&qpn).is_ok()
    }

    /// True if it may apply to this queue pair.
    pub(super) fn concerns(&self, point: Point, qpn: u32) -> bool {
        let Injection {
            point: at, filter, ..
        } = self.injection;
        at == point
            && !self.is_used_up()
            && filter.qpn.is_none_or(|only| only == qpn)
            && (!filter.listed || self.lists(qpn))
    }

    /// Counts a match. Returns true if the effect is due.
    pub(super) fn is_due(&mut self, random: &mut SplitMix64) -> bool {
        let before = self.matches;
        self.matches = self.matches.saturating_add(1);
        let Injection {
            skip,
            every,
            per_million,
            ..
        } = self.injection;
        let in_turn = before
            .checked_sub(skip)
            .is_some_and(|n| n.is_multiple_of(every));
        in_turn && !self.is_used_up() && random.is_below(per_million)
    }
}
