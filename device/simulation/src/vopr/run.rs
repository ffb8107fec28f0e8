//! A run of a plan.

use std::collections::{BTreeMap, VecDeque};

use faultline_abi::Status;
use faultline_abi::admin::{Counter, EQ_FAULTS};
use faultline_abi::event::Eqe;
use faultline_fabric::nic_port::NicPort;
use faultline_nic::FaultPolicy;

use super::expected;
use super::flow::Connection;
use super::memory::{Copy, Region, answer};
use super::plan::{Event, Plan, PlanNic, Transport, What};
use super::processes::PlanProcesses;
use super::report::{Failure, Report};
use crate::driver::Eq;

/// The run must end within this time: retries and faults of any plan end before.
const LIMIT: u64 = 60_000_000_000;
/// Time in which packets on their way arrive.
const QUIET: u64 = 10_000_000;

/// A flow with its connection.
#[derive(Debug)]
struct RunningFlow<'a> {
    /// `None`: it waits for a host, or has ended.
    connection: Option<Connection<'a>>,
    /// Connections that it has had.
    generation: usize,
    /// Requests that were posted on former connections.
    done: usize,
}

/// A host with its pager.
#[derive(Debug)]
struct RunningHost {
    eq: Option<Eq>,
    waiting: VecDeque<(u64, Eqe)>,
    delay: u64,
    /// log2 of the records in its fault queue.
    depth: u8,
    /// It maps pages at once, and answers later that it has failed.
    fails: bool,
    /// What its NIC holds without connections.
    idle: Vec<(&'static str, usize)>,
    /// Its guest boots until then.
    down: Option<Down>,
    /// Memory of regions that are not registered any more.
    former: Vec<Copy>,
}

#[derive(Debug)]
struct Down {
    until: u64,
    /// The regions of the host when its NIC was reset.
    memory: Vec<Copy>,
}

struct Run<'a> {
    plan: &'a Plan,
    processes: PlanProcesses,
    flows: Vec<RunningFlow<'a>>,
    hosts: Vec<RunningHost>,
    events: VecDeque<Event>,
    /// NICs whose links come up again, by time.
    links_up: BTreeMap<u64, Vec<usize>>,
    report: Report,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Result<Self, Failure> {
        let host = |nic: &PlanNic| RunningHost {
            eq: None,
            waiting: VecDeque::new(),
            delay: nic.pager_delay,
            depth: nic.fault_depth,
            fails: nic.pager_fails,
            idle: Vec::new(),
            down: None,
            former: Vec::new(),
        };
        let mut run = Self {
            plan,
            processes: PlanProcesses::new(plan)?,
            flows: Vec::new(),
            hosts: plan.nics.iter().map(host).collect(),
            events: VecDeque::new(),
            links_up: BTreeMap::new(),
            report: Report::default(),
        };
        for host in 0..run.hosts.len() {
            run.start_pager(host)?;
        }
        for index in 0..plan.flows.len() {
            run.flows.push(RunningFlow {
                connection: Connection::open(&mut run.processes, plan, index, (0, 0))?,
                generation: 1,
                done: 0,
            });
        }
        Ok(run)
    }

    fn start_pager(&mut self, index: usize) -> Result<(), Failure> {
        if let (Some(host), Some(vlan)) = (self.processes.host(index), self.plan.tag_of(index)) {
            let (gid, mac) = (host.gid, host.mac);
            host.driver.set_gid_in(0, (gid, vlan), mac)?;
        }
        if let (Some(host), Some(pager)) = (self.processes.host(index), self.hosts.get_mut(index)) {
            let eq = host.driver.create_eq(EQ_FAULTS, 2, pager.depth)?;
            host.driver.arm_eq(&eq);
            pager.eq = Some(eq);
            pager.waiting.clear();
        }
        let idle = self.held(index);
        if let Some(host) = self.hosts.get_mut(index) {
            host.idle = idle;
        }
        Ok(())
    }

    /// Memory and objects of a NIC, by name.
    fn held(&self, nic: usize) -> Vec<(&'static str, usize)> {
        let held = |port: &mut NicPort| {
            let nic = &port.nic;
            let objects = nic.object_counts();
            vec![
                ("octets", nic.held_memory()),
                ("octets of parked packets", nic.parked_bytes()),
                ("protection domains", objects.pds),
                ("memory keys", objects.mkeys),
                ("completion queues", objects.cqs),
                ("queue pairs", objects.qps),
                ("shared receive queues", objects.srqs),
                ("address handles", objects.ahs),
                ("listeners", objects.listeners),
                ("iWARP connections", objects.connections),
                ("waits for pages", objects.fault_waits),
            ]
        };
        self.processes.with_port(nic, held).unwrap_or_default()
    }

    fn run(mut self) -> Result<Report, Failure> {
        let start = self.processes.wired.now();
        for connection in self.connections() {
            connection.next_at = start;
        }
        let events = self.plan.events.iter().map(|event| Event {
            at: start.saturating_add(event.at),
            ..*event
        });
        self.events = events.collect();
        self.processes.start_rules(self.plan)?;
        let limit = start.saturating_add(LIMIT);
        loop {
            let now = self.processes.wired.now();
            self.take_events(now)?;
            self.take_events_of_nics()?;
            for flow in &mut self.flows {
                if let Some(connection) = &mut flow.connection {
                    connection.post_due(&mut self.processes, now);
                }
            }
            // An answer may raise the next fault at the same instant.
            while self.serve_faults(now)? {}
            self.take_completions()?;
            // A host that has started may have made others due, and requests may have ended: that takes time.
            if self.restart_hosts()? {
                continue;
            }
            if self.processes.wired.is_stuck() {
                return Err(Failure::Stuck);
            }
            if self.is_over() || now >= limit {
                break;
            }
            let next = self.next_at().unwrap_or(limit).min(limit);
            if !self.processes.wired.step(next) {
                self.processes.wired.advance_to(next);
            }
        }
        self.judge(start)
    }

    fn connections(&mut self) -> impl Iterator<Item = &mut Connection<'a>> {
        let flows = self.flows.iter_mut();
        flows.filter_map(|flow| flow.connection.as_mut())
    }

    fn is_down(&self, host: usize) -> bool {
        self.hosts.get(host).is_none_or(|host| host.down.is_some())
    }

    fn is_over(&self) -> bool {
        let is_open = |flow: &RunningFlow<'_>| match &flow.connection {
            Some(connection) => !connection.is_over(),
            None => false,
        };
        self.events.is_empty()
            && self.links_up.is_empty()
            && !self.hosts.iter().any(|host| host.down.is_some())
            && !self.flows.iter().any(is_open)
    }

    /// When a pager answers a fault next.
    fn next_fault(&self) -> Option<u64> {
        let waiting = self.hosts.iter().filter_map(|host| host.waiting.front());
        waiting.map(|(at, _)| *at).min()
    }

    /// Time of the next work of a host's software.
    fn next_at(&self) -> Option<u64> {
        let now = self.processes.wired.now();
        let faults = self.next_fault();
        let events = self.events.front().map(|event| event.at);
        let links = self.links_up.keys().next().copied();
        let connections = self
            .flows
            .iter()
            .filter_map(|flow| flow.connection.as_ref());
        let posts = connections
            .filter(|connection| connection.opening.is_none())
            .filter(|connection| connection.posted < connection.requests.len())
            .map(|connection| connection.next_at);
        let down = self.hosts.iter().filter_map(|host| host.down.as_ref());
        let starts = down.map(|down| down.until).filter(|until| *until > now);
        let all = faults.into_iter().chain(events).chain(links).chain(posts);
        all.chain(starts).min()
    }

    fn take_events(&mut self, now: u64) -> Result<(), Failure> {
        while let Some(entry) = self.links_up.first_entry()
            && *entry.key() <= now
        {
            for nic in entry.remove() {
                self.set_link(nic, true);
            }
        }
        while let Some(event) = self.events.front().copied()
            && event.at <= now
        {
            self.events.pop_front();
            self.take_event(now, event)?;
        }
        Ok(())
    }

    fn take_event(&mut self, now: u64, Event { nic, what, .. }: Event) -> Result<(), Failure> {
        match what {
            What::Move(engine) => {
                let moved = self.processes.move_nic(nic, engine);
                self.report.add("moves", moved.into());
            }
            What::Drop(dir, count) => {
                let drop = |port: &mut NicPort| {
                    port.faults.drop_frames(dir, count);
                };
                self.processes.with_port(nic, drop);
            }
            What::LinkDown(time) => {
                self.set_link(nic, false);
                let up = now.saturating_add(time);
                self.links_up.entry(up).or_default().push(nic);
                self.report.add("links down", 1);
            }
            What::Evict if !self.is_down(nic) => self.evict(nic)?,
            What::Policy(policy) if !self.is_down(nic) => self.set_policy(nic, policy),
            What::Reset(time) if !self.is_down(nic) => self.reset(nic, now.saturating_add(time))?,
            // A guest that boots does none of this.
            What::Evict | What::Policy(_) | What::Reset(_) => {}
        }
        Ok(())
    }

    /// Takes events of iWARP connections.
    fn take_events_of_nics(&mut self) -> Result<(), Failure> {
        for nic in 0..self.hosts.len() {
            let is_iwarp = self.plan.nics.get(nic).is_some_and(|nic| nic.is_iwarp);
            if !is_iwarp || self.is_down(nic) {
                continue;
            }
            let Some(host) = self.processes.host(nic) else {
                continue;
            };
            let events = host.driver.whole_events();
            if !events.is_empty() {
                host.driver.arm_events();
            }
            for event in events {
                for flow in &mut self.flows {
                    if let Some(connection) = &mut flow.connection {
                        connection.take_event(&mut self.processes, nic, &event)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn set_link(&self, nic: usize, up: bool) {
        self.processes
            .with_port(nic, |port| port.link_changed |= port.nic.change_link(up));
    }

    fn evict(&mut self, nic: usize) -> Result<(), Failure> {
        for flow in &mut self.flows {
            let Some(connection) = &mut flow.connection else {
                continue;
            };
            for side in connection.sides() {
                if side.host == nic
                    && let Some(host) = self.processes.host(nic)
                {
                    side.region.evict(&mut host.driver)?;
                }
            }
        }
        Ok(())
    }

    fn set_policy(&mut self, nic: usize, policy: FaultPolicy) {
        let on_demand = self.plan.nics.get(nic).is_some_and(|nic| nic.on_demand);
        for flow in &mut self.flows {
            let Some(connection) = &mut flow.connection else {
                continue;
            };
            if !connection.is_of(nic) {
                continue;
            }
            connection.may_terminate |= on_demand && policy == FaultPolicy::Terminate;
            for side in connection.sides() {
                if side.host == nic {
                    side.set_policy(&self.processes, policy);
                }
            }
        }
    }

    /// Adds the counters of a NIC, which a reset clears.
    fn add_counters(&mut self, nic: usize) -> Result<(), Failure> {
        let names = [
            (Counter::page_fault_drops, "drops by policy"),
            (Counter::page_fault_rnr, "RNR NAKs by policy"),
            (Counter::stalls, "stalls by policy"),
            (Counter::rp_cnp_handled, "CNPs"),
        ];
        for (counter, name) in names {
            let count = |port: &mut NicPort| port.nic.counters().get(counter);
            let count = self.processes.with_port(nic, count);
            self.report.add(name, count.unwrap_or(0));
        }
        let timeouts = |port: &mut NicPort| port.nic.counters().get(Counter::stall_timeouts);
        match self.processes.with_port(nic, timeouts) {
            None | Some(0) => Ok(()),
            Some(_) => Err(Failure::StallTimeout(nic)),
        }
    }

    /// The guest of a NIC reboots: its NIC is reset, and its connections end.
    fn reset(&mut self, nic: usize, until: u64) -> Result<(), Failure> {
        self.take_completions()?;
        self.add_counters(nic)?;
        self.processes.reset_nic(nic);
        for connection in self
            .connections()
            .filter(|connection| connection.is_of(nic))
        {
            connection.cut(nic);
        }
        // TCP would send again for longer than a run.
        for flow in &mut self.flows {
            if let Some(connection) = &mut flow.connection
                && connection.plan.transport == Transport::Iwarp
                && connection.is_of(nic)
            {
                connection.close(&mut self.processes)?;
            }
        }
        let memory = self.memory(nic);
        if let Some(host) = self.hosts.get_mut(nic) {
            (host.eq, host.down) = (None, Some(Down { until, memory }));
            host.waiting.clear();
            host.former.clear();
        }
        self.report.add("resets", 1);
        Ok(())
    }

    /// The memory of the regions of a host.
    fn memory(&mut self, nic: usize) -> Vec<Copy> {
        let mut found = Vec::new();
        for flow in &self.flows {
            let Some(connection) = &flow.connection else {
                continue;
            };
            for side in [&connection.requester, &connection.responder] {
                if side.host == nic
                    && let Some(host) = self.processes.host(nic)
                {
                    found.push(side.region.copy(&host.driver));
                }
            }
        }
        found
    }

    /// True if the memory of a host has not changed since its copies.
    fn is_current(&mut self, nic: usize, memory: &[Copy]) -> bool {
        match self.processes.host(nic) {
            Some(host) => memory.iter().all(|copy| copy.is_current(&host.driver)),
            None => true,
        }
    }

    /// Starts the drivers of hosts that have booted, when the requests of their former connections have ended, and
    /// makes connections for the rest of their flows. Returns true if there were any.
    fn restart_hosts(&mut self) -> Result<bool, Failure> {
        let now = self.processes.wired.now();
        let mut has_started = false;
        for nic in 0..self.hosts.len() {
            let host = self.hosts.get(nic);
            let down = host.and_then(|host| host.down.as_ref());
            let is_due = down.is_some_and(|down| down.until <= now);
            let connections = self
                .flows
                .iter()
                .filter_map(|flow| flow.connection.as_ref());
            let mut own = connections.filter(|connection| connection.is_of(nic));
            if !is_due || !own.all(Connection::is_over) {
                continue;
            }
            let down = self.hosts.get_mut(nic).and_then(|host| host.down.take());
            let memory = down.map(|down| down.memory).unwrap_or_default();
            if !self.is_current(nic, &memory) {
                return Err(Failure::Forbidden(nic, "memory after a reset"));
            }
            for index in 0..self.flows.len() {
                self.retire(index, nic)?;
            }
            self.processes.restart_host(nic)?;
            self.start_pager(nic)?;
            has_started = true;
        }
        if has_started {
            self.connect_again()?;
        }
        Ok(has_started)
    }

    /// Ends the connection of a flow whose NIC was reset.
    fn retire(&mut self, index: usize, nic: usize) -> Result<(), Failure> {
        let Some(flow) = self.flows.get_mut(index) else {
            return Ok(());
        };
        let taken = flow.connection.take_if(|connection| connection.is_of(nic));
        let Some(mut connection) = taken else {
            return Ok(());
        };
        flow.done = flow.done.saturating_add(connection.posted);
        connection.close(&mut self.processes)?;
        self.processes.wired.run_for(QUIET);
        connection.take_completions(&mut self.processes, &mut self.report)?;
        connection.judge(&mut self.report)?;
        expected::judge(&connection, &mut self.processes)?;
        connection.destroy(&mut self.processes)?;
        for side in [connection.requester, connection.responder] {
            if !side.is_gone
                && let Some(own) = self.hosts.get_mut(side.host)
                && let Some(host) = self.processes.host(side.host)
            {
                own.former.push(side.region.copy(&host.driver));
            }
        }
        Ok(())
    }

    fn connect_again(&mut self) -> Result<(), Failure> {
        for index in 0..self.flows.len() {
            let Some(flow) = self.flows.get(index) else {
                continue;
            };
            let place = (flow.generation, flow.done);
            let plan = self.plan.flows.get(index);
            let wants = plan.is_some_and(|plan| {
                flow.done < plan.requests.len()
                    && !self.is_down(plan.from)
                    && !self.is_down(plan.to)
            });
            if flow.connection.is_some() || !wants {
                continue;
            }
            let connection = Connection::open(&mut self.processes, self.plan, index, place)?;
            if let Some(flow) = self.flows.get_mut(index) {
                flow.connection = connection;
                flow.generation = flow.generation.saturating_add(1);
                self.report.add("connections made again", 1);
            }
        }
        Ok(())
    }

    /// Reads fault records, and answers those that are due. Returns true if there were any.
    fn serve_faults(&mut self, now: u64) -> Result<bool, Failure> {
        let mut worked = false;
        for (index, pager) in self.hosts.iter_mut().enumerate() {
            let (Some(host), Some(eq)) = (self.processes.host(index), &mut pager.eq) else {
                continue;
            };
            let mut any = false;
            while let Some(record) = host.driver.poll_event(eq) {
                let due = now.saturating_add(pager.delay);
                pager.waiting.push_back((due, record));
                (any, worked) = (true, true);
                if pager.fails
                    && let Some(region) = region_of(&mut self.flows, index, &record)
                {
                    region.map_all(&mut host.driver, &record)?;
                }
            }
            if any {
                host.driver.arm_eq(eq);
            }
            while pager.waiting.front().is_some_and(|(at, _)| *at <= now)
                && let Some((_, record)) = pager.waiting.pop_front()
            {
                worked = true;
                let Some(region) = region_of(&mut self.flows, index, &record) else {
                    continue;
                };
                let (name, status) = match pager.fails {
                    true => ("failed page faults", Status::BadRange),
                    false => ("page faults", Status::Ok),
                };
                self.report.add(name, 1);
                if !pager.fails {
                    region.map_all(&mut host.driver, &record)?;
                }
                answer(&mut host.driver, &record, status)?;
            }
        }
        Ok(worked)
    }

    fn take_completions(&mut self) -> Result<(), Failure> {
        for flow in &mut self.flows {
            if let Some(connection) = &mut flow.connection {
                connection.take_completions(&mut self.processes, &mut self.report)?;
            }
        }
        Ok(())
    }

    /// Lets all events happen for some time, with pagers at work.
    fn run_for(&mut self, time: u64) -> Result<(), Failure> {
        let until = self.processes.wired.now().saturating_add(time);
        loop {
            let now = self.processes.wired.now();
            while self.serve_faults(now)? {}
            let next = self.next_fault().unwrap_or(until).min(until);
            if self.processes.wired.is_stuck() {
                return Err(Failure::Stuck);
            }
            if self.processes.wired.step(next) {
                continue;
            }
            if next >= until {
                self.processes.wired.advance_to(until);
                return Ok(());
            }
            self.processes.wired.advance_to(next);
        }
    }

    fn judge(mut self, start: u64) -> Result<Report, Failure> {
        let time = self.processes.wired.now().saturating_sub(start);
        for (number, acted) in self.processes.stop_rules()? {
            if let Some(rule) = self.plan.rules.get(number) {
                self.report.add(rule.name, acted);
            }
        }
        // Duplicates and acknowledgements that are on their way arrive.
        self.run_for(QUIET)?;
        self.take_completions()?;
        for flow in &mut self.flows {
            if let Some(connection) = &mut flow.connection {
                connection.close(&mut self.processes)?;
            }
        }
        self.run_for(QUIET)?;
        self.take_completions()?;
        for flow in &self.flows {
            if let Some(connection) = &flow.connection {
                connection.judge(&mut self.report)?;
                expected::judge(connection, &mut self.processes)?;
            }
        }
        self.judge_bounds()?;
        for index in 0..self.hosts.len() {
            let own = self.hosts.get_mut(index);
            let former = own.map(|own| std::mem::take(&mut own.former));
            if !self.is_current(index, &former.unwrap_or_default()) {
                return Err(Failure::Forbidden(index, "memory that is not registered"));
            }
        }
        for nic in 0..self.hosts.len() {
            self.add_counters(nic)?;
        }
        let watched = self.processes.watched();
        if !watched.violations.is_empty() {
            return Err(Failure::Packets(watched.violations));
        }
        let wires = &self.processes.wired.wires;
        let counts = [
            ("packets", watched.packets),
            ("dropped packets", watched.dropped),
            (
                "packets between processes",
                wires.iter().map(|wire| wire.frames).sum(),
            ),
            ("ECN marks", self.processes.link_counts(|link| link.marked)),
            ("pauses", self.processes.link_counts(|link| link.pauses)),
            (
                "reordered packets",
                self.processes.link_counts(|link| link.reordered),
            ),
        ];
        for (name, count) in counts {
            self.report.add(name, count);
        }
        Ok(Report {
            time,
            hash: watched.hash,
            ..self.report
        })
    }
}

impl Run<'_> {
    /// All memory of NICs comes back when the objects of connections are destroyed.
    fn judge_bounds(&mut self) -> Result<(), Failure> {
        for flow in &mut self.flows {
            if let Some(connection) = &mut flow.connection {
                connection.destroy(&mut self.processes)?;
            }
        }
        for (nic, host) in self.hosts.iter().enumerate() {
            for ((what, found), (_, idle)) in self.held(nic).into_iter().zip(&host.idle) {
                if found != *idle {
                    return Err(Failure::Held(nic, what, found, *idle));
                }
            }
        }
        Ok(())
    }
}

/// The region of a fault record of a host.
fn region_of<'a>(
    flows: &'a mut [RunningFlow<'_>],
    host: usize,
    record: &Eqe,
) -> Option<&'a mut Region> {
    let connections = flows.iter_mut().filter_map(|flow| flow.connection.as_mut());
    let mut sides = connections.flat_map(Connection::sides);
    let side = sides.find(|side| side.host == host && side.region.key == record.key.get())?;
    Some(&mut side.region)
}

/// Runs a plan.
///
/// # Errors
/// Something that must hold did not.
pub fn run(plan: &Plan) -> Result<Report, Failure> {
    Run::new(plan)?.run()
}
