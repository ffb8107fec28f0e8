//! Messages to a tag matching SRQ: which buffer they get, and the rendezvous that the device carries out.
//!
//! A rendezvous is a READ and a SEND ("FIN") that the requester carries out like work requests of the program, but they come
//! from the tag list instead of the ring. They use no entry of the send queue: the READ completes as the tagged buffer, and the
//! FIN has no completion.

use faultline_abi::cqe::{self, Cqe};
use faultline_abi::{U32, tag as abi};
use faultline_wire::packet::RoceHeader;

use super::endpoint::Endpoint;
use super::responder::Refusal;
use super::work_request::{DeviceRequest, Remote as RemoteMemory, SendExtra, SendOp, SendWr};
use super::{Failure, Qp, State};
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::frame::Payload;
use crate::srq::RecvWr;
use crate::tag::{Class, HEADERS, Label, Message, Remote, Rendezvous, TagList};

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// To the receive work request at hand.
    Receive,
    /// Nowhere: its data will be read.
    Rendezvous,
}

impl Endpoint {
    fn tag_list<'a>(&self, core: &'a mut Core) -> Option<&'a mut TagList> {
        let srq = core.srqs.get_mut(self.config.srqn?)?;
        srq.tags.as_deref_mut()
    }

    /// Number of buffers that a message is compared with, if its messages are for buffers with tags.
    pub fn listed_tags(&self, core: &mut Core) -> Option<u64> {
        self.tag_list(core).map(|tags| tags.listed())
    }

    /// A completion that says that the message has found its buffer, and nothing of data.
    fn tell_match<M: Dma>(&self, cx: &mut Context<'_, M>, slot: u32, label: Label) {
        let mut entry = self.tag_completion(slot);
        label.describe(&mut entry);
        self.complete_tagged(cx, entry);
    }

    fn tag_completion(&self, slot: u32) -> Cqe {
        Cqe {
            wqe: U32::new(slot),
            qpn: U32::new(self.number),
            src_qp: self.attr.dest_qpn,
            opcode: cqe::TM_RECV,
            tm_flags: abi::CQE_TM_TAGGED,
            srqn: U32::new(self.config.srqn.unwrap_or(0)),
            ..Cqe::default()
        }
    }

    fn complete_tagged<M: Dma>(&self, cx: &mut Context<'_, M>, entry: Cqe) {
        if let Some(cqn) = self.tag_list(cx.core).map(|tags| tags.cqn) {
            cx.complete(cqn, entry);
        }
    }

    /// The READ of a rendezvous into this place of the tag list. `index` is that of the program's next work request.
    pub(super) fn rendezvous_read(&self, core: &mut Core, slot: u32, index: u32) -> Option<SendWr> {
        let pd = core.srqs.get(self.config.srqn?)?.pd;
        let rendezvous = self.tag_list(core)?.reading(slot)?;
        let from = RemoteMemory {
            addr: rendezvous.remote.va,
            rkey: rendezvous.remote.rkey,
        };
        Some(SendWr {
            length: rendezvous.remote.len,
            sges: rendezvous.sges.clone(),
            device: Some(DeviceRequest::Read { slot, pd }),
            ..SendWr::new(index, Some(SendOp::Read { from }))
        })
    }

    /// The FIN that is due after this work request, if it is the READ of a rendezvous.
    pub(super) fn fin_after(&self, core: &mut Core, wr: &SendWr, index: u32) -> Option<SendWr> {
        let Some(DeviceRequest::Read { slot, .. }) = wr.device else {
            return None;
        };
        let fin = self.tag_list(core)?.reading(slot)?.remote.fin;
        Some(SendWr {
            length: HEADERS as u32,
            device: Some(DeviceRequest::Fin(fin)),
            ..SendWr::new(index, Some(SendOp::Send(SendExtra::Nothing)))
        })
    }

    /// Completes a work request of the device. A FIN has no completion.
    pub(super) fn complete_device_request<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        request: DeviceRequest,
        failure: Option<Failure>,
    ) {
        if let DeviceRequest::Read { slot, .. } = request {
            self.complete_rendezvous(cx, slot, failure);
        }
    }

    /// Completes the tagged buffer of a rendezvous.
    pub fn complete_rendezvous<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        slot: u32,
        failure: Option<Failure>,
    ) {
        let mut entry = self.tag_completion(slot);
        match failure {
            Some(failure) => {
                entry.status = failure.status;
                entry.vendor_err = failure.vendor;
            }
            None => entry.tm_flags |= abi::CQE_TM_DATA_VALID,
        }
        if let Some(tags) = self.tag_list(cx.core) {
            entry.byte_len = U32::new(tags.reading(slot).map_or(0, |r| r.remote.len));
            tags.release(slot);
        }
        self.complete_tagged(cx, entry);
    }
}

impl Qp {
    /// A SEND begins: finds its buffer.
    pub(super) fn begin_send<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<Begun, Refusal> {
        let Some(tags) = self.endpoint.tag_list(cx.core) else {
            self.need_receive(cx, header)?;
            return Ok(Begun::Receive);
        };
        // A packet that is repeated has had its decision.
        if let Some(kept) = self.responder.current() {
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
            return self.leave_to_software(cx, header, message);
        };
        wr.srqn = self.endpoint.config.srqn;
        match message {
            Message::Rendezvous(label, remote) => {
                if self.begin_rendezvous(cx, &mut wr, label, remote) {
                    return Ok(Begun::Rendezvous);
                }
                wr.class = Some(Class::Incomplete(label));
            }
            Message::Eager(label) => {
                if !only {
                    self.endpoint.tell_match(cx, wr.tag, label);
                }
                wr.class = Some(Class::Eager { label, told: !only });
            }
            Message::NoTag | Message::Software => {}
        }
        self.responder.put_back(wr);
        Ok(Begun::Receive)
    }

    fn leave_to_software<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        message: Message,
    ) -> Result<Begun, Refusal> {
        self.need_receive(cx, header)?;
        let class = match message {
            Message::NoTag => Class::NoTag,
            _ => Class::Unexpected,
        };
        // Counted once there is a buffer: without one the requester sends the message again.
        if class == Class::Unexpected
            && let Some(tags) = self.endpoint.tag_list(cx.core)
        {
            tags.count_unexpected();
        }
        self.responder.set_class(class);
        Ok(Begun::Receive)
    }

    /// Begins to read the data of a rendezvous. Returns false if it can't be read: then software handles the message.
    fn begin_rendezvous<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        wr: &mut RecvWr,
        label: Label,
        remote: Remote,
    ) -> bool {
        // A QP that can't send yet does not know its limit yet.
        let may_read = !self.endpoint.state.sends() || self.endpoint.attr.max_rd_atomic > 0;
        if u64::from(remote.len) > wr.capacity || !may_read {
            return false;
        }
        self.endpoint.tell_match(cx, wr.tag, label);
        if let Some(tags) = self.endpoint.tag_list(cx.core) {
            let sges = core::mem::take(&mut wr.sges);
            tags.begin_reading(wr.tag, Rendezvous { sges, remote });
        }
        self.requester.add_rendezvous(wr.tag);
        self.wake(cx.core);
        true
    }

    /// The queue pair forgets what it was about: the tagged buffers that it has belong to the SRQ, which gets them
    /// back as flushed.
    pub(crate) fn give_back_tagged<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        if self.endpoint.state == State::Err || self.endpoint.tag_list(cx.core).is_none() {
            return;
        }
        while let Some(wr) = self.requester.pop() {
            if let Some(request) = wr.device {
                self.endpoint
                    .complete_device_request(cx, request, Some(Failure::FLUSHED));
            }
        }
        self.requester.flush_rendezvous(&self.endpoint, cx);
        if let Some(wr) = self.responder.take_current() {
            self.endpoint.fail_receive(cx, &wr, Failure::FLUSHED);
        }
    }
}
