//! One NIC with what surrounds it: doorbell pages, device memory and interrupts.

use std::mem::offset_of;
use std::sync::Arc;

use faultline_abi::doorbell::DoorbellPage;
use faultline_abi::{regs, ring};
use faultline_memory::{PAGE_SIZE, Rights, SharedPages};
use faultline_nic::{DEVICE_MEMORY, Instant, Nic, NicConfig, Remains, TURN_WORK};
use faultline_vfio_user::IrqVectors;
use faultline_wire::MacAddr;

use crate::bells::{self, Bells};
use crate::durable::FlushWorker;
use crate::ram::Ram;

const ASLEEP: usize = offset_of!(DoorbellPage, asleep);
const HEARTBEAT: usize = offset_of!(DoorbellPage, heartbeat);
const CONSUMER: usize = offset_of!(DoorbellPage, consumer);
/// Doorbells taken from one page before the next has its turn.
const DOORBELL_BATCH: u64 = 32;

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
    consumer: u64,
}

/// A NIC in the engine.
#[derive(Debug)]
pub(crate) struct NicPort {
    /// For the log.
    name: String,
    pub(crate) nic: Nic,
    pub(crate) irqs: IrqVectors,
    /// BAR 2: doorbell pages, a gap for the kick pages, device memory.
    pub(crate) pages: Arc<SharedPages>,
    /// Bus mastering is on and the function is in D0: otherwise it does no DMA and sends no interrupts.
    pub(crate) bus_master: bool,
    polled: Vec<Polled>,
    /// The page that is looked at first.
    first: usize,
    pages_version: u64,
    heartbeat: u32,
    /// It was logged that this client sends from an address of another NIC.
    forgery_logged: bool,
}

impl NicPort {
    pub(crate) fn new(name: &str, config: NicConfig) -> std::io::Result<Self> {
        let nic = Nic::new(config);
        let bar = BarTwo::of(&nic);
        let count = (bar.memory + bar.memory_len) as usize / PAGE_SIZE;
        Ok(Self {
            name: name.to_owned(),
            irqs: IrqVectors::new(regs::MSIX_VECTORS),
            pages: Arc::new(SharedPages::new(&format!("faultline-bar2-{name}"), count)?),
            bus_master: false,
            polled: Vec::new(),
            first: 0,
            pages_version: nic.doorbell_pages_version(),
            heartbeat: 0,
            forgery_logged: false,
            nic,
        })
    }

    /// What a NIC reaches: the memory that its guest will lend it, and its own.
    pub(crate) fn ram(&self, flush_worker: FlushWorker) -> std::io::Result<Ram> {
        let bar = BarTwo::of(&self.nic);
        let mut ram = Ram::new(&self.name, flush_worker, Arc::clone(&self.pages));
        if bar.memory_len > 0 {
            let fd = Some(self.pages.dup()?);
            ram.memory
                .map(
                    DEVICE_MEMORY,
                    bar.memory_len,
                    fd,
                    bar.memory,
                    Rights::READ_WRITE,
                )
                .map_err(std::io::Error::other)?;
        }
        Ok(ram)
    }

    /// A frame was dropped because its source address belongs to another NIC. Logged once for each client.
    pub(crate) fn refuse_source(&mut self, src: MacAddr) {
        self.nic.source_refused();
        if !self.forgery_logged {
            self.forgery_logged = true;
            tracing::warn!(
                nic = %self.name,
                "dropped a frame that was sent from {src}, an address of another NIC; counted in tx_bad_source from \
                 now on (spoof_check = false allows it)"
            );
        }
    }

    /// The client is gone.
    pub(crate) fn forget_client(&mut self) {
        self.forgery_logged = false;
    }

    /// Function-level reset. The caller must clear `pages` before it replies, and drop what is left of the old device
    /// outside of the engine.
    #[must_use = "dropping it takes time"]
    pub(crate) fn reset(&mut self) -> Option<Remains> {
        self.nic.reset();
        self.irqs.reset();
        let _ = self.sync_pages();
        self.nic.take_remains()
    }

    /// Polls the pages of the contexts that exist now, and zeroes pages that have lost theirs. Returns true if the
    /// device was reset: then nothing is zeroed here, and the caller must clear `pages` before it replies.
    #[must_use = "pages must be cleared after a reset"]
    pub(crate) fn sync_pages(&mut self) -> bool {
        let version = self.nic.doorbell_pages_version();
        if version == self.pages_version {
            return false;
        }
        self.pages_version = version;
        let now: Vec<(u32, u64)> = self.nic.doorbell_pages().collect();
        if now.is_empty() {
            self.polled.clear();
            return true;
        }
        for old in &self.polled {
            // Both lists are in the order of their pages: there may be a thousand. A page that has another context already
            // was zeroed before it came (`new_doorbell_page`), and may have doorbells of it.
            if now
                .binary_search_by_key(&old.page, |(page, _)| *page)
                .is_err()
            {
                self.pages.zero_page(old.page as usize);
            }
        }
        let (polled, pages) = (&self.polled, &self.pages);
        let keep = |(page, version): (u32, u64)| {
            let at = polled.binary_search_by_key(&page, |old| old.page);
            let known = at.ok().and_then(|at| polled.get(at));
            let known = known.filter(|old| old.version == version);
            known.copied().unwrap_or_else(|| {
                // The kernel's page, whose device is being enabled. Others have been through `new_doorbell_page`.
                if page == 0
                    && let Some(page) = pages.page(0)
                {
                    bells::prepare(&page);
                }
                Polled {
                    page,
                    version,
                    consumer: 0,
                }
            })
        };
        self.polled = now.into_iter().map(keep).collect();
        false
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
                let Some(bell) = ring::take(&Bells(page), polled.consumer) else {
                    break;
                };
                polled.consumer = polled.consumer.wrapping_add(1);
                self.nic.doorbell(now, ram, polled.page, bell);
            }
            if polled.consumer != first {
                page.store_u64(CONSUMER, polled.consumer);
                any = true;
                // A command may have given a page to another context, whose doorbells begin anew. None resets the device.
                let _ = self.sync_pages();
            }
        }
        any
    }

    /// Whether a doorbell waits.
    pub(crate) fn has_doorbell(&self) -> bool {
        self.polled.iter().any(|polled| {
            let page = self.pages.page(polled.page as usize);
            page.is_some_and(|page| ring::is_there(&Bells(page), polled.consumer))
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

    #[cfg(test)]
    pub(crate) fn heartbeat(&self) -> u32 {
        self.heartbeat
    }

    /// Sends the interrupts that are due. Without bus mastering they stay due.
    pub(crate) fn send_interrupts(&mut self) -> bool {
        let mut any = false;
        while self.bus_master
            && let Some(vector) = self.nic.poll_interrupt()
        {
            any = true;
            self.irqs.trigger(usize::from(vector));
        }
        any
    }
}
