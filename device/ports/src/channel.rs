//! The connection between the engine and the thread of a port: two bounded rings of frames, and the wake-ups.
//!
//! Each ring has one producer and one consumer, so neither side takes a lock or allocates. A frame lies in a ring as on QEMU's
//! socket: its length in four octets, big-endian, then the frame without FCS. A frame that does not fit is refused as a whole;
//! whether that loses it or holds up its sender is the decision of the producer.
//!
//! Neither side waits for the other. The engine polls; a port's thread sleeps in poll(2), and stores in [`Bell`] the
//! events for which it waits. Of two threads that each store and then load, with a full barrier between, at least one
//! sees the other's store: either the thread finds the frame in its last look, or the engine finds the thread waiting.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest frame that a port passes, in octets without FCS: 64 KiB of IP and the headers in front of it.
pub const MAX_FRAME: usize = (64 << 10) + 64;

/// Size of a ring in octets.
const RING: usize = 1 << 20;

/// Octets of the length in front of a frame.
const LENGTH: usize = 4;

/// Puts frames into a ring.
#[derive(Debug)]
pub struct FrameSender(Producer<u8>);

impl FrameSender {
    /// Appends a frame. Returns false if there is no room for it, or it is longer than [`MAX_FRAME`].
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let Ok(length) = u32::try_from(frame.len()) else {
            return false;
        };
        if frame.len() > MAX_FRAME {
            return false;
        }
        let Ok(mut chunk) = self.0.write_chunk(LENGTH.saturating_add(frame.len())) else {
            return false;
        };
        let (first, second) = chunk.as_mut_slices();
        let octets = length.to_be_bytes();
        let mut to = first.iter_mut().chain(second.iter_mut());
        for (to, from) in to.by_ref().zip(octets) {
            *to = from;
        }
        // The rest in at most two copies.
        let in_first = first.len().saturating_sub(LENGTH).min(frame.len());
        let (head, tail) = frame.split_at(in_first);
        if let Some(to) = first.get_mut(LENGTH..LENGTH.saturating_add(in_first)) {
            to.copy_from_slice(head);
        }
        let skipped = second.len().saturating_sub(tail.len());
        if let Some(to) = second.get_mut(skipped..) {
            to.copy_from_slice(tail);
        }
        chunk.commit_all();
        true
    }

    /// True if half of the ring is free.
    fn has_half_of_room(&self) -> bool {
        self.0.slots() >= self.0.buffer().capacity() / 2
    }

    /// True if three quarters of the ring are free.
    fn has_most_of_room(&self) -> bool {
        let capacity = self.0.buffer().capacity();
        self.0.slots() >= capacity.saturating_sub(capacity / 4)
    }

    /// True if a frame of any length fits.
    pub fn has_room(&self) -> bool {
        self.0.slots() >= LENGTH.saturating_add(MAX_FRAME)
    }
}

/// Takes frames from a ring.
#[derive(Debug)]
pub struct FrameReceiver(Consumer<u8>);

impl FrameReceiver {
    /// Appends the next frame to `buffer`. Returns its length; `None` if there is none.
    pub fn pop(&mut self, buffer: &mut Vec<u8>) -> Option<usize> {
        let head = self.0.read_chunk(LENGTH).ok()?;
        let mut octets = [0; LENGTH];
        for (to, from) in octets.iter_mut().zip(head) {
            *to = from;
        }
        // The producer publishes length and frame together.
        let length = usize::try_from(u32::from_be_bytes(octets)).ok()?;
        let chunk = self.0.read_chunk(length).ok()?;
        let (first, second) = chunk.as_slices();
        buffer.extend_from_slice(first);
        buffer.extend_from_slice(second);
        chunk.commit_all();
        Some(length)
    }

    /// Copies the first octets of the next frame, which stays there, as many as `first` has room for. Returns their number; `None`
    /// if there is no frame.
    pub fn peek(&mut self, first: &mut [u8]) -> Option<usize> {
        let available = self.0.slots().min(LENGTH.saturating_add(first.len()));
        let chunk = self.0.read_chunk(available).ok()?;
        // Without a commit they stay in the ring.
        let (one, two) = chunk.as_slices();
        let mut octets = one.iter().chain(two).copied();
        let mut next = || octets.next();
        let length = u32::from_be_bytes([next()?, next()?, next()?, next()?]);
        let length = usize::try_from(length).ok()?.min(first.len());
        for (to, from) in first.iter_mut().take(length).zip(octets) {
            *to = from;
        }
        Some(length)
    }

    /// True if there is no frame.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if three quarters of the ring are free.
    fn has_most_of_room(&self) -> bool {
        self.0.slots() <= self.0.buffer().capacity() / 4
    }
}

/// Events for which a port's thread waits, apart from its own descriptors.
const FRAMES: u8 = 1;
const ROOM: u8 = 2;

/// Wakes the thread of a port, and has the flag that the engine wants to be woken.
#[derive(Debug)]
pub struct Bell {
    waits_for: AtomicU8,
    /// The engine waits until three quarters of the ring to the port are free.
    engine_waits: AtomicBool,
    /// Engine ends that have not stopped the thread.
    running: AtomicUsize,
    event: OwnedFd,
}

impl Bell {
    fn new(engine_ends: usize) -> std::io::Result<Self> {
        Ok(Self {
            waits_for: AtomicU8::new(0),
            engine_waits: AtomicBool::new(false),
            running: AtomicUsize::new(engine_ends),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Makes the thread end. If it has rings of several engines, it ends when it was called for each.
    pub fn stop(&self) {
        let one_less = |running: usize| running.checked_sub(1);
        // Fails if it was stopped already.
        let _ = self
            .running
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        self.ring();
    }

    /// True after [`Bell::stop`].
    pub fn is_stopped(&self) -> bool {
        self.running.load(Ordering::Acquire) == 0
    }

    /// Waits until one of `fds` is ready, an engine rings for `what`, or the time in milliseconds is over. Does not
    /// wait if `is_ready` returns true after the events of the wait were stored.
    fn wait<const N: usize>(
        &self,
        fds: [(BorrowedFd<'_>, PollFlags); N],
        what: u8,
        is_ready: impl FnOnce() -> bool,
        timeout_ms: Option<u32>,
    ) -> [PollFlags; N] {
        self.waits_for.store(what, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut polled: Vec<PollFd<'_>> = fds
            .iter()
            .map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        polled.push(PollFd::new(&self.event, PollFlags::IN));
        let timeout = match is_ready() {
            true => Some(0),
            false => timeout_ms,
        };
        let timeout = timeout.map(|ms| Timespec {
            tv_sec: i64::from(ms / 1000),
            tv_nsec: i64::from(ms % 1000).saturating_mul(1_000_000),
        });
        // An interrupted wait is one without result.
        let _ = poll(&mut polled, timeout.as_ref());
        self.waits_for.store(0, Ordering::Relaxed);
        let mut counter = [0; 8];
        let _ = rustix::io::read(self.event.as_fd(), &mut counter);
        let mut results = [PollFlags::empty(); N];
        for (result, polled) in results.iter_mut().zip(&polled) {
            *result = polled.revents();
        }
        results
    }

    fn ring(&self) {
        // If the counter is full, the thread wakes anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn ring_for(&self, what: u8) {
        fence(Ordering::SeqCst);
        if self.waits_for.load(Ordering::Relaxed) & what != 0 {
            self.waits_for.fetch_and(!what, Ordering::Relaxed);
            self.ring();
        }
    }
}

/// The state of a port for observers, which both sides update.
#[derive(Debug, Default)]
pub struct PortStatus {
    /// There is a peer. A port that needs none, such as a TAP device, always has one.
    pub is_connected: AtomicBool,
    /// Peers since the start.
    pub connections: AtomicU64,
    /// Frames of the peer that the system has lost because the engine took frames too slowly. Only a TAP device has
    /// such a peer.
    pub lost: AtomicU64,
    /// Frames to the peer that were lost because the system or the peer took none.
    pub not_sent: AtomicU64,
    /// Connections that were closed because of invalid octets, refused frames of a guest or of a TAP device, and
    /// refused rings of a guest.
    pub malformed: AtomicU64,
}

impl PortStatus {
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_connected(&self, is_connected: bool) {
        if is_connected {
            Self::count(&self.connections);
        }
        self.is_connected.store(is_connected, Ordering::Relaxed);
    }
}

/// The engine's end.
#[derive(Debug)]
pub struct EngineEnd {
    to_port: FrameSender,
    /// Octets that were written into that ring since the start, with the lengths of frames.
    sent: u64,
    from_port: FrameReceiver,
    bell: Arc<Bell>,
    status: Arc<PortStatus>,
    has_sent: bool,
    has_taken: bool,
}

impl EngineEnd {
    /// Passes a frame to the port. Returns false if its ring is full: the frame is lost, as on a wire.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let fits = self.to_port.push(frame);
        if fits {
            self.has_sent = true;
            let octets = LENGTH.saturating_add(frame.len()) as u64;
            self.sent = self.sent.saturating_add(octets);
        }
        fits
    }

    /// True if half of the ring to the port is free.
    pub fn has_half_of_room(&self) -> bool {
        self.to_port.has_half_of_room()
    }

    /// True if three quarters of the ring to the port are free.
    pub fn has_most_of_room(&self) -> bool {
        self.to_port.has_most_of_room()
    }

    /// A quarter of the ring to the port, in octets.
    pub fn quarter(&self) -> u64 {
        (self.to_port.0.buffer().capacity() / 4) as u64
    }

    /// Octets that the port's thread has taken from its ring since the start, with the lengths of frames.
    pub fn taken(&self) -> u64 {
        let ring = &self.to_port.0;
        let waiting = ring.buffer().capacity().saturating_sub(ring.slots());
        self.sent.saturating_sub(waiting as u64)
    }

    /// Makes the port's thread wake the engine when three quarters of the ring to the port are free, until this is called with `false`. The
    /// engine looks for room once more, behind a full barrier, before it sleeps.
    pub fn await_room(&self, waits: bool) {
        self.bell.engine_waits.store(waits, Ordering::Relaxed);
    }

    /// Takes the next frame of the peer into `buffer`, which is emptied first. Returns false if there is none.
    pub fn take(&mut self, buffer: &mut Vec<u8>) -> bool {
        buffer.clear();
        let is_there = self.from_port.pop(buffer).is_some();
        self.has_taken |= is_there;
        is_there
    }

    /// Copies the first octets of the next frame of the peer, which stays there, as many as `first` has room for. Returns their
    /// number; `None` if there is no frame.
    pub fn peek(&mut self, first: &mut [u8]) -> Option<usize> {
        self.from_port.peek(first)
    }

    /// True if there is a frame of the peer.
    pub fn has_frame(&self) -> bool {
        !self.from_port.is_empty()
    }

    /// Wakes the port's thread if it waits for events that the engine has caused since the last call. Costs a system
    /// call, so it is called once for many frames.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.has_sent) {
            self.bell.ring_for(FRAMES);
        }
        if std::mem::take(&mut self.has_taken) {
            self.bell.ring_for(ROOM);
        }
    }

    /// The state of the port.
    pub fn status(&self) -> &PortStatus {
        &self.status
    }

    /// The bell that stops the thread at the other end.
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }
}

/// The end of the port's thread, which
///
/// - sets in [`PortStatus`] whether there is a peer: frames to a port without one are dropped;
/// - takes frames in turns of limited length, with [`PortEnd::flush`] after each turn: queue pairs that wait for room
///   continue then;
/// - sleeps in [`PortEnd::wait`] only, and ends when [`PortEnd::is_stopped`] is true.
pub struct PortEnd {
    from_engine: FrameReceiver,
    to_engine: FrameSender,
    bell: Arc<Bell>,
    status: Arc<PortStatus>,
    /// Wakes the engine if it sleeps; includes the barrier before it looks.
    wake_engine: Box<dyn Fn() + Send>,
    has_sent: bool,
    has_taken: bool,
}

impl fmt::Debug for PortEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortEnd").finish_non_exhaustive()
    }
}

impl PortEnd {
    /// Passes a frame of the peer to the engine. Returns false if the ring is full.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let fits = self.to_engine.push(frame);
        self.has_sent |= fits;
        fits
    }

    /// Appends the next frame of the engine to `buffer`. Returns its length; `None` if there is none.
    pub fn take(&mut self, buffer: &mut Vec<u8>) -> Option<usize> {
        let length = self.from_engine.pop(buffer);
        self.has_taken |= length.is_some();
        length
    }

    /// True if a frame of any length fits.
    pub fn has_room(&self) -> bool {
        self.to_engine.has_room()
    }

    /// Wakes the engine if it has not seen the frames sent since the last call, or if it waits for room that was made.
    pub fn flush(&mut self) {
        let is_awaited = std::mem::take(&mut self.has_taken) && self.has_made_room();
        if std::mem::take(&mut self.has_sent) || is_awaited {
            (self.wake_engine)();
        }
    }

    /// True if the engine waits for room and there is room now.
    fn has_made_room(&self) -> bool {
        fence(Ordering::SeqCst);
        self.bell.engine_waits.load(Ordering::Relaxed) && self.from_engine.has_most_of_room()
    }

    /// The bell that stops the thread of this end.
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// True if the thread must end.
    pub fn is_stopped(&self) -> bool {
        self.bell.is_stopped()
    }

    /// The state of the port.
    pub fn status(&self) -> &PortStatus {
        &self.status
    }

    /// Waits until one of `fds` is ready, the engine has a frame (if `for_frames`) or has made room (if `for_room`), the thread
    /// must end, or the time in milliseconds is over. Results are in `fds`.
    pub fn wait<const N: usize>(
        &self,
        fds: [(BorrowedFd<'_>, PollFlags); N],
        (for_frames, for_room): (bool, bool),
        timeout_ms: Option<u32>,
    ) -> [PollFlags; N] {
        let what = if for_frames { FRAMES } else { 0 } | if for_room { ROOM } else { 0 };
        let is_ready = || {
            for_frames && !self.from_engine.is_empty()
                || for_room && self.has_room()
                || self.is_stopped()
        };
        self.bell.wait(fds, what, is_ready, timeout_ms)
    }
}

/// Rings of several engines, whose frames one thread takes.
#[derive(Debug)]
pub struct EnginesEnd {
    /// By engine.
    rings: Vec<FrameReceiver>,
    bell: Arc<Bell>,
}

/// Makes the ends of `count` rings of `octets` octets. Only engines send frames through them.
///
/// # Errors
///
/// The error of eventfd(2).
pub fn from_engines(engines: usize, ring: usize) -> std::io::Result<(Vec<EngineEnd>, EnginesEnd)> {
    let bell = Arc::new(Bell::new(engines)?);
    let (ends, rings) = (0..engines)
        .map(|_| {
            let (to_port, from_engine) = RingBuffer::new(ring);
            let (_, from_port) = RingBuffer::new(0);
            let end = EngineEnd {
                to_port: FrameSender(to_port),
                sent: 0,
                from_port: FrameReceiver(from_port),
                bell: Arc::clone(&bell),
                status: Arc::default(),
                has_sent: false,
                has_taken: false,
            };
            (end, FrameReceiver(from_engine))
        })
        .unzip();
    Ok((ends, EnginesEnd { rings, bell }))
}

impl EnginesEnd {
    /// The rings, by engine.
    pub fn rings(&mut self) -> &mut [FrameReceiver] {
        &mut self.rings
    }

    /// True if all engines have stopped the thread.
    pub fn is_stopped(&self) -> bool {
        self.bell.is_stopped()
    }

    /// Waits until an engine has a frame, or the thread must end.
    pub fn wait(&self) {
        let is_ready = || self.is_stopped() || self.rings.iter().any(|ring| !ring.is_empty());
        self.bell.wait([], FRAMES, is_ready, None);
    }
}

/// Makes both ends of a port. `wake_engine` wakes the engine if it sleeps; it must begin with a full barrier.
///
/// # Errors
///
/// The error of eventfd(2).
pub fn pair(wake_engine: impl Fn() + Send + 'static) -> std::io::Result<(EngineEnd, PortEnd)> {
    let (to_port, from_engine) = RingBuffer::new(RING);
    let (to_engine, from_port) = RingBuffer::new(RING);
    let bell = Arc::new(Bell::new(1)?);
    let status = Arc::new(PortStatus::default());
    let engine = EngineEnd {
        to_port: FrameSender(to_port),
        sent: 0,
        from_port: FrameReceiver(from_port),
        bell: Arc::clone(&bell),
        status: Arc::clone(&status),
        has_sent: false,
        has_taken: false,
    };
    let port = PortEnd {
        from_engine: FrameReceiver(from_engine),
        to_engine: FrameSender(to_engine),
        bell,
        status,
        wake_engine: Box::new(wake_engine),
        has_sent: false,
        has_taken: false,
    };
    Ok((engine, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_all_lengths_pass_in_order_across_the_end_of_the_ring() {
        let (mut engine, mut port) = pair(|| {}).unwrap();
        let frame = |n: usize| -> Vec<u8> {
            (0..(n * 7919) % (MAX_FRAME + 1))
                .map(|at| (at ^ n) as u8)
                .collect()
        };
        let mut buffer = Vec::new();
        let (mut sent, mut taken) = (0, 0);
        while taken < 400 {
            while engine.send(&frame(sent)) {
                sent += 1;
            }
            assert!(sent > taken, "a ring takes at least one frame");
            while taken < sent {
                let mut first = [0; 18];
                let seen = port.from_engine.peek(&mut first).unwrap();
                assert_eq!(seen, frame(taken).len().min(first.len()));
                assert_eq!(first[..seen], frame(taken)[..seen]);
                buffer.clear();
                assert_eq!(port.take(&mut buffer), Some(frame(taken).len()));
                assert!(buffer == frame(taken), "frame {taken}");
                taken += 1;
            }
            assert_eq!(port.take(&mut buffer), None);
            assert_eq!(port.from_engine.peek(&mut [0; 18]), None);
        }
    }

    #[test]
    fn a_frame_without_room_is_refused_as_a_whole() {
        let (mut engine, mut port) = pair(|| {}).unwrap();
        assert!(!engine.send(&vec![0; MAX_FRAME + 1]));
        let frame = vec![7; 60_000];
        let count = (0..).take_while(|_| port.send(&frame)).count();
        assert_eq!(count, RING / (frame.len() + LENGTH));
        assert!(!port.has_room());
        let mut buffer = Vec::new();
        for _ in 0..count {
            assert!(engine.take(&mut buffer));
            assert_eq!(buffer, frame);
        }
        assert!(!engine.take(&mut buffer));
        assert!(port.has_room());
    }

    /// Each engine wakes the thread, which ends when both have stopped it, and has taken all frames then.
    #[test]
    fn a_thread_takes_the_frames_of_several_engines() {
        let (mut engines, mut end) = from_engines(2, 1 << 16).unwrap();
        let thread = std::thread::spawn(move || {
            let mut taken = [0u32; 2];
            let mut buffer = Vec::new();
            loop {
                let is_stopped = end.is_stopped();
                for (engine, ring) in end.rings().iter_mut().enumerate() {
                    while ring.pop(&mut buffer).is_some() {
                        assert_eq!(buffer, [taken[engine] as u8; 9]);
                        taken[engine] += 1;
                        buffer.clear();
                    }
                }
                if is_stopped {
                    return taken;
                }
                end.wait();
            }
        });
        for n in 0..200u8 {
            for engine in &mut engines {
                while !engine.send(&[n; 9]) {
                    std::thread::yield_now();
                }
                engine.flush();
            }
        }
        engines[0].bell().stop();
        assert!(engines[1].send(&[200; 9]));
        engines[1].flush();
        engines[1].bell().stop();
        assert_eq!(thread.join().unwrap(), [200, 201]);
    }

    #[test]
    fn an_engine_that_waits_for_room_is_woken() {
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let wake = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let (mut engine, mut port) = pair(wake).unwrap();
        let frame = vec![7; RING / 16];
        let mut buffer = Vec::new();
        let mut take = |port: &mut PortEnd| {
            buffer.clear();
            assert!(port.take(&mut buffer).is_some());
            port.flush();
            woken.load(Ordering::Relaxed)
        };
        for round in 1..4 {
            // With their lengths.
            assert_eq!((0..).take_while(|_| engine.send(&frame)).count(), 15);
            assert!(!engine.has_half_of_room());
            engine.await_room(true);
            for _ in 0..11 {
                assert_eq!(take(&mut port), round - 1);
            }
            assert_eq!(take(&mut port), round);
            assert!(engine.has_most_of_room());
            engine.await_room(false);
            for _ in 0..3 {
                assert_eq!(take(&mut port), round, "it does not wait any more");
            }
        }
    }

    /// The thread sleeps without a time limit; each frame, and room, wakes it.
    #[test]
    fn a_waiting_thread_is_woken_for_frames_for_room_and_at_the_end() {
        let (mut engine, mut port) = pair(|| {}).unwrap();
        let frame = vec![1; 60_000];
        while port.send(&frame) {}
        let bell = port.bell();
        let thread = std::thread::spawn(move || {
            let mut buffer = Vec::new();
            let mut frames = 0;
            while frames < 1000 {
                port.wait([], (true, false), None);
                while port.take(&mut buffer).is_some() {
                    frames += 1;
                    buffer.clear();
                }
            }
            while !port.has_room() {
                port.wait([], (false, true), None);
            }
            while !port.is_stopped() {
                port.wait([], (true, true), None);
            }
        });
        for n in 0..1000 {
            while !engine.send(&[n as u8; 100]) {
                std::thread::yield_now();
            }
            engine.flush();
        }
        let mut buffer = Vec::new();
        for _ in 0..3 {
            assert!(engine.take(&mut buffer));
        }
        engine.flush();
        bell.stop();
        thread.join().unwrap();
    }
}
