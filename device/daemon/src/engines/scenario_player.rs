//! The engine's part in running rules: those of a scenario, and live rules.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use faultline_fabric::PortId;
use faultline_fabric::by_rules::RulesOwner;
use faultline_fabric::fabric::Fabric;
use faultline_fabric::scenario::Beginning;
use faultline_nic::Instant;
use faultline_scenario::live::LivePlan;
use faultline_scenario::plan::Plan;
use faultline_scenario::rules::{CallerRequest, LiveRule, TooManyRules};
use faultline_scenario::verdict::judge;

use crate::engines::engine::Engine;
use crate::engines::io::EngineIo;
use crate::engines::scenario::{
    EndedScenario, GuestAction, RunnerTask, RunnerTasks, RunningScenario, StoppedScenario,
};
use crate::log::notice::Notice;
use crate::nic::io::NicIo;

/// Most resets by actions whose objects are being freed, each by a thread.
const MAX_RESETS_IN_WORK: usize = 8;
/// Characters of a runner's error that are kept.
const MAX_ERROR: usize = 1000;

impl RulesOwner for Engine {
    type Outside = EngineIo;

    fn fabric(&mut self) -> (&mut Fabric<EngineIo>, &mut EngineIo) {
        (&mut self.fabric, &mut self.io)
    }

    fn carry_out(
        &mut self,
        _: Instant,
        set: u16,
        nic: PortId,
        request: CallerRequest,
    ) -> Result<(), String> {
        match request {
            CallerRequest::MoveGids => return self.ask_runner(nic, GuestAction::MoveGids),
            CallerRequest::Reset => {
                let in_work = Arc::clone(&self.resets_in_work);
                if in_work.load(Ordering::Relaxed) >= MAX_RESETS_IN_WORK {
                    return Err(format!(
                        "the device was not reset: the objects of {MAX_RESETS_IN_WORK} resets before are still being freed"
                    ));
                }
                let remains = self.reset_device(nic);
                in_work.fetch_add(1, Ordering::Relaxed);
                let count = Arc::clone(&in_work);
                // Freeing them may take long.
                let thread = std::thread::Builder::new().name("reset".to_owned());
                let spawned = thread.spawn(move || {
                    drop(remains);
                    count.fetch_sub(1, Ordering::Relaxed);
                });
                if let Err(error) = spawned {
                    in_work.fetch_sub(1, Ordering::Relaxed);
                    return Err(format!(
                        "the objects of a reset device were freed by the engine, because no thread could be started: {error}"
                    ));
                }
            }
            CallerRequest::Remove => {
                if let (Some(port), Some(io)) =
                    (self.fabric.nics.get_mut(nic), self.io.nics.get_mut(nic))
                {
                    io.remove(port);
                }
            }
            CallerRequest::Pause(time) => {
                self.clock.stop();
                let until = self.clock.real() + time;
                let of_set = self.rules_pauses.entry(set).or_insert(until);
                *of_set = until.max(*of_set);
            }
            // The rules note it, and the pass ends the scenario. The fabric has done the others.
            CallerRequest::End
            | CallerRequest::Link(_)
            | CallerRequest::Speed(_)
            | CallerRequest::Mtu(_) => {}
        }
        Ok(())
    }

    fn note_problem(&mut self, set: u16, nic: PortId, problem: String) {
        let Some(io) = self.io.nics.get(nic) else {
            return;
        };
        let noted = format!("NIC {}: {problem}", io.name());
        io.notice(Notice::ScenarioProblem { set, problem });
        self.fabric.rules.note_problem(set, noted);
    }
}

impl Engine {
    /// Executes the requests of the rules, and shows changes of the NICs in the doorbell pages. Returns true if there were any.
    pub(crate) fn execute_rules(&mut self, now: Instant) -> bool {
        let worked = self.run_rules(now);
        if worked {
            // Once for all: nothing reads doorbell pages before, and none of this resets a device.
            for (id, io) in self.io.nics.iter_mut() {
                if let Some(port) = self.fabric.nics.get(id) {
                    let _ = io.sync_pages(&port.nic);
                }
            }
        }
        worked
    }

    /// Gives a task to the runner of the scenario, which has agents in the guests.
    fn ask_runner(&mut self, nic: PortId, action: GuestAction) -> Result<(), String> {
        let scenario = self.scenario.as_mut();
        match scenario.and_then(|scenario| scenario.runner.as_mut()) {
            Some(runner) => runner.add(RunnerTask { nic, action }),
            None => Err(
                "move_gid: the GID table belongs to the guest, and the scenario has no runner that could move its entries: \
                 play it with `cargo lab scenario`, or start it with `--runner` and do what `ctl scenario show` asks for"
                    .to_owned(),
            ),
        }
    }

    /// The runner has executed a task, or has failed to. Returns false if no such task waits.
    pub fn runner_task_done(&mut self, id: u64, error: Option<&str>) -> bool {
        let Some(scenario) = &mut self.scenario else {
            return false;
        };
        let Some(task) = scenario.runner.as_mut().and_then(|tasks| tasks.done(id)) else {
            return false;
        };
        if let Some(error) = error {
            let name = self.name_of(task.nic);
            let error: String = error.chars().take(MAX_ERROR).collect();
            let action = task.action.name();
            self.note_problem(format!("NIC {name}: {action} failed in the guest: {error}"));
        }
        true
    }

    /// Reports tasks that the runner has not executed as problems.
    fn note_open_tasks(&mut self) {
        let runner = self.scenario.as_mut();
        let Some(tasks) = runner.and_then(|scenario| scenario.runner.take()) else {
            return;
        };
        for (id, task) in tasks.pending() {
            let name = self.name_of(task.nic);
            let action = task.action.name();
            self.note_problem(format!(
                "NIC {name}: {action} (task {id}) was not carried out by the runner of the scenario"
            ));
        }
    }

    fn name_of(&self, nic: PortId) -> String {
        let io = self.io.nics.get(nic);
        io.map_or("", NicIo::name).to_owned()
    }

    fn note_problem(&mut self, problem: String) {
        self.fabric.rules.note_problem(0, problem);
    }

    /// When the last pause ends that an action has made.
    fn end_of_pauses(&self) -> Option<Instant> {
        self.rules_pauses.values().max().copied()
    }

    /// Ends the pauses that actions have made, when the time of all is over.
    pub(crate) fn end_pause_of_rules(&mut self) {
        let until = self.end_of_pauses();
        if until.is_some_and(|until| until <= self.clock.real()) {
            self.rules_pauses.clear();
            self.resume_unless_paused();
        }
    }

    /// Real time until the pauses end that actions have made.
    pub(crate) fn rest_of_pause_by_rules(&self) -> Option<Duration> {
        let until = self.end_of_pauses()?;
        Some(Duration::from_nanos(
            until.0.saturating_sub(self.clock.real().0),
        ))
    }

    /// Ends the pauses that actions have made whose set of rules runs no more.
    fn end_pauses_without_rules(&mut self) {
        let rules = &self.fabric.rules;
        self.rules_pauses.retain(|set, _| rules.runs(*set));
        self.resume_unless_paused();
    }

    /// Starts a live rule, which begins when [`Engine::prepare_live_rule`] returns true. Returns its number.
    pub fn start_live_rule(&mut self, live: LivePlan) -> Result<u16, TooManyRules> {
        let now = self.now();
        self.fabric.prepare_live_rule(live, now)
    }

    /// One step of the preparation of a live rule: it learns some of the queue pairs. Returns false if more steps are needed.
    pub fn prepare_live_rule(&mut self, number: u16) -> bool {
        let now = self.now();
        self.fabric.begin_live_rule(number, now)
    }

    /// Removes a live rule: undoes the lasting changes of its actions, and passes frames that it has kept. Returns the rule with its
    /// counts; `None`: none has this number.
    pub fn remove_live_rule(&mut self, number: u16) -> Option<LiveRule> {
        let now = self.now();
        let removed = self.fabric.rules.remove_live(number);
        self.execute_rules(now);
        self.end_pauses_without_rules();
        removed
    }

    /// Starts a scenario, which begins when [`Engine::prepare_scenario`] returns true. Returns false if another one
    /// runs. `has_runner`: the client that starts it executes tasks in guests.
    pub fn start_scenario(&mut self, name: String, plan: Plan, has_runner: bool) -> bool {
        if self.scenario.is_some() || self.ended_scenario.is_some() {
            return false;
        }
        let now = self.now();
        self.fabric.prepare_rules(plan, now);
        self.scenario = Some(Box::new(RunningScenario {
            name,
            counters: Vec::new(),
            runner: has_runner.then(RunnerTasks::default),
        }));
        true
    }

    /// One step of the preparation of a scenario that was started: the rules learn some of the queue pairs. Returns
    /// false if more steps are needed.
    pub fn prepare_scenario(&mut self) -> bool {
        let now = self.now();
        match self.fabric.begin_rules(now) {
            Beginning::Before => return false,
            Beginning::After => {}
            Beginning::Now(counters) => {
                if let Some(scenario) = &mut self.scenario {
                    scenario.counters = counters;
                }
            }
        }
        true
    }

    /// Ends the scenario if its action `end` has taken place. The verdict waits for the request to stop.
    pub(crate) fn end_scenario_if_due(&mut self) {
        let rules = self.fabric.rules.scenario();
        let Some(rules) = rules.filter(|rules| rules.has_ended()) else {
            return;
        };
        let fired = rules.fired();
        if let Some(stopped) = self.stop_running() {
            self.ended_scenario = Some(Box::new(EndedScenario { stopped, fired }));
        }
    }

    /// Ends the scenario, unless it has ended. Returns its results.
    pub fn stop_scenario(&mut self) -> Option<StoppedScenario> {
        match self.ended_scenario.take() {
            Some(ended) => Some(ended.stopped),
            None => self.stop_running(),
        }
    }

    /// Ends the scenario: undoes the lasting changes of its actions, and passes frames that rules have kept.
    fn stop_running(&mut self) -> Option<StoppedScenario> {
        let now = self.now();
        self.note_open_tasks();
        let (scenario, rules) = (self.scenario.as_mut()?, self.fabric.rules.scenario_mut()?);
        if !rules.has_begun() {
            let problem = "the scenario was stopped before it had begun";
            rules.note_problem(problem.to_owned());
        }
        let before = std::mem::take(&mut scenario.counters);
        let facts = self.fabric.facts_at_end(now, before);
        let verdict = judge(self.fabric.rules.scenario()?, &facts);
        self.fabric.rules.stop_scenario();
        self.execute_rules(now);
        self.fabric.rules.take_scenario();
        let scenario = self.scenario.take()?;
        self.end_pauses_without_rules();
        Some(StoppedScenario {
            name: scenario.name,
            time: facts.ended.unwrap_or_default(),
            verdict,
        })
    }
}
