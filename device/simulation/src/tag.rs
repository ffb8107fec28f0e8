//! Shared receive queues with tag matching, as a driver uses them.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    reason = "numbers are those of the simulation, not of a guest, a peer or a file"
)]

use faultline_abi::admin::{CREATE_TM_SRQ, CreateSrq};
use faultline_abi::tag::{self as abi, CreateTmSrq, Rvh, TmOp, Tmh};
use faultline_abi::{U32, U64, doorbell};
use zerocopy::{FromBytes, IntoBytes};

use crate::bus::Bus;
use crate::driver::{Driver, Error, Mr, Sge, Srq, Wq, put_sges, recv_stride};

/// A shared receive queue with a tag list.
#[derive(Debug)]
pub struct TagSrq {
    /// The part without tags.
    pub srq: Srq,
    uctx: u32,
    ops: Wq,
}

/// An operation on a tag list.
#[derive(Clone, Copy, Debug, Default)]
pub struct TagOp<'a> {
    /// FAULTLINE_TM_OP_*; zero stands for ADD.
    pub opcode: u8,
    /// No completion if all goes well.
    pub silent: bool,
    /// Unexpected messages that have been handled.
    pub sync: Option<u32>,
    /// Slot of the tag list.
    pub slot: u32,
    /// Tag.
    pub tag: u64,
    /// Mask of the bits of the tag that are compared.
    pub mask: u64,
    /// The buffer.
    pub sges: &'a [Sge],
}

impl TagSrq {
    /// Number.
    pub fn srqn(&self) -> u32 {
        self.srq.srqn
    }

    /// Operations posted so far.
    pub fn ops_posted(&self) -> u32 {
        self.ops.producer
    }
}

/// The headers of an eager message.
pub fn eager(opcode: u8, tag: u64, app_ctx: [u8; 4]) -> Vec<u8> {
    Tmh::new(opcode, tag, app_ctx).as_bytes().to_vec()
}

/// A rendezvous request for `len` bytes at `offset` of a region.
pub fn rendezvous(tag: u64, app_ctx: [u8; 4], mr: &Mr, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = eager(abi::TMH_RNDV, tag, app_ctx);
    bytes.extend_from_slice(Rvh::new(mr.va + offset, mr.key, len).as_bytes());
    bytes
}

impl<B: Bus> Driver<B> {
    /// Creates a shared receive queue with a list of `max_tags` tags, and 16 operations.
    ///
    /// # Errors
    /// The device refuses it, or there is no more memory.
    pub fn create_tag_srq(
        &mut self,
        pd: u32,
        uctx: u32,
        cqn: u32,
        max_tags: u32,
    ) -> Result<TagSrq, Error> {
        let (log_depth, ops_log_depth, max_sge) = (6, 4, 2);
        let stride_shift = recv_stride(max_sge);
        let (ring, desc) = self.contiguous((1 << (log_depth + stride_shift)) + 64)?;
        let ops_shift = abi::TM_OP_SHIFT as u8;
        let (ops, ops_desc) = self.contiguous((1 << (ops_log_depth + ops_shift)) + 64)?;
        let body = CreateTmSrq {
            srq: CreateSrq {
                ring: desc,
                pd: U32::new(pd),
                uctx: U32::new(uctx),
                cqn: U32::new(cqn),
                log_depth,
                stride_shift,
                max_sge,
                ..CreateSrq::default()
            },
            ops: ops_desc,
            max_tags: U32::new(max_tags),
            ops_log_depth,
            ..CreateTmSrq::default()
        };
        let srqn = self.command(CREATE_TM_SRQ, 0, &body)?.handle.get();
        let wq = |ring, log_depth, stride_shift| Wq {
            ring,
            log_depth,
            stride_shift,
            producer: 0,
        };
        Ok(TagSrq {
            srq: Srq {
                srqn,
                wq: wq(ring, log_depth, stride_shift),
            },
            uctx,
            ops: wq(ops, ops_log_depth, ops_shift),
        })
    }

    /// Writes an operation on the list; [`Driver::ring_tag_ops`] follows.
    pub fn write_tag_op(&mut self, srq: &mut TagSrq, op: &TagOp<'_>) {
        let silent = if op.silent {
            0
        } else {
            abi::TM_OP_FLAG_SIGNALED
        };
        let sync = op.sync.map_or(0, |_| abi::TM_OP_FLAG_SYNC);
        let mut bytes = [0; size_of::<TmOp>()];
        put_sges(&mut bytes, core::mem::offset_of!(TmOp, sge), op.sges);
        let mut raw = TmOp::read_from_bytes(&bytes).expect("as long");
        raw.opcode = match op.opcode {
            0 => abi::TM_OP_ADD,
            other => other,
        };
        raw.flags = silent | sync;
        raw.num_sge = op.sges.len() as u8;
        raw.unexpected = U32::new(op.sync.unwrap_or(0));
        raw.slot = U32::new(op.slot);
        raw.tag = U64::new(op.tag);
        raw.mask = U64::new(op.mask);
        self.write_raw_tag_op(srq, &raw);
    }

    /// Writes any operation.
    pub fn write_raw_tag_op(&mut self, srq: &mut TagSrq, op: &TmOp) {
        self.bus.write(srq.ops.entry(), op.as_bytes());
        srq.ops.producer = srq.ops.producer.wrapping_add(1);
    }

    /// Rings for the operations.
    pub fn ring_tag_ops(&mut self, srq: &TagSrq) {
        self.ring(srq.uctx, doorbell::TM_OPS, srq.srqn(), srq.ops.producer);
    }

    /// Writes an operation and rings for it.
    pub fn post_tag_op(&mut self, srq: &mut TagSrq, op: &TagOp<'_>) {
        self.write_tag_op(srq, op);
        self.ring_tag_ops(srq);
    }

    /// Operations that the device has taken.
    pub fn tag_ops_taken(&self, srq: &TagSrq) -> u32 {
        let word = core::mem::offset_of!(faultline_abi::wqe::WqRecord, consumer) as u64;
        self.bus.load_u32(srq.ops.record() + word)
    }
}
