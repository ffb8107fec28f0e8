//! Tag matching: the list of tagged buffers of a shared receive queue, and the headers that it looks at.
//!
//! Buffers match in the order in which they were added. A message that matches none goes to software, which looks
//! through buffers that it has not been able to add yet; so the device must not match a buffer that software adds
//! before it knows of such a message. The device counts the messages, software tells how many it has handled, and
//! buffers added while the counts differ lie at the end of the list, beyond `active`, until they agree again.
//!
//! What a queue pair does with a message is in `qp/tag.rs`.

use faultline_abi::cqe::{self, Cqe};
use faultline_abi::tag::{self as abi, Rvh, TmOp, Tmh};
use faultline_abi::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::budget::Held;
use crate::config::MAX_MSG_SIZE;
use crate::dma::{Dma, DmaError};
use crate::frame::Payload;
use crate::ring::Ring;
use crate::srq::{RecvWr, SgEntry, SgList, TakeError};

/// Bytes of both headers.
pub const HEADERS: usize = size_of::<Tmh>() + size_of::<Rvh>();
/// Bytes of the first.
pub const TMH: usize = size_of::<Tmh>();

/// What the first bytes of a message say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// It has no tag, or no header that is known.
    NoTag,
    /// It has a tag, but matching it is left to software.
    Software,
    /// The data follows.
    Eager(Label),
    /// The data is to be read.
    Rendezvous(Label, Remote),
}

/// By what a message is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// What is matched.
    pub tag: u64,
    /// For software, as it is on the wire.
    pub app_ctx: [u8; 4],
}

/// Where the data of a rendezvous is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address.
    pub va: u64,
    /// Key of the sender.
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
    /// The message that says that it has been read.
    pub fin: [u8; HEADERS],
}

impl Message {
    /// Reads the headers of a message from its first packet. `whole`: there are no others.
    pub fn read<M: Dma>(first: Payload<'_, M>, whole: bool) -> Result<Self, DmaError> {
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

/// What tag matching has made of the message that a receive work request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It has no tag.
    NoTag,
    /// It has one, and software has to look for its buffer.
    Unexpected,
    /// The buffer matches. `told`: a completion has said so.
    Eager {
        /// Of the message.
        label: Label,
        /// See above.
        told: bool,
    },
    /// The buffer matches, but the data can't be read into it.
    Incomplete(Label),
}

impl Class {
    /// The part of the first packet that goes into the buffer, which has room for `capacity` bytes.
    pub fn cut<'a, M: Dma>(self, first: Payload<'a, M>, capacity: u64) -> Payload<'a, M> {
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

/// A rendezvous whose data is being read, or will be.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    /// Where the data goes.
    pub sges: SgList,
    /// Where it is.
    pub remote: Remote,
}

/// A buffer that matches what it is for.
#[derive(Debug)]
struct Entry {
    tag: u64,
    mask: u64,
    sges: SgList,
    capacity: u64,
}

/// A place of the list.
#[derive(Debug)]
enum Slot {
    Empty,
    Listed(Entry),
    /// A message has the buffer.
    Taken,
    Reading(Rendezvous),
}

/// What has become of an operation.
#[derive(Debug)]
pub enum Ran {
    /// There was none left.
    All,
    /// It has been carried out.
    Silent,
    /// The same, and this tells of it.
    Completes(Cqe),
}

/// The second half of a tag matching SRQ.
#[derive(Debug)]
pub struct TagList {
    /// CQ of all its completions.
    pub cqn: u32,
    ops: Ring,
    consumer: u32,
    slots: Vec<Slot>,
    /// Listed places in the order in which they were filled.
    order: Vec<u32>,
    /// So many of them match.
    active: usize,
    /// Unexpected messages there have been, and that software has handled; modulo 2^32.
    unexpected: u32,
    told: u32,
    _held: Held,
}

impl TagList {
    /// Bytes of a list of so many places when they are full.
    pub fn size(max_tags: u32) -> usize {
        const SGES: usize = abi::TM_MAX_SGE as usize * size_of::<SgEntry>();
        let place = size_of::<Slot>() + SGES + size_of::<u32>();
        size_of::<Self>() + max_tags as usize * place
    }

    /// An empty list of so many places. `held` is of [`TagList::size`] bytes.
    pub fn new(cqn: u32, ops: Ring, max_tags: u32, held: Held) -> Self {
        Self {
            cqn,
            ops,
            consumer: 0,
            slots: (0..max_tags).map(|_| Slot::Empty).collect(),
            order: Vec::with_capacity(max_tags as usize),
            active: 0,
            unexpected: 0,
            told: 0,
            _held: held,
        }
    }

    /// Takes the next operation before `producer` and carries it out.
    pub fn run_next<M: Dma>(&mut self, mem: &M, producer: u32) -> Result<Ran, TakeError> {
        let posted = producer.wrapping_sub(self.consumer);
        if posted as i32 <= 0 {
            return Ok(Ran::All);
        }
        if posted > self.ops.depth() {
            return Err(TakeError::Broken);
        }
        let (number, mut op) = (self.consumer, TmOp::default());
        mem.read(self.ops.entry(number), op.as_mut_bytes())
            .map_err(|_| TakeError::Broken)?;
        let result = self.execute(&op);
        self.consumer = number.wrapping_add(1);
        mem.store_u32(self.ops.consumer_word(), self.consumer)
            .map_err(|_| TakeError::Broken)?;
        if result.is_ok() && op.flags & abi::TM_OP_FLAG_SIGNALED == 0 {
            return Ok(Ran::Silent);
        }
        let sync = if self.in_sync() {
            0
        } else {
            abi::CQE_TM_SYNC_REQ
        };
        Ok(Ran::Completes(Cqe {
            wqe: U32::new(number),
            opcode: match op.opcode {
                abi::TM_OP_ADD => cqe::TM_ADD,
                abi::TM_OP_DEL => cqe::TM_DEL,
                _ => cqe::TM_SYNC,
            },
            status: result.map_or(cqe::TM_ERR, |()| cqe::SUCCESS),
            vendor_err: result.err().unwrap_or(cqe::NONE),
            tm_flags: sync,
            ..Cqe::default()
        }))
    }

    /// Carries out an operation; an error is the reason as a vendor error.
    fn execute(&mut self, op: &TmOp) -> Result<(), u8> {
        const KNOWN: u8 = abi::TM_OP_FLAG_SIGNALED | abi::TM_OP_FLAG_SYNC;
        let sync = op.flags & abi::TM_OP_FLAG_SYNC != 0;
        let rest = op.reserved0 == 0 && op.reserved1.get() == 0 && op.reserved2 == [0; 32];
        if op.flags & !KNOWN != 0 || !rest || (!sync && op.unexpected.get() != 0) {
            return Err(cqe::RESERVED);
        }
        if sync {
            self.told = op.unexpected.get();
        }
        let done = match op.opcode {
            abi::TM_OP_ADD => self.add(op),
            abi::TM_OP_DEL => self.remove(op.slot.get()),
            abi::TM_OP_SYNC => Ok(()),
            _ => Err(cqe::OPCODE),
        };
        if self.in_sync() {
            self.active = self.order.len();
        }
        done
    }

    fn add(&mut self, op: &TmOp) -> Result<(), u8> {
        let used = op.sge.get(..usize::from(op.num_sge));
        let sges: SgList = used
            .ok_or(cqe::SGE_COUNT)?
            .iter()
            .map(|sge| SgEntry {
                addr: sge.addr.get(),
                len: sge.length.get(),
                lkey: sge.lkey.get(),
            })
            .collect();
        let index = op.slot.get();
        let slot = self.slots.get_mut(index as usize).ok_or(cqe::BOUNDS)?;
        if !matches!(slot, Slot::Empty) {
            return Err(cqe::KEY_STATE);
        }
        *slot = Slot::Listed(Entry {
            tag: op.tag.get(),
            mask: op.mask.get(),
            capacity: sges.iter().map(|sge| u64::from(sge.len)).sum(),
            sges,
        });
        self.order.push(index);
        Ok(())
    }

    fn remove(&mut self, index: u32) -> Result<(), u8> {
        let position = self.order.iter().position(|listed| *listed == index);
        let position = position.ok_or(cqe::KEY_STATE)?;
        self.take(position);
        self.release(index);
        Ok(())
    }

    /// Buffers in the list: what a look through it costs.
    pub fn listed(&self) -> u64 {
        self.order.len() as u64
    }

    fn in_sync(&self) -> bool {
        self.told == self.unexpected
    }

    /// Takes a buffer off the list.
    fn take(&mut self, position: usize) -> Option<(u32, Entry)> {
        let index = self.order.remove(position);
        if position < self.active {
            self.active -= 1;
        }
        match core::mem::replace(self.slots.get_mut(index as usize)?, Slot::Taken) {
            Slot::Listed(entry) => Some((index, entry)),
            _ => None,
        }
    }

    /// The oldest buffer that this tag matches, as a receive work request. The place stays taken until
    /// [`TagList::release`].
    pub fn find(&mut self, label: Label) -> Option<RecvWr> {
        let matches = |index: &u32| match self.slots.get(*index as usize) {
            Some(Slot::Listed(entry)) => label.tag & entry.mask == entry.tag,
            _ => false,
        };
        let position = self.order.iter().take(self.active).position(matches)?;
        let (index, entry) = self.take(position)?;
        Some(RecvWr {
            tag: index,
            sges: entry.sges,
            capacity: entry.capacity,
            srqn: None,
            class: None,
        })
    }

    /// A message goes to software.
    pub fn count_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }

    /// The message that has the buffer will be read.
    pub fn begin_reading(&mut self, index: u32, rendezvous: Rendezvous) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = Slot::Reading(rendezvous);
        }
    }

    /// What is to be read into this place.
    pub fn reading(&self, index: u32) -> Option<&Rendezvous> {
        match self.slots.get(index as usize)? {
            Slot::Reading(rendezvous) => Some(rendezvous),
            _ => None,
        }
    }

    /// The buffer is done with: the place is empty.
    pub fn release(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = Slot::Empty;
        }
    }

    /// Says in a completion what has become of a message.
    pub fn describe(&mut self, entry: &mut Cqe, class: Class) {
        entry.opcode = match class {
            Class::NoTag => cqe::TM_NO_TAG,
            _ => cqe::TM_RECV,
        };
        let label = match class {
            Class::NoTag | Class::Unexpected => return,
            Class::Eager { told: true, .. } => None,
            Class::Eager { label, .. } => Some(label),
            Class::Incomplete(label) => {
                if entry.status == cqe::SUCCESS {
                    entry.status = cqe::TM_RNDV_INCOMPLETE;
                }
                Some(label)
            }
        };
        entry.tm_flags = abi::CQE_TM_TAGGED;
        if let Some(label) = label {
            label.describe(entry);
        }
        if entry.status == cqe::SUCCESS {
            entry.tm_flags |= abi::CQE_TM_DATA_VALID;
        }
        self.release(entry.wqe.get());
    }
}

impl Label {
    /// Says in a completion that the message has found its buffer.
    pub fn describe(self, entry: &mut Cqe) {
        let tag = U64::new(self.tag).to_bytes();
        let [a, b, c, d, e, f, g, h] = tag;
        entry.tm_tag = [U32::from_bytes([a, b, c, d]), U32::from_bytes([e, f, g, h])];
        entry.flow_tag = U32::from_bytes(self.app_ctx);
        entry.tm_flags |= abi::CQE_TM_MATCH;
    }
}
