//! Memory files for test clients: created by this process or received from another.

use crate::mapping::Mapping;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;
use std::ops::Deref;

/// An anonymous memory file and its mapping: the "guest RAM" of a client without a VM.
///
/// Accesses are those of [`Mapping`], by offset into the file.
#[derive(Debug)]
pub struct MemFd {
    fd: OwnedFd,
    mapping: Mapping,
}

impl MemFd {
    /// Creates a file of `len` bytes, rounded up to whole pages, all zero.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for length 0, otherwise the errors of memfd_create(2), ftruncate(2) or mmap(2).
    pub fn new(len: usize) -> io::Result<Self> {
        Self::named("faultline-ram", len)
    }

    /// As [`MemFd::new`], with a name that shows in `/proc/PID/maps`.
    pub fn named(name: &str, len: usize) -> io::Result<Self> {
        let len = len
            .checked_next_multiple_of(crate::PAGE_SIZE)
            .filter(|len| (1..=isize::MAX as usize).contains(len))
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the length of a memory file must not be 0 or exceed the address space",
                )
            })?;
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let mapping = Mapping::new(&fd, 0, len, true)?;
        Ok(Self { fd, mapping })
    }

    /// The file, to be sent to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for MemFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Deref for MemFd {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

/// A mapping of a file that another process has created, such as the doorbell pages of a BAR.
///
/// Accesses are those of [`Mapping`]; offset 0 is the file offset that was mapped.
#[derive(Debug)]
pub struct MappedFile(Mapping);

impl MappedFile {
    /// Maps `len` bytes of `fd` from `offset` (a multiple of 4096), readable and writable.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the length is 0 or the file ends before `offset + len`, because an
    /// access beyond its end would raise SIGBUS; otherwise the errors of fstat(2) or mmap(2).
    pub fn map(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let size = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        if len == 0 || offset.checked_add(len as u64).is_none_or(|end| end > size) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("cannot map {len} bytes at {offset:#x} of a file of {size} bytes"),
            ));
        }
        Ok(Self(Mapping::new(fd, offset, len, true)?))
    }
}

impl Deref for MappedFile {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.0
    }
}
