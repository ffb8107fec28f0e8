//! Captures of frames: what the engine copies for them, and the rings through which threads take it.
//!
//! The engine copies each frame at the interface of its sender, and again at that of each receiver. It does not wait for them: a frame that
//! does not fit into the ring of a capture is lost to this capture and counted. Without a capture the data path tests one flag at
//! each interface. [`crate::pcapng`] makes pcapng of the records.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use faultline_fabric::link_model::Effects;
use faultline_fabric::{Fate, PortId};
use faultline_nic::{Diagnostic, Dma, Instant, Nic, State, TxFrame};
use faultline_ports::channel::EngineEnd;
use faultline_scenario::packet_filter::PacketFilter;
use faultline_scenario::rules::ByRule;
use faultline_scenario::trigger::Direction;
use faultline_wire::GSI_QPN;
use faultline_wire::packet::{RoceHeader, parse_trusted};

use crate::record::{NO_LIMIT, Notice, RecordHead};
use crate::share::CaptureShare;

/// Most captures at a time. Each of them copies frames in the engine.
pub const MOST_CAPTURES: usize = 4;
/// Octets in the ring of a capture.
pub const RING: usize = 4 << 20;
/// Most octets of a frame that a capture can keep.
pub const MOST_OCTETS: usize = 65_535;
/// Octets of a frame with all headers, a MAD (IBTA 13.4.2: 256 octets) and the invariant CRC, at most.
const WITH_MAD: usize = 384;
/// RNR NAKs that are remembered until they are sent.
const MOST_REFUSALS: usize = 64;
/// Page faults that are remembered until the frame is captured that has met them.
const MOST_FAULTS: usize = 64;

/// Where a frame is seen, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The device clock.
    pub(crate) at: Instant,
    /// The interface.
    pub(crate) port: PortId,
    /// Sent or received.
    pub(crate) direction: Direction,
    /// The queue pair that has sent it; 0: not known.
    pub(crate) sender: u32,
    /// What becomes of it there.
    pub(crate) fate: Fate,
    /// What links have done to it until here.
    pub(crate) effects: Effects,
    /// What a rule has done to it, or does here.
    pub(crate) rule: Option<ByRule>,
    /// Sent: the page fault for which the packet says to wait. Received: the one that has stopped the ingress. 0: none.
    pub(crate) token: u64,
    /// Software has made it, and the NIC has only sent it: it is of a raw queue pair or of the netdev.
    pub(crate) is_raw: bool,
    /// Received: the NIC executes it later, because its ingress waits for a page fault.
    pub(crate) is_held: bool,
    /// It was seen at this interface before, and is lost only now.
    pub(crate) is_again: bool,
}

/// Which frames a capture has.
#[derive(Clone, Debug)]
pub struct CaptureFilter {
    /// By interface: it is captured.
    pub ports: Vec<bool>,
    /// Only packets to or from a queue pair of this number.
    pub qpn: Option<u32>,
    /// Only these packets.
    pub packets: Option<PacketFilter>,
    /// Octets that are kept of each frame.
    pub snaplen: usize,
    /// It is for a checker, which is told of new connections, and needs packets without gaps: after a loss nothing is captured until
    /// half of the ring is free.
    pub is_for_checker: bool,
}

impl CaptureFilter {
    fn fits(&self, seen: &Seen, header: Option<&RoceHeader>) -> bool {
        let has_qpn = |qpn| seen.sender == qpn || header.is_some_and(|h| h.bth.dest_qp == qpn);
        // A checker would take a second sight for a second transmission.
        let is_second = self.is_for_checker && seen.is_again;
        !is_second
            && self.ports.get(seen.port).copied().unwrap_or_default()
            && self.qpn.is_none_or(has_qpn)
            && self.packets.is_none_or(|filter| filter.fits(header))
    }

    /// Octets that are kept of a frame. A checker reads what the connection manager says to a general services interface.
    fn octets(&self, header: Option<&RoceHeader>) -> usize {
        let is_for_gsi = header.is_some_and(|header| header.bth.dest_qp == GSI_QPN);
        match self.is_for_checker && is_for_gsi {
            true => WITH_MAD,
            false => self.snaplen,
        }
    }
}

/// What an engine needs to take part in a capture.
#[derive(Debug)]
pub struct CaptureFeed {
    /// Number of the engine in the capture.
    pub engine: usize,
    /// The frames that are captured.
    pub filter: CaptureFilter,
    /// The engine's end of its ring.
    pub end: EngineEnd,
    /// What the engines and the reader share.
    pub share: Arc<CaptureShare>,
}

/// A capture that runs.
#[derive(Debug)]
struct Capture {
    id: u64,
    engine: usize,
    filter: CaptureFilter,
    end: EngineEnd,
    share: Arc<CaptureShare>,
    /// By interface: frames that were lost since its last record.
    lost: Vec<u32>,
    /// Losses of all engines that are before the last record.
    known_losses: u64,
    /// Time of the last loss of this engine.
    own_loss: Instant,
    /// A notice was lost since the last record.
    has_lost_notice: bool,
}

impl Capture {
    fn wants(&self, seen: &Seen, header: Option<&RoceHeader>) -> bool {
        self.share.is_running() && self.filter.fits(seen, header)
    }

    /// Puts a record into the ring. It begins with room for the head. `most`: octets of the frame that are kept.
    fn keep(&mut self, seen: &Seen, (length, most): (usize, usize), record: &mut [u8]) {
        let counts = self.share.by_interface.get(seen.port);
        let (Some(lost), Some(count)) = (self.lost.get_mut(seen.port), counts) else {
            return;
        };
        // Another engine counts what it has lost before it sends what has caused this frame.
        let (losses, last_loss) = self.share.losses();
        let is_after_loss = losses != self.known_losses;
        // One thread writes the counters of an interface.
        let add = |counter: &AtomicU64| {
            let value = counter.load(Ordering::Relaxed);
            counter.store(value.saturating_add(1), Ordering::Relaxed);
        };
        let waits = self.filter.is_for_checker && is_after_loss && !self.end.has_half_of_room();
        let head = RecordHead {
            at: seen.at.0,
            token: seen.token,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lost: *lost,
            port: u16::try_from(seen.port).unwrap_or(u16::MAX),
            is_sent: seen.direction == Direction::Tx,
            is_after_loss,
            is_after_lost_notice: self.has_lost_notice,
            notice: None,
            is_raw: seen.is_raw,
            is_held: seen.is_held,
            sender: seen.sender,
            fate: seen.fate,
            effects: seen.effects,
            rule: seen.rule,
        };
        if let Some(room) = record.first_chunk_mut() {
            *room = head.to_octets();
        }
        let most = RecordHead::LEN.saturating_add(most);
        let record = record.get(..most).unwrap_or(record);
        if !waits && self.end.send(record) {
            *lost = 0;
            self.has_lost_notice = false;
            // In the order of times, frames of another engine may be between an earlier record and its loss.
            if seen.at > last_loss || self.own_loss == last_loss {
                self.known_losses = losses;
            }
            add(&count.kept);
        } else {
            *lost = lost.saturating_add(1);
            add(&count.lost);
            self.note_loss(seen.at);
        }
    }

    fn note_loss(&mut self, at: Instant) {
        self.own_loss = self.own_loss.max(at);
        self.share.note_loss(at);
    }

    /// Tells a checker of a queue pair of a NIC. Without room for that, frames count as lost: the checker judges all connections anew, and
    /// forgets the attributes of queue pairs.
    fn notify(&mut self, at: Instant, (nic, qpn): (PortId, u32), notice: Notice, value: u32) {
        if !self.filter.is_for_checker {
            return;
        }
        let head = RecordHead {
            at: at.0,
            token: 0,
            length: value,
            lost: 0,
            port: u16::try_from(nic).unwrap_or(u16::MAX),
            is_sent: false,
            is_after_loss: false,
            is_after_lost_notice: false,
            notice: Some(notice),
            is_raw: false,
            is_held: false,
            sender: qpn,
            fate: Fate::Passed,
            effects: Effects::NONE,
            rule: None,
        };
        if !self.end.send(&head.to_octets()) {
            self.lose_notice(at);
        }
    }

    fn lose_notice(&mut self, at: Instant) {
        self.has_lost_notice = true;
        self.note_loss(at);
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.share.set_bound(self.engine, None);
        self.end.bell().stop();
    }
}

/// The captures of an engine.
#[derive(Debug, Default)]
pub struct Captures {
    running: Vec<Capture>,
    /// A record in the making.
    record: Vec<u8>,
    /// NIC, queue pair, PSN and fault of RNR NAKs that may not have been sent yet, the oldest first.
    refusals: VecDeque<(PortId, u32, u32, u64)>,
    /// NIC, queue pair, PSN and fault of missing pages since the last frame that was received.
    faults: Vec<(PortId, u32, u32, u64)>,
    /// NICs whose ingress is stopped, each with the fault.
    stalls: Vec<(PortId, u64)>,
    /// The fault that has stopped the ingress of the NIC that is about to receive; 0: none.
    pub(crate) stall_of_next: u64,
}

impl Captures {
    /// True if there is a capture.
    #[inline]
    pub fn is_on(&self) -> bool {
        !self.running.is_empty()
    }

    /// Begins a capture. Returns false if there are [`MOST_CAPTURES`].
    pub fn start(&mut self, id: u64, feed: CaptureFeed) -> bool {
        if self.running.len() >= MOST_CAPTURES {
            return false;
        }
        let most = RecordHead::LEN.saturating_add(MOST_OCTETS);
        self.record.reserve(most);
        self.refusals.reserve(MOST_REFUSALS);
        self.faults.reserve(MOST_FAULTS);
        let CaptureFeed {
            engine,
            filter,
            end,
            share,
        } = feed;
        self.running.push(Capture {
            id,
            engine,
            lost: vec![0; share.by_interface.len()],
            filter,
            end,
            known_losses: 0,
            own_loss: Instant(0),
            has_lost_notice: false,
            share,
        });
        true
    }

    /// Ends a capture: its thread takes what is in the ring, and ends. Returns false if there is no such capture.
    pub fn end(&mut self, id: u64) -> bool {
        let Some(at) = self.running.iter().position(|capture| capture.id == id) else {
            return false;
        };
        let ended = self.running.swap_remove(at);
        ended.share.end();
        self.clear_if_unused();
        true
    }

    fn clear_if_unused(&mut self) {
        if self.running.is_empty() {
            self.refusals.clear();
            self.faults.clear();
            self.stalls.clear();
        }
    }

    /// The engine begins a pass at this time, or a later one. Captures that another engine has ended end here, too.
    pub fn begin_pass(&mut self, now: Instant) {
        self.running.retain(|capture| !capture.share.has_ended());
        self.clear_if_unused();
        for capture in &self.running {
            capture.share.set_bound(capture.engine, Some(now));
        }
    }

    /// The engine sleeps until its next pass.
    pub fn sleep(&self) {
        for capture in &self.running {
            capture.share.set_bound(capture.engine, None);
        }
    }

    /// True if a capture has comments. A checker reads none.
    pub fn names_faults(&self) -> bool {
        let mut running = self.running.iter();
        running.any(|capture| !capture.filter.is_for_checker)
    }

    /// Numbers of the captures, and what they have.
    pub fn shares(&self) -> Vec<(u64, Arc<CaptureShare>)> {
        let running = self.running.iter();
        let shares = running.map(|capture| (capture.id, Arc::clone(&capture.share)));
        shares.collect()
    }

    /// Wakes threads for which there are records.
    pub fn flush(&mut self) {
        for capture in &mut self.running {
            capture.end.flush();
        }
    }

    /// Tells the checkers of a queue pair of a NIC.
    fn notify(&mut self, at: Instant, pair: (PortId, u32), notice: Notice, value: u32) {
        for capture in &mut self.running {
            capture.notify(at, pair, notice, value);
        }
    }

    /// New connections may not have been told: checkers judge all connections anew.
    pub fn connections_unknown(&mut self, at: Instant) {
        let checkers = self.running.iter_mut();
        let checkers = checkers.filter(|capture| capture.filter.is_for_checker);
        checkers.for_each(|capture| capture.lose_notice(at));
    }

    /// A NIC reports something. `device` is this NIC.
    pub fn diagnostic(&mut self, at: Instant, nic: PortId, diagnostic: &Diagnostic, device: &Nic) {
        match *diagnostic {
            Diagnostic::RnrNakSent { qpn, psn, token } => {
                self.note_refusal(nic, qpn, psn, token);
            }
            Diagnostic::FaultRaised {
                token, qpn, psn, ..
            }
            | Diagnostic::FaultJoined {
                token, qpn, psn, ..
            } => {
                if self.faults.len() >= MOST_FAULTS {
                    self.faults.clear();
                }
                self.faults.push((nic, qpn, psn, token));
            }
            // It follows the fault of its queue pair, unless there was no room for one.
            Diagnostic::Stalled { qpn } => {
                let last = self.faults.last();
                let last = last.filter(|fault| (fault.0, fault.1) == (nic, qpn));
                self.stalls.extend(last.map(|fault| (nic, fault.3)));
            }
            Diagnostic::StallEnded { .. } | Diagnostic::Reset => self.forget_stall(nic),
            // Each connection of a queue pair begins with this state, in which its path MTU is known (IBTA 10.3.1).
            Diagnostic::QpState {
                qpn,
                to: State::Rtr,
                ..
            } => {
                let mtu = device.queue_pair_info(qpn).map_or(0, |pair| pair.mtu);
                self.notify(at, (nic, qpn), Notice::Renewal, mtu);
            }
            Diagnostic::QpState { qpn, to, .. } => {
                let limit = match to {
                    // This attribute is set on the way to this state.
                    State::Rts => device
                        .queue_pair_info(qpn)
                        .and_then(|pair| pair.max_rd_atomic),
                    // It may be set again in this state, and no event tells.
                    State::Sqd => None,
                    _ => return,
                };
                let value = limit.map_or(NO_LIMIT, u32::from);
                self.notify(at, (nic, qpn), Notice::ReadLimit, value);
            }
            _ => {}
        }
    }

    /// A NIC refuses a packet because of a page fault.
    fn note_refusal(&mut self, nic: PortId, qpn: u32, psn: u32, token: u64) {
        if self.refusals.len() >= MOST_REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back((nic, qpn, psn, token));
    }

    /// The page fault for which a NIC has refused a packet; 0: none.
    pub(crate) fn refusal(&self, nic: PortId, qpn: u32, psn: u32) -> u64 {
        let mut newest = self.refusals.iter().rev();
        let found = newest.find(|refusal| (refusal.0, refusal.1, refusal.2) == (nic, qpn, psn));
        found.map_or(0, |refusal| refusal.3)
    }

    /// The page fault that has stopped the ingress of a NIC; 0: none.
    pub(crate) fn stall(&self, nic: PortId) -> u64 {
        let mut stalls = self.stalls.iter();
        let found = stalls.find(|stall| stall.0 == nic);
        found.map_or(0, |stall| stall.1)
    }

    /// A NIC leaves this engine: the end of its stall is not seen here.
    pub fn forget_stall(&mut self, nic: PortId) {
        self.stalls.retain(|stall| stall.0 != nic);
    }

    /// The page faults until now are not those of the next frame.
    pub(crate) fn end_receive(&mut self) {
        self.faults.clear();
    }

    /// The page fault of a packet, and that of packets of the same run behind it. `behind`: that of the run before it. A packet that
    /// stops the ingress holds up those behind it.
    fn fault_of(&self, seen: &Seen, behind: u64, header: Option<&RoceHeader>) -> (u64, u64) {
        if seen.direction == Direction::Tx || seen.fate != Fate::Passed {
            return (behind, behind);
        }
        // A frame that is not RoCE is no run: all faults are its own.
        let is_own = |fault: &&(PortId, u32, u32, u64)| {
            fault.0 == seen.port && header.is_none_or(|header| header.bth.psn.get() == fault.2)
        };
        match self.faults.iter().find(is_own) {
            Some(&(.., token)) if token == self.stall(seen.port) => (token, token),
            Some(&(.., token)) => (token, behind),
            None => (behind, behind),
        }
    }

    /// A frame is seen whose payload is in memory. A run is seen as its packets.
    pub(crate) fn frame<M: Dma>(&mut self, seen: &Seen, frame: &TxFrame, mem: &M) {
        let mut behind = seen.token;
        for index in 0..frame.packets {
            let header = frame.packet_header(index);
            let token;
            (token, behind) = self.fault_of(seen, behind, header.as_ref());
            let seen = &Seen { token, ..*seen };
            let Some(most) = self.most_wanted(seen, header.as_ref()) else {
                continue;
            };
            self.record.clear();
            self.record.resize(RecordHead::LEN, 0);
            // Memory that cannot be read any more: the packet has no octets.
            let appended = frame.append_start(index, most, mem, &mut self.record);
            if let Ok(length) = appended {
                self.keep(seen, header.as_ref(), length);
            }
        }
    }

    /// A frame is seen that is octets.
    pub(crate) fn octets(&mut self, seen: &Seen, frame: &[u8]) {
        let parsed = parse_trusted(frame).ok();
        let header = parsed.as_ref().map(|parsed| &parsed.header);
        let (token, _) = self.fault_of(seen, seen.token, header);
        let seen = &Seen { token, ..*seen };
        let Some(most) = self.most_wanted(seen, header) else {
            return;
        };
        self.record.clear();
        self.record.resize(RecordHead::LEN, 0);
        let kept = frame.get(..most).unwrap_or(frame);
        self.record.extend_from_slice(kept);
        self.keep(seen, header, frame.len());
    }

    /// Most octets that a capture wants of a frame; `None` if no capture wants it.
    fn most_wanted(&self, seen: &Seen, header: Option<&RoceHeader>) -> Option<usize> {
        let running = self.running.iter();
        let wanting = running.filter(|capture| capture.wants(seen, header));
        wanting.map(|capture| capture.filter.octets(header)).max()
    }

    fn keep(&mut self, seen: &Seen, header: Option<&RoceHeader>, length: usize) {
        for capture in &mut self.running {
            if capture.wants(seen, header) {
                let most = capture.filter.octets(header);
                capture.keep(seen, (length, most), &mut self.record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use faultline_ports::channel;
    use faultline_scenario::plan::ChangeKind;
    use faultline_wire::{Bth, Deth, Gid, Ip, MacAddr, Opcode, Psn};

    use super::*;
    use crate::share::CaptureCount;

    const RULE: ByRule = ByRule {
        rule: 300,
        kind: ChangeKind::MigReq,
    };

    fn filter(snaplen: usize) -> CaptureFilter {
        CaptureFilter {
            ports: vec![true, false],
            qpn: None,
            packets: None,
            snaplen,
            is_for_checker: false,
        }
    }

    fn seen(port: PortId) -> Seen {
        Seen {
            at: Instant(7),
            port,
            direction: Direction::Tx,
            sender: 0,
            fate: Fate::Forged,
            effects: Effects::CORRUPTED,
            rule: Some(RULE),
            token: 3,
            is_raw: false,
            is_held: false,
            is_again: false,
        }
    }

    /// Of a capture that runs in two engines.
    fn share() -> Arc<CaptureShare> {
        let share = CaptureShare::new(2, 2);
        assert!(share.run());
        share
    }

    fn feed(
        engine: usize,
        filter: CaptureFilter,
        end: EngineEnd,
        share: &Arc<CaptureShare>,
    ) -> CaptureFeed {
        CaptureFeed {
            engine,
            filter,
            end,
            share: Arc::clone(share),
        }
    }

    /// A packet that a link model loses behind its entry was sent once.
    #[test]
    fn a_checker_gets_no_second_sight_of_a_packet() {
        for (is_for_checker, expected) in [(false, 2), (true, 1)] {
            let (mut ends, mut reader) = channel::from_engines(1, 1000).unwrap();
            let mut captures = Captures::default();
            let filter = CaptureFilter {
                is_for_checker,
                ..filter(100)
            };
            let feed = feed(0, filter, ends.remove(0), &share());
            assert!(captures.start(1, feed));
            captures.octets(&seen(0), &[5; 60]);
            let again = Seen {
                is_again: true,
                ..seen(0)
            };
            captures.octets(&again, &[5; 60]);
            let mut record = Vec::new();
            let taken = || {
                record.clear();
                reader.rings()[0].pop(&mut record)
            };
            let count = std::iter::from_fn(taken).count();
            assert_eq!(count, expected);
        }
    }

    #[test]
    fn a_full_ring_loses_frames_and_the_next_record_says_how_many() {
        let (mut ends, mut reader) = channel::from_engines(1, 1000).unwrap();
        let end = ends.remove(0);
        let mut captures = Captures::default();
        let share = share();
        assert!(captures.start(1, feed(0, filter(100), end, &share)));
        for _ in 0..20 {
            captures.octets(&seen(0), &[5; 200]);
            captures.octets(&seen(1), &[5; 200]);
        }
        // Each takes its length of 4 octets, the head, and 100 octets.
        let fitting = 1000 / (4 + RecordHead::LEN + 100);
        let values = |port: usize| {
            let count = &share.by_interface[port];
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            (load(&count.kept), load(&count.lost))
        };
        assert_eq!(values(0), (fitting as u64, 20 - fitting as u64));
        assert_eq!(values(1), (0, 0), "not captured");
        let mut record = Vec::new();
        for _ in 0..fitting {
            record.clear();
            reader.rings()[0].pop(&mut record).unwrap();
            let (head, frame) = RecordHead::split(&record).unwrap();
            assert_eq!((head.length, head.lost, head.port), (200, 0, 0));
            assert_eq!((head.at, head.token, head.is_sent), (7, 3, true));
            assert_eq!(head.fate, Fate::Forged);
            assert_eq!((head.effects, head.rule), (Effects::CORRUPTED, Some(RULE)));
            assert_eq!(frame, [5; 100]);
        }
        // In the same pass.
        captures.octets(&seen(0), &[6; 20]);
        captures.octets(&seen(0), &[7; 20]);
        record.clear();
        reader.rings()[0].pop(&mut record).unwrap();
        let (head, frame) = RecordHead::split(&record).unwrap();
        assert_eq!(u64::from(head.lost), 20 - fitting as u64);
        assert!(head.is_after_loss);
        assert_eq!(frame, [6; 20]);
        record.clear();
        reader.rings()[0].pop(&mut record).unwrap();
        let (head, _) = RecordHead::split(&record).unwrap();
        assert!(head.lost == 0 && !head.is_after_loss);
        assert!(!reader.is_stopped());
        assert!(captures.end(1) && !captures.end(1));
        assert!(reader.is_stopped());
    }

    /// A checker needs headers of packets, and whole messages of the connection manager.
    #[test]
    fn a_checker_gets_whole_mads() {
        let frame = |qpn, payload: usize| {
            let ip = Ip::from_gids(Gid([1; 16]), Gid([2; 16]), 0, 0, 64);
            let bth = Bth::new(Opcode::UdSendOnly, qpn, Psn::new(0));
            let mut header = RoceHeader::new(MacAddr([2; 6]), MacAddr([4; 6]), ip, bth);
            header.deth = Some(Deth { qkey: 1, src_qp: 1 });
            let mut frame = vec![0; header.frame_len(payload)];
            header.emit(payload, &mut frame).unwrap();
            frame
        };
        let mad = frame(GSI_QPN, 256);
        for (is_for_checker, frame, kept) in [
            (true, &mad, mad.len()),
            (true, &frame(GSI_QPN, 4096), WITH_MAD),
            (true, &frame(2, 256), 128),
            (false, &mad, 128),
        ] {
            let (mut ends, mut reader) = channel::from_engines(1, 10_000).unwrap();
            let mut captures = Captures::default();
            let filter = CaptureFilter {
                is_for_checker,
                ..filter(128)
            };
            assert!(captures.start(1, feed(0, filter, ends.remove(0), &share())));
            captures.octets(&seen(0), frame);
            let mut record = Vec::new();
            reader.rings()[0].pop(&mut record).unwrap();
            assert_eq!(record.len(), RecordHead::LEN + kept);
        }
    }

    /// An engine is busy with an earlier pass when another one loses a frame. What it captures in that pass comes before the loss in the
    /// order of times, and what it captures later after it.
    #[test]
    fn all_engines_say_that_one_has_lost_frames() {
        let (ends, mut reader) = channel::from_engines(2, 300).unwrap();
        let share = share();
        let mut engines = Vec::from_iter(ends.into_iter().enumerate().map(|(engine, end)| {
            let mut captures = Captures::default();
            let filter = CaptureFilter {
                ports: vec![true; 2],
                ..filter(20)
            };
            assert!(captures.start(1, feed(engine, filter, end, &share)));
            captures
        }));
        let at = |time, port| Seen {
            at: Instant(time),
            ..seen(port)
        };
        for _ in 0..20 {
            engines[0].octets(&at(10, 0), &[0; 20]);
        }
        for time in [9, 10, 11, 11] {
            engines[1].octets(&at(time, 1), &[0; 20]);
        }
        let mut record = Vec::new();
        let mut is_after_loss = |ring: usize| {
            record.clear();
            reader.rings()[ring].pop(&mut record)?;
            RecordHead::split(&record).map(|(head, _)| (head.is_after_loss, head.lost))
        };
        let of_other = [true, true, true, false].map(|after| Some((after, 0)));
        assert_eq!([(); 4].map(|()| is_after_loss(1)), of_other);
        let mut kept = 0;
        while let Some(told) = is_after_loss(0) {
            assert_eq!(told, (false, 0));
            kept += 1;
        }
        engines[0].octets(&at(12, 0), &[0; 20]);
        assert_eq!(is_after_loss(0), Some((true, 20 - kept)));
    }

    /// A checker that has missed a notice learns of it with the next frame.
    #[test]
    fn a_lost_notice_is_told() {
        let (mut ends, mut reader) = channel::from_engines(1, 180).unwrap();
        let mut captures = Captures::default();
        let filter = CaptureFilter {
            is_for_checker: true,
            ..filter(20)
        };
        assert!(captures.start(1, feed(0, filter, ends.remove(0), &share())));
        // Four fit.
        for qpn in 0..5 {
            captures.notify(Instant(5), (0, qpn), Notice::Renewal, 1024);
        }
        let mut record = Vec::new();
        let mut told = || {
            record.clear();
            reader.rings()[0].pop(&mut record)?;
            let (head, _) = RecordHead::split(&record)?;
            Some((head.notice, head.is_after_loss, head.is_after_lost_notice))
        };
        // More than half of the ring is taken.
        captures.octets(&seen(0), &[0; 20]);
        for _ in 0..4 {
            assert_eq!(told(), Some((Some(Notice::Renewal), false, false)));
        }
        assert_eq!(told(), None);
        for after in [true, false] {
            captures.octets(&seen(0), &[0; 20]);
            assert_eq!(told(), Some((None, after, after)));
        }
    }

    /// A capture has no frame of an engine before all engines have begun it, and none after one has ended it.
    #[test]
    fn engines_begin_and_end_a_capture_together() {
        let (mut ends, reader) = channel::from_engines(2, 1000).unwrap();
        let share = CaptureShare::new(2, 2);
        let mut engines = [Captures::default(), Captures::default()];
        let kept = || {
            let kept = |count: &CaptureCount| count.kept.load(Ordering::Relaxed);
            share.by_interface.iter().map(kept).sum::<u64>()
        };
        for (engine, captures) in engines.iter_mut().enumerate() {
            assert!(captures.start(1, feed(engine, filter(20), ends.remove(0), &share)));
            captures.octets(&seen(0), &[0; 20]);
        }
        assert_eq!(kept(), 0);
        assert!(share.run());
        engines[0].octets(&seen(0), &[0; 20]);
        assert_eq!(kept(), 1);
        assert!(engines[1].end(1));
        engines[0].octets(&seen(0), &[0; 20]);
        assert_eq!(kept(), 1);
        assert!(!share.run() && !reader.is_stopped());
        // The other one ends it with its next pass.
        engines[0].begin_pass(Instant(9));
        assert!(reader.is_stopped() && !engines[0].is_on());
    }

    #[test]
    fn there_are_few_captures_at_a_time() {
        let mut captures = Captures::default();
        let mut ends = Vec::new();
        for id in 0..=MOST_CAPTURES {
            let (mut engine_ends, reader) = channel::from_engines(1, 100).unwrap();
            let end = engine_ends.remove(0);
            ends.push(reader);
            let starts = captures.start(id as u64, feed(0, filter(1), end, &share()));
            assert_eq!(starts, id < MOST_CAPTURES);
        }
    }
}
