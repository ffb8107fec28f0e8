//! Work requests about keys. They are carried out when their turn to be sent comes, without packets, and complete in
//! their order.

use faultline_abi::cqe;
use faultline_abi::wqe::{self as wr, FLUSH_GLOBAL, FLUSH_PERSISTENT};
use faultline_wire::Feth;

use super::work_request::SendWr;
use super::{Failure, Qp};
use crate::context::Context;
use crate::dma::Dma;
use crate::mkey::{Bind, Register, Unchanged};
use crate::work;

/// WR_FLUSH.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    placement: u32,
    selectivity: u32,
    pub length: u64,
}

impl Flush {
    /// The header that says so on the wire, if it can be said.
    pub fn feth(&self) -> Option<Feth> {
        let known = FLUSH_GLOBAL | FLUSH_PERSISTENT;
        let valid = self.placement != 0 && self.placement & !known == 0 && self.selectivity <= 1;
        valid.then_some(Feth {
            placement: self.placement as u8,
            selectivity: self.selectivity as u8,
        })
    }
}

// The entries are laid out so that what they share with all others stands where it does there.
impl SendWr {
    fn register(&self) -> Register {
        Register {
            key: self.rkey,
            access: self.imm,
            iova: self.remote_addr,
            length: self.compare_add,
            list: self.swap,
            num_pages: self.ah,
            page_shift: self.remote_qpn,
        }
    }

    fn bind(&self) -> Bind {
        Bind {
            rkey: self.rkey,
            lkey: self.imm,
            access: self.swap as u32,
            addr: self.remote_addr,
            length: self.compare_add,
        }
    }

    /// What a FLUSH asks for.
    pub(super) fn flush(&self) -> Flush {
        Flush {
            placement: self.imm,
            selectivity: self.swap as u32,
            length: self.compare_add,
        }
    }
}

/// IBTA 10.7.3.2: memory management operation error.
impl From<Unchanged> for Failure {
    fn from(why: Unchanged) -> Self {
        let vendor = match why {
            Unchanged::Key | Unchanged::Pd | Unchanged::Access => cqe::LKEY,
            Unchanged::State => cqe::KEY_STATE,
            Unchanged::Bounds => cqe::BOUNDS,
            Unchanged::List => cqe::DMA,
        };
        Self::new(cqe::MW_BIND_ERR, vendor)
    }
}

/// So many in a row, or fewer large ones, then others have their turn: a registration takes some microseconds.
pub(super) const LOCAL_BATCH: u32 = 32;

impl Qp {
    /// What needs no packet and has nothing before it is carried out at the doorbell. It need not stand in line
    /// behind the packets of others: an invalidation takes as long as it takes, whoever else is sending.
    pub(super) fn carry_out_at_once<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let connected = self.config.kind.is_connected();
        if !connected || !self.requester.is_idle() || self.waits.requester.is_some() {
            return;
        }
        let turn = cx.core.begin_turn();
        for _ in 0..LOCAL_BATCH {
            if cx.core.is_over(turn) || !self.fetch(cx) {
                return;
            }
            match self.requester.at_cursor() {
                Some(wr) if wr.is_local() && wr.failed.is_none() => self.carry_out(cx),
                _ => return,
            }
            self.retire(cx);
        }
    }

    /// Carries out the local operation at the cursor, if that has not been done before a loss.
    pub(super) fn carry_out<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        cx.core.charge(work::OPERATION);
        let bearer = self.bearer();
        let Some(wr) = self.requester.at_cursor() else {
            return;
        };
        if !wr.done {
            let result = match wr.opcode {
                wr::WR_REG_MR => cx.core.mkeys.register(bearer.pd, &wr.register(), cx.mem),
                wr::WR_BIND_MW => cx.core.mkeys.bind(bearer, &wr.bind()),
                _ => cx.core.mkeys.invalidate_key(bearer, wr.rkey),
            };
            if let Err(why) = result {
                wr.failed = Some(why.into());
                return;
            }
            wr.done = true;
        }
        self.requester.pass();
    }
}
