//! Event queues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use faultline_abi::admin::{self, CreateEq};
use faultline_abi::doorbell;
use faultline_abi::event::Eqe;
use faultline_abi::{U16, U32};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::error::{DriverError, RingError};
use crate::nic::{Nic, Object};
use crate::ring::{RingLayout, RingMemory};

const ENTRY: usize = size_of::<Eqe>();

/// A queue of events, and the vector that announces them.
#[derive(Debug)]
pub struct EventQueue {
    object: Arc<Object>,
    ring: Arc<RingMemory>,
    log_depth: u8,
    consumer: u32,
    vector: u16,
}

impl Nic {
    /// Creates an event queue of 2^`log_depth` entries. `flags`: `EQ_ASYNC`, `EQ_FAULTS` or none.
    pub fn event_queue(
        &self,
        vector: u16,
        flags: u32,
        log_depth: u8,
    ) -> Result<EventQueue, DriverError> {
        let ring = RingMemory::new(self, ENTRY << log_depth, RingLayout::Contiguous)?;
        let create = CreateEq {
            ring: ring.desc(),
            log_depth,
            vector: U16::new(vector),
            flags: U32::new(flags),
            ..CreateEq::default()
        };
        let opcodes = (admin::CREATE_EQ, admin::DESTROY_EQ);
        let object = Object::create(self, opcodes, &create, vec![ring.clone()])?;
        Ok(EventQueue {
            object,
            ring,
            log_depth,
            consumer: 0,
            vector,
        })
    }
}

impl EventQueue {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.handle()
    }

    pub(crate) fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Takes the next event.
    pub fn poll(&mut self) -> Option<Eqe> {
        let mask = (1u32 << self.log_depth) - 1;
        let at = (self.consumer & mask) as usize * ENTRY;
        let phase = u64::from(!(self.consumer >> self.log_depth) & 1);
        if self.ring.load_u64(at + ENTRY - 8) >> 56 != phase {
            return None;
        }
        let mut eqe = Eqe::default();
        self.ring.read(at, eqe.as_mut_bytes());
        self.consumer = self.consumer.wrapping_add(1);
        Some(eqe)
    }

    /// Asks for an interrupt when there is something that has not been taken.
    pub fn arm(&self) -> Result<(), RingError> {
        self.object.ring(0, doorbell::EQ_ARM, self.consumer)
    }

    /// Whether the vector has been signalled since this was last asked.
    pub fn signalled(&self) -> bool {
        let mut count = [0; 8];
        self.object
            .nic()
            .eventfd(self.vector)
            .is_some_and(|fd| rustix::io::read(fd, &mut count).is_ok())
    }

    /// Sleeps until the vector is signalled; returns whether it was.
    pub fn sleep(&self, timeout: Duration) -> Result<bool, DriverError> {
        let Some(fd) = self.object.nic().eventfd(self.vector) else {
            return Ok(false);
        };
        let spec = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        match poll(&mut fds, Some(&spec)) {
            Ok(_) | Err(Errno::INTR) => Ok(self.signalled()),
            Err(errno) => Err(DriverError::Io(errno.into())),
        }
    }

    /// The next event: looks, arms, and sleeps on the eventfd. `None` if there is none in time.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Eqe>, DriverError> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(eqe) = self.poll() {
                return Ok(Some(eqe));
            }
            self.arm()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(self.poll());
            }
            self.sleep(left)?;
        }
    }
}
