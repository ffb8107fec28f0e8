//! How long an invalidation takes, alone and while another queue pair wants all of the device.
//!
//! On a shared machine the engine or this program can lose its processor for milliseconds, which says nothing of the
//! device. So the maximum is over the samples in which neither was preempted; their number is printed. Interrupts and the
//! hypervisor take processors too, and can't be observed. So samples are taken in rounds. Each round is long enough to meet
//! the device at every point of its work: delays by the device are in all rounds, delays by the machine in some. The lower
//! quartile of the rounds is compared with the target; the other quartiles are printed.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use faultline_abi::admin::MKEY_FAST_REG;
use faultline_abi::qp::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ};
use faultline_abi::wqe::{RegMrWqe, SqWqe, WR_FLAG_SIGNALED, WR_LOCAL_INV, WR_REG_MR};
use faultline_abi::{U32, U64};
use faultline_harness::testbed::LONG;
use faultline_harness::{Buf, Cq, Link, Mr, Qp, QpOptions, QpType, SendWr, connect};
use zerocopy::IntoBytes;

use crate::{BLOCKS, Bench, Figure, MIB, median, quantile};

const PAGE: usize = 4096;

/// A fast registration, and a queue pair of the kernel's context that makes and invalidates it.
struct Invalidator {
    mr: Mr,
    list: Buf,
    qp: Qp,
    _peer: Qp,
    cq: Cq,
}

impl Invalidator {
    fn new(bench: &Bench) -> anyhow::Result<Self> {
        let node = &bench.a;
        let kernel = node.nic.kernel();
        let cq = kernel.cq(&node.eq, 4)?;
        let options = QpOptions::default();
        let qp = kernel.qp(&node.pd, QpType::Rc, &cq, &cq, None, &options)?;
        let peer = bench.b.qp(QpType::Rc)?;
        connect(&qp, &peer, &Link::default())?;
        let list = node.nic.alloc(PAGE)?;
        list.store_u64(0, bench.source.0.dma(0) & !(PAGE as u64 - 1));
        let mr = node.pd.create_key(0, 1, 0, 0, MKEY_FAST_REG)?;
        Ok(Self {
            mr,
            list,
            qp,
            _peer: peer,
            cq,
        })
    }

    fn post(&mut self, entry: &[u8]) -> anyhow::Result<f64> {
        let start = Instant::now();
        self.qp.post_raw(entry)?;
        let wc = self.cq.poll_for(LONG).context("no completion")?;
        let took = start.elapsed().as_secs_f64();
        ensure!(wc.is_ok(), "an operation on a key failed: {wc:?}");
        self.qp.retire(&wc);
        Ok(took)
    }

    /// Seconds from the doorbell of an invalidation to its completion.
    fn sample(&mut self) -> anyhow::Result<f64> {
        let key = U32::new(self.mr.remote(0).key);
        let register = RegMrWqe {
            opcode: WR_REG_MR,
            flags: WR_FLAG_SIGNALED,
            access: U32::new(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ),
            key,
            iova: U64::new(0x1000),
            length: U64::new(PAGE as u64),
            list: U64::new(self.list.dma(0)),
            num_pages: U32::new(1),
            page_shift: U32::new(12),
            ..RegMrWqe::default()
        };
        let invalidate = SqWqe {
            opcode: WR_LOCAL_INV,
            flags: WR_FLAG_SIGNALED,
            rkey: key,
            ..SqWqe::default()
        };
        self.post(register.as_bytes())?;
        self.post(invalidate.as_bytes())
    }
}

/// How often threads have lost their processor.
struct Disturbance(Vec<PathBuf>);

impl Disturbance {
    /// Of this thread and of the engine.
    fn new(bench: &Bench) -> anyhow::Result<Self> {
        let tasks = format!("/proc/{}/task", bench.device.child.id());
        let engine = std::fs::read_dir(tasks)?
            .flatten()
            .map(|task| task.path())
            .find(|task| {
                let comm = std::fs::read_to_string(task.join("comm"));
                comm.is_ok_and(|comm| comm.trim() == "engine")
            });
        let engine = engine.context("the device has no engine")?;
        let files = [PathBuf::from("/proc/thread-self"), engine];
        Ok(Self(files.map(|task| task.join("status")).into()))
    }

    fn count(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for file in &self.0 {
            let text = std::fs::read_to_string(file)?;
            let line = text.lines().find(|line| line.starts_with("nonvoluntary"));
            let word = line.and_then(|line| line.split_whitespace().nth(1));
            sum += word.context("no count of switches")?.parse::<u64>()?;
        }
        Ok(sum)
    }
}

/// Times, and those of them in which no thread was preempted.
#[derive(Default)]
struct Samples {
    all: Vec<f64>,
    undisturbed: Vec<f64>,
}

impl Samples {
    fn take(
        &mut self,
        disturbance: &Disturbance,
        invalidator: &mut Invalidator,
    ) -> anyhow::Result<()> {
        let before = disturbance.count()?;
        let took = invalidator.sample()?;
        self.all.push(took);
        if disturbance.count()? == before {
            self.undisturbed.push(took);
        }
        Ok(())
    }

    /// The maxima of the rounds. One that is not whole would have less to be the longest of.
    fn rounds(&self) -> Vec<f64> {
        self.undisturbed.chunks_exact(ROUND).map(maximum).collect()
    }

    fn figures(&self, state: &str, floor: f64) -> [Figure; 4] {
        let share = 100.0 * self.undisturbed.len() as f64 / self.all.len().max(1) as f64;
        let figure = |what: &str, seconds: f64| {
            let name = format!("keys: invalidation, {state} device, {what}");
            Figure::plain(&name, seconds * 1e6, "us").against(FLOOR, seconds / floor)
        };
        let undisturbed =
            format!("keys: invalidations without another thread between, {state} device");
        [
            figure("median", median(&self.all)),
            figure(
                &format!("maximum of {ROUND}"),
                quantile(&self.rounds(), 0.25),
            ),
            figure("maximum", maximum(&self.undisturbed)),
            Figure::plain(&undisturbed, share, "%"),
        ]
    }
}

const FLOOR: &str = "keys: invalidation, idle device, median";
/// Samples of a round.
const ROUND: usize = 100;

fn maximum(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// The longest of many busy waits for this number of seconds on this machine, with nothing else to do.
fn longest_wait(disturbance: &Disturbance, seconds: f64, samples: usize) -> anyhow::Result<f64> {
    let mut longest: f64 = 0.0;
    for _ in 0..samples {
        let before = disturbance.count()?;
        let start = Instant::now();
        let mut took = 0.0;
        while took < seconds {
            took = start.elapsed().as_secs_f64();
        }
        if disturbance.count()? == before {
            longest = longest.max(took);
        }
    }
    Ok(longest)
}

/// Keeps the bulk queue pair's send queue full of 1 MiB WRITEs.
fn saturate(bench: &mut Bench, next: &mut usize) -> anyhow::Result<()> {
    while let Some(wc) = bench.a.cq.poll() {
        ensure!(wc.is_ok(), "a WRITE failed: {wc:?}");
        bench.bulk.retire(&wc);
    }
    while bench.bulk.room() > 0 {
        let at = *next % BLOCKS * MIB;
        let sges = [bench.source.1.sge(at, MIB)];
        let wr = SendWr::write(&sges, bench.target.1.remote(at));
        bench.bulk.post_send(&wr.signaled())?;
        *next += 1;
    }
    Ok(())
}

pub fn measure(bench: &mut Bench, samples: usize) -> anyhow::Result<Vec<Figure>> {
    let mut invalidator = Invalidator::new(bench)?;
    let disturbance = Disturbance::new(bench)?;
    let (mut idle, mut busy) = (Samples::default(), Samples::default());
    let mut next = 0;
    let start = Instant::now();
    for _ in 0..samples {
        saturate(bench, &mut next)?;
        busy.take(&disturbance, &mut invalidator)?;
    }
    while bench.bulk.room() < 1 << crate::BULK_DEPTH {
        let wc = bench.a.cq.poll_for(LONG).context("no completion")?;
        bench.bulk.retire(&wc);
    }
    // For the same time, so that rare disturbances of a shared machine are in both.
    let end = Instant::now() + start.elapsed();
    while idle.all.len() < samples || Instant::now() < end {
        idle.take(&disturbance, &mut invalidator)?;
    }
    let wait = longest_wait(&disturbance, median(&busy.all), samples)?;
    let floor = median(&idle.all);
    let idle = idle.figures("idle", floor);
    let mut busy = busy.figures("saturated", floor);
    let [_, round, ..] = &mut busy;
    *round = round.clone().at_most(20.0);
    let name = "keys: waiting as long without a device, maximum";
    let wait = Figure::plain(name, wait * 1e6, "us").against(FLOOR, wait / floor);
    Ok(idle.into_iter().chain(busy).chain([wait]).collect())
}
