//! Delayed effects that are due.

use super::delayed::Delayed;
use crate::diagnostic::CommandQueue;
use crate::dma::Dma;
use crate::nic::Nic;
use crate::time::Instant;
use crate::work;

impl Nic {
    /// Executes the delayed effects that are due, until the turn is over.
    pub(crate) fn carry_out_delayed<M: Dma>(&mut self, now: Instant, mem: &M, turn: u64) {
        while self.is_running()
            && !self.core.is_over(turn)
            && let Some(what) = self.core.pop_delayed(now)
        {
            self.core.charge(work::OPERATION);
            match what {
                Delayed::Completion { cqn, qpn, cqe } => {
                    self.complete_late(now, mem, (cqn, qpn), cqe);
                }
                Delayed::FaultRecord(record) => self.write_late_record(now, mem, record),
                Delayed::FaultRoom => self.retry_for_room(now, mem),
                Delayed::Event { eqn, eqe } => {
                    self.context(now, mem).append_event_again(eqn, eqe);
                }
                Delayed::Answer {
                    token,
                    repaired,
                    driver,
                } => {
                    // The fault may have ended by its timeout, or because its region was destroyed.
                    let _ = self.resume_fault(now, mem, token.number(), repaired, driver);
                }
                Delayed::AdminQueue => self.open_gate(now, CommandQueue::Admin),
                Delayed::TranslationQueue => self.open_gate(now, CommandQueue::Translation),
            }
        }
    }
}
