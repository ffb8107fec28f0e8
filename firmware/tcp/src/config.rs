//! Parameters of a connection.

use core::fmt;

use crate::time::Nanos;

/// Keep-alive (RFC 9293 section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Time without a segment of the peer before the first probe.
    pub idle: Nanos,
    /// Time from one probe to the next.
    pub interval: Nanos,
    /// Probes without an answer that end the connection.
    pub probes: u8,
}

/// Parameters of a connection. Those of the two ends need not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum segment size: octets of TCP options and data that fit into a packet (RFC 9293 section 3.7.1, RFC 6691): the MTU without IP
    /// header and TCP header of 20 octets.
    pub mss: u16,
    /// Smallest maximum segment size that [`Connection::reduce_mss`](crate::Connection::reduce_mss) and the peer can cause.
    pub min_mss: u16,
    /// Octets that the peer may have in flight to this end, and that the owner may have to keep: at most
    /// [`Config::MAX_RECEIVE_WINDOW`].
    pub receive_window: u32,
    /// Offer selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Retransmission timeout before the first measurement (RFC 6298 section 2).
    pub initial_rto: Nanos,
    /// Shortest retransmission timeout. RFC 6298 section 2 recommends 1 s; Linux uses 200 ms, and data centres less.
    pub min_rto: Nanos,
    /// Longest retransmission timeout, and longest time between two window probes.
    pub max_rto: Nanos,
    /// Consecutive retransmissions, or window probes, without an answer that end the connection (R2 of RFC 9293 section 3.8.3).
    pub max_retransmissions: u8,
    /// The same for a SYN.
    pub max_syn_retransmissions: u8,
    /// Longest delay of an acknowledgment (RFC 9293 section 3.8.6.3): below 500 ms. 0: each segment is acknowledged at once.
    pub delayed_ack: Nanos,
    /// Duration of TIME-WAIT: twice the maximum segment lifetime (RFC 9293 section 3.4.2 recommends 4 minutes; Linux uses 60 s).
    pub time_wait: Nanos,
    /// Keep-alive probes; `None`: none.
    pub keep_alive: Option<KeepAlive>,
}

impl Config {
    /// Largest window: 2^30, the largest shift count of a window field (RFC 7323 section 2.3).
    pub const MAX_RECEIVE_WINDOW: u32 = 1 << 30;

    /// Refuses values that a connection cannot have, to be called when a configuration is read. A connection takes the nearest value
    /// that it can have.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.receive_window > Self::MAX_RECEIVE_WINDOW {
            return Err(ConfigError::ReceiveWindow(self.receive_window));
        }
        Ok(())
    }
}

/// Why [`Config::check`] refuses parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The receive window, in octets, is larger than [`Config::MAX_RECEIVE_WINDOW`].
    ReceiveWindow(u32),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ReceiveWindow(octets) => write!(
                f,
                "receive window of {octets} octets is too large: at most {} are possible",
                Config::MAX_RECEIVE_WINDOW
            ),
        }
    }
}

impl core::error::Error for ConfigError {}

impl Default for Config {
    /// Ethernet with an MTU of 1500 octets and IPv4, and the times that Linux uses.
    fn default() -> Self {
        Self {
            mss: 1460,
            min_mss: 536,
            receive_window: 256 * 1024,
            sack: true,
            timestamps: true,
            ecn: true,
            initial_rto: Nanos::from_millis(1000),
            min_rto: Nanos::from_millis(200),
            max_rto: Nanos::from_millis(60_000),
            max_retransmissions: 15,
            max_syn_retransmissions: 5,
            delayed_ack: Nanos::from_millis(40),
            time_wait: Nanos::from_millis(60_000),
            keep_alive: None,
        }
    }
}
