//! The device of a vhost-user connection as its front end sets it up: features, memory and rings (QEMU, docs/interop/vhost-user.rst).
//!
//! `vhost` reads and answers the messages; this type keeps their state. The thread of the port ([`crate::vhost_net`])
//! moves the frames. Not offered: migration (dirty pages are not logged), packed rings, a virtual IOMMU, buffers in
//! flight across connections.

use std::fs::File;
use std::io;
use std::sync::Arc;

use faultline_memory::ForeignMap;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestRegionMmap};

use crate::virtio_net::{HEADER, LEGACY_HEADER};
use crate::virtqueue::{Memory, is_set_up};

/// Pairs of queues that a guest can have: one for receiving and one for sending each.
pub(crate) const MAX_PAIRS: usize = 8;
/// Queues of these pairs.
pub(crate) const RINGS: usize = 2 * MAX_PAIRS;
/// Entries of a ring at most: the limit of QEMU's properties `rx_queue_size` and `tx_queue_size`.
const MAX_SIZE: u16 = 1024;
/// Pieces of guest memory.
const MAX_REGIONS: usize = 509;

// Bits of virtio's features (VIRTIO 1.3, 5.1.3 and 6).
const NET_CSUM: u64 = 1 << 0;
const NET_HOST_TSO4: u64 = 1 << 11;
const NET_HOST_TSO6: u64 = 1 << 12;
const NET_HOST_ECN: u64 = 1 << 13;
const NET_MRG_RXBUF: u64 = 1 << 15;
const NET_MQ: u64 = 1 << 22;
const RING_INDIRECT_DESC: u64 = 1 << 28;
const RING_EVENT_IDX: u64 = 1 << 29;
const VERSION_1: u64 = 1 << 32;

/// Offered features. `NET_GUEST_CSUM` is not offered: frames have full checksums that nothing here has verified, since
/// they may have come over a wire, so the guest verifies them itself. The control queue is QEMU's own.
const FEATURES: u64 = NET_CSUM
    | NET_HOST_TSO4
    | NET_HOST_TSO6
    | NET_HOST_ECN
    | NET_MRG_RXBUF
    | NET_MQ
    | RING_INDIRECT_DESC
    | RING_EVENT_IDX
    | VERSION_1;

/// A ring, and how its driver is notified.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) queue: Queue,
    /// Readable when the driver has made buffers available.
    pub(crate) kick: Option<File>,
    call: Option<File>,
    is_enabled: bool,
    /// The driver has written an invalid ring. It is not read until it is started again.
    pub(crate) is_broken: bool,
}

impl Ring {
    fn new() -> Result<Self> {
        Ok(Self {
            queue: Queue::new(MAX_SIZE).map_err(other)?,
            kick: None,
            call: None,
            is_enabled: false,
            is_broken: false,
        })
    }

    /// True if frames may pass.
    pub(crate) fn is_usable(&self) -> bool {
        is_set_up(&self.queue) && self.is_enabled && !self.is_broken
    }

    fn stop(&mut self) {
        self.queue.set_ready(false);
        self.kick = None;
        self.call = None;
    }

    /// Interrupts the driver.
    pub(crate) fn interrupt(&self) {
        if let Some(call) = &self.call {
            // A full counter interrupts as well.
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
        }
    }
}

/// A piece of guest memory, as the front end names it.
#[derive(Debug)]
pub(crate) struct Region {
    guest: u64,
    size: u64,
    front_end: u64,
    map: ForeignMap,
}

/// True if accesses have met pages that the host cannot provide since the last call.
pub(crate) fn has_lost(regions: &[Region]) -> bool {
    ForeignMap::has_lost(regions.iter().map(|region| &region.map))
}

/// The device of a connection.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) memory: Memory,
    pub(crate) rings: Vec<Ring>,
    pub(crate) regions: Vec<Region>,
    features: u64,
    has_features: bool,
    is_owned: bool,
}

type Mapped = Arc<GuestRegionMmap<()>>;

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

fn unsupported<T>() -> Result<T> {
    Err(Error::InvalidOperation("not offered by this device"))
}

/// No descriptor of a front end may block the thread of the port.
fn without_blocking(file: Option<File>) -> Result<Option<File>> {
    if let Some(file) = &file {
        let flags = fcntl_getfl(file).map_err(other)?;
        fcntl_setfl(file, flags | OFlags::NONBLOCK).map_err(other)?;
    }
    Ok(file)
}

impl Device {
    pub(crate) fn new() -> Result<Self> {
        let rings: Result<Vec<Ring>> = (0..RINGS).map(|_| Ring::new()).collect();
        Ok(Self {
            memory: Memory::new(),
            rings: rings?,
            regions: Vec::new(),
            features: 0,
            has_features: false,
            is_owned: false,
        })
    }

    /// Octets of the header of each frame.
    pub(crate) fn header(&self) -> usize {
        match self.features & (VERSION_1 | NET_MRG_RXBUF) {
            0 => LEGACY_HEADER,
            _ => HEADER,
        }
    }

    /// True if a frame may take several receive buffers.
    pub(crate) fn is_mergeable(&self) -> bool {
        self.features & NET_MRG_RXBUF != 0
    }

    /// True if the front end has set features since the connection was made or reset.
    pub(crate) fn has_features(&self) -> bool {
        self.has_features
    }

    fn ring(&mut self, index: impl TryInto<usize>) -> Result<&mut Ring> {
        let index = index.try_into().ok();
        index
            .and_then(|index| self.rings.get_mut(index))
            .ok_or(Error::InvalidParam)
    }

    /// The guest address of an address of the front end.
    fn guest_address(&self, front_end: u64) -> Result<u64> {
        let found = self.regions.iter().find_map(|region| {
            let offset = front_end.checked_sub(region.front_end)?;
            let is_inside = offset < region.size;
            is_inside
                .then(|| region.guest.checked_add(offset))
                .flatten()
        });
        found.ok_or(Error::InvalidParam)
    }

    fn map(region: &VhostUserMemoryRegion, file: File) -> Result<(Region, Mapped)> {
        let address = GuestAddress(region.guest_phys_addr);
        let mapped = GuestRegionMmap::new(region.mmap_region(file)?, address);
        let mapped = Arc::new(mapped.ok_or(Error::InvalidParam)?);
        let known = Region {
            guest: region.guest_phys_addr,
            size: region.memory_size,
            front_end: region.user_addr,
            map: ForeignMap::new(Arc::clone(&mapped)).map_err(other)?,
        };
        Ok((known, mapped))
    }
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.is_owned, true) {
            true => Err(Error::InvalidOperation("already claimed")),
            false => Ok(()),
        }
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.is_owned = false;
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.features = 0;
        self.has_features = false;
        for ring in &mut self.rings {
            ring.stop();
            ring.is_enabled = false;
        }
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let negotiates = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        if features & !(FEATURES | negotiates) != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        self.has_features = true;
        for ring in &mut self.rings {
            ring.queue.set_event_idx(features & RING_EVENT_IDX != 0);
            // Front ends without protocol features do not enable rings.
            ring.is_enabled |= features & negotiates == 0;
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let maps: Result<Vec<_>> = regions
            .iter()
            .zip(files)
            .map(|(region, file)| Self::map(region, file))
            .collect();
        let (known, maps): (Vec<_>, Vec<_>) = maps?.into_iter().unzip();
        self.memory = Memory::from_arc_regions(maps).map_err(other)?;
        self.regions = known;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let size = u16::try_from(size).map_err(|_| Error::InvalidParam)?;
        let queue = &mut self.ring(index)?.queue;
        queue.try_set_size(size).map_err(|_| Error::InvalidParam)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        let [descriptors, used, available] = [
            self.guest_address(descriptors)?,
            self.guest_address(used)?,
            self.guest_address(available)?,
        ]
        .map(GuestAddress);
        let memory = self.memory.clone();
        let queue = &mut self.ring(index)?.queue;
        let set = queue
            .try_set_desc_table_address(descriptors)
            .and_then(|()| queue.try_set_used_ring_address(used))
            .and_then(|()| queue.try_set_avail_ring_address(available));
        set.map_err(|_| Error::InvalidParam)?;
        // The front end only gives the next index of the available ring. The driver has the rest.
        let used = queue.used_idx(&memory, std::sync::atomic::Ordering::Acquire);
        queue.set_next_used(used.map_err(|_| Error::InvalidParam)?.0);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.ring(index)?.queue.set_next_avail(base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let ring = self.ring(index)?;
        ring.stop();
        let next = u32::from(ring.queue.next_avail());
        Ok(VhostUserVringState::new(index, next))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let kick = without_blocking(file)?;
        if kick.is_none() {
            return Err(Error::InvalidOperation("rings are not polled"));
        }
        let ring = self.ring(index)?;
        ring.kick = kick;
        ring.is_broken = false;
        ring.queue.set_ready(true);
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.ring(index)?.call = without_blocking(file)?;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _: Option<File>) -> Result<()> {
        self.ring(index).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    /// QEMU compares this with the number of pairs.
    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(MAX_PAIRS as u64)
    }

    fn set_vring_enable(&mut self, index: u32, is_enabled: bool) -> Result<()> {
        self.ring(index)?.is_enabled = is_enabled;
        Ok(())
    }

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        unsupported()
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        unsupported()
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        unsupported()
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        unsupported()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if self.regions.len() >= MAX_REGIONS {
            return Err(Error::InvalidParam);
        }
        let (known, map) = Self::map(region, file)?;
        self.memory = self.memory.insert_region(map).map_err(other)?;
        self.regions.push(known);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let address = GuestAddress(region.guest_phys_addr);
        let removed = self.memory.remove_region(address, region.memory_size);
        self.memory = removed.map_err(other)?.0;
        self.regions
            .retain(|known| known.guest != region.guest_phys_addr);
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Result<()> {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unsupported()
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        unsupported()
    }
}
