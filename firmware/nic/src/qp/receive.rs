//! Packets that arrive at a queue pair: the checks that all transports share, and which half takes them.

use faultline_abi::admin::Counter;
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::CONGESTION_EXPERIENCED;
use faultline_wire::packet::RoceHeader;

use super::Qp;
use super::receiver::Receiver;
use super::responder::Arrival;
use super::types::QpType;
use crate::context::Context;
use crate::dma::Dma;
use crate::frame::Packets;
use crate::origin::Origin;
use crate::payload::Payload;

impl Qp {
    /// Receives the packets of a frame from a sender with origin `origin`, with the checks that all transports share (IBTA 9.6).
    /// Returns the number of packets that have been handled; the next one has stopped the ingress.
    pub(crate) fn receive<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        (packets, origin): (Packets<'_>, Origin),
        payload: Payload<'_, M>,
    ) -> u32 {
        let (header, count) = (packets.first, packets.count);
        if let Some(counter) = self.bars(header) {
            cx.add(counter, count.into());
            return count;
        }
        let is_marked = header.ip.ecn() == CONGESTION_EXPERIENCED;
        if is_marked {
            cx.add(Counter::np_ecn_marked_roce_packets, count.into());
        }
        if !self.endpoint.config.kind.is_connected() {
            return u32::from(self.receive_by_responder(cx, Arrival::Packet(header), payload));
        }
        if !self.endpoint.is_from_peer(header, origin) {
            cx.add(Counter::rx_bad_source, count.into());
            return count;
        }
        if is_marked {
            self.notify_congestion(cx);
        }
        self.endpoint.note_peer(origin);
        if count == 1 {
            return u32::from(self.receive_connected(cx, header, payload));
        }
        if packets.is_train() {
            return self.receive_train(cx, packets, payload);
        }
        if self.receive_run(cx, header, count, payload) {
            cx.core.last_run = Some((self.endpoint.number, header.bth.psn.add(count)));
            return count;
        }
        let each = payload.len().checked_div(count as usize).unwrap_or(0);
        for index in 0..count {
            let header = packets.header(index);
            let part = payload.part((index as usize).saturating_mul(each), each);
            if !self.receive_connected(cx, &header, part) {
                return index;
            }
        }
        count
    }

    /// Receives the messages of a train. Returns the number of those that have been handled.
    ///
    /// Only the last message asks for an acknowledgement, which includes the others. If it is not executed, or a completion is lost,
    /// the messages before are acknowledged here.
    fn receive_train<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        packets: Packets<'_>,
        payload: Payload<'_, M>,
    ) -> u32 {
        let each = payload.len().checked_div(packets.count as usize);
        let (mut header, mut rest) = (*packets.first, payload);
        let done = self
            .responder
            .receive_train(&self.endpoint, cx, packets, &mut rest);
        if self.responder.has_replies() {
            self.wake(cx.core);
        }
        let asks = header.bth.ack_req;
        let mut loses = cx.core.has_lost_completion(self.endpoint.number);
        for index in done..packets.count {
            packets.set_place(&mut header, index);
            let is_last = index.wrapping_add(1) == packets.count;
            header.bth.ack_req = asks && is_last;
            let part;
            (part, rest) = rest.split_at(each.unwrap_or(0));
            let before = self.responder.expected_psn();
            let is_handled = self.receive_connected(cx, &header, part);
            if asks && !loses && cx.core.has_lost_completion(self.endpoint.number) {
                loses = true;
                self.acknowledge_train(cx, packets.first, before);
            }
            let executed = self.responder.expected_psn();
            if asks && !loses && (!is_handled || (is_last && executed != header.bth.psn.next())) {
                self.acknowledge_train(cx, packets.first, executed);
            }
            if !is_handled {
                return index;
            }
        }
        packets.count
    }

    /// Acknowledges the messages of a train before this PSN, also repeated ones.
    #[cold]
    fn acknowledge_train<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        first: &RoceHeader,
        until: Psn,
    ) {
        if until.diff(first.bth.psn) > 0 {
            self.responder.acknowledge_until(until);
            self.wake(cx.core);
        }
    }

    /// Returns the counter of the reason if this queue pair accepts no packet with these values of its BTH.
    #[inline(always)]
    fn bars(&self, header: &RoceHeader) -> Option<Counter> {
        let opcode = header.bth.opcode;
        if !self.endpoint.state.receives() || !self.endpoint.config.kind.has(opcode) {
            return Some(Counter::rx_bad_qp);
        }
        // Only the default P_Key exists; membership is in the top bit (IBTA 10.9.3).
        (header.bth.pkey & 0x7fff != Bth::DEFAULT_PKEY & 0x7fff).then_some(Counter::rx_bad_pkey)
    }

    /// Refuses a request with a reserved opcode (IBTA 9.9.6, table of responder errors: invalid request, after the check of its
    /// PSN). Returns the number of packets that have been handled.
    #[cold]
    pub(crate) fn refuse_reserved<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        (header, origin): (&RoceHeader, Origin),
    ) -> u32 {
        if let Some(counter) = self.bars(header) {
            cx.count(counter);
        } else if self.endpoint.config.kind == QpType::XrcIni {
            cx.count(Counter::rx_bad_qp);
        } else if !self.endpoint.is_from_peer(header, origin) {
            cx.count(Counter::rx_bad_source);
        } else {
            self.endpoint.note_peer(origin);
            let refused = self.responder.refuse_reserved(&self.endpoint, cx, header);
            self.check_received(cx, refused);
        }
        1
    }

    /// Receives a packet of a connection. Returns false if it has stopped the ingress and must be held.
    #[inline]
    fn receive_connected<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> bool {
        // An earlier packet of the same run may have ended it.
        if !self.endpoint.state.receives() {
            cx.count(Counter::rx_bad_qp);
            return true;
        }
        let is_response = header.bth.opcode.is_response();
        // Initiators get responses only, targets requests.
        let wrong = if is_response {
            QpType::XrcTgt
        } else {
            QpType::XrcIni
        };
        if self.endpoint.config.kind == wrong {
            cx.count(Counter::rx_bad_qp);
            return true;
        }
        if is_response {
            self.receive_response(cx, header, payload);
            return true;
        }
        self.receive_by_responder(cx, Arrival::Packet(header), payload)
    }

    #[inline]
    fn receive_by_responder<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        arrival: Arrival<'_>,
        payload: Payload<'_, M>,
    ) -> bool {
        let received = self.responder.receive(&self.endpoint, cx, arrival, payload);
        self.check_received(cx, received)
    }

    /// Executes a run as a whole, if it is the expected one and has no error. Returns false without a change if the packets must be
    /// examined one by one.
    pub(super) fn receive_run<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> bool {
        let whole =
            payload.len() as u64 == u64::from(packets).saturating_mul(u64::from(self.endpoint.mtu));
        let xrc = matches!(self.endpoint.config.kind, QpType::XrcIni | QpType::XrcTgt);
        let is_response = header.bth.opcode.is_response();
        let wrong_way = xrc && is_response == (self.endpoint.config.kind == QpType::XrcTgt);
        if !whole || wrong_way {
            return false;
        }
        if is_response {
            let qp = &self.endpoint;
            let taken = match qp.state.sends() {
                true => self.requester.receive_run(qp, cx, header, packets, payload),
                false => Ok(false),
            };
            // A failure has been handled: no packet of the run is left.
            let taken = self.check_send_queue(cx, taken).unwrap_or(true);
            if taken {
                self.response_received(cx);
            }
            taken
        } else {
            let (responder, qp) = (&mut self.responder, &self.endpoint);
            let received = responder.receive_run(qp, cx, header, packets, payload);
            if let Some(received) = received {
                self.check_received(cx, Ok(received));
            }
            received.is_some()
        }
    }

    fn receive_response<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) {
        if self.endpoint.state.sends() {
            let received = self.requester.receive(&self.endpoint, cx, header, payload);
            self.check_send_queue(cx, received);
            self.response_received(cx);
        }
    }

    /// After a response there may be more to send, and another deadline.
    fn response_received<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        if self.endpoint.state.sends() {
            self.sync_timer(cx.core);
            if self.requester.has_more(&self.endpoint) {
                self.wake(cx.core);
            }
        }
    }
}
