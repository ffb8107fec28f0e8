//! Segments of a queue pair that leave.

use faultline_abi::admin::Counter;
use faultline_abi::event;
use faultline_wire::rdmap::TerminateCode;

use super::begin::{Begun, await_page};
use super::connections::to_tcp;
use super::page_wait::{PageOf, PageWait};
use super::path::set_octets;
use super::qp::StreamQp;
use super::refusal::code_of;
use super::send::{Blocked, Part};
use super::stream::Stream;
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::{Need, WaitKind};
use crate::flow_control::BlockedOn;
use crate::frame::TxFrame;
use crate::payload::Payload;
use crate::qp::fault_policy::FaultPolicy;
use crate::qp::types::State;
use crate::work;

impl StreamQp {
    /// Makes `frame` the next segment. Returns false if there is none now.
    pub(crate) fn poll_transmit<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        frame: &mut TxFrame,
    ) -> bool {
        if self.is_flushing {
            self.flush(cx);
        }
        if self.waits_for_turn() {
            self.deliver(cx, Payload::Bytes(&[]), None);
            self.progress(cx);
            if self.waits_for_turn() {
                self.ready.interrupt();
            }
        }
        if let Some(wait) = self.must_wait(cx.core) {
            if let BlockedOn::Priority(priority) = wait {
                let number = self.endpoint.number;
                self.ready.wait_for_priority(cx.core, number, priority);
            }
            return false;
        }
        match self.begin_requests(cx) {
            Ok(Begun::All) => {}
            Ok(Begun::TurnOver) => self.ready.interrupt(),
            Err(failure) => self.fail_request(cx, failure),
        }
        let before = self.endpoint.state;
        let found = self.poll_segment(cx, frame);
        if !found && self.endpoint.state == State::Sqe && before != State::Sqe {
            // The Terminate message follows.
            self.ready.interrupt();
        }
        self.sync_timer(cx.core);
        found
    }

    /// True if kept octets wait for the next turn.
    fn waits_for_turn(&self) -> bool {
        let stream = self.stream.as_deref();
        stream.is_some_and(|stream| stream.inbound.waits_for_turn)
    }

    fn must_wait(&self, core: &Core) -> Option<BlockedOn> {
        if self.endpoint.is_held {
            return Some(BlockedOn::Release);
        }
        let paused = core.flow_control.paused();
        let priority = self.stream.as_deref()?.path.priority();
        paused
            .contains(priority)
            .then_some(BlockedOn::Priority(priority))
    }

    /// The next segment of the connection.
    fn poll_segment<M: Dma>(&mut self, cx: &mut Context<'_, M>, frame: &mut TxFrame) -> bool {
        let (mut part, mut blocked) = (None::<Part>, None);
        let Some(stream) = self.stream.as_deref_mut() else {
            return false;
        };
        let (gids, mtu) = (&cx.core.gids, cx.core.netdev.mtu);
        if let Some(mss) = stream.path.follow(gids, mtu) {
            stream.connection.limit_mss(mss);
        }
        let Stream {
            connection, sender, ..
        } = stream;
        let (qp, work, core) = (&self.endpoint, &self.work, &*cx.core);
        let acknowledged = connection.acknowledged();
        let transmit = connection.poll_transmit(to_tcp(cx.now), |offset, max| {
            let found = sender.part_at(qp, core, work, offset);
            let leaving = found.and_then(|found| {
                let len = sender.leaving(core, &found, (offset, max), acknowledged)?;
                part = Some(found);
                Ok(len)
            });
            leaving.unwrap_or_else(|why| {
                blocked = Some(why);
                0
            })
        });
        if let Some(why) = blocked {
            self.segment_blocked(cx, why);
        }
        let (Some(transmit), Some(stream)) = (transmit, self.stream.as_deref_mut()) else {
            return false;
        };
        let Some(connections) = &mut cx.core.connections else {
            return false;
        };
        let mut buffers = std::mem::take(&mut connections.buffers);
        let mut is_read = true;
        let mut data: &[u8] = &[];
        if let Some(part) = part.filter(|_| transmit.len > 0) {
            is_read = stream
                .sender
                .write(&part, cx.mem, &mut buffers.fpdu)
                .is_ok();
            let from = usize::try_from(transmit.offset.saturating_sub(part.start)).unwrap_or(0);
            let rest = buffers.fpdu.get(from..).unwrap_or_default();
            data = rest.get(..transmit.len as usize).unwrap_or(rest);
            let end = transmit.offset.saturating_add(transmit.len.into());
            stream.sender.note_sent(end);
            stream
                .sender
                .keep_copy(cx.core, &part, &buffers.fpdu, data.len());
        }
        cx.core.charge(work::of_frames(0, data.len()));
        stream.path.write(&transmit, data, &mut buffers.frame);
        set_octets(frame, &buffers.frame);
        if let Some(connections) = &mut cx.core.connections {
            connections.buffers = buffers;
        }
        if !is_read {
            cx.count(Counter::dma_errors);
            self.fail_with_event(cx, event::QP_FATAL);
            return false;
        }
        if transmit.is_retransmission {
            cx.count(Counter::retransmitted_packets);
        }
        true
    }

    /// A segment cannot be read from memory.
    fn segment_blocked<M: Dma>(&mut self, cx: &mut Context<'_, M>, why: Blocked) {
        let Some(stream) = self.stream.as_deref_mut() else {
            return;
        };
        let code = match why {
            Blocked::NoRoom => return,
            Blocked::Absent(..) if stream.page.is_some() => return,
            Blocked::Absent(need, of, until) => match self.await_data(cx, &need, of, until) {
                Ok(()) => return,
                Err(code) => code,
            },
            Blocked::Work(index, failure) => {
                // Its completion has the reason, later ones are flushed.
                if let Some(request) = self.work.get_mut(index) {
                    request.wr.failed = Some(failure);
                }
                TerminateCode::RDMAP_LOCAL_CATASTROPHIC
            }
            Blocked::Source(miss) => code_of(miss, false),
            Blocked::Completed => TerminateCode::RDMAP_LOCAL_CATASTROPHIC,
        };
        self.terminate_unsent(cx, code);
    }

    /// Waits for a page of data that is to leave, up to an offset of the stream. The error is the code to end the stream with: it will not
    /// become present.
    fn await_data<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        need: &Need,
        of: PageOf,
        until: u64,
    ) -> Result<(), TerminateCode> {
        let wait = match of {
            PageOf::Source => WaitKind::Reply,
            PageOf::Landing | PageOf::Data(_) => WaitKind::Send,
        };
        if of == PageOf::Source && self.endpoint.fault_policy() == FaultPolicy::Terminate {
            return Err(TerminateCode::RDMAP_CATASTROPHIC_STREAM);
        }
        let may_wait = self.endpoint.state != State::Err;
        let token = match may_wait {
            true => await_page(&self.endpoint, cx, wait, need),
            false => None,
        };
        let token = token.ok_or(TerminateCode::RDMAP_LOCAL_CATASTROPHIC)?;
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.page = Some(PageWait { token, of, until });
        }
        Ok(())
    }
}
