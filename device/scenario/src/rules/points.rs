//! Rules and expectations about what happens inside a NIC: entries of its injection table.

use faultline_nic::injection::ALWAYS;
use faultline_nic::{Filter, Injection, Instant, Outcome, Point};

use super::Rules;
use super::point_use::{NewObject, PointUse, Purpose};
use super::request::{NicRequest, Subject};
use super::schedule::Due;
use crate::expectation::Expectation;
use crate::plan::{Choice, Conditions, Effect, Thing};

/// Pages that rules count in.
const PAGE: u64 = 4096;
/// In an id: the use. The bits above distinguish the entries of one use.
const USE_BITS: u32 = 10;

/// Most entries that are made for one rule. A guest makes one with each queue pair of a process that the rule names.
const MAX_ENTRIES: usize = 1024;

/// Each match counts.
const EACH: Choice = Choice {
    skip: 0,
    every: 1,
    times: u64::MAX,
    per_million: ALWAYS,
};

impl Rules {
    /// Collects the uses, and schedules their beginnings and ends.
    pub(super) fn begin_points(&mut self, now: Instant) {
        let rules = self
            .rules
            .iter()
            .enumerate()
            .filter_map(|(index, running)| {
                let rule = &running.rule;
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
                    ids: Vec::new(),
                })
            });
        let expectations = self.plan.expectations.iter().enumerate();
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
                ids: Vec::new(),
            })
        });
        self.points = rules.chain(expectations).collect();
        if self.points.is_empty() {
            return;
        }
        for nic in 0..self.nics.len() {
            let seed = self.random.below(u64::MAX);
            self.request(nic, NicRequest::SeedInjections(seed));
        }
        for index in 0..self.points.len() {
            let conditions = self.points.get(index).map(|used| used.conditions.clone());
            let Some(Conditions { after, before, .. }) = conditions else {
                continue;
            };
            match after {
                Some(after) => self.schedule.add(now + after, Due::BeginPoint(index)),
                None => self.begin_point(index),
            }
            if let Some(before) = before {
                self.schedule.add(now + before, Due::EndPoint(index));
            }
        }
    }

    pub(super) fn begin_point(&mut self, index: usize) {
        if let Some(used) = self.points.get_mut(index) {
            used.active = true;
        }
        for nic in 0..self.nics.len() {
            self.add_injections(index, nic, None);
        }
    }

    pub(super) fn end_point(&mut self, index: usize) {
        let Some(used) = self.points.get_mut(index) else {
            return;
        };
        used.active = false;
        for (nic, id) in std::mem::take(&mut used.ids) {
            self.request(nic, NicRequest::RemoveInjection(id));
        }
    }

    /// A connection or an on-demand region was made.
    pub(super) fn begin_object(&mut self, nic: usize, object: NewObject) {
        for index in 0..self.points.len() {
            self.add_injections(index, nic, Some(object));
        }
    }

    /// Adds the entries of a use on a NIC: all that are possible now, or those that a new object makes possible.
    fn add_injections(&mut self, index: usize, nic: usize, new: Option<NewObject>) {
        let (Some(used), Some(view)) = (self.points.get(index), self.nics.get(nic)) else {
            return;
        };
        if !used.active || used.nic.is_some_and(|only| only != nic) {
            return;
        }
        let conditions = &used.conditions;
        // Regions: none is asked for, or the one that is asked for exists.
        let region = match conditions.region {
            None => None,
            Some(number) => match view.region(number) {
                Some(region) => Some(region),
                None => return,
            },
        };
        let qpns: Vec<Option<u32>> = match (conditions.connection, &conditions.process) {
            (Some(number), process) => {
                let of_process = process
                    .as_deref()
                    .is_none_or(|name| view.is_of_process(number, name));
                match view.qpn_of(number).filter(|_| of_process) {
                    Some(qpn) => vec![Some(qpn)],
                    None => return,
                }
            }
            (None, Some(name)) => match new {
                Some(NewObject::Connection(number)) => match view.qpn_of(number) {
                    Some(qpn) if view.is_of_process(number, name) => vec![Some(qpn)],
                    _ => return,
                },
                _ => view.pairs_of_process(name).map(Some).collect(),
            },
            (None, None) => vec![conditions.qpn],
        };
        let concerns = match new {
            None => true,
            Some(NewObject::Region(number)) => conditions.region == Some(number),
            Some(NewObject::Connection(number)) => match conditions.connection {
                Some(only) => only == number,
                None => conditions.process.is_some(),
            },
        };
        if !concerns {
            return;
        }
        let va = conditions.pages.map(|pages| {
            let base = region.map_or(0, |region| region.first);
            let first = base.saturating_add(pages.first.saturating_mul(PAGE));
            let beyond = pages.last.saturating_add(1).saturating_mul(PAGE);
            (first, base.saturating_add(beyond).saturating_sub(1))
        });
        let whole = region.map(|region| {
            (
                region.first,
                region.first.saturating_add(region.len.saturating_sub(1)),
            )
        });
        let filters: Vec<Filter> = qpns
            .into_iter()
            .map(|qpn| Filter {
                qpn,
                object: None,
                key: conditions.key.or(region.map(|region| region.key)),
                va: va.or(whole),
                code: used.code,
                min_level: conditions.level,
            })
            .collect();
        let (point, choice, outcome) = (used.point, used.choice, used.outcome);
        for filter in filters {
            let Some(id) = self.new_injection_id(index, nic) else {
                return;
            };
            let injection = Injection {
                id,
                point,
                filter,
                skip: choice.skip,
                every: choice.every,
                times: choice.times,
                per_million: choice.per_million,
                outcome,
            };
            self.request(nic, NicRequest::AddInjection(injection));
        }
    }

    fn new_injection_id(&mut self, index: usize, nic: usize) -> Option<u32> {
        let used = self.points.get_mut(index)?;
        if used.ids.len() >= MAX_ENTRIES {
            self.note_problem(format!(
                "NIC {nic}: no further queue pair gets an entry of the injection table: {MAX_ENTRIES} were made for one rule"
            ));
            return None;
        }
        let serial = u32::try_from(used.ids.len()).ok()?;
        let id = serial.checked_shl(USE_BITS)? | u32::try_from(index).ok()?;
        used.ids.push((nic, id));
        Some(id)
    }

    /// An entry had an effect.
    pub(super) fn injected(&mut self, now: Instant, nic: usize, id: u32, subject: Subject) {
        let index = id & ((1 << USE_BITS) - 1);
        let used = usize::try_from(index)
            .ok()
            .and_then(|index| self.points.get(index));
        match used.map(|used| used.purpose) {
            Some(Purpose::Expectation(index)) => self.counts.expected(index),
            Some(Purpose::Rule(index)) => {
                self.note_fired(index, nic);
                let effect = self
                    .rules
                    .get(index)
                    .map(|running| running.rule.effect.clone());
                if let Some(Effect::Nic(action)) = effect {
                    self.act(now, nic, &action, subject);
                }
            }
            None => {}
        }
    }
}
