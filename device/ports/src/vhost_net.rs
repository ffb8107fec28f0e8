//! A port for the virtio network device of a guest of any QEMU: the back end of a vhost-user connection. QEMU connects
//! to the socket of the port and sets up the rings of its guest with messages; frames do not pass through QEMU.
//!
//! One thread handles everything: messages, the rings of all queue pairs, and this end of the engine's rings. So a ring
//! never changes while it is used. `vhost` reads the messages, `virtio-queue` and `vm-memory` the rings;
//! docs/decisions/011-vhost-user.md gives the reasons against `vhost-user-backend`.
//!
//! A guest that sends faster than the engine takes is held up: its frames stay in its ring. Frames to a guest that
//! takes them too slowly wait in the engine's ring, and further ones are lost. The guest may write anything: an invalid
//! chain is returned unsent and counted, and an invalid ring is not read until it is started again.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use vhost::vhost_user::{BackendReqHandler, Error, VhostUserBackendReqHandlerMut};
use virtio_queue::QueueT;

use crate::channel::{MAX_FRAME, PortEnd, PortStatus};
use crate::vhost_device::{Device, MAX_PAIRS, RINGS, Ring, has_lost};
use crate::virtio_net::{Transmission, flow, receive_header};
use crate::virtqueue::{Fault, Found, Space, give_back, read_chain, wants_interrupt};

/// Frames that are taken in one direction before the other has its turn.
const BURST: usize = 64;
/// Octets of the header of a message, and of its longest body.
const MESSAGE: usize = 12;
const MAX_BODY: usize = 4096;
/// The message that enables a ring; flags of a message that wants an answer, and of an answer (with the version).
const SET_VRING_ENABLE: u32 = 18;
const NEED_REPLY: u32 = 8;
const REPLY: u32 = 4 | 1;
/// Time limit of a message from its first to its last octet, and of a front end for making room for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two looks at a message that is not complete.
const MESSAGE_PAUSE_MS: u32 = 10;
/// Pause after an attempt to accept a connection that the system has refused, most likely for lack of descriptors.
const ACCEPT_PAUSE_MS: u32 = 100;

/// A port for a guest with a virtio network device.
#[derive(Debug)]
pub struct VhostNetPort {
    listener: UnixListener,
    end: PortEnd,
}

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the front end has closed it")]
    Closed,
    #[error("a message of the front end: {0}")]
    Message(Error),
    #[error(
        "the front end has not sent the rest of a message, or not read an answer, for {} s",
        PATIENCE.as_secs()
    )]
    Stuck,
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("this process ends")]
    Stopped,
}

impl VhostNetPort {
    /// Makes a port. The listening socket must not block.
    pub fn new(listener: UnixListener, end: PortEnd) -> Self {
        Self { listener, end }
    }

    /// Passes frames until the engine's side stops it. For a thread of its own.
    pub fn run(mut self) {
        while !self.end.is_stopped() {
            let socket = match self.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    self.end.wait([], (false, false), Some(ACCEPT_PAUSE_MS));
                    continue;
                }
            };
            self.serve(socket);
        }
    }

    /// Passes frames of one front end until the connection ends.
    pub fn serve(&mut self, socket: UnixStream) {
        discard(&mut self.end);
        self.end.status().set_connected(true);
        tracing::info!("connected");
        let ended = match Connection::new(socket) {
            Ok(connection) => connection.run(&mut self.end),
            Err(end) => end,
        };
        self.end.status().set_connected(false);
        discard(&mut self.end);
        match ended {
            End::Stopped => {}
            End::Closed => tracing::info!("connection ended: {ended}"),
            End::System(_) => tracing::warn!("connection ended: {ended}"),
            End::Message(_) | End::Stuck => {
                PortStatus::count(&self.end.status().malformed);
                tracing::warn!("connection closed: {ended}");
            }
        }
    }

    /// Waits for a front end. `None`: there is none yet.
    fn accept(&self) -> Result<Option<UnixStream>, Errno> {
        let fds = [(self.listener.as_fd(), PollFlags::IN)];
        self.end.wait(fds, (false, false), None);
        match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket.into())),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Drops the frames for a guest that has disconnected.
fn discard(end: &mut PortEnd) {
    let mut frame = Vec::new();
    while end.take(&mut frame).is_some() {
        PortStatus::count(&end.status().not_sent);
        frame.clear();
    }
    end.flush();
}

fn lock(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frames of a connection on their way.
#[derive(Debug, Default)]
struct Traffic {
    /// A frame of the guest, which may become several.
    transmission: Transmission,
    /// A frame of the engine, if it is not empty.
    frame: Vec<u8>,
    space: Space,
    /// The pair of queues whose turn it is to send first.
    first: usize,
    /// The guest has sent an invalid frame: only the first one is logged.
    has_warned: bool,
}

/// A connection to a front end.
struct Connection {
    socket: UnixStream,
    messages: BackendReqHandler<Mutex<Device>>,
    device: Arc<Mutex<Device>>,
    traffic: Traffic,
    /// Time since which the front end is in the middle of a message.
    stuck_since: Option<Instant>,
}

impl Connection {
    fn new(socket: UnixStream) -> Result<Self, End> {
        let device = Arc::new(Mutex::new(Device::new().map_err(End::Message)?));
        let messages = BackendReqHandler::from_stream(socket.try_clone()?, Arc::clone(&device));
        Ok(Self {
            socket,
            messages,
            device,
            traffic: Traffic::default(),
            stuck_since: None,
        })
    }

    fn run(mut self, port: &mut PortEnd) -> End {
        loop {
            if port.is_stopped() {
                return End::Stopped;
            }
            let had_message = match self.message() {
                Ok(had_message) => had_message,
                Err(end) => return end,
            };
            let device = Arc::clone(&self.device);
            let mut device = lock(&device);
            let has_sent = self.traffic.transmit(&mut device, port);
            let has_received = self.traffic.receive(&mut device, port);
            port.flush();
            let worked = had_message || has_sent || has_received;
            // Read once: the events of the wait depend on it, and the engine may make room at any time.
            let has_room = port.has_room();
            if !worked && self.traffic.may_sleep(&mut device, has_room) {
                self.wait(&device, port, has_room);
            }
        }
    }

    /// Reads and answers one message, if a whole one is there. Neither half a message nor a front end that does not read answers holds
    /// up the thread.
    fn message(&mut self) -> Result<bool, End> {
        let mut head = [0; MESSAGE];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = match recv(&self.socket, &mut head, flags) {
            Ok((_, 0)) => return Err(End::Closed),
            Ok((_, count)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(Errno::CONNRESET) => return Err(End::Closed),
            Err(errno) => return Err(End::System(errno.into())),
        };
        let body = head
            .last_chunk()
            .map_or(0, |size| u32::from_ne_bytes(*size));
        let body = usize::try_from(body).unwrap_or(usize::MAX);
        let there = ioctl_fionread(&self.socket).map_err(io::Error::from)?;
        let there = usize::try_from(there).unwrap_or(usize::MAX);
        // One that is too long is refused when its header is read.
        let is_whole = peeked == MESSAGE
            && (body > MAX_BODY || there.saturating_sub(MESSAGE) >= body)
            && is_writable(&self.socket);
        if !is_whole {
            let since = *self.stuck_since.get_or_insert_with(Instant::now);
            return match since.elapsed() > PATIENCE {
                true => Err(End::Stuck),
                false => Ok(false),
            };
        }
        self.stuck_since = None;
        if self.enable_early(&head)? {
            return Ok(true);
        }
        match self.messages.handle_request() {
            Ok(()) => Ok(true),
            Err(Error::Disconnected | Error::SocketBroken(_)) => Err(End::Closed),
            Err(error) => Err(End::Message(error)),
        }
    }

    /// Enables or disables a ring before features are set. QEMU does that with the ring of a device that its guest has not started yet;
    /// `vhost` refuses it, because the feature that allows it is not set. Returns false for any other message, which stays unread.
    fn enable_early(&self, head: &[u8; MESSAGE]) -> Result<bool, End> {
        let mut device = lock(&self.device);
        let words = |octets: &[u8], at: usize| {
            let word = octets.get(at..).and_then(|rest| rest.first_chunk());
            word.map_or(0, |word| u32::from_ne_bytes(*word))
        };
        let is_early = words(head, 0) == SET_VRING_ENABLE && words(head, 8) == 8;
        if !is_early || device.has_features() {
            return Ok(false);
        }
        let mut octets = [0; MESSAGE + 8];
        recv(&self.socket, &mut octets, RecvFlags::DONTWAIT).map_err(io::Error::from)?;
        let done = device.set_vring_enable(words(&octets, MESSAGE), words(&octets, 16) == 1);
        if words(head, 4) & NEED_REPLY != 0 {
            let reply = [SET_VRING_ENABLE, REPLY, 8, u32::from(done.is_err()), 0];
            let octets = reply.map(u32::to_ne_bytes).concat();
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            send(&self.socket, &octets, flags).map_err(io::Error::from)?;
        }
        done.map_err(End::Message)?;
        Ok(true)
    }

    /// Sleeps until there is work; if the engine had no room, until it has.
    fn wait(&self, device: &Device, port: &PortEnd, has_room: bool) {
        let is_stuck = self.stuck_since.is_some();
        let message = match is_stuck {
            true => PollFlags::empty(),
            false => PollFlags::IN,
        };
        let mut fds = [(self.socket.as_fd(), PollFlags::empty()); RINGS.saturating_add(1)];
        for (to, ring) in fds.iter_mut().zip(&device.rings) {
            if let (true, Some(kick)) = (ring.is_usable(), &ring.kick) {
                *to = (kick.as_fd(), PollFlags::IN);
            }
        }
        if let Some(last) = fds.last_mut() {
            *last = (self.socket.as_fd(), message);
        }
        let results = port.wait(
            fds,
            (self.traffic.frame.is_empty(), !has_room),
            is_stuck.then_some(MESSAGE_PAUSE_MS),
        );
        for (flags, (fd, wanted)) in results.iter().zip(fds).take(RINGS) {
            if flags.contains(PollFlags::IN) && !wanted.is_empty() {
                let _ = rustix::io::read(fd, &mut [0; 8]);
            }
        }
    }
}

/// True if an answer fits into the buffer of the socket.
fn is_writable(socket: &UnixStream) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
}

impl Traffic {
    /// Passes frames of the guest to the engine. Returns false if there are none, or the engine has no room.
    fn transmit(&mut self, device: &mut Device, port: &mut PortEnd) -> bool {
        let mut budget = BURST;
        // Forgets pages that reads of the rings have lost, which have no other effect.
        let _ = has_lost(&device.regions);
        self.send_pending(port, &mut budget);
        self.first = self.first.wrapping_add(1);
        for turn in 0..MAX_PAIRS {
            let pair = self.first.wrapping_add(turn) % MAX_PAIRS;
            self.transmit_ring(device, pair, port, &mut budget);
        }
        budget < BURST
    }

    fn send_pending(&mut self, port: &mut PortEnd, budget: &mut usize) {
        while *budget > 0 && port.has_room() {
            let Some(frame) = self.transmission.next_frame() else {
                return;
            };
            if !port.send(frame) {
                PortStatus::count(&port.status().lost);
            }
            *budget = budget.saturating_sub(1);
        }
    }

    fn transmit_ring(
        &mut self,
        device: &mut Device,
        pair: usize,
        port: &mut PortEnd,
        budget: &mut usize,
    ) {
        let header = device.header();
        let memory = &device.memory;
        let index = pair.saturating_mul(2).saturating_add(1);
        let Some(ring) = device.rings.get_mut(index).filter(|ring| ring.is_usable()) else {
            return;
        };
        let from = ring.queue.next_used();
        let limit = header.saturating_add(MAX_FRAME);
        while *budget > 0 && !self.transmission.is_pending() && port.has_room() {
            let buffer = self.transmission.buffer();
            let read = read_chain(&mut ring.queue, memory, buffer, limit);
            let (head, is_frame) = match read {
                Ok(None) => break,
                Ok(Some(head)) => (head, !has_lost(&device.regions)),
                Err(Fault::Chain(head)) => (head, false),
                Err(Fault::Ring) => {
                    self.refuse_ring(ring, port);
                    break;
                }
            };
            *budget = budget.saturating_sub(1);
            if give_back(&mut ring.queue, memory, &[(head, 0)]).is_err() {
                self.refuse_ring(ring, port);
                break;
            }
            if !is_frame {
                self.refuse(port, &"descriptors that are not those of a frame");
            } else if let Err(reason) = self.transmission.start(header) {
                self.refuse(port, &reason);
            }
            self.send_pending(port, budget);
        }
        // The driver need not notify of further frames until notifications are enabled again.
        let _ = ring.queue.disable_notification(memory);
        if wants_interrupt(&ring.queue, memory, from) {
            ring.interrupt();
        }
    }

    /// Passes frames of the engine to the guest. Returns false if there are none, or the guest has no buffers.
    fn receive(&mut self, device: &mut Device, port: &mut PortEnd) -> bool {
        let before: [u16; RINGS] = std::array::from_fn(|index| {
            let ring = device.rings.get(index);
            ring.map_or(0, |ring| ring.queue.next_used())
        });
        let mut count = 0usize;
        while count < BURST {
            if self.frame.is_empty() && port.take(&mut self.frame).is_none() {
                break;
            }
            if !self.receive_frame(device, port) {
                break;
            }
            self.frame.clear();
            count = count.saturating_add(1);
        }
        let rings = device.rings.iter().zip(before);
        for (ring, from) in rings.step_by(2).filter(|(ring, _)| ring.is_usable()) {
            if wants_interrupt(&ring.queue, &device.memory, from) {
                ring.interrupt();
            }
        }
        count > 0
    }

    /// Returns false if the frame must wait for buffers.
    fn receive_frame(&mut self, device: &mut Device, port: &PortEnd) -> bool {
        let (is_mergeable, header_len) = (device.is_mergeable(), device.header());
        let Some(index) = receive_ring(device, &self.frame) else {
            // No driver is there.
            PortStatus::count(&port.status().not_sent);
            return true;
        };
        let memory = &device.memory;
        let Some(ring) = device.rings.get_mut(index) else {
            return true;
        };
        let needed = header_len.saturating_add(self.frame.len());
        let space = &mut self.space;
        let found = space.collect(&mut ring.queue, memory, needed, is_mergeable);
        let filled = match found {
            Ok(Found::TooFew) => return false,
            Ok(Found::TooSmall) => {
                PortStatus::count(&port.status().not_sent);
                return true;
            }
            Ok(Found::Enough) => {
                let header = receive_header(space.buffers());
                let header = header.get(..header_len).unwrap_or(&header);
                space.fill(&mut ring.queue, memory, header, &self.frame)
            }
            Err(fault) => Err(fault),
        };
        // Pages that the host cannot provide: the guest has not received the frame.
        if has_lost(&device.regions) {
            self.refuse(port, &"memory that the host does not have");
        }
        if filled.is_err() {
            PortStatus::count(&port.status().not_sent);
            self.refuse_ring(ring, port);
        }
        true
    }

    /// Asks the drivers to notify of new frames and buffers. Returns false if there are some already. If the engine has
    /// no room, no frame of the guest can be sent, so its drivers need not notify.
    fn may_sleep(&self, device: &mut Device, has_room: bool) -> bool {
        let waiting = match self.frame.is_empty() {
            true => None,
            false => receive_ring(device, &self.frame),
        };
        let memory = &device.memory;
        let waiting = waiting.and_then(|index| device.rings.get_mut(index));
        let has_more = waiting.is_some_and(|ring| self.space.ask_for_more(&mut ring.queue, memory));
        if has_more || !has_room {
            return !has_more;
        }
        // The engine has made room since the last frame was sent.
        if self.transmission.is_pending() {
            return false;
        }
        let sending = device.rings.iter_mut().skip(1).step_by(2);
        let mut is_idle = true;
        for ring in sending.filter(|ring| ring.is_usable()) {
            let found = ring.queue.enable_notification(memory);
            is_idle &= !found.unwrap_or(false);
        }
        is_idle
    }

    fn refuse_ring(&mut self, ring: &mut Ring, port: &PortEnd) {
        ring.is_broken = true;
        self.refuse(
            port,
            &"a ring that is not one; it is ignored until it is started again",
        );
    }

    fn refuse(&mut self, port: &PortEnd, reason: &dyn std::fmt::Display) {
        PortStatus::count(&port.status().malformed);
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "refused a frame or a ring of the guest: {reason}; further ones are only counted"
            );
        }
    }
}

/// The ring that receives a frame: the same one for all frames of a connection.
fn receive_ring(device: &Device, frame: &[u8]) -> Option<usize> {
    let usable = || {
        let rings = device.rings.iter().enumerate().step_by(2);
        rings.filter(|(_, ring)| ring.is_usable())
    };
    let count = u32::try_from(usable().count()).ok()?;
    let chosen = flow(frame).checked_rem(count)?;
    let (index, _) = usable().nth(usize::try_from(chosen).ok()?)?;
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio_net::HEADER;

    #[test]
    fn frames_that_waited_for_room_are_sent_before_the_thread_sleeps() {
        let mut device = Device::new().unwrap();
        let mut traffic = Traffic::default();
        assert!(traffic.may_sleep(&mut device, true));
        let buffer = traffic.transmission.buffer();
        buffer.extend_from_slice(&[0; HEADER + 60]);
        traffic.transmission.start(HEADER).unwrap();
        assert!(traffic.may_sleep(&mut device, false));
        assert!(!traffic.may_sleep(&mut device, true));
    }
}
