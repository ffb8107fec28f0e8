//! A front end of a `vhost-user-net` port: messages with descriptors, and guest memory with rings.
//!
//! All messages are in the socket before the port reads the first; after each, the port handles the rings. The engine returns each
//! frame of the guest to it, so that both directions have work.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use faultline_ports::channel::{self, EngineEnd, MAX_FRAME};
use faultline_ports::vhost_net::VhostNetPort;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::input::Input;

/// Guest memory: size, and its addresses for the guest and for the front end.
const MEMORY: u64 = 1 << 20;
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000_0000;
/// Places of rings and buffers are multiples of this.
const GRAIN: u64 = 16;
const RINGS: u8 = 4;
/// Messages of an input. With their answers they fit into the socket.
const MAX_MESSAGES: usize = 64;
const MAX_FDS: usize = 9;
/// Octets of a message that are longer than any may be: it is refused when its header is read.
const TOO_LONG: u32 = 5000;

const VERSION: u32 = 1;

/// Requests of the vhost-user protocol (QEMU, docs/interop/vhost-user.rst).
mod request {
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_OWNER: u32 = 3;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const COUNT: u32 = 44;
}

/// Virtio 1, protocol features, and the features that the port offers.
const FEATURES: u64 =
    1 << 32 | 1 << 30 | 1 << 29 | 1 << 28 | 1 << 15 | 1 << 13 | 1 << 12 | 1 << 11 | 1;

struct FrontEnd {
    socket: UnixStream,
    memory: OwnedFd,
    event: OwnedFd,
    sent: usize,
}

impl FrontEnd {
    fn send(&mut self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        self.send_as(request, flags, body.len() as u32, body, fds);
    }

    fn send_as(
        &mut self,
        request: u32,
        flags: u32,
        length: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) {
        if self.sent == MAX_MESSAGES {
            return;
        }
        self.sent += 1;
        let head = [request, flags, length].map(u32::to_ne_bytes).concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let octets = [IoSlice::new(&head), IoSlice::new(body)];
        sendmsg(&self.socket, &octets, &mut control, SendFlags::NOSIGNAL)
            .expect("the socket holds it");
    }

    fn send_words(&mut self, request: u32, words: &[u32]) {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.send(request, VERSION, &body, &[]);
    }

    fn send_u64(&mut self, request: u32, value: u64) {
        self.send(request, VERSION, &value.to_ne_bytes(), &[]);
    }

    /// Any message, with a body of the input and up to three descriptors.
    fn send_any(&mut self, input: &mut Input<'_>) {
        let request = u32::from(input.u8()) % request::COUNT;
        let flags = u32::from(input.u8());
        let length = usize::from(input.u8());
        let body = input.slice(length).to_vec();
        let kinds = input.u8();
        let (memory, event) = (dup(&self.memory), dup(&self.event));
        let fds: Vec<BorrowedFd<'_>> = (0..kinds % 4)
            .map(|n| match kinds >> (2 + n) & 1 {
                0 => memory.as_fd(),
                _ => event.as_fd(),
            })
            .collect();
        match kinds & 0x80 {
            0 => self.send(request, flags, &body, &fds),
            _ => self.send_as(request, flags, TOO_LONG, &body, &fds),
        }
    }

    /// Features and memory as a driver sets them.
    fn start(&mut self, input: &mut Input<'_>) {
        self.send(request::SET_OWNER, VERSION, &[], &[]);
        self.send_u64(request::SET_FEATURES, FEATURES & !u64::from(input.u16()));
        self.send_u64(request::SET_PROTOCOL_FEATURES, 1 | 1 << 3);
        let region = [GUEST, MEMORY, USER, 0].map(u64::to_ne_bytes).concat();
        let body = [[1u32, 0].map(u32::to_ne_bytes).concat(), region].concat();
        let memory = dup(&self.memory);
        self.send(request::SET_MEM_TABLE, VERSION, &body, &[memory.as_fd()]);
    }

    /// A ring anywhere in memory, enabled.
    fn ring(&mut self, input: &mut Input<'_>) {
        let ring = u32::from(input.u8() % RINGS);
        let log_size = u32::from(input.u8() % 11);
        let [descriptors, available, used] = [(); 3].map(|()| USER + place(input));
        self.send_words(request::SET_VRING_NUM, &[ring, 1 << log_size]);
        self.send_words(request::SET_VRING_BASE, &[ring, input.u8().into()]);
        let address = [descriptors, used, available, 0].map(u64::to_ne_bytes);
        let body = [[ring, 0].map(u32::to_ne_bytes).concat(), address.concat()].concat();
        self.send(request::SET_VRING_ADDR, VERSION, &body, &[]);
        let event = dup(&self.event);
        for request in [request::SET_VRING_CALL, request::SET_VRING_KICK] {
            let index = u64::from(ring).to_ne_bytes();
            self.send(request, VERSION, &index, &[event.as_fd()]);
        }
        self.send_words(request::SET_VRING_ENABLE, &[ring, 1]);
    }
}

fn dup(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().expect("a descriptor")
}

/// An offset into guest memory, often a low one.
fn place(input: &mut Input<'_>) -> u64 {
    u64::from(input.u16()) * GRAIN % MEMORY
}

/// A descriptor of a ring, of a buffer in guest memory.
fn descriptor(input: &mut Input<'_>) -> (u64, Vec<u8>) {
    let at = place(input);
    let address = GUEST + place(input) + u64::from(input.u8());
    let length = u32::from(input.u16());
    let [flags, next] = [(); 2].map(|()| u16::from(input.u8()).to_le_bytes());
    let entry = [
        &address.to_le_bytes()[..],
        &length.to_le_bytes(),
        &flags,
        &next,
    ];
    (at, entry.concat())
}

/// The engine's end, and the frames of the guest that it has got.
type Engine = Mutex<Option<(EngineEnd, usize)>>;

/// The engine returns all frames, the second time with a tail.
fn echo(engine: &Engine) {
    let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((engine, count)) = engine.as_mut() else {
        return;
    };
    let mut frame = Vec::new();
    while engine.take(&mut frame) {
        *count += 1;
        assert!((1..=MAX_FRAME).contains(&frame.len()), "{}", frame.len());
        // A full ring loses them.
        engine.send(&frame);
        frame.resize(frame.len().saturating_mul(2).min(MAX_FRAME), 0x5a);
        engine.send(&frame);
    }
}

/// The connection ends, with any octets of the front end.
pub fn front_end(data: &[u8]) {
    run(data);
}

/// Returns the number of frames of the guest.
fn run(data: &[u8]) -> usize {
    static LISTENER: LazyLock<(tempfile::TempDir, UnixListener)> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("socket")).expect("a socket");
        (folder, listener)
    });
    let (socket, server) = UnixStream::pair().expect("a pair of sockets");
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&memory, MEMORY).expect("room");
    let file = File::from(dup(&memory));
    let mut front_end = FrontEnd {
        socket,
        memory,
        event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"),
        sent: 0,
    };
    let mut input = Input(data);
    while !input.is_empty() {
        match input.u8() % 8 {
            0 => front_end.send_any(&mut input),
            1 => front_end.start(&mut input),
            2 | 3 => front_end.ring(&mut input),
            4 | 5 => {
                let (at, octets) = descriptor(&mut input);
                file.write_all_at(&octets, at).expect("room");
            }
            _ => {
                let at = place(&mut input);
                let length = usize::from(input.u8());
                let octets = input.slice(length);
                file.write_all_at(octets, at).expect("room");
                // Writes behind the end make the file longer.
                ftruncate(&file, MEMORY).expect("room");
            }
        }
    }
    let ended = front_end.socket.shutdown(Shutdown::Write);
    ended.expect("the socket is open");
    let engine = Arc::new(Mutex::new(None));
    let of_port = Arc::clone(&engine);
    let (end, port_end) = channel::pair(move || echo(&of_port)).expect("a channel");
    *engine.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, 0));
    let listener = LISTENER.1.try_clone().expect("a descriptor");
    VhostNetPort::new(listener, port_end).serve(server);
    echo(&engine);
    let engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
    engine.as_ref().map_or(0, |(_, count)| *count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The grammar of inputs has connections that work, in both directions.
    #[test]
    fn a_guest_sends_a_frame_and_gets_it_back() {
        let start = [1, 0, 0];
        // A descriptor of 72 octets, which is available, in ring 1 with 16 entries.
        let descriptor = [4, 0x10, 0, 0, 0x10, 0, 72, 0, 0, 0];
        let available = [6, 0x40, 0, 6, 0, 0, 1, 0, 0, 0];
        let ring = [2, 1, 4, 0x10, 0, 0x40, 0, 0x80, 0, 0];
        let input = [&start[..], &descriptor, &available, &ring].concat();
        assert_eq!(run(&input), 1);
        assert_eq!(run(&[&start[..], &descriptor, &ring].concat()), 0);
    }
}
