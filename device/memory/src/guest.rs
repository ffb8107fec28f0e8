//! The DMA map table of one NIC.

use crate::backing::Backing;
use crate::file_maps::FileMaps;
use crate::map::{MAX_MAPS, Map, MapError, NewMap, Rights};
use crate::mapping::AccessError;
use crate::raw;
use crate::sigbus;
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Why a range could not be unmapped. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnmapError {
    /// The length is zero or the range wraps around.
    #[error("DMA unmap of {len:#x} bytes at {iova:#x} is no range")]
    BadRange {
        /// Start of the range.
        iova: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A map lies only partly in the range; maps are not split.
    #[error("DMA unmap of {len:#x} bytes at {iova:#x} would cut the map at {other:#x}")]
    Partial {
        /// Start of the range.
        iova: u64,
        /// Length in bytes.
        len: u64,
        /// Start of the map that would be cut.
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

/// How often accesses failed, by reason. One per failed call, not per byte.
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

/// A map that was not inserted, and why. Dropping it may take long: if nothing else uses the file, it is unmapped.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    pub error: MapError,
    _map: Map,
}

/// Maps that were removed. Dropping them may take long: files that nothing else uses are unmapped, for some
/// milliseconds for each GiB that was touched.
#[derive(Debug, Default)]
#[must_use = "dropping it unmaps memory, which the data path must not wait for"]
pub struct Removed(Vec<Map>);

impl Removed {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if nothing was removed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Part of a map with a file behind it that keeps what is written. It outlives the map.
#[derive(Debug)]
pub struct Lasting {
    backing: Arc<Backing>,
    offset: u64,
    len: usize,
}

impl Lasting {
    /// Where it begins in its mapping, and bytes.
    pub fn span(&self) -> (u64, usize) {
        (self.offset, self.len)
    }

    /// Makes durable what has been written there. Blocks meanwhile.
    ///
    /// # Errors
    ///
    /// msync(2)'s.
    pub fn sync(&self) -> io::Result<()> {
        self.backing.mapping.sync(self.offset, self.len)
    }
}

/// Guest memory as the VMM has mapped it for one NIC: I/O addresses to bytes.
///
/// One thread owns it (it is `Send`, not `Sync`). Quiesce before [`GuestMemory::unmap`]: the
/// borrow checker proves that no access is in progress, not that no packet refers to the range.
///
/// Multi-byte accesses may cross from one map into the next if both are adjacent. An access of
/// which any byte is out of reach changes nothing and returns the first bad address. Only [`AccessError::Lost`] comes after
/// the access, of which a part may have been made then.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// Sorted by `start`, not overlapping.
    maps: Vec<Map>,
    /// Maps with files behind them that keep what is written; mostly none.
    lasting: usize,
    /// Index of the map that was used last. May be stale, is always checked.
    hit: Cell<usize>,
    faults: Cell<FaultCounts>,
}

impl GuestMemory {
    /// Most maps a NIC can have: what QEMU assumes by default (`VFIO_USER_DEF_MAP_MAX`), and the device's own memory.
    pub const MAX_MAPS: usize = MAX_MAPS;

    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// The parts of these ranges (address, bytes), or of all memory, that are backed by files that last, such as
    /// those of a pmem device of the guest. What is in no map is no part.
    pub fn lasting(&self, ranges: Option<&[(u64, u64)]>) -> Vec<Lasting> {
        let mut parts = Vec::new();
        // There may be many maps, and a peer can ask with each packet.
        if self.lasting == 0 {
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
            parts.extend(inside.filter(|map| map.lasting).filter_map(|map| {
                let first = map.start.max(*addr);
                let backing = map.backing.as_ref()?;
                let before = map.host as u64 - backing.mapping.as_ptr() as u64;
                Some(Lasting {
                    backing: Arc::clone(backing),
                    offset: before + (first - map.start),
                    len: (map.last().min(last) - first + 1) as usize,
                })
            }));
        }
        parts
    }

    /// Prepares a map of its own and inserts it; for callers whose data path may wait for both. See
    /// [`FileMaps::prepare`].
    ///
    /// # Errors
    ///
    /// [`MapError`]; the table is unchanged then, and the descriptor closed.
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
    /// [`Refused`], with the map, so that another thread can drop it; the table is unchanged then.
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
        self.lasting += usize::from(map.lasting);
        self.maps.insert(at, map);
        Ok(())
    }

    /// Removes the maps in `iova .. iova + len`, each entirely inside, and returns them.
    ///
    /// None is a success, as with VFIO's type 1 IOMMU version 2 (linux/vfio.h,
    /// VFIO_IOMMU_UNMAP_DMA): with a virtual IOMMU, QEMU unmaps whole windows of which it does
    /// not know what is in them.
    ///
    /// # Errors
    ///
    /// [`UnmapError`]; nothing is removed then. A map that would be cut is refused, as there.
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
        self.lasting -= removed.iter().filter(|map| map.lasting).count();
        self.hit.set(0);
        Ok(Removed(removed))
    }

    /// Removes all maps.
    pub fn unmap_all(&mut self) {
        self.maps.clear();
        self.lasting = 0;
        self.hit.set(0);
    }

    /// Number of maps, unreachable ones included.
    pub fn map_count(&self) -> usize {
        self.maps.len()
    }

    /// The maps as (start, last byte, reachable, writable), in ascending order.
    pub fn maps(&self) -> impl Iterator<Item = (u64, u64, bool, bool)> + '_ {
        self.maps
            .iter()
            .map(|map| (map.start, map.last(), map.backing.is_some(), map.writable))
    }

    /// True if some map came without a descriptor. That alone is no reason to warn: QEMU maps
    /// its ROMs (read-only) and our own mmapped BAR areas (writable) that way in every VM.
    /// Memory that is not shared shows as a large writable one in [`GuestMemory::maps`].
    pub fn has_unreachable(&self) -> bool {
        self.unreachable_maps() != 0
    }

    /// Number of maps that came without a descriptor.
    pub fn unreachable_maps(&self) -> usize {
        self.maps.iter().filter(|map| map.backing.is_none()).count()
    }

    /// How often accesses failed since the table was made.
    pub fn faults(&self) -> FaultCounts {
        self.faults.get()
    }

    #[inline(always)]
    fn find(&self, addr: u64) -> Option<(usize, &Map)> {
        let hit = self.hit.get();
        if let Some(map) = self.maps.get(hit)
            && addr.wrapping_sub(map.start) <= map.span
        {
            return Some((hit, map));
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
        self.hit.set(index);
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

    /// Whether the access that was just made found all its pages. Not for accesses of two tables.
    #[inline(always)]
    fn found(&self, addr: u64, len: usize) -> Result<(), AccessError> {
        if sigbus::none_lost() {
            return Ok(());
        }
        self.lost(addr, len, self, addr)
    }

    /// Repairs the pages that a copy has lost, and says on which side; or an access, of one table at one address.
    #[cold]
    #[inline(never)]
    fn lost(
        &self,
        dst: u64,
        len: usize,
        src: &GuestMemory,
        src_addr: u64,
    ) -> Result<(), AccessError> {
        let (mut here, mut there) = (false, false);
        for page in sigbus::take_lost() {
            if self.restore(dst, len, page) {
                here = true;
            } else {
                there |= src.restore(src_addr, len, page);
            }
        }
        if there && !here {
            return src.fault(AccessError::Lost { addr: src_addr });
        }
        self.fault(AccessError::Lost { addr: dst })
    }

    /// Maps a page again if it belongs to the files behind this range.
    fn restore(&self, addr: u64, len: usize, page: usize) -> bool {
        let (mut at, mut left) = (addr, len as u64);
        while left > 0
            && let Some((_, map)) = self.find(at)
        {
            if map.backing.as_ref().is_some_and(|file| file.restore(page)) {
                return true;
            }
            let step = (map.span - (at - map.start)).saturating_add(1).min(left);
            at = at.wrapping_add(step);
            left -= step;
        }
        false
    }

    /// Host address of `addr` and the bytes from there to the end of its map, not counted.
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
        // SAFETY: `find` says into <= span, and `host` is valid for span + 1 bytes. The length
        // fitted an isize when it was mapped.
        let p = unsafe { map.host.add(into as usize) };
        // A mapping never has 2^64 bytes (isize::MAX at most), so this cannot overflow.
        Ok((p, map.span - into + 1))
    }

    /// Like `resolve` for exactly `len` bytes in one map; `None` if they leave it.
    #[inline(always)]
    fn whole(&self, addr: u64, len: usize, write: bool) -> Result<Option<*mut u8>, AccessError> {
        let (p, avail) = self.resolve(addr, write)?;
        Ok((len as u64 <= avail).then_some(p))
    }

    /// Checks that all of `len` bytes can be reached.
    ///
    /// # Errors
    ///
    /// [`AccessError`] with the first address that cannot, and counts it.
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

    /// How many bytes, at most `len`, can be reached from `addr` on without a gap; adjacent
    /// maps count as one.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if not even the first byte can (zero bytes always can).
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
            done += step as usize;
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
            let step = avail.min((len - done) as u64) as usize;
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
                // SAFETY: `whole` says that buf.len() bytes from `p` are in one mapping, which
                // lives at least as long as the borrow of `self`; `buf` is private.
                unsafe { raw::load(buf.as_mut_ptr(), p, buf.len()) };
                self.found(addr, buf.len())
            }
            _ => self.read_slow(addr, buf),
        }
    }

    #[inline(never)]
    fn read_slow(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        self.check(addr, buf.len(), false)?;
        let base = buf.as_mut_ptr();
        self.pieces(addr, buf.len(), false, |p, done, step| {
            // SAFETY: `p` is good for `step` bytes by `resolve`; done + step <= buf.len().
            unsafe { raw::load(base.add(done), p, step) };
        })?;
        self.found(addr, buf.len())
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
                // SAFETY: `whole` says that data.len() bytes from `p` are in one writable
                // mapping, which lives at least as long as the borrow; `data` is private.
                unsafe { raw::store(p, data.as_ptr(), data.len()) };
                self.found(addr, data.len())
            }
            _ => self.write_slow(addr, data),
        }
    }

    #[inline(never)]
    fn write_slow(&self, addr: u64, data: &[u8]) -> Result<(), AccessError> {
        self.check(addr, data.len(), true)?;
        let base = data.as_ptr();
        self.pieces(addr, data.len(), true, |p, done, step| {
            // SAFETY: `p` is good for `step` bytes by `resolve`; done + step <= data.len().
            unsafe { raw::store(p, base.add(done), step) };
        })?;
        self.found(addr, data.len())
    }

    /// Copies `len` bytes at `src_addr` of `src` to `dst` here: guest to guest, one copy.
    ///
    /// Both sides may cross map boundaries. Ranges of the same table may overlap and then
    /// behave as memmove; two I/O addresses of the same page (aliases) are not detected, and
    /// overlap through them gives arbitrary bytes.
    ///
    /// # Errors
    ///
    /// [`AccessError`] of either side (the source is checked first, and each table counts its
    /// own); nothing is then written.
    #[inline]
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
            // SAFETY: `whole` says that `len` bytes are in one mapping on either side; overlap
            // is allowed.
            unsafe { raw::shared_to_shared(d, s, len) };
            if sigbus::none_lost() {
                return Ok(());
            }
            return self.lost(dst, len, src, src_addr);
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
            let step = s_avail.min(d_avail).min((len - done) as u64) as usize;
            if backward {
                cuts.push((d, s, step));
            } else {
                // SAFETY: `resolve` says that `step` bytes from either address are in one map.
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
        self.lost(dst, len, src, src_addr)
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
        self.found(addr, 4).map(|()| value)
    }

    /// Loads the 64-bit word at `addr`, Acquire.
    #[inline]
    pub fn load_u64(&self, addr: u64) -> Result<u64, AccessError> {
        let value = self.word64(addr, false)?.load(Ordering::Acquire);
        self.found(addr, 8).map(|()| value)
    }

    /// Stores the 32-bit word at `addr`, Release.
    #[inline]
    pub fn store_u32(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        self.word32(addr, true)?.store(value, Ordering::Release);
        self.found(addr, 4)
    }

    /// Stores the 64-bit word at `addr`, Release.
    #[inline]
    pub fn store_u64(&self, addr: u64, value: u64) -> Result<(), AccessError> {
        self.word64(addr, true)?.store(value, Ordering::Release);
        self.found(addr, 8)
    }

    /// Adds to the 64-bit word at `addr`, wrapping, and returns what was there before.
    /// Sequentially consistent, and atomic against the guest's processors too.
    #[inline]
    pub fn fetch_add_u64(&self, addr: u64, value: u64) -> Result<u64, AccessError> {
        let old = self.word64(addr, true)?.fetch_add(value, Ordering::SeqCst);
        self.found(addr, 8).map(|()| old)
    }

    /// Stores `new` at `addr` if the 64-bit word there equals `expected`; returns what was
    /// there before. Sequentially consistent, and atomic against the guest's processors too.
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
        self.found(addr, 8).map(|()| old)
    }
}
