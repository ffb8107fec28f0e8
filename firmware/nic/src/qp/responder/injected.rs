//! Requests that an injection drops or refuses.

use faultline_abi::admin::Counter;
use faultline_abi::event;
use faultline_wire::aeth::{NakCode, Syndrome};
use faultline_wire::packet::RoceHeader;

use super::Responder;
use super::refusal::{Refusal, Rejection};
use crate::context::Context;
use crate::diagnostic::Diagnostic;
use crate::dma::Dma;
use crate::injection::entry::Facts;
use crate::injection::point::{Outcome, Point, RNR_NAK, nak_code};
use crate::qp::endpoint::Endpoint;
use crate::qp::types::Fatal;

impl Responder {
    /// Passes the injection point of the expected request. Returns true if an injection has prevented its execution.
    #[cold]
    pub(super) fn inject_request<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
    ) -> Result<bool, Fatal> {
        let reth = header.reth.map(|reth| (reth.rkey, reth.addr));
        let memory = reth.or(header.atomic.map(|atomic| (atomic.rkey, atomic.addr)));
        let facts = Facts {
            qpn: Some(qp.number),
            code: Some(u16::from(header.bth.opcode.to_u8())),
            key: memory.map(|(key, _)| key),
            va: memory.map(|(_, va)| va),
            ..Facts::default()
        };
        match cx.core.inject(cx.now, Point::Request, &facts) {
            Some(Outcome::Drop) => Ok(true),
            Some(Outcome::Fail(code)) => {
                self.refuse_by_injection(qp, cx, header, code)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn refuse_by_injection<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        code: u16,
    ) -> Result<(), Fatal> {
        let psn = header.bth.psn;
        if code == RNR_NAK {
            return self.refuse(qp, cx, psn, Refusal::NotReady);
        }
        let rejection = match nak_code(code) {
            None => return Ok(()),
            Some(NakCode::PsnSequenceError) => {
                self.nak_sent = true;
                cx.count(Counter::packet_seq_err_sent);
                cx.diagnose(Diagnostic::SequenceNakSent {
                    qpn: qp.number,
                    psn: psn.get(),
                });
                self.acknowledge(psn, Syndrome::Nak(NakCode::PsnSequenceError));
                return Ok(());
            }
            Some(NakCode::InvalidRequest) => return self.refuse(qp, cx, psn, Refusal::INVALID),
            Some(NakCode::RemoteAccessError) => Rejection::ACCESS,
            Some(NakCode::RemoteOperationalError) => Rejection::operational(None),
            Some(code @ NakCode::InvalidRdRequest) => Rejection {
                code: Some(code),
                event: event::QP_REQUEST_ERROR,
                receive: None,
            },
        };
        self.refuse(qp, cx, psn, Refusal::Fatal(rejection))
    }
}
