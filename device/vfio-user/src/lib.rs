//! Server side of the vfio-user protocol, version 0.0, for QEMU's `vfio-user-pci` client.
//!
//! Implement [`Device`], create a [`Listener`], call [`Listener::serve`]. The server calls the
//! device from the serving thread; the device answers synchronously. QEMU waits at most 5 s for a
//! reply (`x-msg-timeout`), and a late reply permanently desynchronizes its stream. A device must
//! therefore answer well within this time.
//!
//! # What the server guarantees
//!
//! * The server reads a message completely, up to [`MAX_MESSAGE`] bytes, and checks it before it
//!   calls the device. No input from the socket causes a panic or unbounded memory use.
//! * Every request without the no-reply flag gets a reply. An error reply is a header without body,
//!   with a non-zero errno, because QEMU takes errno 0 as success.
//! * After a malformed body the stream stays synchronized. If the size in the header is invalid
//!   (below 16 or above [`MAX_DRAIN`]), the server sends an error reply, logs the reason and closes
//!   the connection.
//! * Descriptors that the device does not take are closed.
//! * The server serves one client at a time. The same thread accepts and immediately closes other
//!   connections, so that those clients read end of file instead of waiting in the backlog. Only a
//!   busy device delays this.
//!
//! # Not supported
//!
//! Migration, dirty-page tracking, `write_multiple`, and DMA_READ/DMA_WRITE requests to the client
//! (so the device cannot access memory without a descriptor).
//!
//! # Sources
//!
//! QEMU `docs/interop/vfio-user.rst` (message layouts), QEMU `hw/vfio-user/*.c` (what the
//! client requires), `linux/vfio.h` (structures in the messages).

#![forbid(unsafe_code)]
// Values of guests, peers and sockets reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod device;
mod ended;
mod irq;
mod kept;
mod listener;
mod message;
mod protocol;
mod relay;
mod server;
mod socket;

pub use device::{
    Device, DeviceFlags, DeviceInfo, DmaMap, DmaUnmap, IrqAction, IrqData, IrqFlags, IrqInfo,
    IrqSet, RegionFlags, RegionInfo, RegionMmap, SparseArea,
};
pub use ended::Ended;
pub use irq::{IrqVectors, TriggerCounts};
pub use listener::{ListenError, Listener};
pub use protocol::{MAX_DATA_XFER, MAX_DRAIN, MAX_MESSAGE, MAX_MSG_FDS};
pub use relay::Relay;
pub use rustix::io::Errno;
pub use server::serve_connection;
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
