//! Functions that several files of tests use: processes in virtual time, queue pairs, regions.

use std::iter;
use std::time::Duration;

use faultline_abi::Status;
use faultline_abi::admin::{Counter, EQ_FAULTS};
use faultline_abi::cqe::{Cqe, SUCCESS};
use faultline_abi::event::Eqe;
use faultline_abi::qp::FAULT_POLICY_STALL;
use faultline_abi::translation as tq;
use faultline_abi::wqe::WR_WRITE;
use faultline_nic::NicConfig;
pub(crate) use faultline_simulation::driver::{ALL_ACCESS, Eq};
use faultline_simulation::process::{
    NicShape, PortShape, Process, ProcessBus, ProcessShape, Processes,
};
pub(crate) use faultline_simulation::{
    Bus, Connect, Cq, Error, Host, Memory, Mr, Qp, QpConfig, Send,
};

/// A microsecond, in nanoseconds.
pub(crate) const US: u64 = 1000;
/// A millisecond, in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;
/// First I/O virtual address of regions.
pub(crate) const VA: u64 = 0x7f00_0000_0000;
/// Octets of the headers of a packet without further headers, with its invariant CRC: Ethernet, IPv4, UDP, BTH.
pub(crate) const HEADERS: u64 = 14 + 20 + 8 + 12 + 4;
/// Octets of a RETH, which the first packet of a WRITE has.
pub(crate) const RETH: u64 = 16;
/// Octets of the payload of a packet.
pub(crate) const MTU: u64 = 1024;

/// The local ACK timeout with code 10 (IBTA 9.7.6.1.3), in nanoseconds.
pub(crate) const TIMEOUT_10: u64 = 4096 << 10;

/// NICs, each on the engine of its number.
pub(crate) fn nics(count: usize, engine: impl Fn(usize) -> usize) -> Vec<NicShape> {
    let nic = |nic| NicShape {
        engine: engine(nic),
        ..NicShape::default()
    };
    (0..count).map(nic).collect()
}

/// Data that depend on their position.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| ((at + seed * 7).wrapping_mul(0x9e37_79b9) >> 11) as u8)
        .collect()
}

/// A NIC: its process, and its number there.
pub(crate) type At = (usize, usize);

/// One process.
pub(crate) fn process(shape: &ProcessShape) -> Processes {
    Processes::new(shape).unwrap()
}

/// A process with one NIC and one port.
pub(crate) fn nic_and_port() -> ProcessShape {
    ProcessShape {
        engines: 1,
        nics: nics(1, |_| 0),
        ports: vec![PortShape {
            hold: Duration::from_millis(100),
            room: 1 << 20,
            ..PortShape::default()
        }],
        ..ProcessShape::default()
    }
}

/// Two processes with a wire between them. Addresses of the second one follow those of the first.
pub(crate) fn wired(near: &ProcessShape, far: &ProcessShape) -> Processes {
    wired_with_configs([near, far], &|_, _| {})
}

/// The same. `configure` gets the number of the process.
pub(crate) fn wired_with_configs(
    [near, far]: [&ProcessShape; 2],
    configure: &dyn Fn(usize, &mut NicConfig),
) -> Processes {
    let far = ProcessShape {
        first_address: near.nics.len(),
        ..far.clone()
    };
    let process = |number, shape: &ProcessShape| {
        Process::with_config(shape, &|config| configure(number, config)).unwrap()
    };
    Processes::of(vec![process(0, near), process(1, &far)])
}

/// Accesses and checks that fail the test.
pub(crate) trait Expect {
    /// The host of a NIC.
    fn at(&mut self, at: At) -> &mut Host<ProcessBus>;

    /// Lets everything happen until a condition holds.
    fn run_while(&mut self, goes_on: impl FnMut(&mut Self) -> bool);

    /// No packet of a NIC has violated the specification, and the clock is not stuck.
    fn expect_legal(&self);

    fn counter(&mut self, at: At, counter: Counter) -> u64 {
        self.at(at).driver.counter(counter).unwrap()
    }
}

impl Expect for Processes {
    fn at(&mut self, at: At) -> &mut Host<ProcessBus> {
        self.host(at).unwrap()
    }

    #[track_caller]
    fn run_while(&mut self, mut goes_on: impl FnMut(&mut Self) -> bool) {
        while goes_on(self) {
            assert!(self.step(u64::MAX), "nothing happens any more");
        }
    }

    #[track_caller]
    fn expect_legal(&self) {
        assert!(!self.is_stuck());
        for process in &self.all {
            assert_eq!(process.watched().violations, [""; 0]);
        }
    }
}

/// A queue pair with its completion queue, and a region of its host.
pub(crate) struct End {
    pub(crate) at: At,
    pub(crate) kind: u8,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
}

impl End {
    /// With 2^`log_depth` requests and receives, and `len` octets of memory. Each request has a completion.
    pub(crate) fn new(
        world: &mut Processes,
        at: At,
        kind: u8,
        (log_depth, len): (u8, u64),
    ) -> Self {
        let host = world.at(at);
        let cq = host.cq(log_depth + 2).unwrap();
        let qp = QpConfig {
            log_depth,
            max_sge: 1,
            ..host.qp_config(kind, &cq)
        };
        let qp = host.driver.create_qp(&qp).unwrap();
        let mr = host.driver.reg_mr(host.pd, VA, len, ALL_ACCESS).unwrap();
        Self {
            at,
            kind,
            cq,
            qp,
            mr,
        }
    }

    /// The way of others to it.
    pub(crate) fn path(&self, world: &mut Processes) -> Connect {
        world.at(self.at).path(self.qp.qpn)
    }

    pub(crate) fn connect(&self, world: &mut Processes, path: &Connect) {
        let driver = &mut world.at(self.at).driver;
        driver.connect(self.qp.qpn, self.kind, path).unwrap();
    }

    /// Opens a queue pair for datagrams or raw frames.
    pub(crate) fn activate(&self, world: &mut Processes, qkey: u32) {
        let driver = &mut world.at(self.at).driver;
        driver.activate(self.qp.qpn, self.kind, qkey).unwrap();
    }

    pub(crate) fn post(&mut self, world: &mut Processes, send: &Send<'_>) {
        world.at(self.at).driver.post_send(&mut self.qp, send);
    }

    /// A WRITE of octets from the beginning of the region to that of another one.
    pub(crate) fn write(&mut self, world: &mut Processes, to: &Mr, len: u64) {
        self.write_to(world, (to.va, to.key), len);
    }

    pub(crate) fn write_to(
        &mut self,
        world: &mut Processes,
        (remote_addr, rkey): (u64, u32),
        len: u64,
    ) {
        let send = Send {
            opcode: WR_WRITE,
            sges: &[(self.mr.va, len as u32, self.mr.key)],
            remote_addr,
            rkey,
            ..Send::default()
        };
        self.post(world, &send);
    }

    /// Posts a receive of a part of the region.
    pub(crate) fn receive(&mut self, world: &mut Processes, tag: u32, (offset, len): (u64, u64)) {
        let sge = (self.mr.va + offset, len as u32, self.mr.key);
        let driver = &mut world.at(self.at).driver;
        driver.post_recv(&mut self.qp, tag, &[sge]);
    }

    pub(crate) fn fill(&self, world: &mut Processes, offset: u64, data: &[u8]) {
        world.at(self.at).driver.write_mr(&self.mr, offset, data);
    }

    pub(crate) fn read(&self, world: &mut Processes, offset: u64, len: usize) -> Vec<u8> {
        world.at(self.at).driver.read_mr(&self.mr, offset, len)
    }

    /// Completions that are there.
    pub(crate) fn poll(&mut self, world: &mut Processes) -> Vec<Cqe> {
        let driver = &mut world.at(self.at).driver;
        iter::from_fn(|| driver.poll(&mut self.cq)).collect()
    }

    /// Their statuses.
    pub(crate) fn statuses(&mut self, world: &mut Processes) -> Vec<u8> {
        self.poll(world).iter().map(|cqe| cqe.status).collect()
    }

    /// Executes events until there are `count` completions, and no more.
    #[track_caller]
    pub(crate) fn await_count(&mut self, world: &mut Processes, count: usize) -> Vec<Cqe> {
        let mut found = self.poll(world);
        while found.len() < count {
            assert!(world.step(u64::MAX), "{} of {count}", found.len());
            found.extend(self.poll(world));
        }
        assert_eq!(found.len(), count);
        found
    }

    /// The same; all are good.
    #[track_caller]
    pub(crate) fn await_good(&mut self, world: &mut Processes, count: usize) -> Vec<Cqe> {
        let found = self.await_count(world, count);
        for cqe in &found {
            assert_eq!(cqe.status, SUCCESS);
        }
        found
    }

    /// From now on its page faults stop the input of the NIC.
    pub(crate) fn stall_at_faults(&self, world: &mut Processes) {
        let driver = &mut world.at(self.at).driver;
        driver
            .set_fault_policy(self.qp.qpn, FAULT_POLICY_STALL)
            .unwrap();
    }
}

/// Connects two queue pairs. `change`: changes of the path to the other one.
pub(crate) fn join(world: &mut Processes, ends: [&End; 2], change: impl Fn(Connect) -> Connect) {
    let paths = ends.map(|end| change(end.path(world)));
    ends[0].connect(world, &paths[1]);
    ends[1].connect(world, &paths[0]);
}

/// A connection between two NICs.
pub(crate) fn connected(
    world: &mut Processes,
    at: [At; 2],
    kind: u8,
    shape: (u8, u64),
    change: impl Fn(Connect) -> Connect,
) -> [End; 2] {
    let ends = at.map(|at| End::new(world, at, kind, shape));
    join(world, [&ends[0], &ends[1]], change);
    ends
}

/// Writes data to the other end, as much as both regions hold, and checks it there.
#[track_caller]
pub(crate) fn exchange(world: &mut Processes, from: &mut End, to: &End, seed: u64) {
    let len = from.mr.len.min(to.mr.len);
    let data = pattern(seed, len as usize);
    from.fill(world, 0, &data);
    from.write(world, &to.mr, len);
    from.await_good(world, 1);
    assert!(to.read(world, 0, data.len()) == data, "{seed}");
}

/// Frames and octets of payload of a WRITE of this length on a wire.
pub(crate) fn packets_of(len: u64) -> u64 {
    len.div_ceil(MTU)
}

/// Octets of a WRITE of this length on a wire, without FCS.
pub(crate) fn octets_of(len: u64) -> u64 {
    len + packets_of(len) * HEADERS + RETH
}

/// A region of absent pages, each of which becomes present once.
pub(crate) struct Absent {
    at: At,
    queue: Eq,
    frame: u64,
    pub(crate) key: u32,
    pub(crate) va: u64,
}

impl Absent {
    pub(crate) fn new(world: &mut Processes, at: At) -> Self {
        let host = world.at(at);
        let queue = host.driver.create_eq(EQ_FAULTS, 2, 6).unwrap();
        let va = 2 * VA;
        let key = host.driver.reg_on_demand(host.pd, va, 1 << 20, 0).unwrap();
        Self {
            at,
            frame: host.driver.alloc(1 << 20).unwrap(),
            queue,
            key,
            va,
        }
    }

    /// The next fault.
    #[track_caller]
    pub(crate) fn fault(&mut self, world: &mut Processes) -> Eqe {
        loop {
            let driver = &mut world.at(self.at).driver;
            if let Some(record) = driver.poll_event(&mut self.queue) {
                return record;
            }
            assert!(world.step(u64::MAX), "no fault");
        }
    }

    /// Gives the page of an address memory.
    pub(crate) fn map(&mut self, world: &mut Processes, va: u64) {
        let driver = &mut world.at(self.at).driver;
        let page = va / 4096 * 4096;
        let frame = self.frame + (page - self.va);
        let entry = frame | tq::READ | tq::WRITE;
        driver.give_page(tq::MAP, self.key, page, entry).unwrap();
    }

    /// Gives the page of a fault memory, and answers it.
    pub(crate) fn repair(&mut self, world: &mut Processes, fault: &Eqe) {
        self.map(world, fault.va.get());
        let driver = &mut world.at(self.at).driver;
        driver.resume(fault.token.get(), Status::Ok).unwrap();
    }
}
