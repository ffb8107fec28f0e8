//! Cost of observation: the message rate of devices that record nothing, count for the metrics only, or keep the usual
//! trace, in turns; and of a device whose metrics are read each second, in turns with the same device unread.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use faultline_harness::testbed::LONG;

use super::{BULK_DEPTH, Bench, Cpus, DeviceOptions, Figure, median, median_ratio};

/// Rounds of a measurement: some 80 ms.
const ROUNDS: usize = 200;
const OFF: &str = "rate with nothing recorded";
const UNREAD: &str = "rate while no metrics are read";
/// Length of a measurement of reading, and time between two requests in it.
const LONG_ROUND: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_secs(1);

/// Measures both.
pub(crate) fn measure(cpus: Cpus, quick: bool) -> anyhow::Result<Vec<Figure>> {
    let mut figures = recording(cpus, if quick { 20 } else { 60 })?;
    figures.extend(reading(cpus, if quick { 4 } else { 12 })?);
    Ok(figures)
}

/// Measures turns of rounds, one on each device. Two devices record nothing: their difference is the error of the
/// measurement.
fn recording(cpus: Cpus, turns: usize) -> anyhow::Result<Vec<Figure>> {
    let off = DeviceOptions {
        trace_records: Some(0),
        no_metrics: true,
        ..DeviceOptions::default()
    };
    let counting = DeviceOptions {
        no_metrics: false,
        ..off
    };
    let mut devices = Vec::new();
    for options in [off, off, counting, DeviceOptions::default()] {
        let mut bench = Bench::new(cpus, &options)?;
        bench.rate(ROUNDS)?;
        bench.device.stop();
        devices.push((bench, Vec::new()));
    }
    let count = devices.len();
    for turn in 0..turns {
        // None is always the first, and none always follows the same one.
        let step = if turn % 2 == 0 { 1 } else { count - 1 };
        for place in 0..count {
            let next = devices.get_mut((turn + place * step) % count);
            let (bench, rates) = next.context("no device")?;
            bench.device.go_on();
            bench.rate(ROUNDS / 10)?;
            rates.push(bench.rate(ROUNDS)?);
            bench.device.stop();
        }
    }
    let rates: Vec<Vec<f64>> = devices
        .into_iter()
        .map(|(bench, rates)| {
            bench.device.go_on();
            rates
        })
        .collect();
    let [off, again, counting, tracing] = &rates[..] else {
        anyhow::bail!("not four devices");
    };
    let figure = |name: &str, rates: &[f64]| {
        Figure::median(name, rates, 1e-6, "M/s").against(OFF, median_ratio(rates, off))
    };
    Ok(vec![
        Figure::median(OFF, off, 1e-6, "M/s"),
        figure("the same on another device", again),
        figure("rate with counts for the metrics", counting),
        figure("rate with the trace that is always kept", tracing).at_least(0.97),
    ])
}

/// Measures pairs on a device, with a request for the metrics each second and without. Means over the time, since a median of
/// short rounds would hide those that the requests delay.
fn reading(cpus: Cpus, pairs: usize) -> anyhow::Result<Vec<Figure>> {
    let mut bench = Bench::new(cpus, &DeviceOptions::default())?;
    let socket = bench.device.control();
    bench.rate(ROUNDS)?;
    read_metrics(&socket)?;
    let (mut without, mut with, mut requests) = (vec![], vec![], vec![]);
    for pair in 0..pairs {
        for reads in [pair % 2 == 0, pair % 2 != 0] {
            let (rate, times) = long_round(&mut bench, reads.then_some(&*socket))?;
            requests.extend(times);
            if reads { &mut with } else { &mut without }.push(rate);
        }
    }
    let ratios: Vec<f64> = with.iter().zip(&without).map(|(w, u)| w / u).collect();
    Ok(vec![
        Figure::median(UNREAD, &without, 1e-6, "M/s"),
        Figure::median("rate while they are read each second", &with, 1e-6, "M/s")
            .against(UNREAD, median(&ratios))
            .at_least(0.99),
        Figure::median("a request for the metrics", &requests, 1e3, "ms"),
    ])
}

/// The mean rate of a long round, and how long each request for the metrics took, if `socket` is read.
fn long_round(bench: &mut Bench, socket: Option<&Path>) -> anyhow::Result<(f64, Vec<f64>)> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let reader = socket.map(|socket| scope.spawn(move || read_each_second(socket, start)));
        let mut rounds = 0;
        while start.elapsed() < LONG_ROUND {
            bench.rate(ROUNDS / 10)?;
            rounds += ROUNDS / 10;
        }
        let rate = (rounds << BULK_DEPTH) as f64 / start.elapsed().as_secs_f64();
        let times = reader.map(|reader| reader.join().ok().context("the reader has panicked"));
        let times = times.transpose()?.transpose()?;
        Ok((rate, times.unwrap_or_default()))
    })
}

/// Reads the metrics in the middle of each second of a round.
fn read_each_second(socket: &Path, start: Instant) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::new();
    let mut next = PERIOD / 2;
    while next < LONG_ROUND {
        std::thread::sleep(next.saturating_sub(start.elapsed()));
        times.push(read_metrics(socket)?);
        next += PERIOD;
    }
    Ok(times)
}

/// Reads the metrics as Prometheus does; how long that took.
fn read_metrics(socket: &Path) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut stream = UnixStream::connect(socket).context("connecting to the control server")?;
    stream.set_read_timeout(Some(LONG))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("faultline_packets_total"),
        "the metrics are not there: {answer:.200}"
    );
    Ok(start.elapsed().as_secs_f64())
}
