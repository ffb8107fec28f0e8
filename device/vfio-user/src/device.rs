//! The [`Device`] trait and the types of its arguments and results.

use bitflags::bitflags;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use vfio_bindings::bindings::vfio as v;

bitflags! {
    /// Type and capabilities of a device (`VFIO_DEVICE_FLAGS_*`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DeviceFlags: u32 {
        /// The device can be reset.
        const RESET = v::VFIO_DEVICE_FLAGS_RESET;
        /// Regions and interrupts are those of a PCI device.
        const PCI = v::VFIO_DEVICE_FLAGS_PCI;
    }

    /// How a region can be accessed (`VFIO_REGION_INFO_FLAG_*`). The server adds the mapping flags.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct RegionFlags: u32 {
        /// The region is readable.
        const READ = v::VFIO_REGION_INFO_FLAG_READ;
        /// The region is writable.
        const WRITE = v::VFIO_REGION_INFO_FLAG_WRITE;
    }

    /// Properties of an interrupt index (`VFIO_IRQ_INFO_*`).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct IrqFlags: u32 {
        /// Signalled through eventfds.
        const EVENTFD = v::VFIO_IRQ_INFO_EVENTFD;
        /// Maskable with SET_IRQS.
        const MASKABLE = v::VFIO_IRQ_INFO_MASKABLE;
        /// Masked automatically when triggered (pin interrupts).
        const AUTOMASKED = v::VFIO_IRQ_INFO_AUTOMASKED;
        /// The set of vectors cannot grow. Do not set this flag for MSI-X: QEMU would disable and
        /// re-enable all vectors each time the guest enables another vector.
        const NORESIZE = v::VFIO_IRQ_INFO_NORESIZE;
    }
}

/// Description of the device. The server requests it once per connection, during version negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number of regions; for PCI [`crate::pci_index::NUM_REGIONS`] = 9.
    pub num_regions: u32,
    /// Number of interrupt indices; for PCI [`crate::pci_index::NUM_IRQS`] = 5.
    pub num_irqs: u32,
    /// Type and capabilities.
    pub flags: DeviceFlags,
}

impl DeviceInfo {
    /// A PCI device that can be reset.
    pub const PCI: Self = Self {
        num_regions: crate::pci_index::NUM_REGIONS,
        num_irqs: crate::pci_index::NUM_IRQS,
        flags: DeviceFlags::PCI.union(DeviceFlags::RESET),
    };
}

/// Part of a region that a client may map; both fields in bytes and multiples of 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseArea {
    /// Offset into the region.
    pub offset: u64,
    /// Length.
    pub size: u64,
}

/// The file behind a region.
#[derive(Debug)]
pub struct RegionMmap {
    /// A duplicate for the client. The server closes it after sending.
    pub fd: OwnedFd,
    /// Offset in the file of the region's first byte.
    pub offset: u64,
    /// Areas that may be mapped. Empty means the whole region. The client accesses other areas with messages.
    pub sparse: Vec<SparseArea>,
}

/// Description of a region. Size 0 means that the region does not exist.
#[derive(Debug, Default)]
pub struct RegionInfo {
    /// Size in bytes.
    pub size: u64,
    /// Permitted accesses.
    pub flags: RegionFlags,
    /// The file to map, if the client may map the region.
    pub mmap: Option<RegionMmap>,
}

/// Description of an interrupt index. Count 0 means that the device does not have this interrupt type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IrqInfo {
    /// Number of interrupts (vectors for MSI-X).
    pub count: u32,
    /// Properties of the interrupts.
    pub flags: IrqFlags,
}

/// Guest memory to map for DMA.
#[derive(Debug)]
pub struct DmaMap {
    /// First I/O address.
    pub iova: u64,
    /// Length in bytes.
    pub size: u64,
    /// Offset into the file.
    pub offset: u64,
    /// The device may read it.
    pub readable: bool,
    /// The device may write it.
    pub writable: bool,
    /// File of the memory. QEMU sends no descriptor for memory that is not shared or is device memory.
    pub fd: Option<OwnedFd>,
}

/// Guest memory to unmap. The device must not access it after [`Device::dma_unmap`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmaUnmap {
    /// All maps.
    All,
    /// All maps inside a range.
    Range {
        /// First I/O address.
        iova: u64,
        /// Length in bytes.
        size: u64,
    },
}

/// Action of SET_IRQS (`VFIO_IRQ_SET_ACTION_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IrqAction {
    /// Set the trigger (with [`IrqData::EventFds`]), fire the interrupts ([`IrqData::Bool`],
    /// [`IrqData::None`]), or, with count 0, disable the index.
    Trigger,
    /// Mask.
    Mask,
    /// Unmask.
    Unmask,
}

/// Operands of [`IrqSet`] (`VFIO_IRQ_SET_DATA_*`).
#[derive(Debug)]
pub enum IrqData {
    /// None: the action applies to the whole range.
    None,
    /// One byte for each interrupt of the range; the action applies where the byte is not 0.
    Bool(Vec<u8>),
    /// One eventfd for each interrupt of the range; `None` detaches.
    EventFds(Vec<Option<OwnedFd>>),
}

/// A checked SET_IRQS. `start + count` is within the index, unless `count` is 0; the data has `count` elements.
#[derive(Debug)]
pub struct IrqSet {
    /// Interrupt index, for example [`crate::pci_index::MSIX_IRQ`].
    pub index: u32,
    /// First interrupt.
    pub start: u32,
    /// Number of interrupts. 0 only with [`IrqAction::Trigger`] and [`IrqData::None`]: disable.
    pub count: u32,
    /// The action.
    pub action: IrqAction,
    /// Operands of the action.
    pub data: IrqData,
}

/// A device behind the server. The server calls one method at a time.
///
/// The server sends an `Err` to the client as the errno of the error reply. It passes only region
/// and interrupt indices below the numbers in [`DeviceInfo`].
pub trait Device {
    /// A client has connected: the process with this number, if the system reports it (SO_PEERCRED, unix(7)).
    fn connected(&mut self, _process: Option<i32>) {}

    /// Describes the device.
    fn info(&mut self) -> Result<DeviceInfo, Errno>;

    /// Describes a region. For a region with sparse areas QEMU requests the description twice.
    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno>;

    /// Reads `data.len()` bytes (1 to [`crate::MAX_DATA_XFER`]) of a region. The sum of offset
    /// and length does not overflow. If it exceeds the region size, return `INVAL`.
    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Writes a region; same limits as [`Device::region_read`].
    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Maps guest memory for DMA.
    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno>;

    /// Unmaps guest memory. The client may reuse the memory after this call returns.
    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno>;

    /// Describes an interrupt index.
    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno>;

    /// Attaches or detaches eventfds; triggers, masks or unmasks interrupts. QEMU splits a long
    /// list of eventfds into several messages with increasing `start`.
    fn set_irqs(&mut self, set: IrqSet) -> Result<(), Errno>;

    /// Resets the device. Maps and eventfds stay: they belong to the client.
    fn reset(&mut self) -> Result<(), Errno>;

    /// The connection has ended, for any reason. Drop the maps and eventfds of the client. Another
    /// client may connect.
    fn disconnected(&mut self);
}
