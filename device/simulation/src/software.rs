//! The software of hosts: a driver, its queues, and the pager.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use faultline_abi::event::{
    COMPLETION, CONNECT_FAILED, CONNECTION_CLOSED, CONNECTION_REQUEST, DEVICE_FATAL, Eqe,
};
use faultline_abi::iwarp::ConnectionPath;
use faultline_abi::{Status, cqe};
use faultline_scenario::traffic::{Memory, Simulator};
use faultline_wire::Gid;

use crate::bus::Bus;
use crate::driver::{ALL_ACCESS, Connect, Cq, Error, Mr, Qp};
use crate::error::SimulationError;
use crate::event::What;
use crate::host::Host;
use crate::iwarp::connection_path;
use crate::pager::{PAGE, Pager};
use crate::process::{ProcessBus, RAM, State, mac_of};

/// Bit of the vector of asynchronous events.
const ASYNC: u64 = 1 << 0;
/// Bit of the vector of completion events.
const COMPLETIONS: u64 = 1 << 1;
/// Bit of the vector of fault records.
const FAULTS: u64 = 1 << 2;
/// First I/O virtual address of the host's regions.
const FIRST_VA: u64 = 0x7f00_0000_0000;

/// A host with its software.
#[derive(Debug)]
pub(crate) struct Software {
    host: Host<ProcessBus>,
    pager: Pager,
    gids: Vec<Gid>,
    has_full_table: bool,
    next_va: u64,
    /// Queue pairs in the order of their creation.
    pub qpns: Vec<u32>,
    /// Completion queues for which an event has come.
    pub notified: BTreeSet<u32>,
    /// Events of iWARP connections that nothing has awaited.
    connections: Vec<Eqe>,
    /// Events read so far, by kind.
    pub events: BTreeMap<u8, u64>,
    /// The device has failed, or its driver has given up.
    pub failure: Option<String>,
}

/// Memory of a region that the host's software uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub key: u32,
    pub va: u64,
    memory: BufferMemory,
}

#[derive(Clone, Copy, Debug)]
enum BufferMemory {
    Pinned(Mr),
    OnDemand(usize),
}

pub(crate) fn gid_of(host: usize) -> Gid {
    let last = u8::try_from(host).unwrap_or(u8::MAX).saturating_add(1);
    Gid::from_ipv4([10, 0, 0, last])
}

/// Name of a NIC in messages.
pub(crate) fn nic_name(host: usize) -> String {
    format!("nic{host}")
}

/// Makes an error of a driver one of the simulation.
pub(crate) fn failed(host: usize, what: &str) -> impl FnOnce(Error) -> SimulationError {
    move |error| match error {
        Error::NoMemory => SimulationError::Memory {
            host: nic_name(host),
            bytes: RAM,
            what: what.to_owned(),
        },
        error => SimulationError::Driver {
            host: nic_name(host),
            what: what.to_owned(),
            error,
        },
    }
}

impl Deref for Software {
    type Target = Host<ProcessBus>;

    fn deref(&self) -> &Self::Target {
        &self.host
    }
}

impl DerefMut for Software {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.host
    }
}

impl Software {
    /// Starts the driver of a host and its pager.
    pub(crate) fn new(
        state: &Rc<RefCell<State>>,
        host: usize,
        simulator: &Simulator,
        default_service: u64,
    ) -> Result<Self, SimulationError> {
        let bus = ProcessBus::new(Rc::clone(state), host);
        let refused = |what| failed(host, what);
        let started = Host::start(bus, mac_of(host), gid_of(host));
        let mut started = started.map_err(refused("start of the driver"))?;
        let driver = &mut started.driver;
        driver.arm_eq(&started.eq);
        driver.arm_events();
        let log_depth = u8::try_from(simulator.fault_queue.max(1).ilog2()).unwrap_or(u8::MAX);
        let service_time = simulator
            .fault_service
            .map_or(default_service, |time| time.nanos());
        // One more than pages are present: the frame of the last page that was evicted shows whether the device writes to it.
        let frames = simulator.page_frames.saturating_add(1);
        let mut pager = Pager::new(driver, frames, log_depth)
            .map_err(refused("page frames and fault queue"))?;
        pager.spare = 1;
        pager.delay = service_time;
        pager.service = simulator.faults;
        pager.maps_again = true;
        Ok(Self {
            gids: vec![started.gid],
            host: started,
            pager,
            has_full_table: false,
            next_va: FIRST_VA,
            qpns: Vec::new(),
            notified: BTreeSet::new(),
            connections: Vec::new(),
            events: BTreeMap::new(),
            failure: None,
        })
    }

    /// The path to a queue pair of a host.
    pub(crate) fn path_to(host: usize, qpn: u32) -> Connect {
        Connect::to(gid_of(host), mac_of(host), qpn)
    }

    /// The path of an iWARP connection between two hosts.
    pub(crate) fn stream_path(
        from: usize,
        to: usize,
        local_port: u16,
        remote_port: u16,
    ) -> ConnectionPath {
        let ends = [(gid_of(from), local_port), (gid_of(to), remote_port)];
        connection_path(ends[0], ends[1], mac_of(to))
    }

    /// Waits for an event of an iWARP connection or listener. Returns its token.
    pub(crate) fn await_connection(&mut self, kind: u8, object: u32) -> Result<u64, Error> {
        loop {
            if let Some(at) = self.connections.iter().position(|event| {
                event.object.get() == object
                    && matches!(event.kind, CONNECT_FAILED | CONNECTION_CLOSED)
                    || (event.kind, event.object.get()) == (kind, object)
            }) {
                let event = self.connections.remove(at);
                return match event.kind == kind {
                    true => Ok(event.token.get()),
                    false => Err(Error::Silent),
                };
            }
            let is_over = !self.host.driver.bus.wait();
            let before = self.connections.len();
            self.read_events();
            if is_over && self.connections.len() == before {
                return Err(Error::Silent);
            }
        }
    }

    /// READs and atomics that may be outstanding on a queue pair.
    pub(crate) fn max_rd_atomic(&self) -> u8 {
        let limit = self
            .host
            .driver
            .bus
            .with_nic(|nic| nic.config().limits.max_rd_atomic);
        let limit = limit.unwrap_or(u32::MAX);
        u8::try_from(limit).unwrap_or(u8::MAX)
    }

    /// Registers `len` bytes in a protection domain. A fast registration gets its memory later.
    pub(crate) fn register(&mut self, pd: u32, len: u64, kind: Memory) -> Result<Buffer, Error> {
        let va = self.next_va;
        let pages = len.div_ceil(PAGE).saturating_add(1);
        self.next_va = va.saturating_add(pages.saturating_mul(PAGE));
        if kind == Memory::OnDemand {
            let index = self
                .pager
                .register(&mut self.host.driver, pd, (va, len), 0)?;
            let (_, _, key) = self.pager.sge(index, 0, 0);
            let memory = BufferMemory::OnDemand(index);
            return Ok(Buffer { key, va, memory });
        }
        let driver = &mut self.host.driver;
        let region = match kind {
            Memory::Fast => driver.create_fast_key(pd, va, len)?,
            _ => driver.reg_mr(pd, va, len, ALL_ACCESS)?,
        };
        Ok(Buffer {
            key: region.key,
            va,
            memory: BufferMemory::Pinned(region),
        })
    }

    /// Gives a fast registration its memory, on a queue pair whose CQ has no completions.
    pub(crate) fn register_fast(
        &mut self,
        on: (&mut Qp, &mut Cq),
        buffer: &Buffer,
    ) -> Result<(), Error> {
        let BufferMemory::Pinned(region) = buffer.memory else {
            return Ok(());
        };
        let driver = &mut self.host.driver;
        let free = driver.next_free();
        let list = driver.alloc(region.len.div_ceil(PAGE).saturating_mul(8))?;
        let done = driver.register_fast(on, &region, list)?;
        driver.free_from(free);
        match done.status {
            cqe::SUCCESS => Ok(()),
            _ => Err(Error::Refused(Status::BadMkey)),
        }
    }

    /// Writes to a buffer as the host's processor does.
    pub(crate) fn write(&mut self, buffer: &Buffer, offset: u64, data: &[u8]) {
        match buffer.memory {
            BufferMemory::Pinned(region) => self.host.driver.write_mr(&region, offset, data),
            BufferMemory::OnDemand(index) => {
                self.pager.write(&self.host.driver, index, offset, data)
            }
        }
    }

    /// Reads a buffer as the host's processor does.
    pub(crate) fn read(&self, buffer: &Buffer, offset: u64, len: usize) -> Vec<u8> {
        match buffer.memory {
            BufferMemory::Pinned(region) => self.host.driver.read_mr(&region, offset, len),
            BufferMemory::OnDemand(index) => {
                let mut bytes = vec![0; len];
                self.pager
                    .read(&self.host.driver, index, offset, &mut bytes);
                bytes
            }
        }
    }

    /// When the pager answers next.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let next = self.pager.next_at();
        next.filter(|_| self.failure.is_none())
    }

    /// Handles interrupts, given as bits, and faults that are due. Returns true if there were some.
    pub(crate) fn work(&mut self, now: u64, interrupts: u64) -> bool {
        if self.failure.is_some() {
            return false;
        }
        if interrupts & ASYNC != 0 {
            self.read_events();
            self.host.driver.arm_events();
        }
        if interrupts & COMPLETIONS != 0 {
            while let Some(event) = self.host.driver.poll_event(&mut self.host.eq) {
                self.count_event(event.kind);
                if event.kind == COMPLETION {
                    self.notified.insert(event.object.get());
                }
            }
            self.host.driver.arm_eq(&self.host.eq);
        }
        if interrupts & FAULTS != 0 {
            self.pager.collect(&mut self.host.driver, now);
            self.pager.arm(&mut self.host.driver);
        }
        let answered = self.pager.answer_due(&mut self.host.driver, now);
        let any = matches!(answered, Ok(true));
        if let Err(error) = answered {
            self.failure = Some(format!("a command of the pager: {error}"));
        }
        any || interrupts != 0
    }

    /// True if the device has written to a page after its invalidation.
    pub(crate) fn has_stray_writes(&self) -> bool {
        self.pager.has_stray_writes(&self.host.driver)
    }

    fn count_event(&mut self, kind: u8) {
        let count = self.events.entry(kind).or_default();
        *count = count.saturating_add(1);
    }

    /// Reads asynchronous events.
    pub(crate) fn read_events(&mut self) {
        for event in self.host.driver.whole_events() {
            let kind = event.kind;
            if (CONNECTION_REQUEST..=CONNECTION_CLOSED).contains(&kind) {
                self.connections.push(event);
            }
            self.count_event(kind);
            self.host.driver.bus.event(What::Asynchronous(kind));
            if kind == DEVICE_FATAL {
                self.failure = Some("the device has stopped with a fatal error".to_owned());
            }
        }
    }

    /// Moves the entries of the GID table by one place. When there is no further place, they stay where they are: a rule may ask for it
    /// at each command, and these are commands.
    pub(crate) fn move_gids(&mut self, host: usize) -> Result<(), Error> {
        let mac = mac_of(host);
        if self.has_full_table {
            return Ok(());
        }
        let before = self.gids.clone();
        self.gids.insert(0, Gid::ZERO);
        let moved = (0_u32..)
            .zip(&self.gids)
            .filter(|(_, gid)| **gid != Gid::ZERO);
        for (index, gid) in moved {
            let set = self.host.driver.set_gid(index, *gid, mac);
            self.has_full_table = set.is_err();
            set?;
        }
        for (index, (before, now)) in (0_u32..).zip(before.iter().zip(&self.gids)) {
            if *before != Gid::ZERO && *now == Gid::ZERO {
                self.host.driver.clear_gid(index)?;
            }
        }
        Ok(())
    }
}
