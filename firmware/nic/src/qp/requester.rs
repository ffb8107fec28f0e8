//! The requester of a connected QP: from work requests to packets, and back from acknowledgements.
//!
//! A work request is read once from the ring, checked, given its PSNs, and stays in `pending` until it
//! completes. `cursor` is where transmission stands: normally at the end of `pending`, further back after
//! a loss (go-back-N, IBTA 9.7.5). Nothing is buffered for retransmission but the parsed work request:
//! the payload is read from guest memory again.

use std::collections::VecDeque;

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::wqe::{self as wr, SQ_WQE_DATA, Sge, SqWqe};
use faultline_abi::{U32, event};
use faultline_wire::XrcEth;
use faultline_wire::aeth::{Aeth, NakCode, Syndrome, ack_timeout_ns, rnr_timer_ns};
use faultline_wire::atomic::AtomicEth;
use faultline_wire::bth::Psn;
use faultline_wire::opcode::{OpKind, Opcode};
use faultline_wire::packet::RoceHeader;
use faultline_wire::reth::Reth;
use zerocopy::FromBytes;

use super::fault::LOST_BUFFER;
use super::local::LOCAL_BATCH;
use super::responder::copy_payload;
use super::tag::Own;
use super::{Failure, Misplaced, Qp, QpType, State};
use crate::budget::{Budget, Held};
use crate::config::MAX_MSG_SIZE;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Need;
use crate::frame::{Payload, Segments, TxFrame, push_segment, truncate_segments};
use crate::mkey::{Access, Miss};
use crate::srq::{SgEntry, SgList, parse_sges};
use crate::time::{Instant, Nanos};

/// Packets sent and not acknowledged, at most. Bounds what one loss costs.
const WINDOW: i32 = 1024;
/// An acknowledgement is asked for at least every so many packets, so that the window keeps moving.
const ACK_EVERY: u32 = 64;
/// Bytes of the place for a response that must be there before it is asked for.
const LANDING_AHEAD: u32 = 1 << 20;
/// Requests for which an idle queue pair keeps room.
const KEPT_ROOM: usize = 256;
/// Time between two READs of an adapter that asks again and again ([`crate::Pitfalls::flood`]).
const FLOOD_INTERVAL: Nanos = Nanos::from_micros(20);
/// `rnr_retry` value that means "for ever" (IBTA 9.7.5.2.8).
const RNR_FOREVER: u8 = 7;

/// A work request that has been read and has not completed.
#[derive(Debug)]
pub(super) struct SendWr {
    /// Running number.
    pub index: u32,
    pub opcode: u8,
    pub flags: u8,
    pub imm: u32,
    pub rkey: u32,
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub ah: u32,
    pub remote_qpn: u32,
    pub qkey: u32,
    pub sges: SgList,
    /// Address of inline data.
    pub inline_at: Option<u64>,
    pub length: u32,
    /// First PSN, and number of PSNs; a request without packets has none.
    pub first: Psn,
    /// See there.
    pub psns: u32,
    /// Response packets that have arrived, of a request that is answered.
    pub responses: u32,
    /// An operation without packets that has been carried out.
    pub done: bool,
    /// It can't be carried out. Completes so when everything before it has completed.
    pub failed: Option<Failure>,
    /// It is not the program's; `index` is then that of the program's next one.
    pub own: Option<Own>,
}

impl SendWr {
    /// A work request that asks for nothing.
    pub fn new(index: u32) -> Self {
        Self {
            index,
            opcode: 0,
            flags: 0,
            imm: 0,
            rkey: 0,
            remote_addr: 0,
            compare_add: 0,
            swap: 0,
            ah: 0,
            remote_qpn: 0,
            qkey: 0,
            sges: SgList::new(),
            inline_at: None,
            length: 0,
            first: Psn::new(0),
            psns: 0,
            responses: 0,
            done: false,
            failed: None,
            own: None,
        }
    }

    fn end(&self) -> Psn {
        self.first.add(self.psns)
    }

    fn is_read(&self) -> bool {
        self.opcode == wr::WR_READ
    }

    fn is_atomic(&self) -> bool {
        matches!(self.opcode, wr::WR_COMP_SWAP | wr::WR_FETCH_ADD)
    }

    /// Whether it is carried out on this side, without packets.
    pub fn is_local(&self) -> bool {
        matches!(
            self.opcode,
            wr::WR_LOCAL_INV | wr::WR_REG_MR | wr::WR_BIND_MW
        )
    }

    /// Whether the peer answers it with more than an acknowledgement (IBTA 9.7.5.1.2, A19.4).
    fn is_answered(&self) -> bool {
        self.is_read()
            || self.is_atomic()
            || matches!(self.opcode, wr::WR_FLUSH | wr::WR_ATOMIC_WRITE)
    }

    /// Whether an answer is to come.
    fn awaits_response(&self) -> bool {
        self.is_answered() && self.responses < self.psns
    }

    /// Bytes that come back in READ responses.
    fn landing(&self) -> u32 {
        if self.is_read() { self.length } else { 0 }
    }

    fn wc_opcode(&self) -> u8 {
        match self.opcode {
            wr::WR_WRITE | wr::WR_WRITE_IMM => cqe::RDMA_WRITE,
            wr::WR_READ => cqe::RDMA_READ,
            wr::WR_COMP_SWAP => cqe::COMP_SWAP,
            wr::WR_FETCH_ADD => cqe::FETCH_ADD,
            wr::WR_LOCAL_INV => cqe::LOCAL_INV,
            wr::WR_REG_MR => cqe::REG_MR,
            wr::WR_BIND_MW => cqe::BIND_MW,
            wr::WR_FLUSH => cqe::FLUSH,
            wr::WR_ATOMIC_WRITE => cqe::ATOMIC_WRITE,
            _ => cqe::SEND,
        }
    }
}

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
    pub(super) pending: VecDeque<SendWr>,
    /// What `pending` takes of the budget, with the SGEs that do not fit into a request.
    room: Option<Held>,
    far_sges: usize,
    /// Places of the tag list into which data is to be read, and of which nothing is pending yet.
    pub(super) rendezvous: VecDeque<u32>,
    /// Work request, as a position in `pending`, and packet of it that are sent next.
    cursor: usize,
    cursor_packet: u32,
    /// PSN of the next new packet.
    next: Psn,
    /// Oldest PSN that is not acknowledged.
    unacked: Psn,
    /// PSN after the highest that was sent.
    high: Psn,
    /// The missing response for which transmission has gone back.
    recovering: Option<Psn>,
    retries: u8,
    rnr_retries: u8,
    retry_limit: u8,
    rnr_retry_limit: u8,
    /// When to give up waiting for an acknowledgement.
    ack_deadline: Option<Instant>,
    /// Not before this may anything be sent.
    rnr_deadline: Option<Instant>,
    /// The request that was refused so.
    refused: Psn,
    /// The first pending datagram has not left yet, or not all of its segments: a page is missing, or a turn is over.
    pub(super) held: bool,
    /// The segment of a large raw packet that leaves next.
    pub(super) segment: u32,
    /// See [`crate::Pitfalls::damming`]: work requests that were posted while a timer ran.
    dammed: Option<(u32, u32)>,
}

/// Bytes of the SGEs of a request that stand elsewhere.
fn far_sges(wr: &SendWr) -> usize {
    match wr.sges.spilled() {
        true => wr.sges.capacity() * size_of::<SgEntry>(),
        false => 0,
    }
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
        self.far_sges += far_sges(&wr);
        self.pending.push_back(wr);
        let bytes = self.bytes();
        let room = self.room.get_or_insert_with(|| budget.none());
        if room.bytes() != bytes {
            room.set(bytes);
        }
    }

    /// The oldest request ends. Who has had many at once does not keep room for as many for ever.
    pub(super) fn pop(&mut self) -> Option<SendWr> {
        let wr = self.pending.pop_front()?;
        let far = far_sges(&wr);
        let shrinks = self.pending.is_empty() && self.pending.capacity() > KEPT_ROOM;
        if shrinks {
            self.pending.shrink_to(0);
        }
        if far > 0 || shrinks {
            self.far_sges -= far;
            let bytes = self.bytes();
            if let Some(room) = &mut self.room {
                room.set(bytes);
            }
        }
        Some(wr)
    }

    fn bytes(&self) -> usize {
        self.pending.capacity() * size_of::<SendWr>() + self.far_sges
    }

    /// Whether another request may begin. With nothing left of the budget there is one at a time.
    pub(super) fn may_begin(&self, budget: &Budget) -> bool {
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
        self.pending = VecDeque::new();
        self.room = None;
        self.far_sges = 0;
        self.cursor = 0;
        self.cursor_packet = 0;
        self.recovering = None;
        self.ack_deadline = None;
        self.rnr_deadline = None;
        self.held = false;
        self.segment = 0;
        self.dammed = None;
    }

    /// Sends again from this PSN on.
    fn rewind(&mut self, psn: Psn) {
        let found = self
            .pending
            .iter()
            .position(|wr| wr.psns > 0 && psn.diff(wr.first) >= 0 && psn.diff(wr.end()) < 0);
        let Some(position) = found else { return };
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
    fn go_back_for(&mut self, missing: Psn) {
        if self.recovering != Some(missing) {
            self.recovering = Some(missing);
            self.rewind(missing);
        }
    }

    /// PSN of the packet that is sent next.
    fn cursor_psn(&self) -> Psn {
        match self.pending.get(self.cursor) {
            Some(wr) => wr.first.add(self.cursor_packet),
            None => self.next,
        }
    }

    /// The work request at the cursor is passed.
    pub(super) fn pass(&mut self) {
        self.cursor += 1;
        self.cursor_packet = 0;
    }

    /// The work request at the cursor.
    pub(super) fn at_cursor(&mut self) -> Option<&mut SendWr> {
        self.pending.get_mut(self.cursor)
    }

    /// The oldest request with an answer outstanding, before position `before`.
    fn oldest_awaiting(&self, before: usize) -> Option<usize> {
        self.pending
            .iter()
            .take(before)
            .position(SendWr::awaits_response)
    }
}

impl Qp {
    /// Completes what is due without a packet, then gives the next request packet, or a run of up to `most`.
    pub(super) fn poll_request<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        most: u32,
    ) -> Option<TxFrame> {
        if !self.state.sends() {
            return None;
        }
        if self.config.kind == QpType::Uc {
            // What was handed over before has been delivered.
            self.acknowledge_until(core, now, mem, self.requester.cursor_psn());
        }
        if self.waits.requester.is_some() {
            return None;
        }
        if let Some(deadline) = self.requester.rnr_deadline {
            if now < deadline {
                if let Some((_, until)) = &mut self.requester.dammed {
                    *until = self.sq.producer;
                }
                return None;
            }
            self.requester.rnr_deadline = None;
        }
        let (mut carried_out, turn) = (0, core.begin_turn());
        loop {
            self.retire(core, now, mem);
            if !self.state.sends() {
                return None;
            }
            if self.requester.cursor == self.requester.pending.len() && !self.fetch(core, mem) {
                self.check_drained(core, now, mem);
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
                if carried_out == LOCAL_BATCH || core.is_over(turn) {
                    self.interrupted = true;
                    return None;
                }
                carried_out += 1;
                self.carry_out(core, mem);
                continue;
            }
            match self.build_request(core, most) {
                Ok(frame) => {
                    let index = wr_index(&self.requester);
                    self.after_send(core, now, frame.packets);
                    if !self.requester.is_dammed(index) {
                        return Some(frame);
                    }
                }
                Err(unbuilt) => {
                    let failure = self.wait_or_fail(core, now, mem, unbuilt)?;
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
        core: &mut Core,
        now: Instant,
        mem: &M,
        unbuilt: Unbuilt,
    ) -> Option<Failure> {
        match unbuilt {
            Unbuilt::Failed(failure) => Some(failure),
            Unbuilt::Absent(need) => {
                self.waits.requester = self.await_page(core, now, mem, true, None, &need);
                // The peer is not late: it has not been asked.
                self.requester.ack_deadline = None;
                match self.waits.requester {
                    Some(_) => None,
                    None => Some(LOST_BUFFER),
                }
            }
        }
    }

    /// The page of an own buffer is there, or will not come.
    pub(super) fn own_page_answered(&mut self, core: &mut Core, now: Instant, repaired: bool) {
        let req = &mut self.requester;
        if !repaired {
            let position = req.cursor;
            if let Some(wr) = req.pending.get_mut(position) {
                wr.failed = Some(LOST_BUFFER);
            }
            return;
        }
        if req.high.diff(req.unacked) > 0 {
            req.ack_deadline = ack_timeout_ns(self.attr.timeout).map(|ns| now + Nanos(ns));
            self.sync_timer(core);
        }
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
            let outstanding = req
                .pending
                .iter()
                .take(req.cursor)
                .filter(|wr| wr.awaits_response())
                .count();
            return outstanding < usize::from(self.attr.max_rd_atomic.max(1));
        }
        true
    }

    /// Moves the cursor over the packets that were built, and starts the clock.
    fn after_send(&mut self, core: &mut Core, now: Instant, packets: u32) {
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
        core.counters
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
            req.ack_deadline = Some(now + Nanos(ns));
            self.sync_timer(core);
        }
    }

    /// Reads the next work request. Gives false if there is none that may be started.
    pub(super) fn fetch<M: Dma>(&mut self, core: &mut Core, mem: &M) -> bool {
        if self.state != State::Rts {
            return false;
        }
        if !self.requester.may_begin(&core.budget) {
            return false;
        }
        let mut wr = match self.next_rendezvous(core) {
            Some(wr) => wr,
            None if self.sq.fetched == self.sq.producer => return false,
            None => self.read_work_request(mem),
        };
        if wr.failed.is_none() {
            wr.failed = self.check_connected(core, &wr).err();
        }
        let packets = wr.length.div_ceil(self.mtu).max(1);
        wr.psns = match () {
            () if wr.failed.is_some() || wr.is_local() => 0,
            () if wr.is_atomic() => 1,
            () => packets,
        };
        self.requester.append(&core.budget, wr);
        true
    }

    /// The work request at `fetched`, taken apart. Its own format is checked here, its meaning by the caller.
    pub(super) fn read_work_request<M: Dma>(&mut self, mem: &M) -> SendWr {
        let index = self.sq.fetched;
        self.sq.fetched = index.wrapping_add(1);
        let mut wr = SendWr {
            flags: wr::WR_FLAG_SIGNALED,
            ..SendWr::new(index)
        };
        wr.failed = self.parse_work_request(mem, &mut wr).err();
        wr
    }

    fn parse_work_request<M: Dma>(&self, mem: &M, wr: &mut SendWr) -> Result<(), Failure> {
        const FETCH: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::WQE_FETCH);
        const FIRST: usize = 64;
        let ring = self.sq.ring.as_ref().ok_or(FETCH)?;
        let entry = ring.entry(wr.index);
        let mut bytes = [0; 1 << wr::MAX_STRIDE_SHIFT];
        let first = bytes.get_mut(..FIRST).ok_or(FETCH)?;
        mem.read(entry, first).map_err(|_| FETCH)?;
        let (wqe, _) = SqWqe::read_from_prefix(&bytes).map_err(|_| FETCH)?;
        wr.opcode = wqe.opcode;
        wr.flags = wqe.flags;
        wr.imm = wqe.imm.get();
        wr.rkey = wqe.rkey.get();
        wr.remote_addr = wqe.remote_addr.get();
        wr.compare_add = wqe.compare_add.get();
        wr.swap = wqe.swap.get();
        wr.ah = wqe.ah.get();
        wr.remote_qpn = wqe.remote_qpn.get();
        wr.qkey = wqe.compare_add.get() as u32;
        const KNOWN: u8 = wr::WR_FLAG_SIGNALED
            | wr::WR_FLAG_SOLICITED
            | wr::WR_FLAG_FENCE
            | wr::WR_FLAG_INLINE
            | wr::WR_FLAG_CSUM;
        if wqe.reserved0 != 0 || wqe.flags & !KNOWN != 0 {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::RESERVED));
        }
        let data = SQ_WQE_DATA as usize;
        if wqe.flags & wr::WR_FLAG_INLINE != 0 {
            let len = wqe.inline_len.get();
            if wqe.num_sge != 0
                || len > self.config.max_inline
                || data + len as usize > ring.stride()
            {
                return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT));
            }
            wr.inline_at = Some(entry + data as u64);
            wr.length = len;
            return Ok(());
        }
        let end = data + usize::from(wqe.num_sge) * size_of::<Sge>();
        if wqe.num_sge > self.config.max_send_sge
            || end > ring.stride()
            || wqe.inline_len.get() != 0
        {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT));
        }
        if end > FIRST {
            let rest = bytes.get_mut(FIRST..end).ok_or(FETCH)?;
            mem.read(entry + FIRST as u64, rest).map_err(|_| FETCH)?;
        }
        wr.sges = parse_sges(bytes.get(data..end).unwrap_or(&[]));
        let total: u64 = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        wr.length = u32::try_from(total)
            .ok()
            .filter(|len| *len <= MAX_MSG_SIZE)
            .ok_or(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH))?;
        Ok(())
    }

    /// Whether a connected QP can carry out a work request (IBTA 10.7.2.2, 11.4.1.1).
    fn check_connected(&self, core: &Core, wr: &SendWr) -> Result<(), Failure> {
        const OPCODE: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE);
        let rc = self.config.kind.is_reliable();
        let access = match wr.opcode {
            wr::WR_SEND | wr::WR_SEND_IMM | wr::WR_WRITE | wr::WR_WRITE_IMM => Access::LocalRead,
            wr::WR_SEND_INV | wr::WR_ATOMIC_WRITE | wr::WR_FLUSH if rc => Access::LocalRead,
            wr::WR_READ | wr::WR_COMP_SWAP | wr::WR_FETCH_ADD if rc => Access::LocalWrite,
            // The list of a registration has DMA addresses, which only the kernel may name.
            wr::WR_REG_MR if self.config.uctx == 0 => Access::LocalRead,
            wr::WR_LOCAL_INV | wr::WR_BIND_MW => Access::LocalRead,
            _ => return Err(OPCODE),
        };
        let without_data = wr.is_local() || wr.opcode == wr::WR_FLUSH;
        if without_data && (!wr.sges.is_empty() || wr.inline_at.is_some()) {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT));
        }
        if wr.flags & wr::WR_FLAG_CSUM != 0 {
            return Err(OPCODE);
        }
        if access == Access::LocalWrite && wr.inline_at.is_some() {
            return Err(OPCODE);
        }
        if wr.is_answered() && self.attr.max_rd_atomic == 0 {
            return Err(OPCODE);
        }
        let word = wr.is_atomic() || wr.opcode == wr::WR_ATOMIC_WRITE;
        if word && wr.length != 8 {
            return Err(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH));
        }
        for sge in wr.sges.iter().filter(|sge| sge.len > 0) {
            core.mkeys
                .check(sge.lkey, self.bearer_of(wr), sge.addr, sge.len, access)
                .map_err(Failure::local)?;
        }
        Ok(())
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
            let before = absent.va.checked_sub(sge.addr)?;
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
        if let Some(at) = wr.inline_at {
            push_segment(out, at + u64::from(offset), len);
            return Ok(len);
        }
        let (mut skip, mut left) = (offset, len);
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
    pub(super) fn retire<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M) {
        while let Some(wr) = self.requester.pending.front() {
            if let Some(failure) = wr.failed {
                self.fail_request(core, now, mem, failure);
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
            self.requester.cursor = self.requester.cursor.saturating_sub(1);
            let fin = self.fin_after(core, &wr);
            self.complete_send(core, now, mem, &wr, None);
            if let Some(fin) = fin {
                let fin = SendWr { psns: 1, ..fin };
                self.requester.append(&core.budget, fin);
            }
        }
    }

    /// Makes the completion of a send work request, if it is due.
    pub(super) fn complete_send<M: Dma>(
        &self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        wr: &SendWr,
        failure: Option<Failure>,
    ) {
        if let Some(own) = wr.own {
            self.complete_own(core, now, mem, own, failure);
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
        core.complete(mem, now, self.config.send_cqn, entry);
    }

    /// The oldest work request fails, and with it the send queue (IBTA 10.3.1.6, 10.3.1.7).
    pub(super) fn fail_request<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        failure: Failure,
    ) {
        let wr = self.requester.pop();
        if let Some(wr) = &wr {
            self.complete_send(core, now, mem, wr, Some(failure));
        }
        if wr.is_some_and(|wr| matches!(wr.own, Some(Own::Fin(_)))) {
            // No completion tells of it.
            self.fail_with_event(core, now, mem, event::QP_FATAL);
        } else if self.config.kind.is_reliable() {
            self.fail(core, now, mem);
        } else {
            self.state = State::Sqe;
            self.flush_sends(core, now, mem);
        }
    }

    /// Completes everything in the send queue as flushed.
    pub(super) fn flush_sends<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M) {
        while let Some(wr) = self.requester.pop() {
            self.complete_send(core, now, mem, &wr, Some(Failure::FLUSHED));
        }
        self.flush_rendezvous(core, now, mem);
        self.requester.clear();
        while self.sq.fetched != self.sq.producer {
            let wr = self.read_work_request(mem);
            self.complete_send(core, now, mem, &wr, Some(Failure::FLUSHED));
        }
    }

    /// In SQD: says so once everything that had begun is done (IBTA 10.3.1.5).
    pub(super) fn check_drained<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M) {
        if self.state == State::Sqd && self.requester.is_idle() && self.attr.sqd_notify != 0 {
            self.attr.sqd_notify = 0;
            core.raise_async(mem, now, event::SQ_DRAINED, self.number);
        }
    }

    /// Everything before `psn` has arrived at the peer.
    fn acknowledge_until<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M, psn: Psn) {
        let req = &mut self.requester;
        // An answer that has not come holds back what follows it: an acknowledgement beyond it means that
        // the response was lost (IBTA 9.7.5.1.2).
        let mut until = psn;
        if let Some(wr) = req.pending.iter().find(|wr| wr.awaits_response()) {
            let missing = wr.first.add(wr.responses);
            if until.diff(missing) > 0 {
                until = missing;
            }
        }
        if until.diff(req.unacked) <= 0 {
            return;
        }
        req.unacked = until;
        req.recovering = None;
        (req.retries, req.rnr_retries) = (req.retry_limit, req.rnr_retry_limit);
        let outstanding = req.high.diff(req.unacked) > 0;
        req.ack_deadline = match ack_timeout_ns(self.attr.timeout) {
            Some(ns) if outstanding => Some(now + Nanos(ns)),
            _ => None,
        };
        // A cursor that an acknowledgement has overtaken (after a rewind) moves on.
        if req.cursor_psn().diff(until) < 0 {
            req.skip_to(until);
        }
        self.retire(core, now, mem);
    }

    /// An acknowledgement or response arrives.
    pub(super) fn receive_response<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) {
        if !self.state.sends() {
            return;
        }
        let psn = header.bth.psn;
        let req = &self.requester;
        // Ghosts of acknowledgements: nothing such has been sent (IBTA 9.7.5.1).
        if psn.diff(req.high) >= 0 {
            return;
        }
        match header.bth.opcode.info().kind {
            OpKind::Ack => self.receive_ack(core, now, mem, header, psn),
            OpKind::AtomicAck => self.receive_atomic(core, now, mem, header),
            OpKind::ReadResponse => self.receive_read(core, now, mem, header, payload),
            _ => {}
        }
        if self.state.sends() {
            self.sync_timer(core);
            self.wake(core);
        }
    }

    fn receive_ack<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        psn: Psn,
    ) {
        let Some(Aeth { syndrome, .. }) = header.aeth else {
            return;
        };
        match syndrome {
            Syndrome::Ack { .. } => {
                self.take_ready_notice(core, psn);
                self.acknowledge_until(core, now, mem, psn.next());
                self.recover_lost_response(psn);
            }
            Syndrome::RnrNak { timer } => {
                if psn.diff(self.requester.unacked) < 0 {
                    return;
                }
                core.counters.inc(Counter::rnr_nak_received);
                if self.acknowledge_before_nak(core, now, mem, psn) {
                    self.receive_rnr(core, now, mem, psn, timer);
                }
            }
            Syndrome::Nak(code) => {
                if psn.diff(self.requester.unacked) < 0 {
                    return;
                }
                if self.acknowledge_before_nak(core, now, mem, psn) {
                    self.receive_nak(core, now, mem, psn, code);
                }
            }
            Syndrome::Reserved(_) => {}
        }
    }

    /// What is before the refused request is acknowledged once more: the page that it lacked is there now.
    /// From others it is a repetition that comes late; the request is then refused once more.
    fn take_ready_notice(&mut self, core: &Core, acked: Psn) {
        let req = &mut self.requester;
        if core.config.ready_notice && req.rnr_deadline.is_some() && acked.next() == req.refused {
            req.rnr_deadline = None;
            req.rnr_retries = req.rnr_retry_limit;
        }
    }

    /// A NAK acknowledges what is before it. Gives false if a response before it is missing: that is asked for
    /// again first, and the NAK will come again.
    fn acknowledge_before_nak<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        psn: Psn,
    ) -> bool {
        self.acknowledge_until(core, now, mem, psn);
        let missing = self.requester.unacked;
        if missing == psn {
            return true;
        }
        self.requester.go_back_for(missing);
        false
    }

    /// An acknowledgement went past a READ or atomic whose response is missing: ask again.
    fn recover_lost_response(&mut self, acked: Psn) {
        let req = &mut self.requester;
        if let Some(position) = req.oldest_awaiting(req.cursor)
            && let Some(wr) = req.pending.get(position)
        {
            let missing = wr.first.add(wr.responses);
            if acked.diff(missing) >= 0 {
                req.go_back_for(missing);
            }
        }
    }

    fn receive_rnr<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M, psn: Psn, timer: u8) {
        let req = &mut self.requester;
        if req.rnr_retry_limit != RNR_FOREVER {
            if req.rnr_retries == 0 {
                let failure = Failure::new(cqe::RNR_RETRY_EXC_ERR, cqe::REMOTE);
                self.fail_request(core, now, mem, failure);
                return;
            }
            req.rnr_retries -= 1;
        }
        req.rewind(psn);
        req.refused = psn;
        req.ack_deadline = None;
        req.rnr_deadline = Some(now + Nanos(rnr_timer_ns(timer)));
        if core.config.pitfalls.damming {
            let from = req.dammed.map_or(self.sq.producer, |(from, _)| from);
            req.dammed = Some((from, self.sq.producer));
        }
    }

    fn receive_nak<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        psn: Psn,
        code: NakCode,
    ) {
        let status = match code {
            NakCode::PsnSequenceError => {
                core.counters.inc(Counter::packet_seq_err);
                self.retry(core, now, mem, psn);
                return;
            }
            NakCode::InvalidRequest | NakCode::InvalidRdRequest => {
                core.counters.inc(Counter::req_remote_invalid_request);
                cqe::REM_INV_REQ_ERR
            }
            NakCode::RemoteAccessError => {
                core.counters.inc(Counter::req_remote_access_errors);
                cqe::REM_ACCESS_ERR
            }
            NakCode::RemoteOperationalError => cqe::REM_OP_ERR,
        };
        self.fail_request(core, now, mem, Failure::new(status, cqe::REMOTE));
    }

    /// Sends again from `psn`, if a retry is left.
    fn retry<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M, psn: Psn) {
        let req = &mut self.requester;
        if req.retries == 0 {
            self.fail_request(core, now, mem, Failure::new(cqe::RETRY_EXC_ERR, cqe::NONE));
            return;
        }
        req.retries -= 1;
        req.rewind(psn);
        req.ack_deadline = ack_timeout_ns(self.attr.timeout).map(|ns| now + Nanos(ns));
    }

    pub(super) fn handle_request_timer<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M) {
        if !self.state.sends() {
            return;
        }
        // A page of this side is missing: the peer has not been asked for all of it.
        if self.waits.requester.is_some() {
            self.requester.ack_deadline = None;
        }
        let req = &mut self.requester;
        if req.rnr_deadline.is_some_and(|at| at <= now) {
            req.rnr_deadline = None;
            self.wake(core);
            return;
        }
        if req.ack_deadline.is_some_and(|at| at <= now) {
            req.ack_deadline = None;
            req.dammed = None;
            req.recovering = None;
            core.counters.inc(Counter::local_ack_timeout_err);
            let from = req.unacked;
            self.retry(core, now, mem, from);
            self.wake(core);
        }
    }

    /// The READ or atomic that a response belongs to, if it is the packet that comes next.
    fn match_response<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        psn: Psn,
    ) -> Option<usize> {
        let req = &self.requester;
        let position = req.oldest_awaiting(req.pending.len())?;
        let wr = req.pending.get(position)?;
        let expected = wr.first.add(wr.responses);
        let ahead = psn.diff(expected);
        if ahead < 0 {
            return None; // a duplicate
        }
        // A response acknowledges every request before it.
        if ahead > 0 {
            self.acknowledge_until(core, now, mem, expected);
            self.requester.go_back_for(expected);
            return None;
        }
        self.acknowledge_until(core, now, mem, psn);
        self.requester.oldest_awaiting(self.requester.pending.len())
    }

    fn receive_atomic<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
    ) {
        let psn = header.bth.psn;
        let Some(position) = self.match_response(core, now, mem, psn) else {
            return;
        };
        let Some(wr) = self.requester.pending.get(position) else {
            return;
        };
        let Some(ack) = header.atomic_ack else { return };
        if !wr.is_atomic() {
            self.bad_response(core, now, mem, position);
            return;
        }
        let bytes = ack.original.to_le_bytes();
        let placed = self.scatter_response(core, mem, position, 0, 8, Payload::Bytes(&bytes));
        match placed {
            Ok(()) | Err(Misplaced::Lost) => {
                self.accept_response(core, now, mem, position, psn, 1);
            }
            Err(Misplaced::Absent(absent, hint)) => {
                let need = Need::new(absent, hint, psn.get());
                self.ask_again_for(core, now, mem, position, psn, need);
            }
            Err(Misplaced::Failed(failure)) => self.fail_at(core, now, mem, position, failure),
        }
    }

    /// A response has no place to go yet: it is asked for again when it has.
    fn ask_again_for<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        position: usize,
        psn: Psn,
        need: Need,
    ) {
        let failure = self.wait_or_fail(core, now, mem, Unbuilt::Absent(need));
        if let Some(failure) = failure {
            self.fail_at(core, now, mem, position, failure);
            return;
        }
        self.requester.recovering = Some(psn);
        self.requester.rewind(psn);
        if core.config.pitfalls.flood {
            self.waits.requester = None;
            self.requester.rnr_deadline = Some(now + FLOOD_INTERVAL);
        }
    }

    fn receive_read<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) {
        let psn = header.bth.psn;
        let Some(position) = self.match_response(core, now, mem, psn) else {
            return;
        };
        let Some(wr) = self.requester.pending.get(position) else {
            return;
        };
        let offset = wr.responses * self.mtu;
        let expected = (wr.landing() - offset.min(wr.landing())).min(self.mtu);
        let last = wr.responses + 1 == wr.psns;
        let ends = header.bth.opcode.is_last_or_only();
        if wr.is_atomic() || payload.len() != expected as usize || last != ends {
            self.bad_response(core, now, mem, position);
            return;
        }
        match self.scatter_response(core, mem, position, offset, expected, payload) {
            Ok(()) => self.accept_response(core, now, mem, position, psn, 1),
            // It will be asked for again, and given up in the end.
            Err(Misplaced::Lost) => {}
            Err(Misplaced::Absent(absent, hint)) => {
                let need = Need::new(absent, hint, psn.get());
                self.ask_again_for(core, now, mem, position, psn, need);
            }
            Err(Misplaced::Failed(failure)) => self.fail_at(core, now, mem, position, failure),
        }
    }

    /// Takes a run of READ responses as a whole, if it is what comes next.
    pub(super) fn receive_response_run<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> bool {
        let (psn, req) = (header.bth.psn, &self.requester);
        let last = psn.add(packets).prev();
        if !self.state.sends() || last.diff(req.high) >= 0 {
            return false;
        }
        let Some(position) = req.oldest_awaiting(req.pending.len()) else {
            return false;
        };
        let Some(wr) = req.pending.get(position) else {
            return false;
        };
        let expected = wr.is_read()
            && psn == wr.first.add(wr.responses)
            && wr.responses + packets < wr.psns
            && header.bth.opcode.info().kind == OpKind::ReadResponse
            && !header.bth.opcode.is_last_or_only();
        if !expected {
            return false;
        }
        let (offset, len) = (wr.responses * self.mtu, packets * self.mtu);
        if self
            .scatter_response(core, mem, position, offset, len, payload)
            .is_err()
        {
            return false;
        }
        self.acknowledge_until(core, now, mem, psn);
        // What was before it may have completed.
        if let Some(position) = self.requester.oldest_awaiting(self.requester.pending.len()) {
            self.accept_response(core, now, mem, position, last, packets);
        }
        self.sync_timer(core);
        self.wake(core);
        true
    }

    fn scatter_response<M: Dma>(
        &self,
        core: &mut Core,
        mem: &M,
        position: usize,
        offset: u32,
        len: u32,
        payload: Payload<'_, M>,
    ) -> Result<(), Misplaced> {
        let Some(wr) = self.requester.pending.get(position) else {
            return Ok(());
        };
        let segments = self
            .gather(core, wr, offset, len, Access::LocalWrite)
            .map_err(|unbuilt| match unbuilt {
                Unbuilt::Failed(failure) => Misplaced::Failed(failure),
                Unbuilt::Absent(need) => Misplaced::Absent(need.absent, need.hint),
            })?;
        copy_payload(core, mem, &segments, payload, &mut 0)?;
        Ok(())
    }

    fn accept_response<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        position: usize,
        last: Psn,
        packets: u32,
    ) {
        if let Some(wr) = self.requester.pending.get_mut(position) {
            wr.responses += packets;
        }
        self.acknowledge_until(core, now, mem, last.next());
    }

    /// The peer's response breaks the protocol (IBTA 9.9.2.4.2, bad response).
    fn bad_response<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M, position: usize) {
        let failure = Failure::new(cqe::BAD_RESP_ERR, cqe::PROTOCOL);
        self.fail_at(core, now, mem, position, failure);
    }

    /// A work request fails; those before it are complete, because responses come in order.
    fn fail_at<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        position: usize,
        failure: Failure,
    ) {
        if let Some(wr) = self.requester.pending.get_mut(position) {
            wr.failed = Some(failure);
        }
        if position == 0 {
            self.fail_request(core, now, mem, failure);
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
    fn skip_to(&mut self, psn: Psn) {
        while let Some(wr) = self.pending.get(self.cursor) {
            if !wr.done && (wr.psns == 0 || psn.diff(wr.end()) < 0) {
                self.cursor_packet = psn.diff(wr.first).max(0) as u32;
                return;
            }
            self.cursor += 1;
            self.cursor_packet = 0;
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
