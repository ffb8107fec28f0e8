//! Answers: queued in the order of the requests, repeated when requests are, and sent.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets are in a message of at most 2^31 bytes, and packets times the MTU are less than one MTU more"
)]

use faultline_abi::admin::Counter;
use faultline_wire::aeth::{Aeth, NakCode, Syndrome};
use faultline_wire::atomic::AtomicAckEth;
use faultline_wire::bth::Psn;
use faultline_wire::opcode::{OpKind, Opcode};
use faultline_wire::packet::RoceHeader;

use super::refusal::Rejection;
use super::reply::{Answer, Executed, Operation, Reply, Source, repeated_part};
use super::{Responder, report_rnr_nak};
use crate::context::Context;
use crate::dma::Dma;
use crate::fault::Need;
use crate::frame::{FrameKind, TxFrame, following};
use crate::mkey::{Access, KeyRange, Miss};
use crate::qp::endpoint::Endpoint;
use crate::qp::fault_policy::ReadReaction;
use crate::qp::types::Fatal;
use crate::segments::truncate_segments;

/// The message sequence number has 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

impl Responder {
    /// Whether there is something to send.
    pub(crate) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Whether a READ is being answered.
    pub(crate) fn is_answering_read(&self) -> bool {
        let front = self.replies.front();
        front.is_some_and(|reply| matches!(reply.what, Answer::Read { .. } | Answer::Done))
    }

    /// PSN of the next packet that is sent.
    pub(super) fn next_reply_psn(&self) -> Option<Psn> {
        self.replies.front().map(Reply::next_psn)
    }

    /// Drops the answers, because the connection is over. A NAK with the reason must still be sent, after the answers
    /// to earlier requests (IBTA 9.7.5.1.1). Without a NAK, all received packets are acknowledged, because the
    /// application may have ended the connection after it has seen their data.
    pub(super) fn drop_answers(&mut self) {
        if !self.replies.back().is_some_and(Reply::is_final) {
            let replies = self.replies.iter();
            let kept = replies.take_while(|reply| reply.is_short()).count();
            self.replies.truncate(kept);
        }
        self.executed.clear();
    }

    fn reply(&self, psn: Psn, what: Answer, again: bool) -> Reply {
        Reply {
            psn,
            msn: self.msn,
            what,
            again,
        }
    }

    /// Counts a request that has been executed completely.
    pub(super) fn end_message(&mut self) {
        self.msn = (self.msn + 1) & MSN_MASK;
    }

    /// Queues READY for the expected packet behind earlier replies, unless it is queued.
    pub(super) fn say_ready(&mut self) {
        self.forget_ready();
        let ready = self.reply(self.expected, Answer::Ready, false);
        self.replies.push_back(ready);
    }

    /// Removes READY from the queue.
    pub(super) fn forget_ready(&mut self) -> Option<Reply> {
        let last = self
            .replies
            .back()
            .filter(|last| last.is_ready())
            .copied()?;
        self.replies.pop_back();
        Some(last)
    }

    /// Queues a sequence NAK of the expected packet, in addition to earlier replies, unless it is queued.
    pub(super) fn ask_again(&mut self) {
        self.forget_ready();
        let nak = Answer::Ack(Syndrome::Nak(NakCode::PsnSequenceError));
        let nak = self.reply(self.expected, nak, false);
        if self.replies.back() == Some(&nak) {
            return;
        }
        // Behind a READ that waits for a page such replies would accumulate: the last one is enough.
        if let [.., first, last] = self.replies.make_contiguous()
            && first.is_ack()
            && last.is_ack()
        {
            *first = *last;
            self.replies.pop_back();
        }
        self.replies.push_back(nak);
    }

    /// Queues an acknowledgement. It replaces the last reply if that acknowledges fewer packets.
    pub(super) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        let ack = self.reply(psn, Answer::Ack(syndrome), false);
        // An answer to the packet of READY, or to a later packet, makes READY superfluous.
        let ready = self.forget_ready().filter(|ready| psn.diff(ready.psn) < 0);
        match self.replies.back_mut().filter(|last| last.is_ack()) {
            // A NAK acknowledges all earlier packets.
            Some(last) if matches!(syndrome, Syndrome::Ack { .. }) && last.psn.diff(psn) > 0 => {}
            // No NAK in the queue is final: after a final one nothing is received.
            Some(last) => *last = ack,
            None => self.replies.push_back(ack),
        }
        if let Some(ready) = ready {
            self.replies.push_back(ready);
        }
    }

    /// Queues the answer to a READ, atomic, FLUSH or atomic write that has been executed and takes `psns` PSNs from
    /// `psn` on, and remembers the operation. `limit` is the number of operations that are remembered.
    pub(super) fn answer(&mut self, psn: Psn, psns: u32, what: Operation, limit: u8) {
        self.expected = psn.add(psns);
        self.end_message();
        while self.executed.len() >= usize::from(limit).max(1) {
            self.executed.pop_front();
        }
        self.executed.push_back(Executed { psn, psns, what });
        let answer = self.reply(psn, what.answer(false), false);
        self.forget_ready();
        self.replies.push_back(answer);
    }

    /// Number of answers in the queue that count against the limit of READs and atomics.
    pub(super) fn answers_waiting(&self) -> usize {
        let first = |reply: &&Reply| !reply.is_ack() && !reply.is_ready() && !reply.again;
        self.replies.iter().filter(first).count()
    }

    /// Queues the answer to a repetition. Replies stay in the order of their PSNs, and each operation has one, so that
    /// repetitions take no more memory than the operations that they repeat.
    fn answer_again(&mut self, executed: &Executed, mut answer: Reply) {
        if let Some(queued) = self.replies.iter_mut().find(|r| r.is_for(executed)) {
            // If the repetition begins with a packet that has not been sent yet, the queued reply includes it.
            // Otherwise the queued reply goes back to that packet.
            let skip = answer.psn.diff(queued.psn);
            if let (Answer::Read { sent, .. }, Answer::Read { .. }) = (&queued.what, &answer.what)
                && (skip < 0 || *sent > skip as u32)
            {
                answer.again = queued.again;
                *queued = answer;
            }
            if let Answer::Read { urged, .. } = &mut queued.what {
                *urged = true;
            }
            return;
        }
        let later = |reply: &Reply| reply.psn.diff(answer.psn) > 0;
        let at = self.replies.iter().position(later);
        // The rest of a READ that is being answered would continue no response then, so its responses begin again.
        if at == Some(0)
            && let Some(Reply {
                what: Answer::Read { sent, .. },
                ..
            }) = self.replies.front_mut()
        {
            *sent = 0;
        }
        self.replies
            .insert(at.unwrap_or(self.replies.len()), answer);
    }

    /// Answers a duplicate: it was executed before, so only the answer is repeated (IBTA 9.7.4.1.2).
    pub(super) fn repeat(&mut self, qp: &Endpoint, header: &RoceHeader) {
        let (psn, kind) = (header.bth.psn, header.bth.opcode.info().kind);
        if !kind.is_answered() {
            // The acknowledgement of everything so far was lost. As for new requests, one is sent if it is asked for (IBTA 9.7.5.1.2):
            // `rdma_rxe` stops for ever if an acknowledgement arrives before it has repeated the last packet, and then another one.
            if header.bth.ack_req {
                self.acknowledge(self.expected.prev(), Syndrome::ACK);
            }
            return;
        }
        let offset = |executed: &Executed| psn.diff(executed.psn);
        let found = self
            .executed
            .iter()
            .find(|executed| (0..executed.psns as i32).contains(&offset(executed)));
        // It is too old to be remembered: the requester has its answer, or will not get one.
        let Some(&executed) = found else { return };
        let what = match executed.what {
            Operation::Read(from) if kind == OpKind::ReadRequest => {
                let packet = offset(&executed) as u32;
                let part = header
                    .reth
                    .and_then(|reth| repeated_part(from, reth, packet, qp.mtu));
                part.map(Operation::Read)
            }
            Operation::Atomic { .. } if kind.is_atomic() => Some(executed.what),
            Operation::Done if matches!(kind, OpKind::Flush | OpKind::AtomicWrite) => {
                Some(executed.what)
            }
            // Another request than was executed.
            Operation::Read(_) | Operation::Atomic { .. } | Operation::Done => None,
        };
        if let Some(what) = what {
            let answer = self.reply(psn, what.answer(true), true);
            self.answer_again(&executed, answer);
        }
    }

    /// Takes the next reply, if that needs no memory.
    pub(crate) fn take_short_reply(&mut self, qp: &Endpoint) -> Option<RoceHeader> {
        qp.path.as_ref()?;
        let reply = self.replies.pop_front_if(|reply| reply.is_short())?;
        if reply.is_ready() {
            return qp.header(Opcode::Ready, reply.psn);
        }
        let (opcode, syndrome, original) = match reply.what {
            Answer::Ack(syndrome) => (Opcode::RcAcknowledge, syndrome, None),
            Answer::Atomic { original } => {
                (Opcode::RcAtomicAcknowledge, Syndrome::ACK, Some(original))
            }
            Answer::Done | Answer::Read { .. } | Answer::Ready => {
                (Opcode::RcReadResponseOnly, Syndrome::ACK, None)
            }
        };
        let mut header = qp.header(opcode, reply.psn)?;
        header.aeth = Some(Aeth {
            syndrome,
            msn: reply.msn,
        });
        header.atomic_ack = original.map(|original| AtomicAckEth { original });
        Some(header)
    }

    /// Makes `frame` the next reply packet, or a run of up to `most`. Returns false if there is none.
    pub(crate) fn poll<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        most: u32,
        frame: &mut TxFrame,
    ) -> Result<bool, Fatal> {
        let Some(&reply) = self.replies.front() else {
            return Ok(false);
        };
        let urged = matches!(reply.what, Answer::Read { urged: true, .. });
        let waits = self.waits.reply.map(|wait| wait.psn) == Some(reply.next_psn());
        if waits && !urged {
            return Ok(false);
        }
        if let Some(header) = self.take_short_reply(qp) {
            frame.set_packet(header);
            return Ok(true);
        }
        match reply.what {
            Answer::Read { from, sent, .. } => {
                self.poll_read(qp, cx, (reply, from, sent), most, frame)
            }
            _ => Ok(false),
        }
    }

    /// Makes `frame` the next response packet of a READ, or a run of up to `most`.
    fn poll_read<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        (reply, from, sent): (Reply, Source, u32),
        most: u32,
        frame: &mut TxFrame,
    ) -> Result<bool, Fatal> {
        let packets = from.len.div_ceil(qp.mtu);
        let offset = sent * qp.mtu;
        let left = from.len - offset.min(from.len);
        let run = most.min(packets - 1 - sent.min(packets - 1)).max(1);
        let opcode = match (sent == 0, sent + 1 == packets) {
            (true, true) => Opcode::RcReadResponseOnly,
            (true, false) => Opcode::RcReadResponseFirst,
            (false, false) => Opcode::RcReadResponseMiddle,
            (false, true) => Opcode::RcReadResponseLast,
        };
        let psn = reply.next_psn();
        let Some(mut header) = qp.header(opcode, psn) else {
            self.replies.clear();
            return Ok(false);
        };
        if opcode != Opcode::RcReadResponseMiddle {
            header.aeth = Some(Aeth {
                syndrome: Syndrome::ACK,
                msn: reply.msn,
            });
        }
        frame.set_packet(header);
        let range = KeyRange {
            key: from.rkey,
            user: from.user,
            va: from.addr.wrapping_add(u64::from(offset)),
            len: left.min(run * qp.mtu),
            access: Access::RemoteRead,
        };
        let (mkeys, payload) = (&cx.core.mkeys, &mut frame.payload);
        let translated = match run {
            1 => mkeys.translate(&range, payload).map(|()| range.len),
            _ => mkeys.translate_part(&range, payload),
        };
        let bytes = match translated {
            Ok(bytes) if bytes == range.len => bytes,
            // Not all of a run: the packets that are whole, or else a single one.
            Ok(bytes) if bytes >= qp.mtu => truncate_segments(payload, bytes - bytes % qp.mtu),
            Ok(_) => return self.poll_read(qp, cx, (reply, from, sent), 1, frame),
            Err(_) if run > 1 => return self.poll_read(qp, cx, (reply, from, sent), 1, frame),
            Err(miss) => return self.response_faulted(qp, cx, (psn, range.va, left), miss, frame),
        };
        let run = (bytes / qp.mtu).clamp(1, run);
        match self.replies.front_mut().map(|reply| &mut reply.what) {
            Some(Answer::Read { sent, .. }) if *sent + run < packets => *sent += run,
            _ => drop(self.replies.pop_front()),
        }
        frame.packets = run;
        frame.payload_len = bytes as usize;
        Ok(true)
    }

    /// Replaces `frame`, the last frame, by the next run of up to `most` packets of the answer to the same READ. The
    /// run is not sent yet. Returns false, and leaves `frame` undefined, if that needs a [poll](Responder::poll).
    pub(in crate::qp) fn next_run<M: Dma>(
        &self,
        qp: &Endpoint,
        cx: &Context<'_, M>,
        most: u32,
        frame: &mut TxFrame,
    ) -> bool {
        let (FrameKind::Roce(header), Some(reply)) = (&mut frame.kind, self.replies.front()) else {
            return false;
        };
        let psn = reply.next_psn();
        let Answer::Read { from, sent, .. } = reply.what else {
            return false;
        };
        let before_last = from.len.div_ceil(qp.mtu) - 1;
        let left = before_last - before_last.min(sent);
        let run = most.min(left);
        let follows = sent > 0 && header.bth.psn.add(frame.packets) == psn;
        if self.waits.reply.is_some() || !follows || run < 2 {
            return false;
        }
        let range = KeyRange {
            key: from.rkey,
            user: from.user,
            va: from.addr.wrapping_add(u64::from(sent * qp.mtu)),
            len: run * qp.mtu,
            access: Access::RemoteRead,
        };
        frame.payload.clear();
        let translated = cx.core.mkeys.translate_part(&range, &mut frame.payload);
        let packets = translated.map_or(0, |bytes| bytes / qp.mtu);
        if packets < 2 {
            return false;
        }
        let bytes = truncate_segments(&mut frame.payload, packets * qp.mtu);
        header.bth.psn = psn;
        if header.bth.opcode.is_first_or_only() {
            header.bth.opcode = following(header.bth.opcode);
        }
        header.aeth = None;
        frame.packets = packets;
        frame.payload_len = bytes as usize;
        true
    }

    /// Records that these packets of the answer to the first READ are sent; they are not its last ones.
    pub(in crate::qp) fn next_run_sent(&mut self, packets: u32) {
        if let Some(Reply {
            what: Answer::Read { sent, .. },
            ..
        }) = self.replies.front_mut()
        {
            *sent += packets;
        }
    }

    /// Handles a response of a READ that can't be read from memory: `left` bytes from `va` on are to be sent, from this
    /// PSN on.
    fn response_faulted<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        (psn, va, left): (Psn, u64, u32),
        miss: Miss,
        frame: &mut TxFrame,
    ) -> Result<bool, Fatal> {
        let reaction = qp.fault_policy().reactions().read;
        match miss {
            Miss::Absent(absent) if reaction != ReadReaction::Fail => {
                let before = absent.named.wrapping_sub(va);
                let hint = u64::from(left).saturating_sub(before);
                let need = Need::new(absent, hint, psn.get());
                if self.await_reply_page(qp, cx, &need) {
                    return Ok(self.refuse_repetition(qp, cx, frame));
                }
                Err(self.reply_lost(qp, cx))
            }
            // The region was removed while it was read. Nothing behind this READ counts any more.
            _ => {
                self.replies.clear();
                let rejection = match miss {
                    Miss::NotPresent(_) | Miss::Absent(_) => Rejection::operational(None),
                    _ => Rejection::ACCESS,
                };
                Err(self.reject(qp, cx, psn, rejection))
            }
        }
    }

    /// Handles a page of a READ's source that will not become present.
    pub(super) fn reply_lost<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>) -> Fatal {
        let psn = self.next_reply_psn().unwrap_or(self.expected);
        self.replies.clear();
        self.reject(qp, cx, psn, Rejection::ACCESS)
    }

    /// Refuses the repetition of a READ whose next response waits for a page with an RNR NAK, before the requester's
    /// retries are used up. The PSN is that of the missing response, as with every NAK in the middle of a READ; it is
    /// also that of the repeated request, if that requests the rest only. IBTA 9.7.5.2.8 defines RNR NAKs for new
    /// requests; requesters (`rdma_rxe`, too) do not distinguish the two. Nothing else changes: when the page is
    /// present, the responses continue. Returns false if there is no such packet to send.
    fn refuse_repetition<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        frame: &mut TxFrame,
    ) -> bool {
        let (Some(wait), Some(reply)) = (self.waits.reply, self.replies.front_mut()) else {
            return false;
        };
        let Answer::Read { from, urged, .. } = &mut reply.what else {
            return false;
        };
        let reaction = qp.fault_policy().reactions().read;
        if !std::mem::take(urged) || reaction != ReadReaction::WaitWithRnrNak {
            return false;
        }
        let Some(mut header) = qp.header(Opcode::RcAcknowledge, wait.psn) else {
            return false;
        };
        cx.count(Counter::page_fault_rnr);
        report_rnr_nak(qp, cx, wait.psn, Some(wait.token));
        let timer = cx.core.rnr_timer(cx.now, Some(wait.token), from.rkey);
        header.aeth = Some(Aeth {
            syndrome: Syndrome::RnrNak { timer },
            // The READ itself is not complete.
            msn: reply.msn.wrapping_sub(1) & MSN_MASK,
        });
        frame.set_packet(header);
        true
    }
}
