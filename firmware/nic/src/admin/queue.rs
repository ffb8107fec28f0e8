//! The admin queue: its rings, turns and completions, and the dispatch of commands.

use faultline_abi::admin::{self as abi, AdminComp, Counter};
use faultline_abi::{Status, U16, U32, event, regs};
use zerocopy::IntoBytes;

use super::command::{AdminCmd, Answer};
use crate::context::object_event;
use crate::diagnostic::{CommandQueue, Diagnostic};
use crate::dma::Dma;
use crate::injection::commands::CommandFate;
use crate::nic::Nic;
use crate::ring::write_entry;
use crate::time::Instant;
use crate::work;

/// Commands in a turn: each may go through all objects of the NIC.
const BATCH: u32 = 32;

impl Nic {
    /// Executes admin commands up to the producer index, and returns false if that is out of range. New commands wait
    /// behind those that were deferred.
    pub(crate) fn run_admin<M: Dma>(&mut self, now: Instant, mem: &M, producer: u32) -> bool {
        let behind = self.admin.has_work();
        let in_range = self.admin.announce(producer);
        if !behind {
            self.continue_admin(now, mem);
        }
        in_range
    }

    /// Executes admin commands until there are none left or the turn is over.
    pub(crate) fn continue_admin<M: Dma>(&mut self, now: Instant, mem: &M) {
        let (turn, mut count) = (self.core.begin_turn(), 0);
        loop {
            if count == BATCH || self.core.is_over(turn) || !self.core.mkeys.free_old_tables() {
                self.core.defer(now);
                break;
            }
            if !self.admin.has_work() {
                break;
            }
            let mut raw = abi::AdminCmd::default();
            let at = self.admin.command(size_of::<abi::AdminCmd>());
            if mem.read(at, raw.as_mut_bytes()).is_err() {
                self.core.fatal = regs::RING_DMA;
                return;
            }
            let opcode = raw.hdr.opcode.get();
            let command = match self.command_fate(now, CommandQueue::Admin, opcode, None) {
                CommandFate::Execute => AdminCmd::parse(&raw),
                CommandFate::Refuse(status) => Err(status),
                CommandFate::Wait => break,
            };
            if command.as_ref().is_ok_and(|cmd| !self.is_prepared(cmd)) {
                self.core.defer(now);
                break;
            }
            count = count.wrapping_add(1);
            self.core.charge(work::COMMAND);
            let (at, phase) = self.admin.completion(size_of::<AdminComp>());
            self.admin.advance();
            let result = command.and_then(|cmd| self.execute_command(now, mem, &cmd));
            if result.is_err() {
                self.core.counters.inc(Counter::command_errors);
            }
            let status = result.err().unwrap_or(Status::Ok);
            let answer = result.unwrap_or(Answer::done(()));
            let handle = answer.handle.map_or(raw.hdr.handle, U32::new);
            self.core.diagnose(
                now,
                Diagnostic::Command {
                    queue: CommandQueue::Admin,
                    opcode,
                    status: status as u16,
                    object: handle.get(),
                },
            );
            let completion = AdminComp {
                id: raw.hdr.id,
                status: U16::new(status as u16),
                handle,
                body: answer.body,
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

    /// Does the work before a command that may take several turns. Returns false if some of it is left: the command stays
    /// in the ring until the next turn.
    fn is_prepared(&mut self, cmd: &AdminCmd) -> bool {
        match cmd {
            AdminCmd::DestroyQp { qpn } => {
                let is_used = !self
                    .queue_pair(*qpn)
                    .is_ok_and(|qp| !qp.references_mut().any());
                is_used || self.core.mkeys.forget_qp(*qpn)
            }
            _ => true,
        }
    }

    fn execute_iwarp_command<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        cmd: &AdminCmd,
    ) -> Result<Answer, Status> {
        match cmd {
            AdminCmd::CreateListener(body) => self.create_listener(body).map(Answer::object),
            AdminCmd::DestroyListener { listener } => {
                let destroyed = self.destroy_listener(now, mem, *listener);
                destroyed.map(Answer::done)
            }
            AdminCmd::Connect { qpn, body } => self.connect(now, mem, *qpn, body).map(Answer::done),
            AdminCmd::Accept { qpn, body } => self.accept(now, mem, *qpn, body).map(Answer::done),
            AdminCmd::Reject { request, body } => {
                self.reject(now, mem, *request, body).map(Answer::done)
            }
            AdminCmd::QueryRequest { request, body } => self.query_request(mem, *request, body),
            AdminCmd::QueryConnection { qpn, body } => self.query_connection(mem, *qpn, body),
            // Executed by the caller.
            _ => Err(Status::BadOpcode),
        }
    }

    fn execute_command<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        cmd: &AdminCmd,
    ) -> Result<Answer, Status> {
        match cmd {
            AdminCmd::Nop => Ok(Answer::done(())),
            AdminCmd::AllocUctx(body) => self.alloc_uctx(mem, body).map(Answer::object),
            AdminCmd::DeallocUctx { page } => self.dealloc_uctx(*page).map(Answer::done),
            AdminCmd::CreateEq(body) => self.create_eq(now, mem, body).map(Answer::object),
            AdminCmd::DestroyEq { eqn } => self.destroy_eq(*eqn).map(Answer::done),
            AdminCmd::AllocPd(body) => self.alloc_pd(body).map(Answer::object),
            AdminCmd::DeallocPd { pd } => self.dealloc_pd(*pd).map(Answer::done),
            AdminCmd::AllocXrcd => {
                self.require_roce()?;
                self.alloc_xrcd().map(Answer::object)
            }
            AdminCmd::DeallocXrcd { xrcd } => self.dealloc_xrcd(*xrcd).map(Answer::done),
            AdminCmd::CreateMkey(body) => self.create_mkey(body).map(Answer::object),
            AdminCmd::ModifyMkey { key, body } => {
                self.modify_mkey(now, mem, *key, body).map(Answer::done)
            }
            AdminCmd::DestroyMkey { key } => self.destroy_mkey(now, mem, *key).map(Answer::done),
            AdminCmd::CreateCq(body) => self.create_cq(mem, body).map(Answer::object),
            AdminCmd::DestroyCq { cqn } => self.destroy_cq(*cqn).map(Answer::done),
            AdminCmd::ModifyCq { cqn, body } => {
                self.modify_cq(now, mem, *cqn, body).map(Answer::done)
            }
            AdminCmd::ResizeCq { cqn, body } => self.resize_cq(mem, *cqn, body).map(Answer::done),
            AdminCmd::CreateSrq(body) => self.create_srq(mem, body, None).map(Answer::object),
            AdminCmd::CreateTmSrq(body) => {
                self.require_roce()?;
                self.create_tag_srq(mem, body).map(Answer::object)
            }
            AdminCmd::DestroySrq { srqn } => self.destroy_srq(*srqn).map(Answer::done),
            AdminCmd::ResizeSrq { srqn, body } => {
                self.resize_srq(mem, *srqn, body).map(Answer::done)
            }
            AdminCmd::ModifySrq { srqn, body } => self.modify_srq(*srqn, body).map(Answer::done),
            AdminCmd::QuerySrq { srqn } => self.query_srq(*srqn),
            AdminCmd::CreateQp(body) => self.create_qp(mem, body).map(Answer::object),
            AdminCmd::DestroyQp { qpn } => self.destroy_qp(now, mem, *qpn).map(Answer::done),
            AdminCmd::ModifyQp { qpn, body } => {
                self.modify_qp(now, mem, *qpn, body).map(Answer::done)
            }
            AdminCmd::QueryQp { qpn } => self.query_qp(*qpn),
            AdminCmd::CreateAh(body) => self.create_ah(body).map(Answer::object),
            AdminCmd::DestroyAh { ah } => self.destroy_ah(*ah).map(Answer::done),
            AdminCmd::SetGid { index, body } => self.set_gid(*index, body).map(Answer::done),
            AdminCmd::SetNetdev(body) => self.set_netdev(body).map(Answer::done),
            AdminCmd::SetMacFilter(body) => self.set_mac_filter(mem, body).map(Answer::done),
            AdminCmd::AttachMcast { qpn, body } => self.attach_mcast(*qpn, body).map(Answer::done),
            AdminCmd::DetachMcast { qpn, body } => self.detach_mcast(*qpn, body).map(Answer::done),
            AdminCmd::CreateFlow(body) => self.create_flow(mem, body).map(Answer::object),
            AdminCmd::DestroyFlow { flow } => self.destroy_flow(*flow).map(Answer::done),
            AdminCmd::CreateWq(body) => self.create_wq(mem, body).map(Answer::object),
            AdminCmd::DestroyWq { wqn } => self.destroy_wq(*wqn).map(Answer::done),
            AdminCmd::ModifyWq { wqn, body } => {
                self.modify_wq(now, mem, *wqn, body).map(Answer::done)
            }
            AdminCmd::CreateRwqIndTable(body) => {
                self.create_rwq_ind_table(mem, body).map(Answer::object)
            }
            AdminCmd::DestroyRwqIndTable { table } => {
                self.destroy_rwq_ind_table(*table).map(Answer::done)
            }
            AdminCmd::CreateRssQp(body) => self.create_rss_qp(body).map(Answer::object),
            AdminCmd::QueryCounters { set, body } => {
                self.query_counters(mem, *set, body).map(Answer::object)
            }
            AdminCmd::AllocCounters => self.core.counters.alloc().map(Answer::object),
            AdminCmd::DeallocCounters { set } => self.core.counters.free(*set).map(Answer::done),
            AdminCmd::BindCounters { qpn, body } => {
                self.bind_counters(*qpn, body).map(Answer::done)
            }
            AdminCmd::AllocDm(body) => self.alloc_dm(mem, body),
            AdminCmd::DeallocDm { dm } => self.core.device_memory.free(*dm).map(Answer::done),
            AdminCmd::CreateDmMkey(body) => self.create_dm_mkey(body).map(Answer::object),
            AdminCmd::CreateListener(_)
            | AdminCmd::DestroyListener { .. }
            | AdminCmd::Connect { .. }
            | AdminCmd::Accept { .. }
            | AdminCmd::Reject { .. }
            | AdminCmd::QueryRequest { .. }
            | AdminCmd::QueryConnection { .. } => self.execute_iwarp_command(now, mem, cmd),
        }
    }
}
