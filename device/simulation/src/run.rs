//! A run from beginning to end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use faultline_abi::cqe::Cqe;
use faultline_checker::Checker;
use faultline_fabric::link_model::LinkModel;
use faultline_fabric::scenario::CounterValues;
use faultline_nic::{Nanos, Nic, NicConfig};
use faultline_scenario::file::Scenario;
use faultline_scenario::plan::Plan;
use faultline_scenario::profile::{self, Profile};
use faultline_scenario::random::Rng;
use faultline_scenario::rules::Rules;
use faultline_scenario::traffic::{Memory, Simulator, Transport};
use faultline_scenario::verdict::{Facts, TrafficFact};
use faultline_telemetry::opcode_name;

use crate::connection::{Connection, Flow};
use crate::error::{SimulationError, Stuck};
use crate::event::{Event, What};
use crate::limits::check;
use crate::pager::Pager;
use crate::process::{NicShape, ProcessShape, State, Watch};
use crate::record::{FaultTimes, Record};
use crate::software::{Software, nic_name};
use crate::status::StatusName;
use crate::trace::{Detail, Trace};

/// Time from a fault record to its answer unless the scenario or its profile sets it: that of a driver under Linux.
const FAULT_SERVICE: Nanos = Nanos(50_000);
/// Rounds of the hosts' software at one instant. Software that needs more makes no progress.
const ROUNDS_AT_ONCE: u32 = 100_000;

/// Changes the configuration of each NIC before it is created.
pub type Configure<'a> = &'a mut dyn FnMut(&mut NicConfig);
/// Looks at each NIC at the end.
pub type Inspect<'a> = &'a mut dyn FnMut(usize, &mut Nic);

/// How to run.
#[derive(Default)]
pub struct Options<'a> {
    /// Instead of the scenario's seed.
    pub seed: Option<u64>,
    /// Time from a fault record to its answer, unless the scenario says another. By default that of the profile.
    pub fault_service: Option<Nanos>,
    /// Profile of the NICs, instead of the scenario's. Needed if the scenario names a file.
    pub profile: Option<Profile>,
    /// Detail of the trace.
    pub trace: Detail,
    /// Compare what the NICs send with the rules of the specification.
    pub check_packets: bool,
    /// Run only the traffic with this index.
    pub only_traffic: Option<usize>,
    /// Changes the configuration of each NIC.
    pub configure: Option<Configure<'a>>,
    /// Looks at each NIC at the end.
    pub inspect: Option<Inspect<'a>>,
}

/// How a run has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All traffic has completed or failed, or there is none and no event can come any more.
    Finished,
    /// A rule has ended the run.
    Ended,
    /// The traffic has not ended at the limit of the scenario.
    Limit(Stuck),
    /// The traffic has not ended, and no event can come any more.
    Stuck(Stuck),
}

/// A completion that software has read. Times are since the start of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Index of the NIC.
    pub nic: usize,
    /// Number of the queue pair on its NIC, in the order of creation in this run.
    pub connection: Option<u32>,
    /// Status (`enum ib_wc_status`).
    pub status: u8,
    /// When the work request was posted; `None` for receives.
    pub posted: Option<Nanos>,
    /// When software read the completion.
    pub completed: Nanos,
}

/// The results of a run.
#[derive(Debug)]
pub struct Results {
    /// How it has ended.
    pub ending: Ending,
    /// Virtual time from the start of the traffic to the end.
    pub time: Nanos,
    /// The seed.
    pub seed: u64,
    /// Facts for the expectations.
    pub facts: Facts,
    /// All completions that software has read.
    pub completions: Vec<Completion>,
    /// Packets of each NIC by direction and opcode, such as `tx rc_send_only`.
    pub packets: Vec<BTreeMap<String, u64>>,
    /// Diagnostics of each NIC by kind.
    pub diagnostics: Vec<BTreeMap<String, u64>>,
    /// Page faults whose accesses were executed, in this order.
    pub faults: Vec<FaultTimes>,
    /// The packet checker with its findings, if the options ask for it. Its times are since the start, and its frames
    /// are the lines of the trace that begin with `tx`, counted from 1.
    pub packets_checked: Option<Checker>,
    /// Wrong data: a defect of the device, whatever the rules do.
    pub problems: Vec<String>,
    /// Failures of the hosts' software, such as a driver whose device has stopped.
    pub notes: Vec<String>,
    /// What has happened.
    pub trace: Trace,
    /// The events of the run; empty unless the trace has them.
    pub events: Vec<Event>,
}

struct Run {
    state: Rc<RefCell<State>>,
    hosts: Vec<Software>,
    flows: Vec<Flow>,
    connections: Vec<Connection>,
    /// Connection and side by host and queue pair.
    by_qpn: BTreeMap<(usize, u32), (usize, usize)>,
    completions: Vec<Completion>,
    /// Latencies of messages by flow.
    latencies: Vec<Vec<u64>>,
    /// Time at which a flow has ended.
    flow_ends: Vec<Option<u64>>,
    start: u64,
    /// The scenario's limit.
    limit: u64,
    problems: Vec<String>,
    notes: Vec<String>,
}

/// Runs a scenario's traffic, without its rules.
///
/// # Errors
/// The scenario can't be simulated.
pub fn run(scenario: &Scenario, options: Options<'_>) -> Result<Results, SimulationError> {
    play(scenario, options, None).map(|(results, _)| results)
}

/// Runs a scenario's traffic with the rules of a plan, which it returns. They play a part from the start of the traffic on: the drivers
/// of the hosts have then started, and the programs create their objects.
pub(crate) fn play(
    scenario: &Scenario,
    mut options: Options<'_>,
    plan: Option<Plan>,
) -> Result<(Results, Option<Rules>), SimulationError> {
    let seed = options.seed.unwrap_or(scenario.seed);
    check(scenario)?;
    let mut run = Run::new(scenario, &mut options, seed)?;
    let counters = run.begin(plan, scenario.limit.nanos(), options.check_packets);
    let mut rng = Rng::new(seed);
    let ending = match run.add_traffic(scenario, options.only_traffic, &mut rng) {
        Ok(()) => run.go()?,
        Err(error) if run.has_ended() => {
            run.notes.push(error.to_string());
            Ending::Ended
        }
        Err(error) => return Err(error),
    };
    if let Some(inspect) = options.inspect {
        let mut state = run.state.borrow_mut();
        for host in 0..run.hosts.len() {
            if let Some(port) = state.nic(host) {
                inspect(host, &mut port.nic);
            }
        }
    }
    let rules = run.state.borrow_mut().take_rules();
    Ok((run.results(seed, ending, counters), rules))
}

/// The profile of the NICs.
pub(crate) fn profile_of(
    scenario: &Scenario,
    options: &Options<'_>,
) -> Result<Profile, SimulationError> {
    let name = match (&options.profile, &scenario.profile) {
        (Some(profile), _) => return Ok(profile.clone()),
        (None, None) => return Ok(Profile::default()),
        (None, Some(name)) => name,
    };
    let allowed = match profile::is_path(name) {
        true => "the file was not read".to_owned(),
        false => match profile::by_name(name) {
            Ok(profile) => return Ok(profile),
            Err(message) => message,
        },
    };
    Err(SimulationError::Value {
        key: "profile".to_owned(),
        value: format!("{name:?}"),
        allowed,
    })
}

/// The process of a scenario: one engine, and links with the time of the wire.
fn shape_of(simulator: &Simulator, seed: u64) -> ProcessShape {
    let wire = LinkModel {
        delay_ns: simulator.wire_delay.nanos(),
        ..LinkModel::default()
    };
    let nic = NicShape {
        links: [(!simulator.by_reference).then_some(wire), None],
        ..NicShape::default()
    };
    ProcessShape {
        engines: 1,
        nics: vec![nic; usize::from(simulator.hosts)],
        seed,
        ..ProcessShape::default()
    }
}

impl Run {
    fn new(
        scenario: &Scenario,
        options: &mut Options<'_>,
        seed: u64,
    ) -> Result<Self, SimulationError> {
        let simulator = &scenario.simulator;
        let shape = shape_of(simulator, seed);
        let profile = profile_of(scenario, options)?;
        let configure = &mut |config: &mut NicConfig| {
            profile.apply(config);
            if simulator.transport == Transport::Iwarp {
                config.transport = faultline_nic::Transport::Iwarp;
                config.secret = [seed, seed];
            }
            // The pager takes this time.
            config.latency.fault_service = Nanos(0);
            config.pitfalls.damming |= simulator.damming;
            config.pitfalls.flood |= simulator.flood;
            config.pitfalls.qp_keys |= simulator.qp_keys;
            if let Some(configure) = &mut options.configure {
                configure(config);
            }
        };
        let watch = Watch::of_scenario(shape.nics.len(), options.trace);
        let (state, _) = State::new(&shape, watch, configure);
        let state = Rc::new(RefCell::new(state));
        let of_profile = profile.latency.fault_service.map(|time| time.0);
        let service = options.fault_service.or(of_profile);
        let service = service.unwrap_or(FAULT_SERVICE).0;
        let hosts = (0..usize::from(simulator.hosts))
            .map(|host| Software::new(&state, host, simulator, service))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            state,
            hosts,
            flows: Vec::new(),
            connections: Vec::new(),
            by_qpn: BTreeMap::new(),
            completions: Vec::new(),
            latencies: Vec::new(),
            flow_ends: Vec::new(),
            start: 0,
            limit: u64::MAX,
            problems: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// The traffic and the rules begin. Returns the counters of the NICs.
    fn begin(&mut self, plan: Option<Plan>, limit: u64, check_packets: bool) -> CounterValues {
        let mut state = self.state.borrow_mut();
        (self.start, self.limit) = (state.now, limit);
        state.limit = state.now.saturating_add(limit);
        state.watch.borrow_mut().begin(self.start, check_packets);
        state.begin_scenario(plan)
    }

    fn has_ended(&self) -> bool {
        self.state.borrow().has_ended()
    }

    /// Creates the connections.
    fn add_traffic(
        &mut self,
        scenario: &Scenario,
        only: Option<usize>,
        rng: &mut Rng,
    ) -> Result<(), SimulationError> {
        for (index, traffic) in scenario.traffic.iter().enumerate() {
            // The random numbers of a flow do not depend on the others, so that it is the same alone.
            let mut rng = Rng::new(rng.next_u64());
            if only.is_some_and(|only| only != index) {
                continue;
            }
            let from = crate::limits::host_of(scenario, &traffic.from, index, "from")?;
            let to = crate::limits::host_of(scenario, &traffic.to, index, "to")?;
            let mut flow = Flow::new(&mut self.hosts, traffic, [from, to])?;
            let (flow_index, first) = (self.flows.len(), self.connections.len());
            for number in 0..traffic.connections {
                let connection =
                    Connection::new(&mut self.hosts, &flow, flow_index, number, &mut rng)?;
                let place = self.connections.len();
                let ends = [from, to].into_iter().zip(connection.qpns());
                for (side, (host, qpn)) in ends.enumerate() {
                    self.by_qpn.insert((host, qpn), (place, side));
                }
                self.connections.push(connection);
            }
            if traffic.remote == Memory::Fast {
                let of_flow = self.connections.get_mut(first..).unwrap_or_default();
                Connection::register_fast(&mut self.hosts, &mut flow, of_flow)?;
            }
            if flow.waits() {
                self.arm(&flow);
            }
            self.flows.push(flow);
            self.latencies.push(Vec::new());
            self.flow_ends.push(None);
        }
        Ok(())
    }

    fn arm(&mut self, flow: &Flow) {
        for (host, cq) in flow.hosts.iter().zip(&flow.cqs) {
            if let Some(host) = self.hosts.get_mut(*host) {
                host.driver.arm_cq(cq, false);
            }
        }
    }

    /// The clock of the hosts, which continues while the NICs are paused.
    fn now(&self) -> u64 {
        let state = self.state.borrow();
        state.now.saturating_add(state.paused)
    }

    /// Time of the hosts since the start. The run ends at its limit, also within a pause.
    fn since_start(&self) -> u64 {
        self.now().saturating_sub(self.start).min(self.limit)
    }

    /// Device time.
    fn device_now(&self) -> u64 {
        self.state.borrow().now
    }

    /// Lets everything happen until the end.
    fn go(&mut self) -> Result<Ending, SimulationError> {
        loop {
            let mut rounds = 0_u32;
            while self.work() {
                rounds = rounds.saturating_add(1);
                if rounds > ROUNDS_AT_ONCE || self.state.borrow().is_stuck {
                    return Err(SimulationError::Clock {
                        at: self.since_start(),
                    });
                }
            }
            if self.state.borrow().is_stuck {
                return Err(SimulationError::Clock {
                    at: self.since_start(),
                });
            }
            if self.has_ended() {
                return Ok(Ending::Ended);
            }
            let is_finished = self.is_finished();
            if is_finished && !self.connections.is_empty() {
                return Ok(Ending::Finished);
            }
            let end = self.state.borrow().limit;
            if self.device_now() >= end {
                return Ok(self.at_limit(is_finished));
            }
            let paused = self.state.borrow().paused;
            let software = self.next_at().map(|at| at.saturating_sub(paused));
            let until = software.unwrap_or(u64::MAX).min(end);
            if self.state.borrow_mut().step(until) {
                continue;
            }
            let next = self.state.borrow().next_at();
            match software.into_iter().chain(next).min() {
                Some(_) => self.state.borrow_mut().advance_to(until),
                None if is_finished => return Ok(Ending::Finished),
                None => return Ok(Ending::Stuck(self.stuck())),
            }
        }
    }

    fn at_limit(&self, is_finished: bool) -> Ending {
        match is_finished {
            true => Ending::Finished,
            false => Ending::Limit(self.stuck()),
        }
    }

    /// Lets the software of the hosts do its work at this instant. Returns true if there was any.
    fn work(&mut self) -> bool {
        let now = self.now();
        let mut any = self.move_gids();
        for host in &mut self.hosts {
            let interrupts = host.driver.bus.take_interrupts();
            any |= host.work(now, interrupts);
        }
        any |= self.read_completions(now);
        any |= self.post(now);
        any
    }

    fn move_gids(&mut self) -> bool {
        let moved = std::mem::take(&mut self.state.borrow_mut().moved_gids);
        for index in &moved {
            if let Some(host) = self.hosts.get_mut(*index)
                && let Err(error) = host.move_gids(*index)
            {
                self.notes
                    .push(format!("{}: GID table: {error}", nic_name(*index)));
            }
        }
        !moved.is_empty()
    }

    fn read_completions(&mut self, now: u64) -> bool {
        let mut any = false;
        let mut flows = std::mem::take(&mut self.flows);
        for flow in &mut flows {
            for side in 0..flow.hosts.len() {
                any |= self.read_queue(flow, side, now);
            }
        }
        self.flows = flows;
        any
    }

    /// Reads the completion queue of one side of a flow.
    fn read_queue(&mut self, flow: &mut Flow, side: usize, now: u64) -> bool {
        let waits = flow.waits();
        let (Some(index), Some(cq)) = (flow.hosts.get(side).copied(), flow.cqs.get_mut(side))
        else {
            return false;
        };
        let Some(host) = self.hosts.get_mut(index) else {
            return false;
        };
        if host.failure.is_some() || waits && !host.notified.remove(&cq.cqn) {
            return false;
        }
        let mut found: Vec<Cqe> = Vec::new();
        while let Some(cqe) = host.driver.poll(cq) {
            found.push(cqe);
        }
        if waits {
            // Completions that came before the request for the next event cause none.
            host.driver.arm_cq(cq, false);
            while let Some(cqe) = host.driver.poll(cq) {
                found.push(cqe);
            }
        }
        for cqe in &found {
            self.take_completion(flow, index, side, cqe, now);
        }
        !found.is_empty()
    }

    fn take_completion(&mut self, flow: &Flow, host: usize, side: usize, cqe: &Cqe, now: u64) {
        let qpn = cqe.qpn.get();
        let status = cqe.status;
        self.state.borrow().note(
            host,
            format_args!(
                "completion qp {qpn} {} wqe {}",
                StatusName(status, cqe.vendor_err),
                cqe.wqe.get()
            ),
        );
        let place = self.by_qpn.get(&(host, qpn)).copied();
        let Some((place, _)) = place else {
            return;
        };
        let Some(connection) = self.connections.get_mut(place) else {
            return;
        };
        let mut posted = None;
        if side == 0 {
            let completed = connection.sent(&self.hosts, flow, cqe, now);
            posted = completed.map(|completed| completed.posted);
            if let Some(posted) = posted
                && status == 0
                && let Some(latencies) = self.latencies.get_mut(connection.flow)
            {
                latencies.push(now.saturating_sub(posted));
            }
        } else {
            connection.received(&self.hosts, flow, cqe, now);
        }
        let after = posted.map(|posted| Nanos(now.saturating_sub(posted)));
        let read = What::Completed { status, after };
        self.state.borrow().event(host, read);
        let number = self.hosts.get(host).and_then(|host| {
            let position = host.qpns.iter().position(|known| *known == qpn);
            position.and_then(|position| u32::try_from(position).ok())
        });
        self.completions.push(Completion {
            nic: host,
            connection: number,
            status,
            posted: posted.map(|at| Nanos(at.saturating_sub(self.start))),
            completed: Nanos(now.saturating_sub(self.start)),
        });
    }

    /// Posts requests as far as possible, deregisters regions that are due, and fails connections of hosts without a
    /// device.
    fn post(&mut self, now: u64) -> bool {
        let mut any = false;
        for connection in &mut self.connections {
            let Some(flow) = self.flows.get(connection.flow) else {
                continue;
            };
            let [from, to] = flow.hosts;
            if self
                .hosts
                .get(from)
                .is_some_and(|host| host.failure.is_some())
            {
                connection.abandon(flow);
                continue;
            }
            any |= connection.post(&mut self.hosts, flow, now);
            let is_due = flow
                .traffic
                .deregister
                .is_some_and(|at| self.start.saturating_add(at.nanos()) <= now);
            if is_due && !connection.deregistered {
                connection.deregistered = true;
                any = true;
                let key = connection.remote_key();
                if let Some(host) = self.hosts.get_mut(to)
                    && let Err(error) = Pager::deregister(&mut host.driver, key)
                {
                    let name = nic_name(to);
                    self.notes
                        .push(format!("{name}: deregistration of key {key:#x}: {error}"));
                }
            }
        }
        any
    }

    /// Time of the next work of the software.
    fn next_at(&self) -> Option<u64> {
        let pagers = self.hosts.iter().filter_map(Software::next_at);
        let connections = self.connections.iter().filter_map(|connection| {
            let flow = self.flows.get(connection.flow)?;
            let deregister = flow.traffic.deregister;
            let deregister = deregister.filter(|_| !connection.deregistered);
            let deregister = deregister.map(|at| self.start.saturating_add(at.nanos()));
            let next = connection.next_at(flow);
            next.into_iter().chain(deregister).min()
        });
        let now = self.now();
        pagers.chain(connections).filter(|at| *at > now).min()
    }

    /// True if all traffic has completed or failed.
    fn is_finished(&mut self) -> bool {
        let now = self.now();
        let since_start = self.since_start();
        let mut finished = vec![true; self.flows.len()];
        for connection in &self.connections {
            if let (Some(flow), Some(finished)) = (
                self.flows.get(connection.flow),
                finished.get_mut(connection.flow),
            ) {
                *finished &= connection.is_finished(flow, now);
            }
        }
        for (end, finished) in self.flow_ends.iter_mut().zip(&finished) {
            if *finished {
                end.get_or_insert(since_start);
            }
        }
        finished.iter().all(|finished| *finished)
    }

    fn stuck(&self) -> Stuck {
        let now = self.now();
        let waiting = self.connections.iter().filter_map(|connection| {
            let flow = self.flows.get(connection.flow)?;
            let is_finished = connection.is_finished(flow, now);
            (!is_finished).then(|| connection.describe(flow, connection.flow))
        });
        Stuck {
            at: self.since_start(),
            waiting: waiting.collect(),
        }
    }

    fn traffic_facts(&mut self) -> Vec<TrafficFact> {
        let mut facts = Vec::new();
        let latencies = std::mem::take(&mut self.latencies);
        let parts = self.flows.iter().zip(latencies).zip(&self.flow_ends);
        for (index, ((flow, mut latencies), end)) in parts.enumerate() {
            latencies.sort_unstable();
            let connections = self.connections.iter();
            let own: Vec<&Connection> = connections.filter(|c| c.flow == index).collect();
            let sum = |count: &dyn Fn(&Connection) -> u32| {
                own.iter().map(|c| u64::from(count(c))).sum::<u64>()
            };
            facts.push(TrafficFact {
                name: flow.traffic.name.clone(),
                done: sum(&|c| c.done(flow)),
                failed: sum(&|c| c.failed),
                wrong: sum(&|c| c.wrong_count),
                latencies: latencies.into_iter().map(Nanos).collect(),
                took: end.map(|end| Nanos(end.saturating_sub(flow.traffic.start.nanos()))),
                took_alone: None,
            });
        }
        facts
    }

    fn packets(&self, record: &Record) -> Vec<BTreeMap<String, u64>> {
        let mut packets = vec![BTreeMap::new(); self.hosts.len()];
        for ((nic, dir, opcode), count) in &record.packets {
            if let Some(packets) = packets.get_mut(*nic) {
                packets.insert(format!("{} {}", dir.name(), opcode_name(*opcode)), *count);
            }
        }
        packets
    }

    fn diagnostics(&self, record: &Record) -> Vec<BTreeMap<String, u64>> {
        let mut diagnostics = vec![BTreeMap::new(); self.hosts.len()];
        for ((nic, kind), count) in &record.diagnostics {
            if let Some(diagnostics) = diagnostics.get_mut(*nic) {
                diagnostics.insert((*kind).to_owned(), *count);
            }
        }
        diagnostics
    }

    fn results(mut self, seed: u64, ending: Ending, before: CounterValues) -> Results {
        for host in &mut self.hosts {
            host.read_events();
        }
        let traffic = self.traffic_facts();
        let wrong = self.connections.iter().filter_map(|c| c.wrong.clone());
        self.problems.extend(wrong);
        for (index, host) in self.hosts.iter().enumerate() {
            if host.has_stray_writes() {
                let name = nic_name(index);
                self.problems.push(format!(
                    "{name} has written to a page after its invalidation"
                ));
            }
            if let Some(failure) = &host.failure {
                self.notes.push(format!("{}: {failure}", nic_name(index)));
            }
        }
        let time = Nanos(self.since_start());
        let facts = Facts {
            ended: match ending {
                Ending::Finished | Ending::Ended => Some(time),
                Ending::Limit(_) | Ending::Stuck(_) => None,
            },
            traffic,
            ..self.state.borrow().facts_since(before)
        };
        let (record, packets_checked) = {
            let state = self.state.borrow();
            let mut watch = state.watch.borrow_mut();
            (watch.record.take(), watch.checker.take())
        };
        let record = record.unwrap_or_else(|| Record::new(Detail::Nothing, 0));
        let (packets, diagnostics) = (self.packets(&record), self.diagnostics(&record));
        Results {
            ending,
            time,
            seed,
            facts,
            completions: std::mem::take(&mut self.completions),
            packets,
            diagnostics,
            faults: record.faults,
            packets_checked,
            problems: std::mem::take(&mut self.problems),
            notes: std::mem::take(&mut self.notes),
            trace: record.trace,
            events: record.events,
        }
    }
}
