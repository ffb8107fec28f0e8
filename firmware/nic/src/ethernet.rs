//! Frames that are not addressed to one queue pair: to groups, to flows and to the netdev. `docs/ethernet.md` describes
//! their precedence.

use faultline_abi::admin::Counter;
use faultline_abi::steering::FLOW_KIND_SNIFFER;
use faultline_wire::opcode::Service;
use faultline_wire::packet::{self, RoceHeader};
use faultline_wire::{Ethernet, MULTICAST_QPN, MacAddr};

use crate::config::MAX_MTU;
use crate::context::Context;
use crate::counters::CounterSet;
use crate::dma::Dma;
use crate::frame::{Frame, FrameKind, Packets, TxFrame};
use crate::ingress::HeldFrame;
use crate::netdev::Netdev;
use crate::nic::Nic;
use crate::origin::Origin;
use crate::payload::Payload;
use crate::queues::Queue;
use crate::rss::RssQp;
use crate::steering::FrameTarget;
use crate::time::Instant;
use crate::work;

/// Bytes of a frame in front of those that the MTU counts: addresses, type, and up to two VLAN tags (IEEE 802.1ad).
const MAX_LINK_HEADER: usize = Ethernet::LEN + 2 * 4;
/// Longest frame that is copied and parsed as a RoCE packet.
const MAX_FRAME: usize = MAX_MTU as usize + MAX_LINK_HEADER;

/// The longest frame of a netdev with this MTU.
pub(crate) fn longest_frame(netdev: &Netdev) -> usize {
    usize::from(netdev.mtu) + MAX_LINK_HEADER
}

impl Nic {
    /// Delivers a frame that a queue pair sends to receivers of the same NIC, because no switch returns a frame to its
    /// port: a datagram to a group with members here (IBTA 10.5.2.1), and a raw frame of a process that a flow matches.
    #[inline(always)]
    pub(crate) fn loop_back<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u32,
        frame: &TxFrame,
    ) {
        let is_for_one = match &frame.kind {
            FrameKind::Roce(header) => header.bth.dest_qp != MULTICAST_QPN,
            FrameKind::Raw { .. } => false,
        };
        if !is_for_one || self.steering.has_sniffers() {
            self.loop_back_copies(now, mem, number, frame);
        }
    }

    #[inline(never)]
    fn loop_back_copies<M: Dma>(&mut self, now: Instant, mem: &M, number: u32, frame: &TxFrame) {
        self.sniff(now, mem, frame, mem);
        let payload = frame.view(mem);
        match &frame.kind {
            FrameKind::Roce(header) => {
                if header.bth.dest_qp == MULTICAST_QPN && header.ethernet.dst.is_multicast() {
                    self.loop_back_datagram(now, mem, frame, header, payload);
                }
            }
            FrameKind::Raw { dst, checked, .. } => {
                // The switch returns a frame to the own address.
                if !self.steering.is_empty() && *dst != self.core.netdev.mac {
                    let checked = *checked;
                    let frame = Frame {
                        checked,
                        ..payload.into()
                    };
                    self.loop_back_frame(now, mem, number, frame);
                }
            }
        }
    }

    fn loop_back_datagram<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        frame: &TxFrame,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) {
        self.core.counters.inc(Counter::tx_mcast_packets);
        if self.groups.members(header.ip.dst_gid()).is_empty() {
            return;
        }
        if self.core.ingress.holds_frames() {
            self.hold_frame(now, frame, mem);
        } else {
            self.receive_multicast(now, mem, header, payload);
        }
    }

    fn loop_back_frame<M: Dma>(&mut self, now: Instant, mem: &M, number: u32, frame: Frame<'_, M>) {
        let from_process = |queue: &Queue| queue.uctx() != 0;
        if !self.queues.get(number).is_some_and(from_process) {
            return;
        }
        let head = frame.payload.head().unwrap_or_default();
        if packet::is_roce(&head) {
            return;
        }
        self.core.charge(self.steering.cost());
        let targets = self.steering.take(&head).targets;
        if !targets.is_empty() {
            self.core.counters.inc(Counter::rx_steered);
        }
        self.deliver_frames_in_turn(now, mem, &targets, frame);
    }

    /// Delivers copies of a frame that arrives or leaves to the flows that receive every frame.
    #[inline]
    pub(crate) fn sniff<M: Dma>(&mut self, now: Instant, mem: &M, frame: &TxFrame, sender: &M) {
        if self.steering.has_sniffers() {
            self.sniff_packets(now, mem, frame, sender);
        }
    }

    #[inline(never)]
    fn sniff_packets<M: Dma>(&mut self, now: Instant, mem: &M, frame: &TxFrame, sender: &M) {
        for index in 0..frame.packets {
            match frame.packet_bytes(index, sender) {
                Ok(bytes) => self.sniff_octets(now, mem, &bytes),
                Err(_) => self.core.counters.inc(Counter::dma_errors),
            }
        }
    }

    /// As [`Nic::sniff`].
    pub(crate) fn sniff_octets<M: Dma>(&mut self, now: Instant, mem: &M, frame: &[u8]) {
        self.core.charge(self.steering.cost());
        let targets = self.steering.targets(FLOW_KIND_SNIFFER);
        self.deliver_frames_in_turn(now, mem, &targets, Payload::Bytes(frame).into());
    }

    /// Delivers a frame to raw queue pairs, behind the frames that wait already.
    fn deliver_frames_in_turn<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        targets: &[FrameTarget],
        frame: Frame<'_, M>,
    ) {
        let turn = self.core.begin_turn();
        for target in targets {
            // If one copy must wait, later copies wait too.
            let is_over = self.core.is_over(turn);
            if !is_over && !self.core.ingress.holds_frames() {
                self.deliver_frame(now, mem, *target, frame);
                continue;
            }
            if is_over {
                self.core.defer(now);
            }
            match frame.payload.to_vec() {
                Ok(bytes) => self.hold(
                    now,
                    HeldFrame {
                        header: None,
                        origin: Origin::Unknown,
                        only: Some(*target),
                        bytes,
                    },
                ),
                Err(_) => self.core.counters.inc(Counter::dma_errors),
            }
        }
    }

    /// Delivers a frame that need not wait for others to raw queue pairs. A queue pair that fails flushes its queues, so the copies for
    /// the others may have to wait for another turn.
    fn deliver_frames<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        targets: &[FrameTarget],
        frame: Frame<'_, M>,
    ) {
        let turn = self.core.begin_turn();
        for (index, target) in targets.iter().enumerate() {
            if self.core.is_over(turn) {
                let others = targets.get(index..).unwrap_or_default();
                for target in others.iter().rev() {
                    self.context(now, mem)
                        .put_back(None, *target, frame.payload);
                }
                self.core.defer(now);
                return;
            }
            self.deliver_frame(now, mem, *target, frame);
        }
    }

    /// Delivers a frame to a raw queue pair. If that stops the input, the frame waits.
    pub(crate) fn deliver_frame<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        target: FrameTarget,
        frame: Frame<'_, M>,
    ) {
        self.core.charge(work::of_frames(1, frame.payload.len()));
        // Frames of a work queue count for the RSS queue pair that selects it.
        let set = self.queues.get(target.qpn).map(Queue::counters);
        let (qpn, hash) = self.receiver(target.qpn, frame).unzip();
        let frame = Frame {
            hash: hash.flatten(),
            ..frame
        };
        let Some((qpn, queue)) = qpn.and_then(|qpn| Some((qpn, self.queues.get_mut(qpn)?))) else {
            self.core.counters.inc(Counter::rx_filtered);
            return;
        };
        let target = FrameTarget { qpn, ..target };
        let set = set.unwrap_or(CounterSet::DEVICE);
        let mut cx = Context::new(&mut self.core, now, mem, set);
        if !queue.receive_frame(&mut cx, target.tag, frame) {
            self.context(now, mem).put_back(None, target, frame.payload);
        }
    }

    /// The queue that receives a frame for this queue pair: itself, or an entry of its indirection table. Also returns the
    /// hash that selected the entry, if it covers addresses and ports.
    fn receiver<M: Dma>(&self, qpn: u32, frame: Frame<'_, M>) -> Option<(u32, Option<u32>)> {
        let Queue::Rss(RssQp { rss, .. }) = self.queues.get(qpn)? else {
            return Some((qpn, None));
        };
        let hash = rss.hash(&frame.payload.head().ok()?);
        let qpn = self.rwq_ind_tables.get(rss.table)?.queue(hash.value)?;
        Some((qpn, hash.of_flow.then_some(hash.value)))
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
        // A group is reached by its own MAC address only.
        let addressed = group.multicast_mac() == Some(header.ethernet.dst);
        let is_datagram = header.bth.opcode.info().service == Service::Ud;
        if members.is_empty() || !addressed || !is_datagram {
            self.core.counters.inc(Counter::rx_filtered);
            return;
        }
        self.core.counters.inc(Counter::rx_mcast_packets);
        let turn = self.core.begin_turn();
        for (index, qpn) in members.iter().enumerate() {
            if self.core.is_over(turn) {
                // A queue pair that fails flushes its queues, so the copies for the others may have to wait for another
                // turn.
                let others = members.get(index..).unwrap_or_default();
                for qpn in others.iter().rev() {
                    let target = FrameTarget::untagged(*qpn);
                    let mut cx = Context::new(&mut self.core, now, mem, CounterSet::DEVICE);
                    cx.put_back(Some((*header, Origin::Unknown)), target, payload);
                }
                self.core.defer(now);
                break;
            }
            let Some(qp) = self.queues.qp_mut(*qpn) else {
                continue;
            };
            // The sender of a datagram is not a peer of a connection, so its origin has no effect.
            let mut cx = Context::new(&mut self.core, now, mem, qp.endpoint.counters);
            cx.count(Counter::rx_mcast_copies);
            cx.core.charge(work::of_frames(1, payload.len()));
            if qp.receive(&mut cx, (Packets::one(header), Origin::Unknown), payload) > 0 {
                continue;
            }
            // This copy has stopped the ingress, so it is held.
            let packet = Some((*header, Origin::Unknown));
            cx.put_back(packet, FrameTarget::untagged(*qpn), payload);
        }
        self.core.charge_lookups(now);
    }

    /// A raw frame by reference: it may hold a RoCE packet that software has built.
    pub(crate) fn receive_raw<M: Dma>(&mut self, now: Instant, mem: &M, frame: Frame<'_, M>) {
        let mut head = [0; packet::MAX_HEADER_LEN];
        let Ok(n) = frame.payload.read(0, &mut head) else {
            self.core.counters.inc(Counter::dma_errors);
            return;
        };
        if !packet::is_roce(head.get(..n).unwrap_or(&[])) {
            self.count_received(1, frame.payload.len());
            self.receive_ethernet(now, mem, frame);
            return;
        }
        let mut bytes = vec![0; frame.payload.len().min(MAX_FRAME)];
        match frame.payload.read(0, &mut bytes) {
            // A program of the guest has built it, `rdma_rxe` for example.
            Ok(_) => self.receive_octets(now, mem, Origin::Guest, &bytes),
            Err(_) => self.core.counters.inc(Counter::dma_errors),
        }
    }

    /// A frame arrives that is no RoCE packet: to flows, else to the netdev, else to default flows.
    pub(crate) fn receive_ethernet<M: Dma>(&mut self, now: Instant, mem: &M, frame: Frame<'_, M>) {
        let len = frame.payload.len() as u64;
        self.core.counters.inc(Counter::rx_ethernet_packets);
        self.core.counters.add(Counter::rx_ethernet_bytes, len);
        let longest = longest_frame(&self.core.netdev);
        let mut dst = MacAddr([0; 6]);
        if frame.payload.read(0, &mut dst.0) != Ok(dst.0.len()) || frame.payload.len() > longest {
            self.core.counters.inc(Counter::rx_filtered);
            return;
        }
        if self.core.connections.is_some() && self.receive_segment(now, mem, dst, frame) {
            return;
        }
        if !self.steering.is_empty() && self.steer(now, mem, frame) {
            return;
        }
        let netdev = &self.core.netdev;
        if netdev.is_up() && netdev.qpn != 0 && netdev.wants(dst) {
            let target = FrameTarget::untagged(netdev.qpn);
            self.deliver_frame(now, mem, target, frame);
            return;
        }
        let leftovers = self.steering.leftovers(dst.is_multicast());
        let counter = match leftovers.is_empty() {
            true => Counter::rx_filtered,
            false => Counter::rx_steered,
        };
        self.core.counters.inc(counter);
        self.deliver_frames(now, mem, &leftovers, frame);
    }

    /// Delivers a frame to the flows that match. Returns true if receivers of lower precedence do not receive it.
    fn steer<M: Dma>(&mut self, now: Instant, mem: &M, frame: Frame<'_, M>) -> bool {
        let Ok(head) = frame.payload.head() else {
            self.core.counters.inc(Counter::dma_errors);
            return true;
        };
        self.core.charge(self.steering.cost());
        let verdict = self.steering.take(&head);
        if verdict.dropped {
            self.core.counters.inc(Counter::rx_flow_drops);
        }
        if !verdict.targets.is_empty() {
            self.core.counters.inc(Counter::rx_steered);
        }
        self.deliver_frames(now, mem, &verdict.targets, frame);
        verdict.trapped
    }
}
