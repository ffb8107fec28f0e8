//! Work-queue entries and the records at the end of each ring.
//!
//! A send queue, receive queue or SRQ of 2^n entries of 2^s bytes each is a ring of 2^(n+s) bytes followed by
//! a 64-byte record, all in guest memory described by a [`RingDesc`](crate::admin::RingDesc). Work request
//! number i (a 32-bit count) is in entry `i mod 2^n`.
//!
//! Send: fill the entry, then ring FAULTLINE_DB_SQ with the new producer index. Receive: fill the
//! entry, then (after a write barrier) store the new producer index in the record. There is no doorbell, with
//! one exception: if after a full barrier the record's `notify` is not zero (a QP in the error state, which
//! must flush what is posted), ring FAULTLINE_DB_RQ with the producer index. The device copies a receive
//! entry when it consumes it, and stores the number of consumed entries in the record's `consumer`.

abi_struct! {
    /// Scatter/gather entry.
    "faultline_sge" Sge [16] {
        /// I/O virtual address.
        addr: crate::U64,
        /// Bytes; 0 is a length of zero.
        length: crate::U32,
        /// Local key.
        lkey: crate::U32,
    }

    /// First 48 bytes of a send work request. `sge[num_sge]`, or the inline data, follows at offset 48. A raw frame
    /// may have both: inline data, and at the next multiple of 16 the SGEs of the rest of the frame.
    "faultline_sq_wqe" SqWqe [48] {
        /// FAULTLINE_WR_*.
        opcode: u8,
        /// FAULTLINE_WR_FLAG_*.
        flags: u8,
        /// Number of SGEs; zero with WR_FLAG_INLINE, but for raw frames.
        num_sge: u8,
        /// Reserved; zero.
        reserved0: u8,
        /// Immediate data in wire order, or the rkey to invalidate.
        imm: crate::U32,
        /// Bytes of inline data with WR_FLAG_INLINE, else zero.
        inline_len: crate::U32,
        /// Remote key (WRITE, READ, atomics).
        rkey: crate::U32,
        /// Remote address (WRITE, READ, atomics).
        remote_addr: crate::U64,
        /// Compare value of a compare-and-swap, addend of a fetch-and-add.
        compare_add: crate::U64,
        /// Swap value of a compare-and-swap.
        swap: crate::U64,
        /// UD, GSI: address handle.
        ah: crate::U32,
        /// UD, GSI: destination QP. XRC: destination SRQ.
        remote_qpn: crate::U32,
    }

    /// UD and GSI: replaces `compare_add` and `swap`, at the same offsets.
    "faultline_ud_seg" UdSeg [16] {
        /// Q_Key; if the top bit is set the QP's own is used (IBTA 10.2.5).
        qkey: crate::U32,
        /// Reserved; zero.
        reserved: [u8; 12],
    }

    /// First 48 bytes of a WR_REG_MR. Allowed on queue pairs of context 0 only, because the list has DMA addresses.
    "faultline_reg_mr_wqe" RegMrWqe [48] {
        /// WR_REG_MR.
        opcode: u8,
        /// FAULTLINE_WR_FLAG_*, not INLINE.
        flags: u8,
        /// Reserved; zero.
        reserved0: crate::U16,
        /// FAULTLINE_ACCESS_*: local and remote rights.
        access: crate::U32,
        /// Reserved; zero.
        reserved1: crate::U32,
        /// The new key: that of a free MKEY_FAST_REG, with any low 8 bits.
        key: crate::U32,
        /// First address of the region.
        iova: crate::U64,
        /// Bytes.
        length: crate::U64,
        /// DMA address of the list: for each page its DMA address as 64 bits.
        list: crate::U64,
        /// Pages in the list; the first one holds `iova`.
        num_pages: crate::U32,
        /// log2 of the page size; 12..=30.
        page_shift: crate::U32,
    }

    /// First 48 bytes of a WR_BIND_MW.
    "faultline_bind_mw_wqe" BindMwWqe [48] {
        /// WR_BIND_MW.
        opcode: u8,
        /// FAULTLINE_WR_FLAG_*, not INLINE.
        flags: u8,
        /// Reserved; zero.
        reserved0: crate::U16,
        /// Key of the region.
        lkey: crate::U32,
        /// Reserved; zero.
        reserved1: crate::U32,
        /// The new key of the window, with any low 8 bits.
        rkey: crate::U32,
        /// First address, in the region.
        addr: crate::U64,
        /// Bytes. Type 1: zero unbinds.
        length: crate::U64,
        /// FAULTLINE_ACCESS_*: remote rights, and type 2 ACCESS_ZERO_BASED. ACCESS_LOCAL_WRITE is ignored.
        access: crate::U32,
        /// Reserved; zero.
        reserved2: [u8; 12],
    }

    /// First 48 bytes of a WR_FLUSH.
    "faultline_flush_wqe" FlushWqe [48] {
        /// WR_FLUSH.
        opcode: u8,
        /// FAULTLINE_WR_FLAG_*, not INLINE.
        flags: u8,
        /// Reserved; zero.
        reserved0: crate::U16,
        /// FAULTLINE_FLUSH_*.
        placement: crate::U32,
        /// Reserved; zero.
        reserved1: crate::U32,
        /// Remote key.
        rkey: crate::U32,
        /// Remote address.
        remote_addr: crate::U64,
        /// Bytes, fewer than 2^32.
        length: crate::U64,
        /// 0: the range, 1: all of the region.
        selectivity: crate::U32,
        /// Reserved; zero.
        reserved2: [u8; 8],
        /// XRC: destination SRQ.
        remote_qpn: crate::U32,
    }

    /// Raw frames: replaces `compare_add` and `swap`, at the same offsets.
    "faultline_raw_seg" RawSeg [16] {
        /// WR_FLAG_CSUM: offset in the frame at which the sum begins. 0: the device finds all checksum fields.
        csum_start: crate::U16,
        /// Offset of the checksum field from `csum_start`. Its previous value is included in the sum.
        csum_offset: crate::U16,
        /// Not 0: the frame is segmented into frames with this many bytes of TCP payload. All checksums are filled in.
        mss: crate::U16,
        /// With `mss`: bytes of headers, up to the end of the TCP header.
        header_len: crate::U16,
        /// Reserved; zero.
        reserved: [u8; 8],
    }

    /// First 16 bytes of a receive work request. `sge[num_sge]` follows.
    "faultline_rq_wqe" RqWqe [16] {
        /// Returned in the completion.
        tag: crate::U32,
        /// Number of SGEs.
        num_sge: u8,
        /// Reserved; zero.
        reserved: [u8; 11],
    }

    /// Record after the ring of a receive queue or SRQ. The one after a send queue is not used.
    "faultline_wq_record" WqRecord [64] {
        /// Producer index, written by software.
        producer: crate::U32,
        /// Reserved; zero.
        reserved0: [u8; 28],
        /// Entries consumed, written by the device.
        consumer: crate::U32,
        /// Not zero, written by the device: ring FAULTLINE_DB_RQ after posting (receive queues, not SRQs).
        notify: crate::U32,
        /// Reserved; zero.
        reserved1: [u8; 24],
    }

    /// Record after the ring of a completion queue.
    "faultline_cq_record" CqRecord [64] {
        /// Consumer index, written by software; read by the device when the queue looks full.
        consumer: crate::U32,
        /// Reserved; zero.
        reserved: [u8; 60],
    }
}

abi_consts! {
    /// Send opcodes.
    group OPCODES: u8, prefix "FAULTLINE_" {
        /// SEND.
        WR_SEND = 0;
        /// SEND with immediate data.
        WR_SEND_IMM = 1;
        /// SEND with invalidate.
        WR_SEND_INV = 2;
        /// RDMA WRITE.
        WR_WRITE = 3;
        /// RDMA WRITE with immediate data.
        WR_WRITE_IMM = 4;
        /// RDMA READ.
        WR_READ = 5;
        /// Compare and swap of 8 bytes.
        WR_COMP_SWAP = 6;
        /// Fetch and add of 8 bytes.
        WR_FETCH_ADD = 7;
        /// Local invalidate: `rkey` is the key of a fast registration or of a window of type 2.
        WR_LOCAL_INV = 8;
        /// Fast registration (RegMrWqe).
        WR_REG_MR = 9;
        /// Bind a memory window (BindMwWqe).
        WR_BIND_MW = 10;
        /// FLUSH (FlushWqe).
        WR_FLUSH = 11;
        /// Atomic write of 8 bytes: as a WRITE, to an address that is a multiple of 8.
        WR_ATOMIC_WRITE = 12;
        /// Raw Ethernet frame, without FCS.
        WR_RAW = 13;
        /// iWARP: RDMA READ with one SGE, after which `imm`, the key of the SGE, is invalidated as by WR_LOCAL_INV.
        WR_READ_INV = 14;
    }
}

abi_consts! {
    /// Placement type of a FLUSH (IBTA annex A19).
    group FLUSH: u32, prefix "FAULTLINE_" {
        /// Global visibility: earlier writes are visible to all processors and devices.
        FLUSH_GLOBAL = 1 << 0;
        /// Persistence: earlier writes survive a loss of power.
        FLUSH_PERSISTENT = 1 << 1;
    }
}

abi_consts! {
    /// Flags of a send work request.
    group FLAGS: u8, prefix "FAULTLINE_" {
        /// Write a completion.
        WR_FLAG_SIGNALED = 1 << 0;
        /// Ask the responder for a solicited event.
        WR_FLAG_SOLICITED = 1 << 1;
        /// Wait for earlier READs, atomics, FLUSHes and atomic writes; a local invalidate waits for all earlier work requests.
        WR_FLAG_FENCE = 1 << 2;
        /// The data is in the work request.
        WR_FLAG_INLINE = 1 << 3;
        /// Raw: fill the IPv4 header checksum and the TCP or UDP checksum.
        WR_FLAG_CSUM = 1 << 4;
    }
}

abi_consts! {
    /// Geometry.
    group GEOMETRY: u32, prefix "FAULTLINE_" {
        /// Offset of the first SGE, or of inline data, in a send work request.
        SQ_WQE_DATA = 48;
        /// Offset of the first SGE in a receive work request.
        RQ_WQE_DATA = 16;
        /// Smallest stride of a send queue, as log2.
        SQ_MIN_STRIDE_SHIFT = 6;
        /// Largest stride of a queue, as log2.
        MAX_STRIDE_SHIFT = 10;
        /// Smallest stride of a receive queue, as log2.
        RQ_MIN_STRIDE_SHIFT = 5;
        /// Bytes of the record after a ring.
        RING_RECORD_SIZE = 64;
        /// Bytes at the start of a raw frame that the device parses for headers and in which it fills in checksums.
        MAX_RAW_HEADERS = 138;
    }
}
