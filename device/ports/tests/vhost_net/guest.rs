//! A front end with a driver, as QEMU and a guest's kernel, over the socket of a port.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use faultline_ports::channel::{Bell, EngineEnd, pair};
use faultline_ports::vhost_net::VhostNetPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Time limit that distinguishes a hang from a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Entries of each ring.
pub(crate) const SIZE: u16 = 32;
/// Octets of each buffer.
pub(crate) const BUFFER: usize = 2048;
pub(crate) const HEADER: usize = 12;

/// Where guest memory begins, and its octets. Not at 0, so that the two kinds of addresses differ.
const BASE: u64 = 0x10_0000;
const MEMORY: usize = 8 << 20;
pub(crate) const END: u64 = BASE + MEMORY as u64;
/// Parts of the memory of each ring: descriptors, available ring, used ring, buffers.
const PER_RING: u64 = 1 << 20;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x8000;
pub(crate) const DATA: u64 = 0x1_0000;

pub(crate) const EVENT_IDX: u64 = 1 << 29;
pub(crate) const MERGEABLE: u64 = 1 << 15;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A port whose engine is the test.
pub(crate) struct Port {
    pub(crate) engine: EngineEnd,
    pub(crate) path: PathBuf,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Port {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (engine, end) = pair(|| {}).unwrap();
        let bell = end.bell();
        let thread = std::thread::spawn(|| VhostNetPort::new(listener, end).run());
        Self {
            engine,
            path,
            bell,
            thread: Some(thread),
            _folder: folder,
        }
    }

    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut is_done: impl FnMut(&mut EngineEnd) -> bool) {
        let start = Instant::now();
        while !is_done(&mut self.engine) {
            assert!(start.elapsed() < LONG, "never {what}");
            std::thread::yield_now();
        }
    }

    #[track_caller]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut frame = Vec::new();
        self.until("a frame", |engine| engine.take(&mut frame));
        self.engine.flush();
        frame
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        assert!(self.engine.send(frame), "the ring has room");
        self.engine.flush();
    }

    #[track_caller]
    pub(crate) fn until_malformed(&mut self, count: u64) {
        self.until("counted", |engine| {
            engine.status().malformed.load(Ordering::Relaxed) >= count
        });
        assert_eq!(
            self.engine.status().malformed.load(Ordering::Relaxed),
            count
        );
    }

    #[track_caller]
    pub(crate) fn until_not_sent(&mut self, count: u64) {
        self.until("counted", |engine| {
            engine.status().not_sent.load(Ordering::Relaxed) == count
        });
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.bell.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A ring of the driver. It outlives connections, as in a guest.
pub(crate) struct Driver {
    pub(crate) memory: GuestMemoryMmap<()>,
    pub(crate) index: usize,
    base: u64,
    has_event_idx: bool,
    /// Entries that were made available, and used entries that were seen.
    pub(crate) available: u16,
    pub(crate) seen: u16,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) kicks: u32,
}

impl Driver {
    fn new(memory: &GuestMemoryMmap<()>, index: usize, has_event_idx: bool) -> Self {
        let flags = vmm_sys_util::eventfd::EFD_NONBLOCK;
        Self {
            memory: memory.clone(),
            index,
            base: BASE + PER_RING * index as u64,
            has_event_idx,
            available: 0,
            seen: 0,
            kick: EventFd::new(flags).unwrap(),
            call: EventFd::new(flags).unwrap(),
            kicks: 0,
        }
    }

    /// Address of a buffer.
    pub(crate) fn data(&self, slot: u16) -> u64 {
        self.base + DATA + u64::from(slot) * BUFFER as u64
    }

    fn store(&self, offset: u64, value: u16) {
        let address = GuestAddress(self.base + offset);
        self.memory.store(value, address, Ordering::SeqCst).unwrap();
    }

    fn load(&self, offset: u64) -> u16 {
        let address = GuestAddress(self.base + offset);
        self.memory.load(address, Ordering::SeqCst).unwrap()
    }

    pub(crate) fn write(&self, address: u64, octets: &[u8]) {
        self.memory
            .write_slice(octets, GuestAddress(address))
            .unwrap();
    }

    pub(crate) fn descriptor_octets(address: u64, length: u32, flags: u16, next: u16) -> [u8; 16] {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&address.to_le_bytes());
        octets[8..12].copy_from_slice(&length.to_le_bytes());
        octets[12..14].copy_from_slice(&flags.to_le_bytes());
        octets[14..].copy_from_slice(&next.to_le_bytes());
        octets
    }

    pub(crate) fn descriptor(&self, slot: u16, address: u64, length: u32, flags: u16, next: u16) {
        let octets = Self::descriptor_octets(address, length, flags, next);
        self.write(self.base + 16 * u64::from(slot), &octets);
    }

    /// Makes a chain available, and notifies the device if it asks for that.
    pub(crate) fn offer(&mut self, head: u16) {
        self.store(AVAILABLE + 4 + 2 * u64::from(self.available % SIZE), head);
        self.publish(self.available.wrapping_add(1));
    }

    pub(crate) fn publish(&mut self, available: u16) {
        let old = std::mem::replace(&mut self.available, available);
        self.store(AVAILABLE + 2, available);
        let is_wanted = match self.has_event_idx {
            true => {
                let event = self.load(USED + 4 + 8 * u64::from(SIZE));
                available.wrapping_sub(event).wrapping_sub(1) < available.wrapping_sub(old)
            }
            false => self.load(USED) & 1 == 0,
        };
        if is_wanted {
            self.kicks += 1;
            self.kick.write(1).unwrap();
        }
    }

    /// Offers the buffer of a slot to receive into.
    pub(crate) fn offer_buffer(&mut self, slot: u16) {
        self.descriptor(slot, self.data(slot), BUFFER as u32, WRITE, 0);
        self.offer(slot);
    }

    /// Sends a frame: the header in one descriptor, the rest in others.
    pub(crate) fn send(&mut self, header: &[u8], frame: &[u8]) {
        let place = self.data(0) + 0x8000;
        self.write(place, header);
        self.write(place + header.len() as u64, frame);
        let half = frame.len() / 2;
        let (first, second) = (half as u32, (frame.len() - half) as u32);
        let at = place + header.len() as u64;
        self.descriptor(0, place, header.len() as u32, NEXT, 1);
        self.descriptor(1, at, first, NEXT, 2);
        self.descriptor(2, at + u64::from(first), second, 0, 0);
        self.offer(0);
    }

    /// The next used entry: head and length. Sleeps until the device interrupts.
    #[track_caller]
    pub(crate) fn used(&mut self) -> (u16, u32) {
        let start = Instant::now();
        loop {
            if let Some(entry) = self.try_used() {
                return entry;
            }
            // Ask for an interrupt, and look again before sleeping.
            self.store(AVAILABLE + 4 + 2 * u64::from(SIZE), self.seen);
            if self.load(USED + 2) != self.seen {
                continue;
            }
            assert!(
                start.elapsed() < LONG,
                "no used entry on ring {}",
                self.index
            );
            self.sleep(Duration::from_secs(1));
        }
    }

    /// The device must interrupt before this time is over, if it has used anything.
    fn sleep(&self, time: Duration) {
        let epoll = Epoll::new().unwrap();
        let event = EpollEvent::new(EventSet::IN, 0);
        let fd = self.call.as_raw_fd();
        epoll.ctl(ControlOperation::Add, fd, event).unwrap();
        let mut events = [EpollEvent::default()];
        epoll.wait(time.as_millis() as i32, &mut events).unwrap();
        let is_called = self.call.read().is_ok();
        assert!(
            is_called || self.load(USED + 2) == self.seen,
            "a missing interrupt"
        );
    }

    pub(crate) fn try_used(&mut self) -> Option<(u16, u32)> {
        if self.load(USED + 2) == self.seen {
            return None;
        }
        let at = USED + 4 + 8 * u64::from(self.seen % SIZE);
        self.seen = self.seen.wrapping_add(1);
        let mut octets = [0; 8];
        let address = GuestAddress(self.base + at);
        self.memory.read_slice(&mut octets, address).unwrap();
        let [head, length] =
            [0, 4].map(|at| u32::from_le_bytes(*octets[at..].first_chunk().unwrap()));
        Some((head as u16, length))
    }

    /// Receives a frame and returns it with the number of buffers. All buffers of it must be there at once.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> (Vec<u8>, u16) {
        let (head, length) = self.used();
        let mut octets = self.read(head, length);
        let buffers = u16::from_le_bytes([octets[10], octets[11]]);
        assert_eq!(octets[..10], [0; 10], "nothing is left to the guest");
        octets.drain(..HEADER);
        for _ in 1..buffers {
            let (head, length) = self.try_used().expect("the rest of a frame");
            octets.extend(self.read(head, length));
        }
        (octets, buffers)
    }

    fn read(&self, slot: u16, length: u32) -> Vec<u8> {
        let mut octets = vec![0; length as usize];
        let address = GuestAddress(self.data(slot));
        self.memory.read_slice(&mut octets, address).unwrap();
        octets
    }
}

/// A guest, which lives through several connections.
pub(crate) struct Guest {
    memory: GuestMemoryMmap<()>,
    pub(crate) rings: Vec<Driver>,
    pub(crate) features: u64,
    pub(crate) front_end: Option<Frontend>,
}

impl Guest {
    pub(crate) fn new(pairs: usize, features: u64) -> Self {
        let memory = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, MEMORY as u64).unwrap();
        let place = FileOffset::new(memory.into(), 0);
        let range = (GuestAddress(BASE), MEMORY, Some(place));
        let memory = GuestMemoryMmap::<()>::from_ranges_with_files([range]).unwrap();
        let has_event_idx = features & EVENT_IDX != 0;
        let rings = (0..2 * pairs)
            .map(|index| Driver::new(&memory, index, has_event_idx))
            .collect();
        Self {
            memory,
            rings,
            features,
            front_end: None,
        }
    }

    /// Address of a place in guest memory in the process of the front end.
    fn front_end_address(&self, guest: u64) -> u64 {
        let region = self.memory.iter().next().unwrap();
        region.as_ptr() as u64 + (guest - BASE)
    }

    fn memory_region(&self) -> VhostUserMemoryRegionInfo {
        let region = self.memory.iter().next().unwrap();
        let info = VhostUserMemoryRegionInfo::from_guest_region(region).unwrap();
        assert_eq!(info.memory_size, region.len());
        info
    }

    /// Connects, negotiates features, and starts all rings where they were.
    pub(crate) fn connect(&mut self, path: &Path) {
        // The port may still be busy with the connection before.
        let mut front_end = Frontend::connect(path, 64).unwrap();
        front_end.set_owner().unwrap();
        let offered = front_end.get_features().unwrap();
        let wanted = self.features | 1 << 30 | 1 << 32;
        assert_eq!(offered & wanted, wanted, "{offered:#x}");
        let protocol = front_end.get_protocol_features().unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::MQ));
        front_end.set_protocol_features(protocol).unwrap();
        assert_eq!(front_end.get_queue_num().unwrap(), 8);
        front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front_end.set_features(wanted).unwrap();
        if self.rings[0].available == 0 {
            front_end.set_mem_table(&[self.memory_region()]).unwrap();
        } else {
            // QEMU does this if memory slots are negotiated.
            front_end.add_mem_region(&self.memory_region()).unwrap();
        }
        self.front_end = Some(front_end);
        for index in 0..self.rings.len() {
            // Entries that are not used were not taken.
            self.start(index, self.rings[index].load(USED + 2));
        }
    }

    pub(crate) fn start(&mut self, index: usize, base: u16) {
        let ring = &self.rings[index];
        let front_end = self.front_end.as_mut().unwrap();
        front_end.set_vring_num(index, SIZE).unwrap();
        front_end.set_vring_base(index, base).unwrap();
        let region = self.memory.iter().next().unwrap().as_ptr() as u64;
        let place = region + (ring.base - BASE);
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: place,
            used_ring_addr: place + USED,
            avail_ring_addr: place + AVAILABLE,
            log_addr: None,
        };
        front_end.set_vring_addr(index, &config).unwrap();
        front_end.set_vring_call(index, &ring.call).unwrap();
        front_end.set_vring_kick(index, &ring.kick).unwrap();
        front_end.set_vring_enable(index, true).unwrap();
        assert_eq!(self.front_end_address(ring.base), place);
    }

    /// Stops a ring; returns the next entry of its available ring.
    pub(crate) fn stop(&mut self, index: usize) -> u16 {
        let front_end = self.front_end.as_mut().unwrap();
        front_end.get_vring_base(index).unwrap() as u16
    }

    /// Takes the last octets from the file of the memory.
    pub(crate) fn shrink(&self, octets: usize) {
        let region = self.memory.iter().next().unwrap();
        let file = region.file_offset().unwrap().file();
        file.set_len((MEMORY - octets) as u64).unwrap();
    }

    pub(crate) fn disconnect(&mut self) {
        self.front_end = None;
    }
}

/// A port with a connected guest.
pub(crate) fn connected(pairs: usize, features: u64) -> (Port, Guest) {
    let port = Port::new();
    let mut guest = Guest::new(pairs, features);
    guest.connect(&port.path);
    (port, guest)
}

/// Waits until the peer has closed a socket.
pub(crate) fn until_closed(socket: &impl AsFd) {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let time = Timespec {
        tv_sec: LONG.as_secs() as i64,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut fds, Some(&time)), Ok(1), "it is never closed");
}
