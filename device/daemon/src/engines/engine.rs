//! The engine: one thread that owns all NICs of the process.
//!
//! Everything that changes a NIC or its guest's memory map runs in this thread, between two steps of a pass (`pass`), so "quiesce,
//! mutate, resume" needs no lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use faultline_abi::doorbell::Doorbell;
use faultline_capture::Captures;
use faultline_config::{Config, PollMode};
use faultline_fabric::by_port::ByPort;
use faultline_fabric::holds::Holds;
use faultline_fabric::shared_pauses::SharedPauses;
use faultline_fabric::{AGING, Fabric, PortId, Switch};
use faultline_memory::WatchedWords;
use faultline_nic::{Instant, Remains};
use faultline_telemetry::{DoorbellPath, Recorder, TraceEvent};

use crate::clock::{Clock, nanos};
use crate::engines::handle::{Handle, Requests};
use crate::engines::io::EngineIo;
use crate::engines::link::EngineLinks;
use crate::engines::scenario::{EndedScenario, RunningScenario};
use crate::log::diagnostics::DiagnosticQueue;
use crate::nic::io::number;

/// Doorbells of kick pages that are kept while the engine is paused. Software writes them if its ring is full.
const HELD_KICKS: usize = 4096;

/// Sends requests to an engine.
pub type EngineHandle = Handle<Engine>;

/// Maxima over the passes of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct LongestPass {
    /// Processor time of the longest pass: a busy machine does not make it longer. Always zero in a release build.
    pub time: Duration,
    /// Largest number of steps in excess of the charged work: see [`faultline_nic::steps`]. Always zero in a release
    /// build.
    pub uncharged_steps: u64,
}

impl LongestPass {
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            time: self.time.max(other.time),
            uncharged_steps: self.uncharged_steps.max(other.uncharged_steps),
        }
    }
}

/// Counts of the engine since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineStats {
    pub(crate) passes: u64,
    /// Nanoseconds in passes that had work.
    pub(crate) busy_ns: u64,
    /// Nanoseconds of the longest of them.
    pub(crate) longest_pass_ns: u64,
    pub(crate) sleeps: u64,
    /// Doorbells that were rung while it slept and for which the driver did not write the kick page ([`crate::engines::missed`]).
    pub(crate) missed_wakeups: u64,
}

/// A doorbell that was written to a kick page while the engine was paused.
#[derive(Clone, Copy, Debug)]
struct HeldKick {
    id: PortId,
    page: u32,
    bell: Doorbell,
    /// [`NicIo::resets`](crate::nic::io::NicIo::resets) at that time. Doorbells from before a reset have no effect: the
    /// page may have another user now.
    resets: u64,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    /// Its NICs, and the path of frames between them.
    pub fabric: Fabric<EngineIo>,
    /// The surroundings of the fabric.
    pub io: EngineIo,
    /// The slots of the next doorbells: a pass without work reads only these. The list is made at the end of the pass
    /// after which all NICs rest, and is valid while they do
    /// ([`Nics::all_rest`](faultline_fabric::nics::Nics::all_rest)), because each change of doorbell pages, and each
    /// doorbell that is taken, ends the rest of a NIC.
    pub(super) next_slots: WatchedWords,
    /// A frame of another engine as octets.
    pub(crate) octets: Vec<u8>,
    pub(super) requests: Requests<Self>,
    pub(crate) mode: PollMode,
    pub(crate) poll_time: Duration,
    /// The device clock.
    pub clock: Clock,
    /// Doorbells that were written to kick pages while the engine was paused.
    held_kicks: Vec<HeldKick>,
    /// Requests of the control server since the start.
    pub control_requests: u64,
    /// When the next heartbeat is due, in real time.
    pub(super) next_beat: Instant,
    /// When the learned addresses age next, in real time.
    pub(super) next_aging: Instant,
    /// Start of the last pass, if it had work and the engine has not slept since.
    pub(super) pass_began: Option<Instant>,
    pub(crate) longest_pass: LongestPass,
    pub(crate) stats: EngineStats,
    /// The scenario that runs.
    pub scenario: Option<Box<RunningScenario>>,
    /// Real times at which pauses end that actions of rules have made, by the number of the set of rules.
    pub(crate) rules_pauses: BTreeMap<u16, Instant>,
    /// A scenario that its action `end` has ended, until its verdict is taken.
    pub ended_scenario: Option<Box<EndedScenario>>,
    /// The control server has paused the engine.
    pub(super) paused_by_request: bool,
    /// Remains of devices that actions have reset, which threads are freeing.
    pub(crate) resets_in_work: Arc<AtomicUsize>,
    pub(super) stopped: bool,
}

/// Parts of an engine that do not follow from its settings.
#[derive(Debug)]
pub(crate) struct EngineParts {
    pub(crate) requests: Requests<Engine>,
    pub(crate) links: EngineLinks,
    pub(crate) shared_pauses: SharedPauses,
    pub(crate) holds: Holds,
    pub(crate) switch: Switch,
    pub(crate) clock: Clock,
    pub(crate) recorder: Recorder,
    pub(crate) log: DiagnosticQueue,
}

impl Engine {
    /// Creates an engine of a process with these settings. It has no ports yet.
    pub(crate) fn new(config: &Config, parts: EngineParts) -> Self {
        let nics = config.nics.len();
        Self {
            fabric: Fabric::new(nics, parts.switch, parts.holds, parts.shared_pauses),
            io: EngineIo {
                nics: ByPort::new(nics),
                recorder: parts.recorder,
                captures: Captures::default(),
                log: parts.log,
                links: parts.links,
                requests: parts.requests.look(),
            },
            next_slots: WatchedWords::default(),
            octets: Vec::new(),
            requests: parts.requests,
            mode: config.poll,
            poll_time: config.poll_time(),
            clock: parts.clock,
            held_kicks: Vec::new(),
            control_requests: 0,
            next_beat: Instant(0),
            next_aging: Instant(nanos(AGING)),
            pass_began: None,
            longest_pass: LongestPass::default(),
            stats: EngineStats::default(),
            scenario: None,
            rules_pauses: BTreeMap::new(),
            ended_scenario: None,
            paused_by_request: false,
            resets_in_work: Arc::default(),
            stopped: false,
        }
    }

    /// Ends the engine after the current pass.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// The device clock.
    #[inline]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Stops the device clock and all NICs. Requests are executed as before, and the heartbeat continues.
    pub fn pause(&mut self) {
        self.paused_by_request = true;
        self.clock.stop();
    }

    /// Ends a pause of [`Engine::pause`]; a pause of a rule continues.
    pub fn resume(&mut self) {
        self.paused_by_request = false;
        self.resume_unless_paused();
    }

    /// Lets the NICs continue, unless the control server or a rule has paused them.
    pub(crate) fn resume_unless_paused(&mut self) {
        let by_rules = !self.rules_pauses.is_empty();
        if !self.paused_by_request && !by_rules && self.clock.is_stopped() {
            self.clock.resume();
            self.ring_held_kicks();
        }
    }

    /// True while something needs the NICs of all engines in this one: rules, a scenario that has ended, or a pause.
    pub(crate) fn needs_all_nics(&self) -> bool {
        !self.fabric.rules.is_empty() || self.ended_scenario.is_some() || self.clock.is_stopped()
    }

    /// Resets a device by request, as the RESET bit of the control register does. The result is to be dropped outside of the
    /// engine.
    #[must_use = "dropping it takes time"]
    pub fn reset_device(&mut self, id: PortId) -> Option<Remains> {
        let now = self.now();
        let (port, io) = (self.fabric.nics.get_mut(id)?, self.io.nics.get_mut(id)?);
        let remains = io.reset_nic(now, &mut port.nic);
        self.fabric.sync_address(id);
        remains
    }

    /// Handles a doorbell that was written to a kick page. In a pause it is kept, as those in doorbell pages are, up to a
    /// limit.
    pub(crate) fn kick(&mut self, id: PortId, page: u32, bell: Doorbell) {
        let Some(io) = self.io.nics.get(id) else {
            return;
        };
        io.was_kicked(page, bell);
        if self.clock.is_stopped() && self.held_kicks.len() < HELD_KICKS {
            self.held_kicks.push(HeldKick {
                id,
                page,
                bell,
                resets: io.resets,
            });
        } else {
            self.ring_kick(id, page, bell);
        }
    }

    /// Handles the doorbells that were kept in a pause. Returns true if there were any.
    pub(super) fn ring_held_kicks(&mut self) -> bool {
        let held = std::mem::take(&mut self.held_kicks);
        for kick in &held {
            let io = self.io.nics.get(kick.id);
            if io.is_some_and(|io| io.resets == kick.resets) {
                self.ring_kick(kick.id, kick.page, kick.bell);
            }
        }
        !held.is_empty()
    }

    /// Passes a doorbell of a kick page to its NIC. Does nothing if a rule may change the doorbell and it is also in its
    /// doorbell page, where the rule finds it or has found it.
    fn ring_kick(&mut self, id: PortId, page: u32, bell: Doorbell) {
        let now = self.now();
        let Some(io) = self.io.nics.get_mut(id) else {
            return;
        };
        let rules = &mut self.fabric.rules;
        if rules.may_change(id, &bell)
            && (io.holds_doorbell(page, bell) || rules.has_taken(id, page, bell))
        {
            return;
        }
        if self.fabric.doorbell(now, id, page, bell) {
            let event = TraceEvent::doorbell(page, bell, DoorbellPath::Kick);
            self.io.recorder.event(now, number(id), event);
            if let Some(port) = self.fabric.nics.get(id) {
                // No doorbell resets the device.
                let _ = io.sync_pages(&port.nic);
            }
        }
    }
}
