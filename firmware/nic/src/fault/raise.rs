//! From a missing page to the fault record that the driver reads.
//!
//! The first access that needs a page raises a fault: it takes a place in the [`FaultUnit`](super::FaultUnit), and its record is written
//! to the fault queue, which is an event queue. Others join it. While the queue is full or held, records are kept, and no fault is raised
//! beyond their number: queue pairs wait for room.

use faultline_abi::admin::Counter;
use faultline_abi::event::{self, Eqe, REQUESTER, WRITE};
use faultline_abi::{U32, U64};

use super::{FaultSource, Need, RaisedFault, Token, WaitKind};
use crate::context::Context;
use crate::diagnostic::{Diagnostic, OverrunQueue};
use crate::dma::Dma;
use crate::eq::Eq;
use crate::injection::delayed::Delayed;
use crate::injection::point::{Outcome, Point};
use crate::work;

impl<M: Dma> Context<'_, M> {
    /// Reports a missing page to the driver, or joins the fault that is outstanding for it.
    pub(crate) fn raise_fault(&mut self, source: FaultSource, need: &Need) -> RaisedFault {
        if let Some(token) = self.core.faults.join(source, &need.absent) {
            self.count(Counter::page_faults_joined);
            self.diagnose(Diagnostic::FaultJoined {
                token: token.number(),
                qpn: source.qpn,
                va: need.absent.va,
                psn: need.psn,
            });
            return RaisedFault::Waiting(token);
        }
        self.new_fault(Some(source), need)
    }

    /// Reports missing pages for which no fault is outstanding. Without a `source` no queue pair needs them.
    pub(crate) fn new_fault(&mut self, source: Option<FaultSource>, need: &Need) -> RaisedFault {
        let Some(eqn) = self.core.faults.eqn else {
            return RaisedFault::NoQueue;
        };
        let qpn = source.map_or(0, |source| source.qpn);
        let requester = source.is_some_and(|source| source.wait == WaitKind::Send);
        let owner = self.core.owner_of(need.absent.key);
        let room = self.core.faults.has_room(owner) && self.core.has_room_for_records();
        let injected = match room && self.core.injections.has(Point::FaultRecord) {
            true => self.inject_fault_record(source, need),
            false => None,
        };
        if !room || injected == Some(Outcome::Overrun) {
            self.count(Counter::page_fault_overflow);
            self.diagnose(Diagnostic::Overrun {
                queue: OverrunQueue::Fault,
                object: qpn,
            });
            return RaisedFault::NoRoom;
        }
        let absent = &need.absent;
        let faults = &mut self.core.faults;
        let token = match source {
            Some(source) => faults.insert(self.now, source, owner, absent),
            None => faults.insert_without_waiter(self.now, owner, absent),
        };
        let mut flags = 0;
        if absent.write {
            flags |= WRITE;
        }
        if requester {
            flags |= REQUESTER;
        }
        let record = Eqe {
            kind: event::PAGE_FAULT,
            object: U32::new(qpn),
            token: U64::new(token.number()),
            va: U64::new(absent.va),
            key: U32::new(absent.key),
            bytes: U32::new(absent.bytes),
            hint_bytes: U64::new(need.hint),
            fault_flags: U32::new(flags),
            psn: U32::new(need.psn),
            ..Eqe::default()
        };
        match injected {
            Some(outcome) => self.write_injected_record(eqn, record, outcome),
            None => self.write_new_record(eqn, record),
        }
        self.count(Counter::page_faults);
        self.diagnose(Diagnostic::FaultRaised {
            token: token.number(),
            qpn,
            key: need.absent.key,
            va: need.absent.va,
            bytes: need.absent.bytes,
            psn: need.psn,
            write: need.absent.write,
            requester,
        });
        if let Some(Outcome::Fail(_)) = injected {
            self.fail_new_fault(token);
        }
        RaisedFault::Waiting(token)
    }

    /// Writes the record of a new fault, after the time that the model of latency has for the service of faults.
    #[inline]
    pub(crate) fn write_new_record(&mut self, eqn: u32, record: Eqe) {
        let service = self.core.config.latency.fault_service;
        let late = Delayed::FaultRecord(record);
        // If the delay queue is full, the record is written at once.
        if service.0 == 0 || self.core.delay(self.now, service, late).is_err() {
            self.write_record(eqn, record);
        }
    }

    /// Writes a fault record, or keeps it while the queue is held or full. The record of a fault that has ended is
    /// dropped.
    pub(crate) fn write_record(&mut self, eqn: u32, record: Eqe) {
        self.core.charge(work::COMPLETION);
        let core = &mut *self.core;
        let token = Token::from_number(record.token.get());
        if !core.faults.is_outstanding(token) {
            return;
        }
        let Some(eq) = core.eqs.get_mut(eqn) else {
            return;
        };
        if core.faults.records.must_keep() || !eq.has_room() {
            core.faults.records.keep(record);
            return;
        }
        let raised = eq.write(self.mem, self.now, record);
        core.faults.note_record(token, self.now);
        self.act_on(eqn, raised);
    }

    /// Writes kept records, as far as there is room, until the turn is over.
    pub(crate) fn write_kept_records(&mut self) {
        let turn = self.core.begin_turn();
        while let Some(eqn) = self.core.faults.eqn
            && self.core.faults.records.may_write_kept()
            && self.core.eqs.get(eqn).is_some_and(Eq::has_room)
            && let Some(record) = self.core.faults.records.take_kept()
        {
            self.core.charge(work::COMPLETION);
            let token = Token::from_number(record.token.get());
            if self.core.faults.is_outstanding(token)
                && let Some(eq) = self.core.eqs.get_mut(eqn)
            {
                let raised = eq.write(self.mem, self.now, record);
                self.core.faults.note_record(token, self.now);
                self.act_on(eqn, raised);
            }
            if self.core.is_over(turn) {
                self.core.defer(self.now);
                return;
            }
        }
    }
}
