//! The suite `recover`: the device of a guest stops, and its driver makes it work again. The netdev stays, programs and
//! kernel consumers get errors, and nothing is left behind.

pub(super) mod loads;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use self::loads::{
    ALL, Cause, Load, Loads, PROGRAMS, WRITES, but_lease, emulator, loads_on, offer,
    start_scenario, stop, stop_scenario,
};
use super::facts::{On, Row, Runs, SuiteFacts, by_name, row, runs};
use super::sight::Test;
use super::sight::watched::{SHORT, Watched};
use super::traffic::{end, must_fail, traffic, traffic_of, works};
use crate::command::say;
use crate::guest::Guest;
use crate::image::Kernel;

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "recover",
    shows: "A guest's device stops and works again; netdev, addresses and GIDs stay, no \
        object is lost, devlink counts it.",
    runs: runs(
        On::Nothing,
        On::First,
        "causes and loads of which the default run has a part",
    ),
};

/// What it says of itself.
pub const RESTART_SUITE: SuiteFacts = SuiteFacts {
    name: "restart",
    shows: "The server behind the supervisor ends; both drivers recover, and no guest \
        boots again.",
    runs: runs(
        On::Nothing,
        On::First,
        "causes of which the default run has one",
    ),
};

/// The tests.
pub const TESTS: &[Row<Test>] = &[
    row::<Test>("fatal", EVERYTHING, |w| recover(w, Cause::Fatal, ALL)).runs(IN_DEFAULT),
    row::<Test>(
        "fatal_idle",
        "An idle device recovers from a fatal error.",
        |w| recover(w, Cause::Fatal, &[]),
    ),
    row::<Test>("fatal_traffic", ONE_LOAD, |w| {
        recover(w, Cause::Fatal, &[Load::Traffic])
    })
    .runs(PART),
    row::<Test>("fatal_faults", ONE_LOAD, |w| {
        recover(w, Cause::Fatal, &[Load::Faults])
    })
    .runs(PART),
    row::<Test>("fatal_listener", ONE_LOAD, |w| {
        recover(w, Cause::Fatal, &[Load::Listener])
    })
    .runs(PART),
    row::<Test>("fatal_disk", ONE_LOAD, |w| {
        recover(w, Cause::Fatal, &[Load::Disk])
    })
    .runs(PART),
    row::<Test>("fatal_files", ONE_LOAD, |w| {
        recover(w, Cause::Fatal, &[Load::Files])
    })
    .runs(PART),
    row::<Test>("fatal_rds", ONE_LOAD, |w| {
        recover(w, Cause::Fatal, &[Load::Rds])
    })
    .runs(PART),
    row::<Test>("fatal_lease", ONE_LOAD, |w| {
        recover(w, Cause::Fatal, &[Load::Lease])
    })
    .runs(PART),
    row::<Test>("device_reset", PROGRAMS_ONLY, |w| {
        recover(w, Cause::DeviceReset, PROGRAMS)
    }),
    row::<Test>("function_reset", PROGRAMS_ONLY, |w| {
        recover(w, Cause::FunctionReset, PROGRAMS)
    })
    .runs(IN_DEFAULT),
    row::<Test>("command_timeout", PROGRAMS_ONLY, |w| {
        recover(w, Cause::CommandTimeout, PROGRAMS)
    }),
    row::<Test>("device_reset_everything", EVERYTHING, |w| {
        recover(w, Cause::DeviceReset, ALL)
    }),
    row::<Test>("function_reset_everything", EVERYTHING, |w| {
        recover(w, Cause::FunctionReset, ALL)
    }),
    row::<Test>("command_timeout_everything", EVERYTHING, |w| {
        recover(w, Cause::CommandTimeout, but_lease(ALL))
    }),
    row::<Test>("suspend", PROGRAMS_ONLY, |w| {
        recover(w, Cause::Suspend, PROGRAMS)
    })
    .runs(IN_DEFAULT),
    // A process that is frozen can't tell how long it has waited.
    row::<Test>("suspend_everything", EVERYTHING, |w| {
        recover(w, Cause::Suspend, but_lease(ALL))
    }),
    row::<Test>("reload", PROGRAMS_ONLY, |w| {
        recover(w, Cause::Reload, PROGRAMS)
    }),
    row::<Test>("reload_everything", EVERYTHING, |w| {
        recover(w, Cause::Reload, ALL)
    }),
    row::<Test>(
        "second_attempt",
        "The driver recovers at the third attempt after two were refused.",
        second_attempt,
    )
    .runs(IN_DEFAULT),
    row::<Test>(
        "given_up",
        "The driver gives up, and begins anew at `devlink health recover`.",
        given_up,
    ),
    row::<Test>("stopped_briefly", STOPPED, |w| {
        stopped(w, Duration::from_secs(8), &[])
    }),
    row::<Test>("stopped_for_a_minute", STOPPED, |w| {
        stopped(w, Duration::from_secs(60), but_lease(ALL))
    }),
    row::<Test>(
        "removed_while_recovering",
        "The driver can be unbound at four moments of a recovery.",
        removed_while_recovering,
    ),
    row::<Test>(
        "shutdown_with_a_command_waiting",
        "Shutdown waits for no command.",
        shutdown_with_a_command_waiting,
    ),
    row::<Test>(
        "again_and_again",
        "Fifty failures under traffic cost no object and no memory.",
        again_and_again,
    )
    .runs(by_name("ten minutes")),
];

/// What tests with all loads show.
const EVERYTHING: &str = "It works again under every load.";
/// Description of tests without consumers in the kernel.
const PROGRAMS_ONLY: &str = "The same under programs: WRITEs, SENDs, a lost fault record, rping.";
/// What tests with one load show.
const ONE_LOAD: &str = "The same under one load.";
/// Description of tests of an emulator that stands still.
const STOPPED: &str = "Devices and connections work after the emulator stood still.";
const IN_DEFAULT: Runs = runs(
    On::First,
    On::First,
    "recovery under every load, from a reset by the guest, after suspend, and \
     after refused attempts; guests of its own",
);
const PART: Runs = by_name("parts of fatal, to find the cause of a failure");

/// The tests of emulators that end behind a supervisor (docs/recovery.md). All guests have the same.
pub const RESTARTS: &[Row<Test>] = &[
    row::<Test>("killed", EVERYTHING, |w| {
        recover(w, Cause::ServerKilled, ALL)
    })
    .runs(runs(
        On::First,
        On::First,
        "an emulator that ends behind its supervisor; guests of its own",
    )),
    row::<Test>(
        "killed_idle",
        "Idle guests recover from `kill -9` of the server.",
        |w| recover(w, Cause::ServerKilled, &[]),
    ),
    row::<Test>("aborted", PROGRAMS_ONLY, |w| {
        recover(w, Cause::ServerAborted, PROGRAMS)
    }),
    row::<Test>("renewed", PROGRAMS_ONLY, |w| {
        recover(w, Cause::ServerRenewed, PROGRAMS)
    }),
    row::<Test>("aborted_everything", EVERYTHING, |w| {
        recover(w, Cause::ServerAborted, ALL)
    }),
    row::<Test>("renewed_everything", EVERYTHING, |w| {
        recover(w, Cause::ServerRenewed, ALL)
    }),
    row::<Test>(
        "killed_100_times",
        "A hundred kills cost no descriptor, map, object, memory or byte of a disk.",
        killed_100_times,
    )
    .runs(by_name("half an hour")),
];

/// No other program of these tests creates a shared receive queue in the second guest.
const LOST_COMMAND: &str = r#"
[[rule]]
nic = "nic1"
on = { command = "create_srq", nth = 1 }
do = { drop = {} }
"#;

/// The device stops under loads, and works again afterwards as before.
pub(super) fn recover(watched: &Watched<'_>, cause: Cause, loads: &[Load]) -> Result<()> {
    let client = watched.client;
    let loads = &loads_on(watched.plan.kernel, loads);
    let others = cause.is_of_all().then_some(watched.server);
    works(watched.cluster)?;
    offer(watched, loads)?;
    for guest in others.into_iter().chain([client]) {
        guest.must("recovery remember", SHORT)?;
    }
    let lost = match cause {
        Cause::CommandTimeout => LOST_COMMAND,
        _ => "",
    };
    if !lost.is_empty() && !loads.contains(&Load::Faults) {
        start_scenario(watched, &format!("title = \"A command is lost\"\n{lost}"))?;
    }
    let mut running = Loads::start(watched, loads, lost)?;
    let told = watched.log()?.len();
    let started = Instant::now();
    stop(watched, cause)?;
    let failures = i32::from(cause.is_failure());
    for guest in [client].into_iter().chain(others) {
        guest.must(&format!("recovery counted {failures}"), SHORT)?;
    }
    say(format!(
        "{}: works {:.1} s after the cause",
        watched.name,
        started.elapsed().as_secs_f64()
    ));
    let ended = match cause {
        Cause::ServerKilled => "the server has ended (signal: 9 (SIGKILL)): starting it again",
        Cause::ServerAborted => "the server has ended (signal: 6 (SIGABRT)",
        _ => "",
    };
    if !ended.is_empty() {
        tells_of_restart(&watched.log()?[told..], ended)?;
    }
    running.after_recovery()?;
    // A new server has no scenario.
    if (loads.contains(&Load::Faults) && !cause.is_of_all()) || cause == Cause::CommandTimeout {
        stop_scenario(watched)?;
    }
    running.end()?;
    if let Some(server) = others {
        server.must("recovery no_more", SHORT)?;
    }
    client.must("recovery same", SHORT)?;
    works(watched.cluster)
}

/// The log, as `journalctl` shows it, has for each NIC the event and its duration.
fn tells_of_restart(log: &[String], ended: &str) -> Result<()> {
    let of_process = [ended];
    let of_nic = [
        "the server has ended; the client waits for the next",
        "a new server has the client's state; its device was reset",
        "the driver has enabled the device",
    ];
    for (who, story) in [
        ("faultline::commands::supervise:", of_process.as_slice()),
        ("nic{name=nic0}:", &of_nic),
        ("nic{name=nic1}:", &of_nic),
    ] {
        let mut lines = log.iter().filter(|line| line.contains(who));
        for part in story {
            let found = lines.any(|line| line.contains(part));
            ensure!(
                found,
                "the log of {who} does not say {part:?}:\n{}",
                log.join("\n")
            );
        }
    }
    Ok(())
}

/// A fatal error of a device that works, while a scenario makes its recovery fail.
fn fatal_with(watched: &Watched<'_>, scenario: &str) -> Result<()> {
    works(watched.cluster)?;
    watched.client.must("recovery remember", SHORT)?;
    start_scenario(watched, scenario)?;
    stop(watched, Cause::Fatal)
}

/// The device does not come back at the first attempt.
fn second_attempt(watched: &Watched<'_>) -> Result<()> {
    let client = watched.client;
    let scenario = r#"
title = "No event queue for two attempts"

[[rule]]
nic = "nic1"
on = { command = "create_eq", nth = 1 }
do = { fail = { with = "no_resources", times = 2 } }
"#;
    fatal_with(watched, scenario)?;
    client.must("recovery counted 1 && recovery same", SHORT)?;
    stop_scenario(watched)?;
    client.must("dmesg | grep 'attempt 2 to recover failed'", SHORT)?;
    works(watched.cluster)
}

/// The device does not come back: the driver gives up, and tries again by request.
fn given_up(watched: &Watched<'_>) -> Result<()> {
    let client = watched.client;
    let scenario = r#"
title = "No event queue"
# All attempts take more than a minute.
limit = "10m"

[[rule]]
nic = "nic1"
on = { command = "create_eq" }
do = { fail = { with = "no_resources" } }
"#;
    fatal_with(watched, scenario)?;
    client.must("recovery given_up", 5 * SHORT)?;
    client.must(
        "lab_fails devlink health recover $(recovery handle) reporter fatal",
        SHORT,
    )?;
    stop_scenario(watched)?;
    // Its request has begun new attempts.
    client.must("recovery counted 1 && recovery same", SHORT)?;
    works(watched.cluster)
}

/// The emulator stands still for a while. The driver may treat the devices as dead, and consumers may treat connections
/// as ended: devices work afterwards, and consumers in the kernel continue.
fn stopped(watched: &Watched<'_>, time: Duration, loads: &[Load]) -> Result<()> {
    let guests = [watched.server, watched.client];
    let loads = &loads_on(watched.plan.kernel, loads);
    works(watched.cluster)?;
    offer(watched, loads)?;
    for guest in guests {
        guest.must("recovery remember", SHORT)?;
    }
    let mut running = Loads::start(watched, loads, "")?;
    // A machine that waits for the answer to an access stands still, which looks like a stuck processor to its
    // watchdogs.
    for guest in guests {
        guest.must("recovery watchdogs 0", SHORT)?;
    }
    let emulator = emulator(watched)?;
    emulator.stop()?;
    std::thread::sleep(time);
    emulator.go_on()?;
    for guest in guests {
        guest.must("recovery healthy && recovery watchdogs 1", 2 * SHORT)?;
    }
    for (program, name, _) in running.programs.drain(..) {
        end(program, name)?;
    }
    running.each("goes_on")?;
    if loads.contains(&Load::Faults) {
        stop_scenario(watched)?;
    }
    running.end()?;
    watched.server.must("recovery no_more", 2 * SHORT)?;
    watched.client.must("recovery same", 2 * SHORT)?;
    works(watched.cluster)
}

/// Moments of a recovery at which the driver is taken away: before the driver knows, and then in steps.
pub const MOMENTS: [u64; 4] = [0, 50, 200, 600];

/// The driver is unbound and bound again at any moment of a recovery.
pub(super) fn removed_while_recovering(watched: &Watched<'_>) -> Result<()> {
    let client = watched.client;
    for moment in MOMENTS {
        let (serving, sending) = traffic_of(watched.server, client, WRITES)?;
        stop(watched, Cause::Fatal)?;
        std::thread::sleep(Duration::from_millis(moment));
        client
            .must("recovery unbind", SHORT)
            .with_context(|| format!("{moment} ms after the failure"))?;
        must_fail(sending, "the client of the traffic")?;
        end(serving, "the server of the traffic")?;
        client.must("recovery bind", SHORT)?;
        crate::cluster::configure(client, watched.plan)?;
    }
    works(watched.cluster)
}

/// Messages of the kernel at the begin and the end of the shutdown, and the message of the driver about a command
/// without an answer.
const SHUTDOWN: [&str; 3] = ["sysrq: Power Off", "reboot: Power down", "timed out"];

/// The device answers no command of its recovery, for which the driver waits ten seconds; the machine must not. The order of the
/// kernel's messages tells: had the shutdown waited, the driver would have given up the command in between.
fn shutdown_with_a_command_waiting(watched: &Watched<'_>) -> Result<()> {
    let client = watched.client;
    let scenario = r#"
title = "No answer to the commands of a recovery"
limit = "10m"

[[rule]]
nic = "nic1"
on = { command = "create_eq" }
do = { drop = {} }
"#;
    fatal_with(watched, scenario)?;
    // At once: the kernel is asked by the script that has seen a thread wait. The guest ends before the script does.
    let _ = client.run(
        "waits() { grep -qs faultline_cmdq_exec /proc/[0-9]*/stack; }
        lab_until 60 waits && echo o >/proc/sysrq-trigger && sleep 60",
        2 * SHORT,
    );
    client.wait_off(2 * SHORT)?;
    stop_scenario(watched)?;
    let serial = client.serial();
    let [begin, end, given_up] = SHUTDOWN;
    let shutdown = serial
        .split_once(begin)
        .and_then(|(_, rest)| rest.split_once(end));
    let (between, _) = shutdown.context("the guest has not shut down")?;
    ensure!(
        !between.contains(given_up),
        "the shutdown waited for a command:\n{between}"
    );
    Ok(())
}

/// Failures of the test `again_and_again`.
pub const TIMES: usize = 50;
/// Prints the state that must be the same afterwards, with the objects of each kind.
const OBJECTS: &str = "recovery lasting; rdma resource show $RDMA_DEV | sed 's/^[0-9]*: //'";
/// KiB that a guest's kernel may have more at the end: its own work, and memory that it frees later. 50 recoveries cost 0.8 MiB.
const MEMORY_SLACK: i64 = 4096;
/// KASAN holds back so much of all memory after it was freed (`QUARANTINE_FRACTION` of the kernel). Leaks there are found by kmemleak.
const QUARANTINE_FRACTION: i64 = 32;

/// The memory of a guest's kernel itself, in KiB, and the users of the rest.
fn memory(guest: &Guest) -> Result<(i64, String)> {
    let text = guest.must(
        "sync; recovery memory
        cat /proc/meminfo; df -k /run /tmp; ps -eo rss,comm --sort=-rss | head",
        SHORT,
    )?;
    let (kib, rest) = text.split_once('\n').context("no memory")?;
    Ok((kib.parse().context("reading the memory")?, rest.to_owned()))
}

/// The device fails again and again under traffic; the kernel then has as many objects and as much memory as before.
fn again_and_again(watched: &Watched<'_>) -> Result<()> {
    let client = watched.client;
    let fail = || -> Result<()> {
        let (serving, sending) = traffic(watched.server, client)?;
        stop(watched, Cause::Fatal)?;
        must_fail(sending, "the client of the traffic")?;
        end(serving, "the server of the traffic")?;
        client.must("recovery counted 1; recovery remember", SHORT)?;
        Ok(())
    };
    client.must("recovery remember", SHORT)?;
    fail()?;
    let (before, details) = memory(client)?;
    let objects = client.must(OBJECTS, SHORT)?;
    for _ in 0..TIMES {
        fail()?;
    }
    let after = client.must(OBJECTS, SHORT)?;
    ensure!(objects == after, "before:\n{objects}\nafter:\n{after}");
    let (now, details_now) = memory(client)?;
    let lost = now - before;
    say(format!("{TIMES} recoveries cost {lost} KiB"));
    let quarantine = match watched.plan.kernel {
        Kernel::Debug => i64::from(watched.plan.memory) * 1024 / QUARANTINE_FRACTION + MEMORY_SLACK,
        _ => 0,
    };
    if lost > MEMORY_SLACK + quarantine {
        bail!(
            "{lost} KiB of memory are lost in {TIMES} recoveries; before:\n{details}after:\n{details_now}"
        );
    }
    works(watched.cluster)
}

/// How often the server is killed.
pub const KILLS: usize = 100;

/// The server is killed again and again under traffic and with a disk. No guest has to be booted again, neither guests
/// nor the supervisor leak, and the disk has all written data.
fn killed_100_times(watched: &Watched<'_>) -> Result<()> {
    let guests = [watched.server, watched.client];
    let emulator = emulator(watched)?;
    let (mut pings, mut reads) = (Vec::new(), Vec::new());
    let mut kill = || -> Result<()> {
        for guest in guests {
            guest.must("recovery remember", SHORT)?;
        }
        let (serving, sending) = traffic(watched.server, watched.client)?;
        let started = Instant::now();
        emulator.end_server(Signal::KILL)?;
        let (read, ping) = std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                watched.client.must("recovery read_disk", 2 * SHORT)?;
                Ok::<_, anyhow::Error>(started.elapsed())
            });
            let ping = || {
                for guest in guests {
                    guest.must("recovery counted 1", SHORT)?;
                }
                end(sending, "the client of the traffic")?;
                end(serving, "the server of the traffic")?;
                works(watched.cluster)?;
                Ok::<_, anyhow::Error>(started.elapsed())
            };
            let ping = ping();
            (read.join().expect("it does not panic"), ping)
        });
        reads.push(read?);
        pings.push(ping?);
        Ok(())
    };
    offer(watched, &[Load::Disk])?;
    let disk = Loads::start(watched, &[Load::Disk], "")?;
    kill()?;
    let before = held(watched)?;
    for _ in 0..KILLS {
        kill()?;
    }
    let after = held(watched)?;
    ensure!(
        before.0 == after.0,
        "{} before, {} after",
        before.0,
        after.0
    );
    let lost: Vec<i64> = (before.1.iter().zip(&after.1))
        .map(|(before, after)| after - before)
        .collect();
    say(format!(
        "{KILLS} kills: {} until a ping-pong has ended, {} until the disk is read; the guests lost {lost:?} KiB",
        median_and_worst(pings),
        median_and_worst(reads)
    ));
    ensure!(
        lost.iter().all(|kib| *kib < 4 * MEMORY_SLACK),
        "memory is lost"
    );
    disk.each("goes_on")?;
    disk.end()
}

fn median_and_worst(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |index: usize| times.get(index).map_or(0.0, Duration::as_secs_f64);
    let (median, worst) = (at(times.len() / 2), at(times.len() - 1));
    format!("{median:.1} s (median; worst {worst:.1} s)")
}

/// Descriptors and maps of the supervisor, with the objects of the guests' kernels; and the memory of each guest, in
/// KiB.
fn held(watched: &Watched<'_>) -> Result<(String, Vec<i64>)> {
    let supervisor = emulator(watched)?.id().as_raw_pid();
    let files =
        std::fs::read_dir(format!("/proc/{supervisor}/fd")).context("reading descriptors")?;
    let maps =
        std::fs::read_to_string(format!("/proc/{supervisor}/maps")).context("reading maps")?;
    let bars = maps.lines().filter(|line| line.contains("bar2")).count();
    let mut objects = format!("{} descriptors, {bars} maps of BARs\n", files.count());
    let mut memories = Vec::new();
    for guest in [watched.server, watched.client] {
        objects += &guest.must(OBJECTS, SHORT)?;
        memories.push(memory(guest)?.0);
    }
    Ok((objects, memories))
}
