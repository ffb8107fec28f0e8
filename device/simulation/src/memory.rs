//! Memory of a simulated guest.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "`pieces` has checked the range"
)]

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use faultline_nic::{DEVICE_MEMORY, Dma, DmaError, Persist, count_steps};

use crate::bus::RAM_BASE;

const PAGE: usize = 4096;
/// Steps of the device for an access: see [`faultline_nic::steps`].
const STEPS_PER_ACCESS: u64 = 4;
const BYTES_PER_STEP: usize = 16;

/// A page; `None`: all zero. Tests make thousands of worlds, whose drivers clear the memory that they allocate.
type Page = Option<Box<[u8; PAGE]>>;

const ZEROES: [u8; PAGE] = [0; PAGE];

/// Consecutive pages. A memory that is hardly used has few of these to create and to drop.
type Pages = Option<Box<[Page; PAGES]>>;

const PAGES: usize = 64;

/// The memory that a NIC accesses: that of its guest from [`RAM_BASE`] on, and its own from [`DEVICE_MEMORY`] on. A clone is
/// the same memory.
#[derive(Clone, Debug)]
pub struct Memory {
    ram: Area,
    device: Area,
}

#[derive(Clone, Debug)]
struct Area {
    pages: Rc<RefCell<Vec<Pages>>>,
    len: usize,
}

impl Area {
    fn new(len: usize) -> Self {
        assert!(len.is_multiple_of(PAGE), "{len} bytes are not whole pages");
        let count = len.div_ceil(PAGE * PAGES);
        let pages = std::iter::repeat_with(|| None).take(count);
        Self {
            pages: Rc::new(RefCell::new(pages.collect())),
            len,
        }
    }

    fn len(&self) -> u64 {
        self.len as u64
    }
}

/// Calls `piece` with a page. The page is kept if `piece` has written to it.
fn with_page(pages: &mut [Pages], number: usize, piece: impl FnOnce(&mut Page)) {
    match &mut pages[number / PAGES] {
        Some(pages) => piece(&mut pages[number % PAGES]),
        absent => {
            let mut page = None;
            piece(&mut page);
            if page.is_some() {
                absent.insert(Box::new([const { None }; PAGES]))[number % PAGES] = page;
            }
        }
    }
}

impl Memory {
    /// Zeroed memory of `len` bytes, whole pages.
    pub fn new(len: usize) -> Self {
        Self::with_device(len, 0)
    }

    /// The same, with `device` bytes of device memory.
    pub fn with_device(len: usize, device: usize) -> Self {
        Self {
            ram: Area::new(len),
            device: Area::new(device),
        }
    }

    /// Bytes of the guest.
    pub fn len(&self) -> u64 {
        self.ram.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `piece` for each part of a range that lies in one page: page, offset there, part of the range.
    fn pieces(
        &self,
        addr: u64,
        len: usize,
        mut piece: impl FnMut(&mut Page, usize, Range<usize>),
    ) -> Result<(), DmaError> {
        let (area, base) = match addr {
            DEVICE_MEMORY.. => (&self.device, DEVICE_MEMORY),
            _ => (&self.ram, RAM_BASE),
        };
        let start = addr.checked_sub(base).ok_or(DmaError { addr })?;
        start
            .checked_add(len as u64)
            .filter(|end| *end <= area.len())
            .ok_or(DmaError { addr })?;
        count_steps(STEPS_PER_ACCESS + (len / BYTES_PER_STEP) as u64);
        let mut pages = area.pages.borrow_mut();
        let (start, mut done) = (start as usize, 0);
        while done < len {
            let (page, within) = ((start + done) / PAGE, (start + done) % PAGE);
            let n = (PAGE - within).min(len - done);
            with_page(&mut pages, page, |page| {
                piece(page, within, done..done + n);
            });
            done += n;
        }
        Ok(())
    }

    fn word(&self, addr: u64) -> Result<u64, DmaError> {
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

impl Dma for Memory {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.pieces(addr, buf.len(), |page, within, part| {
            let into = &mut buf[part];
            match page {
                Some(bytes) => into.copy_from_slice(&bytes[within..within + into.len()]),
                None => into.fill(0),
            }
        })
    }

    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.pieces(addr, data.len(), |page, within, part| {
            let from = &data[part];
            if page.is_none() && *from == ZEROES[..from.len()] {
                return;
            }
            let bytes = page.get_or_insert_with(|| Box::new(ZEROES));
            bytes[within..within + from.len()].copy_from_slice(from);
        })
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

    /// Doorbells are calls here; there are no pages.
    fn new_doorbell_page(&self, _: u32) {}

    /// Its contents are durable at once.
    fn persist(&self, _: u32, _: Option<&[(u64, u64)]>) -> Persist {
        Persist::Done
    }

    fn copy_from(&self, dst: u64, src: &Self, src_addr: u64, len: usize) -> Result<(), DmaError> {
        let mut bytes = vec![0; len];
        src.read(src_addr, &mut bytes)?;
        self.write(dst, &bytes)
    }
}
