//! The gate between the NIC and its port: which frames leave, and which are received.
//!
//! RoCE obeys the configuration of the interface, as that of an adapter does: no frame passes while the interface is down, none is longer
//! than its MTU, and packets are sent from and received for the addresses of the GID table only. A connection whose packets do not
//! pass ends by its retries; a datagram completes, and is lost. Packets of a NIC to itself pass the gate as well.

use faultline_abi::admin::Counter;
use faultline_wire::ip::Ip;
use faultline_wire::packet::{MAX_HEADER_LEN, RoceHeader};

use crate::core::Core;
use crate::diagnostic::{Diagnostic, DropCause};
use crate::frame::{FrameKind, TxFrame};
use crate::gid_table::Source;
use crate::netdev::Netdev;
use crate::time::Instant;

/// Headers of a RoCE packet, pad and invariant CRC.
const MAX_OVERHEAD: usize = MAX_HEADER_LEN + 8;

/// What the gate knows without a look at the configuration, and which drops it has reported. Each cause is reported once for a queue
/// pair that sends, and once for all that arrives, until the configuration changes.
#[derive(Debug)]
pub(crate) struct Gate {
    /// A packet with a shorter payload than this passes, whatever its headers. 0: the interface is down.
    room: usize,
    /// Destination of a packet that was received: most packets have the same.
    known: Option<Destination>,
    /// Counts changes of the configuration.
    epoch: u32,
    /// Causes that were reported of arriving packets, as bits.
    received: u8,
}

impl Default for Gate {
    /// Of an interface that is down.
    fn default() -> Self {
        Self {
            room: 0,
            known: None,
            epoch: 0,
            received: 0,
        }
    }
}

/// Destination of a packet: compared as numbers, because that is cheaper than as octets of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Destination {
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
    fn of(header: &RoceHeader) -> Self {
        Self {
            address: match &header.ip {
                Ip::V4(ip) => Address::V4(u32::from_ne_bytes(ip.dst)),
                Ip::V6(ip) => Address::V6(u128::from_ne_bytes(ip.dst)),
            },
            vlan: header.ethernet.vlan.map_or(NO_VLAN, |tag| tag.vid),
        }
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
    pub(crate) fn changed(&mut self, netdev: &Netdev) {
        let room = usize::from(netdev.mtu).checked_sub(MAX_OVERHEAD);
        *self = Self {
            room: match netdev.is_up() {
                true => room.map_or(0, |room| room.saturating_add(1)),
                false => 0,
            },
            epoch: self.epoch.wrapping_add(1),
            ..Self::default()
        };
    }

    /// True of nearly all packets that are not too long. False of all if the interface is down.
    #[inline]
    fn has_room(&self, payload: usize, packets: u32) -> bool {
        payload < self.room.saturating_mul(packets as usize)
    }
}

const fn bit(cause: DropCause) -> u8 {
    match cause {
        DropCause::InterfaceDown => 1,
        DropCause::OverMtu => 2,
        DropCause::SourceGid { .. } | DropCause::DestinationGid => 4,
    }
}

impl Core {
    /// Why a frame does not leave; `None`: it does. `source`: the entry of the GID table that its path has.
    #[inline]
    pub(crate) fn bars_sent(&self, frame: &TxFrame, source: Option<Source>) -> Option<DropCause> {
        let is_current = source.is_none_or(|source| self.gids.is_current(source));
        match is_current && self.gate.has_room(frame.payload_len, frame.packets) {
            true => None,
            false => self.why_not_sent(frame, source),
        }
    }

    #[inline(never)]
    fn why_not_sent(&self, frame: &TxFrame, source: Option<Source>) -> Option<DropCause> {
        if !self.netdev.is_up() {
            return Some(DropCause::InterfaceDown);
        }
        // Raw frames are refused before, if they are too long.
        let FrameKind::Roce(header) = &frame.kind else {
            return None;
        };
        if self.is_too_long(header, frame.payload_len, frame.packets) {
            return Some(DropCause::OverMtu);
        }
        match source {
            Some(source) if !self.gids.is_current(source) => Some(DropCause::SourceGid {
                index: source.index(),
            }),
            _ => None,
        }
    }

    /// Why a RoCE packet, or a run of them, is not received; `None`: it is.
    #[inline]
    pub(crate) fn bars_received(
        &mut self,
        header: &RoceHeader,
        payload: usize,
        packets: u32,
    ) -> Option<DropCause> {
        let is_known = self.gate.known == Some(Destination::of(header));
        match is_known && self.gate.has_room(payload, packets) {
            true => None,
            false => self.why_not_received(header, payload, packets),
        }
    }

    #[inline(never)]
    fn why_not_received(
        &mut self,
        header: &RoceHeader,
        payload: usize,
        packets: u32,
    ) -> Option<DropCause> {
        if !self.netdev.is_up() {
            return Some(DropCause::InterfaceDown);
        }
        if self.is_too_long(header, payload, packets) {
            return Some(DropCause::OverMtu);
        }
        // A multicast group is an address of the queue pairs that are attached to it.
        if header.ethernet.dst.is_multicast() {
            return None;
        }
        let destination = Destination::of(header);
        let vlan = Some(destination.vlan).filter(|vid| *vid != NO_VLAN);
        if !self.gids.has_address(header.ip.dst_gid(), vlan) {
            return Some(DropCause::DestinationGid);
        }
        self.gate.known = Some(destination);
        None
    }

    /// True if a packet of this run is longer than the MTU of the interface.
    fn is_too_long(&self, header: &RoceHeader, payload: usize, packets: u32) -> bool {
        let mtu = usize::from(self.netdev.mtu);
        !self.gate.has_room(payload, packets) && Self::ip_length(header, payload, packets) > mtu
    }

    /// Octets of the first packet of a run from its IP header on.
    fn ip_length(header: &RoceHeader, payload: usize, packets: u32) -> usize {
        let each = payload.checked_div(packets as usize).unwrap_or(payload);
        let frame = header.frame_len(each);
        frame.saturating_sub(header.ethernet.header_len())
    }

    /// Counts and reports packets of a queue pair that do not leave. Returns what is reported of it now.
    #[cold]
    pub(crate) fn drop_sent(
        &mut self,
        now: Instant,
        qpn: u32,
        (cause, packets): (DropCause, u32),
        before: Reported,
    ) -> Reported {
        let counter = match cause {
            DropCause::InterfaceDown => Counter::tx_interface_down,
            DropCause::OverMtu => Counter::tx_over_mtu,
            DropCause::SourceGid { .. } | DropCause::DestinationGid => Counter::tx_bad_gid,
        };
        self.counters.add(counter, u64::from(packets));
        let epoch = self.gate.epoch;
        let mut reported = match before.epoch == epoch {
            true => before,
            false => Reported { epoch, causes: 0 },
        };
        if reported.causes & bit(cause) == 0 {
            reported.causes |= bit(cause);
            let sent = true;
            self.diagnose(now, Diagnostic::PacketDropped { qpn, sent, cause });
        }
        reported
    }

    /// Counts and reports packets that are not received.
    #[cold]
    pub(crate) fn drop_received(&mut self, now: Instant, qpn: u32, cause: DropCause, packets: u32) {
        let counter = match cause {
            DropCause::InterfaceDown => Counter::rx_interface_down,
            DropCause::OverMtu => Counter::rx_over_mtu,
            DropCause::SourceGid { .. } | DropCause::DestinationGid => Counter::rx_bad_gid,
        };
        self.counters.add(counter, u64::from(packets));
        if self.gate.received & bit(cause) == 0 {
            self.gate.received |= bit(cause);
            let sent = false;
            self.diagnose(now, Diagnostic::PacketDropped { qpn, sent, cause });
        }
    }
}
