//! The beginning of a scenario or a live rule in a fabric that has all NICs, and the facts about the run of a scenario.

use faultline_abi::admin::Counter;
use faultline_nic::{Instant, Nanos};
use faultline_scenario::live::LivePlan;
use faultline_scenario::plan::Plan;
use faultline_scenario::rules::TooManyRules;
use faultline_scenario::verdict::Facts;

use crate::fabric::Fabric;
use crate::nic_port::NicPort;
use crate::outside::Outside;

/// Counters of each NIC, in the order of `Counter::ALL`.
pub type CounterValues = Vec<Vec<u64>>;

impl<O: Outside> Fabric<O> {
    /// Prepares the rules of a plan. They begin when [`Fabric::begin_rules`] returns [`Beginning::Now`].
    pub fn prepare_rules(&mut self, plan: Plan, now: Instant) {
        let nics = self.nics.values().map(|port| &port.nic);
        self.rules.prepare_scenario(plan, nics, now);
    }

    /// One step before rules begin: they read some of the existing queue pairs. Returns
    /// [`Beginning::Before`] if more steps are needed.
    pub fn begin_rules(&mut self, now: Instant) -> Beginning {
        let nics = self.nics.values().map(|port| &port.nic);
        match self.rules.scenario_mut() {
            Some(rules) if !rules.has_begun() => {
                if !rules.take_existing(nics) {
                    return Beginning::Before;
                }
                rules.begin(now);
            }
            Some(_) | None => return Beginning::After,
        }
        Beginning::Now(self.counters())
    }

    /// Prepares a live rule. It begins when [`Fabric::begin_live_rule`] returns true. Returns its number.
    pub fn prepare_live_rule(&mut self, live: LivePlan, now: Instant) -> Result<u16, TooManyRules> {
        let nics = self.nics.values().map(|port| &port.nic);
        self.rules.prepare_live(live, nics, now)
    }

    /// One step before a live rule begins. Returns false if more steps are needed.
    pub fn begin_live_rule(&mut self, number: u16, now: Instant) -> bool {
        let nics = self.nics.values().map(|port| &port.nic);
        self.rules.begin_live(number, nics, now)
    }

    /// The counters of all NICs.
    pub fn counters(&self) -> CounterValues {
        let values = |port: &NicPort| port.nic.counters().values().to_vec();
        self.nics.values().map(values).collect()
    }

    /// The increase of each counter, by name.
    pub fn facts_since(&self, before: CounterValues) -> Facts {
        let increased = |(now, before): (Vec<u64>, Vec<u64>)| {
            let values = now.into_iter().zip(before);
            let values = values.map(|(now, before)| now.saturating_sub(before));
            let names = Counter::ALL.iter().map(|counter| counter.name().to_owned());
            names.zip(values).collect()
        };
        let counters = self.counters().into_iter().zip(before);
        Facts {
            ended: None,
            counters: counters.map(increased).collect(),
            traffic: Vec::new(),
        }
    }

    /// The same at the end of the rules of this fabric, which have ended now.
    pub fn facts_at_end(&self, now: Instant, before: CounterValues) -> Facts {
        let start = self.rules.scenario().map_or(now, |rules| rules.start());
        Facts {
            ended: Some(Nanos(now.0.saturating_sub(start.0))),
            ..self.facts_since(before)
        }
    }
}

/// State of the beginning of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// More steps are needed.
    Before,
    /// Now. The counters of all NICs.
    Now(CounterValues),
    /// They have begun, or there are none.
    After,
}
