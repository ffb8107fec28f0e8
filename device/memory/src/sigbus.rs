//! Pages that a file of guest memory does not have: a hole in a sparse file whose file system is full, huge pages that
//! were never reserved, a truncated file. An access to such a page raises SIGBUS, which would end the process and with
//! it all other guests. This module turns the signal into an error of that access.
//!
//! # Method
//!
//! A handler maps a private zero page in place of the missing one and records its address for this thread; the access
//! continues with the zero page. Each access to guest memory then calls [`none_lost`]. If a page was lost, [`restore`]
//! maps the file's page again, so that a later access finds it if there is room by then, and the access fails. So an
//! access that fails may have read or written a part of its range, like DMA that is aborted on a bus.
//!
//! A page is replaced for the time of one access only, so few mappings of the process are split at a time
//! (`vm.max_map_count`). Bytes written to the zero page are lost; nothing else ever sees them.
//!
//! The record has room for any number of pages. It has a limited number of parts, each of adjacent pages of a mapping.
//! If these are not enough, a part also has the pages between those that were lost, or it says that all pages of all
//! mappings may be lost. That costs more, but only accesses of ports are long enough: the longest access of an engine
//! is a frame of 64 KiB on each of two sides.
//!
//! # Constraints of the handler
//!
//! It runs on the thread that accesses the page, in the middle of that access: everything that it accesses is an
//! atomic, and mmap is a bare system call. Only pages of a registered mapping are replaced ([`Registration`]); the
//! mapping exists, because the access borrows it. A SIGBUS of any other kind goes to the previous handler, most likely
//! to end the process.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::mapping::PAGE_SIZE;

/// Mappings that can be registered at a time, of all NICs of the process.
pub(crate) const MAX_REGISTERED: usize = 8192;
/// Parts of mappings in the record of an access.
const MAX_PARTS: usize = 64;

/// A mapping whose pages may be replaced. Unused if `end` is 0.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    page_size: AtomicUsize,
}

static RANGES: [Range; MAX_REGISTERED] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page_size: AtomicUsize::new(0),
    }
}; MAX_REGISTERED];
/// No range from this index on has ever been used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Indices of ranges below `USED` that are free.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A part of a mapping that was lost.
struct Part {
    /// Index of the mapping in `RANGES`.
    mapping: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
}

/// Pages that the access of this thread has lost so far.
struct Lost {
    /// Parts in use; a number above their limit means that there was no room for one.
    count: AtomicUsize,
    parts: [Part; MAX_PARTS],
}

thread_local! {
    // Without a destructor and a lazy start, because the handler may access it at any time.
    static LOST: Lost = const {
        Lost {
            count: AtomicUsize::new(0),
            parts: [const {
                Part {
                    mapping: AtomicUsize::new(0),
                    start: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                }
            }; MAX_PARTS],
        }
    };
}

impl Lost {
    /// Records a page of a mapping.
    fn record(&self, mapping: usize, page: usize, page_size: usize) {
        let count = self.count.load(Ordering::Relaxed);
        let end = page.wrapping_add(page_size);
        let is_full = count >= MAX_PARTS;
        let fits = |part: &&Part| {
            let is_adjacent = part.start.load(Ordering::Relaxed) == end
                || part.end.load(Ordering::Relaxed) == page;
            part.mapping.load(Ordering::Relaxed) == mapping && (is_adjacent || is_full)
        };
        if let Some(part) = self.parts.iter().take(count).find(fits) {
            part.start.fetch_min(page, Ordering::Relaxed);
            part.end.fetch_max(end, Ordering::Relaxed);
            return;
        }
        if let Some(part) = self.parts.get(count) {
            part.mapping.store(mapping, Ordering::Relaxed);
            part.start.store(page, Ordering::Relaxed);
            part.end.store(end, Ordering::Relaxed);
        }
        let most = MAX_PARTS.wrapping_add(1);
        self.count
            .store(count.wrapping_add(1).min(most), Ordering::Relaxed);
    }
}

/// The previous action of SIGBUS.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Permission to replace the pages of a mapping. It must be dropped before the mapping.
#[derive(Debug)]
pub(crate) struct Registration(usize);

impl Registration {
    /// For a mapping of `len` bytes at `start`. `None` if there are too many.
    pub(crate) fn new(start: *const u8, len: usize, page_size: usize) -> io::Result<Option<Self>> {
        install()?;
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match free.pop() {
            Some(index) => index,
            None => USED.load(Ordering::Relaxed),
        };
        let Some(range) = RANGES.get(index) else {
            return Ok(None);
        };
        range.start.store(start as usize, Ordering::Relaxed);
        range.page_size.store(page_size, Ordering::Relaxed);
        range
            .end
            .store((start as usize).wrapping_add(len), Ordering::Release);
        USED.fetch_max(index.saturating_add(1), Ordering::Release);
        Ok(Some(Self(index)))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(range) = RANGES.get(self.0) {
            range.end.store(0, Ordering::Release);
            free.push(self.0);
        }
    }
}

/// True if the access that this thread has just made lost no page.
#[inline(always)]
pub(crate) fn none_lost() -> bool {
    // Copies are plain accesses: the compiler must not move them behind the load.
    compiler_fence(Ordering::SeqCst);
    LOST.with(|lost| lost.count.load(Ordering::Relaxed)) == 0
}

/// Addresses that contain all pages that this thread has lost, in parts of one mapping each, or one part with all mappings; there are none
/// afterwards.
#[cold]
pub(crate) fn take_lost() -> Vec<std::ops::Range<usize>> {
    LOST.with(|lost| {
        let count = lost.count.swap(0, Ordering::Relaxed);
        if count > MAX_PARTS {
            return std::iter::once(0..usize::MAX).collect();
        }
        let range =
            |part: &Part| part.start.load(Ordering::Relaxed)..part.end.load(Ordering::Relaxed);
        lost.parts.iter().take(count).map(range).collect()
    })
}

/// Range of the lost pages in a mapping, if `lost` has any of it: offset and length. Huge pages are mapped again with
/// the whole mapping, because the kernel does not merge their mappings.
pub(crate) fn part_of(
    lost: &std::ops::Range<usize>,
    (start, len): (usize, usize),
    page_size: usize,
) -> Option<(usize, usize)> {
    let from = lost.start.saturating_sub(start);
    let to = lost.end.saturating_sub(start).min(len);
    if from >= to {
        return None;
    }
    match page_size {
        PAGE_SIZE => Some((from, to.wrapping_sub(from))),
        _ => Some((0, len)),
    }
}

/// Maps pages of a file in place of zero pages, as they were before they were lost. Pages of the file among them stay as they are.
///
/// # Safety
///
/// `len` bytes from `page` on must be within a mapping of this file, and `offset` be their place in the file.
pub(crate) unsafe fn restore(
    page: *mut u8,
    len: usize,
    file: BorrowedFd<'_>,
    offset: u64,
    writable: bool,
) -> rustix::io::Result<()> {
    let mut prot = ProtFlags::READ;
    if writable {
        prot |= ProtFlags::WRITE;
    }
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: by the caller, only pages of that mapping are replaced, by those of its file.
    unsafe { mmap(page.cast(), len, prot, flags, file.as_fd(), offset) }.map(drop)
}

/// Maps a zero page in place of the one at this address. Returns false if it is in no registered mapping, or if mmap
/// fails.
fn replace(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire);
    let found = RANGES
        .iter()
        .take(used)
        .enumerate()
        .find_map(|(index, range)| {
            let end = range.end.load(Ordering::Acquire);
            let start = range.start.load(Ordering::Relaxed);
            let page_size = range.page_size.load(Ordering::Relaxed);
            // A range of another thread may be reused meanwhile. That of this access can't.
            let stable = range.end.load(Ordering::Acquire) == end;
            (stable && (start..end).contains(&address)).then_some((index, page_size))
        });
    let Some((mapping, page_size)) = found.filter(|(_, size)| size.is_power_of_two()) else {
        return false;
    };
    let page = address & !page_size.wrapping_sub(1);
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the page belongs to a registered mapping of guest memory, which this thread borrows, and to nothing else;
    // it is absent, so mapping another page in its place loses no data.
    let mapped = unsafe { mmap_anonymous(page as *mut c_void, page_size, prot, flags) };
    if mapped.is_err() {
        return false;
    }
    LOST.with(|lost| lost.record(mapping, page, page_size));
    true
}

/// Handler of SIGBUS.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A missing page, or one whose memory is broken; not a signal of kill(2).
    let by_access = matches!(code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR);
    if by_access && replace(address) {
        return;
    }
    let Some(previous) = PREVIOUS.get() else {
        return;
    };
    // SAFETY: sigaction and raise are async-signal-safe; `previous` is what sigaction returned.
    unsafe {
        libc::sigaction(signal, previous, ptr::null_mut());
        // The access is made again when this returns, and raises the signal again. A signal of kill(2) must be sent
        // again.
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Installs the handler, once.
fn install() -> io::Result<()> {
    static ONCE: Mutex<bool> = Mutex::new(false);
    let mut done = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if *done {
        return Ok(());
    }
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the present action; all fields may be zero before.
    let previous = unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        previous.assume_init()
    };
    // The handler may run as soon as it is installed.
    let _ = PREVIOUS.set(previous);
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    // SAFETY: all fields may be zero; the handler has the signature that SA_SIGINFO requires and only does what is
    // async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        if libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *done = true;
    Ok(())
}
