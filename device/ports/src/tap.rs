//! A port on a TAP device: the host's network stack, a bridge, a VXLAN tunnel, another host.
//!
//! Frames wait in the queue of the device while the engine has no room for them. The kernel is not held up: a full
//! queue loses frames, as a wire does, and the kernel counts them. Checksums, and segments of what its applications
//! send, are left to this port: a frame has a header of virtio before it (`IFF_VNET_HDR`). Frames to the kernel have
//! their checksums, and are as long as on the wire.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use faultline_memory::set_tap_header;
use rustix::event::PollFlags;
use rustix::fd::AsFd;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::channel::{MAX_FRAME, PortEnd, PortStatus};
use crate::virtio_net::{LEGACY_HEADER, Transmission};

/// Frames that are taken in one direction before the other has its turn.
const BURST: usize = 64;
/// Pause after a look at the kernel's count of lost frames, or after an error of the device.
const PAUSE_MS: u32 = 100;

/// A port on a TAP device.
pub struct TapPort(Passage<SyncDevice>);

impl std::fmt::Debug for TapPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapPort").finish_non_exhaustive()
    }
}

impl TapPort {
    /// Creates the device, or attaches to one that exists and belongs to this user. `mtu` in octets without Ethernet header.
    ///
    /// # Errors
    ///
    /// Those of the system, most likely for lack of CAP_NET_ADMIN.
    pub fn new(interface: &str, mtu: Option<u16>, end: PortEnd) -> io::Result<Self> {
        let mut builder = DeviceBuilder::new()
            .name(interface)
            .layer(Layer::L2)
            .offload(true);
        if let Some(mtu) = mtu {
            builder = builder.mtu(mtu);
        }
        let device = builder.build_sync()?;
        device.set_nonblocking(true)?;
        set_tap_header(&device, LEGACY_HEADER)?;
        let statistics = format!("/sys/class/net/{interface}/statistics/tx_dropped");
        Ok(Self(Passage::new(device, statistics.into(), end)))
    }

    /// Passes frames until the engine's side stops it. For a thread of its own.
    pub fn run(mut self) {
        self.0.run();
    }
}

/// A device that passes whole frames behind a header of virtio, and does not block.
trait Device: AsFd {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;
    fn send(&self, frame: &[u8]) -> io::Result<usize>;
}

impl Device for SyncDevice {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv(buffer)
    }

    fn send(&self, frame: &[u8]) -> io::Result<usize> {
        SyncDevice::send(self, frame)
    }
}

/// Frames that the queue of the device had no room for: a counter of the kernel.
struct Losses {
    counter: PathBuf,
    /// The counter at the first reading.
    before: Option<u64>,
    /// When it was read last.
    read: Instant,
}

impl Losses {
    fn new(counter: PathBuf) -> Self {
        let mut losses = Self {
            counter,
            before: None,
            read: Instant::now(),
        };
        losses.before = losses.read();
        losses
    }

    /// `None` if the kernel has no counter: the device is removed, or in another network namespace.
    fn read(&mut self) -> Option<u64> {
        self.read = Instant::now();
        let text = std::fs::read_to_string(&self.counter).ok()?;
        text.trim().parse().ok()
    }

    /// Takes over the counter, unless it was read a short time ago. Returns true if it was not.
    fn update(&mut self, status: &PortStatus) -> bool {
        let is_due = self.read.elapsed() >= Duration::from_millis(PAUSE_MS.into());
        if is_due && let Some(now) = self.read() {
            let before = *self.before.get_or_insert(now);
            status
                .lost
                .store(now.saturating_sub(before), Ordering::Relaxed);
        }
        is_due
    }
}

/// Frames on their way between a device and the engine.
struct Passage<D> {
    device: D,
    losses: Losses,
    end: PortEnd,
    buffer: Vec<u8>,
    /// The frame of the device that is on its way to the engine.
    transmission: Transmission,
    has_warned: bool,
}

/// The result of a turn of receiving.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    Frames,
    Nothing,
    /// The engine has no room.
    NoRoom,
}

impl<D: Device> Passage<D> {
    /// `losses` is the file of the kernel's counter.
    fn new(device: D, losses: PathBuf, end: PortEnd) -> Self {
        Self {
            device,
            losses: Losses::new(losses),
            end,
            buffer: vec![0; LEGACY_HEADER.saturating_add(MAX_FRAME)],
            transmission: Transmission::default(),
            has_warned: false,
        }
    }

    fn run(&mut self) {
        self.end.status().set_connected(true);
        let mut frame = Vec::with_capacity(LEGACY_HEADER.saturating_add(MAX_FRAME));
        let mut has_failed = false;
        // Frames have come in, or wait, since the last look at the kernel's count of lost frames.
        let mut has_news = false;
        while !self.end.is_stopped() {
            has_news = has_news && !self.losses.update(self.end.status());
            let received = self.receive();
            self.end.flush();
            let has_sent = self.send(&mut frame);
            self.end.flush();
            // While frames wait in the device, it may lose others.
            has_news |= !matches!(received, Ok(Received::Nothing));
            match received {
                Ok(Received::Frames) => has_failed = false,
                Ok(_) if has_sent => {}
                Ok(Received::Nothing) => {
                    let fds = [(self.device.as_fd(), PollFlags::IN)];
                    self.end
                        .wait(fds, (true, false), has_news.then_some(PAUSE_MS));
                }
                // Without the device, because its errors would end the wait at once.
                Ok(Received::NoRoom) => {
                    self.end.wait([], (true, true), Some(PAUSE_MS));
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!("cannot read from the TAP device: {error}");
                    }
                    // The device may be down, or have been removed.
                    self.end.wait([], (true, false), Some(PAUSE_MS));
                }
            }
        }
    }

    fn receive(&mut self) -> io::Result<Received> {
        for count in 0..BURST {
            if !self.end.has_room() {
                return Ok(match count {
                    0 => Received::NoRoom,
                    _ => Received::Frames,
                });
            }
            if let Some(frame) = self.transmission.next_frame() {
                let _ = self.end.send(frame);
                continue;
            }
            match self.device.receive(&mut self.buffer) {
                Ok(length) => self.start(length),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
                {
                    return Ok(match count {
                        0 => Received::Nothing,
                        _ => Received::Frames,
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Received::Frames)
    }

    /// Takes the contents of the buffer as the next frame to the engine.
    fn start(&mut self, length: usize) {
        let received = self.buffer.get(..length).unwrap_or_default();
        self.transmission.buffer().extend_from_slice(received);
        if let Err(reason) = self.transmission.start(LEGACY_HEADER) {
            PortStatus::count(&self.end.status().malformed);
            if !std::mem::replace(&mut self.has_warned, true) {
                tracing::warn!(
                    "dropped a frame of the TAP device: {reason}; further ones are only counted"
                );
            }
        }
    }

    /// Returns true if the engine had frames.
    fn send(&mut self, frame: &mut Vec<u8>) -> bool {
        for count in 0..BURST {
            frame.clear();
            frame.extend_from_slice(&[0; LEGACY_HEADER]);
            if self.end.take(frame).is_none() {
                return count > 0;
            }
            if self.device.send(frame).is_err() {
                PortStatus::count(&self.end.status().not_sent);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::channel::pair;

    impl Device for UnixDatagram {
        fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
            self.recv(buffer)
        }

        fn send(&self, frame: &[u8]) -> io::Result<usize> {
            UnixDatagram::send(self, frame)
        }
    }

    /// A frame of its own length and contents.
    fn frame(n: u32) -> Vec<u8> {
        let mut frame = vec![n as u8; 4000 + n as usize % 64];
        frame[..4].copy_from_slice(&n.to_be_bytes());
        frame
    }

    /// A frame as the device passes it, without offloads.
    fn with_header(frame: &[u8]) -> Vec<u8> {
        [&[0; LEGACY_HEADER], frame].concat()
    }

    /// A passage over a socket whose other end is returned, too.
    fn passage(
        counter: &std::path::Path,
    ) -> (
        crate::channel::EngineEnd,
        UnixDatagram,
        Passage<UnixDatagram>,
    ) {
        let (engine, end) = pair(|| {}).unwrap();
        let (device, peer) = UnixDatagram::pair().unwrap();
        device.set_nonblocking(true).unwrap();
        let passage = Passage::new(device, counter.into(), end);
        (engine, peer, passage)
    }

    #[test]
    fn frames_wait_in_the_device_while_the_engine_has_no_room() {
        const FRAMES: u32 = 2000;
        let (mut engine, peer, mut passage) = passage("/none".as_ref());
        let bell = engine.bell();
        let port = std::thread::spawn(move || passage.run());
        let sender = std::thread::spawn(move || {
            for n in 0..FRAMES {
                peer.send(&with_header(&frame(n))).unwrap();
            }
            peer
        });
        // More than the ring has room for.
        std::thread::sleep(Duration::from_millis(50));
        let mut taken = Vec::new();
        let start = Instant::now();
        for n in 0..FRAMES {
            while !engine.take(&mut taken) {
                assert!(start.elapsed() < Duration::from_secs(20), "frame {n}");
                std::thread::yield_now();
            }
            assert!(taken == frame(n), "frame {n}");
            engine.flush();
        }
        let peer = sender.join().unwrap();
        assert!(engine.send(&frame(7)));
        engine.flush();
        let mut buffer = vec![0; MAX_FRAME];
        let length = peer.recv(&mut buffer).unwrap();
        assert!(buffer[..length] == with_header(&frame(7)));
        bell.stop();
        port.join().unwrap();
    }

    #[test]
    fn losses_of_the_kernel_are_counted_from_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let counter = folder.path().join("tx_dropped");
        std::fs::write(&counter, "10\n").unwrap();
        let (mut engine, peer, mut passage) = passage(&counter);
        let bell = engine.bell();
        let port = std::thread::spawn(move || passage.run());
        std::fs::write(&counter, "17\n").unwrap();
        peer.send(&with_header(&frame(1))).unwrap();
        let start = Instant::now();
        let mut taken = Vec::new();
        while !engine.take(&mut taken) || engine.status().lost.load(Ordering::Relaxed) != 7 {
            assert!(start.elapsed() < Duration::from_secs(20));
            peer.send(&with_header(&frame(1))).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        bell.stop();
        port.join().unwrap();
    }

    /// A TCP segment as the kernel leaves it to the device: its frames enter as the engine makes room, none is lost or made twice.
    #[test]
    fn long_segments_are_divided_as_the_engine_makes_room() {
        const LENGTH: usize = 60_000;
        const MSS: usize = 1000;
        const SEGMENTS: usize = 100;
        let (mut engine, peer, mut passage) = passage("/none".as_ref());
        let bell = engine.bell();
        let port = std::thread::spawn(move || passage.run());
        let mut frame = Vec::new();
        let data: Vec<u8> = (0..LENGTH).map(|at| (at / MSS) as u8).collect();
        etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(1, 2, 3, 4)
            .write(&mut frame, &data)
            .unwrap();
        // NEEDS_CSUM, TCPV4, length of headers, MSS, start of the checksum and its place.
        let mut long = vec![1, 1, 54, 0];
        long.extend((MSS as u16).to_le_bytes());
        long.extend([34, 0, 16, 0]);
        long.extend(&frame);
        let sender = std::thread::spawn(move || {
            for _ in 0..SEGMENTS {
                peer.send(&long).unwrap();
            }
        });
        let start = Instant::now();
        let mut taken = Vec::new();
        for n in 0..SEGMENTS * LENGTH / MSS {
            while !engine.take(&mut taken) {
                assert!(start.elapsed() < Duration::from_secs(20), "frame {n}");
                std::thread::yield_now();
            }
            assert_eq!(taken.len(), 54 + MSS);
            let part = (n % (LENGTH / MSS)) as u8;
            assert!(taken[54..].iter().all(|octet| *octet == part), "frame {n}");
            engine.flush();
        }
        sender.join().unwrap();
        bell.stop();
        port.join().unwrap();
    }
}
