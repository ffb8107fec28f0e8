//! One NIC with what surrounds it: doorbell pages, device memory and interrupts.

use std::mem::offset_of;

use faultline_abi::doorbell::{self, Doorbell, DoorbellPage};
use faultline_abi::regs;
use faultline_memory::{PAGE_SIZE, Page, SharedPages};
use faultline_nic::{DEVICE_MEMORY, Instant, Nic, NicConfig, TURN_WORK};
use faultline_vfio_user::IrqVectors;

use crate::durable::Keeper;
use crate::ram::Ram;

const ASLEEP: usize = offset_of!(DoorbellPage, asleep);
const ALIVE: usize = offset_of!(DoorbellPage, alive);
const HEARTBEAT: usize = offset_of!(DoorbellPage, heartbeat);
const CONSUMER: usize = offset_of!(DoorbellPage, consumer);
const RING: usize = offset_of!(DoorbellPage, ring);
const RING_MASK: u32 = doorbell::RING_ENTRIES as u32 - 1;
/// Doorbells taken from one page before the next has its turn.
const DOORBELL_BATCH: u32 = 32;

/// Where things are in BAR 2, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarTwo {
    /// Doorbell pages from 0 on; the kick pages behind them take up as much.
    pub(crate) doorbells: u64,
    /// Device memory.
    pub(crate) memory: u64,
    pub(crate) memory_len: u64,
}

impl BarTwo {
    pub(crate) fn of(nic: &Nic) -> Self {
        Self {
            doorbells: u64::from(nic.doorbell_page_count()) * PAGE_SIZE as u64,
            memory: nic.device_memory_offset(),
            memory_len: nic.config().limits.device_memory,
        }
    }

    /// All of it: a power of two, as BARs are.
    pub(crate) fn size(&self) -> u64 {
        (self.memory + self.memory_len).next_power_of_two()
    }
}

/// A doorbell page that is polled.
#[derive(Clone, Copy, Debug)]
struct Polled {
    page: u32,
    /// When the context was allocated: tells its page from that of an earlier one.
    version: u64,
    consumer: u32,
}

/// A NIC in the engine.
#[derive(Debug)]
pub struct NicPort {
    pub(crate) nic: Nic,
    pub(crate) irqs: IrqVectors,
    /// BAR 2: doorbell pages, a gap for the kick pages, device memory.
    pub(crate) pages: SharedPages,
    /// Bus mastering: without it the function does no DMA and sends no interrupts.
    pub(crate) bus_master: bool,
    polled: Vec<Polled>,
    /// The page that is looked at first.
    first: usize,
    pages_version: u64,
    heartbeat: u32,
}

impl NicPort {
    pub(crate) fn new(name: &str, config: NicConfig) -> std::io::Result<Self> {
        let nic = Nic::new(config);
        let bar = BarTwo::of(&nic);
        let count = (bar.memory + bar.memory_len) as usize / PAGE_SIZE;
        Ok(Self {
            irqs: IrqVectors::new(regs::MSIX_VECTORS),
            pages: SharedPages::new(&format!("faultline-bar2-{name}"), count)?,
            bus_master: false,
            polled: Vec::new(),
            first: 0,
            pages_version: nic.doorbell_pages_version(),
            heartbeat: 0,
            nic,
        })
    }

    /// What a NIC reaches: the memory that its guest will lend it, and its own.
    pub(crate) fn ram(&self, keeper: Keeper) -> std::io::Result<Ram> {
        let bar = BarTwo::of(&self.nic);
        let mut ram = Ram::new(keeper);
        if bar.memory_len > 0 {
            let fd = Some(self.pages.dup()?);
            ram.0
                .map(DEVICE_MEMORY, bar.memory_len, fd, bar.memory, true, true)
                .map_err(std::io::Error::other)?;
        }
        Ok(ram)
    }

    /// Function-level reset. Nobody finds in the device memory what was there.
    pub(crate) fn reset(&mut self) {
        self.nic.reset();
        let bar = BarTwo::of(&self.nic);
        let (first, count) = (bar.memory as usize, bar.memory_len as usize);
        if let Err(error) = self.pages.clear(first / PAGE_SIZE, count / PAGE_SIZE) {
            tracing::error!("can't clear the device memory: {error}");
        }
        self.irqs.reset();
        self.sync_pages();
    }

    /// Polls the pages of the contexts that exist now. A page that goes is zeroed, so that it is clean when a
    /// context gets it.
    pub(crate) fn sync_pages(&mut self) {
        let version = self.nic.doorbell_pages_version();
        if version == self.pages_version {
            return;
        }
        self.pages_version = version;
        let now: Vec<(u32, u64)> = self.nic.doorbell_pages().collect();
        for old in &self.polled {
            if !now.contains(&(old.page, old.version)) {
                self.pages.zero_page(old.page as usize);
            }
        }
        let polled = &self.polled;
        let keep = |(page, version): (u32, u64)| {
            let known = polled
                .iter()
                .find(|old| (old.page, old.version) == (page, version));
            known.copied().unwrap_or(Polled {
                page,
                version,
                consumer: 0,
            })
        };
        self.polled = now.into_iter().map(keep).collect();
        for polled in &self.polled {
            if let Some(page) = self.pages.page(polled.page as usize) {
                page.store_u32(ALIVE, 1);
            }
        }
    }

    /// Takes doorbells from all pages; or from some, if they cause much work, and from the others the next time.
    /// Gives whether there were any.
    pub(crate) fn poll_doorbells(&mut self, now: Instant, ram: &Ram) -> bool {
        let mut any = false;
        let (before, pages) = (self.nic.work(), self.polled.len());
        let first = std::mem::take(&mut self.first).min(pages);
        for index in (first..pages).chain(0..first) {
            let is_over = |nic: &Nic| nic.work() - before >= TURN_WORK;
            if is_over(&self.nic) {
                self.first = index;
                break;
            }
            let Some(polled) = self.polled.get_mut(index) else {
                continue;
            };
            let Some(page) = self.pages.page(polled.page as usize) else {
                continue;
            };
            let first = polled.consumer;
            while polled.consumer.wrapping_sub(first) < DOORBELL_BATCH && !is_over(&self.nic) {
                let bits = load_slot(&page, polled.consumer);
                if !doorbell::is_filled(bits, polled.consumer) {
                    break;
                }
                polled.consumer = polled.consumer.wrapping_add(1);
                self.nic
                    .doorbell(now, ram, polled.page, Doorbell::from_bits(bits));
            }
            if polled.consumer != first {
                page.store_u32(CONSUMER, polled.consumer);
                any = true;
            }
        }
        if any {
            self.sync_pages();
        }
        any
    }

    /// Whether a doorbell waits.
    pub(crate) fn has_doorbell(&self) -> bool {
        self.polled.iter().any(|polled| {
            self.pages.page(polled.page as usize).is_some_and(|page| {
                doorbell::is_filled(load_slot(&page, polled.consumer), polled.consumer)
            })
        })
    }

    /// Says on every page whether doorbells must be kicked.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        for polled in &self.polled {
            if let Some(page) = self.pages.page(polled.page as usize) {
                page.store_u32_seqcst(ASLEEP, u32::from(asleep));
            }
        }
    }

    /// Shows the driver that the device lives.
    pub(crate) fn beat(&mut self) {
        self.heartbeat = self.heartbeat.wrapping_add(1);
        if self.nic.is_running()
            && let Some(page) = self.pages.page(0)
        {
            page.store_u32(HEARTBEAT, self.heartbeat);
        }
    }

    /// Sends the interrupts that are due.
    pub(crate) fn send_interrupts(&mut self) -> bool {
        let mut any = false;
        while let Some(vector) = self.nic.poll_interrupt() {
            any = true;
            if self.bus_master {
                self.irqs.trigger(usize::from(vector));
            }
        }
        any
    }
}

fn load_slot(page: &Page<'_>, index: u32) -> u64 {
    page.load_u64(RING + (index & RING_MASK) as usize * 8)
}
