//! The part of a host's kernel that serves page faults: on-demand regions, page frames, a swap, and answers.
//!
//! A frame that is not used is filled with a pattern. A device that writes to a page after its invalidation changes it
//! ([`Pager::stray_writes`]).

use std::collections::{BTreeMap, VecDeque};

use faultline_abi::Status;
use faultline_abi::admin::{DESTROY_EQ, DESTROY_MKEY, EQ_FAULTS};
use faultline_abi::event::{Eqe, PAGE_FAULT, WRITE};
use faultline_abi::translation as tq;
pub use faultline_scenario::traffic::FaultService;

use crate::bus::Bus;
use crate::driver::{Driver, Eq, Error, Sge};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
const PAGE_BYTES: usize = 4096;
/// Most pages that one record makes present.
const MAX_PAGES: u64 = 1024;
/// The content of unused frames.
const POISON: [u8; PAGE_BYTES] = [0xdb; PAGE_BYTES];

/// An on-demand region. Its pages are numbered by address.
#[derive(Debug)]
pub struct Region {
    /// lkey and rkey.
    pub key: u32,
    /// First I/O virtual address.
    pub va: u64,
    /// Bytes.
    pub len: u64,
    resident: BTreeMap<u64, Resident>,
    swap: BTreeMap<u64, Vec<u8>>,
}

/// A page that has a frame.
#[derive(Clone, Copy, Debug)]
struct Resident {
    frame: u64,
    /// The device may write it.
    writable: bool,
    /// Running number of the last access.
    used: u64,
}

/// The pager of a host.
#[derive(Debug)]
pub struct Pager {
    queue: Eq,
    /// Its regions.
    pub regions: Vec<Region>,
    free: VecDeque<u64>,
    /// Records by the time of their answer.
    waiting: VecDeque<(u64, Eqe)>,
    uses: u64,
    stray_writes: u64,
    /// Nanoseconds from record to answer.
    pub delay: u64,
    /// Bytes that are mapped in advance, if the fault record has them as a hint.
    pub ahead: u64,
    /// The answer to faults.
    pub service: FaultService,
    /// Pages are mapped again for a fault, also if they are present: the device may have lost their entries.
    pub maps_again: bool,
    /// Frames that stay free, so that a frame is used again some time after its page was evicted.
    pub spare: usize,
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

/// A page entry of a MAP command.
fn entry(frame: u64, writable: bool) -> u64 {
    let write = if writable { tq::WRITE } else { 0 };
    frame | tq::READ | write
}

/// Treats a refusal with this status as success.
fn allow<T>(result: Result<T, Error>, status: Status) -> Result<(), Error> {
    match result {
        Ok(_) => Ok(()),
        Err(Error::Refused(found)) if found == status => Ok(()),
        Err(error) => Err(error),
    }
}

impl Pager {
    /// Creates the fault queue, of 2^`log_depth` records, and `frames` page frames. The pager answers at once, and maps
    /// the demanded pages.
    ///
    /// # Errors
    /// The driver has too little memory, or the device refuses the queue.
    pub fn new<B: Bus>(driver: &mut Driver<B>, frames: u32, log_depth: u8) -> Result<Self, Error> {
        let queue = driver.create_eq(EQ_FAULTS, 2, log_depth)?;
        driver.arm_eq(&queue);
        let first = driver.alloc_uncleared(u64::from(frames).saturating_mul(PAGE))?;
        let frame = |n: u32| first.saturating_add(u64::from(n).saturating_mul(PAGE));
        let free: VecDeque<u64> = (0..frames).map(frame).collect();
        free.iter()
            .for_each(|frame| driver.bus.write(*frame, &POISON));
        Ok(Self {
            queue,
            regions: Vec::new(),
            free,
            waiting: VecDeque::new(),
            uses: 0,
            stray_writes: 0,
            delay: 0,
            ahead: 0,
            service: FaultService::Repair,
            maps_again: false,
            spare: 0,
        })
    }

    /// Destroys the fault queue: faults cannot be reported any more.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn close<B: Bus>(&self, driver: &mut Driver<B>) -> Result<(), Error> {
        driver.command(DESTROY_EQ, self.queue.eqn, &()).map(drop)
    }

    /// Registers a region without pages, with every right and those in `more`. Returns its index.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn register<B: Bus>(
        &mut self,
        driver: &mut Driver<B>,
        pd: u32,
        (va, len): (u64, u64),
        more: u32,
    ) -> Result<usize, Error> {
        let key = driver.reg_on_demand(pd, va, len, more)?;
        self.regions.push(Region {
            key,
            va,
            len,
            resident: BTreeMap::new(),
            swap: BTreeMap::new(),
        });
        Ok(self.regions.len().saturating_sub(1))
    }

    /// Removes a memory key, of this pager or another. The pages of its region stay.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn deregister<B: Bus>(driver: &mut Driver<B>, key: u32) -> Result<(), Error> {
        driver.command(DESTROY_MKEY, key, &[0_u8; 0]).map(drop)
    }

    /// A scatter/gather entry in a region.
    #[expect(clippy::indexing_slicing, reason = "an index is from `register`")]
    pub fn sge(&self, region: usize, offset: u64, len: u32) -> Sge {
        let region = &self.regions[region];
        (region.va.wrapping_add(offset), len, region.key)
    }

    /// Number of present pages of a region.
    pub fn resident(&self, region: usize) -> usize {
        let region = self.regions.get(region);
        region.map_or(0, |region| region.resident.len())
    }

    /// Reads as the host's processor does. Bytes that were never written are zero.
    pub fn read<B: Bus>(&self, driver: &Driver<B>, region: usize, offset: u64, buf: &mut [u8]) {
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

    /// Writes as the host's processor does. Absent pages change in the swap: this does not make them present for the NIC.
    pub fn write<B: Bus>(&mut self, driver: &Driver<B>, region: usize, offset: u64, data: &[u8]) {
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

    /// Makes a page absent: invalidates it in the device, moves its content to the swap and frees its frame. Does nothing for a page
    /// that is absent.
    ///
    /// # Errors
    /// The device refuses the invalidation.
    pub fn evict<B: Bus>(
        &mut self,
        driver: &mut Driver<B>,
        index: usize,
        page: u64,
    ) -> Result<(), Error> {
        let Some(region) = self.regions.get_mut(index) else {
            return Ok(());
        };
        let Some(Resident { frame, .. }) = region.resident.remove(&page) else {
            return Ok(());
        };
        let invalidated = driver.invalidate_page(region.key, page.wrapping_mul(PAGE));
        // A key that has been removed has no entries.
        allow(invalidated, Status::BadMkey)?;
        let mut bytes = vec![0; PAGE_BYTES];
        driver.bus.read(frame, &mut bytes);
        region.swap.insert(page, bytes);
        self.free_frame(driver, frame);
        Ok(())
    }

    /// Makes all pages of a region absent.
    ///
    /// # Errors
    /// As [`Pager::evict`].
    pub fn evict_all<B: Bus>(&mut self, driver: &mut Driver<B>, index: usize) -> Result<(), Error> {
        let region = self.regions.get(index);
        let pages: Vec<u64> =
            region.map_or_else(Vec::new, |region| region.resident.keys().copied().collect());
        for page in pages {
            self.evict(driver, index, page)?;
        }
        Ok(())
    }

    /// Moves a page to another frame by one command of the device. Does nothing for a page that is absent.
    ///
    /// # Errors
    /// The device refuses a command.
    pub fn migrate<B: Bus>(
        &mut self,
        driver: &mut Driver<B>,
        index: usize,
        page: u64,
    ) -> Result<(), Error> {
        if !self.has_page(index, page) {
            return Ok(());
        }
        let Some(new) = self.take_frame(driver)? else {
            return Ok(());
        };
        let region = self.regions.get_mut(index);
        let resident =
            region.and_then(|region| Some((region.key, region.resident.get_mut(&page)?)));
        let Some((key, resident)) = resident else {
            // This page was evicted for the new frame.
            self.free.push_back(new);
            return Ok(());
        };
        let old = std::mem::replace(&mut resident.frame, new);
        let entry = entry(new, resident.writable);
        let mut bytes = vec![0; PAGE_BYTES];
        driver.bus.read(old, &mut bytes);
        driver.bus.write(new, &bytes);
        let replaced = driver.give_page(tq::REPLACE, key, page.wrapping_mul(PAGE), entry);
        allow(replaced, Status::BadMkey)?;
        self.free_frame(driver, old);
        Ok(())
    }

    fn has_page(&self, index: usize, page: u64) -> bool {
        let region = self.regions.get(index);
        region.is_some_and(|region| region.resident.contains_key(&page))
    }

    fn free_frame<B: Bus>(&mut self, driver: &Driver<B>, frame: u64) {
        driver.bus.write(frame, &POISON);
        self.free.push_back(frame);
    }

    /// Takes a free frame; if there are too few, the page that was not used for the longest time is evicted first. Returns `None` if there
    /// is no page to evict.
    fn take_frame<B: Bus>(&mut self, driver: &mut Driver<B>) -> Result<Option<u64>, Error> {
        while self.free.len() <= self.spare {
            let pages = self.regions.iter().enumerate().flat_map(|(n, region)| {
                let resident = region.resident.iter();
                resident.map(move |(page, is)| (is.used, n, *page))
            });
            let Some((_, index, page)) = pages.min() else {
                return Ok(None);
            };
            self.evict(driver, index, page)?;
        }
        let frame = self.free.pop_front();
        if frame.is_some_and(|frame| !is_poisoned(driver, frame)) {
            self.stray_writes = self.stray_writes.saturating_add(1);
        }
        Ok(frame)
    }

    /// Frames that the device has written to after the invalidation of their page, found when they were used again.
    pub fn stray_writes(&self) -> u64 {
        self.stray_writes
    }

    /// True if the device has written to a free frame.
    pub fn has_stray_writes<B: Bus>(&self, driver: &Driver<B>) -> bool {
        let mut free = self.free.iter();
        self.stray_writes > 0 || free.any(|frame| !is_poisoned(driver, *frame))
    }

    /// Makes a page present, and maps it in the NIC. Returns false if there is no frame for it.
    ///
    /// # Errors
    /// The device refuses a command.
    pub fn map_page<B: Bus>(
        &mut self,
        driver: &mut Driver<B>,
        index: usize,
        page: u64,
        write: bool,
    ) -> Result<bool, Error> {
        self.uses = self.uses.wrapping_add(1);
        let used = self.uses;
        let va = page.wrapping_mul(PAGE);
        let region = self.regions.get_mut(index);
        let resident =
            region.and_then(|region| Some((region.key, region.resident.get_mut(&page)?)));
        if let Some((key, resident)) = resident {
            resident.used = used;
            if write && !resident.writable || self.maps_again {
                resident.writable |= write;
                let entry = entry(resident.frame, resident.writable);
                let mapped = driver.give_page(tq::MAP, key, va, entry);
                allow(mapped, Status::BadMkey)?;
            }
            return Ok(true);
        }
        let Some(frame) = self.take_frame(driver)? else {
            return Ok(false);
        };
        let Some(region) = self.regions.get_mut(index) else {
            self.free_frame(driver, frame);
            return Ok(false);
        };
        let bytes = region.swap.remove(&page);
        driver
            .bus
            .write(frame, &bytes.unwrap_or_else(|| vec![0; PAGE_BYTES]));
        let resident = Resident {
            frame,
            writable: write,
            used,
        };
        region.resident.insert(page, resident);
        let mapped = driver.give_page(tq::MAP, region.key, va, entry(frame, write));
        allow(mapped, Status::BadMkey).map(|()| true)
    }

    /// Reads the fault queue. Returns the records, which are answered after [`Pager::delay`].
    pub fn collect<B: Bus>(&mut self, driver: &mut Driver<B>, now: u64) -> Vec<Eqe> {
        let at = now.saturating_add(self.delay);
        let records: Vec<Eqe> = std::iter::from_fn(|| driver.poll_event(&mut self.queue)).collect();
        let faults = records.iter().filter(|record| record.kind == PAGE_FAULT);
        self.waiting.extend(faults.map(|record| (at, *record)));
        records
    }

    /// Asks for an interrupt of the fault queue.
    pub fn arm<B: Bus>(&self, driver: &mut Driver<B>) {
        driver.arm_eq(&self.queue);
    }

    /// When the next answer is due.
    pub fn next_at(&self) -> Option<u64> {
        let next = self.waiting.front().map(|(at, _)| *at);
        next.filter(|_| self.service != FaultService::Ignore)
    }

    /// Answers the faults that are due. Returns true if there were any.
    ///
    /// # Errors
    /// The device refuses a command.
    pub fn answer_due<B: Bus>(&mut self, driver: &mut Driver<B>, now: u64) -> Result<bool, Error> {
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

    fn repair<B: Bus>(&mut self, driver: &mut Driver<B>, record: &Eqe) -> Result<Status, Error> {
        let key = record.key.get();
        let Some(index) = self.regions.iter().position(|region| region.key == key) else {
            return Ok(Status::BadMkey);
        };
        let wanted = record.hint_bytes.get().min(self.ahead);
        let bytes = u64::from(record.bytes.get()).max(wanted).max(1);
        let va = record.va.get();
        let write = record.fault_flags.get() & WRITE != 0;
        let (first, last) = (va / PAGE, va.saturating_add(bytes).saturating_sub(1) / PAGE);
        let last = last.min(first.saturating_add(MAX_PAGES));
        // The demanded page comes last, so that no other page takes its frame.
        for page in (first..=last).rev() {
            if !self.map_page(driver, index, page, write)? {
                return Ok(Status::NoResources);
            }
        }
        Ok(Status::Ok)
    }
}

fn is_poisoned<B: Bus>(driver: &Driver<B>, frame: u64) -> bool {
    let mut bytes = [0; PAGE_BYTES];
    driver.bus.read(frame, &mut bytes);
    bytes == POISON
}
