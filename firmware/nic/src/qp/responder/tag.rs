//! Messages to a tag matching SRQ: the selection of their buffers.

use faultline_wire::packet::RoceHeader;

use super::Responder;
use super::refusal::Refusal;
use crate::context::Context;
use crate::dma::Dma;
use crate::payload::Payload;
use crate::qp::endpoint::Endpoint;
use crate::receive_queue::RecvWr;
use crate::tag::list::Rendezvous;
use crate::tag::message::{Class, Label, Message, Remote};

/// The destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// The current receive work request.
    Receive,
    /// None yet: its data will be read into this place of the tag list.
    Rendezvous(u32),
}

impl Responder {
    /// Begins a SEND: finds its buffer.
    pub(super) fn begin_send<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<Begun, Refusal> {
        let Some(tags) = qp.tag_list(cx.core) else {
            self.need_receive(qp, cx, header)?;
            return Ok(Begun::Receive);
        };
        // A repeated packet keeps the buffer that was selected for it.
        if let Some(kept) = &self.current {
            return match kept.class {
                Some(_) => Ok(Begun::Receive),
                None => Err(Refusal::INVALID),
            };
        }
        let only = header.bth.opcode.is_last_or_only();
        let message = Message::read(payload, only).map_err(|_| Refusal::Lost)?;
        let plain = header.imm.is_none() && header.ieth.is_none();
        let found = match message {
            Message::Eager(label) => tags.find(label),
            Message::Rendezvous(label, _) if plain => tags.find(label),
            _ => None,
        };
        let Some(mut wr) = found else {
            return self.leave_to_software(qp, cx, header, message);
        };
        wr.srqn = qp.config.srqn;
        match message {
            Message::Rendezvous(label, remote) => {
                if self.begin_rendezvous(qp, cx, &mut wr, label, remote) {
                    return Ok(Begun::Rendezvous(wr.tag));
                }
                wr.class = Some(Class::Incomplete(label));
            }
            Message::Eager(label) => {
                if !only {
                    qp.tell_match(cx, wr.tag, label);
                }
                wr.class = Some(Class::Eager {
                    label,
                    reported: !only,
                });
            }
            Message::NoTag | Message::Software => {}
        }
        self.current = Some(wr);
        Ok(Begun::Receive)
    }

    fn leave_to_software<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        message: Message,
    ) -> Result<Begun, Refusal> {
        self.need_receive(qp, cx, header)?;
        let class = match message {
            Message::NoTag => Class::NoTag,
            _ => Class::Unexpected,
        };
        // Counted only if there is a buffer: without one the requester sends the message again.
        if class == Class::Unexpected
            && let Some(tags) = qp.tag_list(cx.core)
        {
            tags.count_unexpected();
        }
        if let Some(wr) = &mut self.current {
            wr.class = Some(class);
        }
        Ok(Begun::Receive)
    }

    /// Begins to read the data of a rendezvous. Returns false if it can't be read: then software handles the message.
    fn begin_rendezvous<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        wr: &mut RecvWr,
        label: Label,
        remote: Remote,
    ) -> bool {
        // A QP that can't send yet does not know its limit yet.
        let may_read = !qp.state.sends() || qp.attr.max_rd_atomic > 0;
        if u64::from(remote.len) > wr.capacity || !may_read {
            return false;
        }
        qp.tell_match(cx, wr.tag, label);
        if let Some(tags) = qp.tag_list(cx.core) {
            let sges = core::mem::take(&mut wr.sges);
            tags.begin_reading(wr.tag, Rendezvous { sges, remote });
        }
        true
    }
}
