//! Tag matching: shared receive queues that select the buffer by a tag in the message.
//!
//! In addition to receive work requests such an SRQ has a list of tagged buffers, which the operations of a second ring
//! change. A message begins with the headers of `infiniband/tm_types.h`, in wire order (big-endian). See
//! docs/tag-matching.md.

use crate::admin::{CreateSrq, RingDesc};
use crate::wqe::Sge;

abi_struct! {
    /// CREATE_TM_SRQ. Answer: handle.
    "faultline_create_tm_srq" CreateTmSrq [80] {
        /// As in CREATE_SRQ, with `kind` zero and `cqn` the CQ of all completions.
        srq: CreateSrq,
        /// Ring of 2^ops_log_depth operations of 128 bytes, and a record.
        ops: RingDesc,
        /// Capacity of the list of tagged buffers; 1..=max_tm_tags.
        max_tags: crate::U32,
        /// log2 of the number of operations; at most that of max_tm_ops.
        ops_log_depth: u8,
        /// Reserved; zero.
        reserved: [u8; 11],
    }

    /// An operation on the list. Operation number i (a 32-bit count) is in entry `i mod 2^n`; ring
    /// FAULTLINE_DB_TM_OPS with the producer index. The record's `consumer` is the number of operations consumed.
    "faultline_tm_op" TmOp [128] {
        /// FAULTLINE_TM_OP_*.
        opcode: u8,
        /// FAULTLINE_TM_OP_FLAG_*.
        flags: u8,
        /// ADD: number of SGEs.
        num_sge: u8,
        /// Reserved; zero.
        reserved0: u8,
        /// Unexpected messages that software has handled, modulo 2^32; only with TM_OP_FLAG_SYNC.
        unexpected: crate::U32,
        /// ADD: index of an empty entry of the list, below max_tags; `wqe` of the completions of the buffer. DEL: index of
        /// the entry to remove.
        slot: crate::U32,
        /// Reserved; zero.
        reserved1: crate::U32,
        /// ADD: a message matches if its tag AND `mask` equals this value.
        tag: crate::U64,
        /// ADD: bits of the tag that are compared.
        mask: crate::U64,
        /// Reserved; zero.
        reserved2: [u8; 32],
        /// ADD: the buffer.
        sge: [Sge; 4],
    }

    /// Header of a tagged message (ibv_tmh).
    "faultline_tmh" Tmh [16] {
        /// FAULTLINE_TMH_*.
        opcode: u8,
        /// Reserved; zero.
        reserved: [u8; 3],
        /// Returned in the completion that has TM_MATCH set.
        app_ctx: [u8; 4],
        /// Tag of the message, big-endian.
        tag: [u8; 8],
    }

    /// Second header of a rendezvous request (ibv_rvh): location of the data. FIN repeats both headers.
    "faultline_rvh" Rvh [16] {
        /// Address of the data, big-endian.
        va: [u8; 8],
        /// Remote key of the data, big-endian.
        rkey: [u8; 4],
        /// Bytes of data, big-endian.
        len: [u8; 4],
    }
}

impl Tmh {
    /// The headers of a message with this opcode and tag.
    pub const fn new(opcode: u8, tag: u64, app_ctx: [u8; 4]) -> Self {
        Self {
            opcode,
            reserved: [0; 3],
            app_ctx,
            tag: tag.to_be_bytes(),
        }
    }
}

impl Rvh {
    /// The location of `len` bytes of data.
    pub const fn new(va: u64, rkey: u32, len: u32) -> Self {
        Self {
            va: va.to_be_bytes(),
            rkey: rkey.to_be_bytes(),
            len: len.to_be_bytes(),
        }
    }
}

abi_consts! {
    /// Operations on a tag list.
    group OPS: u8, prefix "FAULTLINE_" {
        /// Add a tagged buffer.
        TM_OP_ADD = 1;
        /// Remove a tagged buffer. Fails (WC_STATUS_TM_ERR) if a message has consumed the buffer.
        TM_OP_DEL = 2;
        /// Report the count of unexpected messages that software has handled.
        TM_OP_SYNC = 3;
    }
}

abi_consts! {
    /// Flags of an operation.
    group OP_FLAGS: u8, prefix "FAULTLINE_" {
        /// Write a completion. An operation that fails always writes one.
        TM_OP_FLAG_SIGNALED = 1 << 0;
        /// `unexpected` is valid.
        TM_OP_FLAG_SYNC = 1 << 1;
    }
}

abi_consts! {
    /// Opcodes of a tagged message.
    group HEADERS: u8, prefix "FAULTLINE_" {
        /// No tag: the fields after the opcode are ignored.
        TMH_NO_TAG = 0;
        /// Rendezvous: the receiver reads the data.
        TMH_RNDV = 1;
        /// The receiver has read the data.
        TMH_FIN = 2;
        /// Eager: the data follows the header.
        TMH_EAGER = 3;
    }
}

abi_consts! {
    /// Flags of a completion of a tag matching SRQ (`tm_flags`).
    group CQE_FLAGS: u8, prefix "FAULTLINE_" {
        /// `wqe` is an index in the tag list, not the tag of a receive work request.
        CQE_TM_TAGGED = 1 << 0;
        /// The message matched a tagged buffer.
        CQE_TM_MATCH = 1 << 1;
        /// All data is in the buffer; the buffer is complete.
        CQE_TM_DATA_VALID = 1 << 2;
        /// Buffers added after this message match only when software has reported the count of unexpected messages.
        CQE_TM_SYNC_REQ = 1 << 3;
    }
}

abi_consts! {
    /// Geometry of tag matching.
    group GEOMETRY: u32, prefix "FAULTLINE_" {
        /// log2 of the size of an operation.
        TM_OP_SHIFT = 7;
        /// Most SGEs of a tagged buffer.
        TM_MAX_SGE = 4;
        /// Longest rendezvous request, headers included.
        TM_MAX_RNDV = 64;
    }
}
