//! The suite `robustness`: programs, drivers and the emulator dying under traffic. A test goes on with the pair that
//! the one before has left working.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::pair::Pairs;
use super::{Tally, Verdict};
use crate::cluster::{Cluster, Nic, Plan, configure, is_tcg_race};
use crate::command::say;
use crate::exchange::{self, Exchange, Ready};
use crate::guest::{Guest, Outcome, Running};
use crate::protocol::Exec;
use crate::workspace::Workspace;

/// Runs in a pair of the plan.
pub type Test = fn(&Cluster, &Plan) -> Result<()>;

/// The tests.
pub const TESTS: &[(&str, Test)] = &[
    ("application_killed", application_killed),
    ("module_reloaded", module_reloaded),
    ("module_removed_under_traffic", module_removed_under_traffic),
    (
        "module_removed_50_times_under_traffic",
        module_removed_50_times_under_traffic,
    ),
    ("device_unbound_under_traffic", device_unbound_under_traffic),
    ("interface_down_under_traffic", interface_down_under_traffic),
    ("function_reset", function_reset),
    // Nothing is left after these.
    ("emulator_killed_while_idle", emulator_killed_while_idle),
    (KILLED_UNDER_TRAFFIC, emulator_killed_under_traffic),
];

const KILLED_UNDER_TRAFFIC: &str = "emulator_killed_under_traffic";

const SHORT: Duration = Duration::from_secs(60);
/// An application must have its error by then.
const ERROR_LIMIT: Duration = Duration::from_secs(120);

/// How often a test is begun that QEMU itself does not survive.
const ATTEMPTS: u32 = 3;

/// The tests whose names contain `filter`.
pub fn chosen(filter: &str) -> Vec<(&'static str, Test)> {
    let named = TESTS.iter().filter(|(name, _)| name.contains(filter));
    named.copied().collect()
}

/// Runs tests in pairs of `plan`.
pub fn run(
    workspace: &Workspace,
    tests: &[(&'static str, Test)],
    plan: &Plan,
    label: &str,
    dir: &Path,
    pairs: &mut Pairs<'_>,
    tally: &mut Tally,
) -> Result<()> {
    for &(name, test) in tests {
        let full = format!("{label}::{name}");
        if plan.nic != Nic::Faultline {
            tally.add(
                &full,
                Duration::ZERO,
                Verdict::Skipped("only for the NIC of this project".into()),
            );
            continue;
        }
        let started = Instant::now();
        let mut plan = plan.clone();
        if name == KILLED_UNDER_TRAFFIC {
            // An engine that does not sleep while there is traffic is not woken: QEMU then has nothing to send, and so
            // does not run into its own assertion (see below) each time.
            let config = dir.join("awake.toml");
            std::fs::write(&config, "poll_time_us = 50_000\n")?;
            plan.config = Some(config);
        }
        let mut result = judge(pairs, &plan, name, test);
        for _ in 1..ATTEMPTS {
            let Err(error) = &result else { break };
            if is_tcg_race(&format!("{error:#}")) {
                say("a guest died of QEMU's race with self-patching code; once more");
            } else if qemu_asserted(&pairs.last_dir()) {
                say("QEMU died of an assertion of its own when the emulator went away; once more");
            } else {
                break;
            }
            result = judge(pairs, &plan, name, test);
        }
        let verdict = match result {
            Ok(()) => Verdict::Passed,
            Err(error) => Verdict::Failed(format!(
                "{error:#}\nlogs: {}",
                workspace.shown(&pairs.last_dir())
            )),
        };
        tally.add(&full, started.elapsed(), verdict);
    }
    Ok(())
}

/// Whether a QEMU has aborted in its own error handling: QEMU 11.1's vfio-user client reports the loss of its server
/// twice into one error if it notices while it sends (`error_setv: Assertion `*errp == NULL'`). No guest can survive
/// that; what is tested is what guests do that are still there.
fn qemu_asserted(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let log = std::fs::read_to_string(entry.path().join("qemu.log"));
        log.is_ok_and(|text| text.contains("error_setv: Assertion"))
    })
}

/// Runs a test in a pair, which is kept if it works afterwards.
fn judge(pairs: &mut Pairs<'_>, plan: &Plan, name: &str, test: Test) -> Result<()> {
    let mut pair = pairs.take(plan)?;
    let result = test(&pair.cluster, plan);
    pair.cluster.save_logs();
    let mut troubles = pair.troubles();
    if let Err(error) = result {
        // What the kernels said belongs to the story.
        return Err(if troubles.is_empty() {
            error
        } else {
            error.context(troubles.join("\n"))
        });
    }
    let killed = name.starts_with("emulator_killed");
    if killed {
        troubles.retain(|trouble| !trouble.starts_with("the emulator ended"));
    }
    ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
    if !killed {
        pairs.keep(pair);
    }
    Ok(())
}

fn pair(cluster: &Cluster) -> Result<(&Guest, &Guest)> {
    match cluster.guests.as_slice() {
        [server, client] => Ok((server, client)),
        _ => bail!("there are not two guests"),
    }
}

/// The link carries traffic.
fn works(cluster: &Cluster) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let command = "ibv_rc_pingpong -c -n 100 -d $RDMA_DEV -g $GID_INDEX";
    let report = exchange::run(
        server,
        client,
        &Exchange {
            server: command.to_owned(),
            client: format!("{command} $PEER_IP"),
            ready: Ready::Tcp(18515),
            limit: SHORT,
        },
    )?;
    ensure!(report.success(), "a ping-pong fails:\n{}", report.text(30));
    Ok(())
}

/// Endless writes from the second guest to the first; returns both sides once data flows.
fn traffic<'a>(server: &'a Guest, client: &'a Guest) -> Result<(Running<'a>, Running<'a>)> {
    let start = |guest: &'a Guest, script: &str| {
        guest.start(&Exec {
            script: script.to_owned(),
            ..Exec::default()
        })
    };
    let command = "exec ib_send_bw -d $RDMA_DEV -x $GID_INDEX -F -D 300";
    let serving = start(server, command)?;
    server.must("lab_until 10 lab_listens 18515", SHORT)?;
    let sending = start(client, &format!("{command} $PEER_IP"))?;
    // perftest says nothing until it ends.
    client
        .must(FLOWS, SHORT)
        .context("the traffic did not start")?;
    Ok((serving, sending))
}

/// RoCE packets leave this guest.
const FLOWS: &str = "
    sent() { read -r $1 < /sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/tx_roce_packets; }
    sent before
    flows() { sent now; [ $now -ge $((before + 200)) ]; }
    lab_until 20 flows";

/// Sends to itself through the device, and to the other guest's interface, and says so when both flow.
const OWN_TRAFFIC: &str = "
    sent() { read -r $1 < /sys/class/infiniband/$RDMA_DEV/ports/1/hw_counters/tx_roce_packets; }
    answered() { read -r $1 < /sys/class/net/$NETDEV/statistics/rx_packets; }
    sent before; answered first
    pong() { exec ibv_rc_pingpong -d $RDMA_DEV -g $GID_INDEX -n 1000000000 $1; }
    pong & serving=$!
    lab_until 10 lab_listens 18515
    pong $MY_IP & sending=$!
    ping -q -f $PEER_IP >/dev/null 2>&1 &
    flows() { sent now; answered last; [ $now -ge $((before + 200)) ] && [ $last -ge $((first + 20)) ]; }
    lab_until 20 flows && : > /run/flows
    wait $serving; status=$?
    wait $sending && exit 0
    exit $status";

/// The program must end by itself, with an error.
fn must_fail(running: Running<'_>, who: &str) -> Result<Outcome> {
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

/// Ends what is left of the traffic, without hanging.
fn end(running: Running<'_>, who: &str) -> Result<()> {
    running.kill();
    let outcome = running.wait_more(SHORT)?;
    ensure!(
        outcome.status != crate::guest::Status::TimedOut,
        "{who} cannot be killed"
    );
    Ok(())
}

fn application_killed(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    for _ in 0..3 {
        let (serving, sending) = traffic(server, client)?;
        server.must("pkill -KILL -x ib_send_bw", SHORT)?;
        end(serving, "the server")?;
        must_fail(sending, "the client")?;
        works(cluster)?;
    }
    // Nothing is left of them but what the kernel itself holds.
    let left = server.must("rdma resource show qp | grep -c ' comm ' || true", SHORT)?;
    let own = server.must("rdma resource show qp | grep -c ' comm \\[' || true", SHORT)?;
    ensure!(
        left.trim() == own.trim(),
        "queue pairs of dead programs remain: {left} of which {own} the kernel's"
    );
    Ok(())
}

fn module_reloaded(cluster: &Cluster, plan: &Plan) -> Result<()> {
    let (server, _) = pair(cluster)?;
    works(cluster)?;
    for _ in 0..3 {
        server.must("modprobe -r faultline && modprobe faultline", SHORT)?;
        configure(server, plan)?;
        works(cluster)?;
    }
    Ok(())
}

fn module_removed_under_traffic(cluster: &Cluster, plan: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let (serving, sending) = traffic(server, client)?;
    // Removal may be refused while a program holds the device, or succeed and cut the program off; it may not hang.
    let outcome = client.run("rmmod faultline", SHORT)?;
    ensure!(
        outcome.status != crate::guest::Status::TimedOut,
        "rmmod hangs"
    );
    if outcome.success() {
        must_fail(sending, "the client")?;
    } else {
        end(sending, "the client")?;
        client
            .must("sleep 1; rmmod faultline", SHORT)
            .context("rmmod after the program's end")?;
    }
    end(serving, "the server")?;
    client.must("modprobe faultline", SHORT)?;
    configure(client, plan)?;
    works(cluster)
}

/// Half of them in each guest, both at once.
fn module_removed_50_times_under_traffic(cluster: &Cluster, plan: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| remove_under_traffic(server, plan, 25));
        let second = remove_under_traffic(client, plan, 25);
        let first = first.join().map_err(|_| anyhow!("a thread panicked"))?;
        match (first, second) {
            (Err(first), Err(second)) => Err(first.context(format!("{second:#}"))),
            (first, second) => first.and(second),
        }
    })?;
    works(cluster)
}

fn remove_under_traffic(guest: &Guest, plan: &Plan, times: u32) -> Result<()> {
    for round in 0..times {
        let traffic = guest.start(&Exec {
            script: OWN_TRAFFIC.to_owned(),
            ..Exec::default()
        })?;
        let context = || format!("guest {}, round {round}", guest.index);
        guest
            .must(
                "lab_until 30 test -e /run/flows && rm /run/flows && rmmod faultline",
                ERROR_LIMIT,
            )
            .with_context(context)?;
        must_fail(traffic, "the traffic").with_context(context)?;
        guest.must("pkill -x ping; modprobe faultline", SHORT)?;
        configure(guest, plan)?;
    }
    Ok(())
}

fn device_unbound_under_traffic(cluster: &Cluster, plan: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let (serving, sending) = traffic(server, client)?;
    client.must(
        "cd /sys/bus/pci/drivers/faultline && ls -d 0000:* > /tmp/slot && cat /tmp/slot > unbind",
        SHORT,
    )?;
    must_fail(sending, "the client")?;
    end(serving, "the server")?;
    client.must("cat /tmp/slot > /sys/bus/pci/drivers/faultline/bind", SHORT)?;
    configure(client, plan)?;
    works(cluster)
}

fn interface_down_under_traffic(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let (serving, sending) = traffic(server, client)?;
    client.must(
        "ip link set $NETDEV down; sleep 1; ip link set $NETDEV up",
        SHORT,
    )?;
    end(sending, "the client")?;
    end(serving, "the server")?;
    client.must("lab_until 10 ping -c 1 -W 1 $PEER_IP", SHORT)?;
    works(cluster)
}

fn function_reset(cluster: &Cluster, plan: &Plan) -> Result<()> {
    let (_, client) = pair(cluster)?;
    works(cluster)?;
    client.must(
        "cd /sys/bus/pci/drivers/faultline && slot=$(ls -d 0000:*) && device=/sys/bus/pci/devices/$slot
         cat $device/reset_method
         echo $slot > unbind && echo 1 > $device/reset && echo $slot > bind",
        SHORT,
    )?;
    configure(client, plan)?;
    works(cluster)
}

fn emulator_killed_under_traffic(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let (serving, sending) = traffic(server, client)?;
    cluster
        .emulator
        .as_ref()
        .context("there is no emulator")?
        .kill();
    must_fail(sending, "the client")?;
    end(serving, "the server")?;
    for guest in [server, client] {
        guest
            .must("rmmod faultline", SHORT)
            .context("removing the driver of a dead device")?;
    }
    Ok(())
}

fn emulator_killed_while_idle(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (server, _) = pair(cluster)?;
    works(cluster)?;
    cluster
        .emulator
        .as_ref()
        .context("there is no emulator")?
        .kill();
    let outcome = server.run(
        "timeout 20 ibv_rc_pingpong -n 1 -d $RDMA_DEV -g $GID_INDEX",
        SHORT,
    )?;
    ensure!(
        !outcome.success(),
        "a program opened a dead device as if nothing was wrong"
    );
    server
        .must("rmmod faultline", SHORT)
        .context("removing the driver of a dead device")?;
    Ok(())
}
