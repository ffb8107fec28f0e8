//! Memory of a host that is registered, on demand or pinned.

use std::collections::{BTreeMap, BTreeSet};

use faultline_abi::Status;
use faultline_abi::event::Eqe;
use faultline_abi::translation as tq;

use crate::bus::Bus;
use crate::driver::{ALL_ACCESS, Driver, Error, Sge};
use crate::process::ProcessBus;

const PAGE: u64 = 4096;
/// The same as the length of a page.
const OCTETS: usize = 4096;
/// Repetitions of a MAP that rules refuse. All rules of a plan together refuse fewer.
const MAP_TRIES: u32 = 20;
/// Content of a page that is not mapped: a write of the device shows.
const POISON: u8 = 0xdb;

/// A region whose pages are at a fixed place. While a page is not mapped its content is in `swap`. Behind the last one is a page that is
/// not registered.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) key: u32,
    va: u64,
    frames: u64,
    len: u64,
    /// Mapped pages; `None`: the region is pinned.
    mapped: Option<BTreeSet<u64>>,
    swap: BTreeMap<u64, Vec<u8>>,
}

/// A copy of memory.
#[derive(Debug)]
pub(super) struct Copy {
    addr: u64,
    octets: Vec<u8>,
}

impl Copy {
    /// True if the memory has not changed since.
    pub(super) fn is_current(&self, driver: &Driver<ProcessBus>) -> bool {
        let mut octets = vec![0; self.octets.len()];
        driver.bus.read(self.addr, &mut octets);
        octets == self.octets
    }
}

impl Region {
    /// Registers `len` octets, a multiple of the page size. On demand, no page is mapped yet.
    pub(super) fn new(
        driver: &mut Driver<ProcessBus>,
        pd: u32,
        (va, len): (u64, u64),
        on_demand: bool,
    ) -> Result<Self, Error> {
        let frames = driver.alloc(len.saturating_add(PAGE))?;
        driver
            .bus
            .write(frames.saturating_add(len), &[POISON; OCTETS]);
        if !on_demand {
            let mr = repeat(|| driver.reg_mr_at(pd, va, len, ALL_ACCESS, frames))?;
            return Ok(Self {
                key: mr.key,
                va,
                frames,
                len,
                mapped: None,
                swap: BTreeMap::new(),
            });
        }
        let key = driver.reg_on_demand(pd, va, len, 0)?;
        let zeroes = |page| (page, vec![0; OCTETS]);
        let region = Self {
            key,
            va,
            frames,
            len,
            mapped: Some(BTreeSet::new()),
            swap: (0..len / PAGE).map(zeroes).collect(),
        };
        (0..len / PAGE).for_each(|page| region.poison(driver, page));
        Ok(region)
    }

    /// A scatter/gather entry.
    pub(super) fn sge(&self, offset: u64, len: u32) -> Sge {
        (self.va.saturating_add(offset), len, self.key)
    }

    fn frame(&self, page: u64) -> u64 {
        self.frames.saturating_add(page.saturating_mul(PAGE))
    }

    fn poison(&self, driver: &Driver<ProcessBus>, page: u64) {
        let octets = [POISON; OCTETS];
        driver.bus.write(self.frame(page), &octets);
    }

    /// The content of all pages.
    pub(super) fn content(&self, driver: &Driver<ProcessBus>) -> Vec<u8> {
        let mut all = Vec::new();
        for page in 0..self.len / PAGE {
            match self.swap.get(&page) {
                Some(swapped) => all.extend_from_slice(swapped),
                None => {
                    let mut octets = [0; OCTETS];
                    driver.bus.read(self.frame(page), &mut octets);
                    all.extend_from_slice(&octets);
                }
            }
        }
        all
    }

    /// Fills all pages. `octet` returns the value at an offset.
    pub(super) fn fill(&mut self, driver: &Driver<ProcessBus>, octet: impl Fn(u64) -> u8) {
        for page in 0..self.len / PAGE {
            let first = page.saturating_mul(PAGE);
            let octets: Vec<u8> = (first..first.saturating_add(PAGE)).map(&octet).collect();
            match self.swap.get_mut(&page) {
                Some(swapped) => *swapped = octets,
                None => driver.bus.write(self.frame(page), &octets),
            }
        }
    }

    /// Takes all pages away.
    pub(super) fn evict(&mut self, driver: &mut Driver<ProcessBus>) -> Result<(), Error> {
        let Some(mapped) = self.mapped.as_mut().map(std::mem::take) else {
            return Ok(());
        };
        for page in mapped {
            driver.invalidate_page(self.key, self.va.saturating_add(page.saturating_mul(PAGE)))?;
            let mut octets = vec![0; OCTETS];
            driver.bus.read(self.frame(page), &mut octets);
            self.swap.insert(page, octets);
            self.poison(driver, page);
        }
        Ok(())
    }

    /// The octets from an offset on.
    pub(super) fn read(&self, driver: &Driver<ProcessBus>, offset: u64, len: u32) -> Vec<u8> {
        let mut found = Vec::new();
        let end = offset.saturating_add(len.into());
        let mut at = offset;
        while at < end {
            let (page, within) = (at / PAGE, at % PAGE);
            let count = PAGE.saturating_sub(within).min(end.saturating_sub(at));
            let mut octets = vec![0; usize::try_from(count).unwrap_or(0)];
            match self.swap.get(&page) {
                Some(swapped) => {
                    let swapped = swapped.iter().skip(usize::try_from(within).unwrap_or(0));
                    octets
                        .iter_mut()
                        .zip(swapped)
                        .for_each(|(to, from)| *to = *from);
                }
                None => {
                    let addr = self.frame(page).saturating_add(within);
                    driver.bus.read(addr, &mut octets);
                }
            }
            found.append(&mut octets);
            at = at.saturating_add(count);
        }
        found
    }

    /// Copies the memory of the region, mapped or not, with the page behind it.
    pub(super) fn copy(&self, driver: &Driver<ProcessBus>) -> Copy {
        let len = self.len.saturating_add(PAGE);
        let mut octets = vec![0; usize::try_from(len).unwrap_or(0)];
        driver.bus.read(self.frames, &mut octets);
        Copy {
            addr: self.frames,
            octets,
        }
    }

    /// True if the unused pages, and the one behind the region, are unchanged.
    pub(super) fn is_unused_untouched(&self, driver: &Driver<ProcessBus>) -> bool {
        let behind = self.len / PAGE;
        self.swap.keys().chain([&behind]).all(|page| {
            let mut octets = [0; OCTETS];
            driver.bus.read(self.frame(*page), &mut octets);
            octets.iter().all(|octet| *octet == POISON)
        })
    }

    /// Maps the pages of a fault of this region.
    pub(super) fn map_all(
        &mut self,
        driver: &mut Driver<ProcessBus>,
        record: &Eqe,
    ) -> Result<(), Error> {
        let last = u64::from(record.bytes.get()).max(1).saturating_sub(1);
        let first = record.va.get().saturating_sub(self.va) / PAGE;
        let last = record.va.get().saturating_add(last).saturating_sub(self.va) / PAGE;
        for page in first..=last.min((self.len / PAGE).saturating_sub(1)) {
            self.map(driver, page)?;
        }
        Ok(())
    }

    fn map(&mut self, driver: &mut Driver<ProcessBus>, page: u64) -> Result<(), Error> {
        if let Some(content) = self.swap.remove(&page) {
            driver.bus.write(self.frame(page), &content);
        }
        if let Some(mapped) = &mut self.mapped {
            mapped.insert(page);
        }
        let va = self.va.saturating_add(page.saturating_mul(PAGE));
        let entry = self.frame(page) | tq::READ | tq::WRITE;
        repeat(|| driver.give_page(tq::MAP, self.key, va, entry)).map(drop)
    }
}

/// Calls again while rules refuse a MAP.
fn repeat<T>(mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let mut tries = 0..MAP_TRIES;
    loop {
        match call() {
            Err(Error::Refused(Status::NoResources)) if tries.next().is_some() => {}
            other => return other,
        }
    }
}

/// Answers a fault.
pub(super) fn answer(
    driver: &mut Driver<ProcessBus>,
    record: &Eqe,
    status: Status,
) -> Result<(), Error> {
    match driver.resume(record.token.get(), status) {
        // The fault may be over.
        Ok(_) | Err(Error::Refused(Status::BadToken)) => Ok(()),
        Err(error) => Err(error),
    }
}
