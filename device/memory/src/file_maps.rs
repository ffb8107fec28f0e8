//! The files behind the memory of one guest. Each file is mapped once for a NIC and as a whole, whatever the number of
//! DMA maps that refer to it: with a virtual IOMMU a guest makes and removes tens of thousands of maps, while the
//! mappings of all NICs of the process count against `vm.max_map_count`.

use crate::backing::{Backing, HUGETLBFS, Identity};
use crate::map::{Map, MapError, NewMap, Rights};
use crate::mapping::{Mapping, PAGE_SIZE};
use crate::sigbus::MAX_REGISTERED;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::io;
use rustix::process::{Resource, getrlimit};
use std::ptr;
use std::sync::{Arc, Weak};

/// Mappings of a process if the system does not report the limit.
const DEFAULT_MAX_MAP_COUNT: usize = 65530;

/// The files behind the memory of one guest. Belongs to the thread that receives the descriptors: mapping a file takes a
/// lock of the process, for which the data path must not wait.
#[derive(Debug)]
pub struct FileMaps {
    files: Vec<Weak<Backing>>,
    limit: usize,
}

impl FileMaps {
    /// Allows at most `limit` files, or ranges of files, at a time.
    pub fn new(limit: usize) -> Self {
        Self {
            files: Vec::new(),
            limit,
        }
    }

    /// The limit for each of `nics` NICs in this process: an equal share of three quarters of the mappings and
    /// descriptors that the system allows the process.
    pub fn share(nics: usize) -> usize {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
        let maps = text.trim().parse().unwrap_or(DEFAULT_MAX_MAP_COUNT);
        let files = getrlimit(Resource::Nofile).current;
        let files = files.map_or(usize::MAX, |files| {
            usize::try_from(files).unwrap_or(usize::MAX)
        });
        let most = maps.min(files).min(MAX_REGISTERED);
        let share = (most / 4).saturating_mul(3).checked_div(nics);
        share.unwrap_or(most).max(1)
    }

    /// Number of files that are mapped.
    pub fn len(&self) -> usize {
        let alive = |file: &&Weak<Backing>| file.strong_count() > 0;
        self.files.iter().filter(alive).count()
    }

    /// True if no file is mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Prepares a map of `len` bytes of the file `fd` from `offset` at I/O address `iova`.
    ///
    /// Without a descriptor the range is recorded as unreachable: accesses fail with
    /// [`AccessError::NoDescriptor`](crate::AccessError::NoDescriptor) and are counted. QEMU sends such maps for the BARs of
    /// other devices, for memory that is not shared, and for our own mmapped BAR.
    ///
    /// # Errors
    ///
    /// [`MapError`]; the descriptor is closed.
    pub fn prepare(
        &mut self,
        iova: u64,
        len: u64,
        fd: Option<OwnedFd>,
        offset: u64,
        rights: Rights,
    ) -> Result<NewMap, MapError> {
        if len == 0 {
            return Err(MapError::Empty { iova });
        }
        let span = len.saturating_sub(1);
        let overflow = MapError::Overflow { iova, len, offset };
        iova.checked_add(span).ok_or(overflow.clone())?;
        let file_end = offset.checked_add(len).ok_or(overflow.clone())?;
        let host_len = usize::try_from(len)
            .ok()
            .filter(|len| *len <= isize::MAX as usize)
            .ok_or(overflow)?;
        if !(iova | len | offset).is_multiple_of(PAGE_SIZE as u64) {
            return Err(MapError::Unaligned { iova, len, offset });
        }
        if !rights.readable {
            return Err(MapError::NotReadable { iova });
        }
        let mut map = Map {
            start: iova,
            span,
            host: ptr::null_mut(),
            writable: rights.writable,
            backing: None,
            persistent: false,
        };
        if let Some(fd) = fd {
            let writable = rights.writable;
            let os = |errno| MapError::Os { iova, len, errno };
            let stat = fstat(&fd).map_err(os)?;
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            if is_regular && size < file_end {
                return Err(MapError::ShortFile { size, offset, len });
            }
            let identity = is_regular.then_some((stat.st_dev, stat.st_ino, writable));
            map.persistent = writable && !(is_regular && is_in_memory(&fd));
            let (backing, at) = match self.find(identity, offset, host_len) {
                Some(found) => found,
                None => self
                    .add(
                        fd,
                        identity.map(|id| (id, size)),
                        offset,
                        host_len,
                        writable,
                    )
                    .map_err(|error| error.map_or(MapError::TooManyFiles(self.limit), os))?,
            };
            map.host = backing.mapping.as_ptr().wrapping_add(at);
            map.backing = Some(backing);
        }
        Ok(NewMap(map))
    }

    /// Finds a mapping of the same file that contains the range. While a file is mapped, no other file has its inode number.
    fn find(
        &self,
        identity: Option<Identity>,
        offset: u64,
        len: usize,
    ) -> Option<(Arc<Backing>, usize)> {
        self.files.iter().find_map(|file| {
            let backing = file.upgrade()?;
            let same = identity.is_some() && backing.identity == identity;
            let at = backing.position(offset, len).filter(|_| same)?;
            Some((backing, at))
        })
    }

    /// Maps a file as a whole. Maps only the range if the file is not a regular one, or if the whole does not fit the
    /// address space. The error is that of the system, or `None` if there are too many files.
    fn add(
        &mut self,
        fd: OwnedFd,
        whole: Option<(Identity, u64)>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<(Arc<Backing>, usize), Option<io::Errno>> {
        self.files.retain(|file| file.strong_count() > 0);
        if self.files.len() >= self.limit {
            return Err(None);
        }
        let whole = whole.and_then(|(identity, size)| {
            let size = usize::try_from(size)
                .ok()?
                .checked_next_multiple_of(PAGE_SIZE)?;
            let mapping = Mapping::new(&fd, 0, size, writable).ok()?;
            Some((mapping, 0, Some(identity)))
        });
        let (mapping, start, identity) = match whole {
            Some(whole) => whole,
            None => (Mapping::new(&fd, offset, len, writable)?, offset, None),
        };
        let backing = Backing::new(fd, mapping, start, identity, writable)?.ok_or(None)?;
        let at = backing
            .position(offset, len)
            .ok_or(Some(io::Errno::INVAL))?;
        let backing = Arc::new(backing);
        self.files.push(Arc::downgrade(&backing));
        Ok((backing, at))
    }
}

/// True if the file system of this file is in memory, so that its contents are not persistent.
fn is_in_memory(fd: &OwnedFd) -> bool {
    // linux/magic.h: tmpfs (and memfd), hugetlbfs, ramfs.
    const IN_MEMORY: [u64; 3] = [0x0102_1994, HUGETLBFS, 0x8584_58f6];
    fstatfs(fd).is_ok_and(|fs| IN_MEMORY.contains(&(fs.f_type as u64)))
}
