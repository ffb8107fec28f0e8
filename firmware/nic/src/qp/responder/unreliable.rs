//! The responder of an unreliable connection: which packets begin or continue a message, and the handling of packets
//! that can't be executed. Execution itself is in `execute.rs`, as for other connections.

use faultline_abi::admin::Counter;
use faultline_wire::bth::Psn;
use faultline_wire::packet::RoceHeader;

use super::refusal::{Refusal, Rejection};
use super::{Jump, Responder};
use crate::context::Context;
use crate::dma::Dma;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::Fatal;

/// Distance before the expected PSN up to which a UC packet is a duplicate or was overtaken. Wires repeat and reorder packets over much
/// shorter distances.
const RECENT: i32 = 1024;

impl Responder {
    /// True if a UC packet is a duplicate, or was overtaken by a later one.
    fn is_recent(&self, psn: Psn) -> bool {
        let before = |end: Psn| (1..=RECENT).contains(&end.diff(psn));
        before(self.expected) || self.jump.is_some_and(|jump| before(jump.from))
    }

    /// PSN check of UC (IBTA 9.8.2.2.1): a damaged message is dropped, and the next first packet begins a message with any PSN, except one
    /// up to [`RECENT`] PSNs before the expected one, so that messages are delivered in order and once. Returns true if the packet must be
    /// executed.
    pub(super) fn check_unreliable<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
    ) -> bool {
        let psn = header.bth.psn;
        if self.is_recent(psn) {
            cx.count(Counter::duplicate_request);
            return false;
        }
        let ahead = psn.diff(self.expected);
        let near = (0..=RECENT).contains(&ahead);
        if ahead != 0 {
            cx.count(Counter::out_of_sequence);
            self.message = None;
            self.skipping = true;
        }
        if header.bth.opcode.is_first_or_only() {
            // A packet that is recent before a jump must not be new after it.
            if ahead.abs() > 2 * RECENT {
                self.jump = Some(Jump {
                    from: self.expected,
                    to: psn,
                });
            } else if self.jump.is_some_and(|jump| psn.diff(jump.to) > RECENT) {
                self.jump = None;
            }
            self.skipping = false;
            self.expected = psn;
            return true;
        }
        // A packet that belongs to no message does not show the position of the connection, unless it is close.
        if self.skipping && near {
            self.expected = psn.next();
        }
        !self.skipping
    }

    /// Drops a packet: UC has no NAK, so the message is lost (IBTA 9.8.2.2), unless the local side is at fault.
    pub(super) fn drop_unreliable<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
        refusal: Refusal,
    ) -> Result<(), Fatal> {
        self.message = None;
        self.skipping = true;
        self.expected = psn.next();
        match refusal {
            // UC has no FLUSH.
            Refusal::Lost | Refusal::Absent(_) | Refusal::NotDurable => {}
            Refusal::NotReady => cx.count(Counter::out_of_buffer),
            Refusal::TooLong => {
                if let Some(wr) = self.current.take() {
                    self.drop_too_long(qp, cx, wr);
                }
            }
            Refusal::Fatal(Rejection {
                receive: Some(failure),
                event,
                ..
            }) => {
                if let Some(wr) = self.current.take() {
                    qp.fail_receive(cx, &wr, failure);
                }
                return Err(Fatal::with(event));
            }
            Refusal::Fatal(_) => cx.count(Counter::resp_invalid_request),
        }
        Ok(())
    }
}
