//! The sending side: what is in flight, what is lost, and what leaves next.
//!
//! Octets between `una` and `nxt` are in flight, except those that the peer has selectively acknowledged and those that loss recovery
//! considers lost (RFC 6675). After a timeout `nxt` goes back to `una`, and everything up to `max` is sent again that the peer does
//! not acknowledge in the meantime.
//!
//! Not implemented: RACK-TLP (RFC 8985), the rescue retransmission of RFC 6675, proportional rate reduction (RFC 6937).

use faultline_wire::{SackBlocks, Seq};

use crate::config::Config;
use crate::congestion::Congestion;
use crate::pos::Pos;
use crate::ranges::Ranges;
use crate::rtt::Rtt;
use crate::time::{Instant, Nanos};

/// Ranges of selectively acknowledged octets that are remembered.
const SACKED_RANGES: usize = 16;
/// Duplicate acknowledgments that indicate a loss (RFC 5681 section 3.2).
const DUP_THRESH: u32 = 3;

/// Fast recovery (RFC 6582, RFC 6675 section 5).
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// It ends when all octets before this are acknowledged.
    point: Pos,
    /// Lost octets before this have been retransmitted.
    sent: Pos,
    /// The first retransmission leaves whatever the congestion window is.
    is_first: bool,
}

/// The octets of a segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) start: Pos,
    pub(crate) len: u32,
    pub(crate) fin: bool,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The next octets, which may have been sent before a timeout.
    Next,
    /// Lost octets.
    Recovery,
    /// Beyond the window of the peer.
    Probe,
}

impl Pick {
    /// The position after the segment.
    fn end(&self) -> Pos {
        self.start + u64::from(self.len) + u64::from(self.fin)
    }
}

/// An acknowledgment, as positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    pub(crate) ack: Pos,
    /// Position of the segment in the peer's direction.
    pub(crate) seq: Pos,
    /// The window in octets.
    pub(crate) window: u64,
    /// Selectively acknowledged octets, if both ends use them.
    pub(crate) sack: Option<&'a SackBlocks>,
    /// The segment has neither data nor SYN or FIN.
    pub(crate) is_pure: bool,
    /// The segment echoes a congestion mark.
    pub(crate) has_congestion_echo: bool,
    /// Round-trip time by the timestamps.
    pub(crate) rtt: Option<Nanos>,
}

/// Data to send, and what the peer has of it.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    initial: Seq,
    una: Pos,
    nxt: Pos,
    /// The highest position that was ever sent.
    max: Pos,
    /// End of the data that the owner has.
    limit: Pos,
    /// A FIN follows the data.
    fin: bool,
    /// The window of the peer: SND.WND, SND.WL1 and SND.WL2.
    window: u64,
    window_seq: Pos,
    window_ack: Pos,
    max_window: u64,
    /// Shift count of the peer's window field.
    pub(crate) shift: u8,
    /// Octets of data in a full segment.
    mss: u32,
    sacked: Ranges<SACKED_RANGES>,
    recovery: Option<Recovery>,
    /// Losses before this have been answered.
    recovered: Pos,
    dup_acks: u32,
    congestion: Congestion,
    pub(crate) rtt: Rtt,
    /// A segment whose acknowledgment measures the round-trip time: its end, and when it was sent.
    timed: Option<(Pos, Instant)>,
    /// The window was reduced for a congestion mark of data before this.
    marked: Pos,
    /// When segments were made smaller.
    reduced_at: Option<Instant>,
    /// The next new data tells the peer of that.
    cwr: bool,
    sent_at: Instant,
    /// Consecutive timeouts, or window probes, without an answer.
    unanswered: u8,
    /// Window probes since the window was open.
    probes: u8,
}

impl Send {
    pub(crate) fn new(initial: Seq, mss: u32) -> Self {
        Self {
            initial,
            una: Pos(0),
            nxt: Pos(0),
            max: Pos(0),
            limit: Pos::DATA,
            fin: false,
            window: 0,
            window_seq: Pos(0),
            window_ack: Pos(0),
            max_window: 0,
            shift: 0,
            mss,
            sacked: Ranges::default(),
            recovery: None,
            recovered: Pos(0),
            dup_acks: 0,
            congestion: Congestion::new(mss.into()),
            rtt: Rtt::default(),
            timed: None,
            marked: Pos(0),
            reduced_at: None,
            cwr: false,
            sent_at: Instant(0),
            unanswered: 0,
            probes: 0,
        }
    }

    /// The position of an acknowledgment number.
    pub(crate) fn pos(&self, seq: Seq) -> Option<Pos> {
        self.una.near(self.initial, seq)
    }

    pub(crate) fn seq(&self, pos: Pos) -> Seq {
        pos.seq(self.initial)
    }

    pub(crate) fn una(&self) -> Pos {
        self.una
    }

    pub(crate) fn nxt(&self) -> Pos {
        self.nxt
    }

    pub(crate) fn max(&self) -> Pos {
        self.max
    }

    /// The acknowledgment numbers that are not older than a window (RFC 5961 section 5.2).
    pub(crate) fn acceptable(&self) -> core::ops::RangeInclusive<Pos> {
        Pos((self.una.0).saturating_sub(self.max_window))..=self.max
    }

    /// Octets of data that the peer has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.una.min(self.limit).offset()
    }

    pub(crate) fn mss(&self) -> u32 {
        self.mss
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn congestion_window(&self) -> u64 {
        self.congestion.window()
    }

    pub(crate) fn unanswered(&self) -> u8 {
        self.unanswered
    }

    /// The peer has answered.
    pub(crate) fn heard(&mut self) {
        if self.flight() == 0 {
            self.unanswered = 0;
        }
    }

    /// `mss` octets of data fit into a segment.
    pub(crate) fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
    }

    /// The handshake is over. After the loss of a SYN the window is one segment (RFC 5681 section 3.1).
    pub(crate) fn open(&mut self) {
        self.congestion = Congestion::new(self.mss.into());
        if self.rtt.is_backed_off() {
            self.congestion.timed_out(0, self.mss.into(), false);
        }
        self.rtt.open();
    }

    /// Adds data.
    pub(crate) fn push(&mut self, octets: u64) {
        self.limit = self.limit + octets;
    }

    /// Adds a FIN after the data.
    pub(crate) fn finish(&mut self) {
        self.fin = true;
    }

    /// Removes data from an offset on, and the FIN. Returns false, and changes nothing, if a part has been sent, or the offset is beyond.
    pub(crate) fn retract(&mut self, keep: u64) -> bool {
        let keep = Pos::DATA + keep;
        let is_unsent = self.max <= keep && keep <= self.limit;
        if is_unsent {
            self.limit = keep;
            self.fin = false;
        }
        is_unsent
    }

    /// True if the peer has acknowledged the FIN.
    pub(crate) fn is_fin_acknowledged(&self) -> bool {
        self.fin && self.una > self.limit
    }

    fn end(&self) -> Pos {
        self.limit + u64::from(self.fin)
    }

    /// True if all data and the FIN are acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.una >= self.end()
    }

    /// Octets of allocated memory.
    pub(crate) fn allocated(&self) -> usize {
        self.sacked.allocated()
    }

    /// Octets between `una` and `nxt`.
    pub(crate) fn flight(&self) -> u64 {
        self.nxt - self.una
    }

    /// The octets before this position are lost unless they were selectively acknowledged (IsLost of RFC 6675 section 4): at least
    /// three ranges, or more than two segments, after them have arrived.
    fn lost_edge(&self) -> Pos {
        let (mut ranges, mut octets) = (0u32, 0u64);
        for range in self.sacked.as_slice().iter().rev() {
            ranges = ranges.saturating_add(1);
            octets = octets.saturating_add(range.end - range.start);
            if ranges >= DUP_THRESH || octets > u64::from(self.mss).saturating_mul(2) {
                return range.start;
            }
        }
        self.una
    }

    /// As [`Send::lost_edge`], in recovery, where at least the first segment is lost.
    fn recovery_edge(&self) -> Pos {
        let first = self.una + u64::from(self.mss);
        self.lost_edge().max(first).min(self.nxt)
    }

    /// Octets that are in the network (RFC 6675 section 4, SetPipe). A peer without selective acknowledgments has a segment for
    /// each duplicate acknowledgment.
    fn pipe(&self) -> u64 {
        let sacked = self.sacked.count(self.una, self.nxt);
        let duplicates = match sacked {
            0 => u64::from(self.dup_acks).saturating_mul(self.mss.into()),
            _ => 0,
        };
        let lost = self.recovery.map_or(0, |recovery| {
            let (from, to) = (self.una.max(recovery.sent), self.recovery_edge());
            (to - from).saturating_sub(self.sacked.count(from, to))
        });
        let gone = sacked.saturating_add(duplicates).saturating_add(lost);
        self.flight().saturating_sub(gone)
    }

    /// The next segment to send, if windows allow one. `align` returns how many octets a segment has that begins at an offset and
    /// may have up to a number of octets.
    pub(crate) fn pick(&self, align: impl FnOnce(u64, u32) -> u32) -> Option<Pick> {
        if let Some(recovery) = &self.recovery {
            let start = self.sacked.next_missing(self.una.max(recovery.sent));
            let may_send = recovery.is_first || self.pipe() < self.congestion.window();
            if start < self.recovery_edge() && may_send {
                return self.segment(start, self.nxt, Kind::Recovery, align);
            }
        }
        let start = self.sacked.next_missing(self.nxt);
        if start >= self.end() {
            return None;
        }
        let pick = self.segment(start, self.end(), Kind::Next, align)?;
        let pick = self.within_window(pick)?;
        let pipe = self.pipe();
        let fits = pipe.saturating_add(pick.len.into()) <= self.congestion.window();
        (pipe == 0 || fits).then_some(pick)
    }

    /// A full segment at `start`: up to `bound`, to the next octets that the peer has, or to the end of the data. `None`: its data cannot be
    /// read now.
    fn segment(
        &self,
        start: Pos,
        bound: Pos,
        kind: Kind,
        align: impl FnOnce(u64, u32) -> u32,
    ) -> Option<Pick> {
        let bound = self
            .sacked
            .next_start(start)
            .map_or(bound, |next| next.min(bound));
        let max = (bound.min(self.limit) - start).min(self.mss.into());
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        let len = match max {
            0 => 0,
            _ => match align(start.offset(), max).min(max) {
                0 => return None,
                len => len,
            },
        };
        let last = start + u64::from(len);
        Some(Pick {
            start,
            len,
            fin: self.fin && last == self.limit && bound > last,
            kind,
        })
    }

    /// The part of a segment that the peer's window permits, if it is worth a segment: all, or at least half of the largest window (RFC
    /// 9293 section 3.8.6.2.1).
    fn within_window(&self, mut pick: Pick) -> Option<Pick> {
        let room = (self.una + self.window) - pick.start;
        if room >= pick.end() - pick.start {
            return Some(pick);
        }
        let len = u64::from(pick.len).min(room);
        let is_worthwhile = len == u64::from(pick.len) || len >= self.max_window / 2;
        if len == 0 || !is_worthwhile {
            return None;
        }
        pick.len = u32::try_from(len).unwrap_or(pick.len);
        pick.fin = false;
        Some(pick)
    }

    /// True if there is something to send that waits for the window of the peer, and nothing is in flight whose acknowledgment would
    /// open it.
    pub(crate) fn needs_probe(&self) -> bool {
        let waits = self.flight() == 0 && self.una > Pos(0) && !self.is_idle();
        waits && self.pick(|_, max| max).is_none()
    }

    /// The time from one window probe to the next.
    pub(crate) fn probe_timeout(&self, config: &Config) -> Nanos {
        let timeout = self.rtt.timeout(config).doubled(self.probes.into());
        timeout.min(config.max_rto)
    }

    /// A segment in spite of the window: what it permits, or one octet (RFC 9293 section 3.8.6.1).
    pub(crate) fn probe(&mut self, align: impl FnOnce(u64, u32) -> u32) -> Option<Pick> {
        self.unanswered = self.unanswered.saturating_add(1);
        self.probes = self.probes.saturating_add(1);
        let mut pick = self.segment(self.nxt, self.end(), Kind::Probe, align)?;
        let room = (self.una + self.window) - pick.start;
        let is_cut = room < u64::from(pick.len);
        if is_cut {
            pick.len = u32::try_from(room.max(1)).unwrap_or(1);
            pick.fin = false;
        }
        if room > 0 {
            pick.kind = Kind::Next;
        }
        Some(pick)
    }

    /// A segment leaves. Returns true if all of it was sent before.
    pub(crate) fn sent(&mut self, pick: &Pick, now: Instant) -> bool {
        let end = pick.end();
        let is_retransmission = end <= self.max;
        // A segment that was sent twice measures nothing (Karn's algorithm).
        if pick.start < self.max {
            self.timed = None;
        } else if self.timed.is_none() && pick.kind == Kind::Next {
            self.timed = Some((end, now));
        }
        match pick.kind {
            Kind::Next => self.nxt = end,
            Kind::Probe => (),
            Kind::Recovery => {
                if let Some(recovery) = &mut self.recovery {
                    recovery.sent = end;
                    recovery.is_first = false;
                }
            }
        }
        self.max = self.max.max(end);
        self.sent_at = now;
        is_retransmission
    }

    /// The position of a segment without data: the highest one that the peer may have reached. After a timeout `nxt` is behind it, and
    /// the peer would ignore the segment, and the acknowledgment with it. What is beyond its window was not accepted.
    pub(crate) fn control_pos(&self) -> Pos {
        self.max.min(self.una + self.window).max(self.una)
    }

    /// The SYN leaves.
    pub(crate) fn sent_syn(&mut self, now: Instant) {
        let is_first = self.max == Pos(0);
        self.timed = is_first.then_some((Pos::DATA, now));
        self.nxt = Pos::DATA;
        self.max = self.max.max(self.nxt);
        self.sent_at = now;
    }

    /// The SYN has to leave again.
    pub(crate) fn repeat_syn(&mut self) {
        self.nxt = Pos(0);
    }

    /// True if all data that the owner has ends at `pos`.
    pub(crate) fn is_last(&self, pos: Pos) -> bool {
        pos == self.limit
    }

    /// Whether the next new data tells the peer that the congestion window was reduced; resets that.
    pub(crate) fn take_cwr(&mut self) -> bool {
        core::mem::take(&mut self.cwr)
    }

    /// Reduces the congestion window if nothing was sent for a retransmission timeout (RFC 5681 section 4.1).
    pub(crate) fn restart_if_idle(&mut self, now: Instant, config: &Config) {
        let is_unused = self.flight() == 0 && self.max == self.nxt;
        if is_unused && now.since(self.sent_at) > self.rtt.timeout(config) {
            self.congestion.restarted(self.mss.into());
        }
    }

    /// Handles an acceptable acknowledgment. Returns true if it acknowledges something.
    pub(crate) fn acknowledge(&mut self, ack: &Ack, now: Instant) -> bool {
        let flight = self.flight();
        let is_same_window = ack.window == self.window;
        // With selective acknowledgments, only one that tells something new is a sign of an octet that has arrived (RFC 6675 section 2).
        let is_news = ack.sack.is_none_or(|blocks| self.note_sacked(blocks));
        let advances = ack.ack > self.una;
        if advances {
            self.advance(ack, flight, now);
        } else if ack.ack == self.una && ack.is_pure && is_same_window && is_news {
            // RFC 5681 section 2.
            self.dup_acks = self.dup_acks.saturating_add(1);
        }
        // A peer that sends more of them than there are segments in flight does not get more (RFC 5681 section 3.2).
        let segments = self.segments(self.flight());
        self.dup_acks = self.dup_acks.min(segments);
        self.update_window(ack);
        if ack.has_congestion_echo && self.recovery.is_none() && self.una > self.marked {
            self.congestion.congested(flight, self.mss.into());
            self.marked = self.nxt;
            self.cwr = true;
        }
        self.enter_recovery();
        advances
    }

    /// The number of full segments, the last one perhaps shorter, of a number of octets.
    fn segments(&self, octets: u64) -> u32 {
        let segments = octets.div_ceil(u64::from(self.mss).max(1));
        u32::try_from(segments).unwrap_or(u32::MAX)
    }

    /// Remembers selectively acknowledged octets. Blocks that lie outside of the octets in flight, or before `una` (RFC 2883), are ignored.
    /// Returns true if some are new.
    fn note_sacked(&mut self, sack: &SackBlocks) -> bool {
        let before = self.sacked.count(self.una, self.max);
        for (left, right) in sack.as_slice() {
            let (Some(left), Some(right)) = (self.pos(*left), self.pos(*right)) else {
                continue;
            };
            if left > self.una && left < right && right <= self.max {
                // Without room for a range, its octets count as in flight.
                self.sacked.insert(left, right);
            }
        }
        self.sacked.count(self.una, self.max) > before
    }

    /// The peer acknowledges more than before.
    fn advance(&mut self, ack: &Ack, flight: u64, now: Instant) {
        let octets = ack.ack - self.una;
        let measured = match self.timed {
            Some((end, at)) if ack.ack >= end => {
                self.timed = None;
                Some(now.since(at))
            }
            // The echo of a timestamp is of the segment that has advanced the window, also of a repetition (RFC 7323 section 4).
            _ => ack.rtt,
        };
        if let Some(rtt) = measured {
            self.rtt.measure(rtt);
        }
        self.una = ack.ack;
        self.nxt = self.nxt.max(ack.ack);
        self.sacked.remove_before(ack.ack);
        // A peer that has octets and does not acknowledge them has discarded them (RFC 2018 section 8).
        self.sacked.remove_at(ack.ack);
        self.unanswered = 0;
        match self.recovery {
            Some(recovery) if ack.ack < recovery.point => {
                // Partial acknowledgment (RFC 6582): the first of its segments was lost, the others were duplicates.
                let segments = self.segments(octets);
                self.dup_acks = self.dup_acks.saturating_sub(segments.saturating_sub(1));
            }
            Some(_) => {
                self.recovery = None;
                self.dup_acks = 0;
            }
            None => {
                self.dup_acks = 0;
                self.congestion
                    .acknowledged(octets, flight, self.mss.into());
            }
        }
    }

    /// Takes the window of a segment that is not older than the last one, nor than the last acknowledgment (RFC 9293 section 3.10.7.4).
    fn update_window(&mut self, ack: &Ack) {
        let is_newer =
            self.window_seq < ack.seq || (self.window_seq == ack.seq && self.window_ack <= ack.ack);
        if is_newer && ack.ack >= self.una {
            self.window = ack.window;
            self.window_seq = ack.seq;
            self.window_ack = ack.ack;
            self.max_window = self.max_window.max(ack.window);
            if ack.window > 0 {
                self.probes = 0;
            }
        }
    }

    /// Begins fast recovery after a loss (RFC 6675 section 5, RFC 6582 section 3.2).
    fn enter_recovery(&mut self) {
        let is_lost = self.dup_acks >= DUP_THRESH || self.lost_edge() > self.una;
        // Segments that were sent twice cause duplicates, too, but no new blocks: RFC 6582 section 3.2 (step 1) demands an
        // acknowledgment of more, RFC 6675 section 5.1 only one of all that was sent.
        let is_answered = match self.sacked.as_slice() {
            [] => self.una <= self.recovered,
            _ => self.una < self.recovered,
        };
        if self.recovery.is_some() || !is_lost || self.flight() == 0 || is_answered {
            return;
        }
        self.congestion.congested(self.flight(), self.mss.into());
        self.recovered = self.nxt;
        self.recovery = Some(Recovery {
            point: self.nxt,
            sent: self.una,
            is_first: true,
        });
    }

    /// The retransmission timer has expired: everything in flight is lost (RFC 5681 section 3.1). What the peer has acknowledged
    /// selectively counts no more, because it may discard it (RFC 2018 section 8).
    pub(crate) fn timed_out(&mut self) {
        let is_first = self.unanswered == 0;
        self.unanswered = self.unanswered.saturating_add(1);
        self.rtt.back_off();
        self.congestion
            .timed_out(self.flight(), self.mss.into(), is_first);
        self.recovered = self.max;
        self.go_back();
        self.sacked.clear();
    }

    /// Sends everything again that is not acknowledged.
    fn go_back(&mut self) {
        self.nxt = self.una;
        self.recovery = None;
        self.dup_acks = 0;
        self.timed = None;
    }

    /// Smaller segments are necessary. Those in flight are lost, but not by congestion (RFC 1191 section 6.4). At most once in a round
    /// trip, because everything in flight is sent again.
    pub(crate) fn reduce_mss(&mut self, mss: u32, now: Instant) {
        let round_trip = self.rtt.smoothed().unwrap_or_default();
        if self.reduced_at.is_some_and(|at| now.since(at) < round_trip) {
            return;
        }
        self.reduced_at = Some(now);
        self.mss = mss;
        self.go_back();
    }
}
