//! Rules and expectations about events inside a NIC: entries of its injection table.

use faultline_nic::{Filter, Injection, Instant};

use super::point_use::Purpose;
use super::request::{NicRequest, Subject};
use super::running::Rules;
use super::schedule::Due;
use super::view::Region;
use crate::plan::{Conditions, Effect};

/// Pages that rules count in.
const PAGE: u64 = 4096;

/// First and last address of the pages that conditions name, or of the region.
fn addresses(conditions: &Conditions, region: Option<Region>) -> Option<(u64, u64)> {
    if let Some(pages) = conditions.pages {
        let base = region.map_or(0, |region| region.first);
        let first = base.saturating_add(pages.first.saturating_mul(PAGE));
        let beyond = pages.last.saturating_add(1).saturating_mul(PAGE);
        return Some((first, base.saturating_add(beyond).saturating_sub(1)));
    }
    let Region { first, len, .. } = region?;
    Some((first, first.saturating_add(len.saturating_sub(1))))
}

impl Rules {
    /// Schedules the beginnings and ends of the uses.
    pub(super) fn begin_points(&mut self, now: Instant) {
        if self.points.is_empty() {
            return;
        }
        // A live rule must not change what the rules of a scenario draw.
        let seeded = if self.number == 0 { self.nics.len() } else { 0 };
        for nic in 0..seeded {
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
            self.add_injection(index, nic);
        }
    }

    pub(super) fn end_point(&mut self, index: usize) {
        let id = self.entry(index);
        let Some(used) = self.points.get_mut(index) else {
            return;
        };
        used.active = false;
        for nic in std::mem::take(&mut used.nics) {
            self.request(nic, NicRequest::RemoveInjection(id));
        }
    }

    /// Removes the entries of all uses. The requests are at most as many as NICs have entries.
    pub(super) fn end_points(&mut self) {
        for index in 0..self.points.len() {
            let id = self.entry(index);
            let used = self.points.get_mut(index);
            for nic in used
                .map(|used| std::mem::take(&mut used.nics))
                .unwrap_or_default()
            {
                self.requests
                    .push_back((nic, NicRequest::RemoveInjection(id)));
            }
        }
    }

    /// Id of the entry of a use in the injection table of a NIC. Live rules have ids of their own.
    fn entry(&self, index: usize) -> u32 {
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        u32::from(self.number) << u16::BITS | u32::from(index)
    }

    /// Index of the use that has this entry.
    fn use_of(&self, entry: u32) -> Option<usize> {
        let index = usize::try_from(entry & u32::from(u16::MAX)).ok()?;
        (entry >> u16::BITS == u32::from(self.number)).then_some(index)
    }

    /// An on-demand region was made.
    pub(super) fn begin_region(&mut self, nic: usize, number: u32) {
        for index in 0..self.points.len() {
            let used = self.points.get(index);
            if used.is_some_and(|used| used.conditions.region == Some(number)) {
                self.add_injection(index, nic);
            }
        }
    }

    /// A queue pair has a connection. Entries that ask for it name it from now on.
    pub(super) fn name_pair(&mut self, nic: usize, qpn: u32) {
        for (index, is_added) in self.uses_of_pair(nic, qpn) {
            let id = self.entry(index);
            match self.points.get_mut(index) {
                Some(used) if !is_added => used.collect(nic, qpn),
                _ => self.request(nic, NicRequest::AddInjectionPair(id, qpn)),
            }
        }
    }

    /// The connection of a queue pair is about to end. Entries no longer name it.
    pub(super) fn unname_pair(&mut self, nic: usize, qpn: u32) {
        for (index, is_added) in self.uses_of_pair(nic, qpn) {
            let id = self.entry(index);
            match self.points.get_mut(index) {
                Some(used) if !is_added => used.forget(nic, qpn),
                _ => self.request(nic, NicRequest::RemoveInjectionPair(id, qpn)),
            }
        }
    }

    /// All connections of a NIC have ended. One request for each entry, and not for each queue pair, bounds the time of this step.
    pub(super) fn unname_all(&mut self, nic: usize) {
        let mut added = Vec::new();
        for (index, used) in self.points.iter_mut().enumerate() {
            used.pairs.remove(&nic);
            if used.nics.contains(&nic) && used.lists_pairs() {
                added.push(index);
            }
        }
        for index in added {
            let id = self.entry(index);
            self.request(nic, NicRequest::SetInjectionPairs(id, Vec::new()));
        }
    }

    /// Uses with a condition on the connection of a queue pair, and whether the NIC has their entries.
    fn uses_of_pair(&self, nic: usize, qpn: u32) -> Vec<(usize, bool)> {
        let Some(view) = self.nics.get(nic) else {
            return Vec::new();
        };
        let uses = self.points.iter().enumerate();
        let uses = uses.filter(|(_, used)| used.lists_pairs());
        let meant = uses.filter(|(_, used)| view.is_meant(&used.conditions, qpn));
        meant
            .map(|(index, used)| (index, used.nics.contains(&nic)))
            .collect()
    }

    /// Adds the entry of a use to a NIC, unless its region does not exist yet.
    fn add_injection(&mut self, index: usize, nic: usize) {
        let (Some(used), Some(view)) = (self.points.get(index), self.nics.get(nic)) else {
            return;
        };
        let is_of_nic = used.nic.is_none_or(|only| only == nic);
        if !used.active || !is_of_nic || used.nics.contains(&nic) {
            return;
        }
        let conditions = &used.conditions;
        // Regions: none is asked for, or the one that is asked for exists.
        let region = conditions.region.map(|number| view.region(number));
        let region = match region {
            Some(None) => return,
            Some(region) => region,
            None => None,
        };
        let id = self.entry(index);
        let (choice, lists_pairs) = (used.choice, used.lists_pairs());
        let injection = Injection {
            id,
            point: used.point,
            filter: Filter {
                qpn: conditions.qpn,
                listed: lists_pairs,
                object: None,
                key: conditions.key.or(region.map(|region| region.key)),
                va: addresses(conditions, region),
                code: used.code,
                min_level: conditions.level,
            },
            skip: choice.skip,
            every: choice.every,
            times: choice.times,
            per_million: choice.per_million,
            outcome: used.outcome,
        };
        let mut pairs = None;
        if let Some(used) = self.points.get_mut(index) {
            used.nics.insert(nic);
            pairs = used.pairs.remove(&nic);
        }
        self.request(nic, NicRequest::AddInjection(injection));
        if let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) {
            self.request(nic, NicRequest::SetInjectionPairs(id, pairs));
        }
    }

    /// An entry had an effect.
    pub(super) fn injected(&mut self, now: Instant, nic: usize, id: u32, subject: Subject) {
        let used = self.use_of(id).and_then(|index| self.points.get(index));
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
