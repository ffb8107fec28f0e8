//! Memory of queues.

use faultline_abi::admin::RingDesc;
use faultline_abi::wqe::RING_RECORD_SIZE;
use faultline_abi::{U32, U64};

use crate::error::DriverError;
use crate::nic::Nic;
use crate::ram::Buf;

const PAGE: usize = 4096;

/// How the memory of a queue is described to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingLayout {
    /// In one piece.
    #[default]
    Contiguous,
    /// A list of pages; they stand in memory in reverse order.
    List,
    /// A list of lists of pages, in reverse order too.
    TwoLevels,
}

/// A ring and the record behind it. Offsets count in the order of the ring.
#[derive(Debug)]
pub struct RingMemory {
    buf: Buf,
    /// Flips the bits of the page number where pages are in reverse order.
    flip: usize,
    record: usize,
    desc: RingDesc,
    _lists: Vec<Buf>,
}

impl RingMemory {
    pub(crate) fn new(
        nic: &Nic,
        size: usize,
        layout: RingLayout,
    ) -> Result<std::sync::Arc<Self>, DriverError> {
        let need = size + RING_RECORD_SIZE as usize;
        let what = "a ring";
        if layout == RingLayout::Contiguous {
            let buf = nic.alloc_aligned(need, 64, what)?;
            let desc = RingDesc {
                addr: U64::new(buf.dma(0)),
                num_pages: U32::new(need.div_ceil(PAGE) as u32),
                page_shift: 12,
                ..RingDesc::default()
            };
            return Ok(std::sync::Arc::new(Self {
                buf,
                flip: 0,
                record: size,
                desc,
                _lists: Vec::new(),
            }));
        }
        let pages = need.div_ceil(PAGE).next_power_of_two();
        let buf = nic.alloc_aligned(pages * PAGE, PAGE as u64, what)?;
        let addrs: Vec<u64> = (0..pages).rev().map(|page| buf.dma(page * PAGE)).collect();
        let list_of = |addrs: &[u64]| -> Result<Buf, DriverError> {
            let list = nic.alloc_aligned(addrs.len() * 8, PAGE as u64, "a list of pages")?;
            for (i, addr) in addrs.iter().enumerate() {
                list.store_u64(i * 8, *addr);
            }
            Ok(list)
        };
        let mut lists = Vec::new();
        let (top, levels) = if layout == RingLayout::List {
            (list_of(&addrs)?, 1)
        } else {
            for chunk in addrs.chunks(512) {
                lists.push(list_of(chunk)?);
            }
            let addrs: Vec<u64> = lists.iter().map(|list| list.dma(0)).collect();
            (list_of(&addrs)?, 2)
        };
        let desc = RingDesc {
            addr: U64::new(top.dma(0)),
            num_pages: U32::new(pages as u32),
            page_shift: 12,
            levels,
            ..RingDesc::default()
        };
        lists.push(top);
        Ok(std::sync::Arc::new(Self {
            buf,
            flip: (pages - 1) * PAGE,
            record: size,
            desc,
            _lists: lists,
        }))
    }

    /// What the device is told.
    pub fn desc(&self) -> RingDesc {
        self.desc
    }

    /// Offset of the record.
    pub fn record(&self) -> usize {
        self.record
    }

    /// Copies out; must not cross a page.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        self.buf.read(at ^ self.flip, bytes);
    }

    /// Copies in; must not cross a page.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.buf.write(at ^ self.flip, bytes);
    }

    /// Acquire load.
    #[inline]
    pub fn load_u64(&self, at: usize) -> u64 {
        self.buf.load_u64(at ^ self.flip)
    }

    /// Acquire load.
    #[inline]
    pub fn load_u32(&self, at: usize) -> u32 {
        self.buf.load_u32(at ^ self.flip)
    }

    /// Release store.
    #[inline]
    pub fn store_u32(&self, at: usize, value: u32) {
        self.buf.store_u32(at ^ self.flip, value);
    }

    /// Sets everything to zero.
    pub fn clear(&self) {
        self.buf.fill(0, self.buf.len(), 0);
    }
}
