//! Commands on the Ethernet side: GID table, netdev, multicast groups, flows, work queues and RSS.

use faultline_abi::admin::{
    MacFilterEntry, NETDEV_ALLMULTI, NETDEV_PROMISC, NETDEV_UP, SetGid, SetMacFilter, SetNetdev,
};
use faultline_abi::steering::{
    CreateFlow, CreateRssQp, CreateRwqIndTable, CreateWq, FLOW_KIND_NORMAL, FLOW_KINDS, FlowFields,
    Mcast, ModifyWq, WQS_ERR, WQS_RDY, WQS_RESET,
};
use faultline_abi::{Status, U32};
use faultline_wire::{Gid, MacAddr};
use zerocopy::{FromZeros, IntoBytes};

use super::sizes::{check_depth, check_recv_stride};
use crate::config::{MAX_MTU, Transport};
use crate::dma::Dma;
use crate::gid_table::{GidEntry, MAX_VLAN, NO_VLAN};
use crate::nic::Nic;
use crate::port_security::PortSecurity;
use crate::qp::{QpConfig, QpType, State, WorkQueue};
use crate::queues::Queue;
use crate::receive_queue::RecvRing;
use crate::ring::Ring;
use crate::rss::{Rss, RssQp, RwqIndTable};
use crate::time::Instant;

/// Smallest Ethernet MTU (RFC 791).
const MIN_MTU: u16 = 68;

impl Nic {
    /// Refuses a command that an iWARP adapter does not have.
    pub(super) fn require_roce(&self) -> Result<(), Status> {
        match self.core.config.transport {
            Transport::Roce => Ok(()),
            Transport::Iwarp => Err(Status::NotSupported),
        }
    }

    pub(super) fn set_gid(&mut self, index: u32, cmd: &SetGid) -> Result<(), Status> {
        if cmd.reserved != [0; 7] {
            return Err(Status::ReservedNotZero);
        }
        let vlan = match cmd.vlan.get() {
            NO_VLAN => None,
            vid @ 0..=MAX_VLAN => Some(vid),
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
        let config = &self.core.config;
        let permits = |security: &PortSecurity| security.permits(config.mac, Gid(cmd.gid));
        if entry.is_some() && !config.addresses.as_ref().is_none_or(permits) {
            return Err(Status::NotSupported);
        }
        let core = &mut self.core;
        if core.gids.set(index, entry).ok_or(Status::BadGid)? {
            core.gate.changed(&core.config, &core.netdev);
        }
        Ok(())
    }

    pub(super) fn set_netdev(&mut self, cmd: &SetNetdev) -> Result<(), Status> {
        let (flags, qpn) = (cmd.flags.get(), cmd.qpn.get());
        if flags & !(NETDEV_PROMISC | NETDEV_ALLMULTI | NETDEV_UP) != 0 {
            return Err(Status::BadParameter);
        }
        if !(MIN_MTU..=MAX_MTU).contains(&cmd.mtu.get()) || MacAddr(cmd.mac).is_multicast() {
            return Err(Status::BadParameter);
        }
        if MacAddr(cmd.mac) != self.core.config.mac && !self.core.config.mac_change {
            return Err(Status::NotSupported);
        }
        if qpn != 0 {
            let queue = self.queues.get(qpn).ok_or(Status::BadQp)?;
            if !queue.takes_flows() || queue.uctx() != 0 {
                return Err(Status::BadQpType);
            }
        }
        let core = &mut self.core;
        core.netdev.configure(cmd);
        core.gate.changed(&core.config, &core.netdev);
        Ok(())
    }

    pub(super) fn set_mac_filter<M: Dma>(
        &mut self,
        mem: &M,
        cmd: &SetMacFilter,
    ) -> Result<(), Status> {
        let count = cmd.count.get();
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        if count > self.core.config.limits.max_mac_filter {
            return Err(Status::NoResources);
        }
        let mut entries = vec![MacFilterEntry::default(); count as usize];
        if count > 0 {
            mem.read(cmd.addr.get(), entries.as_mut_bytes())
                .map_err(|_| Status::DmaError)?;
        }
        if entries.iter().any(|entry| entry.reserved != [0; 2]) {
            return Err(Status::ReservedNotZero);
        }
        let mut filter: Vec<_> = entries.iter().map(|entry| MacAddr(entry.mac)).collect();
        filter.sort_unstable();
        self.core.netdev.filter = filter;
        Ok(())
    }

    /// A repeated attach has no further effect (IBTA 11.3.1).
    pub(super) fn attach_mcast(&mut self, qpn: u32, cmd: &Mcast) -> Result<(), Status> {
        self.require_roce()?;
        match self.queues.get(qpn).ok_or(Status::BadQp)? {
            Queue::Pair(qp) if qp.endpoint.config.kind == QpType::Ud => {}
            _ => return Err(Status::BadQpType),
        }
        if self.groups.attach(Gid(cmd.gid), qpn)? {
            self.hold_queue(qpn);
        }
        Ok(())
    }

    pub(super) fn detach_mcast(&mut self, qpn: u32, cmd: &Mcast) -> Result<(), Status> {
        self.queues.get(qpn).ok_or(Status::BadQp)?;
        self.groups.detach(Gid(cmd.gid), qpn)?;
        self.release_queue(qpn);
        Ok(())
    }

    /// Adds a reference to a queue.
    fn hold_queue(&mut self, number: u32) {
        if let Some(queue) = self.queues.get_mut(number) {
            queue.references_mut().add();
        }
    }

    fn release_queue(&mut self, number: u32) {
        if let Some(queue) = self.queues.get_mut(number) {
            queue.references_mut().remove();
        }
    }

    pub(super) fn create_flow<M: Dma>(&mut self, mem: &M, cmd: &CreateFlow) -> Result<u32, Status> {
        if cmd.reserved != [0; 8] {
            return Err(Status::ReservedNotZero);
        }
        if usize::from(cmd.kind) >= FLOW_KINDS.constants.len() {
            return Err(Status::NotSupported);
        }
        let queue = self.queues.get(cmd.qpn.get()).ok_or(Status::BadQp)?;
        if !queue.takes_flows() {
            return Err(Status::BadQpType);
        }
        let addr = cmd.fields_addr.get();
        if cmd.kind != FLOW_KIND_NORMAL {
            if addr != 0 {
                return Err(Status::BadParameter);
            }
            return self.add_flow(cmd, None);
        }
        let mut fields = <[FlowFields; 2]>::new_zeroed();
        mem.read(addr, fields.as_mut_bytes())
            .map_err(|_| Status::DmaError)?;
        self.add_flow(cmd, Some(fields.into()))
    }

    fn add_flow(
        &mut self,
        cmd: &CreateFlow,
        fields: Option<(FlowFields, FlowFields)>,
    ) -> Result<u32, Status> {
        // Adding a rule moves the rules behind it.
        self.core.charge(self.steering.cost());
        let flow = self.steering.create(cmd, fields)?;
        self.hold_queue(cmd.qpn.get());
        Ok(flow)
    }

    pub(super) fn destroy_flow(&mut self, number: u32) -> Result<(), Status> {
        self.core.charge(self.steering.cost());
        let flow = self.steering.destroy(number).ok_or(Status::BadFlow)?;
        self.release_queue(flow.target.qpn);
        Ok(())
    }

    fn wq(&mut self, number: u32) -> Result<&mut WorkQueue, Status> {
        self.queues.wq_mut(number).ok_or(Status::BadWq)
    }

    pub(super) fn create_wq<M: Dma>(&mut self, mem: &M, cmd: &CreateWq) -> Result<u32, Status> {
        if cmd.reserved != [0; 9] {
            return Err(Status::ReservedNotZero);
        }
        let (pd, uctx, cqn) = (cmd.pd.get(), cmd.uctx.get(), cmd.cqn.get());
        self.pd(pd)?;
        self.check_uctx(uctx)?;
        let cq = self.core.cqs.get(cqn).ok_or(Status::BadCq)?;
        if cq.uctx != uctx {
            return Err(Status::DomainMismatch);
        }
        let log_depth = check_depth(cmd.log_depth, self.core.config.limits.max_qp_wr)?;
        let stride = check_recv_stride(cmd.stride_shift, cmd.max_sge)?;
        let ring = Ring::load(&cmd.ring, log_depth, stride, true, &self.core.budget, mem)?;
        let ring = RecvRing::new(ring, cmd.max_sge);
        let config = QpConfig {
            recv_cqn: cqn,
            ..QpConfig::without_queues(QpType::Raw, pd, uctx)
        };
        let policy = self.core.config.fault_policy;
        let number = self.add_queue(uctx, |number, held| {
            Queue::Work(WorkQueue::new(number, config, policy, ring, held))
        })?;
        self.pd(pd)?.refs.add();
        if let Some(cq) = self.core.cqs.get_mut(cqn) {
            cq.refs.add();
        }
        Ok(number)
    }

    pub(super) fn destroy_wq(&mut self, number: u32) -> Result<(), Status> {
        if self.wq(number)?.references.any() {
            return Err(Status::InUse);
        }
        self.remove_queue(number);
        Ok(())
    }

    pub(super) fn modify_wq<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u32,
        cmd: &ModifyWq,
    ) -> Result<(), Status> {
        if cmd.reserved != [0; 7] {
            return Err(Status::ReservedNotZero);
        }
        let from = self.wq(number)?.endpoint.state;
        let to = match cmd.state {
            WQS_RESET => State::Reset,
            WQS_RDY => State::Rts,
            WQS_ERR => State::Err,
            _ => return Err(Status::BadAttribute),
        };
        match (from, to) {
            (State::Err, State::Rts) => return Err(Status::BadTransition),
            (from, to) if from == to => return Ok(()),
            _ => {}
        }
        if let Some((Queue::Work(wq), mut cx)) = self.queue_in_context(now, mem, number) {
            wq.enter(&mut cx, to);
        }
        Ok(())
    }

    pub(super) fn create_rwq_ind_table<M: Dma>(
        &mut self,
        mem: &M,
        cmd: &CreateRwqIndTable,
    ) -> Result<u32, Status> {
        if cmd.reserved != [0; 7] {
            return Err(Status::ReservedNotZero);
        }
        if u32::from(cmd.log_size) > self.core.config.limits.max_rwq_ind_table_log_size {
            return Err(Status::BadDepth);
        }
        let mut numbers = vec![U32::new(0); 1 << cmd.log_size];
        mem.read(cmd.addr.get(), numbers.as_mut_bytes())
            .map_err(|_| Status::DmaError)?;
        let wqs: Vec<u32> = numbers.iter().map(|number| number.get()).collect();
        let mut uctx = None;
        for number in &wqs {
            let queue = self.queues.get(*number).ok_or(Status::BadWq)?;
            if !queue.takes_hashed_frames() {
                return Err(Status::BadWq);
            }
            if *uctx.get_or_insert(queue.uctx()) != queue.uctx() {
                return Err(Status::DomainMismatch);
            }
        }
        let table = RwqIndTable::new(wqs.clone(), uctx.unwrap_or(0));
        let tables = &mut self.rwq_ind_tables;
        let number = tables.insert_with(|_| table).ok_or(Status::NoResources)?;
        for wq in wqs {
            self.hold_queue(wq);
        }
        Ok(number)
    }

    pub(super) fn destroy_rwq_ind_table(&mut self, number: u32) -> Result<(), Status> {
        let table = self
            .rwq_ind_tables
            .get(number)
            .ok_or(Status::BadRwqIndTable)?;
        if table.refs.any() {
            return Err(Status::InUse);
        }
        let table = self
            .rwq_ind_tables
            .remove(number)
            .ok_or(Status::BadRwqIndTable)?;
        for wq in table.queues() {
            self.release_queue(*wq);
        }
        Ok(())
    }

    /// Removes the reference of an RSS queue pair to an indirection table.
    pub(super) fn release_rwq_ind_table(&mut self, number: u32) {
        if let Some(table) = self.rwq_ind_tables.get_mut(number) {
            table.refs.remove();
        }
    }

    pub(super) fn create_rss_qp(&mut self, cmd: &CreateRssQp) -> Result<u32, Status> {
        if cmd.reserved != [0; 8] {
            return Err(Status::ReservedNotZero);
        }
        let (pd, uctx, table) = (cmd.pd.get(), cmd.uctx.get(), cmd.table.get());
        self.pd(pd)?;
        self.check_uctx(uctx)?;
        let found = self
            .rwq_ind_tables
            .get(table)
            .ok_or(Status::BadRwqIndTable)?;
        if found.uctx != uctx {
            return Err(Status::DomainMismatch);
        }
        let rss = Rss::new(table, cmd.hash_fields.get(), cmd.key)?;
        let number = self.add_queue(uctx, |_, held| Queue::Rss(RssQp::new(pd, uctx, rss, held)))?;
        self.pd(pd)?.refs.add();
        if let Some(table) = self.rwq_ind_tables.get_mut(table) {
            table.refs.add();
        }
        Ok(number)
    }
}
