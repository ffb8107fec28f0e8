//! Actions of the owner of a fabric for a running scenario, with the same meaning as in the emulator.

use faultline_fabric::PortId;
use faultline_fabric::scenario::{Beginning, CounterValues};
use faultline_nic::Instant;
use faultline_scenario::plan::Plan;
use faultline_scenario::rules::Rules;
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
        self.engines.first()?.fabric.rules.as_deref()
    }

    /// Removes the rules, at the end of a run.
    pub(crate) fn take_rules(&mut self) -> Option<Box<Rules>> {
        self.engines.first_mut()?.fabric.rules.take()
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

    /// Ends a scenario: undoes the lasting changes of its actions, and passes frames that rules have kept. Returns the
    /// verdict, which has a problem for each GID table that was to be moved.
    pub fn stop_scenario(&self, before: CounterValues) -> Option<Verdict> {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        let moved = std::mem::take(&mut state.moved_gids);
        let engine = state.engines.first_mut()?;
        let facts = engine.fabric.facts_at_end(now, before);
        let rules = engine.fabric.rules.as_mut()?;
        for nic in moved {
            rules.note_problem(format!("NIC nic{nic}: move_gid was not carried out"));
        }
        let verdict = judge(rules, &facts);
        rules.stop();
        engine.run_scenario(now);
        engine.fabric.rules = None;
        state.settle();
        Some(verdict)
    }
}
