//! Frames that no connection and no address of a queue pair names: to groups, and to the netdev.

use faultline_abi::admin::{Counter, NETDEV_ALLMULTI, NETDEV_PROMISC};
use faultline_wire::opcode::Service;
use faultline_wire::packet::{self, RoceHeader};
use faultline_wire::{Ethernet, MacAddr};

use crate::config::MAX_MTU;
use crate::dma::Dma;
use crate::frame::{FrameKind, Payload, TxFrame};
use crate::ingress::HeldFrame;
use crate::multicast::MULTICAST_QPN;
use crate::nic::Nic;
use crate::time::Instant;

/// Longest frame that is put together to see whether it is a RoCE packet.
const MAX_FRAME: usize = MAX_MTU as usize + Ethernet::MAX_LEN;

impl Nic {
    /// A frame is about to leave: what it is to groups with members here comes back (IBTA 10.5.2.1). No switch
    /// returns it.
    pub(crate) fn loop_back<M: Dma>(&mut self, now: Instant, mem: &M, frame: &TxFrame) {
        let FrameKind::Roce(header) = &frame.kind else {
            return;
        };
        if header.bth.dest_qp != MULTICAST_QPN || !header.ethernet.dst.is_multicast() {
            return;
        }
        self.core.counters.inc(Counter::tx_mcast_packets);
        if self.groups.members(header.ip.dst_gid()).is_empty() {
            return;
        }
        if self.core.ingress.must_queue() {
            self.hold_frame(frame, mem);
            return;
        }
        let payload = Payload::Guest {
            mem,
            segments: &frame.payload,
            skip: 0,
            len: frame.payload_len,
        };
        self.receive_multicast(now, mem, header, payload);
    }

    /// A datagram to a group arrives: a copy for each member.
    pub(crate) fn receive_multicast<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) {
        let group = header.ip.dst_gid();
        let members = self.groups.members(group);
        // Nobody reaches a group by another way than its own address.
        let addressed = group.multicast_mac() == Some(header.ethernet.dst);
        let is_datagram = header.bth.opcode.info().service == Service::Ud;
        if members.is_empty() || !addressed || !is_datagram {
            self.core.counters.inc(Counter::rx_filtered);
            return;
        }
        self.core.counters.inc(Counter::rx_mcast_packets);
        for qpn in members {
            let Some(qp) = self.qps.get_mut(*qpn) else {
                continue;
            };
            self.core.counters.inc(Counter::rx_mcast_copies);
            if qp.receive(&mut self.core, now, mem, header, 1, payload) > 0 {
                continue;
            }
            // It has stopped the input: what waits is the copy for it.
            match payload.to_vec() {
                Ok(bytes) => self.core.ingress.put_back(HeldFrame {
                    header: Some(*header),
                    only: Some(*qpn),
                    bytes,
                }),
                Err(_) => self.core.counters.inc(Counter::dma_errors),
            }
        }
        self.core.charge_lookups(now);
    }

    /// A raw frame by reference: it may hold a RoCE packet that someone made by hand.
    pub(crate) fn receive_raw<M: Dma>(&mut self, now: Instant, mem: &M, frame: Payload<'_, M>) {
        let mut head = [0; packet::MAX_HEADER_LEN];
        let Ok(n) = frame.read(0, &mut head) else {
            self.core.counters.inc(Counter::dma_errors);
            return;
        };
        if !packet::is_roce(head.get(..n).unwrap_or(&[])) {
            self.count_received(1, frame.len());
            self.receive_ethernet(now, mem, frame);
            return;
        }
        let mut bytes = vec![0; frame.len().min(MAX_FRAME)];
        match frame.read(0, &mut bytes) {
            Ok(_) => self.receive_bytes(now, mem, &bytes),
            Err(_) => self.core.counters.inc(Counter::dma_errors),
        }
    }

    pub(crate) fn receive_ethernet<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        frame: Payload<'_, M>,
    ) {
        let netdev = &self.core.netdev;
        let mut dst = MacAddr([0; 6]);
        let read = frame.read(0, &mut dst.0);
        let wanted = dst == netdev.mac
            || dst.is_broadcast()
            || netdev.flags & NETDEV_PROMISC != 0
            || (dst.is_multicast() && netdev.flags & NETDEV_ALLMULTI != 0);
        let longest = usize::from(netdev.mtu) + faultline_wire::Ethernet::MAX_LEN;
        if read.is_err() || !netdev.is_up() || !wanted || frame.len() > longest {
            self.core.counters.inc(Counter::rx_filtered);
            return;
        }
        match Self::qp_mut(&mut self.qps, &mut self.gsi, netdev.qpn) {
            Some(qp) => {
                if !qp.receive_frame(&mut self.core, now, mem, frame)
                    && let Ok(bytes) = frame.to_vec()
                {
                    self.core.ingress.put_back(HeldFrame {
                        header: None,
                        only: None,
                        bytes,
                    });
                }
            }
            None => self.core.counters.inc(Counter::rx_filtered),
        }
    }
}
