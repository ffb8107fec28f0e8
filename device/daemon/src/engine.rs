//! The engine: one thread that owns all NICs of the process.
//!
//! A pass handles requests from other threads, doorbells and timers, and delivers frames between the NICs, each to
//! completion in bounded batches. Everything that changes a NIC or its guest's memory map runs here, between
//! two steps of a pass, so "quiesce, mutate, resume" needs no lock.
//!
//! # Sleeping
//!
//! After `poll_time` without work the engine sleeps on an eventfd. [`crate::sleep`] describes why no wake-up is lost.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crossbeam_channel::TryRecvError;
use faultline_abi::doorbell::Doorbell;
use faultline_fabric::{AGING, PortId, Switch};
use faultline_nic::{Instant, Remains, TURN_WORK, TxFrame};
use faultline_telemetry::{DoorbellPath, Recorder, TraceEvent};
use faultline_wire::PrioritySet;

use crate::clock::{Clock, nanos, processor_time};
use crate::diagnostic_log::{self, DiagnosticQueue};
use crate::engine_link::Links;
use crate::external_port::ExternalPort;
use crate::handle::{Handle, Requests};
use crate::port::{NicPort, number};
use crate::ram::Ram;
use crate::scenario::{EndedScenario, RunningScenario};
use crate::sleep::{self, Processor, Sleeper};
use faultline_capture::Captures;
use faultline_config::{Config, PollMode};
use faultline_fabric::by_port::ByPort;
use faultline_fabric::holds::Holds;
use faultline_fabric::link_models::LinkModels;
use faultline_fabric::shared_pauses::SharedPauses;

/// Limits of one turn of a NIC, after which the engine polls doorbells and the next NIC: packets, and approximate bytes.
/// Copying them takes some microseconds, for which other NICs wait.
pub(crate) const TURN_PACKETS: u32 = 32;
pub(crate) const TURN_BYTES: usize = 16 << 10;
/// Steps that one unit of charged work may take.
const STEPS_PER_WORK: u64 = 4;
/// Period of the heartbeat, and so the longest sleep.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// Doorbells of kick pages that are kept while the engine is paused. Software writes them if its ring is full.
const HELD_KICKS: usize = 4096;
/// Passes without work after which the thread yields the processor.
const IDLE_PASSES_PER_YIELD: u32 = 16;

/// Environment variable that makes the engine panic whose thread has this name, in builds with debug assertions only: a test
/// checks how the process ends.
#[cfg(debug_assertions)]
const PANIC_VARIABLE: &str = "FAULTLINE_TEST_ENGINE_PANIC";

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

/// What the engine has done since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineStats {
    pub(crate) passes: u64,
    /// Time in passes that had work.
    pub(crate) busy: Duration,
    /// The longest of them.
    pub(crate) longest_pass: Duration,
    pub(crate) sleeps: u64,
    /// Doorbells that were rung while it slept and for which the driver did not write the kick page ([`crate::missed`]).
    pub(crate) missed_wakeups: u64,
}

/// A doorbell that was written to a kick page while the engine was paused.
#[derive(Clone, Copy, Debug)]
struct HeldKick {
    id: PortId,
    page: u32,
    bell: Doorbell,
    /// [`NicPort::resets`] at that time: a reset device knows nothing of the doorbells before, and its page may have another user.
    resets: u64,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    /// The NICs of this engine.
    pub ports: ByPort<NicPort>,
    /// Guest memory, by port. Separate from the ports, because a delivery borrows one port and the memory of two. For a NIC of
    /// another engine, the memory of the link from there.
    pub rams: ByPort<Ram>,
    pub(crate) switch: Switch,
    /// Ports that lead out of the process, which the first engine has. Their numbers follow those of the NICs.
    pub(crate) externals: Vec<ExternalPort>,
    pub(crate) holds: Holds,
    /// Captures that run.
    pub captures: Captures,
    /// A frame as octets.
    pub(crate) scratch: Vec<u8>,
    /// A frame as octets that leaves the switch with another VLAN tag than it came with.
    pub(crate) tag_scratch: Vec<u8>,
    /// Links that have a model.
    pub(crate) lines: LinkModels,
    /// Links to the other engines.
    pub(crate) links: Links,
    /// Priorities that links of other engines pause.
    pub(crate) shared_pauses: SharedPauses,
    requests: Requests<Self>,
    pub(crate) mode: PollMode,
    pub(crate) poll_time: Duration,
    /// The device clock.
    pub clock: Clock,
    /// Doorbells that were written to kick pages while the engine was paused.
    held_kicks: Vec<HeldKick>,
    /// Requests of the control server since the start.
    pub control_requests: u64,
    /// When the next heartbeat is due, in real time.
    next_beat: Instant,
    /// When the learned addresses age next, in real time.
    next_aging: Instant,
    /// Start of the last pass, if it had work and the engine has not slept since.
    pass_began: Option<Instant>,
    pub(crate) longest_pass: LongestPass,
    /// Records of what its NICs did.
    pub recorder: Recorder,
    pub(crate) stats: EngineStats,
    /// For messages that are logged. The engine thread writes none itself.
    pub(crate) log: DiagnosticQueue,
    /// The scenario that runs.
    pub scenario: Option<Box<RunningScenario>>,
    /// A scenario that its action `end` has ended, until its verdict is taken.
    pub ended_scenario: Option<Box<EndedScenario>>,
    /// The control server has paused the engine.
    paused_by_request: bool,
    /// Remains of devices that actions have reset, which threads are freeing.
    pub(crate) resets_in_work: Arc<AtomicUsize>,
    stopped: bool,
}

/// What an engine has besides its settings.
#[derive(Debug)]
pub(crate) struct EngineParts {
    pub(crate) requests: Requests<Engine>,
    pub(crate) links: Links,
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
            ports: ByPort::new(nics),
            rams: ByPort::new(nics),
            switch: parts.switch,
            externals: Vec::new(),
            holds: parts.holds,
            captures: Captures::default(),
            scratch: Vec::new(),
            tag_scratch: Vec::new(),
            lines: LinkModels::default(),
            links: parts.links,
            shared_pauses: parts.shared_pauses,
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
            recorder: parts.recorder,
            stats: EngineStats::default(),
            log: parts.log,
            scenario: None,
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

    /// Runs until it is stopped.
    pub fn run(mut self) {
        #[cfg(debug_assertions)]
        if let Some(name) = std::env::var_os(PANIC_VARIABLE)
            && std::thread::current().name().is_some_and(|own| name == own)
        {
            panic!("{PANIC_VARIABLE} is set");
        }
        let mut idle_since: Option<std::time::Instant> = None;
        let mut idle_passes = 0u32;
        while !self.stopped {
            if self.pass() {
                idle_since = None;
                idle_passes = 0;
                continue;
            }
            if self.clock.is_stopped() {
                self.sleep();
                continue;
            }
            idle_passes = idle_passes.wrapping_add(1);
            match self.mode {
                PollMode::Busy => idle_pause(idle_passes),
                PollMode::Adaptive => {
                    let since = *idle_since.get_or_insert_with(std::time::Instant::now);
                    if since.elapsed() < self.poll_time {
                        idle_pause(idle_passes);
                        continue;
                    }
                    self.sleep();
                    idle_since = None;
                }
                PollMode::Never => self.sleep(),
            }
        }
    }

    fn sleep(&mut self) {
        self.stats.sleeps = self.stats.sleeps.wrapping_add(1);
        if self.captures.is_on() {
            self.captures.sleep();
        }
        sleep::fall_asleep::<Processor>(self);
    }

    /// Sends the heartbeat if it is due at the real time `now`, and lets learned addresses age.
    fn send_heartbeat(&mut self, now: Instant) {
        if now < self.next_beat {
            return;
        }
        self.next_beat = Instant(now.0.saturating_add(nanos(HEARTBEAT)));
        for (_, port) in self.ports.iter_mut() {
            port.send_heartbeat();
            if port.has_missed_wakeup() {
                self.stats.missed_wakeups = self.stats.missed_wakeups.saturating_add(1);
            }
        }
        if now >= self.next_aging {
            self.next_aging = Instant(now.0.saturating_add(nanos(AGING)));
            self.switch.age();
        }
    }

    /// Handles requests and, unless the engine is paused, all ports once. Returns true if there was work.
    pub(crate) fn pass(&mut self) -> bool {
        if self.captures.is_on() {
            self.captures.begin_pass(self.now());
        }
        let mut worked = self.take_requests();
        if self.clock.is_stopped() {
            self.end_scenario_pause();
        }
        // Read once for both clocks. After the end of a pause, before which device time is another.
        let real = self.clock.real();
        self.send_heartbeat(real);
        if self.clock.is_stopped() {
            self.pass_began = None;
            self.take_diagnostics();
        } else {
            worked |= self.run_ports(self.clock.at(real), worked);
        }
        worked
    }

    /// Stops the device clock and all NICs. Requests are executed as before, and the heartbeat continues.
    pub fn pause(&mut self) {
        self.paused_by_request = true;
        self.clock.stop();
    }

    /// Ends a pause of [`Engine::pause`]. One of a scenario goes on.
    pub fn resume(&mut self) {
        self.paused_by_request = false;
        self.resume_unless_paused();
    }

    /// Lets the NICs go on, unless the control server or a scenario has paused them.
    pub(crate) fn resume_unless_paused(&mut self) {
        let scenario = self.scenario.as_ref();
        let by_scenario = scenario.is_some_and(|scenario| scenario.pause_until.is_some());
        if !self.paused_by_request && !by_scenario && self.clock.is_stopped() {
            self.clock.resume();
            self.ring_held_kicks();
        }
    }

    /// True while something needs the NICs of all engines in this one: a scenario, or a pause.
    pub(crate) fn needs_all_nics(&self) -> bool {
        self.scenario.is_some() || self.ended_scenario.is_some() || self.clock.is_stopped()
    }

    /// Resets a device by request, as the RESET bit of the control register does. The result is to be dropped outside of the
    /// engine.
    #[must_use = "dropping it takes time"]
    pub fn reset_device(&mut self, id: PortId) -> Option<Remains> {
        let now = self.now();
        let port = self.ports.get_mut(id)?;
        let remains = port.reset_nic(now);
        self.sync_address(id);
        remains
    }

    /// In a pause, handles all ports once. Returns true if there was work.
    pub fn step(&mut self) -> bool {
        let kicked = self.ring_held_kicks();
        let worked = self.run_ports(self.now(), kicked);
        self.pass_began = None;
        self.send_heartbeat(self.clock.real());
        worked
    }

    /// Handles all ports once. Returns true if there was work.
    fn run_ports(&mut self, mut now: Instant, mut worked: bool) -> bool {
        if let Some(began) = self.pass_began {
            let time = Duration::from_nanos(now.0.saturating_sub(began.0));
            self.stats.longest_pass = self.stats.longest_pass.max(time);
            self.stats.busy = self.stats.busy.saturating_add(time);
        }
        self.stats.passes = self.stats.passes.wrapping_add(1);
        let steps = faultline_nic::steps().map(|steps| (steps, processor_time()));
        let before = (self.work(), steps);
        if !self.lines.is_empty() {
            // Frames of other engines may have been sent into links at a later time than that of this pass.
            self.lines.update_pauses(now.max(self.links.latest));
        }
        if self.holds.has_ports() {
            self.update_holds(now);
        }
        if !self.links.is_empty() {
            self.share_pauses();
            let (later, has_taken) = self.run_links(now);
            (now, worked) = (later, worked | has_taken);
        }
        if !self.lines.is_empty() {
            worked |= self.run_lines(now);
        }
        worked |= self.run_externals(now);
        for id in 0..self.ports.len() {
            worked |= self.run_port(id, now);
        }
        self.flush_externals();
        for id in 0..self.ports.len() {
            worked |= self.send_interrupts(id, now);
        }
        self.take_diagnostics();
        if self.scenario.is_some() {
            worked |= self.run_scenario(now);
            self.end_scenario_if_due();
        }
        if self.captures.is_on() {
            self.captures.flush();
        }
        self.links.wake_peers();
        self.pass_began = worked.then_some(now);
        if let (before, Some((steps, began))) = before {
            self.compare_steps(before, steps);
            let time = processor_time().saturating_sub(began);
            self.longest_pass.time = self.longest_pass.time.max(time);
        }
        worked
    }

    /// Sends the pending interrupts of a NIC. Without bus mastering they stay pending. Returns true if one was sent.
    fn send_interrupts(&mut self, id: PortId, now: Instant) -> bool {
        let Some(port) = self.ports.get_mut(id).filter(|port| port.bus_master) else {
            return false;
        };
        let mut any = false;
        while let Some(vector) = port.nic.poll_interrupt() {
            any = true;
            let passes = self
                .scenario
                .as_mut()
                .is_none_or(|scenario| scenario.rules.interrupt(now, id, vector));
            if passes && !port.link.loses_interrupt() {
                port.irqs.trigger(usize::from(vector));
                let event = TraceEvent::Interrupt { vector };
                self.recorder.event(now, number(id), event);
            }
        }
        any
    }

    pub(crate) fn take_diagnostics(&mut self) {
        for (id, port) in self.ports.iter_mut() {
            if port.nic.has_diagnostics() {
                for (at, diagnostic) in port.nic.diagnostics() {
                    self.recorder.diagnostic(*at, number(id), diagnostic);
                    if let Some(scenario) = &mut self.scenario {
                        let rules = &mut scenario.rules;
                        rules.diagnostic(*at, id, diagnostic, &port.nic);
                    }
                    if self.captures.is_on() {
                        self.captures.diagnostic(*at, id, diagnostic, &port.nic);
                    }
                    self.log.count(id, diagnostic);
                    if self.log.takes(id, diagnostic_log::level(diagnostic)) {
                        let owner = diagnostic_log::owner(&port.nic, diagnostic);
                        self.log.push_diagnostic(id, *at, *diagnostic, owner);
                    }
                }
                port.nic.clear_diagnostics();
            }
            let lost = port.nic.take_lost_diagnostics();
            if lost > 0 {
                port.lost_diagnostics = port.lost_diagnostics.wrapping_add(lost);
                if let Some(scenario) = &mut self.scenario {
                    scenario.rules.lost_diagnostics(id, lost);
                }
                self.recorder.lost_diagnostics(number(id), lost);
                self.captures.connections_unknown(self.clock.now());
            }
        }
    }

    /// Handles a doorbell that was written to a kick page. In a pause it is kept, as those in doorbell pages are, up to a
    /// limit.
    pub(crate) fn kick(&mut self, id: PortId, page: u32, bell: Doorbell) {
        if let Some(port) = self.ports.get(id) {
            port.was_kicked(page, bell);
        }
        if self.clock.is_stopped() && self.held_kicks.len() < HELD_KICKS {
            let resets = self.ports.get(id).map_or(0, |port| port.resets);
            self.held_kicks.push(HeldKick {
                id,
                page,
                bell,
                resets,
            });
        } else {
            self.ring_kick(id, page, bell);
        }
    }

    /// Handles the doorbells that were kept in a pause. Returns true if there were any.
    fn ring_held_kicks(&mut self) -> bool {
        let held = std::mem::take(&mut self.held_kicks);
        for kick in &held {
            let port = self.ports.get(kick.id);
            if port.is_some_and(|port| port.resets == kick.resets) {
                self.ring_kick(kick.id, kick.page, kick.bell);
            }
        }
        !held.is_empty()
    }

    /// Passes a doorbell of a kick page to its NIC. If a rule of the scenario may change it and it is in its page, where the rule finds
    /// it, or has found it, it has waked the engine and does nothing else.
    fn ring_kick(&mut self, id: PortId, page: u32, bell: Doorbell) {
        if let (Some(port), Some(scenario)) = (self.ports.get(id), &mut self.scenario)
            && scenario.rules.may_change(id, &bell)
            && (port.holds_doorbell(page, bell) || scenario.rules.has_taken(id, page, bell))
        {
            return;
        }
        self.ring(id, page, bell, DoorbellPath::Kick);
    }

    /// Passes a doorbell to a NIC that was not taken from its page now.
    pub(crate) fn ring(&mut self, id: PortId, page: u32, bell: Doorbell, path: DoorbellPath) {
        let now = self.now();
        if let (Some(port), Some(ram)) = (self.ports.get_mut(id), self.rams.get(id))
            && port.bus_master
        {
            let event = TraceEvent::doorbell(page, bell, path);
            self.recorder.event(now, number(id), event);
            port.nic.doorbell(now, ram, page, bell);
            // No doorbell resets the device.
            let _ = port.sync_pages();
        }
    }

    /// Work that all NICs have charged; 0 in a release build.
    fn work(&self) -> u64 {
        match cfg!(debug_assertions) {
            true => self.ports.values().map(|port| port.nic.work()).sum(),
            false => 0,
        }
    }

    /// Compares the steps of a pass with the work charged in it, given both at its start. Skipped if a reset has restarted the
    /// work count of a NIC.
    fn compare_steps(&mut self, work: u64, steps: u64) {
        let now = faultline_nic::steps().unwrap_or_default();
        if let Some(work) = self.work().checked_sub(work) {
            let charged = work.saturating_mul(STEPS_PER_WORK);
            let beyond = now.wrapping_sub(steps).saturating_sub(charged);
            self.longest_pass.uncharged_steps = self.longest_pass.uncharged_steps.max(beyond);
        }
    }

    /// Executes the queued requests. Requests that arrive during this are left for the next pass, so that a thread that sends
    /// requests faster than they are executed cannot occupy the engine.
    fn take_requests(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.requests.len().max(1) {
            match self.requests.take() {
                Ok(request) => {
                    request(self);
                    any = true;
                }
                Err(TryRecvError::Empty) => return any,
                Err(TryRecvError::Disconnected) => {
                    self.stopped = true;
                    return any;
                }
            }
        }
        any
    }

    fn run_port(&mut self, id: PortId, now: Instant) -> bool {
        let (Some(port), Some(ram)) = (self.ports.get_mut(id), self.rams.get(id)) else {
            return false;
        };
        if !port.bus_master {
            return false;
        }
        let rules = self.scenario.as_mut().map(|scenario| &mut scenario.rules);
        let mut worked = port.poll_doorbells(now, ram, (id, &mut self.recorder), rules);
        if std::mem::take(&mut port.link_changed) {
            port.nic.report_link(now, ram);
            worked = true;
        }
        if port.nic.next_deadline().is_some_and(|at| at <= now) {
            port.nic.handle_deadline(now, ram);
            // Deferred commands may have run in this turn.
            let _ = port.sync_pages();
            worked = true;
        }
        // A command may have changed the address of the NIC.
        self.switch.set_present_address(id, port.nic.mac());
        // Rules and the packet checker know a connection before it sends.
        let port = self.ports.get(id);
        let asks = self.scenario.is_some() || self.captures.is_on();
        if asks && port.is_some_and(|port| port.nic.has_diagnostics()) {
            self.take_diagnostics();
        }
        if self.scenario.is_some() {
            worked |= self.run_scenario(now);
        }
        // A NIC whose ingress is paused pauses all other NICs, as Ethernet PAUSE frames do: the destination of the next
        // frame is not known before it is built. A NIC without bus mastering accepts no frames, so its pause would
        // never end, and is ignored.
        let pauses = |(other, port): (PortId, &NicPort)| {
            other != id && port.bus_master && port.nic.is_stalled()
        };
        if self.links.hold(id) || self.ports.iter().any(pauses) {
            return worked;
        }
        let nics = self.ports.len();
        let paused = self.paused_priorities(id);
        if paused == PrioritySet::ALL {
            return worked;
        }
        if let Some(port) = self.ports.get_mut(id) {
            port.nic.set_paused_priorities(paused);
        }
        let scenario = self.scenario.as_ref();
        let single = scenario.is_some_and(|scenario| scenario.takes_packets(nics));
        let (mut packets, mut bytes, mut work) = (0u32, 0usize, 0u64);
        let mut frame = TxFrame::default();
        while packets < TURN_PACKETS && bytes < TURN_BYTES && work < TURN_WORK {
            let (Some(port), Some(ram)) = (self.ports.get_mut(id), self.rams.get(id)) else {
                break;
            };
            let before = port.nic.work();
            let room = TURN_BYTES.saturating_sub(bytes);
            let most = if single { 0 } else { room };
            if !port.nic.poll_transmit(now, ram, most, &mut frame) {
                break;
            }
            let built = port.nic.work().wrapping_sub(before);
            let len = frame.len();
            let received = self.leave_nic(now, id, &mut frame, len);
            work = work.saturating_add(built).saturating_add(received);
            packets = packets.saturating_add(frame.packets);
            bytes = bytes.saturating_add(len);
            worked = true;
            if self.links.hold(id) {
                break;
            }
        }
        worked
    }

    fn sleep_time(&self) -> Duration {
        let now = self.now();
        if self.clock.is_stopped() {
            return self
                .rest_of_scenario_pause()
                .unwrap_or(HEARTBEAT)
                .min(HEARTBEAT);
        }
        // A function without bus mastering is not run, so its timers are not handled until bus mastering is on.
        let deadline = self
            .ports
            .values()
            .filter(|port| port.bus_master)
            .filter_map(|port| port.nic.next_deadline())
            .chain(
                self.scenario
                    .as_ref()
                    .and_then(|running| running.rules.next_deadline()),
            )
            .chain(
                self.lines
                    .next_deadline()
                    .filter(|_| !self.links.is_any_full()),
            )
            .chain(self.externals.iter().filter_map(ExternalPort::hold_end))
            .min();
        deadline.map_or(HEARTBEAT, |at| {
            HEARTBEAT.min(Duration::from_nanos(at.0.saturating_sub(now.0)))
        })
    }
}

impl Sleeper for Engine {
    fn set_asleep(&self, asleep: bool) {
        self.requests.set_asleep(asleep);
        if self.clock.is_stopped() {
            // The doorbells of a pause wait for its end: software need not write kick pages.
            return;
        }
        for port in self.ports.values() {
            port.set_asleep(asleep);
        }
    }

    fn has_work(&self) -> bool {
        let has_doorbell = |port: &NicPort| port.bus_master && port.has_doorbell();
        let is_rung = || self.ports.values().any(has_doorbell);
        let has_frame = || {
            self.has_external_frame()
                || self.externals.iter().any(ExternalPort::has_room_again)
                || self.holds.has_released()
                || self.has_link_work()
                || self.shared_pauses.has_news()
        };
        self.requests.len() > 0 || !self.clock.is_stopped() && (is_rung() || has_frame())
    }

    /// Waits until a thread wakes the engine, or a deadline or the heartbeat is due.
    fn wait(&self) {
        let is_over = self.requests.wait(self.sleep_time());
        if is_over && !self.clock.is_stopped() {
            for port in self.ports.values() {
                port.suspect_missed_wakeup();
            }
        }
    }
}

/// Pauses the processor between two passes without work; every few passes, yields to other threads.
fn idle_pause(idle_passes: u32) {
    if idle_passes.is_multiple_of(IDLE_PASSES_PER_YIELD) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}
