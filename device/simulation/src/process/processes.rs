//! One process, or two whose first external ports are the ends of a wire, with one clock.

use faultline_nic::NicConfig;

use super::{Process, ProcessBus, ProcessShape};
use crate::driver::Error;
use crate::host::Host;

/// One direction of the wire between two processes.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// Nanoseconds from one frame to the next.
    pub pace: u64,
    /// Maximum number of frames that wait at the other port. Further ones wait at the own port.
    pub room: usize,
    /// Frames that it has passed.
    pub frames: u64,
    /// Says which frames it loses.
    pub loses: fn(&[u8]) -> bool,
    /// When it takes the next frame.
    takes_at: u64,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            pace: 0,
            room: usize::MAX,
            frames: 0,
            loses: |_| false,
            takes_at: 0,
        }
    }
}

/// Processes with one clock.
#[derive(Debug)]
pub struct Processes {
    /// The processes.
    pub all: Vec<Process>,
    /// The directions of the wire between two, by the process that sends.
    pub wires: [Wire; 2],
    /// If present: frames on the wire, the lost ones too, with the processes that have sent them.
    pub crossed: Option<Vec<(usize, Vec<u8>)>>,
}

impl Processes {
    /// One process.
    ///
    /// # Errors
    /// A driver does not start.
    pub fn new(shape: &ProcessShape) -> Result<Self, Error> {
        Self::with_config(shape, &|_| {})
    }

    /// The same with NICs of another configuration.
    ///
    /// # Errors
    /// A driver does not start.
    pub fn with_config(
        shape: &ProcessShape,
        configure: &dyn Fn(&mut NicConfig),
    ) -> Result<Self, Error> {
        Ok(Self::of(vec![Process::with_config(shape, configure)?]))
    }

    /// These processes. If there are two, a wire connects their first external ports.
    pub fn of(all: Vec<Process>) -> Self {
        Self {
            all,
            wires: [Wire::default(); 2],
            crossed: None,
        }
    }

    /// The latest clock, in nanoseconds: a driver that waits moves the clock of its process only.
    pub fn now(&self) -> u64 {
        let clocks = self.all.iter().map(Process::now);
        clocks.max().unwrap_or(0)
    }

    /// A host, by process and NIC.
    pub fn host(&mut self, (process, nic): (usize, usize)) -> Option<&mut Host<ProcessBus>> {
        self.all.get_mut(process)?.hosts.get_mut(nic)
    }

    /// True if the clock does not advance any more ([`Process::is_stuck`]).
    pub fn is_stuck(&self) -> bool {
        self.all.iter().any(Process::is_stuck)
    }

    /// Passes frames between the ports. Returns true if there were any.
    fn exchange(&mut self, now: u64) -> bool {
        let peer = |process: usize| self.all.get(process).and_then(|process| process.peer(0));
        let (Some(near), Some(far)) = (peer(0), peer(1)) else {
            return false;
        };
        let mut worked = false;
        let ways = [(near, far), (far, near)];
        for (sender, (wire, (from, to))) in self.wires.iter_mut().zip(ways).enumerate() {
            while wire.takes_at <= now
                && to.unread() < wire.room
                && let Some(frame) = from.take()
            {
                if let Some(crossed) = &mut self.crossed {
                    crossed.push((sender, frame.clone()));
                }
                if !(wire.loses)(&frame) {
                    to.send(frame);
                }
                worked = true;
                wire.frames = wire.frames.saturating_add(1);
                if wire.pace > 0 {
                    wire.takes_at = now.saturating_add(wire.pace);
                }
            }
        }
        worked
    }

    /// Executes the next event. Returns false if there is none before `until`, or if the clock is stuck.
    pub fn step(&mut self, until: u64) -> bool {
        if self.is_stuck() {
            return false;
        }
        let now = self.now();
        let mut worked = self.exchange(now);
        for process in &self.all {
            process.advance_to(now);
            worked |= process.step(now);
        }
        if worked {
            return true;
        }
        let takes = self.wires.iter().map(|wire| wire.takes_at);
        let takes = takes.filter(|at| *at > now);
        let next = self.all.iter().filter_map(Process::next_at).chain(takes);
        match next.min().filter(|at| *at <= until) {
            None => false,
            Some(at) => {
                self.advance_to(at);
                true
            }
        }
    }

    /// Nothing happens until then.
    pub fn advance_to(&self, at: u64) {
        self.all.iter().for_each(|process| process.advance_to(at));
    }

    /// Lets everything happen until then.
    pub fn run_until(&mut self, at: u64) {
        while self.step(at) {}
        self.advance_to(at);
    }

    /// Lets everything happen for some time.
    pub fn run_for(&mut self, ns: u64) {
        self.run_until(self.now().saturating_add(ns));
    }

    /// Executes all events of this instant.
    pub fn settle(&mut self) {
        self.run_for(0);
    }
}
