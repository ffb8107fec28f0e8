//! Queue pairs, work queues and RSS queue pairs by number. They share the numbers, because flows and indirection tables name
//! any of them.

use faultline_wire::GSI_QPN;

use crate::context::Context;
use crate::core::Core;
use crate::counters::{CounterSet, Traffic};
use crate::dma::Dma;
use crate::fault::Call;
use crate::frame::{Frame, TxFrame};
use crate::gid_table::Source;
use crate::iwarp::StreamQp;
use crate::qp::endpoint::Endpoint;
use crate::qp::{Qp, QpType, Receiver, State, WorkQueue};
use crate::references::References;
use crate::rss::RssQp;
use crate::table::Table;

/// An object that has a queue pair number.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "each entry of the table is a box"
)]
pub(crate) enum Queue {
    /// A queue pair.
    Pair(Qp),
    /// An iWARP queue pair.
    Stream(StreamQp),
    /// A work queue.
    Work(WorkQueue),
    /// An RSS queue pair.
    Rss(RssQp),
}

/// Properties of the frame that a queue has made last.
pub(crate) struct LastFrame<'a> {
    /// The entry of the GID table from which it is sent.
    pub(crate) source: Option<Source>,
    /// The next poll would return no frame and complete no work request. False if that is not known.
    pub(crate) is_last: bool,
    /// Counter set of the queue.
    pub(crate) set: CounterSet,
    /// Counts of the packets and bytes that the queue has sent and received.
    pub(crate) traffic: &'a mut Traffic,
}

impl Queue {
    /// Bytes of an idle one.
    pub(crate) const SIZE: usize = size_of::<Self>();

    /// Set of counters to which its packets are added.
    pub(crate) fn counters(&self) -> CounterSet {
        match self {
            Self::Pair(qp) => qp.endpoint.counters,
            Self::Stream(qp) => qp.endpoint.counters,
            Self::Work(wq) => wq.endpoint.counters,
            Self::Rss(rss) => rss.counters,
        }
    }

    /// Number, configuration and attributes; an RSS queue pair has none.
    #[inline]
    pub(crate) fn endpoint_mut(&mut self) -> Option<&mut Endpoint> {
        match self {
            Self::Pair(qp) => Some(&mut qp.endpoint),
            Self::Stream(qp) => Some(&mut qp.endpoint),
            Self::Work(wq) => Some(&mut wq.endpoint),
            Self::Rss(_) => None,
        }
    }

    /// Properties of the frame that it has made last. `None`: it makes none.
    #[inline(always)]
    pub(crate) fn last_frame(&mut self) -> Option<LastFrame<'_>> {
        let (source, is_last, endpoint) = match self {
            Self::Pair(qp) => (qp.source(), qp.has_sent_all(), &mut qp.endpoint),
            Self::Stream(qp) => (qp.source(), false, &mut qp.endpoint),
            Self::Work(_) | Self::Rss(_) => return None,
        };
        Some(LastFrame {
            source,
            is_last,
            set: endpoint.counters,
            traffic: &mut endpoint.traffic,
        })
    }

    /// Its state; an RSS queue pair has none.
    pub(crate) fn state(&self) -> Option<State> {
        match self {
            Self::Pair(qp) => Some(qp.endpoint.state),
            Self::Stream(qp) => Some(qp.endpoint.state),
            Self::Work(wq) => Some(wq.endpoint.state),
            Self::Rss(_) => None,
        }
    }

    /// Replaces its set of counters, and returns the previous one.
    pub(crate) fn set_counters(&mut self, set: CounterSet) -> CounterSet {
        let counters = match self {
            Self::Pair(qp) => &mut qp.endpoint.counters,
            Self::Stream(qp) => &mut qp.endpoint.counters,
            Self::Work(wq) => &mut wq.endpoint.counters,
            Self::Rss(rss) => &mut rss.counters,
        };
        std::mem::replace(counters, set)
    }

    /// User context that owns it.
    pub(crate) fn uctx(&self) -> u32 {
        match self {
            Self::Pair(qp) => qp.endpoint.config.uctx,
            Self::Stream(qp) => qp.endpoint.config.uctx,
            Self::Work(wq) => wq.endpoint.config.uctx,
            Self::Rss(rss) => rss.uctx,
        }
    }

    /// Indirection tables, groups and flows that refer to it.
    pub(crate) fn references_mut(&mut self) -> &mut References {
        match self {
            Self::Pair(qp) => &mut qp.references,
            Self::Stream(qp) => &mut qp.references,
            Self::Work(wq) => &mut wq.references,
            Self::Rss(rss) => &mut rss.references,
        }
    }

    /// True if flows and the netdev can deliver Ethernet frames to it.
    pub(crate) fn takes_flows(&self) -> bool {
        match self {
            Self::Pair(qp) => qp.endpoint.config.kind == QpType::Raw,
            Self::Rss(_) => true,
            Self::Stream(_) | Self::Work(_) => false,
        }
    }

    /// True if it can be an entry of an indirection table.
    pub(crate) fn takes_hashed_frames(&self) -> bool {
        match self {
            Self::Pair(qp) => qp.endpoint.config.kind == QpType::Raw,
            Self::Work(_) => true,
            Self::Stream(_) | Self::Rss(_) => false,
        }
    }

    /// Handles a send doorbell. Returns false if the index is out of range, or there is no send queue.
    #[inline]
    pub(crate) fn ring_send<M: Dma>(&mut self, cx: &mut Context<'_, M>, producer: u32) -> bool {
        match self {
            Self::Pair(qp) => qp.ring_send(cx, producer),
            Self::Stream(qp) => qp.ring_send(cx, producer),
            Self::Work(_) | Self::Rss(_) => false,
        }
    }

    /// Handles a receive doorbell, which software rings only if the record requests it.
    pub(crate) fn ring_receive<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        match self {
            Self::Pair(qp) => qp.ring_receive(cx),
            Self::Stream(qp) => qp.ring_receive(cx),
            Self::Work(wq) => wq.ring_receive(cx),
            Self::Rss(_) => {}
        }
    }

    /// Makes `frame` its next packet. Returns false if there is none; it may have delivered packets that were parked.
    #[inline]
    pub(crate) fn poll_transmit<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        most: usize,
        frame: &mut TxFrame,
    ) -> bool {
        match self {
            Self::Pair(qp) => qp.poll_transmit(cx, most, frame),
            Self::Stream(qp) => qp.poll_transmit(cx, frame),
            Self::Work(wq) => {
                wq.poll(cx);
                false
            }
            Self::Rss(_) => false,
        }
    }

    /// Records that `frame` is sent, which [`Qp::poll_next_run`] has made.
    #[inline]
    pub(crate) fn next_run_sent<M: Dma>(&mut self, cx: &mut Context<'_, M>, frame: &TxFrame) {
        match self {
            Self::Pair(qp) => qp.next_run_sent(cx, frame),
            Self::Stream(_) | Self::Work(_) | Self::Rss(_) => {}
        }
    }

    /// Records that it was removed from the ready queue.
    #[inline]
    pub(crate) fn left_ready_queue(&mut self, core: &mut Core) {
        match self {
            Self::Pair(qp) => qp.left_ready_queue(core),
            Self::Stream(qp) => qp.left_ready_queue(core),
            Self::Work(wq) => wq.left_ready_queue(core),
            Self::Rss(_) => {}
        }
    }

    /// Receives an Ethernet frame from a flow with this tag. Returns false if it has stopped the ingress and must be
    /// held.
    pub(crate) fn receive_frame<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        tag: u32,
        frame: Frame<'_, M>,
    ) -> bool {
        match self {
            Self::Pair(qp) => qp.receive_frame(cx, tag, frame),
            // A segment that was held while policy `stall` paused the ingress.
            Self::Stream(qp) => qp.receive_again(cx, frame),
            Self::Work(wq) => wq.receive_frame(cx, tag, frame),
            // Its indirection table has no RSS queue pairs.
            Self::Rss(_) => true,
        }
    }

    /// Handles the answer to a fault that it may wait for.
    pub(crate) fn fault_answered<M: Dma>(&mut self, cx: &mut Context<'_, M>, call: Call) {
        match self {
            Self::Pair(qp) => qp.fault_answered(cx, call),
            Self::Stream(qp) => qp.fault_answered(cx, call),
            Self::Work(wq) => wq.fault_answered(cx, call),
            Self::Rss(_) => {}
        }
    }

    /// Handles a timer that is due, or that has moved since.
    pub(crate) fn handle_timer<M: Dma>(&mut self, cx: &mut Context<'_, M>) {
        match self {
            Self::Pair(qp) => qp.handle_timer(cx),
            Self::Stream(qp) => qp.handle_timer(cx),
            // They have no timers.
            Self::Work(_) | Self::Rss(_) => {}
        }
    }

    /// The pause of a priority for which it has waited is over.
    pub(crate) fn pause_ended(&mut self, core: &mut Core, priority: u8) {
        match self {
            Self::Pair(qp) => qp.pause_ended(core, priority),
            Self::Stream(qp) => qp.pause_ended(core, priority),
            Self::Work(_) | Self::Rss(_) => {}
        }
    }

    /// Holds the connection until it is released. Returns false if it has none.
    pub(crate) fn hold(&mut self) -> bool {
        match self {
            Self::Pair(qp) => qp.hold(),
            Self::Stream(qp) => {
                qp.endpoint.is_held = true;
                true
            }
            Self::Work(_) | Self::Rss(_) => false,
        }
    }

    /// It is not held any more.
    pub(crate) fn end_hold(&mut self, core: &mut Core) {
        match self {
            Self::Pair(qp) => qp.end_hold(core),
            Self::Stream(qp) => qp.end_hold(core),
            Self::Work(_) | Self::Rss(_) => {}
        }
    }

    /// Enters the error state, with an asynchronous event that says why.
    pub(crate) fn fail_with_event<M: Dma>(&mut self, cx: &mut Context<'_, M>, kind: u8) {
        match self {
            Self::Pair(qp) => qp.fail_with_event(cx, kind),
            Self::Stream(qp) => qp.fail_with_event(cx, kind),
            Self::Work(wq) => wq.fail_with_event(cx, kind),
            // It has no state.
            Self::Rss(_) => {}
        }
    }
}

/// All queue pairs, work queues and RSS queue pairs.
#[derive(Debug)]
pub(crate) struct Queues {
    table: Table<Queue>,
    gsi: Option<Box<Queue>>,
}

impl Queues {
    /// A table for `max` objects, with numbers from `first` on.
    pub(crate) fn new(max: u32, first: u32) -> Self {
        Self {
            table: Table::new(max, first),
            gsi: None,
        }
    }

    /// The bits of a number that are the slot.
    pub(crate) fn slot_mask(&self) -> u32 {
        self.table.slot_mask()
    }

    pub(crate) fn len(&self) -> usize {
        self.table
            .len()
            .saturating_add(usize::from(self.gsi.is_some()))
    }

    /// Adds the object that `make` creates from its number. Returns `None` if there are too many.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> Queue) -> Option<u32> {
        self.table.insert_with(make)
    }

    /// Adds QP1. Returns `None` if there is one.
    pub(crate) fn insert_gsi(&mut self, qp: Qp) -> Option<u32> {
        if self.gsi.is_some() {
            return None;
        }
        self.gsi = Some(Box::new(Queue::Pair(qp)));
        Some(GSI_QPN)
    }

    /// Places from `from` on, with their content. The first is that of QP1, and those of the table follow.
    pub(crate) fn places(&self, from: u32) -> impl Iterator<Item = (u32, Option<(u32, &Queue)>)> {
        let gsi = self.gsi.as_deref().map(|queue| (GSI_QPN, queue));
        let first = (from == 0).then_some((0, gsi));
        let others = self.table.places(from.saturating_sub(1));
        let others = others.map(|(place, queue)| (place.saturating_add(1), queue));
        first.into_iter().chain(others)
    }

    /// The queue with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&Queue> {
        match number {
            GSI_QPN => self.gsi.as_deref(),
            _ => self.table.get(number),
        }
    }

    /// The queue with this number.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Queue> {
        match number {
            GSI_QPN => self.gsi.as_deref_mut(),
            _ => self.table.get_mut(number),
        }
    }

    /// The queue pair with this number; neither a work queue nor an RSS queue pair.
    #[inline]
    pub(crate) fn qp_mut(&mut self, number: u32) -> Option<&mut Qp> {
        match self.get_mut(number)? {
            Queue::Pair(qp) => Some(qp),
            Queue::Stream(_) | Queue::Work(_) | Queue::Rss(_) => None,
        }
    }

    /// The iWARP queue pair with this number.
    pub(crate) fn stream_mut(&mut self, number: u32) -> Option<&mut StreamQp> {
        match self.get_mut(number)? {
            Queue::Stream(qp) => Some(qp),
            Queue::Pair(_) | Queue::Work(_) | Queue::Rss(_) => None,
        }
    }

    /// The work queue with this number.
    pub(crate) fn wq_mut(&mut self, number: u32) -> Option<&mut WorkQueue> {
        match self.get_mut(number)? {
            Queue::Work(wq) => Some(wq),
            Queue::Pair(_) | Queue::Stream(_) | Queue::Rss(_) => None,
        }
    }

    /// Removes the queue with this number.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Queue> {
        match number {
            GSI_QPN => self.gsi.take().map(|qp| *qp),
            _ => self.table.remove(number),
        }
    }
}
