//! What a device implements, and the values it exchanges with the server.

use bitflags::bitflags;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use vfio_bindings::bindings::vfio as v;

bitflags! {
    /// Kind and abilities of a device (`VFIO_DEVICE_FLAGS_*`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DeviceFlags: u32 {
        /// The device can be reset.
        const RESET = v::VFIO_DEVICE_FLAGS_RESET;
        /// Regions and interrupts are those of a PCI device.
        const PCI = v::VFIO_DEVICE_FLAGS_PCI;
    }

    /// How a region can be accessed (`VFIO_REGION_INFO_FLAG_*`). The server adds the flags of mapping.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct RegionFlags: u32 {
        /// It can be read.
        const READ = v::VFIO_REGION_INFO_FLAG_READ;
        /// It can be written.
        const WRITE = v::VFIO_REGION_INFO_FLAG_WRITE;
    }

    /// How the interrupts of an index behave (`VFIO_IRQ_INFO_*`).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct IrqFlags: u32 {
        /// Signalled through eventfds.
        const EVENTFD = v::VFIO_IRQ_INFO_EVENTFD;
        /// Can be masked and unmasked by message.
        const MASKABLE = v::VFIO_IRQ_INFO_MASKABLE;
        /// Masks itself when triggered (pin interrupts).
        const AUTOMASKED = v::VFIO_IRQ_INFO_AUTOMASKED;
        /// The set of vectors cannot grow. Do not set it for MSI-X: QEMU would then disable and
        /// re-enable all vectors whenever the guest uses one more.
        const NORESIZE = v::VFIO_IRQ_INFO_NORESIZE;
    }
}

/// What the device is. Asked once per connection, after version negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number of regions; for PCI [`crate::pci_index::NUM_REGIONS`] = 9.
    pub num_regions: u32,
    /// Number of interrupt indices; for PCI [`crate::pci_index::NUM_IRQS`] = 5.
    pub num_irqs: u32,
    /// Kind and abilities.
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
    /// A duplicate for the client; the server sends it and closes it.
    pub fd: OwnedFd,
    /// Offset in the file of the region's first byte.
    pub offset: u64,
    /// What may be mapped. Empty means the whole region. Accesses elsewhere come as messages.
    pub sparse: Vec<SparseArea>,
}

/// One region. Size 0 means that it does not exist.
#[derive(Debug, Default)]
pub struct RegionInfo {
    /// Size in bytes.
    pub size: u64,
    /// How it can be accessed.
    pub flags: RegionFlags,
    /// Set if a client may map it.
    pub mmap: Option<RegionMmap>,
}

/// One interrupt index. Count 0 means that the device has none of the kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IrqInfo {
    /// Number of interrupts (vectors for MSI-X).
    pub count: u32,
    /// How they behave.
    pub flags: IrqFlags,
}

/// Guest memory that becomes reachable.
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
    /// The memory. QEMU sends none for memory that is not shared or belongs to a device.
    pub fd: Option<OwnedFd>,
}

/// Guest memory that goes away. It must be out of use when the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DmaUnmap {
    /// All maps.
    All,
    /// The maps within a range.
    Range {
        /// First I/O address.
        iova: u64,
        /// Length in bytes.
        size: u64,
    },
}

/// What to do with interrupts (`VFIO_IRQ_SET_ACTION_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IrqAction {
    /// Set the trigger (with [`IrqData::EventFds`]), fire it ([`IrqData::Bool`],
    /// [`IrqData::None`]), or, with count 0, disable the index.
    Trigger,
    /// Hold back.
    Mask,
    /// Release.
    Unmask,
}

/// Operands of [`IrqSet`] (`VFIO_IRQ_SET_DATA_*`).
#[derive(Debug)]
pub enum IrqData {
    /// None: the action applies to the whole range.
    None,
    /// One byte for each interrupt of the range; applies where it is not 0.
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
    /// What to do.
    pub action: IrqAction,
    /// With what.
    pub data: IrqData,
}

/// A device behind the server. The server calls one method at a time.
///
/// An `Err` goes to the client as the errno of the error reply. Region and interrupt indices
/// are below the numbers in [`DeviceInfo`] when they arrive here.
pub trait Device {
    /// What the device is.
    fn info(&mut self) -> Result<DeviceInfo, Errno>;

    /// Describes a region. QEMU asks twice for one with sparse areas.
    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno>;

    /// Reads `data.len()` bytes (1 to [`crate::MAX_DATA_XFER`]) of a region. The sum of offset
    /// and length does not overflow, but may exceed the region: refuse that with `INVAL`.
    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Writes a region; same limits as [`Device::region_read`].
    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Makes guest memory reachable.
    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno>;

    /// Takes guest memory away; the client may reuse it once this returns.
    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno>;

    /// Describes an interrupt index.
    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno>;

    /// Attaches, detaches, fires or masks interrupts. QEMU sends a long list of eventfds in
    /// several messages with rising `start`.
    fn set_irqs(&mut self, set: IrqSet) -> Result<(), Errno>;

    /// Resets the device. Maps and eventfds stay, as they belong to the client.
    fn reset(&mut self) -> Result<(), Errno>;

    /// The client is gone, in whatever way. Drop its maps and eventfds; the next may come.
    fn disconnected(&mut self);
}
