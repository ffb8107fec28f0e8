//! The state of a NIC, and the calls of its user: doorbells, frames to send, interrupts and deadlines. Received frames
//! are in `receive`, the next frame in `transmit`, register accesses in `registers`, answers to page faults in
//! `faults`, pauses and holds of senders in `senders`, TCP segments and connections without a queue pair in `iwarp`.

mod faults;
mod gate;
mod iwarp;
mod operator;
mod receive;
mod registers;
mod senders;
mod transmit;

use faultline_abi::U32;
use faultline_abi::admin::Counter;
use faultline_abi::cqe::Cqe;
use faultline_abi::doorbell::{self, Doorbell};
use faultline_abi::event;
use faultline_wire::MacAddr;

use crate::command_ring::CommandRings;
use crate::config::NicConfig;
use crate::context::Context;
use crate::core::Core;
use crate::counters::{CounterSet, Counters};
use crate::diagnostic::{Diagnostic, DropCause};
use crate::dma::Dma;
use crate::ingress::Ingress;
use crate::multicast::Groups;
use crate::qp::{Qp, StateCounts};
use crate::queues::{Queue, Queues};
use crate::registers::Registers;
use crate::rss::RwqIndTable;
use crate::steering::Steering;
use crate::table::Table;
use crate::tag::list::TagOpResult;
use crate::time::Instant;
use crate::work;

/// First number of ordinary QPs.
pub(crate) const FIRST_QPN: u32 = 2;
/// Packets that one QP sends before another has its turn.
const BURST: u32 = 32;

/// A software RDMA NIC: a state machine without threads, clock, files or sockets.
///
/// The caller owns the guest's memory, the clock and the wire. It passes events in and polls for actions. No call blocks.
/// `tests/simulator/examples/loopback.rs` is a small caller, `device/daemon/src/engines/engine.rs` a complete one.
///
/// # Arguments
///
/// - `now`: nanoseconds since any fixed point. It never goes back.
/// - `mem`: the memory of the guest that owns the NIC, the same one in every call. Payload and queue entries are read and
///   written during the call; a range of it may change or go away between two calls.
///
/// # Calls that take events
///
/// | Event | Call |
/// |---|---|
/// | a register access of the driver | [`read_register`](Nic::read_register), [`write_register`](Nic::write_register); outside of the defined BARs: [`bad_register_access`](Nic::bad_register_access) |
/// | a doorbell from one of the [`doorbell_pages`](Nic::doorbell_pages) | [`doorbell`](Nic::doorbell) |
/// | a frame | [`receive`](Nic::receive) by reference, from a NIC of the same process; [`receive_bytes`](Nic::receive_bytes) as octets, from a wire; [`receive_bytes_from`](Nic::receive_bytes_from) as octets of a sender that the caller knows ([`Origin`](crate::Origin)) |
/// | the time of [`next_deadline`](Nic::next_deadline) | [`handle_deadline`](Nic::handle_deadline) |
/// | the end of a write-back that [`Dma::persist`] has begun | [`persisted`](Nic::persisted) |
/// | a function-level reset | [`reset`](Nic::reset) |
/// | a frame of this NIC that the switch has dropped for its source address | [`source_refused`](Nic::source_refused) |
/// | a frame of this NIC that the caller has dropped because it could not copy the payload | [`payload_not_read`](Nic::payload_not_read) |
/// | the way of a connection that [`hold_sender`](Nic::hold_sender) has held has room again | [`release`](Nic::release) |
///
/// # Calls that return actions
///
/// After each event, or after several of them, in this order:
///
/// 1. [`poll_transmit`](Nic::poll_transmit) until it returns false, or as often as one NIC may send before others have their
///    turn. A frame refers to guest memory, so deliver or copy it before the next call of this NIC and before its guest's
///    memory changes. A lost frame is lost as on any wire: reliable queue pairs send it again. One with a cause in
///    [`last_barred`](Nic::last_barred) must not leave.
/// 2. [`poll_interrupt`](Nic::poll_interrupt) until it returns `None`. Completions and events are in guest memory before
///    their vector is returned, also those that delivery of a frame in step 1 has caused at the receiver.
/// 3. [`next_deadline`](Nic::next_deadline). Every other call may change it, so the value of an earlier call is worthless. A
///    deadline in the past means that the NIC has put work off: call [`handle_deadline`](Nic::handle_deadline) when the
///    other NICs have had their turn.
/// 4. [`doorbell_pages`](Nic::doorbell_pages), if [`doorbell_pages_version`](Nic::doorbell_pages_version) has changed.
/// 5. [`poll_diagnostic`](Nic::poll_diagnostic) until it returns `None`, then
///    [`take_lost_diagnostics`](Nic::take_lost_diagnostics): how many it could not return.
///
/// After a reset, [`take_remains`](Nic::take_remains) returns the former state, which another thread should free.
///
/// # What may be omitted
///
/// - *No vector of `poll_interrupt`*: a driver that sleeps would not be woken.
/// - *No deadline*: retransmission, event moderation, fault timeouts and put-off commands depend on them. A call that
///   is late or made too early is harmless.
/// - *[`is_stalled`](Nic::is_stalled)* is a request to pause senders. A caller that ignores it loses frames when the queue of
///   held frames is full. [`is_input_stopped`](Nic::is_input_stopped) is for tests and operators: it is true also while senders
///   need not pause, because they have paused for too long.
/// - *[`set_paused_priorities`](Nic::set_paused_priorities)*: without it no priority is paused.
/// - *[`hold_sender`](Nic::hold_sender)*: without it no connection is held. Each one that is held is to be
///   [released](Nic::release).
/// - *[`accepts`](Nic::accepts)* saves calls. A frame to another address is dropped by `receive`, too.
/// - *[`poll_next_run`](Nic::poll_next_run)*, [`next_run_sent`](Nic::next_run_sent) and [`receive_next_run`](Nic::receive_next_run) spare
///   long messages most of the work for a frame.
/// - *[`work`](Nic::work)* serves callers that limit turns. Each call is limited to about [`TURN_WORK`](crate::TURN_WORK).
/// - *[`poll_diagnostic`](Nic::poll_diagnostic)*: the NIC keeps the newest 8192 diagnostics, as many as a turn can have, and counts those
///   that it has dropped. [`diagnostics`](Nic::diagnostics) and [`clear_diagnostics`](Nic::clear_diagnostics) do the same without a copy.
/// - *[`counters`](Nic::counters), [`object_counts`](Nic::object_counts), [`held_memory`](Nic::held_memory)* and
///   *[`waiting_notices`](Nic::waiting_notices)* change nothing.
///
/// # Calls for operators
///
/// They may be made between any two others.
///
/// - Views of the objects ([`inspect`](crate::inspect), [`queue_pairs`](Nic::queue_pairs) and others) change nothing.
/// - Operations (`nic/operator.rs`: [`set_link`](Nic::set_link), [`evict`](Nic::evict) and others) are events: actions follow.
/// - The injection table ([`injection`](crate::injection), [`add_injection`](Nic::add_injection) and others) changes what later events cause.
///
/// # What the guest can do
///
/// Whatever a driver or a peer does, no call panics. A device that can't continue has stopped
/// ([`is_running`](Nic::is_running) returns false), which the driver sees in the status register; a reset starts it again.
#[derive(Debug)]
pub struct Nic {
    pub(crate) core: Core,
    pub(crate) queues: Queues,
    pub(crate) registers: Registers,
    pub(crate) admin: CommandRings,
    pub(crate) translation: CommandRings,
    pub(crate) groups: Groups,
    pub(crate) steering: Steering,
    pub(crate) rwq_ind_tables: Table<RwqIndTable>,
    /// Packets that the first QP of the ready queue has sent in its turn.
    burst: u32,
    /// Queue pair of the last frame; 0: none.
    last_sender: u32,
    /// Length of the last frame.
    last_len: usize,
    /// Why the frame that was returned last does not leave.
    last_barred: Option<DropCause>,
    /// Counts changes of the set of user contexts, for callers that poll doorbell pages.
    pub(crate) uctx_changes: u64,
    /// Value of `uctx_changes` when the device was enabled.
    pub(crate) enabled_version: u64,
    fatal_reported: bool,
    /// The state before the last reset.
    remains: Option<Remains>,
}

/// The state of a NIC before a reset. Freeing it may take a large part of a second, so the thread that drives the NIC should
/// not do it.
#[derive(Debug)]
pub struct Remains(#[expect(dead_code, reason = "dropped only")] Box<Nic>);

impl Nic {
    /// A NIC as after power-on.
    pub fn new(config: NicConfig) -> Self {
        let queues = Queues::new(config.limits.max_qp, FIRST_QPN);
        let qp_slots = queues.slot_mask();
        Self {
            queues,
            registers: Registers::new(&config),
            admin: CommandRings::default(),
            translation: CommandRings::default(),
            rwq_ind_tables: Table::new(config.limits.max_rwq_ind_table, 1),
            steering: Steering::new(config.limits.max_flow),
            groups: Groups::new(config.limits.max_mcast_grp, config.limits.max_mcast_qp),
            burst: 0,
            last_sender: 0,
            last_len: 0,
            last_barred: None,
            uctx_changes: 0,
            enabled_version: 0,
            fatal_reported: false,
            remains: None,
            core: Core::new(config, qp_slots),
        }
    }

    /// Function-level reset: as after power-on, counters too. The link stays as it is.
    pub fn reset(&mut self, now: Instant) {
        let changes = self.uctx_changes;
        let link = (self.core.link_up, self.core.link_speed_mbps);
        let diagnostics = std::mem::take(&mut self.core.diagnostics);
        let mut injections = std::mem::take(&mut self.core.injections);
        injections.reset();
        let records = self.core.faults.records.after_reset();
        let fresh = Ingress::new(self.core.config.pause_sharers);
        let mut ingress = std::mem::replace(&mut self.core.ingress, fresh);
        ingress.reset(self.core.config.stall_timeout);
        let fresh = Self::new(self.core.config.clone());
        let mut gone = std::mem::replace(self, fresh);
        // If the state before an earlier reset was not taken, it is freed here.
        drop(gone.remains.take());
        self.remains = Some(Remains(Box::new(gone)));
        self.core.ingress = ingress;
        (self.core.link_up, self.core.link_speed_mbps) = link;
        self.core.diagnostics = diagnostics;
        self.core.injections = injections;
        self.core.watch_lookups();
        self.core.faults.records = records;
        self.core.diagnose(now, Diagnostic::Reset);
        self.uctx_changes = changes.wrapping_add(1);
    }

    /// Takes the state before the last reset, to be dropped by a thread that may wait.
    #[must_use = "dropping it takes time"]
    pub fn take_remains(&mut self) -> Option<Remains> {
        self.remains.take()
    }

    /// The configuration with which the NIC was created, changed by [`Nic::set_lookup`].
    pub fn config(&self) -> &NicConfig {
        &self.core.config
    }

    /// Counters of the device.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// MAC address in use.
    pub fn mac(&self) -> MacAddr {
        self.core.netdev.mac
    }

    /// True if the driver has enabled the device and it has not stopped.
    pub fn is_running(&self) -> bool {
        self.registers.enabled() && self.core.fatal == 0
    }

    /// The doorbell pages that are in use in their order, the kernel's page 0 included: number, and a version that
    /// differs between users of the same page. Pages of a device that is not enabled are not polled.
    pub fn doorbell_pages(&self) -> impl Iterator<Item = (u32, u64)> {
        let enabled = self.registers.enabled();
        let contexts = self
            .core
            .uctxs
            .iter()
            .map(|(page, uctx)| (page, uctx.version));
        let kernel = (0, self.enabled_version);
        std::iter::once(kernel)
            .chain(contexts)
            .filter(move |_| enabled)
    }

    /// Changes whenever [`Nic::doorbell_pages`] returns another set, and at each reset.
    pub fn doorbell_pages_version(&self) -> u64 {
        self.uctx_changes
    }

    /// Bytes of page tables, of page lists of rings, and of queue pairs.
    pub fn held_memory(&self) -> usize {
        self.core.budget.used()
    }

    /// Number of CQs whose notices wait for room in an event queue.
    pub fn waiting_notices(&self) -> usize {
        self.core.eqs.iter().map(|(_, eq)| eq.waiting()).sum()
    }

    /// Number of objects: for operators and tests.
    pub fn object_counts(&self) -> ObjectCounts {
        let connections = self.core.connections.as_ref();
        ObjectCounts {
            listeners: connections.map_or(0, |all| all.listeners.len()),
            connections: connections.map_or(0, |all| all.len()),
            pds: self.core.pds.len(),
            mkeys: self.core.mkeys.len(),
            cqs: self.core.cqs.len(),
            qps: self.queues.len(),
            qp_states: self.core.qp_states,
            srqs: self.core.srqs.len(),
            ahs: self.core.ahs.len(),
            uctxs: self.core.uctxs.len(),
            timers: self.core.timers(),
            fault_waits: self.core.faults.waits(),
        }
    }

    /// Counts an access to the BARs that the device does not define.
    pub fn bad_register_access(&mut self) {
        self.core.counters.inc(Counter::register_errors);
    }

    /// The switch has dropped packets of this NIC because their source address belongs to another port.
    pub fn source_refused(&mut self, packets: u32) {
        self.core
            .counters
            .add(Counter::tx_bad_source, packets.into());
    }

    /// The caller has dropped packets of this NIC because it could not copy their payload from the memory of the guest.
    pub fn payload_not_read(&mut self, packets: u32) {
        self.core.counters.add(Counter::dma_errors, packets.into());
    }

    /// A doorbell from page `page` arrives. If the device is not running it has no effect.
    pub fn doorbell<M: Dma>(&mut self, now: Instant, mem: &M, page: u32, bell: Doorbell) {
        if !self.is_running() {
            return;
        }
        self.core.charge(work::LOOK);
        let taken = match bell.kind {
            doorbell::SQ => self.ring_qp(now, mem, page, bell),
            doorbell::RQ => self.ring_qp(now, mem, page, bell),
            doorbell::CQ_ARM => self.arm_cq(now, mem, page, bell, false),
            doorbell::CQ_ARM_SOLICITED => self.arm_cq(now, mem, page, bell, true),
            doorbell::EQ_ARM if page == 0 => self.arm_eq(now, mem, bell),
            doorbell::ADMIN if page == 0 => self.run_admin(now, mem, bell.value),
            doorbell::TRANSLATION if page == 0 => self.run_translation(now, mem, bell.value),
            doorbell::TM_OPS => self.run_tag_ops(now, mem, page, bell),
            doorbell::NOP => true,
            _ => false,
        };
        if !taken {
            self.core.counters.inc(Counter::doorbell_errors);
            let object = bell.object;
            self.core
                .diagnose(now, Diagnostic::DoorbellRefused { page, object });
        }
        self.report_fatal(now);
    }

    /// A context for work that is not done on behalf of a queue pair.
    pub(crate) fn context<'a, M: Dma>(&'a mut self, now: Instant, mem: &'a M) -> Context<'a, M> {
        Context::new(&mut self.core, now, mem, CounterSet::DEVICE)
    }

    /// The queue with this number, and a context that counts for it.
    pub(crate) fn queue_in_context<'a, M: Dma>(
        &'a mut self,
        now: Instant,
        mem: &'a M,
        number: u32,
    ) -> Option<(&'a mut Queue, Context<'a, M>)> {
        let queue = self.queues.get_mut(number)?;
        let cx = Context::new(&mut self.core, now, mem, queue.counters());
        Some((queue, cx))
    }

    /// The queue pair with this number, and a context that counts for it.
    pub(crate) fn qp_in_context<'a, M: Dma>(
        &'a mut self,
        now: Instant,
        mem: &'a M,
        number: u32,
    ) -> Option<(&'a mut Qp, Context<'a, M>)> {
        let qp = self.queues.qp_mut(number)?;
        let cx = Context::new(&mut self.core, now, mem, qp.endpoint.counters);
        Some((qp, cx))
    }

    fn ring_qp<M: Dma>(&mut self, now: Instant, mem: &M, page: u32, bell: Doorbell) -> bool {
        let Some((queue, mut cx)) = self.queue_in_context(now, mem, bell.object) else {
            return false;
        };
        if queue.uctx() != page {
            return false;
        }
        let taken = if bell.kind == doorbell::RQ {
            queue.ring_receive(&mut cx);
            true
        } else {
            queue.ring_send(&mut cx, bell.value)
        };
        if !taken {
            queue.fail_with_event(&mut cx, event::QP_FATAL);
        }
        taken
    }

    fn arm_cq<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        page: u32,
        bell: Doorbell,
        solicited: bool,
    ) -> bool {
        let Some(cq) = self.core.cqs.get_mut(bell.object) else {
            return false;
        };
        if cq.uctx != page {
            return false;
        }
        let eqn = cq.eqn;
        if cq.arm(bell.value, solicited) {
            self.context(now, mem).notify_cq(eqn, bell.object);
        }
        true
    }

    /// Executes operations on the tag list of an SRQ.
    fn run_tag_ops<M: Dma>(&mut self, now: Instant, mem: &M, page: u32, bell: Doorbell) -> bool {
        let mut known = false;
        while let Some(srq) = self.core.srqs.get_mut(bell.object)
            && srq.uctx == page
            && let Some(tags) = &mut srq.tags
        {
            known = true;
            let cost = work::LOOK.saturating_add(tags.listed());
            self.core.work = self.core.work.wrapping_add(cost);
            let cqn = tags.cqn;
            match tags.run_next(mem, bell.value) {
                Ok(TagOpResult::Completes(cqe)) => {
                    let srqn = U32::new(bell.object);
                    self.context(now, mem).complete(cqn, Cqe { srqn, ..cqe });
                }
                Ok(TagOpResult::Silent) => {}
                Ok(TagOpResult::None) => break,
                Err(_) => {
                    self.context(now, mem).srq_error(bell.object);
                    return false;
                }
            }
        }
        known
    }

    fn arm_eq<M: Dma>(&mut self, now: Instant, mem: &M, bell: Doorbell) -> bool {
        let Some(eq) = self.core.eqs.get_mut(bell.object) else {
            return false;
        };
        let Some(due) = eq.arm(bell.value) else {
            return false;
        };
        if due {
            let vector = eq.vector;
            self.core.raise(vector);
        }
        self.context(now, mem).notify_waiting(bell.object);
        self.retry_for_room(now, mem);
        true
    }

    /// The work of this NIC since it was created, in units of some nanoseconds.
    #[inline]
    pub fn work(&self) -> u64 {
        self.core.begin_turn()
    }

    /// Takes a vector that must be raised.
    pub fn poll_interrupt(&mut self) -> Option<u16> {
        self.core.poll_interrupt()
    }

    /// Takes the oldest diagnostic, with the time at which it happened.
    #[inline]
    pub fn poll_diagnostic(&mut self) -> Option<(Instant, Diagnostic)> {
        self.core.diagnostics.pop()
    }

    /// All diagnostics that [`Nic::poll_diagnostic`] would return, by reference, so that a caller copies each of them
    /// once. [`Nic::clear_diagnostics`] removes them.
    #[inline]
    pub fn diagnostics(&self) -> impl Iterator<Item = &(Instant, Diagnostic)> {
        self.core.diagnostics.iter()
    }

    /// Removes all diagnostics.
    pub fn clear_diagnostics(&mut self) {
        self.core.diagnostics.clear();
    }

    /// True if [`Nic::poll_diagnostic`] returns one.
    #[inline]
    pub fn has_diagnostics(&self) -> bool {
        !self.core.diagnostics.is_empty()
    }

    /// Number of diagnostics that newer ones have replaced since the last call.
    pub fn take_lost_diagnostics(&mut self) -> u64 {
        self.core.diagnostics.take_lost()
    }

    /// The time at which [`Nic::handle_deadline`] must be called. `None`: not before another event.
    pub fn next_deadline(&self) -> Option<Instant> {
        // A device that has stopped waits for nothing.
        self.core.next_deadline().filter(|_| self.is_running())
    }

    /// True if the time of [`Nic::next_deadline`] has come.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        self.core.is_due(now) && self.is_running()
    }

    /// Handles the timers that are due, and continues deferred work.
    pub fn handle_deadline<M: Dma>(&mut self, now: Instant, mem: &M) {
        self.core.end_lookups(now);
        let resumed = self.is_running() && self.core.resume();
        if resumed {
            self.continue_admin(now, mem);
            self.continue_translation(now, mem);
            self.continue_answers(now, mem);
        }
        // Commands may continue for many turns: they do not use up the turn of timers and events.
        let turn = self.core.begin_turn();
        if resumed {
            self.context(now, mem).continue_events(turn);
            self.fail_after_lost_completions(now, mem, turn);
            self.retry_for_room(now, mem);
        }
        while self.is_running()
            && !self.core.is_over(turn)
            && let Some(number) = self.core.pop_timer(now)
        {
            self.core.charge(work::OPERATION);
            if let Some((qp, mut cx)) = self.queue_in_context(now, mem, number) {
                qp.handle_timer(&mut cx);
            }
        }
        self.handle_connection_timers(now, mem, turn);
        self.carry_out_delayed(now, mem, turn);
        self.context(now, mem).notify_due();
        self.expire_faults(now, mem);
        self.give_up_stall(now, mem);
        self.report_fatal(now);
    }

    /// Fails the queue pairs whose completions were lost.
    fn fail_after_lost_completions<M: Dma>(&mut self, now: Instant, mem: &M, turn: u64) {
        while let Some(number) = self.core.next_lost_completion() {
            self.core.charge(work::OPERATION);
            if let Some((queue, mut cx)) = self.queue_in_context(now, mem, number) {
                queue.fail_with_event(&mut cx, event::QP_FATAL);
            }
            if self.core.is_over(turn) {
                self.core.defer(now);
                return;
            }
        }
    }

    /// Tells the driver once that the device has stopped.
    #[inline]
    pub(crate) fn report_fatal(&mut self, now: Instant) {
        if self.core.fatal != 0 && !self.fatal_reported {
            self.report_first_fatal(now);
        }
    }

    #[cold]
    fn report_first_fatal(&mut self, now: Instant) {
        self.fatal_reported = true;
        let cause = self.core.fatal;
        self.core.diagnose(now, Diagnostic::Fatal { cause });
        // The failed queue may be this one; the interrupt makes the driver read the status register.
        if let Some(eq) = self.core.async_eqn.and_then(|eqn| self.core.eqs.get(eqn)) {
            let vector = eq.vector;
            self.core.raise(vector);
        }
    }
}

/// Number of objects of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Protection domains.
    pub pds: usize,
    /// Memory keys.
    pub mkeys: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Queue pairs and work queues in each state.
    pub qp_states: StateCounts,
    /// Shared receive queues.
    pub srqs: usize,
    /// Address handles.
    pub ahs: usize,
    /// Listeners for iWARP connections.
    pub listeners: usize,
    /// iWARP connections, also those that have no queue pair yet.
    pub connections: usize,
    /// User contexts.
    pub uctxs: usize,
    /// Entries of the timer heap.
    pub timers: usize,
    /// Entries for queue pairs that wait for pages or for room in the fault queue.
    pub fault_waits: usize,
}
