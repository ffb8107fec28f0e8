//! Segments that arrive and leave, and the decisions about their data.

use faultline_wire::{Seq, Tcp, TcpFlags};

/// A segment that has arrived, with a right checksum, for this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The header.
    pub header: Tcp,
    /// Octets of data.
    pub len: u32,
    /// The IP header has the code point "congestion experienced" (RFC 3168).
    pub congestion_experienced: bool,
}

impl Segment {
    /// The number of sequence numbers that the segment occupies.
    pub(crate) fn sequence_len(&self) -> u64 {
        let flags = self.header.flags;
        let syn = u64::from(flags.contains(TcpFlags::SYN));
        let fin = u64::from(flags.contains(TcpFlags::FIN));
        syn.saturating_add(fin).saturating_add(self.len.into())
    }
}

/// A segment to send: a header without checksum, and octets that the owner of the connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header. Its checksum is 0.
    pub header: Tcp,
    /// Offset of the first octet of data in the stream.
    pub offset: u64,
    /// Octets of data.
    pub len: u32,
    /// The IP header shall have the code point ECT(0) (RFC 3168).
    pub ecn_capable: bool,
    /// All of the segment has been sent before.
    pub is_retransmission: bool,
}

/// Octets that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Offset of the first octet in the stream of the peer.
    pub offset: u64,
    /// Number of octets.
    pub len: u32,
    /// Where the octets are.
    pub source: Source,
}

/// Where the octets of [`Data`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the segment that is being received.
    Segment {
        /// Offset of the first octet in the segment's data.
        at: u32,
    },
    /// With the owner, which has kept them ([`Receiver::keep`], [`Verdict::Held`]).
    Kept,
}

/// Decision about octets in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The owner has used this number of octets, at least one. They are acknowledged. The connection delivers the rest again,
    /// at once.
    Taken(u32),
    /// The octets are not acknowledged: for the peer they are lost. It retransmits them and reduces its congestion window. Octets that
    /// the owner has [kept](Source::Kept) cannot be refused, because the peer no longer has them; they are held.
    Refused,
    /// The owner has a copy of all these octets and cannot use them yet. They are acknowledged. The right edge of the window stays, so
    /// the window closes, until [`Connection::resume`](crate::Connection::resume).
    Held,
}

/// The owner of a connection, while a segment is received.
pub trait Receiver {
    /// Decides about octets in order. No octet before them is held.
    fn deliver(&mut self, data: Data) -> Verdict;

    /// Decides whether to keep a copy of octets that cannot be delivered yet: octets before them are missing or held. Returns true if
    /// it has one. Otherwise the octets are lost, as if refused.
    fn keep(&mut self, data: Data) -> bool;
}

/// The reset that answers a segment for no connection (RFC 9293 section 3.10.7.1); `None` if the segment is a reset.
pub fn reset_for(segment: &Segment) -> Option<Transmit> {
    let header = &segment.header;
    if header.flags.contains(TcpFlags::RST) {
        return None;
    }
    let (seq, ack, flags) = if header.flags.contains(TcpFlags::ACK) {
        (header.ack, Seq(0), TcpFlags::RST)
    } else {
        let len = (segment.sequence_len() & 0xffff_ffff) as u32;
        (Seq(0), header.seq.add(len), TcpFlags::RST | TcpFlags::ACK)
    };
    Some(Transmit {
        header: Tcp {
            src_port: header.dst_port,
            dst_port: header.src_port,
            seq,
            ack,
            flags,
            ..Tcp::default()
        },
        offset: 0,
        len: 0,
        ecn_capable: false,
        is_retransmission: false,
    })
}
