//! What a responder does with the request that was expected: each operation with its checks, in the order of IBTA 9.7.4.

use faultline_abi::U32;
use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::qp::{
    ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE,
};
use faultline_wire::Feth;
use faultline_wire::aeth::Syndrome;
use faultline_wire::bth::Psn;
use faultline_wire::opcode::OpKind;
use faultline_wire::packet::RoceHeader;

use super::fault::{Durable, IngressNeed};
use super::responder::{Executed, MSN_MASK, Message, Operation, Refusal, Reply};
use super::tag::Begun;
use super::{PlaceError, Qp, QpType};
use crate::config::MAX_MSG_SIZE;
use crate::context::Context;
use crate::core::Core;
use crate::dma::{Dma, Persist};
use crate::fault::Need;
use crate::frame::{CopyError, Payload, Segments};
use crate::mkey::{Access, Bearer};
use crate::srq::{RecvWr, TakeError};
use crate::tag::HEADERS;

/// Bytes of a READ that must be there before it is accepted.
const READ_AHEAD: u32 = 64 << 10;

impl Qp {
    /// Carries out the packet that was expected, or the run that begins with it.
    pub(super) fn execute<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> Result<(), Refusal> {
        let info = header.bth.opcode.info();
        self.check_opcode_sequence(header, packets, payload.len())?;
        match info.kind {
            OpKind::Send => self.execute_send(cx, header, payload)?,
            OpKind::Write => self.execute_write(cx, header, payload)?,
            OpKind::ReadRequest => return self.execute_read(cx.core, header),
            OpKind::CompareSwap | OpKind::FetchAdd => {
                return self.execute_atomic(cx, header, info.kind);
            }
            OpKind::Flush => return self.execute_flush(cx, header),
            OpKind::AtomicWrite => {
                return self.execute_atomic_write(cx, header, payload);
            }
            _ => return Err(Refusal::INVALID),
        }
        let resp = &mut self.responder;
        resp.expected = header.bth.psn.add(packets);
        if header.bth.opcode.is_last_or_only() {
            resp.message = None;
            resp.msn = (resp.msn + 1) & MSN_MASK;
        }
        // What its receiver can't be told of is not acknowledged either: this queue pair is about to fail.
        if self.endpoint.config.kind.is_reliable()
            && header.bth.ack_req
            && !cx.core.is_silenced(self.endpoint.number)
        {
            let newest = resp.expected.prev();
            resp.acknowledge(newest, Syndrome::ACK);
        }
        Ok(())
    }

    /// First, middle, last in order, and lengths that fit the position (IBTA 9.7.4.1.3, 9.7.4.1.6).
    fn check_opcode_sequence(
        &self,
        header: &RoceHeader,
        packets: u32,
        len: usize,
    ) -> Result<(), Refusal> {
        let opcode = header.bth.opcode;
        let kind = opcode.info().kind;
        let in_order = match (self.responder.message, kind) {
            (None, _) => opcode.is_first_or_only(),
            (Some(Message::Send), OpKind::Send) => !opcode.is_first_or_only(),
            (Some(Message::Write { .. }), OpKind::Write) => !opcode.is_first_or_only(),
            // UC: a new message ends a damaged one.
            (Some(_), _) => self.endpoint.config.kind == QpType::Uc && opcode.is_first_or_only(),
        };
        let mtu = self.endpoint.mtu as usize;
        let fits = match (opcode.is_first_or_only(), opcode.is_last_or_only()) {
            (_, false) => len == mtu * packets as usize,
            (true, true) => len <= mtu,
            (false, true) => (1..=mtu).contains(&len),
        };
        let fits = fits || !matches!(kind, OpKind::Send | OpKind::Write);
        if in_order && fits {
            Ok(())
        } else {
            Err(Refusal::INVALID)
        }
    }

    /// As which user of memory keys a request acts: as the QP in its own protection domain, or in that of the SRQ that an
    /// XRC request is for, which must be of the target's XRC domain (IBTA annex A14).
    fn key_bearer(&self, core: &Core, header: &RoceHeader) -> Result<Bearer, Refusal> {
        let Some(xrcd) = self.endpoint.config.xrcd else {
            return Ok(self.endpoint.key_user());
        };
        let named = header.xrceth.and_then(|xrc| core.srqs.get(xrc.srqn));
        match named {
            Some(srq) if srq.xrc.is_some_and(|(domain, _)| domain == xrcd) => {
                Ok(self.endpoint.key_user_in(srq.pd))
            }
            _ => Err(Refusal::INVALID),
        }
    }

    /// The receive work request for the message that begins or, for a WRITE with immediate data, ends.
    pub(super) fn need_receive<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
    ) -> Result<(), Refusal> {
        let mut srqn = self.endpoint.config.srqn;
        // A request that is repeated can't be another one.
        let kept = self.responder.current.as_ref();
        if kept.is_some_and(|wr| wr.class.is_some()) {
            return Err(Refusal::INVALID);
        }
        if self.endpoint.config.kind == QpType::XrcTgt {
            self.key_bearer(cx.core, header)?;
            srqn = header.xrceth.map(|xrc| xrc.srqn);
            // Nor for another queue.
            if kept.is_some_and(|wr| wr.srqn != srqn) {
                return Err(Refusal::INVALID);
            }
        }
        match self.take_receive(cx, srqn) {
            Ok(wr) => {
                self.responder.current = Some(wr);
                Ok(())
            }
            Err(TakeError::Empty) => Err(Refusal::NotReady),
            Err(TakeError::Broken) => Err(Refusal::operational(None)),
        }
    }

    fn execute_send<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Refusal> {
        let opcode = header.bth.opcode;
        let first = opcode.is_first_or_only();
        // Headers by which a buffer is chosen are those that are delivered, whatever the sender does meanwhile.
        let mut headers = [0; HEADERS];
        let payload = match self.endpoint.listed_tags(cx.core).filter(|_| first) {
            Some(listed) => {
                cx.core.charge(listed);
                let own = payload.with_own_head(&mut headers);
                own.map_err(|_| Refusal::Lost)?
            }
            None => payload,
        };
        if first {
            // A damaged message leaves its receive for the next one (UC: IBTA 9.8.2.2.7).
            if self.begin_send(cx, header, payload)? == Begun::Rendezvous {
                return Ok(());
            }
            self.responder.received = 0;
            self.responder.message = Some(Message::Send);
        }
        let received = self.responder.received;
        let wr = self.responder.current.as_ref().ok_or(Refusal::INVALID)?;
        let payload = match wr.class {
            Some(class) if first => class.cut(payload, wr.capacity),
            _ => payload,
        };
        let len = payload.len() as u32;
        let longest = wr.capacity.min(u64::from(MAX_MSG_SIZE));
        if u64::from(received) + u64::from(len) > longest {
            return Err(Refusal::TooLong);
        }
        self.scatter(cx, wr, u64::from(received), payload).map_err(
            |misplaced| match misplaced {
                PlaceError::Lost => Refusal::Lost,
                PlaceError::Failed(failure) => Refusal::operational(Some(failure)),
                PlaceError::Absent(absent, hint) => Refusal::Absent(IngressNeed {
                    need: Need::new(absent, hint, header.bth.psn.get()),
                    receive: true,
                }),
            },
        )?;
        self.responder.received += len;
        if opcode.is_last_or_only() {
            if let Some(rkey) = header.ieth {
                cx.core
                    .mkeys
                    .invalidate_for_peer(self.key_bearer(cx.core, header)?, rkey)
                    .map_err(|_| Refusal::not_invalidated())?;
            }
            self.finish_receive(cx, header, cqe::RECV, self.responder.received);
        }
        Ok(())
    }

    /// Writes a payload into the buffers of a receive work request, from byte `offset` of them on.
    pub(super) fn scatter<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        wr: &RecvWr,
        offset: u64,
        payload: Payload<'_, M>,
    ) -> Result<(), PlaceError> {
        let bearer = match wr.srqn.and_then(|srqn| cx.core.srqs.get(srqn)) {
            Some(srq) => self.endpoint.key_user_in(srq.pd),
            None => self.endpoint.key_user(),
        };
        let (mut skip, mut taken, len) = (offset, 0, payload.len());
        for sge in &wr.sges {
            if taken == len {
                break;
            }
            if skip >= u64::from(sge.len) {
                skip -= u64::from(sge.len);
                continue;
            }
            let left = sge.len - skip as u32;
            let n = u64::from(left).min((len - taken) as u64) as u32;
            let va = sge.addr.wrapping_add(skip);
            let mut segments = Segments::new();
            cx.core
                .mkeys
                .translate(sge.lkey, bearer, va, n, Access::LocalWrite, &mut segments)
                .map_err(|miss| PlaceError::new(miss, va, left))?;
            cx.copy_payload(&segments, payload, &mut taken)?;
            skip = 0;
        }
        Ok(())
    }

    fn finish_receive<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        opcode: u8,
        byte_len: u32,
    ) {
        let Some(wr) = self.responder.current.take() else {
            return;
        };
        let mut flags = 0;
        if header.imm.is_some() {
            flags |= cqe::CQE_IMM;
        }
        if header.bth.solicited {
            flags |= cqe::CQE_SOLICITED;
        }
        let imm = match (header.imm, header.ieth) {
            (Some(imm), _) => U32::from_bytes(imm.to_be_bytes()),
            (None, Some(rkey)) => {
                flags |= cqe::CQE_INVALIDATE;
                U32::new(rkey)
            }
            (None, None) => U32::new(0),
        };
        let entry = Cqe {
            byte_len: U32::new(byte_len),
            imm,
            src_qp: self.endpoint.attr.dest_qpn,
            opcode,
            flags,
            ..Cqe::default()
        };
        self.endpoint.complete_receive(cx, &wr, entry);
    }

    /// A WRITE with immediate data that is refused for its key takes a receive work request, if one is posted: that completes
    /// with a local access error. A first packet without immediate data takes none.
    fn with_receive<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        refusal: Refusal,
    ) -> Refusal {
        let takes = refusal.is_of_access()
            && header.imm.is_some()
            && self.endpoint.config.kind.is_reliable()
            && (self.responder.current().is_some() || self.need_receive(cx, header).is_ok());
        match takes {
            true => Refusal::access_with_receive(),
            false => refusal,
        }
    }

    fn execute_write<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Refusal> {
        let opcode = header.bth.opcode;
        let bearer = self.key_bearer(cx.core, header)?;
        let (addr, rkey, left) = if opcode.is_first_or_only() {
            let reth = header.reth.ok_or(Refusal::INVALID)?;
            if !self.endpoint.allows(ACCESS_REMOTE_WRITE) {
                return Err(Refusal::INVALID);
            }
            if reth.len > MAX_MSG_SIZE {
                return Err(Refusal::INVALID);
            }
            // The key of an empty WRITE is not looked at (IBTA 9.7.4.1.5).
            if reth.len > 0 {
                let access = Access::RemoteWrite;
                let checked = cx
                    .core
                    .mkeys
                    .check(reth.rkey, bearer, reth.addr, reth.len, access);
                if checked.is_err() {
                    return Err(self.with_receive(cx, header, Refusal::access()));
                }
            }
            (reth.addr, reth.rkey, reth.len)
        } else {
            match self.responder.message {
                Some(Message::Write { next, rkey, left }) => (next, rkey, left),
                _ => return Err(Refusal::INVALID),
            }
        };
        let len = payload.len() as u32;
        // IBTA 9.7.4.1.6: the payloads add up to the length in the RETH.
        let ends = opcode.is_last_or_only();
        if len > left || (ends && len != left) {
            return Err(Refusal::INVALID);
        }
        if ends && header.imm.is_some() {
            self.need_receive(cx, header)?;
        }
        if len > 0 {
            let mut segments = Segments::new();
            let access = Access::RemoteWrite;
            if let Err(miss) =
                cx.core
                    .mkeys
                    .translate(rkey, bearer, addr, len, access, &mut segments)
            {
                let refusal = Refusal::of_key(miss, addr, left, header.bth.psn);
                return Err(self.with_receive(cx, header, refusal));
            }
            cx.copy_payload(&segments, payload, &mut 0)
                .map_err(|error| match error {
                    CopyError::Source => Refusal::Lost,
                    CopyError::Destination => Refusal::operational(None),
                })?;
        }
        self.responder.message = Some(Message::Write {
            next: addr.wrapping_add(u64::from(len)),
            rkey,
            left: left - len,
        });
        self.responder.received = if opcode.is_first_or_only() {
            len
        } else {
            self.responder.received + len
        };
        if ends && header.imm.is_some() {
            self.finish_receive(cx, header, cqe::RECV_RDMA_WITH_IMM, self.responder.received);
        }
        Ok(())
    }

    fn execute_read(&mut self, core: &mut Core, header: &RoceHeader) -> Result<(), Refusal> {
        let reth = header.reth.ok_or(Refusal::INVALID)?;
        let bearer = self.key_bearer(core, header)?;
        self.check_rd_atomic(ACCESS_REMOTE_READ)?;
        if reth.len > MAX_MSG_SIZE {
            return Err(Refusal::INVALID);
        }
        if reth.len > 0 {
            core.mkeys
                .check(reth.rkey, bearer, reth.addr, reth.len, Access::RemoteRead)
                .map_err(|_| Refusal::access())?;
            // Later pages are waited for when it is their turn.
            let first = reth.len.min(READ_AHEAD);
            core.mkeys
                .require(reth.rkey, bearer, reth.addr, first, Access::RemoteRead)
                .map_err(|miss| Refusal::of_key(miss, reth.addr, reth.len, header.bth.psn))?;
        }
        let psns = reth.len.div_ceil(self.endpoint.mtu).max(1);
        let limit = usize::from(self.endpoint.attr.max_dest_rd_atomic);
        let psn = header.bth.psn;
        let resp = &mut self.responder;
        resp.expected = psn.add(psns);
        resp.msn = (resp.msn + 1) & MSN_MASK;
        resp.remember(
            Executed {
                psn,
                psns,
                what: Operation::Read {
                    addr: reth.addr,
                    rkey: reth.rkey,
                    len: reth.len,
                    bearer,
                },
            },
            limit,
        );
        resp.replies.push_back(Reply::Read {
            psn,
            msn: resp.msn,
            addr: reth.addr,
            rkey: reth.rkey,
            bearer,
            len: reth.len,
            sent: 0,
            again: false,
            urged: false,
        });
        Ok(())
    }

    fn execute_atomic<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        kind: OpKind,
    ) -> Result<(), Refusal> {
        let atomic = header.atomic.ok_or(Refusal::INVALID)?;
        let bearer = self.key_bearer(cx.core, header)?;
        self.check_rd_atomic(ACCESS_REMOTE_ATOMIC)?;
        // IBTA 9.7.4.1.7: the operand is aligned.
        if atomic.addr & 7 != 0 {
            return Err(Refusal::INVALID);
        }
        let place = (atomic.rkey, atomic.addr);
        let at = Self::find_word(cx.core, bearer, place, Access::RemoteAtomic, header.bth.psn)?;
        let done = match kind {
            OpKind::CompareSwap => cx
                .mem
                .compare_exchange_u64(at, atomic.compare, atomic.swap_add),
            _ => cx.mem.fetch_add_u64(at, atomic.swap_add),
        };
        let original = done.map_err(|_| {
            cx.count(Counter::dma_errors);
            Refusal::operational(None)
        })?;
        let limit = usize::from(self.endpoint.attr.max_dest_rd_atomic);
        let psn = header.bth.psn;
        let resp = &mut self.responder;
        resp.expected = psn.next();
        resp.msn = (resp.msn + 1) & MSN_MASK;
        resp.remember(
            Executed {
                psn,
                psns: 1,
                what: Operation::Atomic { original },
            },
            limit,
        );
        resp.replies.push_back(Reply::Atomic {
            psn,
            msn: resp.msn,
            original,
            again: false,
        });
        Ok(())
    }

    /// DMA address of the eight bytes that a request wants to change at once.
    fn find_word(
        core: &mut Core,
        bearer: Bearer,
        (rkey, addr): (u32, u64),
        access: Access,
        psn: Psn,
    ) -> Result<u64, Refusal> {
        let mut segments = Segments::new();
        core.mkeys
            .translate(rkey, bearer, addr, 8, access, &mut segments)
            .map_err(|miss| Refusal::of_key(miss, addr, 8, psn))?;
        match segments.as_slice() {
            [segment] if segment.addr & 7 == 0 => Ok(segment.addr),
            _ => Err(Refusal::operational(None)),
        }
    }

    /// What was written before is in memory, which all see alike: the processors of the guest share it. To make it
    /// durable is up to what the memory is backed by.
    fn execute_flush<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
    ) -> Result<(), Refusal> {
        let (reth, feth) = match (header.reth, header.feth) {
            (Some(reth), Some(feth)) => (reth, feth),
            _ => return Err(Refusal::INVALID),
        };
        let bearer = self.key_bearer(cx.core, header)?;
        let whole = feth.selectivity == Feth::MR;
        let known = Feth::GLOBAL | Feth::PERSISTENT;
        if feth.placement & !known != 0
            || feth.placement == 0
            || !(whole || feth.selectivity == Feth::RANGE)
        {
            return Err(Refusal::INVALID);
        }
        for (bit, right, access) in [
            (Feth::GLOBAL, ACCESS_FLUSH_GLOBAL, Access::FlushGlobal),
            (
                Feth::PERSISTENT,
                ACCESS_FLUSH_PERSISTENT,
                Access::FlushPersistent,
            ),
        ] {
            if feth.placement & bit == 0 {
                continue;
            }
            self.check_rd_atomic(right)?;
            let range = (!whole).then_some((reth.addr, reth.len));
            cx.core
                .mkeys
                .check_flush(reth.rkey, bearer, range, access)
                .map_err(|_| Refusal::access())?;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if feth.placement & Feth::PERSISTENT != 0 {
            let range = (!whole).then_some((reth.addr, reth.len));
            self.require_durable(cx, header.bth.psn, (reth.rkey, bearer, range))?;
        }
        self.answer_done(header.bth.psn, reth.rkey, bearer);
        Ok(())
    }

    /// The memory that the FLUSH with this PSN names must be durable; begins to write it back, unless that has begun.
    fn require_durable<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        psn: Psn,
        (rkey, bearer, range): (u32, Bearer, Option<(u64, u32)>),
    ) -> Result<(), Refusal> {
        if let Some(durable) = self.waits.durable.filter(|durable| durable.psn == psn) {
            return match durable.ended {
                Some(true) => Ok(()),
                Some(false) => {
                    cx.count(Counter::dma_errors);
                    Err(Refusal::operational(None))
                }
                None => Err(Refusal::NotDurable),
            };
        }
        let access = Access::FlushPersistent;
        let ranges = cx.core.mkeys.ranges(rkey, bearer, range, access);
        match cx.mem.persist(self.endpoint.number, ranges.as_deref()) {
            Persist::Done => return Ok(()),
            Persist::Begun(number) => {
                self.waits.durable = Some(Durable {
                    psn,
                    number,
                    since: cx.now,
                    ended: None,
                });
            }
            Persist::Busy => {}
        }
        Err(Refusal::NotDurable)
    }

    fn execute_atomic_write<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Refusal> {
        let reth = header.reth.ok_or(Refusal::INVALID)?;
        let bearer = self.key_bearer(cx.core, header)?;
        self.check_rd_atomic(ACCESS_REMOTE_WRITE)?;
        // IBTA A19.4.2: eight bytes, at a multiple of eight.
        if reth.addr & 7 != 0 || reth.len != 8 || payload.len() != 8 {
            return Err(Refusal::INVALID);
        }
        let place = (reth.rkey, reth.addr);
        let at = Self::find_word(cx.core, bearer, place, Access::RemoteWrite, header.bth.psn)?;
        let mut bytes = [0; 8];
        payload.read(0, &mut bytes).map_err(|_| Refusal::Lost)?;
        cx.mem
            .store_u64(at, u64::from_le_bytes(bytes))
            .map_err(|_| {
                cx.count(Counter::dma_errors);
                Refusal::operational(None)
            })?;
        self.answer_done(header.bth.psn, reth.rkey, bearer);
        Ok(())
    }

    /// Answers a FLUSH or an atomic write, and remembers that.
    fn answer_done(&mut self, psn: Psn, rkey: u32, bearer: Bearer) {
        let limit = usize::from(self.endpoint.attr.max_dest_rd_atomic);
        let resp = &mut self.responder;
        resp.expected = psn.next();
        resp.msn = (resp.msn + 1) & MSN_MASK;
        let what = Operation::Read {
            addr: 0,
            rkey,
            len: 0,
            bearer,
        };
        resp.remember(Executed { psn, psns: 1, what }, limit);
        let answer = Reply::done(psn, resp.msn, rkey, bearer, false);
        resp.replies.push_back(answer);
    }

    /// READs and atomics: right of the QP, and not more at once than agreed (IBTA 9.7.4.1.4, 9.7.4.1.5).
    fn check_rd_atomic(&self, right: u32) -> Result<(), Refusal> {
        if !self.endpoint.config.kind.is_reliable() {
            return Err(Refusal::INVALID);
        }
        if !self.endpoint.allows(right) {
            return Err(Refusal::INVALID);
        }
        let limit = usize::from(self.endpoint.attr.max_dest_rd_atomic);
        let waiting = self
            .responder
            .replies
            .iter()
            .filter(|reply| {
                matches!(
                    reply,
                    Reply::Read { again: false, .. } | Reply::Atomic { again: false, .. }
                )
            })
            .count();
        if limit == 0 || waiting >= limit {
            return Err(Refusal::INVALID);
        }
        Ok(())
    }
}
