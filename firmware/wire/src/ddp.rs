//! DDP, direct data placement (RFC 5041): the headers of tagged and untagged segments.
//!
//! A DDP segment is the ULPDU of one FPDU. Its header contains the control octet of RDMAP, which [`crate::rdmap`] reads.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::WireError;
use crate::cursor::{Reader, Writer, fits};
use crate::terminate_code::TerminateCode;

/// The version of DDP (RFC 5041 section 4.1).
pub const DDP_VERSION: u8 = 1;

/// The bit of a tagged segment in the first octet.
pub(crate) const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION: u8 = 0x03;

/// Queue numbers of untagged messages (RFC 5040 section 4.3, RFC 7306 section 5.1).
pub mod queue {
    /// Send messages and immediate data.
    pub const SEND: u32 = 0;
    /// READ requests and atomic requests.
    pub const READ_REQUEST: u32 = 1;
    /// Terminate.
    pub const TERMINATE: u32 = 2;
    /// Atomic responses.
    pub const ATOMIC_RESPONSE: u32 = 3;
}

/// Where the data of a segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DdpTarget {
    /// A buffer that the receiver has advertised (RFC 5041 section 4.2).
    Tagged {
        /// The buffer.
        stag: u32,
        /// Offset in the buffer: for RDMA, an address.
        offset: u64,
    },
    /// The next buffer of a queue (RFC 5041 section 4.3).
    Untagged {
        /// 32 bits of the upper layer: the STag to invalidate.
        upper: u32,
        /// Queue number, see [`queue`].
        queue: u32,
        /// Message sequence number, from 1.
        msn: u32,
        /// Offset in the message.
        offset: u32,
    },
}

/// The header of a DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ddp {
    /// The segment ends its message.
    pub last: bool,
    /// Version, 2 bits; [`DDP_VERSION`] is the only one defined.
    pub version: u8,
    /// The control octet of the upper layer, RDMAP.
    pub upper_control: u8,
    /// Where the data goes.
    pub target: DdpTarget,
}

impl Ddp {
    /// Length of a tagged header in octets.
    pub const TAGGED_LEN: usize = 14;
    /// Length of an untagged header in octets, which is the longer one.
    pub const UNTAGGED_LEN: usize = 18;

    /// Length of this header in octets.
    pub const fn header_len(&self) -> usize {
        match self.target {
            DdpTarget::Tagged { .. } => Self::TAGGED_LEN,
            DdpTarget::Untagged { .. } => Self::UNTAGGED_LEN,
        }
    }

    /// The offset after `len` octets of payload (TO + len or MO + len). An error is the code to terminate the stream with: the offset
    /// wraps around (RFC 5041 section 7.1).
    pub fn end(&self, len: u32) -> Result<u64, TerminateCode> {
        match self.target {
            DdpTarget::Tagged { offset, .. } => offset
                .checked_add(len.into())
                .ok_or(TerminateCode::DDP_TAGGED_OFFSET_WRAP),
            DdpTarget::Untagged { offset, .. } => offset
                .checked_add(len)
                .map(u64::from)
                .ok_or(TerminateCode::DDP_UNTAGGED_OFFSET),
        }
    }

    /// Reads a header; returns it and its length. Accepts any `version`: an error has to be answered with it. Reserved bits are ignored.
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let control = Reader::new(buf, 1)?.u8()?;
        let is_tagged = control & TAGGED != 0;
        let len = if is_tagged {
            Self::TAGGED_LEN
        } else {
            Self::UNTAGGED_LEN
        };
        let mut r = Reader::new(buf, len)?;
        r.u8()?;
        let upper_control = r.u8()?;
        let target = if is_tagged {
            DdpTarget::Tagged {
                stag: r.u32()?,
                offset: r.u64()?,
            }
        } else {
            DdpTarget::Untagged {
                upper: r.u32()?,
                queue: r.u32()?,
                msn: r.u32()?,
                offset: r.u32()?,
            }
        };
        let ddp = Self {
            last: control & LAST != 0,
            version: control & VERSION,
            upper_control,
            target,
        };
        Ok((ddp, len))
    }

    /// Writes the header; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        fits("version", self.version.into(), 2)?;
        let len = self.header_len();
        let mut w = Writer::new(out, len)?;
        let last = if self.last { LAST } else { 0 };
        match self.target {
            DdpTarget::Tagged { stag, offset } => {
                w.put([TAGGED | last | self.version, self.upper_control])?;
                w.u32(stag)?;
                w.u64(offset)?;
            }
            DdpTarget::Untagged {
                upper,
                queue,
                msn,
                offset,
            } => {
                w.put([last | self.version, self.upper_control])?;
                w.u32(upper)?;
                w.u32(queue)?;
                w.u32(msn)?;
                w.u32(offset)?;
            }
        }
        Ok(len)
    }
}
