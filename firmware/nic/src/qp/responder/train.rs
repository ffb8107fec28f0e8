//! Execution of trains without examining the headers of each message.

use faultline_abi::U32;
use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::qp::ACCESS_REMOTE_WRITE;
use faultline_wire::bth::Psn;
use faultline_wire::opcode::OpKind;

use super::{Responder, completion};
use crate::context::Context;
use crate::dma::Dma;
use crate::frame::{Packets, Target};
use crate::injection::point::Point;
use crate::mkey::{Access, KeyRange, KeyUser};
use crate::number::len32;
use crate::payload::Payload;
use crate::qp::endpoint::Endpoint;
use crate::qp::sge;
use crate::qp::types::QpType;
use crate::segments::Segments;

impl Responder {
    /// Executes messages of a train up to the first one that needs [`Responder::receive`], with the same effects.
    /// Returns their number, and removes their payload from `rest`, the payload of the train.
    pub(in crate::qp) fn receive_train<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        packets: Packets<'_>,
        rest: &mut Payload<'_, M>,
    ) -> u32 {
        let bth = &packets.first.bth;
        let len = rest.len().checked_div(packets.count as usize).unwrap_or(0);
        if bth.psn != self.expected || len > qp.mtu as usize || !self.takes_trains(qp, cx) {
            return 0;
        }
        let len = len32(len);
        let done = match bth.opcode.info().kind {
            OpKind::Write => self.write_messages(qp, cx, packets, len, rest),
            OpKind::Send => self.send_messages(qp, cx, packets, len, rest),
            _ => 0,
        };
        let is_whole = done == packets.count;
        if is_whole && bth.ack_req && !cx.core.has_lost_completion(qp.number) {
            self.acknowledge_until(self.expected);
        }
        done
    }

    /// True if a message of one packet needs no check except that of its memory.
    fn takes_trains<M: Dma>(&self, qp: &Endpoint, cx: &Context<'_, M>) -> bool {
        qp.config.kind == QpType::Rc
            && self.message.is_none()
            && self.current.is_none()
            && !self.is_waiting()
            && !self.has_parked()
            && !cx.core.injections.has(Point::Request)
            // A train would look an absent page up once more than its messages do.
            && !cx.core.injections.has(Point::Lookup)
            && !cx.core.has_lost_completion(qp.number)
    }

    /// WRITEs of `len` bytes each, as long as they can be written.
    fn write_messages<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        packets: Packets<'_>,
        len: u32,
        rest: &mut Payload<'_, M>,
    ) -> u32 {
        let is_named = packets.first.reth.is_some_and(|reth| reth.len == len);
        if !is_named || len == 0 || !qp.allows(ACCESS_REMOTE_WRITE) {
            return 0;
        }
        let user = qp.key_user();
        let mut done = 0u32;
        for target in packets.targets {
            let range = target_range(target, len, user);
            let mut left = *rest;
            if !place(cx, &range, &mut left) {
                break;
            }
            *rest = left;
            self.end_plain_message(len);
            done = done.wrapping_add(1);
        }
        if done > 0 {
            cx.add(Counter::rx_write_requests, done.into());
            self.request_taken(qp, cx);
        }
        done
    }

    /// SENDs of `len` bytes each, as long as there are receive work requests of this queue pair that have room for them.
    fn send_messages<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        packets: Packets<'_>,
        len: u32,
        rest: &mut Payload<'_, M>,
    ) -> u32 {
        let entry = Cqe {
            byte_len: U32::new(len),
            src_qp: qp.attr.dest_qpn,
            opcode: cqe::RECV,
            ..completion(packets.first)
        };
        let (user, first) = (qp.key_user(), packets.first.bth.psn);
        let mut done = 0;
        while done < packets.count
            && let Some(queue) = &mut self.queue
            && let Some(wr) = queue.peek(cx.mem)
        {
            let mut left = *rest;
            let mut parts = sge::parts(&wr.sges, 0, len.into());
            let is_placed = u64::from(len) <= wr.capacity
                && parts.all(|part| place(cx, &part.range(user, Access::LocalWrite), &mut left));
            if !is_placed || queue.consume(cx.mem).is_err() {
                break;
            }
            *rest = left;
            let before: Psn = self.expected;
            self.end_plain_message(len);
            done = done.wrapping_add(1);
            qp.complete_receive(cx, &wr, entry);
            if done == 1 {
                self.request_taken(qp, cx);
            }
            if cx.core.has_lost_completion(qp.number) {
                // The messages before are acknowledged.
                if packets.first.bth.ack_req && before != first {
                    self.acknowledge_until(before);
                }
                break;
            }
        }
        done
    }

    /// A message of one packet was executed.
    #[inline]
    fn end_plain_message(&mut self, len: u32) {
        self.received = len;
        self.expected = self.expected.next();
        self.end_message();
    }
}

/// The memory that a WRITE of a train names.
#[inline]
fn target_range(target: &Target, len: u32, user: KeyUser) -> KeyRange {
    KeyRange {
        key: target.rkey,
        user,
        va: target.addr,
        len,
        access: Access::RemoteWrite,
    }
}

/// Copies the first bytes of a payload to a range, and removes them. Returns false if that fails: the caller does it again where it has
/// consequences.
#[inline]
fn place<M: Dma>(cx: &Context<'_, M>, range: &KeyRange, payload: &mut Payload<'_, M>) -> bool {
    let mut segments = Segments::new();
    let translated = cx.core.mkeys.try_translate(range, &mut segments);
    translated.is_ok()
        && segments
            .iter()
            .all(|segment| payload.move_to(cx.mem, segment).is_ok())
}
