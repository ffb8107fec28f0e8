//! QP types, states and attributes, address vectors, access rights.

abi_struct! {
    /// Path to a destination.
    "faultline_av" AddressVector [40] {
        /// Destination GID; IPv4 as ::ffff:a.b.c.d.
        dgid: [u8; 16],
        /// Destination MAC address.
        dmac: [u8; 6],
        /// Source GID, index in the table.
        sgid_index: crate::U16,
        /// IPv6 flow label.
        flow_label: crate::U32,
        /// Service level: VLAN priority.
        sl: u8,
        /// Traffic class, IPv4 ToS.
        traffic_class: u8,
        /// Hop limit, IPv4 TTL. Zero means 64.
        hop_limit: u8,
        /// Port, 1.
        port: u8,
        /// Reserved; zero.
        reserved: [u8; 8],
    }

    /// Attributes of a QP, for MODIFY_QP and QUERY_QP.
    "faultline_qp_attr" QpAttr [112] {
        /// FAULTLINE_QP_ATTR_* bits: the attributes that are given.
        mask: crate::U32,
        /// FAULTLINE_QPS_*.
        state: u8,
        /// Current state that the caller assumes (QP_ATTR_CUR_STATE).
        cur_state: u8,
        /// Path MTU: 1 = 256 … 5 = 4096 bytes.
        path_mtu: u8,
        /// FAULTLINE_FAULT_POLICY_*.
        fault_policy: u8,
        /// Q_Key.
        qkey: crate::U32,
        /// First PSN expected.
        rq_psn: crate::U32,
        /// First PSN sent.
        sq_psn: crate::U32,
        /// Remote QP.
        dest_qpn: crate::U32,
        /// FAULTLINE_ACCESS_REMOTE_* that the peer may use.
        access: crate::U32,
        /// P_Key index.
        pkey_index: crate::U16,
        /// READs and atomics outstanding as requester.
        max_rd_atomic: u8,
        /// READs and atomics served as responder.
        max_dest_rd_atomic: u8,
        /// RNR NAK timer code, IBTA table 45.
        min_rnr_timer: u8,
        /// Local ACK timeout: 4.096 us * 2^n, 0 = none.
        timeout: u8,
        /// Transport retries, 0..=7.
        retry_cnt: u8,
        /// RNR retries, 0..=6, 7 = without limit.
        rnr_retry: u8,
        /// Port, 1.
        port: u8,
        /// Answer only: the send queue is draining.
        sq_draining: u8,
        /// Raise FAULTLINE_EVENT_SQ_DRAINED (on transition to SQD).
        sqd_notify: u8,
        /// Reserved; zero.
        reserved0: u8,
        /// Primary path.
        av: AddressVector,
        /// UDP source port, 0 = derived from the QP numbers.
        udp_sport: crate::U16,
        /// Reserved; zero.
        reserved1: [u8; 30],
    }
}

abi_consts! {
    /// QP types.
    group TYPES: u8, prefix "FAULTLINE_" {
        /// General services (QP1).
        QPT_GSI = 1;
        /// Reliable connection.
        QPT_RC = 2;
        /// Unreliable connection.
        QPT_UC = 3;
        /// Unreliable datagram.
        QPT_UD = 4;
        /// Raw Ethernet frames.
        QPT_RAW = 8;
        /// XRC initiator.
        QPT_XRC_INI = 9;
        /// XRC target.
        QPT_XRC_TGT = 10;
    }
}

abi_consts! {
    /// QP states; the values of `enum ib_qp_state`.
    group STATES: u8, prefix "FAULTLINE_" {
        /// Reset.
        QPS_RESET = 0;
        /// Initialized.
        QPS_INIT = 1;
        /// Ready to receive.
        QPS_RTR = 2;
        /// Ready to send.
        QPS_RTS = 3;
        /// Send queue drained.
        QPS_SQD = 4;
        /// Send queue error.
        QPS_SQE = 5;
        /// Error.
        QPS_ERR = 6;
    }
}

abi_consts! {
    /// Attribute bits; the values of `enum ib_qp_attr_mask`, and the device's own from bit 28.
    group ATTRS: u32, prefix "FAULTLINE_" {
        /// `state`.
        QP_ATTR_STATE = 1 << 0;
        /// `cur_state`.
        QP_ATTR_CUR_STATE = 1 << 1;
        /// `sqd_notify`.
        QP_ATTR_EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        QP_ATTR_ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        QP_ATTR_PKEY_INDEX = 1 << 4;
        /// `port`.
        QP_ATTR_PORT = 1 << 5;
        /// `qkey`.
        QP_ATTR_QKEY = 1 << 6;
        /// `av`.
        QP_ATTR_AV = 1 << 7;
        /// `path_mtu`.
        QP_ATTR_PATH_MTU = 1 << 8;
        /// `timeout`.
        QP_ATTR_TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        QP_ATTR_RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        QP_ATTR_RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        QP_ATTR_RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        QP_ATTR_MAX_QP_RD_ATOMIC = 1 << 13;
        /// `min_rnr_timer`.
        QP_ATTR_MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        QP_ATTR_SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        QP_ATTR_MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `dest_qpn`.
        QP_ATTR_DEST_QPN = 1 << 20;
        /// `udp_sport`.
        QP_ATTR_UDP_SPORT = 1 << 28;
        /// `fault_policy`.
        QP_ATTR_FAULT_POLICY = 1 << 29;
    }
}

abi_consts! {
    /// Access rights; the values of `enum ib_access_flags`.
    group ACCESS: u32, prefix "FAULTLINE_" {
        /// The device may write for local operations.
        ACCESS_LOCAL_WRITE = 1 << 0;
        /// Peers may WRITE.
        ACCESS_REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        ACCESS_REMOTE_READ = 1 << 2;
        /// Peers may use atomics.
        ACCESS_REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound.
        ACCESS_MW_BIND = 1 << 4;
        /// Addresses count from zero.
        ACCESS_ZERO_BASED = 1 << 5;
        /// Pages may be absent.
        ACCESS_ON_DEMAND = 1 << 6;
        /// Backed by huge pages.
        ACCESS_HUGETLB = 1 << 7;
        /// Peers may FLUSH to global visibility.
        ACCESS_FLUSH_GLOBAL = 1 << 8;
        /// Peers may FLUSH to persistence.
        ACCESS_FLUSH_PERSISTENT = 1 << 9;
    }
}

abi_consts! {
    /// How a QP treats a packet that accesses an absent page.
    group FAULT_POLICIES: u8, prefix "FAULTLINE_" {
        /// Answer with an RNR NAK.
        FAULT_POLICY_RNR = 0;
        /// Drop the packet before it is acknowledged.
        FAULT_POLICY_DROP = 1;
        /// Pause ingress: the packet and all packets after it wait.
        FAULT_POLICY_STALL = 2;
        /// Terminate the connection.
        FAULT_POLICY_TERMINATE = 3;
    }
}
