//! The fabrics of a world, and its clock.
//!
//! Each NIC has a fabric of its own, as each NIC of a process can have an engine of its own. What one fabric sends to another crosses
//! the wire as octets, or keeps its typed headers. NICs of one fabric reach each other without a wire, by the data path of the product.

use std::collections::VecDeque;

use faultline_abi::doorbell::Doorbell;
use faultline_fabric::frame::{Frame, Octets};
use faultline_fabric::holds::Holds;
use faultline_fabric::link_model::LinkModel;
use faultline_fabric::nic_port::NicPort;
use faultline_fabric::shared_pauses::SharedPauses;
use faultline_fabric::{Fabric, PortId, Switch};
use faultline_nic::{Instant, Nic, NicConfig, Origin};
use faultline_simulation::Memory;
use faultline_simulation::process::{Crossing, PAYLOAD};
use faultline_wire::PrioritySet;

use crate::around::Around;
use crate::memory::GuestMemory;

/// No test needs more virtual time: one that does is stuck.
pub(crate) const END_OF_TIME_NS: u64 = 600_000_000_000;
/// Steps at one instant. A NIC that needs more has a deadline which its handler does not end.
const STEPS_AT_ONCE: u32 = 1_000_000;

/// A fabric, and what comes to it.
struct Engine {
    fabric: Fabric<Around>,
    /// Frames of other fabrics.
    received: VecDeque<Crossing>,
    /// Priorities that a peer of this fabric pauses.
    peer: SharedPauses,
}

/// All fabrics, with the clock.
pub(crate) struct Fabrics {
    pub(crate) now: u64,
    /// A time and the number of steps at this time.
    steps_at: (u64, u32),
    engines: Vec<Engine>,
    /// Fabric by NIC.
    homes: Vec<usize>,
    memories: Vec<GuestMemory>,
    /// In place of the memory of NICs of other fabrics.
    payload: GuestMemory,
    pub(crate) around: Around,
}

impl std::fmt::Debug for Fabrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabrics")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Fabrics {
    /// Creates a fabric for each of these NICs, whose guests have `ram` bytes of memory.
    pub(crate) fn new(configs: Vec<NicConfig>, ram: usize, seed: u64) -> Self {
        let count = configs.len();
        let payload = GuestMemory::new(PAYLOAD, 0);
        let switch = Switch::new();
        let holds = Holds::of_engines(count, 0);
        let engines = holds.map(|holds| {
            let pauses: Vec<SharedPauses> = SharedPauses::of_engines(2).collect();
            let [own, peer] = pauses.try_into().expect("two");
            let mut fabric = Fabric::new(count, switch.sibling(), holds, own);
            for id in 0..count {
                // On a wire, any adapter may have sent a frame.
                fabric.switch.allow_any_source(id);
                fabric.memories.replace(id, Some(payload.clone()));
            }
            Engine {
                fabric,
                received: VecDeque::new(),
                peer,
            }
        });
        let mut fabrics = Self {
            now: 0,
            steps_at: (0, 0),
            engines: engines.collect(),
            homes: (0..count).collect(),
            memories: Vec::new(),
            payload,
            around: Around::new(count, seed),
        };
        for (id, config) in configs.into_iter().enumerate() {
            let memory = GuestMemory::new(ram, config.limits.device_memory as usize);
            let mut port = NicPort::new(Nic::new(config));
            port.bus_master = true;
            let fabric = &mut fabrics.engines[id].fabric;
            fabric.nics.replace(id, Some(port));
            fabric.memories.replace(id, Some(memory.clone()));
            fabric.sync_address(id);
            fabrics.memories.push(memory);
        }
        fabrics
    }

    pub(crate) fn memory(&self, id: PortId) -> &GuestMemory {
        &self.memories[id]
    }

    /// The memory that the processor of a host reads and writes.
    pub(crate) fn ram(&self, id: PortId) -> &Memory {
        self.memories[id].own()
    }

    pub(crate) fn nic(&mut self, id: PortId) -> &mut Nic {
        let port = self.fabric(id).nics.get_mut(id);
        &mut port.expect("a NIC of the world").nic
    }

    /// The fabric of a NIC.
    pub(crate) fn fabric(&mut self, id: PortId) -> &mut Fabric<Around> {
        &mut self.engines[self.homes[id]].fabric
    }

    /// Moves all NICs to one fabric.
    pub(crate) fn gather(&mut self) {
        self.around.is_gathered = true;
        for id in 0..self.homes.len() {
            let from = std::mem::take(&mut self.homes[id]);
            if from == 0 {
                continue;
            }
            let fabric = &mut self.engines[from].fabric;
            let payload = Some(self.payload.clone());
            fabric.memories_of_others.replace(id, payload);
            let nic = fabric.take_nic(id).expect("a NIC of this fabric");
            self.engines[0].fabric.put_nic(nic);
        }
    }

    /// Adds a modelled link for the frames of a NIC to the others.
    pub(crate) fn model_link(&mut self, id: PortId, model: LinkModel) {
        self.fabric(id).links.add(id, [Some(model), None]);
    }

    /// Pauses priorities of a NIC's fabric, as the link of a peer does.
    pub(crate) fn pause(&mut self, id: PortId, paused: PrioritySet) {
        self.engines[self.homes[id]].peer.publish(paused);
        self.settle();
    }

    /// A doorbell of a driver.
    pub(crate) fn doorbell(&mut self, id: PortId, page: u32, bell: Doorbell) {
        let now = Instant(self.now);
        let fabric = &mut self.engines[self.homes[id]].fabric;
        let meter = &mut self.around.meter;
        if let Some(port) = fabric.nics.get(id) {
            meter.begin_with(id, &port.nic);
        }
        fabric.doorbell(now, id, page, bell);
        if let Some(port) = fabric.nics.get(id) {
            meter.end(id, &port.nic);
        }
        self.settle();
    }

    /// Lets all NICs send until none has a frame to send.
    pub(crate) fn settle(&mut self) {
        while self.pass(false) {}
    }

    /// A pass of each fabric. Returns true if one had work. `has_timers`: timers that are due are handled.
    fn pass(&mut self, has_timers: bool) -> bool {
        let mut worked = false;
        for index in 0..self.engines.len() {
            worked |= self.pass_of(index, has_timers);
        }
        worked
    }

    /// A pass of one fabric.
    fn pass_of(&mut self, index: usize, has_timers: bool) -> bool {
        let around = &mut self.around;
        let engine = &mut self.engines[index];
        let fabric = &mut engine.fabric;
        let rests = fabric.nics.all_rest_at(Instant(self.now));
        if rests && engine.received.is_empty() && fabric.is_closed() && !fabric.has_work(around) {
            return false;
        }
        for (id, port) in fabric.nics.iter() {
            around.meter.begin_with(id, &port.nic);
        }
        let mut worked = fabric.begin_pass(around, Instant(self.now));
        let mut now = fabric.time_after_others(Instant(self.now));
        if !fabric.pauses_others() {
            // Everything that has arrived, also behind a frame that stalls the NIC: a wire has no turns.
            worked |= !engine.received.is_empty();
            for crossing in engine.received.drain(..) {
                crossing.deliver(fabric, around, &mut now, &self.payload);
            }
        }
        worked |= fabric.take_frames(around, now);
        for id in 0..fabric.nics.ports() {
            if fabric.nics.rests(id, now) {
                continue;
            }
            fabric.sync_address(id);
            let mut has_worked = false;
            if has_timers && let Some(mut turn) = fabric.turn(id) {
                has_worked |= turn.run_timers(now);
                around.meter.end(id, &turn.port.nic);
            }
            fabric.take_early_diagnostics(around, now, id);
            has_worked |= fabric.transmit(around, now, id);
            if let Some(port) = fabric.nics.get(id) {
                around.meter.end(id, &port.nic);
            }
            if !has_worked {
                fabric.let_rest(id);
            }
            worked |= has_worked;
        }
        fabric.end_pass(around, now);
        fabric.nics.come_to_rest();
        worked | self.pass_crossing()
    }

    /// Passes frames between the fabrics. Returns true if there were any.
    fn pass_crossing(&mut self) -> bool {
        let mut worked = false;
        while let Some((to, crossing)) = self.around.crossing.pop_front() {
            worked = true;
            self.give(to, crossing);
        }
        worked
    }

    /// Gives a frame to the fabric of the NIC with its destination address, or to all. Each finds out which of its NICs receive it.
    fn give(&mut self, to: Option<PortId>, crossing: Crossing) {
        match to {
            Some(to) => {
                let engine = &mut self.engines[self.homes[to]];
                engine.received.push_back(crossing);
            }
            None => {
                for engine in &mut self.engines {
                    engine.received.push_back(crossing.clone());
                }
            }
        }
    }

    /// Gives the fabrics the frames that the wire has delivered.
    fn take_from_wire(&mut self) {
        while let Some(((from, to, origin), bytes)) = self.around.wire.pop(self.now) {
            let foreign = &self.around.foreign;
            let is_foreign = match to {
                Some(to) => foreign.contains(&from) || foreign.contains(&to),
                None => !foreign.is_empty(),
            };
            let origin = if is_foreign { Origin::Unknown } else { origin };
            // It was sent before it arrived.
            let at = Instant(self.now.saturating_sub(1));
            let frame = Frame::Octets(Octets::new(origin, &bytes));
            let crossing = Crossing::new(at, (from, 0), frame, None::<&GuestMemory>);
            self.give(to, crossing.expect("octets can be read"));
        }
    }

    /// When something happens next.
    fn next_at(&self) -> Option<u64> {
        let engines = self.engines.iter();
        let deadlines = engines.filter_map(|engine| engine.fabric.next_deadline(&self.around));
        let deadlines = deadlines.map(|at| at.0);
        deadlines.chain(self.around.wire.next_at()).min()
    }

    /// The next event happens. Returns false if there is none before `until`.
    pub(crate) fn step(&mut self, until: u64) -> bool {
        self.settle();
        let Some(at) = self.next_at().filter(|at| *at <= until) else {
            return false;
        };
        self.now = self.now.max(at);
        let steps = match self.steps_at {
            (time, steps) if time == self.now => steps + 1,
            _ => 0,
        };
        assert!(steps < STEPS_AT_ONCE, "the clock does not advance");
        self.steps_at = (self.now, steps);
        assert!(
            self.now < END_OF_TIME_NS,
            "the simulation does not come to rest"
        );
        self.take_from_wire();
        self.pass(true);
        self.settle();
        true
    }
}
