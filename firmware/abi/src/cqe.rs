//! Completion queue entries.
//!
//! A completion queue of 2^n entries is a ring of 64-byte entries followed by a
//! [`CqRecord`](crate::wqe::CqRecord). Entry i is new when its phase equals `!(i >> n) & 1`; the device
//! writes the phase last.

abi_struct! {
    /// Completion queue entry.
    "faultline_cqe" Cqe [64] {
        /// Send: index of the work request (producer index when it was posted, modulo 2^32); all earlier
        /// ones of the queue are complete too. Receive: `tag` of the receive work request.
        wqe: crate::U32,
        /// Local QP.
        qpn: crate::U32,
        /// Bytes received, or returned by a READ or an atomic.
        byte_len: crate::U32,
        /// Immediate data in wire order (big-endian), the invalidated rkey, or the RSS hash.
        imm: crate::U32,
        /// UD, GSI: source QP.
        src_qp: crate::U32,
        /// FAULTLINE_WC_* opcode.
        opcode: u8,
        /// FAULTLINE_WC_STATUS_*, the values of `enum ib_wc_status`.
        status: u8,
        /// FAULTLINE_CQE_* bits.
        flags: u8,
        /// Cause, if `status` is not zero: FAULTLINE_VENDOR_ERR_*.
        vendor_err: u8,
        /// Index of the P_Key that matched.
        pkey_index: crate::U16,
        /// VLAN id and priority if CQE_VLAN is set.
        vlan_tci: crate::U16,
        /// Source MAC address (UD, GSI, raw).
        smac: [u8; 6],
        /// Service level (VLAN priority).
        sl: u8,
        /// IP version of the packet (UD, GSI): 4 or 6.
        ip_version: u8,
        /// Flow tag of the steering rule, or zero. Tag matching: `app_ctx` of the message in wire order.
        flow_tag: crate::U32,
        /// Device clock in nanoseconds when the completion was written.
        timestamp: crate::U64,
        /// Shared receive queue of a receive if CQE_XRC is set (`qpn` may then be a QP of another process), and of
        /// every completion of tag matching.
        srqn: crate::U32,
        /// Tag matching: tag of the message, low half first.
        tm_tag: [crate::U32; 2],
        /// Tag matching: FAULTLINE_CQE_TM_* bits.
        tm_flags: u8,
        /// Reserved; zero.
        reserved: [u8; 2],
        /// Written last.
        phase: u8,
    }
}

abi_consts! {
    /// Completion opcodes.
    group OPCODES: u8, prefix "FAULTLINE_WC_" {
        /// SEND, with or without immediate data.
        SEND = 0;
        /// RDMA WRITE.
        RDMA_WRITE = 1;
        /// RDMA READ.
        RDMA_READ = 2;
        /// Compare and swap.
        COMP_SWAP = 3;
        /// Fetch and add.
        FETCH_ADD = 4;
        /// Bind a memory window.
        BIND_MW = 5;
        /// Local invalidate.
        LOCAL_INV = 6;
        /// A raw frame that was segmented.
        TSO = 7;
        /// Fast registration.
        REG_MR = 8;
        /// FLUSH.
        FLUSH = 9;
        /// Atomic write.
        ATOMIC_WRITE = 10;
        /// Tag added. `wqe` is the number of the operation.
        TM_ADD = 0x20;
        /// Tag removed.
        TM_DEL = 0x21;
        /// The count of unexpected messages was taken.
        TM_SYNC = 0x22;
        /// Receive of a SEND.
        RECV = 0x80;
        /// Receive consumed by a WRITE with immediate data.
        RECV_RDMA_WITH_IMM = 0x81;
        /// Receive of a tag matching SRQ.
        TM_RECV = 0xa0;
        /// Receive of a tag matching SRQ, of a message without a tag.
        TM_NO_TAG = 0xa1;
    }
}

abi_consts! {
    /// Completion status; the values of `enum ib_wc_status`.
    group STATUSES: u8, prefix "FAULTLINE_WC_STATUS_" {
        /// Success.
        SUCCESS = 0;
        /// Local length error.
        LOC_LEN_ERR = 1;
        /// Local QP operation error.
        LOC_QP_OP_ERR = 2;
        /// Local EE context operation error; not used.
        LOC_EEC_OP_ERR = 3;
        /// Local protection error.
        LOC_PROT_ERR = 4;
        /// Flushed: the QP went to error.
        WR_FLUSH_ERR = 5;
        /// Memory window bind error.
        MW_BIND_ERR = 6;
        /// Bad response.
        BAD_RESP_ERR = 7;
        /// Local access error.
        LOC_ACCESS_ERR = 8;
        /// Remote invalid request.
        REM_INV_REQ_ERR = 9;
        /// Remote access error.
        REM_ACCESS_ERR = 10;
        /// Remote operation error.
        REM_OP_ERR = 11;
        /// Transport retries exhausted.
        RETRY_EXC_ERR = 12;
        /// RNR retries exhausted.
        RNR_RETRY_EXC_ERR = 13;
        /// Local RDD violation; not used.
        LOC_RDD_VIOL_ERR = 14;
        /// Remote invalid RD request; not used.
        REM_INV_RD_REQ_ERR = 15;
        /// Remote abort.
        REM_ABORT_ERR = 16;
        /// Invalid EE context number; not used.
        INV_EECN_ERR = 17;
        /// Invalid EE context state; not used.
        INV_EEC_STATE_ERR = 18;
        /// Fatal error.
        FATAL_ERR = 19;
        /// Response timeout.
        RESP_TIMEOUT_ERR = 20;
        /// General error.
        GENERAL_ERR = 21;
        /// Operation on a tag list failed.
        TM_ERR = 22;
        /// The data of a rendezvous does not fit; both headers are in the buffer.
        TM_RNDV_INCOMPLETE = 23;
    }
}

abi_consts! {
    /// Flags of a completion.
    group FLAGS: u8, prefix "FAULTLINE_" {
        /// 40 bytes of GRH (for IPv4: the header in the last 20 of them) precede the payload.
        CQE_GRH = 1 << 0;
        /// `imm` is immediate data.
        CQE_IMM = 1 << 1;
        /// `imm` is the rkey that a SEND with invalidate carried.
        CQE_INVALIDATE = 1 << 2;
        /// The sender requested a solicited event.
        CQE_SOLICITED = 1 << 3;
        /// `vlan_tci` is valid.
        CQE_VLAN = 1 << 4;
        /// The IP and TCP/UDP checksums of a raw frame are correct.
        CQE_CSUM_OK = 1 << 5;
        /// A receive of an XRC target; `srqn` is valid.
        CQE_XRC = 1 << 6;
        /// `imm` is the hash of addresses and ports by which an RSS queue pair selected this queue.
        CQE_HASH = 1 << 7;
    }
}

abi_consts! {
    /// Vendor errors: which check failed.
    group VENDOR_ERRS: u8, prefix "FAULTLINE_VENDOR_ERR_" {
        /// None.
        NONE = 0;
        /// Unknown opcode, or one that the QP type does not have.
        OPCODE = 1;
        /// Too many SGEs, or too much inline data.
        SGE_COUNT = 2;
        /// Message longer than the device, the QP type or the receive buffer allows.
        LENGTH = 3;
        /// lkey unknown, of another PD, or without the right.
        LKEY = 4;
        /// Address outside of the region.
        BOUNDS = 5;
        /// Address handle unknown or of another PD.
        AH = 6;
        /// The work queue itself can't be read.
        WQE_FETCH = 7;
        /// DMA to the page failed.
        DMA = 8;
        /// Reserved bits set.
        RESERVED = 9;
        /// Reported by the peer.
        REMOTE = 10;
        /// Page fault answered with an error, or never answered.
        FAULT = 11;
        /// Atomic operand not aligned to 8 bytes.
        ALIGNMENT = 12;
        /// The peer's packet breaks the protocol.
        PROTOCOL = 13;
        /// The key is not of the kind, or not in the state, that the operation needs.
        KEY_STATE = 14;
        /// Raw: the frame does not permit the checksums or the segmentation that the request asks for.
        OFFLOAD = 15;
    }
}
