//! Guest memory as the firmware wants it, and the device's own beside it.

use faultline_memory::{AccessError, GuestMemory, UnmapError};
use faultline_nic::{DEVICE_MEMORY, Dma, DmaError, Persist};
use faultline_vfio_user::Errno;

use crate::durable::Keeper;

/// The memory of one guest; from [`DEVICE_MEMORY`] on that of its NIC.
#[derive(Debug)]
pub(crate) struct Ram(pub GuestMemory, Keeper);

impl Ram {
    /// No memory yet.
    pub(crate) fn new(keeper: Keeper) -> Self {
        Self(GuestMemory::new(), keeper)
    }

    /// Forgets what the guest has lent in a range, which may reach beyond what it can lend.
    pub(crate) fn unmap(&mut self, iova: u64, len: u64) -> Result<(), UnmapError> {
        if last_byte(iova, len).is_none() {
            return Err(UnmapError::BadRange { iova, len });
        }
        match DEVICE_MEMORY.saturating_sub(iova) {
            0 => Ok(()),
            room => self.0.unmap(iova, len.min(room)).map(drop),
        }
    }

    /// Forgets all that the guest has lent.
    pub(crate) fn unmap_guest(&mut self) {
        let _ = self.0.unmap(0, DEVICE_MEMORY);
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

fn at(addr: u64) -> impl FnOnce(AccessError) -> DmaError {
    move |_| DmaError { addr }
}

impl Dma for Ram {
    #[inline]
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.0.read(addr, buf).map_err(at(addr))
    }

    #[inline]
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.0.write(addr, data).map_err(at(addr))
    }

    #[inline]
    fn load_u32(&self, addr: u64) -> Result<u32, DmaError> {
        self.0.load_u32(addr).map_err(at(addr))
    }

    #[inline]
    fn store_u32(&self, addr: u64, value: u32) -> Result<(), DmaError> {
        self.0.store_u32(addr, value).map_err(at(addr))
    }

    #[inline]
    fn store_u64(&self, addr: u64, value: u64) -> Result<(), DmaError> {
        self.0.store_u64(addr, value).map_err(at(addr))
    }

    fn fetch_add_u64(&self, addr: u64, value: u64) -> Result<u64, DmaError> {
        self.0.fetch_add_u64(addr, value).map_err(at(addr))
    }

    fn compare_exchange_u64(&self, addr: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        self.0
            .compare_exchange_u64(addr, expected, new)
            .map_err(at(addr))
    }

    fn persist(&self, qpn: u32, ranges: Option<&[(u64, u64)]>) -> Persist {
        self.1.begin(qpn, self.0.lasting(ranges))
    }

    #[inline]
    fn copy_from(&self, dst: u64, src: &Self, src_addr: u64, len: usize) -> Result<(), DmaError> {
        self.0
            .copy_from(dst, &src.0, src_addr, len)
            .map_err(at(dst))
    }
}
