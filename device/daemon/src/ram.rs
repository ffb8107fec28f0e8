//! Guest memory as the firmware wants it.

use faultline_memory::{AccessError, GuestMemory};
use faultline_nic::{Dma, DmaError};

/// The memory of one guest.
#[derive(Debug, Default)]
pub(crate) struct Ram(pub GuestMemory);

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

    fn persist(&self) -> Result<(), DmaError> {
        self.0.sync().map_err(|_| DmaError { addr: 0 })
    }

    #[inline]
    fn copy_from(&self, dst: u64, src: &Self, src_addr: u64, len: usize) -> Result<(), DmaError> {
        self.0
            .copy_from(dst, &src.0, src_addr, len)
            .map_err(at(dst))
    }
}
