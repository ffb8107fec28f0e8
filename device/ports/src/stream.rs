//! A port on a stream socket, framed as QEMU's `-netdev stream` and `-netdev socket`: the length of each frame in four octets,
//! big-endian, then the frame without FCS (QEMU, net/stream.c). The peer is another process of Faultline, an emulator's netdev, or
//! passt.
//!
//! A stream holds up its sender: while the engine has no room, nothing is read from the socket. The engine holds
//! connections to a slow peer. Frames to the peer are lost while there is none, and when the ring is full in spite of
//! that. A connection that ends, or sends octets that are no frames, is closed, and the port waits for the next one or
//! makes it.
//!
//! A peer cannot keep a port from others: a waiting connection replaces a peer that has sent nothing for a while, or
//! that does not complete a frame. Without another connection a peer may be silent for ever, like a guest without
//! traffic or a stopped one.

use std::io;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    connect, recv, send, socket_with, sockopt,
};

use crate::address::StreamAddress;
use crate::channel::{MAX_FRAME, PortEnd, PortStatus};

/// Octets that are read at a time. More than a frame, so one always fits.
const INPUT: usize = 256 << 10;
/// Octets of frames that are written at a time.
const OUTPUT: usize = 64 << 10;
/// Octets of the length in front of a frame.
const LENGTH: usize = 4;
/// Time limit of a frame from its first octet on: then a waiting connection replaces its peer.
const FRAME_TIME: Duration = Duration::from_secs(10);
/// Time without an octet after which a waiting connection replaces the peer: as long as keep-alive needs to find that a
/// peer has vanished.
const SILENCE: Duration = Duration::from_secs(25);
/// Time between two checks for another connection, while the peer has exceeded a limit and the port never waits.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Pause after an attempt to accept a connection that the system has refused, most likely for lack of descriptors.
const ACCEPT_PAUSE_MS: u32 = 100;

/// Where peers come from.
#[derive(Debug)]
pub enum Peers {
    /// They connect to this socket, one at a time.
    Unix(UnixListener),
    /// They connect to this socket, one at a time.
    Tcp(std::net::TcpListener),
    /// This port connects, and again after this time if that fails or the connection ends.
    Connect(StreamAddress, Duration),
}

impl Peers {
    /// The socket to which peers connect.
    fn listener(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Unix(listener) => Some(listener.as_fd()),
            Self::Tcp(listener) => Some(listener.as_fd()),
            Self::Connect(..) => None,
        }
    }
}

/// Time limits of a port for its peer.
#[derive(Clone, Copy, Debug)]
struct TimeLimits {
    frame: Duration,
    silence: Duration,
}

/// A port on a stream socket.
#[derive(Debug)]
pub struct StreamPort {
    peers: Peers,
    end: PortEnd,
    limits: TimeLimits,
    /// The last attempt failed: only the first failure of several is logged.
    has_failed: bool,
}

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the peer has closed it")]
    Closed,
    #[error(
        "the peer has sent a frame of {0} octets; at most {MAX_FRAME} are allowed, and at least 1"
    )]
    Malformed(u32),
    #[error("another peer has connected, and this one has sent no whole frame for {1:?}")]
    Replaced(OwnedFd, Duration),
    #[error("{0}")]
    System(Errno),
    #[error("this process ends")]
    Stopped,
}

impl StreamPort {
    /// Makes a port. Listening sockets must not block.
    pub fn new(peers: Peers, end: PortEnd) -> Self {
        Self {
            peers,
            end,
            limits: TimeLimits {
                frame: FRAME_TIME,
                silence: SILENCE,
            },
            has_failed: false,
        }
    }

    /// Passes frames until the engine's side stops it. For a thread of its own.
    pub fn run(mut self) {
        while !self.end.is_stopped() {
            let Some(socket) = self.next_peer() else {
                continue;
            };
            self.serve(socket);
            if let Peers::Connect(_, pause) = self.peers {
                self.pause(pause);
            }
        }
    }

    /// Passes frames of one peer until the connection ends, and of those that replace it. Sockets must not block.
    pub fn serve(&mut self, socket: OwnedFd) {
        let mut next = Some(socket);
        while let Some(socket) = next {
            next = self.serve_one(socket);
        }
    }

    /// Passes frames of one peer until the connection ends. Returns the one that replaces it.
    fn serve_one(&mut self, socket: OwnedFd) -> Option<OwnedFd> {
        self.discard();
        self.end.status().set_connected(true);
        tracing::info!("connected");
        let connection = Connection::new(socket, self.limits);
        let ended = connection.run(&mut self.end, self.peers.listener());
        self.end.status().set_connected(false);
        self.discard();
        match &ended {
            End::Stopped => {}
            End::Malformed(_) => {
                PortStatus::count(&self.end.status().malformed);
                tracing::warn!("connection closed: {ended}");
            }
            End::Replaced(..) => tracing::warn!("connection closed: {ended}"),
            End::Closed | End::System(_) => tracing::info!("connection ended: {ended}"),
        }
        match ended {
            End::Replaced(socket, _) => Some(socket),
            _ => None,
        }
    }

    /// Drops the frames for a peer that has disconnected.
    fn discard(&mut self) {
        let mut frame = Vec::new();
        while self.end.take(&mut frame).is_some() {
            PortStatus::count(&self.end.status().not_sent);
            frame.clear();
        }
        self.end.flush();
    }

    fn pause(&self, time: Duration) {
        let ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self.end.wait([], (false, false), Some(ms));
    }

    /// Waits for a peer. `None`: there is none yet.
    fn next_peer(&mut self) -> Option<OwnedFd> {
        let found = match &self.peers {
            Peers::Unix(listener) => self.accept(listener.as_fd()),
            Peers::Tcp(listener) => self.accept(listener.as_fd()),
            Peers::Connect(address, pause) => {
                let found = self.connect(address);
                if found.is_err() {
                    self.pause(*pause);
                }
                found
            }
        };
        match found {
            Ok(socket) => {
                self.has_failed = false;
                socket
            }
            Err(errno) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    let error = io::Error::from(errno);
                    match &self.peers {
                        Peers::Connect(address, _) => {
                            tracing::info!("{address}: {error}; trying again until it succeeds");
                        }
                        Peers::Unix(_) | Peers::Tcp(_) => {
                            tracing::warn!("cannot accept a connection: {error}");
                        }
                    }
                }
                None
            }
        }
    }

    fn accept(&self, listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
        self.end
            .wait([(listener, PollFlags::IN)], (false, false), None);
        let accepted = accept_one(listener);
        if accepted.is_err() {
            self.end.wait([], (false, false), Some(ACCEPT_PAUSE_MS));
        }
        accepted
    }

    fn connect(&self, address: &StreamAddress) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let new = |family| socket_with(family, SocketType::STREAM, flags, None);
        let (socket, started) = match address {
            StreamAddress::Unix(path) => {
                let socket = new(AddressFamily::UNIX)?;
                let started = connect(&socket, &SocketAddrUnix::new(path.as_path())?);
                (socket, started)
            }
            StreamAddress::Tcp(address) => {
                let family = match address.is_ipv4() {
                    true => AddressFamily::INET,
                    false => AddressFamily::INET6,
                };
                let socket = new(family)?;
                let started = connect(&socket, address);
                (socket, started)
            }
        };
        match started {
            Ok(()) => {}
            Err(Errno::INPROGRESS) => {
                let ready = self
                    .end
                    .wait([(socket.as_fd(), PollFlags::OUT)], (false, false), None);
                if ready == [PollFlags::empty()] {
                    // Stopped, or interrupted.
                    return Ok(None);
                }
                sockopt::socket_error(&socket)??;
            }
            Err(errno) => return Err(errno),
        }
        prepare(&socket);
        Ok(Some(socket))
    }
}

/// Accepts a connection. `None`: none waits.
fn accept_one(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => {
            prepare(&socket);
            Ok(Some(socket))
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// True if the peer has closed a connection, and has sent nothing before.
fn is_closed(socket: &OwnedFd) -> bool {
    match recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, count)) => count == 0,
        Err(errno) => errno != Errno::AGAIN,
    }
}

/// Options of a TCP connection. A unix socket has none of them.
fn prepare(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    // A peer that has vanished must not keep the next one out for ever.
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
}

/// A connection to a peer.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// Octets of the peer from `start` to `end` are not taken yet.
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// The engine had no room for the frame at `start`.
    is_held_up: bool,
    limits: TimeLimits,
    /// Time of the last octets, or of the end of a time in which the engine had no room.
    heard: Instant,
    /// Time since which the frame at `start` is incomplete, if the engine has room.
    incomplete: Option<Instant>,
    /// Another connection waits for this one to end.
    has_rival: bool,
    /// Time of the last check for another connection, if a limit was exceeded.
    looked: Instant,
    /// Frames with their lengths, written up to `written`.
    output: Vec<u8>,
    written: usize,
}

impl Connection {
    fn new(socket: OwnedFd, limits: TimeLimits) -> Self {
        Self {
            socket,
            limits,
            heard: Instant::now(),
            incomplete: None,
            has_rival: false,
            looked: Instant::now(),
            input: vec![0; INPUT],
            start: 0,
            end: 0,
            is_held_up: false,
            output: Vec::with_capacity(OUTPUT.saturating_add(MAX_FRAME)),
            written: 0,
        }
    }

    /// `listener`: where other peers connect.
    fn run(mut self, port: &mut PortEnd, listener: Option<BorrowedFd<'_>>) -> End {
        loop {
            if port.is_stopped() {
                return End::Stopped;
            }
            let passed = self
                .write(port)
                .and_then(|wrote| Ok(self.read(port)? || wrote));
            port.flush();
            let checked = passed.and_then(|passed| {
                self.check_time(listener)?;
                Ok(passed)
            });
            match checked {
                Ok(true) => {}
                Ok(false) => self.wait(port, listener),
                Err(end) => return end,
            }
        }
    }

    fn wait(&mut self, port: &PortEnd, listener: Option<BorrowedFd<'_>>) {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.is_held_up);
        flags.set(PollFlags::OUT, self.written < self.output.len());
        let for_frames = self.output.is_empty();
        let mut for_rival = PollFlags::empty();
        for_rival.set(PollFlags::IN, listener.is_some() && !self.has_rival);
        let socket = self.socket.as_fd();
        let [_, rival] = port.wait(
            [(socket, flags), (listener.unwrap_or(socket), for_rival)],
            (for_frames, self.is_held_up),
            self.time_left(),
        );
        if for_rival.contains(PollFlags::IN) && rival.contains(PollFlags::IN) {
            self.has_rival = true;
            tracing::info!(
                "another peer has connected: it waits until this one disconnects, or has been silent for {:?}",
                self.limits.silence
            );
        }
    }

    /// Milliseconds until [`Connection::check_time`] may end the connection. `None`: it will not.
    fn time_left(&self) -> Option<u32> {
        if !self.has_rival || self.is_held_up {
            return None;
        }
        let rest = |since: Instant, time: Duration| time.saturating_sub(since.elapsed());
        let silence = rest(self.heard, self.limits.silence);
        let frame = self
            .incomplete
            .map_or(silence, |since| rest(since, self.limits.frame));
        let ms = frame.min(silence).as_millis();
        // The rest of a millisecond is waited for, too.
        Some(u32::try_from(ms).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Ends a connection whose peer keeps another connection waiting.
    fn check_time(&mut self, listener: Option<BorrowedFd<'_>>) -> Result<(), End> {
        let TimeLimits { frame, silence } = self.limits;
        let Some(listener) = listener.filter(|_| !self.is_held_up) else {
            return Ok(());
        };
        // Usually a wait finds another one. There is none while the engine always has frames for this peer.
        if !self.has_rival && self.looked.elapsed() < LOOK_PAUSE {
            return Ok(());
        }
        let is_late = self
            .incomplete
            .is_some_and(|since| since.elapsed() >= frame);
        let limit = match is_late {
            true => frame,
            false if self.heard.elapsed() >= silence => silence,
            false => return Ok(()),
        };
        self.looked = Instant::now();
        match accept_one(listener) {
            Ok(Some(rival)) if !is_closed(&rival) => return Err(End::Replaced(rival, limit)),
            // It has disconnected. Another one may wait behind it.
            Ok(Some(_)) => {}
            Ok(None) => self.has_rival = false,
            // The system lacks descriptors: later.
            Err(_) => {
                self.heard = Instant::now();
                self.incomplete = self.incomplete.map(|_| self.heard);
            }
        }
        Ok(())
    }

    /// Writes frames of the engine. Returns false if there are none, or the peer takes none now.
    fn write(&mut self, port: &mut PortEnd) -> Result<bool, End> {
        if self.output.is_empty() {
            while self.output.len() < OUTPUT {
                let at = self.output.len();
                self.output.extend_from_slice(&[0; LENGTH]);
                let Some(length) = port.take(&mut self.output) else {
                    self.output.truncate(at);
                    break;
                };
                let octets = u32::try_from(length).unwrap_or(0).to_be_bytes();
                if let Some(to) = self.output.get_mut(at..at.saturating_add(LENGTH)) {
                    to.copy_from_slice(&octets);
                }
            }
        }
        let rest = self.output.get(self.written..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(false);
        }
        match send(&self.socket, rest, SendFlags::NOSIGNAL) {
            Ok(count) => {
                self.written = self.written.saturating_add(count);
                if self.written >= self.output.len() {
                    self.output.clear();
                    self.written = 0;
                }
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(End::System(errno)),
        }
    }

    /// Reads frames of the peer, unless the engine has no room. Returns false if there is nothing to read now.
    fn read(&mut self, port: &mut PortEnd) -> Result<bool, End> {
        let was_held_up = self.is_held_up;
        if was_held_up {
            self.heard = Instant::now();
        }
        self.pass(port)?;
        if self.is_held_up {
            return Ok(false);
        }
        let Some(free) = self
            .input
            .get_mut(self.end..)
            .filter(|free| !free.is_empty())
        else {
            return Ok(was_held_up);
        };
        match recv(&self.socket, free, RecvFlags::empty()) {
            Ok((_, 0)) => Err(End::Closed),
            Ok((_, count)) => {
                self.end = self.end.saturating_add(count);
                self.heard = Instant::now();
                self.pass(port)?;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(was_held_up),
            Err(errno) => Err(End::System(errno)),
        }
    }

    /// Passes the frames that have been read to the engine.
    fn pass(&mut self, port: &mut PortEnd) -> Result<(), End> {
        self.is_held_up = false;
        loop {
            let rest = self.input.get(self.start..self.end).unwrap_or_default();
            let Some((head, rest)) = rest.split_first_chunk::<LENGTH>() else {
                break;
            };
            let length = u32::from_be_bytes(*head);
            let octets = usize::try_from(length).unwrap_or(usize::MAX);
            if octets == 0 || octets > MAX_FRAME {
                return Err(End::Malformed(length));
            }
            let Some(frame) = rest.get(..octets) else {
                break;
            };
            if !port.send(frame) {
                self.is_held_up = true;
                break;
            }
            self.start = self.start.saturating_add(LENGTH).saturating_add(octets);
        }
        if self.start > 0 || self.is_held_up {
            self.incomplete = None;
        }
        if self.start < self.end && !self.is_held_up {
            self.incomplete.get_or_insert_with(Instant::now);
        }
        // There is always room for the rest of a frame.
        self.input.copy_within(self.start..self.end, 0);
        self.end = self.end.saturating_sub(self.start);
        self.start = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;
    use std::thread::JoinHandle;
    use std::time::Instant;

    use super::*;
    use crate::channel::{Bell, EngineEnd, pair};

    const LONG: Duration = Duration::from_secs(20);
    const LONG_LIMITS: TimeLimits = TimeLimits {
        frame: LONG,
        silence: LONG,
    };

    struct Running {
        engine: EngineEnd,
        bell: std::sync::Arc<Bell>,
        thread: Option<JoinHandle<()>>,
    }

    impl Running {
        fn new(peers: Peers) -> Self {
            Self::with_limits(peers, LONG_LIMITS)
        }

        fn with_limits(peers: Peers, limits: TimeLimits) -> Self {
            let (engine, port) = pair(|| {}).unwrap();
            let bell = port.bell();
            let port = StreamPort {
                limits,
                ..StreamPort::new(peers, port)
            };
            let thread = std::thread::spawn(|| port.run());
            Self {
                engine,
                bell,
                thread: Some(thread),
            }
        }

        fn until(&mut self, what: &str, mut is_done: impl FnMut(&mut EngineEnd) -> bool) {
            let start = Instant::now();
            while !is_done(&mut self.engine) {
                assert!(start.elapsed() < LONG, "never {what}");
                std::thread::yield_now();
            }
        }

        fn until_connected(&mut self, connections: u64) {
            self.until("connected", |engine| {
                engine.status().connections.load(Ordering::Relaxed) == connections
                    && engine.status().is_connected.load(Ordering::Relaxed)
            });
        }

        fn take(&mut self) -> Vec<u8> {
            let mut frame = Vec::new();
            self.until("a frame", |engine| engine.take(&mut frame));
            self.engine.flush();
            frame
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.bell.stop();
            self.thread.take().unwrap().join().unwrap();
        }
    }

    fn unix(folder: &tempfile::TempDir) -> (Peers, std::path::PathBuf) {
        let path = folder.path().join("wire");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        (Peers::Unix(listener), path)
    }

    fn framed(frame: &[u8]) -> Vec<u8> {
        [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
    }

    #[test]
    fn frames_pass_in_both_directions_and_peers_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let (peers, path) = unix(&folder);
        let mut port = Running::new(peers);
        for round in 1..=3 {
            let mut peer = UnixStream::connect(&path).unwrap();
            port.until_connected(round);
            assert!(port.engine.send(b"to the peer"));
            port.engine.flush();
            let mut buffer = [0; 15];
            peer.read_exact(&mut buffer).unwrap();
            assert_eq!(&buffer[..], framed(b"to the peer"));
            // Cut anywhere, and several at once.
            let frames = [framed(&[1; 60]), framed(&[2; MAX_FRAME]), framed(&[3; 1])].concat();
            for part in frames.chunks(50_001) {
                peer.write_all(part).unwrap();
            }
            for (value, length) in [(1, 60), (2, MAX_FRAME), (3, 1)] {
                assert!(port.take() == vec![value; length]);
            }
            // A frame that has begun does not reach the next connection.
            peer.write_all(&[0, 0, 0, 60, 1, 2, 3]).unwrap();
        }
    }

    #[test]
    fn a_port_connects_again_over_tcp() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = StreamAddress::Tcp(listener.local_addr().unwrap());
        let mut port = Running::new(Peers::Connect(address, Duration::from_millis(1)));
        for round in 1..=3 {
            let (mut peer, _) = listener.accept().unwrap();
            port.until_connected(round);
            peer.write_all(&framed(&[round as u8; 99])).unwrap();
            assert_eq!(port.take(), [round as u8; 99]);
        }
    }

    #[test]
    fn a_length_that_no_frame_has_ends_the_connection_only() {
        let folder = tempfile::tempdir().unwrap();
        let (peers, path) = unix(&folder);
        let mut port = Running::new(peers);
        for (round, length) in [(1, 0), (2, MAX_FRAME as u32 + 1), (3, u32::MAX)] {
            let mut peer = UnixStream::connect(&path).unwrap();
            peer.write_all(&length.to_be_bytes()).unwrap();
            assert_eq!(peer.read(&mut [0]).unwrap(), 0, "it is closed");
            port.until("counted", |engine| {
                engine.status().malformed.load(Ordering::Relaxed) == round
            });
        }
        let mut peer = UnixStream::connect(&path).unwrap();
        peer.write_all(&framed(b"good")).unwrap();
        assert_eq!(port.take(), b"good");
    }

    /// A listener, the path of its socket, and the folder that has it.
    fn listening() -> (UnixListener, std::path::PathBuf, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        match unix(&folder) {
            (Peers::Unix(listener), path) => (listener, path, folder),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// A connection without a thread, its peer, and both ends of the port.
    fn connection() -> (Connection, UnixStream, EngineEnd, PortEnd) {
        let (socket, peer) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (engine, port) = pair(|| {}).unwrap();
        (
            Connection::new(socket.into(), LONG_LIMITS),
            peer,
            engine,
            port,
        )
    }

    #[test]
    fn the_time_of_a_frame_runs_from_its_first_octet() {
        let (mut connection, mut peer, _engine, mut port) = connection();
        let frame = framed(&[1; 60]);
        let mut read = |connection: &mut Connection, octets: &[u8]| {
            peer.write_all(octets).unwrap();
            connection.read(&mut port).unwrap();
            connection.incomplete
        };
        let since = read(&mut connection, &frame[..1]);
        assert!(since.is_some());
        assert_eq!(read(&mut connection, &frame[1..40]), since);
        let (listener, path, _folder) = listening();
        let _rival = UnixStream::connect(&path).unwrap();
        let listener = Some(listener.as_fd());
        connection.has_rival = true;
        assert!(connection.check_time(listener).is_ok());
        assert_eq!(read(&mut connection, &frame[40..]), None);
        connection.limits.frame = Duration::ZERO;
        assert!(connection.check_time(listener).is_ok(), "it is complete");
        let next = read(&mut connection, &[&frame[..], &frame[..2]].concat());
        assert!(next > since);
        connection.has_rival = false;
        assert!(connection.check_time(listener).is_ok(), "none waits");
        connection.has_rival = true;
        let ended = connection.check_time(listener).unwrap_err();
        assert!(matches!(ended, End::Replaced(_, Duration::ZERO)), "{ended}");
    }

    /// Frames that wait for the engine, and a part of a frame behind them, do not count against the peer.
    #[test]
    fn a_peer_has_time_while_the_engine_has_no_room() {
        let (listener, path, _folder) = listening();
        let _rival = UnixStream::connect(&path).unwrap();
        let (mut connection, mut peer, mut engine, mut port) = connection();
        let frame = framed(&[1; 60_000]);
        while !connection.is_held_up {
            peer.write_all(&frame).unwrap();
            connection.read(&mut port).unwrap();
        }
        peer.write_all(&frame[..100]).unwrap();
        connection.has_rival = true;
        connection.limits = TimeLimits {
            frame: Duration::ZERO,
            silence: Duration::ZERO,
        };
        assert!(!connection.read(&mut port).unwrap());
        assert!(connection.check_time(Some(listener.as_fd())).is_ok());
        assert_eq!(connection.time_left(), None);
        let before = connection.heard;
        let mut buffer = Vec::new();
        while engine.take(&mut buffer) {}
        connection.read(&mut port).unwrap();
        assert!(connection.heard > before && connection.incomplete.is_some());
        let ended = connection.check_time(Some(listener.as_fd())).unwrap_err();
        assert!(matches!(ended, End::Replaced(..)), "{ended}");
    }

    #[test]
    fn only_a_silent_peer_is_replaced_and_only_by_a_present_one() {
        let (listener, path, _folder) = listening();
        let (mut connection, _peer, ..) = connection();
        connection.has_rival = true;
        for _ in 0..2 {
            drop(UnixStream::connect(&path).unwrap());
        }
        let rival = UnixStream::connect(&path).unwrap();
        let listener = Some(listener.as_fd());
        assert!(connection.check_time(listener).is_ok(), "not silent yet");
        connection.limits.silence = Duration::ZERO;
        for _ in 0..2 {
            assert!(connection.check_time(listener).is_ok(), "it has gone");
            assert!(connection.has_rival);
        }
        let ended = connection.check_time(listener).unwrap_err();
        assert!(matches!(ended, End::Replaced(..)), "{ended}");
        drop(rival);
        assert!(connection.check_time(listener).is_ok());
        assert!(!connection.has_rival, "none waits");
        // The port has never waited since.
        let _rival = UnixStream::connect(&path).unwrap();
        assert!(connection.check_time(listener).is_ok(), "just looked");
        connection.looked -= LOOK_PAUSE;
        let ended = connection.check_time(listener).unwrap_err();
        assert!(matches!(ended, End::Replaced(..)), "{ended}");
    }

    #[test]
    fn half_a_frame_does_not_keep_a_port() {
        let folder = tempfile::tempdir().unwrap();
        let (peers, path) = unix(&folder);
        let frame = Duration::from_millis(50);
        let mut port = Running::with_limits(
            peers,
            TimeLimits {
                frame,
                ..LONG_LIMITS
            },
        );
        let mut peer = UnixStream::connect(&path).unwrap();
        peer.write_all(&framed(&[1; 60])[..30]).unwrap();
        port.until_connected(1);
        std::thread::sleep(2 * frame);
        peer.write_all(&framed(&[1; 60])[30..]).unwrap();
        assert_eq!(port.take(), [1; 60], "none waits");
        peer.write_all(&framed(&[2; 60])[..30]).unwrap();
        let mut next = UnixStream::connect(&path).unwrap();
        next.write_all(&framed(b"next")).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "it is closed");
        assert_eq!(port.take(), b"next");
    }

    #[test]
    fn a_silent_peer_is_replaced_by_a_waiting_one() {
        let folder = tempfile::tempdir().unwrap();
        let (peers, path) = unix(&folder);
        let silence = Duration::from_millis(50);
        let mut port = Running::with_limits(
            peers,
            TimeLimits {
                silence,
                ..LONG_LIMITS
            },
        );
        // With a part of a frame, which does not reach the next connection, and without.
        for (round, begins) in [(1, &[0, 0, 0, 60, 1][..]), (2, &[])] {
            let mut silent = UnixStream::connect(&path).unwrap();
            silent.write_all(begins).unwrap();
            port.until_connected(2 * round - 1);
            let mut next = UnixStream::connect(&path).unwrap();
            next.write_all(&framed(b"next")).unwrap();
            assert_eq!(silent.read(&mut [0]).unwrap(), 0, "it is closed");
            port.until_connected(2 * round);
            assert_eq!(port.take(), b"next");
        }
    }

    /// The first connection is silent for longer than the limit, but no other one waits.
    #[test]
    fn a_peer_may_be_silent_while_none_waits() {
        let folder = tempfile::tempdir().unwrap();
        let (peers, path) = unix(&folder);
        let mut silent = UnixStream::connect(&path).unwrap();
        for _ in 0..3 {
            // It disconnects before the port looks.
            drop(UnixStream::connect(&path).unwrap());
        }
        let silence = Duration::from_millis(1);
        let mut port = Running::with_limits(
            peers,
            TimeLimits {
                silence,
                ..LONG_LIMITS
            },
        );
        port.until_connected(1);
        std::thread::sleep(20 * silence);
        silent.write_all(&framed(b"still there")).unwrap();
        assert_eq!(port.take(), b"still there");
        assert_eq!(port.engine.status().connections.load(Ordering::Relaxed), 1);
    }

    /// No frame is lost, and memory is bounded: the sender is held up.
    #[test]
    fn a_peer_that_sends_faster_than_the_engine_takes_is_held_up() {
        let folder = tempfile::tempdir().unwrap();
        let (peers, path) = unix(&folder);
        let mut port = Running::new(peers);
        let mut peer = UnixStream::connect(&path).unwrap();
        peer.set_nonblocking(true).unwrap();
        let (mut sent, mut rest) = (0u32, Vec::new());
        let mut stuck_since = None::<Instant>;
        while stuck_since.is_none_or(|since| since.elapsed() < Duration::from_millis(100)) {
            if rest.is_empty() {
                let mut frame = vec![0; 9000];
                frame[..4].copy_from_slice(&sent.to_be_bytes());
                rest = framed(&frame);
                sent += 1;
            }
            match peer.write(&rest) {
                Ok(count) => {
                    rest.drain(..count);
                    stuck_since = None;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    stuck_since.get_or_insert_with(Instant::now);
                    std::thread::yield_now();
                }
                Err(error) => panic!("{error}"),
            }
            assert!(sent < 1000, "it is never held up");
        }
        peer.set_nonblocking(false).unwrap();
        let writer = std::thread::spawn(move || peer.write_all(&rest).map(|()| peer));
        for n in 0..sent {
            assert_eq!(port.take()[..4], n.to_be_bytes());
        }
        drop(writer.join().unwrap().unwrap());
    }
}
