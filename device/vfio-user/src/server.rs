//! One connection: receive, check, call the device, reply.

use crate::device::{Device, DeviceInfo, IrqData, IrqSet, RegionInfo};
use crate::ended::Ended;
use crate::protocol::{self, ClientLimits, Header, Request, finish, put, put64};
use crate::socket::{Connection, Others, Shutdown, Stop, peer_process};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use tracing::{debug, info, warn};
use vfio_bindings::bindings::vfio as v;

/// Number of refused requests per connection that are logged as warnings.
const REFUSAL_WARNINGS: u32 = 20;

/// Serves one client until it disconnects, sends an invalid message size, or `shutdown` is triggered.
///
/// Blocks. Always calls [`Device::disconnected`] once before it returns. Use it directly for a
/// socket pair; for a path use [`crate::Listener::serve`].
pub fn serve_connection(
    stream: impl Into<OwnedFd>,
    device: &mut dyn Device,
    shutdown: &Shutdown,
) -> Ended {
    serve(stream.into(), device, shutdown, None)
}

pub(crate) fn serve(
    stream: OwnedFd,
    device: &mut dyn Device,
    shutdown: &Shutdown,
    listener: Others<'_>,
) -> Ended {
    device.connected(peer_process(&stream));
    let connection = Connection::new(stream, shutdown, listener);
    let mut session = Session {
        connection,
        body: Vec::new(),
        negotiated: None,
        refusals: Refusals::default(),
        device: &mut *device,
    };
    let ended = loop {
        match session.message() {
            Ok(()) => {}
            Err(stop) => break stop.ended(),
        }
    };
    // Close the socket first: the client must not wait while the device cleans up.
    drop(session);
    device.disconnected();
    ended
}

/// Number of refused requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct Refusals(u32);

impl Refusals {
    /// Logs a refused request: the first [`REFUSAL_WARNINGS`] as warnings, later ones at level debug,
    /// because a guest can cause any number of them.
    pub(crate) fn log(&mut self, header: &Header, errno: Errno) {
        let (command, id) = (header.command, header.id);
        self.0 = self.0.saturating_add(1);
        match self.0 {
            0..REFUSAL_WARNINGS => warn!(command, id, %errno, "request refused"),
            REFUSAL_WARNINGS => {
                warn!(command, id, %errno, "request refused; further refusals are logged at level debug");
            }
            _ => debug!(command, id, %errno, "request refused"),
        }
    }
}

struct Session<'a> {
    connection: Connection<'a>,
    /// Body of the current message; the buffer is reused.
    body: Vec<u8>,
    /// Limits of the client and description of the device; set by VERSION.
    negotiated: Option<(ClientLimits, DeviceInfo)>,
    refusals: Refusals,
    device: &'a mut dyn Device,
}

/// A reply and the descriptor sent with it.
type Reply = (Vec<u8>, Option<OwnedFd>);

impl Session<'_> {
    /// Handles one message.
    fn message(&mut self) -> Result<(), Stop> {
        let mut body = std::mem::take(&mut self.body);
        let received = self.connection.receive_request(&mut body);
        let result = received.and_then(|header| match header {
            Some(header) => self.handle(&header, &body),
            None => Ok(()),
        });
        self.body = body;
        result
    }

    fn handle(&mut self, header: &Header, body: &[u8]) -> Result<(), Stop> {
        if header.is_reply() {
            // This server sends no requests.
            self.refusals.log(header, Errno::BADMSG);
            return Ok(());
        }
        let mut fds = std::mem::take(&mut self.connection.fds);
        let result = header.check().and_then(|()| {
            if self.connection.fds_lost {
                return Err(Errno::MFILE);
            }
            let limits = self
                .negotiated
                .map(|(limits, _)| limits)
                .unwrap_or_default();
            let request = protocol::parse(header.command, body, &mut fds, limits)?;
            self.call(header, request)
        });
        match result {
            Ok((bytes, fd)) if !header.no_reply() => {
                let fd = fd.as_ref().map(AsFd::as_fd);
                self.connection.send(&bytes, fd.as_slice())
            }
            Ok(_) => Ok(()),
            Err(errno) => {
                self.refusals.log(header, errno);
                self.connection.refuse(header, errno)
            }
        }
    }

    fn call(&mut self, header: &Header, request: Request<'_>) -> Result<Reply, Errno> {
        let (limits, info) = match (&request, self.negotiated) {
            (Request::Version(limits), None) => {
                let info = self.device.info()?;
                self.negotiated = Some((*limits, info));
                info!(?limits, "vfio-user client connected");
                return Ok((protocol::version_reply(header), None));
            }
            (Request::Version(_), Some(_)) | (_, None) => return Err(Errno::INVAL),
            (_, Some(negotiated)) => negotiated,
        };
        let region = |index| check_index(index, info.num_regions);
        let irq = |index| check_index(index, info.num_irqs);
        let mut out = header.reply();
        match request {
            Request::Version(_) => return Err(Errno::INVAL),
            Request::DmaMap(map) => {
                debug!(?map, "DMA map");
                self.device.dma_map(map)?;
            }
            Request::DmaUnmap(unmap, echo) => {
                debug!(?unmap, "DMA unmap");
                self.device.dma_unmap(unmap)?;
                out.extend(echo);
            }
            Request::GetInfo => {
                [16, info.flags.bits(), info.num_regions, info.num_irqs]
                    .into_iter()
                    .for_each(|word| put(&mut out, word));
            }
            Request::RegionInfo { index, argsz } => {
                region(index)?;
                let described = self.device.region_info(index)?;
                let fd = describe_region(&mut out, index, argsz, described);
                finish(&mut out);
                return Ok((out, fd.filter(|_| limits.max_msg_fds > 0)));
            }
            Request::IrqInfo { index } => {
                irq(index)?;
                let described = self.device.irq_info(index)?;
                [16, described.flags.bits(), index, described.count]
                    .into_iter()
                    .for_each(|word| put(&mut out, word));
            }
            Request::SetIrqs {
                index,
                start,
                count,
                action,
                data,
            } => {
                irq(index)?;
                let end = start.checked_add(count).ok_or(Errno::INVAL)?;
                if count > 0 && end > self.device.irq_info(index)?.count {
                    return Err(Errno::INVAL);
                }
                let data = expand_detach(data, count);
                let set = IrqSet {
                    index,
                    start,
                    count,
                    action,
                    data,
                };
                debug!(?set, "set interrupts");
                self.device.set_irqs(set)?;
            }
            Request::RegionRead {
                index,
                offset,
                count,
            } => {
                region(index)?;
                put64(&mut out, offset);
                put(&mut out, index);
                put(&mut out, count);
                let at = out.len();
                out.resize(at.saturating_add(count as usize), 0);
                let data = out.get_mut(at..).unwrap_or_default();
                self.device.region_read(index, offset, data)?;
            }
            Request::RegionWrite {
                index,
                offset,
                data,
            } => {
                region(index)?;
                self.device.region_write(index, offset, data)?;
                put64(&mut out, offset);
                put(&mut out, index);
                put(&mut out, u32::try_from(data.len()).unwrap_or(u32::MAX));
            }
            Request::Reset => self.device.reset()?,
        }
        finish(&mut out);
        Ok((out, None))
    }
}

/// Refuses an index of a region or an interrupt that the device does not have.
fn check_index(index: u32, count: u32) -> Result<(), Errno> {
    if index < count {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

/// Expands an eventfd list without descriptors to `count` entries `None`.
fn expand_detach(data: IrqData, count: u32) -> IrqData {
    match data {
        IrqData::EventFds(fds) if fds.is_empty() => {
            IrqData::EventFds((0..count).map(|_| None).collect())
        }
        data => data,
    }
}

/// Length of `struct vfio_region_info` in bytes.
const REGION_INFO: u32 = 32;

/// Appends the region info. Returns the descriptor to send with this reply.
///
/// `argsz` in the reply is the length of the complete structure. If the `argsz` of the client is
/// smaller, the reply has no capabilities and no descriptor, but `cap_offset` is set: QEMU checks
/// `cap_offset` before it repeats the request (hw/vfio-user/device.c).
fn describe_region(
    out: &mut Vec<u8>,
    index: u32,
    argsz: u32,
    region: RegionInfo,
) -> Option<OwnedFd> {
    let mut flags = region.flags.bits();
    let mut caps = Vec::new();
    let mut file_offset = 0;
    let mut fd = None;
    if let Some(mmap) = region.mmap {
        flags |= v::VFIO_REGION_INFO_FLAG_MMAP;
        file_offset = mmap.offset;
        fd = Some(mmap.fd);
        if !mmap.sparse.is_empty() {
            flags |= v::VFIO_REGION_INFO_FLAG_CAPS;
            // struct vfio_info_cap_header: id, version, next; then the areas.
            put(&mut caps, v::VFIO_REGION_INFO_CAP_SPARSE_MMAP | 1 << 16);
            put(&mut caps, 0);
            put(
                &mut caps,
                u32::try_from(mmap.sparse.len()).unwrap_or(u32::MAX),
            );
            put(&mut caps, 0);
            for area in &mmap.sparse {
                put64(&mut caps, area.offset);
                put64(&mut caps, area.size);
            }
        }
    }
    let full = REGION_INFO.saturating_add(u32::try_from(caps.len()).unwrap_or(u32::MAX));
    put(out, full);
    put(out, flags);
    put(out, index);
    put(out, if caps.is_empty() { 0 } else { REGION_INFO });
    put64(out, region.size);
    put64(out, file_offset);
    if argsz < full {
        return None;
    }
    out.extend(caps);
    fd
}
