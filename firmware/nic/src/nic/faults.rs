//! Answers to page faults: calls of the waiting queue pairs when the driver has resumed a fault, or has not in time.

use faultline_abi::Status;
use faultline_abi::admin::Counter;

use super::Nic;
use crate::diagnostic::{Diagnostic, DriverTimes};
use crate::dma::Dma;
use crate::fault::{Resumed, Token};
use crate::time::{Instant, Nanos};
use crate::work;

/// Queue pairs that are called at once because there is room for faults. The others are called in the next turn.
const CALLS: usize = 32;

impl Nic {
    /// RESUME: the driver has answered a fault. Returns the number of queue pairs that waited for it.
    pub(crate) fn resume_fault<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u64,
        repaired: bool,
        driver: DriverTimes,
    ) -> Result<u32, Status> {
        let token = Token::from_number(number);
        let resumed = self.core.faults.answer(token, repaired);
        let fault = resumed.ok_or(Status::BadToken)?;
        let mkey = self.core.mkeys.get(fault.key).filter(|_| repaired);
        if let Some(pd) = mkey.and_then(|mkey| self.core.pds.get_mut(mkey.pd)) {
            pd.repair.learn(now.0.saturating_sub(fault.raised.0));
        }
        self.core.counters.inc(match repaired {
            true => Counter::page_faults_resumed,
            false => Counter::page_faults_failed,
        });
        let record_ns = fault.record_ns();
        let Resumed {
            raised,
            waiters,
            qpn,
            key,
            va,
            ..
        } = fault;
        let answer = match repaired {
            true => Diagnostic::FaultResumed {
                token: number,
                raised,
                waiters,
                record_ns,
                driver,
            },
            false => Diagnostic::FaultFailed {
                token: number,
                raised,
                qpn,
                key,
                va,
            },
        };
        self.core.diagnose(now, answer);
        self.continue_answers(now, mem);
        self.retry_for_room(now, mem);
        Ok(waiters)
    }

    /// Calls the queue pairs whose faults have been answered, until all are called or the turn is over: every queue pair of
    /// the NIC may wait for one page.
    pub(crate) fn continue_answers<M: Dma>(&mut self, now: Instant, mem: &M) {
        let turn = self.core.begin_turn();
        loop {
            while let Some(token) = self.core.faults.pop_answered() {
                if let Some(after) = self.core.ingress.fault_answered(now, token) {
                    self.report_stall_end(now, after);
                }
            }
            if self.core.faults.is_answering() && self.core.is_over(turn) {
                self.core.defer(now);
                return;
            }
            let Some(call) = self.core.faults.next_call() else {
                return;
            };
            self.core.charge(work::OPERATION);
            if call.token != Token::ROOM && call.repaired {
                let (token, qpn) = (call.token.number(), call.qpn);
                self.core
                    .diagnose(now, Diagnostic::FaultContinued { token, qpn });
            }
            if let Some((queue, mut cx)) = self.queue_in_context(now, mem, call.qpn) {
                queue.fault_answered(&mut cx, call);
            }
        }
    }

    /// The write-back that a FLUSH waits for has ended ([`Dma::persist`]); `well` is false if it failed.
    pub fn persisted(&mut self, qpn: u32, number: u64, well: bool) {
        if let Some(qp) = self.queues.qp_mut(qpn) {
            qp.persisted(&mut self.core, number, well);
        }
    }

    /// Cancels the faults of a region that was destroyed or changed. The queue pairs that wait for its pages look the
    /// key up again.
    pub(crate) fn cancel_faults<M: Dma>(&mut self, now: Instant, mem: &M, key: u32) {
        while let Some(fault) = self.core.faults.cancel_next(key) {
            let cancelled = Diagnostic::FaultCancelled {
                token: fault.token.number(),
                raised: fault.raised,
                qpn: fault.qpn,
                key: fault.key,
                va: fault.va,
            };
            self.core.diagnose(now, cancelled);
        }
        self.continue_answers(now, mem);
        self.retry_for_room(now, mem);
    }

    /// Calls queue pairs that found no room, up to the number of places, because each may take one. If some of them take none, others are
    /// called in the next turn.
    pub(crate) fn retry_for_room<M: Dma>(&mut self, now: Instant, mem: &M) {
        if self.core.faults.records.kept() > 0 {
            self.context(now, mem).write_kept_records();
        }
        let calls = self.core.faults.free_places().min(CALLS);
        for _ in 0..calls {
            // Queue pairs whose faults are answered come first; this function is called again after them.
            if !self.has_records_left(now) || self.core.faults.is_answering() {
                return;
            }
            if !self.core.faults.answer_next_for_room() {
                return;
            }
            self.continue_answers(now, mem);
        }
        if self.core.faults.has_next_for_room() && self.has_records_left(now) {
            self.core.defer(now);
        }
    }

    /// Whether the queue of fault records has room.
    fn has_records_left(&self, now: Instant) -> bool {
        self.core.has_room_for_records() && self.core.faults.records.no_room_until <= now
    }

    /// Fails the faults that the driver has not answered in time. Queue pairs that wait for places get theirs.
    pub(crate) fn expire_faults<M: Dma>(&mut self, now: Instant, mem: &M) {
        self.expire_faults_older_than(now, mem, self.core.config.fault_timeout);
    }

    /// The same with another limit.
    pub(super) fn expire_faults_older_than<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        timeout: Nanos,
    ) {
        let turn = self.core.begin_turn();
        let mut places = false;
        while !self.core.is_over(turn)
            && let Some(fault) = self.core.faults.expire(now, timeout)
        {
            let expired = Diagnostic::FaultExpired {
                token: fault.token.number(),
                raised: fault.raised,
                qpn: fault.qpn,
                key: fault.key,
                va: fault.va,
            };
            self.core.diagnose(now, expired);
            places = true;
            self.core.counters.inc(Counter::page_fault_timeouts);
            self.continue_answers(now, mem);
        }
        while !self.core.is_over(turn) && self.core.faults.expire_waiter(now, timeout) {
            self.core.counters.inc(Counter::page_fault_timeouts);
            self.continue_answers(now, mem);
        }
        if places {
            self.retry_for_room(now, mem);
        }
    }
}
