//! The rendezvous that the device executes for a tag matching SRQ.
//!
//! A rendezvous is a READ and a SEND ("FIN") that the requester executes like work requests of the program, but they come from the tag
//! list instead of the ring. They use no entry of the send queue: the READ completes as the tagged buffer, and the FIN has no completion.

use faultline_abi::cqe::{self, Cqe};
use faultline_abi::{U32, tag as abi};

use super::endpoint::Endpoint;
use super::types::Failure;
use super::work_request::{DeviceRequest, Remote as RemoteMemory, SendExtra, SendOp, SendWr};
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::number::len32;
use crate::tag::list::TagList;
use crate::tag::message::{HEADERS, Label};

impl Endpoint {
    pub(super) fn tag_list<'a>(&self, core: &'a mut Core) -> Option<&'a mut TagList> {
        let srq = core.srqs.get_mut(self.config.srqn?)?;
        srq.tags.as_deref_mut()
    }

    /// Number of buffers that a message is compared with, if its messages are for buffers with tags.
    pub(crate) fn listed_tags(&self, core: &mut Core) -> Option<u64> {
        self.tag_list(core).map(|tags| tags.listed())
    }

    /// A completion which reports that the message has a buffer, without data.
    pub(super) fn tell_match<M: Dma>(&self, cx: &mut Context<'_, M>, slot: u32, label: Label) {
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
            ..SendWr::new(
                index,
                Some(SendOp::Read {
                    from,
                    invalidate: None,
                }),
            )
        })
    }

    /// The FIN that is due after this work request, if it is the READ of a rendezvous.
    #[inline]
    pub(super) fn fin_after(&self, core: &mut Core, wr: &SendWr, index: u32) -> Option<SendWr> {
        let Some(DeviceRequest::Read { slot, .. }) = wr.device else {
            return None;
        };
        let fin = self.tag_list(core)?.reading(slot)?.remote.fin;
        Some(SendWr {
            length: len32(HEADERS),
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
    pub(crate) fn complete_rendezvous<M: Dma>(
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
