//! Server side of the vfio-user protocol, version 0.0: what QEMU's `vfio-user-pci` talks to.
//!
//! Implement [`Device`], make a [`Listener`], call [`Listener::serve`]. The server calls the
//! device from the thread that serves; the device answers synchronously. QEMU waits at most
//! 5 s for an answer (`x-msg-timeout`) and a late one desynchronizes its stream for good, so a
//! device must stay well below.
//!
//! # What the server guarantees
//!
//! * A message is read completely, bounded ([`MAX_MESSAGE`]) and checked before the device
//!   sees any of it. Whatever the socket delivers, there is no panic and no unbounded memory.
//! * Every request is answered (unless it carries the no-reply flag), every refusal with a
//!   non-zero errno, because QEMU takes errno 0 as success. An error reply is a bare header.
//! * A message that is wrong inside its frame leaves the stream in step. If the frame itself
//!   cannot be trusted (size below 16 or beyond [`MAX_DRAIN`]) the client gets an error reply
//!   and the connection ends with the reason logged.
//! * Descriptors that the device does not take are closed.
//! * One client at a time. Others that connect meanwhile are accepted and closed at once by
//!   the same thread, so that they see end of file instead of waiting in the backlog for ever.
//!   (A device that is busy delays this, nothing else.)
//!
//! # Not here
//!
//! No device knowledge, no migration, no dirty-page tracking, no DMA_READ/DMA_WRITE towards
//! the client (memory without a descriptor is therefore out of reach), no `write_multiple`.
//!
//! # Sources
//!
//! QEMU `docs/interop/vfio-user.rst` (message layouts), QEMU `hw/vfio-user/*.c` (what the
//! client insists on), `linux/vfio.h` (structures behind the messages).

#![forbid(unsafe_code)]

mod device;
mod irq;
mod listener;
mod protocol;
mod server;
mod socket;

pub use device::{
    Device, DeviceFlags, DeviceInfo, DmaMap, DmaUnmap, IrqAction, IrqData, IrqFlags, IrqInfo,
    IrqSet, RegionFlags, RegionInfo, RegionMmap, SparseArea,
};
pub use irq::{IrqVectors, TriggerCounts};
pub use listener::{ListenError, Listener};
pub use protocol::{MAX_DATA_XFER, MAX_DRAIN, MAX_MESSAGE, MAX_MSG_FDS};
pub use rustix::io::Errno;
pub use server::{Ended, serve_connection};
pub use socket::Shutdown;

/// Numbers of the PCI regions and interrupts (linux/vfio.h, `VFIO_PCI_*_INDEX`).
pub mod pci_index {
    use vfio_bindings::bindings::vfio as v;

    /// First BAR; the others follow.
    pub const BAR0_REGION: u32 = v::VFIO_PCI_BAR0_REGION_INDEX;
    /// Last BAR.
    pub const BAR5_REGION: u32 = v::VFIO_PCI_BAR5_REGION_INDEX;
    /// Expansion ROM.
    pub const ROM_REGION: u32 = v::VFIO_PCI_ROM_REGION_INDEX;
    /// Config space.
    pub const CONFIG_REGION: u32 = v::VFIO_PCI_CONFIG_REGION_INDEX;
    /// Legacy VGA ranges.
    pub const VGA_REGION: u32 = v::VFIO_PCI_VGA_REGION_INDEX;
    /// Number of PCI regions.
    pub const NUM_REGIONS: u32 = v::VFIO_PCI_NUM_REGIONS;
    /// Pin interrupt.
    pub const INTX_IRQ: u32 = v::VFIO_PCI_INTX_IRQ_INDEX;
    /// MSI.
    pub const MSI_IRQ: u32 = v::VFIO_PCI_MSI_IRQ_INDEX;
    /// MSI-X.
    pub const MSIX_IRQ: u32 = v::VFIO_PCI_MSIX_IRQ_INDEX;
    /// Error notification (AER).
    pub const ERR_IRQ: u32 = v::VFIO_PCI_ERR_IRQ_INDEX;
    /// Request to release the device.
    pub const REQ_IRQ: u32 = v::VFIO_PCI_REQ_IRQ_INDEX;
    /// Number of PCI interrupt indices.
    pub const NUM_IRQS: u32 = v::VFIO_PCI_NUM_IRQS;
}
