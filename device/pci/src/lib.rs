//! PCI configuration space of one function, and the MSI-X table behind a BAR.
//!
//! This crate models registers only: it has no sockets, no eventfds and no device functions. The
//! caller forwards accesses of the config region and acts on the [`ConfigChange`] that a write
//! returns.
//!
//! With vfio-user, QEMU keeps its own copy of the BARs (with sizes from the region info) and of the
//! MSI-X enable bits. It forwards every config write, and reads all other registers from this model.
//! Other clients read all registers from it, so BAR sizing and control bits must be correct here
//! too.
//!
//! # Sources
//!
//! PCI Local Bus 3.0 (header §6.1–6.2, BARs §6.2.5.1, MSI-X §6.8.2), PCI Power Management 1.2
//! §3.2, PCI Express Base 3.0 (capability §7.8, function-level reset §6.6.2, device serial
//! number §7.12). Register names as in Linux `pci_regs.h`.
//!
//! # Not supported
//!
//! INTx and MSI (RDMA devices need MSI-X vectors), I/O BARs, expansion ROM, AER, SR-IOV.

#![forbid(unsafe_code)]
// Values of guests, peers and sockets reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod config;
mod msix;

pub use config::{
    Bar, CONFIG_SIZE, ConfigChange, ConfigError, ConfigSpace, PciIdentity, PowerState,
};
pub use msix::{MAX_VECTORS, MsixLayout, MsixTable};
