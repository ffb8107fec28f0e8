//! The responder of an unreliable connection: which packet begins or continues a message, and what becomes of one that
//! can't be carried out. What they do is in `execute.rs`, as for the other connections.

use faultline_abi::admin::Counter;
use faultline_wire::bth::Psn;
use faultline_wire::packet::RoceHeader;

use super::refusal::{Refusal, Rejection};
use super::{Jump, Responder};
use crate::context::Context;
use crate::dma::Dma;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::Fatal;

/// So many packets before the expected one, a UC packet is a duplicate or was overtaken. Wires repeat and reorder packets
/// over much shorter distances.
const RECENT: i32 = 1024;

impl Responder {
    /// Whether a UC packet has been here, or was overtaken by one that has.
    fn is_recent(&self, psn: Psn) -> bool {
        let before = |end: Psn| (1..=RECENT).contains(&end.diff(psn));
        before(self.expected) || self.jump.is_some_and(|jump| before(jump.from))
    }

    /// PSN check of UC (IBTA 9.8.2.2.1): a message that is damaged is dropped, and the next first packet starts anew,
    /// whatever its PSN. A packet from the recent past does not, so that messages come in order and once. Returns true if
    /// the packet is to be carried out.
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
            // What is recent on one side of a jump must not be new on the other.
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
        // One that belongs to no message says nothing of where the connection is, unless it is close.
        if self.skipping && near {
            self.expected = psn.next();
        }
        !self.skipping
    }

    /// UC has no NAK: the message is lost (IBTA 9.8.2.2), unless the local side is at fault.
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
