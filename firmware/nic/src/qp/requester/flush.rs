//! Completing work requests as flushed, because the queue pair has failed.

use crate::context::Context;
use crate::dma::Dma;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::Failure;

use super::Requester;

impl Requester {
    /// Begins a flush of everything that is posted now.
    pub(crate) fn begin_flush(&mut self) {
        self.flush_end = self.producer;
        // No packet is repeated.
        self.ack_deadline = None;
        self.rnr_deadline = None;
    }

    /// Completes work requests as flushed, until the flush or the turn is over. Returns true if the flush is over.
    pub(crate) fn flush<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        turn: u64,
    ) -> bool {
        while let Some(wr) = self.pop() {
            qp.complete_send(cx, &wr, Some(Failure::FLUSHED));
            if cx.core.is_over(turn) {
                return false;
            }
        }
        self.flush_rendezvous(qp, cx);
        self.clear();
        while self.fetched != self.flush_end {
            if cx.core.is_over(turn) {
                return false;
            }
            let wr = self.read(qp, cx.mem);
            qp.complete_send(cx, &wr, Some(Failure::FLUSHED));
        }
        true
    }

    /// Completes as flushed the tagged buffers that it reads into, or would read into; drops the other work requests.
    pub(crate) fn flush_tagged<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>) {
        while let Some(wr) = self.pop() {
            if let Some(request) = wr.device {
                qp.complete_device_request(cx, request, Some(Failure::FLUSHED));
            }
        }
        self.flush_rendezvous(qp, cx);
    }

    /// Completes the rendezvous that have not begun as flushed: at most one for each place of the tag list.
    fn flush_rendezvous<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>) {
        while let Some(slot) = self.rendezvous.pop_front() {
            qp.complete_rendezvous(cx, slot, Some(Failure::FLUSHED));
        }
    }
}
