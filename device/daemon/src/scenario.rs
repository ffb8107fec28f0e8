//! A scenario that runs on the NICs of the engine.
//!
//! Without one, the data path tests one flag for each frame, doorbell and interrupt.

use std::collections::BTreeMap;

use faultline_fabric::PortId;
use faultline_nic::{FrameKind, Instant, Nanos};
use faultline_scenario::rules::{ByRule, Fired, HeldFrame, PacketFacts, Rules};
use faultline_scenario::trigger::Direction;
use faultline_scenario::verdict::Verdict;
use faultline_wire::packet::RoceHeader;

use crate::ram::Ram;
use faultline_fabric::frame::Frame;

/// A scenario that runs.
#[derive(Debug)]
pub struct RunningScenario {
    /// Its name.
    pub name: String,
    /// Its rules, with what they have counted.
    pub rules: Rules,
    /// Counters of each NIC at the start, in the order of `Counter::ALL`.
    pub(crate) counters: Vec<Vec<u64>>,
    /// Real time at which a pause that an action has made ends.
    pub(crate) pause_until: Option<Instant>,
    /// What the runner has to do in guests. `None`: no runner is attached.
    pub runner: Option<RunnerTasks>,
}

/// Actions that only software in a guest can carry out, such as moves of its GIDs. Whoever has started the scenario as its runner
/// asks for them, carries them out, and reports each.
#[derive(Debug, Default)]
pub struct RunnerTasks {
    /// Ids of tasks are counted from 0.
    next: u64,
    pending: BTreeMap<u64, RunnerTask>,
}

/// An action that the runner has to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerTask {
    /// The NIC whose guest it is for.
    pub nic: PortId,
    /// What to do.
    pub action: GuestAction,
}

/// What only software in a guest can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestAction {
    /// Moves its addresses to other entries of the GID table.
    MoveGids,
}

impl GuestAction {
    /// Name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::MoveGids => "move_gids",
        }
    }
}

impl RunnerTasks {
    /// Most tasks that wait at a time.
    const MOST: usize = 64;

    /// Adds a task. Fails if too many wait.
    pub(crate) fn add(&mut self, task: RunnerTask) -> Result<(), String> {
        if self.pending.len() >= Self::MOST {
            return Err(format!(
                "{} was not done: {} actions wait for the runner of the scenario already",
                task.action.name(),
                Self::MOST
            ));
        }
        self.pending.insert(self.next, task);
        self.next = self.next.saturating_add(1);
        Ok(())
    }

    /// Tasks that wait, with their ids, the oldest first.
    pub fn pending(&self) -> impl Iterator<Item = (u64, RunnerTask)> {
        self.pending.iter().map(|(id, task)| (*id, *task))
    }

    /// The runner is done with a task. `None`: no such task waits.
    pub(crate) fn done(&mut self, id: u64) -> Option<RunnerTask> {
        self.pending.remove(&id)
    }
}

/// A scenario that has ended.
#[derive(Clone, Debug)]
pub struct StoppedScenario {
    /// Its name.
    pub name: String,
    /// From start to stop.
    pub time: Nanos,
    /// Whether its expectations were met.
    pub verdict: Verdict,
}

/// A scenario that its action `end` has ended.
#[derive(Debug)]
pub struct EndedScenario {
    /// Its verdict.
    pub stopped: StoppedScenario,
    /// How often each of its rules has fired.
    pub fired: Vec<Fired>,
}

impl RunningScenario {
    /// True if packets between NICs have to be passed one by one.
    pub(crate) fn takes_packets(&self, nics: usize) -> bool {
        (0..nics).any(|nic| {
            let takes = |dir| self.rules.takes_packets(nic, dir);
            takes(Direction::Tx) || takes(Direction::Rx)
        })
    }

    /// True if the rules need not be asked about a frame.
    #[inline(always)]
    pub(crate) fn ignores(
        &self,
        place: (PortId, Direction),
        frame: Frame<'_>,
        qpn: impl FnOnce() -> u32,
    ) -> bool {
        match frame {
            Frame::ByReference(frame) => {
                let opcode = match &frame.kind {
                    FrameKind::Roce(header) => Some(header.bth.opcode),
                    FrameKind::Raw { .. } => None,
                };
                self.rules.ignores_packet(place, opcode, qpn)
            }
            // Headers of octets are not parsed for this.
            Frame::Octets(_) => !self.rules.takes_packets(place.0, place.1),
        }
    }

    /// Asks the rules about a frame, and lets them take it. `memory`: that of its payload. Returns the rule that has.
    pub(crate) fn takes(
        &mut self,
        now: Instant,
        (site, dir): (PortId, Direction),
        (qpn, header): (u32, Option<&RoceHeader>),
        frame: Frame<'_>,
        memory: Option<&Ram>,
    ) -> Option<ByRule> {
        let facts = PacketFacts {
            header,
            bytes: frame.len(),
        };
        let taking = self.rules.packet(now, site, dir, qpn, facts)?;
        // A frame that cannot be read does not reach the wire.
        if let Some(bytes) = frame.to_vec(memory) {
            let mark = frame.mark();
            let held = HeldFrame {
                site,
                dir,
                by: mark.rule,
                origin: mark.origin,
                note: mark.effects.bits(),
                bytes,
            };
            self.rules.take_frame(now, taking, held);
        }
        Some(taking.by())
    }
}
