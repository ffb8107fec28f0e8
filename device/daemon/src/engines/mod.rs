//! The engines of a process: their creation, and requests to the engine that owns a NIC.
//!
//! The first engine also has the external ports. It *gathers* the NICs of all engines while a scenario runs and while
//! the process is paused, because rules of a scenario and steps of a pause need one order of the events of all NICs. A
//! request to a NIC reaches its present engine: an engine executes its requests in order, and no request is queued
//! while NICs move.
//!
//! - [`engine`]: a thread that owns NICs
//! - [`io`]: what an engine thread has around its fabric
//! - `link`: the links between engines
//! - `others`: frames of other engines
//! - `pass`: the passes of an engine, and its sleep between them
//! - [`handle`]: requests to an engine
//! - [`manual`]: engines without threads, whose passes the caller makes
//! - [`sleep`]: the protocol by which the engine sleeps and is woken
//! - `missed`: doorbells that have not waked the engine
//! - `moved_nic`: a NIC on its way from one engine to another
//! - [`scenario`]: the scenario that runs on the NICs
//! - `scenario_player`: its beginning, its end, and the requests that only the engine can carry out

pub mod engine;
pub mod handle;
pub mod io;
mod link;
pub mod manual;
pub(crate) mod missed;
mod moved_nic;
mod others;
mod pass;
pub mod scenario;
mod scenario_player;
pub mod sleep;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};

use faultline_fabric::{PortId, Switch};
use faultline_nic::NicConfig;
use faultline_ports::channel::{self, PortEnd};
use faultline_telemetry::Recorder;

use crate::clock::Clock;
use crate::engines::engine::{Engine, EngineHandle, EngineParts, LongestPass};
use crate::engines::handle::Ended;
use crate::engines::link::EngineLinks;
use crate::engines::moved_nic::MovedNic;
use crate::log::diagnostics::{self, DiagnosticLog, DiagnosticQueue};
use crate::nic::durable::{FlushWorker, Flushed};
use crate::nic::io::{NicIo, PortShare};
use crate::peer_rings::PeerRings;
use faultline_config::{Config, NicEntry};
use faultline_fabric::external_port::ExternalPort;
use faultline_fabric::holds::Holds;
use faultline_fabric::nic_port::NicPort;
use faultline_fabric::shared_pauses::SharedPauses;
use faultline_nic::Nic;

/// Sends requests to the engines of a process.
#[derive(Clone, Debug)]
pub struct Engines(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    handles: Vec<EngineHandle>,
    /// Engine by NIC. It is read while a request is queued, and written while NICs move.
    owners: RwLock<Vec<usize>>,
    /// Engine by NIC in the configuration.
    homes: Vec<usize>,
}

/// The engines of a process, and the parts for their threads and sockets.
#[derive(Debug)]
pub(crate) struct Process {
    /// By engine: its name, and the engine.
    pub(crate) engines: Vec<(String, Engine)>,
    pub(crate) handles: Engines,
    /// By NIC.
    pub(crate) shares: Vec<PortShare>,
    /// The ends of external ports for their threads, in the order of the configuration.
    pub(crate) port_ends: Vec<PortEnd>,
    /// The writer of the log, which runs in a thread of its own.
    pub(crate) log: DiagnosticLog,
}

impl Process {
    /// Creates the engines for the NICs and ports of a configuration.
    pub(crate) fn new(config: &Config, clock: Clock) -> std::io::Result<Self> {
        let layout = config.engine_layout();
        let names: Vec<String> = config.nics.iter().map(|nic| nic.name.clone()).collect();
        let (log, log_reader) = diagnostics::queue(&names);
        let pairs: Result<Vec<_>, _> = layout.names.iter().map(|_| handle::pair()).collect();
        let (handles, requests): (Vec<EngineHandle>, Vec<_>) = pairs?.into_iter().unzip();
        let owners: Vec<usize> = (layout.of_nics.iter().copied())
            .chain(config.ports.iter().map(|_| 0))
            .collect();
        let owners: Arc<[usize]> = owners.into();
        let switch = Switch::new();
        let recorders = Recorder::of_engines(
            config.trace_records,
            &layout.of_nics,
            handles.len(),
            config.metrics,
        );
        let engines = requests
            .into_iter()
            .zip(recorders)
            .zip(SharedPauses::of_engines(handles.len()))
            .zip(Holds::of_engines(handles.len(), config.ports.len()))
            .map(|(((requests, recorder), shared_pauses), holds)| {
                let parts = EngineParts {
                    requests,
                    links: EngineLinks::new(
                        Arc::clone(&owners),
                        handles.iter().map(EngineHandle::waker).collect(),
                    ),
                    shared_pauses,
                    holds,
                    switch: switch.sibling(),
                    clock: clock.clone(),
                    recorder,
                    log: log.clone(),
                };
                Engine::new(config, parts)
            });
        let mut process = Self {
            engines: layout.names.into_iter().zip(engines).collect(),
            handles: Engines(Arc::new(Inner {
                handles,
                owners: RwLock::new(layout.of_nics.clone()),
                homes: layout.of_nics.clone(),
            })),
            shares: Vec::new(),
            port_ends: Vec::new(),
            log: log_reader,
        };
        for (id, (nic, engine)) in config.nics.iter().zip(&layout.of_nics).enumerate() {
            process.add_nic(config, (id, nic), *engine, &log)?;
        }
        process.add_ports(config)?;
        process.set_vlans(config);
        process.link(&layout.of_nics, &log)?;
        Ok(process)
    }

    fn add_nic(
        &mut self,
        config: &Config,
        (id, nic): (PortId, &NicEntry),
        engine: usize,
        log: &DiagnosticQueue,
    ) -> std::io::Result<()> {
        let Some((_, engine)) = self.engines.get_mut(engine) else {
            return Ok(());
        };
        let mac = nic.mac_address();
        let log = log.of_nic(id);
        let port = NicPort::new(Nic::new(NicConfig {
            secret: secret(),
            ..config.nic_config(nic)
        }));
        let io = NicIo::new(nic, &port.nic, log.clone())?;
        let handles = self.handles.clone();
        let report = move |flushed| handles.flushed(id, flushed).is_ok();
        let flush_worker = FlushWorker::new(&nic.name, log, report);
        self.shares.push(io.share(&port.nic));
        let memory = io.ram(&port.nic, flush_worker)?;
        engine.io.nics.replace(id, Some(io));
        let fabric = &mut engine.fabric;
        fabric.memories.replace(id, Some(memory));
        fabric.nics.replace(id, Some(port));
        fabric.switch.add_permanent_address(id, mac);
        fabric.switch.set_present_address(id, mac);
        fabric.links.add(id, nic.lines(&config.defaults));
        if !nic.checks_source(&config.defaults) {
            fabric.switch.allow_any_source(id);
        }
        Ok(())
    }

    fn add_ports(&mut self, config: &Config) -> std::io::Result<()> {
        let (Some((_, engine)), Some(handle)) =
            (self.engines.first_mut(), self.handles.0.handles.first())
        else {
            return Ok(());
        };
        for port in &config.ports {
            let waker = handle.waker();
            let (engine_end, port_end) = channel::pair(move || waker.wake())?;
            let fabric = &mut engine.fabric;
            let id = fabric.nics.ports().saturating_add(fabric.externals.len());
            // Any number of stations may be behind an external port.
            fabric.switch.allow_any_source(id);
            let rings = PeerRings::new(engine_end);
            let external = ExternalPort::new(port.name.clone(), port.mtu, port.hold, rings);
            fabric.externals.push(external);
            fabric.links.add(id, [port.link_tx, port.link_rx]);
            self.port_ends.push(port_end);
        }
        Ok(())
    }

    fn set_vlans(&mut self, config: &Config) {
        let memberships = config.vlan_memberships().unwrap_or_default();
        for (_, engine) in &mut self.engines {
            for (id, membership) in memberships.iter().enumerate() {
                engine.fabric.switch.set_vlans(id, membership.clone());
            }
        }
    }

    /// Links each engine to each other one. `of_nics`: engine by NIC.
    fn link(&mut self, of_nics: &[usize], log: &DiagnosticQueue) -> std::io::Result<()> {
        let count = self.engines.len();
        for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
            // Each engine has a NIC.
            let Some(first) = of_nics.iter().position(|owner| *owner == from) else {
                continue;
            };
            if from == to {
                continue;
            }
            let (out, received) = link::link(of_nics.len(), &log.of_nic(first))?;
            if let Some((_, engine)) = self.engines.get_mut(from) {
                engine.io.links.add_out(to, out);
            }
            let Some((_, engine)) = self.engines.get_mut(to) else {
                continue;
            };
            for id in (0..of_nics.len()).filter(|id| of_nics.get(*id) == Some(&from)) {
                let memory = received.guest_memory(&log.of_nic(id))?;
                engine.fabric.memories.replace(id, Some(memory));
            }
            engine.io.links.add_in(from, received);
        }
        for (_, engine) in &mut self.engines {
            engine.fabric.switch.refresh();
        }
        Ok(())
    }
}

impl Engines {
    /// Queues a request to the engine of a NIC.
    fn with_owner<R>(
        &self,
        nic: PortId,
        queue: impl FnOnce(&EngineHandle) -> Result<R, Ended>,
    ) -> Result<R, Ended> {
        let owners = self.0.owners.read().unwrap_or_else(PoisonError::into_inner);
        let handle = owners.get(nic).and_then(|owner| self.0.handles.get(*owner));
        queue(handle.ok_or(Ended)?)
    }

    /// Runs `work` in the engine of a NIC, between two steps, and returns its result.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        nic: PortId,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, Ended> {
        self.with_owner(nic, |handle| handle.ask(work))?.wait()
    }

    /// Queues `work` to run in the engine of a NIC, and does not wait for it.
    pub fn post(
        &self,
        nic: PortId,
        work: impl FnOnce(&mut Engine) + Send + 'static,
    ) -> Result<(), Ended> {
        self.with_owner(nic, |handle| handle.post(work))
    }

    /// All engines, the first of them being that with the external ports.
    pub fn all(&self) -> &[EngineHandle] {
        &self.0.handles
    }

    /// Queues `work` to run in all engines, and does not wait for it.
    pub fn post_all(&self, work: impl Fn(&mut Engine) + Clone + Send + 'static) {
        for handle in self.all() {
            // An engine that has ended needs none.
            let _ = handle.post(work.clone());
        }
    }

    /// Runs `work` in the first engine while it has the NICs of all engines. Afterwards the NICs return to their own
    /// engines, unless rules or a pause still need all NICs (`Engine::needs_all_nics`). Nothing moves them when that need ends by itself:
    /// the caller that waits for the end calls this again.
    pub fn call_gathered<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, Ended> {
        let first = self.all().first().ok_or(Ended)?;
        let mut owners = self
            .0
            .owners
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let gathered = vec![0; owners.len()];
        self.move_nics(&mut owners, gathered)?;
        let (result, is_needed) =
            first.call(move |engine| (work(engine), engine.needs_all_nics()))?;
        if !is_needed {
            self.move_nics(&mut owners, self.0.homes.clone())?;
        }
        Ok(result)
    }

    /// Moves NICs to the engines `to`, by NIC. No frame is on a link meanwhile, so none is lost or overtaken.
    fn move_nics(&self, owners: &mut Vec<usize>, to: Vec<usize>) -> Result<(), Ended> {
        if *owners == to {
            return Ok(());
        }
        let call_all = |work: fn(&mut Engine)| self.all().iter().try_for_each(|h| h.call(work));
        call_all(|engine| engine.io.links.set_stopped(true))?;
        call_all(Engine::drain_links)?;
        let mut moving = Vec::new();
        for (index, handle) in self.all().iter().enumerate() {
            let leaves = |id: &PortId| {
                owners.get(*id) == Some(&index) && to.get(*id).is_some_and(|to| *to != index)
            };
            let ids: Vec<PortId> = (0..owners.len()).filter(leaves).collect();
            moving.extend(handle.call(move |engine| engine.take_nics(&ids))?);
        }
        // A pause has changed the clock of the first engine only.
        let clock = match self.all().first() {
            Some(first) => first.call(|engine| engine.clock.clone())?,
            None => return Ok(()),
        };
        for (index, handle) in self.all().iter().enumerate() {
            let arrives = |nic: &mut MovedNic| to.get(nic.id()) == Some(&index);
            let nics: Vec<MovedNic> = moving.extract_if(.., arrives).collect();
            let clock = clock.clone();
            handle.call(move |engine| {
                engine.clock = clock;
                engine.put_nics(nics);
            })?;
        }
        *owners = to;
        call_all(|engine| engine.io.links.set_stopped(false))
    }

    /// Passes the result of a flush to a NIC.
    fn flushed(&self, id: PortId, flushed: Flushed) -> Result<(), Ended> {
        self.post(id, move |engine| {
            if let Some(port) = engine.fabric.nics.get_mut(id) {
                port.nic
                    .persisted(flushed.qpn, flushed.number, flushed.succeeded);
            }
        })
    }

    /// Stops all engines after their current passes.
    pub fn stop(&self) {
        self.post_all(Engine::stop);
    }

    /// Maxima over the passes of all engines since the last call; `None` if an engine has ended.
    pub(crate) fn take_longest_pass(&self) -> Option<LongestPass> {
        let of_all = self.all().iter().map(|handle| {
            let take = |engine: &mut Engine| std::mem::take(&mut engine.longest_pass);
            handle.call(take).ok()
        });
        let all: Option<Vec<LongestPass>> = of_all.collect();
        all?.into_iter().reduce(LongestPass::max)
    }
}

/// Random numbers that no guest can guess: keys of the standard library, which the operating system draws.
fn secret() -> [u64; 2] {
    [0u8, 1].map(|word| RandomState::new().hash_one(word))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn engine() -> (EngineHandle, std::thread::JoinHandle<()>) {
        let config = Config {
            nics: vec![NicEntry {
                name: "a".to_owned(),
                ..NicEntry::default()
            }],
            ..Config::default()
        };
        let process = Process::new(&config, Clock::new()).unwrap();
        let handle = process.handles.all()[0].clone();
        let (_, engine) = process.engines.into_iter().next().unwrap();
        (handle, std::thread::spawn(|| engine.run()))
    }

    fn heartbeat(handle: &EngineHandle) -> u32 {
        let beat = |engine: &mut Engine| engine.io.nics.get(0).unwrap().heartbeat();
        handle.call(beat).unwrap()
    }

    /// The hardware manual promises one heartbeat a second; a driver treats a device without heartbeats as failed.
    #[test]
    fn the_heartbeat_continues_during_long_passes() {
        let (handle, thread) = engine();
        let first = heartbeat(&handle);
        let start = std::time::Instant::now();
        for _ in 0..60 {
            // The engine always has work, and each request takes long.
            let busy = |_: &mut Engine| std::thread::sleep(Duration::from_millis(20));
            handle.post(busy).unwrap();
            handle.call(|_| ()).unwrap();
        }
        let beats = heartbeat(&handle) - first;
        let elapsed = start.elapsed();
        assert!(
            u64::from(beats) >= elapsed.as_secs() * 3,
            "{beats} in {elapsed:?}"
        );
        handle.post(Engine::stop).unwrap();
        thread.join().unwrap();
    }
}
