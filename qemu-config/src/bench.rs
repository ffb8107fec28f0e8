//! `cargo lab bench`: the user-space harness's figures, and `cargo lab bench guest`: guests, side by side with rxe.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::cluster::{Cluster, Nic, Plan};
use crate::command::say;
use crate::exchange::{self, Exchange, Ready};
use crate::figures;
use crate::guest::Guest;
use crate::workspace::Workspace;

/// Runs the harness's benchmark.
pub fn harness(workspace: &Workspace, json: Option<&Path>) -> Result<bool> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        "run",
        "--release",
        "--quiet",
        "-p",
        "faultline-harness",
        "--bin",
        "bench",
        "--",
    ]);
    if let Some(json) = json {
        let absolute = std::path::absolute(json).with_context(|| format!("{}", json.display()))?;
        command.arg("--json").arg(absolute);
    }
    let status = command
        .current_dir(workspace.root())
        .stdin(Stdio::null())
        .status()
        .context("starting the harness's benchmark")?;
    Ok(status.success())
}

/// What a measurement is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    MicroSeconds,
    MibPerSecond,
}

struct Measurement {
    name: &'static str,
    command: &'static str,
    unit: Unit,
}

const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        name: "write latency, 8 B",
        command: "ib_write_lat -s 8 -n 1000",
        unit: Unit::MicroSeconds,
    },
    Measurement {
        name: "send latency, 8 B",
        command: "ib_send_lat -s 8 -n 1000",
        unit: Unit::MicroSeconds,
    },
    Measurement {
        name: "read latency, 8 B",
        command: "ib_read_lat -s 8 -n 1000",
        unit: Unit::MicroSeconds,
    },
    Measurement {
        name: "atomic latency",
        command: "ib_atomic_lat -n 1000",
        unit: Unit::MicroSeconds,
    },
    Measurement {
        name: "write bandwidth, 4 KiB",
        command: "ib_write_bw -s 4096 -n 1000",
        unit: Unit::MibPerSecond,
    },
    Measurement {
        name: "write bandwidth, 64 KiB",
        command: "ib_write_bw -s 65536 -n 500",
        unit: Unit::MibPerSecond,
    },
    Measurement {
        name: "write bandwidth, 1 MiB",
        command: "ib_write_bw -s 1048576 -n 50 --tx-depth=16",
        unit: Unit::MibPerSecond,
    },
    Measurement {
        name: "read bandwidth, 64 KiB",
        command: "ib_read_bw -s 65536 -n 500",
        unit: Unit::MibPerSecond,
    },
];

/// Median and 99th percentile, or bandwidth.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figure {
    value: f64,
    p99: Option<f64>,
}

/// Measures both devices, between two guests and within one, and prints them side by side.
pub fn guest(workspace: &Workspace, plan: &Plan, json: Option<&Path>) -> Result<bool> {
    let dir = workspace.new_run("bench")?;
    say(format!("logs: {}", workspace.shown(&dir)));
    let mut columns = Vec::new();
    for (name, nic) in [("faultline", Nic::Faultline), ("rxe", Nic::Rxe)] {
        if plan.nic == Nic::Rxe && nic != Nic::Rxe {
            continue;
        }
        let dir = dir.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let plan = Plan {
            nic,
            // Within one guest, two programs poll at once.
            cpus: plan.cpus.or(Some(2)),
            ..plan.clone()
        };
        let cluster = Cluster::boot(workspace, &plan, &dir)?;
        let [one, two] = cluster.guests.as_slice() else {
            bail!("the benchmark needs two guests")
        };
        say(format!("{name}: between two guests"));
        let between = measure(one, two, "$PEER_IP")?;
        say(format!("{name}: within one guest"));
        let within = measure(one, one, "$MY_IP")?;
        let troubles = cluster.troubles();
        ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
        columns.push((name, between, within));
    }
    for (title, pick) in [
        ("between two guests", 0),
        ("within one guest (loopback)", 1),
    ] {
        println!("\n{title}:");
        print!("{:<28}", "");
        for (name, ..) in &columns {
            print!("{name:>26}");
        }
        println!();
        for (row, measurement) in MEASUREMENTS.iter().enumerate() {
            print!("{:<28}", measurement.name);
            for (_, between, within) in &columns {
                let figures = if pick == 0 { between } else { within };
                print!(
                    "{:>26}",
                    shown(figures.get(row).copied().flatten(), measurement.unit)
                );
            }
            println!();
        }
    }
    if let Some(json) = json {
        let rows = |figures: &[Option<Figure>]| -> serde_json::Value {
            MEASUREMENTS
                .iter()
                .zip(figures)
                .map(|(measurement, figure)| {
                    let value = json!({
                        "value": figure.map(|figure| figure.value),
                        "p99": figure.and_then(|figure| figure.p99),
                        "unit": if measurement.unit == Unit::MicroSeconds { "us" } else { "MiB/s" },
                    });
                    (measurement.name.to_owned(), value)
                })
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let all: serde_json::Map<_, _> = columns
            .iter()
            .map(|(name, between, within)| {
                (
                    (*name).to_owned(),
                    json!({"two_guests": rows(between), "one_guest": rows(within)}),
                )
            })
            .collect();
        let text = serde_json::to_string_pretty(&all).context("encoding the figures")?;
        fs::write(json, text + "\n").with_context(|| format!("writing {}", json.display()))?;
    }
    Ok(columns
        .iter()
        .all(|(_, between, _)| between.iter().all(Option::is_some)))
}

fn measure(server: &Guest, client: &Guest, address: &str) -> Result<Vec<Option<Figure>>> {
    let mut figures = Vec::new();
    for measurement in MEASUREMENTS {
        let command = format!("{} -F -d $RDMA_DEV -x $GID_INDEX", measurement.command);
        let exchange = Exchange {
            server: command.clone(),
            client: format!("{command} {address}"),
            ready: Ready::Tcp(18515),
            limit: Duration::from_secs(120),
        };
        let report = exchange::run(server, client, &exchange)?;
        if !report.success() {
            say(format!("{} failed:\n{}", measurement.name, report.text(15)));
        }
        let text = report.client.text();
        figures.push(match measurement.unit {
            Unit::MicroSeconds => figures::latency(&text).map(|latency| Figure {
                value: latency.typical,
                p99: Some(latency.p99),
            }),
            Unit::MibPerSecond => figures::bandwidth(&text).map(|bandwidth| Figure {
                value: bandwidth.mib_per_second,
                p99: None,
            }),
        });
    }
    Ok(figures)
}

fn shown(figure: Option<Figure>, unit: Unit) -> String {
    match (figure, unit) {
        (None, _) => "failed".to_owned(),
        (
            Some(Figure {
                value,
                p99: Some(p99),
            }),
            _,
        ) => format!("{value:.1} µs (p99 {p99:.0})"),
        (Some(Figure { value, .. }), Unit::MibPerSecond) => format!("{value:.1} MiB/s"),
        (Some(Figure { value, .. }), Unit::MicroSeconds) => format!("{value:.1} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_with_their_unit() {
        let latency = Figure {
            value: 12.345,
            p99: Some(99.6),
        };
        assert_eq!(
            shown(Some(latency), Unit::MicroSeconds),
            "12.3 µs (p99 100)"
        );
        assert_eq!(
            shown(
                Some(Figure {
                    value: 5.0,
                    p99: None
                }),
                Unit::MibPerSecond
            ),
            "5.0 MiB/s"
        );
        assert_eq!(shown(None, Unit::MibPerSecond), "failed");
    }
}
