//! State of the gate between the NIC and its port, which `nic/gate.rs` implements.
//!
//! RoCE obeys the configuration of the interface, as on other adapters: no frame passes while the interface is down or if it is longer
//! than the MTU, and packets are sent from and received for addresses of the GID table only. A connection whose packets are dropped ends
//! by its retries; a datagram completes, and is lost. Packets of a NIC to itself pass the gate as well.

use faultline_wire::ip::Ip;
use faultline_wire::packet::{MAX_HEADER_LEN, RoceHeader};

use crate::config::NicConfig;
use crate::diagnostic::DropCause;
use crate::netdev::Netdev;

/// Headers of a RoCE packet, pad and invariant CRC.
const MAX_OVERHEAD: usize = MAX_HEADER_LEN + 8;

/// Cached results of checks, and reported drops. Each cause is reported once for each sending queue pair, and once for all received
/// packets, until the configuration changes.
#[derive(Debug)]
pub(crate) struct Gate {
    /// A packet with a shorter payload than this passes without further checks. 0: more checks are needed, because the interface is down
    /// or the source addresses of raw frames are restricted.
    room: usize,
    /// Destination of the last accepted packet: most packets have the same.
    known: Option<Destination>,
    /// Counts changes of the configuration.
    epoch: u32,
    /// Reported causes for received packets, as bits.
    received: u8,
    /// Cause of the last refused packet, for observers of the port, who take it before and after a frame. It is not a
    /// return value of the functions that receive a frame, because that costs 0.3 % of the instructions of an 8-byte
    /// WRITE, also without observers.
    refused: Option<DropCause>,
}

impl Default for Gate {
    /// The gate of an interface that is down.
    fn default() -> Self {
        Self {
            room: 0,
            known: None,
            epoch: 0,
            received: 0,
            refused: None,
        }
    }
}

/// Destination of a packet: compared as numbers, because that is cheaper than as octets of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    address: Address,
    vlan: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    V4(u32),
    V6(u128),
}

impl Destination {
    #[inline]
    pub(crate) fn of(header: &RoceHeader) -> Self {
        Self {
            address: match &header.ip {
                Ip::V4(ip) => Address::V4(u32::from_ne_bytes(ip.dst)),
                Ip::V6(ip) => Address::V6(u128::from_ne_bytes(ip.dst)),
            },
            vlan: header.ethernet.vlan.map_or(NO_VLAN, |tag| tag.vid),
        }
    }

    /// Its VLAN.
    pub(crate) fn vlan(self) -> Option<u16> {
        (self.vlan != NO_VLAN).then_some(self.vlan)
    }
}

/// A priority without a VLAN has this VLAN id (IEEE 802.1Q, 9.6).
const NO_VLAN: u16 = 0;

/// Reported causes of a sending queue pair, as bits, and their epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    epoch: u32,
    causes: u8,
}

impl Gate {
    /// The configuration of the interface or of its addresses has changed.
    pub(crate) fn changed(&mut self, config: &NicConfig, netdev: &Netdev) {
        let room = usize::from(netdev.mtu).checked_sub(MAX_OVERHEAD);
        *self = Self {
            room: match netdev.is_up() && config.addresses.is_none() {
                true => room.map_or(0, |room| room.saturating_add(1)),
                false => 0,
            },
            epoch: self.epoch.wrapping_add(1),
            ..Self::default()
        };
    }

    /// Returns true for nearly all packets within the MTU; false for all packets while `room` is 0.
    #[inline]
    pub(crate) fn has_room(&self, payload: usize, packets: u32) -> bool {
        payload < self.room.saturating_mul(packets as usize)
    }

    /// True if a packet was received for this destination.
    #[inline]
    pub(crate) fn knows(&self, destination: Destination) -> bool {
        self.known == Some(destination)
    }

    /// A packet is received for this destination.
    pub(crate) fn learn(&mut self, destination: Destination) {
        self.known = Some(destination);
    }

    /// Records the drop of a received packet. Returns true if its cause must be reported.
    pub(crate) fn report_received(&mut self, cause: DropCause) -> bool {
        self.refused = Some(cause);
        let is_new = self.received & bit(cause) == 0;
        self.received |= bit(cause);
        is_new
    }

    /// Cause of the last refused packet since the last call.
    pub(crate) fn take_refused(&mut self) -> Option<DropCause> {
        self.refused.take()
    }

    /// As [`Gate::report_received`], for a packet that is sent.
    pub(crate) fn report_sent(&self, reported: &mut Reported, cause: DropCause) -> bool {
        if reported.epoch != self.epoch {
            *reported = Reported {
                epoch: self.epoch,
                causes: 0,
            };
        }
        let is_new = reported.causes & bit(cause) == 0;
        reported.causes |= bit(cause);
        is_new
    }
}

const fn bit(cause: DropCause) -> u8 {
    match cause {
        DropCause::InterfaceDown => 1,
        DropCause::OverMtu => 2,
        DropCause::SourceGid { .. } | DropCause::DestinationGid => 4,
        DropCause::SourceAddress => 8,
    }
}
