//! Limits and capabilities, readable in the register BAR.

abi_struct! {
    /// Limits and capabilities, at FAULTLINE_REG_CAPS.
    "faultline_caps" Caps [256] {
        /// Firmware version: major << 32 | minor << 16 | patch.
        fw_version: crate::U64,
        /// Node GUID, EUI-64 of the permanent MAC address.
        node_guid: crate::U64,
        /// Bit n set: pages of 2^n bytes are supported in a memory region.
        page_sizes: crate::U64,
        /// Longest memory region in bytes.
        max_mr_size: crate::U64,
        /// Queue pairs.
        max_qp: crate::U32,
        /// Work requests in a send or receive queue.
        max_qp_wr: crate::U32,
        /// Scatter/gather entries in a send or receive work request.
        max_sge: crate::U32,
        /// Bytes of inline data in a send work request.
        max_inline: crate::U32,
        /// Completion queues.
        max_cq: crate::U32,
        /// Entries in a completion queue.
        max_cqe: crate::U32,
        /// Memory keys.
        max_mkey: crate::U32,
        /// Protection domains.
        max_pd: crate::U32,
        /// Address handles.
        max_ah: crate::U32,
        /// Shared receive queues.
        max_srq: crate::U32,
        /// Work requests in a shared receive queue.
        max_srq_wr: crate::U32,
        /// User contexts (doorbell pages that can be allocated).
        max_uctx: crate::U32,
        /// Event queues; queue n may use any vector.
        max_eq: crate::U32,
        /// Entries in an event queue.
        max_eqe: crate::U32,
        /// Entries of the GID table.
        max_gid: crate::U32,
        /// Longest message in bytes.
        max_msg_size: crate::U32,
        /// READs and atomics that a QP serves concurrently as responder.
        max_rd_atomic: crate::U32,
        /// READs and atomics that a QP may have outstanding as requester.
        max_init_rd_atomic: crate::U32,
        /// Largest Ethernet MTU (payload of a frame) in bytes.
        max_mtu: crate::U32,
        /// Entries of a page list in one translation command.
        max_map_pages: crate::U32,
        /// Multicast groups.
        max_mcast_grp: crate::U32,
        /// QPs in one multicast group.
        max_mcast_qp: crate::U32,
        /// FAULTLINE_ODP_* bits for RC.
        rc_odp_caps: crate::U32,
        /// FAULTLINE_ODP_* bits for UC.
        uc_odp_caps: crate::U32,
        /// FAULTLINE_ODP_* bits for UD.
        ud_odp_caps: crate::U32,
        /// FAULTLINE_ODP_* bits for XRC.
        xrc_odp_caps: crate::U32,
        /// Page faults outstanding at a time; a fault queue with this many entries never overflows.
        max_faults: crate::U32,
        /// Leaves of a page table that one translation command may write.
        max_map_leaves: crate::U32,
        /// Pages of a fast registration.
        max_fast_reg_pages: crate::U32,
        /// Reserved; zero.
        reserved0: [u8; 28],
        /// Flows.
        max_flow: crate::U32,
        /// Indirection tables.
        max_rwq_ind_table: crate::U32,
        /// log2 of the entries of an indirection table.
        max_rwq_ind_table_log_size: crate::U32,
        /// Bytes of payload of a raw work request that is segmented; 0 = segmentation is not supported.
        max_tso: crate::U32,
        /// Entries of SET_MAC_FILTER.
        max_mac_filter: crate::U32,
        /// Reserved; zero.
        reserved: [u8; 12],
        /// Bytes of device memory; 0 = none.
        device_memory: crate::U64,
        /// Allocations of device memory.
        max_dm: crate::U32,
        /// Tagged buffers of a tag matching SRQ; 0 = tag matching is not supported.
        max_tm_tags: crate::U32,
        /// Operations in the ring of a tag matching SRQ.
        max_tm_ops: crate::U32,
        /// Counter sets.
        max_counters: crate::U32,
        /// Largest completion count of CQ moderation; 0 = moderation is not supported.
        max_cq_count: crate::U16,
        /// Longest period of CQ moderation in microseconds.
        max_cq_period: crate::U16,
        /// FAULTLINE_FEATURE_* bits.
        features: crate::U32,
        /// iWARP: listeners, and requests that wait for an answer.
        max_listener: crate::U32,
        /// iWARP: backlog of a listener.
        max_backlog: crate::U32,
        /// Reserved; zero.
        reserved2: [u8; 8],
    }
}

abi_consts! {
    /// Behaviour that the device requests of its driver.
    group FEATURES: u32, prefix "FAULTLINE_FEATURE_" {
        /// The driver adds an entry of RoCE v1 before each entry of RoCE v2 to the software's GID table, as adapters
        /// that support both have. The device has the entries of RoCE v2 only, at the same indices.
        ROCE_V1_GIDS = 1 << 0;
        /// The device is an iWARP adapter (RFC 5040): queue pairs of type RC have TCP connections, and there are no others but those
        /// for raw Ethernet frames. The GID table, address handles and multicast groups are not used.
        IWARP = 1 << 1;
    }
}

abi_consts! {
    /// Operations that may access an on-demand region; the values of `enum ib_odp_transport_cap_bits`.
    group ODP_BITS: u32, prefix "FAULTLINE_" {
        /// SEND gathers.
        ODP_SEND = 1 << 0;
        /// Receives scatter.
        ODP_RECV = 1 << 1;
        /// RDMA WRITE.
        ODP_WRITE = 1 << 2;
        /// RDMA READ.
        ODP_READ = 1 << 3;
        /// Atomics.
        ODP_ATOMIC = 1 << 4;
        /// Shared receive queues scatter.
        ODP_SRQ_RECV = 1 << 5;
    }
}
