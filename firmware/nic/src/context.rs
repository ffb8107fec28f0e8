//! The context of a call: the state that the parts of a NIC share, the time, the guest's memory, and the counter set.
//!
//! Completions, events and page faults are reported through it, because each of these needs all four.

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{
    Cqe, RECV, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR, SUCCESS, TM_ADD, WR_FLUSH_ERR,
};
use faultline_abi::event::{self, Eqe};
use faultline_abi::{U32, U64, regs};
use faultline_wire::packet::RoceHeader;

use crate::core::Core;
use crate::counters::CounterSet;
use crate::cq::Pushed;
use crate::diagnostic::{Diagnostic, OverrunQueue};
use crate::dma::Dma;
use crate::eq::Raised;
use crate::ingress::HeldFrame;
use crate::injection::point::Point;
use crate::origin::Origin;
use crate::payload::{CopyError, Payload};
use crate::receive_queue::{RecvWr, TakeError};
use crate::segments::Segments;
use crate::steering::FrameTarget;
use crate::time::Instant;
use crate::work;

/// One call's view of the NIC.
#[derive(Debug)]
pub(crate) struct Context<'a, M> {
    /// The state that all objects of the NIC share.
    pub core: &'a mut Core,
    /// The time of the call.
    pub now: Instant,
    /// Memory of the guest that owns the NIC.
    pub mem: &'a M,
    /// Counter set for events of the current queue pair.
    pub counters: CounterSet,
}

/// An event about one object.
pub(crate) fn object_event(kind: u8, object: u32) -> Eqe {
    Eqe {
        kind,
        object: U32::new(object),
        ..Eqe::default()
    }
}

impl<'a, M: Dma> Context<'a, M> {
    /// A call on behalf of the queue pair with these counters.
    pub(crate) fn new(core: &'a mut Core, now: Instant, mem: &'a M, counters: CounterSet) -> Self {
        Self {
            core,
            now,
            mem,
            counters,
        }
    }

    /// Counts one event in the counters of the current queue pair.
    #[inline]
    pub(crate) fn count(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Counts `n` events in the counters of the current queue pair.
    #[inline]
    pub(crate) fn add(&mut self, counter: Counter, n: u64) {
        self.core.counters.add_in(self.counters, counter, n);
    }

    /// Reports an event.
    #[inline]
    pub(crate) fn diagnose(&mut self, diagnostic: Diagnostic) {
        self.core.diagnose(self.now, diagnostic);
    }

    /// Holds a frame that has stopped the ingress of the NIC. It is delivered first when the ingress continues, and only to `only` if that
    /// is given. `packet`: the header of a RoCE packet, and the origin of its sender.
    pub(crate) fn put_back<S: Dma>(
        &mut self,
        packet: Option<(RoceHeader, Origin)>,
        only: FrameTarget,
        payload: Payload<'_, S>,
    ) {
        let (header, origin) = packet.unzip();
        match payload.to_vec() {
            Ok(bytes) => self.core.ingress.put_back(HeldFrame {
                header,
                origin: origin.unwrap_or_default(),
                only: Some(only),
                bytes,
            }),
            Err(_) => self.core.counters.inc(Counter::dma_errors),
        }
    }

    /// Writes a completion, and the event that it causes if the CQ is armed. Without such a CQ the completion is dropped.
    #[inline]
    pub(crate) fn complete(&mut self, cqn: u32, mut cqe: Cqe) {
        if self.core.injections.has(Point::Completion) {
            self.complete_with_injections(cqn, cqe);
            return;
        }
        self.report_completion(&mut cqe);
        self.write_completion(cqn, cqe);
    }

    /// Counts and reports a completion in error, and gives it the vendor error that software is to see.
    #[inline]
    pub(crate) fn report_completion(&mut self, cqe: &mut Cqe) {
        if cqe.status != SUCCESS {
            self.report_failure(cqe);
            cqe.vendor_err = self.core.config.vendor_errors.of(cqe);
        }
    }

    #[cold]
    fn report_failure(&mut self, cqe: &Cqe) {
        let is_flushed = cqe.status == WR_FLUSH_ERR;
        // Operations on a tag list belong to a receive queue.
        let (error, flush) = match cqe.opcode & (RECV | TM_ADD) {
            0 => (Counter::req_cqe_error, Counter::req_cqe_flush_error),
            _ => (Counter::resp_cqe_error, Counter::resp_cqe_flush_error),
        };
        self.count(error);
        if is_flushed {
            self.count(flush);
            self.count(Counter::cqe_flush_error);
            return;
        }
        self.count(Counter::cqe_error);
        match cqe.status {
            RETRY_EXC_ERR => self.count(Counter::req_transport_retries_exceeded),
            RNR_RETRY_EXC_ERR => self.count(Counter::req_rnr_retries_exceeded),
            _ => {}
        }
        self.diagnose(Diagnostic::WorkFailed {
            qpn: cqe.qpn.get(),
            status: cqe.status,
            vendor: cqe.vendor_err,
            receive: cqe.opcode & RECV != 0,
        });
    }

    /// Writes a completion that has been reported.
    pub(crate) fn write_completion(&mut self, cqn: u32, cqe: Cqe) {
        self.core.charge(work::COMPLETION);
        let Some(cq) = self.core.cqs.get_mut(cqn) else {
            return;
        };
        let eqn = cq.eqn;
        let (qpn, flushed) = (cqe.qpn.get(), cqe.status == WR_FLUSH_ERR);
        let pushed = cq.push(self.mem, self.now, cqe);
        if matches!(pushed, Pushed::Failed | Pushed::Lost) && !flushed {
            self.core.note_lost_completion(self.now, qpn);
        }
        match pushed {
            Pushed::Quiet | Pushed::Lost => {}
            Pushed::Notify => self.notify_cq(eqn, cqn),
            Pushed::Wait(at) => self.core.notify_at(at, cqn),
            Pushed::Failed => self.report_cq_error(cqn),
        }
    }

    /// A CQ has overflowed or can't be written.
    pub(crate) fn report_cq_error(&mut self, cqn: u32) {
        self.diagnose(Diagnostic::Overrun {
            queue: OverrunQueue::Completion,
            object: cqn,
        });
        self.raise_async(event::CQ_ERROR, cqn);
    }

    /// Writes a completion event for CQ `cqn`. If the event queue is full the event waits for room, once for each CQ: a
    /// process may arm and complete faster than the driver reads events.
    pub(crate) fn notify_cq(&mut self, eqn: u32, cqn: u32) {
        self.core.cancel_notice(cqn);
        let core = &mut *self.core;
        let (Some(eq), Some(cq)) = (core.eqs.get_mut(eqn), core.cqs.get_mut(cqn)) else {
            return;
        };
        if eq.has_room() {
            self.push_event(eqn, object_event(event::COMPLETION, cqn));
        } else if cq.event_waits.is_none() {
            cq.event_waits = Some(eq.wait_for_room(cqn));
        }
    }

    /// Writes the events of CQs whose moderation period is over, until the turn ends. The remaining ones are written in the next turn.
    pub(crate) fn notify_due(&mut self) {
        let turn = self.core.begin_turn();
        while !self.core.is_over(turn)
            && let Some(cqn) = self.core.pop_notice(self.now)
        {
            if let Some(eqn) = self.core.cqs.get(cqn).map(|cq| cq.eqn) {
                self.notify_cq(eqn, cqn);
            }
        }
    }

    /// The driver has read events: writes those that have waited for room in this queue, until the turn is over.
    pub(crate) fn notify_waiting(&mut self, eqn: u32) {
        let turn = self.core.begin_turn();
        while let Some(eq) = self.core.eqs.get_mut(eqn) {
            if let Some(eqe) = eq.next_overflow() {
                let raised = eq.write(self.mem, self.now, eqe);
                self.act_on(eqn, raised);
                self.core.charge(work::COMPLETION);
            } else if let Some(cqn) = eq.next_waiting() {
                if let Some(cq) = self.core.cqs.get_mut(cqn) {
                    cq.event_waits = None;
                    self.notify_cq(eqn, cqn);
                }
            } else {
                return;
            }
            if self.core.is_over(turn) {
                self.core.defer(self.now);
                return;
            }
        }
    }

    /// Writes events that were deferred, until there are none or the turn is over.
    pub(crate) fn continue_events(&mut self, turn: u64) {
        while !self.core.is_over(turn)
            && let Some(eqn) = self.core.eq_with_late_events()
        {
            self.notify_waiting(eqn);
        }
        if self.core.eq_with_late_events().is_some() {
            self.core.defer(self.now);
        }
    }

    /// Raises an asynchronous event, if the driver has a queue for these.
    pub(crate) fn raise_async(&mut self, kind: u8, object: u32) {
        self.core.charge(work::EVENT);
        if let Some(eqn) = self.core.async_eqn {
            self.push_event(eqn, object_event(kind, object));
        }
    }

    /// Raises an event about a connection, if the driver has a queue for these.
    pub(crate) fn raise_connection(&mut self, kind: u8, object: u32, token: u64) {
        self.core.charge(work::EVENT);
        if let Some(eqn) = self.core.async_eqn {
            let event = Eqe {
                token: U64::new(token),
                ..object_event(kind, object)
            };
            self.push_event(eqn, event);
        }
    }

    /// Takes a receive work request from an SRQ.
    pub(crate) fn take_shared(&mut self, srqn: u32) -> Result<RecvWr, TakeError> {
        let srq = self.core.srqs.get_mut(srqn).ok_or(TakeError::Broken)?;
        let mut wr = match srq.ring.take(self.mem) {
            Err(TakeError::Broken) => {
                self.srq_error(srqn);
                return Err(TakeError::Broken);
            }
            taken => taken?,
        };
        wr.srqn = Some(srqn);
        // IBTA 10.2.9.2: the limit event fires once, then must be armed again.
        let limit = srq.limit;
        if limit > 0 && srq.ring.posted(self.mem, limit).is_ok_and(|n| n < limit) {
            srq.limit = 0;
            self.raise_async(event::SRQ_LIMIT, srqn);
        }
        Ok(wr)
    }

    /// A ring of an SRQ is broken: raises the event for it, once.
    pub(crate) fn srq_error(&mut self, srqn: u32) {
        if let Some(srq) = self.core.srqs.get_mut(srqn)
            && !std::mem::replace(&mut srq.error_reported, true)
        {
            self.raise_async(event::SRQ_ERROR, srqn);
        }
    }

    /// Writes an event.
    pub(crate) fn push_event(&mut self, eqn: u32, eqe: Eqe) {
        if self.core.injections.has(Point::Event) {
            self.push_event_with_injections(eqn, eqe);
        } else {
            self.append_event(eqn, eqe);
        }
    }

    /// Writes an event that has passed the injection point.
    pub(crate) fn append_event(&mut self, eqn: u32, eqe: Eqe) {
        self.core.charge(work::COMPLETION);
        let Some(eq) = self.core.eqs.get_mut(eqn) else {
            return;
        };
        let raised = eq.push(self.mem, self.now, eqe);
        self.act_on(eqn, raised);
    }

    /// Raises the interrupt of an event, or stops the device if its queue has failed.
    pub(crate) fn act_on(&mut self, eqn: u32, raised: Raised) {
        match raised {
            Raised::Quiet => {}
            Raised::Interrupt(vector) => self.core.raise(vector),
            // A driver can't continue after the loss of events. It detects this by its heartbeat and the status
            // register.
            Raised::Failed => {
                self.diagnose(Diagnostic::Overrun {
                    queue: OverrunQueue::Event,
                    object: eqn,
                });
                self.core.fatal = regs::EVENT_QUEUE;
            }
        }
    }

    /// Copies a payload, from byte `taken` on, to segments of this guest's memory, and moves `taken` on.
    #[inline]
    pub(crate) fn copy_payload(
        &mut self,
        segments: &Segments,
        payload: Payload<'_, M>,
        taken: &mut usize,
    ) -> Result<(), CopyError> {
        for segment in segments {
            let len = segment.len as usize;
            payload
                .copy_to(*taken, self.mem, segment.addr, len)
                .inspect_err(|_| self.count(Counter::dma_errors))?;
            *taken = taken.wrapping_add(len);
        }
        Ok(())
    }
}
