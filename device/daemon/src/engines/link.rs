//! The links between the engines of a process.
//!
//! Each engine has a link to each other one: a bounded ring of owned frames with one producer and one consumer
//! ([`faultline_ports::owned`]). A frame on it has the typed headers that the NIC has made. Its payload was copied from
//! the memory of the sender's guest into memory of the link, so a frame on a link refers to no guest's memory. The
//! receiving engine has that memory in place of the memory of the sender's guest, and delivers the frame like a frame
//! of its own NICs.
//!
//! # Back-pressure
//!
//! A link is *full* while the frames or octets on it reach a mark. The port whose frame has reached the mark sends
//! nothing until the other engine has taken frames. Other ports of its engine continue, also those that send to other
//! NICs of the engine. Each port can exceed the mark by one frame, for which there is room, so no frame is lost. An
//! engine takes frames from its links whether its own links are full or not, so two engines with full links between
//! them do not wait for each other.

use std::sync::Arc;

use faultline_fabric::PortId;
use faultline_memory::{PAGE_SIZE, Rights, SharedPages};
use faultline_nic::{Dma, DmaError, Instant, Origin, Segment, TxFrame};
use faultline_ports::channel::MAX_FRAME;
use faultline_ports::owned::{self, FrameIn, FrameOut};

use crate::engines::handle::Waker;
use crate::log::diagnostics::NicLog;
use crate::nic::ram::Ram;

/// Frames and octets of payload in flight from which a link is full: a few turns of a NIC.
const MARK_FRAMES: usize = 128;
const MARK_OCTETS: usize = 128 << 10;
/// Memory for the payload of one frame, in pages.
const PAGES: usize = MAX_FRAME.div_ceil(PAGE_SIZE);

/// Contents of a frame on a link besides its headers.
#[derive(Debug)]
pub(crate) enum Contents {
    /// A frame of a NIC, with typed headers.
    Typed,
    /// This number of octets in the memory of the link.
    Octets(Origin, usize),
}

/// A frame on a link.
#[derive(Debug)]
pub(crate) struct LinkFrame {
    /// The port of the switch at which it has come in.
    pub(crate) from: PortId,
    /// The queue pair that has sent it; 0: not known.
    pub(crate) sender: u32,
    /// The device clock when it was sent.
    pub(crate) at: Instant,
    pub(crate) contents: Contents,
    /// Headers, and where the payload is in the memory of the link.
    pub(crate) frame: TxFrame,
    /// Address of its part of this memory.
    place: u64,
}

impl LinkFrame {
    /// Octets in the memory of the link.
    fn octets(&self) -> usize {
        match self.contents {
            Contents::Typed => self.frame.payload_len,
            Contents::Octets(_, length) => length,
        }
    }

    /// Makes it a copy of a frame of a NIC, whose payload is copied from `from` into `to`.
    fn copy(&mut self, frame: &TxFrame, from: &Ram, to: &Ram) -> Result<(), DmaError> {
        let mut at = self.place;
        for segment in &frame.payload {
            let length = usize::try_from(segment.len).unwrap_or(usize::MAX);
            to.copy_from(at, from, segment.addr, length)?;
            at = at.saturating_add(u64::from(segment.len));
        }
        let copy = &mut self.frame;
        copy.kind.clone_from(&frame.kind);
        copy.payload.clear();
        if let Ok(len @ 1..) = u32::try_from(frame.payload_len) {
            let addr = self.place;
            copy.payload.push(Segment { addr, len });
        }
        copy.payload_len = frame.payload_len;
        copy.packets = frame.packets;
        copy.targets.clone_from(&frame.targets);
        copy.own.clone_from(&frame.own);
        self.contents = Contents::Typed;
        Ok(())
    }
}

/// The end of a link that sends.
#[derive(Debug)]
pub(crate) struct LinkOut {
    ring: FrameOut<LinkFrame>,
    memory: Ram,
    /// Octets in flight.
    octets: usize,
}

/// The end of a link that receives.
#[derive(Debug)]
pub(crate) struct LinkIn {
    ring: FrameIn<LinkFrame>,
    memory: Ram,
    pages: Arc<SharedPages>,
}

/// Makes a link from an engine that can have `nics` NICs. `log` is for errors of its memory.
pub(crate) fn link(nics: usize, log: &NicLog) -> std::io::Result<(LinkOut, LinkIn)> {
    // Each NIC can exceed the mark by one frame, and all other sources of frames together by one.
    let frames = MARK_FRAMES.saturating_add(nics).saturating_add(1);
    let pages = SharedPages::new("faultline-link", frames.saturating_mul(PAGES))?;
    let pages = Arc::new(pages);
    let size = PAGES.saturating_mul(PAGE_SIZE);
    let places = (0..frames).map(|index| LinkFrame {
        from: 0,
        sender: 0,
        at: Instant(0),
        contents: Contents::Typed,
        frame: TxFrame::default(),
        place: index.saturating_mul(size) as u64,
    });
    let (out, received) = owned::ring(places);
    let out = LinkOut {
        ring: out,
        memory: map(&pages, log)?,
        octets: 0,
    };
    let received = LinkIn {
        ring: received,
        memory: map(&pages, log)?,
        pages,
    };
    Ok((out, received))
}

/// Maps the memory of a link as that of a guest is mapped.
fn map(pages: &Arc<SharedPages>, log: &NicLog) -> std::io::Result<Ram> {
    let mut ram = Ram::of_pages(log.clone(), Arc::clone(pages));
    let length = pages.pages().saturating_mul(PAGE_SIZE) as u64;
    let fd = Some(pages.dup()?);
    let mapped = ram.memory.map(0, length, fd, 0, Rights::READ_WRITE);
    mapped.map_err(std::io::Error::other)?;
    Ok(ram)
}

impl LinkOut {
    fn is_full(&self) -> bool {
        self.ring.in_flight() >= MARK_FRAMES || self.octets >= MARK_OCTETS
    }

    /// Takes frames back that the other engine has used.
    fn reclaim(&mut self) {
        while let Some(frame) = self.ring.reclaim() {
            self.octets = self.octets.saturating_sub(frame.octets());
        }
    }

    /// Sends a frame that `fill` makes in the memory of the link. Returns false if `fill` fails: the frame is lost.
    fn send(&mut self, fill: impl FnOnce(&mut LinkFrame, &Ram) -> Result<(), DmaError>) -> bool {
        // There is one for each port that may send. See `link`.
        let Some(mut frame) = self.ring.take_free() else {
            return true;
        };
        let is_filled = fill(&mut frame, &self.memory).is_ok();
        if is_filled {
            self.octets = self.octets.saturating_add(frame.octets());
            self.ring.send(frame);
        } else {
            self.ring.keep(frame);
        }
        is_filled
    }
}

impl LinkIn {
    /// The memory of the link, which the receiving engine has in place of the memory of the sender's guest.
    pub(crate) fn guest_memory(&self, log: &NicLog) -> std::io::Result<Ram> {
        map(&self.pages, log)
    }
}

/// The links of an engine.
#[derive(Debug)]
pub(crate) struct EngineLinks {
    /// Engine by port of the process: NICs, then external ports.
    owners: Arc<[usize]>,
    /// By engine, none of itself: links to the others, and from them.
    out: Vec<Option<LinkOut>>,
    received: Vec<Option<LinkIn>>,
    peers: Vec<Waker>,
    /// Engines, as bits, to which this pass has sent, or from which it has taken frames.
    used: u64,
    /// By port: engines, as bits, whose links were full when the port sent its last frame.
    held: Vec<u64>,
    /// A bit of `held` is set, or all sending is stopped.
    is_holding: bool,
    /// A request has stopped all sending to other engines.
    is_stopped: bool,
}

impl EngineLinks {
    /// The links of an engine, without any yet. `owners`: engine by port.
    pub(crate) fn new(owners: Arc<[usize]>, peers: Vec<Waker>) -> Self {
        let engines = match peers.len() {
            1 => 0,
            several => several,
        };
        Self {
            out: (0..engines).map(|_| None).collect(),
            received: (0..engines).map(|_| None).collect(),
            peers,
            used: 0,
            held: vec![0; owners.len()],
            owners,
            is_holding: false,
            is_stopped: false,
        }
    }

    /// Adds a link to another engine.
    pub(crate) fn add_out(&mut self, to: usize, end: LinkOut) {
        if let Some(out) = self.out.get_mut(to) {
            *out = Some(end);
        }
    }

    /// Adds a link from another engine.
    pub(crate) fn add_in(&mut self, from: usize, end: LinkIn) {
        if let Some(received) = self.received.get_mut(from) {
            *received = Some(end);
        }
    }

    /// True if there is no other engine.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Number of engines, if there are several.
    pub(crate) fn count(&self) -> usize {
        self.out.len()
    }

    /// Takes frames back that other engines have used, and lets ports send whose links are not full any more.
    pub(crate) fn reclaim(&mut self) {
        let mut full = 0;
        for (engine, out) in self.out.iter_mut().enumerate() {
            if let Some(out) = out {
                out.reclaim();
                if out.is_full() {
                    full |= bit(engine);
                }
            }
        }
        if self.is_holding {
            self.held.iter_mut().for_each(|held| *held &= full);
            self.is_holding = self.is_stopped || self.held.iter().any(|held| *held != 0);
        }
    }

    /// Stops all sending to other engines, or lets it continue.
    pub(crate) fn set_stopped(&mut self, is_stopped: bool) {
        self.is_stopped = is_stopped;
        self.is_holding = true;
        self.reclaim();
    }

    /// True if a port must not send now.
    #[inline]
    pub(crate) fn hold(&self, port: PortId) -> bool {
        let is_held = || self.held.get(port).is_some_and(|held| *held != 0);
        self.is_holding && (self.is_stopped || is_held())
    }

    /// True if a link is full. Sources of frames of several ports wait then.
    #[inline]
    pub(crate) fn is_any_full(&self) -> bool {
        self.is_stopped || self.out.iter().flatten().any(LinkOut::is_full)
    }

    /// Takes the next frame of another engine.
    pub(crate) fn take(&mut self, engine: usize) -> Option<Box<LinkFrame>> {
        let frame = self.received.get_mut(engine)?.as_mut()?.ring.take()?;
        self.used |= bit(engine);
        Some(frame)
    }

    /// Returns a frame of [`EngineLinks::take`] to its sender.
    pub(crate) fn give_back(&mut self, engine: usize, frame: Box<LinkFrame>) {
        if let Some(Some(link)) = self.received.get_mut(engine) {
            link.ring.give_back(frame);
        }
    }

    /// Reads the octets of a frame of [`EngineLinks::take`]. Returns false if they cannot be read.
    pub(crate) fn read_octets(
        &self,
        engine: usize,
        frame: &LinkFrame,
        length: usize,
        to: &mut Vec<u8>,
    ) -> bool {
        to.clear();
        to.resize(length, 0);
        let link = self.received.get(engine).and_then(Option::as_ref);
        link.is_some_and(|link| link.memory.read(frame.place, to).is_ok())
    }

    /// True if another engine has sent a frame.
    pub(crate) fn has_frame(&self) -> bool {
        let links = self.received.iter().flatten();
        links.into_iter().any(|link| !link.ring.is_empty())
    }

    /// True if another engine has sent a frame, or is to be woken for one.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.used != 0 || self.has_frame()
    }

    /// True if a link is full and its frames have been used.
    pub(crate) fn has_room_again(&self) -> bool {
        let mut links = self.out.iter().flatten();
        links.any(|link| link.is_full() && link.ring.has_used())
    }

    /// Makes [`EngineLinks::wake_peers`] wake all engines.
    pub(crate) fn wake_all(&mut self) {
        self.used = u64::MAX;
    }

    /// Wakes other engines for which this pass had frames, or made room.
    #[inline]
    pub(crate) fn wake_peers(&mut self) {
        let used = std::mem::take(&mut self.used);
        if used == 0 {
            return;
        }
        for (engine, peer) in self.peers.iter().enumerate() {
            if used & bit(engine) != 0 {
                peer.wake();
            }
        }
    }

    /// Sends a frame of a NIC of this engine to the engine of port `to`; `None`: to all others. `memory` is that of its guest. Returns
    /// false if the frame is lost because its payload cannot be read.
    pub(crate) fn send(
        &mut self,
        (at, from, sender): (Instant, PortId, u32),
        to: Option<PortId>,
        frame: &TxFrame,
        memory: &Ram,
    ) -> bool {
        let fill = |copy: &mut LinkFrame, ram: &Ram| {
            (copy.at, copy.from, copy.sender) = (at, from, sender);
            copy.copy(frame, memory, ram)
        };
        self.send_with(from, to, fill)
    }

    /// The same for a frame as octets, which has come in at port `from`.
    pub(crate) fn send_octets(
        &mut self,
        (at, from): (Instant, PortId),
        to: Option<PortId>,
        (origin, octets): (Origin, &[u8]),
    ) -> bool {
        let fill = |copy: &mut LinkFrame, ram: &Ram| {
            (copy.at, copy.from, copy.sender) = (at, from, 0);
            copy.contents = Contents::Octets(origin, octets.len());
            match octets.len() > MAX_FRAME {
                true => Err(DmaError { addr: copy.place }),
                false => ram.write(copy.place, octets),
            }
        };
        // A frame is lost only if it is longer than the longest frame.
        self.send_with(from, to, fill)
    }

    fn send_with(
        &mut self,
        from: PortId,
        to: Option<PortId>,
        fill: impl Fn(&mut LinkFrame, &Ram) -> Result<(), DmaError>,
    ) -> bool {
        let mut is_sent = true;
        let only = to.map(|to| self.owners.get(to).copied());
        for (engine, out) in self.out.iter_mut().enumerate() {
            let is_meant = only.is_none_or(|only| only == Some(engine));
            let Some(out) = out.as_mut().filter(|_| is_meant) else {
                continue;
            };
            is_sent &= out.send(&fill);
            self.used |= bit(engine);
            if out.is_full() {
                out.reclaim();
            }
            if out.is_full()
                && let Some(held) = self.held.get_mut(from)
            {
                *held |= bit(engine);
                self.is_holding = true;
            }
        }
        is_sent
    }
}

/// The bit of an engine, of [`MOST_ENGINES`](faultline_config::engine::MOST_ENGINES).
fn bit(engine: usize) -> u64 {
    let shift = u32::try_from(engine).unwrap_or(u32::MAX);
    1u64.checked_shl(shift).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use faultline_nic::Segments;

    use super::*;
    use crate::engines::handle;
    use crate::log::diagnostics;

    /// The links of two engines: the first has ports 0 and 1, the second has port 2.
    fn linked() -> [EngineLinks; 2] {
        let (log, _) = diagnostics::queue(&["a", "b", "c"].map(str::to_owned));
        let owners: Arc<[usize]> = Arc::new([0, 0, 1]);
        let wakers = [(); 2].map(|()| handle::pair::<()>().unwrap().0.waker());
        let mut all = [(); 2].map(|()| EngineLinks::new(Arc::clone(&owners), wakers.to_vec()));
        for (from, to) in [(0, 1), (1, 0)] {
            let (out, received) = link(3, &log.of_nic(0)).unwrap();
            all[from].add_out(to, out);
            all[to].add_in(from, received);
        }
        all
    }

    /// Guest memory of 64 KiB whose octets depend on their position.
    fn guest() -> Ram {
        let (log, _) = diagnostics::queue(&["a".to_owned()]);
        let pages = Arc::new(SharedPages::new("guest", 16).unwrap());
        let ram = map(&pages, &log.of_nic(0)).unwrap();
        let octets: Vec<u8> = (0..64 << 10).map(octet).collect();
        ram.write(0, &octets).unwrap();
        ram
    }

    fn octet(at: usize) -> u8 {
        u8::try_from(at % 251).unwrap()
    }

    /// A frame with these pieces of guest memory.
    fn frame(pieces: &[(u64, u32)]) -> TxFrame {
        let pieces = pieces.iter();
        let payload: Segments = pieces.map(|&(addr, len)| Segment { addr, len }).collect();
        TxFrame {
            payload_len: payload.iter().map(|piece| piece.len as usize).sum(),
            payload,
            ..TxFrame::default()
        }
    }

    /// Takes the next frame of the other engine, and gives it back: its port, its number, and the octets of its payload.
    fn take(links: &mut EngineLinks, engine: usize) -> Option<(PortId, u32, Vec<u8>)> {
        let taken = links.take(engine)?;
        let mut octets = vec![0; taken.frame.payload_len];
        let memory = &links.received[engine].as_ref().unwrap().memory;
        for piece in &taken.frame.payload {
            memory.read(piece.addr, &mut octets).unwrap();
        }
        let found = (taken.from, taken.sender, octets);
        links.give_back(engine, taken);
        Some(found)
    }

    #[test]
    fn payloads_are_copied_when_a_frame_is_sent() {
        let [mut a, mut b] = linked();
        let guest = guest();
        let pieces = [(5, 3), (0x3fff, 0x2002), (100, 1)];
        assert!(a.send((Instant(0), 1, 7), Some(2), &frame(&pieces), &guest));
        assert!(a.send((Instant(0), 0, 8), Some(2), &frame(&[]), &guest));
        // A payload that does not exist any more is not sent.
        assert!(!a.send((Instant(0), 0, 9), Some(2), &frame(&[(1 << 40, 4)]), &guest));
        // The guest can change its memory, and unmap it.
        guest.write(0, &[0; 64 << 10]).unwrap();
        drop(guest);
        let at = |start: usize, count: usize| (start..start + count).map(octet);
        let all: Vec<u8> = at(5, 3)
            .chain(at(0x3fff, 0x2002))
            .chain(at(100, 1))
            .collect();
        assert_eq!(take(&mut b, 0), Some((1, 7, all)));
        assert_eq!(take(&mut b, 0), Some((0, 8, vec![])));
        assert_eq!(take(&mut b, 0), None);
    }

    #[test]
    fn a_full_link_holds_up_the_port_that_has_filled_it_and_loses_nothing() {
        let [mut a, mut b] = linked();
        let (guest, frame) = (guest(), frame(&[(0, 8)]));
        let mut sent = 0;
        let mut send = |a: &mut EngineLinks, from| {
            assert!(!a.hold(from));
            assert!(a.send((Instant(0), from, sent), Some(2), &frame, &guest));
            sent += 1;
        };
        while !a.hold(0) {
            send(&mut a, 0);
        }
        assert!(a.is_any_full() && !a.hold(1), "port 1 has sent nothing");
        send(&mut a, 1);
        assert!(a.hold(1), "it is beyond the mark too");
        a.reclaim();
        assert!(a.hold(0) && a.hold(1), "nothing was taken");
        assert!(!a.has_room_again());
        // In order, and all of them.
        for number in 0..3 {
            assert_eq!(take(&mut b, 0).unwrap().1, number);
        }
        assert!(a.has_room_again());
        a.reclaim();
        assert!(!a.hold(0) && !a.hold(1) && !a.is_any_full());
        while !a.hold(0) {
            send(&mut a, 0);
        }
        let rest: Vec<u32> = std::iter::from_fn(|| take(&mut b, 0))
            .map(|taken| taken.1)
            .collect();
        assert_eq!(rest, (3..sent).collect::<Vec<u32>>());
        // The other direction has a ring of its own.
        assert!(b.send((Instant(0), 2, 5), None, &frame, &guest));
        assert_eq!(take(&mut a, 1).map(|taken| taken.0), Some(2));
    }

    #[test]
    fn long_frames_fill_a_link_by_their_octets() {
        let [mut a, mut b] = linked();
        let (guest, long) = (guest(), frame(&[(0, 16 << 10)]));
        let mut sent = 0;
        while !a.hold(0) {
            assert!(a.send((Instant(0), 0, 0), Some(2), &long, &guest));
            sent += 1;
        }
        assert_eq!(sent, MARK_OCTETS >> 14);
        while let Some((_, _, octets)) = take(&mut b, 0) {
            assert!(octets.iter().copied().eq((0..16 << 10).map(octet)));
        }
        a.reclaim();
        assert!(!a.hold(0));
    }

    #[test]
    fn octets_of_all_lengths_pass() {
        let [mut a, mut b] = linked();
        for length in [1, 60, 4096, MAX_FRAME] {
            let octets: Vec<u8> = (0..length).map(octet).collect();
            a.send_octets((Instant(3), 0), Some(2), (Origin::Faultline, &octets));
            let taken = b.take(0).unwrap();
            let Contents::Octets(Origin::Faultline, taken_length) = taken.contents else {
                panic!("{taken:?}");
            };
            let mut read = Vec::new();
            assert!(b.read_octets(0, &taken, taken_length, &mut read));
            assert_eq!((read, taken.at), (octets, Instant(3)));
            b.give_back(0, taken);
            a.reclaim();
        }
        a.send_octets(
            (Instant(3), 0),
            Some(2),
            (Origin::Unknown, &[0; MAX_FRAME + 1]),
        );
        assert!(b.take(0).is_none() && !a.is_any_full());
    }
}
