//! Send queues of datagram and raw queue pairs: one work request at a time, which completes when its frame has left.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "segments of a message of at most 64 KiB are counted"
)]

use super::{BuildError, Requester, Sent};
use crate::context::Context;
use crate::dma::Dma;
use crate::flow_control::BlockedOn;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::{Failure, State};
use crate::qp::work_request::SendWr;

impl Requester {
    /// Completes the work request that was handed over before, and returns the next one.
    pub(crate) fn next_unconnected<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
    ) -> Option<SendWr> {
        if self.page.is_some() {
            return None;
        }
        if let Some(wr) = self.pop() {
            if std::mem::take(&mut self.held) {
                return Some(wr);
            }
            qp.complete_send(cx, &wr, None);
        }
        if qp.state != State::Rts || !self.has_posted() {
            return None;
        }
        Some(self.read(qp, cx.mem))
    }

    /// The work request stays pending until the next poll: its buffers may be used again only after the frame has left.
    pub(crate) fn hand_over_unconnected<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        wr: SendWr,
        built: Result<(), BuildError>,
    ) -> Result<Sent, Failure> {
        self.push(&cx.core.budget, wr);
        match built {
            Ok(()) => Ok(Sent::Frame),
            Err(error) => match self.wait_or_fail(qp, cx, error) {
                Some(failure) => Err(failure),
                None => {
                    self.held = true;
                    Ok(Sent::Nothing)
                }
            },
        }
    }

    /// The work request stays the next one, because the priority of its frame is paused.
    pub(crate) fn hold_unconnected<M: Dma>(
        &mut self,
        cx: &Context<'_, M>,
        wr: SendWr,
        priority: u8,
    ) -> Sent {
        self.push(&cx.core.budget, wr);
        self.held = true;
        Sent::Paused(BlockedOn::Priority(priority))
    }

    /// The segment of a large raw packet that leaves next.
    pub(crate) fn segment(&self) -> u32 {
        self.segment
    }

    /// Records that a segment of a large raw packet has been handed over; `more` is false for the last one. Returns
    /// true for the first of several.
    pub(crate) fn segment_sent(&mut self, more: bool) -> bool {
        let first_of_several = more && self.segment == 0;
        // A packet with remaining segments does not complete at the next poll.
        self.held = more;
        self.segment = if more { self.segment + 1 } else { 0 };
        first_of_several
    }
}
