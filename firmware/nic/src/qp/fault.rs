//! What a queue pair does while a page is missing.
//!
//! A queue pair may wait for three pages at once: one of a local buffer of its requester, one for a request that has arrived,
//! and one that a READ is answered from. The first and the last keep only its own packets from leaving. What becomes of a
//! request is decided by the fault policy (`fault_policy.rs`).

use std::collections::VecDeque;

use faultline_abi::admin::Counter;
use faultline_abi::event;
use faultline_wire::aeth::{NakCode, Syndrome};
use faultline_wire::bth::Psn;
use faultline_wire::packet::RoceHeader;

use super::fault_policy::Reaction;
use super::page_wait::{LOST_BUFFER, PageWait, await_page};
use super::responder::{Refusal, Reply};
use super::{Qp, QpType};
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::{Need, RaisedFault, RepairTime, Token};
use crate::frame::{Frame, Payload};
use crate::time::Instant;
use crate::work;

/// A page of the other side of a transfer that was refused or held.
#[derive(Clone, Copy, Debug)]
pub(super) struct IngressWait {
    token: Token,
    how: Held,
    /// It is a buffer of a receive work request, else memory that the peer named.
    receive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// The requester got an RNR NAK.
    Refused,
    Dropped,
    Stalled,
    Parked,
}

/// What a queue pair waits for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub ingress: Option<IngressWait>,
    /// Memory that a READ is answered from.
    pub reply: Option<PageWait>,
    /// Memory that a FLUSH has arrived for, and that is not durable yet, or has just become so.
    pub durable: Option<Durable>,
}

/// A FLUSH to persistence that has been refused until memory is durable. What follows it is out of sequence
/// meanwhile, so that nothing overtakes it (IBTA annex A19).
#[derive(Clone, Copy, Debug)]
pub(super) struct Durable {
    pub psn: Psn,
    /// See [`Persist::Begun`](crate::dma::Persist).
    pub number: u64,
    pub since: Instant,
    /// It has ended, and whether well.
    pub ended: Option<bool>,
}

/// A packet or frame of a service that does not retransmit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrival<'a> {
    /// A packet; its payload comes with it.
    Packet(&'a RoceHeader),
    /// A whole frame, the tag of the flow that brought it, whether its checksums are known to be right, and its hash.
    Frame {
        tag: u32,
        checked: bool,
        hash: Option<u32>,
    },
}

impl Arrival<'_> {
    fn header(&self) -> Option<&RoceHeader> {
        match self {
            Self::Packet(header) => Some(header),
            Self::Frame { .. } => None,
        }
    }
}

/// A packet that waits in the device until its page is there.
#[derive(Debug)]
struct Parked {
    /// None: a whole frame.
    header: Option<RoceHeader>,
    tag: u32,
    bytes: Vec<u8>,
}

impl Parked {
    fn arrival(&self) -> Arrival<'_> {
        match &self.header {
            Some(header) => Arrival::Packet(header),
            None => Arrival::Frame {
                tag: self.tag,
                checked: false,
                hash: None,
            },
        }
    }
}

/// Packets that wait, in their order.
#[derive(Debug, Default)]
pub(super) struct ParkedPackets(VecDeque<Parked>);

impl ParkedPackets {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A page for a request is not there.
#[derive(Clone, Copy, Debug)]
pub(super) struct IngressNeed {
    pub need: Need,
    /// See [`IngressWait::receive`].
    pub receive: bool,
}

impl Qp {
    /// Waits for a page that a READ is answered from. Returns false if the driver has no queue for faults.
    pub(super) fn await_reply_page<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        need: &Need,
    ) -> bool {
        let waiting = self.waits.reply.map(|wait| wait.token);
        let token = await_page(cx, self.endpoint.fault_source(false), waiting, need);
        self.waits.reply = token.map(|token| PageWait::new(token, need));
        token.is_some()
    }

    /// A page for a request of a reliable connection is missing. Returns false if the packet must be held.
    pub(super) fn request_faulted<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        fault: IngressNeed,
    ) -> bool {
        match self.endpoint.fault_policy().reactions().reliable {
            Reaction::Stall => return self.stall(cx, fault),
            Reaction::Fail => {
                let receive = fault.receive.then_some(LOST_BUFFER);
                let expected = self.responder.expected_psn();
                self.refuse(cx, expected, Refusal::operational(receive));
                self.wake(cx.core);
            }
            Reaction::Drop => {
                if self.refuse_for_page(cx, fault, Held::Dropped).is_some() {
                    cx.count(Counter::page_fault_drops);
                }
            }
            // A packet that the requester sends again is never parked.
            Reaction::RnrNak | Reaction::Park => self.nak_for_page(cx, fault),
        }
        true
    }

    /// Raises the fault of a request, or joins it, and drops the request: it comes again. `None`: the driver has no queue for
    /// faults, and the request has been refused for good. Else the fault, if there was room for one.
    fn refuse_for_page<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        fault: IngressNeed,
        how: Held,
    ) -> Option<Option<Token>> {
        let waiting = self.waits.ingress.map(|wait| wait.token);
        let source = self.endpoint.fault_source(false);
        let token = match cx.raise_fault(source, waiting, &fault.need) {
            RaisedFault::Waiting(token) => Some(token),
            // The requester sends it again anyway.
            RaisedFault::NoRoom => None,
            RaisedFault::NoQueue => {
                self.request_lost(cx, fault.receive);
                self.wake(cx.core);
                return None;
            }
        };
        self.waits.ingress = token.map(|token| IngressWait {
            token,
            how,
            receive: fault.receive,
        });
        // What follows is out of sequence, and needs no NAK of its own.
        self.responder.hold_naks();
        Some(token)
    }

    /// RNR NAK for a request whose page is missing.
    fn nak_for_page<M: Dma>(&mut self, cx: &mut Context<'_, M>, fault: IngressNeed) {
        let Some(token) = self.refuse_for_page(cx, fault, Held::Refused) else {
            return;
        };
        cx.count(Counter::page_fault_rnr);
        cx.count(Counter::rnr_nak_sent);
        let timer = cx.core.rnr_timer(cx.now, token, fault.need.absent.key);
        let expected = self.responder.expected_psn();
        self.responder
            .acknowledge(expected, Syndrome::RnrNak { timer });
        self.wake(cx.core);
    }

    /// Stops the input of the NIC. Returns false if the packet must be held; true if it is done with.
    fn stall<M: Dma>(&mut self, cx: &mut Context<'_, M>, fault: IngressNeed) -> bool {
        let waiting = self.waits.ingress.map(|wait| wait.token);
        let Some(token) = await_page(cx, self.endpoint.fault_source(false), waiting, &fault.need)
        else {
            self.request_lost(cx, fault.receive);
            self.wake(cx.core);
            return true;
        };
        cx.count(Counter::stalls);
        cx.core.ingress.stop(cx.now, self.endpoint.number, token);
        self.waits.ingress = Some(IngressWait {
            token,
            how: Held::Stalled,
            receive: fault.receive,
        });
        false
    }

    /// A packet of a service that does not retransmit (UC, UD, GSI, raw). Returns false if it must be held.
    pub(super) fn receive_or_park<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        arrival: Arrival<'_>,
        payload: Payload<'_, M>,
    ) -> bool {
        if !self.parked.is_empty() {
            self.park(cx, arrival, payload);
            return true;
        }
        let Err(fault) = self.deliver(cx, arrival, payload) else {
            return true;
        };
        match self.endpoint.fault_policy().reactions().unreliable {
            Reaction::Fail => {
                self.request_lost(cx, fault.receive);
                self.fail_with_event(cx, event::QP_FATAL);
            }
            Reaction::Stall => return self.stall(cx, fault),
            Reaction::Drop => {
                cx.count(Counter::page_fault_drops);
                cx.raise_fault(self.endpoint.fault_source(false), None, &fault.need);
                self.responder.lose_message();
            }
            // An unreliable service has no NAK.
            Reaction::Park | Reaction::RnrNak => {
                if self.await_parked(cx, fault) {
                    self.park(cx, arrival, payload);
                }
            }
        }
        true
    }

    /// Waits for the page of the first parked packet. Returns false if the driver has no queue for faults.
    fn await_parked<M: Dma>(&mut self, cx: &mut Context<'_, M>, fault: IngressNeed) -> bool {
        let token = await_page(cx, self.endpoint.fault_source(false), None, &fault.need);
        match token {
            Some(token) => {
                self.waits.ingress = Some(IngressWait {
                    token,
                    how: Held::Parked,
                    receive: fault.receive,
                });
            }
            None => self.request_lost(cx, fault.receive),
        }
        token.is_some()
    }

    fn deliver<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        arrival: Arrival<'_>,
        payload: Payload<'_, M>,
    ) -> Result<(), IngressNeed> {
        match (self.endpoint.config.kind, arrival) {
            (QpType::Uc, Arrival::Packet(header)) => self.receive_request(cx, header, payload),
            (_, Arrival::Packet(header)) => self.receive_datagram(cx, header, payload),
            (_, Arrival::Frame { tag, checked, hash }) => {
                let frame = Frame {
                    payload,
                    checked,
                    hash,
                };
                self.receive_frame_now(cx, tag, frame)
            }
        }
    }

    fn park<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        arrival: Arrival<'_>,
        payload: Payload<'_, M>,
    ) {
        // An empty one takes room too.
        let cost = payload.len() + size_of::<Parked>();
        let (uctx, limit) = (self.endpoint.config.uctx, cx.core.config.park_bytes);
        if !cx.core.park.take(uctx, cost, limit) {
            cx.count(Counter::park_overflow);
            return;
        }
        let Ok(bytes) = payload.to_vec() else {
            cx.core.park.give_back(uctx, cost);
            cx.count(Counter::dma_errors);
            return;
        };
        cx.count(Counter::parked_packets);
        self.parked.0.push_back(Parked {
            header: arrival.header().copied(),
            tag: match arrival {
                Arrival::Packet(_) => 0,
                Arrival::Frame { tag, .. } => tag,
            },
            bytes,
        });
    }

    fn unpark(&mut self, core: &mut Core) -> Option<Parked> {
        let packet = self.parked.0.pop_front()?;
        let cost = packet.bytes.len() + size_of::<Parked>();
        core.park.give_back(self.endpoint.config.uctx, cost);
        Some(packet)
    }

    /// Delivers what was parked, until another page is missing.
    pub(super) fn redo_parked<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        let turn = cx.core.begin_turn();
        while self.waits.ingress.is_none()
            && let Some(packet) = self.parked.0.pop_front()
        {
            if cx.core.is_over(turn) {
                self.parked.0.push_front(packet);
                self.interrupted = true;
                return;
            }
            cx.core.charge(work::of_frames(1, packet.bytes.len()));
            let payload = Payload::Bytes(&packet.bytes);
            let taken = match self.endpoint.state.receives() {
                true => self.deliver(cx, packet.arrival(), payload),
                false => Ok(()),
            };
            // It stays in front of the others while its page is missing.
            self.parked.0.push_front(packet);
            match taken {
                Ok(()) => drop(self.unpark(cx.core)),
                Err(fault) => {
                    if !self.await_parked(cx, fault) {
                        self.unpark(cx.core);
                    }
                }
            }
        }
    }

    /// Forgets pages and packets that were waited for, and what was still to happen to it.
    pub(super) fn stop_waiting(&mut self, core: &mut Core) {
        core.forget_silenced(self.endpoint.number);
        let work = core.faults.forget(self.endpoint.number);
        core.charge(work);
        core.ingress.forget(self.endpoint.number);
        self.waits = Waits::default();
        self.requester.stop_waiting();
        while self.unpark(core).is_some() {}
    }

    /// A fault has been answered that this queue pair may wait for.
    pub(crate) fn fault_answered<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        token: Token,
        repaired: bool,
    ) {
        self.requester
            .fault_answered(&self.endpoint, cx.now, token, repaired);
        self.sync_timer(cx.core);
        if let Some(wait) = self.waits.reply.filter(|wait| wait.token == token) {
            self.waits.reply = None;
            // Not if an earlier response has to be given again first.
            let next = self.responder.replies.front().map(Reply::next_psn);
            if !repaired && next == Some(wait.psn) {
                self.reply_lost(cx);
            }
        }
        if let Some(wait) = self.waits.ingress.filter(|wait| wait.token == token) {
            self.waits.ingress = None;
            match repaired {
                true => self.request_repaired(cx.core, wait.how),
                false if wait.how == Held::Parked => {
                    self.unpark(cx.core);
                    self.request_lost(cx, wait.receive);
                }
                false => self.request_lost(cx, wait.receive),
            }
        }
        self.wake(cx.core);
    }

    /// A FLUSH arrives whose memory is not durable yet: the requester gets an RNR NAK, as for a missing page.
    pub(super) fn flush_waits<M: Dma>(&mut self, cx: &mut Context<'_, M>, psn: Psn) {
        self.responder.hold_naks();
        let since = self.waits.durable.map_or(cx.now, |durable| durable.since);
        let timer = RepairTime::default().rnr_timer(cx.now.0.saturating_sub(since.0));
        cx.count(Counter::rnr_nak_sent);
        self.responder.acknowledge(psn, Syndrome::RnrNak { timer });
    }

    /// The write-back that a FLUSH waits for has ended: the requester should repeat the FLUSH, which then gets its answer.
    pub(crate) fn persisted(&mut self, core: &mut Core, number: u64, well: bool) {
        if let Some(durable) = &mut self.waits.durable
            && durable.number == number
        {
            durable.ended = Some(well);
            self.request_repaired(core, Held::Refused);
            self.wake(core);
        }
    }

    /// The page of a request is there now: the requester should know, and not wait for a timer.
    fn request_repaired(&mut self, core: &mut Core, how: Held) {
        match how {
            Held::Refused if core.config.ready_notice => {
                core.counters
                    .add_in(self.endpoint.counters, Counter::ready_notices, 1);
                self.responder.say_ready(Syndrome::ACK);
            }
            Held::Dropped => self
                .responder
                .say_ready(Syndrome::Nak(NakCode::PsnSequenceError)),
            Held::Refused | Held::Stalled | Held::Parked => {}
        }
    }

    /// The page of a request will not come.
    fn request_lost<M: Dma>(&mut self, cx: &mut Context<'_, M>, receive: bool) {
        let failure = receive.then_some(LOST_BUFFER);
        match self.endpoint.config.kind {
            kind if kind.is_reliable() => {
                let refusal = match failure {
                    Some(_) => Refusal::operational(failure),
                    None if self.responder.current().is_some() => Refusal::access_with_receive(),
                    None => Refusal::access(),
                };
                let psn = self.responder.expected_psn();
                self.refuse(cx, psn, refusal);
            }
            // The peer's mistake costs it the message.
            _ if !receive => self.responder.lose_message(),
            kind => {
                if let Some(wr) = self.responder.take_current() {
                    self.endpoint.fail_receive(cx, &wr, LOST_BUFFER);
                }
                // One bad buffer does not stop an interface.
                if !matches!(kind, QpType::Raw | QpType::Wq) {
                    self.fail_with_event(cx, event::QP_FATAL);
                }
            }
        }
    }
}
