//! Multicast groups and flows: bodies of admin commands.

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
        /// VLAN tag; zero without.
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
        reserved: [u8; 4],
    }

    /// CREATE_FLOW. Answer: handle.
    "faultline_create_flow" CreateFlow [32] {
        /// NORMAL: DMA address of two `faultline_flow_fields`: values, then the mask of the bits that count. Else 0.
        fields_addr: crate::U64,
        /// Raw queue pair that gets the frames.
        qpn: crate::U32,
        /// NORMAL: FAULTLINE_FLOW_HAS_*, the headers that a frame must have.
        headers: crate::U32,
        /// Returned in completions.
        tag: crate::U32,
        /// NORMAL: lower comes first. Else 0.
        priority: crate::U16,
        /// FAULTLINE_FLOW_KIND_*.
        kind: u8,
        /// FAULTLINE_FLOW_FLAG_*.
        flags: u8,
        reserved: [u8; 8],
    }
}

abi_consts! {
    /// Kinds of flows; the values of `enum ib_flow_attr_type`.
    group FLOW_KINDS: u8, prefix "FAULTLINE_" {
        /// Frames that match.
        FLOW_KIND_NORMAL = 0;
        /// What neither a flow nor the netdev takes.
        FLOW_KIND_ALL_DEFAULT = 1;
        /// Multicast that neither a flow nor the netdev takes.
        FLOW_KIND_MC_DEFAULT = 2;
        /// A copy of everything, both ways.
        FLOW_KIND_SNIFFER = 3;
    }
}

abi_consts! {
    /// Flags of CREATE_FLOW.
    group FLOW_FLAGS: u8, prefix "FAULTLINE_" {
        /// The search goes on: others get the frame too.
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
