//! The requester of a queue pair: from send work requests to packets.
//!
//! A work request is read once from the ring, checked, given its PSNs, and stays in `pending` until it completes.
//! `cursor` is the position of transmission: normally the end of `pending`, further back after a loss (go-back-N, IBTA
//! 9.7.5). Only the parsed work request is kept for retransmission: the payload is read from guest memory again.
//!
//! Functions that may end the send queue return `Err(Failure)`: the oldest work request completes with it, and the queue pair
//! flushes the others.

mod build;
mod check;
mod complete;
mod credits;
mod flush;
mod gone_back;
mod local;
mod pending;
mod response;
mod train;
mod unconnected;
mod window;

use std::collections::VecDeque;

use faultline_abi::admin::Counter;
use faultline_abi::wqe::WR_FLAG_FENCE;
use faultline_wire::aeth::ack_timeout_ns;
use faultline_wire::bth::Psn;

use super::endpoint::Endpoint;
use super::page_wait::{LOST_BUFFER, PageWait, Repaired, await_page};
use super::types::{Failure, FrameRoom, QpType, State};
use super::work_request::{SendOp, SendWr};
use crate::budget::{Budget, Held};
use crate::context::Context;
use crate::dma::Dma;
use crate::fault::{Call, WaitKind};
use crate::flow_control::BlockedOn;
use crate::frame::TxFrame;
use crate::gid_table::Source;
use crate::ring::Ring;
use crate::time::{Instant, Nanos, earlier};
use crate::work::count_steps;

pub(super) use build::{BuildError, MessageRange};
use check::check_connected;
use credits::Credits;
use gone_back::GoneBack;
use pending::Pending;
use window::Window;

/// Local operations in a row, or fewer large ones, before the turn of others: a registration takes some microseconds.
const LOCAL_BATCH: u32 = 32;

/// The result of polling the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// A frame has been built.
    Frame,
    /// There is no frame to send.
    Nothing,
    /// No frame, because the turn is over: there is more work.
    TurnOver,
    /// No frame, because the next one must wait.
    Paused(BlockedOn),
}

/// Send side of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Send work requests. `None`: no send queue.
    ring: Option<Ring>,
    /// Producer index of the last doorbell.
    producer: u32,
    /// Work requests read.
    fetched: u32,
    /// Work requests that have begun.
    pending: Pending,
    /// Share of the budget that `pending` takes.
    room: Option<Held>,
    /// Tag matching: places of the list into which data will be read, by READs that have not begun.
    rendezvous: VecDeque<u32>,
    /// Position in `pending` of the work request that is sent next.
    cursor: usize,
    /// The packet of it that is sent next.
    cursor_packet: u32,
    /// PSN of the next new packet.
    next: Psn,
    /// Oldest PSN that is not acknowledged.
    unacked: Psn,
    /// PSN after the highest that was sent.
    high: Psn,
    gone_back: GoneBack,
    window: Window,
    credits: Credits,
    retries: u8,
    rnr_retries: u8,
    retry_limit: u8,
    rnr_retry_limit: u8,
    /// Deadline of an acknowledgement.
    ack_deadline: Option<Instant>,
    /// No frame may be sent before this.
    rnr_deadline: Option<Instant>,
    /// The request for which the peer sent an RNR NAK.
    refused: Psn,
    /// Transmission has not gone back since then for another reason.
    refused_waits: bool,
    /// A missing page of a local buffer: of a request that has not been sent, or of a response that has arrived.
    page: Option<PageWait>,
    /// Datagrams and raw frames: the first pending request has not left yet, or not all of its segments.
    held: bool,
    /// The segment of a large raw packet that leaves next.
    segment: u32,
    /// Datagrams: the entry of the GID table from which the last one is sent.
    datagram_source: Option<Source>,
    /// Work requests that are lost because they were posted while a timer ran: see [`crate::Pitfalls::damming`].
    dammed: Option<(u32, u32)>,
    /// Index after the last work request that the current flush completes.
    flush_end: u32,
}

impl Requester {
    /// A requester without work requests. `ring` is `None` if there is no send queue.
    pub(crate) fn new(ring: Option<Ring>) -> Self {
        Self {
            ring,
            ..Self::default()
        }
    }

    /// The next datagram is sent from this entry of the GID table.
    #[inline]
    pub(crate) fn set_datagram_source(&mut self, source: Source) {
        self.datagram_source = Some(source);
    }

    /// The entry of the GID table from which the last datagram is sent.
    #[inline]
    pub(crate) fn datagram_source(&self) -> Option<Source> {
        self.datagram_source
    }

    /// Clears all state except the ring.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.ring.take());
    }

    /// Handles a doorbell with a producer index. Returns false if it is out of range.
    pub(crate) fn post(&mut self, producer: u32) -> bool {
        let Some(ring) = &self.ring else {
            return false;
        };
        if !self.is_news(producer) {
            return true;
        }
        let oldest = self.pending.front().map_or(self.fetched, |wr| wr.index);
        let fits = producer.wrapping_sub(oldest) <= ring.depth();
        if fits {
            self.producer = producer;
        }
        fits
    }

    /// Number of work requests that a doorbell with this producer index announces, which is 0 for an old index.
    pub(crate) fn announced_by(&self, producer: u32) -> u32 {
        producer.wrapping_sub(self.producer)
    }

    /// True if a producer index is later than the last one. Doorbells may arrive late or twice.
    pub(crate) fn is_news(&self, producer: u32) -> bool {
        producer.wrapping_sub(self.producer) as i32 > 0
    }

    /// Whether work requests are posted that have not been read.
    #[inline]
    fn has_posted(&self) -> bool {
        self.fetched != self.producer
    }

    /// The next posted work request.
    fn read<M: Dma>(&mut self, qp: &Endpoint, mem: &M) -> SendWr {
        let index = self.fetched;
        self.fetched = index.wrapping_add(1);
        SendWr::read(self.ring.as_ref(), index, &qp.config, mem)
    }

    /// Adds a work request, which gets the next PSNs.
    #[inline]
    fn append(&mut self, budget: &Budget, mut wr: SendWr) {
        wr.first = self.next;
        self.next = wr.end();
        if wr.psns > 0 {
            wr.number = self.credits.number();
        }
        self.push(budget, wr);
    }

    #[inline]
    fn push(&mut self, budget: &Budget, wr: SendWr) {
        self.pending.push(wr);
        self.room.get_or_insert_with(|| budget.none());
        self.account();
    }

    /// Removes the oldest work request.
    pub(crate) fn pop(&mut self) -> Option<SendWr> {
        let wr = self.pending.pop();
        self.account();
        wr
    }

    #[inline]
    fn account(&mut self) {
        let bytes = self.pending.bytes();
        if let Some(room) = &mut self.room
            && room.bytes() != bytes
        {
            room.set(bytes);
        }
    }

    /// True if another request may begin. If the budget is used up, one is executed at a time.
    #[inline]
    fn may_begin(&self, budget: &Budget) -> bool {
        self.pending.is_empty() || !budget.is_spent()
    }

    /// True if all requests that have begun are complete.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Work requests that are posted and not completed.
    pub(crate) fn outstanding(&self) -> u32 {
        let oldest = self.pending.front().map_or(self.fetched, |wr| wr.index);
        self.producer.wrapping_sub(oldest)
    }

    /// Whether it waits for a page.
    pub(crate) fn is_waiting(&self) -> bool {
        self.page.is_some()
    }

    /// PSN of the next new packet.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Sets the PSN of the next new packet.
    pub(crate) fn set_next_psn(&mut self, psn: Psn) {
        self.next = psn;
        self.unacked = psn;
        self.high = psn;
    }

    /// Sets the limits of retries, and restarts their counts.
    pub(crate) fn set_retries(&mut self, retries: u8, rnr_retries: u8) {
        if (self.retry_limit, self.rnr_retry_limit) != (retries, rnr_retries) {
            (self.retry_limit, self.rnr_retry_limit) = (retries, rnr_retries);
            (self.retries, self.rnr_retries) = (retries, rnr_retries);
        }
    }

    /// When the next timer is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        earlier(self.ack_deadline, self.rnr_deadline)
    }

    /// Drops the state of all pending requests, which have been flushed.
    fn clear(&mut self) {
        self.pending = Pending::default();
        self.room = None;
        self.cursor = 0;
        self.cursor_packet = 0;
        self.gone_back = GoneBack::default();
        self.window = Window::default();
        self.credits = Credits::default();
        self.ack_deadline = None;
        self.rnr_deadline = None;
        self.held = false;
        self.segment = 0;
        self.dammed = None;
    }

    /// Ends the wait for a page.
    pub(crate) fn stop_waiting(&mut self) {
        self.page = None;
    }

    /// Adds a rendezvous, whose data will be read into this place of the tag list.
    pub(crate) fn add_rendezvous(&mut self, slot: u32) {
        self.rendezvous.push_back(slot);
    }

    /// Restarts transmission at this PSN.
    fn rewind(&mut self, psn: Psn) {
        self.refused_waits = false;
        let Some(position) = self.pending.find(psn) else {
            return;
        };
        let Some(wr) = self.pending.get(position) else {
            return;
        };
        let packet = psn.diff(wr.first) as u32;
        if (position, packet) < (self.cursor, self.cursor_packet) {
            self.cursor = position;
            self.cursor_packet = packet;
        }
    }

    /// Goes back to a missing response, once, because every packet behind the gap would cause it again. If that does
    /// not help, the timeout does. Returns true if it goes back.
    fn go_back_for(&mut self, missing: Psn) -> bool {
        let goes_back = self.gone_back.for_response(missing);
        if goes_back {
            self.rewind(missing);
        }
        goes_back
    }

    /// PSN of the packet that is sent next.
    #[inline]
    fn cursor_psn(&self) -> Psn {
        match self.pending.get(self.cursor) {
            Some(wr) => wr.first.add(self.cursor_packet),
            None => self.next,
        }
    }

    /// Moves the cursor over work requests.
    #[inline]
    fn pass(&mut self, requests: usize) {
        self.cursor = self.cursor.saturating_add(requests);
        self.cursor_packet = 0;
        self.pending.reach(self.cursor);
    }

    /// Moves the cursor forward to this PSN.
    fn skip_to(&mut self, psn: Psn) {
        while let Some(wr) = self.pending.get(self.cursor) {
            count_steps(1);
            if !wr.done && (wr.psns == 0 || psn.diff(wr.end()) < 0) {
                self.cursor_packet = psn.diff(wr.first).max(0) as u32;
                return;
            }
            self.pass(1);
        }
    }

    /// The oldest request with a response outstanding, before position `before`.
    fn oldest_awaiting(&self, before: usize) -> Option<usize> {
        self.pending.oldest_awaiting().filter(|at| *at < before)
    }

    /// Connections: completes the work requests that are due and need no packet, then makes `frame` the next request
    /// packet, or a run or train that begins with it.
    #[inline]
    pub(crate) fn poll<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        room: FrameRoom,
        frame: &mut TxFrame,
    ) -> Result<Sent, Failure> {
        if !qp.state.sends() {
            return Ok(Sent::Nothing);
        }
        if qp.config.kind == QpType::Uc {
            // The frame of the last poll has been delivered.
            self.acknowledge_until(qp, cx, self.cursor_psn())?;
        }
        if self.waits_for_page() || self.waits_for_rnr_timer(cx.now) {
            return Ok(Sent::Nothing);
        }
        let (mut carried_out, turn) = (0, cx.core.begin_turn());
        loop {
            self.retire(qp, cx)?;
            if self.waits_for_page() || (self.at_end() && !self.fetch(qp, cx)) {
                return Ok(Sent::Nothing);
            }
            let Some(wr) = self.pending.get(self.cursor) else {
                return Ok(Sent::Nothing);
            };
            if wr.failed.is_some() {
                if self.cursor == 0 {
                    continue; // retire() takes it
                }
                return Ok(Sent::Nothing);
            }
            if !self.may_send(qp, wr) {
                return Ok(Sent::Nothing);
            }
            if wr.is_local() {
                if carried_out == LOCAL_BATCH || cx.core.is_over(turn) {
                    return Ok(Sent::TurnOver);
                }
                carried_out = carried_out.wrapping_add(1);
                self.carry_out(qp, cx);
                continue;
            }
            let index = wr.index;
            if let Some(wait) = qp.must_wait(cx.core) {
                return Ok(Sent::Paused(wait));
            }
            match self.build(qp, cx.core, room.run, frame) {
                Ok(()) => {
                    self.extend_to_train(qp, cx, room.train, frame);
                    self.after_send(qp, cx, frame.packets);
                    if !self.is_dammed(index) {
                        return Ok(Sent::Frame);
                    }
                }
                Err(error) => {
                    let Some(failure) = self.wait_or_fail(qp, cx, error) else {
                        return Ok(Sent::Nothing);
                    };
                    // It fails when it is the oldest.
                    if let Some(wr) = self.pending.get_mut(self.cursor) {
                        wr.failed = Some(failure);
                    }
                    if self.cursor > 0 {
                        return Ok(Sent::Nothing);
                    }
                }
            }
        }
    }

    /// True if everything that has begun has been sent.
    #[inline]
    fn at_end(&self) -> bool {
        self.cursor == self.pending.len()
    }

    /// True if an RNR timer keeps the queue from sending. Ends a timer that has expired.
    fn waits_for_rnr_timer(&mut self, now: Instant) -> bool {
        let Some(deadline) = self.rnr_deadline else {
            return false;
        };
        if now >= deadline {
            self.rnr_deadline = None;
            return false;
        }
        if let Some((_, until)) = &mut self.dammed {
            *until = self.producer;
        }
        true
    }

    /// Waits for a missing page. Returns the failure if a wait is impossible.
    pub(crate) fn wait_or_fail<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        error: BuildError,
    ) -> Option<Failure> {
        let need = match error {
            BuildError::Failed(failure) => return Some(failure),
            BuildError::Absent(need) => need,
        };
        let token = await_page(cx, qp.fault_source(WaitKind::Send), &need);
        self.page = token.map(|token| PageWait::new(token, &need));
        if token.is_none() {
            return Some(LOST_BUFFER);
        }
        if !self.awaits_ack() {
            // The peer is not late: nothing has been requested from it.
            self.ack_deadline = None;
        }
        None
    }

    /// Handles the answer to a fault. If it was for a local buffer, transmission continues, or the request fails.
    pub(crate) fn fault_answered<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        call: Call,
    ) {
        let Some(wait) = self.page.take_if(|wait| wait.token == call.token) else {
            return;
        };
        if call.repaired {
            if let Some(fault) = Repaired::new(call, cx.now) {
                fault.report(qp, cx);
            }
        } else {
            // Transmission may have gone back to earlier requests. Datagrams and frames have no PSNs here.
            let position = self.pending.find(wait.psn).unwrap_or(self.cursor);
            if let Some(wr) = self.pending.get_mut(position) {
                wr.failed = Some(LOST_BUFFER);
            }
        }
        if self.ack_deadline.is_none() && self.rnr_deadline.is_none() {
            self.restart_ack_timer(qp, cx.now);
        }
    }

    /// True if packets at the cursor can't be sent before a page is present.
    #[inline]
    fn waits_for_page(&self) -> bool {
        self.page
            .is_some_and(|wait| self.cursor_psn().diff(wait.psn) >= 0)
    }

    /// True if an answer of the peer is outstanding. Requests from a missing page on do not count: they are sent, or
    /// sent again, when the page is present.
    #[inline]
    fn awaits_ack(&self) -> bool {
        let until = match &self.page {
            Some(wait) if wait.psn.diff(self.high) < 0 => wait.psn,
            _ => self.high,
        };
        until.diff(self.unacked) > 0
    }

    /// Restarts the ACK timer, if an answer of the peer is outstanding.
    fn restart_ack_timer(&mut self, qp: &Endpoint, now: Instant) {
        let timeout = ack_timeout_ns(qp.attr.timeout).filter(|_| self.awaits_ack());
        self.ack_deadline = timeout.map(|ns| now + Nanos(ns));
    }

    /// Enlarges a small window by the acknowledged packets before `psn`.
    fn widen(&mut self, psn: Psn) {
        // An acknowledgement beyond the cursor is for packets that were sent before transmission went back. It says nothing
        // about those that were sent since.
        if psn.diff(self.cursor_psn()) <= 0 {
            self.window.grow(psn.diff(self.unacked));
        }
    }

    /// Checks window, fence, and the limit on READs and atomics.
    fn may_send(&self, qp: &Endpoint, wr: &SendWr) -> bool {
        if !qp.is_reliable() {
            return true;
        }
        let psn = self.cursor_psn();
        if psn.diff(self.unacked) >= self.window.packets() || self.credits.hold_back(psn) {
            return false;
        }
        if self.cursor_packet > 0 {
            return true;
        }
        if wr.has(WR_FLAG_FENCE) {
            let waits = match wr.op {
                // IBTA 10.8.3.3, local invalidate fence.
                Some(SendOp::LocalInv { .. }) => self.cursor > 0,
                _ => self.oldest_awaiting(self.cursor).is_some(),
            };
            if waits {
                return false;
            }
        }
        if wr.is_answered() {
            let outstanding = self.pending.awaiting(self.cursor);
            return outstanding < usize::from(qp.attr.max_rd_atomic.max(1));
        }
        true
    }

    /// Moves the cursor over the packets that were built, and starts the ACK timer.
    fn after_send<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>, packets: u32) {
        let Some(wr) = self.pending.get(self.cursor) else {
            return;
        };
        let again = self.high.diff(self.cursor_psn()).clamp(0, packets as i32);
        cx.add(Counter::retransmitted_packets, again as u64);
        self.credits.sent(wr, self.cursor_packet);
        // A READ request takes the PSNs of all of its responses.
        let next_packet = if wr.is_read() {
            wr.psns
        } else {
            self.cursor_packet.saturating_add(packets)
        };
        let (after, psns) = (wr.first.add(next_packet), wr.psns);
        if after.diff(self.high) > 0 {
            self.high = after;
        }
        if psns == 1 {
            self.pass(packets as usize);
        } else if next_packet >= psns {
            self.pass(1);
        } else {
            self.cursor_packet = next_packet;
        }
        if self.ack_deadline.is_none()
            && qp.is_reliable()
            && let Some(ns) = ack_timeout_ns(qp.attr.timeout)
        {
            self.ack_deadline = Some(cx.now + Nanos(ns));
        }
    }

    /// True if a work request is one of those that an adapter with damming loses.
    #[inline]
    fn is_dammed(&self, index: u32) -> bool {
        self.dammed
            .is_some_and(|(from, until)| index.wrapping_sub(from) < until.wrapping_sub(from))
    }

    /// Reads the next work request. Returns false if there is none that may begin.
    fn fetch<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>) -> bool {
        if qp.state != State::Rts || !self.may_begin(&cx.core.budget) {
            return false;
        }
        let slot = self.rendezvous.pop_front();
        let read = slot.and_then(|slot| qp.rendezvous_read(cx.core, slot, self.fetched));
        let mut wr = match read {
            Some(wr) => wr,
            None if !self.has_posted() => return false,
            None => self.read(qp, cx.mem),
        };
        if wr.failed.is_none() {
            wr.failed = check_connected(qp, cx.core, &wr).err();
        }
        let packets = wr.length.div_ceil(qp.mtu).max(1);
        wr.psns = match () {
            () if wr.failed.is_some() || wr.is_local() => 0,
            () if wr.is_atomic() => 1,
            () => packets,
        };
        self.append(&cx.core.budget, wr);
        true
    }

    /// Returns true if a work request must be completed.
    #[inline]
    fn is_done(&self, wr: &SendWr) -> bool {
        let is_acked = wr.psns > 0 && wr.end().diff(self.unacked) <= 0;
        wr.done || (is_acked && !wr.awaits_response())
    }

    /// Returns false if after a response there is no frame to send and no work request to complete before the next event.
    #[inline]
    pub(crate) fn has_more(&self, qp: &Endpoint) -> bool {
        !self.at_end()
            || self.has_posted()
            || !self.rendezvous.is_empty()
            || qp.state != State::Rts
            || self.is_oldest_over()
    }
}
