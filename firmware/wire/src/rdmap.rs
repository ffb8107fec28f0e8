//! RDMAP, the RDMA protocol of iWARP (RFC 5040), with the atomics and immediate data of RFC 7306.
//!
//! The control octet is in the DDP header. READ requests, atomics and Terminate have a header of their own after it.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::WireError;
use crate::cursor::{Reader, Writer, fits, tail, tail_mut};
use crate::ddp::{self, Ddp, queue};
pub use crate::terminate_code::TerminateCode;

/// The version of RDMAP (RFC 5040 section 4.1).
pub const RDMAP_VERSION: u8 = 1;

/// Octets of immediate data (RFC 7306 section 6.1).
pub const IMMEDIATE_LEN: usize = 8;

/// A message type (RFC 5040 section 4.2, RFC 7306 sections 5.1 and 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RdmapOpcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data.
    Immediate = 8,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited = 9,
    /// Atomic Request.
    AtomicRequest = 10,
    /// Atomic Response.
    AtomicResponse = 11,
}

impl RdmapOpcode {
    /// All message types, in ascending order of their codes.
    pub const ALL: [Self; 12] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
        Self::Immediate,
        Self::ImmediateSolicited,
        Self::AtomicRequest,
        Self::AtomicResponse,
    ];

    /// The message type of a code; `None` if it is reserved.
    pub fn from_u8(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The queue of an untagged message; `None` for a tagged one (RFC 5040 figure 4, RFC 7306 figure 4).
    pub const fn queue(self) -> Option<u32> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::ReadRequest | Self::AtomicRequest => Some(queue::READ_REQUEST),
            Self::Terminate => Some(queue::TERMINATE),
            Self::AtomicResponse => Some(queue::ATOMIC_RESPONSE),
            _ => Some(queue::SEND),
        }
    }

    /// True if the message invalidates an STag.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// True if the message requests an event at the receiver.
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited
        )
    }
}

/// The control octet of RDMAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RdmapControl {
    /// Version, 2 bits; [`RDMAP_VERSION`] is the only one defined.
    pub version: u8,
    /// Code of the message type, 4 bits, see [`RdmapOpcode::from_u8`].
    pub opcode: u8,
}

impl RdmapControl {
    /// The control octet of a message.
    pub const fn new(opcode: RdmapOpcode) -> Self {
        Self {
            version: RDMAP_VERSION,
            opcode: opcode as u8,
        }
    }

    /// Reads the octet. Reserved bits are ignored.
    pub const fn from_u8(octet: u8) -> Self {
        Self {
            version: octet >> 6,
            opcode: octet & 0xf,
        }
    }

    /// The octet, of the low bits of both fields.
    pub const fn to_u8(self) -> u8 {
        (self.version & 3) << 6 | self.opcode & 0xf
    }
}

/// The header of an RDMA Read Request (RFC 5040 section 4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// STag and tagged offset of the buffer that receives the data.
    pub sink: (u32, u64),
    /// Octets to read.
    pub len: u32,
    /// STag and tagged offset of the buffer to read.
    pub source: (u32, u64),
}

impl ReadRequest {
    /// Length in octets.
    pub const LEN: usize = 28;

    /// Reads a header; returns it and its length.
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let request = Self {
            sink: (r.u32()?, r.u64()?),
            len: r.u32()?,
            source: (r.u32()?, r.u64()?),
        };
        Ok((request, Self::LEN))
    }

    /// Writes the header; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.u32(self.sink.0)?;
        w.u64(self.sink.1)?;
        w.u32(self.len)?;
        w.u32(self.source.0)?;
        w.u64(self.source.1)?;
        Ok(Self::LEN)
    }

    /// The tagged offsets after the data in the sink and in the source. An error is the code to terminate the stream with: one of them
    /// wraps around (RFC 5040 section 4.8).
    pub fn ends(&self) -> Result<(u64, u64), TerminateCode> {
        let end = |offset: u64| offset.checked_add(self.len.into());
        let ends = end(self.sink.1).zip(end(self.source.1));
        ends.ok_or(TerminateCode::RDMAP_OFFSET_WRAP)
    }
}

/// Codes of atomic operations (RFC 7306 section 5.2.1).
pub mod atomic_op {
    /// Adds.
    pub const FETCH_ADD: u8 = 0;
    /// Replaces.
    pub const SWAP: u8 = 1;
    /// Compares and replaces.
    pub const COMPARE_SWAP: u8 = 2;
}

/// The header of an Atomic Request (RFC 7306 section 5.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicRequest {
    /// Operation, 4 bits, see [`atomic_op`].
    pub operation: u8,
    /// Number that the response repeats.
    pub id: u32,
    /// The buffer.
    pub stag: u32,
    /// Tagged offset of 8 octets in the buffer.
    pub offset: u64,
    /// Value to add or to store.
    pub data: u64,
    /// Bits of `data` to store; for an addition, highest bits of its fields.
    pub mask: u64,
    /// Value to compare with.
    pub compare: u64,
    /// Bits to compare.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Length in octets.
    pub const LEN: usize = 52;

    /// Reads a header; returns it and its length. Reserved bits are ignored.
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let request = Self {
            operation: (r.u32()? & 0xf) as u8,
            id: r.u32()?,
            stag: r.u32()?,
            offset: r.u64()?,
            data: r.u64()?,
            mask: r.u64()?,
            compare: r.u64()?,
            compare_mask: r.u64()?,
        };
        Ok((request, Self::LEN))
    }

    /// Writes the header; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        fits("operation", self.operation.into(), 4)?;
        let mut w = Writer::new(out, Self::LEN)?;
        w.u32(self.operation.into())?;
        w.u32(self.id)?;
        w.u32(self.stag)?;
        w.u64(self.offset)?;
        w.u64(self.data)?;
        w.u64(self.mask)?;
        w.u64(self.compare)?;
        w.u64(self.compare_mask)?;
        Ok(Self::LEN)
    }
}

/// The header of an Atomic Response (RFC 7306 section 5.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicResponse {
    /// The number of the request.
    pub id: u32,
    /// The value before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Length in octets.
    pub const LEN: usize = 12;

    /// Reads a header; returns it and its length.
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let response = Self {
            id: r.u32()?,
            original: r.u64()?,
        };
        Ok((response, Self::LEN))
    }

    /// Writes the header; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.u32(self.id)?;
        w.u64(self.original)?;
        Ok(Self::LEN)
    }
}

/// A Terminate message (RFC 5040 section 4.8): the reason, and the headers of the message that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate<'a> {
    /// The reason.
    pub code: TerminateCode,
    /// Length of the DDP segment that caused it, if that is known and valid.
    pub segment_len: Option<u16>,
    /// Its DDP header: empty, or as long as a tagged or untagged header.
    pub ddp_header: &'a [u8],
    /// Its RDMAP header, of a READ request: empty, or [`ReadRequest::LEN`] octets.
    pub rdmap_header: &'a [u8],
}

/// The bits of the field HdrCt, in the third octet.
const HAS_LEN: u8 = 0x80;
const HAS_DDP: u8 = 0x40;
const HAS_RDMAP: u8 = 0x20;

impl<'a> Terminate<'a> {
    /// Length of the control field in octets.
    const CONTROL_LEN: usize = 4;

    /// Length of the message in octets. Without a segment length, the field is absent.
    pub fn message_len(&self) -> usize {
        let len = if self.segment_len.is_some() { 2 } else { 0 };
        let headers = self
            .ddp_header
            .len()
            .saturating_add(self.rdmap_header.len());
        headers
            .saturating_add(len)
            .saturating_add(Self::CONTROL_LEN)
    }

    /// Reads a message; returns it and its length. Reserved bits are ignored. The length of the DDP header follows from its first bit.
    pub fn parse(buf: &'a [u8]) -> Result<(Self, usize), WireError> {
        let (control, rest) = split(buf, Self::CONTROL_LEN)?;
        let [first, code, headers, _] = Reader::new(control, Self::CONTROL_LEN)?.take()?;
        let code = TerminateCode {
            layer: first >> 4,
            error_type: first & 0xf,
            code,
        };
        let (segment_len, rest) = match headers & HAS_LEN {
            0 => (None, rest),
            _ => (Some(Reader::new(rest, 2)?.u16()?), tail(rest, 2)),
        };
        let ddp_len = match headers & HAS_DDP {
            0 => 0,
            _ => ddp_header_len(rest),
        };
        let (ddp_header, rest) = split(rest, ddp_len)?;
        let rdmap_len = if headers & HAS_RDMAP == 0 {
            0
        } else {
            ReadRequest::LEN
        };
        let (rdmap_header, _) = split(rest, rdmap_len)?;
        let terminate = Self {
            code,
            segment_len,
            ddp_header,
            rdmap_header,
        };
        Ok((terminate, terminate.message_len()))
    }

    /// Writes the message; returns its length. A header of another length than its kind has is refused, because nobody could read it.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        check_len(self.ddp_header, ddp_header_len(self.ddp_header))?;
        check_len(self.rdmap_header, ReadRequest::LEN)?;
        let TerminateCode {
            layer,
            error_type,
            code,
        } = self.code;
        fits("layer", layer.into(), 4)?;
        fits("error_type", error_type.into(), 4)?;
        let len = self.message_len();
        let mut w = Writer::new(out, len)?;
        let bit = |present: bool, bit: u8| if present { bit } else { 0 };
        let headers = bit(self.segment_len.is_some(), HAS_LEN)
            | bit(!self.ddp_header.is_empty(), HAS_DDP)
            | bit(!self.rdmap_header.is_empty(), HAS_RDMAP);
        w.put([layer << 4 | error_type, code, headers, 0])?;
        if let Some(segment_len) = self.segment_len {
            w.u16(segment_len)?;
        }
        let at = len.saturating_sub(
            self.ddp_header
                .len()
                .saturating_add(self.rdmap_header.len()),
        );
        let octets = self.ddp_header.iter().chain(self.rdmap_header);
        for (out, octet) in tail_mut(out, at).iter_mut().zip(octets) {
            *out = *octet;
        }
        Ok(len)
    }
}

/// The length of the DDP header that begins with these octets.
fn ddp_header_len(header: &[u8]) -> usize {
    match header.first() {
        Some(control) if control & ddp::TAGGED != 0 => Ddp::TAGGED_LEN,
        _ => Ddp::UNTAGGED_LEN,
    }
}

/// Returns an error unless `header` is empty or has `len` octets.
fn check_len(header: &[u8], len: usize) -> Result<(), WireError> {
    let declared = header.len();
    if declared == 0 || declared == len {
        Ok(())
    } else {
        Err(WireError::BadLength {
            declared,
            available: len,
        })
    }
}

/// The first `len` octets of `buf`, and the rest.
fn split(buf: &[u8], len: usize) -> Result<(&[u8], &[u8]), WireError> {
    let have = buf.len();
    buf.split_at_checked(len)
        .ok_or(WireError::Truncated { need: len, have })
}
