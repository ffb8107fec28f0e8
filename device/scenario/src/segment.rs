//! TCP segments of iWARP connections, as rules see them.
//!
//! A frame says what it is without its connection: a segment that begins with a whole FPDU has the right CRC at its end.

use faultline_wire::ddp::{Ddp, DdpTarget};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::mpa::{Crc32c, Fpdu, MpaSetup};
use faultline_wire::rdmap::{RdmapControl, RdmapOpcode};
use faultline_wire::{Ethernet, Gid, Ip, Seq, Tcp, TcpFlags};

use crate::value::Range;

/// Kinds of segments: a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentKinds(u32);

impl SegmentKinds {
    /// None.
    pub const NONE: Self = Self(0);
    /// All TCP segments.
    pub const ALL: Self = Self(u32::MAX);
    /// With SYN.
    pub const SYN: Self = Self(1 << 16);
    /// With FIN.
    pub const FIN: Self = Self(1 << 17);
    /// With RST.
    pub const RST: Self = Self(1 << 18);
    /// Without data, SYN, FIN and RST.
    pub const ACK: Self = Self(1 << 19);
    /// With an MPA request or reply.
    pub const SETUP: Self = Self(1 << 20);
    /// With other data.
    const DATA: Self = Self(1 << 21);

    /// Segments that begin with a whole FPDU of one of these message types.
    pub fn of_messages(opcodes: &[RdmapOpcode]) -> Self {
        let bits = opcodes
            .iter()
            .map(|opcode| 1_u32.wrapping_shl((*opcode as u8).into()));
        Self(bits.fold(0, |all, bit| all | bit))
    }

    /// True if there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kinds of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if both sets have one kind.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Both ends of a connection: the sender's address and port, and the receiver's.
pub(crate) type Ends = [(Gid, u16); 2];

/// What rules look at in a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    pub(crate) ends: Ends,
    pub(crate) kinds: SegmentKinds,
    pub(crate) seq: Seq,
    pub(crate) is_syn: bool,
    /// Where the data of the FPDU goes with which it begins.
    target: Option<DdpTarget>,
}

impl SegmentFacts {
    /// Parses a frame. `None`: it is no TCP segment.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (_, at_ip) = Ethernet::parse(frame).ok()?;
        let (ip, ip_len) = Ip::parse(frame.get(at_ip..)?).ok()?;
        if ip.protocol() != PROTOCOL_TCP {
            return None;
        }
        let at_tcp = at_ip.checked_add(ip_len)?;
        let l4 = frame.get(at_tcp..)?.get(..ip.payload_len())?;
        let (tcp, at_data) = Tcp::parse(l4).ok()?;
        let data = l4.get(at_data..).unwrap_or_default();
        let message = first_message(data);
        let flags = tcp.flags;
        let mut kinds = match &message {
            Some((opcode, _)) => SegmentKinds::of_messages(&[*opcode]),
            None if MpaSetup::parse(data).is_ok() => SegmentKinds::SETUP,
            None if !data.is_empty() => SegmentKinds::DATA,
            None => SegmentKinds::default(),
        };
        for (flag, kind) in [
            (TcpFlags::SYN, SegmentKinds::SYN),
            (TcpFlags::FIN, SegmentKinds::FIN),
            (TcpFlags::RST, SegmentKinds::RST),
        ] {
            if flags.contains(flag) {
                kinds = kinds.union(kind);
            }
        }
        if kinds.is_empty() {
            kinds = SegmentKinds::ACK;
        }
        Some(Self {
            ends: [(ip.src_gid(), tcp.src_port), (ip.dst_gid(), tcp.dst_port)],
            kinds,
            seq: tcp.seq,
            is_syn: flags.contains(TcpFlags::SYN),
            target: message.map(|(_, target)| target),
        })
    }
}

/// Message type and target of the FPDU with which the data of a segment begins, if it is whole.
fn first_message(data: &[u8]) -> Option<(RdmapOpcode, DdpTarget)> {
    let (fpdu, at) = Fpdu::parse(data).ok()?;
    let (covered, crc) = data
        .get(..fpdu.len())?
        .split_last_chunk::<{ Fpdu::CRC_LEN }>()?;
    let (ddp, _) = Ddp::parse(covered.get(at..)?).ok()?;
    let opcode = RdmapOpcode::from_u8(RdmapControl::from_u8(ddp.upper_control).opcode)?;
    let mut sum = Crc32c::default();
    sum.update(covered);
    (sum.finish().to_le_bytes() == *crc).then_some((opcode, ddp.target))
}

/// Which segments match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentMatch {
    /// Offset in the stream of its first octet.
    pub offset: Option<Range>,
    /// Queue of the message.
    pub queue: Option<u32>,
    /// Message sequence number.
    pub msn: Option<Range>,
    /// STag that the message names: the tagged buffer, or the one to invalidate.
    pub stag: Option<u32>,
}

impl SegmentMatch {
    /// True if a segment matches. `offset`: that of its first octet.
    pub(crate) fn fits(&self, segment: &SegmentFacts, offset: Option<u32>) -> bool {
        let (stag, queue, msn) = match segment.target {
            Some(DdpTarget::Tagged { stag, .. }) => (Some(stag), None, None),
            Some(DdpTarget::Untagged {
                upper, queue, msn, ..
            }) => (Some(upper), Some(queue), Some(msn)),
            None => (None, None, None),
        };
        let is_in = |range: Range, value: Option<u32>| {
            value.is_some_and(|value| range.contains(value.into()))
        };
        self.offset.is_none_or(|only| is_in(only, offset))
            && self.queue.is_none_or(|only| queue == Some(only))
            && self.msn.is_none_or(|only| is_in(only, msn))
            && self.stag.is_none_or(|only| stag == Some(only))
    }
}
