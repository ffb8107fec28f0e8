//! The interface between a driver and its surroundings.

use faultline_abi::doorbell::Doorbell;

/// DMA address of the first byte of the driver's memory. Not zero, so that an offset taken for an address fails.
pub const RAM_BASE: u64 = 0x4000_0000;

/// A way to reach a device and the memory it shares with the driver. Addresses are DMA addresses; an address
/// outside of the memory is a mistake of the test and panics. The words are for memory that no other thread uses: a bus whose device
/// has a thread of its own loads and stores them itself.
pub trait Bus {
    /// Bytes of memory from [`RAM_BASE`] on.
    fn ram_len(&self) -> u64;
    /// Reads memory.
    fn read(&self, addr: u64, buf: &mut [u8]);
    /// Writes memory.
    fn write(&self, addr: u64, data: &[u8]);
    /// Loads a word with acquire ordering.
    fn load_u32(&self, addr: u64) -> u32 {
        let mut bytes = [0; 4];
        self.read(addr, &mut bytes);
        u32::from_le_bytes(bytes)
    }
    /// Loads a word with acquire ordering.
    fn load_u64(&self, addr: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes);
        u64::from_le_bytes(bytes)
    }
    /// Stores a word with release ordering.
    fn store_u32(&self, addr: u64, value: u32) {
        self.write(addr, &value.to_le_bytes());
    }
    /// Reads a register.
    fn read_register(&mut self, offset: u32) -> u32;
    /// Writes a register.
    fn write_register(&mut self, offset: u32, value: u32);
    /// Rings a doorbell on a page.
    fn doorbell(&mut self, page: u32, bell: Doorbell);
    /// Called while the driver waits. Returns false if no event can come any more.
    fn wait(&mut self) -> bool;
    /// The driver has made a queue pair, or is about to begin a connection on it.
    fn renewed(&mut self, qpn: u32) {
        let _ = qpn;
    }
}
