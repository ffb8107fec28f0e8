//! Guest memory as the firmware wants it, and the device's own beside it.

use std::cell::Cell;
use std::sync::Arc;

use faultline_memory::{AccessError, GuestMemory, Removed, SharedPages, UnmapError};
use faultline_nic::{DEVICE_MEMORY, Dma, DmaError, Persist};
use faultline_vfio_user::Errno;

use crate::bells;
use crate::durable::FlushWorker;

/// The memory of one guest; from [`DEVICE_MEMORY`] on that of its NIC.
#[derive(Debug)]
pub(crate) struct Ram {
    pub(crate) memory: GuestMemory,
    /// Name of the NIC, for the log.
    name: String,
    flush_worker: FlushWorker,
    /// BAR 2.
    pages: Arc<SharedPages>,
    /// Accesses to lost pages that were reported.
    losses: Cell<u64>,
    /// One of this client's was logged.
    loss_logged: Cell<bool>,
}

impl Ram {
    /// No memory yet, but the pages of BAR 2.
    pub(crate) fn new(name: &str, flush_worker: FlushWorker, pages: Arc<SharedPages>) -> Self {
        Self {
            memory: GuestMemory::new(),
            name: name.to_owned(),
            flush_worker,
            pages,
            losses: Cell::new(0),
            loss_logged: Cell::new(false),
        }
    }

    /// The client is gone.
    pub(crate) fn forget_client(&mut self) -> Removed {
        self.loss_logged.set(false);
        self.unmap_guest()
    }

    /// What the firmware is told of an access that failed.
    #[cold]
    fn failed(&self, addr: u64, error: AccessError) -> DmaError {
        self.report_loss(&error);
        DmaError { addr }
    }

    /// Logs that a page of this guest was lost, once for each client.
    fn report_loss(&self, error: &AccessError) {
        let losses = self.memory.faults().lost;
        if losses > self.losses.replace(losses) && !self.loss_logged.replace(true) {
            tracing::error!(
                nic = %self.name,
                "{error}; the access fails, and further ones are only counted (dma_errors): make room, or reserve the \
                 memory (prealloc=on)"
            );
        }
    }

    /// Forgets what the guest has lent in a range, which may reach beyond what it can lend.
    pub(crate) fn unmap(&mut self, iova: u64, len: u64) -> Result<Removed, UnmapError> {
        if last_byte(iova, len).is_none() {
            return Err(UnmapError::BadRange { iova, len });
        }
        match DEVICE_MEMORY.saturating_sub(iova) {
            0 => Ok(Removed::default()),
            room => self.memory.unmap(iova, len.min(room)),
        }
    }

    /// Forgets all that the guest has lent.
    pub(crate) fn unmap_guest(&mut self) -> Removed {
        self.memory.unmap(0, DEVICE_MEMORY).unwrap_or_default()
    }
}

/// Whether a range may be the guest's. One that wraps or is empty is refused elsewhere.
pub(crate) fn check_guest_range(iova: u64, size: u64) -> Result<(), Errno> {
    match last_byte(iova, size) {
        Some(last) if last >= DEVICE_MEMORY => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

fn last_byte(iova: u64, len: u64) -> Option<u64> {
    len.checked_sub(1).and_then(|span| iova.checked_add(span))
}

impl Dma for Ram {
    #[inline]
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.memory
            .read(addr, buf)
            .map_err(|error| self.failed(addr, error))
    }

    #[inline]
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.memory
            .write(addr, data)
            .map_err(|error| self.failed(addr, error))
    }

    #[inline]
    fn load_u32(&self, addr: u64) -> Result<u32, DmaError> {
        self.memory
            .load_u32(addr)
            .map_err(|error| self.failed(addr, error))
    }

    #[inline]
    fn store_u32(&self, addr: u64, value: u32) -> Result<(), DmaError> {
        self.memory
            .store_u32(addr, value)
            .map_err(|error| self.failed(addr, error))
    }

    #[inline]
    fn store_u64(&self, addr: u64, value: u64) -> Result<(), DmaError> {
        self.memory
            .store_u64(addr, value)
            .map_err(|error| self.failed(addr, error))
    }

    fn fetch_add_u64(&self, addr: u64, value: u64) -> Result<u64, DmaError> {
        self.memory
            .fetch_add_u64(addr, value)
            .map_err(|error| self.failed(addr, error))
    }

    fn compare_exchange_u64(&self, addr: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        self.memory
            .compare_exchange_u64(addr, expected, new)
            .map_err(|error| self.failed(addr, error))
    }

    fn persist(&self, qpn: u32, ranges: Option<&[(u64, u64)]>) -> Persist {
        self.flush_worker.begin(qpn, self.memory.lasting(ranges))
    }

    fn new_doorbell_page(&self, page: u32) {
        if let Some(page) = self.pages.page(page as usize) {
            bells::prepare(&page);
        }
    }

    #[inline]
    fn copy_from(&self, dst: u64, src: &Self, src_addr: u64, len: usize) -> Result<(), DmaError> {
        self.memory
            .copy_from(dst, &src.memory, src_addr, len)
            .map_err(|error| {
                src.report_loss(&error);
                self.failed(dst, error)
            })
    }
}
