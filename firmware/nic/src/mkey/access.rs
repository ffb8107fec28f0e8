//! Accesses to memory keys: access rights, ranges, and the reasons why a translation has no result.

use faultline_abi::qp::{
    ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC,
    ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
};

/// The user of a key: a QP, and the protection domain for which it uses the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUser {
    /// Protection domain.
    pub pd: u32,
    /// Queue pair.
    pub qpn: u32,
}

/// A range of addresses behind a key, and the access to it that a work request or a packet needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// lkey or rkey.
    pub key: u32,
    /// User of the key.
    pub user: KeyUser,
    /// First address, as the user of the key specifies it.
    pub va: u64,
    /// Bytes.
    pub len: u32,
    /// Kind of access.
    pub access: Access,
}

/// Pages that a MAP command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// Address of the first page.
    pub iova: u64,
    /// log2 of the page size.
    pub page_shift: u8,
    /// Number of pages.
    pub count: u64,
    /// Write only those that have an entry, as REPLACE does.
    pub only_present: bool,
}

impl PageRange {
    /// `count` pages of 2^`page_shift` bytes from `iova` on, whether they have an entry or not.
    pub fn new(iova: u64, page_shift: u8, count: u64) -> Self {
        Self {
            iova,
            page_shift,
            count,
            only_present: false,
        }
    }
}

/// The kind of access that a work request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Gather for a request of this NIC.
    LocalRead,
    /// Scatter a receive or a response.
    LocalWrite,
    /// A peer's WRITE.
    RemoteWrite,
    /// A peer's READ.
    RemoteRead,
    /// A peer's atomic.
    RemoteAtomic,
    /// A peer's FLUSH that makes data visible.
    FlushGlobal,
    /// A peer's FLUSH that makes data durable.
    FlushPersistent,
}

impl Access {
    pub(super) fn right(self) -> u32 {
        match self {
            Self::LocalRead => 0,
            Self::LocalWrite => ACCESS_LOCAL_WRITE,
            Self::RemoteWrite => ACCESS_REMOTE_WRITE,
            Self::RemoteRead => ACCESS_REMOTE_READ,
            Self::RemoteAtomic => ACCESS_REMOTE_ATOMIC,
            Self::FlushGlobal => ACCESS_FLUSH_GLOBAL,
            Self::FlushPersistent => ACCESS_FLUSH_PERSISTENT,
        }
    }

    pub(super) fn is_remote(self) -> bool {
        !matches!(self, Self::LocalRead | Self::LocalWrite)
    }

    /// True if the access changes the memory.
    pub fn writes(self) -> bool {
        matches!(
            self,
            Self::LocalWrite | Self::RemoteWrite | Self::RemoteAtomic
        )
    }
}

/// Why a translation has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// No such key, or an old variant of it.
    Key,
    /// The key belongs to another protection domain.
    Pd,
    /// The key does not give the right.
    Access,
    /// The range leaves the region.
    Bounds,
    /// The page at this address of a pinned region has no entry, or none that may be written.
    NotPresent(u64),
    /// The same in a region on demand, where it is a page fault and no error.
    Absent(Absent),
}

impl Miss {
    /// Returns the same reason with `shift` subtracted from the address that the user of the key knows
    /// ([`Absent::named`]).
    pub(super) fn named(self, shift: u64) -> Self {
        match self {
            Self::Absent(absent) => Self::Absent(Absent {
                named: absent.va.wrapping_sub(shift),
                ..absent
            }),
            other => other,
        }
    }
}

/// Bytes of a region on demand whose page is not present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The region's key.
    pub key: u32,
    /// Address of the first of them in the region, as the driver uses it.
    pub va: u64,
    /// The same address as the user of the key gives it: a window or a zero-based region begins at 0.
    pub named: u64,
    /// Bytes of the access from there on.
    pub bytes: u32,
    /// The access writes.
    pub write: bool,
}
