//! What observation costs: the message rate with a trace and without one, on two devices in turns; and with and without requests
//! for the metrics, on one device in turns.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use faultline_harness::testbed::LONG;

use super::{BULK_DEPTH, Bench, Cpus, DeviceOptions, Figure, median, median_ratio};

const WITHOUT: &str = "rate without a trace";
const UNREAD: &str = "rate while no metrics are read";
/// Rounds of a measurement in which the metrics are read once. They take about this part of a second.
const ROUNDS: usize = 250;

/// Measures both.
pub(crate) fn measure(cpus: Cpus, pairs: usize, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let mut figures = trace(cpus, pairs, rounds)?;
    figures.extend(metrics(cpus, pairs)?);
    Ok(figures)
}

/// Measures pairs of rounds, one on a device that keeps no trace and one on a device that does.
fn trace(cpus: Cpus, pairs: usize, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let device = |trace_records| Bench::new(cpus, &DeviceOptions { trace_records });
    let mut off = device(Some(0))?;
    off.device.stop();
    let mut on = device(None)?;
    on.rate(rounds)?;
    on.device.stop();
    let (mut without, mut with) = (vec![], vec![]);
    for pair in 0..pairs {
        // Neither is always the first.
        for first in [pair % 2 == 0, pair % 2 != 0] {
            let (bench, rates) = match first {
                true => (&mut off, &mut without),
                false => (&mut on, &mut with),
            };
            bench.device.go_on();
            bench.rate(rounds / 10)?;
            rates.push(bench.rate(rounds)?);
            bench.device.stop();
        }
    }
    off.device.go_on();
    on.device.go_on();
    Ok(vec![
        Figure::median(WITHOUT, &without, 1e-6, "M/s"),
        Figure::median(
            "rate with the trace that is always kept",
            &with,
            1e-6,
            "M/s",
        )
        .against(WITHOUT, median_ratio(&with, &without))
        .at_least(0.97),
    ])
}

/// Measures pairs on a device, with a request for the metrics and without. Means, since a median of rounds would hide the round
/// that the request delays.
fn metrics(cpus: Cpus, pairs: usize) -> anyhow::Result<Vec<Figure>> {
    let mut bench = Bench::new(cpus, &DeviceOptions::default())?;
    let socket = bench.device.control();
    bench.rate(ROUNDS)?;
    read_metrics(&socket)?;
    let (mut without, mut with, mut lost, mut requests) = (vec![], vec![], vec![], vec![]);
    for pair in 0..pairs {
        let mut times = [0.0; 2];
        for reads in [pair % 2 == 0, pair % 2 != 0] {
            let (seconds, request) = std::thread::scope(|scope| {
                let start = Instant::now();
                let request = reads.then(|| scope.spawn(|| read_metrics(&socket)));
                bench.rate(ROUNDS)?;
                let seconds = start.elapsed().as_secs_f64();
                // Else a part of its cost is not in the rate.
                let is_late = request
                    .as_ref()
                    .is_some_and(|request| !request.is_finished());
                ensure!(!is_late, "a request for the metrics took {seconds:.3} s");
                let request = request.map(|request| request.join());
                anyhow::Ok((seconds, request))
            })?;
            let rate = (ROUNDS << BULK_DEPTH) as f64 / seconds;
            match request {
                Some(request) => {
                    requests.push(request.ok().context("the reader has panicked")??);
                    with.push(rate);
                }
                None => without.push(rate),
            }
            times[usize::from(reads)] = seconds;
        }
        // Seconds that one request takes from the traffic; with one each second, the part of the rate.
        let [unread, read] = times;
        lost.push(read - unread);
    }
    Ok(vec![
        Figure::median(UNREAD, &without, 1e-6, "M/s"),
        Figure::median("rate while they are read every 0.1 s", &with, 1e-6, "M/s")
            .against(UNREAD, median_ratio(&with, &without)),
        Figure::median("a request for the metrics", &requests, 1e3, "ms"),
        Figure {
            middle_half: None,
            ..Figure::plain(
                "cost of one request each second",
                100.0 * median(&lost),
                "%",
            )
        }
        .at_most(1.0),
    ])
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
