//! Contexts, protection domains, memory regions and address handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use faultline_abi::admin::{self, CreateAh, CreateMkey, MKEY_PHYSICAL};
use faultline_abi::doorbell::Doorbell;
use faultline_abi::qp::AddressVector;
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::wqe::Sge;
use faultline_abi::{U32, U64};

use crate::error::{DriverError, RingError};
use crate::nic::{Nic, Object};
use crate::ram::Buf;

const PAGE: u64 = 4096;
/// Page entries in a MAP command.
const MAX_LIST: usize = 512;
/// Regions with more pages than this are mapped as one contiguous range.
const MAX_LISTED: usize = 4 * MAX_LIST;
/// Where regions begin if the caller does not care: far from all DMA addresses.
const DEFAULT_IOVA: u64 = 0x7f00_0000_0000;

static VARIANT: AtomicU8 = AtomicU8::new(1);

/// A user context: a doorbell page, and the objects that belong to it.
#[derive(Clone, Debug)]
pub struct Context {
    nic: Nic,
    page: u32,
    /// None: the kernel's.
    object: Option<Arc<Object>>,
}

impl Nic {
    /// Allocates a user context.
    pub fn context(&self) -> Result<Context, DriverError> {
        let opcodes = (admin::ALLOC_UCTX, admin::DEALLOC_UCTX);
        let object = Object::create(self, opcodes, &[0u8; 0], Vec::new())?;
        Ok(Context {
            nic: self.clone(),
            page: object.handle(),
            object: Some(object),
        })
    }

    /// The kernel's context, whose doorbell page is page 0.
    pub fn kernel(&self) -> Context {
        Context {
            nic: self.clone(),
            page: 0,
            object: None,
        }
    }

    /// Allocates a protection domain.
    pub fn pd(&self) -> Result<Pd, DriverError> {
        let opcodes = (admin::ALLOC_PD, admin::DEALLOC_PD);
        Ok(Pd(Object::create(self, opcodes, &[0u8; 0], Vec::new())?))
    }
}

impl Context {
    /// The device.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Number of its doorbell page.
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Rings any doorbell on its page.
    pub fn ring(&self, bell: Doorbell) -> Result<(), RingError> {
        self.nic.ring(self.page, bell)
    }

    pub(crate) fn keep(&self) -> Vec<Arc<dyn std::any::Any + Send + Sync>> {
        let object = self.object.clone();
        object.into_iter().map(|object| object as _).collect()
    }
}

/// A protection domain.
#[derive(Clone, Debug)]
pub struct Pd(Arc<Object>);

/// A memory region.
#[derive(Clone, Debug)]
pub struct Mr {
    object: Arc<Object>,
    iova: u64,
    length: u64,
}

/// Where a peer may reach: an address and the key for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// rkey.
    pub key: u32,
}

impl Pd {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.handle()
    }

    pub(crate) fn object(&self) -> &Arc<Object> {
        &self.0
    }

    /// The device.
    pub fn nic(&self) -> &Nic {
        self.0.nic()
    }

    /// Registers a buffer at addresses of the driver's choice. The region does not keep the buffer.
    pub fn register(&self, buf: &Buf, access: u32) -> Result<Mr, DriverError> {
        self.register_at(buf, DEFAULT_IOVA + buf.file_offset(), access)
    }

    /// Registers a buffer at `iova`, which lies in its page where the buffer does.
    pub fn register_at(&self, buf: &Buf, iova: u64, access: u32) -> Result<Mr, DriverError> {
        let first = buf.dma(0) & !(PAGE - 1);
        let end = buf.dma(0) + buf.len() as u64;
        let pages: Vec<u64> = (first..end).step_by(PAGE as usize).collect();
        if pages.len() <= MAX_LISTED {
            return self.register_pages(iova, buf.len() as u64, &pages, access);
        }
        let mr = self.create_key(iova, buf.len() as u64, 12, access, 0)?;
        mr.map(TqCmd {
            flags: tq::CONTIGUOUS,
            iova: U64::new(iova & !(PAGE - 1)),
            count: U64::new(pages.len() as u64),
            list: U64::new(first | tq::READ | tq::WRITE),
            page_shift: 12,
            ..TqCmd::default()
        })?;
        Ok(mr)
    }

    /// Registers pages, by their DMA addresses, as one region from `iova` on.
    pub fn register_pages(
        &self,
        iova: u64,
        length: u64,
        pages: &[u64],
        access: u32,
    ) -> Result<Mr, DriverError> {
        let mr = self.create_key(iova, length, 12, access, 0)?;
        let entries: Vec<u64> = pages.iter().map(|p| p | tq::READ | tq::WRITE).collect();
        let mut at = iova & !(PAGE - 1);
        for chunk in entries.chunks(MAX_LIST) {
            let done = self.nic().map_pages(mr.key(), at, 12, chunk)?;
            if done as usize != chunk.len() {
                let value = u64::from(done);
                let what = "count of mapped pages";
                return Err(DriverError::Nonsense { what, value });
            }
            at += chunk.len() as u64 * PAGE;
        }
        Ok(mr)
    }

    /// A region over all DMA addresses.
    pub fn register_physical(&self, access: u32) -> Result<Mr, DriverError> {
        self.create_key(0, 0, 0, access, MKEY_PHYSICAL)
    }

    /// A region without pages, as it is.
    pub fn create_key(
        &self,
        iova: u64,
        length: u64,
        page_shift: u8,
        access: u32,
        flags: u32,
    ) -> Result<Mr, DriverError> {
        let create = CreateMkey {
            pd: U32::new(self.number()),
            access: U32::new(access),
            iova: U64::new(iova),
            length: U64::new(length),
            flags: U32::new(flags),
            page_shift,
            variant: VARIANT.fetch_add(1, Ordering::Relaxed),
            ..CreateMkey::default()
        };
        let opcodes = (admin::CREATE_MKEY, admin::DESTROY_MKEY);
        let object = Object::create(self.nic(), opcodes, &create, vec![self.0.clone()])?;
        let length = if length == 0 { u64::MAX } else { length };
        Ok(Mr {
            object,
            iova,
            length,
        })
    }

    /// Creates an address handle that leads to another device.
    pub fn ah(&self, to: &Nic) -> Result<Ah, DriverError> {
        let create = CreateAh {
            pd: U32::new(self.number()),
            av: path_to(to),
            ..CreateAh::default()
        };
        let opcodes = (admin::CREATE_AH, admin::DESTROY_AH);
        let keep = vec![self.0.clone() as _];
        Ok(Ah(Object::create(self.nic(), opcodes, &create, keep)?))
    }
}

impl Mr {
    pub(crate) fn new(object: Arc<Object>, iova: u64, length: u64) -> Self {
        Self {
            object,
            iova,
            length,
        }
    }

    /// lkey and rkey.
    pub fn key(&self) -> u32 {
        self.object.handle()
    }

    /// First address.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// `len` bytes from offset `at`, for a work request of the own side. Not checked.
    #[inline]
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge {
            addr: U64::new(self.iova.wrapping_add(at as u64)),
            length: U32::new(len as u32),
            lkey: U32::new(self.key()),
        }
    }

    /// Offset `at`, for a work request of the peer. Not checked.
    #[inline]
    pub fn remote(&self, at: usize) -> Remote {
        Remote {
            addr: self.iova.wrapping_add(at as u64),
            key: self.key(),
        }
    }

    /// Writes page entries; the key is filled in.
    pub fn map(&self, cmd: TqCmd) -> Result<u32, DriverError> {
        self.object.nic().translate(TqCmd {
            opcode: tq::MAP,
            key: U32::new(self.key()),
            ..cmd
        })
    }

    /// Removes the entries of a range.
    pub fn invalidate(&self, iova: u64, length: u64) -> Result<u32, DriverError> {
        self.object.nic().translate(TqCmd {
            opcode: tq::INVALIDATE,
            key: U32::new(self.key()),
            iova: U64::new(iova),
            count: U64::new(length),
            ..TqCmd::default()
        })
    }
}

/// An address handle.
#[derive(Clone, Debug)]
pub struct Ah(Arc<Object>);

impl Ah {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.0.handle()
    }
}

/// The way to another device on the same network.
pub fn path_to(nic: &Nic) -> AddressVector {
    AddressVector {
        dgid: nic.gid(),
        dmac: nic.mac(),
        port: 1,
        ..AddressVector::default()
    }
}
