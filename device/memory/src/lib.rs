//! Memory that is shared with a guest: its RAM and the doorbell pages.
//!
//! This is the only crate of the workspace that contains `unsafe`. Other crates access
//! guest memory through the methods of [`GuestMemory`], [`SharedPages`], [`WatchedWords`], [`MemFd`] and
//! [`MappedFile`]. None of them returns a reference into the memory: another process may change
//! it at any time, and a `&[u8]` promises the compiler that it does not change.
//!
//! # Memory model
//!
//! * Plain copies are raw-pointer copies into or out of a private buffer. A racing guest makes
//!   the *content* of the copy arbitrary, never the behaviour of this process: no code here or
//!   in other crates may read the same guest bytes twice and rely on equal results.
//! * A plain access of 1, 2, 4 or 8 bytes that is naturally aligned is one machine access, so
//!   the guest sees it entirely or not at all. 16 aligned bytes are two such accesses in
//!   ascending order.
//! * A longer write stores the aligned tail (at most 8 bytes) after everything before it.
//!   Programs that poll the last byte of an RDMA WRITE buffer rely on that. `memcpy` does not
//!   guarantee it: glibc stores the first vector of a long copy last.
//! * `load_*` is Acquire, `store_*` is Release, read-modify-write operations are sequentially
//!   consistent. All need natural alignment. Values are in guest order, which is little-endian.
//!
//! # Trust
//!
//! The descriptors of guest RAM come from the VMM. [`FileMaps::prepare`] refuses a file that is too short when it is
//! mapped. Any process with the descriptor can truncate the file later, and a sparse file has holes that a full file
//! system cannot fill: an access there fails with [`AccessError::Lost`] and affects no other guest (`sigbus.rs`). The
//! file of the doorbell pages belongs to this process, so [`SharedPages`] seals it against truncation. Ports that use `virtio-queue`
//! access memory that `vm-memory` has mapped; [`ForeignMap`] protects the process from its missing pages.
//!
//! # Not memory
//!
//! [`set_tap_header`] is here because it needs `unsafe`.
//!
//! # Not in this crate
//!
//! Memory keys are translated in firmware; vfio-user messages are parsed in `device/vfio-user`. A virtual IOMMU
//! needs no support: its I/O addresses arrive as ordinary maps.

#![allow(
    unsafe_code,
    reason = "the only crate that maps and accesses the memory of guests; each block states why it is sound"
)]
// Values of guests, peers and sockets reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

#[cfg(not(target_endian = "little"))]
compile_error!("guest memory is little-endian and accessed without conversion");

#[cfg(not(target_pointer_width = "64"))]
compile_error!("offsets and lengths of guest memory have 64 bits");

mod backing;
mod file;
mod file_maps;
mod foreign;
mod guest;
mod map;
mod mapping;
mod pages;
mod raw;
mod sigbus;
mod tap;
mod watched;

pub use file::{MappedFile, MemFd};
pub use file_maps::FileMaps;
pub use foreign::ForeignMap;
pub use guest::{FaultCounts, GuestMemory, PersistentRange, Refused, Removed, UnmapError};
pub use map::{MapError, NewMap, Rights};
pub use mapping::{AccessError, Mapping, PAGE_SIZE};
pub use pages::{Page, SharedPages};
pub use tap::set_tap_header;
pub use watched::WatchedWords;
