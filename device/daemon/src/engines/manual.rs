//! The engines of a process without threads, sockets and a clock of their own.
//!
//! The caller makes the passes, moves the clock, rings doorbells in the pages, and has the other ends of external ports. So what an
//! engine executes depends on its inputs only, and its instructions can be counted (`tests/counts`). There is no client: registers
//! are accessed by calls, bus mastering is on from the start, and memory is mapped once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use faultline_fabric::PortId;
use faultline_memory::{MemFd, Rights, SharedPages};
use faultline_ports::channel::PortEnd;

use crate::clock::{Clock, nanos};
use crate::engines::engine::Engine;
use crate::engines::sleep::Sleeper;
use crate::engines::{Engines, Process};
use crate::log::diagnostics::DiagnosticLog;
use faultline_config::Config;

/// The engines of a process, whose passes the caller makes.
#[derive(Debug)]
pub struct ManualEngines {
    engines: Vec<Engine>,
    /// Ends of the external ports.
    ports: Vec<PortEnd>,
    /// Real time, in nanoseconds.
    time: Arc<AtomicU64>,
    /// Without a sender of requests an engine would stop.
    _handles: Engines,
    _log: DiagnosticLog,
}

impl ManualEngines {
    /// Creates the engines for the NICs and ports of a configuration. Neither the sockets of NICs nor those of ports are opened. The
    /// time is 0.
    ///
    /// # Errors
    ///
    /// The system refuses descriptors or memory.
    pub fn new(config: &Config) -> io::Result<Self> {
        let time = Arc::new(AtomicU64::new(0));
        let process = Process::new(config, Clock::manual(Arc::clone(&time)))?;
        let engines = process.engines.into_iter().map(|(_, engine)| engine);
        Ok(Self {
            engines: engines.collect(),
            ports: process.port_ends,
            time,
            _handles: process.handles,
            _log: process.log,
        })
    }

    /// Number of engines.
    pub fn count(&self) -> usize {
        self.engines.len()
    }

    /// Makes one pass of an engine. Returns true if there was work.
    pub fn pass(&mut self, engine: usize) -> bool {
        self.engines.get_mut(engine).is_some_and(Engine::pass)
    }

    /// Looks for work as an engine does before it sleeps. Returns true if there is some.
    pub fn has_work(&self, engine: usize) -> bool {
        self.engines.get(engine).is_some_and(Engine::has_work)
    }

    /// Moves the clock of all engines.
    pub fn advance(&self, by: Duration) {
        self.time.fetch_add(nanos(by), Ordering::Relaxed);
    }

    /// The end of an external port that its thread would have.
    pub fn port(&mut self, index: usize) -> Option<&mut PortEnd> {
        self.ports.get_mut(index)
    }

    /// The engine of a NIC.
    fn engine_of(&mut self, nic: PortId) -> io::Result<&mut Engine> {
        let is_owner = |engine: &&mut Engine| engine.fabric.nics.get(nic).is_some();
        let no_nic = || io::Error::new(io::ErrorKind::NotFound, format!("there is no NIC {nic}"));
        self.engines.iter_mut().find(is_owner).ok_or_else(no_nic)
    }

    /// Maps memory of a guest from DMA address `iova` on, and switches bus mastering on. Returns the pages of BAR 2, in which
    /// doorbells are rung.
    ///
    /// # Errors
    ///
    /// There is no such NIC, or the memory cannot be mapped at this address.
    pub fn attach(
        &mut self,
        nic: PortId,
        iova: u64,
        memory: &MemFd,
    ) -> io::Result<Arc<SharedPages>> {
        let engine = self.engine_of(nic)?;
        let fabric = &mut engine.fabric;
        let (Some(port), Some(ram), Some(nic_io)) = (
            fabric.nics.get_mut(nic),
            fabric.memories.get_mut(nic),
            engine.io.nics.get(nic),
        ) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let fd = memory.fd().try_clone_to_owned()?;
        let len = memory.len() as u64;
        ram.memory
            .map(iova, len, Some(fd), 0, Rights::READ_WRITE)
            .map_err(io::Error::other)?;
        port.bus_master = true;
        Ok(Arc::clone(&nic_io.pages))
    }

    /// Reads a register of a NIC.
    ///
    /// # Errors
    ///
    /// There is no such NIC.
    pub fn read_register(&mut self, nic: PortId, offset: u32) -> io::Result<u32> {
        let engine = self.engine_of(nic)?;
        let now = engine.now();
        let port = engine.fabric.nics.get_mut(nic);
        Ok(port.map_or(0, |port| port.nic.read_register(now, offset)))
    }

    /// Writes a register of a NIC.
    ///
    /// # Errors
    ///
    /// There is no such NIC, or its doorbell pages cannot be cleared after a reset.
    pub fn write_register(&mut self, nic: PortId, offset: u32, value: u32) -> io::Result<()> {
        let engine = self.engine_of(nic)?;
        let now = engine.now();
        let (Some(port), Some(nic_io)) =
            (engine.fabric.nics.get_mut(nic), engine.io.nics.get_mut(nic))
        else {
            return Ok(());
        };
        port.nic.write_register(now, offset, value);
        let was_reset = nic_io.sync_pages(&port.nic);
        drop(port.nic.take_remains());
        if was_reset {
            nic_io.pages.clear(0, nic_io.pages.pages())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faultline_abi::{MAGIC, regs};
    use faultline_config::NicEntry;
    use faultline_scenario::live::{self, LiveLimits};

    fn engines() -> ManualEngines {
        let nic = |name: &str| NicEntry {
            name: name.to_owned(),
            ..NicEntry::default()
        };
        let config = Config {
            nics: vec![nic("a"), nic("b")],
            ..Config::default()
        };
        ManualEngines::new(&config).unwrap()
    }

    #[test]
    fn the_caller_makes_passes_and_moves_the_clock() {
        let mut engines = engines();
        assert_eq!(engines.count(), 1);
        assert!(!engines.pass(0));
        let beats =
            |engines: &ManualEngines| engines.engines[0].io.nics.get(0).unwrap().heartbeat();
        let first = beats(&engines);
        engines.pass(0);
        assert_eq!(beats(&engines), first, "the clock stands still");
        engines.advance(Duration::from_secs(1));
        engines.pass(0);
        assert_eq!(beats(&engines), first + 1);
    }

    #[test]
    fn nics_rest_without_bus_mastering_and_wake_up_with_it() {
        let mut engines = engines();
        let all_rest = |engines: &ManualEngines| engines.engines[0].fabric.nics.all_rest();
        engines.pass(0);
        assert!(all_rest(&engines));
        let memory = MemFd::new(1 << 20).unwrap();
        engines.attach(1, 0, &memory).unwrap();
        assert!(!all_rest(&engines));
        engines.pass(0);
        assert!(all_rest(&engines));
    }

    #[test]
    fn registers_are_those_of_the_nic() {
        let mut engines = engines();
        assert_eq!(engines.read_register(1, regs::MAGIC).unwrap(), MAGIC);
        assert!(engines.read_register(2, regs::MAGIC).is_err());
    }

    #[test]
    fn a_removed_rule_ends_its_pause_while_another_runs() {
        let mut engines = engines();
        let engine = &mut engines.engines[0];
        let names = ["a", "b"].map(str::to_owned);
        let rules = [
            "on = { signal = 'never' } do = { count = {} }",
            "nic = 'a' on = { signal = 'go' } do = { pause = { for = '60s' } }",
        ];
        let numbers = rules.map(|text| {
            let live = live::plan(text, LiveLimits::default(), &names, &[]);
            let live = live.unwrap_or_else(|problems| panic!("{problems}"));
            let number = engine.start_live_rule(live).unwrap();
            while !engine.prepare_live_rule(number) {}
            number
        });
        let now = engine.now();
        engine.fabric.rules.signal(now, "go");
        engine.execute_rules(now);
        assert!(engine.clock.is_stopped());
        engine.remove_live_rule(numbers[1]).unwrap();
        assert!(!engine.clock.is_stopped());
        assert_eq!(engine.fabric.rules.live().len(), 1);
    }
}
