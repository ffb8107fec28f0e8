//! The passes of the engine, and its sleep between them.
//!
//! A pass handles requests from other threads, doorbells and timers, and delivers frames between the NICs, each to
//! completion in bounded batches.
//!
//! # Sleeping
//!
//! After `poll_time` without work the engine sleeps on an eventfd. [`crate::engines::sleep`] describes why no wake-up is lost.

use std::time::Duration;

use crossbeam_channel::TryRecvError;
use faultline_abi::doorbell::TYPE_BITS;
use faultline_config::PollMode;
use faultline_fabric::{AGING, PortId};
use faultline_nic::Instant;

use crate::clock::{nanos, processor_time};
use crate::engines::engine::Engine;
use crate::engines::sleep::{self, Processor, Sleeper};
use crate::nic::io::NicIo;

/// Steps that one unit of charged work may take.
const STEPS_PER_WORK: u64 = 4;
/// Period of the heartbeat, and so the longest sleep.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// Passes without work after which the thread yields the processor.
const IDLE_PASSES_PER_YIELD: u32 = 16;

/// Environment variable that makes the engine panic whose thread has this name, in builds with debug assertions only: a test
/// checks how the process ends.
#[cfg(debug_assertions)]
const PANIC_VARIABLE: &str = "FAULTLINE_TEST_ENGINE_PANIC";

impl Engine {
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
        if self.io.captures.is_on() {
            self.io.captures.sleep();
        }
        sleep::fall_asleep::<Processor>(self);
    }

    /// Sends the heartbeat if it is due at the real time `now`, and lets learned addresses age.
    fn send_heartbeat(&mut self, now: Instant) {
        if now < self.next_beat {
            return;
        }
        self.next_beat = Instant(now.0.saturating_add(nanos(HEARTBEAT)));
        // The engine ends when the last sender of requests is dropped, which announces nothing.
        self.requests.look_again();
        for (id, io) in self.io.nics.iter_mut() {
            let port = self.fabric.nics.get(id);
            io.send_heartbeat(port.is_some_and(|port| port.nic.is_running()));
            if io.has_missed_wakeup(port.is_some_and(|port| port.bus_master)) {
                self.stats.missed_wakeups = self.stats.missed_wakeups.saturating_add(1);
            }
        }
        if now >= self.next_aging {
            self.next_aging = Instant(now.0.saturating_add(nanos(AGING)));
            self.fabric.switch.age();
        }
    }

    /// Handles requests and, unless the engine is paused, all ports once. Returns true if there was work.
    pub(crate) fn pass(&mut self) -> bool {
        if self.io.captures.is_on() {
            self.io.captures.begin_pass(self.now());
        }
        let mut worked = self.io.requests.may_wait() && self.take_requests();
        if self.clock.is_stopped() {
            self.end_pause_of_rules();
        }
        // Read once for both clocks, and after a pause has ended, because that changes the device time.
        let real = self.clock.real();
        self.send_heartbeat(real);
        if self.clock.is_stopped() {
            self.pass_began = None;
            let now = self.now();
            self.fabric.take_diagnostics(&mut self.io, now);
        } else {
            let now = self.clock.at(real);
            if self.pass_began.is_none() && self.has_nothing_to_do(now) {
                self.stats.passes = self.stats.passes.wrapping_add(1);
            } else {
                worked |= self.run_ports(now, worked);
            }
        }
        worked
    }

    /// In a pause, handles all ports once. Returns true if there was work.
    pub fn step(&mut self) -> bool {
        let kicked = self.ring_held_kicks();
        let worked = self.run_ports(self.now(), kicked);
        self.pass_began = None;
        self.send_heartbeat(self.clock.real());
        worked
    }

    /// Returns true if a few words of state show that [`Engine::run_ports`] would find nothing.
    #[inline(always)]
    fn has_nothing_to_do(&self, now: Instant) -> bool {
        self.fabric.nics.all_rest_at(now)
            && self.is_alone()
            && self.fabric.rules.is_empty()
            && !self.io.captures.is_on()
            && !self.next_slots.any(TYPE_BITS)
    }

    /// True if frames come from its own NICs only, and go to them without delay.
    #[inline(always)]
    fn is_alone(&self) -> bool {
        self.io.links.is_empty() && self.fabric.is_closed()
    }

    /// Handles all ports once. Returns true if there was work.
    #[inline(never)]
    fn run_ports(&mut self, mut now: Instant, mut worked: bool) -> bool {
        if let Some(began) = self.pass_began {
            let time = now.0.saturating_sub(began.0);
            self.stats.longest_pass_ns = self.stats.longest_pass_ns.max(time);
            self.stats.busy_ns = self.stats.busy_ns.saturating_add(time);
        }
        // The time for frames of other engines is part of the pass.
        let start = now;
        self.stats.passes = self.stats.passes.wrapping_add(1);
        let steps = faultline_nic::steps().map(|steps| (steps, processor_time()));
        let before = (self.fabric.work(), steps);
        if self.fabric.begin_pass(&self.io, now) {
            self.io.links.wake_all();
        }
        if !self.io.links.is_empty() {
            let (later, has_taken) = self.run_links(now);
            (now, worked) = (later, worked | has_taken);
        }
        worked |= self.fabric.take_frames(&mut self.io, now);
        if !self.fabric.nics.all_rest_at(now) || self.next_slots.any(TYPE_BITS) {
            for id in 0..self.fabric.nics.ports() {
                worked |= self.run_nic(id, now);
            }
        }
        worked |= self.fabric.end_pass(&mut self.io, now);
        if !self.fabric.rules.is_empty() {
            worked |= self.execute_rules(now);
            self.end_scenario_if_due();
        }
        if self.io.captures.is_on() {
            self.io.captures.flush();
        }
        self.io.links.wake_peers();
        if self.fabric.nics.come_to_rest() {
            self.watch_doorbells();
        }
        self.pass_began = worked.then_some(start);
        if let (before, Some((steps, began))) = before {
            self.compare_steps(before, steps);
            let time = processor_time().saturating_sub(began);
            self.longest_pass.time = self.longest_pass.time.max(time);
        }
        worked
    }

    /// Compares the steps of a pass with the work charged in it, given both at its start. Skipped if a reset has restarted the
    /// work count of a NIC.
    fn compare_steps(&mut self, work: u64, steps: u64) {
        let now = faultline_nic::steps().unwrap_or_default();
        if let Some(work) = self.fabric.work().checked_sub(work) {
            let charged = work.saturating_mul(STEPS_PER_WORK);
            let beyond = now.wrapping_sub(steps).saturating_sub(charged);
            self.longest_pass.uncharged_steps = self.longest_pass.uncharged_steps.max(beyond);
        }
    }

    /// Executes the queued requests. Requests that arrive during this are left for the next pass, so that a thread that sends
    /// requests faster than they are executed cannot occupy the engine.
    #[inline(never)]
    fn take_requests(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.requests.count().max(1) {
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

    /// Makes the list of slots that a pass without work reads.
    #[inline(never)]
    fn watch_doorbells(&mut self) {
        self.next_slots.clear();
        for (id, io) in self.io.nics.iter() {
            let port = self.fabric.nics.get(id);
            if port.is_some_and(|port| port.bus_master) {
                io.watch(&mut self.next_slots);
            }
        }
    }

    /// Returns true if a page has a doorbell that was not taken. May also be true if only a slot waits to be freed, which a pass does.
    #[inline(always)]
    fn has_doorbell(&self) -> bool {
        match self.fabric.nics.all_rest() {
            true => self.next_slots.any(TYPE_BITS),
            false => self.has_doorbell_in_pages(),
        }
    }

    #[inline(never)]
    fn has_doorbell_in_pages(&self) -> bool {
        let is_rung = |(id, io): (PortId, &NicIo)| {
            let port = self.fabric.nics.get(id);
            port.is_some_and(|port| port.bus_master) && io.has_doorbell()
        };
        self.io.nics.iter().any(is_rung)
    }

    /// Returns true if a frame has come from outside of this engine's NICs, or if frames can be sent there again.
    #[inline(never)]
    fn has_frame(&self) -> bool {
        self.fabric.has_work(&self.io) || self.has_link_work()
    }

    /// The turn of a NIC. Returns true if there was work.
    #[inline(always)]
    fn run_nic(&mut self, id: PortId, now: Instant) -> bool {
        let Some(io) = self.io.nics.get_mut(id) else {
            return false;
        };
        if self.fabric.nics.rests(id, now) && !io.must_poll() {
            return false;
        }
        let Some(mut turn) = self.fabric.turn(id) else {
            return false;
        };
        let records = (id, &mut self.io.recorder);
        let mut worked = io.poll_doorbells(now, &mut turn, records);
        worked |= turn.run_timers(now);
        // Deferred commands may have run at a deadline. No such command resets the device.
        let _ = io.sync_pages(&turn.port.nic);
        self.fabric.take_early_diagnostics(&mut self.io, now, id);
        if !self.fabric.rules.is_empty() {
            worked |= self.execute_rules(now);
        }
        worked |= self.fabric.transmit(&mut self.io, now, id);
        if !worked {
            self.fabric.let_rest(id);
        }
        worked
    }

    fn sleep_time(&self) -> Duration {
        let now = self.now();
        if self.clock.is_stopped() {
            return self
                .rest_of_pause_by_rules()
                .unwrap_or(HEARTBEAT)
                .min(HEARTBEAT);
        }
        let deadline = self.fabric.next_deadline(&self.io);
        deadline.map_or(HEARTBEAT, |at| {
            HEARTBEAT.min(Duration::from_nanos(at.0.saturating_sub(now.0)))
        })
    }
}

impl Sleeper for Engine {
    fn set_asleep(&self, asleep: bool) {
        self.requests.set_asleep(asleep);
        if self.clock.is_stopped() {
            // In a pause doorbells wait for its end: software need not write kick pages.
            return;
        }
        for io in self.io.nics.values() {
            io.set_asleep(asleep);
        }
    }

    fn has_work(&self) -> bool {
        let has_frame = || !self.is_alone() && self.has_frame();
        self.io.requests.may_wait()
            || !self.clock.is_stopped() && (self.has_doorbell() || has_frame())
    }

    /// Waits until a thread wakes the engine, or a deadline or the heartbeat is due.
    fn wait(&self) {
        let is_over = self.requests.wait(self.sleep_time());
        if is_over && !self.clock.is_stopped() {
            for (id, io) in self.io.nics.iter() {
                if self.fabric.nics.get(id).is_some_and(|port| port.bus_master) {
                    io.suspect_missed_wakeup();
                }
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
