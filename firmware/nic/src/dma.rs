//! Access of the firmware to the memory of its guest.

/// An access to guest memory that could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no guest memory at DMA address {addr:#x}")]
pub struct DmaError {
    /// The address that failed.
    pub addr: u64,
}

/// Progress of a request to make memory durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    /// The memory is durable, as far as its backing allows.
    Done,
    /// The write-back has begun. [`Nic::persisted`](crate::Nic::persisted) reports its end, with this number.
    Begun(u64),
    /// Too many write-backs are in progress.
    Busy,
}

/// Guest memory by DMA address. Other processors can change it at any time, so every value is copied once into private
/// memory before use. Values are little-endian.
pub trait Dma {
    /// Reads bytes.
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError>;
    /// Writes bytes. The last ones are written last.
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError>;
    /// Loads an aligned word with acquire ordering.
    fn load_u32(&self, addr: u64) -> Result<u32, DmaError>;
    /// Stores an aligned word with release ordering.
    fn store_u32(&self, addr: u64, value: u32) -> Result<(), DmaError>;
    /// Stores an aligned word with release ordering.
    fn store_u64(&self, addr: u64, value: u64) -> Result<(), DmaError>;
    /// Adds to an aligned word. Returns the old value.
    fn fetch_add_u64(&self, addr: u64, value: u64) -> Result<u64, DmaError>;
    /// Replaces an aligned word if it equals `expected`. Returns the old value.
    fn compare_exchange_u64(&self, addr: u64, expected: u64, new: u64) -> Result<u64, DmaError>;
    /// Makes earlier writes durable, as far as the backing of the memory is: those to these ranges (address, bytes), or
    /// all if `ranges` is `None`. Returns without waiting for the write-back. `qpn` is the queue pair that requests it.
    fn persist(&self, qpn: u32, ranges: Option<&[(u64, u64)]>) -> Persist;
    /// Zeroes doorbell page `page`, which is about to be assigned to a user context, and sets its `alive`. The driver
    /// learns of the context only after this returns.
    fn new_doorbell_page(&self, page: u32);
    /// Copies from the memory of another guest, or of this one (the ranges may overlap).
    fn copy_from(&self, dst: u64, src: &Self, src_addr: u64, len: usize) -> Result<(), DmaError>;
}
