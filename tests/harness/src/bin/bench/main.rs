//! Figures of a device against floors of the same machine, measured in the same run.
//!
//! The device runs in a process of its own (this program, started again), so that its memory can be told from
//! the driver's. While a floor is measured that process is stopped: it polls, and there may be two processors
//! only.
//!
//! Two runs can be compared because they measure the same thing: driver and device keep to one processor each, and a floor
//! is measured on the same processors, with the same buffers (`floors.rs`). The machine may be shared, so everything is
//! measured in short rounds of which the median counts: a round in which one of the two threads was not running is an outlier
//! and not an average. A figure and its floor are measured in turn, several times; what is reported are the medians of values
//! and of ratios of neighbours, and the range of the middle half of the values: runs whose ranges overlap do not differ.

#![forbid(unsafe_code)]

mod against;
mod choice;
mod engines;
mod floors;
mod keys;
mod paging;
mod scenario;
mod sight;
mod wire;

use std::hint::spin_loop;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use choice::{Choice, Group};
use clap::Parser;
use faultline_abi::qp::ACCESS_LOCAL_WRITE;
use faultline_config::{Config, ControlSettings, NicEntry, NicSettings, PollMode};
use faultline_harness::testbed::{ALL_ACCESS, LONG, Node};
use faultline_harness::{
    Buf, Link, Mr, Nic, NicOptions, Qp, QpOptions, QpType, RingLayout, SendWr, connect,
};
use floors::{CopyFloor, Cpus, ping_pong, run_on};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

const MIB: usize = 1 << 20;
/// Blocks on each side of a copy: together more than a second-level cache holds.
const BLOCKS: usize = 32;
/// Idle queue pairs on each of the two NICs.
const IDLE_QPS: usize = 10_000;
/// Send work requests for each doorbell, where many are posted.
const BATCH: u32 = 32;
/// Blocks in a round of copies.
const ROUND_BLOCKS: usize = 2;
/// Trips in a round of latency.
const TRIPS: u64 = 16;
/// log2 of the depth of the send queue for bandwidth and rate.
const BULK_DEPTH: u8 = 10;

#[derive(Debug, Parser)]
#[command(about = "Measures a Faultline device against the floors of this machine")]
struct Args {
    /// Fewer and shorter repetitions.
    #[arg(long)]
    quick: bool,
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only figures whose name contains this text, or a group of figures by its word.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// This version in turns with that of another `faultline` program.
    #[arg(long, value_name = "BINARY")]
    against: Option<PathBuf>,
    /// Be the device: serve NICs in this directory until standard input ends.
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
    /// Be it on this processor.
    #[arg(long, hide = true, requires = "serve")]
    cpu: Option<usize>,
    /// Keep this many events in the trace, instead of the usual number.
    #[arg(long, hide = true, requires = "serve")]
    trace_records: Option<usize>,
    /// Count nothing for the metrics.
    #[arg(long, hide = true, requires = "serve")]
    no_metrics: bool,
    /// The NICs, each with its engine.
    #[arg(long, hide = true, default_value = DeviceOptions::NICS)]
    nics: String,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    name: String,
    value: f64,
    /// Quartiles of the measurements; the value is their median.
    middle_half: Option<[f64; 2]>,
    unit: &'static str,
    /// Name of the figure that it is compared with.
    against: Option<String>,
    ratio: Option<f64>,
    wanted: Option<String>,
    met: Option<bool>,
}

impl Figure {
    fn plain(name: &str, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.to_owned(),
            value,
            middle_half: None,
            unit,
            against: None,
            ratio: None,
            wanted: None,
            met: None,
        }
    }

    /// The median of measurements, each times `scale`.
    fn median(name: &str, values: &[f64], scale: f64, unit: &'static str) -> Self {
        Self {
            middle_half: Some([0.25, 0.75].map(|share| quantile(values, share) * scale)),
            ..Self::plain(name, median(values) * scale, unit)
        }
    }

    fn against(mut self, name: &str, ratio: f64) -> Self {
        self.against = Some(name.to_owned());
        self.ratio = Some(ratio);
        self
    }

    fn at_least(mut self, limit: f64) -> Self {
        self.wanted = Some(format!(">= {limit}"));
        self.met = Some(self.ratio.unwrap_or(self.value) >= limit);
        self
    }

    fn at_most(mut self, limit: f64) -> Self {
        self.wanted = Some(format!("<= {limit}"));
        self.met = Some(self.ratio.unwrap_or(self.value) <= limit);
        self
    }
}

fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value that this share of the values does not reach.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Median of the ratios of values that were measured one after the other.
fn median_ratio(values: &[f64], floors: &[f64]) -> f64 {
    let ratios: Vec<f64> = values.iter().zip(floors).map(|(v, f)| v / f).collect();
    median(&ratios)
}

/// How a device differs from the usual one.
#[derive(Clone, Copy, Debug)]
struct DeviceOptions<'a> {
    trace_records: Option<usize>,
    no_metrics: bool,
    /// `NIC=ENGINE`, with commas between them.
    nics: &'a str,
    /// The program `faultline` that is the device, in its usual settings; `None`: this program.
    program: Option<&'a Path>,
}

impl DeviceOptions<'_> {
    const NICS: &'static str = "a=0,b=0";
}

impl Default for DeviceOptions<'_> {
    fn default() -> Self {
        Self {
            trace_records: None,
            no_metrics: false,
            nics: Self::NICS,
            program: None,
        }
    }
}

/// The device's process.
struct Device {
    child: Child,
    is_other_program: bool,
    directory: tempfile::TempDir,
}

impl Device {
    /// Starts it, on a processor if one is given.
    fn start(cpu: Option<usize>, options: &DeviceOptions<'_>) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        if let Some(program) = options.program {
            return Self::start_program(program, directory);
        }
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(records) = options.trace_records {
            command.args(["--trace-records", &records.to_string()]);
        }
        if options.no_metrics {
            command.arg("--no-metrics");
        }
        if let Some(cpu) = cpu {
            command.args(["--cpu", &cpu.to_string()]);
        }
        let child = command
            .arg("--serve")
            .arg(directory.path())
            .args(["--nics", options.nics])
            .stdin(Stdio::piped())
            .spawn()
            .context("can't start the device's process")?;
        let mut device = Self {
            child,
            directory,
            is_other_program: false,
        };
        device.await_sockets()?;
        Ok(device)
    }

    /// Starts `faultline serve` of any version, on the processors of this thread.
    fn start_program(program: &Path, directory: tempfile::TempDir) -> anyhow::Result<Self> {
        let nic = |name: &str| format!("{name}={}", directory.path().join(name).display());
        let child = Command::new(program)
            .args([
                "serve",
                "--poll",
                "busy",
                "--nic",
                &nic("a"),
                "--nic",
                &nic("b"),
            ])
            .arg("--control")
            .arg(directory.path().join("control"))
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("can't start {}", program.display()))?;
        let mut device = Self {
            child,
            directory,
            is_other_program: true,
        };
        device
            .await_sockets()
            .with_context(|| format!("{} serve", program.display()))?;
        Ok(device)
    }

    fn await_sockets(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        // The last socket that it makes.
        while !self.control().exists() {
            if let Some(status) = self.child.try_wait()? {
                bail!("the device's process has ended: {status}");
            }
            ensure!(
                start.elapsed() < LONG,
                "the device's process does not serve"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Socket of its control server.
    fn control(&self) -> PathBuf {
        self.socket("control")
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Stops the device's process until [`Device::go_on`].
    fn stop(&self) {
        self.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(2));
    }

    fn go_on(&self) {
        self.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(2));
    }

    /// Runs `work` while the device stands still.
    fn stopped<R>(&self, work: impl FnOnce() -> R) -> R {
        self.stop();
        let result = work();
        self.go_on();
        result
    }

    /// Bytes of `field` in /proc/PID/status.
    fn memory(&self, field: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with(field));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        let kib: f64 = kib.context("no such field in /proc/PID/status")?.parse()?;
        Ok(kib * 1024.0)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // This program ends with its input.
        if self.is_other_program {
            self.signal(Signal::TERM);
        }
        // It can't end while it is stopped.
        self.signal(Signal::CONT);
        let _ = self.child.wait();
    }
}

fn serve(directory: &Path, options: DeviceOptions<'_>) -> anyhow::Result<()> {
    let nic = |entry: &str| -> anyhow::Result<NicEntry> {
        let (name, engine) = entry.split_once('=').context("a NIC without engine")?;
        Ok(NicEntry {
            name: name.to_owned(),
            socket: directory.join(name),
            settings: NicSettings {
                engine: Some(engine.parse().map_err(anyhow::Error::msg)?),
                ..NicSettings::default()
            },
            ..NicEntry::default()
        })
    };
    let usual = Config::default();
    let config = Config {
        poll: PollMode::Busy,
        trace_records: options.trace_records.unwrap_or(usual.trace_records),
        metrics: !options.no_metrics,
        nics: options.nics.split(',').map(nic).collect::<Result<_, _>>()?,
        control: ControlSettings {
            socket: Some(directory.join("control")),
            ..ControlSettings::default()
        },
        ..usual
    };
    let server = faultline_control::serve(&config)?;
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(server);
    Ok(())
}

/// Waits as long as a device with a processor of its own takes; then lets others run, the device perhaps.
fn pause(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(512) {
        std::thread::yield_now();
    } else {
        spin_loop();
    }
}

/// Median time of a round in seconds, over `rounds` of them.
fn time_rounds(
    rounds: usize,
    mut round: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let mut times = Vec::with_capacity(rounds);
    for i in 0..rounds {
        let start = Instant::now();
        round(i)?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(median(&times))
}

/// Two NICs with a connection for each kind of measurement.
struct Bench {
    idle: Vec<(Qp, Qp)>,
    /// For latency, in both directions.
    ping: Qp,
    pong: Qp,
    /// For bandwidth and rate, from a to b.
    bulk: Qp,
    _bulk_peer: Qp,
    source: (Buf, Mr),
    target: (Buf, Mr),
    a: Node,
    b: Node,
    // Last: the others say good-bye to it when they are dropped.
    device: Device,
}

impl Bench {
    fn new(cpus: Cpus, options: &DeviceOptions<'_>) -> anyhow::Result<Self> {
        let device = Device::start(Some(cpus.device), options)?;
        let options = NicOptions {
            ram: 128 * MIB,
            ..NicOptions::default()
        };
        let node = |name| -> anyhow::Result<Node> {
            let nic = Nic::open_with(&device.socket(name), &options)?;
            Ok(Node::new(nic)?)
        };
        let (a, b) = (node("a")?, node("b")?);
        let link = Link::default();
        let (ping, pong) = (a.qp(QpType::Rc)?, b.qp(QpType::Rc)?);
        connect(&ping, &pong, &link)?;
        let deep = QpOptions {
            send_depth: BULK_DEPTH,
            ..QpOptions::default()
        };
        let bulk = a.qp_with(QpType::Rc, None, &deep)?;
        let peer = b.qp_with(QpType::Rc, None, &deep)?;
        connect(&bulk, &peer, &link)?;
        let source = a.nic.alloc(BLOCKS * MIB)?;
        let target = b.nic.alloc(BLOCKS * MIB)?;
        source.fill_pattern(0, BLOCKS * MIB, 7);
        let source_mr = a.pd.register(&source, ACCESS_LOCAL_WRITE)?;
        let target_mr = b.pd.register(&target, ALL_ACCESS)?;
        Ok(Self {
            idle: Vec::new(),
            ping,
            pong,
            bulk,
            _bulk_peer: peer,
            source: (source, source_mr),
            target: (target, target_mr),
            a,
            b,
            device,
        })
    }

    /// Takes a completion of node a.
    fn reap(&mut self) -> anyhow::Result<()> {
        let mut spins = 0;
        while !self.try_reap()? {
            pause(&mut spins);
        }
        Ok(())
    }

    fn try_reap(&mut self) -> anyhow::Result<bool> {
        let Some(wc) = self.a.cq.poll() else {
            return Ok(false);
        };
        ensure!(wc.is_ok(), "a work request failed: {wc:?}");
        self.bulk.retire(&wc);
        self.ping.retire(&wc);
        Ok(true)
    }

    /// Bytes per second of WRITEs (or READs) of `len` bytes, a round of them outstanding at once.
    fn bandwidth(&mut self, len: usize, rounds: usize, read: bool) -> anyhow::Result<f64> {
        let blocks = BLOCKS * MIB / len;
        let each = ROUND_BLOCKS * MIB / len;
        let time = time_rounds(rounds, |round| {
            for i in 0..each {
                let at = (round * each + i) % blocks * len;
                let sges = [self.source.1.sge(at, len)];
                let remote = self.target.1.remote(at);
                let wr = if read {
                    SendWr::read(&sges, remote)
                } else {
                    SendWr::write(&sges, remote)
                };
                self.bulk.post_send(&wr.signaled())?;
            }
            (0..each).try_for_each(|_| self.reap())
        })?;
        Ok((each * len) as f64 / time)
    }

    /// Seconds for 8 bytes to be written to the peer and back, seen by polling memory.
    fn round_trip(&mut self, rounds: usize) -> anyhow::Result<f64> {
        let (to_b, to_a) = (self.b.mr.remote(0), self.a.mr.remote(0));
        for buf in [&self.a.buf, &self.b.buf] {
            buf.store_u64(0, 0);
        }
        let wait = |buf: &Buf, want: u64| {
            let mut spins = 0;
            while buf.load_u64(0) != want {
                pause(&mut spins);
            }
        };
        let mut i = 0u64;
        let time = time_rounds(rounds, |_| {
            for trip in 1..=TRIPS {
                i += 1;
                let bytes = i.to_le_bytes();
                let signal = trip == TRIPS;
                let post = |qp: &mut Qp, remote| {
                    let wr = SendWr::write_inline(&bytes, remote);
                    qp.post_send(&if signal { wr.signaled() } else { wr })
                };
                post(&mut self.ping, to_b)?;
                wait(&self.b.buf, i);
                post(&mut self.pong, to_a)?;
                wait(&self.a.buf, i);
            }
            for (node, qp) in [(&mut self.a, &mut self.ping), (&mut self.b, &mut self.pong)] {
                let wc = node.cq.poll_for(LONG).context("no completion")?;
                ensure!(wc.is_ok(), "a WRITE failed: {wc:?}");
                qp.retire(&wc);
            }
            Ok(())
        })?;
        Ok(time / TRIPS as f64)
    }

    /// 8-byte WRITEs per second: a send queue full of them, posted in batches, until all are complete.
    fn rate(&mut self, rounds: usize) -> anyhow::Result<f64> {
        let remote = self.b.mr.remote(4096);
        let each = 1u32 << BULK_DEPTH;
        let mut posted = 0u64;
        let time = time_rounds(rounds, |_| {
            for i in 1..=each {
                posted += 1;
                let bytes = posted.to_le_bytes();
                let wr = SendWr::write_inline(&bytes, remote);
                let last = i % BATCH == 0;
                self.bulk.stage(&if last { wr.signaled() } else { wr })?;
                if last {
                    self.bulk.ring()?;
                }
            }
            while self.bulk.room() < each {
                self.reap()?;
            }
            Ok(())
        })?;
        let last = self.b.buf.load_u64(4096);
        ensure!(last == posted, "the last WRITE is not the last");
        Ok(f64::from(each) / time)
    }

    /// Makes idle connected QPs on both NICs.
    fn fill(&mut self) -> anyhow::Result<()> {
        let small = QpOptions {
            send_depth: 4,
            recv_depth: 4,
            layout: RingLayout::Contiguous,
            ..QpOptions::default()
        };
        for _ in 0..IDLE_QPS {
            let a = self.a.qp_with(QpType::Rc, None, &small)?;
            let b = self.b.qp_with(QpType::Rc, None, &small)?;
            connect(&a, &b, &Link::default())?;
            self.idle.push((a, b));
        }
        Ok(())
    }

    fn check_data(&self) -> anyhow::Result<()> {
        for block in 0..BLOCKS {
            let at = block * MIB;
            ensure!(
                self.source.0.to_vec(at, MIB) == self.target.0.to_vec(at, MIB),
                "block {block} differs after it was written"
            );
        }
        Ok(())
    }
}

const MEMCPY: &str = "memcpy of 1 MiB blocks";
const PING_PONG: &str = "cache line to another thread and back";

/// Measures the figures that need one device in its usual settings.
fn measure_usual(
    choice: &Choice<'_>,
    quick: bool,
    cpus: Cpus,
    bench: &mut Bench,
) -> anyhow::Result<Vec<Figure>> {
    let reps = if quick { 5 } else { 15 };
    let scale = if quick { 1 } else { 3 };
    let mut figures = Vec::new();

    let (mut copies, mut writes, mut reads, mut short) = (vec![], vec![], vec![], vec![]);
    if choice.has(Group::Bandwidth) {
        let floor = CopyFloor::new(&bench.source.0, &bench.target.0)?;
        let rounds = scale * 64;
        bench.bandwidth(MIB, 32, false)?;
        floor.measure(32)?;
        for _ in 0..reps {
            let copy = || cpus.on_device(|| floor.measure(rounds));
            copies.push(bench.device.stopped(copy)?);
            writes.push(bench.bandwidth(MIB, rounds, false)?);
            reads.push(bench.bandwidth(MIB, rounds, true)?);
            short.push(bench.bandwidth(64 << 10, rounds, false)?);
        }
        bench.check_data()?;
        let gb = |name: &str, values: &[f64]| Figure::median(name, values, 1e-9, "GB/s");
        let figure = |name: &str, values: &[f64]| {
            gb(name, values).against(MEMCPY, median_ratio(values, &copies))
        };
        figures.push(gb(MEMCPY, &copies));
        figures.push(figure("bandwidth of 1 MiB WRITEs", &writes).at_least(0.7));
        figures.push(figure("bandwidth of 1 MiB READs", &reads));
        figures.push(figure("bandwidth of 64 KiB WRITEs", &short));
    }

    if choice.has(Group::Latency) {
        let (mut floors, mut trips) = (vec![], vec![]);
        let rounds = scale * 500;
        bench.round_trip(100)?;
        for _ in 0..reps {
            floors.push(bench.device.stopped(|| ping_pong(cpus, rounds))?);
            trips.push(bench.round_trip(rounds)?);
        }
        figures.push(Figure::median(PING_PONG, &floors, 1e6, "us"));
        figures.push(
            Figure::median("latency: 8-byte WRITE and back", &trips, 1e6, "us")
                .against(PING_PONG, median_ratio(&trips, &floors))
                .at_most(8.0),
        );
    }

    if choice.has(Group::Rate) {
        bench.rate(20)?;
        let rates: Vec<f64> = (0..reps)
            .map(|_| bench.rate(scale * 100))
            .collect::<anyhow::Result<_>>()?;
        let name = "rate of 8-byte WRITEs, one engine thread";
        figures.push(Figure::median(name, &rates, 1e-6, "M/s").at_least(1.5));
    }

    if choice.has(Group::Paging) {
        figures.extend(paging::measure(bench, reps, scale)?);
    }

    if choice.has(Group::Keys) {
        figures.extend(keys::measure(bench, reps * 200)?);
    }

    if choice.has(Group::Idle) {
        let (mut without, mut with) = (vec![], vec![]);
        let rounds = scale * 500;
        bench.round_trip(100)?;
        for rep in 0..reps.min(5) {
            without.push(bench.round_trip(rounds)?);
            let before = (
                bench.device.memory("VmRSS")?,
                bench.device.memory("RssAnon")?,
            );
            let start = Instant::now();
            bench.fill()?;
            if rep == 0 {
                let qps = 2.0 * IDLE_QPS as f64;
                let took = start.elapsed().as_secs_f64();
                let resident = (bench.device.memory("VmRSS")? - before.0) / qps;
                let own = (bench.device.memory("RssAnon")? - before.1) / qps;
                let name = "resident memory for each idle QP";
                figures.push(Figure::plain(name, resident, "bytes").at_most(4096.0));
                figures.push(Figure::plain("of it the device's own", own, "bytes"));
                let name = "time to create and connect a QP";
                figures.push(Figure::plain(name, took / qps * 1e6, "us"));
            }
            with.push(bench.round_trip(rounds)?);
            bench.idle.clear();
        }
        let name = format!("latency with {IDLE_QPS} idle connections");
        let ratio = median_ratio(&with, &without);
        figures.push(
            Figure::median(&name, &with, 1e6, "us")
                .against("latency without them", ratio)
                .at_most(1.1),
        );
    }
    Ok(figures)
}

/// Measures the groups of a choice.
fn measure(choice: &Choice<'_>, cpus: Cpus, quick: bool) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if choice.has_usual() {
        let mut bench = Bench::new(cpus, &DeviceOptions::default())?;
        figures.extend(measure_usual(choice, quick, cpus, &mut bench)?);
    }
    if choice.has(Group::Sight) {
        figures.extend(sight::measure(cpus, quick)?);
    }
    if choice.has(Group::Engines) {
        figures.extend(engines::measure(cpus, quick)?);
    }
    if choice.has(Group::Wire) {
        figures.extend(wire::measure(quick)?);
    }
    if choice.has(Group::Scenario) {
        figures.extend(scenario::measure(cpus, if quick { 20 } else { 60 }, 200)?);
    }
    Ok(figures)
}

fn print(figures: &[Figure]) {
    for figure in figures {
        let against = match (&figure.against, figure.ratio) {
            (Some(name), Some(ratio)) => format!("{ratio:.2} x {name}"),
            _ => String::new(),
        };
        let verdict = match (&figure.wanted, figure.met) {
            (Some(wanted), Some(met)) => {
                format!("wanted {wanted}: {}", if met { "met" } else { "MISSED" })
            }
            _ => String::new(),
        };
        let range = figure
            .middle_half
            .map_or_else(String::new, |[low, high]| format!("{low:.3}-{high:.3}"));
        println!(
            "{:<42} {:>10.3} {:<15} {:<6} {:<46} {}",
            figure.name, figure.value, range, figure.unit, against, verdict
        );
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(directory) = &args.serve {
        args.cpu.map_or(Ok(()), run_on)?;
        let options = DeviceOptions {
            trace_records: args.trace_records,
            no_metrics: args.no_metrics,
            nics: &args.nics,
            program: None,
        };
        return serve(directory, options);
    }
    let cpus = Cpus::new()?;
    run_on(cpus.driver)?;
    println!("{cpus}; medians, and the middle half of the values");
    let figures = match &args.against {
        Some(program) => against::measure(program, args.only.as_deref(), cpus, args.quick)?,
        None => {
            let choice = Choice::new(args.only.as_deref())?;
            choice.filter(measure(&choice, cpus, args.quick)?)?
        }
    };
    print(&figures);
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_vec_pretty(&figures)?)
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    if figures.iter().any(|figure| figure.met == Some(false)) {
        bail!("a figure was missed");
    }
    Ok(())
}
