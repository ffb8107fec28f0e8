//! The device at the other end of a vfio-user socket.

use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use faultline_abi::doorbell::{self, Doorbell, DoorbellPage};
use faultline_abi::regs;
use faultline_memory::{MappedFile, MemFd};
use rustix::event::{EventfdFlags, eventfd};

use crate::bus::{Bus, RAM_BASE};

/// Patience with a device that should answer in microseconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Calls of `wait` closer together than this belong to one wait.
const SAME_WAIT: Duration = Duration::from_millis(50);
/// PCI command register and its bits for memory decoding and bus mastering.
const PCI_COMMAND: u64 = 4;
const MEMORY_AND_MASTER: u16 = 0x6;
/// vfio's indices of config space and MSI-X.
const CONFIG_REGION: u32 = 7;
const MSIX_INDEX: u32 = 2;
/// `VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER`.
const SET_EVENTFDS: u32 = 0x24;

/// A client of a device socket.
#[derive(Debug)]
pub struct SocketBus {
    client: Client,
    ram: MemFd,
    doorbells: MappedFile,
    kick_offset: u64,
    eventfds: Vec<OwnedFd>,
    /// First and last call of the wait that goes on.
    waiting: Option<(Instant, Instant)>,
}

/// `vfio_user::Client` has no `Debug`.
struct Client(vfio_user::Client);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("vfio-user client")
    }
}

impl SocketBus {
    /// Connects, maps `ram_len` bytes of memory for the device, maps its doorbell pages and gives it eventfds.
    pub fn connect(path: &Path, ram_len: usize) -> Result<Self> {
        let mut client = vfio_user::Client::new(path)
            .map_err(|error| anyhow::anyhow!("{error:?}"))
            .with_context(|| format!("connecting to {}", path.display()))?;
        let ram = MemFd::new(ram_len)?;
        client
            .dma_map(0, RAM_BASE, ram_len as u64, ram.fd().as_raw_fd())
            .map_err(|error| anyhow::anyhow!("mapping memory: {error:?}"))?;
        let mut word = [0; 4];
        client
            .region_read(regs::BAR_REGS, u64::from(regs::KICK_OFFSET), &mut word)
            .map_err(|error| anyhow::anyhow!("reading a register: {error:?}"))?;
        let kick_offset = u64::from(u32::from_le_bytes(word));
        let region = client
            .region(regs::BAR_DOORBELL)
            .context("no doorbell BAR")?;
        let file = region
            .file_offset
            .as_ref()
            .context("the doorbell BAR can't be mapped")?;
        ensure!(
            region.size >= 2 * kick_offset,
            "the doorbell BAR is too small"
        );
        let doorbells = MappedFile::map(file.file(), file.start(), kick_offset as usize)?;
        let eventfds: Vec<OwnedFd> = (0..regs::MSIX_VECTORS)
            .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
            .collect::<Result<_, _>>()?;
        let raw: Vec<i32> = eventfds.iter().map(AsRawFd::as_raw_fd).collect();
        client
            .set_irqs(MSIX_INDEX, SET_EVENTFDS, 0, regs::MSIX_VECTORS, &raw)
            .map_err(|error| anyhow::anyhow!("setting eventfds: {error:?}"))?;
        let mut bus = Self {
            client: Client(client),
            ram,
            doorbells,
            kick_offset,
            eventfds,
            waiting: None,
        };
        bus.set_bus_master()?;
        Ok(bus)
    }

    /// Switches memory decoding and bus mastering on, as a driver's probe does.
    pub fn set_bus_master(&mut self) -> Result<()> {
        self.config_write(PCI_COMMAND, &MEMORY_AND_MASTER.to_le_bytes())
    }

    /// Writes config space.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.client.0.region_write(CONFIG_REGION, offset, data);
        written.map_err(|error| anyhow::anyhow!("writing config space: {error:?}"))
    }

    /// Writes any region.
    pub fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.client.0.region_write(region, offset, data);
        written.map_err(|error| anyhow::anyhow!("writing region {region}: {error:?}"))
    }

    /// Sends DEVICE_RESET.
    pub fn device_reset(&mut self) -> Result<()> {
        let reset = self.client.0.reset();
        reset.map_err(|error| anyhow::anyhow!("resetting: {error:?}"))
    }

    /// Takes the memory away from the device.
    pub fn dma_unmap(&mut self) -> Result<()> {
        let unmapped = self.client.0.dma_unmap(RAM_BASE, self.ram_len());
        unmapped.map_err(|error| anyhow::anyhow!("unmapping: {error:?}"))
    }

    /// Gives it back.
    pub fn dma_map(&mut self) -> Result<()> {
        let len = self.ram_len();
        let mapped = self
            .client
            .0
            .dma_map(0, RAM_BASE, len, self.ram.fd().as_raw_fd());
        mapped.map_err(|error| anyhow::anyhow!("mapping: {error:?}"))
    }

    /// Whether an interrupt came on a vector since the last call.
    pub fn take_interrupt(&self, vector: usize) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&self.eventfds[vector], &mut count).is_ok()
    }

    /// Waits for an interrupt.
    pub fn wait_interrupt(&self, vector: usize, patience: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < patience {
            if self.take_interrupt(vector) {
                return true;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        false
    }

    /// A word of a doorbell page.
    pub fn doorbell_word(&self, page: u32, offset: usize) -> u32 {
        self.doorbells
            .load_u32(page_at(page, offset))
            .expect("doorbell page")
    }

    fn at(addr: u64) -> u64 {
        addr.checked_sub(RAM_BASE)
            .expect("address of the driver's memory")
    }
}

fn page_at(page: u32, offset: usize) -> u64 {
    u64::from(page) * u64::from(regs::PAGE_SIZE) + offset as u64
}

impl Bus for SocketBus {
    fn ram_len(&self) -> u64 {
        self.ram.len() as u64
    }

    fn read(&self, addr: u64, buf: &mut [u8]) {
        self.ram
            .read(Self::at(addr), buf)
            .expect("address within memory");
    }

    fn write(&self, addr: u64, data: &[u8]) {
        self.ram
            .write(Self::at(addr), data)
            .expect("address within memory");
    }

    fn load_u32(&self, addr: u64) -> u32 {
        self.ram
            .load_u32(Self::at(addr))
            .expect("address within memory")
    }

    fn load_u64(&self, addr: u64) -> u64 {
        self.ram
            .load_u64(Self::at(addr))
            .expect("address within memory")
    }

    fn store_u32(&self, addr: u64, value: u32) {
        self.ram
            .store_u32(Self::at(addr), value)
            .expect("address within memory");
    }

    fn read_register(&mut self, offset: u32) -> u32 {
        let mut word = [0; 4];
        let read = self
            .client
            .0
            .region_read(regs::BAR_REGS, u64::from(offset), &mut word);
        read.expect("register can be read");
        u32::from_le_bytes(word)
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        self.region_write(regs::BAR_REGS, u64::from(offset), &value.to_le_bytes())
            .expect("register can be written");
    }

    fn doorbell(&mut self, page: u32, bell: Doorbell) {
        let word = |offset| page_at(page, offset);
        let pages = &self.doorbells;
        let index = pages
            .fetch_add_u32(word(offset_of!(DoorbellPage, producer)), 1)
            .expect("doorbell page");
        let start = Instant::now();
        loop {
            let consumer = pages
                .load_u32(word(offset_of!(DoorbellPage, consumer)))
                .expect("doorbell page");
            if index.wrapping_sub(consumer) < doorbell::RING_ENTRIES as u32 {
                break;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "the device does not take doorbells"
            );
            std::hint::spin_loop();
        }
        let slot =
            offset_of!(DoorbellPage, ring) + (index as usize % doorbell::RING_ENTRIES as usize) * 8;
        pages
            .store_u64(word(slot), bell.to_slot(index))
            .expect("doorbell page");
        fence(Ordering::SeqCst);
        if pages
            .load_u32(word(offset_of!(DoorbellPage, asleep)))
            .expect("doorbell page")
            != 0
        {
            let offset = self.kick_offset + page_at(page, 0);
            self.region_write(regs::BAR_DOORBELL, offset, &bell.to_bits().to_le_bytes())
                .expect("kick page can be written");
        }
    }

    fn wait(&mut self) -> bool {
        let now = Instant::now();
        // Calls that follow each other at once are one wait.
        let since = match self.waiting {
            Some((since, last)) if now - last < SAME_WAIT => since,
            _ => now,
        };
        self.waiting = Some((since, now));
        std::hint::spin_loop();
        now - since < PATIENCE
    }
}
