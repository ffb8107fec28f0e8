//! The state of a client that one server passes to the next.

use crate::device::{DmaUnmap, IrqAction, IrqData};
use crate::pci_index;
use crate::protocol::{Request, command, put, put64};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use vfio_bindings::bindings::vfio as v;

/// Largest number of maps that are kept without the agreement of a server.
const MAX_MAPS: usize = 4096;
/// Length of config space (PCI Express Base, 7.2.2).
const CONFIG_LEN: u64 = 4096;
/// Largest kept body of a request for a description, or of a VERSION: more than the longest valid one.
const MAX_BODY: usize = 4096;

/// A map of guest memory.
#[derive(Debug)]
struct Map {
    iova: u64,
    size: u64,
    /// Body of the DMA_MAP.
    body: Vec<u8>,
    file: Option<Arc<OwnedFd>>,
}

/// An interrupt.
#[derive(Debug, Default)]
struct Irq {
    eventfd: Option<OwnedFd>,
    is_masked: bool,
}

/// A request with its descriptors.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub command: u16,
    pub body: Vec<u8>,
    pub fds: Vec<BorrowedFd<'a>>,
}

/// The state of a client.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Body of its VERSION.
    version: Option<Vec<u8>>,
    /// The last request for each description, and the reply: of the device, of each region and interrupt index.
    descriptions: BTreeMap<(u16, u32), (Vec<u8>, Vec<u8>)>,
    maps: Vec<Map>,
    /// The files of maps: each is held once, whatever the number of its maps.
    files: BTreeMap<FileId, Weak<OwnedFd>>,
    /// By index and number.
    irqs: BTreeMap<(u32, u32), Irq>,
    /// Written parts of config space: offsets of words, and their contents, once a server has returned them.
    config: BTreeMap<u64, Option<[u8; 4]>>,
}

/// Device, inode and access mode of a file.
type FileId = (u64, u64, u32);

/// Of a regular file. Others, such as those of drivers, may share an inode.
fn file_id(fd: &OwnedFd) -> Option<FileId> {
    let stat = fstat(fd).ok()?;
    let mode = fcntl_getfl(fd).ok()? & OFlags::RWMODE;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular.then_some((stat.st_dev, stat.st_ino, mode.bits()))
}

fn bounded(body: &[u8]) -> Vec<u8> {
    body.get(..MAX_BODY).unwrap_or(body).to_vec()
}

/// The words of config space that a range touches.
fn words(offset: u64, len: usize) -> impl Iterator<Item = u64> {
    let end = offset.saturating_add(len as u64).min(CONFIG_LEN);
    (offset & !3..end).step_by(4)
}

/// The body of an access to config space, without data.
fn config_access(offset: u64, len: u32) -> Vec<u8> {
    let mut body = Vec::new();
    put64(&mut body, offset);
    put(&mut body, pci_index::CONFIG_REGION);
    put(&mut body, len);
    body
}

impl Kept {
    /// True if the client has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.version.is_some()
    }

    /// Keeps the state of a request that a server has executed, with this body and reply. Takes the descriptors.
    pub(crate) fn keep(&mut self, request: Request<'_>, body: &[u8], reply: &[u8]) {
        match request {
            Request::Version(_) => self.version = Some(bounded(body)),
            Request::GetInfo => self.describe(command::DEVICE_GET_INFO, 0, body, reply),
            Request::RegionInfo { index, .. } => {
                self.describe(command::DEVICE_GET_REGION_INFO, index, body, reply);
            }
            Request::IrqInfo { index } => {
                self.describe(command::DEVICE_GET_IRQ_INFO, index, body, reply);
            }
            Request::DmaMap(map) => {
                let file = map.fd.map(|fd| self.hold(fd));
                let (iova, size, body) = (map.iova, map.size, body.to_vec());
                self.maps.push(Map {
                    iova,
                    size,
                    body,
                    file,
                });
            }
            Request::DmaUnmap(unmap, _) => {
                self.unmap(unmap);
                self.files.retain(|_, file| file.strong_count() > 0);
            }
            Request::SetIrqs {
                index,
                start,
                count,
                action,
                data,
            } => self.set_irqs(index, start..start.saturating_add(count), action, data),
            // Interrupts are not masked after a reset.
            Request::Reset => self.irqs.values_mut().for_each(|irq| irq.is_masked = false),
            Request::RegionRead { .. } | Request::RegionWrite { .. } => {}
        }
    }

    /// True if a request only changes kept state: it can be accepted without a server.
    pub(crate) fn can_keep_alone(&self, request: &Request<'_>) -> bool {
        match request {
            Request::DmaMap(_) => self.has_begun() && self.maps.len() < MAX_MAPS,
            Request::DmaUnmap(..) => self.has_begun(),
            // For an interrupt that a server has accepted: only servers know the number of interrupts.
            Request::SetIrqs {
                index,
                start,
                count,
                ..
            } => {
                (*start..start.saturating_add((*count).min(64)))
                    .all(|number| self.irqs.contains_key(&(*index, number)))
                    && *count <= 64
            }
            _ => false,
        }
    }

    /// Holds the file of a map: this descriptor, or an earlier one of the same file.
    fn hold(&mut self, fd: OwnedFd) -> Arc<OwnedFd> {
        let Some(id) = file_id(&fd) else {
            return Arc::new(fd);
        };
        if let Some(held) = self.files.get(&id).and_then(Weak::upgrade) {
            return held;
        }
        let fd = Arc::new(fd);
        self.files.insert(id, Arc::downgrade(&fd));
        fd
    }

    fn unmap(&mut self, unmap: DmaUnmap) {
        match unmap {
            DmaUnmap::All => self.maps.clear(),
            DmaUnmap::Range { iova, size } => {
                let end = iova.saturating_add(size);
                let is_outside =
                    |map: &Map| map.iova < iova || map.iova.saturating_add(map.size) > end;
                self.maps.retain(is_outside);
            }
        }
    }

    fn describe(&mut self, command: u16, index: u32, body: &[u8], reply: &[u8]) {
        let description = (bounded(body), reply.to_vec());
        self.descriptions.insert((command, index), description);
    }

    fn set_irqs(
        &mut self,
        index: u32,
        range: std::ops::Range<u32>,
        action: IrqAction,
        data: IrqData,
    ) {
        match (action, data) {
            (IrqAction::Trigger, IrqData::EventFds(fds)) => {
                // A list without descriptors detaches all.
                let mut fds = fds.into_iter();
                for number in range {
                    self.irqs.entry((index, number)).or_default().eventfd = fds.next().flatten();
                }
            }
            (IrqAction::Trigger, IrqData::None) if range.is_empty() => {
                self.irqs.retain(|(of, _), _| *of != index);
            }
            // It raises interrupts.
            (IrqAction::Trigger, _) => {}
            (IrqAction::Mask | IrqAction::Unmask, data) => {
                let is_masked = action == IrqAction::Mask;
                for (at, number) in range.enumerate() {
                    let is_meant = match &data {
                        IrqData::Bool(chosen) => chosen.get(at).is_some_and(|byte| *byte != 0),
                        _ => true,
                    };
                    if is_meant {
                        self.irqs.entry((index, number)).or_default().is_masked = is_masked;
                    }
                }
            }
        }
    }

    /// The client has written to config space.
    pub(crate) fn config_written(&mut self, offset: u64, len: usize) {
        for word in words(offset, len) {
            self.config.entry(word).or_default();
        }
    }

    /// The request for the content of config space that is to be kept, if there is any.
    pub(crate) fn config_request(&self) -> Option<Message<'static>> {
        let (offset, len) = self.config_range()?;
        Some(Message {
            command: command::REGION_READ,
            body: config_access(offset, len),
            fds: Vec::new(),
        })
    }

    /// Its range: offset and length.
    fn config_range(&self) -> Option<(u64, u32)> {
        let (first, last) = (self.config.keys().next()?, self.config.keys().next_back()?);
        let len = last.saturating_sub(*first).saturating_add(4);
        Some((*first, u32::try_from(len).ok()?))
    }

    /// The reply to [`Kept::config_request`] has this content.
    pub(crate) fn keep_config(&mut self, data: &[u8]) {
        let Some((first, _)) = self.config_range() else {
            return;
        };
        let (words, _) = data.as_chunks::<4>();
        // A device that was removed gives ones.
        if words.iter().all(|word| *word == [0xff; 4]) {
            return;
        }
        for (offset, word) in (first..).step_by(4).zip(words) {
            if let Some(kept) = self.config.get_mut(&offset) {
                *kept = Some(*word);
            }
        }
    }

    /// The VERSION for the next server.
    pub(crate) fn version(&self) -> Option<Message<'_>> {
        let body = self.version.clone()?;
        let (command, fds) = (command::VERSION, Vec::new());
        Some(Message { command, body, fds })
    }

    /// The requests for descriptions, and the replies to the client.
    pub(crate) fn descriptions(&self) -> impl Iterator<Item = (Message<'_>, &[u8])> {
        self.descriptions
            .iter()
            .map(|((command, _), (body, reply))| {
                let message = Message {
                    command: *command,
                    body: body.clone(),
                    fds: Vec::new(),
                };
                (message, reply.as_slice())
            })
    }

    /// The remaining requests for the next server, in order.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let maps = self.maps.iter().map(|map| Message {
            command: command::DMA_MAP,
            body: map.body.clone(),
            fds: map.file.iter().map(AsFd::as_fd).collect(),
        });
        let irqs = self.irqs.iter().flat_map(|((index, number), irq)| {
            let set = |flags: u32, fds: Vec<_>| {
                let mut body = Vec::new();
                [20, flags, *index, *number, 1]
                    .into_iter()
                    .for_each(|word| put(&mut body, word));
                let command = command::DEVICE_SET_IRQS;
                Message { command, body, fds }
            };
            let trigger = v::VFIO_IRQ_SET_ACTION_TRIGGER | v::VFIO_IRQ_SET_DATA_EVENTFD;
            let mask = v::VFIO_IRQ_SET_ACTION_MASK | v::VFIO_IRQ_SET_DATA_NONE;
            let eventfd = irq
                .eventfd
                .as_ref()
                .map(|fd| set(trigger, vec![fd.as_fd()]));
            // It is masked first, so that no masked interrupt is raised.
            let masked = irq.is_masked.then(|| set(mask, Vec::new()));
            masked.into_iter().chain(eventfd)
        });
        let config = self.config.iter().filter_map(|(offset, word)| {
            let mut body = config_access(*offset, 4);
            body.extend(word.as_ref()?);
            Some(Message {
                command: command::REGION_WRITE,
                body,
                fds: Vec::new(),
            })
        });
        maps.chain(irqs).chain(config)
    }

    /// The eventfds of the device's interrupts that are not masked. Excludes those by which a device reports an error,
    /// because QEMU stops the guest then, and those that request its release.
    pub(crate) fn eventfds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let raised = self.irqs.iter().filter(|((index, _), irq)| {
            let is_of_device = [pci_index::INTX_IRQ, pci_index::MSI_IRQ, pci_index::MSIX_IRQ];
            is_of_device.contains(index) && !irq.is_masked
        });
        raised.filter_map(|(_, irq)| irq.eventfd.as_ref().map(AsFd::as_fd))
    }

    /// Numbers of maps and of interrupts, for messages.
    pub(crate) fn numbers(&self) -> (usize, usize) {
        (self.maps.len(), self.irqs.len())
    }
}
