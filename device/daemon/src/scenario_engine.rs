//! What the engine does for the scenario that runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_fabric::PortId;
use faultline_fabric::link_model::Effects;
use faultline_nic::{Instant, Nanos};
use faultline_scenario::plan::Plan;
use faultline_scenario::rules::{ByRule, CallerRequest, Late, Rules};
use faultline_scenario::trigger::Direction;
use faultline_scenario::verdict::{Facts, judge};
use faultline_telemetry::{DoorbellPath, TraceEvent};

use crate::engine::Engine;
use crate::notice::Notice;
use faultline_fabric::Mark;
use faultline_fabric::frame::{Frame, Octets};

use crate::port::{NicPort, number};
use crate::scenario::{
    EndedScenario, GuestAction, RunnerTask, RunnerTasks, RunningScenario, StoppedScenario,
};

/// Most resets by actions whose objects are being freed, each by a thread.
const MAX_RESETS_IN_WORK: usize = 8;
/// Characters of a runner's error that are kept.
const MAX_ERROR: usize = 1000;

impl Engine {
    /// Lets rules take a frame at a port; it has come in at port `from`. Returns the rule that has.
    #[inline(always)]
    pub(crate) fn rules_take(
        &mut self,
        now: Instant,
        from: PortId,
        place: (PortId, Direction),
        frame: Frame<'_>,
    ) -> Option<ByRule> {
        let scenario = self.scenario.as_ref()?;
        let qpn = || self.queue_pair_of(place, frame);
        match scenario.ignores(place, frame, qpn) {
            true => None,
            false => self.ask_rules(now, from, place, frame),
        }
    }

    #[cold]
    fn ask_rules(
        &mut self,
        now: Instant,
        from: PortId,
        place: (PortId, Direction),
        frame: Frame<'_>,
    ) -> Option<ByRule> {
        let header = frame.header();
        let qpn = self.queue_pair_of(place, frame);
        let scenario = self.scenario.as_mut()?;
        scenario.takes(
            now,
            place,
            (qpn, header.as_ref()),
            frame,
            self.rams.get(from),
        )
    }

    /// The queue pair that a rule may name: of the sender where a NIC sends a frame, else of the destination; 0: none.
    fn queue_pair_of(&self, (site, dir): (PortId, Direction), frame: Frame<'_>) -> u32 {
        match (dir, frame) {
            (Direction::Tx, Frame::ByReference(_)) => {
                let port = self.ports.get(site);
                port.map_or(0, |port| port.nic.last_sender())
            }
            _ => frame.header().map_or(0, |header| header.bth.dest_qp),
        }
    }

    /// Carries out what the rules ask for. Returns true if there was anything.
    pub(crate) fn run_scenario(&mut self, now: Instant) -> bool {
        let mut worked = false;
        match &mut self.scenario {
            Some(scenario) if scenario.rules.has_work(now) => scenario.rules.advance(now),
            Some(_) | None => return false,
        }
        while let Some((nic, request)) = self.rules().and_then(Rules::poll_request) {
            worked = true;
            let (Some(port), Some(ram)) = (self.ports.get_mut(nic), self.rams.get(nic)) else {
                continue;
            };
            let result = match request.accesses_memory() && !port.bus_master {
                true => Err(format!(
                    "it can't access memory (bus mastering is off): {request:?}"
                )),
                false => request.carry_out(&mut port.nic, now, ram),
            };
            // None of these requests resets the device.
            let _ = port.sync_pages();
            let problem = match result {
                Ok(None) => None,
                Ok(Some(request)) => self.carry_out(nic, request).err(),
                Err(problem) => Some(problem),
            };
            if let Some(problem) = problem {
                let Some(port) = self.ports.get(nic) else {
                    continue;
                };
                let noted = format!("NIC {}: {problem}", port.name());
                port.notice(Notice::ScenarioProblem(problem));
                if let Some(rules) = self.rules() {
                    rules.note_problem(noted);
                }
            }
        }
        while let Some(frame) = self.rules().and_then(|rules| rules.poll_frame(now)) {
            worked = true;
            let octets = Octets {
                mark: Mark {
                    origin: frame.origin,
                    effects: Effects::from_bits(frame.note),
                    rule: frame.by,
                },
                bytes: &frame.bytes,
            };
            let is_external = frame.site >= self.ports.len();
            let site = frame.site;
            match frame.dir {
                Direction::Tx if is_external => self.pass_to_peer(now, site, octets),
                Direction::Rx if is_external => self.cross_switch(now, site, octets),
                Direction::Tx => self.leave_nic_after_rules(now, site, octets),
                Direction::Rx => self.receive_after_rules(now, site, octets),
            }
        }
        while let Some(late) = self.rules().and_then(Rules::poll_late) {
            worked = true;
            match late {
                Late::Doorbell { nic, page, bell } => {
                    self.ring(nic, page, bell, DoorbellPath::Late);
                }
                Late::Interrupt { nic, vector } => {
                    if let Some(port) = self.ports.get(nic)
                        && port.bus_master
                    {
                        port.irqs.trigger(usize::from(vector));
                        let event = TraceEvent::Interrupt { vector };
                        self.recorder.event(now, number(nic), event);
                    }
                }
            }
        }
        worked
    }

    pub(crate) fn rules(&mut self) -> Option<&mut Rules> {
        self.scenario.as_mut().map(|scenario| &mut scenario.rules)
    }

    /// Does what a NIC cannot do itself.
    fn carry_out(&mut self, nic: PortId, request: CallerRequest) -> Result<(), String> {
        let Some(port) = self.ports.get_mut(nic) else {
            return Ok(());
        };
        match request {
            // The event is written to memory: in a pass, and not before the function may access memory.
            CallerRequest::Link(up) => port.link_changed |= port.nic.change_link(up),
            CallerRequest::MoveGids => return self.ask_runner(nic, GuestAction::MoveGids),
            CallerRequest::Speed(mbps) => {
                let mbps = mbps.unwrap_or(faultline_nic::DEFAULT_LINK_SPEED_MBPS);
                port.nic.set_link_speed(mbps);
            }
            CallerRequest::Mtu(mtu) => port.link.set_mtu(mtu),
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
            CallerRequest::Remove => port.remove(),
            CallerRequest::Pause(time) => {
                self.clock.stop();
                let until = self.clock.real() + time;
                if let Some(scenario) = &mut self.scenario {
                    let before = scenario.pause_until.unwrap_or(until);
                    scenario.pause_until = Some(until.max(before));
                }
            }
            // The rules note it, and the pass ends the scenario.
            CallerRequest::End => {}
        }
        Ok(())
    }

    /// Leaves something to the runner of the scenario, which has agents in the guests.
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

    /// The runner has carried out a task, or could not. Returns false if no such task waits.
    pub fn runner_task_done(&mut self, id: u64, error: Option<&str>) -> bool {
        let Some(scenario) = &mut self.scenario else {
            return false;
        };
        let Some(task) = scenario.runner.as_mut().and_then(|tasks| tasks.done(id)) else {
            return false;
        };
        if let Some(error) = error {
            let name = self.ports.get(task.nic).map_or("", |port| port.name());
            let error: String = error.chars().take(MAX_ERROR).collect();
            let action = task.action.name();
            let problem = format!("NIC {name}: {action} failed in the guest: {error}");
            scenario.rules.note_problem(problem);
        }
        true
    }

    /// Tasks that the runner has not carried out are problems.
    fn note_open_tasks(&mut self) {
        let Some(scenario) = &mut self.scenario else {
            return;
        };
        let Some(tasks) = scenario.runner.take() else {
            return;
        };
        for (id, task) in tasks.pending() {
            let name = self.ports.get(task.nic).map_or("", |port| port.name());
            let action = task.action.name();
            scenario.rules.note_problem(format!(
                "NIC {name}: {action} (task {id}) was not carried out by the runner of the scenario"
            ));
        }
    }

    /// Ends a pause that an action has made, when its time is over.
    pub(crate) fn end_scenario_pause(&mut self) {
        let until = self
            .scenario
            .as_ref()
            .and_then(|scenario| scenario.pause_until);
        if until.is_some_and(|until| until <= self.clock.real()) {
            if let Some(scenario) = &mut self.scenario {
                scenario.pause_until = None;
            }
            self.resume_unless_paused();
        }
    }

    /// Real time until a pause ends that an action has made.
    pub(crate) fn rest_of_scenario_pause(&self) -> Option<Duration> {
        let until = self.scenario.as_ref()?.pause_until?;
        Some(Duration::from_nanos(
            until.0.saturating_sub(self.clock.real().0),
        ))
    }

    /// Starts a scenario, which begins when [`Engine::prepare_scenario`] returns true. Returns false if another one runs. `has_runner`:
    /// who starts it carries out what guests have to do.
    pub fn start_scenario(&mut self, name: String, plan: Plan, has_runner: bool) -> bool {
        if self.scenario.is_some() || self.ended_scenario.is_some() {
            return false;
        }
        let nics = self.ports.values().map(|port| &port.nic);
        self.scenario = Some(Box::new(RunningScenario {
            name,
            rules: Rules::prepare(plan, nics, self.now()),
            counters: Vec::new(),
            pause_until: None,
            runner: has_runner.then(RunnerTasks::default),
        }));
        true
    }

    /// One step of what precedes the beginning of a scenario that was started: the rules learn some of the queue pairs. Returns
    /// false if more steps are needed.
    pub fn prepare_scenario(&mut self) -> bool {
        let nics = self.ports.values().map(|port| &port.nic);
        match &mut self.scenario {
            Some(scenario) if !scenario.rules.has_begun() => {
                if !scenario.rules.take_existing(nics) {
                    return false;
                }
            }
            Some(_) | None => return true,
        }
        let (now, counters) = (self.now(), self.counters());
        if let Some(scenario) = &mut self.scenario {
            scenario.counters = counters;
            scenario.rules.begin(now);
        }
        true
    }

    /// Ends the scenario if its action `end` has taken place. The verdict waits for the request to stop.
    pub(crate) fn end_scenario_if_due(&mut self) {
        let scenario = self.scenario.as_ref();
        let Some(scenario) = scenario.filter(|scenario| scenario.rules.has_ended()) else {
            return;
        };
        let fired = scenario.rules.fired();
        if let Some(stopped) = self.stop_running() {
            self.ended_scenario = Some(Box::new(EndedScenario { stopped, fired }));
        }
    }

    /// Ends the scenario, unless it has ended. Returns what has come of it.
    pub fn stop_scenario(&mut self) -> Option<StoppedScenario> {
        match self.ended_scenario.take() {
            Some(ended) => Some(ended.stopped),
            None => self.stop_running(),
        }
    }

    /// Ends the scenario: what its actions have changed is as before, and what rules have kept is passed.
    fn stop_running(&mut self) -> Option<StoppedScenario> {
        let now = self.now();
        self.note_open_tasks();
        let scenario = self.scenario.as_mut()?;
        if !scenario.rules.has_begun() {
            let problem = "the scenario was stopped before it had begun";
            scenario.rules.note_problem(problem.to_owned());
        }
        let ended = Nanos(now.0.saturating_sub(scenario.rules.start().0));
        let before = std::mem::take(&mut scenario.counters);
        let increased = |(now, before): (Vec<u64>, Vec<u64>)| {
            let values = now.into_iter().zip(before);
            let values = values.map(|(now, before)| now.saturating_sub(before));
            let names = Counter::ALL.iter().map(|counter| counter.name().to_owned());
            names.zip(values).collect()
        };
        let facts = Facts {
            ended: Some(ended),
            counters: self
                .counters()
                .into_iter()
                .zip(before)
                .map(increased)
                .collect(),
            traffic: Vec::new(),
        };
        let verdict = judge(&self.scenario.as_ref()?.rules, &facts);
        self.rules()?.stop();
        self.run_scenario(now);
        let scenario = self.scenario.take()?;
        self.resume_unless_paused();
        Some(StoppedScenario {
            name: scenario.name,
            time: ended,
            verdict,
        })
    }

    /// Counters of each NIC, in the order of `Counter::ALL`.
    fn counters(&self) -> Vec<Vec<u64>> {
        let values = |port: &NicPort| port.nic.counters().values().to_vec();
        self.ports.values().map(values).collect()
    }
}
