//! Raw Ethernet: whole frames, as the netdev uses them, and their offloads.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "the headers are the first bytes of the frame; a frame of several segments has at most 64 KiB of payload"
)]

use faultline_abi::U32;
use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_wire::{Ethernet, MacAddr};

use super::endpoint::Endpoint;
use super::requester::{BuildError, MessageRange, Requester, Sent};
use super::responder::{Arrival, Received, Responder, Stopped};
use super::types::{Failure, Fatal};
use super::work_request::{Offload, SendOp, SendWr};
use crate::config::MAX_TSO;
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::ethernet::longest_frame;
use crate::frame::{Frame, FrameKind, TxFrame};
use crate::headers::Head;
use crate::headers::{MAX_HEADERS, ParsedHeaders};
use crate::number::len32;
use crate::offload::{self, Checked};
use crate::payload::Payload;
use crate::segments::Segments;

const OFFLOAD: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::OFFLOAD);

impl Requester {
    /// Completes the frame that was handed over before, then makes `frame` the next one.
    pub(crate) fn poll_raw<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        frame: &mut TxFrame,
    ) -> Result<Sent, Failure> {
        let Some(wr) = self.next_unconnected(qp, cx) else {
            return Ok(Sent::Nothing);
        };
        let built = match wr.failed {
            Some(failure) => Err(BuildError::Failed(failure)),
            None => self.build_frame(qp, cx.core, cx.mem, &wr),
        };
        if let Ok((next, _)) = &built
            && cx.core.flow_control.paused().contains(next.priority())
        {
            let priority = next.priority();
            return Ok(self.hold_unconnected(cx, wr, priority));
        }
        let mut more = false;
        let built = built.map(|(next, another)| {
            *frame = next;
            more = another;
        });
        let sent = self.hand_over_unconnected(qp, cx, wr, built)?;
        if sent == Sent::Frame && self.segment_sent(more) {
            cx.count(Counter::tx_segmented);
        }
        Ok(sent)
    }

    /// The frame, or the next segment of a large one; and whether another segment follows.
    fn build_frame<M: Dma>(
        &self,
        qp: &Endpoint,
        core: &Core,
        mem: &M,
        wr: &SendWr,
    ) -> Result<(TxFrame, bool), BuildError> {
        let Some(SendOp::Raw(offload)) = wr.op else {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE).into());
        };
        let longest = longest_frame(&core.netdev);
        let len = wr.length as usize;
        let fits = (Ethernet::LEN..=longest).contains(&len);
        let whole = |frame: TxFrame| (frame, false);
        match offload {
            Offload::Segments { mss, header_len } => {
                self.build_segment(qp, core, mem, wr, (mss, header_len))
            }
            _ if !fits => Err(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH).into()),
            Offload::Nothing => self.build_plain(qp, core, mem, wr).map(whole),
            Offload::Checksums => self.build_summed(qp, core, mem, wr, None).map(whole),
            Offload::Partial { start, offset } => {
                let place = Some((start, offset));
                self.build_summed(qp, core, mem, wr, place).map(whole)
            }
        }
    }

    /// Guest memory behind a range of the message.
    fn gather_part(
        &self,
        qp: &Endpoint,
        core: &Core,
        wr: &SendWr,
        (offset, len): (u32, u32),
    ) -> Result<Segments, BuildError> {
        let mut segments = Segments::new();
        let range = MessageRange::to_send(offset, len);
        self.gather(qp, core, wr, range, &mut segments)?;
        Ok(segments)
    }

    /// The first bytes of the message, at most [`MAX_HEADERS`].
    fn read_head<M: Dma>(
        &self,
        qp: &Endpoint,
        core: &Core,
        mem: &M,
        wr: &SendWr,
        len: usize,
    ) -> Result<Head, BuildError> {
        let segments = self.gather_part(qp, core, wr, (0, len32(len)))?;
        let view = Payload::guest(&[], mem, &segments, len);
        Ok(view.head().map_err(|_| UNREADABLE)?)
    }

    /// Builds a frame as software has written it. Its headers are copied once: the receiver gets the headers that the
    /// switch and the flows have read, even if the sender changes its memory meanwhile.
    fn build_plain<M: Dma>(
        &self,
        qp: &Endpoint,
        core: &Core,
        mem: &M,
        wr: &SendWr,
    ) -> Result<TxFrame, BuildError> {
        let len = wr.length as usize;
        let head = self.read_head(qp, core, mem, wr, len.min(MAX_HEADERS))?;
        let rest = wr.length - len32(head.len());
        let payload = self.gather_part(qp, core, wr, (len32(head.len()), rest))?;
        let ends = addresses(&head);
        Ok(raw_frame(ends, head, payload, rest as usize, false))
    }

    /// Builds a frame whose checksums the NIC fills in: all of them, or one at the position that software specifies.
    fn build_summed<M: Dma>(
        &self,
        qp: &Endpoint,
        core: &Core,
        mem: &M,
        wr: &SendWr,
        place: Option<(usize, usize)>,
    ) -> Result<TxFrame, BuildError> {
        let len = wr.length as usize;
        let mut head = self.read_head(qp, core, mem, wr, len.min(MAX_HEADERS))?;
        let rest = wr.length - len32(head.len());
        let payload = self.gather_part(qp, core, wr, (len32(head.len()), rest))?;
        let headers = ParsedHeaders::parse(&head);
        let transport = headers.and_then(|headers| {
            let transport = offload::whole_transport(&headers, len)?;
            Some((headers.transport_at, transport.checksum_at()))
        });
        // If software specifies the position that the NIC would have found, the NIC computes the whole sum and need not
        // rely on software's part of it.
        let found = headers.filter(|_| place.is_none() || place == transport);
        // The headers are changed, so the sum is computed from a copy of them.
        let before = head.clone();
        let view = Payload::guest(&before, mem, &payload, rest as usize);
        let summed = match (found, place) {
            (Some(headers), _) => offload::fill_checksums(&mut head, &headers, &view),
            (None, Some((start, offset))) => {
                if start < Ethernet::LEN || start + offset + 2 > head.len() {
                    return Err(OFFLOAD.into());
                }
                offload::fill_partial(&mut head, (start, offset), &view)
            }
            (None, None) => return Err(OFFLOAD.into()),
        };
        summed.map_err(|_| UNREADABLE)?;
        let checked = found.is_some() && transport.is_some();
        Ok(raw_frame(
            addresses(&before),
            head,
            payload,
            rest as usize,
            checked,
        ))
    }

    /// Builds the next segment of a TCP packet. Returns whether another follows, too.
    fn build_segment<M: Dma>(
        &self,
        qp: &Endpoint,
        core: &Core,
        mem: &M,
        wr: &SendWr,
        (mss, header_len): (u16, usize),
    ) -> Result<(TxFrame, bool), BuildError> {
        let longest = longest_frame(&core.netdev);
        let len = wr.length as usize;
        let payload_len = len.saturating_sub(header_len);
        if header_len > MAX_HEADERS || payload_len == 0 || payload_len > MAX_TSO as usize {
            return Err(OFFLOAD.into());
        }
        if header_len + usize::from(mss).min(payload_len) > longest {
            return Err(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH).into());
        }
        let template = self.read_head(qp, core, mem, wr, header_len)?;
        let headers = ParsedHeaders::parse_template(&template).ok_or(OFFLOAD)?;
        let index = self.segment();
        let at = index * u32::from(mss);
        let left = len32(payload_len).saturating_sub(at);
        let part = left.min(u32::from(mss));
        let last = part == left;
        let offset = len32(header_len) + at;
        let payload = self.gather_part(qp, core, wr, (offset, part))?;
        let mut head = offload::segment_head(&template, &headers, mss, index, part as usize, last);
        let before = head.clone();
        let view = Payload::guest(&before, mem, &payload, part as usize);
        offload::finish_segment(&mut head, &headers, &view).map_err(|_| UNREADABLE)?;
        let ends = addresses(&template);
        Ok((raw_frame(ends, head, payload, part as usize, true), !last))
    }
}

impl Responder {
    /// Receives a frame for a raw queue pair or a work queue, from a flow with this tag.
    pub(crate) fn receive_raw<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        tag: u32,
        frame: Frame<'_, M>,
    ) -> Result<Received, Fatal> {
        if !qp.state.receives() {
            cx.count(Counter::rx_filtered);
            return Ok(Received::Done);
        }
        let arrival = Arrival::Frame {
            tag,
            checked: frame.checked,
            hash: frame.hash,
        };
        self.receive(qp, cx, arrival, frame.payload)
    }

    /// Delivers a frame from a flow with this tag. A frame whose checksums must be verified is copied first if it is
    /// still in its sender's memory, so that the result is true of the delivered bytes.
    pub(crate) fn receive_frame<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        tag: u32,
        frame: Frame<'_, M>,
    ) -> Result<(), Stopped> {
        if frame.checked || matches!(frame.payload, Payload::Bytes(_)) {
            return self.deliver_frame(qp, cx, tag, frame);
        }
        let mut copy = std::mem::take(&mut cx.core.frame_copy);
        copy.resize(frame.payload.len(), 0);
        let delivered = match frame.payload.read(0, &mut copy) {
            Ok(_) => {
                let payload = Payload::Bytes(&copy);
                self.deliver_frame(qp, cx, tag, Frame { payload, ..frame })
            }
            Err(_) => {
                cx.count(Counter::dma_errors);
                Ok(())
            }
        };
        cx.core.frame_copy = copy;
        delivered
    }

    fn deliver_frame<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        tag: u32,
        frame: Frame<'_, M>,
    ) -> Result<(), Stopped> {
        let Some(wr) = self.receive_whole(qp, cx, &[], frame.payload, 0)? else {
            return Ok(());
        };
        let sums = match frame.checked {
            true => Checked::Right,
            false => offload::check(&frame.payload),
        };
        let mut flags = match sums {
            Checked::Right => cqe::CQE_CSUM_OK,
            Checked::Wrong | Checked::Unknown => 0,
        };
        if sums == Checked::Wrong {
            cx.count(Counter::rx_csum_errors);
        }
        if frame.hash.is_some() {
            flags |= cqe::CQE_HASH;
        }
        let entry = Cqe {
            flags,
            imm: U32::new(frame.hash.unwrap_or(0)),
            byte_len: U32::new(len32(frame.payload.len())),
            opcode: cqe::RECV,
            flow_tag: U32::new(tag),
            ..Cqe::default()
        };
        qp.complete_receive(cx, &wr, entry);
        Ok(())
    }
}

const UNREADABLE: Failure = Failure::new(cqe::LOC_PROT_ERR, cqe::DMA);

fn raw_frame(
    (dst, src): (MacAddr, MacAddr),
    head: Head,
    payload: Segments,
    payload_len: usize,
    checked: bool,
) -> TxFrame {
    TxFrame {
        kind: FrameKind::Raw {
            dst,
            src,
            head,
            checked,
        },
        payload,
        payload_len,
        ..TxFrame::default()
    }
}

/// Destination and source of a frame, which is not shorter than that.
fn addresses(frame: &[u8]) -> (MacAddr, MacAddr) {
    let at = |skip: usize| {
        let bytes = frame.get(skip..).and_then(|rest| rest.first_chunk());
        MacAddr(bytes.copied().unwrap_or([0; 6]))
    };
    (at(0), at(6))
}
