//! The state that the drivers and the owner of a process share.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::rc::Rc;

use faultline_fabric::external_port::ExternalPort;
use faultline_fabric::holds::Holds;
use faultline_fabric::nic_port::NicPort;
use faultline_fabric::shared_pauses::SharedPauses;
use faultline_fabric::vlan::VlanMembership;
use faultline_fabric::{PortId, Switch};
use faultline_nic::{Instant, Nic, NicConfig};
use faultline_scenario::random::Rng;
use faultline_scenario::rules::CallerRequest;
use faultline_wire::MacAddr;

use super::engine::{Link, Shared, SimEngine};
use super::peer::{PeerHandle, SimPeer};
use super::shape::{PortShape, ProcessShape};
use super::watch::Watch;
use crate::event::What;
use crate::memory::Memory;

/// Memory of each guest. Pages exist from their first write on, so a large memory costs nothing.
pub(crate) const RAM: u64 = 256 << 20;
/// Limit of passes at one instant. A process that needs more does not advance.
const PASSES_AT_ONCE: u32 = 1_000_000;

/// MAC address of a host.
pub(crate) fn mac_of(host: usize) -> MacAddr {
    let last = u8::try_from(host).unwrap_or(u8::MAX).saturating_add(1);
    MacAddr([2, 0, 0, 0, 0, last])
}

/// The state that the drivers and the owner of a process share.
#[derive(Debug)]
pub(crate) struct State {
    /// The device clock, in nanoseconds.
    pub(crate) now: u64,
    /// Time for which the device clock has stood still, in nanoseconds. The clock of the hosts is ahead by this time.
    pub(crate) paused: u64,
    /// Time and length of the last pause, in nanoseconds.
    pub(super) last_pause: (u64, u64),
    /// No event comes after this time of the device clock.
    pub(crate) limit: u64,
    /// Hosts whose driver is to move the entries of its GID table.
    pub(crate) moved_gids: Vec<usize>,
    /// Passes at this instant.
    pub(super) passes: u32,
    pub(super) engines: Vec<SimEngine>,
    /// Engine by NIC.
    pub(super) owners: Vec<usize>,
    pub(super) memories: Vec<Memory>,
    pub(crate) watch: Rc<RefCell<Watch>>,
    pub(super) removed: Rc<RefCell<BTreeSet<PortId>>>,
    pub(super) random: Rng,
    /// The clock does not advance.
    pub(crate) is_stuck: bool,
}

impl State {
    pub(crate) fn new(
        shape: &ProcessShape,
        watch: Watch,
        configure: &mut dyn FnMut(&mut NicConfig),
    ) -> (Self, Vec<PeerHandle>) {
        let nics = shape.nics.len();
        let count = shape.engines.max(1);
        let owners: Vec<usize> = shape
            .nics
            .iter()
            .map(|nic| nic.engine.min(count.saturating_sub(1)))
            .collect();
        let shared = Shared {
            watch: Rc::new(RefCell::new(watch)),
            removed: Rc::default(),
        };
        let switch = Switch::new();
        let parts =
            SharedPauses::of_engines(count).zip(Holds::of_engines(count, shape.ports.len()));
        let mut engines: Vec<SimEngine> = parts
            .enumerate()
            .map(|(own, (pauses, holds))| {
                let switch = switch.sibling();
                SimEngine::new((own, &owners), (switch, holds, pauses), shared.clone())
            })
            .collect();
        Link::connect(&mut engines);
        set_vlans(&mut engines, shape);
        let mut memories = Vec::new();
        for (id, (nic, owner)) in shape.nics.iter().zip(&owners).enumerate() {
            let mac = mac_of(shape.first_address.saturating_add(id));
            let mut config = NicConfig {
                transport: nic.transport,
                congestion: nic.congestion,
                ..NicConfig::new(mac)
            };
            configure(&mut config);
            let device = usize::try_from(config.limits.device_memory).unwrap_or(0);
            let ram = usize::try_from(RAM).unwrap_or(usize::MAX);
            let memory = Memory::with_device(ram, device);
            memories.push(memory.clone());
            let mut port = NicPort::new(Nic::new(config));
            port.bus_master = true;
            if let Some(engine) = engines.get_mut(*owner) {
                let fabric = &mut engine.fabric;
                fabric.nics.replace(id, Some(port));
                fabric.memories.replace(id, Some(memory));
                fabric.links.add(id, nic.links);
            }
            for engine in &mut engines {
                let switch = &mut engine.fabric.switch;
                if engine.own == *owner {
                    switch.add_permanent_address(id, mac);
                    switch.set_present_address(id, mac);
                }
                if nic.is_unchecked {
                    switch.allow_any_source(id);
                }
            }
        }
        let peers = add_ports(&mut engines, nics, &shape.ports);
        for engine in &mut engines {
            engine.fabric.switch.refresh();
        }
        let state = Self {
            now: 0,
            paused: 0,
            last_pause: (0, 0),
            limit: u64::MAX,
            moved_gids: Vec::new(),
            passes: 0,
            engines,
            owners,
            memories,
            watch: shared.watch,
            removed: shared.removed,
            random: Rng::new(shape.seed),
            is_stuck: false,
        };
        (state, peers)
    }

    /// The engine of a NIC.
    pub(super) fn engine_of(&mut self, nic: PortId) -> Option<&mut SimEngine> {
        self.engines.get_mut(*self.owners.get(nic)?)
    }

    /// Lets engines make passes, in a random order, until none has work at this instant. Returns true if there was
    /// work.
    pub(super) fn settle(&mut self) -> bool {
        let now = Instant(self.now);
        let mut worked = false;
        loop {
            let count = self.engines.len() as u64;
            let first = usize::try_from(self.random.below(count.max(1))).unwrap_or(0);
            let (before, from) = self.engines.split_at_mut(first);
            let mut order = from.iter_mut().chain(before);
            if !order.any(|engine| engine.pass(now)) {
                return worked;
            }
            worked = true;
            self.take_requests();
            self.passes = self.passes.saturating_add(1);
            if self.passes > PASSES_AT_ONCE {
                self.is_stuck = true;
                return worked;
            }
        }
    }

    /// When something happens next.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let deadlines = self.engines.iter().filter_map(SimEngine::next_deadline);
        deadlines.min().map(|at| at.0.max(self.now))
    }

    /// Executes the next event. Returns false if there is none before `until`. All passes at this instant are one
    /// event: the software of hosts runs before the clock advances.
    pub(crate) fn step(&mut self, until: u64) -> bool {
        if self.is_stuck {
            return false;
        }
        if self.settle() {
            return true;
        }
        let until = until.min(self.limit);
        match self.next_at().filter(|at| *at <= until && !self.is_stuck) {
            None => false,
            Some(at) => {
                if at > self.now {
                    self.advance_to(at);
                } else {
                    // A deadline that no pass clears.
                    self.passes = self.passes.saturating_add(1);
                    self.is_stuck |= self.passes > PASSES_AT_ONCE;
                }
                self.settle();
                true
            }
        }
    }

    /// Moves the clock.
    pub(crate) fn advance_to(&mut self, at: u64) {
        if at > self.now {
            (self.now, self.passes) = (at, 0);
        }
    }

    /// Takes the requests of rules that concern the clock or the hosts.
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

    /// Stops all NICs and the device clock for `time` nanoseconds, while the software of the hosts continues.
    fn pause(&mut self, time: u64) {
        // Pauses that begin together end together.
        let (at, already) = self.last_pause;
        let already = if at == self.now { already } else { 0 };
        let lasts = already.max(time);
        let longer = lasts.saturating_sub(already);
        self.paused = self.paused.saturating_add(longer);
        // The limit is in time of the hosts' clock.
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

    /// Adds a line to the trace.
    pub(crate) fn note(&self, nic: PortId, what: std::fmt::Arguments<'_>) {
        self.watch.borrow_mut().note(self.now, nic, what);
    }

    /// Keeps an event of the scenario.
    pub(crate) fn event(&self, nic: PortId, what: What) {
        self.watch.borrow_mut().event(self.now, nic, what);
    }
}

/// Sets the VLANs of all ports in all engines, if a port has some. A port without is a member of all, as in the emulator.
fn set_vlans(engines: &mut [SimEngine], shape: &ProcessShape) {
    let of_nics = shape.nics.iter().map(|nic| &nic.vlans);
    let of_ports = shape.ports.iter().map(|port| &port.vlans);
    let all: Vec<&Option<VlanMembership>> = of_nics.chain(of_ports).collect();
    if all.iter().all(|vlans| vlans.is_none()) {
        return;
    }
    for engine in engines {
        for (id, vlans) in all.iter().enumerate() {
            let vlans = (*vlans).clone().unwrap_or_default();
            engine.fabric.switch.set_vlans(id, vlans);
        }
    }
}

/// Adds external ports, whose numbers follow those of the NICs, to the first engine.
fn add_ports(engines: &mut [SimEngine], nics: usize, ports: &[PortShape]) -> Vec<PeerHandle> {
    let mut peers = Vec::new();
    let Some(engine) = engines.first_mut() else {
        return peers;
    };
    for (index, port) in ports.iter().enumerate() {
        let id = nics.saturating_add(index);
        let (peer, handle) = SimPeer::new(port.room);
        let external = ExternalPort::new(format!("port{index}"), port.mtu, port.hold, peer);
        engine.fabric.externals.push(external);
        engine.fabric.switch.allow_any_source(id);
        engine.fabric.links.add(id, port.links);
        peers.push(handle);
    }
    peers
}

pub(super) fn move_nic(state: &mut RefMut<'_, State>, nic: PortId, to: usize) {
    if to >= state.engines.len() || state.owners.get(nic) == Some(&to) {
        return;
    }
    let taken = state.engine_of(nic).and_then(|engine| engine.take_nic(nic));
    if let (Some(taken), Some(engine)) = (taken, state.engines.get_mut(to)) {
        engine.put_nic(taken);
        if let Some(owner) = state.owners.get_mut(nic) {
            *owner = to;
        }
        let owners = state.owners.clone();
        for engine in &mut state.engines {
            engine.set_owners(&owners);
        }
    }
}
