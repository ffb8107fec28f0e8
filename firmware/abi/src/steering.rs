//! Multicast groups, flows, work queues and receive side scaling: bodies of admin commands.

use crate::admin::RingDesc;

abi_struct! {
    /// ATTACH_MCAST, DETACH_MCAST: handle is a UD queue pair.
    "faultline_mcast" Mcast [16] {
        /// Group; IPv4 as ::ffff:a.b.c.d.
        gid: [u8; 16],
    }

    /// Header fields of a frame, in the order of the wire.
    "faultline_flow_fields" FlowFields [64] {
        /// Destination MAC address.
        dmac: [u8; 6],
        /// Source MAC address.
        smac: [u8; 6],
        /// EtherType, behind a VLAN tag if there is one.
        ether_type: [u8; 2],
        /// VLAN tag; zero if the frame has none.
        vlan_tci: [u8; 2],
        /// Source IP address; IPv4 in the last four bytes, zeroes before.
        src_ip: [u8; 16],
        /// Destination IP address, likewise.
        dst_ip: [u8; 16],
        /// IPv6 flow label, 20 bits.
        flow_label: [u8; 4],
        /// IPv4 protocol, IPv6 next header.
        protocol: u8,
        /// IPv4 ToS, IPv6 traffic class.
        traffic_class: u8,
        /// IPv4 TTL, IPv6 hop limit.
        hop_limit: u8,
        /// IPv4: the three flag bits, more-fragments lowest.
        ip_flags: u8,
        /// TCP or UDP source port.
        src_port: [u8; 2],
        /// TCP or UDP destination port.
        dst_port: [u8; 2],
        /// Reserved; zero.
        reserved: [u8; 4],
    }

    /// CREATE_FLOW. Answer: handle.
    "faultline_create_flow" CreateFlow [32] {
        /// NORMAL: DMA address of two `faultline_flow_fields`: the values, then the mask of the bits that are compared. Else 0.
        fields_addr: crate::U64,
        /// Raw or RSS queue pair that receives the frames.
        qpn: crate::U32,
        /// NORMAL: FAULTLINE_FLOW_HAS_*, the headers that a frame must have.
        headers: crate::U32,
        /// Returned in completions.
        tag: crate::U32,
        /// NORMAL: lower values match first. Else 0.
        priority: crate::U16,
        /// FAULTLINE_FLOW_KIND_*.
        kind: u8,
        /// FAULTLINE_FLOW_FLAG_*.
        flags: u8,
        /// Reserved; zero.
        reserved: [u8; 8],
    }

    /// CREATE_WQ: ring of 2^(log_depth + stride_shift) bytes and a record, as for a receive queue. Answer: handle.
    "faultline_create_wq" CreateWq [40] {
        /// Ring of the queue.
        ring: RingDesc,
        /// Protection domain.
        pd: crate::U32,
        /// User context that it belongs to; 0 = the kernel.
        uctx: crate::U32,
        /// CQ of the receives.
        cqn: crate::U32,
        /// log2 of the number of entries.
        log_depth: u8,
        /// log2 of the bytes in an entry.
        stride_shift: u8,
        /// Scatter/gather entries of a work request.
        max_sge: u8,
        /// Reserved; zero.
        reserved: [u8; 9],
    }

    /// MODIFY_WQ.
    "faultline_modify_wq" ModifyWq [8] {
        /// FAULTLINE_WQS_*.
        state: u8,
        /// Reserved; zero.
        reserved: [u8; 7],
    }

    /// CREATE_RWQ_IND_TABLE. Answer: handle.
    "faultline_create_rwq_ind_table" CreateRwqIndTable [16] {
        /// DMA address of 2^log_size numbers of WQs, or of raw queue pairs, 32 bits each.
        addr: crate::U64,
        /// log2 of the number of entries; 0..=max_rwq_ind_table_log_size.
        log_size: u8,
        /// Reserved; zero.
        reserved: [u8; 7],
    }

    /// CREATE_RSS_QP. Answer: handle, a queue pair.
    "faultline_create_rss_qp" CreateRssQp [64] {
        /// Protection domain.
        pd: crate::U32,
        /// User context that it belongs to; 0 = the kernel.
        uctx: crate::U32,
        /// Indirection table.
        table: crate::U32,
        /// FAULTLINE_HASH_*: fields that are hashed if the frame has them. Ports of TCP or of UDP, not of both.
        hash_fields: crate::U32,
        /// Toeplitz key.
        key: [u8; 40],
        /// Reserved; zero.
        reserved: [u8; 8],
    }
}

abi_consts! {
    /// Kinds of flows; the values of `enum ib_flow_attr_type`.
    group FLOW_KINDS: u8, prefix "FAULTLINE_" {
        /// Frames that match.
        FLOW_KIND_NORMAL = 0;
        /// Frames that neither a flow nor the netdev matches.
        FLOW_KIND_ALL_DEFAULT = 1;
        /// Multicast frames that neither a flow nor the netdev matches.
        FLOW_KIND_MC_DEFAULT = 2;
        /// A copy of every frame that is sent or received.
        FLOW_KIND_SNIFFER = 3;
    }
}

abi_consts! {
    /// Flags of CREATE_FLOW.
    group FLOW_FLAGS: u8, prefix "FAULTLINE_" {
        /// Later flows can match the frame too.
        FLOW_FLAG_DONT_TRAP = 1 << 0;
        /// The frame is dropped.
        FLOW_FLAG_DROP = 1 << 1;
    }
}

abi_consts! {
    /// Headers of a frame.
    group FLOW_HEADERS: u32, prefix "FAULTLINE_" {
        /// Ethernet. Every frame has it.
        FLOW_HAS_ETH = 1 << 0;
        /// IPv4.
        FLOW_HAS_IPV4 = 1 << 1;
        /// IPv6.
        FLOW_HAS_IPV6 = 1 << 2;
        /// TCP, in the first or only fragment.
        FLOW_HAS_TCP = 1 << 3;
        /// UDP, likewise.
        FLOW_HAS_UDP = 1 << 4;
    }
}

abi_consts! {
    /// States of a WQ; the values of `enum ib_wq_state`.
    group WQ_STATES: u8, prefix "FAULTLINE_" {
        /// Reset: frames are dropped.
        WQS_RESET = 0;
        /// Ready to receive.
        WQS_RDY = 1;
        /// Error: receive work requests are flushed.
        WQS_ERR = 2;
    }
}

abi_consts! {
    /// Fields that an RSS queue pair hashes; the values of `enum ibv_rx_hash_fields`.
    group HASH_FIELDS: u32, prefix "FAULTLINE_" {
        /// IPv4 source address.
        HASH_SRC_IPV4 = 1 << 0;
        /// IPv4 destination address.
        HASH_DST_IPV4 = 1 << 1;
        /// IPv6 source address.
        HASH_SRC_IPV6 = 1 << 2;
        /// IPv6 destination address.
        HASH_DST_IPV6 = 1 << 3;
        /// TCP source port.
        HASH_SRC_PORT_TCP = 1 << 4;
        /// TCP destination port.
        HASH_DST_PORT_TCP = 1 << 5;
        /// UDP source port.
        HASH_SRC_PORT_UDP = 1 << 6;
        /// UDP destination port.
        HASH_DST_PORT_UDP = 1 << 7;
    }
}
