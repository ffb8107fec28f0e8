//! Execution of the expected request: each operation with its checks, in the order of IBTA 9.7.4.

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::qp::{ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE};
use faultline_wire::aeth::Syndrome;
use faultline_wire::bth::Psn;
use faultline_wire::opcode::OpKind;
use faultline_wire::packet::RoceHeader;
use faultline_wire::reth::Reth;

use super::refusal::{IngressNeed, Refusal, Rejection};
use super::reply::{Operation, Source};
use super::tag::Begun;
use super::{Message, Received, Responder};
use crate::config::MAX_MSG_SIZE;
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Need;
use crate::mkey::{Access, KeyRange, KeyUser};
use crate::number::len32;
use crate::payload::{CopyError, Payload};
use crate::qp::endpoint::Endpoint;
use crate::qp::page_wait::READ_AHEAD;
use crate::qp::types::{PlaceError, QpType};
use crate::segments::Segments;
use crate::tag::message::HEADERS;

/// Memory that a packet of a WRITE goes to.
struct WriteTarget {
    addr: u64,
    rkey: u32,
    /// Bytes of the message from `addr` on.
    left: u32,
}

impl Responder {
    /// Executes the expected packet, or the run that begins with it.
    pub(super) fn execute<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> Result<Received, Refusal> {
        let kind = header.bth.opcode.info().kind;
        self.check_opcode_sequence(qp, header, packets, payload.len())?;
        let received = match kind {
            OpKind::Send => self.execute_send(qp, cx, header, payload)?,
            OpKind::Write => {
                self.execute_write(qp, cx, header, payload)?;
                Received::Done
            }
            OpKind::ReadRequest => {
                let received = self.execute_read(qp, cx.core, header)?;
                cx.count(Counter::rx_read_requests);
                return Ok(received);
            }
            OpKind::CompareSwap | OpKind::FetchAdd => {
                return self.execute_atomic(qp, cx, header, kind);
            }
            OpKind::Flush => return self.execute_flush(qp, cx, header),
            OpKind::AtomicWrite => return self.execute_atomic_write(qp, cx, header, payload),
            OpKind::ReadResponse
            | OpKind::Ack
            | OpKind::AtomicAck
            | OpKind::Cnp
            | OpKind::Ready => {
                return Err(Refusal::INVALID);
            }
        };
        self.expected = header.bth.psn.add(packets);
        if header.bth.opcode.is_last_or_only() {
            self.message = None;
            self.end_message();
        }
        // A request whose completion was lost is not acknowledged: this queue pair is about to fail.
        if qp.is_reliable() && header.bth.ack_req && !cx.core.has_lost_completion(qp.number) {
            self.acknowledge_until(self.expected);
        }
        Ok(received)
    }

    /// Acknowledges all requests before this PSN.
    pub(in crate::qp) fn acknowledge_until(&mut self, psn: Psn) {
        self.acknowledge(psn.prev(), Syndrome::ACK);
    }

    /// First, middle, last in order, and lengths that fit the position (IBTA 9.7.4.1.3, 9.7.4.1.6).
    #[inline]
    fn check_opcode_sequence(
        &self,
        qp: &Endpoint,
        header: &RoceHeader,
        packets: u32,
        len: usize,
    ) -> Result<(), Refusal> {
        let opcode = header.bth.opcode;
        let kind = opcode.info().kind;
        let in_order = match (self.message, kind) {
            (None, _) => opcode.is_first_or_only(),
            (Some(Message::Send), OpKind::Send) => !opcode.is_first_or_only(),
            (Some(Message::Write { .. }), OpKind::Write) => !opcode.is_first_or_only(),
            // UC: a new message ends a damaged one.
            (Some(_), _) => qp.config.kind == QpType::Uc && opcode.is_first_or_only(),
        };
        let mtu = qp.mtu as usize;
        let fits = match (opcode.is_first_or_only(), opcode.is_last_or_only()) {
            (_, false) => Some(len) == mtu.checked_mul(packets as usize),
            (true, true) => len <= mtu,
            (false, true) => (1..=mtu).contains(&len),
        };
        let fits = match kind {
            OpKind::Send | OpKind::Write => fits,
            // The functions of these operations check the length.
            OpKind::AtomicWrite => true,
            // These requests have no payload. A payload in the packet is ignored.
            OpKind::ReadRequest | OpKind::CompareSwap | OpKind::FetchAdd | OpKind::Flush => true,
            OpKind::ReadResponse
            | OpKind::Ack
            | OpKind::AtomicAck
            | OpKind::Cnp
            | OpKind::Ready => false,
        };
        if in_order && fits {
            Ok(())
        } else {
            Err(Refusal::INVALID)
        }
    }

    /// The user of memory keys that a request acts as: the QP in its own protection domain, or in that of the SRQ of an
    /// XRC request, which must be of the target's XRC domain (IBTA annex A14).
    #[inline]
    pub(super) fn request_user(
        &self,
        qp: &Endpoint,
        core: &Core,
        header: &RoceHeader,
    ) -> Result<KeyUser, Refusal> {
        let Some(xrcd) = qp.config.xrcd else {
            return Ok(qp.key_user());
        };
        let named = header.xrceth.and_then(|xrc| core.srqs.get(xrc.srqn));
        match named {
            Some(srq) if srq.xrc.is_some_and(|(domain, _)| domain == xrcd) => {
                Ok(qp.key_user_in(srq.pd))
            }
            _ => Err(Refusal::INVALID),
        }
    }

    fn execute_send<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<Received, Refusal> {
        let opcode = header.bth.opcode;
        let first = opcode.is_first_or_only();
        // The headers that select a buffer are copied, so that the same ones are delivered even if the sender changes meanwhile.
        let mut headers = [0; HEADERS];
        let payload = match qp.listed_tags(cx.core).filter(|_| first) {
            Some(listed) => {
                cx.core.charge(listed);
                let own = payload.with_own_head(&mut headers);
                own.map_err(|_| Refusal::Lost)?
            }
            None => payload,
        };
        if first {
            // A damaged message leaves its receive for the next one (UC: IBTA 9.8.2.2.7).
            if let Begun::Rendezvous(slot) = self.begin_send(qp, cx, header, payload)? {
                return Ok(Received::Rendezvous(slot));
            }
            self.received = 0;
            self.message = Some(Message::Send);
        }
        let received = self.received;
        let wr = self.current.as_ref().ok_or(Refusal::INVALID)?;
        let payload = match wr.class {
            Some(class) if first => class.cut(payload, wr.capacity),
            _ => payload,
        };
        let len = len32(payload.len());
        let longest = wr.capacity.min(u64::from(MAX_MSG_SIZE));
        if u64::from(received).saturating_add(u64::from(len)) > longest {
            return Err(Refusal::TooLong);
        }
        qp.scatter(cx, wr, u64::from(received), payload)
            .map_err(|error| match error {
                PlaceError::Lost => Refusal::Lost,
                PlaceError::Failed(failure) => Refusal::operational(Some(failure)),
                PlaceError::Absent(absent, hint) => Refusal::Absent(IngressNeed {
                    need: Need::new(absent, hint, header.bth.psn.get()),
                    receive: true,
                }),
            })?;
        self.received = self.received.saturating_add(len);
        if opcode.is_last_or_only() {
            if let Some(rkey) = header.ieth {
                let user = self.request_user(qp, cx.core, header)?;
                cx.core
                    .mkeys
                    .invalidate_for_peer(user, rkey)
                    .map_err(|_| Refusal::NOT_INVALIDATED)?;
            }
            self.finish_receive(qp, cx, header, cqe::RECV);
        }
        Ok(Received::Done)
    }

    /// A WRITE with immediate data that is refused for its key takes a receive work request, if one is posted, which
    /// completes with a local access error. A first packet without immediate data takes none.
    fn with_receive<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        refusal: Refusal,
    ) -> Refusal {
        let takes = refusal.is_of_access()
            && header.imm.is_some()
            && qp.is_reliable()
            && (self.current.is_some() || self.need_receive(qp, cx, header).is_ok());
        match takes {
            true => Refusal::Fatal(Rejection::ACCESS_WITH_RECEIVE),
            false => refusal,
        }
    }

    fn execute_write<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Refusal> {
        let opcode = header.bth.opcode;
        let user = self.request_user(qp, cx.core, header)?;
        let len = len32(payload.len());
        let WriteTarget { addr, rkey, left } = match opcode.is_first_or_only() {
            true => self.begin_write(qp, cx, header, user, len)?,
            false => self.continue_write()?,
        };
        // IBTA 9.7.4.1.6: the payloads add up to the length in the RETH.
        let ends = opcode.is_last_or_only();
        if len > left || (ends && len != left) {
            return Err(Refusal::INVALID);
        }
        if ends && header.imm.is_some() {
            self.need_receive(qp, cx, header)?;
        }
        if len > 0 {
            let range = KeyRange {
                key: rkey,
                user,
                va: addr,
                len,
                access: Access::RemoteWrite,
            };
            let mut segments = Segments::new();
            if let Err(miss) = cx.core.mkeys.translate(&range, &mut segments) {
                let refusal = Refusal::of_key(miss, addr, left, header.bth.psn);
                return Err(self.with_receive(qp, cx, header, refusal));
            }
            cx.copy_payload(&segments, payload, &mut 0)
                .map_err(|error| match error {
                    CopyError::Source => Refusal::Lost,
                    CopyError::Destination => Refusal::operational(None),
                })?;
        }
        self.message = Some(Message::Write {
            next: addr.wrapping_add(u64::from(len)),
            rkey,
            left: left.saturating_sub(len),
        });
        if opcode.is_first_or_only() {
            cx.count(Counter::rx_write_requests);
            self.received = 0;
        }
        self.received = self.received.saturating_add(len);
        if ends && header.imm.is_some() {
            self.finish_receive(qp, cx, header, cqe::RECV_RDMA_WITH_IMM);
        }
        Ok(())
    }

    /// The first packet of a WRITE, with `len` bytes of payload: checks the rights to its whole range.
    fn begin_write<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        user: KeyUser,
        len: u32,
    ) -> Result<WriteTarget, Refusal> {
        let reth = header.reth.ok_or(Refusal::INVALID)?;
        let Reth {
            addr,
            rkey,
            len: left,
        } = reth;
        if !qp.allows(ACCESS_REMOTE_WRITE) || left > MAX_MSG_SIZE {
            return Err(Refusal::INVALID);
        }
        // The key of an empty WRITE is not checked (IBTA 9.7.4.1.5). That of a WRITE of one packet is checked when the
        // packet is written, unless that takes a receive work request first.
        let checked_later = len == left && header.imm.is_none();
        if left > 0 && !checked_later {
            let range = named_range(reth, user, Access::RemoteWrite);
            if cx.core.mkeys.check(&range).is_err() {
                let refusal = Refusal::Fatal(Rejection::ACCESS);
                return Err(self.with_receive(qp, cx, header, refusal));
            }
        }
        Ok(WriteTarget { addr, rkey, left })
    }

    /// Another packet of a WRITE.
    fn continue_write(&self) -> Result<WriteTarget, Refusal> {
        match self.message {
            Some(Message::Write { next, rkey, left }) => Ok(WriteTarget {
                addr: next,
                rkey,
                left,
            }),
            _ => Err(Refusal::INVALID),
        }
    }

    fn execute_read(
        &mut self,
        qp: &Endpoint,
        core: &mut Core,
        header: &RoceHeader,
    ) -> Result<Received, Refusal> {
        let reth = header.reth.ok_or(Refusal::INVALID)?;
        let user = self.request_user(qp, core, header)?;
        self.check_rd_atomic(qp, ACCESS_REMOTE_READ)?;
        if reth.len > MAX_MSG_SIZE {
            return Err(Refusal::INVALID);
        }
        if reth.len > 0 {
            let range = named_range(reth, user, Access::RemoteRead);
            let checked = core.mkeys.check(&range);
            checked.map_err(|_| Refusal::Fatal(Rejection::ACCESS))?;
            // The responder waits for later pages when their packets arrive.
            let first = KeyRange {
                len: reth.len.min(READ_AHEAD),
                ..range
            };
            core.mkeys
                .require(&first)
                .map_err(|miss| Refusal::of_key(miss, reth.addr, reth.len, header.bth.psn))?;
        }
        let from = Source {
            addr: reth.addr,
            rkey: reth.rkey,
            len: reth.len,
            user,
        };
        let psns = reth.len.div_ceil(qp.mtu).max(1);
        let (psn, limit) = (header.bth.psn, qp.attr.max_dest_rd_atomic);
        self.answer(psn, psns, Operation::Read(from), limit);
        Ok(Received::Done)
    }

    fn execute_atomic<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        kind: OpKind,
    ) -> Result<Received, Refusal> {
        let atomic = header.atomic.ok_or(Refusal::INVALID)?;
        let user = self.request_user(qp, cx.core, header)?;
        self.check_rd_atomic(qp, ACCESS_REMOTE_ATOMIC)?;
        let word = KeyRange {
            key: atomic.rkey,
            user,
            va: atomic.addr,
            len: 8,
            access: Access::RemoteAtomic,
        };
        let at = find_word(cx.core, &word, header)?;
        let done = match kind {
            OpKind::CompareSwap => cx
                .mem
                .compare_exchange_u64(at, atomic.compare, atomic.swap_add),
            OpKind::FetchAdd => cx.mem.fetch_add_u64(at, atomic.swap_add),
            _ => return Err(Refusal::INVALID),
        };
        let original = done.map_err(|_| {
            cx.count(Counter::dma_errors);
            Refusal::operational(None)
        })?;
        let (psn, limit) = (header.bth.psn, qp.attr.max_dest_rd_atomic);
        cx.count(Counter::rx_atomic_requests);
        self.answer(psn, 1, Operation::Atomic { original }, limit);
        Ok(Received::Done)
    }

    fn execute_atomic_write<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<Received, Refusal> {
        let reth = header.reth.ok_or(Refusal::INVALID)?;
        let user = self.request_user(qp, cx.core, header)?;
        self.check_rd_atomic(qp, ACCESS_REMOTE_WRITE)?;
        // IBTA A19.4.2: eight bytes, at a multiple of eight.
        if reth.len != 8 || payload.len() != 8 {
            return Err(Refusal::INVALID);
        }
        let word = named_range(reth, user, Access::RemoteWrite);
        let at = find_word(cx.core, &word, header)?;
        let mut bytes = [0; 8];
        payload.read(0, &mut bytes).map_err(|_| Refusal::Lost)?;
        cx.mem
            .store_u64(at, u64::from_le_bytes(bytes))
            .map_err(|_| {
                cx.count(Counter::dma_errors);
                Refusal::operational(None)
            })?;
        let (psn, limit) = (header.bth.psn, qp.attr.max_dest_rd_atomic);
        cx.count(Counter::rx_atomic_requests);
        self.answer(psn, 1, Operation::Done, limit);
        Ok(Received::Done)
    }

    /// Checks a READ or atomic: the right of the QP, and that no more are outstanding than agreed (IBTA 9.7.4.1.4,
    /// 9.7.4.1.5).
    pub(super) fn check_rd_atomic(&self, qp: &Endpoint, right: u32) -> Result<(), Refusal> {
        let limit = usize::from(qp.attr.max_dest_rd_atomic);
        let allowed = qp.is_reliable() && qp.allows(right) && self.answers_waiting() < limit;
        match allowed {
            true => Ok(()),
            false => Err(Refusal::INVALID),
        }
    }
}

/// The memory that a RETH names.
fn named_range(reth: Reth, user: KeyUser, access: Access) -> KeyRange {
    KeyRange {
        key: reth.rkey,
        user,
        va: reth.addr,
        len: reth.len,
        access,
    }
}

/// DMA address of the eight bytes that a request changes atomically. They are aligned (IBTA 9.7.4.1.7).
fn find_word(core: &Core, word: &KeyRange, header: &RoceHeader) -> Result<u64, Refusal> {
    if word.va & 7 != 0 {
        return Err(Refusal::INVALID);
    }
    let mut segments = Segments::new();
    core.mkeys
        .translate(word, &mut segments)
        .map_err(|miss| Refusal::of_key(miss, word.va, word.len, header.bth.psn))?;
    match segments.as_slice() {
        [segment] if segment.addr & 7 == 0 => Ok(segment.addr),
        _ => Err(Refusal::operational(None)),
    }
}
