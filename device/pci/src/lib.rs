//! PCI configuration space of one function, and the MSI-X table behind a BAR.
//!
//! A model of registers only: no sockets, no eventfds, no device beyond its identity. The
//! caller forwards accesses of the config region and acts on the [`ConfigChange`] that a write
//! returns.
//!
//! Under vfio-user QEMU keeps its own copy of the BARs (their sizes come from the regions) and
//! of the MSI-X enable bits, but passes every write on, and serves the rest of config space
//! from here; a client without QEMU sees all of it. So both sizing and control bits are kept
//! correct here.
//!
//! # Sources
//!
//! PCI Local Bus 3.0 (header §6.1–6.2, BARs §6.2.5.1, MSI-X §6.8.2), PCI Power Management 1.2
//! §3.2, PCI Express Base 3.0 (capability §7.8, function-level reset §6.6.2, device serial
//! number §7.12). Register names as in Linux `pci_regs.h`.
//!
//! # Not here
//!
//! No INTx and no MSI (RDMA devices need vectors), no I/O BARs, no expansion ROM, no AER, no
//! SR-IOV.

#![forbid(unsafe_code)]

mod config;
mod msix;

pub use config::{
    Bar, CONFIG_SIZE, ConfigChange, ConfigError, ConfigSpace, PciIdentity, PowerState,
};
pub use msix::{MAX_VECTORS, MsixLayout, MsixTable};
