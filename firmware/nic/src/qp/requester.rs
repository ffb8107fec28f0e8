//! The requester of a connected QP: from work requests to packets. What comes back is in `response.rs`.
//!
//! A work request is read once from the ring, checked, given its PSNs, and stays in `pending` until it
//! completes. `cursor` is where transmission stands: normally at the end of `pending`, further back after
//! a loss (go-back-N, IBTA 9.7.5). Nothing is buffered for retransmission but the parsed work request:
//! the payload is read from guest memory again.

use std::collections::VecDeque;

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::wqe as wr;
use faultline_abi::{U32, event};
use faultline_wire::XrcEth;
use faultline_wire::aeth::ack_timeout_ns;
use faultline_wire::atomic::AtomicEth;
use faultline_wire::bth::Psn;
use faultline_wire::opcode::Opcode;
use faultline_wire::reth::Reth;

use super::fault::LOST_BUFFER;
use super::local::LOCAL_BATCH;
use super::pending::Pending;
use super::tag::Own;
use super::work_request::SendWr;
use super::{Failure, Qp, QpType, State};
use crate::budget::{Budget, Held};
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Need;
use crate::frame::{Segments, TxFrame, push_segment, truncate_segments};
use crate::mkey::{Access, Miss};
use crate::srq::SgEntry;
use crate::time::{Instant, Nanos};
use crate::work::{self, count_steps};

/// Packets sent and not acknowledged, at most. Bounds what one loss costs.
const WINDOW: i32 = 1024;
/// An acknowledgement is asked for at least every so many packets, so that the window keeps moving.
const ACK_EVERY: u32 = 64;
/// Bytes of the place for a response that must be there before it is asked for.
const LANDING_AHEAD: u32 = 1 << 20;

/// Why no packet was built.
#[derive(Debug)]
pub(super) enum Unbuilt {
    /// The work request can't be carried out.
    Failed(Failure),
    /// A page of its buffers is not there.
    Absent(Need),
}

impl From<Failure> for Unbuilt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Send side of a QP.
#[derive(Debug, Default)]
pub struct Requester {
    pub(super) pending: Pending,
    /// What `pending` takes of the budget.
    room: Option<Held>,
    /// Places of the tag list into which data is to be read, and of which nothing is pending yet.
    pub(super) rendezvous: VecDeque<u32>,
    /// Work request, as a position in `pending`, and packet of it that are sent next.
    pub(super) cursor: usize,
    cursor_packet: u32,
    /// PSN of the next new packet.
    next: Psn,
    /// Oldest PSN that is not acknowledged.
    pub(super) unacked: Psn,
    /// PSN after the highest that was sent.
    pub(super) high: Psn,
    /// The missing response for which transmission has gone back.
    pub(super) recovering: Option<Psn>,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) retry_limit: u8,
    pub(super) rnr_retry_limit: u8,
    /// When to give up waiting for an acknowledgement.
    pub(super) ack_deadline: Option<Instant>,
    /// Not before this may anything be sent.
    pub(super) rnr_deadline: Option<Instant>,
    /// The request that was refused so.
    pub(super) refused: Psn,
    /// The first pending datagram has not left yet, or not all of its segments: a page is missing, or a turn is over.
    pub(super) held: bool,
    /// The segment of a large raw packet that leaves next.
    pub(super) segment: u32,
    /// See [`crate::Pitfalls::damming`]: work requests that were posted while a timer ran.
    pub(super) dammed: Option<(u32, u32)>,
}

impl Requester {
    /// A work request gets the PSNs that are next.
    fn append(&mut self, budget: &Budget, mut wr: SendWr) {
        wr.first = self.next;
        self.next = wr.end();
        self.push(budget, wr);
    }

    /// A request begins.
    pub(super) fn push(&mut self, budget: &Budget, wr: SendWr) {
        self.pending.push(wr);
        self.room.get_or_insert_with(|| budget.none());
        self.account();
    }

    /// The oldest request ends.
    pub(super) fn pop(&mut self) -> Option<SendWr> {
        let wr = self.pending.pop();
        self.account();
        wr
    }

    fn account(&mut self) {
        let bytes = self.pending.bytes();
        if let Some(room) = &mut self.room
            && room.bytes() != bytes
        {
            room.set(bytes);
        }
    }

    /// Whether another request may begin. With nothing left of the budget there is one at a time.
    fn may_begin(&self, budget: &Budget) -> bool {
        self.pending.is_empty() || !budget.is_spent()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn next_psn(&self) -> Psn {
        self.next
    }

    pub(super) fn set_next_psn(&mut self, psn: Psn) {
        self.next = psn;
        self.unacked = psn;
        self.high = psn;
    }

    pub(super) fn set_retries(&mut self, retries: u8, rnr_retries: u8) {
        if (self.retry_limit, self.rnr_retry_limit) != (retries, rnr_retries) {
            (self.retry_limit, self.rnr_retry_limit) = (retries, rnr_retries);
            (self.retries, self.rnr_retries) = (retries, rnr_retries);
        }
    }

    /// Running number of the oldest work request that has not completed.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.pending.front().map(|wr| wr.index)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match (self.ack_deadline, self.rnr_deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Nothing is pending any more, nor soon.
    fn clear(&mut self) {
        self.pending = Pending::default();
        self.room = None;
        self.cursor = 0;
        self.cursor_packet = 0;
        self.recovering = None;
        self.ack_deadline = None;
        self.rnr_deadline = None;
        self.held = false;
        self.segment = 0;
        self.dammed = None;
    }

    /// The work request that a packet belongs to, as a position in `pending`.
    fn position(&self, psn: Psn) -> Option<usize> {
        self.pending.find(psn)
    }

    /// Sends again from this PSN on.
    pub(super) fn rewind(&mut self, psn: Psn) {
        let Some(position) = self.position(psn) else {
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

    /// Goes back to a response that is missing, once: whatever follows the gap would ask again. If that does
    /// not help, the timeout does.
    pub(super) fn go_back_for(&mut self, missing: Psn) {
        if self.recovering != Some(missing) {
            self.recovering = Some(missing);
            self.rewind(missing);
        }
    }

    /// PSN of the packet that is sent next.
    pub(super) fn cursor_psn(&self) -> Psn {
        match self.pending.get(self.cursor) {
            Some(wr) => wr.first.add(self.cursor_packet),
            None => self.next,
        }
    }

    /// The work request at the cursor is passed.
    pub(super) fn pass(&mut self) {
        self.cursor += 1;
        self.cursor_packet = 0;
        self.pending.reach(self.cursor);
    }

    /// The work request at the cursor.
    pub(super) fn at_cursor(&mut self) -> Option<&mut SendWr> {
        self.pending.get_mut(self.cursor)
    }

    /// The oldest request with an answer outstanding, before position `before`.
    pub(super) fn oldest_awaiting(&self, before: usize) -> Option<usize> {
        self.pending.oldest_awaiting().filter(|at| *at < before)
    }
}

impl Qp {
    /// Completes what is due without a packet, then gives the next request packet, or a run of up to `most`.
    pub(super) fn poll_request<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        most: u32,
    ) -> Option<TxFrame> {
        if !self.state.sends() {
            return None;
        }
        if self.config.kind == QpType::Uc {
            // What was handed over before has been delivered.
            self.acknowledge_until(cx, self.requester.cursor_psn());
        }
        if self.is_held_by_own_page() {
            return None;
        }
        if let Some(deadline) = self.requester.rnr_deadline {
            if cx.now < deadline {
                if let Some((_, until)) = &mut self.requester.dammed {
                    *until = self.sq.producer;
                }
                return None;
            }
            self.requester.rnr_deadline = None;
        }
        let (mut carried_out, turn) = (0, cx.core.begin_turn());
        loop {
            self.retire(cx);
            if !self.state.sends() || self.is_held_by_own_page() {
                return None;
            }
            if self.requester.cursor == self.requester.pending.len() && !self.fetch(cx) {
                self.check_drained(cx);
                return None;
            }
            let req = &self.requester;
            let wr = req.pending.get(req.cursor)?;
            if wr.failed.is_some() {
                if req.cursor == 0 {
                    continue; // retire() takes it
                }
                return None;
            }
            if !self.may_send(wr) {
                return None;
            }
            if wr.is_local() {
                if carried_out == LOCAL_BATCH || cx.core.is_over(turn) {
                    self.interrupted = true;
                    return None;
                }
                carried_out += 1;
                self.carry_out(cx);
                continue;
            }
            match self.build_request(cx.core, most) {
                Ok(frame) => {
                    let index = wr_index(&self.requester);
                    self.after_send(cx, frame.packets);
                    if !self.requester.is_dammed(index) {
                        return Some(frame);
                    }
                }
                Err(unbuilt) => {
                    let failure = self.wait_or_fail(cx, unbuilt)?;
                    // Nothing of it counts as sent any more; it fails when it is the oldest.
                    let cursor = self.requester.cursor;
                    if let Some(wr) = self.requester.pending.get_mut(cursor) {
                        wr.failed = Some(failure);
                    }
                    if cursor > 0 {
                        return None;
                    }
                }
            }
        }
    }

    /// Waits for a page that is missing; gives the failure if there is nothing to wait for.
    pub(super) fn wait_or_fail<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        unbuilt: Unbuilt,
    ) -> Option<Failure> {
        match unbuilt {
            Unbuilt::Failed(failure) => Some(failure),
            Unbuilt::Absent(need) => {
                if !self.await_own_page(cx, &need) {
                    return Some(LOST_BUFFER);
                }
                if !self.awaits_ack() {
                    // The peer is not late: it has not been asked.
                    self.requester.ack_deadline = None;
                }
                None
            }
        }
    }

    /// The page of an own buffer, for the packet with this PSN, is there or will not come.
    pub(super) fn own_page_answered<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        psn: Psn,
        repaired: bool,
    ) {
        let req = &mut self.requester;
        if !repaired {
            // Transmission may have gone back to earlier requests. Datagrams and frames have no PSNs here.
            let position = req.position(psn).unwrap_or(req.cursor);
            if let Some(wr) = req.pending.get_mut(position) {
                wr.failed = Some(LOST_BUFFER);
            }
        }
        if req.ack_deadline.is_none() && req.rnr_deadline.is_none() {
            self.restart_ack_timer(cx.now);
            self.sync_timer(cx.core);
        }
    }

    /// Whether packets at the cursor can't be sent before a page is there.
    fn is_held_by_own_page(&self) -> bool {
        let wait = self.waits.requester.as_ref();
        wait.is_some_and(|wait| self.requester.cursor_psn().diff(wait.psn) >= 0)
    }

    /// Whether the peer has been asked for something that it has not answered. What follows a missing page does not
    /// count: it is sent, or sent again, when the page is there.
    pub(super) fn awaits_ack(&self) -> bool {
        let req = &self.requester;
        let until = match &self.waits.requester {
            Some(wait) if wait.psn.diff(req.high) < 0 => wait.psn,
            _ => req.high,
        };
        until.diff(req.unacked) > 0
    }

    /// Gives the peer its whole time to answer from now on, if there is something to answer.
    pub(super) fn restart_ack_timer(&mut self, now: Instant) {
        let timeout = ack_timeout_ns(self.attr.timeout).filter(|_| self.awaits_ack());
        self.requester.ack_deadline = timeout.map(|ns| now + Nanos(ns));
    }

    /// Window, fence, and the limit on READs and atomics.
    fn may_send(&self, wr: &SendWr) -> bool {
        let req = &self.requester;
        if !self.config.kind.is_reliable() {
            return true;
        }
        if req.cursor_psn().diff(req.unacked) >= WINDOW {
            return false;
        }
        if req.cursor_packet > 0 {
            return true;
        }
        if wr.flags & wr::WR_FLAG_FENCE != 0 {
            let waits = match wr.opcode {
                // IBTA 10.8.3.3, local invalidate fence.
                wr::WR_LOCAL_INV => req.cursor > 0,
                _ => req.oldest_awaiting(req.cursor).is_some(),
            };
            if waits {
                return false;
            }
        }
        if wr.is_answered() {
            let outstanding = req.pending.awaiting(req.cursor);
            return outstanding < usize::from(self.attr.max_rd_atomic.max(1));
        }
        true
    }

    /// Moves the cursor over the packets that were built, and starts the clock.
    fn after_send<M: Dma>(&mut self, cx: &mut Context<'_, M>, packets: u32) {
        let reliable = self.config.kind.is_reliable();
        let timeout = if reliable {
            ack_timeout_ns(self.attr.timeout)
        } else {
            None
        };
        let req = &mut self.requester;
        let sent = req.cursor_psn();
        let Some(wr) = req.pending.get(req.cursor) else {
            return;
        };
        let again = req.high.diff(sent).clamp(0, packets as i32);
        cx.core
            .counters
            .add(Counter::retransmitted_packets, again as u64);
        // A READ request stands for all of its responses.
        let next_packet = if wr.is_read() {
            wr.psns
        } else {
            req.cursor_packet + packets
        };
        let after = wr.first.add(next_packet);
        if after.diff(req.high) > 0 {
            req.high = after;
        }
        if next_packet >= wr.psns {
            req.pass();
        } else {
            req.cursor_packet = next_packet;
        }
        if req.ack_deadline.is_none()
            && let Some(ns) = timeout
        {
            req.ack_deadline = Some(cx.now + Nanos(ns));
            self.sync_timer(cx.core);
        }
    }

    /// Reads the next work request. Gives false if there is none that may be started.
    pub(super) fn fetch<M: Dma>(&mut self, cx: &mut Context<'_, M>) -> bool {
        if self.state != State::Rts {
            return false;
        }
        if !self.requester.may_begin(&cx.core.budget) {
            return false;
        }
        let mut wr = match self.next_rendezvous(cx.core) {
            Some(wr) => wr,
            None if self.sq.fetched == self.sq.producer => return false,
            None => self.read_work_request(cx.mem),
        };
        if wr.failed.is_none() {
            wr.failed = self.check_connected(cx.core, &wr).err();
        }
        let packets = wr.length.div_ceil(self.mtu).max(1);
        wr.psns = match () {
            () if wr.failed.is_some() || wr.is_local() => 0,
            () if wr.is_atomic() => 1,
            () => packets,
        };
        self.requester.append(&cx.core.budget, wr);
        true
    }

    /// Runs of guest memory behind `len` bytes at `offset` of the message of a work request.
    pub(super) fn gather(
        &self,
        core: &Core,
        wr: &SendWr,
        offset: u32,
        len: u32,
        access: Access,
    ) -> Result<Segments, Unbuilt> {
        let mut out = Segments::new();
        self.gather_with(wr, offset, len, &mut out, |sge, va, n, out| {
            core.mkeys
                .translate(sge.lkey, self.bearer_of(wr), va, n, access, out)
                .map(|()| n)
        })
        .map_err(|miss| self.unbuilt(wr, miss))?;
        Ok(out)
    }

    /// Whether the first bytes at `offset` of the place where a response will go are there, so that it rarely
    /// meets a missing page.
    fn require_landing(&self, core: &Core, wr: &SendWr, offset: u32) -> Result<(), Unbuilt> {
        if core.config.pitfalls.flood {
            return Ok(());
        }
        let len = (wr.length - offset.min(wr.length)).min(LANDING_AHEAD);
        let access = Access::LocalWrite;
        self.gather_with(wr, offset, len, &mut Segments::new(), |sge, va, n, _| {
            core.mkeys
                .require(sge.lkey, self.bearer_of(wr), va, n, access)
                .map(|()| n)
        })
        .map(drop)
        .map_err(|miss| self.unbuilt(wr, miss))
    }

    fn unbuilt(&self, wr: &SendWr, miss: Miss) -> Unbuilt {
        let Miss::Absent(absent) = miss else {
            return Unbuilt::Failed(Failure::local(miss));
        };
        // What is left of the entry it was found in.
        let left = wr.sges.iter().filter(|sge| sge.lkey == absent.key);
        let left = left.filter_map(|sge| {
            let before = absent.named.checked_sub(sge.addr)?;
            u64::from(sge.len).checked_sub(before)
        });
        let hint = left.max().unwrap_or(0);
        Unbuilt::Absent(Need::new(absent, hint, self.requester.cursor_psn().get()))
    }

    /// Goes through the SGEs behind a part of a message, until `translate` has no room for one. Gives the
    /// number of bytes.
    fn gather_with(
        &self,
        wr: &SendWr,
        offset: u32,
        len: u32,
        out: &mut Segments,
        mut translate: impl FnMut(&SgEntry, u64, u32, &mut Segments) -> Result<u32, Miss>,
    ) -> Result<u32, Miss> {
        let (mut skip, mut left) = (offset, len);
        if let Some((at, there)) = wr.inline {
            let n = there.saturating_sub(skip).min(left);
            if n > 0 {
                push_segment(out, at + u64::from(skip), n);
            }
            skip = skip.saturating_sub(there);
            left -= n;
        }
        for sge in &wr.sges {
            if left == 0 {
                break;
            }
            if skip >= sge.len {
                skip -= sge.len;
                continue;
            }
            let n = (sge.len - skip).min(left);
            let va = sge.addr.wrapping_add(u64::from(skip));
            let done = translate(sge, va, n, out)?;
            left -= done;
            if done < n {
                break;
            }
            skip = 0;
        }
        Ok(len - left)
    }

    /// The payload of a run of up to `packets` packets from the cursor on, and their number. None: it must be
    /// a single one, for which there may be more to say.
    fn gather_run(&self, core: &Core, wr: &SendWr, packets: u32) -> Option<(Segments, u32)> {
        let req = &self.requester;
        let mut out = Segments::new();
        let (offset, len) = (req.cursor_packet * self.mtu, packets * self.mtu);
        let bytes = self
            .gather_with(wr, offset, len, &mut out, |sge, va, n, out| {
                let access = Access::LocalRead;
                core.mkeys
                    .translate_some(sge.lkey, self.bearer(), va, n, access, out)
            })
            .ok()?;
        let packets = bytes / self.mtu;
        if packets < 2 {
            return None;
        }
        truncate_segments(&mut out, packets * self.mtu);
        Some((out, packets))
    }

    /// How many packets of a work request from the cursor on may leave as one run: the last one does not.
    fn longest_run(&self, wr: &SendWr, most: u32) -> u32 {
        let req = &self.requester;
        let window = match self.config.kind.is_reliable() {
            true => (WINDOW - req.cursor_psn().diff(req.unacked)).max(0) as u32,
            false => u32::MAX,
        };
        let left = wr.psns.saturating_sub(req.cursor_packet + 1);
        most.min(left).min(window)
    }

    /// The packet at the cursor, or a run of up to `most` that begins there.
    fn build_request(&self, core: &Core, most: u32) -> Result<TxFrame, Unbuilt> {
        const NO_PATH: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::AH);
        const RANGE: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::RESERVED);
        let req = &self.requester;
        let path = self.path.as_ref().ok_or(NO_PATH)?;
        let wr = req.pending.get(req.cursor).ok_or(NO_PATH)?;
        let packet = req.cursor_packet;
        let psn = wr.first.add(packet);
        let last = packet + 1 >= wr.psns;
        let opcode = self.twin(request_opcode(wr.opcode, packet == 0, last));
        let mut header = path.header(opcode, self.attr.dest_qpn.get(), psn);
        if self.config.kind == QpType::XrcIni {
            header.xrceth = Some(XrcEth {
                srqn: wr.remote_qpn & 0xff_ffff,
            });
        }
        header.bth.ack_req = self.config.kind.is_reliable() && (last || psn.get() % ACK_EVERY == 0);
        header.bth.solicited = last && wr.flags & wr::WR_FLAG_SOLICITED != 0;
        if last && matches!(wr.opcode, wr::WR_SEND_IMM | wr::WR_WRITE_IMM) {
            header.imm = Some(u32::from_be_bytes(wr.imm.to_le_bytes()));
        }
        if last && wr.opcode == wr::WR_SEND_INV {
            header.ieth = Some(wr.imm);
        }
        if let Some(Own::Fin(fin)) = wr.own {
            return Ok(TxFrame::own(header, fin));
        }
        let offset = packet * self.mtu;
        if wr.opcode == wr::WR_FLUSH {
            let flush = wr.flush();
            header.feth = Some(flush.feth().ok_or(RANGE)?);
            header.reth = Some(Reth {
                addr: wr.remote_addr,
                rkey: wr.rkey,
                len: u32::try_from(flush.length).map_err(|_| RANGE)?,
            });
            return Ok(TxFrame::packet(header, Segments::new(), 0));
        }
        if wr.is_atomic() || wr.is_read() {
            self.require_landing(core, wr, offset)?;
        }
        if wr.is_atomic() {
            header.atomic = Some(AtomicEth {
                addr: wr.remote_addr,
                rkey: wr.rkey,
                swap_add: if wr.opcode == wr::WR_COMP_SWAP {
                    wr.swap
                } else {
                    wr.compare_add
                },
                compare: if wr.opcode == wr::WR_COMP_SWAP {
                    wr.compare_add
                } else {
                    0
                },
            });
            return Ok(TxFrame::packet(header, Segments::new(), 0));
        }
        if wr.is_read() {
            // A READ that goes on in the middle asks for the rest only (IBTA 9.7.5.1.1).
            header.reth = Some(Reth {
                addr: wr.remote_addr.wrapping_add(u64::from(offset)),
                rkey: wr.rkey,
                len: wr.length - offset.min(wr.length),
            });
            return Ok(TxFrame::packet(header, Segments::new(), 0));
        }
        if packet == 0
            && matches!(
                wr.opcode,
                wr::WR_WRITE | wr::WR_WRITE_IMM | wr::WR_ATOMIC_WRITE
            )
        {
            header.reth = Some(Reth {
                addr: wr.remote_addr,
                rkey: wr.rkey,
                len: wr.length,
            });
        }
        let run = self.longest_run(wr, most);
        if run > 1
            && let Some((payload, packets)) = self.gather_run(core, wr, run)
        {
            let asks = |packet: u32| psn.add(packet).get().is_multiple_of(ACK_EVERY);
            header.bth.ack_req = self.config.kind.is_reliable() && (0..packets).any(asks);
            return Ok(TxFrame {
                packets,
                ..TxFrame::packet(header, payload, (packets * self.mtu) as usize)
            });
        }
        let len = (wr.length - offset.min(wr.length)).min(self.mtu);
        let payload = self.gather(core, wr, offset, len, Access::LocalRead)?;
        Ok(TxFrame::packet(header, payload, len as usize))
    }

    /// Completes the oldest work requests as far as they are done.
    pub(super) fn retire<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        while let Some(wr) = self.requester.pending.front() {
            if let Some(failure) = wr.failed {
                self.fail_request(cx, failure);
                return;
            }
            let sent = wr.psns > 0 && wr.end().diff(self.requester.unacked) <= 0;
            let done = wr.done || (sent && !wr.awaits_response());
            if !done {
                return;
            }
            let Some(wr) = self.requester.pop() else {
                return;
            };
            cx.core.charge(work::LOOK);
            self.requester.cursor = self.requester.cursor.saturating_sub(1);
            let fin = self.fin_after(cx.core, &wr);
            self.complete_send(cx, &wr, None);
            if let Some(fin) = fin {
                let fin = SendWr { psns: 1, ..fin };
                self.requester.append(&cx.core.budget, fin);
            }
        }
    }

    /// Makes the completion of a send work request, if it is due.
    pub(super) fn complete_send<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        wr: &SendWr,
        failure: Option<Failure>,
    ) {
        if let Some(own) = wr.own {
            self.complete_own(cx, own, failure);
            return;
        }
        if failure.is_none() && !self.config.sig_all && wr.flags & wr::WR_FLAG_SIGNALED == 0 {
            return;
        }
        let (status, vendor_err) =
            failure.map_or((cqe::SUCCESS, cqe::NONE), |f| (f.status, f.vendor));
        let entry = Cqe {
            wqe: U32::new(wr.index),
            qpn: U32::new(self.number),
            byte_len: U32::new(wr.length),
            opcode: wr.wc_opcode(),
            status,
            vendor_err,
            ..Cqe::default()
        };
        cx.complete(self.config.send_cqn, entry);
    }

    /// The oldest work request fails, and with it the send queue (IBTA 10.3.1.6, 10.3.1.7).
    pub(super) fn fail_request<M: Dma>(&mut self, cx: &mut Context<'_, M>, failure: Failure) {
        let wr = self.requester.pop();
        if let Some(wr) = &wr {
            self.complete_send(cx, wr, Some(failure));
        }
        if wr.is_some_and(|wr| matches!(wr.own, Some(Own::Fin(_)))) {
            // No completion tells of it.
            self.fail_with_event(cx, event::QP_FATAL);
        } else if self.config.kind.is_reliable() {
            self.fail(cx);
        } else {
            self.state = State::Sqe;
            self.flush_sends(cx);
        }
    }

    /// Completes everything in the send queue as flushed.
    pub(super) fn flush_sends<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        while let Some(wr) = self.requester.pop() {
            self.complete_send(cx, &wr, Some(Failure::FLUSHED));
        }
        self.flush_rendezvous(cx);
        self.requester.clear();
        while self.sq.fetched != self.sq.producer {
            let wr = self.read_work_request(cx.mem);
            self.complete_send(cx, &wr, Some(Failure::FLUSHED));
        }
    }

    /// In SQD: says so once everything that had begun is done (IBTA 10.3.1.5).
    pub(super) fn check_drained<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        if self.state == State::Sqd && self.requester.is_idle() && self.attr.sqd_notify != 0 {
            self.attr.sqd_notify = 0;
            cx.raise_async(event::SQ_DRAINED, self.number);
        }
    }
}

/// Running number of the work request at the cursor.
fn wr_index(req: &Requester) -> Option<u32> {
    req.pending.get(req.cursor).map(|wr| wr.index)
}

impl Requester {
    /// Whether a work request is one of those that a faulty adapter loses.
    fn is_dammed(&mut self, index: Option<u32>) -> bool {
        let (Some((from, until)), Some(index)) = (self.dammed, index) else {
            return false;
        };
        index.wrapping_sub(from) < until.wrapping_sub(from)
    }

    /// Moves the cursor forward to this PSN.
    pub(super) fn skip_to(&mut self, psn: Psn) {
        while let Some(wr) = self.pending.get(self.cursor) {
            count_steps(1);
            if !wr.done && (wr.psns == 0 || psn.diff(wr.end()) < 0) {
                self.cursor_packet = psn.diff(wr.first).max(0) as u32;
                return;
            }
            self.pass();
        }
    }
}

/// Opcode of a request packet of RC; the other services have the same ones.
fn request_opcode(wr_opcode: u8, first: bool, last: bool) -> Opcode {
    match (wr_opcode, first, last) {
        (wr::WR_READ, ..) => Opcode::RcReadRequest,
        (wr::WR_COMP_SWAP, ..) => Opcode::RcCompareSwap,
        (wr::WR_FETCH_ADD, ..) => Opcode::RcFetchAdd,
        (wr::WR_FLUSH, ..) => Opcode::RcFlush,
        (wr::WR_ATOMIC_WRITE, ..) => Opcode::RcAtomicWrite,
        (wr::WR_WRITE | wr::WR_WRITE_IMM, true, false) => Opcode::RcWriteFirst,
        (wr::WR_WRITE | wr::WR_WRITE_IMM, false, false) => Opcode::RcWriteMiddle,
        (wr::WR_WRITE, true, true) => Opcode::RcWriteOnly,
        (wr::WR_WRITE, false, true) => Opcode::RcWriteLast,
        (wr::WR_WRITE_IMM, true, true) => Opcode::RcWriteOnlyWithImmediate,
        (wr::WR_WRITE_IMM, false, true) => Opcode::RcWriteLastWithImmediate,
        (_, true, false) => Opcode::RcSendFirst,
        (_, false, false) => Opcode::RcSendMiddle,
        (wr::WR_SEND_IMM, true, true) => Opcode::RcSendOnlyWithImmediate,
        (wr::WR_SEND_IMM, false, true) => Opcode::RcSendLastWithImmediate,
        (wr::WR_SEND_INV, true, true) => Opcode::RcSendOnlyWithInvalidate,
        (wr::WR_SEND_INV, false, true) => Opcode::RcSendLastWithInvalidate,
        (_, true, true) => Opcode::RcSendOnly,
        (_, false, true) => Opcode::RcSendLast,
    }
}
