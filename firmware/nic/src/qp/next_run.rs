//! Successive runs of one message, which skip the checks that the first run has passed.
//!
//! The caller guarantees that no event comes between two such runs. In all other cases the next run is sent and
//! received like any other frame, with the same effects.

use faultline_wire::packet::RoceHeader;

use super::Qp;
use crate::context::Context;
use crate::dma::Dma;
use crate::frame::{FrameKind, TxFrame};
use crate::payload::Payload;

impl Qp {
    /// Replaces `frame`, the last frame of this queue pair, by the next run of the same message, of up to `most` bytes
    /// and packets. The run is not sent yet. Returns false, and leaves `frame` undefined, if that needs a
    /// [poll](Qp::poll_transmit).
    pub(crate) fn poll_next_run<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        most: (usize, u32),
        frame: &mut TxFrame,
    ) -> bool {
        let FrameKind::Roce(last) = &frame.kind else {
            return false;
        };
        let is_plain = self.endpoint.is_reliable()
            && !self.is_flushing
            && self.congestion.is_none()
            && !self.responder.has_parked_to_deliver()
            && self.endpoint.must_wait(cx.core).is_none();
        if !is_plain {
            return false;
        }
        let (qp, packets) = (&self.endpoint, self.room(most.0).run.min(most.1));
        match last.bth.opcode.is_response() {
            // Requests have every other turn while a READ is answered.
            true => !self.requester.has_more(qp) && self.responder.next_run(qp, cx, packets, frame),
            false => {
                !self.responder.has_replies() && self.requester.next_run(qp, cx, packets, frame)
            }
        }
    }

    /// The packets of `frame`, which [`Qp::poll_next_run`] has made, are sent.
    pub(crate) fn next_run_sent<M: Dma>(&mut self, cx: &mut Context<'_, M>, frame: &TxFrame) {
        let FrameKind::Roce(header) = &frame.kind else {
            return;
        };
        if header.bth.opcode.is_response() {
            self.responder.next_run_sent(frame.packets);
        } else {
            let (requester, qp) = (&mut self.requester, &self.endpoint);
            requester.next_run_sent(qp, cx, frame.packets);
            self.sync_timer(cx.core);
        }
    }

    /// Receives the next run of a message, if this queue pair has accepted the last frame as a whole. Returns false
    /// without a change if the run must be received like any other frame.
    #[inline]
    pub(crate) fn receive_next_run<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> bool {
        self.endpoint.state.receives() && self.receive_run(cx, header, packets, payload)
    }
}
