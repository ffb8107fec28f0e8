//! Flows, work queues, indirection tables and RSS queue pairs.

use std::sync::Arc;

use faultline_abi::admin;
use faultline_abi::steering::{
    CreateFlow, CreateRssQp, CreateRwqIndTable, CreateWq, FlowFields, ModifyWq,
};
use faultline_abi::wqe::Sge;
use faultline_abi::{U32, U64, doorbell};
use zerocopy::IntoBytes;

use crate::cq::Cq;
use crate::domain::{Context, Pd};
use crate::error::{DriverError, PostError, RingError};
use crate::nic::{Nic, Object};
use crate::qp::{Qp, RecvQueue};
use crate::ring::RingLayout;

/// Bytes of a Toeplitz key.
pub const HASH_KEY_LEN: usize = 40;

/// The destination of a flow: a raw queue pair or an RSS queue pair.
#[derive(Debug)]
pub struct Receiver(Arc<Object>);

impl From<&Qp> for Receiver {
    fn from(qp: &Qp) -> Self {
        Self(Arc::clone(qp.object()))
    }
}

impl From<&RssQp> for Receiver {
    fn from(qp: &RssQp) -> Self {
        Self(Arc::clone(&qp.0))
    }
}

/// A flow.
#[derive(Debug)]
pub struct Flow(Arc<Object>);

impl Nic {
    /// Steers frames to a receiver; number and address of the fields are filled in. A flow of kind NORMAL has
    /// fields: values, and the mask of the bits that count.
    pub fn flow(
        &self,
        to: impl Into<Receiver>,
        flow: &CreateFlow,
        fields: Option<&(FlowFields, FlowFields)>,
    ) -> Result<Flow, DriverError> {
        let Receiver(target) = to.into();
        let list = self.alloc(2 * size_of::<FlowFields>())?;
        let mut create = *flow;
        create.qpn = U32::new(target.handle());
        if let Some((values, mask)) = fields {
            list.write(0, values.as_bytes());
            list.write(size_of::<FlowFields>(), mask.as_bytes());
            create.fields_addr = U64::new(list.dma(0));
        }
        let opcodes = (admin::CREATE_FLOW, admin::DESTROY_FLOW);
        let keep = vec![target as _];
        Ok(Flow(Object::create(self, opcodes, &create, keep)?))
    }

    /// Makes an indirection table of work queues; their number is a power of two.
    pub fn rwq_ind_table(&self, wqs: &[&Wq]) -> Result<RwqIndTable, DriverError> {
        let list = self.alloc(wqs.len() * 4)?;
        for (n, wq) in wqs.iter().enumerate() {
            list.store_u32(n * 4, wq.number());
        }
        let create = CreateRwqIndTable {
            addr: U64::new(list.dma(0)),
            log_size: wqs.len().max(1).ilog2() as u8,
            ..CreateRwqIndTable::default()
        };
        let keep = wqs.iter().map(|wq| wq.object.clone() as _).collect();
        let opcodes = (admin::CREATE_RWQ_IND_TABLE, admin::DESTROY_RWQ_IND_TABLE);
        Ok(RwqIndTable(Object::create(self, opcodes, &create, keep)?))
    }
}

impl Flow {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.handle()
    }
}

/// A work queue: the receive half of a raw queue pair.
#[derive(Debug)]
pub struct Wq {
    object: Arc<Object>,
    page: u32,
    queue: RecvQueue,
}

/// An indirection table.
#[derive(Debug)]
pub struct RwqIndTable(Arc<Object>);

/// An RSS queue pair, which distributes frames over the work queues of an indirection table.
#[derive(Debug)]
pub struct RssQp(Arc<Object>);

impl Context {
    /// Creates a work queue of 2^`log_depth` entries of one SGE; it is in RESET.
    pub fn wq(&self, pd: &Pd, cq: &Cq, log_depth: u8) -> Result<Wq, DriverError> {
        let queue = RecvQueue::new(self.nic(), log_depth, 1, RingLayout::default())?;
        let create = CreateWq {
            ring: queue.ring.desc(),
            pd: U32::new(pd.number()),
            uctx: U32::new(self.page()),
            cqn: U32::new(cq.number()),
            log_depth,
            stride_shift: queue.stride,
            max_sge: queue.max_sge,
            ..CreateWq::default()
        };
        let mut keep = self.keep();
        keep.push(queue.ring.clone());
        keep.push(pd.object().clone());
        keep.push(cq.object().clone());
        let opcodes = (admin::CREATE_WQ, admin::DESTROY_WQ);
        Ok(Wq {
            object: Object::create(self.nic(), opcodes, &create, keep)?,
            page: self.page(),
            queue,
        })
    }

    /// Creates an RSS queue pair that hashes `fields`, FAULTLINE_HASH_*.
    pub fn rss_qp(
        &self,
        pd: &Pd,
        table: &RwqIndTable,
        fields: u32,
        key: &[u8; HASH_KEY_LEN],
    ) -> Result<RssQp, DriverError> {
        let create = CreateRssQp {
            pd: U32::new(pd.number()),
            uctx: U32::new(self.page()),
            table: U32::new(table.0.handle()),
            hash_fields: U32::new(fields),
            key: *key,
            ..CreateRssQp::default()
        };
        let mut keep = self.keep();
        keep.push(pd.object().clone());
        keep.push(table.0.clone());
        let opcodes = (admin::CREATE_RSS_QP, admin::DESTROY_QP);
        Ok(RssQp(Object::create(self.nic(), opcodes, &create, keep)?))
    }
}

impl RwqIndTable {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.handle()
    }
}

impl RssQp {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.handle()
    }
}

impl Wq {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.handle()
    }

    /// Posts a receive.
    pub fn post(&mut self, tag: u32, sges: &[Sge]) -> Result<(), PostError> {
        self.queue.post(tag, sges)?;
        if self.queue.notify() {
            self.ring()?;
        }
        Ok(())
    }

    /// Rings the doorbell that only a queue in error asks for.
    pub fn ring(&self) -> Result<(), RingError> {
        self.object
            .ring(self.page, doorbell::RQ, self.queue.producer)
    }

    /// Changes the state, FAULTLINE_WQS_*. In RESET it is empty.
    pub fn modify(&mut self, state: u8) -> Result<(), DriverError> {
        let modify = ModifyWq {
            state,
            ..ModifyWq::default()
        };
        self.object.command(admin::MODIFY_WQ, &modify)?;
        if state == faultline_abi::steering::WQS_RESET {
            self.queue.clear();
        }
        Ok(())
    }
}
