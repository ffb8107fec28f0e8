//! The receiving side: octets in and out of order, the window, and the acknowledgments that are due.

use faultline_wire::{SackBlocks, Seq};

use crate::pos::Pos;
use crate::ranges::Ranges;
use crate::segment::{Data, Receiver, Source, Verdict};

/// Ranges out of order. An option has at most four blocks, so the peer learns of few more at a time.
const KEPT_RANGES: usize = 8;

/// Delivered or kept octets, and the window.
///
/// ```text
///          held             kept out of order
///      |=========|          ====    ==
/// -----|---------|--------------------------|------
///    taken      nxt                        edge
/// ```
///
/// Octets before `taken` are the owner's. Octets before `nxt` are acknowledged. The peer may send octets before `edge`, which never moves
/// back, and moves forward with `taken` only: to at most a window, and less than one step of the window field, after `taken`. The field
/// may say less, because its steps begin at `nxt`; octets before `edge` are accepted all the same (RFC 7323 section 2.4).
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    initial: Seq,
    taken: Pos,
    nxt: Pos,
    edge: Pos,
    /// Size of the window in octets.
    window: u32,
    /// Shift count of the window field.
    pub(crate) shift: u8,
    kept: Ranges<KEPT_RANGES>,
    /// The newest octets that are kept out of order: the first block of a selective acknowledgment reports them (RFC 2018 section 4).
    latest: Pos,
    /// Position of the peer's FIN.
    fin: Option<Pos>,
    /// Segments that are not acknowledged yet.
    unacknowledged: u8,
    /// An acknowledgment is due now.
    ack_due: bool,
    /// The last acknowledgment number that was sent (Last.ACK.sent of RFC 7323).
    ack_sent: Pos,
}

/// What has become of the data of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// All octets are acknowledged or kept.
    Accepted,
    /// Octets are lost.
    Refused,
}

impl Receive {
    /// Begins with the peer's SYN.
    pub(crate) fn new(initial: Seq, window: u32, shift: u8) -> Self {
        Self {
            initial,
            taken: Pos::DATA,
            nxt: Pos::DATA,
            edge: Pos::DATA,
            window,
            shift,
            kept: Ranges::default(),
            latest: Pos::DATA,
            fin: None,
            unacknowledged: 0,
            ack_due: false,
            ack_sent: Pos::DATA,
        }
    }

    /// Octets of allocated memory.
    pub(crate) fn allocated(&self) -> usize {
        self.kept.allocated()
    }

    /// The position of a sequence number of the peer.
    pub(crate) fn pos(&self, seq: Seq) -> Option<Pos> {
        self.nxt.near(self.initial, seq)
    }

    /// The next position that is expected (RCV.NXT).
    pub(crate) fn nxt(&self) -> Pos {
        self.nxt
    }

    /// RCV.NXT on the wire.
    pub(crate) fn ack(&self) -> Seq {
        self.nxt.seq(self.initial)
    }

    /// The position after the window.
    pub(crate) fn edge(&self) -> Pos {
        self.edge
    }

    pub(crate) fn ack_sent(&self) -> Pos {
        self.ack_sent
    }

    /// The offset of the first octet that the owner has not taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.offset()
    }

    /// The position after the data that is acknowledged: a FIN is not data.
    fn data_end(&self) -> Pos {
        self.fin.map_or(self.nxt, |fin| self.nxt.min(fin))
    }

    /// True if octets are acknowledged that the owner has not taken.
    pub(crate) fn is_held(&self) -> bool {
        self.taken < self.data_end()
    }

    /// True if the owner has taken all data, and the peer has sent a FIN.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin == Some(self.taken) && self.nxt > self.taken
    }

    /// True if no octet can be accepted: the window is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.edge <= self.nxt
    }

    /// Offers the data of a segment to its owner: the octets `start..start + len` as far as they are in the window.
    pub(crate) fn accept(&mut self, start: Pos, len: u64, owner: &mut impl Receiver) -> Arrival {
        let end = start + len;
        let mut from = start.max(self.nxt);
        let to = self.fin.map_or(end, |fin| end.min(fin)).min(self.edge);
        if from >= to {
            return self.accepted_if(to >= end || end <= self.nxt);
        }
        let at = |from: Pos| Source::Segment {
            at: narrow(from - start),
        };
        while from == self.nxt && from < to && !self.is_held() {
            // As far as the first octet that is kept already, which is not taken twice.
            let stop = self.kept.next_start(from).map_or(to, |next| next.min(to));
            let rest = stop - from;
            match owner.deliver(data(from, rest, at(from))) {
                Verdict::Taken(octets) if octets > 0 => {
                    self.taken = from + rest.min(octets.into());
                    self.nxt = self.taken;
                }
                Verdict::Held => self.nxt = stop,
                Verdict::Taken(_) | Verdict::Refused => return Arrival::Refused,
            }
            self.join(owner);
            from = from.max(self.nxt);
        }
        if from < to && !self.keep(from, to, at, owner) {
            return Arrival::Refused;
        }
        self.accepted_if(to == end)
    }

    fn accepted_if(&self, all: bool) -> Arrival {
        if all {
            Arrival::Accepted
        } else {
            Arrival::Refused
        }
    }

    /// Lets the owner keep `from..to`, except for octets that it has already.
    fn keep(
        &mut self,
        mut from: Pos,
        to: Pos,
        at: impl Fn(Pos) -> Source,
        owner: &mut impl Receiver,
    ) -> bool {
        loop {
            from = self.kept.next_missing(from);
            if from >= to {
                return true;
            }
            let stop = self.kept.next_start(from).map_or(to, |next| next.min(to));
            let continues = from == self.nxt;
            let has_room = continues || self.kept.has_room(from, stop);
            if !has_room || !owner.keep(data(from, stop - from, at(from))) {
                return false;
            }
            if continues {
                self.nxt = stop;
            } else {
                self.kept.insert(from, stop);
                self.latest = from;
            }
            self.join(owner);
            from = stop;
        }
    }

    /// Acknowledges octets that are kept and no longer out of order, and delivers them if nothing is held before them.
    fn join(&mut self, owner: &mut impl Receiver) {
        let was_held = self.is_held();
        let joined = self.kept.next_missing(self.nxt);
        if joined > self.nxt {
            self.nxt = joined;
            self.ack_due = true;
        }
        self.kept.remove_before(self.nxt);
        if !was_held {
            self.deliver_kept(owner);
        }
    }

    /// Delivers the octets that the owner has kept, in order, until it holds some.
    pub(crate) fn deliver_kept(&mut self, owner: &mut impl Receiver) {
        while self.is_held() {
            let rest = self.data_end() - self.taken;
            match owner.deliver(data(self.taken, rest, Source::Kept)) {
                Verdict::Taken(octets) if octets > 0 => {
                    self.taken = self.taken + rest.min(octets.into());
                }
                _ => return,
            }
        }
    }

    /// A FIN follows octets that were accepted. Only the first one counts.
    pub(crate) fn set_fin(&mut self, fin: Pos) {
        let is_last = self
            .kept
            .as_slice()
            .last()
            .is_none_or(|kept| kept.end <= fin);
        if fin >= self.nxt && fin <= self.edge && is_last {
            self.fin.get_or_insert(fin);
        }
    }

    /// Passes the FIN if all octets before it are acknowledged. Returns true once.
    pub(crate) fn pass_fin(&mut self) -> bool {
        let passes = self.fin == Some(self.nxt);
        if passes {
            self.nxt = self.nxt + 1;
            self.ack_due = true;
        }
        passes
    }

    /// True if octets after the next expected one are kept.
    pub(crate) fn has_gap(&self) -> bool {
        !self.kept.as_slice().is_empty()
    }

    /// Requests an acknowledgment now.
    pub(crate) fn request_ack(&mut self) {
        self.ack_due = true;
    }

    /// Counts a segment that may be acknowledged later. Every second one is acknowledged now (RFC 9293 section 3.8.6.3).
    pub(crate) fn count_segment(&mut self) {
        self.unacknowledged = self.unacknowledged.saturating_add(1);
        self.ack_due |= self.unacknowledged >= 2;
    }

    pub(crate) fn is_ack_due(&self) -> bool {
        self.ack_due
    }

    /// True if a segment may be acknowledged later. An acknowledgment that is due leaves with the next poll, and needs no timer.
    pub(crate) fn is_ack_delayed(&self) -> bool {
        self.unacknowledged > 0 && !self.ack_due
    }

    /// The delay of an acknowledgment is over.
    pub(crate) fn end_delay(&mut self) {
        self.ack_due |= self.unacknowledged > 0;
    }

    /// The right edge that the window would have now. It moves only by a useful amount (RFC 9293 section 3.8.6.2.2).
    fn next_edge(&self, mss: u64) -> Pos {
        let edge = self.taken + u64::from(self.window);
        let step = (u64::from(self.window) / 2).min(mss).max(1);
        if edge - self.edge >= step {
            edge
        } else {
            self.edge
        }
    }

    /// True if a new window is worth a segment.
    pub(crate) fn can_open(&self, mss: u64) -> bool {
        self.next_edge(mss) > self.edge
    }

    /// The value of the window field of a segment that is sent now. `shift` is 0 in a SYN. The segment acknowledges everything that has
    /// arrived, unless it lacks `sack` blocks that are due.
    pub(crate) fn advertise(&mut self, mss: u64, shift: u8, with_sack: bool) -> u16 {
        let edge = self.next_edge(mss);
        let octets = |field: u64| field.wrapping_shl(shift.into());
        let mut field = (edge - self.nxt).wrapping_shr(shift.into()).min(0xffff);
        // Not less than before, unless rounding up again and again would keep the window open while nothing is taken.
        let step = octets(1).saturating_sub(1);
        let limit = self.taken + u64::from(self.window) + step;
        let next = field.saturating_add(1);
        if self.nxt + octets(field) < self.edge && self.nxt + octets(next) <= limit {
            field = next.min(0xffff);
        }
        self.edge = self.edge.max(self.nxt + octets(field));
        self.ack_sent = self.nxt;
        self.unacknowledged = 0;
        self.ack_due &= self.has_gap() && !with_sack;
        (field & 0xffff) as u16
    }

    /// The blocks of a selective acknowledgment: first the one with the newest octets, then the others (RFC 2018 section 4).
    pub(crate) fn sack_blocks(&self, max: usize) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let is_latest =
            |range: &&crate::ranges::Range| range.start <= self.latest && self.latest < range.end;
        let ranges = self.kept.as_slice().iter();
        let ordered = ranges
            .clone()
            .filter(is_latest)
            .chain(ranges.filter(|range| !is_latest(range)));
        for range in ordered.take(max) {
            blocks.push(range.start.seq(self.initial), range.end.seq(self.initial));
        }
        blocks
    }
}

fn data(from: Pos, len: u64, source: Source) -> Data {
    Data {
        offset: from.offset(),
        len: narrow(len),
        source,
    }
}

/// Lengths are below 2^30, the largest window.
fn narrow(len: u64) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
