//! A port on a TAP device: the host's network stack, a bridge, a VXLAN tunnel, another host.
//!
//! The kernel is not held up: a full queue loses frames, as a wire does, and each loss is counted. The kernel segments what its
//! applications send, because the device offers no offloads.

use std::io::{self, ErrorKind};

use rustix::event::PollFlags;
use rustix::fd::AsFd;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::channel::{MAX_FRAME, PortEnd, PortStatus};

/// Frames that are taken in one direction before the other has its turn.
const BURST: usize = 64;

/// A port on a TAP device.
pub struct TapPort {
    device: SyncDevice,
    end: PortEnd,
}

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
    /// The system's, most likely for lack of CAP_NET_ADMIN.
    pub fn new(interface: &str, mtu: Option<u16>, end: PortEnd) -> io::Result<Self> {
        let mut builder = DeviceBuilder::new().name(interface).layer(Layer::L2);
        if let Some(mtu) = mtu {
            builder = builder.mtu(mtu);
        }
        let device = builder.build_sync()?;
        device.set_nonblocking(true)?;
        Ok(Self { device, end })
    }

    /// Passes frames until the engine's side stops it. For a thread of its own.
    pub fn run(mut self) {
        self.end.status().set_connected(true);
        let mut buffer = vec![0; MAX_FRAME];
        let mut frame = Vec::with_capacity(MAX_FRAME);
        let mut has_failed = false;
        while !self.end.is_stopped() {
            let received = self.receive(&mut buffer);
            self.end.flush();
            let sent = self.send(&mut frame);
            self.end.flush();
            match received {
                Ok(0) if sent == 0 => {
                    let fds = [(self.device.as_fd(), PollFlags::IN)];
                    self.end.wait(fds, (true, false), None);
                }
                Ok(_) => has_failed = false,
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!("cannot read from the TAP device: {error}");
                    }
                    // The device may be down, or have been removed.
                    self.end.wait([], (true, false), Some(100));
                }
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for count in 0..BURST {
            match self.device.recv(buffer) {
                Ok(length) => {
                    let frame = buffer.get(..length).unwrap_or_default();
                    if !self.end.send(frame) {
                        PortStatus::count(&self.end.status().lost);
                    }
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
                {
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(BURST)
    }

    fn send(&mut self, frame: &mut Vec<u8>) -> usize {
        for count in 0..BURST {
            frame.clear();
            if self.end.take(frame).is_none() {
                return count;
            }
            if self.device.send(frame).is_err() {
                PortStatus::count(&self.end.status().not_sent);
            }
        }
        BURST
    }
}
