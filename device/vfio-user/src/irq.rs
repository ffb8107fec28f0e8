//! The eventfds of one interrupt index.

use crate::device::{IrqAction, IrqData, IrqSet};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::cell::Cell;

/// Number of interrupts by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TriggerCounts {
    /// Written to an eventfd.
    pub delivered: u64,
    /// Kept pending because the vector was masked or had no eventfd.
    pub pended: u64,
    /// The vector does not exist.
    pub out_of_range: u64,
    /// The write to the descriptor failed (for example, it is not an eventfd).
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<OwnedFd>,
    masked: bool,
    pending: Cell<bool>,
}

/// The vectors of one interrupt index, MSI-X for example, and their eventfds.
///
/// An interrupt that cannot be delivered stays pending and is delivered when the vector gets
/// its eventfd or is unmasked (PCI 3.0 §6.8.2.10, the pending bit). QEMU can detach and attach
/// the eventfds again while it resizes the set, so disabling the index keeps the pending bits;
/// only [`IrqVectors::reset`] clears them. A guest tolerates a spurious interrupt; a lost interrupt
/// stalls it.
#[derive(Debug)]
pub struct IrqVectors {
    vectors: Vec<Vector>,
    counts: Cell<TriggerCounts>,
}

impl IrqVectors {
    /// Creates `count` vectors without eventfds.
    pub fn new(count: u32) -> Self {
        Self {
            vectors: (0..count).map(|_| Vector::default()).collect(),
            counts: Cell::default(),
        }
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.vectors.len()
    }

    /// True if the index has no vectors.
    pub fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// Number of interrupts by result since creation.
    pub fn counts(&self) -> TriggerCounts {
        self.counts.get()
    }

    /// True if the vector has an eventfd.
    pub fn attached(&self, vector: usize) -> bool {
        self.vectors
            .get(vector)
            .is_some_and(|v| v.eventfd.is_some())
    }

    /// Pending bits of vectors `64 * word` and up, as in the MSI-X pending bit array.
    pub fn pending(&self, word: usize) -> u64 {
        let from = word.saturating_mul(64);
        self.vectors
            .iter()
            .skip(from)
            .take(64)
            .enumerate()
            .filter(|(_, v)| v.pending.get())
            .fold(0, |bits, (i, _)| bits | 1 << i)
    }

    /// Executes a SET_IRQS request. Does not check `set.index`.
    ///
    /// # Errors
    ///
    /// `INVAL` if the range exceeds the vectors or the data does not match the count. An error
    /// changes nothing.
    pub fn set(&mut self, set: IrqSet) -> Result<(), Errno> {
        if set.count == 0 {
            if set.action == IrqAction::Trigger && matches!(set.data, IrqData::None) {
                self.detach_all();
                return Ok(());
            }
            return Err(Errno::INVAL);
        }
        let start = set.start as usize;
        let count = set.count as usize;
        let end = start.checked_add(count).ok_or(Errno::INVAL)?;
        if end > self.vectors.len() {
            return Err(Errno::INVAL);
        }
        match set.data {
            IrqData::EventFds(fds) => {
                if fds.len() != count || set.action != IrqAction::Trigger {
                    return Err(Errno::INVAL);
                }
                for (i, fd) in fds.into_iter().enumerate() {
                    if let Some(vector) = self.vectors.get_mut(start.saturating_add(i)) {
                        vector.eventfd = fd.inspect(set_nonblocking);
                        self.flush(start.saturating_add(i));
                    }
                }
            }
            IrqData::Bool(chosen) => {
                if chosen.len() != count {
                    return Err(Errno::INVAL);
                }
                for (i, _) in chosen.iter().enumerate().filter(|(_, byte)| **byte != 0) {
                    self.act(start.saturating_add(i), set.action);
                }
            }
            IrqData::None => (start..end).for_each(|i| self.act(i, set.action)),
        }
        Ok(())
    }

    fn act(&mut self, index: usize, action: IrqAction) {
        let Some(vector) = self.vectors.get_mut(index) else {
            return;
        };
        match action {
            IrqAction::Trigger => {
                self.trigger(index);
            }
            IrqAction::Mask => vector.masked = true,
            IrqAction::Unmask => {
                vector.masked = false;
                self.flush(index);
            }
        }
    }

    /// Delivers a pending interrupt if the vector has an eventfd and is not masked.
    fn flush(&self, index: usize) {
        if let Some(vector) = self.vectors.get(index)
            && vector.pending.get()
            && vector.eventfd.is_some()
            && !vector.masked
        {
            vector.pending.set(false);
            self.trigger(index);
        }
    }

    /// Detaches all eventfds. Pending bits stay.
    pub fn detach_all(&mut self) {
        for vector in &mut self.vectors {
            vector.eventfd = None;
        }
    }

    /// Device reset: clears pending bits and masks. Eventfds stay: they belong to the client.
    pub fn reset(&mut self) {
        for vector in &mut self.vectors {
            vector.pending.set(false);
            vector.masked = false;
        }
    }

    /// Raises an interrupt. Never blocks. Returns true if the interrupt was delivered. Otherwise it
    /// is pending, or only counted if the write failed or the vector does not exist (a guest can
    /// choose any number).
    pub fn trigger(&self, vector: usize) -> bool {
        let mut counts = self.counts.get();
        let delivered = match self.vectors.get(vector) {
            None => {
                counts.out_of_range = counts.out_of_range.wrapping_add(1);
                false
            }
            Some(Vector {
                eventfd: Some(fd),
                masked: false,
                ..
            }) => {
                // EAGAIN: the counter is at its maximum, so an interrupt is already signalled.
                match rustix::io::write(fd, &1u64.to_ne_bytes()) {
                    Ok(_) | Err(Errno::AGAIN) => {
                        counts.delivered = counts.delivered.wrapping_add(1);
                        true
                    }
                    Err(_) => {
                        counts.failed = counts.failed.wrapping_add(1);
                        false
                    }
                }
            }
            Some(v) => {
                v.pending.set(true);
                counts.pended = counts.pended.wrapping_add(1);
                false
            }
        };
        self.counts.set(counts);
        delivered
    }
}

/// The engine must not block on a descriptor of the client. QEMU's eventfds are non-blocking
/// already. If setting the flag fails, the write reports the error.
fn set_nonblocking(fd: &OwnedFd) {
    if let Ok(flags) = fcntl_getfl(fd) {
        let _ = fcntl_setfl(fd, flags | OFlags::NONBLOCK);
    }
}
