//! The list of tagged buffers of a shared receive queue.
//!
//! Buffers match in the order in which they were added. A message that matches none goes to software, which searches the
//! buffers that it has not been able to add yet. So the device must not match a buffer that software adds before software
//! knows of such a message. The device counts these messages, and software reports how many it has handled. Buffers that
//! are added while the counts differ are at the end of the list, beyond `active`, until the counts agree again.

use faultline_abi::U32;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::tag::{self as abi, TmOp};
use zerocopy::IntoBytes;

use super::message::{Class, Label, Remote};
use crate::budget::Held;
use crate::dma::Dma;
use crate::receive_queue::{RecvWr, SgEntry, SgList, TakeError};
use crate::ring::Ring;

/// A rendezvous whose data is being read, or will be.
#[derive(Clone, Debug)]
pub(crate) struct Rendezvous {
    /// Where the data goes.
    pub sges: SgList,
    /// Where it is.
    pub remote: Remote,
}

/// A buffer, with the tag and the mask of the messages that it matches.
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
    /// A message uses the buffer.
    Taken,
    Reading(Rendezvous),
}

/// The result of an operation.
#[derive(Debug)]
pub(crate) enum TagOpResult {
    /// No operation was left.
    None,
    /// The operation was executed, without a completion.
    Silent,
    /// The operation was executed, and has this completion.
    Completes(Cqe),
}

/// The second half of a tag matching SRQ.
#[derive(Debug)]
pub(crate) struct TagList {
    /// CQ of all its completions.
    pub cqn: u32,
    ops: Ring,
    consumer: u32,
    slots: Vec<Slot>,
    /// Listed places in the order in which they were filled.
    order: Vec<u32>,
    /// The number of them that match.
    active: usize,
    /// Unexpected messages that arrived, and those that software has handled; modulo 2^32.
    unexpected: u32,
    handled: u32,
    _held: Held,
}

impl TagList {
    /// Bytes of a full list with this number of places.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the configuration limits the number of places"
    )]
    pub(crate) fn size(max_tags: u32) -> usize {
        const SGES: usize = abi::TM_MAX_SGE as usize * size_of::<SgEntry>();
        let place = size_of::<Slot>() + SGES + size_of::<u32>();
        size_of::<Self>() + max_tags as usize * place
    }

    /// An empty list with this number of places. `held` is of [`TagList::size`] bytes.
    pub(crate) fn new(cqn: u32, ops: Ring, max_tags: u32, held: Held) -> Self {
        Self {
            cqn,
            ops,
            consumer: 0,
            slots: (0..max_tags).map(|_| Slot::Empty).collect(),
            order: Vec::with_capacity(max_tags as usize),
            active: 0,
            unexpected: 0,
            handled: 0,
            _held: held,
        }
    }

    /// Takes the next operation before `producer` and executes it.
    pub(crate) fn run_next<M: Dma>(
        &mut self,
        mem: &M,
        producer: u32,
    ) -> Result<TagOpResult, TakeError> {
        let posted = producer.wrapping_sub(self.consumer);
        if posted as i32 <= 0 {
            return Ok(TagOpResult::None);
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
            return Ok(TagOpResult::Silent);
        }
        let sync = if self.in_sync() {
            0
        } else {
            abi::CQE_TM_SYNC_REQ
        };
        Ok(TagOpResult::Completes(Cqe {
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

    /// Executes an operation. The error is the vendor error of its completion.
    fn execute(&mut self, op: &TmOp) -> Result<(), u8> {
        const KNOWN: u8 = abi::TM_OP_FLAG_SIGNALED | abi::TM_OP_FLAG_SYNC;
        let sync = op.flags & abi::TM_OP_FLAG_SYNC != 0;
        let rest = op.reserved0 == 0 && op.reserved1.get() == 0 && op.reserved2 == [0; 32];
        if op.flags & !KNOWN != 0 || !rest || (!sync && op.unexpected.get() != 0) {
            return Err(cqe::RESERVED);
        }
        if sync {
            self.handled = op.unexpected.get();
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

    /// Buffers in the list, which is the cost of a search.
    pub(crate) fn listed(&self) -> u64 {
        self.order.len() as u64
    }

    fn in_sync(&self) -> bool {
        self.handled == self.unexpected
    }

    /// Takes a buffer off the list.
    fn take(&mut self, position: usize) -> Option<(u32, Entry)> {
        let index = self.order.remove(position);
        if position < self.active {
            self.active = self.active.saturating_sub(1);
        }
        match core::mem::replace(self.slots.get_mut(index as usize)?, Slot::Taken) {
            Slot::Listed(entry) => Some((index, entry)),
            _ => None,
        }
    }

    /// The oldest buffer that this tag matches, as a receive work request. The place stays taken until
    /// [`TagList::release`].
    pub(crate) fn find(&mut self, label: Label) -> Option<RecvWr> {
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

    /// Counts a message that goes to software.
    pub(crate) fn count_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }

    /// Records that the message of the buffer will be read.
    pub(crate) fn begin_reading(&mut self, index: u32, rendezvous: Rendezvous) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = Slot::Reading(rendezvous);
        }
    }

    /// The rendezvous whose data is read into this place.
    pub(crate) fn reading(&self, index: u32) -> Option<&Rendezvous> {
        match self.slots.get(index as usize)? {
            Slot::Reading(rendezvous) => Some(rendezvous),
            _ => None,
        }
    }

    /// Empties a place whose buffer is no longer used.
    pub(crate) fn release(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = Slot::Empty;
        }
    }

    /// Describes the result of matching in a completion.
    pub(crate) fn describe(&mut self, entry: &mut Cqe, class: Class) {
        entry.opcode = match class {
            Class::NoTag => cqe::TM_NO_TAG,
            _ => cqe::TM_RECV,
        };
        let label = match class {
            Class::NoTag | Class::Unexpected => return,
            Class::Eager { reported: true, .. } => None,
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
