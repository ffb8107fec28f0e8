//! FLUSH (IBTA annex A19): memory that was written becomes visible to all, or durable.

use faultline_abi::admin::Counter;
use faultline_abi::qp::{ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT};
use faultline_wire::Feth;
use faultline_wire::aeth::Syndrome;
use faultline_wire::bth::Psn;
use faultline_wire::packet::RoceHeader;

use super::refusal::{Refusal, Rejection};
use super::reply::Operation;
use super::waits::Durable;
use super::{Received, Responder, report_rnr_nak};
use crate::context::Context;
use crate::core::Core;
use crate::dma::{Dma, Persist};
use crate::fault::RepairTime;
use crate::mkey::{Access, KeyUser};
use crate::qp::endpoint::Endpoint;

impl Responder {
    /// Executes a FLUSH. Earlier writes are visible already, because the processors of the guest share its memory.
    /// Whether they can be made durable depends on the backing of the memory.
    pub(super) fn execute_flush<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
    ) -> Result<Received, Refusal> {
        let (Some(reth), Some(feth)) = (header.reth, header.feth) else {
            return Err(Refusal::INVALID);
        };
        let user = self.request_user(qp, cx.core, header)?;
        let whole = feth.selectivity == Feth::MR;
        let known = Feth::GLOBAL | Feth::PERSISTENT;
        if feth.placement & !known != 0
            || feth.placement == 0
            || !(whole || feth.selectivity == Feth::RANGE)
        {
            return Err(Refusal::INVALID);
        }
        let range = (!whole).then_some((reth.addr, reth.len));
        for (bit, right, access) in [
            (Feth::GLOBAL, ACCESS_FLUSH_GLOBAL, Access::FlushGlobal),
            (
                Feth::PERSISTENT,
                ACCESS_FLUSH_PERSISTENT,
                Access::FlushPersistent,
            ),
        ] {
            if feth.placement & bit == 0 {
                continue;
            }
            self.check_rd_atomic(qp, right)?;
            cx.core
                .mkeys
                .check_flush(reth.rkey, user, range, access)
                .map_err(|_| Refusal::Fatal(Rejection::ACCESS))?;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let psn = header.bth.psn;
        if feth.placement & Feth::PERSISTENT != 0 {
            self.require_durable(qp, cx, psn, (reth.rkey, user, range))?;
        }
        self.answer(psn, 1, Operation::Done, qp.attr.max_dest_rd_atomic);
        Ok(Received::Done)
    }

    /// Requires the memory of the FLUSH with this PSN to be durable. Begins to write it back, unless that has begun.
    fn require_durable<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
        (rkey, user, range): (u32, KeyUser, Option<(u64, u32)>),
    ) -> Result<(), Refusal> {
        if let Some(durable) = self.waits.durable.filter(|durable| durable.psn == psn) {
            return match durable.ended {
                Some(true) => Ok(()),
                Some(false) => {
                    cx.count(Counter::dma_errors);
                    Err(Refusal::operational(None))
                }
                None => Err(Refusal::NotDurable),
            };
        }
        let access = Access::FlushPersistent;
        let ranges = cx.core.mkeys.ranges(rkey, user, range, access);
        match cx.mem.persist(qp.number, ranges.as_deref()) {
            Persist::Done => return Ok(()),
            Persist::Begun(number) => {
                self.waits.durable = Some(Durable {
                    psn,
                    number,
                    since: cx.now,
                    ended: None,
                });
            }
            Persist::Busy => {}
        }
        Err(Refusal::NotDurable)
    }

    /// Refuses a FLUSH whose memory is not durable yet: the requester gets an RNR NAK, as for a missing page.
    pub(super) fn flush_waits<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>, psn: Psn) {
        self.nak_sent = true;
        let since = self.waits.durable.map_or(cx.now, |durable| durable.since);
        let timer = RepairTime::default().rnr_timer(cx.now.0.saturating_sub(since.0));
        report_rnr_nak(qp, cx, psn, None);
        qp.query_peer(cx);
        self.acknowledge(psn, Syndrome::RnrNak { timer });
    }

    /// Handles the end of the write-back with this number. If a FLUSH waits for it, the requester should repeat the
    /// FLUSH, which is then answered.
    pub(crate) fn persisted(&mut self, qp: &Endpoint, core: &mut Core, number: u64, well: bool) {
        if let Some(durable) = &mut self.waits.durable
            && durable.number == number
        {
            durable.ended = Some(well);
            self.tell_ready(qp, core);
        }
    }
}
