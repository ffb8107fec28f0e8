//! Injected effects on fault records and on answers to faults.

use faultline_abi::U64;
use faultline_abi::admin::Counter;
use faultline_abi::event::Eqe;

use super::delayed::Delayed;
use super::entry::Facts;
use super::point::{Outcome, Point};
use crate::context::Context;
use crate::diagnostic::Diagnostic;
use crate::dma::Dma;
use crate::fault::{FaultSource, Need, Token, WaitKind};
use crate::nic::Nic;
use crate::number::len32;
use crate::page_table::PAGE_SHIFT;
use crate::time::{Instant, Nanos};

/// How long the fault queue counts as full after [`Outcome::Overrun`]. Without such a time a queue pair would find no
/// room, wait, and be called again, all at the same time.
const OVERRUN: Nanos = Nanos::from_micros(100);

impl<M: Dma> Context<'_, M> {
    /// Passes the point of a record that is about to be written. Returns the outcome that replaces the write.
    #[cold]
    pub(crate) fn inject_fault_record(
        &mut self,
        source: Option<FaultSource>,
        need: &Need,
    ) -> Option<Outcome> {
        let requester = source.is_some_and(|source| source.wait == WaitKind::Send);
        let facts = Facts {
            qpn: source.map(|source| source.qpn),
            key: Some(need.absent.key),
            va: Some(need.absent.va),
            code: Some(u16::from(requester)),
            level: Some(len32(self.core.faults.outstanding())),
            ..Facts::default()
        };
        let outcome = self.core.inject(self.now, Point::FaultRecord, &facts)?;
        if outcome != Outcome::Overrun {
            return Some(outcome);
        }
        if self.core.faults.records.no_room_until <= self.now {
            // Without a scheduled end, queue pairs would wait for the fault timeout.
            let end = self.core.delay(self.now, OVERRUN, Delayed::FaultRoom);
            end.ok()?;
            self.core.faults.records.no_room_until = self.now + OVERRUN;
        }
        Some(outcome)
    }

    /// Writes the record of a new fault, as the injected outcome changes it.
    #[cold]
    pub(crate) fn write_injected_record(&mut self, eqn: u32, mut record: Eqe, outcome: Outcome) {
        match outcome {
            Outcome::Drop => return,
            Outcome::Delay(by) => {
                let late = Delayed::FaultRecord(record);
                let by = Nanos(by.0.saturating_add(self.core.config.latency.fault_service.0));
                if self.core.delay(self.now, by, late).is_ok() {
                    return;
                }
            }
            Outcome::Duplicate => self.write_new_record(eqn, record),
            Outcome::Corrupt => {
                let next = record.va.get().wrapping_add(1 << PAGE_SHIFT);
                record.va = U64::new(next);
            }
            Outcome::Fail(_) | Outcome::Report | Outcome::Overrun => {}
        }
        self.write_new_record(eqn, record);
    }

    /// Answers a fault that was just raised as failed. Its queue pair is called in the next turn, because it does not
    /// know the token yet.
    #[cold]
    pub(crate) fn fail_new_fault(&mut self, token: Token) {
        if let Some(fault) = self.core.faults.answer(token, false) {
            self.count(Counter::page_faults_failed);
            self.diagnose(Diagnostic::FaultFailed {
                token: token.number(),
                raised: fault.raised,
                qpn: fault.qpn,
                key: fault.key,
                va: fault.va,
            });
            self.core.defer(self.now);
        }
    }
}

impl Nic {
    /// Writes a delayed fault record that is due.
    pub(super) fn write_late_record<M: Dma>(&mut self, now: Instant, mem: &M, record: Eqe) {
        if let Some(eqn) = self.core.faults.eqn {
            self.context(now, mem).write_record(eqn, record);
        }
    }
}
