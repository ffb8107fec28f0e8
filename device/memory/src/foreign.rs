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

    /// Maps the file again where these addresses of this process are in the region.
    fn restore(&self, lost: &std::ops::Range<usize>) {
        let place = (self.region.as_ptr() as usize, self.region.size());
        let part = sigbus::part_of(lost, place, self.page_size);
        let (Some((at, len)), Some(file)) = (part, self.region.file_offset()) else {
            return;
        };
        let page = self.region.as_ptr().wrapping_add(at);
        let offset = file.start().wrapping_add(at as u64);
        // SAFETY: the range is within the region, which is a shared and writable mapping that begins at this place of this file, and
        // which the `Arc` keeps. If the kernel is out of memory, the private zero page stays, which affects this guest only.
        let _ = unsafe { sigbus::restore(page, len, file.file().as_fd(), offset, true) };
    }

    /// True if accesses of this thread have met an absent page since the last call. Later accesses look for the page
    /// again.
    pub fn has_lost<'a>(maps: impl Iterator<Item = &'a Self> + Clone) -> bool {
        if sigbus::none_lost() {
            return false;
        }
        for lost in sigbus::take_lost() {
            for map in maps.clone() {
                map.restore(&lost);
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

    /// Each second page, one octet each, in a chain of accesses before the first look for lost pages.
    #[test]
    fn any_number_of_pages_may_be_lost_before_the_first_look() {
        const PAGES: usize = 4096;
        let file = memfd_create("chain", MemfdFlags::CLOEXEC).unwrap();
        let len = PAGES * PAGE_SIZE;
        ftruncate(&file, len as u64).unwrap();
        let handle = file.try_clone().unwrap();
        // Of two regions: one alone could be the part with all pages.
        let regions: Vec<_> = [0, 1]
            .map(|n| {
                let offset = FileOffset::new(file.try_clone().unwrap().into(), n * len as u64 / 2);
                let start = GuestAddress(n * len as u64 / 2);
                Arc::new(GuestRegionMmap::from_range(start, len / 2, Some(offset)).unwrap())
            })
            .into();
        let memory = GuestMemoryMmap::from_arc_regions(regions.clone()).unwrap();
        let maps: Vec<_> = regions
            .into_iter()
            .map(|region| ForeignMap::new(region).unwrap())
            .collect();
        let has_lost = || ForeignMap::has_lost(maps.iter());
        for count in [1, 63, 64, 65, 1024, 2048] {
            ftruncate(&handle, 0).unwrap();
            for n in 0..count {
                // From both regions in turn.
                let page = if n % 2 == 0 { n } else { PAGES / 2 + n - 1 };
                let at = GuestAddress((page * PAGE_SIZE) as u64);
                memory.write_slice(&[1], at).unwrap();
            }
            assert!(has_lost(), "{count} pages");
            ftruncate(&handle, len as u64).unwrap();
            let mut octets = vec![1; len];
            memory.read_slice(&mut octets, GuestAddress(0)).unwrap();
            assert!(!has_lost());
            let is_zero = octets.iter().all(|octet| *octet == 0);
            assert!(is_zero, "no lost page is seen, {count} pages");
            let at = GuestAddress(len as u64 - 1);
            memory.write_slice(&[9], at).unwrap();
            let mut octet = [0];
            rustix::io::pread(&handle, &mut octet, len as u64 - 1).unwrap();
            assert_eq!(octet, [9], "all pages are those of the file again");
        }
    }

    /// More than there are parts in the record.
    #[test]
    fn any_number_of_regions_may_lose_a_page_before_the_first_look() {
        const REGIONS: u64 = 200;
        let file = memfd_create("regions", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, REGIONS * PAGE_SIZE as u64).unwrap();
        let region = |n: u64| {
            let at = n * PAGE_SIZE as u64;
            let offset = FileOffset::new(file.try_clone().unwrap().into(), at);
            // Apart from each other.
            let start = GuestAddress(2 * at);
            Arc::new(GuestRegionMmap::from_range(start, PAGE_SIZE, Some(offset)).unwrap())
        };
        let regions: Vec<_> = (0..REGIONS).map(region).collect();
        let memory = GuestMemoryMmap::from_arc_regions(regions.clone()).unwrap();
        let maps: Vec<_> = regions
            .into_iter()
            .map(|region| ForeignMap::new(region).unwrap())
            .collect();
        let write_all = || {
            for n in 0..REGIONS {
                let at = GuestAddress(2 * n * PAGE_SIZE as u64);
                memory.write_slice(&[1], at).unwrap();
            }
        };
        ftruncate(&file, 0).unwrap();
        write_all();
        assert!(ForeignMap::has_lost(maps.iter()));
        ftruncate(&file, REGIONS * PAGE_SIZE as u64).unwrap();
        write_all();
        assert!(!ForeignMap::has_lost(maps.iter()));
        let mut octets = vec![0; 200 * PAGE_SIZE];
        rustix::io::pread(&file, &mut octets, 0).unwrap();
        let written = octets.iter().filter(|octet| **octet == 1).count();
        assert_eq!(written as u64, REGIONS, "all of them are of the file again");
    }

    #[test]
    fn an_absent_page_is_reported_and_found_again() {
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
