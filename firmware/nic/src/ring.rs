//! Rings in guest memory: the addresses of their entries.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "depth, stride and page size have passed the checks of Ring::load; addresses wrap explicitly"
)]

use faultline_abi::Status;
use faultline_abi::admin::RingDesc;
use faultline_abi::wqe::{RING_RECORD_SIZE, WqRecord};

use crate::budget::{Budget, Held};
use crate::dma::Dma;
use crate::number::to_usize;

/// Pages in one page of addresses.
const ADDRS_PER_PAGE: u32 = 512;
/// Longest page list of a ring: 2^18 pages, 1 GiB of 4 KiB pages.
const MAX_PAGES: u32 = ADDRS_PER_PAGE * ADDRS_PER_PAGE;

/// A ring of entries of 2^`stride_shift` bytes, resolved to DMA addresses when it was created.
#[derive(Debug)]
pub(crate) struct Ring {
    pages: Pages,
    log_depth: u8,
    stride_shift: u8,
}

#[derive(Debug)]
enum Pages {
    Contiguous(u64),
    List {
        shift: u8,
        pages: Box<[u64]>,
        _held: Held,
    },
}

impl Ring {
    /// Reads the page list of a ring of 2^`log_depth` entries of 2^`stride_shift` bytes and its record.
    ///
    /// Fails with `BadRing` for a malformed or too short description, with `DmaError` if a list can't be read,
    /// and with `NoResources` if the guest's NIC holds too much already.
    pub(crate) fn load<M: Dma>(
        desc: &RingDesc,
        log_depth: u8,
        stride_shift: u8,
        with_record: bool,
        budget: &Budget,
        mem: &M,
    ) -> Result<Self, Status> {
        let record = if with_record {
            u64::from(RING_RECORD_SIZE)
        } else {
            0
        };
        let need = (1u64 << (log_depth + stride_shift)) + record;
        let (shift, count) = (desc.page_shift, desc.num_pages.get());
        let well_formed = (12..=30).contains(&shift)
            && (1..=MAX_PAGES).contains(&count)
            && desc.reserved.get() == 0
            && desc.addr.get() & 63 == 0;
        if !well_formed || (u64::from(count) << shift) < need {
            return Err(Status::BadRing);
        }
        // If the list is too long, the ring needs only its first pages.
        let needed = u32::try_from(need.div_ceil(1 << shift));
        let count = needed.map_or(count, |needed| needed.min(count));
        let held = match desc.levels {
            0 => budget.take(0),
            _ => budget.take(count as usize * 8),
        };
        let _held = held.ok_or(Status::NoResources)?;
        if desc.levels > 0 {
            budget.charge_list(u64::from(count));
        }
        let pages = match desc.levels {
            0 => {
                let addr = desc.addr.get();
                addr.checked_add(need).ok_or(Status::BadRing)?;
                Pages::Contiguous(addr)
            }
            1 => Pages::List {
                shift,
                pages: read_addrs(mem, desc.addr.get(), count)?.into_boxed_slice(),
                _held,
            },
            2 => {
                let lists = read_addrs(mem, desc.addr.get(), count.div_ceil(ADDRS_PER_PAGE))?;
                let mut pages = Vec::with_capacity(count as usize);
                let mut left = count;
                for list in lists {
                    let n = left.min(ADDRS_PER_PAGE);
                    pages.extend(read_addrs(mem, list, n)?);
                    left -= n;
                }
                Pages::List {
                    shift,
                    pages: pages.into_boxed_slice(),
                    _held,
                }
            }
            _ => return Err(Status::BadRing),
        };
        if let Pages::List { shift, pages, .. } = &pages
            && pages.iter().any(|page| page & ((1 << shift) - 1) != 0)
        {
            return Err(Status::BadRing);
        }
        Ok(Self {
            pages,
            log_depth,
            stride_shift,
        })
    }

    /// Address of the word in the record that has the number of entries taken.
    pub(crate) fn consumer_word(&self) -> u64 {
        self.record()
            .wrapping_add(core::mem::offset_of!(WqRecord, consumer) as u64)
    }

    /// Entries.
    pub(crate) fn depth(&self) -> u32 {
        1 << self.log_depth
    }

    /// log2 of the bytes in an entry.
    pub(crate) fn stride_shift(&self) -> u8 {
        self.stride_shift
    }

    /// Bytes in an entry.
    pub(crate) fn stride(&self) -> usize {
        1 << self.stride_shift
    }

    /// DMA address of the entry with this running number.
    pub(crate) fn entry(&self, index: u32) -> u64 {
        let slot = u64::from(index & (self.depth() - 1));
        self.addr(slot << self.stride_shift)
    }

    /// DMA address of the record after the entries.
    pub(crate) fn record(&self) -> u64 {
        self.addr(1 << (self.log_depth + self.stride_shift))
    }

    /// The phase of an entry with this running number in a ring whose entries carry phases.
    pub(crate) fn phase(&self, index: u32) -> u8 {
        (!(index >> self.log_depth) & 1) as u8
    }

    // No entry and no record crosses a page: both are powers of two, aligned to their size.
    fn addr(&self, offset: u64) -> u64 {
        match &self.pages {
            Pages::Contiguous(base) => base.wrapping_add(offset),
            Pages::List { shift, pages, .. } => {
                let page = pages.get(to_usize(offset >> shift)).copied();
                // An offset beyond the list can't arise: `load` compared lengths. An address that is
                // certainly not mapped turns a mistake into a counted DMA error.
                page.unwrap_or(u64::MAX << shift) | (offset & ((1 << shift) - 1))
            }
        }
    }
}

fn read_addrs<M: Dma>(mem: &M, addr: u64, count: u32) -> Result<Vec<u64>, Status> {
    let mut bytes = vec![0; count as usize * 8];
    mem.read(addr, &mut bytes).map_err(|_| Status::DmaError)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// Writes a 64-byte entry so that its last word, with the phase, becomes visible after the rest.
pub(crate) fn write_entry<M: Dma>(mem: &M, addr: u64, entry: &[u8]) -> Result<(), crate::DmaError> {
    let Some((head, tail)) = entry.split_last_chunk::<8>() else {
        return Ok(());
    };
    mem.write(addr, head)?;
    mem.store_u64(
        addr.wrapping_add(head.len() as u64),
        u64::from_le_bytes(*tail),
    )
}
