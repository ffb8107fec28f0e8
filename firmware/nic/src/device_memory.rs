//! Allocations of device memory.
//!
//! The memory itself is not in this module. The NIC accesses it through [`Dma`](crate::Dma), at [`DEVICE_MEMORY`], like
//! the memory of its guest.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "pages and bytes are in the device memory, whose size the configuration limits"
)]

use faultline_abi::Status;

use crate::references::References;
use crate::table::Table;

/// Device memory begins at this address of [`Dma`](crate::Dma). Guest memory has lower addresses.
pub const DEVICE_MEMORY: u64 = 1 << 63;

pub(crate) const PAGE: u64 = faultline_abi::regs::PAGE_SIZE as u64;

/// Contiguous pages.
#[derive(Debug)]
struct Allocation {
    first: u64,
    pages: u64,
    /// Memory keys for them.
    refs: References,
}

/// All allocations of a NIC.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pages: u64,
    allocations: Table<Allocation>,
    /// Page ranges of the allocations, in ascending order: first page, and page after the last.
    places: Vec<(u64, u64)>,
}

impl DeviceMemory {
    /// Device memory of `bytes` bytes, for at most `max` allocations.
    pub(crate) fn new(bytes: u64, max: u32) -> Self {
        Self {
            pages: bytes / PAGE,
            allocations: Table::new(max, 1),
            places: Vec::new(),
        }
    }

    /// Allocates at least `length` bytes. Returns the number of the allocation, its offset in the device memory, and
    /// its size in bytes, which is a multiple of the page size.
    pub(crate) fn alloc(&mut self, length: u64) -> Result<(u32, u64, u64), Status> {
        if length == 0 {
            return Err(Status::BadRange);
        }
        let pages = length.div_ceil(PAGE);
        let (at, first) = self.first_fit(pages).ok_or(Status::NoDeviceMemory)?;
        let make = |_| Allocation {
            first,
            pages,
            refs: References::default(),
        };
        let dm = self.allocations.insert_with(make);
        let dm = dm.ok_or(Status::NoResources)?;
        self.places.insert(at, (first, first + pages));
        Ok((dm, first * PAGE, pages * PAGE))
    }

    /// The first gap of at least `pages` pages: the index of the place behind it, and its first page.
    fn first_fit(&self, pages: u64) -> Option<(usize, u64)> {
        let mut free = 0;
        for (at, (first, end)) in self.places.iter().enumerate() {
            if first - free >= pages {
                return Some((at, free));
            }
            free = *end;
        }
        (self.pages - free >= pages).then_some((self.places.len(), free))
    }

    /// Frees an allocation that has no memory keys.
    pub(crate) fn free(&mut self, dm: u32) -> Result<(), Status> {
        if self.allocations.get(dm).ok_or(Status::BadDm)?.refs.any() {
            return Err(Status::InUse);
        }
        if let Some(allocation) = self.allocations.remove(dm) {
            self.places.retain(|(first, _)| *first != allocation.first);
        }
        Ok(())
    }

    /// Adds the reference of a memory key for this part of an allocation. Returns the address of the part.
    pub(crate) fn hold(&mut self, dm: u32, offset: u64, length: u64) -> Result<u64, Status> {
        let allocation = self.allocations.get_mut(dm).ok_or(Status::BadDm)?;
        let bytes = allocation.pages * PAGE;
        if offset > bytes || length > bytes - offset {
            return Err(Status::BadRange);
        }
        allocation.refs.add();
        Ok(DEVICE_MEMORY + allocation.first * PAGE + offset)
    }

    /// Removes the reference of a memory key.
    pub(crate) fn release(&mut self, dm: u32) {
        if let Some(allocation) = self.allocations.get_mut(dm) {
            allocation.refs.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sufficient_gap_is_used() {
        let mut memory = DeviceMemory::new(8 * PAGE, 8);
        let numbers: Vec<u32> = [PAGE, 2 * PAGE, 1, 4 * PAGE]
            .into_iter()
            .map(|length| memory.alloc(length).unwrap().0)
            .collect();
        assert_eq!(memory.alloc(1), Err(Status::NoDeviceMemory));
        memory.free(numbers[0]).unwrap();
        memory.free(numbers[2]).unwrap();
        assert_eq!(memory.alloc(PAGE + 1), Err(Status::NoDeviceMemory));
        memory.free(numbers[1]).unwrap();
        assert_eq!(memory.free(numbers[1]), Err(Status::BadDm));
        let (_, offset, length) = memory.alloc(3 * PAGE + 1).unwrap();
        assert_eq!((offset, length), (0, 4 * PAGE));
    }

    #[test]
    fn lengths_and_offsets_never_wrap() {
        let mut memory = DeviceMemory::new(8 * PAGE, 2);
        assert_eq!(memory.alloc(0), Err(Status::BadRange));
        assert_eq!(memory.alloc(u64::MAX), Err(Status::NoDeviceMemory));
        assert_eq!(memory.alloc(8 * PAGE + 1), Err(Status::NoDeviceMemory));
        let (dm, ..) = memory.alloc(8 * PAGE).unwrap();
        for (offset, length) in [(8 * PAGE, 1), (1, 8 * PAGE), (u64::MAX, 2), (1, u64::MAX)] {
            assert_eq!(memory.hold(dm, offset, length), Err(Status::BadRange));
        }
        assert_eq!(memory.hold(dm + 1, 0, 0), Err(Status::BadDm));
        assert_eq!(memory.hold(dm, 8 * PAGE, 0), Ok(DEVICE_MEMORY + 8 * PAGE));
        assert_eq!(memory.free(dm), Err(Status::InUse));
        memory.release(dm);
        assert_eq!(memory.free(dm), Ok(()));
    }

    #[test]
    fn the_number_of_allocations_is_bounded() {
        let mut memory = DeviceMemory::new(8 * PAGE, 1);
        memory.alloc(1).unwrap();
        assert_eq!(memory.alloc(1), Err(Status::NoResources));
    }
}
