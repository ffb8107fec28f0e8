//! Actions of the owner of a fabric for a running scenario, with the same meaning as in the emulator.

use faultline_fabric::PortId;
use faultline_fabric::by_rules::RulesOwner;
use faultline_fabric::scenario::{Beginning, CounterValues};
use faultline_nic::Instant;
use faultline_scenario::live::LivePlan;
use faultline_scenario::plan::Plan;
use faultline_scenario::rules::{Fired, LiveRule, Rules, TooManyRules};
use faultline_scenario::verdict::{Facts, Verdict, judge};

use super::{Process, State};

impl State {
    /// Begins rules, or takes only the counters of all NICs if there are none. The first engine has all NICs.
    pub(crate) fn begin_scenario(&mut self, plan: Option<Plan>) -> CounterValues {
        let now = Instant(self.now);
        let Some(engine) = self.engines.first_mut() else {
            return CounterValues::default();
        };
        let Some(plan) = plan else {
            return engine.fabric.counters();
        };
        engine.fabric.prepare_rules(plan, now);
        loop {
            match engine.fabric.begin_rules(now) {
                Beginning::Before => {}
                Beginning::Now(counters) => return counters,
                Beginning::After => return CounterValues::default(),
            }
        }
    }

    /// The increase of the counters of all NICs.
    pub(crate) fn facts_since(&self, before: CounterValues) -> Facts {
        let engine = self.engines.first();
        engine.map_or_else(Facts::default, |engine| engine.fabric.facts_since(before))
    }

    /// The rules of the scenario that runs.
    pub(crate) fn rules(&self) -> Option<&Rules> {
        self.engines.first()?.fabric.rules.scenario()
    }

    /// Removes the rules, at the end of a run.
    pub(crate) fn take_rules(&mut self) -> Option<Rules> {
        self.engines.first_mut()?.fabric.rules.take_scenario()
    }

    /// True if an action has ended the scenario.
    pub(crate) fn has_ended(&self) -> bool {
        self.rules().is_some_and(Rules::has_ended)
    }
}

impl Process {
    /// Starts a scenario: as in the emulator, one engine has all NICs until it is stopped. Returns the counters at its beginning, for
    /// [`Process::stop_scenario`].
    pub fn start_scenario(&self, plan: Plan) -> CounterValues {
        let nics: Vec<PortId> = (0..self.hosts.len()).collect();
        self.move_nics(&nics, 0);
        self.state.borrow_mut().begin_scenario(Some(plan))
    }

    /// Starts a live rule: as in the emulator, one engine has all NICs from now on. Returns its number.
    pub fn start_live_rule(&self, live: LivePlan) -> Result<u16, TooManyRules> {
        let nics: Vec<PortId> = (0..self.hosts.len()).collect();
        self.move_nics(&nics, 0);
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        let engine = state.engines.first_mut().ok_or(TooManyRules)?;
        let number = engine.fabric.prepare_live_rule(live, now)?;
        while !engine.fabric.begin_live_rule(number, now) {}
        engine.run_rules(now);
        state.settle();
        Ok(number)
    }

    /// Live rules that have ended by their time, then those that run.
    pub fn live_rules(&self) -> Vec<LiveRule> {
        let state = self.state.borrow();
        let engine = state.engines.first();
        engine.map_or_else(Vec::new, |engine| engine.fabric.rules.live())
    }

    /// Removes a live rule: undoes the lasting changes of its actions, and passes frames that it has kept.
    pub fn remove_live_rule(&self, number: u16) -> Option<LiveRule> {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        let engine = state.engines.first_mut()?;
        let removed = engine.fabric.rules.remove_live(number);
        engine.run_rules(now);
        state.settle();
        removed
    }

    /// Rules and timed actions of the scenario that runs, with the numbers of their effects.
    pub fn fired(&self) -> Vec<Fired> {
        self.state
            .borrow()
            .rules()
            .map_or_else(Vec::new, Rules::fired)
    }

    /// Ends a scenario: undoes the lasting changes of its actions, and passes frames that rules have kept. Returns the
    /// verdict, which has a problem for each GID table that was to be moved.
    pub fn stop_scenario(&self, before: CounterValues) -> Option<Verdict> {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        let moved = std::mem::take(&mut state.moved_gids);
        let engine = state.engines.first_mut()?;
        let facts = engine.fabric.facts_at_end(now, before);
        let rules = engine.fabric.rules.scenario_mut()?;
        for nic in moved {
            rules.note_problem(format!("NIC nic{nic}: move_gid was not carried out"));
        }
        let verdict = judge(rules, &facts);
        engine.fabric.rules.stop_scenario();
        engine.run_rules(now);
        engine.fabric.rules.take_scenario();
        state.settle();
        Some(verdict)
    }
}
