//! Request packets of a connection: headers and payload of the packet at the cursor.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets are in a message of at most 2^31 bytes, and packets times the MTU are less than one MTU more"
)]

use faultline_abi::cqe;
use faultline_abi::wqe::WR_FLAG_SOLICITED;
use faultline_wire::XrcEth;
use faultline_wire::atomic::AtomicEth;
use faultline_wire::bth::Psn;
use faultline_wire::opcode::Opcode;
use faultline_wire::reth::Reth;

use super::Requester;
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Need;
use crate::frame::{FrameKind, TxFrame, following};
use crate::mkey::{Access, KeyRange, Miss, Mkeys};
use crate::number::low32;
use crate::qp::endpoint::Endpoint;
use crate::qp::page_wait::LANDING_AHEAD;
use crate::qp::sge::{self, SgPart};
use crate::qp::types::{Failure, PlaceError, QpType};
use crate::qp::work_request::{AtomicOp, DeviceRequest, Remote, SendExtra, SendOp, SendWr};
use crate::segments::{Segments, push_segment, truncate_segments};

/// Largest number of packets without a request for an acknowledgement, so that the window keeps moving.
const ACK_EVERY: u32 = 64;

/// Why no packet was built.
#[derive(Debug)]
pub(in crate::qp) enum BuildError {
    /// The work request cannot be executed.
    Failed(Failure),
    /// A page of its buffers is missing.
    Absent(Need),
}

impl From<Failure> for BuildError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A range of the message of a work request, and the access to its local buffers.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct MessageRange {
    offset: u32,
    len: u32,
    access: Access,
}

impl MessageRange {
    /// `len` bytes at `offset`, which are read in order to send them.
    pub(in crate::qp) const fn to_send(offset: u32, len: u32) -> Self {
        Self {
            offset,
            len,
            access: Access::LocalRead,
        }
    }

    /// `len` bytes at `offset`, which a response is written to.
    pub(super) const fn to_receive(offset: u32, len: u32) -> Self {
        Self {
            offset,
            len,
            access: Access::LocalWrite,
        }
    }
}

impl Remote {
    fn reth(self, len: u32) -> Reth {
        Reth {
            addr: self.addr,
            rkey: self.rkey,
            len,
        }
    }
}

impl AtomicOp {
    fn header(self, at: Remote) -> AtomicEth {
        let (swap_add, compare) = match self {
            Self::CompareSwap { compare, swap } => (swap, compare),
            Self::FetchAdd { add } => (add, 0),
        };
        AtomicEth {
            addr: at.addr,
            rkey: at.rkey,
            swap_add,
            compare,
        }
    }
}

/// A miss in local memory as the reason why a packet can't be built now.
fn build_error(miss: Miss, part: &SgPart, psn: u32) -> BuildError {
    match PlaceError::new(miss, part.va, part.left) {
        PlaceError::Absent(absent, hint) => BuildError::Absent(Need::new(absent, hint, psn)),
        _ => BuildError::Failed(Failure::local(miss)),
    }
}

impl Requester {
    /// Appends the pieces of guest memory behind a range of the message of a work request.
    #[inline(always)]
    pub(in crate::qp) fn gather(
        &self,
        qp: &Endpoint,
        core: &Core,
        wr: &SendWr,
        range: MessageRange,
        out: &mut Segments,
    ) -> Result<(), BuildError> {
        self.gather_by(Mkeys::translate, qp, core, (wr, range), out)
    }

    /// The same with a function that translates.
    #[inline(always)]
    pub(super) fn gather_by(
        &self,
        translate: impl Fn(&Mkeys, &KeyRange, &mut Segments) -> Result<(), Miss>,
        qp: &Endpoint,
        core: &Core,
        (wr, range): (&SendWr, MessageRange),
        out: &mut Segments,
    ) -> Result<(), BuildError> {
        let user = wr.key_user(qp);
        let (offset, len) = gather_inline(wr, range.offset, range.len, out);
        for part in sge::parts(&wr.sges, offset, len) {
            translate(&core.mkeys, &part.range(user, range.access), out)
                .map_err(|miss| build_error(miss, &part, self.cursor_psn().get()))?;
        }
        Ok(())
    }

    /// Whether the first bytes at `offset` of the buffer of a response are present, so that the response rarely meets a
    /// missing page.
    fn require_landing(
        &self,
        qp: &Endpoint,
        core: &Core,
        wr: &SendWr,
        offset: u32,
    ) -> Result<(), BuildError> {
        if core.config.pitfalls.flood {
            return Ok(());
        }
        let len = wr.length.saturating_sub(offset).min(LANDING_AHEAD);
        let access = Access::LocalWrite;
        let user = wr.key_user(qp);
        for part in sge::parts(&wr.sges, offset.into(), len.into()) {
            core.mkeys
                .require(&part.range(user, access))
                .map_err(|miss| build_error(miss, &part, self.cursor_psn().get()))?;
        }
        Ok(())
    }

    /// Appends the payload of a run of up to `packets` packets from the cursor on, and returns their number. `None`:
    /// the packet must be sent alone, because fewer than two can be sent or there is an error, which `gather` reports.
    fn gather_run(
        &self,
        qp: &Endpoint,
        core: &Core,
        wr: &SendWr,
        packets: u32,
        out: &mut Segments,
    ) -> Option<u32> {
        let (offset, len) = (self.cursor_packet * qp.mtu, packets * qp.mtu);
        let (rest_offset, rest_len) = gather_inline(wr, offset, len, out);
        let mut bytes = len - low32(rest_len);
        for part in sge::parts(&wr.sges, rest_offset, rest_len) {
            let range = part.range(qp.key_user(), Access::LocalRead);
            let done = core.mkeys.translate_part(&range, out).ok()?;
            bytes += done;
            if done < part.len {
                break;
            }
        }
        let packets = bytes / qp.mtu;
        if packets < 2 {
            return None;
        }
        truncate_segments(out, packets * qp.mtu);
        Some(packets)
    }

    /// Number of packets of a work request, from the cursor on, that may be sent as one run. The last packet may not.
    fn longest_run(&self, qp: &Endpoint, wr: &SendWr, most: u32) -> u32 {
        let window = match qp.is_reliable() {
            true => (self.window.packets() - self.cursor_psn().diff(self.unacked)).max(0) as u32,
            false => u32::MAX,
        };
        let left = match self.credits.begins_limited(wr, self.cursor_packet) {
            true => 1,
            false => wr.psns.saturating_sub(self.cursor_packet + 1),
        };
        most.min(left).min(window)
    }

    /// Replaces `frame`, the last frame, by the next run of up to `most` packets of the same message. The run is not
    /// sent yet. Returns false, and leaves `frame` undefined, if that needs a [poll](Requester::poll).
    pub(in crate::qp) fn next_run<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &Context<'_, M>,
        most: u32,
        frame: &mut TxFrame,
    ) -> bool {
        let psn = self.cursor_psn();
        let (FrameKind::Roce(header), Some(wr)) = (&mut frame.kind, self.pending.get(self.cursor))
        else {
            return false;
        };
        let waits = self.page.is_some()
            || self.rnr_deadline.is_some()
            || self.dammed.is_some()
            || self.window.small().is_some();
        let may_send = qp.state.sends() && wr.failed.is_none() && !self.credits.hold_back(psn);
        let follows = self.cursor_packet > 0 && header.bth.psn.add(frame.packets) == psn;
        // A run ends with the packet that requests an acknowledgement; a shorter run requests none.
        let run = self.longest_run(qp, wr, most).min(before_asking(psn) + 1);
        if waits || !may_send || !follows || run < 2 {
            return false;
        }
        frame.payload.clear();
        let Some(packets) = self.gather_run(qp, cx.core, wr, run, &mut frame.payload) else {
            return false;
        };
        header.bth.psn = psn;
        if header.bth.opcode.is_first_or_only() {
            header.bth.opcode = following(header.bth.opcode);
        }
        header.bth.ack_req = asks_within(psn, packets);
        header.reth = None;
        frame.packets = packets;
        frame.payload_len = (packets * qp.mtu) as usize;
        true
    }

    /// Records that these packets from the cursor on are sent; [`Requester::next_run`] has made them.
    pub(in crate::qp) fn next_run_sent<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        packets: u32,
    ) {
        self.after_send(qp, cx, packets);
    }

    /// Makes `frame` the packet at the cursor, or a run of up to `most` that begins there.
    pub(super) fn build(
        &self,
        qp: &Endpoint,
        core: &Core,
        most: u32,
        frame: &mut TxFrame,
    ) -> Result<(), BuildError> {
        const NO_PATH: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::AH);
        const OPCODE: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE);
        let wr = self.pending.get(self.cursor).ok_or(NO_PATH)?;
        let op = wr.op.as_ref().ok_or(OPCODE)?;
        let (first, last) = (self.cursor_packet == 0, self.cursor_packet + 1 >= wr.psns);
        let opcode = request_opcode(op, first, last).ok_or(OPCODE)?;
        if qp.opcode(opcode).is_none() {
            return Err(OPCODE.into());
        }
        let psn = wr.first.add(self.cursor_packet);
        self.build_payload(qp, core, wr, most, frame)?;
        let mut header = qp.header(opcode, psn).ok_or(NO_PATH)?;
        if qp.config.kind == QpType::XrcIni {
            header.xrceth = Some(XrcEth {
                srqn: wr.remote_srqn,
            });
        }
        let fills = |window: i32| psn.add(frame.packets).diff(self.unacked) >= window;
        header.bth.ack_req = qp.is_reliable()
            && (last
                || self.credits.begins_limited(wr, self.cursor_packet)
                || asks_within(psn, frame.packets)
                || self.window.small().is_some_and(fills));
        // Only a message that takes a receive request can cause an event (IBTA 9.2.3).
        let may_solicit = last && wr.takes_receive_request();
        header.bth.solicited = may_solicit && wr.has(WR_FLAG_SOLICITED);
        match *op {
            SendOp::Read { from, .. } => {
                // A READ that continues in the middle requests the rest only (IBTA 9.7.5.1.1).
                let offset = self.cursor_packet * qp.mtu;
                let from = Remote {
                    addr: from.addr.wrapping_add(u64::from(offset)),
                    ..from
                };
                header.reth = Some(from.reth(wr.length.saturating_sub(offset)));
            }
            SendOp::Atomic { at, op } => header.atomic = Some(op.header(at)),
            SendOp::Flush { at, len, feth } => {
                header.feth = Some(feth);
                header.reth = Some(at.reth(len));
            }
            SendOp::Send(extra) if last => match extra {
                SendExtra::Nothing => {}
                SendExtra::Immediate(imm) => header.imm = Some(imm),
                SendExtra::Invalidate(rkey) => header.ieth = Some(rkey),
            },
            SendOp::Write { to, imm } => {
                header.reth = first.then(|| to.reth(wr.length));
                header.imm = imm.filter(|_| last);
            }
            SendOp::AtomicWrite { to } => header.reth = Some(to.reth(wr.length)),
            // All packets of a SEND except the last have no headers; the others have no packets, or packets of another kind.
            SendOp::Send(_)
            | SendOp::Datagram { .. }
            | SendOp::FastReg(_)
            | SendOp::BindMw(_)
            | SendOp::LocalInv { .. }
            | SendOp::Raw(_) => {}
        }
        frame.kind = FrameKind::Roce(header);
        Ok(())
    }

    /// Sets the payload of `frame` to that of the packet at the cursor, or of a run of up to `most` packets that begins
    /// there.
    fn build_payload(
        &self,
        qp: &Endpoint,
        core: &Core,
        wr: &SendWr,
        most: u32,
        frame: &mut TxFrame,
    ) -> Result<(), BuildError> {
        frame.clear_payload();
        let offset = self.cursor_packet * qp.mtu;
        match wr.op {
            Some(SendOp::Read { .. } | SendOp::Atomic { .. }) => {
                return self.require_landing(qp, core, wr, offset);
            }
            Some(SendOp::Flush { .. }) => return Ok(()),
            Some(
                SendOp::Send(_)
                | SendOp::Write { .. }
                | SendOp::AtomicWrite { .. }
                | SendOp::Datagram { .. }
                | SendOp::Raw { .. }
                | SendOp::FastReg(_)
                | SendOp::BindMw(_)
                | SendOp::LocalInv { .. },
            )
            | None => {}
        }
        if let Some(DeviceRequest::Fin(fin)) = wr.device {
            frame.payload_len = fin.len();
            frame.own.extend_from_slice(&fin);
            return Ok(());
        }
        let run = self.longest_run(qp, wr, most);
        if run > 1
            && let Some(packets) = self.gather_run(qp, core, wr, run, &mut frame.payload)
        {
            frame.packets = packets;
            frame.payload_len = (packets * qp.mtu) as usize;
            return Ok(());
        }
        frame.payload.clear();
        let len = wr.length.saturating_sub(offset).min(qp.mtu);
        frame.payload_len = len as usize;
        let range = MessageRange::to_send(offset, len);
        self.gather(qp, core, wr, range, &mut frame.payload)
    }
}

/// True if one of this number of PSNs, from `first` on, is one of those that ask for an acknowledgement.
#[inline]
fn asks_within(first: Psn, packets: u32) -> bool {
    before_asking(first) < packets
}

/// Packets from this PSN on before the next one that asks for an acknowledgement.
#[inline]
fn before_asking(first: Psn) -> u32 {
    // PSNs wrap at a multiple of ACK_EVERY.
    (ACK_EVERY - first.get() % ACK_EVERY) % ACK_EVERY
}

/// Appends the inline data in a range of the message. Returns offset and number of the bytes that the SGEs hold.
#[inline]
fn gather_inline(wr: &SendWr, offset: u32, len: u32, out: &mut Segments) -> (u64, u64) {
    let Some((at, inline_len)) = wr.inline else {
        return (offset.into(), len.into());
    };
    let n = inline_len.saturating_sub(offset).min(len);
    if n > 0 {
        push_segment(out, at + u64::from(offset), n);
    }
    (offset.saturating_sub(inline_len).into(), (len - n).into())
}

/// Opcode of a request packet of RC. The other services have the same ones. `None` for operations without packets.
fn request_opcode(op: &SendOp, first: bool, last: bool) -> Option<Opcode> {
    Some(match (op, first, last) {
        (SendOp::Read { .. }, ..) => Opcode::RcReadRequest,
        (SendOp::Atomic { op, .. }, ..) => match op {
            AtomicOp::CompareSwap { .. } => Opcode::RcCompareSwap,
            AtomicOp::FetchAdd { .. } => Opcode::RcFetchAdd,
        },
        (SendOp::Flush { .. }, ..) => Opcode::RcFlush,
        (SendOp::AtomicWrite { .. }, ..) => Opcode::RcAtomicWrite,
        (SendOp::Write { .. }, true, false) => Opcode::RcWriteFirst,
        (SendOp::Write { .. }, false, false) => Opcode::RcWriteMiddle,
        (SendOp::Write { imm: None, .. }, true, true) => Opcode::RcWriteOnly,
        (SendOp::Write { imm: None, .. }, false, true) => Opcode::RcWriteLast,
        (SendOp::Write { imm: Some(_), .. }, true, true) => Opcode::RcWriteOnlyWithImmediate,
        (SendOp::Write { imm: Some(_), .. }, false, true) => Opcode::RcWriteLastWithImmediate,
        (SendOp::Send(_), true, false) => Opcode::RcSendFirst,
        (SendOp::Send(_), false, false) => Opcode::RcSendMiddle,
        (SendOp::Send(extra), true, true) => match extra {
            SendExtra::Nothing => Opcode::RcSendOnly,
            SendExtra::Immediate(_) => Opcode::RcSendOnlyWithImmediate,
            SendExtra::Invalidate(_) => Opcode::RcSendOnlyWithInvalidate,
        },
        (SendOp::Send(extra), false, true) => match extra {
            SendExtra::Nothing => Opcode::RcSendLast,
            SendExtra::Immediate(_) => Opcode::RcSendLastWithImmediate,
            SendExtra::Invalidate(_) => Opcode::RcSendLastWithInvalidate,
        },
        (
            SendOp::Datagram { .. }
            | SendOp::FastReg(_)
            | SendOp::BindMw(_)
            | SendOp::LocalInv { .. }
            | SendOp::Raw(_),
            ..,
        ) => return None,
    })
}
