//! The shapes: counted work, and its number of operations.

use anyhow::{Context, ensure};
use faultline_abi::admin::{CREATE_MKEY, CreateMkey, DESTROY_QP, EQ_FAULTS};
use faultline_abi::event::PAGE_FAULT;
use faultline_abi::qp::{ACCESS_ON_DEMAND, QPT_RC};
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::wqe::{WR_FLAG_SIGNALED, WR_READ, WR_SEND, WR_WRITE};
use faultline_abi::{U32, U64};
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Mr, Qp, Send};

use crate::fabric::{self, Fabric, Sizes, path};

const PAGE: u64 = 4096;
const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;
/// Send work requests for each doorbell, where many are posted.
const BATCH: u32 = 32;
/// log2 of the depth of a deep queue.
const DEEP: u8 = 9;
/// Bytes that a work request can have instead of the address of data.
const INLINE: u32 = 16;
/// First address of the region on demand.
const ON_DEMAND: u64 = 0x7e00_0000_0000;

/// Work whose instructions are counted.
pub struct Shape {
    /// Name.
    pub name: &'static str,
    /// What is done once, for a table.
    pub operation: &'static str,
    /// Does it a number of times. Returns this number.
    run: fn() -> anyhow::Result<u32>,
}

const fn shape(
    name: &'static str,
    operation: &'static str,
    run: fn() -> anyhow::Result<u32>,
) -> Shape {
    Shape {
        name,
        operation,
        run,
    }
}

/// All of them, in the order of the table.
pub const SHAPES: &[Shape] = &[
    shape("idle-2-nics", "a pass without work, 2 NICs", || idle(2)),
    shape("idle-16-nics", "a pass without work, 16 NICs", || idle(16)),
    shape("idle-64-nics", "a pass without work, 64 NICs", || idle(64)),
    shape(
        "idle-2-streams",
        "a pass beside 2 idle iWARP connections",
        || idle_streams(2),
    ),
    shape(
        "idle-10000-streams",
        "a pass beside 10,000 idle iWARP connections",
        || idle_streams(10_000),
    ),
    shape("look", "a look for work, 2 NICs", look),
    shape("write-8-deep", "an 8-byte WRITE in a deep queue", || {
        small(WR_WRITE, BATCH, BATCH)
    }),
    shape(
        "write-8-each",
        "the same with a doorbell and a completion each",
        || small(WR_WRITE, 1, 1),
    ),
    shape(
        "write-8-alone",
        "an 8-byte WRITE in a pass of its own",
        alone,
    ),
    shape(
        "write-8-64-qps",
        "an 8-byte WRITE of each of 64 queue pairs",
        many_queue_pairs,
    ),
    shape("send-8-deep", "an 8-byte SEND in a deep queue", || {
        small(WR_SEND, BATCH, BATCH)
    }),
    shape("write-4k", "a WRITE of 4 KiB", || bulk(WR_WRITE, 4 * KIB)),
    shape("write-64k", "a WRITE of 64 KiB", || {
        bulk(WR_WRITE, 64 * KIB)
    }),
    shape("write-1m", "a WRITE of 1 MiB", || bulk(WR_WRITE, MIB)),
    shape("read-4k", "a READ of 4 KiB", || bulk(WR_READ, 4 * KIB)),
    shape("read-64k", "a READ of 64 KiB", || bulk(WR_READ, 64 * KIB)),
    shape("read-1m", "a READ of 1 MiB", || bulk(WR_READ, MIB)),
    shape(
        "roce-4k",
        "a 4 KiB WRITE as a RoCEv2 packet, out and in",
        roce,
    ),
    shape(
        "port-frame",
        "a frame of 1514 octets from port to port",
        port_frame,
    ),
    shape(
        "two-engines",
        "an 8-byte WRITE from one engine to another",
        two_engines,
    ),
    shape(
        "fault",
        "a WRITE to an absent page: fault, MAP, RESUME, data",
        fault,
    ),
    shape("map-1", "MAP of 1 page", || map(1)),
    shape("map-512", "MAP of 512 pages", || map(512)),
    shape("invalidate", "INVALIDATE of 1 page", invalidate),
    shape("create-qp", "CREATE_QP and the steps to RTS", create_qp),
];

/// Executes the shape of this name. Returns how often it did its work.
pub fn run(name: &str) -> anyhow::Result<u32> {
    let shape = SHAPES.iter().find(|shape| shape.name == name);
    let names = || {
        SHAPES
            .iter()
            .map(|shape| shape.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let shape =
        shape.with_context(|| format!("there is no shape {name:?}; there are {}", names()))?;
    (shape.run)()
}

/// Two hosts with a region and a connection.
pub struct Pair {
    /// The hosts.
    pub fabric: Fabric,
    /// The first host's queue pair.
    pub qp: Qp,
    peer: Qp,
    /// The first host's region.
    pub source: Mr,
    /// Its first bytes.
    first: Vec<u8>,
    /// The second host's region.
    pub target: Mr,
}

impl Pair {
    /// Connects them; the source has a pattern.
    pub fn new(sizes: &Sizes, log_depth: u8, len: u64) -> anyhow::Result<Self> {
        let mut fabric = Fabric::new(sizes)?;
        let (qp, peer) = connection(&mut fabric, log_depth)?;
        let source = fabric::region(&mut fabric.hosts[0], len)?;
        let target = fabric::region(&mut fabric.hosts[1], len)?;
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + (at >> 8)) as u8).collect();
        fabric.hosts[0].driver.write_mr(&source, 0, &bytes);
        Ok(Self {
            fabric,
            qp,
            peer,
            source,
            first: bytes[..INLINE as usize].to_vec(),
            target,
        })
    }

    /// Posts a work request of `len` bytes, without a doorbell. Up to [`INLINE`] bytes are in it.
    pub fn post(&mut self, opcode: u8, len: u32, is_signaled: bool) {
        let source = [(self.source.va, len, self.source.key)];
        let (sges, inline): (&[_], _) = match len {
            0..=INLINE => (&[], Some(&self.first[..len as usize])),
            _ => (&source, None),
        };
        let send = Send {
            opcode,
            flags: if is_signaled { WR_FLAG_SIGNALED } else { 0 },
            sges,
            inline,
            remote_addr: self.target.va,
            rkey: self.target.key,
            ..Send::default()
        };
        let driver = &mut self.fabric.hosts[0].driver;
        driver.write_send(&mut self.qp, &send);
    }

    /// Rings the doorbell of the posted requests.
    pub fn ring(&mut self) {
        self.fabric.hosts[0].driver.ring_sends(&self.qp);
    }

    /// Checks that the data of the last work request has arrived.
    fn check(&self, opcode: u8, len: u32) -> anyhow::Result<()> {
        let (a, b) = (&self.fabric.hosts[0].driver, &self.fabric.hosts[1].driver);
        let (source, target) = (
            a.read_mr(&self.source, 0, len as usize),
            b.read_mr(&self.target, 0, len as usize),
        );
        ensure!(
            source == target,
            "the data of opcode {opcode} has not arrived"
        );
        Ok(())
    }
}

/// Two connected queue pairs, of the first two hosts.
pub fn connection(fabric: &mut Fabric, log_depth: u8) -> anyhow::Result<(Qp, Qp)> {
    let qp = fabric.queue_pair(0, QPT_RC, log_depth)?;
    let peer = fabric.queue_pair(1, QPT_RC, log_depth)?;
    fabric.connect(QPT_RC, [(0, &qp), (1, &peer)])?;
    Ok((qp, peer))
}

fn idle(nics: usize) -> anyhow::Result<u32> {
    const PASSES: u32 = 1000;
    let mut fabric = Fabric::new(&Sizes {
        nics,
        memory: 1 << 20,
        ..Sizes::default()
    })?;
    fabric.settle()?;
    fabric.processes().count(true);
    for _ in 0..PASSES {
        ensure!(!fabric.processes().step(), "a pass without work had some");
    }
    Ok(PASSES)
}

/// Passes without work, of two NICs with this number of connections.
fn idle_streams(connections: u32) -> anyhow::Result<u32> {
    const PASSES: u32 = 1000;
    let mut fabric = Fabric::new(&Sizes {
        is_iwarp: true,
        ..Sizes::default()
    })?;
    let free = [0, 1].map(|host| fabric.hosts[host].driver.next_free());
    for _ in 0..connections {
        let qp = fabric.queue_pair(0, QPT_RC, 4)?;
        let peer = fabric.queue_pair(1, QPT_RC, 4)?;
        fabric.open(&qp, &peer)?;
        // Their rings have no entries, and share memory.
        for (host, free) in free.into_iter().enumerate() {
            fabric.hosts[host].driver.free_from(free);
        }
    }
    fabric.settle()?;
    fabric.processes().count(true);
    for _ in 0..PASSES {
        ensure!(!fabric.processes().step(), "a pass without work had some");
    }
    Ok(PASSES)
}

fn look() -> anyhow::Result<u32> {
    const LOOKS: u32 = 1000;
    let mut fabric = Fabric::new(&Sizes::default())?;
    fabric.settle()?;
    for _ in 0..LOOKS {
        ensure!(
            !fabric.processes().look(),
            "there is work after a pass without"
        );
    }
    Ok(LOOKS)
}

/// 8-byte work requests in a deep queue, with a doorbell and a completion for the last of several.
fn small(opcode: u8, each_bell: u32, each_completion: u32) -> anyhow::Result<u32> {
    const ROUNDS: u32 = 8;
    let depth = 1 << DEEP;
    let mut pair = Pair::new(&Sizes::default(), DEEP, PAGE)?;
    for round in 0..=ROUNDS {
        if opcode == WR_SEND {
            let (target, peer) = (pair.target, &mut pair.peer);
            while pair.fabric.completes(1)? {}
            let driver = &mut pair.fabric.hosts[1].driver;
            for tag in 0..depth {
                driver.post_recv(peer, tag, &[(target.va, 8, target.key)]);
            }
        }
        // The first round, in which memory is allocated, is not counted. Room for doorbells needs passes, which are.
        let work = |pair: &mut Pair| {
            for n in 1..=depth {
                pair.post(opcode, 8, n % each_completion == 0);
                if n % each_bell == 0 {
                    pair.ring();
                }
            }
            pair.fabric.complete(0, depth / each_completion)
        };
        counted_if(round > 0, &mut pair, work)?;
    }
    pair.check(opcode, 8)?;
    Ok(ROUNDS * depth)
}

/// Does work on a pair, and counts its passes if it is to be counted.
fn counted_if(
    is_counted: bool,
    pair: &mut Pair,
    work: impl FnOnce(&mut Pair) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    pair.fabric.processes().count(is_counted);
    let result = work(pair);
    pair.fabric.processes().count(false);
    result
}

/// Work requests one after the other, each complete before the next is posted.
fn one_by_one(mut pair: Pair, opcode: u8, len: u32, count: u32) -> anyhow::Result<u32> {
    for n in 0..=count {
        pair.post(opcode, len, true);
        pair.ring();
        counted_if(n > 0, &mut pair, |pair| pair.fabric.complete(0, 1))?;
        pair.fabric.settle()?;
    }
    pair.check(opcode, len)?;
    Ok(count)
}

fn alone() -> anyhow::Result<u32> {
    one_by_one(Pair::new(&Sizes::default(), 4, PAGE)?, WR_WRITE, 8, 500)
}

fn two_engines() -> anyhow::Result<u32> {
    let sizes = Sizes {
        engines: 2,
        ..Sizes::default()
    };
    one_by_one(Pair::new(&sizes, 4, PAGE)?, WR_WRITE, 8, 500)
}

fn roce() -> anyhow::Result<u32> {
    let sizes = Sizes {
        processes: 2,
        ports: 1,
        nics: 1,
        ..Sizes::default()
    };
    one_by_one(Pair::new(&sizes, 4, PAGE)?, WR_WRITE, 4 * KIB, 200)
}

fn many_queue_pairs() -> anyhow::Result<u32> {
    const QPS: u32 = 64;
    const ROUNDS: u32 = 16;
    let mut pair = Pair::new(&Sizes::default(), 4, PAGE)?;
    let connect = |_| Ok(connection(&mut pair.fabric, 4)?.0);
    let mut qps: Vec<Qp> = (0..QPS).map(connect).collect::<anyhow::Result<_>>()?;
    for round in 0..=ROUNDS {
        for qp in &mut qps {
            std::mem::swap(&mut pair.qp, qp);
            pair.post(WR_WRITE, 8, true);
            pair.ring();
            std::mem::swap(&mut pair.qp, qp);
        }
        counted_if(round > 0, &mut pair, |pair| pair.fabric.complete(0, QPS))?;
        pair.fabric.settle()?;
    }
    pair.check(WR_WRITE, 8)?;
    Ok(ROUNDS * QPS)
}

/// Work requests of `len` bytes, with 16 of them or 4 MiB in the queue.
fn bulk(opcode: u8, len: u32) -> anyhow::Result<u32> {
    let (outstanding, rounds) = match len {
        0..=0xffff => (16, 16),
        0x1_0000..=0xf_ffff => (16, 4),
        _ => (4, 2),
    };
    let mut pair = Pair::new(&Sizes::default(), 5, u64::from(len))?;
    if opcode == WR_READ {
        // Data flows from the peer's region. It is the same after WRITEs.
        pair.post(WR_WRITE, len, true);
        pair.ring();
        pair.fabric.complete(0, 1)?;
        let zeroes = vec![0; len as usize];
        pair.fabric.hosts[0]
            .driver
            .write_mr(&pair.source, 0, &zeroes);
    }
    for round in 0..=rounds {
        for _ in 0..outstanding {
            pair.post(opcode, len, true);
        }
        pair.ring();
        counted_if(round > 0, &mut pair, |pair| {
            pair.fabric.complete(0, outstanding)
        })?;
        pair.fabric.settle()?;
    }
    pair.check(opcode, len)?;
    let first = pair.fabric.hosts[0].driver.read_mr(&pair.source, 0, 2);
    ensure!(first == [0, 7], "the pattern is not there: {first:?}");
    Ok(rounds * outstanding)
}

fn port_frame() -> anyhow::Result<u32> {
    const FRAMES: u32 = 500;
    let sizes = Sizes {
        ports: 2,
        ..Sizes::default()
    };
    let mut fabric = Fabric::new(&sizes)?;
    let mut frame: Vec<u8> = (0..1514u32).map(|at| at as u8).collect();
    let (dst, src) = ([2, 0, 0, 1, 0, 2], [2, 0, 0, 1, 0, 1]);
    let mut taken = Vec::new();
    // The switch learns the address of the destination.
    frame[..12].copy_from_slice(&[src, dst].concat());
    let send = |fabric: &mut Fabric, port: usize, frame: &[u8]| -> anyhow::Result<()> {
        let mut processes = fabric.processes();
        let port = processes.all()[0].port(port).context("a port")?;
        ensure!(port.send(frame), "there is no room for one frame");
        Ok(())
    };
    send(&mut fabric, 1, &frame)?;
    fabric.settle()?;
    frame[..12].copy_from_slice(&[dst, src].concat());
    for n in 0..=FRAMES {
        send(&mut fabric, 0, &frame)?;
        taken.clear();
        let mut processes = fabric.processes();
        processes.count(n > 0);
        processes.step();
        let port = processes.all()[0].port(1).context("a port")?;
        ensure!(
            port.take(&mut taken).is_some() && taken == frame,
            "the frame has not come through"
        );
    }
    Ok(FRAMES)
}

/// A region of a host without pages.
fn on_demand(fabric: &mut Fabric, host: usize, pages: u64) -> anyhow::Result<Mr> {
    let host = &mut fabric.hosts[host];
    let create = CreateMkey {
        pd: U32::new(host.pd),
        access: U32::new(ALL_ACCESS | ACCESS_ON_DEMAND),
        iova: U64::new(ON_DEMAND),
        length: U64::new(pages * PAGE),
        page_shift: 12,
        ..CreateMkey::default()
    };
    let key = host.driver.command(CREATE_MKEY, 0, &create)?.handle.get();
    let addr = host.driver.alloc(pages * PAGE)?;
    Ok(Mr {
        key,
        va: ON_DEMAND,
        addr,
        len: pages * PAGE,
    })
}

/// INVALIDATE of the first pages of a region.
fn invalidation(mr: &Mr, pages: u64) -> TqCmd {
    TqCmd {
        opcode: tq::INVALIDATE,
        key: U32::new(mr.key),
        iova: U64::new(mr.va),
        count: U64::new(pages * PAGE),
        ..TqCmd::default()
    }
}

fn fault() -> anyhow::Result<u32> {
    const FAULTS: u32 = 200;
    let mut pair = Pair::new(&Sizes::default(), 4, PAGE)?;
    let region = on_demand(&mut pair.fabric, 1, 1)?;
    let driver = &mut pair.fabric.hosts[1].driver;
    let mut faults = driver.create_eq(EQ_FAULTS, 2, 6)?;
    driver.arm_eq(&faults);
    pair.target = region;
    for n in 0..=FAULTS {
        pair.post(WR_WRITE, 64, true);
        pair.ring();
        counted_if(n > 0, &mut pair, |pair| {
            let record = pair.fabric.event(1, &mut faults)?;
            ensure!(record.kind == PAGE_FAULT, "not a page fault: {record:?}");
            let driver = &mut pair.fabric.hosts[1].driver;
            driver.map(&region, region.va, &[region.addr])?;
            driver.translate(&TqCmd {
                opcode: tq::RESUME,
                token: record.token,
                ..TqCmd::default()
            })?;
            pair.fabric.complete(0, 1)
        })?;
        pair.check(WR_WRITE, 64)?;
        let driver = &mut pair.fabric.hosts[1].driver;
        driver.translate(&invalidation(&region, 1))?;
        // It says as well which records were read.
        driver.arm_eq(&faults);
        pair.fabric.settle()?;
    }
    Ok(FAULTS)
}

fn map(pages: u64) -> anyhow::Result<u32> {
    const MAPS: u32 = 200;
    let mut fabric = Fabric::new(&Sizes::default())?;
    let region = on_demand(&mut fabric, 1, pages)?;
    let entries: Vec<u64> = (0..pages).map(|page| region.addr + page * PAGE).collect();
    for n in 0..=MAPS {
        fabric.processes().count(n > 0);
        let done = fabric.hosts[1].driver.map(&region, region.va, &entries)?;
        fabric.processes().count(false);
        ensure!(u64::from(done) == pages, "{done} pages are mapped");
        fabric.hosts[1]
            .driver
            .translate(&invalidation(&region, pages))?;
        fabric.settle()?;
    }
    Ok(MAPS)
}

fn invalidate() -> anyhow::Result<u32> {
    const INVALIDATIONS: u32 = 300;
    let mut fabric = Fabric::new(&Sizes::default())?;
    let region = on_demand(&mut fabric, 1, 1)?;
    for n in 0..=INVALIDATIONS {
        fabric.hosts[1]
            .driver
            .map(&region, region.va, &[region.addr])?;
        fabric.settle()?;
        fabric.processes().count(n > 0);
        let done = fabric.hosts[1]
            .driver
            .translate(&invalidation(&region, 1))?;
        fabric.processes().count(false);
        ensure!(done == 1, "{done} entries are removed");
    }
    Ok(INVALIDATIONS)
}

fn create_qp() -> anyhow::Result<u32> {
    const QPS: u32 = 100;
    let mut pair = Pair::new(&Sizes::default(), 4, PAGE)?;
    let path = path(&pair.fabric.hosts[1], &pair.peer);
    for n in 0..=QPS {
        let memory = pair.fabric.hosts[0].driver.next_free();
        let mut made = None;
        counted_if(n > 0, &mut pair, |pair| {
            let qp = pair.fabric.queue_pair(0, QPT_RC, 4)?;
            let driver = &mut pair.fabric.hosts[0].driver;
            driver.connect(qp.qpn, QPT_RC, &path)?;
            made = Some(qp);
            Ok(())
        })?;
        let driver = &mut pair.fabric.hosts[0].driver;
        let qp = made.context("a queue pair")?;
        driver.command(DESTROY_QP, qp.qpn, &())?;
        driver.free_from(memory);
        pair.fabric.settle()?;
    }
    Ok(QPS)
}
