//! Guest memory of the simulator.

use std::cell::RefCell;
use std::rc::Rc;

use crate::bus::RAM_BASE;
use faultline_nic::{Dma, DmaError};

/// Bytes from [`RAM_BASE`] on. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct Memory(Rc<RefCell<Vec<u8>>>);

impl Memory {
    /// Zeroed memory.
    pub fn new(len: usize) -> Self {
        Self(Rc::new(RefCell::new(vec![0; len])))
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, DmaError> {
        let start = addr.checked_sub(RAM_BASE).ok_or(DmaError { addr })?;
        let end = start
            .checked_add(len as u64)
            .filter(|end| *end <= self.len());
        end.map(|end| start as usize..end as usize)
            .ok_or(DmaError { addr })
    }

    fn word(&self, addr: u64) -> Result<u64, DmaError> {
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

impl Dma for Memory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let range = self.range(addr, buf.len())?;
        buf.copy_from_slice(&self.0.borrow()[range]);
        Ok(())
    }

    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        let range = self.range(addr, data.len())?;
        self.0.borrow_mut()[range].copy_from_slice(data);
        Ok(())
    }

    fn load_u32(&self, addr: u64) -> Result<u32, DmaError> {
        let mut bytes = [0; 4];
        self.read(addr, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn store_u32(&self, addr: u64, value: u32) -> Result<(), DmaError> {
        self.write(addr, &value.to_le_bytes())
    }

    fn store_u64(&self, addr: u64, value: u64) -> Result<(), DmaError> {
        self.write(addr, &value.to_le_bytes())
    }

    fn fetch_add_u64(&self, addr: u64, value: u64) -> Result<u64, DmaError> {
        let old = self.word(addr)?;
        self.store_u64(addr, old.wrapping_add(value))?;
        Ok(old)
    }

    fn compare_exchange_u64(&self, addr: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        let old = self.word(addr)?;
        if old == expected {
            self.store_u64(addr, new)?;
        }
        Ok(old)
    }

    fn copy_from(&self, dst: u64, src: &Self, src_addr: u64, len: usize) -> Result<(), DmaError> {
        let mut bytes = vec![0; len];
        src.read(src_addr, &mut bytes)?;
        self.write(dst, &bytes)
    }
}
