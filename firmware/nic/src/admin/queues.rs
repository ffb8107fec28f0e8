//! Commands on event queues, completion queues and shared receive queues.

use faultline_abi::admin::{
    CreateCq, CreateEq, CreateSrq, EQ_ASYNC, EQ_FAULTS, ModifyCq, ModifySrq, QuerySrq, ResizeCq,
    ResizeSrq,
};
use faultline_abi::tag::{CreateTmSrq, TM_OP_SHIFT};
use faultline_abi::{Status, U32, regs};

use super::command::Answer;
use super::sizes::{check_depth, check_recv_stride};
use crate::cq::{Cq, Moderation};
use crate::dma::Dma;
use crate::eq::Eq;
use crate::nic::Nic;
use crate::receive_queue::RecvRing;
use crate::references::References;
use crate::ring::Ring;
use crate::srq::Srq;
use crate::tag::list::TagList;
use crate::time::{Instant, Nanos};
use crate::work;

/// log2 of the size of completion and event queue entries.
const ENTRY_SHIFT: u8 = 6;
/// log2 of the size of an operation on a tag list.
const OP_SHIFT: u8 = (TM_OP_SHIFT & 0xff) as u8;

impl Nic {
    pub(super) fn create_eq<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        cmd: &CreateEq,
    ) -> Result<u32, Status> {
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
            // The driver learns the state of the link from the first event.
            let kind = self.port_event();
            self.context(now, mem).raise_async(kind, 1);
        }
        if flags & EQ_FAULTS != 0 {
            self.core.faults.eqn = Some(eqn);
        }
        Ok(eqn)
    }

    pub(super) fn destroy_eq(&mut self, eqn: u32) -> Result<(), Status> {
        let eq = self.core.eqs.get(eqn).ok_or(Status::BadEq)?;
        if eq.refs.any() {
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

    pub(super) fn create_cq<M: Dma>(&mut self, mem: &M, cmd: &CreateCq) -> Result<u32, Status> {
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
            eq.refs.add();
        }
        Ok(cqn)
    }

    pub(super) fn destroy_cq(&mut self, cqn: u32) -> Result<(), Status> {
        let cq = self.core.cqs.get(cqn).ok_or(Status::BadCq)?;
        if cq.refs.any() {
            return Err(Status::InUse);
        }
        let (eqn, uctx) = (cq.eqn, cq.uctx);
        self.core.forget_notice(cqn);
        self.release_uctx(uctx);
        self.core.cqs.remove(cqn);
        if let Some(eq) = self.core.eqs.get_mut(eqn) {
            eq.refs.remove();
        }
        Ok(())
    }

    /// Changes the moderation of a CQ. A completion event that the old parameters delay is written at once.
    pub(super) fn modify_cq<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
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
        let (eqn, waits) = (cq.eqn, cq.event_due.is_some());
        if waits {
            self.context(now, mem).notify_cq(eqn, cqn);
        }
        Ok(())
    }

    pub(super) fn resize_cq<M: Dma>(
        &mut self,
        mem: &M,
        cqn: u32,
        cmd: &ResizeCq,
    ) -> Result<(), Status> {
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

    pub(super) fn create_tag_srq<M: Dma>(
        &mut self,
        mem: &M,
        cmd: &CreateTmSrq,
    ) -> Result<u32, Status> {
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
        let ops = Ring::load(&cmd.ops, log_depth, OP_SHIFT, true, &self.core.budget, mem)?;
        let max_tags = cmd.max_tags.get();
        let held = self.core.budget.take(TagList::size(max_tags));
        let held = held.ok_or(Status::NoResources)?;
        let tags = TagList::new(cmd.srq.cqn.get(), ops, max_tags, held);
        self.create_srq(mem, &cmd.srq, Some(Box::new(tags)))
    }

    pub(super) fn create_srq<M: Dma>(
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
            refs: References::default(),
            error_reported: false,
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
        self.pd(pd)?.refs.add();
        if is_xrc {
            self.xrcd(xrcd)?.add();
        }
        if with_cq && let Some(cq) = self.core.cqs.get_mut(cqn) {
            cq.refs.add();
        }
        Ok(srqn)
    }

    pub(super) fn destroy_srq(&mut self, srqn: u32) -> Result<(), Status> {
        let srq = self.core.srqs.get(srqn).ok_or(Status::BadSrq)?;
        if srq.refs.any() {
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
            cq.refs.remove();
        }
        Ok(())
    }

    pub(super) fn resize_srq<M: Dma>(
        &mut self,
        mem: &M,
        srqn: u32,
        cmd: &ResizeSrq,
    ) -> Result<(), Status> {
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
        // Entries are short: the look-up of each costs more than its copy.
        self.core
            .charge(work::of_frames(0, moved.saturating_mul(4)));
        resized
    }

    pub(super) fn modify_srq(&mut self, srqn: u32, cmd: &ModifySrq) -> Result<(), Status> {
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

    pub(super) fn query_srq(&mut self, srqn: u32) -> Result<Answer, Status> {
        let srq = self.core.srqs.get(srqn).ok_or(Status::BadSrq)?;
        let answer = QuerySrq {
            limit: U32::new(srq.limit),
            ..QuerySrq::default()
        };
        Ok(Answer::with_value(srqn, &answer))
    }
}
