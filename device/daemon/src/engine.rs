//! The engine: one thread that owns all NICs of the process.
//!
//! A pass takes requests from other threads, doorbells, timers, and moves frames between the NICs, each to
//! completion in bounded batches. Everything that changes a NIC or its guest's memory map runs here, between
//! two steps of a pass: that is the whole of "quiesce, mutate, resume".
//!
//! # Sleeping
//!
//! After a while without work the engine sleeps on an eventfd. No wake-up is lost:
//!
//! - The engine sets `asleep` in every polled page and in [`Shared`], then (sequentially consistent) looks at
//!   every ring and at the request channel once more, and only then sleeps.
//! - Who rings stores the doorbell, then (full barrier) reads `asleep`; if it is set he kicks, which becomes
//!   a request. Who requests sends first, then reads the flag in [`Shared`]; if it is set he writes the eventfd.
//!
//! Of a store-then-load on each side at least one sees the other's store (Dekker): either the engine finds the
//! work in its last look, or the other side finds it asleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use faultline_nic::{Instant, TURN_WORK, TxFrame};
use faultline_ports::{PortId, Route, Switch};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;

use crate::config::{Config, PollMode};
use crate::durable::Keeper;
use crate::port::NicPort;
use crate::ram::Ram;

/// What one NIC sends before the next has its turn, and its own doorbells: packets, and about so many bytes. Copying
/// them takes some microseconds, which is what others wait.
const TURN_PACKETS: u32 = 32;
const TURN_BYTES: usize = 16 << 10;
/// Longest sleep: the heartbeat must move.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// Passes without work before the thread lets others run.
const IDLE_PASSES_PER_YIELD: u32 = 16;
/// Passes between two looks at the clock for heartbeats.
const PASSES_PER_BEAT_CHECK: u32 = 1024;

type Request = Box<dyn FnOnce(&mut Engine) + Send>;

/// What the engine and those who call it share.
#[derive(Debug)]
struct Shared {
    asleep: AtomicBool,
    wake: OwnedFd,
}

/// A way to reach the engine.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    requests: Sender<Request>,
    shared: Arc<Shared>,
}

/// The engine has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the engine has ended")]
pub struct Ended;

impl EngineHandle {
    /// Runs `work` in the engine, between two steps, and gives its result.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, Ended> {
        let (tx, rx) = bounded(1);
        self.post(move |engine| {
            let _ = tx.send(work(engine));
        })?;
        rx.recv().map_err(|_| Ended)
    }

    /// Has `work` run in the engine, between two steps, and does not wait for it.
    pub(crate) fn post(
        &self,
        work: impl FnOnce(&mut Engine) + Send + 'static,
    ) -> Result<(), Ended> {
        self.requests.send(Box::new(work)).map_err(|_| Ended)?;
        self.wake();
        Ok(())
    }

    /// Ends the engine after what it does now.
    pub fn stop(&self) {
        let _ = self.post(|engine| engine.stopped = true);
    }

    fn wake(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) {
            // A full counter means that it will wake anyway.
            let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        }
    }
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    pub(crate) ports: Vec<NicPort>,
    /// Guest memory, by port: apart from the ports, so that one can send while another receives.
    pub(crate) rams: Vec<Ram>,
    pub(crate) switch: Switch,
    requests: Receiver<Request>,
    shared: Arc<Shared>,
    mode: PollMode,
    poll_time: Duration,
    start: std::time::Instant,
    stopped: bool,
}

impl Engine {
    /// An engine for these NICs, and a handle to it.
    pub fn new(config: &Config) -> std::io::Result<(Self, EngineHandle)> {
        let (tx, rx) = unbounded();
        let shared = Arc::new(Shared {
            asleep: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let handle = EngineHandle {
            requests: tx,
            shared: Arc::clone(&shared),
        };
        let mut engine = Self {
            ports: Vec::new(),
            rams: Vec::new(),
            switch: Switch::new(),
            requests: rx,
            shared,
            mode: config.poll,
            poll_time: config.poll_time(),
            start: std::time::Instant::now(),
            stopped: false,
        };
        for (id, nic) in config.nics.iter().enumerate() {
            let mac = nic.mac_address();
            let port = NicPort::new(&nic.name, nic.nic_config(&config.defaults))?;
            let keeper = Keeper::new(id, handle.clone());
            engine.rams.push(port.ram(keeper)?);
            engine.ports.push(port);
            engine.switch.set_own_address(id, mac);
        }
        Ok((engine, handle))
    }

    /// The device clock.
    pub(crate) fn now(&self) -> Instant {
        Instant(self.start.elapsed().as_nanos() as u64)
    }

    /// Runs until [`EngineHandle::stop`].
    pub fn run(mut self) {
        let mut idle_since: Option<std::time::Instant> = None;
        let mut idle_passes = 0u32;
        let mut passes = 0u32;
        let mut last_beat = std::time::Instant::now();
        while !self.stopped {
            passes = passes.wrapping_add(1);
            if passes.is_multiple_of(PASSES_PER_BEAT_CHECK) && last_beat.elapsed() >= HEARTBEAT {
                last_beat = std::time::Instant::now();
                self.beat();
            }
            if self.pass() {
                idle_since = None;
                idle_passes = 0;
                continue;
            }
            idle_passes += 1;
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
            if last_beat.elapsed() >= HEARTBEAT {
                last_beat = std::time::Instant::now();
                self.beat();
            }
        }
    }

    fn beat(&mut self) {
        for port in &mut self.ports {
            port.beat();
        }
    }

    /// One round over everything. Gives whether there was work.
    fn pass(&mut self) -> bool {
        let mut worked = self.take_requests();
        let now = self.now();
        for id in 0..self.ports.len() {
            worked |= self.run_port(id, now);
        }
        for port in &mut self.ports {
            worked |= port.send_interrupts();
        }
        worked
    }

    /// Takes the requests that are there. For those that come meanwhile there is another pass: who sends them faster than
    /// they are done would have the engine for himself.
    fn take_requests(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.requests.len().max(1) {
            match self.requests.try_recv() {
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
        let mut worked = port.poll_doorbells(now, ram);
        // A command may have given the NIC another address.
        if worked && self.switch.route(port.nic.mac()) != Route::To(id) {
            self.switch.set_own_address(id, port.nic.mac());
        }
        if port.nic.next_deadline().is_some_and(|at| at <= now) {
            port.nic.handle_deadline(now, ram);
            worked = true;
        }
        // A NIC whose input has stopped stops those who would send to it, as an Ethernet PAUSE does: whom that
        // is, nobody knows before the frame is there. Without bus mastering it takes no frames, and its stop would
        // never end.
        let pauses = |(other, port): (PortId, &NicPort)| {
            other != id && port.bus_master && port.nic.is_stalled()
        };
        if self.ports.iter().enumerate().any(pauses) {
            return worked;
        }
        let (mut packets, mut bytes, mut work) = (0, 0, 0);
        while packets < TURN_PACKETS && bytes < TURN_BYTES && work < TURN_WORK {
            let (Some(port), Some(ram)) = (self.ports.get_mut(id), self.rams.get(id)) else {
                break;
            };
            let before = port.nic.work();
            let Some(frame) = port.nic.poll_transmit_run(now, ram, TURN_BYTES - bytes) else {
                break;
            };
            work += port.nic.work() - before;
            work += self.forward(id, now, &frame);
            packets += frame.packets;
            bytes += frame.len();
            worked = true;
        }
        worked
    }

    /// Hands a frame to whom it is for, by reference: its payload is copied by the receiver, now. Gives the receivers'
    /// work.
    fn forward(&mut self, from: PortId, now: Instant, frame: &TxFrame) -> u64 {
        match self.switch.forward(from, frame.src(), frame.dst()) {
            Route::To(to) => self.deliver(from, to, now, frame),
            Route::Flood => (0..self.ports.len())
                .filter(|to| *to != from)
                .map(|to| self.deliver(from, to, now, frame))
                .sum(),
        }
    }

    fn deliver(&mut self, from: PortId, to: PortId, now: Instant, frame: &TxFrame) -> u64 {
        let (Some(sender), Some(ram)) = (self.rams.get(from), self.rams.get(to)) else {
            return 0;
        };
        let Some(port) = self.ports.get_mut(to) else {
            return 0;
        };
        if !port.bus_master || !port.nic.accepts(frame.dst()) {
            return 0;
        }
        let before = port.nic.work();
        port.nic.receive(now, ram, frame, sender);
        port.nic.work() - before
    }

    /// Sleeps until there is something to do, or a deadline, or the heartbeat is due.
    fn sleep(&mut self) {
        self.shared.asleep.store(true, Ordering::SeqCst);
        for port in &self.ports {
            port.set_asleep(true);
        }
        std::sync::atomic::fence(Ordering::SeqCst);
        let work = !self.requests.is_empty()
            || self
                .ports
                .iter()
                .any(|port| port.bus_master && port.has_doorbell());
        if !work {
            let timeout = self.sleep_time();
            let spec = Timespec {
                tv_sec: timeout.as_secs() as i64,
                tv_nsec: i64::from(timeout.subsec_nanos()),
            };
            let mut fds = [PollFd::new(&self.shared.wake, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&spec));
        }
        self.shared.asleep.store(false, Ordering::SeqCst);
        for port in &self.ports {
            port.set_asleep(false);
        }
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut counter);
    }

    fn sleep_time(&self) -> Duration {
        let now = self.now();
        // A function without bus mastering is not run, so its timers stay due until it may be.
        let deadline = self
            .ports
            .iter()
            .filter(|port| port.bus_master)
            .filter_map(|port| port.nic.next_deadline())
            .min();
        deadline.map_or(HEARTBEAT, |at| {
            HEARTBEAT.min(Duration::from_nanos(at.0.saturating_sub(now.0)))
        })
    }
}

/// Between two looks: mostly a pause of the processor, now and then a turn for other threads.
fn idle_pause(idle_passes: u32) {
    if idle_passes.is_multiple_of(IDLE_PASSES_PER_YIELD) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}
