//! The pager of a host of a world.

use std::ops::{Deref, DerefMut};

use faultline_abi::Status;
use faultline_abi::event::{Eqe, PAGE_FAULT};
use faultline_simulation::{Error, Pager};

use crate::world::{Host, World};

/// The pager of a host. A command that the device refuses fails the test, and so does a write to a page after its invalidation.
#[derive(Debug)]
pub struct HostPager {
    host: usize,
    pager: Pager,
    /// Records seen.
    pub records: Vec<Eqe>,
}

impl Deref for HostPager {
    type Target = Pager;

    fn deref(&self) -> &Pager {
        &self.pager
    }
}

impl DerefMut for HostPager {
    fn deref_mut(&mut self) -> &mut Pager {
        &mut self.pager
    }
}

impl HostPager {
    /// A pager with `frames` page frames, and a fault queue of 2^`log_depth` records.
    pub fn new(world: &mut World, host: usize, frames: u32, log_depth: u8) -> Self {
        let driver = &mut world.hosts[host].driver;
        let mut pager = Pager::new(driver, frames, log_depth).expect("frames and fault queue");
        (pager.delay, pager.spare) = (50_000, 1);
        Self {
            host,
            pager,
            records: Vec::new(),
        }
    }

    /// Lets the pager work with its host.
    #[track_caller]
    fn work<T>(
        &mut self,
        world: &mut World,
        work: impl FnOnce(&mut Pager, &mut Host) -> Result<T, Error>,
    ) -> T {
        let done = work(&mut self.pager, &mut world.hosts[self.host]);
        let writes = self.pager.stray_writes();
        assert_eq!(writes, 0, "the device wrote to a page that it did not have");
        done.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Destroys the fault queue: faults cannot be reported any more.
    pub fn close(&mut self, world: &mut World) {
        self.work(world, |pager, host| pager.close(&mut host.driver));
    }

    /// Registers a region without resident pages; returns its index.
    pub fn register(&mut self, world: &mut World, va: u64, len: u64) -> usize {
        self.register_with(world, va, len, 0)
    }

    /// The same with access rights in addition to the usual ones.
    pub fn register_with(&mut self, world: &mut World, va: u64, len: u64, more: u32) -> usize {
        let pd = world.hosts[self.host].pd;
        self.register_in(world, pd, va, len, more)
    }

    /// The same in this protection domain.
    pub fn register_in(
        &mut self,
        world: &mut World,
        pd: u32,
        va: u64,
        len: u64,
        more: u32,
    ) -> usize {
        self.work(world, |pager, host| {
            pager.register(&mut host.driver, pd, (va, len), more)
        })
    }

    /// Takes the region's key out of service. Its record of pages stays.
    pub fn deregister(&mut self, world: &mut World, region: usize) {
        let key = self.pager.regions[region].key;
        self.work(world, |_, host| Pager::deregister(&mut host.driver, key));
    }

    /// Reads as the host's processor; unwritten bytes are zero.
    pub fn read(&self, world: &World, region: usize, offset: u64, len: usize) -> Vec<u8> {
        let driver = &world.hosts[self.host].driver;
        let mut bytes = vec![0; len];
        self.pager.read(driver, region, offset, &mut bytes);
        bytes
    }

    /// Writes as the host's processor. Absent pages change in the swap.
    pub fn write(&mut self, world: &World, region: usize, offset: u64, data: &[u8]) {
        let driver = &world.hosts[self.host].driver;
        self.pager.write(driver, region, offset, data);
    }

    /// Takes a page away: the device first, then the frame.
    pub fn evict(&mut self, world: &mut World, region: usize, page: u64) {
        self.work(world, |pager, host| {
            pager.evict(&mut host.driver, region, page)
        });
    }

    /// Takes all pages of a region away.
    pub fn evict_all(&mut self, world: &mut World, region: usize) {
        self.work(world, |pager, host| {
            pager.evict_all(&mut host.driver, region)
        });
    }

    /// Moves a page to another frame under the live key, in one operation of the device.
    pub fn migrate(&mut self, world: &mut World, region: usize, page: u64) {
        self.work(world, |pager, host| {
            pager.migrate(&mut host.driver, region, page)
        });
    }

    /// Checks that the device has not written to a free frame.
    pub fn check_free(&self, world: &World) {
        let driver = &world.hosts[self.host].driver;
        assert!(!self.pager.has_stray_writes(driver));
    }

    /// Makes a page present, as a fault or a prefetch does.
    pub fn map_page(&mut self, world: &mut World, region: usize, page: u64, write: bool) {
        let mapped = self.work(world, |pager, host| {
            pager.map_page(&mut host.driver, region, page, write)
        });
        assert!(mapped, "no page frame");
    }

    /// Reads the fault queue.
    pub fn collect(&mut self, world: &mut World) {
        let now = world.now();
        let records = self.work(world, |pager, host| {
            let records = pager.collect(&mut host.driver, now);
            if !records.is_empty() {
                pager.arm(&mut host.driver);
            }
            Ok(records)
        });
        assert!(records.iter().all(|record| record.kind == PAGE_FAULT));
        self.records.extend(records);
    }

    /// Answers a token; returns the device's status.
    pub fn resume(&mut self, world: &mut World, token: u64, status: Status) -> Result<u32, Error> {
        world.hosts[self.host].driver.resume(token, status)
    }

    /// Answers what is due.
    pub fn answer_due(&mut self, world: &mut World) {
        let now = world.now();
        self.work(world, |pager, host| pager.answer_due(&mut host.driver, now));
    }
}

/// Lets everything happen, with these pagers at work, until nothing is left to happen.
pub fn run(world: &mut World, pagers: &mut [&mut HostPager]) {
    loop {
        for pager in &mut *pagers {
            pager.collect(world);
        }
        let due = pagers.iter().filter_map(|pager| pager.next_at()).min();
        if world.step(due.unwrap_or(u64::MAX)) {
            continue;
        }
        let Some(due) = due else { return };
        world.advance_to(due);
        for pager in &mut *pagers {
            pager.answer_due(world);
        }
    }
}
