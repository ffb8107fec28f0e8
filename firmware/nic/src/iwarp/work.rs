//! The send queue: work requests that have begun, in order, until they complete.
//!
//! A SEND or WRITE completes when TCP has acknowledged its last octet: from then on the NIC does not read its buffers again, and a
//! completion says no more than that the buffer may be used (RFC 5040 section 5.5). A READ or atomic completes when its response has been
//! placed. Completions keep the order of the work requests.

use std::collections::VecDeque;

use faultline_abi::cqe;
use faultline_abi::wqe::{WR_FLAG_CSUM, WR_FLAG_FENCE};

use crate::budget::{Budget, Held};
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::Failure;
use crate::qp::work_request::{SendExtra, SendOp, SendWr};
use crate::ring::Ring;
use crate::work;

/// A work request that has begun.
#[derive(Debug)]
pub(super) struct Request {
    pub wr: SendWr,
    /// Offset in the stream after its last octet. `None`: it is not in the stream.
    pub end: Option<u64>,
    /// A response is outstanding.
    awaits: bool,
    /// Octets of the response that have been placed.
    pub arrived: u32,
}

/// The send queue of a queue pair.
#[derive(Debug)]
pub(super) struct SendQueue {
    ring: Ring,
    /// Work requests posted, as the doorbell said.
    producer: u32,
    /// Work requests read.
    fetched: u32,
    pending: VecDeque<Request>,
    /// Those whose responses are outstanding, by index.
    awaiting: VecDeque<u32>,
    room: Option<Held>,
    /// One of the pending work requests has completed with its own error.
    has_failed: bool,
    /// Index after the last work request that the current flush completes.
    flush_end: u32,
}

impl SendQueue {
    pub(super) fn new(ring: Ring) -> Self {
        Self {
            ring,
            producer: 0,
            fetched: 0,
            pending: VecDeque::new(),
            awaiting: VecDeque::new(),
            room: None,
            has_failed: false,
            flush_end: 0,
        }
    }

    /// Empties the queue, whose indices the driver zeroes too.
    pub(super) fn reset(&mut self) {
        (self.producer, self.fetched, self.flush_end) = (0, 0, 0);
        self.clear();
    }

    fn clear(&mut self) {
        self.pending = VecDeque::new();
        self.awaiting = VecDeque::new();
        self.room = None;
        self.has_failed = false;
    }

    /// Handles a doorbell with a producer index. Returns false if it is out of range.
    pub(super) fn post(&mut self, producer: u32) -> bool {
        if !self.is_news(producer) {
            return true;
        }
        let oldest = self
            .pending
            .front()
            .map_or(self.fetched, |request| request.wr.index);
        let fits = producer.wrapping_sub(oldest) <= self.ring.depth();
        if fits {
            self.producer = producer;
        }
        fits
    }

    /// True if a producer index is later than the last one.
    pub(super) fn is_news(&self, producer: u32) -> bool {
        producer.wrapping_sub(self.producer) as i32 > 0
    }

    /// Work requests that a doorbell with this producer index announces.
    pub(super) fn announced_by(&self, producer: u32) -> u32 {
        producer.wrapping_sub(self.producer)
    }

    /// Work requests that are posted and not completed.
    pub(super) fn outstanding(&self) -> u32 {
        let oldest = self
            .pending
            .front()
            .map_or(self.fetched, |request| request.wr.index);
        self.producer.wrapping_sub(oldest)
    }

    /// True if no work request has begun and not completed.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The work request with this index, if it has begun and not completed.
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Request> {
        let first = self.pending.front()?.wr.index;
        self.pending.get_mut(index.wrapping_sub(first) as usize)
    }

    /// As [`SendQueue::get_mut`].
    pub(super) fn get(&self, index: u32) -> Option<&Request> {
        let first = self.pending.front()?.wr.index;
        self.pending.get(index.wrapping_sub(first) as usize)
    }

    /// The oldest work request whose response is outstanding. Responses arrive in the order of the requests (RFC 5040 section 5.5).
    pub(super) fn oldest_awaiting(&mut self) -> Option<&mut Request> {
        let index = *self.awaiting.front()?;
        self.get_mut(index)
    }

    /// The response to the oldest work request that awaits one has arrived.
    pub(super) fn answered(&mut self) {
        if let Some(index) = self.awaiting.pop_front()
            && let Some(request) = self.get_mut(index)
        {
            request.awaits = false;
        }
    }

    /// The newest work request has failed, and gets no response.
    pub(super) fn fail_newest(&mut self, failure: Failure) {
        if let Some(request) = self.pending.back_mut() {
            request.wr.failed = Some(failure);
            if std::mem::take(&mut request.awaits) {
                self.awaiting.pop_back();
            }
        }
    }

    /// True if the newest work request has failed.
    pub(super) fn has_failed_behind(&self) -> bool {
        let newest = self.pending.back();
        newest.is_some_and(|request| request.wr.failed.is_some())
    }

    /// Reads the next work request, unless the one before has failed. It is checked here.
    pub(super) fn fetch<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
    ) -> Option<&mut Request> {
        let failed = self.has_failed_behind();
        let spent = cx.core.budget.is_spent() && !self.pending.is_empty();
        if failed || spent || self.fetched == self.producer {
            return None;
        }
        let mut wr = self.read(qp, cx.mem);
        if wr.failed.is_none() {
            wr.failed = check(qp, cx.core, &wr).err();
        }
        let awaits = wr.failed.is_none() && (wr.is_read() || wr.is_atomic());
        if awaits {
            self.awaiting.push_back(wr.index);
        }
        self.pending.push_back(Request {
            wr,
            end: None,
            awaits,
            arrived: 0,
        });
        self.account(&cx.core.budget);
        self.pending.back_mut()
    }

    /// True if the newest work request needs a response.
    pub(super) fn newest_awaits(&self) -> bool {
        self.pending.back().is_some_and(|request| request.awaits)
    }

    /// The work request that has been read and has not been begun, because it waits for others or for a page.
    pub(super) fn waiting(&mut self) -> Option<&mut Request> {
        self.pending.back_mut().filter(|request| {
            request.end.is_none() && !request.wr.done && request.wr.failed.is_none()
        })
    }

    /// True if the newest work request, which has been read, may begin now. `is_sent`: all octets of earlier ones have been sent.
    pub(super) fn may_begin(&self, qp: &Endpoint, is_sent: bool) -> bool {
        let Some(newest) = self.pending.back() else {
            return false;
        };
        let before = self.awaiting.len().saturating_sub(newest.awaits.into());
        if newest.wr.has(WR_FLAG_FENCE) && before > 0 {
            return false;
        }
        // The key may be that of an earlier request, whose data is read again if it is lost.
        if matches!(newest.wr.op, Some(SendOp::LocalInv { .. })) {
            return self.pending.len() == 1;
        }
        // Keys of earlier requests are used until these have been sent.
        if newest.wr.is_local() {
            return is_sent;
        }
        !newest.awaits || before < usize::from(qp.attr.max_rd_atomic)
    }

    fn read<M: Dma>(&mut self, qp: &Endpoint, mem: &M) -> SendWr {
        let index = self.fetched;
        self.fetched = index.wrapping_add(1);
        SendWr::read(Some(&self.ring), index, &qp.config, mem)
    }

    /// Completes the oldest work requests that are done. `acknowledged`: octets of the stream. The error is that of the oldest one.
    pub(super) fn retire<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        acknowledged: u64,
    ) -> Result<(), Failure> {
        while let Some(request) = self.pending.front() {
            if let Some(failure) = request.wr.failed {
                return Err(failure);
            }
            let is_acknowledged = request.end.is_some_and(|end| end <= acknowledged);
            if !request.wr.done && (!is_acknowledged || request.awaits) {
                break;
            }
            cx.core.charge(work::LOOK);
            if let Some(request) = self.pop(&cx.core.budget) {
                qp.complete_send(cx, &request.wr, None);
            }
        }
        Ok(())
    }

    /// Octets of the stream from an offset on will not be sent: the work requests that end there complete by a flush.
    pub(super) fn forget_unsent(&mut self, end: u64) {
        let requests = self.pending.iter_mut().rev();
        for request in requests.take_while(|request| request.end.is_none_or(|at| at > end)) {
            request.end = None;
        }
    }

    /// Removes the oldest work request.
    pub(super) fn pop(&mut self, budget: &Budget) -> Option<Request> {
        let request = self.pending.pop_front();
        if request.as_ref().is_some_and(|request| request.awaits) {
            self.awaiting.pop_front();
        }
        // An idle queue has room for one work request, so that one at a time needs no allocation.
        if self.pending.is_empty() {
            self.pending.shrink_to(1);
            self.awaiting.shrink_to(1);
        }
        self.account(budget);
        request
    }

    fn account(&mut self, budget: &Budget) {
        let of_pending = self.pending.capacity().saturating_mul(size_of::<Request>());
        let of_awaiting = self.awaiting.capacity().saturating_mul(size_of::<u32>());
        let bytes = of_pending.saturating_add(of_awaiting);
        let room = self.room.get_or_insert_with(|| budget.none());
        if room.bytes() != bytes {
            room.set(bytes);
        }
    }

    /// Completes a work request with an error, `otherwise` if it has none of its own. Only the first one has a status that says more
    /// than that it was flushed (IBTA 10.3.1.7).
    pub(super) fn complete_failed<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        request: &Request,
        otherwise: Failure,
    ) {
        let own = request.wr.failed.filter(|_| !self.has_failed);
        let failure = own.unwrap_or(otherwise);
        self.has_failed |= failure != Failure::FLUSHED;
        qp.complete_send(cx, &request.wr, Some(failure));
    }

    /// Begins a flush of everything that is posted now.
    pub(super) fn begin_flush(&mut self) {
        self.flush_end = self.producer;
    }

    /// Completes work requests as flushed, until the flush or the turn is over. Returns true if the flush is over.
    pub(super) fn flush<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        turn: u64,
    ) -> bool {
        while let Some(request) = self.pop(&cx.core.budget) {
            self.complete_failed(qp, cx, &request, Failure::FLUSHED);
            if cx.core.is_over(turn) {
                return false;
            }
        }
        self.clear();
        while self.fetched != self.flush_end {
            if cx.core.is_over(turn) {
                return false;
            }
            let wr = self.read(qp, cx.mem);
            qp.complete_send(cx, &wr, Some(Failure::FLUSHED));
        }
        true
    }
}

/// Checks whether an iWARP queue pair can execute a work request.
fn check(qp: &Endpoint, core: &Core, wr: &SendWr) -> Result<(), Failure> {
    const OPCODE: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE);
    const SGE_COUNT: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT);
    const LENGTH: Failure = Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH);
    let op = wr.op.ok_or(OPCODE)?;
    match op {
        // RFC 5040 and 7306 have no SEND with immediate data, no atomic WRITE and no FLUSH.
        SendOp::Send(SendExtra::Immediate(_))
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush { .. }
        | SendOp::Datagram { .. }
        | SendOp::Raw(_) => return Err(OPCODE),
        // The list of a registration has DMA addresses, which only the kernel may name.
        SendOp::FastReg(_) if qp.config.uctx != 0 => return Err(OPCODE),
        // The STag of the sink is the key of one SGE (RFC 5040 section 4.4).
        SendOp::Read { .. } if wr.sges.len() > 1 => return Err(SGE_COUNT),
        SendOp::Atomic { .. } if wr.length != 8 => return Err(LENGTH),
        _ => {}
    }
    if op.is_local() && (!wr.sges.is_empty() || wr.inline.is_some()) {
        return Err(SGE_COUNT);
    }
    if wr.has(WR_FLAG_CSUM)
        || (op.writes_locally() && wr.inline.is_some())
        || (op.is_answered() && qp.attr.max_rd_atomic == 0)
    {
        return Err(OPCODE);
    }
    for range in wr.key_ranges(qp) {
        core.mkeys.check(&range).map_err(Failure::local)?;
    }
    Ok(())
}
