//! The responder of a connected QP: which request is carried out, and in which order replies leave.
//!
//! Each packet goes through the checks of IBTA 9.7.4 in their order: PSN, sequence of opcodes, support and
//! rights, resources, length, key. The first that fails decides the answer. Replies stand in a queue, so that
//! they leave in the order of the requests.

use std::collections::VecDeque;

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::event;
use faultline_wire::aeth::{Aeth, NakCode, Syndrome};
use faultline_wire::atomic::AtomicAckEth;
use faultline_wire::bth::Psn;
use faultline_wire::opcode::{OpKind, Opcode};
use faultline_wire::packet::RoceHeader;

use super::fault::IngressNeed;
use super::fault_policy::ReadReaction;
use super::unreliable::Jump;
use super::{Failure, PlaceError, Qp, QpType, State};
use crate::context::Context;
use crate::dma::Dma;
use crate::fault::Need;
use crate::frame::{Payload, TxFrame, truncate_segments};
use crate::mkey::{Access, Bearer, Miss};
use crate::srq::RecvWr;
use crate::tag::Class;

/// What becomes of a receive work request that is too small.
pub(super) const TOO_LONG: Failure = Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH);

/// The message sequence number has 24 bits.
pub(super) const MSN_MASK: u32 = 0xff_ffff;

/// A message of which packets are still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Send,
    Write { next: u64, rkey: u32, left: u32 },
}

/// A READ or atomic that was executed, kept to answer a repetition (IBTA 9.7.5.1.3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Executed {
    pub(super) psn: Psn,
    pub(super) psns: u32,
    pub(super) what: Operation,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
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
pub(super) enum Reply {
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
        /// As which user the key is accessed.
        bearer: Bearer,
        len: u32,
        sent: u32,
        again: bool,
        /// The requester has repeated the request, and has not been told to wait since.
        urged: bool,
    },
}

impl Reply {
    /// The answer to a FLUSH or an atomic write: a READ response without data (IBTA A19.4.3).
    pub(super) fn done(psn: Psn, msn: u32, rkey: u32, bearer: Bearer, again: bool) -> Self {
        Self::Read {
            psn,
            msn,
            addr: 0,
            rkey,
            bearer,
            len: 0,
            sent: 0,
            again,
            urged: again,
        }
    }

    fn psn(&self) -> Psn {
        match self {
            Self::Ack { psn, .. } | Self::Atomic { psn, .. } | Self::Read { psn, .. } => *psn,
        }
    }

    /// PSN of the next packet of it.
    pub(super) fn next_psn(&self) -> Psn {
        match self {
            Self::Read { psn, sent, .. } => psn.add(*sent),
            Self::Ack { psn, .. } | Self::Atomic { psn, .. } => *psn,
        }
    }

    fn is_for(&self, executed: &Executed) -> bool {
        let psn = self.psn();
        !matches!(self, Self::Ack { .. })
            && psn.diff(executed.psn) >= 0
            && psn.diff(executed.psn.add(executed.psns)) < 0
    }

    /// Whether it takes nothing from memory.
    fn is_short(&self) -> bool {
        !matches!(self, Self::Read { len: 1.., .. })
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
    pub(super) expected: Psn,
    pub(super) msn: u32,
    pub(super) message: Option<Message>,
    /// The receive work request that the current message fills, and how far it is.
    pub(super) current: Option<RecvWr>,
    pub(super) received: u32,
    /// A NAK for the expected PSN has been sent; later packets are dropped silently.
    nak_sent: bool,
    executed: VecDeque<Executed>,
    pub(super) replies: VecDeque<Reply>,
    /// UC: the rest of a damaged message is dropped.
    pub(super) skipping: bool,
    /// UC: a message has begun far from the expected PSN, and not much has come since.
    pub(super) jump: Option<Jump>,
}

/// Why a request is not carried out, and what that means for the connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// The packet's payload can't be read: it counts as lost on the way.
    Lost,
    /// No receive work request: the requester is told to send the request again.
    NotReady,
    /// A page is not there.
    Absent(IngressNeed),
    /// Memory is not durable yet.
    NotDurable,
    /// More than the receive buffer takes.
    TooLong,
    /// The connection ends.
    Fatal {
        /// None: the peer hears nothing.
        code: Option<NakCode>,
        event: u8,
        /// Status for the receive work request that was being filled.
        receive: Option<Failure>,
    },
}

impl Refusal {
    pub(super) const INVALID: Self = Self::Fatal {
        code: Some(NakCode::InvalidRequest),
        event: event::QP_REQUEST_ERROR,
        receive: None,
    };

    pub(super) const fn access() -> Self {
        Self::Fatal {
            code: Some(NakCode::RemoteAccessError),
            event: event::QP_ACCESS_ERROR,
            receive: None,
        }
    }

    /// The same of a request that has taken a receive work request: a WRITE with immediate data (IBTA 11.6.2, local access
    /// error).
    pub(super) const fn access_with_receive() -> Self {
        Self::Fatal {
            code: Some(NakCode::RemoteAccessError),
            event: event::QP_ACCESS_ERROR,
            receive: Some(Failure::new(cqe::LOC_ACCESS_ERR, cqe::LKEY)),
        }
    }

    pub(super) const fn is_of_access(&self) -> bool {
        matches!(
            self,
            Self::Fatal {
                code: Some(NakCode::RemoteAccessError),
                ..
            }
        )
    }

    pub(super) const fn operational(receive: Option<Failure>) -> Self {
        Self::Fatal {
            code: Some(NakCode::RemoteOperationalError),
            event: event::QP_FATAL,
            receive,
        }
    }

    /// A miss in memory that the peer has named, of which `left` bytes from `va` on belong to the message.
    pub(super) fn of_key(miss: Miss, va: u64, left: u32, psn: Psn) -> Self {
        match PlaceError::new(miss, va, left) {
            PlaceError::Absent(absent, hint) => Self::Absent(IngressNeed {
                need: Need::new(absent, hint, psn.get()),
                receive: false,
            }),
            _ => match miss {
                Miss::NotPresent(_) => Self::operational(None),
                _ => Self::access(),
            },
        }
    }

    /// The key that a SEND names can't be invalidated: the message has arrived, and it is for the receiver's program
    /// to say what is wrong (IBTA 9.9.6.3, class J).
    pub(super) const fn not_invalidated() -> Self {
        Self::Fatal {
            code: None,
            event: event::QP_ACCESS_ERROR,
            receive: Some(Failure::new(cqe::REM_INV_REQ_ERR, cqe::KEY_STATE)),
        }
    }
}

impl Responder {
    pub(super) fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Bytes that are kept of so many READs and atomics: what was asked for, answers, and acknowledgements between them.
    pub(super) fn room_for(limit: usize) -> usize {
        limit * (size_of::<Executed>() + 4 * size_of::<Reply>())
    }

    pub(super) fn set_expected_psn(&mut self, psn: Psn) {
        self.expected = psn;
        self.nak_sent = false;
        self.jump = None;
    }

    /// Drops replies and the message in progress, but not its receive work request.
    pub(super) fn abort(&mut self) {
        // A NAK that says why must still leave, after the answers to what came before it (IBTA 9.7.5.1.1). Without
        // one, what has been received is acknowledged: its receiver may have seen it, and be the one who ends this.
        if !self.replies.back().is_some_and(Reply::is_final) {
            let replies = self.replies.iter();
            let kept = replies.take_while(|reply| reply.is_short()).count();
            self.replies.truncate(kept);
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

    /// The expected packet is lost. The rest of its message is of no use without it; a datagram has no rest.
    pub(super) fn lose_message(&mut self) {
        self.message = None;
        self.skipping = true;
        self.expected = self.expected.next();
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
            if let Reply::Read { urged, .. } = queued {
                *urged = true;
            }
            return;
        }
        let psn = answer.psn();
        let later = |reply: &Reply| reply.psn().diff(psn) > 0;
        let at = self.replies.iter().position(later);
        self.replies
            .insert(at.unwrap_or(self.replies.len()), answer);
    }

    pub(super) fn remember(&mut self, executed: Executed, limit: usize) {
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
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), IngressNeed> {
        if !self.check_sequence(cx, header) {
            self.wake(cx.core);
            return Ok(());
        }
        let before = (self.responder.message, self.responder.received);
        match self.execute(cx, header, 1, payload) {
            Err(Refusal::Lost) if self.endpoint.config.kind.is_reliable() => {
                (self.responder.message, self.responder.received) = before;
            }
            Err(Refusal::Absent(fault)) => {
                (self.responder.message, self.responder.received) = before;
                return Err(fault);
            }
            Ok(()) => self.request_taken(cx),
            Err(refusal) => self.refuse(cx, header.bth.psn, refusal),
        }
        if !self.responder.replies.is_empty() {
            self.wake(cx.core);
        }
        Ok(())
    }

    /// Takes a run of request packets as a whole. Returns false if that is not possible; data that has been placed by then
    /// will be placed again.
    pub(super) fn receive_request_run<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> bool {
        let resp = &self.responder;
        if header.bth.psn != resp.expected || resp.skipping {
            return false;
        }
        let before = (resp.message, resp.received);
        if self.execute(cx, header, packets, payload).is_err() {
            (self.responder.message, self.responder.received) = before;
            return false;
        }
        self.request_taken(cx);
        if !self.responder.replies.is_empty() {
            self.wake(cx.core);
        }
        true
    }

    fn request_taken<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        self.responder.nak_sent = false;
        self.waits.durable = None;
        if self.endpoint.state == State::Rtr && !self.established {
            self.established = true;
            cx.raise_async(event::COMM_ESTABLISHED, self.endpoint.number);
        }
    }

    /// PSN check (IBTA 9.7.4.1.2). Returns true if the packet is the expected one.
    fn check_sequence<M: Dma>(&mut self, cx: &mut Context<'_, M>, header: &RoceHeader) -> bool {
        let resp = &mut self.responder;
        if self.endpoint.config.kind == QpType::Uc {
            return resp.check_unreliable(cx, header);
        }
        let psn = header.bth.psn;
        let ahead = psn.diff(resp.expected);
        match ahead {
            0 => true,
            1.. => {
                cx.count(Counter::out_of_sequence);
                if !resp.nak_sent {
                    resp.nak_sent = true;
                    cx.count(Counter::packet_seq_err_sent);
                    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
                    let expected = resp.expected;
                    resp.acknowledge(expected, nak);
                }
                false
            }
            _ => {
                cx.count(Counter::duplicate_request);
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
                    && skip
                        == u64::from(psn.diff(executed.psn) as u32) * u64::from(self.endpoint.mtu);
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
                        urged: true,
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

    pub(super) fn refuse<M: Dma>(&mut self, cx: &mut Context<'_, M>, psn: Psn, refusal: Refusal) {
        if self.endpoint.config.kind == QpType::Uc {
            self.drop_unreliable(cx, psn, refusal);
            return;
        }
        match refusal {
            // A missing page is no refusal: `fault.rs` has seen to it.
            Refusal::Lost | Refusal::Absent(_) => {}
            Refusal::NotDurable => self.flush_waits(cx, psn),
            Refusal::NotReady => {
                cx.count(Counter::rnr_nak_sent);
                let timer = self.endpoint.attr.min_rnr_timer;
                let resp = &mut self.responder;
                resp.nak_sent = true;
                resp.acknowledge(psn, Syndrome::RnrNak { timer });
            }
            Refusal::TooLong => {
                cx.count(Counter::resp_local_length_error);
                let refusal = Refusal::Fatal {
                    code: Some(NakCode::InvalidRequest),
                    event: event::QP_REQUEST_ERROR,
                    receive: Some(TOO_LONG),
                };
                self.refuse(cx, psn, refusal);
            }
            Refusal::Fatal {
                code,
                event,
                receive,
            } => {
                if let Some(code) = code {
                    cx.count(match code {
                        NakCode::RemoteAccessError => Counter::resp_remote_access_errors,
                        _ => Counter::resp_invalid_request,
                    });
                    self.responder.acknowledge(psn, Syndrome::Nak(code));
                }
                // One that is not at fault is flushed with the others.
                if let Some(failure) = receive
                    && let Some(wr) = self.responder.take_current()
                {
                    self.endpoint.fail_receive(cx, &wr, failure);
                }
                self.fail_with_event(cx, event);
            }
        }
    }

    /// The next reply, if it is one that takes nothing from memory.
    pub(super) fn take_short_reply(&mut self) -> Option<RoceHeader> {
        let path = self.endpoint.path.as_ref()?;
        let reply = self
            .responder
            .replies
            .pop_front_if(|reply| reply.is_short())?;
        let (psn, msn, syndrome, opcode, original) = match reply {
            Reply::Ack { psn, msn, syndrome } => (psn, msn, syndrome, Opcode::RcAcknowledge, None),
            Reply::Atomic {
                psn, msn, original, ..
            } => (
                psn,
                msn,
                Syndrome::ACK,
                Opcode::RcAtomicAcknowledge,
                Some(original),
            ),
            Reply::Read { psn, msn, .. } => {
                (psn, msn, Syndrome::ACK, Opcode::RcReadResponseOnly, None)
            }
        };
        Some(RoceHeader {
            aeth: Some(Aeth { syndrome, msn }),
            atomic_ack: original.map(|original| AtomicAckEth { original }),
            ..path.header(
                self.endpoint.opcode(opcode),
                self.endpoint.attr.dest_qpn.get(),
                psn,
            )
        })
    }

    /// Makes `frame` the next reply packet, or a run of up to `most`. Returns false if there is none.
    pub(super) fn poll_reply<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        most: u32,
        frame: &mut TxFrame,
    ) -> bool {
        let Some(reply) = self.responder.replies.front().copied() else {
            return false;
        };
        if let Some(wait) = &self.waits.reply
            && reply.next_psn() == wait.psn
            && !matches!(reply, Reply::Read { urged: true, .. })
        {
            return false;
        }
        if let Some(header) = self.take_short_reply() {
            frame.set_packet(header);
            return true;
        }
        let Some(path) = self.endpoint.path.as_ref() else {
            self.responder.replies.clear();
            return false;
        };
        let Reply::Read {
            psn,
            msn,
            addr,
            rkey,
            bearer,
            len,
            sent,
            ..
        } = reply
        else {
            return false;
        };
        let dest = self.endpoint.attr.dest_qpn.get();
        let packets = len.div_ceil(self.endpoint.mtu);
        let offset = sent * self.endpoint.mtu;
        let run = most.min(packets - 1 - sent.min(packets - 1)).max(1);
        let n = (len - offset.min(len)).min(run * self.endpoint.mtu);
        let opcode = match (sent == 0, sent + 1 == packets) {
            (true, true) => Opcode::RcReadResponseOnly,
            (true, false) => Opcode::RcReadResponseFirst,
            (false, false) => Opcode::RcReadResponseMiddle,
            (false, true) => Opcode::RcReadResponseLast,
        };
        let at = psn.add(sent);
        let mut header = path.header(self.endpoint.opcode(opcode), dest, at);
        if opcode != Opcode::RcReadResponseMiddle {
            header.aeth = Some(Aeth {
                syndrome: Syndrome::ACK,
                msn,
            });
        }
        frame.set_packet(header);
        let payload = &mut frame.payload;
        let va = addr.wrapping_add(u64::from(offset));
        let translated = match run {
            1 => cx
                .core
                .mkeys
                .translate(rkey, bearer, va, n, Access::RemoteRead, payload)
                .map(|()| n),
            _ => cx
                .core
                .mkeys
                .translate_some(rkey, bearer, va, n, Access::RemoteRead, payload),
        };
        let on_missing_page = self.endpoint.fault_policy().reactions().read;
        let bytes = match translated {
            Ok(bytes) if bytes == n => n,
            // Not all of a run: the packets that are whole, or else a single one.
            Ok(bytes) if bytes >= self.endpoint.mtu => {
                truncate_segments(payload, bytes - bytes % self.endpoint.mtu)
            }
            Ok(_) => return self.poll_reply(cx, 1, frame),
            Err(_) if run > 1 => return self.poll_reply(cx, 1, frame),
            Err(Miss::Absent(absent)) if on_missing_page != ReadReaction::Fail => {
                let before = absent.named.wrapping_sub(va);
                let hint = u64::from(len - offset).saturating_sub(before);
                let need = Need::new(absent, hint, at.get());
                if self.await_reply_page(cx, &need) {
                    return self.refuse_repetition(cx, frame);
                }
                self.reply_lost(cx);
                return self.poll_reply(cx, 1, frame);
            }
            Err(miss) => {
                // The region went away while it was read; nothing behind this READ counts any more.
                self.responder.replies.clear();
                let refusal = match miss {
                    Miss::NotPresent(_) | Miss::Absent(_) => Refusal::operational(None),
                    _ => Refusal::access(),
                };
                self.refuse(cx, at, refusal);
                return self.poll_reply(cx, 1, frame);
            }
        };
        let run = (bytes / self.endpoint.mtu).clamp(1, run);
        match self.responder.replies.front_mut() {
            Some(Reply::Read { sent, .. }) if *sent + run < packets => *sent += run,
            _ => drop(self.responder.replies.pop_front()),
        }
        frame.packets = run;
        frame.payload_len = bytes as usize;
        true
    }
}

impl Qp {
    /// The page that a READ is answered from will not come.
    pub(super) fn reply_lost<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let front = self.responder.replies.front();
        let at = front.map_or(self.responder.expected, Reply::next_psn);
        self.responder.replies.clear();
        self.refuse(cx, at, Refusal::access());
    }

    /// The requester has repeated a READ whose next response waits for a page: it is told to wait too, before its retries
    /// are used up. The PSN is that of the missing response, as with every NAK in the middle of a READ; it is also that
    /// of the repeated request, if that asks for the rest only. IBTA 9.7.5.2.8 knows RNR NAKs for new requests; requesters
    /// (`rdma_rxe` too) do not tell the difference. Nothing else changes: when the page is there, the responses go on.
    /// Returns false if there is no such packet to send.
    fn refuse_repetition<M: Dma>(&mut self, cx: &mut Context<'_, M>, frame: &mut TxFrame) -> bool {
        let (
            Some(wait),
            Some(path),
            Some(Reply::Read {
                msn, urged, rkey, ..
            }),
        ) = (
            self.waits.reply,
            self.endpoint.path.as_ref(),
            self.responder.replies.front_mut(),
        )
        else {
            return false;
        };
        let reaction = self.endpoint.fault_policy().reactions().read;
        if !std::mem::take(urged) || reaction != ReadReaction::WaitWithRnrNak {
            return false;
        }
        cx.count(Counter::page_fault_rnr);
        cx.count(Counter::rnr_nak_sent);
        let timer = cx.core.rnr_timer(cx.now, Some(wait.token), *rkey);
        // The READ itself is not complete.
        let msn = msn.wrapping_sub(1) & MSN_MASK;
        let opcode = self.endpoint.opcode(Opcode::RcAcknowledge);
        let header = RoceHeader {
            aeth: Some(Aeth {
                syndrome: Syndrome::RnrNak { timer },
                msn,
            }),
            ..path.header(opcode, self.endpoint.attr.dest_qpn.get(), wait.psn)
        };
        frame.set_packet(header);
        true
    }
}
