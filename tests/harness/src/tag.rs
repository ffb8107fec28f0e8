//! Shared receive queues with tag matching.

use std::sync::Arc;

use faultline_abi::admin::{self, CreateSrq};
use faultline_abi::tag::{self as abi, CreateTmSrq, Rvh, TmOp, Tmh};
use faultline_abi::wqe::{Sge, WqRecord};
use faultline_abi::{U32, U64, doorbell};
use zerocopy::IntoBytes;

use crate::cq::Cq;
use crate::domain::{Context, Pd, Remote};
use crate::error::{DriverError, PostError, RingError};
use crate::nic::Object;
use crate::qp::{RecvQueue, Srq};
use crate::ring::{RingLayout, RingMemory};

/// log2 of the operations that are under way at once.
const LOG_OPS: u8 = 4;
const OP: usize = size_of::<TmOp>();

/// An operation on a tag list. Each has a completion.
#[derive(Clone, Copy, Debug)]
pub struct TagOp<'a> {
    /// FAULTLINE_TM_OP_*.
    pub opcode: u8,
    /// Unexpected messages that have been handled, if that is told.
    pub handled: Option<u32>,
    /// Place.
    pub slot: u32,
    /// What matches.
    pub tag: u64,
    /// Bits of it that count.
    pub mask: u64,
    /// The buffer.
    pub sges: &'a [Sge],
}

impl<'a> TagOp<'a> {
    /// Adds a buffer for messages of one tag.
    pub fn add(slot: u32, tag: u64, sges: &'a [Sge]) -> Self {
        Self {
            opcode: abi::TM_OP_ADD,
            handled: None,
            slot,
            tag,
            mask: u64::MAX,
            sges,
        }
    }

    /// Removes a buffer.
    pub fn remove(slot: u32) -> Self {
        Self {
            opcode: abi::TM_OP_DEL,
            mask: 0,
            ..Self::add(slot, 0, &[])
        }
    }

    /// Reports the number of unexpected messages that have been handled.
    pub fn sync(handled: u32) -> Self {
        Self {
            opcode: abi::TM_OP_SYNC,
            ..Self::remove(0)
        }
        .handled(handled)
    }

    /// Tells that in passing.
    pub fn handled(mut self, handled: u32) -> Self {
        self.handled = Some(handled);
        self
    }
}

/// A shared receive queue with a tag list.
#[derive(Debug)]
pub struct TagSrq {
    /// The part without tags.
    pub srq: Srq,
    page: u32,
    ops: Arc<RingMemory>,
    producer: u32,
}

impl Context {
    /// Creates a tag matching SRQ of 2^`log_depth` entries with `max_tags` places for tags, which completes in
    /// `cq`.
    pub fn tag_srq(
        &self,
        pd: &Pd,
        cq: &Cq,
        log_depth: u8,
        max_tags: u32,
    ) -> Result<TagSrq, DriverError> {
        let nic = self.nic();
        let layout = RingLayout::default();
        let queue = RecvQueue::new(nic, log_depth, 1, layout)?;
        let ops = RingMemory::new(nic, OP << LOG_OPS, layout)?;
        let create = CreateTmSrq {
            srq: CreateSrq {
                ring: queue.ring.desc(),
                pd: U32::new(pd.number()),
                uctx: U32::new(self.page()),
                cqn: U32::new(cq.number()),
                log_depth,
                stride_shift: queue.stride,
                max_sge: queue.max_sge,
                ..CreateSrq::default()
            },
            ops: ops.desc(),
            max_tags: U32::new(max_tags),
            ops_log_depth: LOG_OPS,
            ..CreateTmSrq::default()
        };
        let mut keep = self.keep();
        keep.push(queue.ring.clone());
        keep.push(ops.clone());
        keep.push(pd.object().clone());
        keep.push(cq.object().clone());
        let opcodes = (admin::CREATE_TM_SRQ, admin::DESTROY_SRQ);
        Ok(TagSrq {
            srq: Srq {
                object: Object::create(nic, opcodes, &create, keep)?,
                queue,
            },
            page: self.page(),
            ops,
            producer: 0,
        })
    }
}

impl TagSrq {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.srq.number()
    }

    /// Operations that the device has not taken.
    pub fn under_way(&self) -> u32 {
        const CONSUMER: usize = std::mem::offset_of!(WqRecord, consumer);
        let taken = self.ops.load_u32(self.ops.record() + CONSUMER);
        self.producer.wrapping_sub(taken)
    }

    /// Posts an operation; returns its number.
    pub fn post(&mut self, op: &TagOp<'_>) -> Result<u32, PostError> {
        if self.under_way() >= 1 << LOG_OPS {
            return Err(PostError::Full);
        }
        let index = self.producer;
        let mut raw = TmOp {
            opcode: op.opcode,
            flags: abi::TM_OP_FLAG_SIGNALED,
            num_sge: op.sges.len() as u8,
            slot: U32::new(op.slot),
            tag: U64::new(op.tag),
            mask: U64::new(op.mask),
            ..TmOp::default()
        };
        let room = raw.sge.get_mut(..op.sges.len());
        room.ok_or(PostError::TooManySges)?.copy_from_slice(op.sges);
        if let Some(handled) = op.handled {
            raw.flags |= abi::TM_OP_FLAG_SYNC;
            raw.unexpected = U32::new(handled);
        }
        let at = (index as usize & ((1 << LOG_OPS) - 1)) * OP;
        self.ops.write(at, raw.as_bytes());
        self.producer = index.wrapping_add(1);
        self.ring()?;
        Ok(index)
    }

    /// Rings for the posted operations.
    pub fn ring(&self) -> Result<(), RingError> {
        let kind = doorbell::TM_OPS;
        self.srq.object.ring(self.page, kind, self.producer)
    }
}

/// The header of a message whose data follows.
pub fn eager(tag: u64, app_ctx: [u8; 4]) -> Vec<u8> {
    let header = Tmh::new(abi::TMH_EAGER, tag, app_ctx);
    header.as_bytes().to_vec()
}

/// A message that says where `len` bytes wait to be read.
pub fn rendezvous(tag: u64, app_ctx: [u8; 4], from: Remote, len: u32) -> Vec<u8> {
    let header = Tmh::new(abi::TMH_RNDV, tag, app_ctx);
    let location = Rvh::new(from.addr, from.key, len);
    [header.as_bytes(), location.as_bytes()].concat()
}
