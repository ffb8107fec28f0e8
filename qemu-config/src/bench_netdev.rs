//! `cargo lab bench netdev`: TCP between the netdev of the project's NIC and a stock guest's virtio-net, beside two guests that QEMU
//! itself connects.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::bench;
use crate::cluster::{Cluster, Nic, Plan};
use crate::command::say;
use crate::exchange::{self, Exchange, Ready};
use crate::guest::Guest;
use crate::workspace::Workspace;

/// How long, how often and how much is sent.
#[derive(Debug, Clone, Copy, Args)]
pub struct Amount {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Measurements of each network in each direction, in turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// MiB of the stream in each direction through the vhost-user-net port; every byte is compared
    #[arg(long, default_value_t = 1024)]
    checked_mib: u32,
}

/// The connection between the two guests of a pair. The second one has virtio-net.
struct Network {
    name: &'static str,
    nic: Nic,
}

/// The others are compared with the last one.
const NETWORKS: [Network; 3] = [
    Network {
        name: "this NIC, vhost-user-net port",
        nic: Nic::Vhost,
    },
    Network {
        name: "this NIC, stream port",
        nic: Nic::Mixed,
    },
    Network {
        name: "virtio-net, QEMU's stream",
        nic: Nic::Rxe,
    },
];
const PORT: u16 = 5201;
/// For the throughput of guests whose processors are emulated.
const LEAST_MIB_PER_SECOND: u64 = 5;

/// The direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamDirection {
    ToSecond,
    ToFirst,
}

impl StreamDirection {
    const BOTH: [Self; 2] = [Self::ToSecond, Self::ToFirst];

    fn name(self) -> &'static str {
        match self {
            Self::ToSecond => "to the second guest",
            Self::ToFirst => "to the first guest",
        }
    }

    /// Receiver and sender.
    fn ends(self, cluster: &Cluster) -> Result<(&Guest, &Guest)> {
        let [first, second] = cluster.guests.as_slice() else {
            bail!("a network needs two guests")
        };
        Ok(match self {
            Self::ToSecond => (second, first),
            Self::ToFirst => (first, second),
        })
    }
}

/// Measures, and prints the figures.
pub fn run(
    workspace: &Workspace,
    plan: &Plan,
    json: Option<&Path>,
    amount: Amount,
) -> Result<bool> {
    let dir = workspace.new_run("bench")?;
    say(format!("logs: {}", workspace.shown(&dir)));
    let mut clusters = Vec::new();
    for (number, network) in NETWORKS.iter().enumerate() {
        let dir = dir.join(format!("network{number}"));
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let plan = Plan {
            nic: network.nic,
            packages: vec!["iperf3".to_owned()],
            neighbours: 2 * (NETWORKS.len() - 1),
            // The same for both netdevs.
            mtu: plan.mtu.or(Some(1500)),
            ..plan.clone()
        };
        clusters.push(Cluster::boot(workspace, &plan, &dir)?);
    }
    let mut runs = Vec::new();
    for _ in 0..amount.rounds {
        for (number, (network, cluster)) in NETWORKS.iter().zip(&clusters).enumerate() {
            for direction in StreamDirection::BOTH {
                let value = iperf(cluster, direction, amount.seconds)
                    .with_context(|| format!("{}, {}", network.name, direction.name()))?;
                runs.push((number, direction, value));
            }
        }
    }
    let median = |number: usize, direction: StreamDirection| {
        let of = runs
            .iter()
            .filter(|run| (run.0, run.1) == (number, direction));
        median(of.map(|run| run.2).collect())
    };
    let mut records = Vec::new();
    for direction in StreamDirection::BOTH {
        println!(
            "\nTCP {} (MiB/s, median of {}):",
            direction.name(),
            amount.rounds
        );
        let reference = median(NETWORKS.len() - 1, direction);
        for (number, network) in NETWORKS.iter().enumerate() {
            let value = median(number, direction);
            let ratio = (network.nic != Nic::Rxe).then(|| value / reference);
            println!("  {:<32}{value:>8.1}{}", network.name, verdict(ratio));
            records.push(record(network.name, direction, value, ratio));
        }
    }
    if let Some(json) = json {
        bench::write_records(json, &records)?;
    }
    for direction in StreamDirection::BOTH {
        let checked = checked(&clusters[0], direction, amount.checked_mib)?;
        println!("{}, {}: {checked}", NETWORKS[0].name, direction.name());
    }
    for cluster in &clusters {
        let troubles = cluster.troubles();
        ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
    }
    Ok(true)
}

fn verdict(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| {
        let verdict = if ratio >= 1.0 { "met" } else { "MISSED" };
        format!("  {ratio:.2} x, wanted >= 1: {verdict}")
    })
}

/// A figure as `cargo lab bench` writes its own.
fn record(network: &str, direction: StreamDirection, value: f64, ratio: Option<f64>) -> Value {
    let reference = NETWORKS[NETWORKS.len() - 1].name;
    json!({
        "name": format!("TCP {}, {network}", direction.name()),
        "value": value,
        "unit": "MiB/s",
        "against": ratio.map(|_| format!("TCP {}, {reference}", direction.name())),
        "ratio": ratio,
        "wanted": ratio.map(|_| ">= 1"),
        "met": ratio.map(|ratio| ratio >= 1.0),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let later = values.get(middle).copied().unwrap_or(f64::NAN);
    match values.len() % 2 {
        0 => {
            (values
                .get(middle.wrapping_sub(1))
                .copied()
                .unwrap_or(f64::NAN)
                + later)
                / 2.0
        }
        _ => later,
    }
}

/// MiB per second that iperf3 has received in this number of seconds.
fn iperf(cluster: &Cluster, direction: StreamDirection, seconds: u32) -> Result<f64> {
    let server = format!("iperf3 -s -1 -p {PORT}");
    // With an amount of data instead of a time, iperf3 3.18 rounds the time up to seconds.
    let client = format!("iperf3 -c $PEER_IP -p {PORT} -t {seconds} --json");
    let text = stream(cluster, direction, seconds.into(), server, client)?;
    received(&text).with_context(|| format!("iperf3 printed\n{text}"))
}

/// The receiver's throughput in the report of iperf3, in MiB/s.
fn received(report: &str) -> Option<f64> {
    let report: Value = serde_json::from_str(report.get(report.find('{')?..)?).ok()?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64()?;
    Some(bits / 8.0 / f64::from(1 << 20))
}

/// Sends a stream and compares every byte. Returns the output of the sender.
fn checked(cluster: &Cluster, direction: StreamDirection, mib: u32) -> Result<String> {
    let server = format!("lab stream-receive {PORT}");
    let bytes = u64::from(mib) << 20;
    let client = format!("lab stream-send $PEER_IP:{PORT} {bytes}");
    let seconds = u64::from(mib) / LEAST_MIB_PER_SECOND;
    let text = stream(cluster, direction, seconds, server, client)?;
    Ok(text.trim().to_owned())
}

fn stream(
    cluster: &Cluster,
    direction: StreamDirection,
    seconds: u64,
    server: String,
    client: String,
) -> Result<String> {
    let (receiver, sender) = direction.ends(cluster)?;
    let exchange = Exchange {
        server,
        client,
        ready: Ready::Tcp(PORT),
        limit: Duration::from_secs(60 + seconds),
    };
    let report = exchange::run(receiver, sender, &exchange)?;
    ensure!(report.success(), "{}", report.text(15));
    Ok(report.client.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throughput_of_the_receiver_is_found() {
        let report = r#"{ "end": { "sum_sent": { "bits_per_second": 1.0 },
            "sum_received": { "bits_per_second": 83886080.0 } } }"#;
        assert_eq!(received(report), Some(10.0));
        assert_eq!(received("iperf3: error - unable to connect"), None);
        assert_eq!(received("{}"), None);
    }

    #[test]
    fn the_middle_value_counts() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }
}
