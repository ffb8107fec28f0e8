//! Everything of a NIC but its queue pairs: what queue pairs use while they work.

use std::collections::{BTreeSet, VecDeque};

use faultline_abi::admin::{Counter, NETDEV_ALLMULTI, NETDEV_PROMISC, NETDEV_UP, SetNetdev};
use faultline_abi::cqe::{Cqe, WR_FLUSH_ERR};
use faultline_abi::event::{self, Eqe};
use faultline_abi::{U32, regs};
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Gid, MacAddr};

use crate::budget::Budget;
use crate::config::NicConfig;
use crate::counters::Counters;
use crate::cq::{Cq, Pushed};
use crate::device_memory::DeviceMemory;
use crate::dma::Dma;
use crate::eq::{Eq, Raised};
use crate::fault::{FaultUnit, RepairTime};
use crate::frame::Payload;
use crate::ingress::{HeldFrame, Ingress};
use crate::mkey::Mkeys;
use crate::park::Park;
use crate::path::Path;
use crate::srq::Srq;
use crate::steering::Taker;
use crate::table::Table;
use crate::time::{Instant, Nanos};
use crate::work;

/// A protection domain: who uses it.
#[derive(Debug, Default)]
pub struct Pd {
    /// Keys, queue pairs, SRQs and address handles.
    pub refs: u32,
    /// User context that it belongs to; 0 = the kernel.
    pub uctx: u32,
    /// What repairs of its keys' pages take.
    pub(crate) repair: RepairTime,
}

/// A user context.
#[derive(Debug)]
pub struct Uctx {
    /// Tells it from others that had its page.
    pub version: u64,
    /// Protection domains, queue pairs, CQs and SRQs.
    pub refs: u32,
}

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    /// Protection domain.
    pub pd: u32,
    /// Where it leads.
    pub path: Path,
}

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID; IPv4 addresses are mapped.
    pub gid: Gid,
    /// Source MAC address of packets sent from it.
    pub mac: MacAddr,
    /// VLAN id.
    pub vlan: Option<u16>,
}

/// The Ethernet side as SET_NETDEV and SET_MAC_FILTER have left it.
#[derive(Clone, Debug)]
pub struct Netdev {
    /// Own address.
    pub mac: MacAddr,
    /// Largest payload of a frame.
    pub mtu: u16,
    /// `NETDEV_*` bits.
    pub flags: u32,
    /// Raw QP that receives, 0 = none.
    pub qpn: u32,
    /// Further addresses and groups, sorted.
    pub filter: Vec<MacAddr>,
}

impl Netdev {
    /// Does what a SET_NETDEV command says. Its values have been checked.
    pub fn configure(&mut self, cmd: &SetNetdev) {
        self.mac = MacAddr(cmd.mac);
        self.mtu = cmd.mtu.get();
        self.flags = cmd.flags.get();
        self.qpn = cmd.qpn.get();
    }

    /// Whether it has asked for frames to this address.
    pub fn wants(&self, dst: MacAddr) -> bool {
        dst == self.mac
            || dst.is_broadcast()
            || self.flags & NETDEV_PROMISC != 0
            || (dst.is_multicast() && self.flags & NETDEV_ALLMULTI != 0)
            || self.filter.binary_search(&dst).is_ok()
    }

    /// Whether the interface is up.
    pub fn is_up(&self) -> bool {
        self.flags & NETDEV_UP != 0
    }
}

/// What queue pairs share.
#[derive(Debug)]
pub struct Core {
    /// Fixed properties.
    pub config: NicConfig,
    /// Counters.
    pub counters: Counters,
    /// Memory that the guest makes the device hold.
    pub budget: Budget,
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
    pub xrcds: Table<u32>,
    /// Address handles.
    pub ahs: Table<Ah>,
    /// User contexts: the number of a context is that of its doorbell page.
    pub uctxs: Table<Uctx>,
    /// GID table.
    pub gids: Vec<Option<GidEntry>>,
    /// MAC addresses of its entries, each once: an interface above the netdev may have its own, such as macvlan.
    gid_macs: Vec<MacAddr>,
    /// The Ethernet side.
    pub netdev: Netdev,
    /// Event queue of asynchronous events.
    pub async_eqn: Option<u32>,
    /// FAULTLINE_FATAL_*; not zero: the device has stopped.
    pub fatal: u32,
    /// Page faults.
    pub(crate) faults: FaultUnit,
    /// What waits in front of a NIC that is stalled.
    pub(crate) ingress: Ingress,
    /// Room for a copy of a raw frame, so that none is allocated for each.
    pub(crate) frame_copy: Vec<u8>,
    /// Memory of packets that wait for pages.
    pub(crate) park: Park,
    /// Look-ups in page tables keep the NIC busy until then.
    pub(crate) busy_until: Instant,
    /// What has been done, but for what `mkeys` has; see [`Core::begin_turn`].
    pub(crate) work: u64,
    /// Since when commands wait that were put off.
    put_off: Option<Instant>,
    /// Queue pairs of which a completion was lost.
    silenced: BTreeSet<u32>,
    /// Queue pairs that have something to send.
    ready: VecDeque<u32>,
    /// What queue pairs still had to say when they went.
    pub(crate) last_words: VecDeque<RoceHeader>,
    /// When to call which queue pair; each at most once.
    timers: BTreeSet<(Instant, u32)>,
    /// When completion queues tell of what they have gathered; each at most once.
    notices: BTreeSet<(Instant, u32)>,
    /// Vectors to raise, a bit each.
    interrupts: u64,
}

impl Core {
    /// Whether RoCE packets to this address are for this NIC.
    #[inline]
    pub fn is_own_address(&self, dst: MacAddr) -> bool {
        dst == self.netdev.mac || self.gid_macs.contains(&dst)
    }

    /// Changes an entry of the GID table. Gives false if there is none with this number.
    pub fn set_gid(&mut self, index: u32, entry: Option<GidEntry>) -> bool {
        let Some(slot) = self.gids.get_mut(index as usize) else {
            return false;
        };
        *slot = entry;
        let entries = self.gids.iter().flatten();
        self.gid_macs = entries.map(|entry| entry.mac).collect();
        self.gid_macs.sort_unstable();
        self.gid_macs.dedup();
        true
    }

    /// A NIC without objects.
    pub fn new(config: NicConfig) -> Self {
        let limits = &config.limits;
        let budget = Budget::new(config.table_bytes);
        Self {
            counters: Counters::new(limits.max_counters),
            pds: Table::new(limits.max_pd, 1),
            mkeys: Mkeys::new(limits.max_mkey, config.on_demand, budget.clone()),
            budget,
            device_memory: DeviceMemory::new(limits.device_memory, limits.max_dm),
            cqs: Table::new(limits.max_cq, 0),
            eqs: Table::new(limits.max_eq, 0),
            srqs: Table::new(limits.max_srq, 1),
            xrcds: Table::new(limits.max_xrcd, 1),
            ahs: Table::new(limits.max_ah, 1),
            // Page 0 is the kernel's.
            uctxs: Table::without_generations(limits.max_uctx, 1),
            gids: vec![None; limits.max_gid as usize],
            gid_macs: Vec::new(),
            netdev: Netdev {
                mac: config.mac,
                mtu: 1500,
                flags: 0,
                qpn: 0,
                filter: Vec::new(),
            },
            async_eqn: None,
            fatal: regs::NONE,
            faults: FaultUnit::default(),
            ingress: Ingress::new(config.pause_sharers),
            frame_copy: Vec::new(),
            park: Park::default(),
            busy_until: Instant(0),
            work: 0,
            put_off: None,
            silenced: BTreeSet::new(),
            ready: VecDeque::new(),
            last_words: VecDeque::new(),
            timers: BTreeSet::new(),
            notices: BTreeSet::new(),
            interrupts: 0,
            config,
        }
    }

    /// A frame for this queue pair has stopped the input: it is the first that goes on.
    pub fn put_back<M: Dma>(
        &mut self,
        header: Option<RoceHeader>,
        only: Taker,
        payload: Payload<'_, M>,
    ) {
        match payload.to_vec() {
            Ok(bytes) => self.ingress.put_back(HeldFrame {
                header,
                only: Some(only),
                bytes,
            }),
            Err(_) => self.counters.inc(Counter::dma_errors),
        }
    }

    /// A turn begins: there is an end to what a guest may have done before others of the process are looked at,
    /// whose drivers take a device for dead that does not answer.
    pub(crate) fn begin_turn(&self) -> u64 {
        self.work + self.mkeys.work() + self.budget.work()
    }

    /// Something has been done that costs so much.
    pub(crate) fn charge(&mut self, work: u64) {
        self.work += work;
    }

    /// Whether so much has been done that others must have their turn.
    pub(crate) fn is_over(&self, turn: u64) -> bool {
        self.begin_turn() - turn >= work::TURN
    }

    /// What is left is to be done at once, when others have had their turn.
    pub(crate) fn put_off(&mut self, now: Instant) {
        self.put_off.get_or_insert(now);
    }

    /// Whether something had been put off, which it is no longer.
    pub(crate) fn resume(&mut self) -> bool {
        self.put_off.take().is_some()
    }

    /// Puts a queue pair at the end of the line of those that have something to send. The caller keeps
    /// track of who is in line already.
    pub(crate) fn enqueue_ready(&mut self, qpn: u32) {
        self.ready.push_back(qpn);
    }

    /// The queue pair whose turn it is.
    pub(crate) fn first_ready(&self) -> Option<u32> {
        self.ready.front().copied()
    }

    /// Takes the first one out of line.
    pub(crate) fn pop_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Lets the first one wait behind the others.
    pub(crate) fn rotate_ready(&mut self) {
        if self.ready.len() > 1 {
            self.ready.rotate_left(1);
        }
    }

    /// Asks for a call of the queue pair's timer handler at `at` instead of `old`.
    pub(crate) fn start_timer(&mut self, at: Instant, old: Option<Instant>, qpn: u32) {
        // Left where it was, a timer would stay for its whole time: hours, at the longest timeout.
        if let Some(old) = old {
            self.timers.remove(&(old, qpn));
        }
        self.timers.insert((at, qpn));
    }

    /// Forgets a queue pair's timer.
    pub(crate) fn stop_timer(&mut self, at: Instant, qpn: u32) {
        self.timers.remove(&(at, qpn));
    }

    /// Number of timers that run.
    pub(crate) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// The next time at which a timer is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let fault = self.faults.next_deadline(self.config.fault_timeout);
        let stall = self.ingress.next_deadline(self.config.stall_timeout);
        // What waits for a look-up to end.
        let waiting =
            !self.ready.is_empty() || !self.last_words.is_empty() || self.ingress.has_work();
        let busy = (waiting && self.busy_until.0 > 0).then_some(self.busy_until);
        let notice = self.notices.first().map(|(at, _)| *at);
        [timer, notice, fault, stall, busy, self.put_off]
            .into_iter()
            .flatten()
            .min()
    }

    /// Accounts for the look-ups in page tables since the last call.
    pub(crate) fn charge_lookups(&mut self, now: Instant) {
        let (hits, all_misses) = self.mkeys.tlb.counts();
        self.counters.set(Counter::tlb_hits, hits);
        self.counters.set(Counter::tlb_misses, all_misses);
        let misses = self.mkeys.tlb.take_new_misses();
        let cost = self.config.lookup.0.saturating_mul(misses);
        if cost > 0 {
            self.busy_until = self.busy_until.max(now) + Nanos(cost);
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

    /// Takes one vector to raise.
    pub fn poll_interrupt(&mut self) -> Option<u16> {
        if self.interrupts == 0 {
            return None;
        }
        let vector = self.interrupts.trailing_zeros();
        self.interrupts &= self.interrupts - 1;
        Some(vector as u16)
    }

    pub(crate) fn raise(&mut self, vector: u16) {
        self.interrupts |= 1u64.checked_shl(u32::from(vector)).unwrap_or(0);
    }

    /// Writes a completion and tells whoever waits for it.
    pub(crate) fn complete<M: Dma>(&mut self, mem: &M, now: Instant, cqn: u32, cqe: Cqe) {
        match cqe.status {
            0 => {}
            WR_FLUSH_ERR => self.counters.inc(Counter::cqe_flush_error),
            _ => self.counters.inc(Counter::cqe_error),
        }
        self.charge(work::COMPLETION);
        let Some(cq) = self.cqs.get_mut(cqn) else {
            return;
        };
        let eqn = cq.eqn;
        let (qpn, flushed) = (cqe.qpn.get(), cqe.status == WR_FLUSH_ERR);
        let pushed = cq.push(mem, now, cqe);
        if matches!(pushed, Pushed::Failed | Pushed::Lost) && !flushed {
            self.silence(now, qpn);
        }
        match pushed {
            Pushed::Quiet | Pushed::Lost => {}
            Pushed::Notify => self.notify_cq(mem, now, eqn, cqn),
            Pushed::Wait(at) => {
                self.notices.insert((at, cqn));
            }
            Pushed::Failed => self.raise_async(mem, now, event::CQ_ERROR, cqn),
        }
    }

    /// A queue pair whose completions get lost must not go on as if nothing were wrong: it fails when this turn is
    /// over (IBTA 9.9.6.3, class G).
    fn silence(&mut self, now: Instant, qpn: u32) {
        self.silenced.insert(qpn);
        self.put_off(now);
    }

    /// Whether a queue pair has lost a completion, and is about to fail.
    pub(crate) fn is_silenced(&self, qpn: u32) -> bool {
        self.silenced.contains(&qpn)
    }

    /// A queue pair that has lost a completion.
    pub(crate) fn next_silenced(&mut self) -> Option<u32> {
        self.silenced.pop_first()
    }

    /// A queue pair begins anew, or has failed already.
    pub(crate) fn forget_silenced(&mut self, qpn: u32) {
        self.silenced.remove(&qpn);
    }

    /// Tells the event queue that CQ `cqn` has something. A process may arm and complete faster than the driver
    /// reads: a notice that finds no room waits, once for each CQ.
    pub(crate) fn notify_cq<M: Dma>(&mut self, mem: &M, now: Instant, eqn: u32, cqn: u32) {
        let (Some(eq), Some(cq)) = (self.eqs.get_mut(eqn), self.cqs.get_mut(cqn)) else {
            return;
        };
        if let Some(at) = cq.told() {
            self.notices.remove(&(at, cqn));
        }
        if eq.has_room() {
            self.push_event(mem, now, eqn, simple_event(event::COMPLETION, cqn));
        } else if cq.notice_waits.is_none() {
            cq.notice_waits = Some(eq.wait_for_room(cqn));
        }
    }

    /// Completion queues that have gathered for long enough tell of it, as many as there is time for: others stay due.
    pub(crate) fn notify_due<M: Dma>(&mut self, mem: &M, now: Instant) {
        let turn = self.begin_turn();
        while let Some(&(at, cqn)) = self.notices.first()
            && at <= now
            && !self.is_over(turn)
        {
            self.notices.pop_first();
            if let Some(eqn) = self.cqs.get(cqn).map(|cq| cq.eqn) {
                self.notify_cq(mem, now, eqn, cqn);
            }
        }
    }

    /// A completion queue goes: it tells of nothing any more.
    pub(crate) fn forget_notice(&mut self, cqn: u32) {
        let Some(cq) = self.cqs.get_mut(cqn) else {
            return;
        };
        if let Some(at) = cq.told() {
            self.notices.remove(&(at, cqn));
        }
        if let Some(ticket) = cq.notice_waits.take()
            && let Some(eq) = self.eqs.get_mut(cq.eqn)
        {
            eq.stop_waiting(ticket);
        }
    }

    /// The driver has read events: what waited for room goes out, in turns.
    pub(crate) fn notify_waiting<M: Dma>(&mut self, mem: &M, now: Instant, eqn: u32) {
        let turn = self.begin_turn();
        while let Some(eq) = self.eqs.get_mut(eqn) {
            if let Some(eqe) = eq.next_overflow() {
                let raised = eq.write(mem, now, eqe);
                self.act_on(raised);
                self.charge(work::COMPLETION);
            } else if let Some(cqn) = eq.next_waiting() {
                if let Some(cq) = self.cqs.get_mut(cqn) {
                    cq.notice_waits = None;
                    self.notify_cq(mem, now, eqn, cqn);
                }
            } else {
                return;
            }
            if self.is_over(turn) {
                self.put_off(now);
                return;
            }
        }
    }

    /// Writes events that were put off, until there are none or others must have their turn.
    pub(crate) fn continue_events<M: Dma>(&mut self, mem: &M, now: Instant, turn: u64) {
        let late = |core: &Self| {
            let mut eqs = core.eqs.iter();
            eqs.find_map(|(eqn, eq)| eq.has_late_events().then_some(eqn))
        };
        while !self.is_over(turn)
            && let Some(eqn) = late(self)
        {
            self.notify_waiting(mem, now, eqn);
        }
        if late(self).is_some() {
            self.put_off(now);
        }
    }

    /// Raises an asynchronous event, if a queue takes them.
    pub(crate) fn raise_async<M: Dma>(&mut self, mem: &M, now: Instant, kind: u8, object: u32) {
        self.charge(work::EVENT);
        if let Some(eqn) = self.async_eqn {
            self.push_event(mem, now, eqn, simple_event(kind, object));
        }
    }

    /// A ring of an SRQ is broken: the event for it is raised once.
    pub(crate) fn srq_error<M: Dma>(&mut self, mem: &M, now: Instant, srqn: u32) {
        if let Some(srq) = self.srqs.get_mut(srqn)
            && !std::mem::replace(&mut srq.error_told, true)
        {
            self.raise_async(mem, now, event::SRQ_ERROR, srqn);
        }
    }

    pub(crate) fn push_event<M: Dma>(&mut self, mem: &M, now: Instant, eqn: u32, eqe: Eqe) {
        self.charge(work::COMPLETION);
        let Some(eq) = self.eqs.get_mut(eqn) else {
            return;
        };
        let raised = eq.push(mem, now, eqe);
        self.act_on(raised);
    }

    pub(crate) fn act_on(&mut self, raised: Raised) {
        match raised {
            Raised::Quiet => {}
            Raised::Interrupt(vector) => self.raise(vector),
            // A driver that loses events can't go on; it learns so by its heartbeat and the status register.
            Raised::Failed => self.fatal = regs::EVENT_QUEUE,
        }
    }
}

pub(crate) fn simple_event(kind: u8, object: u32) -> Eqe {
    Eqe {
        kind,
        object: U32::new(object),
        ..Eqe::default()
    }
}
