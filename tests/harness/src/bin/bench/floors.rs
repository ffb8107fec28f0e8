//! Limits of the machine without a NIC: the copy of a block, and a cache line to another thread and back.
//!
//! A floor is measured where the figure is: the copy on the processor of the device, beside a driver that polls, with the
//! device's copy routine, between the same buffers, which are in memory files as a guest's memory is; the cache line between the processors of driver and device.
//! Copies of private buffers were up to a third faster or slower than those, from one run to the next, because they had other
//! page sizes and other distances between source and target.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context as _;
use faultline_harness::Buf;
use faultline_memory::{GuestMemory, Rights};
use rustix::io::dup;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{BLOCKS, MIB, ROUND_BLOCKS, TRIPS, pause, time_rounds};

/// The processors of driver and device: the first and the last that may be used. Without this the kernel moves both about, and
/// two runs measure different pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpus {
    pub(crate) driver: usize,
    pub(crate) device: usize,
}

impl Cpus {
    /// Those that this process may use.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let allowed = sched_getaffinity(None).context("can't read the CPU affinity")?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let driver = cpus.next().context("no CPU may be used")?;
        Ok(Self {
            driver,
            device: cpus.next_back().unwrap_or(driver),
        })
    }

    /// Runs `work` on the device's processor, while a thread polls on the driver's, as a driver does. The device must be
    /// stopped.
    pub(crate) fn on_device<R>(
        &self,
        work: impl FnOnce() -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut spins = 0;
                while !ended.load(Ordering::Acquire) {
                    pause(&mut spins);
                }
            });
            let result = run_on(self.device).and_then(|()| work());
            ended.store(true, Ordering::Release);
            run_on(self.driver)?;
            result
        })
    }
}

impl std::fmt::Display for Cpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "driver on CPU {}, device on CPU {}",
            self.driver, self.device
        )
    }
}

/// This thread, and those that it starts, run on this processor from now on.
pub(crate) fn run_on(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("can't run on CPU {cpu} only"))
}

/// The memory of two buffers, as the device sees it.
pub(crate) struct CopyFloor {
    source: (GuestMemory, u64),
    target: (GuestMemory, u64),
}

impl CopyFloor {
    pub(crate) fn new(source: &Buf, target: &Buf) -> anyhow::Result<Self> {
        Ok(Self {
            source: (device_view(source)?, source.dma(0)),
            target: (device_view(target)?, target.dma(0)),
        })
    }

    /// Bytes per second of copies of 1 MiB blocks by one thread.
    pub(crate) fn measure(&self, rounds: usize) -> anyhow::Result<f64> {
        let time = time_rounds(rounds, |round| {
            for i in 0..ROUND_BLOCKS {
                let at = ((round * ROUND_BLOCKS + i) % BLOCKS * MIB) as u64;
                let (from, to) = (self.source.1 + at, self.target.1 + at);
                self.target.0.copy_from(to, &self.source.0, from, MIB)?;
            }
            Ok(())
        })?;
        Ok((ROUND_BLOCKS * MIB) as f64 / time)
    }
}

/// The device's map of the memory that a buffer is in.
fn device_view(buf: &Buf) -> anyhow::Result<GuestMemory> {
    let ram = buf.ram();
    let mut memory = GuestMemory::new();
    let fd = dup(ram.file().fd())?;
    let len = ram.file().len() as u64;
    memory.map(ram.iova(), len, Some(fd), 0, Rights::READ_WRITE)?;
    Ok(memory)
}

/// A word with a cache line (and its neighbour) of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// Seconds for a word to go from the driver's processor to the device's and back.
pub(crate) fn ping_pong(cpus: Cpus, rounds: usize) -> anyhow::Result<f64> {
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let trips = rounds as u64 * TRIPS;
    let time = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Without it the floor is that of another pair of processors, and says so by its spread.
            let _ = run_on(cpus.device);
            for i in 1..=trips {
                let mut spins = 0;
                while ping.0.load(Ordering::Acquire) != i {
                    pause(&mut spins);
                }
                pong.0.store(i, Ordering::Release);
            }
        });
        let mut i = 0;
        time_rounds(rounds, |_| {
            for _ in 0..TRIPS {
                i += 1;
                ping.0.store(i, Ordering::Release);
                let mut spins = 0;
                while pong.0.load(Ordering::Acquire) != i {
                    pause(&mut spins);
                }
            }
            Ok(())
        })
    })?;
    Ok(time / TRIPS as f64)
}
