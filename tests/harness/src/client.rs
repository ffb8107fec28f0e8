//! Client side of vfio-user 0.0, with the means to speak badly.
//!
//! The client of the crate `vfio_user` (which `device/vfio-user/tests/client.rs` uses) can't be used here: it takes every
//! error reply for success (and then waits for the rest of a body that an error reply does not have), can't send a map
//! without a descriptor, and can't send malformed messages. The answer to every request is checked here: id, command, flags, length.
//!
//! Layouts: QEMU `docs/interop/vfio-user.rst`.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Message types.
pub mod command {
    /// Negotiates the version.
    pub const VERSION: u16 = 1;
    /// Maps client memory for DMA.
    pub const DMA_MAP: u16 = 2;
    /// Unmaps client memory.
    pub const DMA_UNMAP: u16 = 3;
    /// Numbers of regions and interrupts.
    pub const GET_INFO: u16 = 4;
    /// Size and flags of a region.
    pub const GET_REGION_INFO: u16 = 5;
    /// Number of vectors of an interrupt index.
    pub const GET_IRQ_INFO: u16 = 7;
    /// Connects eventfds to vectors.
    pub const SET_IRQS: u16 = 8;
    /// Reads a region.
    pub const REGION_READ: u16 = 9;
    /// Writes a region.
    pub const REGION_WRITE: u16 = 10;
    /// Resets the device.
    pub const RESET: u16 = 13;
}

/// Region of the PCI configuration space.
pub const CONFIG_REGION: u32 = 7;
/// Interrupt index of MSI-X.
pub const MSIX_IRQ: u32 = 2;
/// The map may be read by the device.
pub const MAP_READ: u32 = 1 << 0;
/// The map may be written by the device.
pub const MAP_WRITE: u32 = 1 << 1;
/// Unmap everything.
pub const UNMAP_ALL: u32 = 1 << 1;
/// Trigger action with eventfds, `VFIO_IRQ_SET_*`.
const SET_EVENTFDS: u32 = 1 << 2 | 1 << 5;

const HEADER: usize = 16;
/// Time limit for a reply of the device. It is QEMU's, which takes a device that exceeds it for dead: a property of the product, and
/// not the patience of tests.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest reply that makes sense: the largest region read and its header.
const MAX_REPLY: usize = (1 << 20) + 4096;

/// What can go wrong on the socket.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket itself; a closed one is `UnexpectedEof` or `BrokenPipe`.
    #[error("vfio-user socket: {0}")]
    Io(#[from] io::Error),
    /// The device refused.
    #[error("vfio-user command {command} was refused: {errno}")]
    Refused {
        /// Message type.
        command: u16,
        /// Its reason.
        errno: Errno,
    },
    /// The reply is not one.
    #[error("reply to vfio-user command {command}: {what}")]
    BadReply {
        /// Message type.
        command: u16,
        /// What is wrong.
        what: &'static str,
    },
}

impl ClientError {
    /// The errno, if the device refused.
    pub fn refusal(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

impl From<Errno> for ClientError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A region as the device describes it.
#[derive(Debug)]
pub struct RegionInfo {
    /// Bytes.
    pub size: u64,
    /// `VFIO_REGION_INFO_FLAG_*`.
    pub flags: u32,
    /// File behind it, and where in it the region begins.
    pub file: Option<(OwnedFd, u64)>,
    /// Parts (offset, size) that may be mapped.
    pub sparse: Vec<(u64, u64)>,
}

/// A reply, not looked at.
#[derive(Debug)]
pub struct RawReply {
    /// Message id.
    pub id: u16,
    /// Message type.
    pub command: u16,
    /// Flags of the header.
    pub flags: u32,
    /// Error number of the header.
    pub errno: u32,
    /// Bytes after the header.
    pub body: Vec<u8>,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// A connection to a device.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    id: u16,
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// A message in the form of the socket.
pub fn message(id: u16, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + body.len());
    out.extend(id.to_le_bytes());
    out.extend(command.to_le_bytes());
    out.extend(((HEADER + body.len()) as u32).to_le_bytes());
    out.extend(flags.to_le_bytes());
    out.extend([0; 4]);
    out.extend(body);
    out
}

impl Client {
    /// Connects without a word.
    pub fn connect_silent(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream, id: 0 })
    }

    /// Connects and agrees on the version.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let mut client = Self::connect_silent(path)?;
        let json = br#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576}}"#;
        let mut body = words(&[0]);
        body.extend(json);
        body.push(0);
        let reply = client.call(command::VERSION, &body, &[])?;
        match word(&reply.body, 0) {
            0 => Ok(client),
            _ => Err(ClientError::BadReply {
                command: command::VERSION,
                what: "version is not 0.0",
            }),
        }
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL.into());
        }
        let io = [IoSlice::new(bytes)];
        let sent = sendmsg(&self.stream, &io, &mut control, SendFlags::NOSIGNAL)?;
        if let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            self.stream.write_all(rest)?;
        }
        Ok(())
    }

    /// Receives whatever comes.
    pub fn receive(&mut self) -> Result<RawReply, ClientError> {
        let mut header = [0; HEADER];
        let mut fds = Vec::new();
        let mut have = 0;
        while have < HEADER {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut io = [IoSliceMut::new(&mut header[have..])];
            let got = recvmsg(&self.stream, &mut io, &mut control, RecvFlags::CMSG_CLOEXEC)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            if got.bytes == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            have += got.bytes;
        }
        let command = (word(&header, 0) >> 16) as u16;
        let size = word(&header, 4) as usize;
        if !(HEADER..=MAX_REPLY).contains(&size) {
            return Err(ClientError::BadReply {
                command,
                what: "length out of range",
            });
        }
        let mut body = vec![0; size - HEADER];
        self.stream.read_exact(&mut body)?;
        Ok(RawReply {
            id: word(&header, 0) as u16,
            command,
            flags: word(&header, 8),
            errno: word(&header, 12),
            body,
            fds,
        })
    }

    /// One request and its reply, which may be an error.
    pub fn exchange(
        &mut self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<RawReply, ClientError> {
        self.id = self.id.wrapping_add(1);
        let message = message(self.id, command, 0, body);
        self.send_bytes(&message, fds)?;
        let reply = self.receive()?;
        let bad = |what| Err(ClientError::BadReply { command, what });
        match () {
            () if reply.id != self.id => bad("id of another request"),
            () if reply.command != command => bad("another command"),
            () if reply.flags & 0xf != 1 => bad("not a reply"),
            () if (reply.flags & 0x20 != 0) != (reply.errno != 0) => bad("error without errno"),
            () => Ok(reply),
        }
    }

    /// One request that must succeed.
    pub fn call(
        &mut self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<RawReply, ClientError> {
        let reply = self.exchange(command, body, fds)?;
        match reply.errno {
            0 => Ok(reply),
            n => Err(ClientError::Refused {
                command,
                errno: Errno::from_raw_os_error(n as i32),
            }),
        }
    }

    /// Numbers of regions and interrupt indices.
    pub fn info(&mut self) -> Result<(u32, u32), ClientError> {
        let reply = self.call(command::GET_INFO, &words(&[16, 0, 0, 0]), &[])?;
        Ok((word(&reply.body, 8), word(&reply.body, 12)))
    }

    /// Describes a region; asks twice as QEMU does.
    pub fn region_info(&mut self, index: u32) -> Result<RegionInfo, ClientError> {
        let ask = |argsz| words(&[argsz, 0, index, 0, 0, 0, 0, 0]);
        let mut reply = self.call(command::GET_REGION_INFO, &ask(32), &[])?;
        let argsz = word(&reply.body, 0);
        if argsz > 32 {
            reply = self.call(command::GET_REGION_INFO, &ask(argsz), &[])?;
        }
        let body = &reply.body;
        let mut sparse = Vec::new();
        let capability = word(body, 12) as usize;
        // VFIO_REGION_INFO_CAP_SPARSE_MMAP; the device has no other and no chain.
        if capability >= 32 && word(body, capability) & 0xffff == 1 {
            let count = word(body, capability + 8) as usize;
            sparse.extend((0..count.min(64)).map(|i| {
                let at = capability + 16 + 16 * i;
                (long(body, at), long(body, at + 8))
            }));
        }
        Ok(RegionInfo {
            size: long(body, 16),
            flags: word(body, 4),
            file: reply.fds.pop().map(|fd| (fd, long(body, 24))),
            sparse,
        })
    }

    /// Number of interrupts of an index.
    pub fn irq_count(&mut self, index: u32) -> Result<u32, ClientError> {
        let reply = self.call(command::GET_IRQ_INFO, &words(&[16, 0, index, 0]), &[])?;
        Ok(word(&reply.body, 12))
    }

    /// Attaches eventfds to interrupts from `start` on.
    pub fn set_eventfds(
        &mut self,
        index: u32,
        start: u32,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let body = words(&[20, SET_EVENTFDS, index, start, fds.len() as u32]);
        self.call(command::SET_IRQS, &body, fds).map(drop)
    }

    /// Makes memory reachable; without a descriptor it is announced only.
    pub fn dma_map(
        &mut self,
        iova: u64,
        size: u64,
        offset: u64,
        flags: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), ClientError> {
        let mut body = words(&[32, flags]);
        for value in [offset, iova, size] {
            body.extend(value.to_le_bytes());
        }
        let fds: Vec<_> = fd.into_iter().collect();
        self.call(command::DMA_MAP, &body, &fds).map(drop)
    }

    /// Takes memory away.
    pub fn dma_unmap(&mut self, iova: u64, size: u64, flags: u32) -> Result<(), ClientError> {
        let mut body = words(&[24, flags]);
        for value in [iova, size] {
            body.extend(value.to_le_bytes());
        }
        self.call(command::DMA_UNMAP, &body, &[]).map(drop)
    }

    /// Reads a region.
    pub fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let mut body = offset.to_le_bytes().to_vec();
        body.extend(words(&[region, data.len() as u32]));
        let reply = self.call(command::REGION_READ, &body, &[])?;
        match reply.body.get(16..) {
            Some(bytes) if bytes.len() == data.len() => {
                data.copy_from_slice(bytes);
                Ok(())
            }
            _ => Err(ClientError::BadReply {
                command: command::REGION_READ,
                what: "wrong number of bytes",
            }),
        }
    }

    /// Writes a region.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let mut body = offset.to_le_bytes().to_vec();
        body.extend(words(&[region, data.len() as u32]));
        body.extend(data);
        self.call(command::REGION_WRITE, &body, &[]).map(drop)
    }

    /// Resets the device.
    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.call(command::RESET, &[], &[]).map(drop)
    }

    /// Sends no more, but listens.
    pub fn end_of_requests(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Ends the connection at once, also in the middle of a request.
    pub fn hang_up(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
