//! One direction of a connection: what one end sends.

use std::collections::{BTreeMap, VecDeque};

use faultline_wire::mpa::MpaRole;
use faultline_wire::rdmap::ReadRequest;
use faultline_wire::{Seq, Tcp, TcpFlags};

use super::fpdus::Fpdus;
use super::messages::Messages;
use super::segment::{Octets, Segment};
use super::setup::Setup;
use crate::flow::Sender;
use crate::memory;

/// Requests of one end that are not answered; of further ones, answers are not judged.
pub(crate) const REQUEST_LIMIT: usize = 1 << 10;
/// FPDUs that may be sent again; repetitions of older ones are not compared.
const SENT_LIMIT: usize = 512;
/// Octets that are kept until those before them are seen.
const EARLY_LIMIT: usize = 64 << 10;
/// Largest shift count of a window field (RFC 7323 section 2.3).
const MAX_SHIFT: u8 = 14;
/// Maximum segment size if a SYN states none (RFC 9293, MUST-15: IPv4; the larger one of IPv6).
const DEFAULT_MSS: u16 = 1220;
/// Octets of the timestamps option with its padding.
const TIMESTAMPS_LEN: u16 = 12;

/// What a SYN offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Syn {
    pub isn: Seq,
    pub mss: Option<u16>,
    pub shift: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
}

impl Syn {
    pub(crate) fn of(tcp: &Tcp) -> Self {
        Self {
            isn: tcp.seq,
            mss: tcp.options.mss,
            shift: tcp.options.window_scale,
            sack: tcp.options.sack_permitted,
            timestamps: tcp.options.timestamps.is_some(),
        }
    }

    /// The position of a sequence number that is near another position: 0 is the SYN, 1 the first octet of data. `None`: before the SYN.
    pub(crate) fn position(&self, near: u64, seq: Seq) -> Option<u64> {
        let low = u32::try_from(near & u64::from(u32::MAX)).unwrap_or(0);
        let distance = seq.diff(self.isn.add(low));
        near.checked_add_signed(distance.into())
    }
}

/// What the data of a direction is.
#[derive(Debug)]
pub(crate) enum Stream {
    /// The first octets of a setup frame.
    Setup(Vec<u8>),
    Fpdus(Fpdus),
    /// The connection was rejected: nothing follows.
    Rejected,
    /// It is not judged any more.
    Lost,
}

/// An FPDU that may be sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentFpdu {
    pub start: u64,
    pub digest: u32,
}

/// Data that was sent before octets that were not seen.
#[derive(Debug)]
pub(crate) struct Early {
    known: Vec<u8>,
    pub len: usize,
    pub is_fin: bool,
}

impl Early {
    /// The part from `skip` octets on.
    pub(crate) fn rest(&self, skip: usize) -> Octets<'_> {
        Octets {
            known: self.known.get(skip..).unwrap_or_default(),
            len: self.len.saturating_sub(skip),
        }
    }
}

/// What one end sends.
#[derive(Debug)]
pub(crate) struct Side {
    pub sender: Sender,
    /// All segments of the end are seen, where it sends them.
    pub is_exact: bool,
    pub syn: Option<Syn>,
    /// The position after the last octet, SYN or FIN that was sent.
    pub next: u64,
    /// The position of the FIN.
    pub fin: Option<u64>,
    pub is_reset: bool,
    /// The position of the peer up to which this end has acknowledged.
    pub acked: u64,
    /// The right edge of the window that the peer has announced; 0: not known.
    pub edge: u64,
    pub setup: Option<Setup>,
    pub stream: Stream,
    pub messages: Messages,
    /// READ requests without a whole response.
    pub reads: VecDeque<ReadRequest>,
    /// Octets of the response to the first of these.
    pub read_done: u32,
    /// Numbers of atomics without a response.
    pub atomics: VecDeque<u32>,
    /// There were too many requests: responses are not judged.
    pub is_unsure: bool,
    sent: VecDeque<SentFpdu>,
    early: BTreeMap<u64, Early>,
}

impl Default for Side {
    fn default() -> Self {
        Self {
            sender: Sender::Unknown,
            is_exact: false,
            syn: None,
            next: 0,
            fin: None,
            is_reset: false,
            acked: 0,
            edge: 0,
            setup: None,
            stream: Stream::Setup(Vec::new()),
            messages: Messages::default(),
            reads: VecDeque::new(),
            read_done: 0,
            atomics: VecDeque::new(),
            is_unsure: false,
            sent: VecDeque::new(),
            early: BTreeMap::new(),
        }
    }
}

impl Side {
    /// The setup frame of this end.
    pub(crate) fn role(index: usize) -> MpaRole {
        match index {
            0 => MpaRole::Request,
            _ => MpaRole::Reply,
        }
    }

    /// True if its data is judged.
    pub(crate) fn is_followed(&self) -> bool {
        !matches!(self.stream, Stream::Lost)
    }

    /// Ends the judgement of its data.
    pub(crate) fn lose(&mut self) {
        self.stream = Stream::Lost;
        self.early = BTreeMap::new();
        self.sent = VecDeque::new();
        self.reads = VecDeque::new();
        self.atomics = VecDeque::new();
    }

    /// Ends the judgement of the responses to its requests.
    pub(crate) fn stop_requests(&mut self) {
        self.is_unsure = true;
        self.reads = VecDeque::new();
        self.atomics = VecDeque::new();
    }

    /// Requests that are not answered.
    pub(crate) fn outstanding(&self) -> usize {
        self.reads.len().saturating_add(self.atomics.len())
    }

    /// Octets of data and options of a full segment of the peer (RFC 6691).
    pub(crate) fn mss(&self) -> u16 {
        self.syn.and_then(|syn| syn.mss).unwrap_or(DEFAULT_MSS)
    }

    /// Octets of data of its longest segment to `peer`: the EMSS of RFC 5044.
    pub(crate) fn emss(&self, peer: &Self) -> u16 {
        let has_stamps = |side: &Self| side.syn.is_some_and(|syn| syn.timestamps);
        let options = match has_stamps(self) && has_stamps(peer) {
            true => TIMESTAMPS_LEN,
            false => 0,
        };
        peer.mss().saturating_sub(options)
    }

    /// A segment of `peer` has arrived: it announces a window.
    pub(crate) fn announced(&mut self, peer: &Self, tcp: &Tcp) {
        let Some(own) = self.syn else {
            return;
        };
        let is_syn = tcp.flags.contains(TcpFlags::SYN);
        let shift = match (is_syn, own.shift, peer.syn.and_then(|syn| syn.shift)) {
            (false, Some(_), Some(shift)) => shift.min(MAX_SHIFT),
            _ => 0,
        };
        let window = u64::from(tcp.window).wrapping_shl(shift.into());
        let ack = match tcp.flags.contains(TcpFlags::ACK) {
            true => own.position(self.next, tcp.ack),
            // The data begins behind the SYN.
            false => is_syn.then_some(1),
        };
        if let Some(ack) = ack {
            self.edge = self.edge.max(ack.saturating_add(window));
        }
    }

    /// Remembers an FPDU that was sent.
    pub(crate) fn remember(&mut self, fpdu: SentFpdu) {
        if self.sent.len() >= SENT_LIMIT {
            self.sent.pop_front();
        }
        self.sent.push_back(fpdu);
    }

    /// The peer has acknowledged up to this position.
    pub(crate) fn forget_until(&mut self, position: u64) {
        while let [_, second, ..] = self.sent.make_contiguous()
            && second.start <= position
        {
            self.sent.pop_front();
        }
    }

    /// The FPDU that was sent at this position.
    pub(crate) fn sent_at(&self, position: u64) -> Option<SentFpdu> {
        let at = self.sent.partition_point(|fpdu| fpdu.start < position);
        let found = self.sent.get(at)?;
        (found.start == position).then_some(*found)
    }

    /// A FIN is behind the octets up to `position`.
    pub(crate) fn end_at(&mut self, position: u64) {
        if self.fin.is_none() {
            self.fin = Some(position);
            self.next = self.next.max(position.saturating_add(1));
        }
    }

    /// Keeps data or a FIN that was sent before octets that were not seen. Returns false if there is no room.
    pub(crate) fn keep(&mut self, position: u64, segment: &Segment<'_>) -> bool {
        let is_fin = segment.tcp.flags.contains(TcpFlags::FIN);
        if segment.len == 0 && !is_fin {
            return true;
        }
        // Of segments with the same begin, the longest one has all octets.
        if let Some(before) = self.early.get_mut(&position)
            && before.len >= segment.len
        {
            before.is_fin |= is_fin && before.len == segment.len;
            return true;
        }
        let kept = self.early.values().map(|early| early.len);
        let all = kept.fold(segment.len, usize::saturating_add);
        if all > EARLY_LIMIT || self.early.len() >= SENT_LIMIT {
            return false;
        }
        let early = Early {
            known: segment.data.to_vec(),
            len: segment.len,
            is_fin,
        };
        self.early.insert(position, early);
        true
    }

    /// Takes kept data that can be judged now, with its position.
    pub(crate) fn take_kept(&mut self) -> Option<(u64, Early)> {
        let (position, _) = self.early.first_key_value()?;
        if *position > self.next {
            return None;
        }
        self.early.pop_first()
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        let stream = match &self.stream {
            Stream::Setup(octets) => octets.capacity(),
            Stream::Fpdus(fpdus) => fpdus.heap(),
            Stream::Rejected | Stream::Lost => 0,
        };
        let early = self.early.values().map(|early| early.known.capacity());
        let lists = [
            memory::array::<ReadRequest>(self.reads.capacity()),
            memory::array::<u32>(self.atomics.capacity()),
            memory::array::<SentFpdu>(self.sent.capacity()),
            memory::map::<u64, Early>(self.early.len()),
        ];
        early.chain(lists).fold(stream, usize::saturating_add)
    }
}
