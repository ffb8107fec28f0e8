//! The processes of a plan.

use faultline_fabric::nic_port::NicPort;

use faultline_fabric::scenario::CounterValues;
use faultline_scenario::read::read;
use faultline_scenario::rules::Fired;

use super::plan::Plan;
use super::report::Failure;
use crate::host::Host;
use crate::process::{Process, ProcessBus, Processes, Watched};

/// The processes of a plan. NICs have the numbers of the plan.
#[derive(Debug)]
pub(super) struct PlanProcesses {
    /// The processes, with their clock.
    pub(super) wired: Processes,
    /// Process of each NIC, and its number there.
    places: Vec<(usize, usize)>,
    /// By process: the counters when its rules began; `None`: it has no rules.
    rules: Vec<Option<CounterValues>>,
}

impl PlanProcesses {
    pub(super) fn new(plan: &Plan) -> Result<Self, Failure> {
        let mut counts = [0usize; 2];
        let mut places = Vec::new();
        for nic in &plan.nics {
            let process = plan.process_of(nic);
            if let Some(count) = counts.get_mut(process) {
                places.push((process, *count));
                *count = count.saturating_add(1);
            }
        }
        let all: Result<Vec<Process>, _> = (0..plan.processes())
            .map(|process| Process::new(&plan.shape(process)))
            .collect();
        let mut wired = Processes::of(all?);
        for wire in &mut wired.wires {
            wire.pace = plan.port.as_ref().map_or(0, |port| port.pace);
        }
        Ok(Self {
            wired,
            rules: vec![None; plan.processes()],
            places,
        })
    }

    fn place(&self, nic: usize) -> Option<(&Process, usize)> {
        let (process, own) = self.places.get(nic)?;
        Some((self.wired.all.get(*process)?, *own))
    }

    fn place_mut(&mut self, nic: usize) -> Option<(&mut Process, usize)> {
        let (process, own) = self.places.get(nic)?;
        Some((self.wired.all.get_mut(*process)?, *own))
    }

    /// The host of a NIC.
    pub(super) fn host(&mut self, nic: usize) -> Option<&mut Host<ProcessBus>> {
        self.wired.host(*self.places.get(nic)?)
    }

    /// Looks at a NIC, or changes it.
    pub(super) fn with_port<T>(
        &self,
        nic: usize,
        look: impl FnOnce(&mut NicPort) -> T,
    ) -> Option<T> {
        let (process, own) = self.place(nic)?;
        process.with_port(own, look)
    }

    /// Moves a NIC, unless rules need all NICs on one engine. Returns true if it was possible.
    pub(super) fn move_nic(&self, nic: usize, engine: usize) -> bool {
        let process = self.places.get(nic).map_or(0, |(process, _)| *process);
        let has_rules = self.rules.get(process).is_some_and(Option::is_some);
        let place = self.place(nic).filter(|_| !has_rules);
        if let Some((process, own)) = place {
            process.move_nics(&[own], engine);
        }
        place.is_some()
    }

    /// Starts the rules of a plan.
    pub(super) fn start_rules(&mut self, plan: &Plan) -> Result<(), Failure> {
        for (index, process) in self.wired.all.iter().enumerate() {
            let own = |nic: usize| self.places.get(nic).is_some_and(|(of, _)| *of == index);
            let nics: Vec<String> = (0..plan.nics.len())
                .filter(|nic| own(*nic))
                .map(|nic| format!("nic{nic}"))
                .collect();
            let rules = plan.rules.iter().enumerate();
            let tables: Vec<String> = rules
                .filter(|(_, rule)| own(rule.nic))
                .map(|(number, rule)| format!("{rule}name = \"{number}\"\n"))
                .collect();
            if tables.is_empty() {
                continue;
            }
            let text = format!("seed = {}\nlimit = \"1h\"\n{}", plan.seed, tables.concat());
            let wrong = |problems: String| Failure::Rules(problems);
            let scenario = read("rules", &text).map_err(|problems| wrong(problems.to_string()))?;
            let scenario = scenario
                .plan(&nics, &[])
                .map_err(|problems| wrong(format!("{problems:?}")))?;
            if let Some(rules) = self.rules.get_mut(index) {
                *rules = Some(process.start_scenario(scenario));
            }
        }
        Ok(())
    }

    /// Ends the rules. Returns their numbers in the plan, and how often they have acted.
    pub(super) fn stop_rules(&mut self) -> Result<Vec<(usize, u64)>, Failure> {
        let mut acted = Vec::new();
        for (process, rules) in self.wired.all.iter().zip(&mut self.rules) {
            let Some(before) = rules.take() else {
                continue;
            };
            let number = |fired: &Fired| fired.name.parse().ok();
            let fired = process.fired();
            let fired = fired
                .iter()
                .filter_map(|fired| Some((number(fired)?, fired.times)));
            acted.extend(fired);
            let verdict = process.stop_scenario(before);
            let problem = verdict.and_then(|verdict| verdict.problems.into_iter().next());
            if let Some(problem) = problem {
                return Err(Failure::Rules(problem));
            }
        }
        Ok(acted)
    }

    pub(super) fn reset_nic(&mut self, nic: usize) {
        if let Some((process, own)) = self.place_mut(nic) {
            process.reset_nic(own);
        }
    }

    pub(super) fn restart_host(&mut self, nic: usize) -> Result<(), Failure> {
        match self.place_mut(nic) {
            Some((process, own)) => Ok(process.restart_host(own)?),
            None => Ok(()),
        }
    }

    /// Sum of a count of all modelled links of NICs.
    pub(super) fn link_counts(
        &self,
        count: impl Fn(&faultline_fabric::link_model::LinkModelCounts) -> u64,
    ) -> u64 {
        use faultline_scenario::trigger::Direction::{Rx, Tx};
        let nics = (0..self.places.len()).filter_map(|nic| self.place(nic));
        let links = nics.flat_map(|(process, own)| {
            [Tx, Rx].map(|direction| process.link_counts(own, direction))
        });
        links.flatten().map(|counts| count(&counts)).sum()
    }

    /// The summary of the events of all processes.
    pub(super) fn watched(&self) -> Watched {
        let mut sum = Watched::default();
        for process in &self.wired.all {
            let watched = process.watched();
            sum.violations.extend(watched.violations);
            sum.packets = sum.packets.saturating_add(watched.packets);
            sum.dropped = sum.dropped.saturating_add(watched.dropped);
            sum.hash = sum.hash.rotate_left(1) ^ watched.hash;
        }
        sum
    }
}
