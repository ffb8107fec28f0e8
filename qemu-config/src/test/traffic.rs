//! Traffic between two guests: programs that run until something ends them, and how they end.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::cluster::Cluster;
use crate::exchange::{self, Exchange, Ready};
use crate::guest::{Guest, Outcome, Running};
use crate::protocol::Exec;

/// Time limit of a step.
const SHORT: Duration = Duration::from_secs(60);
/// An application must have its error by then. QEMU stops a guest for [65 s](crate::qemu::ANSWER_LIMIT_MS) if an access to the device was
/// on its way when the emulator ended.
pub const ERROR_LIMIT: Duration = Duration::from_secs(120);

/// The RDMA device under test, for the shell of a guest.
pub const DEVICE: &str = "$RDMA_DEV";

/// The first two guests.
pub fn pair(cluster: &Cluster) -> Result<(&Guest, &Guest)> {
    match cluster.guests.as_slice() {
        [server, client, ..] => Ok((server, client)),
        _ => bail!("there are not two guests"),
    }
}

/// The link carries traffic, between programs that the connection manager connects if the adapters are for iWARP.
pub fn works(cluster: &Cluster) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let report = exchange::run(
        server,
        client,
        &Exchange {
            server: "one_connection server".to_owned(),
            client: "one_connection client".to_owned(),
            ready: Ready::When("one_connection ready"),
            limit: SHORT,
        },
    )?;
    ensure!(report.success(), "a ping-pong fails:\n{}", report.text(30));
    Ok(())
}

/// Endless messages from the second guest to the first; returns both sides once data flows.
pub fn traffic<'a>(server: &'a Guest, client: &'a Guest) -> Result<(Running<'a>, Running<'a>)> {
    traffic_of(server, client, "ib_send_bw")
}

/// The same of a program of perftest, with options.
pub fn traffic_of<'a>(
    server: &'a Guest,
    client: &'a Guest,
    program: &str,
) -> Result<(Running<'a>, Running<'a>)> {
    let start = |guest: &'a Guest, script: &str| {
        guest.start(&Exec {
            script: script.to_owned(),
            ..Exec::default()
        })
    };
    // Long enough for each test, which ends it.
    let command = format!("exec {program} -d $RDMA_DEV $(lab_way) -F -D 3600");
    let name = program.split(' ').next().unwrap_or_default();
    let serving = start(server, &command)?;
    server.must(&format!("lab_until 10 lab_awaits {name} 18515"), SHORT)?;
    let sending = start(client, &format!("{command} $PEER_IP"))?;
    // perftest prints nothing until it ends. There may be other traffic.
    client
        .must(
            &format!("lab_until 20 lab_is_connected {name} && lab_flows 200"),
            3 * SHORT,
        )
        .context("the traffic did not start")?;
    Ok((serving, sending))
}

/// The program must end by itself, with an error.
pub fn must_fail(running: Running<'_>, who: &str) -> Result<Outcome> {
    let outcome = running.wait_more(ERROR_LIMIT)?;
    ensure!(
        outcome.status != crate::guest::Status::TimedOut,
        "{who} hangs instead of getting an error:\n{}",
        String::from_utf8_lossy(&outcome.both)
    );
    ensure!(
        !outcome.success(),
        "{who} noticed nothing:\n{}",
        outcome.text()
    );
    Ok(outcome)
}

/// Ends the traffic that still runs, without hanging.
pub fn end(running: Running<'_>, who: &str) -> Result<()> {
    running.kill();
    let outcome = running.wait_more(SHORT)?;
    ensure!(
        outcome.status != crate::guest::Status::TimedOut,
        "{who} cannot be killed"
    );
    Ok(())
}

/// Counters of a guest's RDMA device.
pub fn counters<const N: usize>(guest: &Guest, device: &str, names: [&str; N]) -> Result<[u64; N]> {
    let text = guest.must(
        &format!("cd {} && cat {}", counters_of(device), names.join(" ")),
        SHORT,
    )?;
    let counts: Vec<u64> = text
        .lines()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .with_context(|| format!("reading {}: {text}", names.join(", ")))?;
    let count = counts.len();
    <[u64; N]>::try_from(counts).map_err(|_| anyhow!("{count} values for {}", names.join(", ")))
}

/// Waits until counters of a guest's RDMA device have this sum or more.
pub fn await_counters(guest: &Guest, device: &str, names: &[&str], sum: u64) -> Result<()> {
    let (folder, names) = (counters_of(device), names.join(" "));
    let script = format!(
        "reached() {{ sum=0; for name in {names}; do read -r count <{folder}/$name || return; \
         sum=$((sum + count)); done; [ $sum -ge {sum} ]; }}; \
         lab_until 20 reached || {{ echo \"{names} of {device} is $sum, and not {sum}\"; exit 1; }}"
    );
    guest.must(&script, 2 * SHORT).map(|_| ())
}

fn counters_of(device: &str) -> String {
    format!("/sys/class/infiniband/{device}/ports/1/hw_counters")
}
