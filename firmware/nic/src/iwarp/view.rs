//! Read-only views of connections and listeners, for operators.

use faultline_tcp::State as TcpState;

use super::connections::{Connections, Listening};
use super::qp::StreamQp;
use crate::gid_table::NO_VLAN;

/// The TCP connection of an iWARP queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ConnectionInfo {
    /// IP address of this end.
    pub local_address: String,
    /// TCP port of this end.
    pub local_port: u16,
    /// IP address of the peer.
    pub remote_address: String,
    /// TCP port of the peer.
    pub remote_port: u16,
    /// State of the connection (RFC 9293 section 3.3.2).
    pub tcp_state: String,
    /// This end has opened the connection.
    pub is_active: bool,
    /// Revision of MPA: 1, or 2 for RFC 6581.
    pub mpa_revision: u8,
    /// Octets of data in a full segment.
    pub max_payload: u32,
    /// Congestion window in octets.
    pub congestion_window: u64,
    /// Window of the peer in octets.
    pub peer_window: u64,
    /// Smoothed round-trip time in nanoseconds; `None` before the first measurement.
    pub round_trip_ns: Option<u64>,
    /// Octets that are sent and not acknowledged.
    pub unacknowledged: u64,
    /// Octets that wait to be sent.
    pub unsent: u64,
    /// Octets that have arrived and cannot be used yet: they wait for a page, for octets before them, or for the rest of an FPDU.
    pub kept: u64,
}

/// A listener for iWARP connections.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ListenerInfo {
    /// Number.
    pub listener: u32,
    /// IP address; `0.0.0.0` as an IPv4-mapped address, and `::`: any of its version.
    pub address: String,
    /// TCP port.
    pub port: u16,
    /// VLAN.
    pub vlan: Option<u16>,
    /// Connections that are being opened, and requests without an answer.
    pub requests: u32,
    /// The largest number of these.
    pub backlog: u32,
}

impl StreamQp {
    /// Its connection.
    pub(crate) fn connection_info(&self) -> Option<ConnectionInfo> {
        let stream = self.stream.as_deref()?;
        let (connection, tuple) = (&stream.connection, &stream.path.tuple);
        let is_enhanced = stream.own.enhanced && (!stream.was_open || stream.peer.enhanced);
        Some(ConnectionInfo {
            local_address: tuple.local.to_string(),
            local_port: tuple.local_port,
            remote_address: tuple.remote.to_string(),
            remote_port: tuple.remote_port,
            tcp_state: state_name(connection.state()).to_owned(),
            is_active: stream.is_active,
            mpa_revision: if is_enhanced { 2 } else { 1 },
            max_payload: connection.max_payload(),
            congestion_window: connection.congestion_window(),
            peer_window: connection.peer_window(),
            round_trip_ns: connection.round_trip_time().map(|time| time.0),
            unacknowledged: connection.in_flight(),
            unsent: stream.sender.unsent(),
            kept: stream.inbound.kept.octets(),
        })
    }
}

impl Connections {
    /// The listener with this number.
    pub(crate) fn listener_info(listener: u32, listening: &Listening) -> ListenerInfo {
        ListenerInfo {
            listener,
            address: listening.local.to_string(),
            port: listening.port,
            vlan: (listening.vlan != NO_VLAN).then_some(listening.vlan),
            requests: listening.requests,
            backlog: listening.backlog,
        }
    }
}

/// The name of a state in RFC 9293.
fn state_name(state: TcpState) -> &'static str {
    match state {
        TcpState::SynSent => "SYN-SENT",
        TcpState::SynReceived => "SYN-RECEIVED",
        TcpState::Established => "ESTABLISHED",
        TcpState::FinWait1 => "FIN-WAIT-1",
        TcpState::FinWait2 => "FIN-WAIT-2",
        TcpState::CloseWait => "CLOSE-WAIT",
        TcpState::Closing => "CLOSING",
        TcpState::LastAck => "LAST-ACK",
        TcpState::TimeWait => "TIME-WAIT",
        TcpState::Closed => "CLOSED",
    }
}
