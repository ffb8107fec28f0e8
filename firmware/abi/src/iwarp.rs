//! Connections of an iWARP adapter, which has FAULTLINE_FEATURE_IWARP: TCP and MPA are in the device, and the driver decides who connects.
//!
//! *Active*: the driver posts CONNECT for a queue pair in state INIT, which enters RTR. The device opens the TCP connection and sends the MPA
//! request. The event is CONNECTED or CONNECT_FAILED.
//!
//! *Passive*: CREATE_LISTENER. A peer that has sent its MPA request causes CONNECTION_REQUEST with the number of the request. The driver
//! reads it with QUERY_REQUEST, and posts ACCEPT for a queue pair in state INIT, or REJECT. A request that has no answer ends after
//! [`REQUEST_TIMEOUT_MS`], or when its peer goes; the driver gets REQUEST_GONE, and the number is not used again before it has posted REJECT.
//!
//! *End*: MODIFY_QP to SQD closes in order, to ERR abruptly. PEER_CLOSED tells that the peer has closed in order. CONNECTION_CLOSED is the last
//! event of a connection: the queue pair is in state ERR, its queues are being flushed, and the ports can be used again. After PEER_CLOSED the
//! device closes its own direction by itself. DESTROY_QP and MODIFY_QP to RESET end a connection without a further event.
//!
//! *Addresses*: the entries of SET_GID. Without one the adapter has no address. The device takes a segment only if an entry has its
//! destination address, VLAN and MAC address; all others are frames of the Ethernet interface. Segments leave with the MAC address of the entry.
//! If an entry is removed, segments of its connections are neither sent nor received until an entry with its address and VLAN is set.
//!
//! Private data is read or written while the command is executed. QUERY_CONNECTION has an answer from CONNECT or ACCEPT until the queue pair
//! is reset or destroyed. Send requests may be posted from CONNECT or ACCEPT on; the device executes them in state RTS.
//!
//! States (RDMA Consortium, RDMA Protocol Verbs): RESET and INIT = Idle, RTR = connecting, RTS = RTS, SQD = Closing,
//! SQE = Terminate (a Terminate message is on its way), ERR = Error.

abi_struct! {
    /// The way of a connection. IPv4 addresses as ::ffff:a.b.c.d; both are of one family.
    "faultline_connection_path" ConnectionPath [56] {
        /// Own address: with `vlan` an entry of the GID table, else BAD_ADDRESS. Listener: `::` for all IPv6 addresses of the table in `vlan`,
        /// `::ffff:0.0.0.0` for all IPv4 addresses.
        local_ip: [u8; 16],
        /// Address of the peer. Listener: zero.
        remote_ip: [u8; 16],
        /// Own TCP port; not 0.
        local_port: crate::U16,
        /// TCP port of the peer. Listener: zero.
        remote_port: crate::U16,
        /// MAC address of the peer or of the router. Listener: zero.
        dmac: [u8; 6],
        /// VLAN id, or 0xffff for none.
        vlan: crate::U16,
        /// Service level: VLAN priority. Listener: zero, the priority of the peer is used.
        sl: u8,
        /// Traffic class, IPv4 ToS; the two bits of ECN are ignored. Listener: zero.
        traffic_class: u8,
        /// Hop limit, IPv4 TTL. Zero means 64.
        hop_limit: u8,
        /// Reserved; zero.
        reserved0: u8,
        /// MTU of the path in bytes; 0 = that of the interface.
        mtu: crate::U16,
        /// Reserved; zero.
        reserved1: [u8; 6],
    }

    /// Properties of a connection that its two ends exchange in the MPA request and reply (RFC 6581).
    "faultline_connection_param" ConnectionParam [16] {
        /// DMA address of the private data.
        private_addr: crate::U64,
        /// Bytes of private data, 0..=512. Answer: bytes that the peer has sent.
        private_len: crate::U16,
        /// READs and atomics that this end serves concurrently; at most max_rd_atomic.
        ird: crate::U16,
        /// READs and atomics that this end has outstanding; at most max_init_rd_atomic.
        ord: crate::U16,
        /// FAULTLINE_CONNECTION_*.
        flags: crate::U16,
    }

    /// CREATE_LISTENER. Answer: handle.
    "faultline_create_listener" CreateListener [64] {
        /// Own address, port and VLAN.
        path: ConnectionPath,
        /// Connections that are being opened or wait for ACCEPT; 1..=max_backlog.
        backlog: crate::U16,
        /// Reserved; zero.
        reserved: [u8; 6],
    }

    /// CONNECT: handle is a queue pair.
    "faultline_connect" Connect [72] {
        /// Way of the connection.
        path: ConnectionPath,
        /// Its properties.
        param: ConnectionParam,
    }

    /// ACCEPT: handle is a queue pair. REJECT: handle is the request, `request` is zero, and only the private data of `param` is used.
    "faultline_accept" Accept [24] {
        /// Its properties.
        param: ConnectionParam,
        /// Number of the request.
        request: crate::U32,
        /// Reserved; zero.
        reserved: crate::U32,
    }

    /// QUERY_REQUEST: handle is a request. QUERY_CONNECTION: handle is a queue pair. The device writes the private data of the peer.
    "faultline_query_connection" QueryConnection [16] {
        /// DMA address for the private data; not written if `len` is zero.
        addr: crate::U64,
        /// Bytes available at `addr`.
        len: crate::U16,
        /// Reserved; zero.
        reserved: [u8; 6],
    }

    /// Answer of QUERY_REQUEST and QUERY_CONNECTION.
    "faultline_connection_info" ConnectionInfo [88] {
        /// Way of the connection.
        path: ConnectionPath,
        /// What the peer has said; with QUERY_CONNECTION the smaller of it and the own values. `private_addr` is zero.
        param: ConnectionParam,
        /// QUERY_REQUEST: the listener.
        listener: crate::U32,
        /// FAULTLINE_CLOSE_*: how the connection ended; 0 while it has not.
        close_reason: u8,
        /// CLOSE_TERMINATED, CLOSE_TERMINATED_BY_PEER: layer in the upper four bits and error type of the Terminate message (RFC 5040 section 4.8).
        terminate_type: u8,
        /// Its error code.
        terminate_code: u8,
        /// Reserved; zero.
        reserved: [u8; 9],
    }
}

abi_consts! {
    /// Flags of a connection.
    group FLAGS: u16, prefix "FAULTLINE_CONNECTION_" {
        /// The private data has been cut to the available bytes. Answer only.
        PRIVATE_CUT = 1 << 0;
        /// The peer speaks MPA revision 2 (RFC 6581). Answer only.
        ENHANCED = 1 << 1;
    }
}

abi_consts! {
    /// Reasons for the end of a connection.
    group CLOSE_REASONS: u8, prefix "FAULTLINE_CLOSE_" {
        /// Both ends have closed in order.
        FINISHED = 1;
        /// CONNECT: the peer has answered the SYN with a reset.
        REFUSED = 2;
        /// CONNECT: the peer has rejected; there may be private data.
        REJECTED = 3;
        /// The peer does not answer.
        TIMED_OUT = 4;
        /// The peer has reset the connection.
        RESET = 5;
        /// The peer breaks the rules of MPA while the connection is set up.
        SETUP = 6;
        /// The device has sent a Terminate message.
        TERMINATED = 7;
        /// The peer has sent a Terminate message.
        TERMINATED_BY_PEER = 8;
        /// MODIFY_QP to ERR, or a failure of this end for which it could not send a Terminate message: it had sent a FIN, or octets that were
        /// lost cannot be read again.
        ABORTED = 9;
    }
}

abi_consts! {
    /// Geometry of connections.
    group GEOMETRY: u32, prefix "FAULTLINE_" {
        /// Longest private data in bytes (RFC 5044 section 7.1).
        MAX_PRIVATE_DATA = 512;
        /// Milliseconds after which a request without answer ends.
        REQUEST_TIMEOUT_MS = 60000;
    }
}
