//! The host's side of page faults: a region on demand, and a pager that maps and removes its pages.

use std::time::{Duration, Instant};

use faultline_abi::admin::EQ_FAULTS;
use faultline_abi::event::{self, Eqe};
use faultline_abi::qp::ACCESS_ON_DEMAND;
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::{Status, U16, U64};

use crate::domain::Mr;
use crate::error::DriverError;
use crate::event::EventQueue;
use crate::nic::Nic;
use crate::ram::Buf;
use crate::testbed::{ALL_ACCESS, Node};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A region on demand whose pages come one by one, and the queue of its faults.
#[derive(Debug)]
pub struct Pager {
    /// The fault queue.
    pub eq: EventQueue,
    /// The region.
    pub mr: Mr,
    /// Memory for its pages: as much as the region is long, and in its order unless the test does otherwise.
    pub buf: Buf,
    nic: Nic,
}

impl Pager {
    /// Vector of the fault queue.
    pub const VECTOR: u16 = 2;
    /// First address of the region.
    pub const VA: u64 = 0x7e00_0000_0000;

    /// A region of `pages` pages, all of them absent.
    pub fn new(node: &Node, pages: usize) -> Result<Self, DriverError> {
        let eq = node.nic.event_queue(Self::VECTOR, EQ_FAULTS, 10)?;
        let buf = node.nic.alloc(pages * PAGE)?;
        let access = ALL_ACCESS | ACCESS_ON_DEMAND;
        let mr = node
            .pd
            .create_key(Self::VA, buf.len() as u64, 12, access, 0)?;
        let nic = node.nic.clone();
        Ok(Self { eq, mr, buf, nic })
    }

    /// The next record, by polling; `None` if none comes in time, or another event comes.
    pub fn record(&mut self, timeout: Duration) -> Option<Eqe> {
        let start = Instant::now();
        let mut spins = 0u32;
        loop {
            if let Some(eqe) = self.eq.poll() {
                return (eqe.kind == event::PAGE_FAULT).then_some(eqe);
            }
            spins += 1;
            if !spins.is_multiple_of(512) {
                std::hint::spin_loop();
                continue;
            }
            if start.elapsed() > timeout {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Number of the page that a record is about.
    pub fn page_of(record: &Eqe) -> usize {
        (record.va.get() - Self::VA) as usize / PAGE
    }

    /// Puts page `frame` of the memory behind page `page` of the region.
    pub fn map(&self, page: usize, frame: usize) -> Result<(), DriverError> {
        self.mr.map(TqCmd {
            flags: tq::CONTIGUOUS,
            iova: U64::new(Self::VA + (page * PAGE) as u64),
            count: U64::new(1),
            list: U64::new(self.buf.dma(frame * PAGE) | tq::READ | tq::WRITE),
            page_shift: 12,
            ..TqCmd::default()
        })?;
        Ok(())
    }

    /// Answers a fault.
    pub fn resume(&self, token: u64, status: Status) -> Result<(), DriverError> {
        self.nic.translate(TqCmd {
            opcode: tq::RESUME,
            token: U64::new(token),
            resume_status: U16::new(status as u16),
            ..TqCmd::default()
        })?;
        Ok(())
    }

    /// Brings the page of a record, from the same place of the memory, and says so.
    pub fn repair(&self, record: &Eqe) -> Result<(), DriverError> {
        let page = Self::page_of(record);
        self.map(page, page)?;
        self.resume(record.token.get(), Status::Ok)
    }

    /// Takes one page.
    pub fn take(&self, page: usize) -> Result<(), DriverError> {
        let va = Self::VA + (page * PAGE) as u64;
        self.mr.invalidate(va, PAGE as u64)?;
        Ok(())
    }

    /// Takes all pages.
    pub fn take_all(&self) -> Result<(), DriverError> {
        self.mr.invalidate(Self::VA, self.buf.len() as u64)?;
        Ok(())
    }
}
