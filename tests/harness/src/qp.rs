//! Queue pairs and shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use faultline_abi::admin::{
    self, CreateQp, CreateSrq, ModifySrq, QP_FLAG_SIG_ALL, QP_FLAG_SRQ, QuerySrq,
};
use faultline_abi::qp::{self as abi, QpAttr};
use faultline_abi::wqe::{RQ_WQE_DATA, RqWqe, SQ_WQE_DATA, Sge, SqWqe, WqRecord};
use faultline_abi::{U32, U64, doorbell};
use zerocopy::IntoBytes;

use crate::cq::{Cq, Wc};
use crate::domain::{Context, Pd, path_to};
use crate::error::{DriverError, PostError, RingError};
use crate::nic::{Nic, Object, answer};
use crate::ring::{RingLayout, RingMemory};
use crate::wr::{Data, SendWr};

/// Bytes of a work request that are put together before they are copied into the ring.
const HEAD: usize = 64;

/// Transport of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpType {
    /// General services (QP 1).
    Gsi = abi::QPT_GSI,
    /// Reliable connection.
    Rc = abi::QPT_RC,
    /// Unreliable connection.
    Uc = abi::QPT_UC,
    /// Unreliable datagram.
    Ud = abi::QPT_UD,
    /// Raw Ethernet frames.
    Raw = abi::QPT_RAW,
}

/// Shape of a QP.
#[derive(Clone, Debug)]
pub struct QpOptions {
    /// log2 of the send queue's depth.
    pub send_depth: u8,
    /// log2 of the receive queue's depth.
    pub recv_depth: u8,
    /// SGEs in a send.
    pub send_sge: u8,
    /// SGEs in a receive.
    pub recv_sge: u8,
    /// Inline bytes in a send.
    pub inline: u32,
    /// Every send makes a completion.
    pub sig_all: bool,
    /// Description of the rings.
    pub layout: RingLayout,
}

impl Default for QpOptions {
    fn default() -> Self {
        Self {
            send_depth: 6,
            recv_depth: 6,
            send_sge: 1,
            recv_sge: 1,
            inline: 16,
            sig_all: false,
            layout: RingLayout::default(),
        }
    }
}

/// What connects two QPs.
#[derive(Clone, Debug)]
pub struct Link {
    /// 1 = 256 … 5 = 4096 bytes.
    pub path_mtu: u8,
    /// Local ACK timeout, 4.096 us * 2^n.
    pub timeout: u8,
    /// Transport retries.
    pub retries: u8,
    /// RNR retries; 7 = for ever.
    pub rnr_retries: u8,
    /// Code of the RNR timer.
    pub rnr_timer: u8,
    /// READs and atomics at once.
    pub rd_atomic: u8,
    /// What the peer may do.
    pub access: u32,
    /// Traffic class of the packets: DSCP and ECN bits.
    pub traffic_class: u8,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            path_mtu: 5,
            timeout: 14,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: 1,
            rd_atomic: 16,
            access: abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC,
            traffic_class: 0,
        }
    }
}

fn log2_ceil(bytes: u32, min: u32) -> u8 {
    bytes.next_power_of_two().trailing_zeros().max(min) as u8
}

/// A ring of receive work requests.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    pub(crate) ring: Arc<RingMemory>,
    pub(crate) log_depth: u8,
    pub(crate) stride: u8,
    pub(crate) max_sge: u8,
    pub(crate) producer: u32,
}

impl RecvQueue {
    const CONSUMER: usize = std::mem::offset_of!(WqRecord, consumer);
    const NOTIFY: usize = std::mem::offset_of!(WqRecord, notify);

    pub(crate) fn new(
        nic: &Nic,
        log_depth: u8,
        max_sge: u8,
        layout: RingLayout,
    ) -> Result<Self, DriverError> {
        let stride = log2_ceil(RQ_WQE_DATA + u32::from(max_sge) * 16, 5);
        Ok(Self {
            ring: RingMemory::new(nic, 1 << (log_depth + stride), layout)?,
            log_depth,
            stride,
            max_sge,
            producer: 0,
        })
    }

    fn slot(&self) -> usize {
        let index = self.producer & ((1 << self.log_depth) - 1);
        (index as usize) << self.stride
    }

    #[inline]
    pub(crate) fn post(&mut self, tag: u32, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > usize::from(self.max_sge) {
            return Err(PostError::TooManySges);
        }
        let taken = self.ring.load_u32(self.ring.record() + Self::CONSUMER);
        if self.producer.wrapping_sub(taken) >= 1 << self.log_depth {
            return Err(PostError::Full);
        }
        let at = self.slot();
        let head = RqWqe {
            tag: U32::new(tag),
            num_sge: sges.len() as u8,
            ..RqWqe::default()
        };
        self.ring.write(at, head.as_bytes());
        self.ring.write(at + RQ_WQE_DATA as usize, sges.as_bytes());
        self.publish();
        Ok(())
    }

    fn publish(&mut self) {
        self.producer = self.producer.wrapping_add(1);
        self.ring.store_u32(self.ring.record(), self.producer);
    }

    fn post_raw(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(1 << self.stride);
        self.ring.write(self.slot(), &bytes[..len]);
        self.publish();
    }

    /// Whether the device wants to hear of new requests.
    #[inline]
    pub(crate) fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ring.load_u32(self.ring.record() + Self::NOTIFY) != 0
    }

    /// Empty, as after a reset.
    pub(crate) fn clear(&mut self) {
        self.producer = 0;
        self.ring.clear();
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    pub(crate) object: Arc<Object>,
    pub(crate) queue: RecvQueue,
}

impl Context {
    /// Creates an SRQ of 2^`log_depth` entries of at most `max_sge` SGEs.
    pub fn srq(&self, pd: &Pd, log_depth: u8, max_sge: u8, limit: u32) -> Result<Srq, DriverError> {
        let queue = RecvQueue::new(self.nic(), log_depth, max_sge, RingLayout::default())?;
        let create = CreateSrq {
            ring: queue.ring.desc(),
            pd: U32::new(pd.number()),
            uctx: U32::new(self.page()),
            log_depth,
            stride_shift: queue.stride,
            max_sge,
            limit: U32::new(limit),
            ..CreateSrq::default()
        };
        let mut keep = self.keep();
        keep.push(queue.ring.clone());
        keep.push(pd.object().clone());
        let opcodes = (admin::CREATE_SRQ, admin::DESTROY_SRQ);
        Ok(Srq {
            object: Object::create(self.nic(), opcodes, &create, keep)?,
            queue,
        })
    }

    /// Creates a queue pair. With an SRQ it has no receive queue of its own.
    #[expect(clippy::too_many_arguments, reason = "as in `ibv_qp_init_attr`")]
    pub fn qp(
        &self,
        pd: &Pd,
        kind: QpType,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: Option<&Srq>,
        options: &QpOptions,
    ) -> Result<Qp, DriverError> {
        let nic = self.nic();
        let data = (u32::from(options.send_sge) * 16).max(options.inline);
        let stride = log2_ceil(SQ_WQE_DATA + data, 6);
        let ring = RingMemory::new(nic, 1 << (options.send_depth + stride), options.layout)?;
        let queue = match srq {
            Some(_) => None,
            None => Some(RecvQueue::new(
                nic,
                options.recv_depth,
                options.recv_sge,
                options.layout,
            )?),
        };
        let mut flags = 0;
        if options.sig_all {
            flags |= QP_FLAG_SIG_ALL;
        }
        if srq.is_some() {
            flags |= QP_FLAG_SRQ;
        }
        let mut create = CreateQp {
            sq: ring.desc(),
            pd: U32::new(pd.number()),
            uctx: U32::new(self.page()),
            send_cqn: U32::new(send_cq.number()),
            recv_cqn: U32::new(recv_cq.number()),
            srqn: U32::new(srq.map_or(0, |srq| srq.object.handle())),
            flags: U32::new(flags),
            qp_type: kind as u8,
            sq_log_depth: options.send_depth,
            sq_stride_shift: stride,
            max_send_sge: options.send_sge,
            max_inline: U32::new(options.inline),
            ..CreateQp::default()
        };
        let mut keep = self.keep();
        keep.push(ring.clone());
        keep.push(pd.object().clone());
        keep.push(send_cq.object().clone());
        keep.push(recv_cq.object().clone());
        if let Some(srq) = srq {
            keep.push(srq.object.clone());
        }
        if let Some(queue) = &queue {
            keep.push(queue.ring.clone());
            create.rq = queue.ring.desc();
            create.rq_log_depth = queue.log_depth;
            create.rq_stride_shift = queue.stride;
            create.max_recv_sge = queue.max_sge;
        }
        let opcodes = (admin::CREATE_QP, admin::DESTROY_QP);
        Ok(Qp {
            object: Object::create(nic, opcodes, &create, keep)?,
            kind,
            page: self.page(),
            ring,
            log_depth: options.send_depth,
            stride,
            max_sge: options.send_sge,
            max_inline: options.inline,
            producer: 0,
            completed: 0,
            queue,
        })
    }
}

impl Srq {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.handle()
    }

    /// Posts a receive.
    pub fn post(&mut self, tag: u32, sges: &[Sge]) -> Result<(), PostError> {
        self.queue.post(tag, sges)
    }

    /// Posts bytes as they are.
    pub fn post_raw(&mut self, bytes: &[u8]) {
        self.queue.post_raw(bytes);
    }

    /// Arms the limit event.
    pub fn set_limit(&self, limit: u32) -> Result<(), DriverError> {
        let modify = ModifySrq {
            limit: U32::new(limit),
            ..ModifySrq::default()
        };
        self.object.command(admin::MODIFY_SRQ, &modify).map(drop)
    }

    /// The limit, zero once the event was raised.
    pub fn limit(&self) -> Result<u32, DriverError> {
        let body = self.object.command(admin::QUERY_SRQ, &[0u8; 0])?;
        Ok(answer::<QuerySrq>(&body)?.limit.get())
    }
}

/// A queue pair.
///
/// Posting neither allocates nor locks. The driver learns from [`Qp::retire`] which entries are free again.
#[derive(Debug)]
pub struct Qp {
    object: Arc<Object>,
    kind: QpType,
    page: u32,
    ring: Arc<RingMemory>,
    log_depth: u8,
    stride: u8,
    max_sge: u8,
    max_inline: u32,
    producer: u32,
    completed: u32,
    queue: Option<RecvQueue>,
}

impl Qp {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.handle()
    }

    pub(crate) fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Its device.
    pub fn nic(&self) -> &Nic {
        self.object.nic()
    }

    /// Number of the next send work request.
    pub fn next_index(&self) -> u32 {
        self.producer
    }

    /// Send work requests that fit now.
    pub fn room(&self) -> u32 {
        (1 << self.log_depth) - self.producer.wrapping_sub(self.completed)
    }

    /// Puts a work request into the send queue without telling the device; returns its number.
    #[inline]
    pub fn stage(&mut self, wr: &SendWr<'_>) -> Result<u32, PostError> {
        if self.room() == 0 {
            return Err(PostError::Full);
        }
        let (data, num_sge, inline_len): (&[u8], usize, usize) = match wr.data {
            Data::Sges(sges) => (sges.as_bytes(), sges.len(), 0),
            Data::Inline(bytes) => (bytes, 0, bytes.len()),
        };
        if num_sge > usize::from(self.max_sge) {
            return Err(PostError::TooManySges);
        }
        if inline_len > self.max_inline as usize {
            return Err(PostError::TooMuchInline);
        }
        let head = SqWqe {
            opcode: wr.opcode,
            flags: wr.flags,
            num_sge: num_sge as u8,
            reserved0: 0,
            imm: U32::from_bytes(wr.imm.to_be_bytes()),
            inline_len: U32::new(inline_len as u32),
            rkey: U32::new(wr.remote.key),
            remote_addr: U64::new(wr.remote.addr),
            compare_add: U64::new(wr.compare_add),
            swap: U64::new(wr.swap),
            ah: U32::new(wr.ah),
            remote_qpn: U32::new(wr.remote_qpn),
        };
        const DATA: usize = SQ_WQE_DATA as usize;
        let mut bytes = [0u8; HEAD];
        bytes[..DATA].copy_from_slice(head.as_bytes());
        let first = data.len().min(HEAD - DATA);
        bytes[DATA..DATA + first].copy_from_slice(&data[..first]);
        let at = self.slot();
        self.ring.write(at, &bytes);
        if data.len() > first {
            self.ring.write(at + HEAD, &data[first..]);
        }
        let index = self.producer;
        self.producer = index.wrapping_add(1);
        Ok(index)
    }

    /// Rings for all staged requests.
    #[inline]
    pub fn ring(&self) -> Result<(), RingError> {
        self.object.ring(self.page, doorbell::SQ, self.producer)
    }

    /// Posts one send work request; returns its number.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<u32, PostError> {
        let index = self.stage(wr)?;
        self.ring()?;
        Ok(index)
    }

    /// Posts bytes as they are.
    pub fn post_raw(&mut self, bytes: &[u8]) -> Result<u32, PostError> {
        if self.room() == 0 {
            return Err(PostError::Full);
        }
        let len = bytes.len().min(1 << self.stride);
        self.ring.write(self.slot(), &bytes[..len]);
        let index = self.producer;
        self.producer = index.wrapping_add(1);
        self.ring()?;
        Ok(index)
    }

    fn slot(&self) -> usize {
        let index = self.producer & ((1 << self.log_depth) - 1);
        (index as usize) << self.stride
    }

    /// A completion of a send of this QP has been taken: its entry and those before it are free.
    #[inline]
    pub fn retire(&mut self, wc: &Wc) {
        if wc.qpn == self.number() && !wc.is_receive() {
            self.completed = wc.id.wrapping_add(1);
        }
    }

    /// Posts a receive.
    #[inline]
    pub fn post_recv(&mut self, tag: u32, sges: &[Sge]) -> Result<(), PostError> {
        let queue = self.queue.as_mut().ok_or(PostError::Full)?;
        queue.post(tag, sges)?;
        let producer = queue.producer;
        if queue.notify() {
            self.object.ring(self.page, doorbell::RQ, producer)?;
        }
        Ok(())
    }

    /// Changes attributes.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), DriverError> {
        self.object.command(admin::MODIFY_QP, attr).map(drop)
    }

    /// Sets the fault policy.
    pub fn set_fault_policy(&self, policy: u8) -> Result<(), DriverError> {
        self.modify(&QpAttr {
            mask: U32::new(abi::QP_ATTR_FAULT_POLICY),
            fault_policy: policy,
            ..QpAttr::default()
        })
    }

    /// All attributes.
    pub fn query(&self) -> Result<QpAttr, DriverError> {
        answer(&self.object.command(admin::QUERY_QP, &[0u8; 0])?)
    }

    /// State, FAULTLINE_QPS_*.
    pub fn state(&self) -> Result<u8, DriverError> {
        Ok(self.query()?.state)
    }

    /// To the error state.
    pub fn to_error(&self) -> Result<(), DriverError> {
        self.modify(&state(abi::QPS_ERR, 0))
    }

    /// To RESET; the queues are empty then.
    pub fn to_reset(&mut self) -> Result<(), DriverError> {
        self.modify(&state(abi::QPS_RESET, 0))?;
        self.producer = 0;
        self.completed = 0;
        self.ring.clear();
        if let Some(queue) = &mut self.queue {
            queue.clear();
        }
        Ok(())
    }

    /// To INIT.
    pub fn to_init(&self, access: u32, qkey: u32) -> Result<(), DriverError> {
        let mask = match self.kind {
            QpType::Rc | QpType::Uc => {
                abi::QP_ATTR_PKEY_INDEX | abi::QP_ATTR_PORT | abi::QP_ATTR_ACCESS_FLAGS
            }
            QpType::Ud => abi::QP_ATTR_PKEY_INDEX | abi::QP_ATTR_PORT | abi::QP_ATTR_QKEY,
            QpType::Gsi => abi::QP_ATTR_PKEY_INDEX | abi::QP_ATTR_QKEY,
            QpType::Raw => abi::QP_ATTR_PORT,
        };
        self.modify(&QpAttr {
            access: U32::new(access),
            qkey: U32::new(qkey),
            port: 1,
            ..state(abi::QPS_INIT, mask)
        })
    }

    /// From INIT to RTR towards a peer. PSNs derive from QP numbers.
    pub fn to_rtr(&self, peer: &Nic, peer_qpn: u32, link: &Link) -> Result<(), DriverError> {
        let mut mask = 0;
        if matches!(self.kind, QpType::Rc | QpType::Uc) {
            mask |= abi::QP_ATTR_AV
                | abi::QP_ATTR_PATH_MTU
                | abi::QP_ATTR_DEST_QPN
                | abi::QP_ATTR_RQ_PSN;
        }
        if self.kind == QpType::Rc {
            mask |= abi::QP_ATTR_MAX_DEST_RD_ATOMIC | abi::QP_ATTR_MIN_RNR_TIMER;
        }
        self.modify(&QpAttr {
            path_mtu: link.path_mtu,
            rq_psn: U32::new(first_psn(peer_qpn)),
            dest_qpn: U32::new(peer_qpn),
            max_dest_rd_atomic: link.rd_atomic,
            min_rnr_timer: link.rnr_timer,
            av: abi::AddressVector {
                traffic_class: link.traffic_class,
                ..path_to(peer)
            },
            ..state(abi::QPS_RTR, mask)
        })
    }

    /// From RTR to RTS.
    pub fn to_rts(&self, link: &Link) -> Result<(), DriverError> {
        let mut mask = 0;
        if self.kind != QpType::Raw {
            mask |= abi::QP_ATTR_SQ_PSN;
        }
        if self.kind == QpType::Rc {
            mask |= abi::QP_ATTR_TIMEOUT
                | abi::QP_ATTR_RETRY_CNT
                | abi::QP_ATTR_RNR_RETRY
                | abi::QP_ATTR_MAX_QP_RD_ATOMIC;
        }
        self.modify(&QpAttr {
            sq_psn: U32::new(first_psn(self.number())),
            max_rd_atomic: link.rd_atomic,
            timeout: link.timeout,
            retry_cnt: link.retries,
            rnr_retry: link.rnr_retries,
            ..state(abi::QPS_RTS, mask)
        })
    }

    /// From RESET to RTS as a datagram QP.
    pub fn open_datagrams(&self, qkey: u32) -> Result<(), DriverError> {
        self.to_init(0, qkey)?;
        self.to_rtr(self.nic(), 0, &Link::default())?;
        self.to_rts(&Link::default())
    }
}

/// PSNs of a connection begin near the wrap for some numbers and at arbitrary places for others.
fn first_psn(qpn: u32) -> u32 {
    0xff_fff0_u32.wrapping_add(qpn.wrapping_mul(0x9e_3779)) & 0xff_ffff
}

fn state(state: u8, mask: u32) -> QpAttr {
    QpAttr {
        mask: U32::new(mask | abi::QP_ATTR_STATE),
        state,
        ..QpAttr::default()
    }
}

/// Connects two QPs in RESET with each other, as far as RTS.
pub fn connect(a: &Qp, b: &Qp, link: &Link) -> Result<(), DriverError> {
    for qp in [a, b] {
        qp.to_init(link.access, 0)?;
    }
    a.to_rtr(b.nic(), b.number(), link)?;
    b.to_rtr(a.nic(), a.number(), link)?;
    a.to_rts(link)?;
    b.to_rts(link)
}
