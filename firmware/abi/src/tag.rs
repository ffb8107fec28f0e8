//! Tag matching: shared receive queues that look into messages.
//!
//! Beside its receive work requests such an SRQ has a list of tagged buffers, which is changed by operations
//! from a second ring. The messages begin with the headers of `infiniband/tm_types.h`, big-endian as they are on
//! the wire. See docs/tag-matching.md.

use crate::admin::{CreateSrq, RingDesc};
use crate::wqe::Sge;

abi_struct! {
    /// CREATE_TM_SRQ. Answer: handle.
    "faultline_create_tm_srq" CreateTmSrq [80] {
        /// As in CREATE_SRQ, with `kind` zero and `cqn` the CQ of all completions.
        srq: CreateSrq,
        /// Ring of 2^ops_log_depth operations of 128 bytes, and a record.
        ops: RingDesc,
        /// Tagged buffers at once; 1..=max_tm_tags.
        max_tags: crate::U32,
        ops_log_depth: u8,
        reserved: [u8; 11],
    }

    /// An operation on the list. Operation number i (a 32-bit count) stands in entry `i mod 2^n`; ring
    /// FAULTLINE_DB_TM_OPS with the producer index. The record's `consumer` says how many have been taken.
    "faultline_tm_op" TmOp [128] {
        /// FAULTLINE_TM_OP_*.
        opcode: u8,
        /// FAULTLINE_TM_OP_FLAG_*.
        flags: u8,
        /// ADD: number of SGEs.
        num_sge: u8,
        reserved0: u8,
        /// Unexpected messages that software has handled, modulo 2^32; only with TM_OP_FLAG_SYNC.
        unexpected: crate::U32,
        /// ADD: place of the list, below max_tags, which must be empty; it is what `wqe` of the completions of the
        /// buffer says. DEL: the place to empty.
        slot: crate::U32,
        reserved1: crate::U32,
        /// ADD: a message matches if its tag AND `mask` is this.
        tag: crate::U64,
        mask: crate::U64,
        reserved2: [u8; 32],
        /// ADD: the buffer.
        sge: [Sge; 4],
    }

    /// Header of a tagged message (ibv_tmh).
    "faultline_tmh" Tmh [16] {
        /// FAULTLINE_TMH_*.
        opcode: u8,
        reserved: [u8; 3],
        /// Returned in the completion that says TM_MATCH.
        app_ctx: [u8; 4],
        tag: [u8; 8],
    }

    /// Header of a rendezvous request, behind the first (ibv_rvh): where the data is. FIN repeats both.
    "faultline_rvh" Rvh [16] {
        va: [u8; 8],
        rkey: [u8; 4],
        len: [u8; 4],
    }
}

abi_consts! {
    /// Operations on a tag list.
    group OPS: u8, prefix "FAULTLINE_" {
        /// Add a tagged buffer.
        TM_OP_ADD = 1;
        /// Remove one. It fails (WC_STATUS_TM_ERR) if a message has consumed the buffer.
        TM_OP_DEL = 2;
        /// Tell the count of unexpected messages, and nothing else.
        TM_OP_SYNC = 3;
    }
}

abi_consts! {
    /// Flags of an operation.
    group OP_FLAGS: u8, prefix "FAULTLINE_" {
        /// Make a completion. An operation that fails makes one anyway.
        TM_OP_FLAG_SIGNALED = 1 << 0;
        /// `unexpected` is given.
        TM_OP_FLAG_SYNC = 1 << 1;
    }
}

abi_consts! {
    /// Opcodes of a tagged message.
    group HEADERS: u8, prefix "FAULTLINE_" {
        /// No tag: what follows the opcode is not looked at.
        TMH_NO_TAG = 0;
        /// The data waits to be read.
        TMH_RNDV = 1;
        /// The data has been read.
        TMH_FIN = 2;
        /// The data follows.
        TMH_EAGER = 3;
    }
}

abi_consts! {
    /// Flags of a completion of a tag matching SRQ (`tm_flags`).
    group CQE_FLAGS: u8, prefix "FAULTLINE_" {
        /// `wqe` is a place of the tag list, not the tag of a receive work request.
        CQE_TM_TAGGED = 1 << 0;
        /// The message has found its buffer.
        CQE_TM_MATCH = 1 << 1;
        /// All data is in the buffer, which is done with.
        CQE_TM_DATA_VALID = 1 << 2;
        /// Buffers that were added lately do not match before software has told the count.
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
