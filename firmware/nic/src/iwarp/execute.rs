//! Execution of DDP segments (RFC 5040, RFC 5041, RFC 7306), with the checks and the codes of these RFCs.

use faultline_abi::U32;
use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::qp::{ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE};
use faultline_wire::ddp::{DDP_VERSION, Ddp, DdpTarget, queue};
use faultline_wire::mpa::Fpdu;
use faultline_wire::rdmap::{
    AtomicRequest, AtomicResponse, IMMEDIATE_LEN, RDMAP_VERSION, RdmapControl, RdmapOpcode,
    ReadRequest, Terminate, TerminateCode, atomic_op,
};

use super::deliver::Delivery;
use super::refusal::{End, Refused, Stop, code_of};
use super::send::{Content, Framing, Octets};
use crate::config::MAX_MSG_SIZE;
use crate::dma::Dma;
use crate::fault::Need;
use crate::mkey::{Access, KeyRange, Miss};
use crate::number::len32;
use crate::payload::{CopyError, Payload};
use crate::qp::page_wait::READ_AHEAD;
use crate::qp::sge;
use crate::qp::types::{Failure, PlaceError, State};
use crate::receive_queue::TakeError;
use crate::segments::Segments;

/// Answers that a peer may have received without an acknowledgment: more than any that obeys the depth of its READ queue.
const MAX_ANSWERS: usize = 1024;
/// Headers that are looked at: of DDP, and of an atomic request.
const MAX_HEAD: usize = Ddp::UNTAGGED_LEN + AtomicRequest::LEN;
/// A receive buffer that is too short for its message.
const TOO_LONG: Failure = Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH);

/// A DDP segment that is executed.
struct Arriving<'a, M> {
    ddp: Ddp,
    opcode: RdmapOpcode,
    /// First octets of the segment.
    head: &'a [u8],
    ulpdu_len: u16,
    payload: Payload<'a, M>,
    /// For records of page faults.
    psn: u32,
}

impl<M: Dma> Arriving<'_, M> {
    /// Refuses the segment.
    fn refuse(&self, code: TerminateCode) -> Stop {
        Stop::End(End::Refused(Refused::new(code, self.head, self.ulpdu_len)))
    }

    fn len(&self) -> u32 {
        len32(self.payload.len())
    }

    /// Octets behind the DDP header, as far as they have been read.
    fn rdmap(&self) -> &[u8] {
        self.head.get(self.ddp.header_len()..).unwrap_or_default()
    }

    fn copy_error(&self, error: CopyError) -> Stop {
        match error {
            CopyError::Source => Stop::Lost,
            CopyError::Destination => self.refuse(TerminateCode::RDMAP_LOCAL_CATASTROPHIC),
        }
    }
}

impl<M: Dma> Delivery<'_, '_, '_, M> {
    /// Executes the DDP segment of an FPDU.
    pub(super) fn execute(
        &mut self,
        fpdu: Fpdu,
        ulpdu: &Payload<'_, M>,
        psn: u32,
    ) -> Result<(), Stop> {
        let mut head = [0; MAX_HEAD];
        let n = ulpdu.read(0, &mut head).map_err(|_| Stop::Lost)?;
        let head = head.get(..n).unwrap_or_default();
        let refuse =
            |code: TerminateCode| Stop::End(End::Refused(Refused::new(code, &[], fpdu.ulpdu_len)));
        let (ddp, header_len) =
            Ddp::parse(head).map_err(|_| refuse(TerminateCode::DDP_LOCAL_CATASTROPHIC))?;
        let control = RdmapControl::from_u8(ddp.upper_control);
        let is_tagged = matches!(ddp.target, DdpTarget::Tagged { .. });
        let opcode = RdmapOpcode::from_u8(control.opcode);
        let segment = Arriving {
            ddp,
            opcode: opcode.unwrap_or(RdmapOpcode::Terminate),
            head,
            ulpdu_len: fpdu.ulpdu_len,
            payload: ulpdu.part(header_len, ulpdu.len().saturating_sub(header_len)),
            psn,
        };
        if ddp.version != DDP_VERSION {
            return Err(segment.refuse(match is_tagged {
                true => TerminateCode::DDP_TAGGED_VERSION,
                false => TerminateCode::DDP_UNTAGGED_VERSION,
            }));
        }
        if let DdpTarget::Untagged { queue, .. } = ddp.target
            && queue > queue::ATOMIC_RESPONSE
        {
            return Err(segment.refuse(TerminateCode::DDP_UNTAGGED_QUEUE));
        }
        ddp.end(segment.len())
            .map_err(|code| segment.refuse(code))?;
        if control.version != RDMAP_VERSION {
            return Err(segment.refuse(TerminateCode::RDMAP_VERSION));
        }
        let queue = match ddp.target {
            DdpTarget::Tagged { .. } => None,
            DdpTarget::Untagged { queue, .. } => Some(queue),
        };
        if opcode.is_none_or(|opcode| opcode.queue() != queue) {
            return Err(segment.refuse(TerminateCode::RDMAP_OPCODE));
        }
        match ddp.target {
            DdpTarget::Tagged { stag, offset } => self.execute_tagged(&segment, stag, offset),
            DdpTarget::Untagged { .. } => self.execute_untagged(&segment),
        }
    }

    fn execute_tagged(
        &mut self,
        segment: &Arriving<'_, M>,
        stag: u32,
        offset: u64,
    ) -> Result<(), Stop> {
        match segment.opcode {
            RdmapOpcode::ReadResponse => self.place_response(segment, stag, offset),
            _ => self.place_write(segment, stag, offset),
        }
    }

    /// A segment of a WRITE. Each has its own STag, whose rights are checked (RFC 5041 section 5.2).
    fn place_write(
        &mut self,
        segment: &Arriving<'_, M>,
        stag: u32,
        offset: u64,
    ) -> Result<(), Stop> {
        let len = segment.len();
        if len > 0 {
            if !self.qp.allows(ACCESS_REMOTE_WRITE) {
                return Err(segment.refuse(TerminateCode::RDMAP_ACCESS));
            }
            let range = KeyRange {
                key: stag,
                user: self.qp.key_user(),
                va: offset,
                len,
                access: Access::RemoteWrite,
            };
            self.place(segment, &range, len)?;
        }
        if self.inbound.write_ended {
            self.cx.count(Counter::rx_write_requests);
            self.inbound.written = 0;
        }
        self.inbound.written = self.inbound.written.saturating_add(len);
        self.inbound.write_ended = segment.ddp.last;
        Ok(())
    }

    /// Copies the payload to the memory of a range. The message needs `hint` octets of it.
    fn place(
        &mut self,
        segment: &Arriving<'_, M>,
        range: &KeyRange,
        hint: u32,
    ) -> Result<(), Stop> {
        let mut segments = Segments::new();
        if let Err(miss) = self.cx.core.mkeys.translate(range, &mut segments) {
            return Err(match PlaceError::new(miss, range.va, hint) {
                PlaceError::Absent(absent, hint) => {
                    Stop::Absent(Need::new(absent, hint, segment.psn))
                }
                _ => segment.refuse(code_of(miss, true)),
            });
        }
        let copied = self.cx.copy_payload(&segments, segment.payload, &mut 0);
        copied.map_err(|error| segment.copy_error(error))
    }

    /// A segment of the response to the oldest READ.
    fn place_response(
        &mut self,
        segment: &Arriving<'_, M>,
        stag: u32,
        offset: u64,
    ) -> Result<(), Stop> {
        let unexpected = segment.refuse(TerminateCode::RDMAP_OPCODE);
        let sent = self.sender.sent();
        let Some(request) = self.work.oldest_awaiting() else {
            return Err(unexpected);
        };
        // A response is valid only after its request was sent.
        if !request.wr.is_read() || request.end.is_none_or(|end| end > sent) {
            return Err(unexpected);
        }
        let (key, va) = sink(&request.wr.sges);
        let (arrived, whole) = (request.arrived, request.wr.length);
        let len = segment.len();
        if stag != key {
            return Err(segment.refuse(TerminateCode::DDP_TAGGED_INVALID_STAG));
        }
        let end = arrived.saturating_add(len);
        let is_next = offset == va.wrapping_add(arrived.into());
        if !is_next || end > whole || segment.ddp.last != (end == whole) {
            return Err(segment.refuse(TerminateCode::DDP_TAGGED_BOUNDS));
        }
        if len > 0 {
            let range = KeyRange {
                key,
                user: self.qp.key_user(),
                va: offset,
                len,
                access: Access::LocalWrite,
            };
            let hint = whole.saturating_sub(arrived);
            if let Err(miss) = self.cx.core.mkeys.check(&range) {
                return Err(self.lose_sink(segment, miss));
            }
            self.place(segment, &range, hint)?;
        }
        let user = self.qp.key_user();
        let mkeys = &mut self.cx.core.mkeys;
        if let Some(request) = self.work.oldest_awaiting() {
            request.arrived = end;
            if end == whole
                && let Some(key) = request.wr.invalidates()
                && let Err(why) = mkeys.invalidate_key(user, key)
            {
                request.wr.failed = Some(why.into());
            }
        }
        if end == whole {
            self.work.answered();
        }
        Ok(())
    }

    /// The buffer of a READ cannot be used any more, which is not the peer's fault.
    fn lose_sink(&mut self, segment: &Arriving<'_, M>, miss: Miss) -> Stop {
        if let Some(request) = self.work.oldest_awaiting() {
            request.wr.failed = Some(Failure::local(miss));
        }
        segment.refuse(TerminateCode::RDMAP_LOCAL_CATASTROPHIC)
    }

    /// Checks order and continues with the operation. Segments of one message do not mix with those of another, because TCP keeps order
    /// and no sender has a reason to.
    fn execute_untagged(&mut self, segment: &Arriving<'_, M>) -> Result<(), Stop> {
        let DdpTarget::Untagged {
            queue, msn, offset, ..
        } = segment.ddp.target
        else {
            return Ok(());
        };
        let expected = self.inbound.msns.get(queue as usize).copied();
        if expected != Some(msn) {
            return Err(segment.refuse(TerminateCode::DDP_UNTAGGED_MSN_RANGE));
        }
        let is_send = matches!(
            segment.opcode,
            RdmapOpcode::Send
                | RdmapOpcode::SendInvalidate
                | RdmapOpcode::SendSolicited
                | RdmapOpcode::SendSolicitedInvalidate
        );
        let received = if is_send { self.inbound.received } else { None };
        if offset != received.unwrap_or(0) {
            return Err(segment.refuse(TerminateCode::DDP_UNTAGGED_OFFSET));
        }
        // Other messages are shorter than a segment.
        if !is_send && !segment.ddp.last {
            return Err(segment.refuse(TerminateCode::DDP_UNTAGGED_TOO_LONG));
        }
        match segment.opcode {
            // This end has closed: it can answer no more. The peer learns that by the FIN, which flushes the work request.
            RdmapOpcode::ReadRequest | RdmapOpcode::AtomicRequest
                if self.qp.state == State::Sqd => {}
            RdmapOpcode::ReadRequest => self.accept_read(segment)?,
            RdmapOpcode::AtomicRequest => self.execute_atomic(segment)?,
            RdmapOpcode::AtomicResponse => self.place_atomic(segment)?,
            RdmapOpcode::Terminate => return Err(self.terminated(segment)),
            RdmapOpcode::Immediate | RdmapOpcode::ImmediateSolicited => {
                self.execute_immediate(segment)?;
            }
            _ => self.execute_send(segment)?,
        }
        if segment.ddp.last
            && let Some(next) = self.inbound.msns.get_mut(queue as usize)
        {
            *next = next.wrapping_add(1);
        }
        Ok(())
    }

    /// Takes a receive work request for a message that begins. iWARP has no RNR NAK: a message without one ends the stream.
    fn need_receive(&mut self, segment: &Arriving<'_, M>) -> Result<(), Stop> {
        match self.receives.take(self.qp, self.cx) {
            Ok(()) => Ok(()),
            Err(TakeError::Empty) => {
                self.cx.count(Counter::out_of_buffer);
                Err(segment.refuse(TerminateCode::DDP_UNTAGGED_NO_BUFFER))
            }
            Err(TakeError::Broken) => Err(segment.refuse(TerminateCode::RDMAP_LOCAL_CATASTROPHIC)),
        }
    }

    /// Refuses a segment, and completes its receive work request with a failure.
    fn refuse_receive(
        &mut self,
        segment: &Arriving<'_, M>,
        failure: Failure,
        code: TerminateCode,
    ) -> Stop {
        self.receives.fail_current(self.qp, self.cx, failure);
        segment.refuse(code)
    }

    fn execute_send(&mut self, segment: &Arriving<'_, M>) -> Result<(), Stop> {
        if self.inbound.received.is_none() {
            self.need_receive(segment)?;
        }
        let before = self.inbound.received.unwrap_or(0);
        let Some(wr) = &self.receives.current else {
            return Err(segment.refuse(TerminateCode::RDMAP_LOCAL_CATASTROPHIC));
        };
        let end = before.saturating_add(segment.len());
        if u64::from(end) > wr.capacity.min(MAX_MSG_SIZE.into()) {
            let code = TerminateCode::DDP_UNTAGGED_TOO_LONG;
            return Err(self.refuse_receive(segment, TOO_LONG, code));
        }
        match self.qp.scatter(self.cx, wr, before.into(), segment.payload) {
            Ok(()) => {}
            Err(PlaceError::Lost) => return Err(Stop::Lost),
            Err(PlaceError::Absent(absent, hint)) => {
                return Err(Stop::Absent(Need::new(absent, hint, segment.psn)));
            }
            Err(PlaceError::Failed(failure)) => {
                let code = TerminateCode::RDMAP_LOCAL_CATASTROPHIC;
                return Err(self.refuse_receive(segment, failure, code));
            }
        }
        self.inbound.received = Some(end);
        if !segment.ddp.last {
            return Ok(());
        }
        let mut entry = Cqe {
            byte_len: U32::new(end),
            opcode: cqe::RECV,
            ..Cqe::default()
        };
        if segment.opcode.invalidates()
            && let DdpTarget::Untagged { upper, .. } = segment.ddp.target
        {
            let user = self.qp.key_user();
            if self.cx.core.mkeys.invalidate_for_peer(user, upper).is_err() {
                let failure = Failure::new(cqe::LOC_PROT_ERR, cqe::KEY_STATE);
                let code = TerminateCode::RDMAP_CANNOT_INVALIDATE;
                return Err(self.refuse_receive(segment, failure, code));
            }
            entry.flags |= cqe::CQE_INVALIDATE;
            entry.imm = U32::new(upper);
        }
        if segment.opcode.is_solicited() {
            entry.flags |= cqe::CQE_SOLICITED;
        }
        self.inbound.received = None;
        self.receives.complete(self.qp, self.cx, entry);
        Ok(())
    }

    /// Immediate data behind a WRITE (RFC 7306 section 6).
    fn execute_immediate(&mut self, segment: &Arriving<'_, M>) -> Result<(), Stop> {
        let octets: Option<[u8; IMMEDIATE_LEN]> = segment.rdmap().try_into().ok();
        let Some([a, b, c, d, ..]) = octets.filter(|_| self.inbound.received.is_none()) else {
            return Err(segment.refuse(TerminateCode::RDMAP_UNSPECIFIED));
        };
        self.need_receive(segment)?;
        let mut entry = Cqe {
            byte_len: U32::new(self.inbound.written),
            opcode: cqe::RECV_RDMA_WITH_IMM,
            flags: cqe::CQE_IMM,
            imm: U32::from_bytes([a, b, c, d]),
            ..Cqe::default()
        };
        if segment.opcode.is_solicited() {
            entry.flags |= cqe::CQE_SOLICITED;
        }
        self.receives.complete(self.qp, self.cx, entry);
        Ok(())
    }

    /// Checks that one more READ or atomic may be outstanding.
    fn check_depth(&self, segment: &Arriving<'_, M>, right: u32) -> Result<(), Stop> {
        if !self.qp.allows(right) {
            return Err(segment.refuse(TerminateCode::RDMAP_ACCESS));
        }
        let limit = usize::from(self.qp.attr.max_dest_rd_atomic);
        let unacknowledged = self.sender.unacknowledged_answers();
        if self.sender.answers() >= limit || unacknowledged > MAX_ANSWERS {
            return Err(segment.refuse(TerminateCode::DDP_UNTAGGED_NO_BUFFER));
        }
        Ok(())
    }

    fn accept_read(&mut self, segment: &Arriving<'_, M>) -> Result<(), Stop> {
        let (request, _) = ReadRequest::parse(segment.rdmap())
            .map_err(|_| segment.refuse(TerminateCode::DDP_UNTAGGED_TOO_LONG))?;
        self.check_depth(segment, ACCESS_REMOTE_READ)?;
        request.ends().map_err(|code| segment.refuse(code))?;
        if request.len > MAX_MSG_SIZE {
            return Err(segment.refuse(TerminateCode::RDMAP_BOUNDS));
        }
        let (key, addr) = request.source;
        if request.len > 0 {
            let range = KeyRange {
                key,
                user: self.qp.key_user(),
                va: addr,
                len: request.len,
                access: Access::RemoteRead,
            };
            let mkeys = &self.cx.core.mkeys;
            let checked = mkeys.check(&range);
            checked.map_err(|miss| segment.refuse(code_of(miss, false)))?;
            // Later pages are waited for when their segments are to leave.
            let first = KeyRange {
                len: request.len.min(READ_AHEAD),
                ..range
            };
            if let Err(miss) = mkeys.require(&first) {
                return Err(match PlaceError::new(miss, addr, request.len) {
                    PlaceError::Absent(absent, hint) => {
                        Stop::Absent(Need::new(absent, hint, segment.psn))
                    }
                    _ => segment.refuse(code_of(miss, false)),
                });
            }
        }
        self.cx.count(Counter::rx_read_requests);
        let target = DdpTarget::Tagged {
            stag: request.sink.0,
            offset: request.sink.1,
        };
        let opcode = RdmapOpcode::ReadResponse;
        let content = Content::Source { key, addr };
        self.answer(opcode, target, content, request.len);
        Ok(())
    }

    /// Appends an answer to the stream that leaves.
    fn answer(&mut self, opcode: RdmapOpcode, target: DdpTarget, content: Content, len: u32) {
        let framing = Framing::Ddp { opcode, target };
        let budget = &self.cx.core.budget;
        let octets = self
            .sender
            .push(budget, (framing, content), len, self.max_payload);
        self.pushed = self.pushed.saturating_add(octets);
    }

    fn execute_atomic(&mut self, segment: &Arriving<'_, M>) -> Result<(), Stop> {
        let (request, _) = AtomicRequest::parse(segment.rdmap())
            .map_err(|_| segment.refuse(TerminateCode::DDP_UNTAGGED_TOO_LONG))?;
        self.check_depth(segment, ACCESS_REMOTE_ATOMIC)?;
        // RFC 7306 section 5.2.1: masks and SWAP exist; verbs of this NIC do not have them.
        let is_whole = request.mask == u64::MAX && request.compare_mask == u64::MAX;
        let adds = request.operation == atomic_op::FETCH_ADD;
        if request.offset & 7 != 0 || (!adds && !is_whole) || (adds && request.mask != 0) {
            return Err(segment.refuse(TerminateCode::RDMAP_UNSPECIFIED));
        }
        let range = KeyRange {
            key: request.stag,
            user: self.qp.key_user(),
            va: request.offset,
            len: 8,
            access: Access::RemoteAtomic,
        };
        let mut segments = Segments::new();
        if let Err(miss) = self.cx.core.mkeys.translate(&range, &mut segments) {
            return Err(match PlaceError::new(miss, range.va, range.len) {
                PlaceError::Absent(absent, hint) => {
                    Stop::Absent(Need::new(absent, hint, segment.psn))
                }
                _ => segment.refuse(code_of(miss, false)),
            });
        }
        let at = match segments.as_slice() {
            [one] if one.addr & 7 == 0 => one.addr,
            _ => return Err(segment.refuse(TerminateCode::RDMAP_LOCAL_CATASTROPHIC)),
        };
        let mem = self.cx.mem;
        let done = match request.operation {
            atomic_op::FETCH_ADD => mem.fetch_add_u64(at, request.data),
            atomic_op::COMPARE_SWAP => mem.compare_exchange_u64(at, request.compare, request.data),
            _ => return Err(segment.refuse(TerminateCode::RDMAP_UNSPECIFIED)),
        };
        let original = done.map_err(|_| {
            self.cx.count(Counter::dma_errors);
            segment.refuse(TerminateCode::RDMAP_LOCAL_CATASTROPHIC)
        })?;
        self.cx.count(Counter::rx_atomic_requests);
        let response = AtomicResponse {
            id: request.id,
            original,
        };
        let mut octets = Octets::from_elem(0, AtomicResponse::LEN);
        // The buffer has its length.
        let _ = response.emit(&mut octets);
        let target = self.sender.untagged(queue::ATOMIC_RESPONSE, 0);
        let opcode = RdmapOpcode::AtomicResponse;
        let len = len32(AtomicResponse::LEN);
        self.answer(opcode, target, Content::Own(octets), len);
        Ok(())
    }

    /// The response to the oldest request, which must be an atomic.
    fn place_atomic(&mut self, segment: &Arriving<'_, M>) -> Result<(), Stop> {
        let unexpected = segment.refuse(TerminateCode::RDMAP_OPCODE);
        let (response, _) = AtomicResponse::parse(segment.rdmap())
            .map_err(|_| segment.refuse(TerminateCode::DDP_UNTAGGED_TOO_LONG))?;
        let (qp, sent) = (self.qp, self.sender.sent());
        let Some(request) = self.work.oldest_awaiting() else {
            return Err(unexpected);
        };
        let has_left = request.end.is_some_and(|end| end <= sent);
        if !request.wr.is_atomic() || request.wr.index != response.id || !has_left {
            return Err(unexpected);
        }
        let octets = response.original.to_le_bytes();
        let user = qp.key_user();
        let mut at = 0usize;
        for part in sge::parts(&request.wr.sges, 0, 8) {
            let range = part.range(user, Access::LocalWrite);
            let mut segments = Segments::new();
            if let Err(miss) = self.cx.core.mkeys.translate(&range, &mut segments) {
                match PlaceError::new(miss, part.va, part.left) {
                    PlaceError::Absent(absent, hint) => {
                        return Err(Stop::Absent(Need::new(absent, hint, segment.psn)));
                    }
                    _ => request.wr.failed = Some(Failure::local(miss)),
                }
                break;
            }
            let copied = self
                .cx
                .copy_payload(&segments, Payload::Bytes(&octets), &mut at);
            copied.map_err(|error| segment.copy_error(error))?;
        }
        self.work.answered();
        Ok(())
    }

    /// A Terminate message of the peer.
    fn terminated(&mut self, segment: &Arriving<'_, M>) -> Stop {
        let code = match Terminate::parse(segment.rdmap()) {
            Ok((terminate, _)) => terminate.code,
            Err(_) => TerminateCode::RDMAP_UNSPECIFIED,
        };
        Stop::End(End::Terminated(code))
    }
}

/// Key and address of the buffer of a READ, which has one SGE or no data.
pub(super) fn sink(sges: &crate::receive_queue::SgList) -> (u32, u64) {
    sges.first().map_or((0, 0), |sge| (sge.lkey, sge.addr))
}
