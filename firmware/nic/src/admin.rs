//! The admin queue: objects are made, changed, queried and destroyed.
//!
//! A command is copied from the ring once, its body taken as the structure that belongs to its opcode, and
//! one function per command does the rest. Counts of references keep an object from being destroyed under
//! another.

use faultline_abi::admin::*;
use faultline_abi::device_memory::{AllocDm, CreateDmMkey, DmPlace};
use faultline_abi::event;
use faultline_abi::qp::{QPT_XRC_TGT, QpAttr};
use faultline_abi::tag::{CreateTmSrq, TM_OP_SHIFT};
use faultline_abi::wqe::{
    MAX_STRIDE_SHIFT, RQ_MIN_STRIDE_SHIFT, RQ_WQE_DATA, SQ_MIN_STRIDE_SHIFT, SQ_WQE_DATA, Sge,
};
use faultline_abi::{Status, U16, U32, U64, regs};
use faultline_wire::{Gid, MacAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::config::{MAX_MTU, MAX_SGE};
use crate::context::{Context, object_event};
use crate::core::{Ah, Pd, Uctx};
use crate::counters::CounterSet;
use crate::cq::{Cq, Moderation, write_entry};
use crate::device_memory::{DEVICE_MEMORY, PAGE};
use crate::dma::Dma;
use crate::eq::Eq;
use crate::nic::{GSI_QPN, Nic};
use crate::path::{GidEntry, Path};
use crate::qp::{Qp, QpConfig, QpType, state};
use crate::ring::Ring;
use crate::srq::{RecvRing, Srq};
use crate::tag::TagList;
use crate::time::{Instant, Nanos};
use crate::translation::RingPair;
use crate::work;

/// log2 of the size of completion and event queue entries.
const ENTRY_SHIFT: u8 = 6;
/// Smallest Ethernet MTU (RFC 791).
const MIN_MTU: u16 = 68;
/// No VLAN in SET_GID.
const NO_VLAN: u16 = 0xffff;

/// The admin queue.
#[derive(Debug, Default)]
pub(crate) struct AdminQueue {
    rings: RingPair,
}

impl AdminQueue {
    pub(crate) fn start(&mut self, sq: u64, cq: u64, log_depth: u32) {
        self.rings = RingPair::new(sq, cq, log_depth);
    }
}

/// Commands in a turn: each may go through all objects of the NIC.
const BATCH: u32 = 32;

/// What a command gives back: handle and body.
type Answer = (u32, [u8; 112]);

const NO_BODY: [u8; 112] = [0; 112];

/// The body of a command as the structure of its opcode; what follows that structure must be zero.
fn body<T: FromBytes + KnownLayout + Immutable>(cmd: &AdminCmd) -> Result<T, Status> {
    let (body, rest) = T::read_from_prefix(&cmd.body).map_err(|_| Status::BadParameter)?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Status::ReservedNotZero);
    }
    Ok(body)
}

fn answer_with<T: IntoBytes + Immutable>(handle: u32, value: &T) -> Answer {
    let mut out = NO_BODY;
    for (to, from) in out.iter_mut().zip(value.as_bytes()) {
        *to = *from;
    }
    (handle, out)
}

/// log2 of a depth: at least one entry, at most `max`.
pub(crate) fn check_depth(log_depth: u8, max: u32) -> Result<u8, Status> {
    match 1u32.checked_shl(u32::from(log_depth)) {
        Some(depth) if depth <= max => Ok(log_depth),
        _ => Err(Status::BadDepth),
    }
}

/// Stride of a work queue: within the limits, and wide enough for its longest request.
fn check_stride(shift: u8, min: u32, need: u32) -> Result<u8, Status> {
    let shift32 = u32::from(shift);
    if (min..=MAX_STRIDE_SHIFT).contains(&shift32) && need <= 1 << shift32 {
        Ok(shift)
    } else {
        Err(Status::BadStride)
    }
}

pub(crate) fn check_recv_stride(shift: u8, max_sge: u8) -> Result<u8, Status> {
    if u32::from(max_sge) > MAX_SGE {
        return Err(Status::BadStride);
    }
    let need = RQ_WQE_DATA + u32::from(max_sge) * size_of::<Sge>() as u32;
    check_stride(shift, RQ_MIN_STRIDE_SHIFT, need)
}

impl Nic {
    /// Carries out admin commands up to the producer index; gives false if that is out of range. What comes behind
    /// others that are put off is put off with them.
    pub(crate) fn run_admin<M: Dma>(&mut self, now: Instant, mem: &M, producer: u32) -> bool {
        let behind = self.admin.rings.has_work();
        let taken = self.admin.rings.announce(producer);
        if !behind {
            self.continue_admin(now, mem);
        }
        taken
    }

    /// Carries out admin commands until there are none or others must have their turn.
    pub(crate) fn continue_admin<M: Dma>(&mut self, now: Instant, mem: &M) {
        let (turn, mut count) = (self.core.begin_turn(), 0);
        loop {
            if count == BATCH || self.core.is_over(turn) || !self.core.mkeys.free_old_tables() {
                self.core.put_off(now);
                break;
            }
            if !self.admin.rings.has_work() {
                break;
            }
            let rings = &mut self.admin.rings;
            let mut cmd = AdminCmd::default();
            if mem
                .read(rings.command(size_of::<AdminCmd>()), cmd.as_mut_bytes())
                .is_err()
            {
                self.core.fatal = regs::RING_DMA;
                return;
            }
            if !self.is_prepared(&cmd) {
                self.core.put_off(now);
                break;
            }
            count += 1;
            self.core.charge(work::COMMAND);
            let rings = &mut self.admin.rings;
            let (at, phase) = rings.completion(size_of::<AdminComp>());
            rings.advance();
            let (status, (handle, body)) = match self.execute_command(now, mem, &cmd) {
                Ok(answer) => (Status::Ok, answer),
                Err(status) => {
                    self.core.counters.inc(Counter::command_errors);
                    (status, (cmd.hdr.handle.get(), NO_BODY))
                }
            };
            let completion = AdminComp {
                id: cmd.hdr.id,
                status: U16::new(status as u16),
                handle: U32::new(handle),
                body,
                phase,
                ..AdminComp::default()
            };
            if write_entry(mem, at, completion.as_bytes()).is_err() {
                self.core.fatal = regs::RING_DMA;
                return;
            }
        }
        if count > 0 {
            let eqn = self.registers.admin_eqn();
            let event = object_event(event::ADMIN, 0);
            self.context(now, mem).push_event(eqn, event);
        }
    }

    /// Does in turns what must be done before a command, and may be much. Gives false if there is more to do: the command
    /// is looked at again then.
    fn is_prepared(&mut self, cmd: &AdminCmd) -> bool {
        let number = cmd.hdr.handle.get();
        let is_valid = cmd.hdr.reserved0.get() == 0 && cmd.hdr.reserved1.get() == 0;
        let destroys = is_valid
            && cmd.hdr.opcode.get() == DESTROY_QP
            && self.queue_pair(number).is_ok_and(|qp| qp.references == 0);
        !destroys || self.core.mkeys.forget_qp(number)
    }

    fn execute_command<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        cmd: &AdminCmd,
    ) -> Result<Answer, Status> {
        if cmd.hdr.reserved0.get() != 0 || cmd.hdr.reserved1.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let handle = cmd.hdr.handle.get();
        let created = |handle: u32| (handle, NO_BODY);
        let done = |()| (handle, NO_BODY);
        match cmd.hdr.opcode.get() {
            NOP => Ok(done(())),
            ALLOC_UCTX => self.alloc_uctx(mem).map(created),
            DEALLOC_UCTX => self.dealloc_uctx(handle).map(done),
            CREATE_EQ => self.create_eq(now, mem, &body(cmd)?).map(created),
            DESTROY_EQ => self.destroy_eq(handle).map(done),
            ALLOC_PD => self.alloc_pd(&body(cmd)?).map(created),
            DEALLOC_PD => self.dealloc_pd(handle).map(done),
            ALLOC_XRCD => self.alloc_xrcd().map(created),
            DEALLOC_XRCD => self.dealloc_xrcd(handle).map(done),
            CREATE_MKEY => self.create_mkey(&body(cmd)?).map(created),
            MODIFY_MKEY => self.modify_mkey(now, mem, handle, &body(cmd)?).map(done),
            DESTROY_MKEY => self.destroy_mkey(now, mem, handle).map(done),
            CREATE_CQ => self.create_cq(mem, &body(cmd)?).map(created),
            DESTROY_CQ => self.destroy_cq(handle).map(done),
            MODIFY_CQ => self.modify_cq(mem, now, handle, &body(cmd)?).map(done),
            RESIZE_CQ => self.resize_cq(mem, handle, &body(cmd)?).map(done),
            CREATE_SRQ => self.create_srq(mem, &body(cmd)?, None).map(created),
            CREATE_TM_SRQ => self.create_tag_srq(mem, &body(cmd)?).map(created),
            DESTROY_SRQ => self.destroy_srq(handle).map(done),
            RESIZE_SRQ => self.resize_srq(mem, handle, &body(cmd)?).map(done),
            MODIFY_SRQ => self.modify_srq(handle, &body(cmd)?).map(done),
            QUERY_SRQ => self.query_srq(handle),
            CREATE_QP => self.create_qp(mem, &body(cmd)?).map(created),
            DESTROY_QP => self.destroy_qp(now, mem, handle).map(done),
            MODIFY_QP => self.modify_qp(now, mem, handle, &body(cmd)?).map(done),
            QUERY_QP => self.query_qp(handle),
            CREATE_AH => self.create_ah(&body(cmd)?).map(created),
            DESTROY_AH => self.destroy_ah(handle).map(done),
            SET_GID => self.set_gid(handle, &body(cmd)?).map(done),
            SET_NETDEV => self.set_netdev(&body(cmd)?).map(done),
            SET_MAC_FILTER => self.set_mac_filter(mem, &body(cmd)?).map(done),
            ATTACH_MCAST => self.attach_mcast(handle, &body(cmd)?).map(done),
            DETACH_MCAST => self.detach_mcast(handle, &body(cmd)?).map(done),
            CREATE_FLOW => self.create_flow(mem, &body(cmd)?).map(created),
            DESTROY_FLOW => self.destroy_flow(handle).map(done),
            QUERY_COUNTERS => self.query_counters(mem, handle, &body(cmd)?).map(created),
            ALLOC_COUNTERS => self.core.counters.alloc().map(created),
            DEALLOC_COUNTERS => self.core.counters.free(handle).map(done),
            BIND_COUNTERS => self.bind_counters(handle, &body(cmd)?).map(done),
            CREATE_WQ => self.create_wq(mem, &body(cmd)?).map(created),
            DESTROY_WQ => self.destroy_wq(handle).map(done),
            MODIFY_WQ => self.modify_wq(now, mem, handle, &body(cmd)?).map(done),
            CREATE_RWQ_TABLE => self.create_rwq_table(mem, &body(cmd)?).map(created),
            DESTROY_RWQ_TABLE => self.destroy_rwq_table(handle).map(done),
            CREATE_RSS_QP => self.create_rss_qp(&body(cmd)?).map(created),
            ALLOC_DM => self.alloc_dm(mem, &body(cmd)?),
            DEALLOC_DM => self.core.device_memory.free(handle).map(done),
            CREATE_DM_MKEY => self.create_dm_mkey(&body(cmd)?).map(created),
            _ => Err(Status::BadOpcode),
        }
    }

    fn alloc_uctx<M: Dma>(&mut self, mem: &M) -> Result<u32, Status> {
        self.uctx_changes += 1;
        let version = self.uctx_changes;
        let uctxs = &mut self.core.uctxs;
        let page = uctxs
            .insert_with(|_| Uctx { version, refs: 0 })
            .ok_or(Status::NoResources)?;
        mem.new_doorbell_page(page);
        Ok(page)
    }

    fn dealloc_uctx(&mut self, page: u32) -> Result<(), Status> {
        if self.core.uctxs.get(page).ok_or(Status::BadUctx)?.refs > 0 {
            return Err(Status::InUse);
        }
        self.core.uctxs.remove(page);
        self.uctx_changes += 1;
        Ok(())
    }

    /// Page 0, the kernel's, or a context that exists.
    pub(crate) fn check_uctx(&self, page: u32) -> Result<(), Status> {
        if page == 0 || self.core.uctxs.contains(page) {
            Ok(())
        } else {
            Err(Status::BadUctx)
        }
    }

    /// A context has one object more. Page 0, the kernel's, is always there.
    fn hold_uctx(&mut self, page: u32) {
        if let Some(uctx) = self.core.uctxs.get_mut(page) {
            uctx.refs += 1;
        }
    }

    fn release_uctx(&mut self, page: u32) {
        if let Some(uctx) = self.core.uctxs.get_mut(page) {
            uctx.refs -= 1;
        }
    }

    fn create_eq<M: Dma>(&mut self, now: Instant, mem: &M, cmd: &CreateEq) -> Result<u32, Status> {
        let flags = cmd.flags.get();
        if cmd.reserved0 != 0 {
            return Err(Status::ReservedNotZero);
        }
        if flags & !(EQ_ASYNC | EQ_FAULTS) != 0 {
            return Err(Status::BadParameter);
        }
        if u32::from(cmd.vector.get()) >= regs::MSIX_VECTORS {
            return Err(Status::BadVector);
        }
        let log_depth = check_depth(cmd.log_depth, self.core.config.limits.max_eqe)?;
        let ring = Ring::load(
            &cmd.ring,
            log_depth,
            ENTRY_SHIFT,
            false,
            &self.core.budget,
            mem,
        )?;
        let vector = cmd.vector.get();
        let eqn = self
            .core
            .eqs
            .insert_with(|_| Eq::new(ring, vector))
            .ok_or(Status::NoResources)?;
        if flags & EQ_ASYNC != 0 {
            self.core.async_eqn = Some(eqn);
            // Whoever listens learns the state of the link.
            self.context(now, mem).raise_async(event::PORT_UP, 1);
        }
        if flags & EQ_FAULTS != 0 {
            self.core.faults.eqn = Some(eqn);
        }
        Ok(eqn)
    }

    fn destroy_eq(&mut self, eqn: u32) -> Result<(), Status> {
        let eq = self.core.eqs.get(eqn).ok_or(Status::BadEq)?;
        if eq.refs > 0 {
            return Err(Status::InUse);
        }
        self.core.eqs.remove(eqn);
        if self.core.async_eqn == Some(eqn) {
            self.core.async_eqn = None;
        }
        if self.core.faults.eqn == Some(eqn) {
            self.core.faults.eqn = None;
        }
        Ok(())
    }

    fn alloc_pd(&mut self, cmd: &AllocPd) -> Result<u32, Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let uctx = cmd.uctx.get();
        self.check_uctx(uctx)?;
        let pds = &mut self.core.pds;
        let pd = Pd {
            uctx,
            ..Pd::default()
        };
        let pd = pds.insert_with(|_| pd).ok_or(Status::NoResources)?;
        self.hold_uctx(uctx);
        Ok(pd)
    }

    fn dealloc_pd(&mut self, pd: u32) -> Result<(), Status> {
        let Pd { refs, uctx, .. } = *self.pd(pd)?;
        if refs > 0 {
            return Err(Status::InUse);
        }
        self.core.pds.remove(pd);
        self.release_uctx(uctx);
        Ok(())
    }

    fn alloc_xrcd(&mut self) -> Result<u32, Status> {
        let xrcds = &mut self.core.xrcds;
        xrcds.insert_with(|_| 0).ok_or(Status::NoResources)
    }

    fn dealloc_xrcd(&mut self, xrcd: u32) -> Result<(), Status> {
        match self.core.xrcds.get(xrcd) {
            None => Err(Status::BadXrcd),
            Some(0) => {
                self.core.xrcds.remove(xrcd);
                Ok(())
            }
            Some(_) => Err(Status::InUse),
        }
    }

    fn xrcd(&mut self, xrcd: u32) -> Result<&mut u32, Status> {
        self.core.xrcds.get_mut(xrcd).ok_or(Status::BadXrcd)
    }

    pub(crate) fn pd(&mut self, pd: u32) -> Result<&mut Pd, Status> {
        self.core.pds.get_mut(pd).ok_or(Status::BadPd)
    }

    fn release_pd(&mut self, pd: u32) {
        if let Some(pd) = self.core.pds.get_mut(pd) {
            pd.refs -= 1;
        }
    }

    fn create_mkey(&mut self, cmd: &CreateMkey) -> Result<u32, Status> {
        self.pd(cmd.pd.get())?;
        let key = self.core.mkeys.create(cmd)?;
        self.pd(cmd.pd.get())?.refs += 1;
        Ok(key)
    }

    fn modify_mkey<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        key: u32,
        cmd: &CreateMkey,
    ) -> Result<(), Status> {
        self.pd(cmd.pd.get())?;
        let old_pd = self.core.mkeys.modify(key, cmd)?;
        self.pd(cmd.pd.get())?.refs += 1;
        self.release_pd(old_pd);
        // Who waits for a page finds out what the key is now.
        self.cancel_faults(now, mem, key);
        Ok(())
    }

    fn destroy_mkey<M: Dma>(&mut self, now: Instant, mem: &M, key: u32) -> Result<(), Status> {
        let mkey = self.core.mkeys.destroy(key)?;
        if let Some(dm) = mkey.device_memory {
            self.core.device_memory.release(dm);
        }
        self.release_pd(mkey.pd);
        self.cancel_faults(now, mem, key);
        Ok(())
    }

    fn alloc_dm<M: Dma>(&mut self, mem: &M, cmd: &AllocDm) -> Result<Answer, Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let (dm, offset, length) = self.core.device_memory.alloc(cmd.length.get())?;
        self.core.charge(work::of_frames(0, length as usize));
        let memory = &mut self.core.device_memory;
        let zeroes = [0; PAGE as usize];
        for at in (offset..offset + length).step_by(zeroes.len()) {
            if mem.write(DEVICE_MEMORY + at, &zeroes).is_err() {
                memory.free(dm)?;
                return Err(Status::DmaError);
            }
        }
        let place = DmPlace {
            offset: U64::new(self.device_memory_offset() + offset),
            length: U64::new(length),
        };
        Ok(answer_with(dm, &place))
    }

    fn create_dm_mkey(&mut self, cmd: &CreateDmMkey) -> Result<u32, Status> {
        self.pd(cmd.pd.get())?;
        let memory = &mut self.core.device_memory;
        let dm = cmd.dm.get();
        let base = memory.hold(dm, cmd.offset.get(), cmd.length.get())?;
        let created = self.core.mkeys.create_device(cmd, base);
        if created.is_err() {
            memory.release(dm);
        }
        let key = created?;
        self.pd(cmd.pd.get())?.refs += 1;
        Ok(key)
    }

    fn create_cq<M: Dma>(&mut self, mem: &M, cmd: &CreateCq) -> Result<u32, Status> {
        if cmd.reserved0 != [0; 3] || cmd.reserved1.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let (uctx, eqn) = (cmd.uctx.get(), cmd.eqn.get());
        self.check_uctx(uctx)?;
        let log_depth = check_depth(cmd.log_depth, self.core.config.limits.max_cqe)?;
        let ring = Ring::load(
            &cmd.ring,
            log_depth,
            ENTRY_SHIFT,
            true,
            &self.core.budget,
            mem,
        )?;
        self.core.eqs.get(eqn).ok_or(Status::BadEq)?;
        let cqs = &mut self.core.cqs;
        let cqn = cqs
            .insert_with(|_| Cq::new(ring, uctx, eqn))
            .ok_or(Status::NoResources)?;
        self.hold_uctx(uctx);
        if let Some(eq) = self.core.eqs.get_mut(eqn) {
            eq.refs += 1;
        }
        Ok(cqn)
    }

    fn destroy_cq(&mut self, cqn: u32) -> Result<(), Status> {
        let cq = self.core.cqs.get(cqn).ok_or(Status::BadCq)?;
        if cq.refs > 0 {
            return Err(Status::InUse);
        }
        let (eqn, uctx) = (cq.eqn, cq.uctx);
        self.core.forget_notice(cqn);
        self.release_uctx(uctx);
        self.core.cqs.remove(cqn);
        if let Some(eq) = self.core.eqs.get_mut(eqn) {
            eq.refs -= 1;
        }
        Ok(())
    }

    /// What has been gathered by the old rule is told at once.
    fn modify_cq<M: Dma>(
        &mut self,
        mem: &M,
        now: Instant,
        cqn: u32,
        cmd: &ModifyCq,
    ) -> Result<(), Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let (count, period) = (cmd.count.get(), cmd.period.get());
        if count > 1 && period == 0 {
            return Err(Status::BadParameter);
        }
        let cq = self.core.cqs.get_mut(cqn).ok_or(Status::BadCq)?;
        cq.moderation = Moderation {
            count,
            period: Nanos(u64::from(period) * 1000),
        };
        let (eqn, waits) = (cq.eqn, cq.due.is_some());
        if waits {
            self.context(now, mem).notify_cq(eqn, cqn);
        }
        Ok(())
    }

    fn resize_cq<M: Dma>(&mut self, mem: &M, cqn: u32, cmd: &ResizeCq) -> Result<(), Status> {
        if cmd.reserved != [0; 3] {
            return Err(Status::ReservedNotZero);
        }
        let log_depth = check_depth(cmd.log_depth, self.core.config.limits.max_cqe)?;
        let cq = self.core.cqs.get_mut(cqn).ok_or(Status::BadCq)?;
        let budget = &self.core.budget;
        let ring = Ring::load(&cmd.ring, log_depth, ENTRY_SHIFT, true, budget, mem)?;
        let (fits, moved) = cq.resize(mem, ring, cmd.consumer.get());
        self.core.charge(u64::from(moved) * work::LOOK);
        match fits {
            true => Ok(()),
            false => Err(Status::CqNotEmpty),
        }
    }

    fn create_tag_srq<M: Dma>(&mut self, mem: &M, cmd: &CreateTmSrq) -> Result<u32, Status> {
        let limits = &self.core.config.limits;
        if cmd.reserved != [0; 11] || cmd.srq.xrcd.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        if cmd.srq.kind != 0 {
            return Err(Status::NotSupported);
        }
        if !(1..=limits.max_tm_tags).contains(&cmd.max_tags.get()) {
            return Err(Status::BadAttribute);
        }
        let log_depth = check_depth(cmd.ops_log_depth, limits.max_tm_ops)?;
        let ops = Ring::load(
            &cmd.ops,
            log_depth,
            TM_OP_SHIFT as u8,
            true,
            &self.core.budget,
            mem,
        )?;
        let max_tags = cmd.max_tags.get();
        let held = self.core.budget.take(TagList::size(max_tags));
        let held = held.ok_or(Status::NoResources)?;
        let tags = TagList::new(cmd.srq.cqn.get(), ops, max_tags, held);
        self.create_srq(mem, &cmd.srq, Some(Box::new(tags)))
    }

    fn create_srq<M: Dma>(
        &mut self,
        mem: &M,
        cmd: &CreateSrq,
        tags: Option<Box<TagList>>,
    ) -> Result<u32, Status> {
        let (xrcd, cqn) = (cmd.xrcd.get(), cmd.cqn.get());
        let is_xrc = cmd.kind == 1;
        let with_cq = is_xrc || tags.is_some();
        if cmd.reserved != [0; 8] || (!is_xrc && xrcd != 0) || (!with_cq && cqn != 0) {
            return Err(Status::ReservedNotZero);
        }
        if cmd.kind > 1 {
            return Err(Status::NotSupported);
        }
        let (pd, uctx, limit) = (cmd.pd.get(), cmd.uctx.get(), cmd.limit.get());
        self.pd(pd)?;
        self.check_uctx(uctx)?;
        if is_xrc {
            self.xrcd(xrcd)?;
        }
        if with_cq {
            let cq = self.core.cqs.get(cqn).ok_or(Status::BadCq)?;
            if cq.uctx != uctx {
                return Err(Status::DomainMismatch);
            }
        }
        let log_depth = check_depth(cmd.log_depth, self.core.config.limits.max_srq_wr)?;
        let stride = check_recv_stride(cmd.stride_shift, cmd.max_sge)?;
        if limit > 1 << log_depth {
            return Err(Status::BadAttribute);
        }
        let ring = Ring::load(&cmd.ring, log_depth, stride, true, &self.core.budget, mem)?;
        let make = |_| Srq {
            pd,
            uctx,
            refs: 0,
            error_told: false,
            limit,
            ring: RecvRing::new(ring, cmd.max_sge),
            xrc: is_xrc.then_some((xrcd, cqn)),
            tags,
        };
        let srqn = self
            .core
            .srqs
            .insert_with(make)
            .ok_or(Status::NoResources)?;
        self.hold_uctx(uctx);
        self.pd(pd)?.refs += 1;
        if is_xrc {
            *self.xrcd(xrcd)? += 1;
        }
        if with_cq && let Some(cq) = self.core.cqs.get_mut(cqn) {
            cq.refs += 1;
        }
        Ok(srqn)
    }

    fn destroy_srq(&mut self, srqn: u32) -> Result<(), Status> {
        let srq = self.core.srqs.get(srqn).ok_or(Status::BadSrq)?;
        if srq.refs > 0 {
            return Err(Status::InUse);
        }
        let (pd, uctx, xrc, cqn) = (srq.pd, srq.uctx, srq.xrc, srq.cqn());
        self.core.srqs.remove(srqn);
        self.release_uctx(uctx);
        self.release_pd(pd);
        if let Some((xrcd, _)) = xrc {
            self.release_xrcd(xrcd);
        }
        if let Some(cq) = cqn.and_then(|cqn| self.core.cqs.get_mut(cqn)) {
            cq.refs -= 1;
        }
        Ok(())
    }

    fn release_xrcd(&mut self, xrcd: u32) {
        if let Some(refs) = self.core.xrcds.get_mut(xrcd) {
            *refs -= 1;
        }
    }

    fn resize_srq<M: Dma>(&mut self, mem: &M, srqn: u32, cmd: &ResizeSrq) -> Result<(), Status> {
        if cmd.reserved != [0; 7] {
            return Err(Status::ReservedNotZero);
        }
        let log_depth = check_depth(cmd.log_depth, self.core.config.limits.max_srq_wr)?;
        let srq = self.core.srqs.get_mut(srqn).ok_or(Status::BadSrq)?;
        if srq.limit > 1 << log_depth {
            return Err(Status::BadAttribute);
        }
        let ring = Ring::load(
            &cmd.ring,
            log_depth,
            srq.ring.stride_shift(),
            true,
            &self.core.budget,
            mem,
        )?;
        let (resized, moved) = srq.ring.resize(mem, ring);
        // Entries are short: to find them costs more than to copy them.
        self.core.charge(work::of_frames(0, 4 * moved));
        resized
    }

    fn modify_srq(&mut self, srqn: u32, cmd: &ModifySrq) -> Result<(), Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let srq = self.core.srqs.get_mut(srqn).ok_or(Status::BadSrq)?;
        if cmd.limit.get() > srq.ring.depth() {
            return Err(Status::BadAttribute);
        }
        srq.limit = cmd.limit.get();
        Ok(())
    }

    fn query_srq(&mut self, srqn: u32) -> Result<Answer, Status> {
        let srq = self.core.srqs.get(srqn).ok_or(Status::BadSrq)?;
        let answer = QuerySrq {
            limit: U32::new(srq.limit),
            ..QuerySrq::default()
        };
        Ok(answer_with(srqn, &answer))
    }

    fn create_qp<M: Dma>(&mut self, mem: &M, cmd: &CreateQp) -> Result<u32, Status> {
        if cmd.reserved0 != 0 || cmd.reserved1 != [0; 8] {
            return Err(Status::ReservedNotZero);
        }
        if cmd.qp_type == QPT_XRC_TGT {
            return self.create_xrc_target(cmd);
        }
        if cmd.xrcd.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let flags = cmd.flags.get();
        if flags & !(QP_FLAG_SIG_ALL | QP_FLAG_SRQ) != 0 {
            return Err(Status::BadParameter);
        }
        let kind = QpType::from_abi(cmd.qp_type).ok_or(Status::BadQpType)?;
        let (pd, uctx) = (cmd.pd.get(), cmd.uctx.get());
        self.pd(pd)?;
        self.check_uctx(uctx)?;
        let (send_cqn, recv_cqn) = (cmd.send_cqn.get(), cmd.recv_cqn.get());
        for cqn in [send_cqn, recv_cqn] {
            let cq = self.core.cqs.get(cqn).ok_or(Status::BadCq)?;
            if cq.uctx != uctx {
                return Err(Status::DomainMismatch);
            }
        }
        let with_srq = flags & QP_FLAG_SRQ != 0;
        let srqn = with_srq.then(|| cmd.srqn.get());
        if let Some(srqn) = srqn {
            let srq = self.core.srqs.get(srqn).ok_or(Status::BadSrq)?;
            // The receives of an XRC SRQ are for the targets of its domain.
            if srq.xrc.is_some() || kind == QpType::XrcIni {
                return Err(Status::BadSrq);
            }
            // Others have no READ, by which a rendezvous gets its data.
            if srq.tags.is_some() && kind != QpType::Rc {
                return Err(Status::BadSrq);
            }
        }
        let sq = self.load_send_ring(mem, cmd)?;
        let rq = if kind == QpType::XrcIni {
            // An initiator receives nothing but responses.
            if cmd.rq.as_bytes().iter().any(|byte| *byte != 0) || cmd.max_recv_sge != 0 {
                return Err(Status::ReservedNotZero);
            }
            None
        } else if with_srq {
            None
        } else {
            Some(self.load_recv_ring(mem, cmd)?)
        };
        let config = QpConfig {
            kind,
            pd,
            uctx,
            send_cqn,
            recv_cqn,
            srqn,
            sig_all: flags & QP_FLAG_SIG_ALL != 0,
            max_send_sge: cmd.max_send_sge,
            max_inline: cmd.max_inline.get(),
            xrcd: None,
            rss: None,
        };
        let number = self.add_qp(config, Some(sq), rq)?;
        self.pd(pd)?.refs += 1;
        for cqn in [send_cqn, recv_cqn] {
            if let Some(cq) = self.core.cqs.get_mut(cqn) {
                cq.refs += 1;
            }
        }
        if let Some(srq) = srqn.and_then(|srqn| self.core.srqs.get_mut(srqn)) {
            srq.refs += 1;
        }
        Ok(number)
    }

    /// Makes a queue pair or a work queue; what it refers to has been checked.
    pub(crate) fn add_qp(
        &mut self,
        config: QpConfig,
        sq: Option<Ring>,
        rq: Option<RecvRing>,
    ) -> Result<u32, Status> {
        let held = self.core.budget.take(Qp::SIZE);
        let held = held.ok_or(Status::NoResources)?;
        let policy = self.core.config.fault_policy;
        let uctx = config.uctx;
        if config.kind != QpType::Gsi {
            let make = |number| Qp::new(number, config, policy, (sq, rq), held);
            let number = self.qps.insert_with(make).ok_or(Status::NoResources)?;
            self.hold_uctx(uctx);
            return Ok(number);
        }
        // QP1 belongs to the kernel.
        if config.uctx != 0 {
            return Err(Status::DomainMismatch);
        }
        if self.gsi.is_some() {
            return Err(Status::InUse);
        }
        let qp = Qp::new(GSI_QPN, config, policy, (sq, rq), held);
        self.gsi = Some(Box::new(qp));
        Ok(GSI_QPN)
    }

    /// A target has no queues of its own: it belongs to its domain, and outlives the process that made it (IBTA
    /// annex A14).
    fn create_xrc_target(&mut self, cmd: &CreateQp) -> Result<u32, Status> {
        let xrcd = cmd.xrcd.get();
        let expected = CreateQp {
            qp_type: QPT_XRC_TGT,
            xrcd: cmd.xrcd,
            ..CreateQp::default()
        };
        if cmd.as_bytes() != expected.as_bytes() {
            return Err(Status::ReservedNotZero);
        }
        self.xrcd(xrcd)?;
        let config = QpConfig {
            xrcd: Some(xrcd),
            ..QpConfig::without_queues(QpType::XrcTgt, 0, 0)
        };
        let number = self.add_qp(config, None, None)?;
        *self.xrcd(xrcd)? += 1;
        Ok(number)
    }

    fn load_send_ring<M: Dma>(&self, mem: &M, cmd: &CreateQp) -> Result<Ring, Status> {
        let log_depth = check_depth(cmd.sq_log_depth, self.core.config.limits.max_qp_wr)?;
        if u32::from(cmd.max_send_sge) > MAX_SGE {
            return Err(Status::BadStride);
        }
        let sges = u32::from(cmd.max_send_sge) * size_of::<Sge>() as u32;
        let data = sges.max(cmd.max_inline.get());
        let need = SQ_WQE_DATA.checked_add(data).ok_or(Status::BadStride)?;
        let stride = check_stride(cmd.sq_stride_shift, SQ_MIN_STRIDE_SHIFT, need)?;
        Ring::load(&cmd.sq, log_depth, stride, true, &self.core.budget, mem)
    }

    fn load_recv_ring<M: Dma>(&self, mem: &M, cmd: &CreateQp) -> Result<RecvRing, Status> {
        let log_depth = check_depth(cmd.rq_log_depth, self.core.config.limits.max_qp_wr)?;
        let stride = check_recv_stride(cmd.rq_stride_shift, cmd.max_recv_sge)?;
        let ring = Ring::load(&cmd.rq, log_depth, stride, true, &self.core.budget, mem)?;
        Ok(RecvRing::new(ring, cmd.max_recv_sge))
    }

    /// The queue pair with this number. Work queues share the numbers, but are none.
    fn queue_pair(&mut self, number: u32) -> Result<&mut Qp, Status> {
        Self::qp_mut(&mut self.qps, &mut self.gsi, number)
            .filter(|qp| qp.config.kind != QpType::Wq)
            .ok_or(Status::BadQp)
    }

    fn destroy_qp<M: Dma>(&mut self, now: Instant, mem: &M, number: u32) -> Result<(), Status> {
        if self.queue_pair(number)?.references > 0 {
            return Err(Status::InUse);
        }
        if let Some((qp, mut cx)) = self.qp_in_context(now, mem, number) {
            qp.give_back_tagged(&mut cx);
        }
        self.remove_qp(number);
        Ok(())
    }

    /// Takes away a queue pair or work queue that nothing refers to.
    pub(crate) fn remove_qp(&mut self, number: u32) {
        let qp = match number {
            GSI_QPN => self.gsi.take().map(|qp| *qp),
            _ => self.qps.remove(number),
        };
        let Some(mut qp) = qp else { return };
        qp.release(&mut self.core);
        self.core.counters.release(qp.counters);
        // Nearly always all of its windows have been freed.
        while !self.core.mkeys.forget_qp(number) {}
        let config = qp.config;
        self.release_uctx(config.uctx);
        for cqn in [config.send_cqn, config.recv_cqn] {
            if let Some(cq) = self.core.cqs.get_mut(cqn) {
                cq.refs -= 1;
            }
        }
        if let Some(srq) = config.srqn.and_then(|srqn| self.core.srqs.get_mut(srqn)) {
            srq.refs -= 1;
        }
        if let Some(rss) = config.rss {
            self.release_rwq_table(rss.table);
        }
        match config.xrcd {
            Some(xrcd) => self.release_xrcd(xrcd),
            None => self.release_pd(config.pd),
        }
        if self.core.netdev.qpn == number {
            self.core.netdev.qpn = 0;
        }
    }

    fn modify_qp<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u32,
        change: &QpAttr,
    ) -> Result<(), Status> {
        if self.queue_pair(number)?.config.kind == QpType::Rss {
            return Err(Status::BadQpType);
        }
        let qp = Self::qp_mut(&mut self.qps, &mut self.gsi, number).ok_or(Status::BadQp)?;
        if change.reserved0 != 0 || change.reserved1 != [0; 30] {
            return Err(Status::ReservedNotZero);
        }
        let max_rd_atomic = self.core.config.limits.max_rd_atomic;
        state::check(qp.config.kind, qp.state(), change, max_rd_atomic)?;
        let path = match change.mask.get() & faultline_abi::qp::QP_ATTR_AV {
            0 => None,
            _ => Some(Path::resolve(&change.av, &self.core.gids, number)?),
        };
        let answers = change.mask.get() & faultline_abi::qp::QP_ATTR_MAX_DEST_RD_ATOMIC != 0;
        if answers && !qp.reserve_answers(&self.core.budget, change.max_dest_rd_atomic) {
            return Err(Status::NoResources);
        }
        let mut cx = Context::new(&mut self.core, now, mem, qp.counters);
        qp.apply(&mut cx, change, path);
        Ok(())
    }

    fn query_qp(&mut self, number: u32) -> Result<Answer, Status> {
        Ok(answer_with(number, &self.queue_pair(number)?.query()))
    }

    fn create_ah(&mut self, cmd: &CreateAh) -> Result<u32, Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let pd = cmd.pd.get();
        self.pd(pd)?;
        let flow = u32::from_le_bytes([cmd.av.dgid[15], cmd.av.dgid[14], cmd.av.dmac[5], 0]);
        let path = Path::resolve(&cmd.av, &self.core.gids, flow)?;
        let ahs = &mut self.core.ahs;
        let ah = ahs
            .insert_with(|_| Ah { pd, path })
            .ok_or(Status::NoResources)?;
        self.pd(pd)?.refs += 1;
        Ok(ah)
    }

    fn destroy_ah(&mut self, ah: u32) -> Result<(), Status> {
        let ah = self.core.ahs.remove(ah).ok_or(Status::BadAh)?;
        self.release_pd(ah.pd);
        Ok(())
    }

    fn set_gid(&mut self, index: u32, cmd: &SetGid) -> Result<(), Status> {
        if cmd.reserved != [0; 7] {
            return Err(Status::ReservedNotZero);
        }
        let vlan = match cmd.vlan.get() {
            NO_VLAN => None,
            vid @ 0..=4094 => Some(vid),
            _ => return Err(Status::BadParameter),
        };
        let mac = MacAddr(cmd.mac);
        let entry = match cmd.valid {
            0 => None,
            1 if cmd.gid == Gid::ZERO.0 => return Err(Status::BadGid),
            1 if mac.is_multicast() => return Err(Status::BadParameter),
            1 => Some(GidEntry {
                gid: Gid(cmd.gid),
                mac,
                vlan,
            }),
            _ => return Err(Status::BadParameter),
        };
        match self.core.set_gid(index, entry) {
            true => Ok(()),
            false => Err(Status::BadGid),
        }
    }

    fn set_netdev(&mut self, cmd: &SetNetdev) -> Result<(), Status> {
        let (flags, qpn) = (cmd.flags.get(), cmd.qpn.get());
        if flags & !(NETDEV_PROMISC | NETDEV_ALLMULTI | NETDEV_UP) != 0 {
            return Err(Status::BadParameter);
        }
        if !(MIN_MTU..=MAX_MTU).contains(&cmd.mtu.get()) || MacAddr(cmd.mac).is_multicast() {
            return Err(Status::BadParameter);
        }
        if qpn != 0 {
            let qp = self.qps.get(qpn).ok_or(Status::BadQp)?;
            let takes_frames = matches!(qp.config.kind, QpType::Raw | QpType::Rss);
            if !takes_frames || qp.config.uctx != 0 {
                return Err(Status::BadQpType);
            }
        }
        self.core.netdev.configure(cmd);
        Ok(())
    }

    fn bind_counters(&mut self, number: u32, cmd: &BindCounters) -> Result<(), Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let qp = Self::qp_mut(&mut self.qps, &mut self.gsi, number).ok_or(Status::BadQp)?;
        let set = CounterSet::from_number(cmd.counters.get());
        self.core.counters.hold(set)?;
        self.core.counters.release(qp.counters);
        qp.counters = set;
        Ok(())
    }

    fn query_counters<M: Dma>(
        &mut self,
        mem: &M,
        set: u32,
        cmd: &QueryCounters,
    ) -> Result<u32, Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let held = self.core.budget.used() as u64;
        self.core.counters.set(Counter::table_bytes, held);
        let bytes: Vec<u8> = self
            .core
            .counters
            .values_of(set)?
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let n = bytes.len().min(cmd.len.get() as usize);
        let part = bytes.get(..n).unwrap_or(&[]);
        mem.write(cmd.addr.get(), part)
            .map_err(|_| Status::DmaError)?;
        Ok(Counter::COUNT as u32)
    }
}
