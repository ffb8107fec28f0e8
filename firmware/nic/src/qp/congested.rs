//! A queue pair on a path with congestion: it sends notifications, and obeys them.

use faultline_abi::admin::Counter;
use faultline_wire::packet::RoceHeader;

use super::Qp;
use super::types::FrameRoom;
use crate::congestion::Congestion;
use crate::context::Context;
use crate::dma::Dma;
use crate::frame::TxFrame;
use crate::origin::Origin;

/// The payload of a CNP (annex A17.9.3): reserved.
const CNP_PAYLOAD: [u8; 16] = [0; 16];

impl Qp {
    /// A packet of the peer is marked: sends a CNP, unless one was sent just now.
    pub(super) fn notify_congestion<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let Some(config) = cx.core.config.congestion else {
            return;
        };
        if self.known_congestion().marked(cx.now, &config) {
            self.wake(cx.core);
        }
    }

    /// A CNP has arrived. One that is not from the peer has no effect. Returns true if it has one.
    pub(crate) fn receive_notification<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        (header, origin): (&RoceHeader, Origin),
    ) -> bool {
        let Some(config) = cx.core.config.congestion else {
            return false;
        };
        let kind = self.endpoint.config.kind;
        let is_obeyed = kind.is_connected() && self.endpoint.is_from_peer(header, origin);
        if is_obeyed {
            self.known_congestion().notified(cx.now, &config);
        }
        is_obeyed
    }

    fn known_congestion(&mut self) -> &mut Congestion {
        self.congestion.get_or_insert_default()
    }

    /// As [`poll_transmit`](Qp::poll_transmit), within the rate that the queue pair has. Packets without payload do not wait: they
    /// are few octets, and the peer waits for them.
    pub(super) fn poll_congested<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        most: usize,
        frame: &mut TxFrame,
    ) -> bool {
        let (Some(congestion), Some(config)) = (&mut self.congestion, cx.core.config.congestion)
        else {
            return false;
        };
        if congestion.owes_cnp()
            && let Some(path) = &self.endpoint.path
        {
            let priority = path.priority_of_notification(config.cnp_dscp);
            let number = self.endpoint.number;
            if cx.core.flow_control.paused().contains(priority) {
                self.ready.wait_for_priority(cx.core, number, priority);
            } else {
                congestion.take_cnp();
                let peer = self.endpoint.attr.dest_qpn.get();
                let header = path.congestion_notification(peer, config.cnp_dscp);
                frame.set_own_packet(header, &CNP_PAYLOAD);
                cx.count(Counter::np_cnp_sent);
                return true;
            }
        }
        if !congestion.may_send(cx.now, &config) {
            if let Some(wait) = self.endpoint.must_wait(cx.core) {
                self.wait(cx.core, wait);
            } else if let Some(header) = self.responder.take_short_reply(&self.endpoint) {
                frame.set_packet(header);
                return true;
            }
            self.sync_timer(cx.core);
            return false;
        }
        // Packets are spaced, so each is sent alone.
        let room = match congestion.is_limited() {
            true => FrameRoom::ONE_PACKET,
            false => self.room(most),
        };
        let found = self.poll_packet(cx, room, frame);
        if found
            && frame.payload_len > 0
            && let Some(congestion) = &mut self.congestion
        {
            congestion.sent(cx.now, frame.len(), &config);
        }
        found
    }
}
