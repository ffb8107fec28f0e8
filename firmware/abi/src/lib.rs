//! The contract between the device and its drivers.
//!
//! Layout only: registers, doorbells, commands, work-queue and completion entries, events. Everything is
//! little-endian, every structure has a fixed size, and fields called `reserved` must be zero on the way
//! to the device and are zero on the way back. The C header `guest-driver/include/faultline_abi.h` is
//! generated from this crate (by `header::c_header`, of the feature `header`), so that device, kernel module and libibverbs
//! provider always agree.
//!
//! This crate has no behaviour: `firmware/nic` and `docs/hardware-manual.md` have the meaning of these bytes. The one
//! exception is [`ring`], the lock-free algorithm of the doorbell ring, which drivers and device must execute in the
//! same way.
#![cfg_attr(not(feature = "header"), no_std)]
#![forbid(unsafe_code)]
// Values of guests, peers and sockets reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

#[macro_use]
mod layout;

pub mod admin;
pub mod caps;
pub mod cqe;
pub mod device_memory;
pub mod doorbell;
pub mod event;
pub mod iwarp;
pub mod qp;
pub mod regs;
pub mod ring;
pub mod status;
pub mod steering;
pub mod tag;
pub mod translation;
pub mod wqe;

#[cfg(feature = "header")]
pub mod header;

pub use layout::{Constant, ConstantGroup, Field, StructLayout};
pub use status::Status;
pub use zerocopy::little_endian::{U16, U32, U64};

/// Version of this contract: major in the upper 16 bits, minor in the lower 16.
///
/// A driver refuses a device with an unknown major number. A new minor number only adds features: a device accepts
/// drivers of earlier ones, and a driver writes zero to fields that the device's minor number does not define.
///
/// - 2.1: durations in RESUME, process in ALLOC_UCTX.
/// - 2.2: [`regs::LINK_SPEED`].
/// - 2.3: user in ALLOC_UCTX.
/// - 2.4: iWARP.
pub const ABI_VERSION: u32 = 2 << 16 | 4;

/// Contents of [`regs::MAGIC`]: "FLTL" in ASCII, first letter in the lowest byte.
pub const MAGIC: u32 = u32::from_le_bytes(*b"FLTL");
