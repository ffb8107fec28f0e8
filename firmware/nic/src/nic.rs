//! The NIC as its surroundings see it.

mod faults;

use faultline_abi::U32;
use faultline_abi::admin::Counter;
use faultline_abi::cqe::Cqe;
use faultline_abi::doorbell::{self, Doorbell};
use faultline_abi::event;
use faultline_wire::MacAddr;
use faultline_wire::WireError;
use faultline_wire::opcode::Service;
use faultline_wire::packet::{self, RoceHeader};

use crate::command_ring::CommandRings;
use crate::config::NicConfig;
use crate::context::Context;
use crate::core::Core;
use crate::counters::{CounterSet, Counters};
use crate::dma::Dma;
use crate::frame::{Frame, FrameKind, Payload, Segments, TxFrame, packet_of_run};
use crate::ingress::{HeldFrame, Ingress};
use crate::multicast::{Groups, MULTICAST_QPN};
use crate::qp::Qp;
use crate::registers::Registers;
use crate::rss::RwqTable;
use crate::steering::{Steering, Taker};
use crate::table::Table;
use crate::tag::list::TagOpResult;
use crate::time::Instant;
use crate::work;

/// QP number of the general services interface, fixed by IBTA 3.5.1.
pub(crate) const GSI_QPN: u32 = 1;
/// First number of ordinary QPs.
pub(crate) const FIRST_QPN: u32 = 2;
/// Packets that one QP sends before another has its turn.
const BURST: u32 = 32;

/// A software RDMA NIC.
///
/// Calls that take `mem` must always get the memory of the same guest.
#[derive(Debug)]
pub struct Nic {
    pub(crate) core: Core,
    pub(crate) qps: Table<Qp>,
    pub(crate) gsi: Option<Box<Qp>>,
    pub(crate) registers: Registers,
    pub(crate) admin: CommandRings,
    pub(crate) translation: CommandRings,
    pub(crate) groups: Groups,
    pub(crate) steering: Steering,
    pub(crate) rwq_tables: Table<RwqTable>,
    /// Packets that the first QP in line has sent in its turn.
    burst: u32,
    /// Counts changes of the set of user contexts, for those who poll doorbell pages.
    pub(crate) uctx_changes: u64,
    /// Value of `uctx_changes` when the device was enabled.
    pub(crate) enabled_version: u64,
    fatal_reported: bool,
    /// What there was before a reset.
    remains: Option<Remains>,
}

/// What a NIC had before it was reset. To free it may take a large part of a second, so the one who has the NIC does not.
#[derive(Debug)]
pub struct Remains(#[expect(dead_code, reason = "dropped only")] Box<Nic>);

impl Nic {
    /// A NIC as after power-on.
    pub fn new(config: NicConfig) -> Self {
        Self {
            qps: Table::new(config.limits.max_qp, FIRST_QPN),
            gsi: None,
            registers: Registers::new(&config),
            admin: CommandRings::default(),
            translation: CommandRings::default(),
            rwq_tables: Table::new(config.limits.max_rwq_table, 1),
            steering: Steering::new(config.limits.max_flow),
            groups: Groups::new(config.limits.max_mcast_grp, config.limits.max_mcast_qp),
            burst: 0,
            uctx_changes: 0,
            enabled_version: 0,
            fatal_reported: false,
            remains: None,
            core: Core::new(config),
        }
    }

    /// Function-level reset: as after power-on, counters too.
    pub fn reset(&mut self) {
        let changes = self.uctx_changes;
        let fresh = Ingress::new(self.core.config.pause_sharers);
        let mut ingress = std::mem::replace(&mut self.core.ingress, fresh);
        ingress.reset(self.core.config.stall_timeout);
        let fresh = Self::new(self.core.config.clone());
        let mut gone = std::mem::replace(self, fresh);
        // Of two resets the first one's, if nobody has taken them, are no more than what a reset freed.
        drop(gone.remains.take());
        self.remains = Some(Remains(Box::new(gone)));
        self.core.ingress = ingress;
        self.uctx_changes = changes + 1;
    }

    /// What there was before the last reset, to be dropped where nobody waits for it.
    #[must_use = "dropping it takes time"]
    pub fn take_remains(&mut self) -> Option<Remains> {
        self.remains.take()
    }

    /// Fixed properties.
    pub fn config(&self) -> &NicConfig {
        &self.core.config
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// MAC address in use.
    pub fn mac(&self) -> MacAddr {
        self.core.netdev.mac
    }

    /// Whether the driver has enabled the device and it has not stopped.
    pub fn is_running(&self) -> bool {
        self.registers.enabled() && self.core.fatal == 0
    }

    /// The doorbell pages that are in use in their order, the kernel's page 0 included: number, and a version that tells
    /// one user of a page from the next. Pages of a device that is not enabled are not looked at.
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

    /// Changes whenever [`Nic::doorbell_pages`] gives something new, and at each reset.
    pub fn doorbell_pages_version(&self) -> u64 {
        self.uctx_changes
    }

    /// Bytes of page tables, of page lists of rings, and of queue pairs.
    pub fn held_memory(&self) -> usize {
        self.core.budget.used()
    }

    /// CQs whose notices wait for room in an event queue.
    pub fn waiting_notices(&self) -> usize {
        self.core.eqs.iter().map(|(_, eq)| eq.waiting()).sum()
    }

    /// Number of objects: for operators and tests.
    pub fn object_counts(&self) -> ObjectCounts {
        ObjectCounts {
            pds: self.core.pds.len(),
            mkeys: self.core.mkeys.len(),
            cqs: self.core.cqs.len(),
            qps: self.qps.len() + usize::from(self.gsi.is_some()),
            srqs: self.core.srqs.len(),
            ahs: self.core.ahs.len(),
            uctxs: self.core.uctxs.len(),
            timers: self.core.timers(),
            fault_waits: self.core.faults.waits(),
        }
    }

    /// An access to the BARs that the device has no meaning for.
    pub fn bad_register_access(&mut self) {
        self.core.counters.inc(Counter::register_errors);
    }

    /// The switch has dropped a frame of this NIC because its source address belongs to another port.
    pub fn source_refused(&mut self) {
        self.core.counters.inc(Counter::tx_bad_source);
    }

    /// A doorbell from page `page` arrives.
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
        }
        self.report_fatal();
    }

    /// The shared state with time and memory, for what is not done on behalf of a queue pair.
    pub(crate) fn context<'a, M: Dma>(&'a mut self, now: Instant, mem: &'a M) -> Context<'a, M> {
        Context::new(&mut self.core, now, mem, CounterSet::DEVICE)
    }

    /// The queue pair with this number, and a context that counts for it.
    pub(crate) fn qp_in_context<'a, M: Dma>(
        &'a mut self,
        now: Instant,
        mem: &'a M,
        number: u32,
    ) -> Option<(&'a mut Qp, Context<'a, M>)> {
        let qp = Self::qp_mut(&mut self.qps, &mut self.gsi, number)?;
        let cx = Context::new(&mut self.core, now, mem, qp.counters);
        Some((qp, cx))
    }

    /// The queue pair with this number.
    pub(crate) fn qp_mut<'a>(
        qps: &'a mut Table<Qp>,
        gsi: &'a mut Option<Box<Qp>>,
        number: u32,
    ) -> Option<&'a mut Qp> {
        match number {
            GSI_QPN => gsi.as_deref_mut(),
            _ => qps.get_mut(number),
        }
    }

    fn ring_qp<M: Dma>(&mut self, now: Instant, mem: &M, page: u32, bell: Doorbell) -> bool {
        let Some((qp, mut cx)) = self.qp_in_context(now, mem, bell.object) else {
            return false;
        };
        if qp.config.uctx != page {
            return false;
        }
        let taken = if bell.kind == doorbell::RQ {
            qp.ring_receive(&mut cx);
            true
        } else {
            qp.ring_send(&mut cx, bell.value)
        };
        if !taken {
            qp.fail_with_event(&mut cx, event::QP_FATAL);
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

    /// Carries out operations on the tag list of an SRQ.
    fn run_tag_ops<M: Dma>(&mut self, now: Instant, mem: &M, page: u32, bell: Doorbell) -> bool {
        let mut known = false;
        while let Some(srq) = self.core.srqs.get_mut(bell.object)
            && srq.uctx == page
            && let Some(tags) = &mut srq.tags
        {
            known = true;
            self.core.work += work::LOOK + tags.listed();
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

    /// The next packet to send, if there is one. Whatever this NIC gave before has been delivered or copied.
    pub fn poll_transmit<M: Dma>(&mut self, now: Instant, mem: &M) -> Option<TxFrame> {
        self.poll_transmit_run(now, mem, 0)
    }

    /// As [`Nic::poll_transmit`]; gives a run of packets of one message where it can, as many as carry `most`
    /// bytes or one. For receivers that are handed frames by reference.
    pub fn poll_transmit_run<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        most: usize,
    ) -> Option<TxFrame> {
        if self.core.busy_until > now {
            return None;
        }
        self.core.busy_until = Instant(0);
        if self.core.ingress.has_work() {
            self.receive_held(now, mem);
        }
        if self.is_running()
            && let Some(header) = self.core.last_words.pop_front()
        {
            let frame = TxFrame::packet(header, Segments::new(), 0);
            self.count_sent(CounterSet::DEVICE, &frame);
            self.sniff(now, mem, &frame, mem);
            return Some(frame);
        }
        let turn = self.core.begin_turn();
        while self.is_running()
            && let Some(number) = self.core.first_ready()
        {
            let Some((qp, mut cx)) = self.qp_in_context(now, mem, number) else {
                // One that has been destroyed in line.
                self.core.pop_ready();
                self.core.charge(work::LOOK);
                if self.core.is_over(turn) {
                    self.core.put_off(now);
                    return None;
                }
                continue;
            };
            let set = qp.counters;
            let frame = qp.poll_transmit(&mut cx, most);
            let Some(frame) = frame else {
                // It may have called `wake` itself; it knows that it is in line.
                self.core.pop_ready();
                if let Some(qp) = Self::qp_mut(&mut self.qps, &mut self.gsi, number) {
                    qp.left_line(&mut self.core);
                }
                self.burst = 0;
                self.core.charge(work::OPERATION);
                // Registrations send nothing, and the line may be long.
                if self.core.is_over(turn) {
                    self.core.put_off(now);
                    return None;
                }
                continue;
            };
            self.core.charge(work::of_frames(frame.packets, 0));
            self.burst += frame.packets;
            if self.burst >= BURST {
                self.burst = 0;
                self.core.rotate_ready();
            }
            self.count_sent(set, &frame);
            self.core.charge_lookups(now);
            self.loop_back(now, mem, number, &frame);
            return Some(frame);
        }
        self.report_fatal();
        None
    }

    /// Counts a frame, in the set of the queue pair that sends it.
    fn count_sent(&mut self, set: CounterSet, frame: &TxFrame) {
        let counters = &mut self.core.counters;
        let packets = u64::from(frame.packets);
        counters.add(Counter::tx_packets, packets);
        counters.add(Counter::tx_bytes, frame.len() as u64);
        if matches!(frame.kind, FrameKind::Roce(_)) {
            counters.add_in(set, Counter::tx_roce_packets, packets);
        }
    }

    /// What this NIC has done since it was made, in units of some nanoseconds.
    pub fn work(&self) -> u64 {
        self.core.begin_turn()
    }

    /// Takes a vector that must be raised.
    pub fn poll_interrupt(&mut self) -> Option<u16> {
        self.core.poll_interrupt()
    }

    /// When [`Nic::handle_deadline`] wants to be called, at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        // A device that has stopped waits for nothing.
        self.core.next_deadline().filter(|_| self.is_running())
    }

    /// Timers that are due.
    pub fn handle_deadline<M: Dma>(&mut self, now: Instant, mem: &M) {
        let resumed = self.is_running() && self.core.resume();
        if resumed {
            self.continue_admin(now, mem);
            self.continue_translation(now, mem);
            self.continue_answers(now, mem);
        }
        // Commands may go on for many turns: they do not use up that of timers and events.
        let turn = self.core.begin_turn();
        if resumed {
            self.context(now, mem).continue_events(turn);
            self.fail_silenced(now, mem, turn);
            self.retry_for_room(now, mem);
        }
        while self.is_running()
            && !self.core.is_over(turn)
            && let Some(number) = self.core.pop_timer(now)
        {
            self.core.charge(work::OPERATION);
            if let Some((qp, mut cx)) = self.qp_in_context(now, mem, number) {
                qp.handle_timer(&mut cx);
            }
        }
        self.context(now, mem).notify_due();
        self.expire_faults(now, mem);
        self.give_up_stall(now, mem);
        self.report_fatal();
    }

    /// Queue pairs whose completions were lost fail.
    fn fail_silenced<M: Dma>(&mut self, now: Instant, mem: &M, turn: u64) {
        while let Some(number) = self.core.next_silenced() {
            self.core.charge(work::OPERATION);
            if let Some((qp, mut cx)) = self.qp_in_context(now, mem, number) {
                qp.fail_with_event(&mut cx, event::QP_FATAL);
            }
            if self.core.is_over(turn) {
                self.core.put_off(now);
                return;
            }
        }
    }

    /// Whether a frame to this address is for this NIC.
    pub fn accepts(&self, dst: MacAddr) -> bool {
        // Groups of queue pairs are not the netdev's.
        dst.is_multicast()
            || !self.steering.is_empty()
            || self.core.netdev.wants(dst)
            || self.core.is_own_address(dst)
    }

    /// A frame from another NIC of the process arrives by reference.
    pub fn receive<M: Dma>(&mut self, now: Instant, mem: &M, frame: &TxFrame, sender: &M) {
        if !self.is_running() {
            return;
        }
        self.core
            .charge(work::of_frames(frame.packets, frame.len()));
        self.sniff(now, mem, frame, sender);
        if self.core.ingress.must_queue() {
            self.hold_frame(frame, sender);
            return;
        }
        let payload = frame.view(sender);
        match &frame.kind {
            FrameKind::Roce(header) => {
                self.count_received(frame.packets, frame.len());
                self.receive_roce(now, mem, header, frame.packets, payload);
            }
            FrameKind::Raw { checked, .. } => {
                let checked = *checked;
                let frame = Frame {
                    checked,
                    ..payload.into()
                };
                self.receive_raw(now, mem, frame);
            }
        }
        self.report_fatal();
    }

    /// A frame arrives as octets, without FCS.
    pub fn receive_bytes<M: Dma>(&mut self, now: Instant, mem: &M, frame: &[u8]) {
        if !self.is_running() {
            return;
        }
        self.sniff_octets(now, mem, frame);
        if self.core.ingress.must_queue() {
            self.hold(HeldFrame {
                header: None,
                only: None,
                bytes: frame.to_vec(),
            });
            return;
        }
        self.receive_octets(now, mem, frame);
        self.report_fatal();
    }

    pub(crate) fn receive_octets<M: Dma>(&mut self, now: Instant, mem: &M, frame: &[u8]) {
        self.count_received(1, frame.len());
        match packet::parse(frame) {
            Ok(parsed) if !parsed.icrc_ok => self.core.counters.inc(Counter::rx_icrc_errors),
            Ok(parsed) => {
                let payload = Payload::Bytes(parsed.payload);
                self.receive_roce(now, mem, &parsed.header, 1, payload);
            }
            Err(WireError::NotRoce) => {
                self.receive_ethernet(now, mem, Payload::Bytes(frame).into());
            }
            Err(_) => self.core.counters.inc(Counter::rx_malformed),
        }
    }

    /// Whether a page that is not there has stopped the input: what is sent now has to wait, so that whoever
    /// feeds it should stop too, unless it did so for too long a time lately. Never of a device that does not run:
    /// it drops what comes, and nothing would end the stop.
    pub fn is_stalled(&self) -> bool {
        self.is_running() && self.core.ingress.pauses_others()
    }

    /// Whether a page that is not there has stopped the input, whoever else stops for that.
    pub fn is_input_stopped(&self) -> bool {
        self.core.ingress.is_stopped()
    }

    pub(crate) fn hold(&mut self, frame: HeldFrame) {
        if !self.core.ingress.push(frame) {
            self.core.counters.inc(Counter::stall_overflow);
        }
    }

    /// Keeps a frame that is handed over by reference, packet by packet.
    pub(crate) fn hold_frame<M: Dma>(&mut self, frame: &TxFrame, sender: &M) {
        let payload = frame.view(sender);
        let each = payload.len() / frame.packets.max(1) as usize;
        for index in 0..frame.packets {
            let header = match &frame.kind {
                FrameKind::Roce(header) => Some(packet_of_run(header, index, frame.packets)),
                FrameKind::Raw { .. } => None,
            };
            match payload.part(index as usize * each, each).to_vec() {
                Ok(bytes) => self.hold(HeldFrame {
                    header,
                    only: None,
                    bytes,
                }),
                Err(_) => self.core.counters.inc(Counter::dma_errors),
            }
        }
    }

    /// Takes what has waited for a page, until that is done or another page is missing.
    fn receive_held<M: Dma>(&mut self, now: Instant, mem: &M) {
        let turn = self.core.begin_turn();
        for _ in 0..BURST {
            if self.core.ingress.is_stopped() {
                return;
            }
            if self.core.is_over(turn) {
                break;
            }
            let Some(frame) = self.core.ingress.pop() else {
                return;
            };
            self.core.charge(work::of_frames(1, frame.bytes.len()));
            let payload = Payload::Bytes(&frame.bytes);
            match (&frame.header, frame.only) {
                (Some(header), Some(taker)) => {
                    self.give_to_qp(now, mem, taker.qpn, header, 1, payload);
                }
                (None, Some(taker)) => self.give_frame(now, mem, taker, payload.into()),
                (Some(header), None) => {
                    let len = header.frame_len(frame.bytes.len());
                    self.count_received(1, len);
                    self.receive_roce(now, mem, header, 1, payload);
                }
                (None, None) => self.receive_octets(now, mem, &frame.bytes),
            }
        }
        // Perhaps none of them is answered: nothing else has the rest looked at.
        if self.core.ingress.has_work() {
            self.core.put_off(now);
        }
    }

    /// An input that has been stopped for long may wait for something that can only come in: the packet in the
    /// way is dropped, and the driver is told.
    fn give_up_stall<M: Dma>(&mut self, now: Instant, mem: &M) {
        let timeout = self.core.config.stall_timeout;
        self.core.ingress.end_pause(now, timeout);
        if let Some(stall) = self.core.ingress.give_up(now, timeout) {
            self.core.counters.inc(Counter::stall_timeouts);
            self.context(now, mem)
                .raise_async(event::STALL_TIMEOUT, stall.qpn);
        }
    }

    pub(crate) fn count_received(&mut self, packets: u32, len: usize) {
        self.core
            .counters
            .add(Counter::rx_packets, u64::from(packets));
        self.core.counters.add(Counter::rx_bytes, len as u64);
    }

    fn receive_roce<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) {
        let set = self.set_for(header);
        let counters = &mut self.core.counters;
        counters.add_in(set, Counter::rx_roce_packets, u64::from(packets));
        if header.bth.dest_qp == MULTICAST_QPN {
            self.receive_multicast(now, mem, header, payload);
            return;
        }
        if !self.core.is_own_address(header.ethernet.dst) {
            self.core.counters.inc(Counter::rx_filtered);
            return;
        }
        if header.bth.opcode.info().service == Service::Cnp {
            self.core.counters.inc(Counter::rp_cnp_handled);
            return;
        }
        self.give_to_qp(now, mem, header.bth.dest_qp, header, packets, payload);
    }

    /// The set that counts packets with this header, if not the device does.
    fn set_for(&mut self, header: &RoceHeader) -> CounterSet {
        let for_qp = self.core.is_own_address(header.ethernet.dst)
            && header.bth.opcode.info().service != Service::Cnp;
        if !for_qp || !self.core.counters.has_sets() {
            return CounterSet::DEVICE;
        }
        Self::qp_mut(&mut self.qps, &mut self.gsi, header.bth.dest_qp)
            .map_or(CounterSet::DEVICE, |qp| qp.counters)
    }

    /// Gives packets to a queue pair; those that it has no page for wait if it says so.
    pub(crate) fn give_to_qp<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        qpn: u32,
        header: &RoceHeader,
        packets: u32,
        payload: Payload<'_, M>,
    ) {
        let Some((qp, mut cx)) = self.qp_in_context(now, mem, qpn) else {
            self.core.counters.inc(Counter::rx_bad_qp);
            return;
        };
        let taken = qp.receive(&mut cx, header, packets, payload);
        self.core.charge_lookups(now);
        // It stopped the input at one of them: that one and those behind it wait.
        let each = payload.len() / packets.max(1) as usize;
        for index in (taken..packets).rev() {
            let header = packet_of_run(header, index, packets);
            let part = payload.part(index as usize * each, each);
            self.context(now, mem)
                .put_back(Some(header), Taker::untagged(qpn), part);
        }
    }

    /// Tells the driver once that the device has stopped.
    pub(crate) fn report_fatal(&mut self) {
        if self.core.fatal == 0 || self.fatal_reported {
            return;
        }
        self.fatal_reported = true;
        // The queue may be what failed; the interrupt makes the driver read the status register.
        if let Some(eq) = self.core.async_eqn.and_then(|eqn| self.core.eqs.get(eqn)) {
            let vector = eq.vector;
            self.core.raise(vector);
        }
    }
}

/// Number of objects of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ObjectCounts {
    pub pds: usize,
    pub mkeys: usize,
    pub cqs: usize,
    pub qps: usize,
    pub srqs: usize,
    pub ahs: usize,
    pub uctxs: usize,
    pub timers: usize,
    /// Entries for queue pairs that wait for pages or for room in the fault queue.
    pub fault_waits: usize,
}
