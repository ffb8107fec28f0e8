//! A process of the emulator in virtual time: engines with their fabrics, the links between them, and the peers of external ports.
//!
//! The fabrics are those of the emulator. One thread does the work of all threads of the emulator in the order of
//! virtual time: passes of engines, frames between them, and peers. A random number generator selects the engine that
//! makes the next pass, so a seed is one order of passes. There are no doorbell pages: a doorbell reaches its NIC at
//! once.
//!
//! - `engine`: an engine with its fabric, and the links between engines
//! - [`Crossing`]: a frame on its way from one fabric to another
//! - `owner`: what the owner of a fabric does for a scenario
//! - `peer`: the peer of an external port
//! - `watch`: judges and counts the events of all engines
//! - `tap`: further observers of the events of an engine
//! - `bus`: the way of a driver to its NIC
//! - `shape`: its numbers of engines, NICs and ports
//! - `state`: what its drivers and its owner share
//! - `processes`: one process, or two with a wire between their ports
//! - `restart`: resets of a NIC, and the restart of its driver

mod bus;
mod crossing;
mod engine;
mod owner;
mod peer;
mod processes;
mod restart;
mod shape;
mod state;
mod tap;
mod watch;

use std::cell::RefCell;
use std::rc::Rc;

use faultline_fabric::PortId;
use faultline_fabric::external_port::ExternalCounts;
use faultline_fabric::link_model::LinkModelCounts;
use faultline_fabric::nic_port::NicPort;
use faultline_nic::{Instant, NicConfig};
use faultline_scenario::trigger::Direction;
use faultline_wire::Gid;

use crate::host::Host;

pub use bus::ProcessBus;
pub use crossing::{Crossing, PAYLOAD};
pub use peer::{PeerHandle, SimPeer};
pub use processes::{Processes, Wire};
pub use shape::{NicShape, PortShape, ProcessShape};
pub(crate) use state::{RAM, State, mac_of};
pub use tap::Tap;
pub(crate) use watch::Watch;
pub use watch::Watched;

/// A process in virtual time.
#[derive(Debug)]
pub struct Process {
    state: Rc<RefCell<State>>,
    /// The hosts of its NICs.
    pub hosts: Vec<Host<ProcessBus>>,
    peers: Vec<PeerHandle>,
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

    /// Executes the next event. Returns false if there is none before `until`.
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

    /// True if the clock does not advance any more, because events repeat without end at one instant.
    pub fn is_stuck(&self) -> bool {
        self.state.borrow().is_stuck
    }

    /// The summary of the events of all engines.
    pub fn watched(&self) -> Watched {
        self.state.borrow().watch.borrow().watched()
    }

    /// Maximum over the passes of an engine: work of NICs that have received frames.
    pub fn longest_pass(&self, engine: usize) -> u64 {
        let state = self.state.borrow();
        let engine = state.engines.get(engine);
        engine.map_or(0, |engine| engine.longest_pass)
    }

    /// Maxima of the frames and of the octets on a link from an engine to another one.
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

    /// Counts of passed and dropped frames of an external port.
    pub fn port_counts(&self, port: usize) -> Option<ExternalCounts> {
        let state = self.state.borrow();
        let external = state.engines.first()?.fabric.externals.get(port)?;
        Some(external.counts)
    }

    /// Counts of a modelled link of a NIC or an external port. The numbers of external ports follow those of the NICs.
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
            state::move_nic(&mut state, *nic, to);
        }
    }
}
