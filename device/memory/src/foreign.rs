//! Guest memory that the crate `vm-memory` has mapped, for ports that use `virtio-queue`.
//!
//! `vm-memory` does not report pages that the host cannot provide, so callers check [`ForeignMap::has_lost`] after a few accesses each. Until
//! then an access to such a page has read zeros, or has written to a page that will be discarded.

use std::io;
use std::sync::Arc;

use rustix::fd::AsFd;
use rustix::fs::fstatfs;
use vm_memory::{GuestMemoryRegion, GuestRegionMmap};

use crate::backing::HUGETLBFS;
use crate::mapping::PAGE_SIZE;
use crate::sigbus::{self, Registration};

/// A region of guest memory whose missing pages do not end the process. One thread at a time accesses the regions of a guest, and calls
/// [`Self::has_lost`].
#[derive(Debug)]
pub struct ForeignMap {
    /// Dropped before the region.
    _registration: Registration,
    region: Arc<GuestRegionMmap<()>>,
    page_size: usize,
}

impl ForeignMap {
    /// For a region that is a shared, writable mapping of a file.
    ///
    /// # Errors
    ///
    /// The region is no file, or the process has too many.
    pub fn new(region: Arc<GuestRegionMmap<()>>) -> io::Result<Self> {
        let len = usize::try_from(region.len()).map_err(io::Error::other)?;
        let file = region
            .file_offset()
            .ok_or_else(|| io::Error::other("guest memory that is not a file"))?;
        let fs = fstatfs(file.file())?;
        let page_size = match fs.f_type as u64 == HUGETLBFS {
            true => usize::try_from(fs.f_bsize).unwrap_or(PAGE_SIZE),
            false => PAGE_SIZE,
        };
        let registration = Registration::new(region.as_ptr(), len, page_size)?;
        Ok(Self {
            _registration: registration
                .ok_or_else(|| io::Error::other("too many pieces of guest memory"))?,
            region,
            page_size,
        })
    }

    /// If this page (an address in this process) belongs to the region, maps the file there again.
    fn restore(&self, page: usize) {
        let start = self.region.as_ptr() as usize;
        let len = self.region.size();
        let at = page.checked_sub(start);
        let Some(at) = at.filter(|at| at.saturating_add(self.page_size) <= len) else {
            return;
        };
        let Some(file) = self.region.file_offset() else {
            return;
        };
        // The kernel does not merge mappings of huge pages, so the whole file is mapped again.
        let (at, len) = match self.page_size {
            PAGE_SIZE => (at, PAGE_SIZE),
            _ => (0, len),
        };
        let page = self.region.as_ptr().wrapping_add(at);
        let offset = file.start().wrapping_add(at as u64);
        // SAFETY: the range is within the region, which is a shared and writable mapping that begins at this place of this file, and
        // which the `Arc` keeps. If the kernel is out of memory, the private zero page stays, which affects this guest only.
        let _ = unsafe { sigbus::restore(page, len, file.file().as_fd(), offset, true) };
    }

    /// True if accesses of this thread have met a page that is not there since the last call. Later accesses look for the page again.
    pub fn has_lost<'a>(maps: impl Iterator<Item = &'a Self> + Clone) -> bool {
        if sigbus::none_lost() {
            return false;
        }
        for page in sigbus::take_lost() {
            for map in maps.clone() {
                map.restore(page);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

    use super::*;

    #[test]
    fn a_page_that_is_not_there_is_reported_and_found_again() {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4 * PAGE_SIZE as u64).unwrap();
        let handle = file.try_clone().unwrap();
        let range = (
            GuestAddress(0),
            4 * PAGE_SIZE,
            Some(FileOffset::new(file.into(), 0)),
        );
        let region = GuestRegionMmap::from_range(range.0, range.1, range.2).unwrap();
        let region = Arc::new(region);
        let memory = GuestMemoryMmap::from_arc_regions(vec![Arc::clone(&region)]).unwrap();
        let map = ForeignMap::new(region).unwrap();
        let has_lost = || ForeignMap::has_lost(std::iter::once(&map));
        let at = GuestAddress(3 * PAGE_SIZE as u64 - 8);
        memory.write_slice(&[7; 16], at).unwrap();
        assert!(!has_lost());

        ftruncate(&handle, 3 * PAGE_SIZE as u64).unwrap();
        let mut octets = [1; 16];
        memory.read_slice(&mut octets, at).unwrap();
        assert!(has_lost());
        assert!(!has_lost());
        assert_eq!(octets, [7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]);

        ftruncate(&handle, 4 * PAGE_SIZE as u64).unwrap();
        memory.write_slice(&[9; 16], at).unwrap();
        assert!(!has_lost());
        let mut octet = [0];
        rustix::io::pread(&handle, &mut octet, 3 * PAGE_SIZE as u64).unwrap();
        assert_eq!(octet, [9]);
    }
}
