//! Frames that arrive: by reference, as octets, or after they have waited for a page.

use faultline_abi::admin::Counter;
use faultline_abi::event;
use faultline_wire::ip::CONGESTION_EXPERIENCED;
use faultline_wire::opcode::Service;
use faultline_wire::packet::{self, RoceHeader};
use faultline_wire::{MULTICAST_QPN, MacAddr, PeerQuery, WireError};

use super::{BURST, Nic};
use crate::counters::CounterSet;
use crate::diagnostic::{Diagnostic, DropCause, OverrunQueue};
use crate::dma::Dma;
use crate::frame::{Frame, FrameKind, Packets, TxFrame};
use crate::ingress::HeldFrame;
use crate::origin::{Origin, ReadyMode};
use crate::payload::Payload;
use crate::steering::FrameTarget;
use crate::time::{Instant, Nanos};
use crate::work;

/// RoCE packets of one frame that arrive.
struct RocePackets<'a, M> {
    packets: Packets<'a>,
    /// Known properties of their sender.
    origin: Origin,
    /// Payload of all of them.
    payload: Payload<'a, M>,
    /// The opcode is reserved; [`packet::parse_reserved`] has put another into the header.
    is_reserved: bool,
}

impl<'a, M> RocePackets<'a, M> {
    fn one(header: &'a RoceHeader, origin: Origin, payload: Payload<'a, M>) -> Self {
        Self {
            packets: Packets::one(header),
            origin,
            payload,
            is_reserved: false,
        }
    }
}

impl Nic {
    /// True if the NIC receives frames to this address.
    #[inline]
    pub fn accepts(&self, dst: MacAddr) -> bool {
        // The filter of the netdev does not include the groups of queue pairs.
        dst.is_multicast()
            || !self.steering.is_empty()
            || self.core.netdev.wants(dst)
            || self.core.is_own_address(dst)
    }

    /// Receives a frame from another NIC of the process, by reference.
    pub fn receive<M: Dma>(&mut self, now: Instant, mem: &M, frame: &TxFrame, sender: &M) {
        self.core.last_run = None;
        if !self.is_running() {
            return;
        }
        let len = frame.len();
        self.core.charge(work::of_frames(frame.packets, len));
        if self.drops_all(now, frame.packets) {
            return;
        }
        self.sniff(now, mem, frame, sender);
        if self.core.ingress.holds_frames() {
            self.hold_frame(now, frame, sender);
            return;
        }
        let payload = frame.view(sender);
        if let Some(packets) = frame.roce_packets() {
            self.count_received(frame.packets, len);
            let arrived = RocePackets {
                packets,
                origin: frame.origin(),
                payload,
                is_reserved: false,
            };
            self.receive_packets(now, mem, arrived);
        } else if let FrameKind::Raw { checked, .. } = frame.kind {
            let frame = Frame {
                checked,
                ..payload.into()
            };
            self.receive_raw(now, mem, frame);
        }
        self.report_fatal(now);
    }

    /// Receives `packets` packets, from packet `first` on, of a run that [`Nic::poll_next_run`] of the sender has made. The packet before is the
    /// last one that this NIC has received. Returns false without a change if they must come by [`Nic::receive`].
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "packets of a frame are equal parts of its payload"
    )]
    pub fn receive_next_run<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        (frame, sender): (&TxFrame, &M),
        (first, packets): (u32, u32),
    ) -> bool {
        let FrameKind::Roce(header) = &frame.kind else {
            return false;
        };
        let (qpn, psn) = (header.bth.dest_qp, header.bth.psn.add(first));
        let is_next = self.core.last_run.take() == Some((qpn, psn))
            && header.ip.ecn() != CONGESTION_EXPERIENCED;
        let is_plain = self.is_running()
            && self.core.netdev.is_up()
            && !self.core.ingress.holds_frames()
            && !self.core.delays_packets()
            && !self.steering.has_sniffers();
        if !is_next || !is_plain {
            return false;
        }
        let Some((qp, mut cx)) = self.qp_in_context(now, mem, qpn) else {
            return false;
        };
        let mut header = *header;
        header.bth.psn = psn;
        header.bth.ack_req &= first + packets == frame.packets;
        let each = frame.payload_len / frame.packets.max(1) as usize;
        let payload = frame
            .view(sender)
            .part(first as usize * each, packets as usize * each);
        if !qp.receive_next_run(&mut cx, &header, packets, payload) {
            return false;
        }
        let set = cx.counters;
        let traffic = &mut qp.endpoint.traffic;
        traffic.rx_packets = traffic.rx_packets.wrapping_add(u64::from(packets));
        traffic.rx_bytes = traffic.rx_bytes.wrapping_add(payload.len() as u64);
        let core = &mut self.core;
        core.last_run = Some((qpn, psn.add(packets)));
        let len = packets as usize * header.frame_len(each);
        core.charge(work::of_frames(packets, len));
        core.counters
            .add_in(set, Counter::rx_roce_packets, u64::from(packets));
        core.charge_lookups(now);
        core.charge_queue_pair(now, qpn);
        core.charge_payload(now, payload.len(), packets);
        self.count_received(packets, len);
        self.report_fatal(now);
        true
    }

    /// Receives a frame as octets, without FCS, from a wire on which other adapters can be.
    pub fn receive_bytes<M: Dma>(&mut self, now: Instant, mem: &M, frame: &[u8]) {
        self.receive_bytes_from(now, mem, Origin::Unknown, frame);
    }

    /// Receives a frame as octets, without FCS. `origin`: the known properties of its sender; [`Origin::Faultline`] is for packets of a
    /// NIC that have never left the process.
    pub fn receive_bytes_from<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        origin: Origin,
        frame: &[u8],
    ) {
        if !self.is_running() {
            return;
        }
        if self.drops_all(now, 1) {
            return;
        }
        self.sniff_octets(now, mem, frame);
        if self.core.ingress.holds_frames() {
            self.hold(
                now,
                HeldFrame {
                    header: None,
                    origin,
                    only: None,
                    bytes: frame.to_vec(),
                },
            );
            return;
        }
        self.receive_octets(now, mem, origin, frame);
        self.report_fatal(now);
    }

    /// True while the interface is down: no frames are received.
    #[inline]
    fn drops_all(&mut self, now: Instant, packets: u32) -> bool {
        let is_down = !self.core.netdev.is_up();
        if is_down {
            let cause = DropCause::InterfaceDown;
            self.core.drop_received(now, 0, cause, packets);
        }
        is_down
    }

    pub(crate) fn receive_octets<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        origin: Origin,
        frame: &[u8],
    ) {
        self.count_received(1, frame.len());
        match packet::parse(frame) {
            Ok(parsed) if !parsed.icrc_ok => self.core.counters.inc(Counter::rx_icrc_errors),
            Ok(parsed) => {
                let payload = Payload::Bytes(parsed.payload);
                let arrived = RocePackets::one(&parsed.header, origin, payload);
                self.receive_roce(now, mem, arrived);
            }
            Err(WireError::NotRoce) => {
                // A guest of the process has no wire, so its frame is no query of a peer.
                if origin == Origin::Unknown && self.receive_query(now, mem, frame) {
                    return;
                }
                self.receive_ethernet(now, mem, Payload::Bytes(frame).into());
            }
            Err(WireError::UnknownOpcode(_)) => self.receive_reserved(now, mem, origin, frame),
            Err(WireError::BadUdpChecksum) => self.core.counters.inc(Counter::rx_csum_errors),
            Err(_) => self.core.counters.inc(Counter::rx_malformed),
        }
    }

    /// Receives a peer query to this NIC. Returns false if the frame is another one, or is for the guest.
    fn receive_query<M: Dma>(&mut self, now: Instant, mem: &M, frame: &[u8]) -> bool {
        let Some((ethernet, query)) = PeerQuery::parse(frame) else {
            return false;
        };
        let takes = self.core.config.ready != ReadyMode::Never
            && self.core.netdev.is_up()
            && self.core.is_own_address(ethernet.dst);
        if takes && let Some((qp, mut cx)) = self.qp_in_context(now, mem, query.to.qpn) {
            qp.endpoint.receive_query(&mut cx, (&ethernet, &query));
        }
        takes
    }

    /// Receives a packet whose opcode is reserved: only a reliable connection answers it.
    fn receive_reserved<M: Dma>(&mut self, now: Instant, mem: &M, origin: Origin, frame: &[u8]) {
        let Some(header) = packet::parse_reserved(frame) else {
            self.core.counters.inc(Counter::rx_malformed);
            return;
        };
        let arrived = RocePackets {
            is_reserved: true,
            ..RocePackets::one(&header, origin, Payload::Bytes(&[]))
        };
        self.receive_roce(now, mem, arrived);
    }

    /// True while senders should pause, because fault policy `stall` or an operator has stopped this NIC's ingress.
    /// False if they have paused for too long lately, and for a device that is not running: it drops frames, and
    /// nothing would end the pause.
    pub fn is_stalled(&self) -> bool {
        self.is_running() && self.core.ingress.pauses_others()
    }

    /// True while fault policy `stall` or an operator has stopped this NIC's ingress, whether senders should pause or not.
    pub fn is_input_stopped(&self) -> bool {
        self.core.ingress.is_stopped()
    }

    /// Returns true if an arriving frame is held, and executed later: the ingress is stopped, or still has held frames.
    pub fn holds_input(&self) -> bool {
        self.core.ingress.holds_frames()
    }

    pub(crate) fn hold(&mut self, now: Instant, frame: HeldFrame) {
        if !self.core.ingress.push(frame) {
            self.core.counters.inc(Counter::stall_overflow);
            self.core.diagnose(
                now,
                Diagnostic::Overrun {
                    queue: OverrunQueue::Ingress,
                    object: 0,
                },
            );
        }
    }

    /// Holds a frame that was delivered by reference, packet by packet.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "packets of a frame are equal parts of its payload"
    )]
    pub(crate) fn hold_frame<M: Dma>(&mut self, now: Instant, frame: &TxFrame, sender: &M) {
        let payload = frame.view(sender);
        let each = payload.len() / frame.packets.max(1) as usize;
        for index in 0..frame.packets {
            let header = frame.packet_header(index);
            match payload.part(index as usize * each, each).to_vec() {
                Ok(bytes) => self.hold(
                    now,
                    HeldFrame {
                        header,
                        origin: frame.origin(),
                        only: None,
                        bytes,
                    },
                ),
                Err(_) => self.core.counters.inc(Counter::dma_errors),
            }
        }
    }

    /// Receives held frames until none is left or another page is missing.
    pub(super) fn receive_held<M: Dma>(&mut self, now: Instant, mem: &M) {
        let turn = self.core.begin_turn();
        for _ in 0..BURST {
            if self.core.ingress.is_stopped() {
                return;
            }
            if self.core.is_over(turn) {
                break;
            }
            let Some(frame) = self.core.ingress.pop() else {
                return;
            };
            self.core.charge(work::of_frames(1, frame.bytes.len()));
            if self.drops_all(now, 1) {
                continue;
            }
            let payload = Payload::Bytes(&frame.bytes);
            match (&frame.header, frame.only) {
                (Some(header), Some(target)) => {
                    let arrived = RocePackets::one(header, frame.origin, payload);
                    self.deliver_to_qp(now, mem, target.qpn, arrived);
                }
                (None, Some(target)) => self.deliver_frame(now, mem, target, payload.into()),
                (Some(header), None) => {
                    let len = header.frame_len(frame.bytes.len());
                    self.count_received(1, len);
                    let arrived = RocePackets::one(header, frame.origin, payload);
                    self.receive_roce(now, mem, arrived);
                }
                (None, None) => self.receive_octets(now, mem, frame.origin, &frame.bytes),
            }
        }
        // Otherwise frames that cause neither a frame nor a timer would leave the rest waiting.
        if self.core.ingress.has_work() {
            self.core.defer(now);
        }
    }

    /// Ends a stop of the ingress that has lasted for the stall timeout, because the page may depend on a packet behind
    /// the one that has stopped it. The first packet is dropped, and the driver gets an event.
    pub(super) fn give_up_stall<M: Dma>(&mut self, now: Instant, mem: &M) {
        let timeout = self.core.config.stall_timeout;
        self.core.ingress.end_operator_pause(now);
        self.core.ingress.end_pause(now, timeout);
        let Some(ended) = self.core.ingress.give_up(now, timeout) else {
            return;
        };
        self.report_stall_end(now, ended.after);
        if let Some(qpn) = ended.timed_out {
            self.core.counters.inc(Counter::stall_timeouts);
            self.core.diagnose(now, Diagnostic::StallTimedOut { qpn });
            self.context(now, mem)
                .raise_async(event::STALL_TIMEOUT, qpn);
        }
    }

    pub(super) fn report_stall_end(&mut self, now: Instant, after: Nanos) {
        self.core.diagnose(now, Diagnostic::StallEnded { after });
    }

    #[inline]
    pub(crate) fn count_received(&mut self, packets: u32, len: usize) {
        self.core
            .counters
            .add(Counter::rx_packets, u64::from(packets));
        self.core.counters.add(Counter::rx_bytes, len as u64);
    }

    fn receive_roce<M: Dma>(&mut self, now: Instant, mem: &M, arrived: RocePackets<'_, M>) {
        self.receive_packets(now, mem, arrived);
    }

    /// As [`Nic::receive_roce`], as a part of its caller: for frames by reference.
    #[inline(always)]
    fn receive_packets<M: Dma>(&mut self, now: Instant, mem: &M, arrived: RocePackets<'_, M>) {
        let header = arrived.packets.first;
        let set = self.set_for(header);
        let is_multicast = header.bth.dest_qp == MULTICAST_QPN;
        let (payload, packets) = (arrived.payload.len(), arrived.packets.count);
        let counters = &mut self.core.counters;
        counters.add_in(set, Counter::rx_roce_packets, u64::from(packets));
        // Of another NIC, for example one behind a bridge in the guest.
        if !is_multicast && !self.core.is_own_address(header.ethernet.dst) {
            let count = u64::from(packets);
            self.core.counters.add(Counter::rx_filtered, count);
            return;
        }
        if let Some(cause) = self.core.bars_received(header, payload, packets) {
            self.core
                .drop_received(now, header.bth.dest_qp, cause, packets);
            return;
        }
        if is_multicast {
            self.core.counters.inc(Counter::rx_port_mcast_packets);
            self.receive_multicast(now, mem, header, arrived.payload);
            return;
        }
        if header.bth.opcode.info().service == Service::Cnp {
            self.receive_notification(now, mem, (header, arrived.origin));
            return;
        }
        self.deliver_to_qp(now, mem, header.bth.dest_qp, arrived);
    }

    /// A congestion notification: the queue pair that it names sends more slowly.
    fn receive_notification<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        (header, origin): (&RoceHeader, Origin),
    ) {
        let is_obeyed = self
            .qp_in_context(now, mem, header.bth.dest_qp)
            .is_some_and(|(qp, mut cx)| qp.receive_notification(&mut cx, (header, origin)));
        self.core.counters.inc(match is_obeyed {
            true => Counter::rp_cnp_handled,
            false => Counter::rp_cnp_ignored,
        });
    }

    /// The counter set of the queue pair that this header addresses, or that of the device.
    #[inline]
    fn set_for(&mut self, header: &RoceHeader) -> CounterSet {
        let for_qp = self.core.counters.has_sets()
            && self.core.is_own_address(header.ethernet.dst)
            && header.bth.opcode.info().service != Service::Cnp;
        if !for_qp {
            return CounterSet::DEVICE;
        }
        let qp = self.queues.qp_mut(header.bth.dest_qp);
        qp.map_or(CounterSet::DEVICE, |qp| qp.endpoint.counters)
    }

    /// Delivers packets to a queue pair. A packet that stops the ingress is held, with later ones.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "packets of a frame are equal parts of its payload"
    )]
    #[inline(always)]
    fn deliver_to_qp<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        qpn: u32,
        arrived: RocePackets<'_, M>,
    ) {
        let RocePackets {
            packets,
            origin,
            payload,
            is_reserved,
        } = arrived;
        let Some((qp, mut cx)) = self.qp_in_context(now, mem, qpn) else {
            let count = u64::from(packets.count);
            self.core.counters.add(Counter::rx_bad_qp, count);
            return;
        };
        let traffic = &mut qp.endpoint.traffic;
        traffic.rx_packets = traffic.rx_packets.wrapping_add(u64::from(packets.count));
        traffic.rx_bytes = traffic.rx_bytes.wrapping_add(payload.len() as u64);
        let taken = match is_reserved {
            true => qp.refuse_reserved(&mut cx, (packets.first, origin)),
            false => qp.receive(&mut cx, (packets, origin), payload),
        };
        self.core.charge_lookups(now);
        self.core.charge_queue_pair(now, qpn);
        self.core.charge_payload(now, payload.len(), packets.count);
        // One of them has stopped the ingress: that packet and later ones are held.
        let each = payload.len() / packets.count.max(1) as usize;
        for index in (taken..packets.count).rev() {
            let packet = Some((packets.header(index), origin));
            let part = payload.part(index as usize * each, each);
            self.context(now, mem)
                .put_back(packet, FrameTarget::untagged(qpn), part);
        }
    }
}
