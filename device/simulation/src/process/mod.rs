//! A process of the emulator in virtual time: engines with their fabrics, the links between them, and the peers of external ports.
//!
//! The fabrics are those of the emulator. What it has threads for is done here by one thread, in the order of virtual time: passes of
//! engines, frames between them, and peers. A random number generator selects the engine that makes the next pass, so a seed is one
//! order of passes. There are no doorbell pages: a doorbell reaches its NIC at once.
//!
//! - `engine`: an engine with its fabric, and the links between engines
//! - [`Crossing`]: a frame on its way from one fabric to another
//! - `owner`: what the owner of a fabric does for a scenario
//! - `peer`: the peer of an external port
//! - `watch`: judges and counts the events of all engines
//! - `tap`: further observers of the events of an engine
//! - `bus`: the way of a driver to its NIC
//! - `restart`: resets of a NIC, and the restart of its driver

mod bus;
mod crossing;
mod engine;
mod owner;
mod peer;
mod restart;
mod tap;
mod watch;

use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::rc::Rc;

use faultline_fabric::external_port::{ExternalCounts, ExternalPort};
use faultline_fabric::holds::Holds;
use faultline_fabric::link_model::{LinkModel, LinkModelCounts};
use faultline_fabric::nic_port::NicPort;
use faultline_fabric::shared_pauses::SharedPauses;
use faultline_fabric::vlan::VlanMembership;
use faultline_fabric::{PortId, Switch};
use faultline_nic::{Instant, Nic, NicConfig};
use faultline_scenario::trigger::Direction;
use faultline_wire::{Gid, MacAddr};

use crate::host::Host;
use crate::memory::Memory;
use crate::rng::Rng;

pub use bus::ProcessBus;
pub use crossing::{Crossing, PAYLOAD};
use engine::{Link, Shared, SimEngine};
pub use peer::{PeerHandle, SimPeer};
pub use tap::Tap;
pub(crate) use watch::Watch;
pub use watch::Watched;

/// Memory of each guest. Pages exist when they are written to, so that much of it costs nothing.
pub(crate) const RAM: u64 = 256 << 20;
/// Passes at one instant. A process that needs more does not advance.
const PASSES_AT_ONCE: u32 = 1_000_000;

/// A NIC of a process.
#[derive(Clone, Debug, Default)]
pub struct NicShape {
    /// Its engine.
    pub engine: usize,
    /// Models of its link: away from the NIC, and to it.
    pub links: [Option<LinkModel>; 2],
    /// Its VLANs; `None`: all. Without VLANs of any port the switches know none.
    pub vlans: Option<VlanMembership>,
    /// It may send frames from addresses of other ports.
    pub is_unchecked: bool,
}

/// An external port of a process.
#[derive(Clone, Debug, Default)]
pub struct PortShape {
    /// Models of its link: to the peer, and from it.
    pub links: [Option<LinkModel>; 2],
    /// Longest time for which it holds senders.
    pub hold: std::time::Duration,
    /// Octets in the ring to the peer.
    pub room: usize,
    /// Its VLANs; `None`: all. Without VLANs of any port the switches know none.
    pub vlans: Option<VlanMembership>,
    /// Longest payload of Ethernet frames, if it is limited.
    pub mtu: Option<u16>,
}

/// The shape of a process.
#[derive(Clone, Debug, Default)]
pub struct ProcessShape {
    /// Number of engines.
    pub engines: usize,
    /// NICs.
    pub nics: Vec<NicShape>,
    /// External ports, which the first engine has.
    pub ports: Vec<PortShape>,
    /// For the order of passes.
    pub seed: u64,
    /// Addresses of its NICs are counted from this number on: other processes have others.
    pub first_address: usize,
}

/// A process in virtual time.
#[derive(Debug)]
pub struct Process {
    state: Rc<RefCell<State>>,
    /// The hosts of its NICs.
    pub hosts: Vec<Host<ProcessBus>>,
    peers: Vec<PeerHandle>,
}

/// MAC address of a host.
pub(crate) fn mac_of(host: usize) -> MacAddr {
    let last = u8::try_from(host).unwrap_or(u8::MAX).saturating_add(1);
    MacAddr([2, 0, 0, 0, 0, last])
}

/// What drivers and the owner of the process share.
#[derive(Debug)]
pub(crate) struct State {
    /// The device clock, in nanoseconds.
    pub(crate) now: u64,
    /// How long the device clock has stood still: the clock of the hosts is so much later.
    pub(crate) paused: u64,
    /// When the last pause was, and how long.
    last_pause: (u64, u64),
    /// Nothing happens after this time of the device clock.
    pub(crate) limit: u64,
    /// Hosts whose driver is to move the entries of its GID table.
    pub(crate) moved_gids: Vec<usize>,
    /// Passes at this instant.
    passes: u32,
    engines: Vec<SimEngine>,
    /// Engine by NIC.
    owners: Vec<usize>,
    memories: Vec<Memory>,
    pub(crate) watch: Rc<RefCell<Watch>>,
    removed: Rc<RefCell<BTreeSet<PortId>>>,
    random: Rng,
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
            let mut config = NicConfig::new(mac);
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
    fn engine_of(&mut self, nic: PortId) -> Option<&mut SimEngine> {
        self.engines.get_mut(*self.owners.get(nic)?)
    }

    /// Lets engines make passes, in a random order, until none has work at this instant. Returns true if one had.
    fn settle(&mut self) -> bool {
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

    /// The next thing happens. Returns false if there is none until then. What happens at this instant is one thing: the software of
    /// hosts sees it before the clock moves.
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

impl Process {
    /// A process whose NICs are of the usual configuration.
    ///
    /// # Errors
    /// A driver does not start.
    pub fn new(shape: &ProcessShape) -> Result<Self, crate::driver::Error> {
        Self::with_config(shape, &|_| {})
    }

    /// The same with NICs of another configuration.
    ///
    /// # Errors
    /// A driver does not start.
    pub fn with_config(
        shape: &ProcessShape,
        configure: &dyn Fn(&mut NicConfig),
    ) -> Result<Self, crate::driver::Error> {
        let (state, peers) = State::new(shape, Watch::new(shape.nics.len()), &mut |config| {
            configure(config);
        });
        let state = Rc::new(RefCell::new(state));
        let host = |id: usize| {
            let address = shape.first_address.saturating_add(id);
            let last = u8::try_from(address).unwrap_or(u8::MAX).saturating_add(1);
            let gid = Gid::from_ipv4([10, 0, 0, last]);
            let bus = ProcessBus::new(Rc::clone(&state), id);
            Host::start(bus, mac_of(address), gid)
        };
        let hosts: Result<Vec<_>, crate::driver::Error> = (0..shape.nics.len()).map(host).collect();
        Ok(Self {
            hosts: hosts?,
            state,
            peers,
        })
    }

    /// The peer of an external port.
    pub fn peer(&self, port: usize) -> Option<&PeerHandle> {
        self.peers.get(port)
    }

    /// The device clock, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.state.borrow().now
    }

    /// The next thing happens. Returns false if there is none until then.
    pub fn step(&self, until: u64) -> bool {
        self.state.borrow_mut().step(until)
    }

    /// When something happens next.
    pub fn next_at(&self) -> Option<u64> {
        self.state.borrow().next_at()
    }

    /// Lets everything happen for some time.
    pub fn run_for(&self, ns: u64) {
        let until = self.now().saturating_add(ns);
        while self.step(until) {}
        let mut state = self.state.borrow_mut();
        (state.now, state.passes) = (until, 0);
    }

    /// Nothing happens until then.
    pub fn advance_to(&self, ns: u64) {
        self.state.borrow_mut().advance_to(ns);
    }

    /// True if the clock does not advance any more, because something is done again and again at one instant.
    pub fn is_stuck(&self) -> bool {
        self.state.borrow().is_stuck
    }

    /// What was seen of all engines.
    pub fn watched(&self) -> Watched {
        self.state.borrow().watch.borrow().watched()
    }

    /// The most work of NICs of an engine that have received frames in one pass.
    pub fn longest_pass(&self, engine: usize) -> u64 {
        let state = self.state.borrow();
        let engine = state.engines.get(engine);
        engine.map_or(0, |engine| engine.longest_pass)
    }

    /// The most frames, and the most octets of payload, that have waited on a link from an engine to another one.
    pub fn most_on_link(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let state = self.state.borrow();
        let mut links = state.engines.get(from)?.around.out.iter();
        links.find_map(|(engine, link)| (*engine == to).then(|| link.most()))
    }

    /// Sets the observer of the events of an engine; replaces an earlier one. `None`: no observer.
    pub fn set_tap(&self, engine: usize, tap: Option<Box<dyn Tap>>) {
        let mut state = self.state.borrow_mut();
        if let Some(engine) = state.engines.get_mut(engine) {
            engine.around.tap = tap;
        }
    }

    /// Looks at a NIC, or changes it.
    pub fn with_port<T>(&self, nic: PortId, look: impl FnOnce(&mut NicPort) -> T) -> Option<T> {
        let mut state = self.state.borrow_mut();
        Some(look(state.engine_of(nic)?.fabric.nics.get_mut(nic)?))
    }

    /// What an external port has passed and dropped.
    pub fn port_counts(&self, port: usize) -> Option<ExternalCounts> {
        let state = self.state.borrow();
        let external = state.engines.first()?.fabric.externals.get(port)?;
        Some(external.counts)
    }

    /// What a modelled link of a NIC, or of an external port, has done. The numbers of external ports follow those of the NICs.
    pub fn link_counts(&self, port: PortId, dir: Direction) -> Option<LinkModelCounts> {
        let state = self.state.borrow();
        let owner = state.owners.get(port).copied().unwrap_or(0);
        let link = state.engines.get(owner)?.fabric.links.get(port, dir);
        link.map(|link| link.counts())
    }

    /// Moves NICs to an engine. Frames between engines are delivered before.
    pub fn move_nics(&self, nics: &[PortId], to: usize) {
        let mut state = self.state.borrow_mut();
        state.settle();
        let now = Instant(state.now);
        for engine in &mut state.engines {
            engine.drain(now);
        }
        for nic in nics {
            move_nic(&mut state, *nic, to);
        }
    }
}

fn move_nic(state: &mut RefMut<'_, State>, nic: PortId, to: usize) {
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
