//! Segments that arrive (RFC 9293 section 3.10.7).

use faultline_wire::{Tcp, TcpFlags as F};

use super::{Connection, Stamps};
use crate::pos::Pos;
use crate::receive::Arrival;
use crate::segment::{Receiver, Segment};
use crate::send::Ack;
use crate::state::{Event, Outcome, State};
use crate::time::{Instant, Nanos};
use crate::timers::Timer;

/// Why the timestamp of a segment is not acceptable.
enum StampError {
    /// The segment has none.
    Missing,
    /// It is older than the last one.
    Older,
}

/// After this time without a segment a timestamp of the peer may have wrapped around: 24 days (RFC 7323 section 5.5).
const STAMP_LIFETIME: Nanos = Nanos::from_millis(24 * 24 * 3600 * 1000);

impl Connection {
    /// Handles a segment. The caller has verified its checksum. Returns true if the peer has sent it, as far as a third party cannot know
    /// what it says: it lies in the window, or in the one before (it was sent again), and acknowledges what this end has sent lately (RFC 5961
    /// section 5.2).
    pub fn receive(&mut self, segment: &Segment, now: Instant, owner: &mut impl Receiver) -> bool {
        let is_of_peer = match self.state {
            State::Closed => return false,
            State::SynSent => {
                self.receive_syn(segment, now);
                false
            }
            _ => self.receive_synchronized(segment, now, owner),
        };
        self.update_timers(now);
        is_of_peer
    }

    /// State SYN-SENT (RFC 9293 section 3.10.7.3). Data beside a SYN is not taken: the peer sends it again.
    fn receive_syn(&mut self, segment: &Segment, now: Instant) {
        let header = &segment.header;
        let flags = header.flags;
        let has_ack = flags.contains(F::ACK);
        if has_ack && self.send.pos(header.ack) != Some(self.send.max()) {
            self.refuse(header);
            return;
        }
        if flags.contains(F::RST) {
            // Only a reset that acknowledges the SYN is from the peer.
            if has_ack {
                self.end(Outcome::Refused);
            }
            return;
        }
        if !flags.contains(F::SYN) {
            return;
        }
        self.synchronize(header, now);
        if has_ack {
            self.ecn = self.config.ecn && flags & (F::ECE | F::CWR) == F::ECE;
            self.open(segment, Pos(0), now);
            self.receive.request_ack();
        } else {
            self.state = self.state.after(Event::SynReceived);
            self.send.repeat_syn();
        }
    }

    /// The peer has acknowledged the SYN.
    fn open(&mut self, segment: &Segment, seq: Pos, now: Instant) {
        self.state = self.state.after(Event::Opened);
        self.send.open();
        self.acknowledge(segment, Pos::DATA, seq, now);
    }

    /// All states in which the peer's SYN has arrived. Returns as [`Connection::receive`].
    fn receive_synchronized(
        &mut self,
        segment: &Segment,
        now: Instant,
        owner: &mut impl Receiver,
    ) -> bool {
        let header = &segment.header;
        let Some((start, stamps)) = self.accept_sequence(segment, now) else {
            return self.is_sent_again(segment, now);
        };
        if header.flags.contains(F::RST) {
            self.receive_reset(start, now);
            return false;
        }
        // A peer that has restarted learns by the answer that this end has a connection (RFC 5961 section 4).
        if header.flags.contains(F::SYN) {
            self.challenge(now);
            return false;
        }
        if !header.flags.contains(F::ACK) || !self.accept_ack(segment, start, now) {
            return false;
        }
        // Only now: a segment that the peer has not sent could make all later ones look old.
        if stamps.is_some() {
            self.stamps = stamps;
        }
        self.heard_at = now;
        self.unanswered_keep_alives = 0;
        self.timers.stop(Timer::KeepAlive);
        self.send.heard();
        if self.state.can_receive() {
            self.receive_data(segment, start, owner);
        }
        true
    }

    /// Checks timestamp and sequence number; returns the position of the segment, and the timestamp to remember if it acknowledges
    /// something acceptable. Otherwise a segment that the peer may have sent in good faith is answered.
    fn accept_sequence(
        &mut self,
        segment: &Segment,
        now: Instant,
    ) -> Option<(Pos, Option<Stamps>)> {
        let flags = segment.header.flags;
        let is_reset = flags.contains(F::RST);
        let stamp = match self.check_stamp(segment, now) {
            Ok(stamp) => stamp,
            Err(_) if is_reset => None,
            Err(StampError::Missing) => return None,
            Err(StampError::Older) => {
                self.challenge(now);
                return None;
            }
        };
        let start = self.receive.pos(segment.header.seq);
        if let Some(start) = start
            && self.is_acceptable(start, segment)
        {
            // Not of a segment behind a gap, whose echo would lengthen the measured round-trip time (RFC 7323 section 4.3).
            let is_next = start <= self.receive.ack_sent();
            return Some((start, stamp.filter(|_| is_next)));
        }
        if is_reset {
            return None;
        }
        if flags.contains(F::SYN) && self.send.una() == Pos(0) {
            if start == Some(Pos(0)) {
                self.receive_syn_again(segment, now);
            }
            return None;
        }
        if segment.len > 0 {
            // It has arrived before, or it is a window probe.
            self.receive.request_ack();
        } else if start.is_some_and(|start| self.is_liveness_probe(start, segment)) {
            if self.liveness_limit.take(now) {
                self.receive.request_ack();
            }
        } else {
            self.challenge(now);
        }
        // The last acknowledgment was lost: TIME-WAIT begins anew. Others could make it last for ever.
        let is_last = start
            .is_some_and(|start| start + segment.sequence_len() == self.receive.nxt())
            && self.send.pos(segment.header.ack) == Some(self.send.max());
        if self.state == State::TimeWait && flags.contains(F::FIN) && is_last {
            self.timers.stop(Timer::TimeWait);
        }
        None
    }

    /// The peer's SYN arrives again before it has acknowledged ours: its answer, if both ends have opened at once, or a sign that our
    /// answer was lost. The peer of a listener has nothing to answer: SYN and ACK would open a connection in the backlog.
    fn receive_syn_again(&mut self, segment: &Segment, now: Instant) {
        let header = &segment.header;
        let is_answer = header.flags.contains(F::ACK);
        if is_answer && self.is_passive {
            return;
        }
        if is_answer && self.send.pos(header.ack) == Some(self.send.max()) {
            self.open(segment, Pos(0), now);
            self.receive.request_ack();
        } else {
            self.send.repeat_syn();
        }
    }

    /// True if a part of the segment is in the window (RFC 9293 section 3.10.7.4). At the edge of a closed window it may be an
    /// acknowledgment or a reset.
    fn is_acceptable(&self, start: Pos, segment: &Segment) -> bool {
        let (nxt, edge) = (self.receive.nxt(), self.receive.edge());
        let end = start + segment.sequence_len();
        start == nxt || (start < edge && (start > nxt || end > nxt))
    }

    /// True if the peer sends a segment again that has arrived.
    fn is_sent_again(&self, segment: &Segment, now: Instant) -> bool {
        segment.header.flags & (F::ACK | F::RST | F::SYN) == F::ACK
            && self.has_arrived(segment)
            && self.check_stamp(segment, now).is_ok()
            && self.acceptable_ack(&segment.header).is_some()
    }

    /// True if a segment without data asks whether this end is alive: one of the peer, with its last number or a later one. A third party
    /// has to guess the acknowledgment.
    fn is_liveness_probe(&self, start: Pos, segment: &Segment) -> bool {
        let header = &segment.header;
        header.flags.contains(F::ACK)
            && start + 1 >= self.receive.nxt()
            && self.acceptable_ack(header).is_some()
    }

    /// The acknowledged position, if it is acceptable.
    fn acceptable_ack(&self, header: &Tcp) -> Option<Pos> {
        let ack = self.send.pos(header.ack);
        ack.filter(|ack| self.send.acceptable().contains(ack))
    }

    /// True if this segment acknowledges the SYN of a connection that a peer opens.
    pub(crate) fn is_opened_by(&self, segment: &Segment) -> bool {
        let header = &segment.header;
        let start = self.receive.pos(header.seq);
        header.flags & (F::ACK | F::RST | F::SYN) == F::ACK
            && self.send.pos(header.ack) == Some(Pos::DATA)
            && start.is_some_and(|start| self.is_acceptable(start, segment))
    }

    /// Protection against wrapped sequence numbers (RFC 7323 section 5). Returns the timestamp to remember.
    fn check_stamp(&self, segment: &Segment, now: Instant) -> Result<Option<Stamps>, StampError> {
        let Some(stamps) = self.stamps else {
            return Ok(None);
        };
        let theirs = segment
            .header
            .options
            .timestamps
            .ok_or(StampError::Missing)?;
        let is_older = (theirs.value.wrapping_sub(stamps.recent) as i32) < 0;
        if is_older && now.since(stamps.stored) < STAMP_LIFETIME {
            return Err(StampError::Older);
        }
        Ok(Some(Stamps {
            recent: theirs.value,
            stored: now,
        }))
    }

    /// Only a reset with the expected sequence number counts (RFC 5961 section 3).
    fn receive_reset(&mut self, start: Pos, now: Instant) {
        if start == self.receive.nxt() {
            let is_over = self.state == State::TimeWait;
            self.end(if is_over {
                Outcome::Finished
            } else {
                Outcome::Reset
            });
        } else {
            self.challenge(now);
        }
    }

    /// Handles the acknowledgment. Returns false if the segment is to be ignored.
    fn accept_ack(&mut self, segment: &Segment, start: Pos, now: Instant) -> bool {
        let header = &segment.header;
        if self.send.una() == Pos(0) {
            if self.send.pos(header.ack) != Some(Pos::DATA) || self.send.max() == Pos(0) {
                self.refuse(header);
                return false;
            }
            self.open(segment, start, now);
            return true;
        }
        match self.acceptable_ack(header) {
            Some(ack) => {
                self.acknowledge(segment, ack, start, now);
                true
            }
            None => {
                self.challenge(now);
                false
            }
        }
    }

    /// The window in octets. That of a SYN is never scaled (RFC 7323 section 2.2).
    fn window_of(&self, header: &Tcp) -> u64 {
        let is_syn = header.flags.contains(F::SYN);
        let shift = if is_syn { 0 } else { self.send.shift };
        u64::from(header.window).wrapping_shl(shift.into())
    }

    /// Handles an acceptable acknowledgment of a segment at `seq`.
    fn acknowledge(&mut self, segment: &Segment, ack: Pos, seq: Pos, now: Instant) {
        let header = &segment.header;
        let echo = header.options.timestamps.filter(|_| self.stamps.is_some());
        let rtt = echo.map(|stamps| {
            let ms = self.stamp(now).wrapping_sub(stamps.echo);
            Nanos::from_millis(ms.into())
        });
        let ack = Ack {
            ack,
            seq,
            window: self.window_of(header),
            sack: Some(&header.options.sack).filter(|_| self.sack),
            is_pure: segment.sequence_len() == 0,
            has_congestion_echo: self.ecn
                && header.flags.contains(F::ECE)
                && !header.flags.contains(F::SYN),
            rtt: rtt.filter(|rtt| rtt.0 < Nanos::from_millis(60_000).0),
        };
        if self.send.acknowledge(&ack, now) {
            // It starts again for what is left (RFC 6298 section 5.3).
            self.timers.stop(Timer::Retransmit);
        }
        if self.send.is_fin_acknowledged() {
            self.state = self.state.after(Event::FinAcknowledged);
            if self.state == State::Closed {
                self.end(Outcome::Finished);
            }
        }
    }

    fn receive_data(&mut self, segment: &Segment, start: Pos, owner: &mut impl Receiver) {
        let flags = segment.header.flags;
        if self.ecn {
            if flags.contains(F::CWR) {
                self.congestion_echo = false;
            }
            self.congestion_echo |= segment.congestion_experienced;
        }
        if segment.sequence_len() == 0 {
            return;
        }
        let len = u64::from(segment.len);
        let end = start + len;
        let had_gap = self.receive.has_gap();
        let before = self.receive.nxt();
        let is_next = start <= before;
        let is_new = end > before || flags.contains(F::FIN);
        let arrival = self.receive.accept(start, len, owner);
        if arrival == Arrival::Accepted && flags.contains(F::FIN) {
            self.receive.set_fin(end);
        }
        match arrival {
            // As if lost: what follows is out of order, and causes duplicate acknowledgments.
            Arrival::Refused if is_next && !self.receive.is_closed() => {
                if self.receive.nxt() > before {
                    self.receive.count_segment();
                }
            }
            Arrival::Accepted if is_next && is_new && !had_gap => self.receive.count_segment(),
            // A duplicate, out of order, beyond the window, or it fills a gap (RFC 5681 section 4.2).
            _ => self.receive.request_ack(),
        }
        if self.receive.pass_fin() {
            self.state = self.state.after(Event::FinReceived);
        }
    }

    /// Answers a segment that the peer may not have sent, at a limited rate (RFC 5961).
    fn challenge(&mut self, now: Instant) {
        if self.limit.take(now) {
            self.receive.request_ack();
        }
    }

    /// Answers a segment that acknowledges what was never sent (RFC 9293 section 3.5.2, groups 1 and 2).
    fn refuse(&mut self, header: &Tcp) {
        if !header.flags.contains(F::RST) {
            self.reset = Some((header.ack, F::RST));
        }
    }
}
