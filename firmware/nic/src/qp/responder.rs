//! The responder of a connected QP: from request packets to memory, and to replies.
//!
//! Each packet goes through the checks of IBTA 9.7.4 in their order: PSN, sequence of opcodes, support and
//! rights, resources, length, key. The first that fails decides the answer. Replies stand in a queue, so that
//! they leave in the order of the requests.

use std::collections::VecDeque;

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::qp::{
    ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE, FAULT_POLICY_TERMINATE,
};
use faultline_abi::{U32, event};
use faultline_wire::Feth;
use faultline_wire::aeth::{Aeth, NakCode, Syndrome};
use faultline_wire::atomic::AtomicAckEth;
use faultline_wire::bth::Psn;
use faultline_wire::opcode::{OpKind, Opcode};
use faultline_wire::packet::RoceHeader;

use super::fault::{Durable, IngressNeed};
use super::tag::Begun;
use super::{Failure, Misplaced, Qp, QpType, State};
use crate::config::MAX_MSG_SIZE;
use crate::core::Core;
use crate::dma::{Dma, Persist};
use crate::fault::Need;
use crate::frame::{CopyError, Payload, Segments, TxFrame, truncate_segments};
use crate::mkey::{Access, Bearer, Miss};
use crate::srq::{RecvWr, TakeError};
use crate::tag::Class;
use crate::time::Instant;

/// Bytes of a READ that must be there before it is accepted.
const READ_AHEAD: u32 = 64 << 10;
/// The message sequence number has 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// A message of which packets are still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Send,
    Write { next: u64, rkey: u32, left: u32 },
}

/// A READ or atomic that was executed, kept to answer a repetition (IBTA 9.7.5.1.3).
#[derive(Clone, Copy, Debug)]
struct Executed {
    psn: Psn,
    psns: u32,
    what: Operation,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Read {
        addr: u64,
        rkey: u32,
        len: u32,
        bearer: Bearer,
    },
    Atomic {
        original: u64,
    },
}

/// Something to send back. `again`: it answers a repetition, so the operation has had its place in the limit.
#[derive(Clone, Copy, Debug)]
enum Reply {
    Ack {
        psn: Psn,
        msn: u32,
        syndrome: Syndrome,
    },
    Atomic {
        psn: Psn,
        msn: u32,
        original: u64,
        again: bool,
    },
    Read {
        psn: Psn,
        msn: u32,
        addr: u64,
        rkey: u32,
        /// Who shows the key.
        bearer: Bearer,
        len: u32,
        sent: u32,
        again: bool,
    },
}

impl Reply {
    /// The answer to a FLUSH or an atomic write: a READ response without data (IBTA A19.4.3).
    fn done(psn: Psn, msn: u32, rkey: u32, bearer: Bearer, again: bool) -> Self {
        Self::Read {
            psn,
            msn,
            addr: 0,
            rkey,
            bearer,
            len: 0,
            sent: 0,
            again,
        }
    }

    fn psn(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Atomic { psn, .. } | Self::Read { psn, .. } => *psn,
        }
    }

    fn is_for(&self, executed: &Executed) -> bool {
        let psn = self.psn();
        !matches!(self, Self::Ack { .. })
            && psn.diff(executed.psn) >= 0
            && psn.diff(executed.psn.add(executed.psns)) < 0
    }

    /// A NAK after which the connection is over.
    fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Ack {
                syndrome: Syndrome::Nak(code),
                ..
            } if *code != NakCode::PsnSequenceError
        )
    }
}

/// Receive side of a QP.
#[derive(Debug, Default)]
pub struct Responder {
    expected: Psn,
    msn: u32,
    message: Option<Message>,
    /// The receive work request that the current message fills, and how far it is.
    current: Option<RecvWr>,
    received: u32,
    /// A NAK for the expected PSN has been sent; later packets are dropped silently.
    nak_sent: bool,
    executed: VecDeque<Executed>,
    replies: VecDeque<Reply>,
    /// UC: the rest of a damaged message is dropped.
    skipping: bool,
}

/// Why a request is not carried out, and what that means for the connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// The packet's payload can't be read: it counts as lost on the way.
    Lost,
    /// No receive work request: the requester shall come again.
    NotReady,
    /// A page is not there.
    Absent(IngressNeed),
    /// Memory is not durable yet.
    NotDurable,
    /// The connection ends.
    Fatal {
        code: NakCode,
        event: u8,
        /// Status for the receive work request that was being filled.
        receive: Option<Failure>,
    },
}

impl Refusal {
    pub(super) const INVALID: Self = Self::Fatal {
        code: NakCode::InvalidRequest,
        event: event::QP_REQUEST_ERROR,
        receive: None,
    };

    pub(super) const fn access() -> Self {
        Self::Fatal {
            code: NakCode::RemoteAccessError,
            event: event::QP_ACCESS_ERROR,
            receive: None,
        }
    }

    pub(super) const fn operational(receive: Option<Failure>) -> Self {
        Self::Fatal {
            code: NakCode::RemoteOperationalError,
            event: event::QP_FATAL,
            receive,
        }
    }

    /// A miss in memory that the peer has named, of which `left` bytes from `va` on belong to the message.
    fn of_key(miss: Miss, va: u64, left: u32, psn: Psn) -> Self {
        match Misplaced::new(miss, va, left) {
            Misplaced::Absent(absent, hint) => Self::Absent(IngressNeed {
                need: Need::new(absent, hint, psn.get()),
                receive: false,
            }),
            _ => match miss {
                Miss::NotPresent(_) => Self::operational(None),
                _ => Self::access(),
            },
        }
    }

    /// The key that a SEND names can't be invalidated (IBTA 9.4.1.1.3, 9.9.3).
    const fn not_invalidated() -> Self {
        Self::Fatal {
            code: NakCode::RemoteAccessError,
            event: event::QP_ACCESS_ERROR,
            receive: Some(Failure::new(cqe::REM_INV_REQ_ERR, cqe::KEY_STATE)),
        }
    }

    const fn too_long() -> Self {
        Self::Fatal {
            code: NakCode::InvalidRequest,
            event: event::QP_REQUEST_ERROR,
            receive: Some(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH)),
        }
    }
}

impl Responder {
    pub(super) fn expected_psn(&self) -> Psn {
        self.expected
    }

    pub(super) fn set_expected_psn(&mut self, psn: Psn) {
        self.expected = psn;
        self.nak_sent = false;
    }

    /// Drops replies and the message in progress, but not its receive work request.
    pub(super) fn abort(&mut self) {
        // A NAK that says why must still leave, after the answers to what came before it (IBTA 9.7.5.1.1).
        if !self.replies.back().is_some_and(Reply::is_final) {
            self.replies.clear();
        }
        self.message = None;
        self.executed.clear();
    }

    /// Whether a READ is being answered.
    pub(super) fn is_answering_read(&self) -> bool {
        matches!(self.replies.front(), Some(Reply::Read { .. }))
    }

    /// Keeps a receive work request for the next message.
    pub(super) fn put_back(&mut self, wr: RecvWr) {
        self.current = Some(wr);
    }

    /// The receive work request at hand.
    pub(super) fn current(&self) -> Option<&RecvWr> {
        self.current.as_ref()
    }

    /// Notes what the receive work request at hand is for.
    pub(super) fn set_class(&mut self, class: Class) {
        if let Some(wr) = &mut self.current {
            wr.class = Some(class);
        }
    }

    pub(super) fn take_current(&mut self) -> Option<RecvWr> {
        self.current.take()
    }

    /// Says nothing about packets out of sequence until the expected one has come.
    pub(super) fn hold_naks(&mut self) {
        self.nak_sent = true;
    }

    /// Tells the requester, beside what it has been told, that the expected packet would be taken now: with a
    /// NAK, or with an acknowledgement of what is before it.
    pub(super) fn say_ready(&mut self, syndrome: Syndrome) {
        let psn = match syndrome {
            Syndrome::Ack { .. } => self.expected.prev(),
            _ => self.expected,
        };
        // Behind a READ that waits for a page these would pile up: what was said last is enough.
        if let [.., Reply::Ack { .. }, last @ Reply::Ack { .. }] = self.replies.make_contiguous() {
            let last = *last;
            self.replies.pop_back();
            self.replies.pop_back();
            self.replies.push_back(last);
        }
        self.replies.push_back(Reply::Ack {
            psn,
            msn: self.msn,
            syndrome,
        });
    }

    /// The rest of a message is of no use without this packet; a datagram has no rest.
    pub(super) fn lose_message(&mut self, header: Option<&RoceHeader>) {
        self.message = None;
        self.skipping = true;
        if let Some(header) = header {
            self.expected = header.bth.psn.next();
        }
    }

    /// Queues an acknowledgement; one that says more replaces the last.
    pub(super) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        let ack = Reply::Ack {
            psn,
            msn: self.msn,
            syndrome,
        };
        match self.replies.back_mut() {
            // A NAK acknowledges what is before it.
            Some(Reply::Ack { psn: last, .. })
                if matches!(syndrome, Syndrome::Ack { .. }) && last.diff(psn) > 0 => {}
            // No NAK is final here: nothing is received after one that is.
            Some(last @ Reply::Ack { .. }) => *last = ack,
            _ => self.replies.push_back(ack),
        }
    }

    /// Queues the answer to a repetition. Replies stay in the order of their PSNs and there is one for each
    /// operation, so that repetitions take no more memory than what they repeat.
    fn answer_again(&mut self, executed: &Executed, mut answer: Reply) {
        if let Some(queued) = self.replies.iter_mut().find(|r| r.is_for(executed)) {
            // What has not been said yet will be; else it goes back to there.
            let skip = answer.psn().diff(queued.psn());
            if let (Reply::Read { sent, again, .. }, Reply::Read { again: was, .. }) =
                (&*queued, &mut answer)
                && (skip < 0 || *sent > skip as u32)
            {
                *was = *again;
                *queued = answer;
            }
            return;
        }
        let psn = answer.psn();
        let later = |reply: &Reply| reply.psn().diff(psn) > 0;
        let at = self.replies.iter().position(later);
        self.replies
            .insert(at.unwrap_or(self.replies.len()), answer);
    }

    fn remember(&mut self, executed: Executed, limit: usize) {
        while self.executed.len() >= limit.max(1) {
            self.executed.pop_front();
        }
        self.executed.push_back(executed);
    }
}

impl Qp {
    /// A request packet of a connected QP arrives. Address and P_Key have been checked.
    pub(super) fn receive_request<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), IngressNeed> {
        if !self.check_sequence(core, header) {
            self.wake(core);
            return Ok(());
        }
        let before = (self.responder.message, self.responder.received);
        match self.execute(core, now, mem, header, 1, payload) {
            Err(Refusal::Lost) if self.config.kind.is_reliable() => {
                (self.responder.message, self.responder.received) = before;
            }
            Err(Refusal::Absent(fault)) => {
                (self.responder.message, self.responder.received) = before;
                return Err(fault);
            }
            Ok(()) => self.request_taken(core, now, mem),
            Err(refusal) => self.refuse(core, now, mem, header.bth.psn, refusal),
        }
        if !self.responder.replies.is_empty() {
            self.wake(core);
        }
        Ok(())
    }

    /// Takes a run of request packets as a whole. Gives false if that is not possible; whatever a packet
    /// before the one in the way has put into its place will be put there again.
    pub(super) fn receive_request_run<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> bool {
        let resp = &self.responder;
        if header.bth.psn != resp.expected || resp.skipping {
            return false;
        }
        let before = (resp.message, resp.received);
        if self
            .execute(core, now, mem, header, packets, payload)
            .is_err()
        {
            (self.responder.message, self.responder.received) = before;
            return false;
        }
        self.request_taken(core, now, mem);
        if !self.responder.replies.is_empty() {
            self.wake(core);
        }
        true
    }

    fn request_taken<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M) {
        self.responder.nak_sent = false;
        self.waits.durable = None;
        if self.state == State::Rtr && !self.established {
            self.established = true;
            core.raise_async(mem, now, event::COMM_ESTABLISHED, self.number);
        }
    }

    /// PSN check (IBTA 9.7.4.1.2, 9.8.2.2.1). Gives whether the packet is the one that comes next.
    fn check_sequence(&mut self, core: &mut Core, header: &RoceHeader) -> bool {
        let resp = &mut self.responder;
        let psn = header.bth.psn;
        let ahead = psn.diff(resp.expected);
        if self.config.kind == QpType::Uc {
            // IBTA 9.8.2.2.1 starts anew with any first packet. One from the past is a duplicate or was
            // overtaken: dropped, so that messages come in order and once.
            if ahead < 0 {
                core.counters.inc(Counter::duplicate_request);
                return false;
            }
            if ahead > 0 {
                core.counters.inc(Counter::out_of_sequence);
                resp.message = None;
                resp.skipping = true;
                resp.expected = psn;
            }
            if header.bth.opcode.is_first_or_only() {
                resp.skipping = false;
                return true;
            }
            if resp.skipping {
                resp.expected = psn.next();
                return false;
            }
            return true;
        }
        match ahead {
            0 => true,
            1.. => {
                core.counters.inc(Counter::out_of_sequence);
                if !resp.nak_sent {
                    resp.nak_sent = true;
                    core.counters.inc(Counter::packet_seq_err_sent);
                    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
                    let expected = resp.expected;
                    resp.acknowledge(expected, nak);
                }
                false
            }
            _ => {
                core.counters.inc(Counter::duplicate_request);
                self.repeat(header);
                false
            }
        }
    }

    /// A duplicate: executed before, so only the answer is given again (IBTA 9.7.4.1.2).
    fn repeat(&mut self, header: &RoceHeader) {
        let resp = &mut self.responder;
        let psn = header.bth.psn;
        let found = resp
            .executed
            .iter()
            .find(|e| psn.diff(e.psn) >= 0 && psn.diff(e.psn.add(e.psns)) < 0)
            .copied();
        match (header.bth.opcode.info().kind, found) {
            (OpKind::ReadRequest, Some(executed)) => {
                let (
                    Operation::Read {
                        addr,
                        rkey,
                        len,
                        bearer,
                    },
                    Some(reth),
                ) = (executed.what, header.reth)
                else {
                    return;
                };
                // It may ask for a part of the original range only.
                let skip = reth.addr.wrapping_sub(addr);
                let inside = reth.rkey == rkey
                    && skip <= u64::from(len)
                    && u64::from(reth.len) <= u64::from(len) - skip
                    && skip == u64::from(psn.diff(executed.psn) as u32) * u64::from(self.mtu);
                if inside {
                    let answer = Reply::Read {
                        psn,
                        msn: resp.msn,
                        addr: reth.addr,
                        rkey,
                        bearer,
                        len: reth.len,
                        sent: 0,
                        again: true,
                    };
                    resp.answer_again(&executed, answer);
                }
            }
            (OpKind::CompareSwap | OpKind::FetchAdd, Some(executed)) => {
                if let Operation::Atomic { original } = executed.what {
                    let answer = Reply::Atomic {
                        psn,
                        msn: resp.msn,
                        original,
                        again: true,
                    };
                    resp.answer_again(&executed, answer);
                }
            }
            (OpKind::Flush | OpKind::AtomicWrite, Some(executed)) => {
                if let Operation::Read { rkey, bearer, .. } = executed.what {
                    let answer = Reply::done(psn, resp.msn, rkey, bearer, true);
                    resp.answer_again(&executed, answer);
                }
            }
            // Too old to be remembered: the requester has its answer or asks in vain.
            (
                OpKind::ReadRequest
                | OpKind::CompareSwap
                | OpKind::FetchAdd
                | OpKind::Flush
                | OpKind::AtomicWrite,
                None,
            ) => {}
            // The acknowledgement of everything so far was lost.
            _ => {
                let newest = resp.expected.prev();
                resp.acknowledge(newest, Syndrome::ACK);
            }
        }
    }

    /// Carries out the packet that was expected, or the run that begins with it.
    fn execute<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> Result<(), Refusal> {
        let info = header.bth.opcode.info();
        self.check_opcode_sequence(header, packets, payload.len())?;
        match info.kind {
            OpKind::Send => self.execute_send(core, now, mem, header, payload)?,
            OpKind::Write => self.execute_write(core, now, mem, header, payload)?,
            OpKind::ReadRequest => return self.execute_read(core, header),
            OpKind::CompareSwap | OpKind::FetchAdd => {
                return self.execute_atomic(core, mem, header, info.kind);
            }
            OpKind::Flush => return self.execute_flush(core, now, mem, header),
            OpKind::AtomicWrite => {
                return self.execute_atomic_write(core, mem, header, payload);
            }
            _ => return Err(Refusal::INVALID),
        }
        let resp = &mut self.responder;
        resp.expected = header.bth.psn.add(packets);
        if header.bth.opcode.is_last_or_only() {
            resp.message = None;
            resp.msn = (resp.msn + 1) & MSN_MASK;
        }
        if self.config.kind.is_reliable() && header.bth.ack_req {
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
            (Some(_), _) => self.config.kind == QpType::Uc && opcode.is_first_or_only(),
        };
        let mtu = self.mtu as usize;
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

    /// Who shows the key that a request names: the QP in its own protection domain, or in that of the SRQ that an
    /// XRC request is for, which must be of the target's XRC domain (IBTA annex A14).
    fn key_bearer(&self, core: &Core, header: &RoceHeader) -> Result<Bearer, Refusal> {
        let Some(xrcd) = self.config.xrcd else {
            return Ok(self.bearer());
        };
        let named = header.xrceth.and_then(|xrc| core.srqs.get(xrc.srqn));
        match named {
            Some(srq) if srq.xrc.is_some_and(|(domain, _)| domain == xrcd) => Ok(Bearer {
                pd: srq.pd,
                ..self.bearer()
            }),
            _ => Err(Refusal::INVALID),
        }
    }

    /// The receive work request for the message that begins or, for a WRITE with immediate data, ends.
    pub(super) fn need_receive<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
    ) -> Result<(), Refusal> {
        let mut srqn = self.config.srqn;
        // A request that is repeated can't be another one.
        let kept = self.responder.current.as_ref();
        if kept.is_some_and(|wr| wr.class.is_some()) {
            return Err(Refusal::INVALID);
        }
        if self.config.kind == QpType::XrcTgt {
            self.key_bearer(core, header)?;
            srqn = header.xrceth.map(|xrc| xrc.srqn);
            // Nor for another queue.
            if kept.is_some_and(|wr| wr.srqn != srqn) {
                return Err(Refusal::INVALID);
            }
        }
        match self.take_receive(core, now, mem, srqn) {
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
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Refusal> {
        let opcode = header.bth.opcode;
        let first = opcode.is_first_or_only();
        if first {
            // A damaged message leaves its receive for the next one (UC: IBTA 9.8.2.2.7).
            if self.begin_send(core, now, mem, header, payload)? == Begun::Rendezvous {
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
            return Err(Refusal::too_long());
        }
        self.scatter(core, mem, wr, u64::from(received), payload)
            .map_err(|misplaced| match misplaced {
                Misplaced::Lost => Refusal::Lost,
                Misplaced::Failed(failure) => Refusal::operational(Some(failure)),
                Misplaced::Absent(absent, hint) => Refusal::Absent(IngressNeed {
                    need: Need::new(absent, hint, header.bth.psn.get()),
                    receive: true,
                }),
            })?;
        self.responder.received += len;
        if opcode.is_last_or_only() {
            if let Some(rkey) = header.ieth {
                core.mkeys
                    .invalidate_for_peer(self.key_bearer(core, header)?, rkey)
                    .map_err(|_| Refusal::not_invalidated())?;
            }
            self.finish_receive(core, now, mem, header, cqe::RECV, self.responder.received);
        }
        Ok(())
    }

    /// Writes a payload into the buffers of a receive work request, from byte `offset` of them on.
    pub(super) fn scatter<M: Dma>(
        &self,
        core: &mut Core,
        mem: &M,
        wr: &RecvWr,
        offset: u64,
        payload: Payload<'_, M>,
    ) -> Result<(), Misplaced> {
        let bearer = match wr.srqn.and_then(|srqn| core.srqs.get(srqn)) {
            Some(srq) => Bearer {
                pd: srq.pd,
                ..self.bearer()
            },
            None => self.bearer(),
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
            core.mkeys
                .translate(sge.lkey, bearer, va, n, Access::LocalWrite, &mut segments)
                .map_err(|miss| Misplaced::new(miss, va, left))?;
            copy_payload(core, mem, &segments, payload, &mut taken)?;
            skip = 0;
        }
        Ok(())
    }

    fn finish_receive<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
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
            src_qp: self.attr.dest_qpn,
            opcode,
            flags,
            ..Cqe::default()
        };
        self.complete_recv(core, now, mem, &wr, entry);
    }

    fn execute_write<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Refusal> {
        let opcode = header.bth.opcode;
        let bearer = self.key_bearer(core, header)?;
        let (addr, rkey, left) = if opcode.is_first_or_only() {
            let reth = header.reth.ok_or(Refusal::INVALID)?;
            if !self.allows(ACCESS_REMOTE_WRITE) {
                return Err(Refusal::INVALID);
            }
            if reth.len > MAX_MSG_SIZE {
                return Err(Refusal::INVALID);
            }
            // The key of an empty WRITE is not looked at (IBTA 9.7.4.1.5).
            if reth.len > 0 {
                core.mkeys
                    .check(reth.rkey, bearer, reth.addr, reth.len, Access::RemoteWrite)
                    .map_err(|_| Refusal::access())?;
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
            self.need_receive(core, now, mem, header)?;
        }
        if len > 0 {
            let mut segments = Segments::new();
            core.mkeys
                .translate(rkey, bearer, addr, len, Access::RemoteWrite, &mut segments)
                .map_err(|miss| Refusal::of_key(miss, addr, left, header.bth.psn))?;
            copy_payload(core, mem, &segments, payload, &mut 0).map_err(|error| match error {
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
            self.finish_receive(
                core,
                now,
                mem,
                header,
                cqe::RECV_RDMA_WITH_IMM,
                self.responder.received,
            );
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
        let psns = reth.len.div_ceil(self.mtu).max(1);
        let limit = usize::from(self.attr.max_dest_rd_atomic);
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
        });
        Ok(())
    }

    fn execute_atomic<M: Dma>(
        &mut self,
        core: &mut Core,
        mem: &M,
        header: &RoceHeader,
        kind: OpKind,
    ) -> Result<(), Refusal> {
        let atomic = header.atomic.ok_or(Refusal::INVALID)?;
        let bearer = self.key_bearer(core, header)?;
        self.check_rd_atomic(ACCESS_REMOTE_ATOMIC)?;
        // IBTA 9.7.4.1.7: the operand is aligned.
        if atomic.addr & 7 != 0 {
            return Err(Refusal::INVALID);
        }
        let place = (atomic.rkey, atomic.addr);
        let at = Self::find_word(core, bearer, place, Access::RemoteAtomic, header.bth.psn)?;
        let done = match kind {
            OpKind::CompareSwap => mem.compare_exchange_u64(at, atomic.compare, atomic.swap_add),
            _ => mem.fetch_add_u64(at, atomic.swap_add),
        };
        let original = done.map_err(|_| {
            core.counters.inc(Counter::dma_errors);
            Refusal::operational(None)
        })?;
        let limit = usize::from(self.attr.max_dest_rd_atomic);
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
        core: &mut Core,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
    ) -> Result<(), Refusal> {
        let (reth, feth) = match (header.reth, header.feth) {
            (Some(reth), Some(feth)) => (reth, feth),
            _ => return Err(Refusal::INVALID),
        };
        let bearer = self.key_bearer(core, header)?;
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
            core.mkeys
                .check_flush(reth.rkey, bearer, range, access)
                .map_err(|_| Refusal::access())?;
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if feth.placement & Feth::PERSISTENT != 0 {
            let range = (!whole).then_some((reth.addr, reth.len));
            self.require_durable(core, now, mem, header.bth.psn, (reth.rkey, bearer, range))?;
        }
        self.answer_done(header.bth.psn, reth.rkey, bearer);
        Ok(())
    }

    /// The memory that the FLUSH with this PSN is for must be durable; sees to it if nobody has.
    fn require_durable<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        psn: Psn,
        (rkey, bearer, range): (u32, Bearer, Option<(u64, u32)>),
    ) -> Result<(), Refusal> {
        if let Some(durable) = self.waits.durable.filter(|durable| durable.psn == psn) {
            return match durable.ended {
                Some(true) => Ok(()),
                Some(false) => {
                    core.counters.inc(Counter::dma_errors);
                    Err(Refusal::operational(None))
                }
                None => Err(Refusal::NotDurable),
            };
        }
        let access = Access::FlushPersistent;
        let ranges = core.mkeys.ranges(rkey, bearer, range, access);
        match mem.persist(self.number, ranges.as_deref()) {
            Persist::Done => return Ok(()),
            Persist::Begun(number) => {
                self.waits.durable = Some(Durable {
                    psn,
                    number,
                    since: now,
                    ended: None,
                });
            }
            Persist::Busy => {}
        }
        Err(Refusal::NotDurable)
    }

    fn execute_atomic_write<M: Dma>(
        &mut self,
        core: &mut Core,
        mem: &M,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Refusal> {
        let reth = header.reth.ok_or(Refusal::INVALID)?;
        let bearer = self.key_bearer(core, header)?;
        self.check_rd_atomic(ACCESS_REMOTE_WRITE)?;
        // IBTA A19.4.2: eight bytes, at a multiple of eight.
        if reth.addr & 7 != 0 || reth.len != 8 || payload.len() != 8 {
            return Err(Refusal::INVALID);
        }
        let place = (reth.rkey, reth.addr);
        let at = Self::find_word(core, bearer, place, Access::RemoteWrite, header.bth.psn)?;
        let mut bytes = [0; 8];
        payload.read(0, &mut bytes).map_err(|_| Refusal::Lost)?;
        mem.store_u64(at, u64::from_le_bytes(bytes)).map_err(|_| {
            core.counters.inc(Counter::dma_errors);
            Refusal::operational(None)
        })?;
        self.answer_done(header.bth.psn, reth.rkey, bearer);
        Ok(())
    }

    /// Answers a FLUSH or an atomic write, and remembers that.
    fn answer_done(&mut self, psn: Psn, rkey: u32, bearer: Bearer) {
        let limit = usize::from(self.attr.max_dest_rd_atomic);
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
        if !self.config.kind.is_reliable() {
            return Err(Refusal::INVALID);
        }
        if !self.allows(right) {
            return Err(Refusal::INVALID);
        }
        let limit = usize::from(self.attr.max_dest_rd_atomic);
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

    pub(super) fn refuse<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        psn: Psn,
        refusal: Refusal,
    ) {
        if self.config.kind == QpType::Uc {
            self.drop_unreliable(core, now, mem, psn, refusal);
            return;
        }
        match refusal {
            // A missing page is no refusal: `fault.rs` has seen to it.
            Refusal::Lost | Refusal::Absent(_) => {}
            Refusal::NotDurable => self.flush_waits(core, now, psn),
            Refusal::NotReady => {
                core.counters.inc(Counter::rnr_nak_sent);
                let timer = self.attr.min_rnr_timer;
                let resp = &mut self.responder;
                resp.nak_sent = true;
                resp.acknowledge(psn, Syndrome::RnrNak { timer });
            }
            Refusal::Fatal {
                code,
                event,
                receive,
            } => {
                core.counters.inc(match code {
                    NakCode::RemoteAccessError => Counter::resp_remote_access_errors,
                    _ => Counter::resp_invalid_request,
                });
                self.responder.acknowledge(psn, Syndrome::Nak(code));
                // One that is not at fault is flushed with the others.
                if let Some(failure) = receive
                    && let Some(wr) = self.responder.take_current()
                {
                    self.complete_receive(core, now, mem, &wr, failure);
                }
                self.fail_with_event(core, now, mem, event);
            }
        }
    }

    /// UC has no NAK: the message is lost (IBTA 9.8.2.2), unless the local side is at fault.
    fn drop_unreliable<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        psn: Psn,
        refusal: Refusal,
    ) {
        let resp = &mut self.responder;
        resp.message = None;
        resp.skipping = true;
        resp.expected = psn.next();
        match refusal {
            // UC has no FLUSH.
            Refusal::Lost | Refusal::Absent(_) | Refusal::NotDurable => {}
            Refusal::NotReady => core.counters.inc(Counter::out_of_buffer),
            Refusal::Fatal {
                receive: Some(failure),
                event,
                ..
            } => {
                if let Some(wr) = self.responder.take_current() {
                    self.complete_receive(core, now, mem, &wr, failure);
                }
                self.fail_with_event(core, now, mem, event);
            }
            Refusal::Fatal { .. } => core.counters.inc(Counter::resp_invalid_request),
        }
    }

    /// An opcode of RC in the service of this QP.
    pub(super) fn twin(&self, rc: Opcode) -> Opcode {
        let service = self.config.kind.service();
        service
            .and_then(|service| rc.with_service(service))
            .unwrap_or(rc)
    }

    /// The next reply packet, if there is one.
    pub(super) fn poll_reply<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        most: u32,
    ) -> Option<TxFrame> {
        if self.waits.reply.is_some() {
            return None;
        }
        let reply = *self.responder.replies.front()?;
        let Some(path) = self.path.as_ref() else {
            self.responder.replies.clear();
            return None;
        };
        let dest = self.attr.dest_qpn.get();
        match reply {
            Reply::Ack { psn, msn, syndrome } => {
                self.responder.replies.pop_front();
                let mut header = path.header(self.twin(Opcode::RcAcknowledge), dest, psn);
                header.aeth = Some(Aeth { syndrome, msn });
                Some(without_payload(header))
            }
            Reply::Atomic {
                psn, msn, original, ..
            } => {
                self.responder.replies.pop_front();
                let mut header = path.header(self.twin(Opcode::RcAtomicAcknowledge), dest, psn);
                header.aeth = Some(Aeth {
                    syndrome: Syndrome::ACK,
                    msn,
                });
                header.atomic_ack = Some(AtomicAckEth { original });
                Some(without_payload(header))
            }
            Reply::Read {
                psn,
                msn,
                addr,
                rkey,
                bearer,
                len,
                sent,
                ..
            } => {
                let packets = len.div_ceil(self.mtu).max(1);
                let offset = sent * self.mtu;
                let run = most.min(packets - 1 - sent.min(packets - 1)).max(1);
                let n = (len - offset.min(len)).min(run * self.mtu);
                let opcode = match (sent == 0, sent + 1 == packets) {
                    (true, true) => Opcode::RcReadResponseOnly,
                    (true, false) => Opcode::RcReadResponseFirst,
                    (false, false) => Opcode::RcReadResponseMiddle,
                    (false, true) => Opcode::RcReadResponseLast,
                };
                let at = psn.add(sent);
                let mut header = path.header(self.twin(opcode), dest, at);
                if opcode != Opcode::RcReadResponseMiddle {
                    header.aeth = Some(Aeth {
                        syndrome: Syndrome::ACK,
                        msn,
                    });
                }
                let mut payload = Segments::new();
                let va = addr.wrapping_add(u64::from(offset));
                let translated = match run {
                    _ if n == 0 => Ok(0),
                    1 => core
                        .mkeys
                        .translate(rkey, bearer, va, n, Access::RemoteRead, &mut payload)
                        .map(|()| n),
                    _ => core.mkeys.translate_some(
                        rkey,
                        bearer,
                        va,
                        n,
                        Access::RemoteRead,
                        &mut payload,
                    ),
                };
                let bytes = match translated {
                    Ok(bytes) if bytes == n => n,
                    // Not all of a run: the packets that are whole, or else a single one.
                    Ok(bytes) if bytes >= self.mtu => {
                        truncate_segments(&mut payload, bytes - bytes % self.mtu)
                    }
                    Ok(_) => return self.poll_reply(core, now, mem, 1),
                    Err(_) if run > 1 => return self.poll_reply(core, now, mem, 1),
                    Err(Miss::Absent(absent))
                        if self.attr.fault_policy != FAULT_POLICY_TERMINATE =>
                    {
                        let before = absent.va.wrapping_sub(va);
                        let hint = u64::from(len - offset).saturating_sub(before);
                        let need = Need::new(absent, hint, at.get());
                        match self.await_page(core, now, mem, false, None, &need) {
                            Some(token) => self.waits.reply = Some(token),
                            None => self.reply_lost(core, now, mem),
                        }
                        return None;
                    }
                    Err(miss) => {
                        // The region went away while it was read; nothing behind this READ counts any more.
                        self.responder.replies.clear();
                        let refusal = match miss {
                            Miss::NotPresent(_) | Miss::Absent(_) => Refusal::operational(None),
                            _ => Refusal::access(),
                        };
                        self.refuse(core, now, mem, at, refusal);
                        return self.poll_reply(core, now, mem, 1);
                    }
                };
                let run = (bytes / self.mtu).clamp(1, run);
                match self.responder.replies.front_mut() {
                    Some(Reply::Read { sent, .. }) if *sent + run < packets => *sent += run,
                    _ => drop(self.responder.replies.pop_front()),
                }
                Some(TxFrame {
                    packets: run,
                    ..TxFrame::packet(header, payload, bytes as usize)
                })
            }
        }
    }
}

impl Qp {
    /// The page that a READ is answered from will not come.
    pub(super) fn reply_lost<M: Dma>(&mut self, core: &mut Core, now: Instant, mem: &M) {
        let at = match self.responder.replies.front() {
            Some(Reply::Read { psn, sent, .. }) => psn.add(*sent),
            _ => self.responder.expected,
        };
        self.responder.replies.clear();
        self.refuse(core, now, mem, at, Refusal::access());
    }
}

/// Copies the payload, from byte `taken` on, into the segments.
pub(super) fn copy_payload<M: Dma>(
    core: &mut Core,
    mem: &M,
    segments: &Segments,
    payload: Payload<'_, M>,
    taken: &mut usize,
) -> Result<(), CopyError> {
    for segment in segments {
        let len = segment.len as usize;
        payload
            .copy_to(*taken, mem, segment.addr, len)
            .inspect_err(|_| core.counters.inc(Counter::dma_errors))?;
        *taken += len;
    }
    Ok(())
}

fn without_payload(header: RoceHeader) -> TxFrame {
    TxFrame::packet(header, Segments::new(), 0)
}
