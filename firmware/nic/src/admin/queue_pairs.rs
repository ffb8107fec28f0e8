//! Commands on queue pairs and address handles.

use faultline_abi::Status;
use faultline_abi::admin::{CreateAh, CreateQp, QP_FLAG_SIG_ALL, QP_FLAG_SRQ};
use faultline_abi::qp::{QP_ATTR_AV, QP_ATTR_MAX_DEST_RD_ATOMIC, QPT_XRC_TGT, QpAttr};
use faultline_abi::wqe::{SQ_MIN_STRIDE_SHIFT, SQ_WQE_DATA, Sge};
use faultline_wire::GSI_QPN;
use zerocopy::IntoBytes;

use super::command::Answer;
use super::sizes::{check_depth, check_recv_stride, check_stride};
use crate::budget::Held;
use crate::config::{MAX_SGE, Transport};
use crate::context::Context;
use crate::core::Ah;
use crate::dma::Dma;
use crate::iwarp::StreamQp;
use crate::nic::Nic;
use crate::number::len32;
use crate::path::Path;
use crate::qp::{Qp, QpConfig, QpType, State, state};
use crate::queues::Queue;
use crate::receive_queue::RecvRing;
use crate::ring::Ring;
use crate::time::Instant;

impl Nic {
    pub(super) fn create_qp<M: Dma>(&mut self, mem: &M, cmd: &CreateQp) -> Result<u32, Status> {
        if cmd.reserved0 != 0 || cmd.reserved1 != [0; 8] {
            return Err(Status::ReservedNotZero);
        }
        if cmd.qp_type == QPT_XRC_TGT && self.core.config.transport == Transport::Roce {
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
        let is_iwarp = self.core.config.transport == Transport::Iwarp;
        if is_iwarp && !matches!(kind, QpType::Rc | QpType::Raw) {
            return Err(Status::BadQpType);
        }
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
            // A rendezvous needs READ, which only RC has.
            if srq.tags.is_some() && (kind != QpType::Rc || is_iwarp) {
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
        };
        let number = match is_iwarp && kind == QpType::Rc {
            true => self.add_stream_qp(config, sq, rq)?,
            false => self.add_qp(config, Some(sq), rq)?,
        };
        self.pd(pd)?.refs.add();
        for cqn in [send_cqn, recv_cqn] {
            if let Some(cq) = self.core.cqs.get_mut(cqn) {
                cq.refs.add();
            }
        }
        if let Some(srq) = srqn.and_then(|srqn| self.core.srqs.get_mut(srqn)) {
            srq.refs.add();
        }
        Ok(number)
    }

    /// Creates a queue pair. The objects that `config` names have been checked.
    fn add_qp(
        &mut self,
        config: QpConfig,
        sq: Option<Ring>,
        rq: Option<RecvRing>,
    ) -> Result<u32, Status> {
        let policy = self.core.config.fault_policy;
        if config.kind != QpType::Gsi {
            return self.add_queue(config.uctx, |number, held| {
                Queue::Pair(Qp::new(number, config, policy, (sq, rq), held))
            });
        }
        // QP1 belongs to the kernel.
        if config.uctx != 0 {
            return Err(Status::DomainMismatch);
        }
        let held = self.core.budget.take(Queue::SIZE);
        let held = held.ok_or(Status::NoResources)?;
        let qp = Qp::new(GSI_QPN, config, policy, (sq, rq), held);
        let number = self.queues.insert_gsi(qp).ok_or(Status::InUse)?;
        self.core.qp_states.add(State::Reset);
        Ok(number)
    }

    /// Creates an iWARP queue pair. The objects that `config` names have been checked.
    fn add_stream_qp(
        &mut self,
        config: QpConfig,
        sq: Ring,
        rq: Option<RecvRing>,
    ) -> Result<u32, Status> {
        let policy = self.core.config.fault_policy;
        self.add_queue(config.uctx, |number, held| {
            Queue::Stream(StreamQp::new(number, config, policy, (sq, rq), held))
        })
    }

    /// Creates the queue that `make` creates from its number and its part of the budget.
    pub(super) fn add_queue(
        &mut self,
        uctx: u32,
        make: impl FnOnce(u32, Held) -> Queue,
    ) -> Result<u32, Status> {
        let held = self.core.budget.take(Queue::SIZE);
        let held = held.ok_or(Status::NoResources)?;
        let number = self.queues.insert_with(|number| make(number, held));
        let number = number.ok_or(Status::NoResources)?;
        if let Some(state) = self.queues.get(number).and_then(Queue::state) {
            self.core.qp_states.add(state);
        }
        self.hold_uctx(uctx);
        Ok(number)
    }

    /// Creates an XRC target. It has no queues of its own: it belongs to its domain, and outlives the process that
    /// created it (IBTA annex A14).
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
        self.xrcd(xrcd)?.add();
        Ok(number)
    }

    fn load_send_ring<M: Dma>(&self, mem: &M, cmd: &CreateQp) -> Result<Ring, Status> {
        let log_depth = check_depth(cmd.sq_log_depth, self.core.config.limits.max_qp_wr)?;
        if u32::from(cmd.max_send_sge) > MAX_SGE {
            return Err(Status::BadStride);
        }
        let sges = u32::from(cmd.max_send_sge).saturating_mul(len32(size_of::<Sge>()));
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

    /// The queue with this number, if software knows it as a queue pair.
    pub(super) fn queue_pair(&mut self, number: u32) -> Result<&mut Queue, Status> {
        match self.queues.get_mut(number) {
            Some(queue @ (Queue::Pair(_) | Queue::Stream(_) | Queue::Rss(_))) => Ok(queue),
            Some(Queue::Work(_)) | None => Err(Status::BadQp),
        }
    }

    pub(super) fn destroy_qp<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u32,
    ) -> Result<(), Status> {
        if self.queue_pair(number)?.references_mut().any() {
            return Err(Status::InUse);
        }
        if let Some((qp, mut cx)) = self.qp_in_context(now, mem, number) {
            qp.flush_tagged(&mut cx);
        }
        if let Some(qp) = self.queues.stream_mut(number) {
            qp.release(&mut self.core, now);
        }
        self.remove_queue(number);
        Ok(())
    }

    /// Removes a queue without references.
    pub(super) fn remove_queue(&mut self, number: u32) {
        let Some(queue) = self.queues.remove(number) else {
            return;
        };
        if let Some(state) = queue.state() {
            self.core.qp_states.remove(state);
        }
        self.core.counters.release(queue.counters());
        self.release_uctx(queue.uctx());
        match queue {
            Queue::Pair(mut qp) => {
                qp.release(&mut self.core);
                // Usually all of its windows have been freed in turns before.
                while !self.core.mkeys.forget_qp(number) {}
                self.release_objects(&qp.endpoint.config);
            }
            Queue::Stream(qp) => {
                while !self.core.mkeys.forget_qp(number) {}
                self.release_objects(&qp.endpoint.config);
            }
            Queue::Work(mut wq) => {
                wq.stop_waiting(&mut self.core);
                self.release_objects(&wq.endpoint.config);
            }
            Queue::Rss(qp) => {
                self.release_rwq_ind_table(qp.rss.table);
                self.release_pd(qp.pd);
            }
        }
        if self.core.netdev.qpn == number {
            self.core.netdev.qpn = 0;
        }
    }

    /// Removes the references to the objects that a queue was created with.
    fn release_objects(&mut self, config: &QpConfig) {
        for cqn in [config.send_cqn, config.recv_cqn] {
            if let Some(cq) = self.core.cqs.get_mut(cqn) {
                cq.refs.remove();
            }
        }
        if let Some(srq) = config.srqn.and_then(|srqn| self.core.srqs.get_mut(srqn)) {
            srq.refs.remove();
        }
        match config.xrcd {
            Some(xrcd) => self.release_xrcd(xrcd),
            None => self.release_pd(config.pd),
        }
    }

    pub(super) fn modify_qp<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u32,
        change: &QpAttr,
    ) -> Result<(), Status> {
        if change.reserved0 != 0 || change.reserved1 != [0; 30] {
            return Err(Status::ReservedNotZero);
        }
        match self.queue_pair(number)? {
            Queue::Stream(_) => return self.modify_stream_qp(now, mem, number, change),
            Queue::Rss(_) => return Err(Status::BadQpType),
            Queue::Pair(_) | Queue::Work(_) => {}
        }
        let qp = self.queues.qp_mut(number).ok_or(Status::BadQp)?;
        let max_rd_atomic = self.core.config.limits.max_rd_atomic;
        let mig_req = self.core.config.mig_req;
        state::check(qp.endpoint.config.kind, qp.state(), change, max_rd_atomic)?;
        let mut path = match change.mask.get() & QP_ATTR_AV {
            0 => None,
            _ => Some(Path::resolve(&change.av, &self.core.gids, mig_req)?),
        };
        if let Some(path) = &mut path
            && self.core.config.congestion.is_some()
            && qp.endpoint.config.kind.is_connected()
        {
            path.set_ecn_capable();
        }
        let answers = change.mask.get() & QP_ATTR_MAX_DEST_RD_ATOMIC != 0;
        if answers && !qp.reserve_answers(&self.core.budget, change.max_dest_rd_atomic) {
            return Err(Status::NoResources);
        }
        let mut cx = Context::new(&mut self.core, now, mem, qp.endpoint.counters);
        qp.apply(&mut cx, change, path);
        Ok(())
    }

    pub(super) fn query_qp(&mut self, number: u32) -> Result<Answer, Status> {
        let policy = self.core.config.fault_policy;
        let attr = match self.queue_pair(number)? {
            Queue::Pair(qp) => qp.query(),
            Queue::Stream(qp) => qp.query(),
            // It is always in RESET.
            Queue::Rss(_) | Queue::Work(_) => QpAttr {
                fault_policy: policy.number(),
                ..QpAttr::default()
            },
        };
        Ok(Answer::with_value(number, &attr))
    }

    pub(super) fn create_ah(&mut self, cmd: &CreateAh) -> Result<u32, Status> {
        self.require_roce()?;
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let pd = cmd.pd.get();
        self.pd(pd)?;
        let path = Path::resolve(&cmd.av, &self.core.gids, self.core.config.mig_req)?;
        let ahs = &mut self.core.ahs;
        let ah = ahs
            .insert_with(|_| Ah { pd, path })
            .ok_or(Status::NoResources)?;
        self.pd(pd)?.refs.add();
        Ok(ah)
    }

    pub(super) fn destroy_ah(&mut self, ah: u32) -> Result<(), Status> {
        let ah = self.core.ahs.remove(ah).ok_or(Status::BadAh)?;
        self.release_pd(ah.pd);
        Ok(())
    }
}
