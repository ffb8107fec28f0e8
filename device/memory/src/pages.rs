//! Doorbell pages and device memory: memory of the device that the guest maps.

use crate::mapping::{Mapping, PAGE_SIZE};
use crate::raw;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A sealed memory file of whole pages, mapped here and, through its descriptor, in the VMM.
#[derive(Debug)]
pub struct SharedPages {
    fd: OwnedFd,
    mapping: Mapping,
}

impl SharedPages {
    /// Creates `pages` zeroed pages. `name` shows in `/proc/PID/maps`.
    ///
    /// The file is sealed against shrinking and growing before another process can open it, so
    /// the peer cannot cause SIGBUS in this process.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for 0 pages or more than the address space holds, otherwise the errors of
    /// memfd_create(2), ftruncate(2), fcntl(2) or mmap(2).
    pub fn new(name: &str, pages: usize) -> io::Result<Self> {
        let len = pages
            .checked_mul(PAGE_SIZE)
            .filter(|len| (1..=isize::MAX as usize).contains(len))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "bad number of pages"))?;
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::new(&fd, 0, len, true)?;
        Ok(Self { fd, mapping })
    }

    /// Opens the file of another process's pages, and zeroes them.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the file has another length or is not sealed, otherwise the errors of open(2), fcntl(2), mmap(2) or fallocate(2).
    pub fn open(path: &Path, pages: usize) -> io::Result<Self> {
        let fd = OwnedFd::from(File::options().read(true).write(true).open(path)?);
        let sealed = SealFlags::SHRINK | SealFlags::GROW;
        let len = usize::try_from(fstat(&fd)?.st_size).unwrap_or(0);
        if !fcntl_get_seals(&fd)?.contains(sealed) || pages.checked_mul(PAGE_SIZE) != Some(len) {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mapping = Mapping::new(&fd, 0, len, true)?;
        let opened = Self { fd, mapping };
        opened.clear(0, pages)?;
        Ok(opened)
    }

    /// The file, for a region's mmap description.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A duplicate of the descriptor, close-on-exec.
    pub fn dup(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.mapping.len() / PAGE_SIZE
    }

    /// Handle to page `index`, or `None` if there is no such page.
    #[inline]
    pub fn page(&self, index: usize) -> Option<Page<'_>> {
        self.mapping.page(index)
    }

    /// Zeroes page `index`; does nothing and returns false if there is no such page.
    pub fn zero_page(&self, index: usize) -> bool {
        self.page(index).map(|page| page.zero()).is_some()
    }

    /// Zeroes `pages` pages from `first` on and frees their memory, which is allocated again on the next access.
    ///
    /// # Errors
    ///
    /// Those of fallocate(2).
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "pages of an area that is mapped as a whole"
    )]
    pub fn clear(&self, first: usize, pages: usize) -> io::Result<()> {
        if pages == 0 {
            return Ok(());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (offset, len) = (first * PAGE_SIZE, pages * PAGE_SIZE);
        Ok(fallocate(&self.fd, hole, offset as u64, len as u64)?)
    }

    /// Checked accesses by offset into the whole area.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Sequentially consistent fence: orders the store of `asleep` before the last check for doorbells, and on
    /// the other side the store of a doorbell before the load of `asleep`.
    #[inline(always)]
    pub fn fence() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl Mapping {
    /// Handle to page `index`, or `None` if there is no such page, or if the mapping is read-only.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the index has been compared with the number of pages"
    )]
    pub fn page(&self, index: usize) -> Option<Page<'_>> {
        if index >= self.len() / PAGE_SIZE || !self.is_writable() {
            return None;
        }
        // SAFETY: the index is below the number of pages, so the whole page is in the mapping.
        let ptr = unsafe { self.as_ptr().add(index * PAGE_SIZE) };
        Some(Page {
            ptr,
            _mapping: PhantomData,
        })
    }
}

impl AsFd for SharedPages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// One page of a [`SharedPages`] or another [`Mapping`]: accesses cannot fail, so the polling loop has no error path.
///
/// Offsets are bytes in the page, naturally aligned. A debug build asserts that; a release
/// build takes the offset modulo the page and rounds it down, so that a mistake stays in the
/// page.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    ptr: *mut u8,
    _mapping: PhantomData<&'a Mapping>,
}

// SAFETY: a page is a borrow of a `Mapping`, which is Sync, and has the same access rules.
unsafe impl Send for Page<'_> {}
// SAFETY: as above.
unsafe impl Sync for Page<'_> {}

macro_rules! page_accessors {
    ($at:ident, $ty:ty, $atomic:ty, $load:ident, $load_relaxed:ident, $load_seqcst:ident,
     $store:ident, $store_relaxed:ident, $store_seqcst:ident, $swap:ident, $fetch_add:ident,
     $fetch_or:ident, $fetch_and:ident, $compare_exchange:ident) => {
        #[inline(always)]
        fn $at(&self, offset: usize) -> &'a $atomic {
            const SIZE: usize = size_of::<$ty>();
            debug_assert!(
                offset % SIZE == 0 && offset <= PAGE_SIZE - SIZE,
                "bad page offset {offset:#x}"
            );
            let offset = offset & (PAGE_SIZE - SIZE);
            // SAFETY: the mask keeps the offset aligned and the word inside the page, the page
            // is inside the mapping, and the mapping lives for 'a.
            unsafe { <$atomic>::from_ptr(self.ptr.add(offset).cast()) }
        }

        /// Loads a word, Acquire.
        #[inline(always)]
        pub fn $load(&self, offset: usize) -> $ty {
            self.$at(offset).load(Ordering::Acquire)
        }

        /// Loads a word, Relaxed.
        #[inline(always)]
        pub fn $load_relaxed(&self, offset: usize) -> $ty {
            self.$at(offset).load(Ordering::Relaxed)
        }

        /// Loads a word, sequentially consistent.
        #[inline(always)]
        pub fn $load_seqcst(&self, offset: usize) -> $ty {
            self.$at(offset).load(Ordering::SeqCst)
        }

        /// Stores a word, Release.
        #[inline(always)]
        pub fn $store(&self, offset: usize, value: $ty) {
            self.$at(offset).store(value, Ordering::Release);
        }

        /// Stores a word, Relaxed.
        #[inline(always)]
        pub fn $store_relaxed(&self, offset: usize, value: $ty) {
            self.$at(offset).store(value, Ordering::Relaxed);
        }

        /// Stores a word, sequentially consistent.
        #[inline(always)]
        pub fn $store_seqcst(&self, offset: usize, value: $ty) {
            self.$at(offset).store(value, Ordering::SeqCst);
        }

        /// Replaces a word and returns its previous value, sequentially consistent.
        #[inline(always)]
        pub fn $swap(&self, offset: usize, value: $ty) -> $ty {
            self.$at(offset).swap(value, Ordering::SeqCst)
        }

        /// Adds to a word and returns its previous value, sequentially consistent.
        #[inline(always)]
        pub fn $fetch_add(&self, offset: usize, value: $ty) -> $ty {
            self.$at(offset).fetch_add(value, Ordering::SeqCst)
        }

        /// Sets bits of a word and returns its previous value, sequentially consistent.
        #[inline(always)]
        pub fn $fetch_or(&self, offset: usize, bits: $ty) -> $ty {
            self.$at(offset).fetch_or(bits, Ordering::SeqCst)
        }

        /// Keeps only `bits` of a word and returns its previous value, sequentially
        /// consistent.
        #[inline(always)]
        pub fn $fetch_and(&self, offset: usize, bits: $ty) -> $ty {
            self.$at(offset).fetch_and(bits, Ordering::SeqCst)
        }

        /// Stores `new` if the word equals `expected`; returns its previous value.
        /// Sequentially consistent.
        #[inline(always)]
        pub fn $compare_exchange(&self, offset: usize, expected: $ty, new: $ty) -> $ty {
            let word = self.$at(offset);
            match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            }
        }
    };
}

impl<'a> Page<'a> {
    page_accessors!(
        at32,
        u32,
        AtomicU32,
        load_u32,
        load_u32_relaxed,
        load_u32_seqcst,
        store_u32,
        store_u32_relaxed,
        store_u32_seqcst,
        swap_u32,
        fetch_add_u32,
        fetch_or_u32,
        fetch_and_u32,
        compare_exchange_u32
    );

    page_accessors!(
        at64,
        u64,
        AtomicU64,
        load_u64,
        load_u64_relaxed,
        load_u64_seqcst,
        store_u64,
        store_u64_relaxed,
        store_u64_seqcst,
        swap_u64,
        fetch_add_u64,
        fetch_or_u64,
        fetch_and_u64,
        compare_exchange_u64
    );

    /// The word at `offset`.
    pub(crate) fn word(&self, offset: usize) -> ptr::NonNull<AtomicU64> {
        ptr::NonNull::from(self.at64(offset))
    }

    /// Copies bytes from `offset` on, up to the end of the page, and returns how many.
    pub fn read(&self, offset: usize, buf: &mut [u8]) -> usize {
        let len = buf.len().min(PAGE_SIZE.saturating_sub(offset));
        if len > 0 {
            // SAFETY: len > 0 implies offset < PAGE_SIZE and offset + len <= PAGE_SIZE.
            unsafe { raw::load(buf.as_mut_ptr(), self.ptr.add(offset), len) };
        }
        len
    }

    /// Copies bytes to `offset` on, up to the end of the page, and returns how many.
    pub fn write(&self, offset: usize, data: &[u8]) -> usize {
        let len = data.len().min(PAGE_SIZE.saturating_sub(offset));
        if len > 0 {
            // SAFETY: len > 0 implies offset < PAGE_SIZE and offset + len <= PAGE_SIZE.
            unsafe { raw::store(self.ptr.add(offset), data.as_ptr(), len) };
        }
        len
    }

    /// Zeroes the page.
    pub fn zero(&self) {
        // SAFETY: the page is PAGE_SIZE bytes inside the mapping.
        unsafe { ptr::write_bytes(self.ptr, 0, PAGE_SIZE) };
        std::sync::atomic::fence(Ordering::Release);
    }
}
