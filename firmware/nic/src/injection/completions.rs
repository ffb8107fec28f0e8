//! Injected effects on completions.

use faultline_abi::U32;
use faultline_abi::cqe::{Cqe, WR_FLUSH_ERR};

use super::delayed::Delayed;
use super::entry::Facts;
use super::point::{Outcome, Point};
use crate::context::Context;
use crate::core::Core;
use crate::cq::Pushed;
use crate::dma::Dma;
use crate::nic::Nic;
use crate::time::{Instant, Nanos};
use crate::work;

impl<M: Dma> Context<'_, M> {
    /// Does what [`Context::complete`] does, in a NIC with injections for completions or with delayed completions.
    #[cold]
    pub(crate) fn complete_with_injections(&mut self, cqn: u32, mut cqe: Cqe) {
        let Some(cq) = self.core.cqs.get_mut(cqn) else {
            self.report_completion(&mut cqe);
            return;
        };
        let facts = Facts {
            qpn: Some(cqe.qpn.get()),
            object: Some(cqn),
            code: Some(u16::from(cqe.status)),
            level: Some(cq.unread(self.mem)),
            ..Facts::default()
        };
        let outcome = self.core.inject(self.now, Point::Completion, &facts);
        if let Some(Outcome::Fail(status)) = outcome {
            cqe.status = u8::try_from(status).unwrap_or(cqe.status);
        }
        self.report_completion(&mut cqe);
        let qpn = cqe.qpn.get();
        match outcome {
            Some(Outcome::Drop) => self.core.charge(work::COMPLETION),
            Some(Outcome::Overrun) => self.overrun_cq(cqn, Some(&cqe)),
            Some(Outcome::Delay(by)) => self.delay_completion(by, cqn, qpn, cqe),
            Some(Outcome::Duplicate) => {
                self.complete_in_order(cqn, qpn, cqe);
                self.complete_in_order(cqn, qpn, cqe);
            }
            Some(Outcome::Corrupt) => self.complete_in_order(cqn, qpn, inverted(cqe)),
            Some(Outcome::Fail(_) | Outcome::Report) | None => {
                self.complete_in_order(cqn, qpn, cqe)
            }
        }
    }

    /// Writes a completion of this queue pair after the delayed completions of the CQ.
    fn complete_in_order(&mut self, cqn: u32, qpn: u32, cqe: Cqe) {
        match self.core.injections.delayed.last_completion(cqn) {
            Some(_) => self.delay_completion(Nanos(0), cqn, qpn, cqe),
            None => self.write_completion(cqn, cqe),
        }
    }

    /// Delays a completion. If there is no room for it, the delayed completions of the CQ are written at once, in their
    /// order.
    fn delay_completion(&mut self, by: Nanos, cqn: u32, qpn: u32, cqe: Cqe) {
        self.core.charge(work::COMPLETION);
        let late = Delayed::Completion { cqn, qpn, cqe };
        if self.core.delay(self.now, by, late).is_ok() {
            return;
        }
        for before in self.core.take_delayed_completions(|of, _| of == cqn) {
            self.write_completion(cqn, before);
        }
        self.write_completion(cqn, cqe);
    }

    /// A CQ accepts no more entries, as after an overflow, by which this completion is lost.
    pub(crate) fn overrun_cq(&mut self, cqn: u32, lost: Option<&Cqe>) {
        let Some(cq) = self.core.cqs.get_mut(cqn) else {
            return;
        };
        let pushed = cq.overrun();
        if let Some(lost) = lost.filter(|cqe| cqe.status != WR_FLUSH_ERR) {
            self.core.note_lost_completion(self.now, lost.qpn.get());
        }
        if pushed == Pushed::Failed {
            self.report_cq_error(cqn);
        }
    }
}

/// An entry with an invalid queue pair number and a wrong length.
fn inverted(cqe: Cqe) -> Cqe {
    Cqe {
        qpn: U32::new(!cqe.qpn.get()),
        srqn: U32::new(!cqe.srqn.get()),
        byte_len: U32::new(!cqe.byte_len.get()),
        ..cqe
    }
}

impl Core {
    fn take_delayed_completions(&mut self, wanted: impl Fn(u32, u32) -> bool) -> Vec<Cqe> {
        let (taken, looked_at) = self.injections.delayed.take_completions(wanted);
        self.charge(looked_at as u64);
        self.injections.update_mask();
        taken
    }

    /// Drops the delayed completions of a queue pair, because it is reset.
    pub(crate) fn forget_delayed_completions(&mut self, qpn: u32) {
        if self.injections.delayed.has_completions() {
            self.take_delayed_completions(|_, of| of == qpn);
        }
    }
}

impl Nic {
    /// Writes a delayed completion that is due. That of a destroyed queue pair is dropped, because DESTROY_QP promises
    /// that none follows it. Operations on tag lists belong to no queue pair.
    pub(super) fn complete_late<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        (cqn, qpn): (u32, u32),
        cqe: Cqe,
    ) {
        if qpn == 0 || self.queues.get(qpn).is_some() {
            self.context(now, mem).write_completion(cqn, cqe);
        }
    }
}
