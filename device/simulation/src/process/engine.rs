//! An engine with its fabric, and the links between engines.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use faultline_abi::doorbell::Doorbell;
use faultline_fabric::by_rules::RulesOwner;
use faultline_fabric::frame::Frame;
use faultline_fabric::holds::Holds;
use faultline_fabric::link_model::MAX_OCTETS;
use faultline_fabric::nics::Nics;
use faultline_fabric::outside::{Outside, Seen};
use faultline_fabric::shared_pauses::SharedPauses;
use faultline_fabric::taken_nic::TakenNic;
use faultline_fabric::{Fabric, PortId, Switch};
use faultline_nic::Instant;
use faultline_scenario::rules::CallerRequest;
use faultline_scenario::trigger::Direction;

use super::crossing::{Crossing, PAYLOAD};
use super::peer::SimPeer;
use super::tap::Tap;
use super::watch::Watch;
use crate::memory::Memory;

/// Frames and octets on a link from which it is full, as in the emulator.
const MARK_FRAMES: usize = 128;
const MARK_OCTETS: usize = 128 << 10;
/// Why there is no speed without a modelled link.
const NO_SPEED: &str =
    "frames that are delivered by reference have no speed: leave out `by_reference` or `speed`";

/// A link from one engine to another.
#[derive(Clone, Debug, Default)]
pub(super) struct Link(Rc<RefCell<Waiting>>);

/// A frame that waits on a link.
#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Crossing>,
    octets: usize,
    /// The most frames and octets until now.
    most: (usize, usize),
}

impl Link {
    fn is_full(&self) -> bool {
        let waiting = self.0.borrow();
        waiting.frames.len() >= MARK_FRAMES || waiting.octets >= MARK_OCTETS
    }

    fn push(&self, frame: Crossing) {
        let mut waiting = self.0.borrow_mut();
        waiting.octets = waiting.octets.saturating_add(frame.octets());
        waiting.frames.push_back(frame);
        let (frames, octets) = waiting.most;
        waiting.most = (frames.max(waiting.frames.len()), octets.max(waiting.octets));
    }

    fn pop(&self) -> Option<Crossing> {
        let mut waiting = self.0.borrow_mut();
        let frame = waiting.frames.pop_front()?;
        waiting.octets = waiting.octets.saturating_sub(frame.octets());
        Some(frame)
    }

    /// Maxima of the frames and of the octets of payload on it.
    pub(super) fn most(&self) -> (usize, usize) {
        self.0.borrow().most
    }

    /// Links each engine to each other one.
    pub(super) fn connect(engines: &mut [SimEngine]) {
        let count = engines.len();
        for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
            if from == to {
                continue;
            }
            let link = Self::default();
            if let Some(engine) = engines.get_mut(from) {
                engine.around.out.push((to, link.clone()));
            }
            if let Some(engine) = engines.get_mut(to) {
                engine.received.push(link);
            }
        }
    }
}

/// An engine.
#[derive(Debug)]
pub(super) struct SimEngine {
    /// Its number.
    pub(super) own: usize,
    pub(super) fabric: Fabric<Around>,
    pub(super) around: Around,
    /// Links from the other engines.
    received: Vec<Link>,
    /// The memory in place of the memory of guests of other engines.
    payload: Memory,
    /// Maximum over the passes: work of NICs that have received frames.
    pub(super) longest_pass: u64,
}

/// The surroundings of its fabric.
#[derive(Debug)]
pub(super) struct Around {
    /// Links to the other engines.
    pub(super) out: Vec<(usize, Link)>,
    /// Engine by NIC.
    owners: Vec<usize>,
    /// NICs whose last frame has reached the mark of a link.
    held: BTreeSet<PortId>,
    /// By NIC: vectors that its driver has not seen yet, as bits.
    pub(super) interrupts: Vec<u64>,
    pub(super) watch: Rc<RefCell<Watch>>,
    /// A further observer.
    pub(super) tap: Option<Box<dyn Tap>>,
    /// NICs that a scenario has removed, of all engines.
    pub(super) removed: Rc<RefCell<BTreeSet<PortId>>>,
    /// Requests of rules for the owner of the process.
    pub(super) requests: Vec<(PortId, CallerRequest)>,
}

/// The state that the engines of a process share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) watch: Rc<RefCell<Watch>>,
    pub(super) removed: Rc<RefCell<BTreeSet<PortId>>>,
}

impl SimEngine {
    pub(super) fn new(
        (own, owners): (usize, &[usize]),
        (switch, holds, pauses): (Switch, Holds, SharedPauses),
        Shared { watch, removed }: Shared,
    ) -> Self {
        let payload = Memory::with_device(PAYLOAD, 0);
        let mut fabric = Fabric::new(owners.len(), switch, holds, pauses);
        for (nic, owner) in owners.iter().enumerate() {
            if *owner != own {
                fabric.memories.replace(nic, Some(payload.clone()));
            }
        }
        Self {
            own,
            fabric,
            around: Around {
                out: Vec::new(),
                owners: owners.to_vec(),
                held: BTreeSet::new(),
                interrupts: vec![0; owners.len()],
                watch,
                tap: None,
                removed,
                requests: Vec::new(),
            },
            received: Vec::new(),
            payload,
            longest_pass: 0,
        }
    }

    /// Makes a pass. Returns true if there was work.
    pub(super) fn pass(&mut self, now: Instant) -> bool {
        let before = self.fabric.received_work();
        let worked = self.run(now);
        let work = self.fabric.received_work().saturating_sub(before);
        self.longest_pass = self.longest_pass.max(work);
        worked
    }

    fn run(&mut self, now: Instant) -> bool {
        let (fabric, around) = (&mut self.fabric, &mut self.around);
        if let Some(tap) = &mut around.tap {
            tap.begin_pass(fabric.time_after_others(now));
        }
        if !around.is_any_full() {
            around.held.clear();
        }
        let mut worked = fabric.begin_pass(around, now);
        let mut now = fabric.time_after_others(now);
        if !self.fabric.pauses_others() {
            worked |= self.take_from_others(&mut now, true);
        }
        worked |= self.fabric.take_frames(&mut self.around, now);
        let nics = self.fabric.nics.ports();
        for nic in 0..nics {
            if self.fabric.nics.rests(nic, now) {
                continue;
            }
            let Some(mut turn) = self.fabric.turn(nic) else {
                continue;
            };
            let mut has_worked = turn.run_timers(now);
            self.fabric
                .take_early_diagnostics(&mut self.around, now, nic);
            has_worked |= self.run_rules(now);
            if self.has_room(nic) {
                has_worked |= self.fabric.transmit(&mut self.around, now, nic);
            }
            if !has_worked {
                self.fabric.let_rest(nic);
            }
            worked |= has_worked;
        }
        worked |= self.fabric.end_pass(&mut self.around, now);
        worked | self.run_rules(now)
    }

    /// True if the modelled link of a NIC has room for the frames of a turn. Otherwise the NIC waits. In virtual time,
    /// software posts as many requests as it may at one instant.
    fn has_room(&self, nic: PortId) -> bool {
        let link = self.fabric.links.get(nic, Direction::Tx);
        link.is_none_or(|link| link.octets() < MAX_OCTETS / 2)
    }

    /// Takes all frames of other engines.
    pub(super) fn drain(&mut self, now: Instant) {
        let mut now = self.fabric.time_after_others(now);
        self.take_from_others(&mut now, false);
    }

    /// Takes frames of each other engine, as many as a turn allows, or all. Returns true if there were any.
    fn take_from_others(&mut self, now: &mut Instant, has_limit: bool) -> bool {
        let mut worked = false;
        for link in &self.received {
            let mut turn = self.fabric.begin_turn();
            while !has_limit || self.fabric.may_go_on(&turn) {
                let Some(crossing) = link.pop() else {
                    break;
                };
                worked = true;
                turn.take(crossing.packets(), crossing.octets(), 0);
                crossing.deliver(&mut self.fabric, &mut self.around, now, &self.payload);
            }
        }
        worked
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.fabric.next_deadline(&self.around)
    }

    /// Takes a NIC away, with the vectors that its driver has not seen.
    pub(super) fn take_nic(&mut self, nic: PortId) -> Option<(TakenNic<Memory>, u64)> {
        let payload = Some(self.payload.clone());
        self.fabric.memories_of_others.replace(nic, payload);
        let vectors = self.around.interrupts.get_mut(nic).map(std::mem::take);
        Some((self.fabric.take_nic(nic)?, vectors.unwrap_or(0)))
    }

    /// Adds a NIC of [`SimEngine::take_nic`].
    pub(super) fn put_nic(&mut self, (nic, vectors): (TakenNic<Memory>, u64)) {
        if let Some(own) = self.around.interrupts.get_mut(nic.id()) {
            *own |= vectors;
        }
        self.fabric.put_nic(nic);
    }

    pub(super) fn set_owners(&mut self, owners: &[usize]) {
        self.around.owners = owners.to_vec();
    }

    /// A driver rings a doorbell, which rules may take.
    pub(super) fn ring(&mut self, now: Instant, nic: PortId, page: u32, bell: Doorbell) {
        let Some(turn) = self.fabric.turn(nic) else {
            return;
        };
        if turn.rules.doorbell(now, nic, page, bell) {
            turn.port.nic.doorbell(now, turn.memory, page, bell);
        }
    }
}

impl RulesOwner for SimEngine {
    type Outside = Around;

    fn fabric(&mut self) -> (&mut Fabric<Around>, &mut Around) {
        (&mut self.fabric, &mut self.around)
    }

    fn carry_out(
        &mut self,
        now: Instant,
        _: u16,
        nic: PortId,
        request: CallerRequest,
    ) -> Result<(), String> {
        let what = match request {
            CallerRequest::Link(true) => "link up",
            CallerRequest::Link(false) => "link down",
            CallerRequest::Mtu(_) => "MTU changed",
            CallerRequest::Speed(mbps) => {
                let links = &mut self.fabric.links;
                if !links.set_rate(nic, Direction::Tx, mbps.unwrap_or(0)) && mbps.is_some() {
                    return Err(NO_SPEED.to_owned());
                }
                "speed changed"
            }
            CallerRequest::Reset => {
                if let Some(port) = self.fabric.nics.get_mut(nic) {
                    port.nic.reset(now);
                    drop(port.nic.take_remains());
                }
                self.fabric.sync_address(nic);
                "reset"
            }
            CallerRequest::Remove => {
                if let Some(port) = self.fabric.nics.get_mut(nic) {
                    port.bus_master = false;
                }
                self.around.removed.borrow_mut().insert(nic);
                "removed"
            }
            CallerRequest::Pause(_) => "paused",
            CallerRequest::MoveGids => "GID table moved",
            // The rules themselves remember the end.
            CallerRequest::End => return Ok(()),
        };
        self.around.requests.push((nic, request));
        let mut watch = self.around.watch.borrow_mut();
        watch.note(now.0, nic, format_args!("{what}"));
        Ok(())
    }

    fn note_problem(&mut self, set: u16, nic: PortId, problem: String) {
        let problem = format!("NIC nic{nic}: {problem}");
        self.fabric.rules.note_problem(set, problem);
    }
}

impl Outside for Around {
    type Memory = Memory;
    type Peer = SimPeer;

    fn interrupt(&mut self, now: Instant, nic: PortId, vector: u16) {
        self.watch.borrow_mut().interrupt(now, nic, vector);
        if let Some(vectors) = self.interrupts.get_mut(nic) {
            *vectors |= 1_u64.checked_shl(u32::from(vector)).unwrap_or(0);
        }
    }

    fn has_others(&self) -> bool {
        !self.out.is_empty()
    }

    fn cross(
        &mut self,
        now: Instant,
        (from, sender): (PortId, u32),
        to: Option<PortId>,
        frame: Frame<'_>,
        memory: Option<&Memory>,
    ) -> bool {
        // External ports are of the first engine.
        let only = to.map(|to| self.owners.get(to).copied().unwrap_or(0));
        for (engine, link) in &self.out {
            if only.is_some_and(|only| only != *engine) {
                continue;
            }
            let Some(crossing) = Crossing::new(now, (from, sender), frame, memory) else {
                return false;
            };
            link.push(crossing);
            if link.is_full() {
                self.held.insert(from);
            }
        }
        true
    }

    fn is_held(&self, nic: PortId) -> bool {
        self.held.contains(&nic)
    }

    fn is_any_full(&self) -> bool {
        self.out.iter().any(|(_, link)| link.is_full())
    }

    // No event comes during a pass, and other engines do not sleep.
    fn is_awaited(&self, _: &Nics) -> bool {
        false
    }

    fn watches_frames(&self) -> bool {
        true
    }

    fn names_faults(&self) -> bool {
        self.tap.is_some()
    }

    fn seen(&mut self, now: Instant, seen: Seen<'_, Memory>) {
        self.watch.borrow_mut().seen(now, &seen);
        if let Some(tap) = &mut self.tap {
            tap.seen(now, &seen);
        }
    }
}
