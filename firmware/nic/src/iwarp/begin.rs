//! Work requests become messages of the stream, and local operations are executed.

use faultline_abi::wqe::WR_FLAG_SOLICITED;
use faultline_wire::ddp::{DdpTarget, queue};
use faultline_wire::rdmap::{AtomicRequest, IMMEDIATE_LEN, RdmapOpcode, ReadRequest, atomic_op};

use super::execute::sink;
use super::page_wait::{PageOf, PageWait};
use super::qp::StreamQp;
use super::send::{Content, Framing, Octets};
use super::stream::Stream;
use super::work::Request;
use crate::context::Context;
use crate::dma::Dma;
use crate::fault::{Need, RaisedFault, Token, WaitKind};
use crate::mkey::Access;
use crate::number::low32;
use crate::qp::endpoint::Endpoint;
use crate::qp::page_wait::{LANDING_AHEAD, LOST_BUFFER};
use crate::qp::sge;
use crate::qp::types::{Failure, PlaceError, State};
use crate::qp::work_request::{AtomicOp, Remote, SendExtra, SendOp};
use crate::work;

/// Octets of the stream that are prepared before they can be sent. More would delay answers to READs, which follow them.
const AHEAD: u64 = 64 << 10;

/// The result of beginning work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// No other can begin before the next event.
    All,
    /// The turn is over: there may be more.
    TurnOver,
}

impl StreamQp {
    /// Begins work requests, as far as the stream has room for them. The error is that of the oldest one, which has failed.
    pub(super) fn begin_requests<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
    ) -> Result<Begun, Failure> {
        let turn = cx.core.begin_turn();
        loop {
            let qp = &self.endpoint;
            let Some(stream) = self.stream.as_deref_mut() else {
                return Ok(Begun::All);
            };
            self.work.retire(qp, cx, stream.connection.acknowledged())?;
            let may_begin = qp.state == State::Rts
                && stream.may_send()
                && stream.page.is_none()
                && stream.sender.unsent() < AHEAD;
            if !may_begin {
                return Ok(Begun::All);
            }
            if cx.core.is_over(turn) {
                return Ok(Begun::TurnOver);
            }
            if self.work.waiting().is_none() && self.work.fetch(qp, cx).is_none() {
                return Ok(Begun::All);
            }
            let is_sent = stream.sender.unsent() == 0;
            if self.work.waiting().is_some() && !self.work.may_begin(qp, is_sent) {
                return Ok(Begun::All);
            }
            if self.work.waiting().is_some() {
                self.begin(cx);
            }
            // A work request that fails when it is read ends the loop above once it is the oldest.
        }
    }

    /// Begins the work request that has been read. If a page of its buffer is missing, it waits.
    fn begin<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        cx.core.charge(work::OPERATION);
        let (qp, awaits) = (&self.endpoint, self.work.newest_awaits());
        let (Some(stream), Some(request)) = (self.stream.as_deref_mut(), self.work.waiting())
        else {
            return;
        };
        let Some(op) = request.wr.op else { return };
        let begun = if op.is_local() {
            carry_out(qp, cx, &op).map(|()| request.wr.done = true)
        } else {
            let pushed = stream.sender.pushed();
            let landing = match awaits {
                true => await_landing(qp, cx, request, pushed),
                false => Ok(None),
            };
            landing.and_then(|missing| {
                stream.page = missing.map(|token| PageWait {
                    token,
                    of: PageOf::Landing,
                    until: u64::MAX,
                });
                if missing.is_some() {
                    return Ok(());
                }
                // If the connection has ended, the request is flushed.
                let is_pushed = push_messages(cx, stream, request, op);
                request.end = is_pushed.then(|| stream.sender.pushed());
                is_pushed.then_some(()).ok_or(Failure::FLUSHED)
            })
        };
        if let Err(failure) = begun {
            self.work.fail_newest(failure);
        }
    }
}

/// Executes a local operation.
fn carry_out<M: Dma>(qp: &Endpoint, cx: &mut Context<'_, M>, op: &SendOp) -> Result<(), Failure> {
    let (user, mkeys) = (qp.key_user(), &mut cx.core.mkeys);
    let result = match op {
        SendOp::FastReg(register) => mkeys.register(user, register, cx.mem),
        SendOp::BindMw(bind) => mkeys.bind(user, bind),
        SendOp::LocalInv { key } => mkeys.invalidate_key(user, *key),
        _ => Ok(()),
    };
    result.map_err(Failure::from)
}

/// Appends the messages of a work request to the stream. Returns false if the connection takes no more.
fn push_messages<M: Dma>(
    cx: &mut Context<'_, M>,
    stream: &mut Stream,
    request: &Request,
    op: SendOp,
) -> bool {
    match op {
        SendOp::Read { from, .. } => {
            let header = ReadRequest {
                sink: sink(&request.wr.sges),
                len: request.wr.length,
                source: (from.rkey, from.addr),
            };
            let mut octets = Octets::from_elem(0, ReadRequest::LEN);
            // The buffer has its length.
            let _ = header.emit(&mut octets);
            push_request(cx, stream, RdmapOpcode::ReadRequest, octets)
        }
        SendOp::Atomic { at, op } => {
            let octets = atomic_request(request.wr.index, at, op);
            push_request(cx, stream, RdmapOpcode::AtomicRequest, octets)
        }
        SendOp::Write { to, imm } => {
            let target = DdpTarget::Tagged {
                stag: to.rkey,
                offset: to.addr,
            };
            let opcode = RdmapOpcode::Write;
            let written = push_data(cx, stream, (opcode, target), request);
            written && imm.is_none_or(|imm| push_immediate(cx, stream, request, imm))
        }
        SendOp::Send(extra) => {
            let solicited = request.wr.has(WR_FLAG_SOLICITED);
            let (opcode, upper) = match (extra, solicited) {
                (SendExtra::Invalidate(key), false) => (RdmapOpcode::SendInvalidate, key),
                (SendExtra::Invalidate(key), true) => (RdmapOpcode::SendSolicitedInvalidate, key),
                (_, false) => (RdmapOpcode::Send, 0),
                (_, true) => (RdmapOpcode::SendSolicited, 0),
            };
            let target = stream.sender.untagged(queue::SEND, upper);
            push_data(cx, stream, (opcode, target), request)
        }
        // They were refused when they were read, or are local.
        _ => true,
    }
}

/// The header of an atomic. `id` is the index of the work request.
fn atomic_request(id: u32, at: Remote, op: AtomicOp) -> Octets {
    let mut header = AtomicRequest {
        id,
        stag: at.rkey,
        offset: at.addr,
        compare_mask: u64::MAX,
        ..AtomicRequest::default()
    };
    match op {
        AtomicOp::FetchAdd { add } => {
            (header.operation, header.data) = (atomic_op::FETCH_ADD, add);
        }
        AtomicOp::CompareSwap { compare, swap } => {
            (header.operation, header.data) = (atomic_op::COMPARE_SWAP, swap);
            (header.mask, header.compare) = (u64::MAX, compare);
        }
    }
    let mut octets = Octets::from_elem(0, AtomicRequest::LEN);
    // The buffer has its length.
    let _ = header.emit(&mut octets);
    octets
}

/// Appends a request to the peer.
fn push_request<M: Dma>(
    cx: &mut Context<'_, M>,
    stream: &mut Stream,
    opcode: RdmapOpcode,
    octets: Octets,
) -> bool {
    let target = stream.sender.untagged(queue::READ_REQUEST, 0);
    let framing = Framing::Ddp { opcode, target };
    stream.push_own(&cx.core.budget, cx.now, framing, octets)
}

/// Appends the data of a work request.
fn push_data<M: Dma>(
    cx: &mut Context<'_, M>,
    stream: &mut Stream,
    (opcode, target): (RdmapOpcode, DdpTarget),
    request: &Request,
) -> bool {
    let framing = Framing::Ddp { opcode, target };
    let content = Content::Work(request.wr.index);
    let len = request.wr.length;
    stream.push(&cx.core.budget, cx.now, (framing, content), len)
}

/// Appends immediate data, which is eight octets: those of the work request, and zeros.
fn push_immediate<M: Dma>(
    cx: &mut Context<'_, M>,
    stream: &mut Stream,
    request: &Request,
    imm: u32,
) -> bool {
    let mut octets = Octets::from_slice(&imm.to_be_bytes());
    octets.resize(IMMEDIATE_LEN, 0);
    let opcode = match request.wr.has(WR_FLAG_SOLICITED) {
        true => RdmapOpcode::ImmediateSolicited,
        false => RdmapOpcode::Immediate,
    };
    let target = stream.sender.untagged(queue::SEND, 0);
    let framing = Framing::Ddp { opcode, target };
    stream.push_own(&cx.core.budget, cx.now, framing, octets)
}

/// Whether the first bytes of the buffer of a response are present. Returns the fault to wait for if not.
fn await_landing<M: Dma>(
    qp: &Endpoint,
    cx: &mut Context<'_, M>,
    request: &Request,
    offset: u64,
) -> Result<Option<Token>, Failure> {
    let len = request.wr.length.min(LANDING_AHEAD);
    let user = request.wr.key_user(qp);
    for part in sge::parts(&request.wr.sges, 0, len.into()) {
        let range = part.range(user, Access::LocalWrite);
        if let Err(miss) = cx.core.mkeys.require(&range) {
            return match PlaceError::new(miss, part.va, part.left) {
                PlaceError::Absent(absent, hint) => {
                    let need = Need::new(absent, hint, low32(offset));
                    let token = await_page(qp, cx, WaitKind::Send, &need);
                    token.map(Some).ok_or(LOST_BUFFER)
                }
                PlaceError::Failed(failure) => Err(failure),
                PlaceError::Lost => Err(LOST_BUFFER),
            };
        }
    }
    Ok(None)
}

/// Raises a fault and waits for its answer, or for room for it. `None`: the driver has no queue for faults.
pub(super) fn await_page<M: Dma>(
    qp: &Endpoint,
    cx: &mut Context<'_, M>,
    wait: WaitKind,
    need: &Need,
) -> Option<Token> {
    match cx.raise_fault(qp.fault_source(wait), need) {
        RaisedFault::Waiting(token) => Some(token),
        RaisedFault::NoRoom => {
            cx.core.wait_for_room(cx.now, qp.number, need.absent.key);
            Some(Token::ROOM)
        }
        RaisedFault::NoQueue => None,
    }
}
