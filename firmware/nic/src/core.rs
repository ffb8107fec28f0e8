//! The state of a NIC that its queue pairs use: everything except the queue pairs.

use std::collections::{BTreeSet, VecDeque};

use faultline_abi::admin::Counter;
use faultline_abi::regs;
use faultline_wire::MacAddr;
use faultline_wire::bth::Psn;

use crate::budget::Budget;
use crate::config::{NicConfig, Transport};
use crate::counters::Counters;
use crate::cq::Cq;
use crate::device_memory::DeviceMemory;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::eq::Eq;
use crate::fault::{FaultUnit, RepairTime, Token};
use crate::flow_control::FlowControl;
use crate::frame::FrameKind;
use crate::gate::Gate;
use crate::gid_table::{GidTable, Source};
use crate::ingress::Ingress;
use crate::injection::point::Point;
use crate::injection::table::Injections;
use crate::iwarp::Connections;
use crate::latency::{Latency, QpCache};
use crate::mkey::Mkeys;
use crate::netdev::Netdev;
use crate::park::Park;
use crate::path::Path;
use crate::peers::Peers;
use crate::qp::StateCounts;
use crate::references::References;
use crate::srq::Srq;
use crate::table::Table;
use crate::time::{Instant, Nanos, earlier};
use crate::work;

/// Speed of the link in Mbit/s until the caller sets another one.
pub const DEFAULT_LINK_SPEED_MBPS: u32 = 100_000;
/// Largest number of frames that no queue pair polls; further ones are lost. They accumulate only while the output is stopped.
pub(crate) const MAX_LOOSE_FRAMES: usize = 256;

/// A protection domain.
#[derive(Debug, Default)]
pub(crate) struct Pd {
    /// Keys, queue pairs, SRQs and address handles.
    pub refs: References,
    /// User context that it belongs to; 0 = the kernel.
    pub uctx: u32,
    /// Duration of repairs of its keys' pages.
    pub(crate) repair: RepairTime,
}

/// A user context.
#[derive(Debug)]
pub(crate) struct Uctx {
    /// Distinguishes this context from earlier ones with the same doorbell page.
    pub version: u64,
    /// Protection domains, queue pairs, CQs and SRQs.
    pub refs: References,
    /// Process that the driver has named; 0: none. Only for diagnostics.
    pub pid: u32,
    /// Name of the process, up to the first NUL. Any bytes.
    pub comm: [u8; 16],
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct Ah {
    /// Protection domain.
    pub pd: u32,
    /// Path to the destination.
    pub path: Path,
}

/// The state that queue pairs share.
#[derive(Debug)]
pub(crate) struct Core {
    /// Fixed properties.
    pub config: NicConfig,
    /// Counters.
    pub counters: Counters,
    /// Memory that the guest makes the device hold.
    pub budget: Budget,
    /// Octets that the connections of iWARP keep: half of `budget`.
    pub kept_budget: Budget,
    /// Protection domains.
    pub pds: Table<Pd>,
    /// Memory keys.
    pub mkeys: Mkeys,
    /// Device memory.
    pub(crate) device_memory: DeviceMemory,
    /// Completion queues.
    pub cqs: Table<Cq>,
    /// Event queues.
    pub eqs: Table<Eq>,
    /// Shared receive queues.
    pub srqs: Table<Srq>,
    /// XRC domains: the number of SRQs and targets in each.
    pub xrcds: Table<References>,
    /// Address handles.
    pub ahs: Table<Ah>,
    /// User contexts: the number of a context is that of its doorbell page.
    pub uctxs: Table<Uctx>,
    /// GID table.
    pub gids: GidTable,
    /// Which packets pass the port.
    pub(crate) gate: Gate,
    /// The Ethernet side.
    pub netdev: Netdev,
    /// Number of queue pairs in each state.
    pub(crate) qp_states: StateCounts,
    /// Event queue of asynchronous events.
    pub async_eqn: Option<u32>,
    /// The link is up.
    pub link_up: bool,
    /// Speed of the link for the driver.
    pub link_speed_mbps: u32,
    /// FAULTLINE_FATAL_*; not zero: the device has stopped.
    pub fatal: u32,
    /// Page faults.
    pub(crate) faults: FaultUnit,
    /// Frames that wait in front of a NIC that is stalled.
    pub(crate) ingress: Ingress,
    /// Paused priorities, and queues that wait for them.
    pub(crate) flow_control: FlowControl,
    /// Buffer for the copy of a raw frame, so that none is allocated for each frame.
    pub(crate) frame_copy: Vec<u8>,
    /// Memory of packets that wait for pages.
    pub(crate) park: Park,
    /// Queue pair and next PSN of the last frame by reference, if it was a run that was accepted as a whole.
    pub(crate) last_run: Option<(u32, Psn)>,
    /// The NIC is busy until then, with look-ups in page tables and other simulated latency.
    busy_until: Instant,
    /// Cached queue pair state in the model of latency.
    pub(crate) qp_cache: QpCache,
    /// Work of this NIC except for that of `mkeys`; see [`Core::begin_turn`].
    pub(crate) work: u64,
    /// Time since which deferred work has waited.
    deferred: Option<Instant>,
    /// Queue pairs that have lost a completion.
    lost_completions: BTreeSet<u32>,
    /// Queue pairs that have something to send.
    ready: VecDeque<u32>,
    /// Frames that no queue pair polls, with the entries of the GID table of their paths: responses that queue pairs had not sent when
    /// they were destroyed, and peer queries. [`MAX_LOOSE_FRAMES`] at most.
    pub(crate) loose_frames: VecDeque<(FrameKind, Option<Source>)>,
    /// Which peers behind wires are Faultlines.
    pub(crate) peers: Peers,
    /// Timers: time and queue pair; each queue pair at most once.
    timers: BTreeSet<(Instant, u32)>,
    /// Ends of moderation periods: time and completion queue; each at most once.
    notices: BTreeSet<(Instant, u32)>,
    /// Vectors to raise: one bit for each.
    interrupts: u64,
    /// For [`Nic::poll_diagnostic`](crate::Nic::poll_diagnostic).
    pub(crate) diagnostics: Diagnostics,
    /// iWARP: what its connections share.
    pub(crate) connections: Option<Box<Connections>>,
    /// Injected errors and delays.
    pub(crate) injections: Injections,
}

impl Core {
    /// True if RoCE packets to this address are for this NIC.
    #[inline]
    pub(crate) fn is_own_address(&self, dst: MacAddr) -> bool {
        dst == self.netdev.mac || self.gids.has_mac(dst)
    }

    /// A NIC without objects. `qp_slots`: see [`Table::slot_mask`] of the queue pairs.
    pub(crate) fn new(config: NicConfig, qp_slots: u32) -> Self {
        let limits = &config.limits;
        let budget = Budget::new(config.table_bytes);
        Self {
            counters: Counters::new(limits.max_counters),
            pds: Table::new(limits.max_pd, 1),
            mkeys: Mkeys::new(limits.max_mkey, config.on_demand, budget.clone())
                .with_pitfall(config.pitfalls.qp_keys),
            budget,
            kept_budget: Budget::new(config.table_bytes / 2),
            device_memory: DeviceMemory::new(limits.device_memory, limits.max_dm),
            cqs: Table::new(limits.max_cq, 0),
            eqs: Table::new(limits.max_eq, 0),
            srqs: Table::new(limits.max_srq, 1),
            xrcds: Table::new(limits.max_xrcd, 1),
            ahs: Table::new(limits.max_ah, 1),
            // Page 0 is the kernel's.
            uctxs: Table::without_generations(limits.max_uctx, 1),
            gids: GidTable::new(limits.max_gid),
            gate: Gate::default(),
            netdev: Netdev {
                mac: config.mac,
                mtu: 1500,
                flags: 0,
                qpn: 0,
                filter: Vec::new(),
            },
            qp_states: StateCounts::default(),
            async_eqn: None,
            link_up: true,
            link_speed_mbps: DEFAULT_LINK_SPEED_MBPS,
            fatal: regs::NONE,
            faults: FaultUnit::new(limits.max_faults, qp_slots),
            ingress: Ingress::new(config.pause_sharers),
            flow_control: FlowControl::default(),
            frame_copy: Vec::new(),
            park: Park::default(),
            last_run: None,
            busy_until: Instant(0),
            qp_cache: QpCache::default(),
            work: 0,
            deferred: None,
            lost_completions: BTreeSet::new(),
            ready: VecDeque::new(),
            loose_frames: VecDeque::new(),
            peers: Peers::new(config.secret),
            timers: BTreeSet::new(),
            notices: BTreeSet::new(),
            interrupts: 0,
            diagnostics: Diagnostics::default(),
            connections: (config.transport == Transport::Iwarp).then(|| {
                let connections = Connections::new(config.limits.max_listener, config.secret);
                Box::new(connections)
            }),
            injections: Injections::default(),
            config,
        }
    }

    /// Begins a turn. Turns are limited, because the driver of another NIC of the process considers its device failed
    /// if that does not answer in time.
    #[inline]
    pub(crate) fn begin_turn(&self) -> u64 {
        let of_memory = self.mkeys.work().wrapping_add(self.budget.work());
        self.work.wrapping_add(of_memory)
    }

    /// Adds the cost of an operation.
    pub(crate) fn charge(&mut self, work: u64) {
        self.work = self.work.wrapping_add(work);
    }

    /// True if the work since `turn` has reached the limit of a turn.
    pub(crate) fn is_over(&self, turn: u64) -> bool {
        self.begin_turn().wrapping_sub(turn) >= work::TURN
    }

    /// Defers the rest of the work to the next turn.
    pub(crate) fn defer(&mut self, now: Instant) {
        self.deferred.get_or_insert(now);
    }

    /// True if something was deferred.
    pub(crate) fn has_deferred_work(&self) -> bool {
        self.deferred.is_some()
    }

    /// Returns true if something was deferred, and clears that.
    pub(crate) fn resume(&mut self) -> bool {
        self.deferred.take().is_some()
    }

    /// Appends a queue pair to the ready queue. The caller must not append a queue pair that is in the queue.
    #[inline]
    pub(crate) fn enqueue_ready(&mut self, qpn: u32) {
        self.ready.push_back(qpn);
    }

    /// The first queue pair of the ready queue.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<u32> {
        self.ready.front().copied()
    }

    /// Removes the first queue pair from the ready queue, and returns it.
    #[inline]
    pub(crate) fn pop_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Moves the first queue pair to the end of the ready queue.
    pub(crate) fn rotate_ready(&mut self) {
        if self.ready.len() > 1 {
            self.ready.rotate_left(1);
        }
    }

    /// Starts the timer of a queue pair at `at`, instead of the one at `old`.
    pub(crate) fn start_timer(&mut self, at: Instant, old: Option<Instant>, qpn: u32) {
        // Otherwise the old entry would remain until it is due, which is hours at the longest timeout.
        if let Some(old) = old {
            self.timers.remove(&(old, qpn));
        }
        self.timers.insert((at, qpn));
    }

    /// Removes the timer of a queue pair.
    pub(crate) fn stop_timer(&mut self, at: Instant, qpn: u32) {
        self.timers.remove(&(at, qpn));
    }

    /// Number of timers that run.
    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Timers that run, the first to end first: time and queue pair.
    pub(crate) fn first_timers(&self) -> impl Iterator<Item = (Instant, u32)> {
        self.timers.iter().copied()
    }

    /// Number of completion events that moderation delays.
    pub(crate) fn moderated_events(&self) -> usize {
        self.notices.len()
    }

    /// Number of queue pairs in line.
    pub(crate) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// The next time at which a timer is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut next = None;
        self.for_each_deadline(|at| next = earlier(next, Some(at)));
        next
    }

    /// True if a timer is due. Called in each turn.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let mut is_due = false;
        self.for_each_deadline(|at| is_due |= at <= now);
        is_due
    }

    /// Passes the next deadline of each kind to `each`. Most kinds have none.
    #[inline(always)]
    fn for_each_deadline(&self, mut each: impl FnMut(Instant)) {
        let mut pass = |at: Option<Instant>| {
            if let Some(at) = at {
                each(at);
            }
        };
        pass(self.timers.first().map(|(at, _)| *at));
        pass(self.notices.first().map(|(at, _)| *at));
        pass(self.faults.next_deadline(self.config.fault_timeout));
        pass(self.ingress.next_deadline(self.config.stall_timeout));
        pass(self.deferred);
        pass(self.injections.next_due());
        let connections = self.connections.as_ref();
        pass(connections.and_then(|shared| shared.next_deadline()));
        if self.busy_until.0 > 0 {
            // Frames that wait for the end of a look-up.
            let waits = !self.ready.is_empty()
                || !self.loose_frames.is_empty()
                || self.ingress.has_work()
                || self.flow_control.has_released()
                || self.has_segments();
            pass(waits.then_some(self.busy_until));
        }
    }

    /// True if simulated latency of a packet delays the packets after it.
    #[inline]
    pub(crate) fn delays_packets(&self) -> bool {
        self.config.lookup.0 > 0
            || self.config.latency.payload_unit > 0
            || self.injections.has(Point::Lookup)
    }

    /// True if there are segments to send that belong to no queue pair.
    #[inline]
    pub(crate) fn has_segments(&self) -> bool {
        let connections = self.connections.as_ref();
        connections.is_some_and(|shared| shared.has_out())
    }

    /// Accounts for the look-ups in page tables since the last call.
    #[inline(always)]
    pub(crate) fn charge_lookups(&mut self, now: Instant) {
        let (hits, all_misses) = self.mkeys.tlb.counts();
        self.counters.set(Counter::tlb_hits, hits);
        self.counters.set(Counter::tlb_misses, all_misses);
        let misses = self.mkeys.tlb.take_new_misses();
        let cost = self.config.lookup.0.saturating_mul(misses);
        if cost > 0 {
            self.stay_busy(now, Nanos(cost));
        }
        if self.injections.has(Point::Lookup) {
            self.inject_lookups(now);
        }
    }

    /// Charges the simulated latency of a send doorbell that announces `requests` work requests.
    #[inline]
    pub(crate) fn charge_doorbell(&mut self, now: Instant, requests: u32) {
        let Latency { doorbell, pcie, .. } = self.config.latency;
        let reads = pcie.0.saturating_mul(u64::from(requests));
        let longer = doorbell.0.saturating_add(reads);
        if longer > 0 {
            self.stay_busy(now, Nanos(longer));
        }
    }

    /// Charges the simulated latency of a queue pair that sends or receives.
    #[inline(always)]
    pub(crate) fn charge_queue_pair(&mut self, now: Instant, qpn: u32) {
        let latency = self.config.latency;
        if latency.caches() && !self.qp_cache.touch(qpn, latency.qp_cache_entries) {
            self.stay_busy(now, latency.qp_cache_miss);
        }
    }

    /// Charges the simulated latency of the payload of a frame that is sent or received.
    #[inline(always)]
    pub(crate) fn charge_payload(&mut self, now: Instant, bytes: usize, packets: u32) {
        let latency = self.config.latency;
        if latency.payload_unit > 0 {
            self.stay_busy(now, latency.of_payload(bytes, packets));
        }
    }

    /// Extends the time in which the NIC sends nothing.
    pub(crate) fn stay_busy(&mut self, now: Instant, longer: Nanos) {
        self.busy_until = self.busy_until.max(now) + longer;
    }

    /// Returns true while the NIC is busy and sends nothing.
    pub(crate) fn is_busy(&self, now: Instant) -> bool {
        self.busy_until > now
    }

    /// Removes the deadline of look-ups that have ended. Called by the handler of deadlines, because a paused NIC is
    /// not polled for frames.
    pub(crate) fn end_lookups(&mut self, now: Instant) {
        if !self.is_busy(now) {
            self.busy_until = Instant(0);
        }
    }

    /// Takes a timer that is due.
    pub(crate) fn pop_timer(&mut self, now: Instant) -> Option<u32> {
        let (at, qpn) = *self.timers.first()?;
        if at > now {
            return None;
        }
        self.timers.pop_first();
        Some(qpn)
    }

    /// Reports something that has happened. Nothing in the NIC depends on it.
    #[inline]
    pub(crate) fn diagnose(&mut self, now: Instant, diagnostic: Diagnostic) {
        self.diagnostics.push(now, diagnostic);
    }

    /// True if there is a vector to raise.
    pub(crate) fn has_interrupt(&self) -> bool {
        self.interrupts != 0
    }

    /// Takes one vector to raise.
    pub(crate) fn poll_interrupt(&mut self) -> Option<u16> {
        if self.interrupts == 0 {
            return None;
        }
        let vector = self.interrupts.trailing_zeros();
        self.interrupts &= self.interrupts.wrapping_sub(1);
        u16::try_from(vector).ok()
    }

    pub(crate) fn raise(&mut self, vector: u16) {
        self.interrupts |= 1u64.checked_shl(u32::from(vector)).unwrap_or(0);
    }

    /// Records that a completion of this queue pair was lost. The queue pair fails when the turn is over (IBTA 9.9.6.3,
    /// class G), because it must not continue as if the completion had been written.
    pub(crate) fn note_lost_completion(&mut self, now: Instant, qpn: u32) {
        self.lost_completions.insert(qpn);
        self.defer(now);
    }

    /// Whether a completion of this queue pair was lost, so that it is about to fail.
    #[inline]
    pub(crate) fn has_lost_completion(&self, qpn: u32) -> bool {
        self.lost_completions.contains(&qpn)
    }

    /// Takes a queue pair that has lost a completion.
    pub(crate) fn next_lost_completion(&mut self) -> Option<u32> {
        self.lost_completions.pop_first()
    }

    /// Removes the record of a lost completion, because the queue pair has been reset or has failed already.
    fn forget_lost_completion(&mut self, qpn: u32) {
        self.lost_completions.remove(&qpn);
    }

    /// Ends all waits of the queue with this number, which is reset or destroyed.
    pub(crate) fn forget_queue(&mut self, number: u32) {
        self.forget_lost_completion(number);
        self.faults.forget(number);
        self.ingress.forget(number);
        self.peers.forget(number);
    }

    /// Schedules the end of the moderation period of a CQ.
    pub(crate) fn notify_at(&mut self, at: Instant, cqn: u32) {
        self.notices.insert((at, cqn));
    }

    /// Takes a CQ whose moderation period is over.
    pub(crate) fn pop_notice(&mut self, now: Instant) -> Option<u32> {
        let (at, cqn) = *self.notices.first()?;
        if at > now {
            return None;
        }
        self.notices.pop_first();
        Some(cqn)
    }

    /// Ends the moderation period of a CQ.
    pub(crate) fn cancel_notice(&mut self, cqn: u32) {
        if let Some(at) = self.cqs.get_mut(cqn).and_then(Cq::event_written) {
            self.notices.remove(&(at, cqn));
        }
    }

    /// The CQ is about to be destroyed: removes the events that it has to write.
    pub(crate) fn forget_notice(&mut self, cqn: u32) {
        self.cancel_notice(cqn);
        let Some(cq) = self.cqs.get_mut(cqn) else {
            return;
        };
        if let Some(ticket) = cq.event_waits.take()
            && let Some(eq) = self.eqs.get_mut(cq.eqn)
        {
            eq.stop_waiting(ticket);
        }
    }

    /// An event queue that has room for events which have waited.
    pub(crate) fn eq_with_late_events(&self) -> Option<u32> {
        let mut eqs = self.eqs.iter();
        eqs.find_map(|(eqn, eq)| eq.has_late_events().then_some(eqn))
    }

    /// The user context that owns a key: that of its protection domain. Faults are charged to it instead of the queue
    /// pair's context, because an XRC target belongs to no process and serves several.
    pub(crate) fn owner_of(&self, key: u32) -> u32 {
        self.domain_of(key).map_or(0, |pd| pd.uctx)
    }

    fn domain_of(&self, key: u32) -> Option<&Pd> {
        self.pds.get(self.mkeys.get(key)?.pd)
    }

    /// RNR timer code for a page of this key whose fault is outstanding. A page fault without a record waits for the quota of its
    /// context, so the age of the context's oldest fault counts.
    pub(crate) fn rnr_timer(&self, now: Instant, token: Option<Token>, key: u32) -> u8 {
        let age = self.faults.age(now, token, self.owner_of(key));
        let usual = self.domain_of(key).map(|pd| pd.repair);
        usual.unwrap_or_default().rnr_timer(age)
    }

    /// Whether the queue of fault records has room for one more.
    pub(crate) fn has_room_for_records(&self) -> bool {
        let eq = self.faults.eqn.and_then(|eqn| self.eqs.get(eqn));
        eq.is_some_and(|eq| self.faults.records.has_room(eq.has_room()))
    }

    /// Records that the queue pair must be called when there is room for a fault of this key.
    pub(crate) fn wait_for_room(&mut self, now: Instant, qpn: u32, key: u32) {
        let owner = self.owner_of(key);
        self.faults.wait_for_room(now, qpn, owner);
    }
}
