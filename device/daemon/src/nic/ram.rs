//! DMA of one NIC: the memory of its guest, and the NIC's own device memory.

use std::cell::Cell;
use std::sync::Arc;

use faultline_memory::{AccessError, GuestMemory, Removed, SharedPages, UnmapError};
use faultline_nic::{DEVICE_MEMORY, Dma, DmaError, Persist};
use faultline_vfio_user::Errno;

use crate::log::diagnostics::NicLog;
use crate::log::notice::Notice;
use crate::nic::doorbell_ring;
use crate::nic::durable::FlushWorker;

/// The memory that a NIC can access: guest memory below address [`DEVICE_MEMORY`], device memory from there on.
#[derive(Debug)]
pub struct Ram {
    pub(crate) memory: GuestMemory,
    log: NicLog,
    flush_worker: FlushWorker,
    /// BAR 2.
    pages: Arc<SharedPages>,
    /// Value of `FaultCounts::lost` when it was last read.
    losses: Cell<u64>,
    /// A lost page of this client's memory was logged.
    loss_logged: Cell<bool>,
}

impl Ram {
    /// No guest memory is mapped yet; `pages` is BAR 2.
    pub(crate) fn new(log: NicLog, flush_worker: FlushWorker, pages: Arc<SharedPages>) -> Self {
        Self {
            memory: GuestMemory::new(),
            log,
            flush_worker,
            pages,
            losses: Cell::new(0),
            loss_logged: Cell::new(false),
        }
    }

    /// Memory without a guest: nothing is mapped, and flushes are refused.
    pub(crate) fn of_pages(log: NicLog, pages: Arc<SharedPages>) -> Self {
        let flush_worker = FlushWorker::new("link", log.clone(), |_| false);
        Self::new(log, flush_worker, pages)
    }

    /// Resets the state of a client that has disconnected, and removes its maps.
    pub(crate) fn forget_client(&mut self) -> Removed {
        self.loss_logged.set(false);
        self.unmap_guest()
    }

    /// Converts the error of a failed access for the firmware.
    #[cold]
    fn failed(&self, addr: u64, error: AccessError) -> DmaError {
        self.report_loss(&error);
        DmaError { addr }
    }

    /// Logs that the file behind guest memory has lost a page, once for each client.
    fn report_loss(&self, error: &AccessError) {
        let losses = self.memory.faults().lost;
        if losses > self.losses.replace(losses) && !self.loss_logged.replace(true) {
            self.log.notice(Notice::LostPage(*error));
        }
    }

    /// Removes the maps of guest memory in a range. The part of the range in device memory is ignored.
    pub(crate) fn unmap(&mut self, iova: u64, len: u64) -> Result<Removed, UnmapError> {
        if last_byte(iova, len).is_none() {
            return Err(UnmapError::BadRange { iova, len });
        }
        match DEVICE_MEMORY.saturating_sub(iova) {
            0 => Ok(Removed::default()),
            room => self.memory.unmap(iova, len.min(room)),
        }
    }

    /// Removes all maps of guest memory.
    pub(crate) fn unmap_guest(&mut self) -> Removed {
        self.memory.unmap(0, DEVICE_MEMORY).unwrap_or_default()
    }
}

/// Refuses a range that overlaps device memory. [`GuestMemory`] refuses a range that is empty or wraps.
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
        self.flush_worker
            .begin(qpn, self.memory.persistent_ranges(ranges))
    }

    fn new_doorbell_page(&self, page: u32) {
        if let Some(page) = self.pages.page(page as usize) {
            doorbell_ring::prepare(&page);
        }
    }

    #[inline(always)]
    fn copy_from(&self, dst: u64, src: &Self, src_addr: u64, len: usize) -> Result<(), DmaError> {
        self.memory
            .copy_from(dst, &src.memory, src_addr, len)
            .map_err(|error| {
                src.report_loss(&error);
                self.failed(dst, error)
            })
    }
}
