//! Memory that a driver without a virtual machine lends to its device.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use faultline_memory::{AccessError, MemFd};
use faultline_scenario::random::Rng;

/// Granule of allocations.
const GRANULE: u64 = 64;

/// A memory file that is mapped for DMA as one range, and an allocator over it.
#[derive(Debug)]
pub struct Ram {
    file: MemFd,
    iova: u64,
    free: Mutex<FreeList>,
}

/// First fit over a sorted list of holes (offset, length).
#[derive(Debug)]
struct FreeList(Vec<(u64, u64)>);

impl FreeList {
    fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        for i in 0..self.0.len() {
            let (start, size) = self.0[i];
            let at = start.next_multiple_of(align);
            if at - start + len > size {
                continue;
            }
            let tail = (at + len, start + size - at - len);
            let head = (start, at - start);
            self.0.splice(i..=i, [head, tail]);
            self.0.retain(|(_, size)| *size > 0);
            return Some(at);
        }
        None
    }

    fn give(&mut self, start: u64, len: u64) {
        let i = self.0.partition_point(|(s, _)| *s < start);
        self.0.insert(i, (start, len));
        if let Some((next, size)) = self.0.get(i + 1).copied()
            && start + len == next
        {
            self.0[i].1 += size;
            self.0.remove(i + 1);
        }
        if i > 0 && self.0[i - 1].0 + self.0[i - 1].1 == start {
            self.0[i - 1].1 += self.0[i].1;
            self.0.remove(i);
        }
    }
}

impl Ram {
    /// `len` bytes that the device sees at `iova`.
    pub fn new(len: usize, iova: u64) -> io::Result<Arc<Self>> {
        let file = MemFd::new(len)?;
        let free = Mutex::new(FreeList(vec![(0, file.len() as u64)]));
        Ok(Arc::new(Self { file, iova, free }))
    }

    /// The file and its accesses by offset.
    pub fn file(&self) -> &MemFd {
        &self.file
    }

    /// First DMA address.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    fn free(&self) -> MutexGuard<'_, FreeList> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `len` zeroed bytes, `align` (a power of two, at least 64) aligned; `None` if there is no room.
    pub fn alloc(self: &Arc<Self>, len: usize, align: u64) -> Option<Buf> {
        let size = (len.max(1) as u64).next_multiple_of(GRANULE);
        let offset = self.free().take(size, align.max(GRANULE))?;
        let buf = Buf {
            ram: Arc::clone(self),
            offset,
            len,
            size,
        };
        buf.fill(0, len, 0);
        Some(buf)
    }
}

/// Part of a [`Ram`], given back when dropped.
///
/// All accesses are by offset into it. An access beyond its end is a mistake of the caller and panics: this is
/// a test driver.
#[derive(Debug)]
pub struct Buf {
    ram: Arc<Ram>,
    offset: u64,
    len: usize,
    size: u64,
}

impl Buf {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never the case.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// DMA address of a byte.
    pub fn dma(&self, at: usize) -> u64 {
        self.ram.iova + self.offset + at as u64
    }

    /// Where it begins in the file.
    pub fn file_offset(&self) -> u64 {
        self.offset
    }

    /// The memory that it is part of.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    #[inline(always)]
    fn at(&self, at: usize, len: usize) -> u64 {
        assert!(
            at <= self.len && len <= self.len - at,
            "{len} bytes at {at} of {}",
            self.len
        );
        self.offset + at as u64
    }

    #[inline(always)]
    fn good<T>(result: Result<T, AccessError>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => panic!("access to own memory: {error}"),
        }
    }

    /// Copies out.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        Self::good(self.ram.file.read(self.at(at, bytes.len()), bytes));
    }

    /// Copies in.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        Self::good(self.ram.file.write(self.at(at, bytes.len()), bytes));
    }

    /// Copies out into a vector.
    pub fn to_vec(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes);
        bytes
    }

    /// Sets bytes.
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        Self::good(self.ram.file.fill(self.at(at, len), len, byte));
    }

    /// Acquire load.
    #[inline]
    pub fn load_u32(&self, at: usize) -> u32 {
        Self::good(self.ram.file.load_u32(self.at(at, 4)))
    }

    /// Acquire load.
    #[inline]
    pub fn load_u64(&self, at: usize) -> u64 {
        Self::good(self.ram.file.load_u64(self.at(at, 8)))
    }

    /// Release store.
    #[inline]
    pub fn store_u32(&self, at: usize, value: u32) {
        Self::good(self.ram.file.store_u32(self.at(at, 4), value));
    }

    /// Release store.
    #[inline]
    pub fn store_u64(&self, at: usize, value: u64) {
        Self::good(self.ram.file.store_u64(self.at(at, 8), value));
    }

    /// Fills a range with a pattern that depends on `seed` and on the position of each byte.
    pub fn fill_pattern(&self, at: usize, len: usize, seed: u64) {
        self.write(at, &pattern(seed, len));
    }

    /// Position of the first byte that is not as [`Buf::fill_pattern`] leaves it.
    pub fn pattern_mismatch(&self, at: usize, len: usize, seed: u64) -> Option<usize> {
        let have = self.to_vec(at, len);
        have.iter()
            .zip(pattern(seed, len))
            .position(|(have, want)| *have != want)
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.ram.free().give(self.offset, self.size);
    }
}

/// Bytes that depend on a seed and on their position, so that each shift, swap or repetition of pieces is
/// noticed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

/// Random choices of tests.
pub trait Choices {
    /// One of the given.
    fn pick<T: Copy>(&mut self, from: &[T]) -> T;
    /// A number, at the edges of ranges more often than elsewhere.
    fn edgy(&mut self) -> u64;
}

impl Choices for Rng {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn edgy(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => (1u64 << self.below(64)).wrapping_sub(1),
            4 => self.below(256),
            _ => self.next_u64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_joined() {
        let ram = Ram::new(1 << 16, 0x1000).unwrap();
        let bufs: Vec<Buf> = (0..16).map(|_| ram.alloc(4096, 4096).unwrap()).collect();
        assert!(ram.alloc(1, 64).is_none());
        let (even, odd): (Vec<_>, Vec<_>) =
            bufs.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
        drop(even);
        assert!(ram.alloc(8192, 64).is_none());
        drop(odd);
        assert_eq!(ram.alloc(1 << 16, 4096).unwrap().dma(0), 0x1000);
    }

    #[test]
    fn patterns_differ_by_position_and_seed() {
        assert_eq!(pattern(1, 20)[..10], pattern(1, 10));
        assert_ne!(pattern(1, 64), pattern(2, 64));
        assert_ne!(pattern(1, 64)[..8], pattern(1, 64)[8..16]);
    }
}
