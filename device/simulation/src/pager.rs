//! The part of a host's kernel that serves page faults: page frames, a swap, and answers.

use std::collections::{BTreeMap, VecDeque};

use faultline_abi::Status;
use faultline_abi::admin::{DESTROY_MKEY, EQ_FAULTS};
use faultline_abi::event::{Eqe, PAGE_FAULT, WRITE};
use faultline_abi::translation as tq;
use faultline_scenario::traffic::FaultService;

use crate::bus::Bus;
use crate::driver::{Driver, Eq, Error};
use crate::process::ProcessBus;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
const PAGE_BYTES: usize = 4096;
/// Most pages that one record makes present.
const MAX_PAGES: u64 = 1024;

type HostDriver = Driver<ProcessBus>;

/// An on-demand region.
#[derive(Debug)]
struct Region {
    key: u32,
    va: u64,
    resident: BTreeMap<u64, Resident>,
    swap: BTreeMap<u64, Vec<u8>>,
}

/// A page that has a frame. Pages are numbered by address.
#[derive(Clone, Copy, Debug)]
struct Resident {
    frame: u64,
    writable: bool,
    /// When it was last asked for, as a running number.
    used: u64,
}

/// The pager of a host.
#[derive(Debug)]
pub(crate) struct Pager {
    queue: Eq,
    regions: Vec<Region>,
    free: Vec<u64>,
    /// Records by the time of their answer.
    waiting: VecDeque<(u64, Eqe)>,
    uses: u64,
    service_time: u64,
    service: FaultService,
}

/// A position in a range: page, offset in it, bytes there.
fn pieces(mut va: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut left = len;
    std::iter::from_fn(move || {
        let within = usize::try_from(va % PAGE).unwrap_or(0);
        let n = PAGE_BYTES.saturating_sub(within).min(left);
        let piece = (va / PAGE, within, n);
        va = va.wrapping_add(n as u64);
        left = left.saturating_sub(n);
        (n > 0).then_some(piece)
    })
}

impl Pager {
    /// Creates the fault queue, of 2^`log_depth` records, and `frames` page frames.
    pub(crate) fn new(
        driver: &mut HostDriver,
        frames: u32,
        log_depth: u8,
        service_time: u64,
        service: FaultService,
    ) -> Result<Self, Error> {
        let queue = driver.create_eq(EQ_FAULTS, 2, log_depth)?;
        driver.arm_eq(&queue);
        // A frame is written before it is mapped.
        let first = driver.alloc_uncleared(u64::from(frames).saturating_mul(PAGE))?;
        let frame = |n: u32| first.saturating_add(u64::from(n).saturating_mul(PAGE));
        Ok(Self {
            queue,
            regions: Vec::new(),
            free: (0..frames).rev().map(frame).collect(),
            waiting: VecDeque::new(),
            uses: 0,
            service_time,
            service,
        })
    }

    /// Registers a region without pages. Returns its index and its key.
    pub(crate) fn register(
        &mut self,
        driver: &mut HostDriver,
        pd: u32,
        va: u64,
        len: u64,
    ) -> Result<(usize, u32), Error> {
        let key = driver.reg_on_demand(pd, va, len, 0)?;
        self.regions.push(Region {
            key,
            va,
            resident: BTreeMap::new(),
            swap: BTreeMap::new(),
        });
        Ok((self.regions.len().saturating_sub(1), key))
    }

    /// Removes a memory key, of this pager or another.
    pub(crate) fn deregister(driver: &mut HostDriver, key: u32) -> Result<(), Error> {
        driver.command(DESTROY_MKEY, key, &[0_u8; 0]).map(drop)
    }

    /// What the host's processor reads.
    pub(crate) fn read(&self, driver: &HostDriver, region: usize, offset: u64, buf: &mut [u8]) {
        let Some(region) = self.regions.get(region) else {
            return;
        };
        let mut rest = buf;
        for (page, within, n) in pieces(region.va.wrapping_add(offset), rest.len()) {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(n.min(PAGE_BYTES));
            rest = after;
            if let Some(resident) = region.resident.get(&page) {
                driver
                    .bus
                    .read(resident.frame.wrapping_add(within as u64), part);
            } else if let Some(from) = region
                .swap
                .get(&page)
                .and_then(|swapped| swapped.get(within..within.saturating_add(n)))
            {
                part.copy_from_slice(from);
            } else {
                part.fill(0);
            }
        }
    }

    /// What the host's processor writes. Absent pages change in the swap: this does not make them present for the NIC.
    pub(crate) fn write(&mut self, driver: &HostDriver, region: usize, offset: u64, data: &[u8]) {
        let Some(region) = self.regions.get_mut(region) else {
            return;
        };
        let mut rest = data;
        for (page, within, n) in pieces(region.va.wrapping_add(offset), rest.len()) {
            let (part, after) = rest.split_at(n.min(rest.len()));
            rest = after;
            if let Some(resident) = region.resident.get(&page) {
                driver
                    .bus
                    .write(resident.frame.wrapping_add(within as u64), part);
                continue;
            }
            let swapped = region.swap.entry(page);
            let swapped = swapped.or_insert_with(|| vec![0; PAGE_BYTES]);
            if let Some(into) = swapped.get_mut(within..within.saturating_add(n)) {
                into.copy_from_slice(part);
            }
        }
    }

    /// Removes the page that was not used for the longest time. Returns its frame.
    fn evict(&mut self, driver: &mut HostDriver) -> Result<Option<u64>, Error> {
        let pages = self.regions.iter().enumerate().flat_map(|(n, region)| {
            let resident = region.resident.iter();
            resident.map(move |(page, is)| (is.used, n, *page))
        });
        let Some((_, index, page)) = pages.min() else {
            return Ok(None);
        };
        let Some(region) = self.regions.get_mut(index) else {
            return Ok(None);
        };
        let Some(Resident { frame, .. }) = region.resident.remove(&page) else {
            return Ok(None);
        };
        let invalidated = driver.invalidate_page(region.key, page.wrapping_mul(PAGE));
        // A key that has been removed has no entries.
        let _ = allow(invalidated, Status::BadMkey)?;
        let mut bytes = vec![0; PAGE_BYTES];
        driver.bus.read(frame, &mut bytes);
        region.swap.insert(page, bytes);
        Ok(Some(frame))
    }

    /// Makes a page present, and maps it in the NIC. Returns false if there is no frame for it.
    fn map(
        &mut self,
        driver: &mut HostDriver,
        index: usize,
        page: u64,
        write: bool,
    ) -> Result<bool, Error> {
        self.uses = self.uses.wrapping_add(1);
        let used = self.uses;
        let present = self
            .regions
            .get(index)
            .and_then(|region| region.resident.get(&page).copied());
        let frame = match (present, self.free.pop()) {
            (Some(present), spare) => {
                self.free.extend(spare);
                present.frame
            }
            (None, Some(frame)) => frame,
            (None, None) => match self.evict(driver)? {
                Some(frame) => frame,
                None => return Ok(false),
            },
        };
        let Some(region) = self.regions.get_mut(index) else {
            return Ok(false);
        };
        if present.is_none() {
            let bytes = region.swap.remove(&page);
            driver
                .bus
                .write(frame, &bytes.unwrap_or_else(|| vec![0; PAGE_BYTES]));
        }
        let writable = write || present.is_some_and(|present| present.writable);
        let rights = if writable {
            tq::READ | tq::WRITE
        } else {
            tq::READ
        };
        let resident = Resident {
            frame,
            writable,
            used,
        };
        region.resident.insert(page, resident);
        let va = page.wrapping_mul(PAGE);
        let mapped = driver.give_page(tq::MAP, region.key, va, frame | rights);
        allow(mapped, Status::BadMkey).map(|_| true)
    }

    /// Reads the fault queue, after its interrupt.
    pub(crate) fn collect(&mut self, driver: &mut HostDriver, now: u64) {
        let at = now.saturating_add(self.service_time);
        while let Some(record) = driver.poll_event(&mut self.queue) {
            if record.kind == PAGE_FAULT {
                self.waiting.push_back((at, record));
            }
        }
        driver.arm_eq(&self.queue);
    }

    /// When the next answer is due.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let next = self.waiting.front().map(|(at, _)| *at);
        next.filter(|_| self.service != FaultService::Ignore)
    }

    /// Answers what is due. Returns true if there was something.
    pub(crate) fn answer_due(&mut self, driver: &mut HostDriver, now: u64) -> Result<bool, Error> {
        let mut any = false;
        while self.next_at().is_some_and(|at| at <= now)
            && let Some((_, record)) = self.waiting.pop_front()
        {
            any = true;
            let status = match self.service {
                FaultService::Repair => self.repair(driver, &record)?,
                FaultService::Fail | FaultService::Ignore => Status::BadRange,
            };
            // The fault may have ended meanwhile.
            let resumed = driver.resume(record.token.get(), status);
            allow(resumed, Status::BadToken)?;
        }
        Ok(any)
    }

    fn repair(&mut self, driver: &mut HostDriver, record: &Eqe) -> Result<Status, Error> {
        let key = record.key.get();
        let Some(index) = self.regions.iter().position(|region| region.key == key) else {
            return Ok(Status::BadMkey);
        };
        let bytes = u64::from(record.bytes.get()).max(1);
        let va = record.va.get();
        let write = record.fault_flags.get() & WRITE != 0;
        let (first, last) = (va / PAGE, va.saturating_add(bytes).saturating_sub(1) / PAGE);
        let last = last.min(first.saturating_add(MAX_PAGES));
        // The page that is demanded comes last, so that no other page takes its frame.
        for page in (first..=last).rev() {
            if !self.map(driver, index, page, write)? {
                return Ok(Status::NoResources);
            }
        }
        Ok(Status::Ok)
    }
}

/// Takes one refusal as success.
fn allow<T>(result: Result<T, Error>, status: Status) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Refused(found)) if found == status => Ok(None),
        Err(error) => Err(error),
    }
}
