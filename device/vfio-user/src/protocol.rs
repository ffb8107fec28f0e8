//! Parses messages into checked requests and builds replies.
//!
//! Message layouts: QEMU `docs/interop/vfio-user.rst`. Integers are in host byte order, which is
//! little-endian on every supported host.

use crate::device::{DmaMap, DmaUnmap, IrqAction, IrqData};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use vfio_bindings::bindings::vfio as v;

/// Length of a message header in bytes.
pub(crate) const HEADER: usize = 16;
/// The same as messages have it.
pub(crate) const HEADER_LEN: u32 = 16;
const _: () = assert!(HEADER_LEN as usize == HEADER);

/// Most bytes of region data in one message; the protocol's default.
pub const MAX_DATA_XFER: u32 = 1 << 20;

/// Longest accepted message: the largest region write and its headers.
pub const MAX_MESSAGE: u32 = MAX_DATA_XFER + 4096;

/// Longest message that the server skips to stay synchronized. A longer message ends the connection.
pub const MAX_DRAIN: u32 = 16 << 20;

/// Most descriptors that a client may send in one message: the largest value that QEMU accepts in
/// the VERSION reply (`VFIO_USER_MAX_MAX_FDS`).
pub const MAX_MSG_FDS: usize = 16;

const TYPE_MASK: u32 = 0xf;
const TYPE_COMMAND: u32 = 0;
const TYPE_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

/// Command numbers.
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DEVICE_RESET: u16 = 13;
}

/// A message header as it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub id: u16,
    pub command: u16,
    pub size: u32,
    pub flags: u32,
    /// Of an error reply.
    pub errno: u32,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        Self {
            id: u16::from_le_bytes([a, b]),
            command: u16::from_le_bytes([c, d]),
            size: u32::from_le_bytes([e, f, g, h]),
            flags: u32::from_le_bytes([i, j, k, l]),
            errno: u32::from_le_bytes([m, n, o, p]),
        }
    }

    /// Starts a request; the size is filled in by [`finish`].
    pub(crate) fn request(id: u16, command: u16) -> Vec<u8> {
        let header = Self {
            id,
            command,
            size: 0,
            flags: 0,
            errno: 0,
        };
        header.head(TYPE_COMMAND, 0)
    }

    /// The header of a reply that is no error.
    pub(crate) fn of_success(command: u16) -> Self {
        Self {
            id: 0,
            command,
            size: HEADER_LEN,
            flags: TYPE_REPLY,
            errno: 0,
        }
    }

    /// Starts the same message with another number; the size is filled in by [`finish`].
    pub(crate) fn with_id(self, id: u16) -> Vec<u8> {
        Self { id, ..self }.head(self.flags, self.errno)
    }

    pub(crate) fn is_error(&self) -> bool {
        self.flags & FLAG_ERROR != 0
    }

    pub(crate) fn is_reply(&self) -> bool {
        self.flags & TYPE_MASK == TYPE_REPLY
    }

    pub(crate) fn no_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY != 0
    }

    /// Checks that the type is a request and that no flag is set that requests do not have.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.flags & TYPE_MASK != TYPE_COMMAND || self.flags & !(TYPE_MASK | FLAG_NO_REPLY) != 0
        {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Starts a reply; the size is filled in by [`finish`].
    pub(crate) fn reply(&self) -> Vec<u8> {
        self.head(TYPE_REPLY, 0)
    }

    /// A complete error reply. The errno is not zero.
    pub(crate) fn error(&self, errno: Errno) -> Vec<u8> {
        let number = u32::try_from(errno.raw_os_error()).unwrap_or(0).max(1);
        let mut out = self.head(TYPE_REPLY | FLAG_ERROR, number);
        finish(&mut out);
        out
    }

    fn head(&self, flags: u32, error: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.extend(self.id.to_le_bytes());
        out.extend(self.command.to_le_bytes());
        put(&mut out, 0);
        put(&mut out, flags);
        put(&mut out, error);
        out
    }
}

/// Appends a 32-bit word.
pub(crate) fn put(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}

/// Appends a 64-bit word.
pub(crate) fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

/// Writes the size into the header.
pub(crate) fn finish(out: &mut [u8]) {
    let size = u32::try_from(out.len()).unwrap_or(u32::MAX);
    if let Some(field) = out.get_mut(4..8) {
        field.copy_from_slice(&size.to_le_bytes());
    }
}

/// Reads fields from the start of a body. Too few bytes give `INVAL`.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, Errno> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads `argsz`, the first field of every structure taken from an ioctl. It must be at least
    /// the length of the structure, `least`.
    fn argsz(&mut self, least: u32) -> Result<u32, Errno> {
        let argsz = self.u32()?;
        if argsz < least {
            return Err(Errno::INVAL);
        }
        Ok(argsz)
    }

    fn end(&self) -> Result<(), Errno> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Errno::INVAL)
        }
    }
}

/// Limits of the client, from its VERSION message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientLimits {
    /// Most bytes of region data that the client accepts in one message.
    pub max_data_xfer: u32,
    /// Most descriptors that the client accepts in one message.
    pub max_msg_fds: u64,
}

impl Default for ClientLimits {
    /// The protocol's defaults for absent capabilities.
    fn default() -> Self {
        Self {
            max_data_xfer: MAX_DATA_XFER,
            max_msg_fds: 1,
        }
    }
}

/// A well-formed request, not yet checked against the device.
#[derive(Debug)]
pub(crate) enum Request<'a> {
    Version(ClientLimits),
    DmaMap(DmaMap),
    /// The reply repeats the 24 bytes of the request body.
    DmaUnmap(DmaUnmap, [u8; 24]),
    GetInfo,
    RegionInfo {
        index: u32,
        argsz: u32,
    },
    IrqInfo {
        index: u32,
    },
    SetIrqs {
        index: u32,
        start: u32,
        count: u32,
        action: IrqAction,
        data: IrqData,
    },
    RegionRead {
        index: u32,
        offset: u64,
        count: u32,
    },
    RegionWrite {
        index: u32,
        offset: u64,
        data: &'a [u8],
    },
    Reset,
}

/// Checks a body against its command and takes the descriptors that belong to it.
///
/// Errors: `INVAL` for anything malformed, `OPNOTSUPP` for unsupported commands,
/// `PROTONOSUPPORT` for another major version, `MSGSIZE` for too much region data.
pub(crate) fn parse<'a>(
    number: u16,
    body: &'a [u8],
    fds: &mut Vec<OwnedFd>,
    limits: ClientLimits,
) -> Result<Request<'a>, Errno> {
    check_command(number, fds.len())?;
    let mut r = Reader(body);
    match number {
        command::VERSION => parse_version(r).map(Request::Version),
        command::DMA_MAP => parse_dma_map(r, fds),
        command::DMA_UNMAP => parse_dma_unmap(r),
        command::DEVICE_GET_INFO => {
            r.argsz(16)?;
            Ok(Request::GetInfo)
        }
        command::DEVICE_GET_REGION_INFO => {
            let argsz = r.argsz(32)?;
            r.u32()?;
            Ok(Request::RegionInfo {
                index: r.u32()?,
                argsz,
            })
        }
        command::DEVICE_GET_IRQ_INFO => {
            r.argsz(16)?;
            r.u32()?;
            Ok(Request::IrqInfo { index: r.u32()? })
        }
        command::DEVICE_SET_IRQS => parse_set_irqs(r, fds),
        command::REGION_READ => {
            let (offset, index, count) = access(&mut r, limits)?;
            r.end()?;
            Ok(Request::RegionRead {
                index,
                offset,
                count,
            })
        }
        command::REGION_WRITE => {
            let (offset, index, count) = access(&mut r, limits)?;
            if r.0.len() as u64 != u64::from(count) {
                return Err(Errno::INVAL);
            }
            Ok(Request::RegionWrite {
                index,
                offset,
                data: r.0,
            })
        }
        command::DEVICE_RESET => {
            r.end()?;
            Ok(Request::Reset)
        }
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Checks that the command is supported and allows this number of descriptors.
fn check_command(number: u16, fds: usize) -> Result<(), Errno> {
    let most_fds = match number {
        command::DMA_MAP => 1,
        command::DEVICE_SET_IRQS => MAX_MSG_FDS,
        _ => 0,
    };
    let known = matches!(
        number,
        command::VERSION
            | command::DMA_MAP
            | command::DMA_UNMAP
            | command::DEVICE_GET_INFO
            | command::DEVICE_GET_REGION_INFO
            | command::DEVICE_GET_IRQ_INFO
            | command::DEVICE_SET_IRQS
            | command::REGION_READ
            | command::REGION_WRITE
            | command::DEVICE_RESET
    );
    if !known {
        return Err(Errno::OPNOTSUPP);
    }
    if fds > most_fds {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn parse_dma_map<'a>(mut r: Reader<'a>, fds: &mut Vec<OwnedFd>) -> Result<Request<'a>, Errno> {
    r.argsz(32)?;
    let flags = r.u32()?;
    if flags & !(v::VFIO_DMA_MAP_FLAG_READ | v::VFIO_DMA_MAP_FLAG_WRITE) != 0 {
        return Err(Errno::INVAL);
    }
    let (offset, iova, size) = (r.u64()?, r.u64()?, r.u64()?);
    // No further bytes, so that the kept state of a map is bounded.
    r.end()?;
    Ok(Request::DmaMap(DmaMap {
        offset,
        iova,
        size,
        readable: flags & v::VFIO_DMA_MAP_FLAG_READ != 0,
        writable: flags & v::VFIO_DMA_MAP_FLAG_WRITE != 0,
        fd: fds.pop(),
    }))
}

fn parse_dma_unmap(mut r: Reader<'_>) -> Result<Request<'_>, Errno> {
    let echo = *r.0.first_chunk::<24>().ok_or(Errno::INVAL)?;
    r.argsz(24)?;
    let flags = r.u32()?;
    let (iova, size) = (r.u64()?, r.u64()?);
    let unmap = match flags {
        0 => DmaUnmap::Range { iova, size },
        v::VFIO_DMA_UNMAP_FLAG_ALL => DmaUnmap::All,
        // Dirty bitmaps and vaddr updates are not supported.
        _ => return Err(Errno::INVAL),
    };
    Ok(Request::DmaUnmap(unmap, echo))
}

/// Reads offset, region and count of a region access. The count is within the limits, and offset
/// plus count does not overflow.
fn access(r: &mut Reader<'_>, limits: ClientLimits) -> Result<(u64, u32, u32), Errno> {
    let (offset, index, count) = (r.u64()?, r.u32()?, r.u32()?);
    if count > limits.max_data_xfer.min(MAX_DATA_XFER) {
        return Err(Errno::MSGSIZE);
    }
    if count == 0 || offset.checked_add(u64::from(count)).is_none() {
        return Err(Errno::INVAL);
    }
    Ok((offset, index, count))
}

/// Reads major, minor, and optional JSON that ends with a NUL, the last byte of the message.
fn parse_version(mut r: Reader<'_>) -> Result<ClientLimits, Errno> {
    let major = r.u16()?;
    let _minor = r.u16()?;
    if major != 0 {
        return Err(Errno::PROTONOSUPPORT);
    }
    let mut limits = ClientLimits::default();
    if r.0.is_empty() {
        return Ok(limits);
    }
    let (nul, text) = r.0.split_last().ok_or(Errno::INVAL)?;
    if *nul != 0 {
        return Err(Errno::INVAL);
    }
    let json: serde_json::Value = serde_json::from_slice(text).map_err(|_| Errno::INVAL)?;
    let object = json.as_object().ok_or(Errno::INVAL)?;
    if let Some(capabilities) = object.get("capabilities") {
        let capabilities = capabilities.as_object().ok_or(Errno::INVAL)?;
        if let Some(value) = capabilities.get("max_data_xfer_size") {
            let value = value.as_u64().ok_or(Errno::INVAL)?;
            limits.max_data_xfer = u32::try_from(value).unwrap_or(u32::MAX).min(MAX_DATA_XFER);
        }
        if let Some(value) = capabilities.get("max_msg_fds") {
            limits.max_msg_fds = value.as_u64().ok_or(Errno::INVAL)?;
        }
    }
    Ok(limits)
}

/// Builds the VERSION reply. QEMU receives it into a buffer of the size of its request
/// (hw/vfio-user/proxy.c, "reply larger than recv buffer"), so the reply contains only these two
/// capabilities.
pub(crate) fn version_reply(header: &Header) -> Vec<u8> {
    let mut out = header.reply();
    put(&mut out, 0); // major 0, minor 0
    let text = format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{MAX_MSG_FDS},\
         \"max_data_xfer_size\":{MAX_DATA_XFER}}}}}\0"
    );
    out.extend(text.as_bytes());
    finish(&mut out);
    out
}

fn parse_set_irqs<'a>(mut r: Reader<'a>, fds: &mut Vec<OwnedFd>) -> Result<Request<'a>, Errno> {
    r.argsz(20)?;
    let flags = r.u32()?;
    let (index, start, count) = (r.u32()?, r.u32()?, r.u32()?);
    let action = match flags & v::VFIO_IRQ_SET_ACTION_TYPE_MASK {
        v::VFIO_IRQ_SET_ACTION_TRIGGER => IrqAction::Trigger,
        v::VFIO_IRQ_SET_ACTION_MASK => IrqAction::Mask,
        v::VFIO_IRQ_SET_ACTION_UNMASK => IrqAction::Unmask,
        _ => return Err(Errno::INVAL),
    };
    if flags & !(v::VFIO_IRQ_SET_ACTION_TYPE_MASK | v::VFIO_IRQ_SET_DATA_TYPE_MASK) != 0
        || start.checked_add(count).is_none()
    {
        return Err(Errno::INVAL);
    }
    let wanted = count as usize;
    let data = match flags & v::VFIO_IRQ_SET_DATA_TYPE_MASK {
        v::VFIO_IRQ_SET_DATA_NONE if fds.is_empty() => {
            if count == 0 && action != IrqAction::Trigger {
                return Err(Errno::INVAL);
            }
            IrqData::None
        }
        v::VFIO_IRQ_SET_DATA_BOOL if fds.is_empty() && count > 0 => {
            IrqData::Bool(r.0.get(..wanted).ok_or(Errno::INVAL)?.to_vec())
        }
        // The message has one descriptor for each interrupt, or none to detach.
        v::VFIO_IRQ_SET_DATA_EVENTFD if fds.len() == wanted && count > 0 => {
            IrqData::EventFds(fds.drain(..).map(Some).collect())
        }
        // Detach. `count` has no bound here; `expand_detach` builds the list after `count` is
        // checked against the index.
        v::VFIO_IRQ_SET_DATA_EVENTFD if fds.is_empty() && count > 0 => {
            IrqData::EventFds(Vec::new())
        }
        _ => return Err(Errno::INVAL),
    };
    Ok(Request::SetIrqs {
        index,
        start,
        count,
        action,
        data,
    })
}
