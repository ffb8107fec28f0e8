//! Benchmarks of several engine threads: two pairs of NICs on one engine and on two; and one pair on one engine, where
//! frames are delivered by reference, and on two, where they cross a link.
//!
//! Two pairs in two processes share nothing but the machine. They show the gain of its second processor at that time:
//! where others use the same cores, that is less than twice.
//!
//! All queues are filled while the device's process is stopped. Then it continues, and the driver sleeps until all work
//! is done: so the engines have the processors for themselves. Two engines keep to two processors. Devices are measured
//! in turns.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use faultline_abi::qp::ACCESS_LOCAL_WRITE;
use faultline_harness::testbed::{ALL_ACCESS, LONG, Node};
use faultline_harness::{
    Buf, Cq, Link, Mr, Nic, NicOptions, Qp, QpOptions, QpType, SendWr, connect,
};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{Cpus, Device, DeviceOptions, Figure, MIB, median_ratio};

/// Queue pairs of a pair of NICs, and log2 of the depth of their send queues.
const QPS: usize = 4;
const DEPTH: u8 = 13;
/// WRITEs of each queue pair in a round, and octets of each, of the two kinds of work.
const SHORT: Work = Work {
    writes: 1 << DEPTH,
    octets: 8,
};
const LONG_WRITES: Work = Work {
    writes: 256,
    octets: 64 << 10,
};
/// Memory that is written, on each side of a queue pair.
const AREA: usize = 4 * MIB;
/// Pause between two polls of the completion queues by the driver. A poll takes time of a processor on which an engine works; a round
/// takes 20 ms and more.
const LOOK: Duration = Duration::from_micros(500);

#[derive(Clone, Copy)]
struct Work {
    writes: usize,
    octets: usize,
}

/// A queue pair with its completion queue and its peer.
struct Lane {
    qp: Qp,
    cq: Cq,
    _peer: Qp,
    is_done: bool,
}

/// Two NICs, one of which writes into the memory of the other one.
struct Pair {
    lanes: Vec<Lane>,
    source: (Buf, Mr),
    target: (Buf, Mr),
    _nodes: [Node; 2],
}

impl Pair {
    fn new(device: &Device, names: [&str; 2]) -> anyhow::Result<Self> {
        let options = NicOptions {
            ram: 64 * MIB,
            ..NicOptions::default()
        };
        let node = |name| -> anyhow::Result<Node> {
            let nic = Nic::open_with(&device.socket(name), &options)?;
            Ok(Node::new(nic)?)
        };
        let [a, b] = [node(names[0])?, node(names[1])?];
        let deep = QpOptions {
            send_depth: DEPTH,
            ..QpOptions::default()
        };
        let source = a.nic.alloc(QPS * AREA)?;
        let target = b.nic.alloc(QPS * AREA)?;
        source.fill_pattern(0, QPS * AREA, 7);
        let source_mr = a.pd.register(&source, ACCESS_LOCAL_WRITE)?;
        let target_mr = b.pd.register(&target, ALL_ACCESS)?;
        let lane = |_| -> anyhow::Result<Lane> {
            let cq = a.context.cq(&a.eq, 4)?;
            let (context, pd) = (&a.context, &a.pd);
            let qp = context.qp(pd, QpType::Rc, &cq, &cq, None, &deep)?;
            let peer = b.qp(QpType::Rc)?;
            connect(&qp, &peer, &Link::default())?;
            Ok(Lane {
                qp,
                cq,
                _peer: peer,
                is_done: true,
            })
        };
        Ok(Self {
            lanes: (0..QPS).map(lane).collect::<anyhow::Result<_>>()?,
            source: (source, source_mr),
            target: (target, target_mr),
            _nodes: [a, b],
        })
    }

    /// Fills the queues. Only the last request of each has a completion.
    fn fill(&mut self, work: Work) -> anyhow::Result<()> {
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            lane.is_done = false;
            for n in 1..=work.writes {
                let at = index * AREA + n * work.octets % AREA;
                let sges = [self.source.1.sge(at, work.octets)];
                let wr = SendWr::write(&sges, self.target.1.remote(at));
                let last = n == work.writes;
                lane.qp.stage(&if last { wr.signaled() } else { wr })?;
            }
            // The doorbell ring has no room for one doorbell after each batch, because nothing takes them now.
            lane.qp.ring()?;
        }
        Ok(())
    }

    fn is_done(&mut self) -> anyhow::Result<bool> {
        for lane in &mut self.lanes {
            if !lane.is_done
                && let Some(wc) = lane.cq.poll()
            {
                ensure!(wc.is_ok(), "a WRITE failed: {wc:?}");
                lane.qp.retire(&wc);
                lane.is_done = true;
            }
        }
        Ok(self.lanes.iter().all(|lane| lane.is_done))
    }

    fn check_data(&self) -> anyhow::Result<()> {
        let all = |buf: &Buf| buf.to_vec(0, QPS * AREA);
        ensure!(
            all(&self.source.0) == all(&self.target.0),
            "what was written differs"
        );
        Ok(())
    }
}

/// Device processes, the pairs on them, and the results: WRITEs and octets in a second.
struct Measured {
    // Pairs first: they say good-bye to the device when they are dropped.
    pairs: Vec<Pair>,
    devices: Vec<Device>,
    rates: Vec<f64>,
    bandwidths: Vec<f64>,
}

impl Measured {
    /// One process for each entry of `processes`: its NICs with their engines, and the pairs among them.
    fn new(cpus: Cpus, processes: &[(&'static str, &[[&str; 2]])]) -> anyhow::Result<Self> {
        let mut measured = Self {
            pairs: Vec::new(),
            devices: Vec::new(),
            rates: Vec::new(),
            bandwidths: Vec::new(),
        };
        let mut cpus = [cpus.device, cpus.driver].into_iter().cycle();
        for (nics, pairs) in processes {
            let options = DeviceOptions {
                nics,
                ..DeviceOptions::default()
            };
            let device = Device::start(None, &options)?;
            pin_engines(&device, &mut cpus)?;
            for names in *pairs {
                measured.pairs.push(Pair::new(&device, *names)?);
            }
            measured.devices.push(device);
        }
        measured.devices.iter().for_each(Device::stop);
        // All pages are touched, and all queues have been used.
        for work in [SHORT, LONG_WRITES] {
            measured.round(work)?;
        }
        measured.pairs.iter().try_for_each(Pair::check_data)?;
        Ok(measured)
    }

    /// WRITEs in a second.
    fn round(&mut self, work: Work) -> anyhow::Result<f64> {
        for pair in &mut self.pairs {
            pair.fill(work)?;
        }
        let start = Instant::now();
        for device in &self.devices {
            device.signal(Signal::CONT);
        }
        for pair in &mut self.pairs {
            while !pair.is_done()? {
                ensure!(start.elapsed() < LONG, "the device does not go on");
                std::thread::sleep(LOOK);
            }
        }
        let time = start.elapsed().as_secs_f64();
        self.devices.iter().for_each(Device::stop);
        Ok((self.pairs.len() * QPS * work.writes) as f64 / time)
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let rate = self.round(SHORT)?;
        self.rates.push(rate);
        let rate = self.round(LONG_WRITES)?;
        self.bandwidths.push(rate * LONG_WRITES.octets as f64);
        Ok(())
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.devices.iter().for_each(Device::go_on);
    }
}

/// Keeps the engine threads of a device to a processor each. The driver sleeps while they work.
fn pin_engines(device: &Device, cpus: &mut impl Iterator<Item = usize>) -> anyhow::Result<()> {
    let tasks = format!("/proc/{}/task", device.child.id());
    for task in std::fs::read_dir(tasks)? {
        let task = task?;
        let name = std::fs::read_to_string(task.path().join("comm"))?;
        let id = task.file_name().to_string_lossy().parse().ok();
        if name.starts_with("engine")
            && let Some(cpu) = cpus.next()
        {
            let mut set = CpuSet::new();
            set.set(cpu);
            sched_setaffinity(id.and_then(Pid::from_raw), &set)?;
        }
    }
    Ok(())
}

/// Measures turns of rounds, one on each device.
pub(crate) fn measure(cpus: Cpus, quick: bool) -> anyhow::Result<Vec<Figure>> {
    let pair: &[[&str; 2]] = &[["a", "b"]];
    let two_pairs: &[[&str; 2]] = &[["a", "b"], ["c", "d"]];
    let mut devices = [
        Measured::new(cpus, &[("a=0,b=0,c=0,d=0", two_pairs)])?,
        Measured::new(cpus, &[("a=0,b=0,c=1,d=1", two_pairs)])?,
        Measured::new(cpus, &[("a=0,b=0", pair), ("a=0,b=0", pair)])?,
        Measured::new(cpus, &[("a=0,b=0", pair)])?,
        Measured::new(cpus, &[("a=0,b=1", pair)])?,
    ];
    let count = devices.len();
    for turn in 0..if quick { 6 } else { 24 } {
        // None is always the first, and none always follows the same one.
        let step = if turn % 2 == 0 { 1 } else { count - 1 };
        for place in 0..count {
            let next = devices.get_mut((turn + place * step) % count);
            next.context("no device")?.turn()?;
        }
    }
    let [one, two, apart, by_reference, across] = &devices;
    let rate = |name: &str, values: &[f64]| Figure::median(name, values, 1e-6, "M/s");
    let bandwidth = |name: &str, values: &[f64]| Figure::median(name, values, 1e-9, "GB/s");
    let alone = "rate of two pairs on one engine";
    let short = "rate of a pair on one engine";
    let wide = "bandwidth of two pairs on one engine";
    let long = "bandwidth of a pair on one engine";
    Ok(vec![
        rate(alone, &one.rates),
        rate("rate of two pairs on two engines", &two.rates)
            .against(alone, median_ratio(&two.rates, &one.rates))
            .at_least(1.8),
        rate("rate of two pairs in two processes", &apart.rates)
            .against(alone, median_ratio(&apart.rates, &one.rates)),
        bandwidth(wide, &one.bandwidths),
        bandwidth("bandwidth of two pairs on two engines", &two.bandwidths)
            .against(wide, median_ratio(&two.bandwidths, &one.bandwidths)),
        bandwidth("bandwidth of two pairs in two processes", &apart.bandwidths)
            .against(wide, median_ratio(&apart.bandwidths, &one.bandwidths)),
        rate(short, &by_reference.rates),
        rate("rate of a pair across two engines", &across.rates)
            .against(short, median_ratio(&across.rates, &by_reference.rates)),
        bandwidth(long, &by_reference.bandwidths),
        bandwidth("bandwidth of a pair across two engines", &across.bandwidths).against(
            long,
            median_ratio(&across.bandwidths, &by_reference.bandwidths),
        ),
    ])
}
