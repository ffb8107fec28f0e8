//! The gate between the NIC and its port: which frames leave, and which are received.
//!
//! RoCE obeys the configuration of the interface, as that of an adapter does: no frame passes while the interface is down, none is longer
//! than its MTU, and packets are sent from and received for the addresses of the GID table only. A connection whose packets do not
//! pass ends by its retries; a datagram completes, and is lost. Packets of a NIC to itself pass the gate as well.

use faultline_abi::admin::Counter;
use faultline_wire::packet::{MAX_HEADER_LEN, RoceHeader};

use crate::core::Core;
use crate::diagnostic::{Diagnostic, DropCause};
use crate::frame::{FrameKind, TxFrame};
use crate::gid_table::Source;
use crate::time::Instant;

/// Headers of a RoCE packet, pad and invariant CRC.
const MAX_OVERHEAD: usize = MAX_HEADER_LEN + 8;

/// Which drops the gate has reported. Each cause is reported once for a queue pair that sends, and once for all that arrives, until the
/// configuration changes.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Counts changes of the configuration.
    epoch: u32,
    /// Causes that were reported of arriving packets, as bits.
    received: u8,
}

/// What the gate has reported of a queue pair that sends: the causes as bits, and the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    epoch: u32,
    causes: u8,
}

impl Gate {
    /// The configuration of the interface or of its addresses has changed.
    pub(crate) fn changed(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.received = 0;
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
        if !self.netdev.is_up() {
            return Some(DropCause::InterfaceDown);
        }
        // Whoever sends raw frames is asked for their length elsewhere.
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
        // VLAN 0 is a priority without a VLAN (IEEE 802.1Q, 9.6).
        let vlan = header.ethernet.vlan.map(|tag| tag.vid);
        let vlan = vlan.filter(|vid| *vid != 0);
        let has = self.gids.has_address(header.ip.dst_gid(), vlan);
        (!has).then_some(DropCause::DestinationGid)
    }

    /// True if a packet of this run is longer than the MTU of the interface.
    #[inline]
    fn is_too_long(&self, header: &RoceHeader, payload: usize, packets: u32) -> bool {
        let mtu = usize::from(self.netdev.mtu);
        let packets = (packets as usize).max(1);
        // True of nearly all, and cheaper.
        let room = mtu.saturating_sub(MAX_OVERHEAD).saturating_mul(packets);
        payload > room && Self::ip_length(header, payload, packets) > mtu
    }

    /// Octets of the first packet of a run from its IP header on.
    fn ip_length(header: &RoceHeader, payload: usize, packets: usize) -> usize {
        let each = payload.checked_div(packets).unwrap_or(payload);
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
