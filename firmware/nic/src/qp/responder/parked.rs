//! Packets of services that do not retransmit: they wait in the device until their page is present.

use faultline_abi::admin::Counter;
use faultline_abi::event;

use super::arrival::{Arrival, Parked};
use super::refusal::{IngressNeed, Stopped};
use super::waits::{IngressWait, PacketFate};
use super::{Received, Responder};
use crate::context::Context;
use crate::core::Core;
use crate::diagnostic::{Diagnostic, OverrunQueue};
use crate::dma::Dma;
use crate::fault::WaitKind;
use crate::frame::Frame;
use crate::payload::Payload;
use crate::qp::endpoint::Endpoint;
use crate::qp::fault_policy::Reaction;
use crate::qp::page_wait::await_page;
use crate::qp::types::{Fatal, QpType};
use crate::work;

impl Responder {
    /// Receives a packet of a service that does not retransmit (UC, UD, GSI, raw), or parks it.
    pub(super) fn receive_or_park<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        arrival: Arrival<'_>,
        payload: Payload<'_, M>,
    ) -> Result<Received, Fatal> {
        if self.has_parked() {
            self.park(qp, cx, arrival, payload);
            return Ok(Received::Done);
        }
        let need = match self.deliver(qp, cx, arrival, payload) {
            Ok(received) => {
                self.fault_done(qp, cx);
                return Ok(received);
            }
            Err(stopped) => stopped.absent()?,
        };
        match qp.fault_policy().reactions().unreliable {
            Reaction::Fail => {
                self.request_lost(qp, cx, need.receive)?;
                return Err(Fatal::with(event::QP_FATAL));
            }
            Reaction::Stall => return self.stall(qp, cx, need),
            Reaction::Drop => {
                cx.count(Counter::page_fault_drops);
                cx.raise_fault(qp.fault_source(WaitKind::Dropped), &need.need);
                self.lose_message();
            }
            // An unreliable service has no NAK.
            Reaction::Park | Reaction::RnrNak => {
                if self.await_parked(qp, cx, need)? {
                    self.park(qp, cx, arrival, payload);
                }
            }
        }
        Ok(Received::Done)
    }

    /// Waits for the page of the first parked packet. Returns false if the driver has no queue for faults.
    fn await_parked<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        need: IngressNeed,
    ) -> Result<bool, Fatal> {
        let token = await_page(cx, qp.fault_source(WaitKind::Request), &need.need);
        if let Some(token) = token {
            let wait = IngressWait::new(token, PacketFate::Parked, need.receive);
            self.waits.ingress = Some(wait);
        } else {
            self.request_lost(qp, cx, need.receive)?;
        }
        Ok(token.is_some())
    }

    fn deliver<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        arrival: Arrival<'_>,
        payload: Payload<'_, M>,
    ) -> Result<Received, Stopped> {
        match arrival {
            Arrival::Packet(header) if qp.config.kind == QpType::Uc => {
                return self.receive_request(qp, cx, header, payload);
            }
            Arrival::Packet(header) => self.receive_datagram(qp, cx, header, payload)?,
            Arrival::Frame { tag, checked, hash } => {
                let frame = Frame {
                    payload,
                    checked,
                    hash,
                };
                self.receive_frame(qp, cx, tag, frame)?;
            }
        }
        Ok(Received::Done)
    }

    /// True if packets wait for a page.
    pub(super) fn has_parked(&self) -> bool {
        !self.parked.0.is_empty()
    }

    /// True if packets have waited for a page that is present now.
    pub(crate) fn has_parked_to_deliver(&self) -> bool {
        self.has_parked() && self.waits.ingress.is_none()
    }

    fn park<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        arrival: Arrival<'_>,
        payload: Payload<'_, M>,
    ) {
        let cost = Parked::cost(payload.len());
        let (uctx, limit) = (qp.config.uctx, cx.core.config.park_bytes);
        if !cx.core.park.take(uctx, cost, limit) {
            cx.count(Counter::park_overflow);
            cx.diagnose(Diagnostic::Overrun {
                queue: OverrunQueue::Parked,
                object: qp.number,
            });
            return;
        }
        let Ok(bytes) = payload.to_vec() else {
            cx.core.park.release(uctx, cost);
            cx.count(Counter::dma_errors);
            return;
        };
        cx.count(Counter::parked_packets);
        let (header, tag) = match arrival {
            Arrival::Packet(header) => (Some(*header), 0),
            Arrival::Frame { tag, .. } => (None, tag),
        };
        self.parked.0.push_back(Parked { header, tag, bytes });
    }

    /// Drops the first of the parked packets. Returns false if there is none.
    pub(super) fn unpark(&mut self, qp: &Endpoint, core: &mut Core) -> bool {
        let packet = self.parked.0.pop_front();
        if let Some(packet) = &packet {
            let cost = Parked::cost(packet.bytes.len());
            core.park.release(qp.config.uctx, cost);
        }
        packet.is_some()
    }

    /// Delivers the first of the parked packets, or waits for another page of it.
    pub(crate) fn deliver_parked<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
    ) -> Result<Received, Fatal> {
        let Some(packet) = self.parked.0.pop_front() else {
            return Ok(Received::Done);
        };
        cx.core.charge(work::of_frames(1, packet.bytes.len()));
        let payload = Payload::Bytes(&packet.bytes);
        let delivered = match qp.state.receives() {
            true => self.deliver(qp, cx, packet.arrival(), payload),
            false => Ok(Received::Done),
        };
        // It remains the first while its page is missing.
        self.parked.0.push_front(packet);
        let received = match delivered {
            Ok(received) => {
                self.fault_done(qp, cx);
                received
            }
            Err(stopped) => {
                if self.await_parked(qp, cx, stopped.absent()?)? {
                    return Ok(Received::Done);
                }
                Received::Done
            }
        };
        self.unpark(qp, cx.core);
        Ok(received)
    }
}
