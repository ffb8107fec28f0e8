//! The ABI from the driver's side.
//!
//! A caller that breaks a rule of this module (an inline message longer than a request, a receive request for a queue pair with an SRQ)
//! is a mistake in the simulation, and panics.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "numbers are those of the simulation, not of a guest, a peer or a file"
)]

use faultline_abi::admin::{self, *};
use faultline_abi::cqe::Cqe;
use faultline_abi::device_memory::{AllocDm, CreateDmMkey, DmPlace};
use faultline_abi::doorbell::{self, Doorbell};
use faultline_abi::event::Eqe;
use faultline_abi::qp::{self, *};
use faultline_abi::steering::*;
use faultline_abi::translation::{self as tq, TqCmd, TqComp};
use faultline_abi::wqe::{self, RqWqe, SqWqe, WqRecord};
use faultline_abi::{ABI_VERSION, MAGIC, Status, U16, U32, U64, regs};
use faultline_nic::DEVICE_MEMORY;
use faultline_wire::{Gid, MacAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::bus::{Bus, RAM_BASE};

/// log2 of the depth of the admin and translation rings.
const LOG_DEPTH: u32 = 5;
const PAGE: u64 = 4096;

/// The error of a command or an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The device has refused the command.
    #[error("the device refused: {0:?}")]
    Refused(Status),
    /// The status is not one of the ABI.
    #[error("the device gave the unknown status {0}")]
    UnknownStatus(u16),
    /// The device has not answered.
    #[error("the device does not answer")]
    Silent,
    /// The driver's memory is full.
    #[error("no memory left for the test")]
    NoMemory,
}

type Result<T> = std::result::Result<T, Error>;

/// A ring of commands with its completions.
#[derive(Debug)]
struct Channel {
    sq: u64,
    cq: u64,
    producer: u32,
}

impl Channel {
    fn slot(&self) -> u64 {
        u64::from(self.producer & ((1 << LOG_DEPTH) - 1))
    }

    fn phase(&self) -> u8 {
        (!(self.producer >> LOG_DEPTH) & 1) as u8
    }
}

/// An event queue.
#[derive(Debug)]
pub struct Eq {
    /// Number.
    pub eqn: u32,
    ring: u64,
    log_depth: u8,
    consumer: u32,
}

/// Shape of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqConfig {
    /// log2 of its entries.
    pub log_depth: u8,
    /// Event queue.
    pub eqn: u32,
    /// User context.
    pub uctx: u32,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// Number.
    pub cqn: u32,
    uctx: u32,
    ring: u64,
    log_depth: u8,
    /// Entries read.
    pub consumer: u32,
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub struct Mr {
    /// lkey and rkey.
    pub key: u32,
    /// First I/O virtual address.
    pub va: u64,
    /// DMA address of the memory behind it.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// An allocation of device memory.
#[derive(Clone, Copy, Debug)]
pub struct Dm {
    /// Number.
    pub dm: u32,
    /// DMA address.
    pub addr: u64,
    /// Bytes, whole pages.
    pub len: u64,
}

/// Scatter/gather entry.
pub type Sge = (u64, u32, u32);

/// A send work request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Send<'a> {
    /// FAULTLINE_WR_*.
    pub opcode: u8,
    /// FAULTLINE_WR_FLAG_*, without INLINE.
    pub flags: u8,
    /// Immediate data as octets of the wire.
    pub imm: [u8; 4],
    /// Address, length, lkey.
    pub sges: &'a [Sge],
    /// Inline data instead; of a raw frame, in front of it.
    pub inline: Option<&'a [u8]>,
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Compare value or addend.
    pub compare_add: u64,
    /// Swap value.
    pub swap: u64,
    /// Address handle.
    pub ah: u32,
    /// Remote QP of a datagram.
    pub remote_qpn: u32,
    /// Q_Key of a datagram.
    pub qkey: u32,
}

/// Shape of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// FAULTLINE_QPT_*.
    pub kind: u8,
    /// Protection domain.
    pub pd: u32,
    /// User context.
    pub uctx: u32,
    /// CQ of sends.
    pub send_cqn: u32,
    /// CQ of receives.
    pub recv_cqn: u32,
    /// SRQ.
    pub srqn: Option<u32>,
    /// log2 of both depths.
    pub log_depth: u8,
    /// SGEs in a request.
    pub max_sge: u8,
    /// FAULTLINE_QP_FLAG_SIG_ALL or zero.
    pub flags: u32,
}

/// A queue of work requests in memory.
#[derive(Debug)]
pub(crate) struct Wq {
    pub ring: u64,
    pub log_depth: u8,
    pub stride_shift: u8,
    pub producer: u32,
}

impl Wq {
    pub(crate) fn entry(&self) -> u64 {
        let slot = u64::from(self.producer & ((1 << self.log_depth) - 1));
        self.ring + (slot << self.stride_shift)
    }

    pub(crate) fn record(&self) -> u64 {
        self.ring + (1 << (self.log_depth + self.stride_shift))
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Number.
    pub qpn: u32,
    uctx: u32,
    sq: Wq,
    rq: Option<Wq>,
}

impl Qp {
    /// Send work requests posted so far.
    pub fn sends_posted(&self) -> u32 {
        self.sq.producer
    }

    /// Address of the receive queue's record, and its depth.
    pub fn receive_record(&self) -> (u64, u32) {
        let rq = self.rq.as_ref().expect("a QP without SRQ");
        (rq.record(), 1 << rq.log_depth)
    }

    /// Forgets the posted requests, after a transition to RESET.
    pub fn reset(&mut self) {
        self.sq.producer = 0;
        if let Some(rq) = &mut self.rq {
            rq.producer = 0;
        }
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Number.
    pub srqn: u32,
    pub(crate) wq: Wq,
}

impl Srq {
    /// DMA address of the record.
    pub fn record(&self) -> u64 {
        self.wq.record()
    }
}

/// Where a connected QP leads, and how.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    /// GID of the peer.
    pub dgid: Gid,
    /// MAC address of the peer.
    pub dmac: MacAddr,
    /// Own entry of the GID table.
    pub sgid_index: u16,
    /// QP of the peer.
    pub dest_qpn: u32,
    /// Code of the path MTU.
    pub path_mtu: u8,
    /// First PSN to send.
    pub sq_psn: u32,
    /// First PSN to expect.
    pub rq_psn: u32,
    /// Traffic class of the packets.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Flow label.
    pub flow_label: u32,
    /// FAULTLINE_ACCESS_REMOTE_*.
    pub access: u32,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// READs and atomics, both ways.
    pub rd_atomic: u8,
}

impl Connect {
    /// To a peer, with every remote right and generous timers.
    pub fn to(dgid: Gid, dmac: MacAddr, dest_qpn: u32) -> Self {
        Self {
            dgid,
            dmac,
            sgid_index: 0,
            dest_qpn,
            path_mtu: 3,
            sq_psn: 0,
            rq_psn: 0,
            traffic_class: 0,
            sl: 0,
            flow_label: 0,
            access: ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 8,
        }
    }

    /// Address vector of the path.
    pub fn av(&self) -> AddressVector {
        AddressVector {
            dgid: self.dgid.0,
            dmac: self.dmac.0,
            sgid_index: U16::new(self.sgid_index),
            port: 1,
            sl: self.sl,
            flow_label: U32::new(self.flow_label),
            traffic_class: self.traffic_class,
            hop_limit: 64,
            ..AddressVector::default()
        }
    }
}

/// A driver that has a device to itself.
#[derive(Debug)]
pub struct Driver<B> {
    /// The way to the device.
    pub bus: B,
    next_free: u64,
    admin: Channel,
    translation: Channel,
    pub(crate) scratch: u64,
    /// Queue of asynchronous events, on vector 0.
    pub events: Eq,
}

impl<B: Bus> Driver<B> {
    /// Enables the device and makes the queue of asynchronous events.
    pub fn new(mut bus: B) -> Result<Self> {
        assert_eq!(bus.read_register(regs::MAGIC), MAGIC);
        assert_eq!(bus.read_register(regs::ABI_VERSION), ABI_VERSION);
        let ring = |n: u64| RAM_BASE + n * PAGE;
        let mut driver = Self {
            next_free: ring(5),
            admin: Channel {
                sq: ring(0),
                cq: ring(1),
                producer: 0,
            },
            translation: Channel {
                sq: ring(2),
                cq: ring(3),
                producer: 0,
            },
            scratch: ring(4),
            events: Eq {
                eqn: 0,
                ring: 0,
                log_depth: 0,
                consumer: 0,
            },
            bus,
        };
        driver.bus.write(RAM_BASE, &[0; 5 * PAGE as usize]);
        driver.write_register64(regs::ADMIN_SQ_BASE, ring(0));
        driver.write_register64(regs::ADMIN_CQ_BASE, ring(1));
        driver.bus.write_register(regs::ADMIN_LOG_DEPTH, LOG_DEPTH);
        driver.write_register64(regs::TRANSLATION_SQ_BASE, ring(2));
        driver.write_register64(regs::TRANSLATION_CQ_BASE, ring(3));
        driver
            .bus
            .write_register(regs::TRANSLATION_LOG_DEPTH, LOG_DEPTH);
        driver.bus.write_register(regs::CONTROL, regs::ENABLE);
        assert!(driver.bus.read_register(regs::STATUS) & regs::ENABLED != 0);
        driver.events = driver.create_eq(EQ_ASYNC, 0, 10)?;
        Ok(driver)
    }

    fn write_register64(&mut self, offset: u32, value: u64) {
        self.bus.write_register(offset, value as u32);
        self.bus.write_register(offset + 4, (value >> 32) as u32);
    }

    /// Zeroed memory, aligned to pages.
    pub fn alloc(&mut self, len: u64) -> Result<u64> {
        let addr = self.alloc_uncleared(len)?;
        let zeroes = [0; PAGE as usize];
        for page in (addr..self.next_free).step_by(PAGE as usize) {
            self.bus.write(page, &zeroes);
        }
        Ok(addr)
    }

    /// Memory, aligned to pages, with the contents of an earlier use.
    pub fn alloc_uncleared(&mut self, len: u64) -> Result<u64> {
        let addr = self.next_free;
        let end = (addr + len).next_multiple_of(PAGE);
        if end > RAM_BASE + self.bus.ram_len() {
            return Err(Error::NoMemory);
        }
        self.next_free = end;
        Ok(addr)
    }

    /// Where the next allocation begins, for [`Driver::free_from`].
    pub fn next_free(&self) -> u64 {
        self.next_free
    }

    /// Frees all memory that was allocated from this address on.
    pub fn free_from(&mut self, addr: u64) {
        self.next_free = self.next_free.min(addr);
    }

    /// One admin command; its answer.
    pub fn command<T: IntoBytes + Immutable>(
        &mut self,
        opcode: u16,
        handle: u32,
        body: &T,
    ) -> Result<AdminComp> {
        let mut cmd = AdminCmd::default();
        cmd.hdr.opcode.set(opcode);
        cmd.hdr.id.set(self.admin.producer as u16);
        cmd.hdr.handle.set(handle);
        cmd.body[..size_of::<T>()].copy_from_slice(body.as_bytes());
        self.raw_command(&cmd)
    }

    /// One admin command as it stands in the ring.
    pub fn raw_command(&mut self, cmd: &AdminCmd) -> Result<AdminComp> {
        let len = size_of::<AdminComp>() as u64;
        let (at, phase) = self.put(|driver| &mut driver.admin, cmd.as_bytes(), len);
        self.ring(0, doorbell::ADMIN, 0, self.admin.producer);
        let bytes = self.await_entry::<{ size_of::<AdminComp>() }>(at, phase)?;
        let comp = AdminComp::read_from_bytes(&bytes).expect("size of a completion");
        assert_eq!(comp.id, cmd.hdr.id);
        check_status(comp.status.get()).map(|()| comp)
    }

    /// Puts a command into the next slot of a ring. Returns the address of its completion, of `len` bytes, and its phase.
    fn put(&mut self, of: fn(&mut Self) -> &mut Channel, cmd: &[u8], len: u64) -> (u64, u8) {
        let channel = of(self);
        let (slot, phase) = (channel.slot(), channel.phase());
        channel.producer = channel.producer.wrapping_add(1);
        let (at, completion) = (
            channel.sq + slot * cmd.len() as u64,
            channel.cq + slot * len,
        );
        self.bus.write(at, cmd);
        (completion, phase)
    }

    fn put_translation(&mut self, cmd: &TqCmd) -> (u64, u8) {
        let len = size_of::<TqComp>() as u64;
        self.put(|driver| &mut driver.translation, cmd.as_bytes(), len)
    }

    fn await_entry<const N: usize>(&mut self, at: u64, phase: u8) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        // The phase is the top byte of the last word.
        while (self.bus.load_u64(at + N as u64 - 8) >> 56) as u8 != phase {
            if !self.bus.wait() {
                return Err(Error::Silent);
            }
        }
        self.bus.read(at, &mut bytes);
        Ok(bytes)
    }

    /// One translation command; the count in its completion.
    pub fn translate(&mut self, cmd: &TqCmd) -> Result<u32> {
        let (at, phase) = self.put_translation(cmd);
        self.ring(0, doorbell::TRANSLATION, 0, self.translation.producer);
        let bytes = self.await_entry::<{ size_of::<TqComp>() }>(at, phase)?;
        let comp = TqComp::read_from_bytes(&bytes).expect("size of a completion");
        check_status(comp.status.get()).map(|()| comp.count.get())
    }

    /// Executes several translation commands with one doorbell. Returns how many were complete at once, and then after
    /// each event, until all were.
    pub fn translate_all(&mut self, cmds: &[TqCmd]) -> Result<Vec<usize>> {
        let mut places = Vec::new();
        for cmd in cmds {
            let (at, phase) = self.put_translation(cmd);
            places.push((at + size_of::<TqComp>() as u64 - 8, phase));
        }
        self.ring(0, doorbell::TRANSLATION, 0, self.translation.producer);
        let mut done = Vec::new();
        loop {
            let is_done = |(at, phase): &&(u64, u8)| (self.bus.load_u64(*at) >> 56) as u8 == *phase;
            done.push(places.iter().filter(is_done).count());
            if done.last() == Some(&places.len()) {
                return Ok(done);
            }
            if !self.bus.wait() {
                return Err(Error::Silent);
            }
        }
    }

    /// Rings a doorbell.
    pub fn ring(&mut self, page: u32, kind: u8, object: u32, value: u32) {
        self.bus.doorbell(
            page,
            Doorbell {
                kind,
                object,
                value,
            },
        );
    }

    pub(crate) fn contiguous(&mut self, len: u64) -> Result<(u64, RingDesc)> {
        let addr = self.alloc(len)?;
        let desc = RingDesc {
            addr: U64::new(addr),
            num_pages: U32::new(len.div_ceil(PAGE) as u32),
            page_shift: 12,
            ..RingDesc::default()
        };
        Ok((addr, desc))
    }

    /// Creates an event queue.
    pub fn create_eq(&mut self, flags: u32, vector: u16, log_depth: u8) -> Result<Eq> {
        let (ring, desc) = self.contiguous(64 << log_depth)?;
        let body = CreateEq {
            ring: desc,
            log_depth,
            vector: U16::new(vector),
            flags: U32::new(flags),
            ..CreateEq::default()
        };
        let eqn = self.command(CREATE_EQ, 0, &body)?.handle.get();
        Ok(Eq {
            eqn,
            ring,
            log_depth,
            consumer: 0,
        })
    }

    /// Reads an event, if there is one.
    pub fn poll_event(&mut self, eq: &mut Eq) -> Option<Eqe> {
        let slot = u64::from(eq.consumer & ((1 << eq.log_depth) - 1));
        let mut bytes = [0; 64];
        self.bus.read(eq.ring + slot * 64, &mut bytes);
        let phase = (!(eq.consumer >> eq.log_depth) & 1) as u8;
        if bytes[63] != phase {
            return None;
        }
        eq.consumer = eq.consumer.wrapping_add(1);
        Eqe::read_from_bytes(&bytes).ok()
    }

    /// Asynchronous events that have come: kind and object.
    pub fn async_events(&mut self) -> Vec<(u8, u32)> {
        let events = self.whole_events();
        let facts = |event: &Eqe| (event.kind, event.object.get());
        events.iter().map(facts).collect()
    }

    /// Asynchronous events that have come.
    pub fn whole_events(&mut self) -> Vec<Eqe> {
        let mut events = std::mem::replace(
            &mut self.events,
            Eq {
                eqn: 0,
                ring: 0,
                log_depth: 0,
                consumer: 0,
            },
        );
        let mut found = Vec::new();
        while let Some(event) = self.poll_event(&mut events) {
            found.push(event);
        }
        self.events = events;
        found
    }

    /// Asks for an interrupt.
    pub fn arm_eq(&mut self, eq: &Eq) {
        self.ring(0, doorbell::EQ_ARM, eq.eqn, eq.consumer);
    }

    /// Asks for an interrupt of the queue of asynchronous events.
    pub fn arm_events(&mut self) {
        let (eqn, consumer) = (self.events.eqn, self.events.consumer);
        self.ring(0, doorbell::EQ_ARM, eqn, consumer);
    }

    /// Allocates a user context; returns its page.
    pub fn alloc_uctx(&mut self) -> Result<u32> {
        Ok(self.command(ALLOC_UCTX, 0, &())?.handle.get())
    }

    /// Allocates a user context of this user.
    pub fn alloc_uctx_for(&mut self, user: u32) -> Result<u32> {
        let body = AllocUctx {
            user: U32::new(user),
            ..AllocUctx::default()
        };
        Ok(self.command(ALLOC_UCTX, 0, &body)?.handle.get())
    }

    /// Allocates a user context of a process with this name. The device gets the first 16 bytes.
    pub fn alloc_uctx_of(&mut self, process: &str) -> Result<u32> {
        let mut body = AllocUctx {
            pid: U32::new(1),
            ..AllocUctx::default()
        };
        for (to, from) in body.comm.iter_mut().zip(process.bytes()) {
            *to = from;
        }
        Ok(self.command(ALLOC_UCTX, 0, &body)?.handle.get())
    }

    /// Allocates a protection domain of the kernel.
    pub fn alloc_pd(&mut self) -> Result<u32> {
        self.alloc_pd_of(0)
    }

    /// Allocates a protection domain of a user context.
    pub fn alloc_pd_of(&mut self, uctx: u32) -> Result<u32> {
        let body = AllocPd {
            uctx: U32::new(uctx),
            ..AllocPd::default()
        };
        Ok(self.command(ALLOC_PD, 0, &body)?.handle.get())
    }

    /// Registers memory: `len` bytes at I/O virtual address `va` (any offset in a page). With `scatter` its pages are
    /// in descending order in memory, so that no two are contiguous.
    pub fn reg_mr(&mut self, pd: u32, va: u64, len: u64, access: u32) -> Result<Mr> {
        let first = va & !(PAGE - 1);
        let pages = (va + len).div_ceil(PAGE) - first / PAGE;
        let addr = self.alloc(pages * PAGE)?;
        self.reg_mr_at(pd, va, len, access, addr)
    }

    /// Registers memory that exists: `addr` is the page that holds the first byte.
    pub fn reg_mr_at(&mut self, pd: u32, va: u64, len: u64, access: u32, addr: u64) -> Result<Mr> {
        let first = va & !(PAGE - 1);
        let pages = (va + len).div_ceil(PAGE) - first / PAGE;
        let body = CreateMkey {
            pd: U32::new(pd),
            access: U32::new(access),
            iova: U64::new(va),
            length: U64::new(len),
            page_shift: 12,
            ..CreateMkey::default()
        };
        let key = self.command(CREATE_MKEY, 0, &body)?.handle.get();
        let map = TqCmd {
            opcode: tq::MAP,
            flags: tq::CONTIGUOUS,
            key: U32::new(key),
            iova: U64::new(first),
            count: U64::new(pages),
            list: U64::new(addr | tq::READ | tq::WRITE),
            page_shift: 12,
            ..TqCmd::default()
        };
        if let Err(error) = self.translate(&map) {
            self.command(DESTROY_MKEY, key, &())?;
            return Err(error);
        }
        Ok(Mr {
            key,
            va,
            addr: addr + (va - first),
            len,
        })
    }

    /// Registers `len` bytes at `va` on demand, with every right and those in `more`. No page is mapped yet. Returns the key.
    pub fn reg_on_demand(&mut self, pd: u32, va: u64, len: u64, more: u32) -> Result<u32> {
        let body = CreateMkey {
            pd: U32::new(pd),
            access: U32::new(ALL_ACCESS | ACCESS_ON_DEMAND | more),
            iova: U64::new(va),
            length: U64::new(len),
            page_shift: 12,
            ..CreateMkey::default()
        };
        Ok(self.command(CREATE_MKEY, 0, &body)?.handle.get())
    }

    /// Writes an entry for the page at `va`, by MAP or REPLACE.
    pub fn give_page(&mut self, opcode: u8, key: u32, va: u64, entry: u64) -> Result<u32> {
        self.translate(&TqCmd {
            opcode,
            flags: tq::CONTIGUOUS,
            key: U32::new(key),
            iova: U64::new(va),
            count: U64::new(1),
            list: U64::new(entry),
            page_shift: 12,
            ..TqCmd::default()
        })
    }

    /// Removes the entry of the page at `va`.
    pub fn invalidate_page(&mut self, key: u32, va: u64) -> Result<u32> {
        self.translate(&TqCmd {
            opcode: tq::INVALIDATE,
            key: U32::new(key),
            iova: U64::new(va),
            count: U64::new(PAGE),
            ..TqCmd::default()
        })
    }

    /// Answers a page fault.
    pub fn resume(&mut self, token: u64, status: Status) -> Result<u32> {
        self.translate(&TqCmd {
            opcode: tq::RESUME,
            token: U64::new(token),
            resume_status: U16::new(status as u16),
            ..TqCmd::default()
        })
    }

    /// Registers a region of whole 2 MiB pages, all of which are the last 2 MiB of memory.
    pub fn reg_large(&mut self, pd: u32, va: u64, len: u64, access: u32) -> Result<Mr> {
        const LARGE: u8 = 21;
        const PAGES: u64 = PAGE / 8;
        let addr = RAM_BASE + self.bus.ram_len() - (1 << LARGE);
        let body = CreateMkey {
            pd: U32::new(pd),
            access: U32::new(access),
            iova: U64::new(va),
            length: U64::new(len),
            page_shift: LARGE,
            ..CreateMkey::default()
        };
        let key = self.command(CREATE_MKEY, 0, &body)?.handle.get();
        let entry = (addr | tq::READ | tq::WRITE).to_le_bytes();
        self.bus.write(self.scratch, &entry.repeat(PAGES as usize));
        let pages = len >> LARGE;
        for first in (0..pages).step_by(PAGES as usize) {
            let map = TqCmd {
                opcode: tq::MAP,
                key: U32::new(key),
                iova: U64::new(va + (first << LARGE)),
                count: U64::new(PAGES.min(pages - first)),
                list: U64::new(self.scratch),
                page_shift: LARGE,
                ..TqCmd::default()
            };
            self.translate(&map)?;
        }
        Ok(Mr { key, va, addr, len })
    }

    /// Maps 4 KiB pages of a region anew, from `va` on, readable and writable.
    pub fn map(&mut self, mr: &Mr, va: u64, pages: &[u64]) -> Result<u32> {
        for (n, page) in pages.iter().enumerate() {
            let entry = page | tq::READ | tq::WRITE;
            self.bus
                .write(self.scratch + n as u64 * 8, &entry.to_le_bytes());
        }
        let map = TqCmd {
            opcode: tq::MAP,
            key: U32::new(mr.key),
            iova: U64::new(va),
            count: U64::new(pages.len() as u64),
            list: U64::new(self.scratch),
            page_shift: 12,
            ..TqCmd::default()
        };
        self.translate(&map)
    }

    /// Allocates device memory.
    pub fn alloc_dm(&mut self, len: u64) -> Result<Dm> {
        let body = AllocDm {
            length: U64::new(len),
            ..AllocDm::default()
        };
        let answer = self.command(ALLOC_DM, 0, &body)?;
        let (place, _) = DmPlace::read_from_prefix(&answer.body).expect("size of an answer");
        // Behind the two halves of the doorbell pages.
        let pages = u64::from(self.bus.read_register(regs::DOORBELL_PAGES));
        Ok(Dm {
            dm: answer.handle.get(),
            addr: DEVICE_MEMORY + place.offset.get() - 2 * pages * PAGE,
            len: place.length.get(),
        })
    }

    /// Registers a part of device memory.
    pub fn reg_dm(&mut self, pd: u32, dm: &Dm, offset: u64, len: u64, access: u32) -> Result<Mr> {
        let body = CreateDmMkey {
            pd: U32::new(pd),
            access: U32::new(access),
            dm: U32::new(dm.dm),
            variant: 0x5a,
            offset: U64::new(offset),
            length: U64::new(len),
            ..CreateDmMkey::default()
        };
        let key = self.command(CREATE_DM_MKEY, 0, &body)?.handle.get();
        Ok(Mr {
            key,
            va: 0,
            addr: dm.addr + offset,
            len,
        })
    }

    /// Delays notices of a CQ until `count` completions have come, or for `period` microseconds.
    pub fn moderate_cq(&mut self, cq: &Cq, count: u16, period: u16) -> Result<()> {
        let body = ModifyCq {
            count: U16::new(count),
            period: U16::new(period),
            ..ModifyCq::default()
        };
        self.command(MODIFY_CQ, cq.cqn, &body).map(drop)
    }

    /// Moves an SRQ to a ring of another size.
    pub fn resize_srq(&mut self, srq: &mut Srq, log_depth: u8) -> Result<()> {
        let stride_shift = srq.wq.stride_shift;
        let (ring, desc) = self.contiguous((1 << (log_depth + stride_shift)) + 64)?;
        let body = ResizeSrq {
            ring: desc,
            log_depth,
            ..ResizeSrq::default()
        };
        self.command(RESIZE_SRQ, srq.srqn, &body)?;
        srq.wq.ring = ring;
        srq.wq.log_depth = log_depth;
        srq.wq.producer = self.bus.load_u32(srq.wq.record());
        Ok(())
    }

    /// Binds a queue pair to a set of counters; 0: to those of the device.
    pub fn bind_counters(&mut self, qpn: u32, set: u32) -> Result<()> {
        let body = BindCounters {
            counters: U32::new(set),
            ..BindCounters::default()
        };
        self.command(BIND_COUNTERS, qpn, &body).map(drop)
    }

    /// Creates a completion queue.
    pub fn create_cq(&mut self, config: CqConfig) -> Result<Cq> {
        let (ring, desc) = self.contiguous((64 << config.log_depth) + 64)?;
        let body = CreateCq {
            ring: desc,
            log_depth: config.log_depth,
            eqn: U32::new(config.eqn),
            uctx: U32::new(config.uctx),
            ..CreateCq::default()
        };
        let cqn = self.command(CREATE_CQ, 0, &body)?.handle.get();
        Ok(Cq {
            cqn,
            uctx: config.uctx,
            ring,
            log_depth: config.log_depth,
            consumer: 0,
        })
    }

    /// Resizes a completion queue.
    pub fn resize_cq(&mut self, cq: &mut Cq, log_depth: u8) -> Result<()> {
        let (ring, desc) = self.contiguous((64 << log_depth) + 64)?;
        let body = ResizeCq {
            ring: desc,
            log_depth,
            consumer: U32::new(cq.consumer),
            ..ResizeCq::default()
        };
        self.command(RESIZE_CQ, cq.cqn, &body)?;
        cq.ring = ring;
        cq.log_depth = log_depth;
        cq.consumer = 0;
        self.publish(cq);
        Ok(())
    }

    /// Reads a completion, if there is one.
    #[inline]
    pub fn poll(&mut self, cq: &mut Cq) -> Option<Cqe> {
        let slot = u64::from(cq.consumer & ((1 << cq.log_depth) - 1));
        let at = cq.ring + slot * 64;
        let phase = (!(cq.consumer >> cq.log_depth) & 1) as u8;
        if (self.bus.load_u64(at + 56) >> 56) as u8 != phase {
            return None;
        }
        let mut bytes = [0; 64];
        self.bus.read(at, &mut bytes);
        cq.consumer = cq.consumer.wrapping_add(1);
        self.publish(cq);
        Cqe::read_from_bytes(&bytes).ok()
    }

    fn publish(&self, cq: &Cq) {
        self.bus
            .store_u32(cq.ring + (64 << cq.log_depth), cq.consumer);
    }

    /// Waits for a completion.
    pub fn await_cqe(&mut self, cq: &mut Cq) -> Result<Cqe> {
        loop {
            if let Some(cqe) = self.poll(cq) {
                return Ok(cqe);
            }
            if !self.bus.wait() {
                return Err(Error::Silent);
            }
        }
    }

    /// Asks for a notice.
    pub fn arm_cq(&mut self, cq: &Cq, solicited: bool) {
        let kind = if solicited {
            doorbell::CQ_ARM_SOLICITED
        } else {
            doorbell::CQ_ARM
        };
        self.ring(cq.uctx, kind, cq.cqn, cq.consumer);
    }

    /// Creates a shared receive queue.
    pub fn create_srq(
        &mut self,
        pd: u32,
        uctx: u32,
        log_depth: u8,
        max_sge: u8,
        limit: u32,
    ) -> Result<Srq> {
        let basic = CreateSrq {
            pd: U32::new(pd),
            uctx: U32::new(uctx),
            limit: U32::new(limit),
            ..CreateSrq::default()
        };
        self.create_srq_like(&basic, log_depth, max_sge)
    }

    /// Creates a shared receive queue for the targets of an XRC domain, which completes on `cqn`.
    pub fn create_xrc_srq(&mut self, pd: u32, xrcd: u32, cqn: u32) -> Result<Srq> {
        let xrc = CreateSrq {
            pd: U32::new(pd),
            kind: 1,
            xrcd: U32::new(xrcd),
            cqn: U32::new(cqn),
            ..CreateSrq::default()
        };
        self.create_srq_like(&xrc, 6, 2)
    }

    fn create_srq_like(&mut self, like: &CreateSrq, log_depth: u8, max_sge: u8) -> Result<Srq> {
        let stride_shift = recv_stride(max_sge);
        let (ring, desc) = self.contiguous((1 << (log_depth + stride_shift)) + 64)?;
        let body = CreateSrq {
            ring: desc,
            log_depth,
            stride_shift,
            max_sge,
            ..*like
        };
        let srqn = self.command(CREATE_SRQ, 0, &body)?.handle.get();
        Ok(Srq {
            srqn,
            wq: Wq {
                ring,
                log_depth,
                stride_shift,
                producer: 0,
            },
        })
    }

    /// Allocates an XRC domain.
    pub fn alloc_xrcd(&mut self) -> Result<u32> {
        Ok(self.command(ALLOC_XRCD, 0, &[0u8; 0])?.handle.get())
    }

    /// Creates an XRC target; returns its number.
    pub fn create_xrc_target(&mut self, xrcd: u32) -> Result<u32> {
        let body = CreateQp {
            qp_type: QPT_XRC_TGT,
            xrcd: U32::new(xrcd),
            ..CreateQp::default()
        };
        Ok(self.command(CREATE_QP, 0, &body)?.handle.get())
    }

    /// Creates a queue pair.
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<Qp> {
        let sq_stride = (48 + 16 * u64::from(config.max_sge))
            .next_power_of_two()
            .max(64)
            .ilog2() as u8;
        let rq_stride = recv_stride(config.max_sge);
        let log_depth = config.log_depth;
        let (sq, sq_desc) = self.contiguous((1 << (log_depth + sq_stride)) + 64)?;
        let rq = match config.srqn {
            Some(_) => None,
            None if config.kind == QPT_XRC_INI => None,
            None => Some(self.contiguous((1 << (log_depth + rq_stride)) + 64)?),
        };
        let mut body = CreateQp {
            sq: sq_desc,
            pd: U32::new(config.pd),
            uctx: U32::new(config.uctx),
            send_cqn: U32::new(config.send_cqn),
            recv_cqn: U32::new(config.recv_cqn),
            flags: U32::new(config.flags),
            qp_type: config.kind,
            sq_log_depth: log_depth,
            sq_stride_shift: sq_stride,
            max_send_sge: config.max_sge,
            max_inline: U32::new((1 << sq_stride) - 48),
            ..CreateQp::default()
        };
        match (&rq, config.srqn) {
            (Some((_, desc)), _) => {
                body.rq = *desc;
                body.rq_log_depth = log_depth;
                body.rq_stride_shift = rq_stride;
                body.max_recv_sge = config.max_sge;
            }
            (None, None) => {}
            (None, Some(srqn)) => {
                body.flags.set(config.flags | QP_FLAG_SRQ);
                body.srqn.set(srqn);
            }
        }
        let qpn = self.command(CREATE_QP, 0, &body)?.handle.get();
        let wq = |ring, stride_shift| Wq {
            ring,
            log_depth,
            stride_shift,
            producer: 0,
        };
        Ok(Qp {
            qpn,
            uctx: config.uctx,
            sq: wq(sq, sq_stride),
            rq: rq.map(|(ring, _)| wq(ring, rq_stride)),
        })
    }

    /// Changes a queue pair.
    pub fn modify_qp(&mut self, qpn: u32, attr: &QpAttr) -> Result<()> {
        if attr.state == QPS_INIT && attr.mask.get() & QP_ATTR_STATE != 0 {
            self.bus.renewed(qpn);
        }
        self.command(MODIFY_QP, qpn, attr).map(drop)
    }

    /// Sets the fault policy of a queue pair.
    pub fn set_fault_policy(&mut self, qpn: u32, policy: u8) -> Result<()> {
        let attr = QpAttr {
            mask: U32::new(QP_ATTR_FAULT_POLICY),
            fault_policy: policy,
            ..QpAttr::default()
        };
        self.modify_qp(qpn, &attr)
    }

    /// Moves a queue pair to a state that needs no attributes.
    pub fn set_state(&mut self, qpn: u32, state: u8) -> Result<()> {
        let attr = QpAttr {
            mask: U32::new(QP_ATTR_STATE),
            state,
            ..QpAttr::default()
        };
        self.modify_qp(qpn, &attr)
    }

    /// Attributes of a queue pair.
    pub fn query_qp(&mut self, qpn: u32) -> Result<QpAttr> {
        let comp = self.command(QUERY_QP, qpn, &())?;
        Ok(QpAttr::read_from_bytes(&comp.body).expect("size of the attributes"))
    }

    /// RESET to INIT of a connected QP.
    pub fn to_init(&mut self, qpn: u32, access: u32) -> Result<()> {
        let attr = QpAttr {
            mask: U32::new(
                QP_ATTR_STATE | QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_ACCESS_FLAGS,
            ),
            state: QPS_INIT,
            port: 1,
            access: U32::new(access),
            ..QpAttr::default()
        };
        self.modify_qp(qpn, &attr)
    }

    /// INIT to RTR of a connected QP.
    pub fn to_rtr(&mut self, qpn: u32, kind: u8, c: &Connect) -> Result<()> {
        let mut mask =
            QP_ATTR_STATE | QP_ATTR_AV | QP_ATTR_PATH_MTU | QP_ATTR_DEST_QPN | QP_ATTR_RQ_PSN;
        if matches!(kind, QPT_RC | QPT_XRC_TGT) {
            mask |= QP_ATTR_MAX_DEST_RD_ATOMIC | QP_ATTR_MIN_RNR_TIMER;
        }
        let attr = QpAttr {
            mask: U32::new(mask),
            state: QPS_RTR,
            path_mtu: c.path_mtu,
            rq_psn: U32::new(c.rq_psn),
            dest_qpn: U32::new(c.dest_qpn),
            max_dest_rd_atomic: c.rd_atomic,
            min_rnr_timer: c.min_rnr_timer,
            av: c.av(),
            ..QpAttr::default()
        };
        self.modify_qp(qpn, &attr)
    }

    /// RTR to RTS of a connected QP.
    pub fn to_rts(&mut self, qpn: u32, kind: u8, c: &Connect) -> Result<()> {
        let mut mask = QP_ATTR_STATE | QP_ATTR_SQ_PSN;
        match kind {
            QPT_RC | QPT_XRC_INI => {
                mask |= QP_ATTR_TIMEOUT
                    | QP_ATTR_RETRY_CNT
                    | QP_ATTR_RNR_RETRY
                    | QP_ATTR_MAX_QP_RD_ATOMIC;
            }
            QPT_XRC_TGT => mask |= QP_ATTR_TIMEOUT,
            _ => {}
        }
        let attr = QpAttr {
            mask: U32::new(mask),
            state: QPS_RTS,
            sq_psn: U32::new(c.sq_psn),
            max_rd_atomic: c.rd_atomic,
            timeout: c.timeout,
            retry_cnt: c.retry_cnt,
            rnr_retry: c.rnr_retry,
            ..QpAttr::default()
        };
        self.modify_qp(qpn, &attr)
    }

    /// RESET to RTS of a connected QP.
    pub fn connect(&mut self, qpn: u32, kind: u8, c: &Connect) -> Result<()> {
        self.to_init(qpn, c.access)?;
        self.to_rtr(qpn, kind, c)?;
        self.to_rts(qpn, kind, c)
    }

    /// RESET to RTS of a datagram or raw QP.
    pub fn activate(&mut self, qpn: u32, kind: u8, qkey: u32) -> Result<()> {
        let init = match kind {
            QPT_RAW => QP_ATTR_PORT,
            QPT_GSI => QP_ATTR_PKEY_INDEX | QP_ATTR_QKEY,
            _ => QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_QKEY,
        };
        let psn = if kind == QPT_RAW { 0 } else { QP_ATTR_SQ_PSN };
        for (state, mask) in [(QPS_INIT, init), (QPS_RTR, 0), (QPS_RTS, psn)] {
            let attr = QpAttr {
                mask: U32::new(QP_ATTR_STATE | mask),
                state,
                port: 1,
                qkey: U32::new(qkey),
                ..QpAttr::default()
            };
            self.modify_qp(qpn, &attr)?;
        }
        Ok(())
    }

    /// Creates an address handle.
    pub fn create_ah(&mut self, pd: u32, av: AddressVector) -> Result<u32> {
        let body = CreateAh {
            pd: U32::new(pd),
            av,
            ..CreateAh::default()
        };
        Ok(self.command(CREATE_AH, 0, &body)?.handle.get())
    }

    /// Attaches a queue pair to a multicast group.
    pub fn attach_mcast(&mut self, qpn: u32, group: Gid) -> Result<()> {
        let body = Mcast { gid: group.0 };
        self.command(ATTACH_MCAST, qpn, &body).map(drop)
    }

    /// Detaches a queue pair from a multicast group.
    pub fn detach_mcast(&mut self, qpn: u32, group: Gid) -> Result<()> {
        let body = Mcast { gid: group.0 };
        self.command(DETACH_MCAST, qpn, &body).map(drop)
    }

    /// Creates a flow; one of kind NORMAL has values and the mask of the bits that count.
    pub fn create_flow(
        &mut self,
        flow: &CreateFlow,
        fields: Option<&(FlowFields, FlowFields)>,
    ) -> Result<u32> {
        let mut body = *flow;
        if let Some((values, mask)) = fields {
            self.bus.write(self.scratch, values.as_bytes());
            self.bus.write(self.scratch + 64, mask.as_bytes());
            body.fields_addr.set(self.scratch);
        }
        Ok(self.command(CREATE_FLOW, 0, &body)?.handle.get())
    }

    /// Destroys a flow.
    pub fn destroy_flow(&mut self, flow: u32) -> Result<()> {
        self.command(DESTROY_FLOW, flow, &()).map(drop)
    }

    /// Creates a work queue of 2^`log_depth` requests; it is used as a queue pair that only receives.
    pub fn create_wq(&mut self, pd: u32, cq: &Cq, log_depth: u8) -> Result<Qp> {
        const MAX_SGE: u8 = 2;
        let stride_shift = recv_stride(MAX_SGE);
        let (ring, desc) = self.contiguous((1 << (log_depth + stride_shift)) + 64)?;
        let body = CreateWq {
            ring: desc,
            pd: U32::new(pd),
            uctx: U32::new(cq.uctx),
            cqn: U32::new(cq.cqn),
            log_depth,
            stride_shift,
            max_sge: MAX_SGE,
            ..CreateWq::default()
        };
        let qpn = self.command(CREATE_WQ, 0, &body)?.handle.get();
        let wq = |ring| Wq {
            ring,
            log_depth,
            stride_shift,
            producer: 0,
        };
        Ok(Qp {
            qpn,
            uctx: cq.uctx,
            sq: wq(0),
            rq: Some(wq(ring)),
        })
    }

    /// Moves a work queue to another state.
    pub fn modify_wq(&mut self, wq: u32, state: u8) -> Result<()> {
        let body = ModifyWq {
            state,
            ..ModifyWq::default()
        };
        self.command(MODIFY_WQ, wq, &body).map(drop)
    }

    /// Creates an indirection table; the number of work queues is a power of two.
    pub fn create_rwq_ind_table(&mut self, wqs: &[u32]) -> Result<u32> {
        for (n, wq) in wqs.iter().enumerate() {
            self.bus.store_u32(self.scratch + n as u64 * 4, *wq);
        }
        let body = CreateRwqIndTable {
            addr: U64::new(self.scratch),
            log_size: wqs.len().ilog2() as u8,
            ..CreateRwqIndTable::default()
        };
        Ok(self.command(CREATE_RWQ_IND_TABLE, 0, &body)?.handle.get())
    }

    /// Sets an entry of the GID table.
    pub fn set_gid(&mut self, index: u32, gid: Gid, mac: MacAddr) -> Result<()> {
        self.set_gid_in(index, (gid, 0xffff), mac)
    }

    /// Sets an entry of the GID table in a VLAN; 0xffff: in none.
    pub fn set_gid_in(&mut self, index: u32, (gid, vlan): (Gid, u16), mac: MacAddr) -> Result<()> {
        let body = SetGid {
            gid: gid.0,
            mac: mac.0,
            vlan: U16::new(vlan),
            valid: 1,
            ..SetGid::default()
        };
        self.command(SET_GID, index, &body).map(drop)
    }

    /// Empties an entry of the GID table.
    pub fn clear_gid(&mut self, index: u32) -> Result<()> {
        let body = SetGid {
            vlan: U16::new(0xffff),
            ..SetGid::default()
        };
        self.command(SET_GID, index, &body).map(drop)
    }

    /// Configures the Ethernet side: an interface that is up.
    pub fn set_netdev(&mut self, mac: MacAddr, mtu: u16, qpn: u32) -> Result<()> {
        self.set_interface(mac, mtu, qpn, true)
    }

    /// The same with an interface that is up or down.
    pub fn set_interface(&mut self, mac: MacAddr, mtu: u16, qpn: u32, up: bool) -> Result<()> {
        let body = SetNetdev {
            mac: mac.0,
            mtu: U16::new(mtu),
            flags: U32::new(if up { NETDEV_UP } else { 0 }),
            qpn: U32::new(qpn),
        };
        self.command(SET_NETDEV, 0, &body).map(drop)
    }

    /// Sets the addresses that the Ethernet side receives besides its own.
    pub fn set_mac_filter(&mut self, macs: &[[u8; 6]]) -> Result<()> {
        let entry = |mac: &[u8; 6]| MacFilterEntry {
            mac: *mac,
            ..MacFilterEntry::default()
        };
        let entries: Vec<MacFilterEntry> = macs.iter().map(entry).collect();
        self.bus.write(self.scratch, entries.as_bytes());
        let body = SetMacFilter {
            addr: U64::new(self.scratch),
            count: U32::new(macs.len() as u32),
            ..SetMacFilter::default()
        };
        self.command(SET_MAC_FILTER, 0, &body).map(drop)
    }

    /// A counter.
    pub fn counter(&mut self, counter: admin::Counter) -> Result<u64> {
        self.counter_of(0, counter)
    }

    /// A counter of a set; 0: of the device.
    pub fn counter_of(&mut self, set: u32, counter: admin::Counter) -> Result<u64> {
        let body = QueryCounters {
            addr: U64::new(self.scratch),
            len: U32::new(PAGE as u32),
            ..QueryCounters::default()
        };
        self.command(QUERY_COUNTERS, set, &body)?;
        Ok(self.bus.load_u64(self.scratch + counter as u64 * 8))
    }

    /// Writes a send work request without ringing.
    #[inline]
    pub fn write_send(&mut self, qp: &mut Qp, send: &Send<'_>) {
        let mut bytes = [0; 1 << wqe::MAX_STRIDE_SHIFT];
        let header = SqWqe {
            opcode: send.opcode,
            flags: send.flags
                | if send.inline.is_some() {
                    wqe::WR_FLAG_INLINE
                } else {
                    0
                },
            num_sge: send.sges.len() as u8,
            imm: U32::from_bytes(send.imm),
            inline_len: U32::new(send.inline.map_or(0, <[u8]>::len) as u32),
            rkey: U32::new(send.rkey),
            remote_addr: U64::new(send.remote_addr),
            compare_add: U64::new(if send.ah != 0 {
                u64::from(send.qkey)
            } else {
                send.compare_add
            }),
            swap: U64::new(send.swap),
            ah: U32::new(send.ah),
            remote_qpn: U32::new(send.remote_qpn),
            ..SqWqe::default()
        };
        bytes[..48].copy_from_slice(header.as_bytes());
        let mut end = 48;
        if let Some(data) = send.inline {
            bytes[48..48 + data.len()].copy_from_slice(data);
            // SGEs stand at multiples of their length.
            end += data.len().next_multiple_of(16);
        }
        end = put_sges(&mut bytes, end, send.sges);
        self.bus.write(qp.sq.entry(), &bytes[..end]);
        qp.sq.producer = qp.sq.producer.wrapping_add(1);
    }

    /// Writes any octets as a send work request, and rings.
    pub fn post_raw_send(&mut self, qp: &mut Qp, entry: &[u8]) {
        let len = entry.len().min(1 << qp.sq.stride_shift);
        self.bus.write(qp.sq.entry(), &entry[..len]);
        qp.sq.producer = qp.sq.producer.wrapping_add(1);
        self.ring_sends(qp);
    }

    /// Rings for the send work requests that were written before.
    #[inline]
    pub fn ring_sends(&mut self, qp: &Qp) {
        self.ring(qp.uctx, doorbell::SQ, qp.qpn, qp.sq.producer);
    }

    /// Posts a send work request.
    pub fn post_send(&mut self, qp: &mut Qp, send: &Send<'_>) {
        self.write_send(qp, send);
        self.ring_sends(qp);
    }

    /// Posts a receive work request.
    pub fn post_recv(&mut self, qp: &mut Qp, tag: u32, sges: &[Sge]) {
        let rq = qp.rq.as_mut().expect("a QP without SRQ");
        write_recv(&self.bus, rq, tag, sges);
        let producer = rq.producer;
        let notify = rq.record() + core::mem::offset_of!(WqRecord, notify) as u64;
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if self.bus.load_u32(notify) != 0 {
            self.ring(qp.uctx, doorbell::RQ, qp.qpn, producer);
        }
    }

    /// Posts any octets as a receive work request.
    pub fn post_raw_recv(&mut self, qp: &mut Qp, entry: &[u8]) {
        let rq = qp.rq.as_mut().expect("a QP without SRQ");
        let len = entry.len().min(1 << rq.stride_shift);
        self.bus.write(rq.entry(), &entry[..len]);
        rq.producer = rq.producer.wrapping_add(1);
        self.bus.store_u32(rq.record(), rq.producer);
    }

    /// Posts a receive work request to an SRQ.
    pub fn post_srq_recv(&mut self, srq: &mut Srq, tag: u32, sges: &[Sge]) {
        write_recv(&self.bus, &mut srq.wq, tag, sges);
    }

    /// Memory of a region.
    pub fn read_mr(&self, mr: &Mr, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.bus.read(mr.addr + offset, &mut bytes);
        bytes
    }

    /// Memory of a region.
    pub fn write_mr(&self, mr: &Mr, offset: u64, data: &[u8]) {
        self.bus.write(mr.addr + offset, data);
    }
}

fn write_recv<B: Bus>(bus: &B, wq: &mut Wq, tag: u32, sges: &[Sge]) {
    let mut bytes = [0; 1 << wqe::MAX_STRIDE_SHIFT];
    let header = RqWqe {
        tag: U32::new(tag),
        num_sge: sges.len() as u8,
        ..RqWqe::default()
    };
    bytes[..16].copy_from_slice(header.as_bytes());
    let end = put_sges(&mut bytes, 16, sges);
    bus.write(wq.entry(), &bytes[..end]);
    wq.producer = wq.producer.wrapping_add(1);
    bus.store_u32(wq.record(), wq.producer);
}

pub(crate) fn put_sges(bytes: &mut [u8], mut at: usize, sges: &[Sge]) -> usize {
    for (addr, length, lkey) in sges {
        let sge = wqe::Sge {
            addr: U64::new(*addr),
            length: U32::new(*length),
            lkey: U32::new(*lkey),
        };
        bytes[at..at + 16].copy_from_slice(sge.as_bytes());
        at += 16;
    }
    at
}

pub(crate) fn recv_stride(max_sge: u8) -> u8 {
    (16 + 16 * u64::from(max_sge))
        .next_power_of_two()
        .max(32)
        .ilog2() as u8
}

fn check_status(status: u16) -> Result<()> {
    match Status::from_u16(status) {
        Some(Status::Ok) => Ok(()),
        Some(status) => Err(Error::Refused(status)),
        None => Err(Error::UnknownStatus(status)),
    }
}

/// Every remote and local right, for regions of tests that are not about rights.
pub const ALL_ACCESS: u32 = qp::ACCESS_LOCAL_WRITE
    | qp::ACCESS_REMOTE_READ
    | qp::ACCESS_REMOTE_WRITE
    | qp::ACCESS_REMOTE_ATOMIC;
