//! The PCI function that a vfio-user client sees: config space, BARs, interrupts, memory map.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use faultline_abi::doorbell::Doorbell;
use faultline_abi::regs;
use faultline_fabric::PortId;
use faultline_fabric::nic_port::NicPort;
use faultline_memory::{FileMaps, MapError, Rights, SharedPages, UnmapError};
use faultline_nic::Instant;
use faultline_pci::{
    Bar, ConfigChange, ConfigSpace, MsixLayout, MsixTable, PciIdentity, PowerState,
};
use faultline_vfio_user::{
    Device, DeviceInfo, DmaMap, DmaUnmap, Errno, IrqFlags, IrqInfo, IrqSet, RegionFlags,
    RegionInfo, RegionMmap, SparseArea, pci_index,
};
use faultline_wire::MacAddr;
use rustix::fd::OwnedFd;

use crate::engines::Engines;
use crate::engines::engine::Engine;
use crate::engines::handle::Ended;
use crate::log::of_nic::LogLimit;
use crate::nic::io::{BarTwo, Client, NicIo, PortShare};
use crate::nic::ram::{self, Ram};
use faultline_config::pci_id::PciId;

const PAGE: u64 = regs::PAGE_SIZE as u64;
/// BAR of the MSI-X table.
const MSIX_BAR: u8 = (regs::BAR_MSIX & 7) as u8;
/// A writable map without a descriptor that is at least this long is guest RAM: ROMs and the device's own BARs, which
/// QEMU maps in the same way, are read-only or shorter.
const MIN_RAM_SIZE: u64 = 64 << 20;

/// One function, served to one client at a time.
#[derive(Debug)]
pub(crate) struct Function {
    port: PortId,
    engines: Engines,
    config: ConfigSpace,
    msix: MsixTable,
    layout: MsixLayout,
    bar: BarTwo,
    log: LogLimit,
    /// BAR 2.
    pages: Arc<SharedPages>,
    /// See [`NicIo::remove`].
    removed: Arc<AtomicBool>,
    /// Time at which the client has connected.
    since: std::time::Instant,
    /// Mapped files behind guest memory.
    files: FileMaps,
    /// The file with the number of the client's process, if a supervisor relays the client's messages.
    pub(crate) client_file: Option<PathBuf>,
}

/// The number of a process in a file of a supervisor.
fn process_in(file: &Path) -> Option<i32> {
    std::fs::read_to_string(file).ok()?.parse().ok()
}

/// The errno of a request to an engine that has ended.
fn ended(_: Ended) -> Errno {
    Errno::NODEV
}

/// The offset of a register for the NIC. BARs are too short for it to saturate.
fn register(offset: u64) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

impl Function {
    pub(crate) fn new(
        port: PortId,
        mac: MacAddr,
        id: PciId,
        shared: PortShare,
        files: FileMaps,
        engines: Engines,
    ) -> Result<Self, faultline_pci::ConfigError> {
        let layout = MsixLayout::in_bar(MSIX_BAR, (regs::MSIX_VECTORS & 0xffff) as u16);
        let wide = |index: u32, size: u64, prefetchable: bool| Bar {
            index: (index & 7) as u8,
            size,
            wide: true,
            prefetchable,
        };
        let bars = [
            wide(regs::BAR_REGS, u64::from(regs::REGS_SIZE), false),
            wide(regs::BAR_DOORBELL, shared.bar.size(), true),
            wide(regs::BAR_MSIX, layout.bar_size(), false),
        ];
        let [a, b, c, d, e, f] = mac.0;
        let identity = PciIdentity {
            vendor: id.vendor,
            device: id.device,
            revision: 1,
            class: 0x02_0000,
            subsystem_vendor: (regs::PCI_SUBSYSTEM_VENDOR & 0xffff) as u16,
            subsystem: (regs::PCI_SUBSYSTEM & 0xffff) as u16,
            serial: u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f]),
        };
        Ok(Self {
            log: LogLimit::new(),
            port,
            engines,
            config: ConfigSpace::new(identity, &bars, Some(layout))?,
            msix: MsixTable::new(layout),
            layout,
            bar: shared.bar,
            pages: shared.pages,
            removed: shared.removed,
            since: std::time::Instant::now(),
            files,
            client_file: None,
        })
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Runs `work` on the port of this function, in the engine.
    fn on_port<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut NicPort, &mut NicIo) -> R + Send + 'static,
    ) -> Result<R, Errno> {
        self.on_port_at(|_, port, io| work(port, io))
    }

    /// Variant of [`Function::on_port`] with the device time.
    fn on_port_at<R: Send + 'static>(
        &self,
        work: impl FnOnce(Instant, &mut NicPort, &mut NicIo) -> R + Send + 'static,
    ) -> Result<R, Errno> {
        let id = self.port;
        let result = self.engines.call(id, move |engine| {
            let now = engine.now();
            let (port, io) = (engine.fabric.nics.get_mut(id)?, engine.io.nics.get_mut(id)?);
            Some(work(now, port, io))
        });
        result.map_err(ended)?.ok_or(Errno::NODEV)
    }

    /// Runs `work` in the engine.
    fn in_engine<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine, PortId) -> R + Send + 'static,
    ) -> Result<R, Errno> {
        let id = self.port;
        self.engines
            .call(id, move |engine| work(engine, id))
            .map_err(ended)
    }

    /// True in D3hot, in which the function responds to configuration accesses only (PCI PM 1.2, 5.4.1).
    fn in_d3hot(&self) -> bool {
        self.config.power_state() == PowerState::D3Hot
    }

    fn bar_size(&self, index: u32) -> u64 {
        self.config
            .bar_list()
            .iter()
            .find(|bar| u32::from(bar.index) == index)
            .map_or(0, |bar| bar.size)
    }

    fn check_range(&self, index: u32, offset: u64, len: usize) -> Result<(), Errno> {
        let size = match index {
            pci_index::CONFIG_REGION => faultline_pci::CONFIG_SIZE as u64,
            _ => self.bar_size(index),
        };
        match offset.checked_add(len as u64) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    fn config_changed(&mut self, change: ConfigChange) -> Result<(), Errno> {
        if change.flr {
            if self.log.allows() {
                tracing::info!("function-level reset");
            }
            self.msix.reset();
            let remains = self.on_port_at(|now, port, io| {
                port.bus_master = false;
                io.reset(now, &mut port.nic)
            })?;
            drop(remains);
            self.clear_pages();
            self.sync_address()?;
        }
        if change.bus_master.is_some() || change.power.is_some() {
            let on = self.config.bus_master() && !self.in_d3hot();
            let on = on && !self.is_removed();
            self.on_port(move |port, _| port.bus_master = on)?;
        }
        Ok(())
    }

    /// Zeroes doorbell pages and device memory of a device that is not enabled: the engine polls no page then, and the
    /// client cannot enable the device before it has the reply. Punches a hole into the file, so only pages in use cost
    /// time; mappings of the client stay valid.
    fn clear_pages(&self) {
        if let Err(error) = self.pages.clear(0, self.pages.pages()) {
            tracing::error!("can't clear doorbell pages and device memory: {error}");
        }
    }

    /// Updates the switch after a reset, after which the NIC uses its permanent address again.
    fn sync_address(&self) -> Result<(), Errno> {
        self.in_engine(|engine, id| engine.fabric.sync_address(id))
    }

    fn read_registers(&self, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        self.in_engine(move |engine, id| {
            let now = engine.now();
            let Some(port) = engine.fabric.nics.get_mut(id) else {
                return Vec::new();
            };
            let first = offset & !3;
            let skip = (offset & 3) as usize;
            let words = skip.saturating_add(len).div_ceil(4);
            (first..)
                .step_by(4)
                .take(words)
                .flat_map(|at| port.nic.read_register(now, register(at)).to_le_bytes())
                .skip(skip)
                .take(len)
                .collect()
        })
    }

    fn write_registers(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        // Registers are written in aligned words. The device counts and ignores other writes.
        let (words, rest) = data.as_chunks::<4>();
        let words = words.to_vec();
        let whole = rest.is_empty() && offset.is_multiple_of(4);
        let (was_reset, was_enabled, remains) = self.on_port_at(move |now, port, io| {
            let was_running = port.nic.is_running();
            if whole {
                for (at, word) in (offset..).step_by(4).zip(words) {
                    port.nic
                        .write_register(now, register(at), u32::from_le_bytes(word));
                }
            } else {
                port.nic.bad_register_access();
            }
            let was_enabled = !was_running && port.nic.is_running();
            (
                io.sync_pages(&port.nic),
                was_enabled,
                port.nic.take_remains(),
            )
        })?;
        drop(remains);
        if was_reset {
            self.clear_pages();
        }
        if was_enabled && self.log.allows() {
            let after = self.since.elapsed();
            tracing::info!(?after, "the driver has enabled the device");
        }
        Ok(())
    }

    /// Handles a write to a kick page in BAR 2: a doorbell that wakes the engine.
    fn kick(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let bits: Option<[u8; 8]> = data.try_into().ok();
        let page = offset
            .checked_sub(self.bar.doorbells)
            .and_then(|kick| u32::try_from(kick / PAGE).ok())
            .filter(|_| offset < self.bar.memory);
        let (Some(page), Some(bits)) = (page, bits) else {
            return self.on_port(|port, _| port.nic.bad_register_access());
        };
        let bell = Doorbell::from_bits(u64::from_le_bytes(bits));
        self.in_engine(move |engine, id| engine.kick(id, page, bell))
    }
}

impl Device for Function {
    fn connected(&mut self, process: Option<i32>) {
        self.since = std::time::Instant::now();
        let process = match &self.client_file {
            None => process,
            Some(file) => process_in(file),
        };
        let program = process.map(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")));
        let client = Client {
            pid: process,
            program: program
                .and_then(Result::ok)
                .map(|name| name.trim_end().to_owned()),
            since: self.since,
        };
        // An engine that has ended shows no clients.
        let _ = self.on_port(|_, io| io.client = Some(client));
    }

    fn info(&mut self) -> Result<DeviceInfo, Errno> {
        if self.log.allows() {
            tracing::info!("client connected");
        }
        Ok(DeviceInfo::PCI)
    }

    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        let size = match index {
            pci_index::CONFIG_REGION => faultline_pci::CONFIG_SIZE as u64,
            _ => self.bar_size(index),
        };
        if size == 0 {
            return Ok(RegionInfo::default());
        }
        let mmap = match index {
            regs::BAR_DOORBELL => Some(RegionMmap {
                fd: self.doorbell_fd()?,
                offset: 0,
                sparse: self.mapped_areas(),
            }),
            _ => None,
        };
        Ok(RegionInfo {
            size,
            flags: RegionFlags::READ | RegionFlags::WRITE,
            mmap,
        })
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.check_range(index, offset, data.len())?;
        match index {
            // A bus without a responding device reads as ones.
            _ if self.is_removed() => data.fill(0xff),
            pci_index::CONFIG_REGION => self.config.read(offset, data),
            _ if self.in_d3hot() => data.fill(0xff),
            regs::BAR_REGS => {
                let bytes = self.read_registers(offset, data.len())?;
                if bytes.len() != data.len() {
                    return Err(Errno::NODEV);
                }
                data.copy_from_slice(&bytes);
            }
            regs::BAR_MSIX => {
                let pending = self.on_port(|_, io| io.irqs.pending(0))?;
                let word = |n: usize| if n == 0 { pending } else { 0 };
                self.msix.read(MSIX_BAR, offset, data, word);
            }
            // Doorbell pages and device memory are mapped; kick pages have no contents.
            _ => data.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.check_range(index, offset, data.len())?;
        match index {
            _ if self.is_removed() => Ok(()),
            pci_index::CONFIG_REGION => {
                let change = self.config.write(offset, data);
                self.config_changed(change)
            }
            _ if self.in_d3hot() => Ok(()),
            regs::BAR_REGS => self.write_registers(offset, data),
            regs::BAR_DOORBELL => self.kick(offset, data),
            _ => {
                self.msix.write(MSIX_BAR, offset, data);
                Ok(())
            }
        }
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        if map.fd.is_none() && map.writable && map.size >= MIN_RAM_SIZE && self.log.allows() {
            tracing::error!(
                "guest RAM at {:#x} ({} MiB) came without a descriptor, so the NIC can't access it: start QEMU with \
                 -object memory-backend-memfd,id=ram,size=...,share=on -machine memory-backend=ram",
                map.iova,
                map.size >> 20,
            );
        }
        let DmaMap {
            iova,
            size,
            offset,
            readable,
            writable,
            fd,
        } = map;
        ram::check_guest_range(iova, size)?;
        let rights = Rights { readable, writable };
        let refused = |error: MapError| {
            if self.log.allows() {
                tracing::warn!("refused DMA map: {error}");
            }
            error.errno()
        };
        // This thread maps the file, and unmaps it if the map is refused, so that the engine does not wait.
        let new = self
            .files
            .prepare(iova, size, fd, offset, rights)
            .map_err(refused)?;
        let inserted = self.in_engine(move |engine, id| {
            let ram = engine.fabric.memories.get_mut(id).ok_or(Errno::NODEV)?;
            Ok(ram.memory.insert(new))
        })??;
        inserted.map_err(|error| refused(error.error.clone()))
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<(), Errno> {
        // After the engine has removed the maps, no access can refer to them. This thread drops them before the reply.
        let removed = self.in_engine(move |engine, id| {
            let ram = engine.fabric.memories.get_mut(id).ok_or(Errno::NODEV)?;
            Ok(match unmap {
                DmaUnmap::All => Ok(ram.unmap_guest()),
                DmaUnmap::Range { iova, size } => ram.unmap(iova, size),
            })
        })??;
        removed.map(drop).map_err(|error: UnmapError| {
            if self.log.allows() {
                tracing::warn!("refused DMA unmap: {error}");
            }
            error.errno()
        })
    }

    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno> {
        let count = match index {
            pci_index::MSIX_IRQ => u32::from(self.layout.vectors),
            // QEMU requires an error interrupt; the device never raises it.
            pci_index::ERR_IRQ => 1,
            _ => return Ok(IrqInfo::default()),
        };
        Ok(IrqInfo {
            count,
            flags: IrqFlags::EVENTFD,
        })
    }

    fn set_irqs(&mut self, set: IrqSet) -> Result<(), Errno> {
        match set.index {
            pci_index::MSIX_IRQ => self.on_port(move |_, io| io.irqs.set(set))?,
            pci_index::ERR_IRQ | pci_index::REQ_IRQ => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    fn reset(&mut self) -> Result<(), Errno> {
        if self.log.allows() {
            tracing::info!("device reset");
        }
        self.config.reset();
        self.config_changed(ConfigChange {
            flr: true,
            ..ConfigChange::default()
        })
    }

    fn disconnected(&mut self) {
        self.log.report_suppressed();
        tracing::info!("client disconnected");
        self.config.reset();
        self.msix.reset();
        let gone = self.in_engine(|engine, id| {
            let now = engine.now();
            let (port, io) = (engine.fabric.nics.get_mut(id), engine.io.nics.get_mut(id));
            let remains = port.zip(io).and_then(|(port, io)| {
                port.bus_master = false;
                let remains = io.reset(now, &mut port.nic);
                io.forget_client();
                io.irqs.detach_all();
                io.irqs.reset();
                remains
            });
            engine.fabric.sync_address(id);
            let removed = engine.fabric.memories.get_mut(id).map(Ram::forget_client);
            (remains, removed)
        });
        drop(gone);
        let id = self.port;
        self.engines
            .post_all(move |engine| engine.fabric.switch.forget(id));
        self.clear_pages();
    }
}

impl Function {
    /// The parts of BAR 2 that clients map; the rest is trapped.
    fn mapped_areas(&self) -> Vec<SparseArea> {
        let doorbells = (0, self.bar.doorbells);
        let memory = (self.bar.memory, self.bar.memory_len);
        [doorbells, memory]
            .into_iter()
            .filter(|(_, size)| *size > 0)
            .map(|(offset, size)| SparseArea { offset, size })
            .collect()
    }

    fn doorbell_fd(&self) -> Result<OwnedFd, Errno> {
        let fd = self.pages.dup();
        fd.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))
    }
}
