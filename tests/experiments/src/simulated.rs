//! Runs of the simulator with the NICs of a profile.

use anyhow::{Context, Result, anyhow, ensure};
use faultline_nic::NicConfig;
use faultline_scenario::file::Scenario;
use faultline_scenario::profile;
use faultline_simulation::trace::Detail;
use faultline_simulation::{Ending, Options, Results, run};

/// How to run a scenario.
#[derive(Clone, Debug)]
pub struct Setup {
    scenario: Scenario,
    profile: &'static str,
    change: fn(&mut NicConfig),
    only_traffic: Option<usize>,
}

/// What a run has brought.
#[derive(Debug)]
pub struct Run {
    /// Results of the simulator.
    pub results: Results,
}

impl Setup {
    /// A scenario (TOML) with NICs of a profile that comes with Faultline.
    ///
    /// # Errors
    /// The text is no scenario.
    pub fn new(profile: &'static str, text: &str) -> Result<Self> {
        let scenario = toml::from_str(text).with_context(|| format!("in the scenario\n{text}"))?;
        Ok(Self {
            scenario,
            profile,
            change: |_| {},
            only_traffic: None,
        })
    }

    /// Changes the NICs after the profile has.
    pub fn change(mut self, change: fn(&mut NicConfig)) -> Self {
        self.change = change;
        self
    }

    /// Runs only the traffic with this index.
    pub fn alone(mut self, traffic: usize) -> Self {
        self.only_traffic = Some(traffic);
        self
    }

    /// Runs the scenario to whatever end.
    ///
    /// # Errors
    /// It can't be simulated, or data are wrong.
    pub fn run_any(&self) -> Result<Run> {
        let profile = profile::by_name(self.profile).map_err(|error| anyhow!(error))?;
        let mut change = self.change;
        let options = Options {
            profile: Some(profile),
            only_traffic: self.only_traffic,
            trace: Detail::Nothing,
            configure: Some(&mut change),
            ..Options::default()
        };
        let results = run(&self.scenario, options)?;
        ensure!(results.problems.is_empty(), "{:?}", results.problems);
        Ok(Run { results })
    }

    /// Runs the scenario. All messages must complete.
    ///
    /// # Errors
    /// It can't be simulated, or not all messages have completed with their data.
    pub fn run(&self) -> Result<Run> {
        let run = self.run_any()?;
        let ending = &run.results.ending;
        ensure!(
            *ending == Ending::Finished,
            "the run has not ended: {ending:?}"
        );
        for traffic in &run.results.facts.traffic {
            ensure!(traffic.failed + traffic.wrong == 0, "failed: {traffic:?}");
        }
        Ok(run)
    }
}

impl Run {
    /// Median of the times from posting to completion of a traffic's messages, in nanoseconds.
    ///
    /// # Errors
    /// No message has completed.
    pub fn median(&self, traffic: usize) -> Result<f64> {
        let latencies = &self.traffic(traffic)?.latencies;
        let middle = latencies.get(latencies.len() / 2);
        middle.map(|time| time.0 as f64).context("no completion")
    }

    /// The longest of these times.
    ///
    /// # Errors
    /// No message has completed.
    pub fn longest(&self, traffic: usize) -> Result<f64> {
        let last = self.traffic(traffic)?.latencies.last();
        last.map(|time| time.0 as f64).context("no completion")
    }

    /// Time from the start of a traffic to its end, in nanoseconds.
    ///
    /// # Errors
    /// It has not ended.
    pub fn took(&self, traffic: usize) -> Result<f64> {
        let took = self.traffic(traffic)?.took;
        took.map(|time| time.0 as f64).context("not ended")
    }

    /// Facts of a traffic.
    ///
    /// # Errors
    /// There is none with this index.
    pub fn traffic(&self, index: usize) -> Result<&faultline_scenario::verdict::TrafficFact> {
        let traffic = self.results.facts.traffic.get(index);
        traffic.with_context(|| format!("there is no traffic {index}"))
    }

    /// Increase of a counter of a NIC.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn counter(&self, nic: usize, name: &str) -> Result<u64> {
        let counters = self.results.facts.counters.get(nic);
        let value = counters.and_then(|counters| counters.get(name));
        let value = value.with_context(|| format!("there is no counter {name:?}"))?;
        Ok(*value)
    }

    /// Packets that a NIC has sent.
    pub fn sent(&self, nic: usize, opcode: &str) -> u64 {
        let packets = self.results.packets.get(nic);
        let name = format!("tx {opcode}");
        packets.and_then(|p| p.get(&name)).copied().unwrap_or(0)
    }
}
