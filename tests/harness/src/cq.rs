//! Completion queues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use faultline_abi::admin::{self, CreateCq, ModifyCq, ResizeCq};
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::{U16, U32, doorbell};
use zerocopy::IntoBytes;

use crate::domain::Context;
use crate::error::{DriverError, RingError};
use crate::event::EventQueue;
use crate::nic::Object;
use crate::ring::{RingLayout, RingMemory};

const ENTRY: usize = size_of::<Cqe>();
/// Looks before the thread lets others run.
const SPINS: u32 = 128;

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// Send: number of the work request. Receive: its tag.
    pub id: u32,
    /// QP.
    pub qpn: u32,
    /// Bytes received, or returned by a READ or an atomic.
    pub len: u32,
    /// Immediate data, or the key that was invalidated.
    pub imm: u32,
    /// UD: QP that sent it.
    pub src_qp: u32,
    /// FAULTLINE_WC_*.
    pub opcode: u8,
    /// FAULTLINE_WC_STATUS_*.
    pub status: u8,
    /// FAULTLINE_CQE_*.
    pub flags: u8,
    /// FAULTLINE_VENDOR_ERR_*.
    pub vendor_err: u8,
    /// Raw: tag of the flow. Tag matching: `app_ctx` of the message.
    pub flow_tag: u32,
    /// Tag matching: the SRQ.
    pub srqn: u32,
    /// Tag matching: tag of the message.
    pub tm_tag: u64,
    /// FAULTLINE_CQE_TM_*.
    pub tm_flags: u8,
}

impl Wc {
    /// Whether it succeeded.
    pub fn is_ok(&self) -> bool {
        self.status == cqe::SUCCESS
    }

    /// Whether it belongs to a receive.
    pub fn is_receive(&self) -> bool {
        self.opcode & cqe::RECV != 0
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    object: Arc<Object>,
    ring: Arc<RingMemory>,
    page: u32,
    log_depth: u8,
    consumer: u32,
}

impl Context {
    /// Creates a completion queue of 2^`log_depth` entries that sends its notices to `eq`.
    pub fn cq(&self, eq: &EventQueue, log_depth: u8) -> Result<Cq, DriverError> {
        self.cq_with(eq, log_depth, RingLayout::default())
    }

    /// As [`Context::cq`], with a choice of how the ring is described.
    pub fn cq_with(
        &self,
        eq: &EventQueue,
        log_depth: u8,
        layout: RingLayout,
    ) -> Result<Cq, DriverError> {
        let ring = RingMemory::new(self.nic(), ENTRY << log_depth, layout)?;
        let create = CreateCq {
            ring: ring.desc(),
            log_depth,
            eqn: U32::new(eq.number()),
            uctx: U32::new(self.page()),
            ..CreateCq::default()
        };
        let mut keep = self.keep();
        keep.push(ring.clone());
        keep.push(eq.object().clone());
        let opcodes = (admin::CREATE_CQ, admin::DESTROY_CQ);
        Ok(Cq {
            object: Object::create(self.nic(), opcodes, &create, keep)?,
            ring,
            page: self.page(),
            log_depth,
            consumer: 0,
        })
    }
}

impl Cq {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.handle()
    }

    pub(crate) fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Takes the next completion.
    #[inline]
    pub fn poll(&mut self) -> Option<Wc> {
        let mask = (1u32 << self.log_depth) - 1;
        let at = (self.consumer & mask) as usize * ENTRY;
        let phase = u64::from(!(self.consumer >> self.log_depth) & 1);
        if self.ring.load_u64(at + ENTRY - 8) >> 56 != phase {
            return None;
        }
        let mut cqe = Cqe::default();
        self.ring.read(at, cqe.as_mut_bytes());
        self.consumer = self.consumer.wrapping_add(1);
        self.ring.store_u32(self.ring.record(), self.consumer);
        let imm = if cqe.flags & cqe::CQE_INVALIDATE != 0 {
            cqe.imm.get()
        } else {
            u32::from_be_bytes(cqe.imm.to_bytes())
        };
        Some(Wc {
            id: cqe.wqe.get(),
            qpn: cqe.qpn.get(),
            len: cqe.byte_len.get(),
            imm,
            src_qp: cqe.src_qp.get(),
            opcode: cqe.opcode,
            status: cqe.status,
            flags: cqe.flags,
            vendor_err: cqe.vendor_err,
            flow_tag: cqe.flow_tag.get(),
            srqn: cqe.srqn.get(),
            tm_tag: u64::from(cqe.tm_tag[0].get()) | u64::from(cqe.tm_tag[1].get()) << 32,
            tm_flags: cqe.tm_flags,
        })
    }

    /// Polls until there is a completion; `None` if none comes in time.
    pub fn poll_for(&mut self, timeout: Duration) -> Option<Wc> {
        let mut start = None;
        let mut spins = 0u32;
        loop {
            if let Some(wc) = self.poll() {
                return Some(wc);
            }
            spins += 1;
            if !spins.is_multiple_of(SPINS) {
                std::hint::spin_loop();
                continue;
            }
            if start.get_or_insert_with(Instant::now).elapsed() > timeout {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Asks for one notice to the event queue when there is a completion that has not been taken, or only for
    /// one that was solicited or failed.
    pub fn arm(&self, solicited: bool) -> Result<(), RingError> {
        let kind = if solicited {
            doorbell::CQ_ARM_SOLICITED
        } else {
            doorbell::CQ_ARM
        };
        self.object.ring(self.page, kind, self.consumer)
    }

    /// The next completion: polls, arms the CQ, and sleeps until its event queue says that there is one.
    pub fn wait(
        &mut self,
        eq: &mut EventQueue,
        timeout: Duration,
    ) -> Result<Option<Wc>, DriverError> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(wc) = self.poll() {
                return Ok(Some(wc));
            }
            self.arm(false)?;
            let left = end.saturating_duration_since(Instant::now());
            if eq.wait(left)?.is_none() {
                return Ok(self.poll());
            }
        }
    }

    /// Lets notices wait for `count` completions, or for `period` microseconds after the first.
    pub fn moderate(&self, count: u16, period: u16) -> Result<(), DriverError> {
        let modify = ModifyCq {
            count: U16::new(count),
            period: U16::new(period),
            ..ModifyCq::default()
        };
        self.object.command(admin::MODIFY_CQ, &modify).map(drop)
    }

    /// Moves to a ring of another depth; nothing is lost.
    pub fn resize(&mut self, log_depth: u8) -> Result<(), DriverError> {
        let layout = RingLayout::Contiguous;
        let ring = RingMemory::new(self.object.nic(), ENTRY << log_depth, layout)?;
        let resize = ResizeCq {
            ring: ring.desc(),
            log_depth,
            consumer: U32::new(self.consumer),
            ..ResizeCq::default()
        };
        self.object.command(admin::RESIZE_CQ, &resize)?;
        // Counts begin anew with the ring.
        self.consumer = 0;
        self.ring = ring;
        self.log_depth = log_depth;
        Ok(())
    }
}
