//! Memory of a guest whose other processors, and whose storage, act while the device works.

use std::cell::{Cell, RefCell};
use std::mem::offset_of;
use std::rc::Rc;

use faultline_abi::wqe::WqRecord;
use faultline_nic::{Dma, DmaError, Persist};
use faultline_simulation::Memory;

/// Memory of a guest. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct GuestMemory {
    memory: Memory,
    /// Requests to make memory durable, if that takes a while.
    persisting: Rc<RefCell<Option<Vec<Persisting>>>>,
    persists: Rc<Cell<u64>>,
    rival: Rc<Cell<Option<Rival>>>,
    racer: Racer,
}

/// Another processor of the guest, which changes memory while the device reads it: gets the address and the bytes of each
/// of the device's reads, and may put others in their place.
type Race = Box<dyn FnMut(u64, &mut [u8])>;

#[derive(Clone, Default)]
struct Racer(Rc<RefCell<Option<Race>>>);

impl std::fmt::Debug for Racer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Racer")
    }
}

/// Another processor of the guest, which posts as fast as the device takes: whenever the device looks at the record of
/// a receive queue, the queue is full again.
#[derive(Clone, Copy, Debug)]
struct Rival {
    record: u64,
    depth: u32,
    /// Reads that are left before it stops: otherwise a device that reads without end would never end the test.
    left: u32,
}

/// A NIC's request to make memory durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Persisting {
    /// The queue pair that requests it.
    pub qpn: u32,
    /// Number of the request.
    pub number: u64,
    /// Addresses and bytes; None: all.
    pub ranges: Option<Vec<(u64, u64)>>,
}

impl GuestMemory {
    pub(crate) fn new(len: usize, device: usize) -> Self {
        Self {
            memory: Memory::with_device(len, device),
            persisting: Rc::default(),
            persists: Rc::default(),
            rival: Rc::default(),
            racer: Racer::default(),
        }
    }

    /// The memory that the guest's own processor reads and writes.
    pub(crate) fn own(&self) -> &Memory {
        &self.memory
    }

    /// True if another processor changes or counts the reads of the device.
    pub(crate) fn is_raced(&self) -> bool {
        self.racer.0.borrow().is_some()
    }

    pub(crate) fn race(&self, race: impl FnMut(u64, &mut [u8]) + 'static) {
        *self.racer.0.borrow_mut() = Some(Box::new(race));
    }

    /// Keeps the receive queue with this record full, for `looks` looks of the device.
    pub(crate) fn keep_full(&self, (record, depth): (u64, u32), left: u32) {
        self.rival.set(Some(Rival {
            record,
            depth,
            left,
        }));
    }

    pub(crate) fn persist_slowly(&self) {
        *self.persisting.borrow_mut() = Some(Vec::new());
    }

    pub(crate) fn persisting(&self) -> Vec<Persisting> {
        self.persisting.borrow().clone().unwrap_or_default()
    }

    /// Takes the oldest request to make memory durable.
    pub(crate) fn take_persisting(&self) -> Persisting {
        match &mut *self.persisting.borrow_mut() {
            Some(requests) => requests.remove(0),
            None => panic!("the memory of this host is durable at once"),
        }
    }

    fn let_rival_post(&self, addr: u64) -> Result<(), DmaError> {
        if let Some(mut rival) = self.rival.get()
            && rival.record == addr
            && rival.left > 0
        {
            rival.left -= 1;
            self.rival.set(Some(rival));
            let consumer = addr + offset_of!(WqRecord, consumer) as u64;
            let consumer = self.memory.load_u32(consumer)?;
            self.store_u32(addr, consumer.wrapping_add(rival.depth))?;
        }
        Ok(())
    }
}

impl Dma for GuestMemory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.memory.read(addr, buf)?;
        if let Some(race) = &mut *self.racer.0.borrow_mut() {
            race(addr, buf);
        }
        Ok(())
    }

    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.memory.write(addr, data)
    }

    fn load_u32(&self, addr: u64) -> Result<u32, DmaError> {
        self.let_rival_post(addr)?;
        let mut bytes = [0; 4];
        self.read(addr, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn store_u32(&self, addr: u64, value: u32) -> Result<(), DmaError> {
        self.memory.store_u32(addr, value)
    }

    fn store_u64(&self, addr: u64, value: u64) -> Result<(), DmaError> {
        self.memory.store_u64(addr, value)
    }

    fn fetch_add_u64(&self, addr: u64, value: u64) -> Result<u64, DmaError> {
        self.memory.fetch_add_u64(addr, value)
    }

    fn compare_exchange_u64(&self, addr: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        self.memory.compare_exchange_u64(addr, expected, new)
    }

    fn new_doorbell_page(&self, page: u32) {
        self.memory.new_doorbell_page(page);
    }

    fn persist(&self, qpn: u32, ranges: Option<&[(u64, u64)]>) -> Persist {
        match &mut *self.persisting.borrow_mut() {
            None => self.memory.persist(qpn, ranges),
            Some(requests) => {
                let number = self.persists.get() + 1;
                self.persists.set(number);
                requests.push(Persisting {
                    qpn,
                    number,
                    ranges: ranges.map(<[_]>::to_vec),
                });
                Persist::Begun(number)
            }
        }
    }

    fn copy_from(&self, dst: u64, src: &Self, src_addr: u64, len: usize) -> Result<(), DmaError> {
        let mut bytes = vec![0; len];
        src.read(src_addr, &mut bytes)?;
        self.write(dst, &bytes)
    }
}
