//! `cargo lab bench`: the user-space harness's figures, and `cargo lab bench guest`: guests, side by side with rxe.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::json;

use crate::benchmark_page::{self, Section};
use crate::cluster::{Cluster, Nic, Plan};
use crate::command::say;
use crate::emulator::Profile;
use crate::exchange::{self, Exchange, Ready};
use crate::figures;
use crate::guest::Guest;
use crate::workspace::Workspace;

/// Arguments with which cargo runs the harness's benchmark in a profile; the benchmark's own follow. No package is named, see
/// [`emulator::build`](crate::emulator::build).
pub fn harness_arguments(profile: Profile) -> [&'static str; 7] {
    [
        "run",
        "--profile",
        profile.name(),
        "--quiet",
        "--bin",
        "bench",
        "--",
    ]
}

/// The figures of `cargo lab bench`, and its measurements without guests.
#[derive(Debug, Default, Args)]
pub struct How {
    /// Write the figures to this file as well
    #[arg(long, value_name = "FILE", global = true)]
    pub json: Option<PathBuf>,
    /// Without guests: only figures whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Without guests: count instructions, which do not depend on the machine, and compare them with those of the repository
    #[arg(long)]
    pub counts: bool,
    /// Write these counts into the repository instead of comparing
    #[arg(long, requires = "counts")]
    pub bless: bool,
    /// Without guests: write all figures into docs/benchmark-results.md as well
    #[arg(long, conflicts_with_all = ["only", "counts", "against"])]
    pub docs: bool,
    /// Without guests: this version in turns with the one of this `faultline`; ratios
    #[arg(long, value_name = "BINARY", conflicts_with = "counts")]
    pub against: Option<PathBuf>,
}

impl How {
    /// True if times are measured on this machine alone.
    pub fn is_usual(&self) -> bool {
        !self.counts && !self.docs && self.against.is_none()
    }
}

/// Runs the whole benchmark of the harness, and writes its figures into the documents.
pub fn documented(workspace: &Workspace, json: Option<&Path>) -> Result<bool> {
    let machine = benchmark_page::machine();
    let own = workspace.new_run("bench")?.join("figures.json");
    let figures = json.unwrap_or(&own);
    // A figure that misses its target is written, too.
    let all_met = harness(workspace, Some(figures), None, None)?;
    let table = benchmark_page::times(figures, &machine)?;
    benchmark_page::write(workspace, Section::Times, &table)?;
    Ok(all_met)
}

/// Runs the harness's benchmark, against another emulator if one is given.
pub fn harness(
    workspace: &Workspace,
    json: Option<&Path>,
    only: Option<&str>,
    against: Option<&Path>,
) -> Result<bool> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(harness_arguments(Profile::Quick));
    if let Some(json) = json {
        let absolute = std::path::absolute(json).with_context(|| format!("{}", json.display()))?;
        command.arg("--json").arg(absolute);
    }
    if let Some(only) = only {
        command.args(["--only", only]);
    }
    if let Some(binary) = against {
        let absolute = fs::canonicalize(binary)
            .with_context(|| format!("there is no program {}", binary.display()))?;
        command.arg("--against").arg(absolute);
    }
    let status = command
        .current_dir(workspace.root())
        .stdin(Stdio::null())
        .status()
        .context("starting the harness's benchmark")?;
    Ok(status.success())
}

/// The unit of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    MicroSeconds,
    MibPerSecond,
}

struct Measurement {
    name: &'static str,
    command: &'static str,
    unit: Unit,
    /// Against rxe: at most this share of its latency, at least this multiple of its bandwidth.
    wanted: Option<f64>,
}

const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        name: "write latency, 8 B",
        command: "ib_write_lat -s 8 -n 1000",
        unit: Unit::MicroSeconds,
        wanted: Some(0.5),
    },
    Measurement {
        name: "send latency, 8 B",
        command: "ib_send_lat -s 8 -n 1000",
        unit: Unit::MicroSeconds,
        wanted: None,
    },
    Measurement {
        name: "read latency, 8 B",
        command: "ib_read_lat -s 8 -n 1000",
        unit: Unit::MicroSeconds,
        wanted: None,
    },
    Measurement {
        name: "atomic latency",
        command: "ib_atomic_lat -n 1000",
        unit: Unit::MicroSeconds,
        wanted: None,
    },
    Measurement {
        name: "write bandwidth, 4 KiB",
        command: "ib_write_bw -s 4096 -n 1000",
        unit: Unit::MibPerSecond,
        wanted: None,
    },
    Measurement {
        name: "write bandwidth, 64 KiB",
        command: "ib_write_bw -s 65536 -n 500",
        unit: Unit::MibPerSecond,
        wanted: Some(10.0),
    },
    Measurement {
        name: "write bandwidth, 1 MiB",
        command: "ib_write_bw -s 1048576 -n 50 --tx-depth=16",
        unit: Unit::MibPerSecond,
        wanted: None,
    },
    Measurement {
        name: "read bandwidth, 64 KiB",
        command: "ib_read_bw -s 65536 -n 500",
        unit: Unit::MibPerSecond,
        wanted: None,
    },
];

/// Median and 99th percentile, or bandwidth.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figure {
    value: f64,
    p99: Option<f64>,
}

/// The guests in which the two programs of a measurement run.
const PLACES: &[(&str, &str)] = &[
    ("between two guests", "$PEER_IP"),
    ("within one guest", "$MY_IP"),
];

/// The figures of one NIC: for each of [`PLACES`] one for each of [`MEASUREMENTS`].
struct Column {
    name: &'static str,
    figures: Vec<Vec<Option<Figure>>>,
}

impl Column {
    fn figure(&self, place: usize, row: usize) -> Option<Figure> {
        self.figures.get(place)?.get(row).copied().flatten()
    }
}

/// Measures both devices, between two guests and within one, and prints them side by side.
pub fn guest(workspace: &Workspace, plan: &Plan, json: Option<&Path>) -> Result<bool> {
    let dir = workspace.new_run("bench")?;
    say(format!("logs: {}", workspace.shown(&dir)));
    let mut columns = Vec::new();
    let mut faults = None;
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
        let mut figures = Vec::new();
        for (place, address) in PLACES {
            say(format!("{name}: {place}"));
            let server = if *address == "$PEER_IP" { two } else { one };
            figures.push(measure(server, one, address)?);
        }
        if nic == Nic::Faultline {
            say(format!("{name}: memory that is not there"));
            faults = absent_page(two, one)?;
        }
        let troubles = cluster.troubles();
        ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
        columns.push(Column { name, figures });
    }
    for (place, (title, _)) in PLACES.iter().enumerate() {
        print_table(title, place, &columns);
    }
    if let Some(Absent { write, touch }) = faults {
        println!(
            "\n4 KiB WRITE onto an absent page: {write:.1} µs, {:.1} times the guest's own first touch ({touch:.1} µs)",
            write / touch
        );
    }
    if let Some(json) = json {
        write_records(json, &records(&columns, faults))?;
    }
    let complete = columns
        .iter()
        .all(|column| (0..MEASUREMENTS.len()).all(|row| column.figure(0, row).is_some()));
    Ok(complete && (faults.is_some() || plan.nic == Nic::Rxe))
}

fn print_table(title: &str, place: usize, columns: &[Column]) {
    println!("\n{title}:");
    print!("{:<28}", "");
    for column in columns {
        print!("{:>26}", column.name);
    }
    println!();
    for (row, measurement) in MEASUREMENTS.iter().enumerate() {
        print!("{:<28}", measurement.name);
        for column in columns {
            print!("{:>26}", shown(column.figure(place, row), measurement.unit));
        }
        if let (Some(ratio), Some(wanted)) = (
            ratio(columns, place, row),
            measurement.unit.wanted(measurement.wanted),
        ) {
            let verdict = if measurement.met(ratio) {
                "met"
            } else {
                "MISSED"
            };
            print!("  {ratio:.2} x, wanted {wanted}: {verdict}");
        }
        println!();
    }
}

/// The first column's figure over the last one's, if there are two of them.
fn ratio(columns: &[Column], place: usize, row: usize) -> Option<f64> {
    let [own, other] = columns else { return None };
    Some(own.figure(place, row)?.value / other.figure(place, row)?.value)
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::MicroSeconds => "us",
            Self::MibPerSecond => "MiB/s",
        }
    }

    fn wanted(self, limit: Option<f64>) -> Option<String> {
        let sign = match self {
            Self::MicroSeconds => "<=",
            Self::MibPerSecond => ">=",
        };
        limit.map(|limit| format!("{sign} {limit}"))
    }
}

impl Measurement {
    fn met(&self, ratio: f64) -> bool {
        self.wanted.is_none_or(|limit| match self.unit {
            Unit::MicroSeconds => ratio <= limit,
            Unit::MibPerSecond => ratio >= limit,
        })
    }
}

/// Writes figures to a file.
pub fn write_records(path: &Path, records: &[serde_json::Value]) -> Result<()> {
    let text = serde_json::to_string_pretty(records).context("encoding the figures")?;
    fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

/// The figures as `cargo lab bench` writes its own: an array of name, value, unit, against, ratio, wanted, met.
fn records(columns: &[Column], faults: Option<Absent>) -> Vec<serde_json::Value> {
    let mut records = Vec::new();
    for (place, (title, _)) in PLACES.iter().enumerate() {
        for (row, measurement) in MEASUREMENTS.iter().enumerate() {
            for column in columns {
                let ratio = ratio(columns, place, row).filter(|_| column.name != "rxe");
                let wanted = ratio.and_then(|_| measurement.unit.wanted(measurement.wanted));
                records.push(json!({
                    "name": format!("{}, {title}, {}", measurement.name, column.name),
                    "value": column.figure(place, row).map(|figure| figure.value),
                    "unit": measurement.unit.name(),
                    "against": ratio.map(|_| format!("{}, {title}, rxe", measurement.name)),
                    "ratio": ratio,
                    "met": wanted.as_ref().and(ratio.map(|ratio| measurement.met(ratio))),
                    "wanted": wanted,
                }));
            }
        }
    }
    if let Some(Absent { write, touch }) = faults {
        let floor = "first touch of an absent page by the guest";
        records.push(json!({
            "name": floor, "value": touch, "unit": "us",
            "against": null, "ratio": null, "wanted": null, "met": null,
        }));
        records.push(json!({
            "name": "4 KiB WRITE onto an absent page", "value": write, "unit": "us",
            "against": floor, "ratio": write / touch, "wanted": null, "met": null,
        }));
    }
    records
}

/// Medians in µs: a remote WRITE to an absent page, and the owner's own first access to one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Absent {
    write: f64,
    touch: f64,
}

fn absent_page(server: &Guest, client: &Guest) -> Result<Option<Absent>> {
    let exchange = Exchange {
        server: "odp_story".to_owned(),
        client: "odp_story $PEER_IP".to_owned(),
        ready: Ready::Tcp(18610),
        limit: Duration::from_secs(120),
    };
    let report = exchange::run(server, client, &exchange)?;
    if !report.success() {
        say(format!("odp_story failed:\n{}", report.text(15)));
        return Ok(None);
    }
    let text = report.client.text();
    let last_of = |start: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.starts_with(start))?;
        line.split_whitespace().last()?.parse().ok()
    };
    Ok(last_of("written remotely, absent before")
        .zip(last_of("touched by its own processor"))
        .map(|(write, touch)| Absent { write, touch }))
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

    #[test]
    fn records_compare_with_the_other_nic() {
        let column = |name, value| Column {
            name,
            figures: vec![vec![Some(Figure { value, p99: None }); MEASUREMENTS.len()]; 2],
        };
        let columns = [column("faultline", 20.0), column("rxe", 50.0)];
        let faults = Absent {
            write: 300.0,
            touch: 10.0,
        };
        let records = records(&columns, Some(faults));
        assert_eq!(records.len(), 2 * 2 * MEASUREMENTS.len() + 2);
        // Latency: less is better; bandwidth: more.
        assert_eq!(records[0]["ratio"], 0.4);
        assert_eq!(records[0]["wanted"], "<= 0.5");
        assert_eq!(records[0]["met"], true);
        assert_eq!(records[1]["ratio"], serde_json::Value::Null);
        let bandwidth = records
            .iter()
            .find(|record| record["wanted"] == ">= 10")
            .unwrap();
        assert_eq!(bandwidth["met"], false);
        assert_eq!(records.last().unwrap()["ratio"], 30.0);
    }
}
