//! Doorbell pages, device memory, interrupts and log of a NIC.

use std::cell::Cell;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use faultline_abi::doorbell::{Doorbell, DoorbellPage};
use faultline_abi::{regs, ring};
use faultline_fabric::PortId;
use faultline_fabric::nic_port::NicPort;
use faultline_fabric::turn::Turn;
use faultline_memory::{PAGE_SIZE, Rights, SharedPages, WatchedWords};
use faultline_nic::{DEVICE_MEMORY, Instant, Nic, NicConfig, Remains, TURN_WORK};
use faultline_telemetry::{DoorbellPath, FrameEvent, Recorder, TraceEvent};
use faultline_vfio_user::IrqVectors;
use faultline_wire::MacAddr;

use crate::engines::missed::{Suspect, Verdict};
use crate::log::diagnostics::NicLog;
use crate::log::notice::Notice;
use crate::nic::doorbell_ring::{self, DoorbellRing};
use crate::nic::durable::FlushWorker;
use crate::nic::ram::Ram;
use faultline_config::NicEntry;

const ASLEEP: usize = offset_of!(DoorbellPage, asleep);
const HEARTBEAT: usize = offset_of!(DoorbellPage, heartbeat);
const CONSUMER: usize = offset_of!(DoorbellPage, consumer);
/// Largest number of doorbells taken from one page in a turn.
const DOORBELL_BATCH: u64 = 32;
/// Cost of a doorbell that a rule of a scenario takes, in the unit of [`TURN_WORK`]: some tenths of a microsecond.
const RULE_WORK: u64 = 128;

/// The number of a NIC in a record. The configuration allows fewer NICs than there are numbers.
pub(crate) fn number(id: PortId) -> u16 {
    u16::try_from(id).unwrap_or(FrameEvent::NO_NIC)
}

/// Layout of BAR 2, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarTwo {
    /// Size of the doorbell pages, which begin at 0. The kick pages follow and have the same size.
    pub(crate) doorbells: u64,
    /// Offset of the device memory.
    pub(crate) memory: u64,
    /// Size of the device memory.
    pub(crate) memory_len: u64,
}

impl BarTwo {
    pub(crate) fn of(nic: &Nic) -> Self {
        Self {
            doorbells: u64::from(nic.doorbell_page_count()).saturating_mul(PAGE_SIZE as u64),
            memory: nic.device_memory_offset(),
            memory_len: nic.config().limits.device_memory,
        }
    }

    fn end(&self) -> u64 {
        self.memory.saturating_add(self.memory_len)
    }

    /// Size of the BAR: a power of two, as PCI requires.
    pub(crate) fn size(&self) -> u64 {
        self.end().next_power_of_two()
    }
}

/// The data that a port shares with the PCI function.
#[derive(Clone, Debug)]
pub(crate) struct PortShare {
    /// Layout of BAR 2.
    pub(crate) bar: BarTwo,
    /// Its pages.
    pub(crate) pages: Arc<SharedPages>,
    /// See [`NicIo::remove`].
    pub(crate) removed: Arc<AtomicBool>,
}

/// A client that uses the device of a NIC, such as QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Number of its process, if the system reports it.
    pub pid: Option<i32>,
    /// Name of its program (`/proc/PID/comm`), if it can be read.
    pub program: Option<String>,
    /// When it has queried the device.
    pub since: std::time::Instant,
}

/// A doorbell page that the engine polls.
#[derive(Clone, Copy, Debug)]
struct Polled {
    page: u32,
    /// Version of the context, which distinguishes it from an earlier context with the same page.
    version: u64,
    consumer: u64,
}

/// BAR 2, interrupts and log of a NIC in the engine.
#[derive(Debug)]
pub struct NicIo {
    name: String,
    log: NicLog,
    pub(crate) irqs: IrqVectors,
    /// BAR 2: doorbell pages, a gap for the kick pages, device memory.
    pub(crate) pages: Arc<SharedPages>,
    /// An action of a scenario has removed the device.
    removed: Arc<AtomicBool>,
    polled: Vec<Polled>,
    /// Index in `polled` of the page that is polled first.
    first: usize,
    pages_version: u64,
    /// Resets since the start.
    pub(crate) resets: u64,
    heartbeat: u32,
    /// A doorbell whose write to the kick page is missing.
    suspect: Cell<Option<Suspect>>,
    /// The client.
    pub(crate) client: Option<Client>,
    /// A missed wake-up of this client was logged.
    missed_logged: bool,
    /// A frame of this client with a source address of another NIC was logged.
    forgery_logged: bool,
}

/// Creates or opens the pages of BAR 2.
fn bar_pages(entry: &NicEntry, nic: &Nic) -> std::io::Result<SharedPages> {
    let bar = BarTwo::of(nic);
    let count = usize::try_from(bar.end()).map_err(std::io::Error::other)? / PAGE_SIZE;
    match &entry.supervised {
        Some(files) => SharedPages::open(&files.bar, count),
        None => SharedPages::new(&format!("faultline-bar2-{}", entry.name), count),
    }
}

/// Bytes of BAR 2 that have memory.
pub(crate) fn bar_len(config: NicConfig) -> u64 {
    BarTwo::of(&Nic::new(config)).end()
}

/// Creates the pages of BAR 2 of a NIC for another process.
pub(crate) fn bar_pages_of(entry: &NicEntry, config: NicConfig) -> std::io::Result<SharedPages> {
    bar_pages(entry, &Nic::new(config))
}

impl NicIo {
    pub(crate) fn new(entry: &NicEntry, nic: &Nic, log: NicLog) -> std::io::Result<Self> {
        let pages = Arc::new(bar_pages(entry, nic)?);
        Ok(Self {
            name: entry.name.clone(),
            log,
            irqs: IrqVectors::new(regs::MSIX_VECTORS),
            pages,
            removed: Arc::new(AtomicBool::new(false)),
            polled: Vec::new(),
            first: 0,
            pages_version: nic.doorbell_pages_version(),
            resets: 0,
            client: None,
            heartbeat: 0,
            suspect: Cell::new(None),
            missed_logged: false,
            forgery_logged: false,
        })
    }

    /// Shares the data that the PCI function needs.
    pub(crate) fn share(&self, nic: &Nic) -> PortShare {
        PortShare {
            bar: BarTwo::of(nic),
            pages: Arc::clone(&self.pages),
            removed: Arc::clone(&self.removed),
        }
    }

    /// The memory that the NIC can access: device memory, and guest memory as the client maps it.
    pub(crate) fn ram(&self, nic: &Nic, flush_worker: FlushWorker) -> std::io::Result<Ram> {
        let bar = BarTwo::of(nic);
        let mut ram = Ram::new(self.log.clone(), flush_worker, Arc::clone(&self.pages));
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

    /// Logs the first frame of each client with a source address of another NIC.
    pub(crate) fn log_forged_source(&mut self, src: MacAddr) {
        if !self.forgery_logged {
            self.forgery_logged = true;
            self.log.notice(Notice::ForgedSource(src));
        }
    }

    /// Resets the state of a client that has disconnected.
    pub(crate) fn forget_client(&mut self) {
        self.client = None;
        self.forgery_logged = false;
        self.missed_logged = false;
        self.removed.store(false, Ordering::Relaxed);
    }

    /// Function-level reset. The caller must clear `pages` before it replies, and drop the returned remains of the old
    /// device outside of the engine.
    #[must_use = "dropping it takes time"]
    pub(crate) fn reset(&mut self, now: Instant, nic: &mut Nic) -> Option<Remains> {
        nic.reset(now);
        self.irqs.reset();
        let _ = self.sync_pages(nic);
        nic.take_remains()
    }

    /// Resets the NIC by request of the operator. The guest is not involved, so masks and eventfds of its interrupts stay.
    #[must_use = "dropping it takes time"]
    pub(crate) fn reset_nic(&mut self, now: Instant, nic: &mut Nic) -> Option<Remains> {
        nic.reset(now);
        let _ = self.sync_pages(nic);
        // No other thread delays a reply until the pages are clear, so they are cleared here, before the driver can enable the device.
        if let Err(error) = self.pages.clear(0, self.pages.pages()) {
            self.log.notice(Notice::PagesNotCleared(error));
        }
        nic.take_remains()
    }

    /// Updates the list of polled pages from the contexts that exist, and zeroes pages whose context was freed. Returns true
    /// if the device was reset: then nothing is zeroed here, and the caller must clear `pages` before it replies.
    #[must_use = "pages must be cleared after a reset"]
    #[inline(always)]
    pub(crate) fn sync_pages(&mut self, nic: &Nic) -> bool {
        let version = nic.doorbell_pages_version();
        version != self.pages_version && self.sync_changed_pages(nic, version)
    }

    #[inline(never)]
    fn sync_changed_pages(&mut self, nic: &Nic, version: u64) -> bool {
        self.pages_version = version;
        let now: Vec<(u32, u64)> = nic.doorbell_pages().collect();
        if now.is_empty() {
            self.resets = self.resets.wrapping_add(1);
            self.polled.clear();
            self.suspect.set(None);
            return true;
        }
        for old in &self.polled {
            // Both lists are sorted by page, for a binary search: there may be a thousand pages. A page that belongs to a
            // new context was zeroed when that was allocated (`new_doorbell_page`), and may have doorbells already.
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
                // The kernel's page of a device that is being enabled. `new_doorbell_page` has prepared the others.
                if page == 0
                    && let Some(page) = pages.page(0)
                {
                    doorbell_ring::prepare(&page);
                }
                Polled {
                    page,
                    version,
                    consumer: 0,
                }
            })
        };
        self.polled = now.into_iter().map(keep).collect();
        let is_polled = |suspect: &Suspect| {
            let same = |polled: &Polled| (polled.page, polled.version) == suspect.context;
            self.polled.iter().any(same)
        };
        self.suspect.set(self.suspect.take().filter(is_polled));
        false
    }

    /// Takes doorbells from all pages, until they have caused [`TURN_WORK`]; the next call starts at the page at which this
    /// one has stopped. `rules` may take some of them. Returns true if there was a doorbell.
    #[inline(always)]
    pub(crate) fn poll_doorbells(
        &mut self,
        now: Instant,
        turn: &mut Turn<'_, Ram>,
        (id, recorder): (PortId, &mut Recorder),
    ) -> bool {
        let (nic, ram, rules) = (&mut turn.port.nic, turn.memory, &mut turn.rules);
        let mut any = false;
        let mut by_rules = 0u64;
        let (before, pages) = (nic.work(), self.polled.len());
        let first = std::mem::take(&mut self.first);
        let first = if first < pages { first } else { 0 };
        for step in 0..pages {
            let index = first.wrapping_add(step);
            let index = if index < pages {
                index
            } else {
                index.wrapping_sub(pages)
            };
            let Some(polled) = self.polled.get_mut(index) else {
                continue;
            };
            let Some(page) = self.pages.page(polled.page as usize) else {
                continue;
            };
            let ring = DoorbellRing(page);
            if !ring::must_take(&ring, polled.consumer) {
                continue;
            }
            let is_over = |nic: &Nic, by_rules: u64| {
                let work = nic.work().wrapping_sub(before);
                work.saturating_add(by_rules) >= TURN_WORK
            };
            if any && is_over(nic, by_rules) {
                self.first = index;
                break;
            }
            let start = polled.consumer;
            while let Some(bell) = ring::take(&ring, polled.consumer) {
                polled.consumer = polled.consumer.wrapping_add(1);
                let event = TraceEvent::doorbell(polled.page, bell, DoorbellPath::Page);
                recorder.event(now, number(id), event);
                if rules.doorbell(now, id, polled.page, bell) {
                    nic.doorbell(now, ram, polled.page, bell);
                } else {
                    by_rules = by_rules.saturating_add(RULE_WORK);
                }
                if polled.consumer.wrapping_sub(start) == DOORBELL_BATCH || is_over(nic, by_rules) {
                    break;
                }
            }
            if polled.consumer != start {
                page.store_u64(CONSUMER, polled.consumer);
                any = true;
                // A command may have given a page to another context, whose indices start at 0. No doorbell resets the device.
                let _ = self.sync_pages(nic);
            }
        }
        any
    }

    /// Adds the slots of the next doorbells of all pages to a list. Each has one of [`TYPE_BITS`](faultline_abi::doorbell::TYPE_BITS) if
    /// [`NicIo::poll_doorbells`] has something to do.
    pub(crate) fn watch(&self, slots: &mut WatchedWords) {
        let next = |polled: &Polled| {
            let slot = doorbell_ring::slot(polled.consumer);
            (polled.page as usize, slot)
        };
        slots.add(&self.pages, self.polled.iter().map(next));
    }

    /// Returns true if [`NicIo::poll_doorbells`] has something to do.
    #[inline]
    pub(crate) fn must_poll(&self) -> bool {
        self.any_ring(|ring, consumer| ring::must_take(ring, consumer))
    }

    /// Returns true if a page has a doorbell that was not taken.
    pub(crate) fn has_doorbell(&self) -> bool {
        self.any_ring(|ring, consumer| ring::peek(ring, consumer).is_some())
    }

    /// Returns true if this holds for the ring of a page and the index of its next doorbell.
    #[inline]
    fn any_ring(&self, holds: impl Fn(&DoorbellRing<'_>, u64) -> bool) -> bool {
        self.polled.iter().any(|polled| {
            let page = self.pages.page(polled.page as usize);
            page.is_some_and(|page| holds(&DoorbellRing(page), polled.consumer))
        })
    }

    /// Returns true if a doorbell is in its page and was not taken.
    pub(crate) fn holds_doorbell(&self, page: u32, bell: Doorbell) -> bool {
        let at = self
            .polled
            .binary_search_by_key(&page, |polled| polled.page);
        let polled = at.ok().and_then(|at| self.polled.get(at));
        polled.is_some_and(|polled| {
            let page = self.pages.page(polled.page as usize);
            page.is_some_and(|page| ring::holds(&DoorbellRing(page), polled.consumer, bell))
        })
    }

    /// Writes `asleep` in every page: true if software must also write the kick page. It stays set in a page whose write to the kick page
    /// is missing.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        let awaited = self.suspect.get().map(|suspect| suspect.context.0);
        for polled in &self.polled {
            if asleep || awaited != Some(polled.page) {
                self.set_page_asleep(polled.page, asleep);
            }
        }
    }

    fn set_page_asleep(&self, page: u32, asleep: bool) {
        if let Some(page) = self.pages.page(page as usize) {
            page.store_u32_seqcst(ASLEEP, u32::from(asleep));
        }
    }

    /// Called when a sleep has ended by time, while `asleep` is still set: from now on the write to the kick page is expected for the
    /// first doorbell in a page. [`crate::engines::missed`] gives the reason.
    #[cold]
    pub(crate) fn suspect_missed_wakeup(&self) {
        if self.suspect.get().is_some() {
            return;
        }
        let suspect = self.polled.iter().find_map(|polled| {
            let page = self.pages.page(polled.page as usize)?;
            let bell = ring::peek(&DoorbellRing(page), polled.consumer)?;
            Some(Suspect::new((polled.page, polled.version), bell))
        });
        self.suspect.set(suspect);
    }

    /// A doorbell was written to a kick page.
    pub(crate) fn was_kicked(&self, page: u32, bell: Doorbell) {
        if let Some(suspect) = self.suspect.get()
            && suspect.is(page, bell)
        {
            self.suspect.set(None);
            self.set_page_asleep(page, false);
        }
    }

    /// Returns true if a write to a kick page is missing.
    pub(crate) fn awaits_kick(&self) -> bool {
        self.suspect.get().is_some()
    }

    /// Called with each heartbeat. Returns true if a write to the kick page has been missing for too long.
    pub(crate) fn has_missed_wakeup(&mut self, bus_master: bool) -> bool {
        if !bus_master {
            // Writes to its kick pages may have had no effect.
            self.suspect.set(None);
        }
        let Some(suspect) = self.suspect.get_mut() else {
            return false;
        };
        let (page, bell) = (suspect.context.0, suspect.bell);
        if suspect.beat() == Verdict::Waits {
            return false;
        }
        self.suspect.set(None);
        self.set_page_asleep(page, false);
        if !self.missed_logged {
            self.missed_logged = true;
            self.log.notice(Notice::MissedWakeup { page, bell });
        }
        true
    }

    /// Increments the heartbeat.
    pub(crate) fn send_heartbeat(&mut self, is_running: bool) {
        self.heartbeat = self.heartbeat.wrapping_add(1);
        if is_running
            && !self.removed.load(Ordering::Relaxed)
            && let Some(page) = self.pages.page(0)
        {
            page.store_u32(HEARTBEAT, self.heartbeat);
        }
    }

    /// Sends a message to the log.
    pub(crate) fn notice(&self, notice: Notice) {
        self.log.notice(notice);
    }

    /// Messages of this NIC that were not logged because too many were waiting.
    pub(crate) fn dropped_messages(&self) -> u64 {
        self.log.dropped()
    }

    /// Name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes the device: until the next client connects, its registers read as ones, and it neither accesses memory nor raises
    /// interrupts.
    pub(crate) fn remove(&mut self, port: &mut NicPort) {
        self.removed.store(true, Ordering::Relaxed);
        port.bus_master = false;
        // Writes to its kick pages have no effect from now on.
        self.suspect.set(None);
    }

    /// Heartbeats since the start.
    pub(crate) fn heartbeat(&self) -> u32 {
        self.heartbeat
    }
}
