//! Tag-matching headers of messages, and the result of matching.

use faultline_abi::cqe::Cqe;
use faultline_abi::tag::{self as abi, Rvh, Tmh};
use faultline_abi::{U32, U64};
use zerocopy::FromBytes;

use crate::config::MAX_MSG_SIZE;
use crate::dma::{Dma, DmaError};
use crate::payload::Payload;

/// Bytes of both headers.
pub(crate) const HEADERS: usize = size_of::<Tmh>() + size_of::<Rvh>();
/// Bytes of the first.
pub(crate) const TMH: usize = size_of::<Tmh>();

/// The kind of a message, from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// It has no tag, or no header that is known.
    NoTag,
    /// It has a tag, but matching it is left to software.
    Software,
    /// The data follows.
    Eager(Label),
    /// The data must be read by the receiver.
    Rendezvous(Label, Remote),
}

/// Identification of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// The tag that is compared with those of buffers.
    pub tag: u64,
    /// For software, as it is on the wire.
    pub app_ctx: [u8; 4],
}

/// Where the data of a rendezvous is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// Virtual address.
    pub va: u64,
    /// Key of the sender.
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
    /// The FIN message, which reports to the sender that its data has been read.
    pub fin: [u8; HEADERS],
}

impl Message {
    /// Reads the headers of a message from its first packet. `whole`: there are no others.
    pub(crate) fn read<M: Dma>(first: Payload<'_, M>, whole: bool) -> Result<Self, DmaError> {
        let mut bytes = [0; HEADERS];
        let len = first.read(0, &mut bytes)?;
        let Ok((tmh, rest)) = Tmh::read_from_prefix(&bytes) else {
            return Ok(Self::NoTag);
        };
        let label = Label {
            tag: u64::from_be_bytes(tmh.tag),
            app_ctx: tmh.app_ctx,
        };
        Ok(match tmh.opcode {
            _ if len < TMH => Self::NoTag,
            abi::TMH_EAGER => Self::Eager(label),
            abi::TMH_RNDV => {
                let fits = (HEADERS..=abi::TM_MAX_RNDV as usize).contains(&first.len());
                let Ok(rvh) = Rvh::read_from_bytes(rest) else {
                    return Ok(Self::Software);
                };
                let len = u32::from_be_bytes(rvh.len);
                if !fits || !whole || len > MAX_MSG_SIZE {
                    return Ok(Self::Software);
                }
                bytes[0] = abi::TMH_FIN;
                let remote = Remote {
                    va: u64::from_be_bytes(rvh.va),
                    rkey: u32::from_be_bytes(rvh.rkey),
                    len,
                    fin: bytes,
                };
                Self::Rendezvous(label, remote)
            }
            _ => Self::NoTag,
        })
    }
}

/// The result of tag matching for the message of a receive work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// It has no tag.
    NoTag,
    /// It has a tag, and software must search its buffer.
    Unexpected,
    /// The buffer matches. `reported`: a completion has reported it.
    Eager {
        /// Of the message.
        label: Label,
        /// See above.
        reported: bool,
    },
    /// The buffer matches, but the data can't be read into it.
    Incomplete(Label),
}

impl Class {
    /// The part of the first packet that goes into the buffer, which has room for `capacity` bytes.
    pub(crate) fn cut<'a, M: Dma>(self, first: Payload<'a, M>, capacity: u64) -> Payload<'a, M> {
        let len = first.len();
        match self {
            Self::NoTag | Self::Unexpected => first,
            Self::Eager { .. } => first.part(TMH.min(len), len.saturating_sub(TMH)),
            Self::Incomplete(_) => {
                let room = usize::try_from(capacity).unwrap_or(usize::MAX);
                first.part(0, len.min(HEADERS).min(room))
            }
        }
    }
}

impl Label {
    /// Records in a completion that the message has found its buffer.
    pub(crate) fn describe(self, entry: &mut Cqe) {
        let tag = U64::new(self.tag).to_bytes();
        let [a, b, c, d, e, f, g, h] = tag;
        entry.tm_tag = [U32::from_bytes([a, b, c, d]), U32::from_bytes([e, f, g, h])];
        entry.flow_tag = U32::from_bytes(self.app_ctx);
        entry.tm_flags |= abi::CQE_TM_MATCH;
    }
}
