//! The responder of a queue pair: receives packets, executes requests, and answers them.
//!
//! Each request of a connection passes the checks of IBTA 9.7.4 in their order: PSN, sequence of opcodes, support and
//! rights, resources, length, key. The first that fails determines the answer. Replies are queued, so that they leave
//! in the order of the requests.
//!
//! Functions that find an error which ends the connection return `Err(Fatal)`; the queue pair then goes to the error
//! state.

mod answer;
mod arrival;
mod execute;
mod fault;
mod flush;
mod injected;
mod parked;
mod place;
mod refusal;
mod reply;
mod tag;
mod train;
mod unreliable;
mod waits;

use std::collections::VecDeque;

use faultline_abi::admin::Counter;
use faultline_abi::event;
use faultline_wire::aeth::{NakCode, Syndrome};
use faultline_wire::bth::Psn;
use faultline_wire::packet::RoceHeader;

use super::endpoint::Endpoint;
use super::types::{Fatal, QpType, State};
use crate::budget::{Budget, Held};
use crate::context::Context;
use crate::core::Core;
use crate::diagnostic::{Diagnostic, KeyUse};
use crate::dma::Dma;
use crate::fault::Token;
use crate::injection::point::Point;
use crate::payload::Payload;
use crate::receive_queue::{RecvRing, RecvWr};

pub(crate) use arrival::Arrival;
use arrival::ParkedPackets;
pub(super) use place::completion;
pub(crate) use refusal::Stopped;
use refusal::{Refusal, Rejection};
use reply::{Executed, Reply};
use waits::ResponderWaits;

/// The result of receiving a packet, as far as the queue pair or the NIC must act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// The packet has been handled.
    Done,
    /// The packet has stopped the ingress of the NIC, which must hold it.
    Held,
    /// The packet has begun a rendezvous, whose data will be read into this place of the tag list.
    Rendezvous(u32),
}

/// A message whose further packets are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Send,
    Write { next: u64, rkey: u32, left: u32 },
}

/// A UC connection has continued at another PSN.
#[derive(Clone, Copy, Debug)]
struct Jump {
    /// The PSN that was expected.
    from: Psn,
    /// The PSN that arrived.
    to: Psn,
}

/// Receive side of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// Receive work requests. `None`: they come from an SRQ, or there are none.
    queue: Option<RecvRing>,
    /// PSN of the next request.
    expected: Psn,
    /// Message sequence number (IBTA 9.7.7.1).
    msn: u32,
    /// The message that is arriving.
    message: Option<Message>,
    /// The receive work request that the current message fills, or that waits for the next one.
    current: Option<RecvWr>,
    /// Bytes of the current message that have arrived.
    received: u32,
    /// A NAK for the expected PSN has been sent; later packets are dropped silently.
    nak_sent: bool,
    /// Executed READs and atomics, to answer repetitions.
    executed: VecDeque<Executed>,
    /// Replies to send.
    replies: VecDeque<Reply>,
    /// Share of the budget that `executed` and `replies` take.
    answers: Option<Held>,
    /// UC: the rest of a damaged message is dropped.
    skipping: bool,
    /// UC: a message has begun far from the expected PSN, and only few packets have arrived since.
    jump: Option<Jump>,
    /// Pages that it waits for.
    waits: ResponderWaits,
    /// Packets that wait for a page.
    parked: ParkedPackets,
    /// COMM_ESTABLISHED has been raised, or will not be.
    established: bool,
}

impl Responder {
    /// A responder without requests. `queue` is `None` if receive work requests come from an SRQ.
    pub(crate) fn new(queue: Option<RecvRing>) -> Self {
        Self {
            queue,
            ..Self::default()
        }
    }

    /// Clears all state, and empties the receive queue.
    pub(crate) fn reset<M: Dma>(&mut self, mem: &M) {
        let mut queue = self.queue.take();
        if let Some(queue) = &mut queue {
            queue.reset();
            queue.set_notify(mem, false);
        }
        *self = Self::new(queue);
    }

    /// Whether it waits for a page.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waits.ingress.is_some() || self.waits.reply.is_some()
    }

    /// PSN of the next request.
    pub(crate) fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Expects this PSN next.
    pub(crate) fn set_expected_psn(&mut self, psn: Psn) {
        self.expected = psn;
        self.nak_sent = false;
        self.jump = None;
    }

    /// No COMM_ESTABLISHED will be raised any more.
    pub(crate) fn set_established(&mut self) {
        self.established = true;
    }

    /// Reserves memory for the answers to `limit` READs and atomics: the executed operations, their replies, and
    /// acknowledgements between these. Returns false if the budget has none left.
    #[expect(clippy::arithmetic_side_effects, reason = "255 answers at most")]
    pub(crate) fn reserve_answers(&mut self, budget: &Budget, limit: u8) -> bool {
        let bytes = usize::from(limit) * (size_of::<Executed>() + 4 * size_of::<Reply>());
        let held = self.answers.get_or_insert_with(|| budget.none());
        let more = bytes.saturating_sub(held.bytes());
        let left = budget.take(more).is_some();
        if left {
            held.set(held.bytes() + more);
        }
        left
    }

    /// Ends the message and the answers in progress, because the queue pair has failed. The receive queue is flushed later.
    pub(crate) fn abandon<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>) {
        self.message = None;
        self.drop_answers();
        self.flush_current(qp, cx);
    }

    /// Receives a packet or frame, and executes it if it is the expected one. Addresses and P_Key have been checked.
    #[inline]
    pub(crate) fn receive<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        arrival: Arrival<'_>,
        payload: Payload<'_, M>,
    ) -> Result<Received, Fatal> {
        let header = match arrival {
            Arrival::Packet(header) if qp.is_reliable() => header,
            _ => return self.receive_or_park(qp, cx, arrival, payload),
        };
        match self.receive_request(qp, cx, header, payload) {
            Ok(received) => Ok(received),
            Err(stopped) => self.request_faulted(qp, cx, stopped.absent()?),
        }
    }

    /// Receives a request packet of a connection.
    #[inline(always)]
    fn receive_request<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<Received, Stopped> {
        if !self.check_sequence(qp, cx, header) {
            return Ok(Received::Done);
        }
        if cx.core.injections.has(Point::Request)
            && qp.is_reliable()
            && self.inject_request(qp, cx, header)?
        {
            return Ok(Received::Done);
        }
        let before = (self.message, self.received);
        match self.execute(qp, cx, header, 1, payload) {
            Ok(received) => {
                self.request_taken(qp, cx);
                return Ok(received);
            }
            Err(Refusal::Lost) if qp.is_reliable() => (self.message, self.received) = before,
            Err(Refusal::Absent(need)) => {
                (self.message, self.received) = before;
                return Err(Stopped::Absent(need));
            }
            Err(refusal) => {
                if refusal.is_of_access() {
                    report_refused_key(qp, cx, header);
                }
                self.refuse(qp, cx, header.bth.psn, refusal)?;
            }
        }
        Ok(Received::Done)
    }

    /// Accepts a run of request packets as a whole, if it is the expected one and has no error. `None`: the packets
    /// must be examined one by one, and data that has been placed will be placed again.
    #[inline]
    pub(crate) fn receive_run<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) -> Option<Received> {
        let is_next = header.bth.psn == self.expected && !self.skipping && !self.has_parked();
        // An injection applies to a packet. The runs of other queue pairs stay whole.
        if !is_next || cx.core.injections.concern(Point::Request, qp.number) {
            return None;
        }
        let before = (self.message, self.received);
        let Ok(received) = self.execute(qp, cx, header, packets, payload) else {
            (self.message, self.received) = before;
            return None;
        };
        self.request_taken(qp, cx);
        Some(received)
    }

    /// Refuses a request of a reliable connection, because its opcode is reserved.
    pub(crate) fn refuse_reserved<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
    ) -> Result<Received, Fatal> {
        if self.check_sequence(qp, cx, header) {
            self.refuse(qp, cx, header.bth.psn, Refusal::INVALID)?;
        }
        Ok(Received::Done)
    }

    #[inline]
    fn request_taken<M: Dma>(&mut self, qp: &Endpoint, cx: &mut Context<'_, M>) {
        self.fault_done(qp, cx);
        self.nak_sent = false;
        self.waits.durable = None;
        if qp.state == State::Rtr && !self.established {
            self.established = true;
            cx.raise_async(event::COMM_ESTABLISHED, qp.number);
        }
    }

    /// PSN check (IBTA 9.7.4.1.2). Returns true if the packet is the expected one.
    #[inline(always)]
    fn check_sequence<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
    ) -> bool {
        if qp.config.kind == QpType::Uc {
            return self.check_unreliable(cx, header);
        }
        let ahead = header.bth.psn.diff(self.expected);
        if ahead > 0 {
            cx.count(Counter::out_of_sequence);
            if let Some(wait) = &mut self.waits.ingress {
                wait.gap = true;
            }
            if !self.nak_sent {
                self.nak_sent = true;
                cx.count(Counter::packet_seq_err_sent);
                cx.diagnose(Diagnostic::SequenceNakSent {
                    qpn: qp.number,
                    psn: self.expected.get(),
                });
                self.acknowledge(self.expected, Syndrome::Nak(NakCode::PsnSequenceError));
            }
        } else if ahead < 0 {
            cx.count(Counter::duplicate_request);
            self.repeat(qp, header);
        }
        ahead == 0
    }

    /// Refuses the request with this PSN.
    fn refuse<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
        refusal: Refusal,
    ) -> Result<(), Fatal> {
        if qp.config.kind == QpType::Uc {
            return self.drop_unreliable(qp, cx, psn, refusal);
        }
        match refusal {
            // The fault policy determines the reaction to a missing page.
            Refusal::Lost | Refusal::Absent(_) => Ok(()),
            Refusal::NotDurable => {
                self.flush_waits(qp, cx, psn);
                Ok(())
            }
            Refusal::NotReady => {
                cx.count(Counter::out_of_buffer);
                report_rnr_nak(qp, cx, psn, None);
                let timer = qp.attr.min_rnr_timer;
                self.nak_sent = true;
                self.acknowledge(psn, Syndrome::RnrNak { timer });
                Ok(())
            }
            Refusal::TooLong => {
                cx.count(Counter::resp_local_length_error);
                Err(self.reject(qp, cx, psn, Rejection::TOO_LONG))
            }
            Refusal::Fatal(rejection) => Err(self.reject(qp, cx, psn, rejection)),
        }
    }

    /// Refuses the request with this PSN of a reliable connection, and ends the connection.
    fn reject<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        psn: Psn,
        rejection: Rejection,
    ) -> Fatal {
        if let Some(code) = rejection.code {
            cx.count(match code {
                NakCode::RemoteAccessError => Counter::resp_remote_access_errors,
                _ => Counter::resp_invalid_request,
            });
            cx.diagnose(Diagnostic::RequestRefused {
                qpn: qp.number,
                psn: psn.get(),
                nak: code.to_u8(),
            });
            self.acknowledge(psn, Syndrome::Nak(code));
        }
        // A receive work request that is not the cause is flushed with the others.
        if let Some(failure) = rejection.receive
            && let Some(wr) = self.current.take()
        {
            qp.fail_receive(cx, &wr, failure);
            return Fatal::SILENT;
        }
        Fatal::with(rejection.event)
    }

    /// Ends all waits for pages, and drops the parked packets.
    pub(crate) fn stop_waiting(&mut self, qp: &Endpoint, core: &mut Core) {
        self.waits = ResponderWaits::default();
        self.forget_ready();
        while self.unpark(qp, core) {}
    }
}

/// Counts and reports an RNR NAK that is sent because of this fault, if any.
pub(in crate::qp) fn report_rnr_nak<M: Dma>(
    qp: &Endpoint,
    cx: &mut Context<'_, M>,
    psn: Psn,
    fault: Option<Token>,
) {
    cx.count(Counter::rnr_nak_sent);
    cx.diagnose(Diagnostic::RnrNakSent {
        qpn: qp.number,
        psn: psn.get(),
        token: fault.map_or(0, Token::number),
    });
}

/// Reports that a peer may not access the memory that it names.
fn report_refused_key<M: Dma>(qp: &Endpoint, cx: &mut Context<'_, M>, header: &RoceHeader) {
    let reth = header.reth.map(|reth| (reth.rkey, reth.addr));
    let atomic = header.atomic.map(|atomic| (atomic.rkey, atomic.addr));
    if let Some((key, va)) = reth.or(atomic) {
        cx.diagnose(Diagnostic::KeyRefused {
            qpn: qp.number,
            key,
            va,
            by: KeyUse::Remote,
        });
    }
}
