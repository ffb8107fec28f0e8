//! A device in memory, and a client that can send invalid messages.

use faultline_vfio_user::{
    Device, DeviceInfo, DmaMap, DmaUnmap, Ended, Errno, IrqFlags, IrqInfo, IrqSet, IrqVectors,
    RegionFlags, RegionInfo, RegionMmap, Shutdown, SparseArea, pci_index, serve_connection,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Calls of the device.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub maps: Vec<(u64, u64, u64, bool, bool, bool)>,
    pub unmaps: Vec<DmaUnmap>,
    pub irqs: Vec<String>,
    pub resets: usize,
    pub disconnects: usize,
    pub vectors: Option<IrqVectors>,
    /// Descriptors are kept here unless `close` is set.
    pub held: Vec<OwnedFd>,
}

/// Region 0: 4 KiB of bytes. Config space: 256 bytes. Region 2: 8 KiB, its second page may be mapped. 16 vectors.
pub(crate) struct TestDevice {
    pub log: Arc<Mutex<Log>>,
    pub regs: Vec<u8>,
    pub config: Vec<u8>,
    /// Descriptors of maps are kept in the log.
    pub keeps_files: bool,
    /// Length of region 0 as it is described.
    pub len: u64,
    pub bell: OwnedFd,
}

pub(crate) const VECTORS: u32 = 32;

impl TestDevice {
    pub(crate) fn new() -> Self {
        let bell = memfd_create("bell", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&bell, 8192).unwrap();
        let log = Log {
            vectors: Some(IrqVectors::new(VECTORS)),
            ..Log::default()
        };
        Self {
            log: Arc::new(Mutex::new(log)),
            regs: vec![0; 4096],
            config: vec![0; 256],
            keeps_files: true,
            len: 4096,
            bell,
        }
    }

    fn window(&mut self, index: u32, offset: u64, len: usize) -> Result<&mut [u8], Errno> {
        let bytes = match index {
            0 => &mut self.regs,
            pci_index::CONFIG_REGION => &mut self.config,
            _ => return Err(Errno::IO),
        };
        let from = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let to = from.checked_add(len).ok_or(Errno::INVAL)?;
        bytes.get_mut(from..to).ok_or(Errno::INVAL)
    }
}

impl Device for TestDevice {
    fn info(&mut self) -> Result<DeviceInfo, Errno> {
        Ok(DeviceInfo::PCI)
    }

    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        let flags = RegionFlags::READ | RegionFlags::WRITE;
        Ok(match index {
            0 => RegionInfo {
                size: self.len,
                flags,
                mmap: None,
            },
            2 => RegionInfo {
                size: 8192,
                flags,
                mmap: Some(RegionMmap {
                    fd: self.bell.try_clone().unwrap(),
                    offset: 0,
                    sparse: vec![SparseArea {
                        offset: 4096,
                        size: 4096,
                    }],
                }),
            },
            3 => RegionInfo {
                size: 8192,
                flags,
                mmap: Some(RegionMmap {
                    fd: self.bell.try_clone().unwrap(),
                    offset: 4096,
                    sparse: Vec::new(),
                }),
            },
            _ => RegionInfo::default(),
        })
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let len = data.len();
        data.copy_from_slice(self.window(index, offset, len)?);
        Ok(())
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.window(index, offset, data.len())?
            .copy_from_slice(data);
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        let mut log = self.log.lock().unwrap();
        let fd = map.fd.is_some();
        log.maps.push((
            map.iova,
            map.size,
            map.offset,
            map.readable,
            map.writable,
            fd,
        ));
        log.held.extend(map.fd.filter(|_| self.keeps_files));
        if map.size == 0 {
            Err(Errno::INVAL)
        } else {
            Ok(())
        }
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        self.log.lock().unwrap().unmaps.push(unmap);
        Ok(())
    }

    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno> {
        Ok(match index {
            pci_index::MSIX_IRQ => IrqInfo {
                count: VECTORS,
                flags: IrqFlags::EVENTFD,
            },
            pci_index::ERR_IRQ => IrqInfo {
                count: 1,
                flags: IrqFlags::EVENTFD,
            },
            _ => IrqInfo::default(),
        })
    }

    fn set_irqs(&mut self, set: IrqSet) -> Result<(), Errno> {
        let mut log = self.log.lock().unwrap();
        log.irqs.push(format!(
            "{} {}+{} {:?}",
            set.index, set.start, set.count, set.action
        ));
        match set.index {
            pci_index::MSIX_IRQ => log.vectors.as_mut().unwrap().set(set),
            _ => Ok(()),
        }
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.log.lock().unwrap().resets += 1;
        Ok(())
    }

    fn disconnected(&mut self) {
        let mut log = self.log.lock().unwrap();
        log.disconnects += 1;
        log.held.clear();
    }
}

/// A server on one end of a socket pair.
pub(crate) struct Pair {
    pub client: Client,
    pub log: Arc<Mutex<Log>>,
    pub shutdown: Shutdown,
    server: Option<JoinHandle<Ended>>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let (client, server) = UnixStream::pair().unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        client
            .set_write_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut device = TestDevice::new();
        let log = device.log.clone();
        let shutdown = Shutdown::new().unwrap();
        let stop = shutdown.clone();
        let server = std::thread::spawn(move || serve_connection(server, &mut device, &stop));
        Self {
            client: Client {
                stream: client,
                id: 0,
            },
            log,
            shutdown,
            server: Some(server),
        }
    }

    /// With VERSION done.
    pub(crate) fn negotiated() -> Self {
        let mut pair = Self::new();
        let reply = pair.client.call(1, &version("{}"), &[]);
        assert_eq!(reply.error, 0);
        pair
    }

    /// The end of the server; fails the test if it does not end.
    pub(crate) fn ended(&mut self) -> Ended {
        let server = self.server.take().expect("asked once");
        let start = std::time::Instant::now();
        while !server.is_finished() {
            assert!(start.elapsed() < Duration::from_secs(60), "server hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
        server.join().expect("server panicked")
    }

    /// Closes the client's end, then as [`Pair::ended`].
    pub(crate) fn hang_up(mut self) -> Ended {
        self.client
            .stream
            .shutdown(std::net::Shutdown::Both)
            .unwrap();
        self.ended()
    }
}

pub(crate) struct Reply {
    pub id: u16,
    pub command: u16,
    pub flags: u32,
    pub error: u32,
    pub body: Vec<u8>,
}

impl Reply {
    pub(crate) fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.body[at..at + 4].try_into().unwrap())
    }
}

pub(crate) struct Client {
    pub stream: UnixStream,
    pub id: u16,
}

impl Client {
    /// Sends bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = sendmsg(
            &self.stream,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        let sent = sent.unwrap();
        if sent < bytes.len() {
            self.stream.write_all(&bytes[sent..]).unwrap();
        }
    }

    pub(crate) fn reply(&mut self) -> std::io::Result<Reply> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        let half = |at: usize| u16::from_le_bytes(header[at..at + 2].try_into().unwrap());
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; word(4) as usize - 16];
        self.stream.read_exact(&mut body)?;
        Ok(Reply {
            id: half(0),
            command: half(2),
            flags: word(8),
            error: word(12),
            body,
        })
    }

    pub(crate) fn send(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) {
        self.id = self.id.wrapping_add(1);
        self.raw(&message(self.id, command, 0, body), fds);
    }

    /// One request and its reply, which must belong together.
    pub(crate) fn call(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        self.send(command, body, fds);
        let reply = self.reply().unwrap();
        assert_eq!((reply.id, reply.command), (self.id, command));
        assert_eq!(reply.flags, if reply.error == 0 { 1 } else { 0x21 });
        assert!(reply.error == 0 || reply.body.is_empty());
        reply
    }

    /// The stream is synchronized and the server runs: a register keeps a written value.
    pub(crate) fn works(&mut self) {
        let value = 0x5eed_0000 | u32::from(self.id);
        let reply = self.call(10, &access(64, 0, &value.to_le_bytes()), &[]);
        assert_eq!((reply.error, reply.body.len()), (0, 16));
        let reply = self.call(9, &words(&[64, 0, 0, 4]), &[]);
        assert_eq!((reply.error, reply.word(16)), (0, value));
    }
}

pub(crate) fn message(id: u16, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(id.to_le_bytes());
    out.extend(command.to_le_bytes());
    out.extend((16 + body.len() as u32).to_le_bytes());
    out.extend(flags.to_le_bytes());
    out.extend([0; 4]);
    out.extend(body);
    out
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn version(json: &str) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend(json.as_bytes());
    out.push(0);
    out
}

/// Body of a region write.
pub(crate) fn access(offset: u64, index: u32, data: &[u8]) -> Vec<u8> {
    let mut out = offset.to_le_bytes().to_vec();
    out.extend(words(&[index, data.len() as u32]));
    out.extend(data);
    out
}

pub(crate) fn memfd(len: u64) -> OwnedFd {
    let fd = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

pub(crate) fn borrow(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}
