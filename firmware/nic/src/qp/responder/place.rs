//! Receive work requests: taken, filled and completed. All messages for a receive queue pass through this module.

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::{U32, event};
use faultline_wire::packet::RoceHeader;

use super::Responder;
use super::refusal::{IngressNeed, Refusal, Stopped, TOO_LONG};
use crate::context::Context;
use crate::dma::Dma;
use crate::fault::Need;
use crate::mkey::Access;
use crate::payload::Payload;
use crate::qp::endpoint::Endpoint;
use crate::qp::sge;
use crate::qp::types::{Failure, Fatal, PlaceError, QpType};
use crate::receive_queue::{RecvWr, TakeError};
use crate::segments::Segments;

impl Responder {
    /// Takes the current receive work request, or else one from the QP's own queue or from this SRQ.
    fn take_receive<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        srqn: Option<u32>,
    ) -> Result<RecvWr, TakeError> {
        if let Some(wr) = self.current.take() {
            return Ok(wr);
        }
        if let Some(queue) = &mut self.queue {
            return queue.take(cx.mem);
        }
        cx.take_shared(srqn.ok_or(TakeError::Empty)?)
    }

    /// Takes the receive work request of a message of a connection that begins or, for a WRITE with immediate data,
    /// ends.
    pub(super) fn need_receive<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
    ) -> Result<(), Refusal> {
        let mut srqn = qp.config.srqn;
        // A kept receive work request is for the repetition of a tagged message, which must not become another request.
        let kept = self.current.as_ref();
        if kept.is_some_and(|wr| wr.class.is_some()) {
            return Err(Refusal::INVALID);
        }
        if qp.config.kind == QpType::XrcTgt {
            self.request_user(qp, cx.core, header)?;
            srqn = header.xrceth.map(|xrc| xrc.srqn);
            // Nor may it be for another queue.
            if kept.is_some_and(|wr| wr.srqn != srqn) {
                return Err(Refusal::INVALID);
            }
        }
        match self.take_receive(cx, srqn) {
            Ok(wr) => {
                self.current = Some(wr);
                Ok(())
            }
            Err(TakeError::Empty) => Err(Refusal::NotReady),
            Err(TakeError::Broken) => Err(Refusal::operational(None)),
        }
    }

    /// Completes the current receive work request, whose message has arrived.
    pub(super) fn finish_receive<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        opcode: u8,
    ) {
        if let Some(wr) = self.current.take() {
            let entry = Cqe {
                byte_len: U32::new(self.received),
                src_qp: qp.attr.dest_qpn,
                opcode,
                ..completion(header)
            };
            qp.complete_receive(cx, &wr, entry);
        }
    }

    /// Receives a message of one packet: takes a receive work request, writes `head` and then the payload to its
    /// buffers, and returns it to be completed. Returns `None` if there is no work request, or if the message can't be
    /// placed or is lost, which has been counted or has completed the work request.
    pub(in crate::qp) fn receive_whole<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        head: &[u8],
        payload: Payload<'_, M>,
        psn: u32,
    ) -> Result<Option<RecvWr>, Stopped> {
        let is_raw = qp.config.kind == QpType::Raw;
        let wr = match self.take_receive(cx, qp.config.srqn) {
            Ok(wr) => wr,
            Err(TakeError::Empty) => {
                cx.count(match is_raw {
                    true => Counter::rx_no_buffer,
                    false => Counter::out_of_buffer,
                });
                return Ok(None);
            }
            Err(TakeError::Broken) => return Err(Fatal::with(event::QP_FATAL).into()),
        };
        if head.len().saturating_add(payload.len()) as u64 > wr.capacity {
            match is_raw {
                true => qp.fail_receive(cx, &wr, TOO_LONG),
                false => self.drop_too_long(qp, cx, wr),
            }
            return Ok(None);
        }
        let placed = qp
            .scatter(cx, &wr, 0, Payload::Bytes(head))
            .and_then(|()| qp.scatter(cx, &wr, head.len() as u64, payload));
        match placed {
            Ok(()) => Ok(Some(wr)),
            Err(PlaceError::Lost) => {
                self.current = Some(wr);
                Ok(None)
            }
            Err(PlaceError::Absent(absent, hint)) => {
                self.current = Some(wr);
                Err(Stopped::Absent(IngressNeed {
                    need: Need::new(absent, hint, psn),
                    receive: true,
                }))
            }
            Err(PlaceError::Failed(failure)) => {
                qp.fail_receive(cx, &wr, failure);
                match is_raw {
                    // One bad buffer must not stop an interface.
                    true => Ok(None),
                    false => Err(Fatal::SILENT.into()),
                }
            }
        }
    }

    /// Drops a datagram that is longer than its buffer. Its sender gets no answer and must not be able to stop the
    /// queue, so the buffer stays for the next message. A buffer of an SRQ completes in error, so that the program sees
    /// why it receives nothing (IBTA 9.9.6.3, classes D and E).
    pub(super) fn drop_too_long<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        wr: RecvWr,
    ) {
        cx.count(Counter::resp_local_length_error);
        if wr.srqn.is_some() {
            qp.fail_receive(cx, &wr, TOO_LONG);
        } else {
            self.current = Some(wr);
        }
    }

    /// Requires a doorbell for receive work requests from now on, because the queue pair has failed.
    pub(crate) fn notify_posted<M: Dma>(&self, mem: &M) {
        if let Some(queue) = &self.queue {
            queue.set_notify(mem, true);
        }
    }

    /// Flushes the current receive work request.
    pub(crate) fn flush_current<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>) {
        if let Some(wr) = self.current.take() {
            qp.fail_receive(cx, &wr, Failure::FLUSHED);
        }
    }

    /// Flushes the receive work requests that are posted now, until the turn is over. Later ones are flushed at their
    /// doorbell. Returns true if none is left.
    pub(crate) fn flush_queue<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        turn: u64,
    ) -> bool {
        let queue = self.queue.as_mut();
        queue.is_none_or(|queue| qp.flush_receives(cx, queue, turn))
    }
}

/// The completion fields that the headers of the last packet of a message determine.
pub(in crate::qp) fn completion(header: &RoceHeader) -> Cqe {
    let mut entry = Cqe::default();
    if header.bth.solicited {
        entry.flags |= cqe::CQE_SOLICITED;
    }
    if let Some(imm) = header.imm {
        entry.flags |= cqe::CQE_IMM;
        entry.imm = U32::from_bytes(imm.to_be_bytes());
    } else if let Some(rkey) = header.ieth {
        entry.flags |= cqe::CQE_INVALIDATE;
        entry.imm = U32::new(rkey);
    }
    entry
}

impl Endpoint {
    /// Writes a payload into the buffers of a receive work request, from byte `offset` of them on.
    pub(crate) fn scatter<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        wr: &RecvWr,
        offset: u64,
        payload: Payload<'_, M>,
    ) -> Result<(), PlaceError> {
        let user = match wr.srqn.and_then(|srqn| cx.core.srqs.get(srqn)) {
            Some(srq) => self.key_user_in(srq.pd),
            None => self.key_user(),
        };
        let mut taken = 0;
        for part in sge::parts(&wr.sges, offset, payload.len() as u64) {
            let range = part.range(user, Access::LocalWrite);
            let mut segments = Segments::new();
            cx.core
                .mkeys
                .translate(&range, &mut segments)
                .map_err(|miss| PlaceError::new(miss, part.va, part.left))?;
            cx.copy_payload(&segments, payload, &mut taken)?;
        }
        Ok(())
    }
}
