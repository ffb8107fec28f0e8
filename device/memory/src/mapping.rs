//! One `mmap` of a file and the checked accesses to it.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets and lengths have been compared with the length of the mapping"
)]

use crate::raw::{self, to_usize};
use rustix::fd::AsFd;
use rustix::io;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a page: of a doorbell page, and the unit of DMA maps.
pub const PAGE_SIZE: usize = 4096;

/// Bytes that are unmapped at a time.
const UNMAP_STEP: usize = 64 << 20;

/// Reason for which bytes could not be accessed. `addr` is the first address (an I/O address, or an offset
/// into the file for [`Mapping`]) at which it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Nothing is mapped there.
    #[error("no memory is mapped at {addr:#x}")]
    Unmapped {
        /// First address without memory.
        addr: u64,
    },
    /// The VMM mapped the range but sent no file descriptor, so this process cannot access it.
    #[error(
        "memory at {addr:#x} was mapped without a file descriptor; start the VM with a shared \
         memory backend (memory-backend-memfd,share=on)"
    )]
    NoDescriptor {
        /// First address that cannot be reached.
        addr: u64,
    },
    /// A write to a range that may only be read, ROM for example.
    #[error("memory at {addr:#x} is read-only")]
    ReadOnly {
        /// First address that must not be written.
        addr: u64,
    },
    /// The file has no page there, and none could be allocated. A part of the access may have taken effect.
    #[error(
        "the file behind memory at {addr:#x} has no page there: its file system is full, or it was truncated"
    )]
    Lost {
        /// Start of the access.
        addr: u64,
    },
    /// An atomic access that is not naturally aligned.
    #[error("atomic access is not naturally aligned")]
    Misaligned,
}

/// A shared mapping of part of a file, with checked accesses by offset.
///
/// Offsets start at 0 and end at [`Mapping::len`]. See the crate documentation for the memory
/// model. Several threads may use a mapping at once, as several processes do anyway.
#[derive(Debug)]
pub struct Mapping {
    ptr: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: a mapping has no thread affinity; `ptr` stays valid until Drop.
unsafe impl Send for Mapping {}
// SAFETY: all access goes through raw copies and atomics, never through references, and the
// memory is shared with other processes in any case; racing copies give arbitrary bytes only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, both multiples of the page size (`len` is
    /// rounded up by the kernel).
    pub(crate) fn new(fd: impl AsFd, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let mut prot = ProtFlags::READ;
        if writable {
            prot |= ProtFlags::WRITE;
        }
        // SAFETY: a null hint lets the kernel choose an address, so no existing mapping is
        // replaced; the result is owned by `Self` alone and unmapped once, in Drop.
        let ptr = unsafe {
            mmap(
                ptr::null_mut(),
                len,
                prot,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                offset,
            )?
        };
        Ok(Self {
            ptr: ptr.cast(),
            len,
            writable,
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the length is zero, which no mapping that could be created has.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes the changes of these bytes back to the file; blocks until they are durable.
    pub fn sync(&self, offset: u64, len: usize) -> io::Result<()> {
        let before = to_usize(offset) & (PAGE_SIZE - 1);
        let (start, len) = (offset - before as u64, len.saturating_add(before));
        let len = len.min(self.len.saturating_sub(to_usize(start)));
        let Ok(ptr) = self.at(start, len, false) else {
            return Err(io::Errno::INVAL);
        };
        // SAFETY: `at` checked the range, which begins at a page as the mapping does; msync changes no memory.
        unsafe { msync(ptr.cast(), len, MsyncFlags::SYNC) }
    }

    /// True if it was mapped for writing.
    #[inline(always)]
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Start of the mapping in this process.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    #[inline(always)]
    fn at(&self, offset: u64, len: usize, write: bool) -> Result<*mut u8, AccessError> {
        let size = self.len as u64;
        if offset > size || len as u64 > size - offset {
            return Err(AccessError::Unmapped {
                addr: offset.max(size),
            });
        }
        if write && !self.writable {
            return Err(AccessError::ReadOnly { addr: offset });
        }
        // SAFETY: offset <= self.len, so the result is inside or one past the mapping.
        Ok(unsafe { self.ptr.add(to_usize(offset)) })
    }

    #[inline(always)]
    fn word32(&self, offset: u64, write: bool) -> Result<&AtomicU32, AccessError> {
        let p = self.at(offset, 4, write)?;
        if offset & 3 != 0 {
            return Err(AccessError::Misaligned);
        }
        // SAFETY: in bounds, 4-aligned (the mapping is page-aligned), alive as long as `self`,
        // and accessed atomically by every side that takes part in a protocol on it.
        Ok(unsafe { AtomicU32::from_ptr(p.cast()) })
    }

    #[inline(always)]
    fn word64(&self, offset: u64, write: bool) -> Result<&AtomicU64, AccessError> {
        let p = self.at(offset, 8, write)?;
        if offset & 7 != 0 {
            return Err(AccessError::Misaligned);
        }
        // SAFETY: as for `word32`, with 8 bytes.
        Ok(unsafe { AtomicU64::from_ptr(p.cast()) })
    }

    /// Copies `buf.len()` bytes at `offset` into `buf`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        let p = self.at(offset, buf.len(), false)?;
        // SAFETY: `at` checked the range, `buf` is private.
        unsafe { raw::load(buf.as_mut_ptr(), p, buf.len()) };
        Ok(())
    }

    /// Copies `data` to `offset`.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let p = self.at(offset, data.len(), true)?;
        // SAFETY: `at` checked the range, `data` is private.
        unsafe { raw::store(p, data.as_ptr(), data.len()) };
        Ok(())
    }

    /// Sets `len` bytes from `offset` to `byte`.
    pub fn fill(&self, offset: u64, len: usize, byte: u8) -> Result<(), AccessError> {
        let p = self.at(offset, len, true)?;
        // SAFETY: `at` checked the range.
        unsafe { ptr::write_bytes(p, byte, len) };
        Ok(())
    }

    /// Copies `len` bytes from `src` to `dst` inside the mapping; they may overlap.
    pub fn copy_within(&self, src: u64, dst: u64, len: usize) -> Result<(), AccessError> {
        let s = self.at(src, len, false)?;
        let d = self.at(dst, len, true)?;
        // SAFETY: `at` checked both ranges.
        unsafe { raw::shared_to_shared(d, s, len) };
        Ok(())
    }

    /// Loads a 32-bit word, Acquire.
    pub fn load_u32(&self, offset: u64) -> Result<u32, AccessError> {
        Ok(self.word32(offset, false)?.load(Ordering::Acquire))
    }

    /// Loads a 64-bit word, Acquire.
    pub fn load_u64(&self, offset: u64) -> Result<u64, AccessError> {
        Ok(self.word64(offset, false)?.load(Ordering::Acquire))
    }

    /// Stores a 32-bit word, Release.
    pub fn store_u32(&self, offset: u64, value: u32) -> Result<(), AccessError> {
        self.word32(offset, true)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Stores a 64-bit word, Release.
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), AccessError> {
        self.word64(offset, true)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Adds to a 32-bit word and returns the previous value; sequentially consistent.
    pub fn fetch_add_u32(&self, offset: u64, value: u32) -> Result<u32, AccessError> {
        Ok(self
            .word32(offset, true)?
            .fetch_add(value, Ordering::SeqCst))
    }

    /// Adds to a 64-bit word and returns the previous value; sequentially consistent.
    pub fn fetch_add_u64(&self, offset: u64, value: u64) -> Result<u64, AccessError> {
        Ok(self
            .word64(offset, true)?
            .fetch_add(value, Ordering::SeqCst))
    }

    /// Replaces a 32-bit word and returns the previous value; sequentially consistent.
    pub fn swap_u32(&self, offset: u64, value: u32) -> Result<u32, AccessError> {
        Ok(self.word32(offset, true)?.swap(value, Ordering::SeqCst))
    }

    /// Stores `new` if the 32-bit word equals `expected`; returns the previous value.
    /// Sequentially consistent.
    pub fn compare_exchange_u32(
        &self,
        offset: u64,
        expected: u32,
        new: u32,
    ) -> Result<u32, AccessError> {
        let word = self.word32(offset, true)?;
        Ok(
            match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            },
        )
    }

    /// Stores `new` if the 64-bit word equals `expected`; returns the previous value.
    /// Sequentially consistent.
    pub fn compare_exchange_u64(
        &self,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        let word = self.word64(offset, true)?;
        Ok(
            match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            },
        )
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In pieces: each call holds a lock of the process that page faults and mappings of other threads may need.
        let mut at = 0;
        while at < self.len {
            let step = UNMAP_STEP.min(self.len - at);
            // SAFETY: `ptr` and `len` are those of one successful mmap, at + step <= len, and only this unmaps it;
            // borrows of the memory are tied to `self`.
            let unmap = |len| unsafe { munmap(self.ptr.add(at).cast(), len) };
            if unmap(step).is_err() {
                // The step is no multiple of the huge page size of this file.
                let result = unmap(self.len - at);
                debug_assert!(result.is_ok());
                break;
            }
            at += step;
        }
    }
}
