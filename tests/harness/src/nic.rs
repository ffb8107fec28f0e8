//! The device: start-up, reset, commands, doorbells.

use std::any::Any;
use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use faultline_abi::admin::{
    self, AdminCmd, AdminComp, Counter, NETDEV_UP, QueryCounters, SetGid, SetNetdev,
};
use faultline_abi::caps::Caps;
use faultline_abi::doorbell::{self, Doorbell, DoorbellPage};
use faultline_abi::translation::{TqCmd, TqComp};
use faultline_abi::{ABI_VERSION, MAGIC, Status, U16, U32, regs, ring};
use faultline_daemon::nic::doorbell_ring::DoorbellRing;
use faultline_memory::MappedFile;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::client::{CONFIG_REGION, Client, MAP_READ, MAP_WRITE, MSIX_IRQ};
use crate::error::{DriverError, RingError};
use crate::patience::LONG;
use crate::ram::{Buf, Ram};

/// Time without an answer after which the driver checks that the device still works.
const CHECK_AFTER: Duration = Duration::from_millis(50);
/// log2 of the entries of each command ring.
const LOG_DEPTH: u32 = 4;
/// The same of the translation queue.
const TQ_LOG_DEPTH: u32 = 8;
/// Looks at a word before the thread lets others run.
const SPINS: u32 = 256;

/// PCI command register, and its bits for memory decoding and bus mastering.
const PCI_COMMAND: u64 = 4;
const COMMAND_ON: u16 = 1 << 1 | 1 << 2;

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct NicOptions {
    /// Bytes of memory lent to it.
    pub ram: usize,
    /// First DMA address of that memory.
    pub iova: u64,
    /// GID 0; derived from the MAC address as an IPv4 address in 10.0.0.0/8 if not given.
    pub gid: Option<[u8; 16]>,
    /// Ethernet MTU.
    pub mtu: u16,
}

impl Default for NicOptions {
    fn default() -> Self {
        Self {
            ram: 32 << 20,
            // Not zero, so that an offset is no address by chance.
            iova: 0x1_0000_0000,
            gid: None,
            mtu: 9000,
        }
    }
}

/// Ways to reset a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Function-level reset by a write to configuration space.
    Function,
    /// The protocol's DEVICE_RESET.
    Device,
    /// FAULTLINE_CONTROL_RESET.
    Register,
    /// ENABLE is cleared.
    Disable,
}

impl Reset {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Function, Self::Device, Self::Register, Self::Disable];
}

/// Command rings, both pairs.
#[derive(Debug)]
struct Control {
    admin_sq: Buf,
    admin_cq: Buf,
    admin_index: u32,
    tq_sq: Buf,
    tq_cq: Buf,
    tq_index: u32,
    /// Page entries of a MAP command, answer of QUERY_COUNTERS.
    scratch: Buf,
}

#[derive(Debug)]
struct Inner {
    ram: Arc<Ram>,
    bells: MappedFile,
    kick_offset: u64,
    client: Mutex<Client>,
    control: Mutex<Control>,
    eventfds: Vec<OwnedFd>,
    /// Counts starts and resets; odd while the device runs.
    generation: AtomicU32,
    kicks: AtomicU64,
    caps: Caps,
    mac: [u8; 6],
    gid: [u8; 16],
    mtu: u16,
}

/// A device on its socket, opened. Clones share it; the drop of the last one closes the connection.
#[derive(Clone, Debug)]
pub struct Nic(Arc<Inner>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Phase of the entry with this index in a ring of 2^`log_depth`.
fn phase(index: u32, log_depth: u32) -> u64 {
    u64::from(!(index >> log_depth) & 1)
}

fn translation_slot(index: u32) -> usize {
    (index & ((1 << TQ_LOG_DEPTH) - 1)) as usize
}

/// Writes a command to the translation queue; returns its index.
fn write_translation(control: &mut Control, mut cmd: TqCmd) -> u32 {
    let index = control.tq_index;
    cmd.id.set(index as u16);
    let at = translation_slot(index) * size_of::<TqCmd>();
    control.tq_sq.write(at, cmd.as_bytes());
    control.tq_index = index.wrapping_add(1);
    index
}

impl Nic {
    /// Connects, lends memory, and starts the device with the usual options.
    pub fn open(path: &Path) -> Result<Self, DriverError> {
        Self::open_with(path, &NicOptions::default())
    }

    /// Connects, lends memory, and starts the device.
    pub fn open_with(path: &Path, options: &NicOptions) -> Result<Self, DriverError> {
        let mut client = Client::connect(path)?;
        client.info()?;
        let ram = Ram::new(options.ram, options.iova)?;
        let len = ram.file().len() as u64;
        let all = MAP_READ | MAP_WRITE;
        client.dma_map(options.iova, len, 0, all, Some(ram.file().fd()))?;
        let vectors = client.irq_count(MSIX_IRQ)?;
        let eventfds: Vec<OwnedFd> = (0..vectors)
            .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
            .collect::<Result<_, _>>()
            .map_err(std::io::Error::from)?;
        let borrowed: Vec<_> = eventfds.iter().map(AsFd::as_fd).collect();
        client.set_eventfds(MSIX_IRQ, 0, &borrowed)?;

        let word = |client: &mut Client, offset: u32| -> Result<u32, DriverError> {
            let mut bytes = [0; 4];
            client.read(regs::BAR_REGS, u64::from(offset), &mut bytes)?;
            Ok(u32::from_le_bytes(bytes))
        };
        for (what, register, want) in [
            ("magic number", regs::MAGIC, MAGIC),
            ("ABI version", regs::ABI_VERSION, ABI_VERSION),
        ] {
            let have = word(&mut client, register)?;
            if have != want {
                let value = u64::from(have);
                return Err(DriverError::Nonsense { what, value });
            }
        }
        let pages = word(&mut client, regs::DOORBELL_PAGES)?;
        let kick_offset = u64::from(word(&mut client, regs::KICK_OFFSET)?);
        let mut caps = Caps::new_zeroed();
        client.read(regs::BAR_REGS, u64::from(regs::CAPS), caps.as_mut_bytes())?;
        let mut mac = [0; 6];
        client.read(regs::BAR_REGS, u64::from(regs::MAC), &mut mac)?;

        let region = client.region_info(regs::BAR_DOORBELL)?;
        let area = u64::from(pages) * u64::from(regs::PAGE_SIZE);
        let no_bells = |value| DriverError::Nonsense {
            what: "doorbell area",
            value,
        };
        let (file, offset) = region.file.ok_or(no_bells(0))?;
        let memory = (kick_offset + area, caps.device_memory.get());
        let areas = match memory.1 {
            0 => vec![(0, area)],
            _ => vec![(0, area), memory],
        };
        if region.sparse != areas || kick_offset < area || region.size < memory.0 + memory.1 {
            return Err(no_bells(region.size));
        }
        let bells = MappedFile::map(&file, offset, area as usize)?;

        let pages = |len, what| ram.alloc(len, 4096).ok_or(DriverError::NoMemory(what));
        let page = |what| pages(4096, what);
        let tq_ring = |entry: usize| pages(entry << TQ_LOG_DEPTH, "the translation ring");
        let control = Control {
            admin_sq: page("the admin ring")?,
            admin_cq: page("the admin ring")?,
            admin_index: 0,
            tq_sq: tq_ring(size_of::<TqCmd>())?,
            tq_cq: tq_ring(size_of::<TqComp>())?,
            tq_index: 0,
            scratch: page("page lists")?,
        };
        let [_, _, _, d, e, f] = mac;
        let gid = options
            .gid
            .unwrap_or([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, d, e, f]);
        let nic = Self(Arc::new(Inner {
            ram,
            bells,
            kick_offset,
            client: Mutex::new(client),
            control: Mutex::new(control),
            eventfds,
            generation: AtomicU32::new(0),
            kicks: AtomicU64::new(0),
            caps,
            mac,
            gid,
            mtu: options.mtu,
        }));
        nic.start()?;
        Ok(nic)
    }

    /// Starts the device after a reset: bus mastering, command rings, address, link. There are no objects then.
    pub fn start(&self) -> Result<(), DriverError> {
        self.write_config(PCI_COMMAND, &COMMAND_ON.to_le_bytes())?;
        {
            let control = &mut *lock(&self.0.control);
            control.admin_index = 0;
            control.tq_index = 0;
            for ring in [
                &control.admin_sq,
                &control.admin_cq,
                &control.tq_sq,
                &control.tq_cq,
            ] {
                ring.fill(0, ring.len(), 0);
            }
            for (register, value) in [
                (regs::ADMIN_SQ_BASE, control.admin_sq.dma(0)),
                (regs::ADMIN_CQ_BASE, control.admin_cq.dma(0)),
                (regs::TRANSLATION_SQ_BASE, control.tq_sq.dma(0)),
                (regs::TRANSLATION_CQ_BASE, control.tq_cq.dma(0)),
            ] {
                self.write_regs(register, &value.to_le_bytes())?;
            }
        }
        self.write_reg(regs::ADMIN_LOG_DEPTH, LOG_DEPTH)?;
        self.write_reg(regs::TRANSLATION_LOG_DEPTH, TQ_LOG_DEPTH)?;
        self.write_reg(regs::ADMIN_EQN, u32::MAX)?;
        self.write_reg(regs::CONTROL, regs::ENABLE)?;
        let status = self.read_reg(regs::STATUS)?;
        if status & (regs::ENABLED | regs::FATAL) != regs::ENABLED {
            let value = u64::from(status);
            let what = "status after it was enabled";
            return Err(DriverError::Nonsense { what, value });
        }
        let generation = &self.0.generation;
        generation.store(generation.load(Ordering::SeqCst) | 1, Ordering::SeqCst);
        self.set_gid(true)?;
        self.set_interface(self.0.mtu, true)
    }

    /// Sets the entry of the GID table, or empties it.
    pub fn set_gid(&self, valid: bool) -> Result<(), DriverError> {
        let gid = SetGid {
            gid: self.0.gid,
            mac: self.0.mac,
            vlan: U16::new(0xffff),
            valid: valid.into(),
            ..SetGid::default()
        };
        self.admin(admin::SET_GID, 0, &gid)?;
        Ok(())
    }

    /// Sets the MTU of the network interface, and whether it is up.
    pub fn set_interface(&self, mtu: u16, up: bool) -> Result<(), DriverError> {
        let netdev = SetNetdev {
            mac: self.0.mac,
            mtu: U16::new(mtu),
            flags: U32::new(if up { NETDEV_UP } else { 0 }),
            ..SetNetdev::default()
        };
        self.admin(admin::SET_NETDEV, 0, &netdev)?;
        Ok(())
    }

    /// Resets the device. Objects that the driver still holds are dead then; [`Nic::start`] begins anew.
    pub fn reset(&self, how: Reset) -> Result<(), DriverError> {
        // Threads that wait for room in a doorbell ring must not wait for the reset device.
        self.mark_down();
        match how {
            Reset::Device => Ok(self.with_client(Client::reset)?),
            Reset::Register => self.write_reg(regs::CONTROL, regs::RESET),
            Reset::Disable => self.write_reg(regs::CONTROL, 0),
            Reset::Function => {
                let control = self.capability(0x10)? + 8;
                self.write_config(control, &(1u16 << 15).to_le_bytes())
            }
        }
    }

    /// Puts the function in D3hot, or back in D0.
    pub fn set_d3hot(&self, d3hot: bool) -> Result<(), DriverError> {
        let control = self.capability(0x01)? + 4;
        let state: u16 = if d3hot { 3 } else { 0 };
        self.write_config(control, &state.to_le_bytes())
    }

    /// Hangs up. Everything fails from now on.
    pub fn hang_up(&self) {
        self.mark_down();
        self.with_client(Client::hang_up);
    }

    fn mark_down(&self) {
        let _ = self
            .0
            .generation
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |g| Some((g | 1) + 1));
    }

    /// Offset in configuration space of a capability.
    fn capability(&self, id: u8) -> Result<u64, DriverError> {
        let byte = |at: u64| -> Result<u8, DriverError> {
            let mut bytes = [0];
            self.with_client(|client| client.read(CONFIG_REGION, at, &mut bytes))?;
            Ok(bytes[0])
        };
        let mut at = u64::from(byte(0x34)?);
        for _ in 0..48 {
            if at == 0 {
                break;
            }
            if byte(at)? == id {
                return Ok(at);
            }
            at = u64::from(byte(at + 1)?);
        }
        let value = u64::from(id);
        let what = "list of capabilities without";
        Err(DriverError::Nonsense { what, value })
    }

    /// Speaks to the device by other messages. Doorbells that must kick wait meanwhile.
    pub fn with_client<R>(&self, f: impl FnOnce(&mut Client) -> R) -> R {
        f(&mut lock(&self.0.client))
    }

    /// Reads a register.
    pub fn read_reg(&self, offset: u32) -> Result<u32, DriverError> {
        let mut bytes = [0; 4];
        self.with_client(|client| client.read(regs::BAR_REGS, u64::from(offset), &mut bytes))?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes a register.
    pub fn write_reg(&self, offset: u32, value: u32) -> Result<(), DriverError> {
        self.write_regs(offset, &value.to_le_bytes())
    }

    /// Writes bytes into the register BAR.
    pub fn write_regs(&self, offset: u32, bytes: &[u8]) -> Result<(), DriverError> {
        let offset = u64::from(offset);
        Ok(self.with_client(|client| client.write(regs::BAR_REGS, offset, bytes))?)
    }

    /// Writes configuration space.
    pub fn write_config(&self, offset: u64, bytes: &[u8]) -> Result<(), DriverError> {
        Ok(self.with_client(|client| client.write(CONFIG_REGION, offset, bytes))?)
    }

    /// Limits and capabilities.
    pub fn caps(&self) -> &Caps {
        &self.0.caps
    }

    /// MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.0.mac
    }

    /// GID 0.
    pub fn gid(&self) -> [u8; 16] {
        self.0.gid
    }

    /// The lent memory.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.0.ram
    }

    /// Page-aligned memory that the device can reach.
    pub fn alloc(&self, len: usize) -> Result<Buf, DriverError> {
        self.alloc_aligned(len, 4096, "buffers")
    }

    pub(crate) fn alloc_aligned(
        &self,
        len: usize,
        align: u64,
        what: &'static str,
    ) -> Result<Buf, DriverError> {
        let buf = self.0.ram.alloc(len, align);
        buf.ok_or(DriverError::NoMemory(what))
    }

    /// Lends more memory.
    pub fn lend(&self, ram: &Ram) -> Result<(), DriverError> {
        let (file, all) = (ram.file(), MAP_READ | MAP_WRITE);
        let len = file.len() as u64;
        Ok(self.with_client(|client| client.dma_map(ram.iova(), len, 0, all, Some(file.fd())))?)
    }

    /// Takes lent memory back. The device does not touch it once this returns.
    pub fn take_back(&self, ram: &Ram) -> Result<(), DriverError> {
        let len = ram.file().len() as u64;
        Ok(self.with_client(|client| client.dma_unmap(ram.iova(), len, 0))?)
    }

    /// Descriptor that a vector signals.
    pub fn eventfd(&self, vector: u16) -> Option<&OwnedFd> {
        self.0.eventfds.get(usize::from(vector))
    }

    /// Doorbells that had to wake the device.
    pub fn kicks(&self) -> u64 {
        self.0.kicks.load(Ordering::Relaxed)
    }

    /// The engine's sign of life, as doorbell page 0 shows it.
    pub fn heartbeat(&self) -> u32 {
        let at = offset_of!(DoorbellPage, heartbeat) as u64;
        self.0.bells.load_u32(at).unwrap_or(0)
    }

    /// Whether the engine says that it sleeps.
    pub fn asleep(&self, page: u32) -> bool {
        let at = page_offset(page) + offset_of!(DoorbellPage, asleep) as u64;
        self.0.bells.load_u32(at).unwrap_or(0) != 0
    }

    /// The doorbell area as it is.
    pub fn doorbell_area(&self) -> &MappedFile {
        &self.0.bells
    }

    /// The ring of doorbells in a page.
    pub fn bells(&self, page: u32) -> Result<DoorbellRing<'_>, RingError> {
        let page = self.0.bells.page(page as usize);
        page.map(DoorbellRing).ok_or(RingError::Down)
    }

    /// Appends a doorbell to the ring of a page, and wakes the device if it sleeps. Any number of threads may
    /// do so at once.
    #[inline]
    pub fn ring(&self, page: u32, bell: Doorbell) -> Result<(), RingError> {
        let bells = self.bells(page)?;
        if ring::append(&bells, bell).is_err() {
            self.append_when_there_is_room(page, &bells, bell)?;
        }
        if ring::must_kick(&bells) {
            self.kick(page, bell)?;
        }
        Ok(())
    }

    #[cold]
    fn append_when_there_is_room(
        &self,
        page: u32,
        bells: &DoorbellRing<'_>,
        bell: Doorbell,
    ) -> Result<(), RingError> {
        let generation = self.generation();
        let start = Instant::now();
        let mut spins = 0u32;
        while ring::append(bells, bell).is_err() {
            spins += 1;
            if !spins.is_multiple_of(SPINS) {
                std::hint::spin_loop();
                continue;
            }
            if self.generation() != generation {
                return Err(RingError::Down);
            }
            if start.elapsed() > LONG {
                return Err(RingError::Stuck(page));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Writes a doorbell to the kick page.
    #[cold]
    pub fn kick(&self, page: u32, bell: Doorbell) -> Result<(), RingError> {
        self.0.kicks.fetch_add(1, Ordering::Relaxed);
        let offset = self.0.kick_offset + page_offset(page);
        let bytes = bell.to_bits().to_le_bytes();
        self.with_client(|client| client.write(regs::BAR_DOORBELL, offset, &bytes))
            .map_err(|_| RingError::Kick)
    }

    pub(crate) fn generation(&self) -> u32 {
        self.0.generation.load(Ordering::SeqCst)
    }

    /// Carries out an admin command; returns handle and body of the answer.
    pub fn admin<T: IntoBytes + zerocopy::Immutable>(
        &self,
        opcode: u16,
        handle: u32,
        body: &T,
    ) -> Result<(u32, [u8; 112]), DriverError> {
        let mut cmd = AdminCmd::default();
        cmd.hdr.opcode.set(opcode);
        cmd.hdr.handle.set(handle);
        let bytes = body.as_bytes();
        if let Some(head) = cmd.body.get_mut(..bytes.len()) {
            head.copy_from_slice(bytes);
        }
        self.admin_raw(cmd)
    }

    /// Carries out an admin command as it is, but for its id.
    pub fn admin_raw(&self, mut cmd: AdminCmd) -> Result<(u32, [u8; 112]), DriverError> {
        const SIZE: usize = size_of::<AdminCmd>();
        let control = &mut *lock(&self.0.control);
        if self.generation() & 1 == 0 {
            return Err(RingError::Down.into());
        }
        let index = control.admin_index;
        let at = (index & ((1 << LOG_DEPTH) - 1)) as usize * SIZE;
        cmd.hdr.id.set(index as u16);
        control.admin_sq.write(at, cmd.as_bytes());
        control.admin_index = index.wrapping_add(1);
        self.ring(
            0,
            Doorbell {
                kind: doorbell::ADMIN,
                object: 0,
                value: control.admin_index,
            },
        )?;
        self.await_phase(
            &control.admin_cq,
            at + SIZE - 8,
            phase(index, LOG_DEPTH),
            "an admin command",
        )?;
        let mut comp = AdminComp::default();
        control.admin_cq.read(at, comp.as_mut_bytes());
        if comp.id != cmd.hdr.id {
            let value = u64::from(comp.id.get());
            let what = "id of an admin completion";
            return Err(DriverError::Nonsense { what, value });
        }
        match status_of(comp.status.get())? {
            Status::Ok => Ok((comp.handle.get(), comp.body)),
            status => Err(DriverError::Admin {
                opcode: cmd.hdr.opcode.get(),
                status,
            }),
        }
    }

    /// Carries out admin commands by one doorbell, so that the device sees them at once, and waits for the last of them.
    pub fn admin_batch(&self, cmds: Vec<AdminCmd>) -> Result<(), DriverError> {
        const SIZE: usize = size_of::<AdminCmd>();
        let control = &mut *lock(&self.0.control);
        let first = control.admin_index;
        let at = |index: u32| (index & ((1 << LOG_DEPTH) - 1)) as usize * SIZE;
        for (index, mut cmd) in (first..).zip(cmds) {
            cmd.hdr.id.set(index as u16);
            control.admin_sq.write(at(index), cmd.as_bytes());
            control.admin_index = index.wrapping_add(1);
        }
        let bell = Doorbell {
            kind: doorbell::ADMIN,
            object: 0,
            value: control.admin_index,
        };
        self.ring(0, bell)?;
        for index in first..control.admin_index {
            let (last, want) = (at(index) + SIZE - 8, phase(index, LOG_DEPTH));
            self.await_phase(&control.admin_cq, last, want, "admin commands")?;
            let mut comp = AdminComp::default();
            control.admin_cq.read(at(index), comp.as_mut_bytes());
            let status = status_of(comp.status.get())?;
            if status != Status::Ok {
                let opcode = 0;
                return Err(DriverError::Admin { opcode, status });
            }
        }
        Ok(())
    }

    /// Carries out a translation command as it is, but for its id; returns the count of the answer.
    pub fn translate(&self, cmd: TqCmd) -> Result<u32, DriverError> {
        let control = &mut *lock(&self.0.control);
        self.translate_locked(control, cmd)
    }

    /// Posts a command any number of times, as many as fit at once with a doorbell for every eighth, and waits for them.
    pub fn translate_many(&self, cmd: TqCmd, count: u32) -> Result<(), DriverError> {
        let control = &mut *lock(&self.0.control);
        for first in (0..count).step_by(1 << TQ_LOG_DEPTH) {
            let indices: Vec<u32> = (first..count.min(first + (1 << TQ_LOG_DEPTH)))
                .map(|_| write_translation(control, cmd))
                .collect();
            for last in indices.iter().skip(7).step_by(8).chain(indices.last()) {
                self.ring_translation(last.wrapping_add(1))?;
            }
            for index in indices {
                self.finish_translation(control, cmd.opcode, index)?;
            }
        }
        Ok(())
    }

    fn translate_locked(&self, control: &mut Control, cmd: TqCmd) -> Result<u32, DriverError> {
        if self.generation() & 1 == 0 {
            return Err(RingError::Down.into());
        }
        let index = write_translation(control, cmd);
        self.ring_translation(control.tq_index)?;
        self.finish_translation(control, cmd.opcode, index)
    }

    fn ring_translation(&self, value: u32) -> Result<(), DriverError> {
        let bell = Doorbell {
            kind: doorbell::TRANSLATION,
            object: 0,
            value,
        };
        Ok(self.ring(0, bell)?)
    }

    /// Waits for the command with this index; returns the count of its answer.
    fn finish_translation(
        &self,
        control: &Control,
        opcode: u8,
        index: u32,
    ) -> Result<u32, DriverError> {
        const SIZE: usize = size_of::<TqComp>();
        let at = translation_slot(index) * SIZE;
        self.await_phase(
            &control.tq_cq,
            at + SIZE - 8,
            phase(index, TQ_LOG_DEPTH),
            "a translation command",
        )?;
        let mut comp = TqComp::default();
        control.tq_cq.read(at, comp.as_mut_bytes());
        match status_of(comp.status.get())? {
            Status::Ok => Ok(comp.count.get()),
            status => Err(DriverError::Translation { opcode, status }),
        }
    }

    /// Writes page entries by list, as many as one command takes.
    pub(crate) fn map_pages(
        &self,
        key: u32,
        iova: u64,
        page_shift: u8,
        entries: &[u64],
    ) -> Result<u32, DriverError> {
        let control = &mut *lock(&self.0.control);
        control.scratch.write(0, entries.as_bytes());
        let cmd = TqCmd {
            opcode: faultline_abi::translation::MAP,
            key: U32::new(key),
            iova: iova.into(),
            count: (entries.len() as u64).into(),
            list: control.scratch.dma(0).into(),
            page_shift,
            ..TqCmd::default()
        };
        self.translate_locked(control, cmd)
    }

    /// Waits until the top byte of a word is this phase.
    fn await_phase(
        &self,
        ring: &Buf,
        at: usize,
        want: u64,
        what: &'static str,
    ) -> Result<(), DriverError> {
        let generation = self.generation();
        let start = Instant::now();
        let mut spins = 0u32;
        while ring.load_u64(at) >> 56 != want {
            spins += 1;
            if !spins.is_multiple_of(SPINS) {
                std::hint::spin_loop();
                continue;
            }
            if self.generation() != generation {
                return Err(RingError::Down.into());
            }
            if start.elapsed() > CHECK_AFTER {
                self.check_alive(start, what)?;
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Finds out why an answer does not come. A device that does not answer will not answer the next time.
    #[cold]
    fn check_alive(&self, start: Instant, what: &'static str) -> Result<(), DriverError> {
        std::thread::sleep(CHECK_AFTER);
        let status = self
            .read_reg(regs::STATUS)
            .inspect_err(|_| self.mark_down())?;
        if status & regs::FATAL != 0 {
            self.mark_down();
            let value = u64::from(self.read_reg(regs::FATAL_CODE)?);
            let what = "reason to stop";
            return Err(DriverError::Nonsense { what, value });
        }
        if status & regs::ENABLED == 0 {
            self.mark_down();
            return Err(RingError::Down.into());
        }
        if start.elapsed() > LONG {
            self.mark_down();
            return Err(DriverError::Timeout(what));
        }
        Ok(())
    }

    /// All counters of the device.
    pub fn counters(&self) -> Result<Counters, DriverError> {
        let buf = self.alloc(4096)?;
        let query = QueryCounters {
            addr: buf.dma(0).into(),
            len: U32::new(4096),
            ..QueryCounters::default()
        };
        let (count, _) = self.admin(admin::QUERY_COUNTERS, 0, &query)?;
        if count as usize != Counter::COUNT {
            let value = u64::from(count);
            let what = "number of counters";
            return Err(DriverError::Nonsense { what, value });
        }
        Ok(Counters(
            (0..Counter::COUNT).map(|i| buf.load_u64(i * 8)).collect(),
        ))
    }
}

#[inline(always)]
fn page_offset(page: u32) -> u64 {
    u64::from(page) * u64::from(regs::PAGE_SIZE)
}

fn status_of(value: u16) -> Result<Status, DriverError> {
    Status::from_u16(value).ok_or(DriverError::Nonsense {
        what: "command status",
        value: u64::from(value),
    })
}

/// The counters at one time.
#[derive(Clone, Debug)]
pub struct Counters(Vec<u64>);

impl std::ops::Index<Counter> for Counters {
    type Output = u64;

    fn index(&self, counter: Counter) -> &u64 {
        &self.0[counter as usize]
    }
}

/// Something that an object needs as long as it exists.
type Keep = Arc<dyn Any + Send + Sync>;

/// An object of the device, destroyed when dropped (unless a reset has destroyed it already). The objects to which it
/// refers are kept until after that.
pub(crate) struct Object {
    nic: Nic,
    generation: u32,
    destroy: u16,
    handle: u32,
    _keep: Vec<Keep>,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "object {:#x}", self.handle)
    }
}

impl Object {
    /// Creates an object by an admin command.
    pub(crate) fn create<T: IntoBytes + zerocopy::Immutable>(
        nic: &Nic,
        (create, destroy): (u16, u16),
        body: &T,
        keep: Vec<Keep>,
    ) -> Result<Arc<Self>, DriverError> {
        Self::create_with_answer(nic, (create, destroy), body, keep).map(|(object, _)| object)
    }

    /// The same, with the body of the answer.
    pub(crate) fn create_with_answer<T: IntoBytes + zerocopy::Immutable>(
        nic: &Nic,
        (create, destroy): (u16, u16),
        body: &T,
        keep: Vec<Keep>,
    ) -> Result<(Arc<Self>, [u8; 112]), DriverError> {
        let generation = nic.generation();
        let (handle, answer) = nic.admin(create, 0, body)?;
        let object = Arc::new(Self {
            nic: nic.clone(),
            generation,
            destroy,
            handle,
            _keep: keep,
        });
        Ok((object, answer))
    }

    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    /// A command about this object.
    pub(crate) fn command<T: IntoBytes + zerocopy::Immutable>(
        &self,
        opcode: u16,
        body: &T,
    ) -> Result<[u8; 112], DriverError> {
        self.check()?;
        Ok(self.nic.admin(opcode, self.handle, body)?.1)
    }

    /// A doorbell about this object.
    #[inline]
    pub(crate) fn ring(&self, page: u32, kind: u8, value: u32) -> Result<(), RingError> {
        self.check()?;
        let object = self.handle;
        self.nic.ring(
            page,
            Doorbell {
                kind,
                object,
                value,
            },
        )
    }

    #[inline]
    fn check(&self) -> Result<(), RingError> {
        if self.nic.generation() == self.generation {
            Ok(())
        } else {
            Err(RingError::Down)
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.check().is_ok() {
            let _ = self.nic.admin(self.destroy, self.handle, &[0u8; 0]);
        }
    }
}

/// Takes the front of an answer.
pub(crate) fn answer<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable>(
    body: &[u8; 112],
) -> Result<T, DriverError> {
    let (value, _) = T::read_from_prefix(body).map_err(|_| DriverError::Nonsense {
        what: "answer's length",
        value: 112,
    })?;
    Ok(value)
}
