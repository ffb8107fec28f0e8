//! Event queues.
//!
//! An event queue is a ring of 64-byte entries in guest memory. The device writes `phase` last. Entry i of
//! a ring with 2^n entries is new when its phase equals `!(i >> n) & 1`, so that a zeroed ring is empty.
//! After an FAULTLINE_DB_EQ_ARM doorbell the next entry (or one that the consumer index shows as unread)
//! raises the queue's MSI-X vector once.

abi_struct! {
    /// Event queue entry.
    "faultline_eqe" Eqe [64] {
        /// FAULTLINE_EVENT_*.
        kind: u8,
        /// Reserved; zero.
        reserved0: [u8; 3],
        /// Number of the CQ, QP, SRQ, listener or request, by kind.
        object: crate::U32,
        /// Page fault: token to resume with. Events of connections: number of the request, or FAULTLINE_CLOSE_*; see the kind.
        token: crate::U64,
        /// Page fault: virtual address (I/O virtual address of the region) that is absent.
        va: crate::U64,
        /// Page fault: memory key that was used.
        key: crate::U32,
        /// Page fault: bytes needed at `va` before the transfer can continue.
        bytes: crate::U32,
        /// Page fault: bytes from `va` that the rest of the message will need; at least `bytes`.
        hint_bytes: crate::U64,
        /// Page fault: FAULTLINE_FAULT_* bits.
        fault_flags: crate::U32,
        /// Page fault: packet sequence number of the packet that found the page absent.
        psn: crate::U32,
        /// Device clock in nanoseconds.
        timestamp: crate::U64,
        /// Reserved; zero.
        reserved1: [u8; 7],
        /// Written last.
        phase: u8,
    }
}

abi_consts! {
    /// Kinds of events.
    group KINDS: u8, prefix "FAULTLINE_EVENT_" {
        /// Completion event of CQ `object`.
        COMPLETION = 1;
        /// One or more admin commands have completed.
        ADMIN = 2;
        /// Page fault of QP `object`.
        PAGE_FAULT = 3;
        /// CQ `object` overflowed or can't be written.
        CQ_ERROR = 16;
        /// QP `object` had an error that no completion can report.
        QP_FATAL = 17;
        /// QP `object` refused a malformed request.
        QP_REQUEST_ERROR = 18;
        /// QP `object` refused a request because of access rights.
        QP_ACCESS_ERROR = 19;
        /// First packet of an established connection arrived in RTR on QP `object`.
        COMM_ESTABLISHED = 20;
        /// Send queue of QP `object` has drained in SQD.
        SQ_DRAINED = 21;
        /// QP `object`, in error, consumed its last SRQ work request.
        LAST_WQE_REACHED = 22;
        /// SRQ `object` fell below its limit.
        SRQ_LIMIT = 23;
        /// SRQ `object` can't be read.
        SRQ_ERROR = 24;
        /// The link came up.
        PORT_UP = 32;
        /// The link went down.
        PORT_DOWN = 33;
        /// The device has stopped; the cause is in FAULTLINE_REG_FATAL_CODE.
        DEVICE_FATAL = 34;
        /// Ingress was paused too long for a page of QP `object`; the packet that waited was dropped.
        STALL_TIMEOUT = 35;
        /// iWARP: a peer wants to connect to listener `object`; the number of the request is in `token`.
        CONNECTION_REQUEST = 48;
        /// iWARP: request `object` has ended without an answer, and waits for REJECT.
        REQUEST_GONE = 49;
        /// iWARP: QP `object` is connected and in state RTS.
        CONNECTED = 50;
        /// iWARP: the connection of QP `object` was not opened; the reason is in `token` (FAULTLINE_CLOSE_*). The QP is in state ERR.
        CONNECT_FAILED = 51;
        /// iWARP: the peer of QP `object` has closed in order. The QP is in state SQD, and its send queue is being flushed.
        PEER_CLOSED = 52;
        /// iWARP: the connection of QP `object` has ended; the reason is in `token` (FAULTLINE_CLOSE_*). The QP is in state ERR.
        CONNECTION_CLOSED = 53;
    }
}

abi_consts! {
    /// Bits of `fault_flags`.
    group FAULT_BITS: u32, prefix "FAULTLINE_FAULT_" {
        /// The access is a write.
        WRITE = 1 << 0;
        /// The QP is the requester (its own gather or landing buffer), else the responder.
        REQUESTER = 1 << 1;
    }
}
