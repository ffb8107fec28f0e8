//! What the owner of a fabric does for the scenario that runs, with the meaning that the emulator gives it.

use faultline_abi::doorbell::Doorbell;
use faultline_fabric::PortId;
use faultline_fabric::nic_port::NicPort;
use faultline_fabric::scenario::{Beginning, CounterValues};
use faultline_nic::Instant;
use faultline_scenario::plan::Plan;
use faultline_scenario::rules::{CallerRequest, Rules};
use faultline_scenario::trigger::Direction;
use faultline_scenario::verdict::{Facts, Verdict, judge};

use super::engine::SimEngine;
use super::{Process, State};
use crate::event::What;

/// Why there is no speed without a modelled link.
const NO_SPEED: &str =
    "frames that are delivered by reference have no speed: leave out `by_reference` or `speed`";

impl SimEngine {
    /// A driver rings a doorbell, which rules may take.
    pub(super) fn ring(&mut self, now: Instant, nic: PortId, page: u32, bell: Doorbell) {
        let Some(turn) = self.fabric.turn(nic) else {
            return;
        };
        let mut rules = turn.rules;
        let passes = |rules: &mut &mut Rules| rules.doorbell(now, nic, page, bell);
        if rules.as_mut().is_none_or(passes) {
            turn.port.nic.doorbell(now, turn.memory, page, bell);
        }
    }

    /// Carries out what the rules ask for. Returns true if there was anything.
    pub(super) fn run_scenario(&mut self, now: Instant) -> bool {
        if !self.fabric.advance_rules(now) {
            return false;
        }
        let mut worked = false;
        while let Some((nic, left)) = self.fabric.poll_request(now) {
            worked = true;
            let problem = match left {
                Ok(None) => None,
                Ok(Some(request)) => self.carry_out(now, nic, request).err(),
                Err(problem) => Some(problem),
            };
            if let (Some(problem), Some(rules)) = (problem, &mut self.fabric.rules) {
                rules.note_problem(format!("NIC nic{nic}: {problem}"));
            }
        }
        worked | self.fabric.pass_kept(&mut self.around, now)
    }

    /// Does what a fabric cannot do itself.
    fn carry_out(
        &mut self,
        now: Instant,
        nic: PortId,
        request: CallerRequest,
    ) -> Result<(), String> {
        let what = match request {
            CallerRequest::Link(true) => "link up",
            CallerRequest::Link(false) => "link down",
            CallerRequest::Mtu(_) => "MTU changed",
            CallerRequest::Speed(mbps) => {
                let links = &mut self.fabric.links;
                if !links.set_rate(nic, Direction::Tx, mbps.unwrap_or(0)) && mbps.is_some() {
                    return Err(NO_SPEED.to_owned());
                }
                "speed changed"
            }
            CallerRequest::Reset => {
                if let Some(port) = self.fabric.nics.get_mut(nic) {
                    port.nic.reset(now);
                    drop(port.nic.take_remains());
                }
                self.fabric.sync_address(nic);
                "reset"
            }
            CallerRequest::Remove => {
                if let Some(port) = self.fabric.nics.get_mut(nic) {
                    port.bus_master = false;
                }
                self.around.removed.borrow_mut().insert(nic);
                "removed"
            }
            CallerRequest::Pause(_) => "paused",
            CallerRequest::MoveGids => "GID table moved",
            // The rules themselves remember the end.
            CallerRequest::End => return Ok(()),
        };
        self.around.requests.push((nic, request));
        let mut watch = self.around.watch.borrow_mut();
        watch.note(now.0, nic, format_args!("{what}"));
        Ok(())
    }
}

impl State {
    /// Takes the requests of rules that are about the clock or the hosts.
    pub(super) fn take_requests(&mut self) {
        for index in 0..self.engines.len() {
            let Some(engine) = self.engines.get_mut(index) else {
                continue;
            };
            for (nic, request) in std::mem::take(&mut engine.around.requests) {
                match request {
                    CallerRequest::Pause(time) => self.pause(time.0),
                    CallerRequest::MoveGids => self.moved_gids.push(nic),
                    _ => {}
                }
            }
        }
    }

    /// All NICs and their clock stand still for so long, while the software of the hosts goes on.
    fn pause(&mut self, time: u64) {
        // Pauses that begin together end together.
        let (at, already) = self.last_pause;
        let already = if at == self.now { already } else { 0 };
        let lasts = already.max(time);
        let longer = lasts.saturating_sub(already);
        self.paused = self.paused.saturating_add(longer);
        // The limit is one of the hosts' clock.
        self.limit = self.limit.saturating_sub(longer);
        self.last_pause = (self.now, lasts);
    }

    /// A NIC, unless it has been removed.
    pub(super) fn present_nic(&mut self, nic: PortId) -> Option<&mut NicPort> {
        if self.removed.borrow().contains(&nic) {
            return None;
        }
        self.nic(nic)
    }

    /// A NIC.
    pub(crate) fn nic(&mut self, nic: PortId) -> Option<&mut NicPort> {
        self.engine_of(nic)?.fabric.nics.get_mut(nic)
    }

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

    /// How much the counters of all NICs have increased.
    pub(crate) fn facts_since(&self, before: CounterValues) -> Facts {
        let engine = self.engines.first();
        engine.map_or_else(Facts::default, |engine| engine.fabric.facts_since(before))
    }

    /// The rules of the scenario that runs.
    pub(crate) fn rules(&self) -> Option<&Rules> {
        self.engines.first()?.fabric.rules.as_deref()
    }

    /// Takes the rules away, at the end of a run.
    pub(crate) fn take_rules(&mut self) -> Option<Box<Rules>> {
        self.engines.first_mut()?.fabric.rules.take()
    }

    /// True if an action has ended the scenario.
    pub(crate) fn has_ended(&self) -> bool {
        self.rules().is_some_and(Rules::has_ended)
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&self, nic: PortId, what: std::fmt::Arguments<'_>) {
        self.watch.borrow_mut().note(self.now, nic, what);
    }

    /// Keeps an event of the scenario.
    pub(crate) fn event(&self, nic: PortId, what: What) {
        self.watch.borrow_mut().event(self.now, nic, what);
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

    /// Ends a scenario: what its actions have changed is as before, and what rules have kept is passed. Returns the verdict, which has
    /// a problem for each GID table that was to be moved.
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
