//! The admin queue: commands that create, change, query and destroy objects.
//!
//! Both rings are physically contiguous, of 2^n entries of 128 bytes. The driver fills the entry, rings
//! FAULTLINE_DB_ADMIN on page 0 and waits for a completion with the same `id`. Completion i is new when its
//! phase equals `!(i >> n) & 1`. Commands complete in order.

use crate::qp::{AddressVector, QpAttr};

abi_struct! {
    /// Location of a ring in guest memory.
    "faultline_ring" RingDesc [16] {
        /// Levels 0: DMA address of the (contiguous) ring. Levels 1: of a list of page addresses. Levels 2:
        /// of a list of addresses of 4 KiB pages, each a list of 512 page addresses (the last may hold fewer).
        addr: crate::U64,
        /// Pages of the ring.
        num_pages: crate::U32,
        /// log2 of the page size; at least 12.
        page_shift: u8,
        /// 0, 1 or 2.
        levels: u8,
        /// Reserved; zero.
        reserved: crate::U16,
    }

    /// Head of every command.
    "faultline_admin_hdr" AdminHdr [16] {
        /// FAULTLINE_ADMIN_*.
        opcode: crate::U16,
        /// Returned in the completion.
        id: crate::U16,
        /// Reserved; zero.
        reserved0: crate::U32,
        /// Number of the object that the command refers to; zero for commands that create an object.
        handle: crate::U32,
        /// Reserved; zero.
        reserved1: crate::U32,
    }

    /// Entry of the admin submission ring; `body` depends on the opcode.
    "faultline_admin_cmd" AdminCmd [128] {
        /// Common head.
        hdr: AdminHdr,
        /// Parameters; unused bytes must be zero.
        body: [u8; 112],
    }

    /// Entry of the admin completion ring.
    "faultline_admin_comp" AdminComp [128] {
        /// `id` of the command.
        id: crate::U16,
        /// Status.
        status: crate::U16,
        /// Number of the new object (CREATE, ALLOC), else `handle` of the command.
        handle: crate::U32,
        /// Answer of a QUERY command.
        body: [u8; 112],
        /// Reserved; zero.
        reserved: [u8; 7],
        /// Written last.
        phase: u8,
    }

    /// CREATE_EQ. Ring of 2^log_depth entries of 64 bytes. Answer: handle.
    "faultline_create_eq" CreateEq [24] {
        /// Ring of the queue.
        ring: RingDesc,
        /// log2 of the number of entries.
        log_depth: u8,
        /// Reserved; zero.
        reserved0: u8,
        /// MSI-X vector.
        vector: crate::U16,
        /// FAULTLINE_EQ_FLAG_*: which device-wide events this queue gets.
        flags: crate::U32,
    }

    /// CREATE_MKEY. Answer: handle is the key.
    "faultline_create_mkey" CreateMkey [48] {
        /// Protection domain.
        pd: crate::U32,
        /// FAULTLINE_ACCESS_*.
        access: crate::U32,
        /// First address.
        iova: crate::U64,
        /// Length in bytes. Zero: the key gives access to no byte, or with MKEY_PHYSICAL to the whole address space.
        length: crate::U64,
        /// FAULTLINE_MKEY_*.
        flags: crate::U32,
        /// log2 of the page size that most MAP commands will use; 12..=30.
        page_shift: u8,
        /// Low 8 bits of the key. Ignored for a window of type 2, for which they are zero.
        variant: u8,
        /// Reserved; zero.
        reserved: [u8; 18],
    }

    /// CREATE_CQ: ring of 2^log_depth entries of 64 bytes, and a record. Answer: handle.
    "faultline_create_cq" CreateCq [32] {
        /// Ring of the queue.
        ring: RingDesc,
        /// log2 of the number of entries.
        log_depth: u8,
        /// Reserved; zero.
        reserved0: [u8; 3],
        /// Event queue for completion events.
        eqn: crate::U32,
        /// User context whose page may arm it; 0 for the kernel.
        uctx: crate::U32,
        /// Reserved; zero.
        reserved1: crate::U32,
    }

    /// RESIZE_CQ: software has stopped polling at consumer index `consumer`. The indices restart at 0 in the new
    /// ring, which must be zeroed: the unread entries become its entries 0, 1, …, and the consumer index is 0.
    "faultline_resize_cq" ResizeCq [24] {
        /// The new ring.
        ring: RingDesc,
        /// log2 of the new number of entries.
        log_depth: u8,
        /// Reserved; zero.
        reserved: [u8; 3],
        /// Consumer index in the old ring.
        consumer: crate::U32,
    }

    /// ALLOC_UCTX: the process and the user that own the context. Answer: handle.
    "faultline_alloc_uctx" AllocUctx [24] {
        /// Process id (thread group id) in the guest's initial PID namespace; 0 = not reported.
        pid: crate::U32,
        /// Number of the user who owns the process. All contexts of one user share a limit of outstanding page faults.
        /// On Linux: user id in the initial user namespace, plus 1. 0 = not reported: only the context's own limit
        /// applies.
        user: crate::U32,
        /// Name of the process, up to the first NUL. Any bytes.
        comm: [u8; 16],
    }

    /// ALLOC_PD. Answer: handle.
    "faultline_alloc_pd" AllocPd [8] {
        /// User context that it belongs to; 0 = the kernel. Page faults of its keys count against the limit of this context.
        uctx: crate::U32,
        /// Reserved; zero.
        reserved: crate::U32,
    }

    /// CREATE_SRQ. Answer: handle.
    "faultline_create_srq" CreateSrq [48] {
        /// Ring of the queue.
        ring: RingDesc,
        /// Protection domain.
        pd: crate::U32,
        /// User context that it belongs to; 0 = the kernel.
        uctx: crate::U32,
        /// log2 of the number of entries.
        log_depth: u8,
        /// log2 of the bytes in an entry.
        stride_shift: u8,
        /// Scatter/gather entries of a work request.
        max_sge: u8,
        /// 0 basic, 1 XRC.
        kind: u8,
        /// Raise FAULTLINE_EVENT_SRQ_LIMIT when fewer than this many are posted; 0 = never.
        limit: crate::U32,
        /// XRC: domain.
        xrcd: crate::U32,
        /// XRC: CQ.
        cqn: crate::U32,
        /// Reserved; zero.
        reserved: [u8; 8],
    }

    /// MODIFY_SRQ.
    "faultline_modify_srq" ModifySrq [8] {
        /// New limit.
        limit: crate::U32,
        /// Reserved; zero.
        reserved: crate::U32,
    }

    /// QUERY_SRQ: answer.
    "faultline_query_srq" QuerySrq [8] {
        /// Limit, zero once the event was raised.
        limit: crate::U32,
        /// Reserved; zero.
        reserved: crate::U32,
    }

    /// CREATE_QP. Answer: handle. GSI gives QP number 1.
    "faultline_create_qp" CreateQp [80] {
        /// Send queue.
        sq: RingDesc,
        /// Receive queue; all zero with an SRQ.
        rq: RingDesc,
        /// Protection domain.
        pd: crate::U32,
        /// User context whose doorbell page rings it; 0 = the kernel.
        uctx: crate::U32,
        /// CQ of the send queue.
        send_cqn: crate::U32,
        /// CQ of the receive queue.
        recv_cqn: crate::U32,
        /// SRQ, if QP_FLAG_SRQ is set.
        srqn: crate::U32,
        /// FAULTLINE_QP_FLAG_*.
        flags: crate::U32,
        /// FAULTLINE_QPT_*.
        qp_type: u8,
        /// Send queue: log2 of the number of entries.
        sq_log_depth: u8,
        /// Send queue: log2 of the bytes in an entry.
        sq_stride_shift: u8,
        /// Receive queue: log2 of the number of entries.
        rq_log_depth: u8,
        /// Receive queue: log2 of the bytes in an entry.
        rq_stride_shift: u8,
        /// Scatter/gather entries of a send work request.
        max_send_sge: u8,
        /// Scatter/gather entries of a receive work request.
        max_recv_sge: u8,
        /// Reserved; zero.
        reserved0: u8,
        /// Bytes of inline data in a send work request.
        max_inline: crate::U32,
        /// XRC target: its domain. Such a QP has no queues, no PD, no CQs, and belongs to context 0.
        xrcd: crate::U32,
        /// Reserved; zero.
        reserved1: [u8; 8],
    }

    /// CREATE_AH. Answer: handle.
    "faultline_create_ah" CreateAh [48] {
        /// Protection domain.
        pd: crate::U32,
        /// Reserved; zero.
        reserved: crate::U32,
        /// Path to the destination.
        av: AddressVector,
    }

    /// SET_GID: handle is the index.
    "faultline_set_gid" SetGid [32] {
        /// GID; IPv4 as ::ffff:a.b.c.d.
        gid: [u8; 16],
        /// Source MAC address.
        mac: [u8; 6],
        /// VLAN id, or 0xffff for none.
        vlan: crate::U16,
        /// 1: in use, 0: remove.
        valid: u8,
        /// Reserved; zero.
        reserved: [u8; 7],
    }

    /// SET_NETDEV: receive configuration of the Ethernet interface.
    "faultline_set_netdev" SetNetdev [16] {
        /// Unicast MAC address that it receives, byte 0 first.
        mac: [u8; 6],
        /// Largest payload of a frame; 68..=max_mtu.
        mtu: crate::U16,
        /// FAULTLINE_NETDEV_*.
        flags: crate::U32,
        /// Raw or RSS QP that receives the frames that no other rule matches, or 0.
        qpn: crate::U32,
    }

    /// SET_MAC_FILTER: unicast and multicast addresses that the Ethernet interface receives in addition to its own address
    /// and broadcast. They replace those of the previous command.
    "faultline_set_mac_filter" SetMacFilter [16] {
        /// DMA address of an array of `count` `faultline_mac_filter_entry`; not read if `count` is 0.
        addr: crate::U64,
        /// 0..=max_mac_filter.
        count: crate::U32,
        /// Reserved; zero.
        reserved: crate::U32,
    }

    /// Element of the array of SET_MAC_FILTER.
    "faultline_mac_filter_entry" MacFilterEntry [8] {
        /// MAC address, byte 0 first.
        mac: [u8; 6],
        /// Reserved; zero.
        reserved: [u8; 2],
    }

    /// MODIFY_CQ: a completion event is delayed until `count` completions are queued, or until `period` after the first of
    /// them, whichever is earlier. No event is delayed if both are zero or if `count` is one, nor for a completion with an
    /// error.
    "faultline_modify_cq" ModifyCq [8] {
        /// 0..=max_cq_count; 0: only the period applies.
        count: crate::U16,
        /// Microseconds, 0..=max_cq_period; not zero if `count` is more than one.
        period: crate::U16,
        /// Reserved; zero.
        reserved: crate::U32,
    }

    /// RESIZE_SRQ: software has stopped posting. The indices restart at 0 in the new ring: the requests that have not
    /// been consumed become its entries 0, 1, …; the device writes `producer` and `consumer` of its record.
    "faultline_resize_srq" ResizeSrq [24] {
        /// The new ring; the stride is unchanged.
        ring: RingDesc,
        /// log2 of the new number of entries.
        log_depth: u8,
        /// Reserved; zero.
        reserved: [u8; 7],
    }

    /// BIND_COUNTERS: handle is a QP.
    "faultline_bind_counters" BindCounters [8] {
        /// Set that counts for this QP instead of the device's counters; 0 = none.
        counters: crate::U32,
        /// Reserved; zero.
        reserved: crate::U32,
    }

    /// QUERY_COUNTERS: the device writes an array of 64-bit counters; those of a set if the handle is not zero.
    "faultline_query_counters" QueryCounters [16] {
        /// DMA address.
        addr: crate::U64,
        /// Bytes available at `addr`. The device writes at most the counters that it has; `handle` of the completion is their
        /// number.
        len: crate::U32,
        /// Reserved; zero.
        reserved: crate::U32,
    }
}

/// Body of MODIFY_QP, and of the answer of QUERY_QP.
pub type ModifyQp = QpAttr;

abi_consts! {
    /// Admin opcodes.
    group OPCODES: u16, prefix "FAULTLINE_ADMIN_" {
        /// Does nothing.
        NOP = 0x00;
        /// Allocate a user context; the answer's handle is the number of its doorbell and kick page.
        ALLOC_UCTX = 0x01;
        /// Free a user context.
        DEALLOC_UCTX = 0x02;
        /// Create an event queue.
        CREATE_EQ = 0x08;
        /// Destroy an event queue.
        DESTROY_EQ = 0x09;
        /// Allocate a protection domain.
        ALLOC_PD = 0x10;
        /// Free a protection domain.
        DEALLOC_PD = 0x11;
        /// Allocate an XRC domain.
        ALLOC_XRCD = 0x12;
        /// Free an XRC domain.
        DEALLOC_XRCD = 0x13;
        /// Create a memory key; FAULTLINE_TQ_MAP writes its page table.
        CREATE_MKEY = 0x18;
        /// Destroy a memory key.
        DESTROY_MKEY = 0x19;
        /// Change a memory key, which keeps its number: all parameters of CREATE_MKEY but the variant.
        MODIFY_MKEY = 0x1a;
        /// Create a completion queue.
        CREATE_CQ = 0x20;
        /// Destroy a completion queue.
        DESTROY_CQ = 0x21;
        /// Resize a completion queue.
        RESIZE_CQ = 0x22;
        /// Create a shared receive queue.
        CREATE_SRQ = 0x28;
        /// Destroy a shared receive queue.
        DESTROY_SRQ = 0x29;
        /// Change an SRQ.
        MODIFY_SRQ = 0x2a;
        /// Query an SRQ.
        QUERY_SRQ = 0x2b;
        /// Create a queue pair.
        CREATE_QP = 0x30;
        /// Destroy a queue pair.
        DESTROY_QP = 0x31;
        /// Change a queue pair.
        MODIFY_QP = 0x32;
        /// Query a queue pair.
        QUERY_QP = 0x33;
        /// Create an address handle.
        CREATE_AH = 0x38;
        /// Destroy an address handle.
        DESTROY_AH = 0x39;
        /// Set or clear an entry of the GID table.
        SET_GID = 0x40;
        /// Configure the Ethernet interface.
        SET_NETDEV = 0x41;
        /// Set the additional addresses that the Ethernet interface receives.
        SET_MAC_FILTER = 0x42;
        /// Read the counters.
        QUERY_COUNTERS = 0x48;
        /// Attach a queue pair to a multicast group.
        ATTACH_MCAST = 0x58;
        /// Detach a queue pair from a multicast group.
        DETACH_MCAST = 0x59;
        /// Create a flow: a rule that steers received frames to a queue pair.
        CREATE_FLOW = 0x5a;
        /// Destroy a flow.
        DESTROY_FLOW = 0x5b;
        /// Allocate device memory.
        ALLOC_DM = 0x70;
        /// Free device memory.
        DEALLOC_DM = 0x71;
        /// Create a memory key for device memory; DESTROY_MKEY destroys it.
        CREATE_DM_MKEY = 0x72;
        /// Change the moderation of a completion queue.
        MODIFY_CQ = 0x74;
        /// Move an SRQ to another ring.
        RESIZE_SRQ = 0x75;
        /// Allocate a set of counters, all zero.
        ALLOC_COUNTERS = 0x76;
        /// Free a set of counters.
        DEALLOC_COUNTERS = 0x77;
        /// Bind a queue pair to a set of counters.
        BIND_COUNTERS = 0x78;
        /// Create a work queue, the receive half of a raw queue pair.
        CREATE_WQ = 0x5c;
        /// Destroy a work queue.
        DESTROY_WQ = 0x5d;
        /// Change the state of a work queue.
        MODIFY_WQ = 0x5e;
        /// Create an indirection table of work queues.
        CREATE_RWQ_IND_TABLE = 0x5f;
        /// Destroy an indirection table.
        DESTROY_RWQ_IND_TABLE = 0x60;
        /// Create an RSS queue pair, which distributes frames over work queues.
        CREATE_RSS_QP = 0x61;
        /// Create a shared receive queue with tag matching; DESTROY_SRQ destroys it.
        CREATE_TM_SRQ = 0x79;
        /// iWARP: listen at a TCP port.
        CREATE_LISTENER = 0x80;
        /// iWARP: end a listener, and its connections that are being opened. Requests stay.
        DESTROY_LISTENER = 0x81;
        /// iWARP: open a connection for a queue pair.
        CONNECT = 0x82;
        /// iWARP: give a request to a queue pair.
        ACCEPT = 0x83;
        /// iWARP: refuse a request, or free one that has ended.
        REJECT = 0x84;
        /// iWARP: read a request.
        QUERY_REQUEST = 0x85;
        /// iWARP: read the connection of a queue pair.
        QUERY_CONNECTION = 0x86;
    }
}

abi_consts! {
    /// Flags of CREATE_EQ.
    group EQ_FLAGS: u32, prefix "FAULTLINE_EQ_FLAG_" {
        /// This queue gets the asynchronous events of all objects.
        EQ_ASYNC = 1 << 0;
        /// This queue gets page faults.
        EQ_FAULTS = 1 << 1;
    }
}

abi_consts! {
    /// Flags of CREATE_MKEY.
    group MKEY_FLAGS: u32, prefix "FAULTLINE_" {
        /// No page table: addresses are DMA addresses; the whole space if `length` is zero.
        MKEY_PHYSICAL = 1 << 0;
        /// MODIFY_MKEY: the region is the same and keeps its pages.
        MKEY_KEEP_PAGES = 1 << 1;
        /// For WR_REG_MR; without access before it. `length` is the largest number of pages; access and address are
        /// zero.
        MKEY_FAST_REG = 1 << 2;
        /// A memory window of type 1, not bound. Access, address and length are zero.
        MKEY_WINDOW_1 = 1 << 3;
        /// A memory window of type 2, not bound. Access, address and length are zero.
        MKEY_WINDOW_2 = 1 << 4;
    }
}

abi_consts! {
    /// Flags of CREATE_QP.
    group QP_FLAGS: u32, prefix "FAULTLINE_" {
        /// Every send work request makes a completion.
        QP_FLAG_SIG_ALL = 1 << 0;
        /// Receives come from SRQ `srqn`.
        QP_FLAG_SRQ = 1 << 1;
    }
}

abi_consts! {
    /// Flags of SET_NETDEV.
    group NETDEV_FLAGS: u32, prefix "FAULTLINE_" {
        /// Receive every frame.
        NETDEV_PROMISC = 1 << 0;
        /// Receive every multicast frame.
        NETDEV_ALLMULTI = 1 << 1;
        /// The interface is up.
        NETDEV_UP = 1 << 2;
    }
}

macro_rules! counters {
    ($( $(#[doc = $doc:literal])* $name:ident, )*) => {
        /// The counters of a device, in the order in which QUERY_COUNTERS writes them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(
            non_camel_case_types,
            reason = "the C header and QUERY_COUNTERS use these names as they are"
        )]
        pub enum Counter { $( $(#[doc = $doc])* $name, )* }

        impl Counter {
            /// All counters, in the order of their indices.
            pub const ALL: &'static [Counter] = &[$(Counter::$name),*];
            /// Number of counters.
            pub const COUNT: usize = Self::ALL.len();
            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$name => stringify!($name), )* }
            }
        }

        /// Counters, as indices in the answer of QUERY_COUNTERS.
        pub const COUNTERS: crate::ConstantGroup = crate::ConstantGroup {
            doc: &[" Indices in the answer of QUERY_COUNTERS."],
            prefix: "FAULTLINE_CNT_",
            constants: &[$( crate::Constant {
                name: concat!("FAULTLINE_CNT_", stringify!($name)),
                value: Counter::$name as u64,
                doc: &[$($doc),*],
            } ),*],
        };
    };
}

counters! {
    /// Frames sent.
    tx_packets,
    /// Bytes of frames sent.
    tx_bytes,
    /// Frames received.
    rx_packets,
    /// Bytes of frames received.
    rx_bytes,
    /// RoCE packets sent.
    tx_roce_packets,
    /// RoCE packets received.
    rx_roce_packets,
    /// Frames that no rule matched.
    rx_filtered,
    /// Raw Ethernet frames dropped because no receive buffer was posted.
    rx_no_buffer,
    /// Packets with a malformed header.
    rx_malformed,
    /// Packets with a wrong invariant CRC.
    rx_icrc_errors,
    /// Packets to a QP that does not exist or can't receive.
    rx_bad_qp,
    /// Packets with a wrong P_Key.
    rx_bad_pkey,
    /// Datagrams with a wrong Q_Key.
    rx_bad_qkey,
    /// Packets from another address than the QP's peer.
    rx_bad_source,
    /// Messages refused because no receive was posted: datagrams and UC packets dropped, RC and XRC requests answered by an RNR NAK.
    out_of_buffer,
    /// Packets with a PSN ahead of the expected one.
    out_of_sequence,
    /// Duplicate requests.
    duplicate_request,
    /// Acknowledgement timeouts.
    local_ack_timeout_err,
    /// Packets sent again.
    retransmitted_packets,
    /// RNR NAKs sent.
    rnr_nak_sent,
    /// RNR NAKs received.
    rnr_nak_received,
    /// Sequence error NAKs sent.
    packet_seq_err_sent,
    /// Sequence error NAKs received.
    packet_seq_err,
    /// Remote access errors sent.
    resp_remote_access_errors,
    /// Remote access errors received.
    req_remote_access_errors,
    /// Invalid requests refused.
    resp_invalid_request,
    /// Invalid requests reported by a peer.
    req_remote_invalid_request,
    /// Completions with an error status other than flush, of send and receive queues.
    cqe_error,
    /// Completions flushed, of send and receive queues.
    cqe_flush_error,
    /// ECN marked packets received.
    np_ecn_marked_roce_packets,
    /// Congestion notifications sent.
    np_cnp_sent,
    /// Congestion notifications received that a queue pair obeys.
    rp_cnp_handled,
    /// Doorbells refused: unknown object, wrong page, index out of range.
    doorbell_errors,
    /// Register accesses refused.
    register_errors,
    /// Accesses to guest memory that failed.
    dma_errors,
    /// Admin and translation commands refused.
    command_errors,
    /// Page faults raised.
    page_faults,
    /// Page faults resumed.
    page_faults_resumed,
    /// Accesses to absent pages that joined an outstanding fault.
    page_faults_joined,
    /// Accesses to absent pages refused because the fault queue was full.
    page_fault_overflow,
    /// Translation entries removed by invalidations.
    page_invalidations,
    /// Page faults that the driver answered with an error.
    page_faults_failed,
    /// Page faults that the driver did not answer in time.
    page_fault_timeouts,
    /// RNR NAKs sent because of a page fault.
    page_fault_rnr,
    /// Packets dropped because of a page fault.
    page_fault_drops,
    /// Packets that wait for a page in the device.
    parked_packets,
    /// Packets dropped because the memory for waiting packets was full.
    park_overflow,
    /// Times that ingress was paused by a page fault (policy `stall`).
    stalls,
    /// Times that ingress was paused for longer than the limit, and the packet that waited was dropped.
    stall_timeouts,
    /// Packets dropped because the queue of a paused ingress was full.
    stall_overflow,
    /// READY packets sent, which tell a requester that a page is present now.
    ready_notices,
    /// Look-ups that the translation cache answered.
    tlb_hits,
    /// Look-ups that the translation cache missed.
    tlb_misses,
    /// Times that a region's entries in the translation cache were dropped.
    tlb_shootdowns,
    /// Datagrams sent to a multicast group.
    tx_mcast_packets,
    /// Datagrams to a multicast group that a queue pair here is attached to.
    rx_mcast_packets,
    /// Copies of such datagrams for queue pairs.
    rx_mcast_copies,
    /// Frames that a flow has taken, or copied.
    rx_steered,
    /// Frames that a flow has dropped.
    rx_flow_drops,
    /// Received frames with a wrong IPv4, TCP or UDP checksum.
    rx_csum_errors,
    /// Requests that were segmented.
    tx_segmented,
    /// Messages that are longer than their receive buffer.
    resp_local_length_error,
    /// Sent frames that the switch dropped because their source address belongs to another NIC.
    tx_bad_source,
    /// Bytes that page tables, page lists of rings and queue pairs occupy now. The only counter that can decrease.
    table_bytes,
    /// READY packets received from peers that are known to be Faultlines.
    ready_received,
    /// READY packets dropped because their sender is not known to be a Faultline.
    ready_refused,
    /// Frames not sent because the interface is down.
    tx_interface_down,
    /// Frames not received because the interface is down.
    rx_interface_down,
    /// RoCE packets not sent because they are longer than the MTU of the interface.
    tx_over_mtu,
    /// RoCE packets not received because they are longer than the MTU of the interface.
    rx_over_mtu,
    /// RoCE packets not sent because their entry of the GID table has changed since their path was set.
    tx_bad_gid,
    /// RoCE packets to a GID that no entry of the GID table has, in their VLAN.
    rx_bad_gid,
    /// Raw frames not sent because they are from, or announce, an address that the guest may not use.
    tx_bad_address,
    /// Frames sent that are not RoCE packets of a queue pair.
    tx_ethernet_packets,
    /// Bytes of these frames.
    tx_ethernet_bytes,
    /// Frames received that are not RoCE packets.
    rx_ethernet_packets,
    /// Bytes of these frames.
    rx_ethernet_bytes,
    /// RoCE packets to a multicast group that arrived at the port, whether a queue pair is attached to it or not.
    rx_port_mcast_packets,
    /// READs executed. A repetition is a duplicate request.
    rx_read_requests,
    /// WRITEs whose first packet was executed.
    rx_write_requests,
    /// Atomic operations executed, ATOMIC WRITE included. A repetition is a duplicate request.
    rx_atomic_requests,
    /// RNR NAKs received after which the request is sent again.
    rnr_nak_retry_err,
    /// Times that transmission went back because a later response showed that one was lost.
    implied_nak_seq_err,
    /// Completions of send queues with an error status, flush included.
    req_cqe_error,
    /// Completions of send queues flushed.
    req_cqe_flush_error,
    /// Completions of receive queues with an error status, flush included.
    resp_cqe_error,
    /// Completions of receive queues flushed.
    resp_cqe_flush_error,
    /// Requests that failed because no transport retry was left.
    req_transport_retries_exceeded,
    /// Requests that failed because no RNR retry was left.
    req_rnr_retries_exceeded,
    /// Congestion notifications received that no queue pair obeys.
    rp_cnp_ignored,
}
