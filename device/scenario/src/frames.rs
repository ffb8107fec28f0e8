//! Frames that rules have taken: changed, and kept for later.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use faultline_nic::{Instant, Nanos, Origin};
use faultline_wire::ip::CONGESTION_EXPERIENCED;
use faultline_wire::packet::{RoceHeader, parse, seal};

use crate::action::Part;
use crate::plan::{ChangeKind, PacketChange};
use crate::random::Rng;
use crate::trigger::Direction;

/// Most octets that are kept. A frame beyond that is dropped, as at a full queue of a switch.
const MAX_BYTES: usize = 16 << 20;
/// A frame that waits for others to overtake it is passed after this time, if they do not come.
const OVERTAKING: Nanos = Nanos(10_000_000);
/// Most frames that wait for others to overtake them: each frame that is passed looks at all of them.
const MAX_OVERTAKEN: usize = 64;

/// A change of a packet by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taking {
    /// Index of the rule; with [`LIVE`]: the number of a live rule.
    pub rule: usize,
    /// What it does.
    pub change: PacketChange,
}

impl Taking {
    /// The mark of the changed frames.
    pub fn by(self) -> ByRule {
        ByRule {
            rule: u16::try_from(self.rule).unwrap_or(u16::MAX),
            kind: self.change.kind(),
        }
    }
}

/// The change of a frame by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByRule {
    /// Index of the rule in the scenario; with [`LIVE`]: the number of a live rule.
    pub rule: u16,
    /// The kind of the change.
    pub kind: ChangeKind,
}

/// Added to the number of a live rule where rules of a scenario have their index.
pub const LIVE: u16 = 0x8000;

/// The name of the rule.
impl fmt::Display for ByRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule & LIVE {
            0 => write!(f, "rule[{}] of the scenario", self.rule),
            _ => write!(f, "live rule {}", self.rule & !LIVE),
        }
    }
}

/// A frame on its way: octets from the Ethernet header to the iCRC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldFrame {
    /// The place of the rule that has taken it: the index of the NIC, or the number of NICs and the index of the port.
    pub site: usize,
    /// Its direction there. At a NIC, `Tx` continues to the switch and `Rx` to the NIC; at a port, `Tx` continues to
    /// the peer and `Rx` to the switch.
    pub dir: Direction,
    /// The last rule that has changed it, or the one that has spoilt it.
    pub by: Option<ByRule>,
    /// The known origin of the frame.
    pub origin: Origin,
    /// Data of the caller about the frame.
    pub note: u8,
    /// Octets, without FCS.
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
struct Overtaken {
    by: u32,
    until: Instant,
    frame: HeldFrame,
}

/// Frames that are kept.
#[derive(Debug, Default)]
pub(crate) struct HeldFrames {
    /// By time, then in the order in which they came.
    delayed: BinaryHeap<Reverse<(Instant, u64, HeldFrame)>>,
    overtaken: Vec<Overtaken>,
    count: u64,
    bytes: usize,
    /// Frames that were dropped for lack of room.
    pub(crate) dropped: u64,
    /// Frames that were passed at once because too many others waited to be overtaken.
    pub(crate) not_reordered: u64,
}

impl HeldFrames {
    /// Changes a frame. [`HeldFrames::pop`] returns the results, at `now` or later.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        change: PacketChange,
        mut frame: HeldFrame,
        random: &mut Rng,
    ) {
        match change {
            PacketChange::Drop => return,
            PacketChange::Delay(by) => return self.keep(now + by, frame),
            PacketChange::Reorder(by) => return self.let_overtake(now, by, frame),
            PacketChange::Duplicate => self.keep(now, frame.clone()),
            PacketChange::Corrupt(part) => corrupt(&mut frame.bytes, part, random),
            PacketChange::Truncate(len) => frame.bytes.truncate(usize::from(len)),
            PacketChange::EcnMark => rewrite(&mut frame.bytes, |header| {
                header.ip.set_ecn(CONGESTION_EXPERIENCED);
            }),
            PacketChange::MigReq(value) => rewrite(&mut frame.bytes, |header| {
                header.bth.migration = value;
            }),
        }
        self.keep(now, frame);
    }

    /// A frame that no rule has taken is passed: frames that wait until it has overtaken them may be due.
    #[inline]
    pub(crate) fn passed(&mut self, now: Instant, site: usize, dir: Direction) {
        if !self.overtaken.is_empty() {
            self.overtake(now, site, dir);
        }
    }

    /// True if a frame waits until others have passed it.
    pub(crate) fn waits_to_be_overtaken(&self) -> bool {
        !self.overtaken.is_empty()
    }

    fn overtake(&mut self, now: Instant, site: usize, dir: Direction) {
        for waiting in &mut self.overtaken {
            if (waiting.frame.site, waiting.frame.dir) == (site, dir) {
                waiting.by = waiting.by.saturating_sub(1);
                if waiting.by == 0 {
                    waiting.until = now;
                }
            }
        }
    }

    /// Takes a frame that is to be passed now.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<HeldFrame> {
        let overtaken = self
            .overtaken
            .iter()
            .position(|waiting| waiting.until <= now);
        let frame = match overtaken {
            Some(index) => self.overtaken.remove(index).frame,
            None => {
                let Reverse((due, ..)) = self.delayed.peek()?;
                if *due > now {
                    return None;
                }
                let Reverse((.., frame)) = self.delayed.pop()?;
                frame
            }
        };
        self.bytes = self.bytes.saturating_sub(frame.bytes.len());
        Some(frame)
    }

    /// When the next frame is to be passed.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let delayed = self.delayed.peek().map(|Reverse((due, ..))| *due);
        let overtaken = self.overtaken.iter().map(|waiting| waiting.until).min();
        delayed.into_iter().chain(overtaken).min()
    }

    /// All frames are due.
    pub(crate) fn release(&mut self) {
        for waiting in &mut self.overtaken {
            waiting.until = Instant(0);
        }
        let delayed = std::mem::take(&mut self.delayed).into_iter();
        self.delayed = delayed
            .map(|Reverse((_, order, frame))| Reverse((Instant(0), order, frame)))
            .collect();
    }

    fn keep(&mut self, due: Instant, frame: HeldFrame) {
        if self.has_room(&frame) {
            self.count = self.count.saturating_add(1);
            self.delayed.push(Reverse((due, self.count, frame)));
        }
    }

    fn let_overtake(&mut self, now: Instant, by: u32, frame: HeldFrame) {
        if self.overtaken.len() >= MAX_OVERTAKEN {
            self.not_reordered = self.not_reordered.saturating_add(1);
            return self.keep(now, frame);
        }
        if self.has_room(&frame) {
            let until = now + OVERTAKING;
            self.overtaken.push(Overtaken { by, until, frame });
        }
    }

    /// Takes room for a frame. Without room, the frame is counted as dropped.
    fn has_room(&mut self, frame: &HeldFrame) -> bool {
        let bytes = self.bytes.saturating_add(frame.bytes.len());
        if bytes > MAX_BYTES {
            self.dropped = self.dropped.saturating_add(1);
            return false;
        }
        self.bytes = bytes;
        true
    }
}

/// Inverts an octet. The iCRC stays, so that it is wrong.
fn corrupt(bytes: &mut [u8], part: Part, random: &mut Rng) {
    let parsed = parse(bytes);
    let is_roce = parsed.is_ok();
    let (headers, payload) = match parsed {
        Ok(parsed) => {
            let payload = parsed.payload.len();
            let end = parsed.header.header_len();
            let start = end.saturating_sub(parsed.header.transport_len());
            (start..end, end..end.saturating_add(payload))
        }
        // Not RoCE: everything after the addresses.
        Err(_) => (12..bytes.len(), 12..bytes.len()),
    };
    let range = match part {
        Part::Payload if !payload.is_empty() => payload,
        Part::Payload | Part::Header => headers,
    };
    // The iCRC covers each octet but this one of the BTH (resv8a, IBTA annex A17): to invert it would be without effect.
    let resv8a = range.start.saturating_add(4);
    let covered: Vec<usize> = range.filter(|at| !is_roce || *at != resv8a).collect();
    let choice = usize::try_from(random.below(covered.len() as u64)).ok();
    let at = choice.and_then(|choice| covered.get(choice).copied());
    if let Some(byte) = at.and_then(|at| bytes.get_mut(at)) {
        *byte = !*byte;
    }
}

/// Changes headers of a RoCE packet; checksum and iCRC are right afterwards. Other frames stay as they are.
fn rewrite(bytes: &mut [u8], change: impl FnOnce(&mut RoceHeader)) {
    let Ok(parsed) = parse(bytes) else {
        return;
    };
    let (mut header, payload) = (parsed.header, parsed.payload.len());
    change(&mut header);
    if header.emit(payload, bytes).is_ok() {
        let _ = seal(bytes);
    }
}

/// A SEND with five bytes of payload, for tests.
#[cfg(test)]
pub(crate) fn packet_of_test(psn: u32) -> Vec<u8> {
    use faultline_wire::{Bth, Ip, Ipv4, MacAddr, Opcode, Psn};

    let ip = Ipv4 {
        src: [10, 0, 0, 1],
        dst: [10, 0, 0, 2],
        ttl: 64,
        dont_fragment: true,
        ..Ipv4::default()
    };
    let bth = Bth::new(Opcode::RcSendOnly, 7, Psn::new(psn));
    let header = RoceHeader::new(MacAddr([2; 6]), MacAddr([4; 6]), Ip::V4(ip), bth);
    let payload = [1, 2, 3, 4, 5];
    let mut bytes = vec![0; header.frame_len(payload.len())];
    let at = header.emit(payload.len(), &mut bytes).unwrap();
    bytes[at..at + 5].copy_from_slice(&payload);
    seal(&mut bytes).unwrap();
    bytes
}

#[cfg(test)]
mod tests {
    use super::packet_of_test as packet;
    use super::*;

    fn frame(psn: u32) -> HeldFrame {
        HeldFrame {
            site: 0,
            dir: Direction::Tx,
            by: None,
            origin: Origin::Faultline,
            note: 0,
            bytes: packet(psn),
        }
    }

    fn changed(change: PacketChange) -> (Vec<u8>, Vec<u8>) {
        let (mut held, mut random) = (HeldFrames::default(), Rng::new(1));
        held.take(Instant(5), change, frame(1), &mut random);
        let out = held.pop(Instant(5)).expect("at once");
        assert_eq!(held.pop(Instant(u64::MAX)), None);
        assert_eq!(held.bytes, 0);
        (packet(1), out.bytes)
    }

    #[test]
    fn a_corrupt_packet_has_one_wrong_octet_in_its_part() {
        for (part, place) in [(Part::Header, 42..54), (Part::Payload, 54..59)] {
            let (before, after) = changed(PacketChange::Corrupt(part));
            let differs = |at: &usize| before[*at] != after[*at];
            let wrong: Vec<usize> = (0..before.len()).filter(differs).collect();
            assert_eq!(wrong.len(), 1);
            assert!(place.contains(&wrong[0]), "{part:?}: {wrong:?}");
        }
    }

    /// An octet that the iCRC does not cover would be accepted as it is.
    #[test]
    fn every_corrupt_packet_is_noticed() {
        let mut random = Rng::new(1);
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let mut bytes = packet(1);
            corrupt(&mut bytes, Part::Header, &mut random);
            let before = packet(1);
            places.extend((0..bytes.len()).filter(|at| bytes[*at] != before[*at]));
            assert!(parse(&bytes).is_err() || !parse(&bytes).unwrap().icrc_ok);
        }
        assert_eq!(places.len(), 11, "{places:?}");
    }

    #[test]
    fn frames_beyond_those_that_can_wait_are_passed_and_counted() {
        let (mut held, mut random) = (HeldFrames::default(), Rng::new(1));
        for psn in 0..66 {
            held.take(
                Instant(5),
                PacketChange::Reorder(9),
                frame(psn),
                &mut random,
            );
        }
        assert_eq!(held.not_reordered, 2);
        assert_eq!(held.pop(Instant(5)), Some(frame(64)));
        assert_eq!(held.pop(Instant(5)), Some(frame(65)));
        assert_eq!(held.pop(Instant(5)), None);
    }

    #[test]
    fn rewritten_packets_are_valid() {
        let (_, marked) = changed(PacketChange::EcnMark);
        let marked = parse(&marked).unwrap();
        assert!(marked.icrc_ok);
        assert_eq!(marked.header.ip.ecn(), 3);
        let (before, cleared) = changed(PacketChange::MigReq(false));
        assert!(parse(&before).unwrap().header.bth.migration);
        let cleared = parse(&cleared).unwrap();
        assert!(cleared.icrc_ok && !cleared.header.bth.migration);
        let (before, short) = changed(PacketChange::Truncate(50));
        assert_eq!(before[..50], short);
    }

    #[test]
    fn a_frame_is_delayed_lost_or_there_twice() {
        let (mut held, mut random) = (HeldFrames::default(), Rng::new(1));
        held.take(
            Instant(5),
            PacketChange::Delay(Nanos(10)),
            frame(1),
            &mut random,
        );
        held.take(Instant(6), PacketChange::Drop, frame(2), &mut random);
        held.take(Instant(7), PacketChange::Duplicate, frame(3), &mut random);
        assert_eq!(held.pop(Instant(7)), Some(frame(3)));
        assert_eq!(held.pop(Instant(7)), Some(frame(3)));
        assert_eq!(held.pop(Instant(14)), None);
        assert_eq!(held.next_due(), Some(Instant(15)));
        assert_eq!(held.pop(Instant(15)), Some(frame(1)));
        assert_eq!(held.next_due(), None);
    }

    #[test]
    fn as_many_frames_overtake_another_or_it_waits_for_a_time() {
        let (mut held, mut random) = (HeldFrames::default(), Rng::new(1));
        held.take(Instant(5), PacketChange::Reorder(2), frame(1), &mut random);
        held.passed(Instant(6), 0, Direction::Tx);
        held.passed(Instant(6), 0, Direction::Rx);
        held.passed(Instant(6), 1, Direction::Tx);
        assert_eq!(held.pop(Instant(6)), None);
        held.passed(Instant(7), 0, Direction::Tx);
        assert_eq!(held.pop(Instant(7)), Some(frame(1)));
        held.take(Instant(8), PacketChange::Reorder(2), frame(2), &mut random);
        assert_eq!(held.next_due(), Some(Instant(8) + OVERTAKING));
        assert_eq!(held.pop(Instant(8) + OVERTAKING), Some(frame(2)));
    }

    #[test]
    fn kept_frames_are_bounded() {
        let (mut held, mut random) = (HeldFrames::default(), Rng::new(1));
        let large = HeldFrame {
            bytes: vec![0; 1 << 20],
            ..frame(1)
        };
        for _ in 0..20 {
            held.take(
                Instant(5),
                PacketChange::Delay(Nanos(9)),
                large.clone(),
                &mut random,
            );
        }
        assert_eq!(held.dropped, 4);
        held.release();
        let mut passed = 0;
        while held.pop(Instant(5)).is_some() {
            passed += 1;
        }
        assert_eq!((passed, held.bytes), (16, 0));
    }
}
