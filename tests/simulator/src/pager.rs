//! A kernel's side of regions on demand: page frames, a swap, and answers to page faults.
//!
//! A frame that is taken away is filled with a pattern, which must still be there when the frame is used again:
//! whatever the device does to a page after its invalidation shows.

use std::collections::{BTreeMap, VecDeque};

use faultline_abi::Status;
use faultline_abi::admin::{DESTROY_EQ, DESTROY_MKEY, EQ_FAULTS};
use faultline_abi::event::{Eqe, PAGE_FAULT, WRITE};
use faultline_abi::translation as tq;

use faultline_simulation::driver::{Eq, Sge};
use faultline_simulation::{Bus, Error};

use crate::world::World;

const PAGE: u64 = 4096;
/// The content of unused frames.
const POISON: u8 = 0xdb;

/// A region on demand.
#[derive(Debug)]
pub struct Region {
    /// lkey and rkey.
    pub key: u32,
    /// First I/O virtual address.
    pub va: u64,
    /// Bytes.
    pub len: u64,
    /// By number of the page.
    resident: BTreeMap<u64, Resident>,
    swap: BTreeMap<u64, Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    frame: u64,
    /// The device may write it.
    writable: bool,
    /// Running number of its last use.
    used: u64,
}

/// What a pager does with a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// Maps the pages.
    #[default]
    Repair,
    /// Answers that the address is not valid.
    Fail,
    /// Does not answer.
    Ignore,
}

/// The pager of a host.
#[derive(Debug)]
pub struct Pager {
    host: usize,
    eq: Eq,
    /// Its regions.
    pub regions: Vec<Region>,
    free: VecDeque<u64>,
    waiting: VecDeque<(u64, Eqe)>,
    uses: u64,
    /// Nanoseconds from record to answer.
    pub delay: u64,
    /// Bytes that are mapped in advance, if the record says that they will be needed.
    pub ahead: u64,
    /// The answer to faults.
    pub answer: Answer,
    /// Pages are mapped again for a fault, also if they are present already: the device may have lost their entries.
    pub maps_again: bool,
    /// Records seen.
    pub records: Vec<Eqe>,
}

impl Pager {
    /// A pager with so many page frames, and a fault queue of 2^`log_depth` records.
    pub fn new(world: &mut World, host: usize, frames: u64, log_depth: u8) -> Self {
        let driver = &mut world.hosts[host].driver;
        let eq = driver
            .create_eq(EQ_FAULTS, 2, log_depth)
            .expect("fault queue");
        driver.arm_eq(&eq);
        let first = driver.alloc(frames * PAGE).expect("frames");
        let mut pager = Self {
            host,
            eq,
            regions: Vec::new(),
            free: (0..frames).map(|n| first + n * PAGE).collect(),
            waiting: VecDeque::new(),
            uses: 0,
            delay: 50_000,
            ahead: 0,
            answer: Answer::Repair,
            maps_again: false,
            records: Vec::new(),
        };
        for n in 0..frames {
            pager.poison(world, first + n * PAGE);
        }
        pager
    }

    /// Destroys the fault queue: faults can't be reported any more.
    pub fn close(&mut self, world: &mut World) {
        let driver = &mut world.hosts[self.host].driver;
        driver
            .command(DESTROY_EQ, self.eq.eqn, &())
            .expect("a queue without other users");
    }

    fn poison(&mut self, world: &World, frame: u64) {
        let bus = &world.hosts[self.host].driver.bus;
        bus.write(frame, &[POISON; PAGE as usize]);
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
        let host = &mut world.hosts[self.host];
        let key = host
            .driver
            .reg_on_demand(pd, va, len, more)
            .expect("region on demand");
        self.regions.push(Region {
            key,
            va,
            len,
            resident: BTreeMap::new(),
            swap: BTreeMap::new(),
        });
        self.regions.len() - 1
    }

    /// Takes the region's key out of service. Its record of pages stays.
    pub fn deregister(&mut self, world: &mut World, region: usize) {
        let key = self.regions[region].key;
        world.hosts[self.host]
            .driver
            .command(DESTROY_MKEY, key, &[0u8; 0])
            .expect("region goes");
    }

    /// A scatter/gather entry in a region.
    pub fn sge(&self, region: usize, offset: u64, len: u32) -> Sge {
        let region = &self.regions[region];
        (region.va + offset, len, region.key)
    }

    /// Pages of a region that are there.
    pub fn resident(&self, region: usize) -> usize {
        self.regions[region].resident.len()
    }

    /// What the host's processor reads; what was never there is zero.
    pub fn read(&self, world: &World, region: usize, offset: u64, len: usize) -> Vec<u8> {
        let bus = &world.hosts[self.host].driver.bus;
        let region = &self.regions[region];
        let mut out = Vec::with_capacity(len);
        let mut at = region.va + offset;
        while out.len() < len {
            let (page, within) = (at / PAGE, (at % PAGE) as usize);
            let n = (PAGE as usize - within).min(len - out.len());
            let mut bytes = vec![0; PAGE as usize];
            if let Some(resident) = region.resident.get(&page) {
                bus.read(resident.frame, &mut bytes);
            } else if let Some(swapped) = region.swap.get(&page) {
                bytes.copy_from_slice(swapped);
            }
            out.extend_from_slice(&bytes[within..within + n]);
            at += n as u64;
        }
        out
    }

    /// What the host's processor writes. Pages that are not there change in the swap.
    pub fn write(&mut self, world: &World, region: usize, offset: u64, data: &[u8]) {
        let bus = &world.hosts[self.host].driver.bus;
        let region = &mut self.regions[region];
        let (mut at, mut left) = (region.va + offset, data);
        while !left.is_empty() {
            let (page, within) = (at / PAGE, at % PAGE);
            let n = ((PAGE - within) as usize).min(left.len());
            let (now, rest) = left.split_at(n);
            if let Some(resident) = region.resident.get(&page) {
                bus.write(resident.frame + within, now);
            } else {
                let swapped = region.swap.entry(page).or_insert(vec![0; PAGE as usize]);
                swapped[within as usize..within as usize + n].copy_from_slice(now);
            }
            (at, left) = (at + n as u64, rest);
        }
    }

    /// Takes a page away: the device first, then the frame.
    pub fn evict(&mut self, world: &mut World, region: usize, page: u64) {
        let Some(Resident { frame, .. }) = self.regions[region].resident.remove(&page) else {
            return;
        };
        let driver = &mut world.hosts[self.host].driver;
        // A key that is gone has no entries.
        match driver.invalidate_page(self.regions[region].key, page * PAGE) {
            Ok(_) | Err(Error::Refused(Status::BadMkey)) => {}
            Err(error) => panic!("{error}"),
        }
        let mut bytes = vec![0; PAGE as usize];
        driver.bus.read(frame, &mut bytes);
        self.regions[region].swap.insert(page, bytes);
        self.poison(world, frame);
        self.free.push_back(frame);
    }

    /// Takes all pages of a region away.
    pub fn evict_all(&mut self, world: &mut World, region: usize) {
        let pages: Vec<u64> = self.regions[region].resident.keys().copied().collect();
        for page in pages {
            self.evict(world, region, page);
        }
    }

    /// Moves a page to another frame under the live key, in one operation of the device.
    pub fn migrate(&mut self, world: &mut World, region: usize, page: u64) {
        let Some(was) = self.regions[region].resident.get(&page).copied() else {
            return;
        };
        let (old, writable) = (was.frame, was.writable);
        let new = self.take_frame(world);
        if !self.regions[region].resident.contains_key(&page) {
            // Room was made by taking away this very page.
            self.free.push_back(new);
            return;
        }
        let mut bytes = vec![0; PAGE as usize];
        let bus = &world.hosts[self.host].driver.bus;
        bus.read(old, &mut bytes);
        bus.write(new, &bytes);
        self.give(world, tq::REPLACE, region, page, entry(new, writable));
        let is = Resident { frame: new, ..was };
        self.regions[region].resident.insert(page, is);
        self.poison(world, old);
        self.free.push_back(old);
    }

    fn take_frame(&mut self, world: &mut World) -> u64 {
        while self.free.len() < 2 {
            let (_, region, page) = self
                .regions
                .iter()
                .enumerate()
                .flat_map(|(n, region)| {
                    region
                        .resident
                        .iter()
                        .map(move |(page, is)| (is.used, n, *page))
                })
                .min()
                .expect("a page to take away");
            self.evict(world, region, page);
        }
        let frame = self.free.pop_front().expect("a frame");
        self.check_poison(world, frame);
        frame
    }

    fn check_poison(&self, world: &World, frame: u64) {
        let mut bytes = [0; PAGE as usize];
        world.hosts[self.host].driver.bus.read(frame, &mut bytes);
        assert!(
            bytes == [POISON; PAGE as usize],
            "the device wrote to a page that it did not have any more"
        );
    }

    /// Checks that the device has not written to a free frame.
    pub fn check_free(&self, world: &World) {
        for frame in &self.free {
            self.check_poison(world, *frame);
        }
    }

    fn give(&mut self, world: &mut World, opcode: u8, region: usize, page: u64, entry: u64) {
        let driver = &mut world.hosts[self.host].driver;
        match driver.give_page(opcode, self.regions[region].key, page * PAGE, entry) {
            Ok(_) | Err(Error::Refused(Status::BadMkey)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Makes a page present, as a fault or a prefetch does.
    pub fn map_page(&mut self, world: &mut World, region: usize, page: u64, write: bool) {
        self.uses += 1;
        let used = self.uses;
        if let Some(is) = self.regions[region].resident.get_mut(&page) {
            is.used = used;
            if write && !is.writable || self.maps_again {
                is.writable |= write;
                let (frame, writable) = (is.frame, is.writable);
                self.give(world, tq::MAP, region, page, entry(frame, writable));
            }
            return;
        }
        let frame = self.take_frame(world);
        let bytes = match self.regions[region].swap.remove(&page) {
            Some(bytes) => bytes,
            None => vec![0; PAGE as usize],
        };
        world.hosts[self.host].driver.bus.write(frame, &bytes);
        self.give(world, tq::MAP, region, page, entry(frame, write));
        let is = Resident {
            frame,
            writable: write,
            used,
        };
        self.regions[region].resident.insert(page, is);
    }

    /// Reads the fault queue.
    pub fn collect(&mut self, world: &mut World) {
        let now = world.now();
        let driver = &mut world.hosts[self.host].driver;
        let mut any = false;
        while let Some(record) = driver.poll_event(&mut self.eq) {
            assert_eq!(record.kind, PAGE_FAULT);
            self.records.push(record);
            self.waiting.push_back((now + self.delay, record));
            any = true;
        }
        if any {
            driver.arm_eq(&self.eq);
        }
    }

    /// When the next answer is due.
    pub fn next_at(&self) -> Option<u64> {
        let waiting = self.waiting.front().map(|(at, _)| *at);
        waiting.filter(|_| self.answer != Answer::Ignore)
    }

    /// Answers a token; returns the device's status.
    pub fn resume(&mut self, world: &mut World, token: u64, status: Status) -> Result<u32, Error> {
        world.hosts[self.host].driver.resume(token, status)
    }

    /// Answers what is due.
    pub fn answer_due(&mut self, world: &mut World) {
        while self.next_at().is_some_and(|at| at <= world.now())
            && let Some((_, record)) = self.waiting.pop_front()
        {
            let status = match self.answer {
                Answer::Repair => self.repair(world, &record),
                Answer::Fail => Status::BadRange,
                Answer::Ignore => return,
            };
            match self.resume(world, record.token.get(), status) {
                // The region may have gone, or the fault may have been too old.
                Ok(_) | Err(Error::Refused(Status::BadToken)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn repair(&mut self, world: &mut World, record: &Eqe) -> Status {
        let key = record.key.get();
        let Some(region) = self.regions.iter().position(|region| region.key == key) else {
            return Status::BadMkey;
        };
        let wanted = record.hint_bytes.get().min(self.ahead);
        let bytes = u64::from(record.bytes.get()).max(wanted).max(1);
        let va = record.va.get();
        let write = record.fault_flags.get() & WRITE != 0;
        // The page that is demanded comes last, so that no page of this fault is evicted for it.
        for page in (va / PAGE..=(va + bytes - 1) / PAGE).rev() {
            self.map_page(world, region, page, write);
        }
        Status::Ok
    }
}

/// Lets everything happen, with these pagers at work, until nothing is left to happen.
pub fn run(world: &mut World, pagers: &mut [&mut Pager]) {
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

/// A page entry of a MAP command.
fn entry(frame: u64, writable: bool) -> u64 {
    let write = if writable { tq::WRITE } else { 0 };
    frame | tq::READ | write
}
