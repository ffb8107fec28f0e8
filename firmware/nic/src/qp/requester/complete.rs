//! The completion of the oldest work requests.

use faultline_abi::U32;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::wqe::WR_FLAG_SIGNALED;

use crate::context::Context;
use crate::dma::Dma;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::Failure;
use crate::qp::work_request::SendWr;
use crate::work;

use super::Requester;

impl Requester {
    /// True if the oldest work request must be completed, or has failed.
    #[inline]
    pub(super) fn is_oldest_over(&self) -> bool {
        let is_over = |wr: &SendWr| wr.failed.is_some() || self.is_done(wr);
        self.pending.front().is_some_and(is_over)
    }

    /// Completes the oldest work requests that are done.
    #[inline(always)]
    pub(super) fn retire<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
    ) -> Result<(), Failure> {
        match self.is_oldest_over() {
            true => self.retire_done(qp, cx),
            false => Ok(()),
        }
    }

    fn retire_done<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
    ) -> Result<(), Failure> {
        while let Some(wr) = self.pending.front() {
            if let Some(failure) = wr.failed {
                return Err(failure);
            }
            if !self.is_done(wr) {
                break;
            }
            cx.core.charge(work::LOOK);
            let fin = qp.fin_after(cx.core, wr, self.fetched);
            qp.complete_send(cx, wr, None);
            self.pending.drop_front();
            self.cursor = self.cursor.saturating_sub(1);
            if let Some(fin) = fin {
                self.append(&cx.core.budget, SendWr { psns: 1, ..fin });
            }
        }
        self.account();
        Ok(())
    }
}

impl Endpoint {
    /// Completes a send work request, if it has failed or a completion was requested.
    pub(crate) fn complete_send<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        wr: &SendWr,
        failure: Option<Failure>,
    ) {
        if let Some(request) = wr.device {
            self.complete_device_request(cx, request, failure);
            return;
        }
        if failure.is_none() && !self.config.sig_all && !wr.has(WR_FLAG_SIGNALED) {
            return;
        }
        let (status, vendor_err) =
            failure.map_or((cqe::SUCCESS, cqe::NONE), |f| (f.status, f.vendor));
        let entry = Cqe {
            wqe: U32::new(wr.index),
            qpn: U32::new(self.number),
            byte_len: U32::new(wr.length),
            opcode: wr.completion_opcode(),
            status,
            vendor_err,
            ..Cqe::default()
        };
        cx.complete(self.config.send_cqn, entry);
    }
}
