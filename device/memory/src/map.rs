//! One DMA map, and the reasons for which a range can't be mapped.

use crate::backing::Backing;
use rustix::io::Errno;
use std::sync::Arc;

/// Largest number of maps of a NIC.
pub(crate) const MAX_MAPS: usize = 65535 + 1;

/// Reason for which a range could not be mapped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The length is zero.
    #[error("DMA map at {iova:#x} has length 0")]
    Empty {
        /// Start of the range.
        iova: u64,
    },
    /// The end of the range exceeds 64 bits as an address or as a file offset.
    #[error("DMA map of {len:#x} bytes at {iova:#x}, file offset {offset:#x}, wraps around")]
    Overflow {
        /// Start of the range.
        iova: u64,
        /// Length in bytes.
        len: u64,
        /// Offset into the file.
        offset: u64,
    },
    /// Address, length or file offset is not a multiple of 4096.
    #[error(
        "DMA map of {len:#x} bytes at {iova:#x}, file offset {offset:#x}, is not aligned to 4096 bytes"
    )]
    Unaligned {
        /// Start of the range.
        iova: u64,
        /// Length in bytes.
        len: u64,
        /// Offset into the file.
        offset: u64,
    },
    /// Part of the range is mapped already.
    #[error("DMA map of {len:#x} bytes at {iova:#x} overlaps the map at {other:#x}")]
    Overlap {
        /// Start of the range.
        iova: u64,
        /// Length in bytes.
        len: u64,
        /// Start of the map that overlaps.
        other: u64,
    },
    /// The device may not read the range; such a map is useless.
    #[error("DMA map at {iova:#x} is not readable")]
    NotReadable {
        /// Start of the range.
        iova: u64,
    },
    /// The file ends before the range does. Access would raise SIGBUS.
    #[error("file of {size:#x} bytes is too short for {len:#x} bytes at offset {offset:#x}")]
    ShortFile {
        /// Size of the file in bytes.
        size: u64,
        /// Offset into the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The table is full ([`GuestMemory::MAX_MAPS`](crate::GuestMemory::MAX_MAPS)).
    #[error("more than {} DMA maps", MAX_MAPS)]
    TooMany,
    /// Too many files, or ranges of devices ([`FileMaps::new`](crate::FileMaps::new)).
    #[error(
        "guest memory is in more than {0} files, which is this NIC's share of the mappings and descriptors of the \
         process; raise vm.max_map_count and the limit of open files, or serve fewer NICs in one process"
    )]
    TooManyFiles(usize),
    /// fstat(2) or mmap(2) failed.
    #[error("cannot map {len:#x} bytes at {iova:#x}: {errno}")]
    Os {
        /// Start of the range.
        iova: u64,
        /// Length in bytes.
        len: u64,
        /// The system's reason.
        errno: Errno,
    },
}

impl MapError {
    /// The errno to answer the VMM with; never zero.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Overlap { .. } => Errno::EXIST,
            Self::TooMany | Self::TooManyFiles(_) => Errno::NOSPC,
            Self::Overflow { .. } => Errno::OVERFLOW,
            Self::Os { errno, .. } => *errno,
            Self::Empty { .. }
            | Self::Unaligned { .. }
            | Self::NotReadable { .. }
            | Self::ShortFile { .. } => Errno::INVAL,
        }
    }
}

/// The accesses that the device may make to a range of guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// The device may read.
    pub readable: bool,
    /// The device may write.
    pub writable: bool,
}

impl Rights {
    /// For ROM, for example.
    pub const READ_ONLY: Self = Self {
        readable: true,
        writable: false,
    };
    /// For RAM.
    pub const READ_WRITE: Self = Self {
        readable: true,
        writable: true,
    };
}

/// One map. `span` is its length minus one, so that a map may end at 2^64.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) start: u64,
    pub(crate) span: u64,
    /// Host address of `start`; null without a descriptor.
    pub(crate) host: *mut u8,
    pub(crate) writable: bool,
    /// Owns the memory at `host`.
    pub(crate) backing: Option<Arc<Backing>>,
    /// The file is writable and persistent.
    pub(crate) persistent: bool,
}

// SAFETY: `host` points into `backing`, which moves with it and is itself Send.
unsafe impl Send for Map {}

impl Map {
    pub(crate) fn last(&self) -> u64 {
        self.start.wrapping_add(self.span)
    }
}

/// A DMA map that [`GuestMemory::insert`](crate::GuestMemory::insert) can take.
#[derive(Debug)]
pub struct NewMap(pub(crate) Map);
