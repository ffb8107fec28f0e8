//! Processes whose engines make passes when the driver waits, and hosts with a driver each.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use faultline_abi::cqe;
use faultline_abi::doorbell::Doorbell;
use faultline_abi::event::Eqe;
use faultline_abi::ring;
use faultline_config::Config;
use faultline_daemon::engines::manual::ManualEngines;
use faultline_daemon::nic::doorbell_ring::DoorbellRing;
use faultline_memory::{MemFd, SharedPages};
use faultline_simulation::driver::{ALL_ACCESS, Eq};
use faultline_simulation::{Bus, Connect, Cq, Mr, Qp, QpConfig, RAM_BASE, open_stream};
use faultline_wire::{Gid, MacAddr};

/// Time between two passes. Less than any time-out of a connection: no packet is lost, so none has to be repeated.
const TICK: Duration = Duration::from_micros(1);
/// Passes of all engines after which work that is not done never will be.
const MOST_STEPS: u32 = 100_000;
/// Code of a path MTU of 4096 octets.
const PATH_MTU: u8 = 5;

/// One pass of an engine, whose instructions are counted. The name is known to `cargo lab bench --counts`.
#[inline(never)]
fn counted_pass(engines: &mut ManualEngines, engine: usize) -> bool {
    // Something is left to be done after the call, so that this function is not left by a jump.
    std::hint::black_box(engines.pass(engine))
}

/// One look of an engine for work, whose instructions are counted.
#[inline(never)]
fn counted_look(engines: &ManualEngines, engine: usize) -> bool {
    std::hint::black_box(engines.has_work(engine))
}

/// The processes.
#[derive(Debug)]
pub struct Processes {
    processes: Vec<ManualEngines>,
    is_counting: bool,
    /// Steps since the start.
    pub steps: u32,
    /// A frame on its way from one process to the other.
    frame: Vec<u8>,
}

impl Processes {
    /// One pass of each engine in turn. Then frames cross between the external ports of two processes.
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        let mut any = false;
        for process in &mut self.processes {
            for engine in 0..process.count() {
                any |= match self.is_counting {
                    true => counted_pass(process, engine),
                    false => process.pass(engine),
                };
            }
            process.advance(TICK);
        }
        if let [a, b] = self.processes.as_mut_slice() {
            any |= carry(a, b, &mut self.frame);
            any |= carry(b, a, &mut self.frame);
        }
        any
    }

    /// Passes are counted from now on, or not.
    pub fn count(&mut self, is_counting: bool) {
        self.is_counting = is_counting;
    }

    /// One look of the first engine.
    pub fn look(&self) -> bool {
        self.processes
            .first()
            .is_some_and(|process| counted_look(process, 0))
    }

    /// The processes.
    pub fn all(&mut self) -> &mut [ManualEngines] {
        &mut self.processes
    }
}

/// Carries the frames that have come out of the first port of a process to that of another one.
fn carry(from: &mut ManualEngines, to: &mut ManualEngines, frame: &mut Vec<u8>) -> bool {
    let (Some(from), Some(to)) = (from.port(0), to.port(0)) else {
        return false;
    };
    let mut any = false;
    loop {
        frame.clear();
        if from.take(frame).is_none() {
            break;
        }
        any |= to.send(frame);
    }
    from.flush();
    to.flush();
    any
}

/// The way of a driver to its NIC.
#[derive(Debug)]
pub struct ManualBus {
    processes: Rc<RefCell<Processes>>,
    process: usize,
    nic: usize,
    memory: MemFd,
    pages: Arc<SharedPages>,
}

/// Result of an access to the driver's own memory or NIC.
fn own<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("access of the driver to its own NIC or memory: {error}"),
    }
}

impl Bus for ManualBus {
    fn ram_len(&self) -> u64 {
        self.memory.len() as u64
    }

    fn read(&self, addr: u64, buf: &mut [u8]) {
        own(self.memory.read(addr - RAM_BASE, buf));
    }

    fn write(&self, addr: u64, data: &[u8]) {
        own(self.memory.write(addr - RAM_BASE, data));
    }

    fn load_u32(&self, addr: u64) -> u32 {
        own(self.memory.load_u32(addr - RAM_BASE))
    }

    fn load_u64(&self, addr: u64) -> u64 {
        own(self.memory.load_u64(addr - RAM_BASE))
    }

    fn store_u32(&self, addr: u64, value: u32) {
        own(self.memory.store_u32(addr - RAM_BASE, value));
    }

    fn read_register(&mut self, offset: u32) -> u32 {
        let mut processes = self.processes.borrow_mut();
        own(processes.processes[self.process].read_register(self.nic, offset))
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        let mut processes = self.processes.borrow_mut();
        own(processes.processes[self.process].write_register(self.nic, offset, value));
    }

    fn doorbell(&mut self, page: u32, bell: Doorbell) {
        let page = self
            .pages
            .page(page as usize)
            .expect("a page of the context");
        while ring::append(&DoorbellRing(page), bell).is_err() {
            self.processes.borrow_mut().step();
        }
    }

    fn wait(&mut self) -> bool {
        // A command that is not answered by now never will be.
        (0..MOST_STEPS).any(|_| self.processes.borrow_mut().step())
    }
}

/// A host of a fabric. Its objects belong to a user context.
pub type Host = faultline_simulation::Host<ManualBus>;

/// A region of whole pages with all rights.
pub fn region(host: &mut Host, len: u64) -> anyhow::Result<Mr> {
    Ok(host
        .driver
        .reg_mr(host.pd, 0x7f00_0000_0000, len, ALL_ACCESS)?)
}

/// A queue pair of 2^`log_depth` sends and receives, which complete on this CQ if they request it.
pub fn queue_pair(host: &mut Host, kind: u8, cq: &Cq, log_depth: u8) -> anyhow::Result<Qp> {
    let config = QpConfig {
        log_depth,
        max_sge: 1,
        flags: 0,
        ..host.qp_config(kind, cq)
    };
    Ok(host.driver.create_qp(&config)?)
}

/// The path of other hosts to a queue pair of this host.
pub fn path(host: &Host, qp: &Qp) -> Connect {
    Connect {
        path_mtu: PATH_MTU,
        ..host.path(qp.qpn)
    }
}

/// The number of each thing in a fabric.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Processes. Two are connected by their first external ports.
    pub processes: usize,
    /// Engines of each.
    pub engines: usize,
    /// External ports of each.
    pub ports: usize,
    /// NICs of each, in turn on its engines.
    pub nics: usize,
    /// Bytes of memory of each host.
    pub memory: usize,
    /// Delay of the links away from the NICs; 0: the links have no model.
    pub delay_ns: u64,
    /// The NICs are iWARP adapters.
    pub is_iwarp: bool,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            processes: 1,
            engines: 1,
            ports: 0,
            nics: 2,
            memory: 16 << 20,
            delay_ns: 0,
            is_iwarp: false,
        }
    }
}

/// Processes and hosts.
#[derive(Debug)]
pub struct Fabric {
    processes: Rc<RefCell<Processes>>,
    /// The hosts, by process and NIC.
    pub hosts: Vec<Host>,
    /// The completion queue of each host.
    cqs: Vec<Cq>,
}

fn mac(process: usize, nic: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, process as u8, nic as u8 + 1])
}

/// The configuration of a process. Its sockets and devices are not opened.
fn config(process: usize, sizes: &Sizes) -> anyhow::Result<Config> {
    let mut text = format!("engines = {}\n", sizes.engines);
    for nic in 0..sizes.nics {
        let mac = mac(process, nic);
        text += &format!("[[nic]]\nname = \"nic{nic}\"\nsocket = \"nic{nic}\"\nmac = \"{mac}\"\n");
        if sizes.is_iwarp {
            text += "transport = \"iwarp\"\n";
        }
        if sizes.delay_ns > 0 {
            text += &format!("link_tx = {{ delay_ns = {} }}\n", sizes.delay_ns);
        }
    }
    for port in 0..sizes.ports {
        text += &format!(
            "[[port]]\nname = \"port{port}\"\nkind = \"tap\"\ninterface = \"port{port}\"\n"
        );
    }
    Config::from_toml(&text).map_err(|error| anyhow::anyhow!("{error}"))
}

impl Fabric {
    /// Creates the processes and starts a driver on each NIC.
    pub fn new(sizes: &Sizes) -> anyhow::Result<Self> {
        let mut processes = Vec::new();
        for process in 0..sizes.processes {
            let mut engines = ManualEngines::new(&config(process, sizes)?)?;
            for port in 0..sizes.ports {
                let port = engines.port(port).context("a port of the configuration")?;
                let is_connected = &port.status().is_connected;
                is_connected.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            processes.push(engines);
        }
        let processes = Rc::new(RefCell::new(Processes {
            processes,
            is_counting: false,
            steps: 0,
            frame: Vec::new(),
        }));
        let (mut hosts, mut cqs) = (Vec::new(), Vec::new());
        for process in 0..sizes.processes {
            for nic in 0..sizes.nics {
                let memory = MemFd::new(sizes.memory)?;
                let pages =
                    processes.borrow_mut().processes[process].attach(nic, RAM_BASE, &memory)?;
                let bus = ManualBus {
                    processes: Rc::clone(&processes),
                    process,
                    nic,
                    memory,
                    pages,
                };
                let mac = mac(process, nic);
                let [_, _, _, d, e, f] = mac.0;
                let mut host = Host::start(bus, mac, Gid::from_ipv4([10, d, e, f]))?;
                host.uctx = host.driver.alloc_uctx()?;
                cqs.push(host.cq(11)?);
                hosts.push(host);
            }
        }
        Ok(Self {
            processes,
            hosts,
            cqs,
        })
    }

    /// The processes.
    pub fn processes(&self) -> RefMut<'_, Processes> {
        self.processes.borrow_mut()
    }

    /// A queue pair of a host, with the completion queue of this host.
    pub fn queue_pair(&mut self, host: usize, kind: u8, log_depth: u8) -> anyhow::Result<Qp> {
        queue_pair(&mut self.hosts[host], kind, &self.cqs[host], log_depth)
    }

    /// Connects queue pairs of two hosts.
    pub fn connect(&mut self, kind: u8, ends: [(usize, &Qp); 2]) -> anyhow::Result<()> {
        let paths = ends.map(|(host, qp)| path(&self.hosts[host], qp));
        for ((host, qp), path) in ends.into_iter().zip(paths.iter().rev()) {
            self.hosts[host].driver.connect(qp.qpn, kind, path)?;
        }
        Ok(())
    }

    /// Opens an iWARP connection between queue pairs in RESET of the first two hosts. The number of the first one decides its port.
    pub fn open(&mut self, from: &Qp, to: &Qp) -> anyhow::Result<()> {
        let hosts = self.hosts.get_disjoint_mut([0, 1])?;
        let port = 20_000 + (from.qpn & 0x7fff) as u16;
        open_stream(hosts, [from.qpn, to.qpn], port, |_, path| path)?;
        Ok(())
    }

    /// Takes a completion of a host's completion queue, which must be good. Returns false if there is none.
    pub fn completes(&mut self, host: usize) -> anyhow::Result<bool> {
        match self.hosts[host].driver.poll(&mut self.cqs[host]) {
            None => Ok(false),
            Some(done) if done.status == cqe::SUCCESS => Ok(true),
            Some(done) => bail!("a work request failed: {done:?}"),
        }
    }

    /// Makes passes until a host has `count` more completions, which must be good.
    pub fn complete(&mut self, host: usize, count: u32) -> anyhow::Result<()> {
        let mut left = count;
        for _ in 0..MOST_STEPS {
            self.processes().step();
            while left > 0 && self.completes(host)? {
                left -= 1;
            }
            if left == 0 {
                return Ok(());
            }
        }
        bail!("{left} of {count} work requests are not complete after {MOST_STEPS} passes");
    }

    /// Makes passes until a host has an event.
    pub fn event(&mut self, host: usize, queue: &mut Eq) -> anyhow::Result<Eqe> {
        for _ in 0..MOST_STEPS {
            self.processes().step();
            if let Some(event) = self.hosts[host].driver.poll_event(queue) {
                return Ok(event);
            }
        }
        bail!("there is no event after {MOST_STEPS} passes");
    }

    /// Makes passes until there is no work.
    pub fn settle(&mut self) -> anyhow::Result<()> {
        let ends = (0..MOST_STEPS).any(|_| !self.processes().step());
        ensure!(ends, "the engines have work after {MOST_STEPS} passes");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faultline_abi::doorbell::{NOP, RING_ENTRIES};

    /// While all NICs rest, passes and looks read a list of slots, which has to follow the rings.
    #[test]
    fn each_doorbell_is_seen_after_a_rest() {
        let sizes = Sizes {
            nics: 3,
            ..Sizes::default()
        };
        let mut fabric = Fabric::new(&sizes).unwrap();
        for round in 0..=RING_ENTRIES {
            let host = (round % 3) as usize;
            let page = match round % 2 {
                0 => 0,
                _ => fabric.hosts[host].uctx,
            };
            fabric.settle().unwrap();
            assert!(!fabric.processes().look(), "doorbell {round} was not rung");
            fabric.hosts[host].driver.ring(page, NOP, 0, 0);
            assert!(fabric.processes().look(), "look for doorbell {round}");
            assert!(fabric.processes().step(), "pass with doorbell {round}");
        }
        fabric.settle().unwrap();
        assert!(!fabric.processes().look());
    }
}
