//! The suite `robustness`: death of programs, drivers and the emulator under traffic. A test uses the pair of the
//! previous test if that still works.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::facts::{On, Row, Runs, SuiteFacts, by_name, row, runs};
use super::failover;
use super::pair::Pairs;
use super::spoofing;
use super::tally::{Tally, Verdict};
use super::traffic::{
    DEVICE, ERROR_LIMIT, counters, end, must_fail, pair, traffic, traffic_of, works,
};
use crate::cluster::{Cluster, Nic, Plan, TCG_RACE, configure, is_tcg_race};
use crate::command::say;
use crate::guest::Guest;
use crate::progress;
use crate::protocol::Exec;
use crate::workspace::Workspace;

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "robustness",
    shows: "Programs, drivers and emulators die under traffic, and the guests work \
        afterwards.",
    runs: runs(
        On::First,
        On::First,
        "deaths of programs, drivers and emulators; guests of its own",
    ),
};

/// Runs in a pair of the plan.
pub type Test = fn(&Cluster, &Plan) -> Result<()>;

/// The tests.
pub const TESTS: &[Row<Test>] = &[
    row::<Test>(
        "application_killed",
        "Killed programs leave no object, and their peers get errors.",
        application_killed,
    ),
    row::<Test>(
        "module_reloaded",
        "Traffic works after the driver was removed and loaded.",
        module_reloaded,
    ),
    row::<Test>(
        "module_removed_under_traffic",
        "Removal under traffic is refused or ends the traffic; it never hangs.",
        module_removed_under_traffic,
    ),
    row::<Test>(
        "module_removed_10_times_under_traffic",
        "The driver is removed and loaded five times in both guests at once.",
        |cluster, plan| removed_in_both(cluster, plan, REMOVALS),
    )
    .runs(AGAIN),
    row::<Test>(
        "module_removed_50_times_under_traffic",
        "The same, 25 times in each guest.",
        |cluster, plan| removed_in_both(cluster, plan, MANY_REMOVALS),
    )
    .runs(by_name("minutes")),
    row::<Test>(
        "device_unbound_under_traffic",
        "A program whose device is unbound gets an error, and the device comes back.",
        device_unbound_under_traffic,
    ),
    row::<Test>(
        "interface_down_under_traffic",
        "Connections end at both ends when an interface is down, and new ones work when it is up.",
        |cluster, _| ends_connections(cluster, &INTERFACE_DOWN),
    ),
    row::<Test>(
        "address_removed_under_traffic",
        "Connections end at both ends when an address is removed, and new ones work when it is back.",
        |cluster, _| ends_connections(cluster, &ADDRESS_REMOVED),
    ),
    row::<Test>(
        "mtu_lowered_under_traffic",
        "Connections end at both ends when the MTU of an interface is too small for their path MTU, which new ones cannot have.",
        mtu_lowered_under_traffic,
    ),
    row::<Test>("vlan_removed_under_traffic", REMOVED, |cluster, _| {
        failover::further_address_returns(cluster, &failover::VLAN)
    }),
    row::<Test>(
        "ipv6_address_removed_under_traffic",
        REMOVED,
        |cluster, _| failover::further_address_returns(cluster, &failover::IPV6),
    )
    .runs(OTHER_ADDRESSES),
    row::<Test>("macvlan_removed_under_traffic", REMOVED, |cluster, _| {
        failover::further_address_returns(cluster, &failover::MACVLAN)
    })
    .runs(OTHER_ADDRESSES),
    row::<Test>(
        "more_addresses_than_gids_5_times",
        MORE_ADDRESSES,
        |cluster, _| failover::more_addresses_than_gids(cluster, 5),
    ),
    row::<Test>(
        "more_addresses_than_gids_100_times",
        MORE_ADDRESSES,
        |cluster, _| failover::more_addresses_than_gids(cluster, 100),
    )
    .runs(by_name("minutes")),
    row::<Test>(
        "function_reset",
        "Traffic works after a reset of the function.",
        function_reset,
    ),
    row::<Test>(
        "health_reported",
        "devlink reports a reset under the driver, which recovers.",
        health_reported,
    ),
    row::<Test>(
        "watches_without_device",
        "A program that waits for events of mappings survives its device's removal.",
        watches_without_device,
    ),
    row::<Test>(
        "handles_of_a_stopped_device",
        "Address handles are made with interrupts disabled while the emulator is \
         stopped.",
        handles_of_a_stopped_device,
    ),
    // The pair is unusable after these.
    row::<Test>(
        "emulator_killed_while_idle",
        KILLED,
        emulator_killed_while_idle,
    ),
    row::<Test>(
        KILLED_ASLEEP,
        KILLED,
        emulator_killed_while_it_sleeps_under_load,
    ),
    row::<Test>(KILLED_UNDER_TRAFFIC, KILLED, emulator_killed_under_traffic).runs(AGAIN),
    // In guests of their own.
    row::<Test>(
        "nic_fails_over",
        "A stream goes on over the second NIC after a port error or the end of retries, and returns; each byte arrives once.",
        failover::nic_fails_over,
    ),
    row::<Test>(
        "address_moves_to_another_guest",
        "Connections end when an address moves to another guest, and new ones to the address reach that guest.",
        failover::address_moves_to_another_guest,
    ),
    row::<Test>(
        "rds_follows_a_moved_address",
        "RDS connects anew to an address that has moved to another guest.",
        failover::rds_follows_a_moved_address,
    ),
    row::<Test>(
        "nfs_follows_a_moved_address",
        "A client of NFS connects anew when the server's address moves to another guest, and writes there.",
        failover::nfs_follows_a_moved_address,
    )
    .runs(runs(
        On::Nothing,
        On::First,
        "rds_follows_a_moved_address, with another consumer in the kernel",
    )),
    row::<Test>(
        "neighbours_address_is_of_no_use",
        "A guest with its neighbour's IP address reaches no connection of its neighbour; with port security it gets no GID, and sends no frame from it.",
        spoofing::neighbours_address_is_of_no_use,
    ),
    row::<Test>(
        "bond_fails_over",
        "Connections to an active-backup bond end with its active NIC, and new ones use the other.",
        failover::bond_fails_over,
    ),
];

/// Those of them that run in the guests of [`failover`].
const FAILOVER: &[&str] = &[
    "nic_fails_over",
    "address_moves_to_another_guest",
    "rds_follows_a_moved_address",
    "nfs_follows_a_moved_address",
    "neighbours_address_is_of_no_use",
    "bond_fails_over",
];

/// Description of the tests that remove interfaces and addresses.
const REMOVED: &str =
    "Connections end at both ends when the address is removed, and new ones work when it is back.";
/// Description of the tests with more addresses than entries of the GID table.
const MORE_ADDRESSES: &str = "More addresses than GIDs are added and removed beside traffic; all earlier GIDs stay, and the connection \
     manager finds the device.";
/// Description of the tests that kill the emulator.
const KILLED: &str = "Programs learn by an event that the device is gone.";
/// The runs of repetitions.
const AGAIN: Runs = runs(
    On::Nothing,
    On::First,
    "module_removed_under_traffic and emulator_killed_while_it_sleeps_under_load, \
     again or under another condition",
);

/// The runs of other kinds of addresses.
const OTHER_ADDRESSES: Runs = runs(
    On::Nothing,
    On::First,
    "vlan_removed_under_traffic, with another kind of address",
);

/// How often the driver is removed in each guest.
pub const REMOVALS: u32 = 5;
/// The same in the longer form of the test.
pub const MANY_REMOVALS: u32 = 25;

const KILLED_ASLEEP: &str = "emulator_killed_while_it_sleeps_under_load";
const KILLED_UNDER_TRAFFIC: &str = "emulator_killed_under_traffic";

const SHORT: Duration = Duration::from_secs(60);

/// Number of attempts of a test that QEMU itself does not survive. On a busy machine, every second one may meet its assertion.
const ATTEMPTS: u32 = 10;

/// Runs tests in pairs of `plan`.
#[expect(clippy::too_many_arguments, reason = "the parts of a test run")]
pub fn run(
    workspace: &Workspace,
    tests: &[Row<Test>],
    plan: &Plan,
    label: &str,
    dir: &Path,
    pairs: &mut Pairs<'_>,
    tally: &mut Tally,
) -> Result<()> {
    for &Row { facts, run } in tests {
        let name = facts.name;
        if tally.is_over() {
            break;
        }
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
        let plan = plan_of(name, plan, dir)?;
        let mut result = judge(pairs, &plan, name, run);
        let mut retries = Vec::new();
        for _ in 1..tally.attempts(ATTEMPTS) {
            let Err(error) = &result else { break };
            let reason = if is_tcg_race(&format!("{error:#}")) {
                TCG_RACE
            } else if qemu_asserted(&pairs.last_dir()) {
                "QEMU died of an assertion of its own when the emulator went away"
            } else {
                break;
            };
            say(format!("{reason}; once more"));
            retries.push(reason);
            result = judge(pairs, &plan, name, run);
        }
        let verdict = match result {
            Ok(()) => Verdict::Passed,
            Err(error) => Verdict::Failed(format!(
                "{error:#}\nlogs: {}",
                workspace.shown(&pairs.last_dir())
            )),
        };
        tally.add_after(&full, started.elapsed(), verdict, &retries);
    }
    Ok(())
}

/// The guests of a test: those of `plan`, or of the same with a device of this test, whose configuration goes to `dir`.
pub fn plan_of(name: &str, plan: &Plan, dir: &Path) -> Result<Plan> {
    if FAILOVER.contains(&name) {
        return Ok(failover::plan(plan));
    }
    let mut plan = plan.clone();
    let poll_time_us = match name {
        // An engine that does not sleep during traffic is not woken. So QEMU has nothing to send, and does not always
        // hit its own assertion (see below).
        KILLED_UNDER_TRAFFIC => Some(50_000),
        // An engine that always sleeps is woken by each request.
        KILLED_ASLEEP => Some(0),
        _ => None,
    };
    if let Some(time) = poll_time_us {
        let config = dir.join(format!("{name}.toml"));
        std::fs::write(&config, format!("poll_time_us = {time}\n"))
            .with_context(|| format!("writing {}", config.display()))?;
        plan.config = Some(config);
    }
    Ok(plan)
}

/// True if a QEMU has aborted in its own error handling: QEMU 11.1's vfio-user client reports the loss of its server
/// twice into one error if it finds out while it sends (`error_setv: Assertion `*errp == NULL'`). No guest can survive
/// that; the test is about guests that are still running.
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
    let full = format!("robustness::{name}");
    progress::begin(&full);
    let result = test(&pair.cluster, plan);
    pair.cluster.save_logs();
    let mut troubles = pair.troubles(&full);
    if let Err(error) = result {
        // Kernel messages are part of the reason.
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

fn application_killed(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    for _ in 0..3 {
        let (serving, sending) = traffic(server, client)?;
        server.must("pkill -KILL -x ib_send_bw", SHORT)?;
        end(serving, "the server")?;
        must_fail(sending, "the client")?;
        works(cluster)?;
    }
    server
        .must("objects_freed", SHORT)
        .context("what programs that were killed had")?;
    Ok(())
}

fn module_reloaded(cluster: &Cluster, plan: &Plan) -> Result<()> {
    let (server, _) = pair(cluster)?;
    works(cluster)?;
    for _ in 0..3 {
        server.must("modprobe -r faultline && modprobe faultline", SHORT)?;
        configure(server, plan)?;
        // proves: del_gid
        works(cluster)?;
    }
    Ok(())
}

fn module_removed_under_traffic(cluster: &Cluster, plan: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let (serving, sending) = traffic(server, client)?;
    // Removal may be refused while a program holds the device, or may succeed and disconnect the program. It must not
    // hang.
    let outcome = client.run("rmmod faultline", SHORT)?;
    ensure!(
        outcome.status != crate::guest::Status::TimedOut,
        "rmmod hangs"
    );
    if outcome.success() {
        // proves: disassociate_ucontext
        must_fail(sending, "the client")?;
    } else {
        end(sending, "the client")?;
        client
            .must("lab_until 10 rmmod faultline", SHORT)
            .context("rmmod after the program's end")?;
    }
    end(serving, "the server")?;
    client.must("modprobe faultline", SHORT)?;
    configure(client, plan)?;
    works(cluster)
}

/// The driver is removed this number of times in each guest, in both at once.
fn removed_in_both(cluster: &Cluster, plan: &Plan, times: u32) -> Result<()> {
    let (server, client) = pair(cluster)?;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| remove_under_traffic(server, plan, times));
        let second = remove_under_traffic(client, plan, times);
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
            script: "own_traffic".to_owned(),
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
    client.must("driver_of_device unbind", SHORT)?;
    must_fail(sending, "the client")?;
    end(serving, "the server")?;
    client.must("driver_of_device bind", SHORT)?;
    configure(client, plan)?;
    works(cluster)
}

/// Something that keeps RoCE packets from passing the interface of the client, and its end.
struct Barred {
    /// Options of the traffic.
    options: &'static str,
    begin: &'static str,
    end: &'static str,
    /// Counters that grow at the client: of packets that it does not send, and does not receive.
    counters: [&'static str; 2],
}

const INTERFACE_DOWN: Barred = Barred {
    options: "",
    begin: "ip link set $NETDEV down",
    end: "ip link set $NETDEV up",
    counters: ["tx_interface_down", "rx_interface_down"],
};

const ADDRESS_REMOVED: Barred = Barred {
    options: "",
    begin: "ip -4 -o address show dev $NETDEV | grep -o \"$MY_IP/[0-9]*\" >/run/removed && \
        ip address del $(cat /run/removed) dev $NETDEV",
    end: "ip address add $(cat /run/removed) dev $NETDEV && \
        lab_until 20 test \"$(lab_gid_index $MY_IP)\" = $GID_INDEX",
    counters: ["tx_bad_gid", "rx_bad_gid"],
};

const MTU_LOWERED: Barred = Barred {
    options: "-m 4096",
    begin: "ip link set $NETDEV mtu 1500",
    end: "ip link set $NETDEV mtu 9000",
    counters: ["tx_over_mtu", "rx_over_mtu"],
};

/// Both ends send, and notice that nothing arrives any more.
fn ends_connections(cluster: &Cluster, barred: &Barred) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let before = counters(client, DEVICE, barred.counters)?;
    let program = format!("ib_write_bw -b {}", barred.options);
    let (serving, sending) = traffic_of(server, client, &program)?;
    client.must(barred.begin, SHORT)?;
    for (running, who) in [(sending, "the client"), (serving, "the server")] {
        let outcome = must_fail(running, who)?;
        // IBV_WC_RETRY_EXC_ERR
        let text = String::from_utf8_lossy(&outcome.both);
        ensure!(
            text.contains("status 12"),
            "{who} has another error:\n{text}"
        );
    }
    let after = counters(client, DEVICE, barred.counters)?;
    for (name, (before, after)) in barred.counters.iter().zip(before.into_iter().zip(after)) {
        ensure!(after > before, "{name} has not grown");
    }
    client.must(barred.end, SHORT)?;
    client.must("lab_until 10 ping -c 1 -W 1 $PEER_IP", SHORT)?;
    works(cluster)
}

fn mtu_lowered_under_traffic(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let mut old = Vec::new();
    for guest in [server, client] {
        old.push(guest.must("cat /sys/class/net/$NETDEV/mtu", SHORT)?);
        guest.must("ip link set $NETDEV mtu 9000", SHORT)?;
    }
    ends_connections(cluster, &MTU_LOWERED)?;
    client.must(MTU_LOWERED.begin, SHORT)?;
    let serving = server.start(&Exec {
        script: "exec ibv_rc_pingpong -m 4096 -d $RDMA_DEV -g $GID_INDEX".to_owned(),
        ..Exec::default()
    })?;
    server.must("lab_until 10 lab_listens 18515", SHORT)?;
    let outcome = client.run(
        "ibv_rc_pingpong -m 4096 -d $RDMA_DEV -g $GID_INDEX $PEER_IP",
        SHORT,
    )?;
    let text = String::from_utf8_lossy(&outcome.both);
    ensure!(
        !outcome.success() && text.contains("Failed to modify QP to RTR"),
        "a path MTU of 4096 was accepted on an interface of 1500:\n{text}"
    );
    end(serving, "the server")?;
    for (guest, mtu) in [server, client].into_iter().zip(old) {
        guest.must(&format!("ip link set $NETDEV mtu {}", mtu.trim()), SHORT)?;
    }
    works(cluster)
}

fn function_reset(cluster: &Cluster, plan: &Plan) -> Result<()> {
    let (_, client) = pair(cluster)?;
    works(cluster)?;
    client.must("driver_of_device reset", SHORT)?;
    configure(client, plan)?;
    works(cluster)
}

/// Resets the device under its driver, which reports that and recovers it.
fn health_reported(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (_, client) = pair(cluster)?;
    works(cluster)?;
    client.must("device_health reset", SHORT)?;
    works(cluster)
}

/// Takes the device from its driver while a program waits for events of its mappings.
fn watches_without_device(cluster: &Cluster, plan: &Plan) -> Result<()> {
    let (_, client) = pair(cluster)?;
    client.must("driver_of_device unplug", SHORT)?;
    configure(client, plan)?;
    works(cluster)
}

/// Time limit of a kernel call that must not sleep, even if the device does not answer: a virtual CPU may wait for a
/// real one.
const ATOMIC_LIMIT_US: u64 = 200_000;
/// The processors of workqueues that are bound to none.
const WORK_CPUS: &str = "/sys/devices/virtual/workqueue/cpumask";

/// Creates and destroys address handles with interrupts disabled while the device does not answer, and sends through
/// one that the device has not created yet; then the same while it answers.
fn handles_of_a_stopped_device(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (server, _) = pair(cluster)?;
    let emulator = cluster.emulator.as_ref().context("there is no emulator")?;
    server.must(
        "insmod /lib/modules/$(uname -r)/kernel_verbs.ko netdev=$NETDEV gid_index=$GID_INDEX",
        SHORT,
    )?;
    // QEMU holds its global lock while a virtual CPU waits for the answer to a write into a kick page, and TCG needs that lock to send
    // an interrupt to another one. So the driver's work has the virtual CPU of the calls.
    server.must(
        &format!("cp {WORK_CPUS} /tmp/work_cpus && echo 1 > {WORK_CPUS}"),
        SHORT,
    )?;
    emulator.stop()?;
    let running = server.start(&Exec {
        script: "taskset -c 0 sh -c 'echo 1 > /sys/module/kernel_verbs/parameters/run'".to_owned(),
        ..Exec::default()
    });
    std::thread::sleep(Duration::from_secs(1));
    emulator.go_on()?;
    let outcome = running?.wait_more(SHORT)?;
    ensure!(outcome.success(), "{}", outcome.text());
    server.must(&format!("cat /tmp/work_cpus > {WORK_CPUS}"), SHORT)?;
    let took = server.must(
        "cd /sys/module/kernel_verbs/parameters && echo 1 > run && cat longest_us && cd / && rmmod kernel_verbs",
        SHORT,
    )?;
    let took: u64 = took.trim().parse().context("reading a time")?;
    say(format!(
        "the longest call with interrupts off took {took} us"
    ));
    // proves: create_ah
    ensure!(
        took < ATOMIC_LIMIT_US,
        "a call that may not sleep took {took} us"
    );
    works(cluster)
}

fn emulator_killed_while_it_sleeps_under_load(cluster: &Cluster, _: &Plan) -> Result<()> {
    let (server, client) = pair(cluster)?;
    let start =
        |guest: &Guest, script: &str| guest.must(script, SHORT).context("starting the load");
    // Each of few requests wakes the engine. One that QEMU reports at the very moment of the death ends QEMU itself.
    start(server, "paced_load server")?;
    start(client, "fatal_event watch")?;
    start(client, "paced_load client")?;
    cluster
        .emulator
        .as_ref()
        .context("there is no emulator")?
        .kill();
    // proves: IBV_EVENT_DEVICE_FATAL
    client
        .must("fatal_event wait", ERROR_LIMIT)
        .context("an event of the device's death")?;
    client
        .must("paced_load failed", ERROR_LIMIT)
        .context("the client's error")?;
    for guest in [server, client] {
        guest.must(
            "pkill -KILL -x ib_send_bw; pkill -KILL -x ibv_asyncwatch; pkill -KILL -x ping; lab_until 10 rmmod faultline",
            SHORT,
        )?;
    }
    Ok(())
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
    server.must("fatal_event watch", SHORT)?;
    cluster
        .emulator
        .as_ref()
        .context("there is no emulator")?
        .kill();
    // proves: IBV_EVENT_DEVICE_FATAL
    server
        .must("fatal_event wait", ERROR_LIMIT)
        .context("an event of the device's death")?;
    server
        .must("device_health lost", ERROR_LIMIT)
        .context("devlink's report of the device's death")?;
    let outcome = server.run(
        "timeout 20 ibv_rc_pingpong -n 1 -d $RDMA_DEV -g $GID_INDEX",
        SHORT,
    )?;
    ensure!(
        !outcome.success(),
        "a program opened a dead device as if nothing was wrong"
    );
    server
        .must("pkill -x ibv_asyncwatch; rmmod faultline", SHORT)
        .context("removing the driver of a dead device")?;
    Ok(())
}
