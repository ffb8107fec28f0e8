//! The gate between the NIC and its port: what is remembered of which frames leave, and which are received. `nic/gate.rs` decides.
//!
//! RoCE obeys the configuration of the interface, as that of an adapter does: no frame passes while the interface is down, none is longer
//! than its MTU, and packets are sent from and received for the addresses of the GID table only. A connection whose packets do not
//! pass ends by its retries; a datagram completes, and is lost. Packets of a NIC to itself pass the gate as well.

use faultline_wire::ip::Ip;
use faultline_wire::packet::{MAX_HEADER_LEN, RoceHeader};

use crate::config::NicConfig;
use crate::diagnostic::DropCause;
use crate::netdev::Netdev;

/// Headers of a RoCE packet, pad and invariant CRC.
const MAX_OVERHEAD: usize = MAX_HEADER_LEN + 8;

/// What the gate knows without a look at the configuration, and which drops it has reported. Each cause is reported once for a queue
/// pair that sends, and once for all that arrives, until the configuration changes.
#[derive(Debug)]
pub(crate) struct Gate {
    /// A packet with a shorter payload than this passes, whatever its headers. 0: the interface is down, or raw frames may not be sent from
    /// all addresses, so there is more to look at.
    room: usize,
    /// Destination of a packet that was received: most packets have the same.
    known: Option<Destination>,
    /// Counts changes of the configuration.
    epoch: u32,
    /// Causes that were reported of arriving packets, as bits.
    received: u8,
    /// Why the last packet that was refused is not received, for those who watch the port: they take it before a frame and after it. If
    /// the functions that receive a frame returned it, an 8-byte WRITE would have 0.3 % more instructions, watched or not.
    refused: Option<DropCause>,
}

impl Default for Gate {
    /// Of an interface that is down.
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

/// What the gate has reported of a queue pair that sends: the causes as bits, and the epoch.
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

    /// True of nearly all packets that are not too long. False of all while `room` is 0.
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

    /// A packet that arrives is dropped. Returns true if that has not been reported.
    pub(crate) fn report_received(&mut self, cause: DropCause) -> bool {
        self.refused = Some(cause);
        let is_new = self.received & bit(cause) == 0;
        self.received |= bit(cause);
        is_new
    }

    /// Why a packet that has arrived since the last call is not received.
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
