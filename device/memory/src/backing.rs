//! A mapped file, or range of a file, behind guest memory.

use crate::mapping::{Mapping, PAGE_SIZE};
use crate::sigbus::{self, Registration};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::fstatfs;
use rustix::io;

/// A mapped file, or a mapped range of a file.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Dropped before the mapping.
    _registration: Registration,
    pub(crate) mapping: Mapping,
    fd: OwnedFd,
    /// Page size of the file in bytes.
    page_size: usize,
    writable: bool,
    /// Offset in the file at which the mapping begins.
    file_offset: u64,
    /// Identity of a file that several maps can share; `None` otherwise.
    pub(crate) identity: Option<Identity>,
}

/// Device, inode, and whether it is mapped for writing.
pub(crate) type Identity = (u64, u64, bool);

impl Backing {
    /// Returns `None` if this process has too many of them.
    pub(crate) fn new(
        fd: OwnedFd,
        mapping: Mapping,
        file_offset: u64,
        identity: Option<Identity>,
        writable: bool,
    ) -> io::Result<Option<Self>> {
        let page_size = page_size(&fd);
        let registration = Registration::new(mapping.as_ptr(), mapping.len(), page_size);
        let registration = registration
            .map_err(|error| io::Errno::from_io_error(&error).unwrap_or(io::Errno::INVAL))?;
        Ok(registration.map(|registration| Self {
            _registration: registration,
            mapping,
            fd,
            page_size,
            writable,
            file_offset,
            identity,
        }))
    }

    /// Maps the file again where these addresses of this process are in the mapping, after pages were lost there. Returns true if some
    /// are in it.
    pub(crate) fn restore(&self, lost: &std::ops::Range<usize>) -> bool {
        let place = (self.mapping.as_ptr() as usize, self.mapping.len());
        let Some((at, len)) = sigbus::part_of(lost, place, self.page_size) else {
            return false;
        };
        let page = self.mapping.as_ptr().wrapping_add(at);
        let offset = self.file_offset.wrapping_add(at as u64);
        // SAFETY: the range is within the mapping, which begins at `file_offset` of this file. If the kernel is out
        // of memory, the private zero page stays, which affects this guest only.
        let _ = unsafe { sigbus::restore(page, len, self.fd.as_fd(), offset, self.writable) };
        true
    }

    /// Offset in the mapping of a range of the file, if all of it is mapped.
    pub(crate) fn position(&self, offset: u64, len: usize) -> Option<usize> {
        let at = usize::try_from(offset.checked_sub(self.file_offset)?).ok()?;
        (at.checked_add(len)? <= self.mapping.len()).then_some(at)
    }
}

/// HUGETLBFS_MAGIC of linux/magic.h.
pub(crate) const HUGETLBFS: u64 = 0x9584_58f6;

/// Size of the smallest range of a file that can be mapped.
fn page_size(fd: &OwnedFd) -> usize {
    match fstatfs(fd) {
        Ok(fs) if fs.f_type as u64 == HUGETLBFS => usize::try_from(fs.f_bsize).unwrap_or(PAGE_SIZE),
        _ => PAGE_SIZE,
    }
}
