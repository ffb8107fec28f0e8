//! Local operations: work requests about keys. They are executed when it is their turn to be sent, without packets, and complete in order.

use faultline_abi::cqe;

use super::{LOCAL_BATCH, Requester};
use crate::context::Context;
use crate::dma::Dma;
use crate::mkey::KeyError;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::Failure;
use crate::qp::work_request::SendOp;
use crate::work;

/// IBTA 10.7.3.2: memory management operation error.
impl From<KeyError> for Failure {
    fn from(why: KeyError) -> Self {
        let vendor = match why {
            KeyError::Key | KeyError::Pd | KeyError::Access => cqe::LKEY,
            KeyError::State => cqe::KEY_STATE,
            KeyError::Bounds => cqe::BOUNDS,
            KeyError::List => cqe::DMA,
        };
        Self::new(cqe::MW_BIND_ERR, vendor)
    }
}

impl Requester {
    /// Executes local operations at the doorbell, if no request is before them. So they need not wait for packets of other queue pairs:
    /// the time of an invalidation does not depend on their traffic.
    pub(crate) fn carry_out_at_once<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
    ) -> Result<(), Failure> {
        if !qp.config.kind.is_connected() || !self.is_idle() || self.page.is_some() {
            return Ok(());
        }
        let turn = cx.core.begin_turn();
        for _ in 0..LOCAL_BATCH {
            if !self.fetch(qp, cx) {
                break;
            }
            match self.pending.get(self.cursor) {
                Some(wr) if wr.is_local() && wr.failed.is_none() => self.carry_out(qp, cx),
                _ => break,
            }
            self.retire(qp, cx)?;
            if cx.core.is_over(turn) {
                break;
            }
        }
        Ok(())
    }

    /// Executes the local operation at the cursor, unless it was executed before a loss.
    pub(super) fn carry_out<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>) {
        cx.core.charge(work::OPERATION);
        let Some(wr) = self.pending.get_mut(self.cursor) else {
            return;
        };
        if !wr.done {
            let (user, mkeys) = (qp.key_user(), &mut cx.core.mkeys);
            let result = match &wr.op {
                Some(SendOp::FastReg(register)) => mkeys.register(user, register, cx.mem),
                Some(SendOp::BindMw(bind)) => mkeys.bind(user, bind),
                Some(SendOp::LocalInv { key }) => mkeys.invalidate_key(user, *key),
                _ => return,
            };
            if let Err(why) = result {
                wr.failed = Some(why.into());
                return;
            }
            wr.done = true;
        }
        self.pass(1);
    }
}
