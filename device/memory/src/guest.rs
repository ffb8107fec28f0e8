//! The DMA map table of one NIC.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "an address is inside the map that was found for it, no map wraps (FileMaps::prepare), and parts of a copy are not longer than what is left of it"
)]

use crate::backing::Backing;
use crate::file_maps::FileMaps;
use crate::map::{MAX_MAPS, Map, MapError, NewMap, Rights};
use crate::mapping::AccessError;
use crate::raw::{self, to_usize};
use crate::sigbus;
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Reason for which a range could not be unmapped. The table is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnmapError {
    /// The length is zero or the range wraps around.
    #[error("DMA unmap of {len:#x} bytes at {iova:#x}: the range is empty or wraps around")]
    BadRange {
        /// Start of the range.
        iova: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A map is only partly in the range; maps are not split.
    #[error("DMA unmap of {len:#x} bytes at {iova:#x} would split the map at {other:#x}")]
    Partial {
        /// Start of the range.
        iova: u64,
        /// Length in bytes.
        len: u64,
        /// Start of the map that would be split.
        other: u64,
    },
}

impl UnmapError {
    /// The errno to answer the VMM with; never zero.
    pub fn errno(&self) -> Errno {
        match self {
            Self::BadRange { .. } | Self::Partial { .. } => Errno::INVAL,
        }
    }
}

/// Number of failed accesses by reason. Each failed call counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// [`AccessError::Unmapped`].
    pub unmapped: u64,
    /// [`AccessError::NoDescriptor`].
    pub no_descriptor: u64,
    /// [`AccessError::ReadOnly`].
    pub read_only: u64,
    /// [`AccessError::Misaligned`].
    pub misaligned: u64,
    /// [`AccessError::Lost`].
    pub lost: u64,
}

/// A map that was not inserted, with the reason. Dropping it may take long: a file without other maps is unmapped.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The reason.
    pub error: MapError,
    _map: Map,
}

/// Maps that were removed. Dropping them may take long: files without other maps are unmapped, which takes some
/// milliseconds for each GiB that was accessed.
#[derive(Debug, Default)]
#[must_use = "dropping it unmaps memory, which the data path must not wait for"]
pub struct Removed(Vec<Map>);

impl Removed {
    /// Number of maps.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if nothing was removed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Part of a map whose file is persistent, such as that of a pmem device. Keeps the file mapped when the map is removed.
#[derive(Debug)]
pub struct PersistentRange {
    backing: Arc<Backing>,
    offset: u64,
    len: usize,
}

impl PersistentRange {
    /// Offset in the mapping of the file, and length in bytes.
    pub fn span(&self) -> (u64, usize) {
        (self.offset, self.len)
    }

    /// Writes the range back to the file; blocks until it is durable.
    ///
    /// # Errors
    ///
    /// Those of msync(2).
    pub fn sync(&self) -> io::Result<()> {
        self.backing.mapping.sync(self.offset, self.len)
    }
}

/// Guest memory of one NIC, by I/O address, as the VMM has mapped it.
///
/// One thread owns it (it is `Send`, not `Sync`). Quiesce before [`GuestMemory::unmap`]: the
/// borrow checker proves that no access is in progress, not that no packet refers to the range.
///
/// Multi-byte accesses may cross from one map into an adjacent one. If any byte of an access cannot
/// be reached, nothing is changed and the error has the first such address. Only [`AccessError::Lost`] is detected after
/// the access, a part of which may have taken effect.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// Sorted by `start`, not overlapping.
    maps: Vec<Map>,
    /// Number of maps of persistent files; usually 0.
    persistent_maps: usize,
    /// Index of the map that was used last. May be stale, so users check it.
    last_used: Cell<usize>,
    faults: Cell<FaultCounts>,
}

impl GuestMemory {
    /// Largest number of maps of a NIC: the default limit of QEMU (`VFIO_USER_DEF_MAP_MAX`), and one for device memory.
    pub const MAX_MAPS: usize = MAX_MAPS;

    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// The parts of these ranges (address, bytes), or of all memory, that are backed by persistent files, such as
    /// those of a pmem device of the guest.
    pub fn persistent_ranges(&self, ranges: Option<&[(u64, u64)]>) -> Vec<PersistentRange> {
        let mut parts = Vec::new();
        // Fast path: there may be many maps, and a peer can cause a call with each packet.
        if self.persistent_maps == 0 {
            return parts;
        }
        for (addr, len) in ranges.unwrap_or(&[(0, u64::MAX)]) {
            let Some(span) = len.checked_sub(1) else {
                continue;
            };
            let last = addr.saturating_add(span);
            let from = self.maps.partition_point(|map| map.last() < *addr);
            let maps = self.maps.iter().skip(from);
            let inside = maps.take_while(|map| map.start <= last);
            parts.extend(inside.filter(|map| map.persistent).filter_map(|map| {
                let first = map.start.max(*addr);
                let backing = map.backing.as_ref()?;
                let before = map.host as u64 - backing.mapping.as_ptr() as u64;
                Some(PersistentRange {
                    backing: Arc::clone(backing),
                    offset: before + (first - map.start),
                    len: to_usize(map.last().min(last) - first + 1),
                })
            }));
        }
        parts
    }

    /// Prepares a map and inserts it, for callers whose data path may wait for both. See
    /// [`FileMaps::prepare`].
    ///
    /// # Errors
    ///
    /// [`MapError`]; the table is unchanged and the descriptor is closed.
    pub fn map(
        &mut self,
        iova: u64,
        len: u64,
        fd: Option<OwnedFd>,
        offset: u64,
        rights: Rights,
    ) -> Result<(), MapError> {
        let mut files = FileMaps::new(1);
        let map = files.prepare(iova, len, fd, offset, rights)?;
        self.insert(map).map_err(|refused| refused.error)
    }

    /// Inserts a map that was prepared.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the map, so that another thread can drop it; the table is unchanged.
    pub fn insert(&mut self, NewMap(map): NewMap) -> Result<(), Refused> {
        if self.maps.len() >= Self::MAX_MAPS {
            let error = MapError::TooMany;
            return Err(Refused { error, _map: map });
        }
        let at = self.maps.partition_point(|other| other.last() < map.start);
        if let Some(next) = self.maps.get(at)
            && next.start <= map.last()
        {
            let error = MapError::Overlap {
                iova: map.start,
                len: map.span.wrapping_add(1),
                other: next.start,
            };
            return Err(Refused { error, _map: map });
        }
        self.persistent_maps += usize::from(map.persistent);
        self.maps.insert(at, map);
        Ok(())
    }

    /// Removes the maps in `iova .. iova + len`, each entirely inside, and returns them.
    ///
    /// A range without maps succeeds, as with VFIO's type 1 IOMMU version 2 (linux/vfio.h,
    /// VFIO_IOMMU_UNMAP_DMA): with a virtual IOMMU, QEMU unmaps whole windows, whatever maps they contain.
    ///
    /// # Errors
    ///
    /// [`UnmapError`]; nothing is removed. A map that would be split is an error, as in VFIO.
    pub fn unmap(&mut self, iova: u64, len: u64) -> Result<Removed, UnmapError> {
        let last = len
            .checked_sub(1)
            .and_then(|span| iova.checked_add(span))
            .ok_or(UnmapError::BadRange { iova, len })?;
        let from = self.maps.partition_point(|map| map.last() < iova);
        let to = self.maps.partition_point(|map| map.start <= last);
        for map in self.maps.get(from..to).unwrap_or_default() {
            if map.start < iova || map.last() > last {
                return Err(UnmapError::Partial {
                    iova,
                    len,
                    other: map.start,
                });
            }
        }
        let removed: Vec<Map> = self.maps.drain(from..to.max(from)).collect();
        self.persistent_maps -= removed.iter().filter(|map| map.persistent).count();
        self.last_used.set(0);
        Ok(Removed(removed))
    }

    /// Removes all maps.
    pub fn unmap_all(&mut self) {
        self.maps.clear();
        self.persistent_maps = 0;
        self.last_used.set(0);
    }

    /// Number of maps, including those without a descriptor.
    pub fn map_count(&self) -> usize {
        self.maps.len()
    }

    /// The maps as (start, last byte, reachable, writable), in ascending order.
    pub fn maps(&self) -> impl Iterator<Item = (u64, u64, bool, bool)> + '_ {
        self.maps
            .iter()
            .map(|map| (map.start, map.last(), map.backing.is_some(), map.writable))
    }

    /// True if a map has no descriptor. This is no error by itself: QEMU maps ROMs (read-only) and the mmapped BAR
    /// areas of this device (writable) without one in every VM. RAM that is not shared is a large writable map in
    /// [`GuestMemory::maps`].
    pub fn has_unreachable(&self) -> bool {
        self.unreachable_maps() != 0
    }

    /// Number of maps that came without a descriptor.
    pub fn unreachable_maps(&self) -> usize {
        self.maps.iter().filter(|map| map.backing.is_none()).count()
    }

    /// Number of failed accesses since the table was created.
    pub fn faults(&self) -> FaultCounts {
        self.faults.get()
    }

    #[inline(always)]
    fn find(&self, addr: u64) -> Option<(usize, &Map)> {
        let index = self.last_used.get();
        if let Some(map) = self.maps.get(index)
            && addr.wrapping_sub(map.start) <= map.span
        {
            return Some((index, map));
        }
        self.find_slow(addr)
    }

    #[inline(never)]
    fn find_slow(&self, addr: u64) -> Option<(usize, &Map)> {
        let index = self.maps.partition_point(|map| map.last() < addr);
        let map = self.maps.get(index)?;
        if map.start > addr {
            return None;
        }
        self.last_used.set(index);
        Some((index, map))
    }

    #[cold]
    #[inline(never)]
    fn fault<T>(&self, error: AccessError) -> Result<T, AccessError> {
        let mut faults = self.faults.get();
        let counter = match error {
            AccessError::Unmapped { .. } => &mut faults.unmapped,
            AccessError::NoDescriptor { .. } => &mut faults.no_descriptor,
            AccessError::ReadOnly { .. } => &mut faults.read_only,
            AccessError::Misaligned => &mut faults.misaligned,
            AccessError::Lost { .. } => &mut faults.lost,
        };
        *counter = counter.saturating_add(1);
        self.faults.set(faults);
        Err(error)
    }

    /// Reports pages that were lost in the access that was just made. For accesses to one table only.
    #[inline(always)]
    fn check_lost(&self, addr: u64, len: usize) -> Result<(), AccessError> {
        if sigbus::none_lost() {
            return Ok(());
        }
        self.recover_lost(addr, len, self, addr)
    }

    /// Maps the pages again that a copy between two tables has lost, and returns the error of the side that lost them. For
    /// an access to one table, both sides are the same.
    #[cold]
    #[inline(never)]
    fn recover_lost(
        &self,
        dst: u64,
        len: usize,
        src: &GuestMemory,
        src_addr: u64,
    ) -> Result<(), AccessError> {
        let (mut lost_dst, mut lost_src) = (false, false);
        for lost in sigbus::take_lost() {
            lost_dst |= self.restore(dst, len, &lost);
            lost_src |= src.restore(src_addr, len, &lost);
        }
        if lost_src && !lost_dst {
            return src.fault(AccessError::Lost { addr: src_addr });
        }
        self.fault(AccessError::Lost { addr: dst })
    }

    /// Maps lost pages again if they belong to the files behind this range. Returns true if some do.
    fn restore(&self, addr: u64, len: usize, lost: &std::ops::Range<usize>) -> bool {
        let (mut at, mut left) = (addr, len as u64);
        let mut is_here = false;
        while left > 0
            && let Some((_, map)) = self.find(at)
        {
            is_here |= map.backing.as_ref().is_some_and(|file| file.restore(lost));
            let step = (map.span - (at - map.start)).saturating_add(1).min(left);
            at = at.wrapping_add(step);
            left -= step;
        }
        is_here
    }

    /// Host address of `addr`, and the number of bytes from there to the end of its map. Errors are not counted.
    #[inline(always)]
    fn resolve(&self, addr: u64, write: bool) -> Result<(*mut u8, u64), AccessError> {
        let Some((_, map)) = self.find(addr) else {
            return Err(AccessError::Unmapped { addr });
        };
        if map.host.is_null() {
            return Err(AccessError::NoDescriptor { addr });
        }
        if write && !map.writable {
            return Err(AccessError::ReadOnly { addr });
        }
        let into = addr - map.start;
        // SAFETY: into <= span by `find`, and `host` is valid for span + 1 bytes, a length that
        // `FileMaps::prepare` has checked against isize::MAX.
        let p = unsafe { map.host.add(to_usize(into)) };
        // A mapping never has 2^64 bytes (isize::MAX at most), so this cannot overflow.
        Ok((p, map.span - into + 1))
    }

    /// As `resolve`, for `len` bytes in one map; `None` if they are not in one map.
    #[inline(always)]
    fn whole(&self, addr: u64, len: usize, write: bool) -> Result<Option<*mut u8>, AccessError> {
        let (p, avail) = self.resolve(addr, write)?;
        Ok((len as u64 <= avail).then_some(p))
    }

    /// Checks that all of `len` bytes can be reached.
    ///
    /// # Errors
    ///
    /// [`AccessError`] with the first address that cannot be reached; it is counted.
    pub fn check(&self, addr: u64, len: usize, write: bool) -> Result<(), AccessError> {
        self.probe(addr, len, write)
            .or_else(|error| self.fault(error))
    }

    fn probe(&self, addr: u64, len: usize, write: bool) -> Result<(), AccessError> {
        let mut addr = addr;
        let mut left = len as u64;
        while left > 0 {
            let (_, avail) = self.resolve(addr, write)?;
            let step = avail.min(left);
            left -= step;
            if left > 0 {
                addr = addr
                    .checked_add(step)
                    .ok_or(AccessError::Unmapped { addr: 0 })?;
            }
        }
        Ok(())
    }

    /// Number of bytes, at most `len`, that can be reached from `addr` without a gap; adjacent
    /// maps count as one.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if the first byte cannot be reached and `len` is not zero.
    pub fn contiguous(&self, addr: u64, len: usize, write: bool) -> Result<usize, AccessError> {
        let mut at = addr;
        let mut done = 0usize;
        while done < len {
            let avail = match self.resolve(at, write) {
                Ok((_, avail)) => avail,
                Err(error) if done == 0 => return self.fault(error),
                Err(_) => break,
            };
            let step = avail.min((len - done) as u64);
            done += to_usize(step);
            match at.checked_add(step) {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(done)
    }

    /// Calls `f` with (host address, offset into the access, bytes) for each piece in ascending
    /// order. The range has passed `probe`.
    fn pieces(
        &self,
        addr: u64,
        len: usize,
        write: bool,
        mut f: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), AccessError> {
        let mut done = 0usize;
        while done < len {
            let (p, avail) = self.resolve(addr.wrapping_add(done as u64), write)?;
            let step = to_usize(avail.min((len - done) as u64));
            f(p, done, step);
            done += step;
        }
        Ok(())
    }

    /// Copies `buf.len()` bytes at `addr` into `buf`.
    ///
    /// # Errors
    ///
    /// [`AccessError`]; `buf` is then unchanged.
    #[inline]
    pub fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        match self.whole(addr, buf.len(), false) {
            Ok(Some(p)) => {
                // SAFETY: by `whole`, buf.len() bytes from `p` are in one mapping, which
                // lives at least as long as the borrow of `self`; `buf` is private.
                unsafe { raw::load(buf.as_mut_ptr(), p, buf.len()) };
                self.check_lost(addr, buf.len())
            }
            _ => self.read_slow(addr, buf),
        }
    }

    #[inline(never)]
    fn read_slow(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        self.check(addr, buf.len(), false)?;
        let base = buf.as_mut_ptr();
        self.pieces(addr, buf.len(), false, |p, done, step| {
            // SAFETY: `p` is valid for `step` bytes by `resolve`; done + step <= buf.len().
            unsafe { raw::load(base.add(done), p, step) };
        })?;
        self.check_lost(addr, buf.len())
    }

    /// Copies `data` to `addr`. See the crate documentation for the order of the bytes.
    ///
    /// # Errors
    ///
    /// [`AccessError`]; nothing is then written.
    #[inline]
    pub fn write(&self, addr: u64, data: &[u8]) -> Result<(), AccessError> {
        match self.whole(addr, data.len(), true) {
            Ok(Some(p)) => {
                // SAFETY: by `whole`, data.len() bytes from `p` are in one writable
                // mapping, which lives at least as long as the borrow; `data` is private.
                unsafe { raw::store(p, data.as_ptr(), data.len()) };
                self.check_lost(addr, data.len())
            }
            _ => self.write_slow(addr, data),
        }
    }

    #[inline(never)]
    fn write_slow(&self, addr: u64, data: &[u8]) -> Result<(), AccessError> {
        self.check(addr, data.len(), true)?;
        let base = data.as_ptr();
        self.pieces(addr, data.len(), true, |p, done, step| {
            // SAFETY: `p` is valid for `step` bytes by `resolve`; done + step <= data.len().
            unsafe { raw::store(p, base.add(done), step) };
        })?;
        self.check_lost(addr, data.len())
    }

    /// Copies `len` bytes at `src_addr` of `src` to `dst` here: guest to guest, one copy.
    ///
    /// Both sides may cross map boundaries. Ranges of the same table may overlap and then
    /// behave as memmove; two I/O addresses of the same page (aliases) are not detected, and
    /// overlap through them produces arbitrary bytes.
    ///
    /// # Errors
    ///
    /// [`AccessError`] of either side (the source is checked first; each table counts its own errors);
    /// nothing is then written.
    #[inline(always)]
    pub fn copy_from(
        &self,
        dst: u64,
        src: &GuestMemory,
        src_addr: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        if let (Ok(Some(s)), Ok(Some(d))) =
            (src.whole(src_addr, len, false), self.whole(dst, len, true))
        {
            // SAFETY: by `whole`, `len` bytes are in one mapping on either side; overlap
            // is allowed.
            unsafe { raw::shared_to_shared(d, s, len) };
            if sigbus::none_lost() {
                return Ok(());
            }
            return self.recover_lost(dst, len, src, src_addr);
        }
        self.copy_slow(dst, src, src_addr, len)
    }

    #[inline(never)]
    fn copy_slow(
        &self,
        dst: u64,
        src: &GuestMemory,
        src_addr: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        src.check(src_addr, len, false)?;
        self.check(dst, len, true)?;
        // Within one table a destination inside the source must be filled from its end.
        let backward = ptr::eq(self, src) && dst > src_addr && dst - src_addr < len as u64;
        let mut cuts = Vec::new();
        let mut done = 0usize;
        while done < len {
            let (s, s_avail) = src.resolve(src_addr.wrapping_add(done as u64), false)?;
            let (d, d_avail) = self.resolve(dst.wrapping_add(done as u64), true)?;
            let step = to_usize(s_avail.min(d_avail).min((len - done) as u64));
            if backward {
                cuts.push((d, s, step));
            } else {
                // SAFETY: by `resolve`, `step` bytes from either address are in one map.
                unsafe { raw::shared_to_shared(d, s, step) };
            }
            done += step;
        }
        for (d, s, step) in cuts.into_iter().rev() {
            // SAFETY: as above; no map was removed since, `self` is borrowed.
            unsafe { raw::shared_to_shared(d, s, step) };
        }
        if sigbus::none_lost() {
            return Ok(());
        }
        self.recover_lost(dst, len, src, src_addr)
    }

    #[inline(always)]
    fn word32(&self, addr: u64, write: bool) -> Result<&AtomicU32, AccessError> {
        if addr & 3 != 0 {
            return self.fault(AccessError::Misaligned);
        }
        match self.resolve(addr, write) {
            // SAFETY: maps start and end at page boundaries, so an aligned word is inside one;
            // it lives as long as the borrow of `self`, and racing accesses are atomic on any
            // side that takes part in a protocol.
            Ok((p, _)) => Ok(unsafe { AtomicU32::from_ptr(p.cast()) }),
            Err(error) => self.fault(error),
        }
    }

    #[inline(always)]
    fn word64(&self, addr: u64, write: bool) -> Result<&AtomicU64, AccessError> {
        if addr & 7 != 0 {
            return self.fault(AccessError::Misaligned);
        }
        match self.resolve(addr, write) {
            // SAFETY: as for `word32`.
            Ok((p, _)) => Ok(unsafe { AtomicU64::from_ptr(p.cast()) }),
            Err(error) => self.fault(error),
        }
    }

    /// Loads the 32-bit word at `addr`, Acquire.
    #[inline]
    pub fn load_u32(&self, addr: u64) -> Result<u32, AccessError> {
        let value = self.word32(addr, false)?.load(Ordering::Acquire);
        self.check_lost(addr, 4).map(|()| value)
    }

    /// Loads the 64-bit word at `addr`, Acquire.
    #[inline]
    pub fn load_u64(&self, addr: u64) -> Result<u64, AccessError> {
        let value = self.word64(addr, false)?.load(Ordering::Acquire);
        self.check_lost(addr, 8).map(|()| value)
    }

    /// Stores the 32-bit word at `addr`, Release.
    #[inline]
    pub fn store_u32(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        self.word32(addr, true)?.store(value, Ordering::Release);
        self.check_lost(addr, 4)
    }

    /// Stores the 64-bit word at `addr`, Release.
    #[inline]
    pub fn store_u64(&self, addr: u64, value: u64) -> Result<(), AccessError> {
        self.word64(addr, true)?.store(value, Ordering::Release);
        self.check_lost(addr, 8)
    }

    /// Adds to the 64-bit word at `addr`, wrapping, and returns the previous value.
    /// Sequentially consistent, and atomic against the guest's processors too.
    #[inline]
    pub fn fetch_add_u64(&self, addr: u64, value: u64) -> Result<u64, AccessError> {
        let old = self.word64(addr, true)?.fetch_add(value, Ordering::SeqCst);
        self.check_lost(addr, 8).map(|()| old)
    }

    /// Stores `new` at `addr` if the 64-bit word there equals `expected`; returns the
    /// previous value. Sequentially consistent, and atomic against the guest's processors too.
    #[inline]
    pub fn compare_exchange_u64(
        &self,
        addr: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        let word = self.word64(addr, true)?;
        let old = match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(old) | Err(old) => old,
        };
        self.check_lost(addr, 8).map(|()| old)
    }
}
