//! Figures of regions on demand: the cost of a warm one beside a pinned one, and the cost of a page fault in the
//! NIC.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use faultline_abi::event::Eqe;
use faultline_abi::qp::ACCESS_ON_DEMAND;
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::{Status, U64};
use faultline_harness::paging::{PAGE, Pager};
use faultline_harness::testbed::{ALL_ACCESS, LONG};
use faultline_harness::{Link, Mr, Qp, QpType, SendWr, connect};

use crate::{Bench, Figure, MIB, median_ratio, pause};

/// Queue pairs that fault at once.
const CROWD: usize = 64;
/// First address of warm regions on demand.
const VA: u64 = 0x7f00_0000_0000;

/// The host of NIC b as a pager, busy polling.
struct Host(Pager);

impl Host {
    fn record(&mut self) -> anyhow::Result<Eqe> {
        self.0.record(LONG).context("no page fault")
    }

    /// Seconds from the doorbell of a WRITE onto an absent page to its record, and from the resume to the data.
    fn one_fault(&mut self, bench: &mut Bench, page: usize, i: u64) -> anyhow::Result<(f64, f64)> {
        let at = page * PAGE + 64;
        let bytes = i.to_le_bytes();
        let start = Instant::now();
        let wr = SendWr::write_inline(&bytes, self.0.mr.remote(at));
        bench.ping.post_send(&wr.signaled())?;
        let record = self.record()?;
        let seen = start.elapsed();
        self.0.map(page, page)?;
        let start = Instant::now();
        self.0.resume(record.token.get(), Status::Ok)?;
        let mut spins = 0;
        while self.0.buf.load_u64(at) != i {
            pause(&mut spins);
        }
        let moved = start.elapsed();
        bench.reap()?;
        Ok((seen.as_secs_f64(), moved.as_secs_f64()))
    }

    /// Page faults per second while as many queue pairs fault at once as there are in `crowd`.
    fn many_faults(&mut self, bench: &mut Bench, crowd: &mut [Qp]) -> anyhow::Result<f64> {
        self.0.take_all()?;
        let start = Instant::now();
        for (n, qp) in crowd.iter_mut().enumerate() {
            let wr = SendWr::write_inline(b"absent!!", self.0.mr.remote(n * PAGE));
            qp.post_send(&wr.signaled())?;
        }
        for _ in 0..crowd.len() {
            let record = self.record()?;
            self.0.repair(&record)?;
        }
        for _ in 0..crowd.len() {
            let wc = bench.a.cq.poll_for(LONG).context("no completion")?;
            ensure!(wc.is_ok(), "a WRITE failed: {wc:?}");
            crowd.iter_mut().for_each(|qp| qp.retire(&wc));
        }
        self.0.eq.arm()?;
        Ok(crowd.len() as f64 / start.elapsed().as_secs_f64())
    }
}

/// A warm region on demand beside a pinned one, over the same memory.
fn warm(bench: &mut Bench, reps: usize, scale: usize) -> anyhow::Result<Vec<Figure>> {
    let target = &bench.target.0;
    let access = ALL_ACCESS | ACCESS_ON_DEMAND;
    let large = bench.b.pd.register_at(target, VA + target.dma(0), access)?;
    let small = bench
        .b
        .pd
        .register_at(&bench.b.buf, VA + bench.b.buf.dma(0), access)?;
    let swap = |bench: &mut Bench, large: &mut Mr, small: &mut Mr| {
        std::mem::swap(&mut bench.target.1, large);
        std::mem::swap(&mut bench.b.mr, small);
    };
    let (mut large, mut small) = (large, small);
    let (mut pinned, mut paged) = ((vec![], vec![]), (vec![], vec![]));
    bench.bandwidth(MIB, 32, false)?;
    bench.rate(20)?;
    // In turns, and short, so that a disturbance affects both.
    for _ in 0..3 * reps {
        pinned.0.push(bench.bandwidth(MIB, scale * 16, false)?);
        pinned.1.push(bench.rate(scale * 25)?);
        swap(bench, &mut large, &mut small);
        paged.0.push(bench.bandwidth(MIB, scale * 16, false)?);
        paged.1.push(bench.rate(scale * 25)?);
        swap(bench, &mut large, &mut small);
    }
    bench.check_data()?;
    let figure = |name: &str, values: &[f64], floor: &[f64], unit, per| {
        Figure::median(name, values, 1.0 / per, unit)
            .against("the same, pinned", median_ratio(values, floor))
            .at_least(0.97)
    };
    Ok(vec![
        figure(
            "paging: bandwidth, warm region",
            &paged.0,
            &pinned.0,
            "GB/s",
            1e9,
        ),
        figure(
            "paging: rate of WRITEs, warm region",
            &paged.1,
            &pinned.1,
            "M/s",
            1e6,
        ),
    ])
}

fn faults(bench: &mut Bench, reps: usize) -> anyhow::Result<Vec<Figure>> {
    let pages = 512;
    let mut host = Host(Pager::new(&bench.b, pages)?);
    let (mut to_record, mut to_data, mut both) = (vec![], vec![], vec![]);
    let mut i = 0;
    for _ in 0..reps {
        host.0.take_all()?;
        for page in 0..pages {
            i += 1;
            let (seen, moved) = host.one_fault(bench, page, i)?;
            to_record.push(seen);
            to_data.push(moved);
            both.push(seen + moved);
        }
        host.0.eq.arm()?;
    }
    let mut crowd = Vec::new();
    let mut peers = Vec::new();
    for _ in 0..CROWD {
        let (a, b) = (bench.a.qp(QpType::Rc)?, bench.b.qp(QpType::Rc)?);
        connect(&a, &b, &Link::default())?;
        crowd.push(a);
        peers.push(b);
    }
    let rates: Vec<f64> = (0..20 * reps)
        .map(|_| host.many_faults(bench, &mut crowd))
        .collect::<anyhow::Result<_>>()?;
    let us = |name, values: &[f64]| Figure::median(name, values, 1e6, "us");
    Ok(vec![
        us("paging: WRITE posted to fault record", &to_record),
        us("paging: resume to data", &to_data),
        us("paging: the NIC's share of a fault", &both).at_most(5.0),
        Figure::median("paging: faults, 64 QPs at once", &rates, 1e-3, "k/s"),
    ])
}

/// Memory of the device for a region of 1 TiB with 1 GiB touched, in pieces of 2 MiB.
fn sparse(bench: &Bench) -> anyhow::Result<Figure> {
    const TOUCHED: u64 = 1 << 30;
    const PIECE: u64 = 2 << 20;
    let node = &bench.b;
    let access = ALL_ACCESS | ACCESS_ON_DEMAND;
    let before = bench.device.memory("RssAnon")?;
    let mr = node.pd.create_key(0, 1 << 40, 12, access, 0)?;
    for piece in 0..TOUCHED / PIECE {
        mr.map(TqCmd {
            flags: tq::CONTIGUOUS,
            iova: U64::new(piece * (1 << 40) / (TOUCHED / PIECE)),
            count: U64::new(PIECE / PAGE as u64),
            list: U64::new(bench.target.0.dma(0) & !0xfff | tq::READ | tq::WRITE),
            page_shift: 12,
            ..TqCmd::default()
        })?;
    }
    let used = bench.device.memory("RssAnon")? - before;
    let name = "paging: device memory, 1 GiB of 1 TiB touched";
    Ok(Figure::plain(name, used / TOUCHED as f64 * 100.0, "%").at_most(1.0))
}

pub fn measure(bench: &mut Bench, reps: usize, scale: usize) -> anyhow::Result<Vec<Figure>> {
    let mut figures = warm(bench, reps, scale)?;
    figures.extend(faults(bench, reps)?);
    figures.push(sparse(bench)?);
    Ok(figures)
}
