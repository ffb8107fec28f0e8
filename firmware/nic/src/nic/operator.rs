//! Operations for an operator of the device: the link, fault policies, and injected errors.

use faultline_abi::admin::Counter;
use faultline_abi::{Status, event, regs};

use super::Nic;
use crate::dma::Dma;
use crate::eq::Raised;
use crate::fault::{Need, RaisedFault};
use crate::mkey::{Absent, Mkey};
use crate::number::len32;
use crate::qp::{FaultPolicy, State};
use crate::queues::Queue;
use crate::time::{Instant, Nanos};
use crate::work;

impl Nic {
    /// True if the link is up. While it is down, the caller delivers no frames from or to this NIC.
    pub fn is_link_up(&self) -> bool {
        self.core.link_up
    }

    /// True if software has taken the interface up.
    pub fn is_interface_up(&self) -> bool {
        self.core.netdev.is_up()
    }

    /// Takes the link up or down, and reports it to the driver. A reset does not change the link.
    pub fn set_link<M: Dma>(&mut self, now: Instant, mem: &M, up: bool) {
        if self.change_link(up) {
            self.report_link(now, mem);
        }
    }

    /// Takes the link up or down without access to memory. Returns true if [`Nic::report_link`] must follow.
    #[must_use = "the driver does not know yet"]
    pub fn change_link(&mut self, up: bool) -> bool {
        std::mem::replace(&mut self.core.link_up, up) != up && self.is_running()
    }

    /// Speed of the link in Mbit/s.
    pub fn link_speed(&self) -> u32 {
        self.core.link_speed_mbps
    }

    /// Sets the speed that the driver reads; 0: unknown. It has no effect on the rate, which is the caller's business. A reset does
    /// not change it.
    pub fn set_link_speed(&mut self, mbps: u32) {
        self.core.link_speed_mbps = mbps;
    }

    /// Reports the state of the link to the driver.
    pub fn report_link<M: Dma>(&mut self, now: Instant, mem: &M) {
        if !self.is_running() {
            return;
        }
        let kind = self.port_event();
        self.context(now, mem).raise_async(kind, 1);
        self.report_fatal(now);
    }

    /// The event with the state of the link.
    pub(crate) fn port_event(&self) -> u8 {
        match self.core.link_up {
            true => event::PORT_UP,
            false => event::PORT_DOWN,
        }
    }

    /// Sets the fault policy of a queue pair, as MODIFY_QP does.
    pub fn set_fault_policy(&mut self, qpn: u32, policy: FaultPolicy) -> Result<(), Status> {
        let queue = self.queues.get_mut(qpn);
        let endpoint = queue.and_then(|queue| match queue {
            Queue::Pair(_) | Queue::Stream(_) => queue.endpoint_mut(),
            Queue::Work(_) | Queue::Rss(_) => None,
        });
        endpoint.ok_or(Status::BadQp)?.attr.fault_policy = policy.number();
        Ok(())
    }

    /// Stops the device with the fatal code INJECTED, as after an internal error. Returns false if it is not running.
    pub fn inject_fatal(&mut self, now: Instant) -> bool {
        let running = self.is_running();
        if running {
            self.core.fatal = regs::INJECTED;
            self.report_fatal(now);
        }
        running
    }

    /// Fails outstanding faults, as if the driver had not answered them in time, until the turn is over. Returns their
    /// number.
    pub fn fail_faults<M: Dma>(&mut self, now: Instant, mem: &M) -> u32 {
        let before = self.core.faults.unanswered().count();
        self.expire_faults_older_than(now, mem, Nanos(0));
        let after = self.core.faults.unanswered().count();
        len32(before.saturating_sub(after))
    }

    /// Removes entries of an on-demand region from the page table, as INVALIDATE does, but without the driver's
    /// knowledge. The driver sees faults for pages that it has mapped: the next access to each of them finds it absent.
    /// `va` is an address as users of the key specify it, and the range may extend beyond the region. Returns the
    /// number of entries, each of which holds a page of 4 KiB, 2 MiB or 1 GiB.
    ///
    /// The work depends on the height of the page table only, because subtrees are not traversed; so the call is short,
    /// however long the range is.
    pub fn evict(&mut self, key: u32, va: u64, len: u64) -> Result<u64, Status> {
        let at = self.on_demand_region(key)?.address_in_table(va);
        let removed = self.invalidate_pages(key, at.ok_or(Status::BadRange)?, len)?;
        self.core.charge(work::COMMAND);
        Ok(u64::from(removed))
    }

    /// INVALIDATE, and its counters.
    pub(crate) fn invalidate_pages(&mut self, key: u32, va: u64, len: u64) -> Result<u32, Status> {
        let removed = self.core.mkeys.invalidate(key, va, len)?;
        let counters = &mut self.core.counters;
        counters.add(Counter::page_invalidations, u64::from(removed));
        if removed > 0 {
            counters.inc(Counter::tlb_shootdowns);
        }
        Ok(removed)
    }

    fn on_demand_region(&self, key: u32) -> Result<&Mkey, Status> {
        let mkey = self.core.mkeys.get(key).ok_or(Status::BadMkey)?;
        match mkey.is_on_demand() {
            true => Ok(mkey),
            false => Err(Status::NotSupported),
        }
    }

    /// Raises a fault for pages of an on-demand region that no packet needs, as a prefetching device does. The driver
    /// gets a record of a read with QP number 0, whether it has mapped the pages or not. `va` is an address as users of
    /// the key specify it. Nothing happens if a fault is outstanding for the first page.
    ///
    /// Fails with `BadRange` if the range is not in the region, is empty or too long for a record (4 GiB), with `NoResources` if
    /// the fault queue has no room, and with `NotSupported` if the driver has none.
    pub fn request_pages<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        key: u32,
        va: u64,
        len: u64,
    ) -> Result<(), Status> {
        let mkey = self.on_demand_region(key)?;
        let at = mkey.address_in_table(va).ok_or(Status::BadRange)?;
        let bytes = u32::try_from(len).map_err(|_| Status::BadRange)?;
        if bytes == 0 || !mkey.covers(at, len) {
            return Err(Status::BadRange);
        }
        let absent = Absent {
            key,
            va: at,
            named: va,
            bytes,
            write: false,
        };
        self.core.charge(work::EVENT);
        if self.core.faults.is_covered(&absent) {
            return Ok(());
        }
        let need = Need::new(absent, len, 0);
        let raised = self.context(now, mem).new_fault(None, &need);
        self.report_fatal(now);
        match raised {
            RaisedFault::Waiting(_) => Ok(()),
            RaisedFault::NoRoom => Err(Status::NoResources),
            RaisedFault::NoQueue => Err(Status::NotSupported),
        }
    }

    /// Holds the fault queue. While it is held, the driver sees no records of new faults: they are kept, up to 4096,
    /// and beyond that faults find no room. When it is released, the driver gets the records of the faults that are
    /// still outstanding, in their order, as fast as it makes room. The fault timeout runs meanwhile. Survives a reset,
    /// which drops the records.
    pub fn set_fault_queue_held<M: Dma>(&mut self, now: Instant, mem: &M, held: bool) {
        self.core.faults.records.held = held;
        if !held && self.is_running() {
            self.retry_for_room(now, mem);
            self.report_fatal(now);
        }
    }

    /// While `full`, new faults find no room in the fault queue, whatever the driver has read: peers must send their
    /// requests again later, and requesters wait. Held records remain held. Survives a reset.
    pub fn set_fault_queue_full<M: Dma>(&mut self, now: Instant, mem: &M, full: bool) {
        self.core.faults.records.full = full;
        if !full && self.is_running() {
            self.retry_for_room(now, mem);
            self.report_fatal(now);
        }
    }

    /// Stops the ingress of the NIC for this time from now on. Senders should pause, as under fault policy `stall` ([`Nic::is_stalled`]).
    /// Arriving frames are held, as far as there is room. The driver only sees that no frames arrive. The pause ends by itself; another
    /// call before its end extends it, so repeated calls form a pause storm. A reset ends it.
    pub fn pause_ingress(&mut self, now: Instant, time: Nanos) {
        self.core.ingress.pause_until(now + time);
    }

    /// Puts a queue pair or work queue into the error state, as after an internal error: its work requests are flushed, and the
    /// driver gets the event QP_FATAL. Fails with `WrongState` if it is in error already, and for an RSS queue pair, which
    /// has no state.
    pub fn fail_queue_pair<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        qpn: u32,
    ) -> Result<(), Status> {
        let (queue, mut cx) = self.queue_in_context(now, mem, qpn).ok_or(Status::BadQp)?;
        if matches!(queue.state(), None | Some(State::Err)) {
            return Err(Status::WrongState);
        }
        queue.fail_with_event(&mut cx, event::QP_FATAL);
        self.core.charge(work::OPERATION);
        self.report_fatal(now);
        Ok(())
    }

    /// Fails a completion queue as if it had overflowed: the driver gets the event CQ_ERROR, and each queue pair fails
    /// at its next completion. Fails with `WrongState` if the queue has failed already.
    pub fn overrun_cq<M: Dma>(&mut self, now: Instant, mem: &M, cqn: u32) -> Result<(), Status> {
        let cq = self.core.cqs.get(cqn).ok_or(Status::BadCq)?;
        if cq.has_failed() {
            return Err(Status::WrongState);
        }
        self.context(now, mem).overrun_cq(cqn, None);
        self.report_fatal(now);
        Ok(())
    }

    /// Fails an event queue as if it could not be written. The device stops with the fatal code EVENT_QUEUE.
    pub fn overrun_eq<M: Dma>(&mut self, now: Instant, mem: &M, eqn: u32) -> Result<(), Status> {
        self.core.eqs.get(eqn).ok_or(Status::BadEq)?;
        self.context(now, mem).act_on(eqn, Raised::Failed);
        self.report_fatal(now);
        Ok(())
    }

    /// Changes how long a look-up in a page table takes ([`NicConfig::lookup`](crate::NicConfig::lookup)). Survives a reset.
    pub fn set_lookup(&mut self, time: Nanos) {
        self.core.config.lookup = time;
    }
}
