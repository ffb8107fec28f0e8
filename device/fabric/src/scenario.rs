//! The beginning of a scenario in a fabric that has all NICs, and the facts about its run.

use faultline_abi::admin::Counter;
use faultline_nic::{Instant, Nanos};
use faultline_scenario::plan::Plan;
use faultline_scenario::rules::Rules;
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
        self.rules = Some(Box::new(Rules::prepare(plan, nics, now)));
    }

    /// One step before rules begin: they read some of the existing queue pairs. Returns
    /// [`Beginning::Before`] if more steps are needed.
    pub fn begin_rules(&mut self, now: Instant) -> Beginning {
        let nics = self.nics.values().map(|port| &port.nic);
        match &mut self.rules {
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
        let start = self.rules.as_ref().map_or(now, |rules| rules.start());
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
