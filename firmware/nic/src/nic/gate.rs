//! Checks and counts the frames that pass the port of the NIC. [`Gate`](crate::gate::Gate) is the state.

use faultline_abi::admin::Counter;
use faultline_wire::PeerQuery;
use faultline_wire::packet::RoceHeader;

use super::Nic;
use crate::core::Core;
use crate::counters::CounterSet;
use crate::diagnostic::{Diagnostic, DropCause};
use crate::frame::{FrameKind, TxFrame};
use crate::gate::{Destination, Reported};
use crate::gid_table::Source;
use crate::port_security::PortSecurity;
use crate::time::Instant;

impl Nic {
    /// Counts a frame of a queue pair that the gate bars.
    #[cold]
    pub(super) fn note_barred(
        &mut self,
        now: Instant,
        number: u32,
        cause: DropCause,
        packets: u32,
    ) {
        self.core.count_not_sent(cause, packets);
        let queue = self.queues.get_mut(number);
        if let Some(endpoint) = queue.and_then(|queue| queue.endpoint_mut()) {
            let reported = &mut endpoint.reported_drops;
            self.core.report_not_sent(now, number, cause, reported);
        }
    }

    /// Cause for which the frame of the last [`Nic::poll_transmit`] is lost; `None`: it is sent. The caller gets a lost frame too, for
    /// observers of the port.
    #[inline]
    pub fn last_barred(&self) -> Option<DropCause> {
        self.last_barred
    }

    /// Cause of the last frame that the gate has refused since the last call; `None`: it has refused none.
    pub fn take_refused(&mut self) -> Option<DropCause> {
        self.core.gate.take_refused()
    }

    /// Counts the last frame, in the set of the queue pair that sends it.
    #[inline]
    pub(super) fn count_sent(&mut self, set: CounterSet, frame: &TxFrame) {
        let len = self.last_len as u64;
        let counters = &mut self.core.counters;
        let packets = u64::from(frame.packets);
        counters.add(Counter::tx_packets, packets);
        counters.add(Counter::tx_bytes, len);
        match frame.kind {
            FrameKind::Roce(_) => counters.add_in(set, Counter::tx_roce_packets, packets),
            FrameKind::Raw { .. } => {
                counters.add(Counter::tx_ethernet_packets, packets);
                counters.add(Counter::tx_ethernet_bytes, len);
            }
        }
    }
}

impl Core {
    /// Cause for which a frame is not sent; `None`: it is sent. `source`: the entry of the GID table of its path.
    #[inline(always)]
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
        match &frame.kind {
            FrameKind::Roce(header) => {
                if self.is_too_long(header, frame.payload_len, frame.packets) {
                    return Some(DropCause::OverMtu);
                }
            }
            // Raw frames that are too long were refused before.
            FrameKind::Raw { head, .. } => {
                // The NIC makes its own queries from an entry of the table; a guest has no such entry for its frames.
                let is_own = source.is_some() && PeerQuery::parse(head).is_some();
                let permits = |to: &PortSecurity| to.permits_frame(self.config.mac, head);
                if !is_own && !self.config.addresses.as_ref().is_none_or(permits) {
                    return Some(DropCause::SourceAddress);
                }
            }
        }
        match source {
            Some(source) if !self.gids.is_current(source) => Some(DropCause::SourceGid {
                index: source.index(),
            }),
            _ => None,
        }
    }

    /// Cause for which a RoCE packet, or a run of them, is not received; `None`: it is received.
    #[inline]
    pub(crate) fn bars_received(
        &mut self,
        header: &RoceHeader,
        payload: usize,
        packets: u32,
    ) -> Option<DropCause> {
        let is_known = self.gate.knows(Destination::of(header));
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
        if !self
            .gids
            .has_address(header.ip.dst_gid(), destination.vlan())
        {
            return Some(DropCause::DestinationGid);
        }
        self.gate.learn(destination);
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

    /// Counts packets that do not leave.
    fn count_not_sent(&mut self, cause: DropCause, packets: u32) {
        let counter = match cause {
            DropCause::InterfaceDown => Counter::tx_interface_down,
            DropCause::OverMtu => Counter::tx_over_mtu,
            DropCause::SourceGid { .. } | DropCause::DestinationGid => Counter::tx_bad_gid,
            DropCause::SourceAddress => Counter::tx_bad_address,
        };
        self.counters.add(counter, u64::from(packets));
    }

    /// Reports packets of a queue pair that do not leave.
    fn report_not_sent(
        &mut self,
        now: Instant,
        qpn: u32,
        cause: DropCause,
        reported: &mut Reported,
    ) {
        if self.gate.report_sent(reported, cause) {
            let sent = true;
            self.diagnose(now, Diagnostic::PacketDropped { qpn, sent, cause });
        }
    }

    /// Counts and reports packets that are not received.
    #[cold]
    pub(crate) fn drop_received(&mut self, now: Instant, qpn: u32, cause: DropCause, packets: u32) {
        let counter = match cause {
            DropCause::InterfaceDown => Counter::rx_interface_down,
            DropCause::OverMtu => Counter::rx_over_mtu,
            DropCause::SourceGid { .. } | DropCause::DestinationGid | DropCause::SourceAddress => {
                Counter::rx_bad_gid
            }
        };
        self.counters.add(counter, u64::from(packets));
        if self.gate.report_received(cause) {
            let sent = false;
            self.diagnose(now, Diagnostic::PacketDropped { qpn, sent, cause });
        }
    }
}
