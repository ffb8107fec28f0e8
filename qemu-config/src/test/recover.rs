//! The suite `recover`: the device of a guest stops, and its driver makes it work again. The netdev stays, programs and kernel
//! consumers learn what happened, and nothing is left behind.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::robustness::{end, must_fail, traffic, works};
use super::sight::Test;
use super::sight::watched::{SHORT, Watched, until};
use crate::command::say;
use crate::emulator::Emulator;
use crate::guest::{Guest, Running};
use crate::image::Kernel;
use crate::protocol::Exec;

/// The tests.
pub const TESTS: &[(&str, Test)] = &[
    ("fatal", |w| recover(w, Cause::Fatal, ALL)),
    ("fatal_idle", |w| recover(w, Cause::Fatal, &[])),
    ("fatal_traffic", |w| {
        recover(w, Cause::Fatal, &[Load::Traffic])
    }),
    ("fatal_faults", |w| {
        recover(w, Cause::Fatal, &[Load::Faults])
    }),
    ("fatal_listener", |w| {
        recover(w, Cause::Fatal, &[Load::Listener])
    }),
    ("fatal_disk", |w| recover(w, Cause::Fatal, &[Load::Disk])),
    ("fatal_files", |w| recover(w, Cause::Fatal, &[Load::Files])),
    ("fatal_rds", |w| recover(w, Cause::Fatal, &[Load::Rds])),
    ("fatal_lease", |w| recover(w, Cause::Fatal, &[Load::Lease])),
    ("device_reset", |w| recover(w, Cause::DeviceReset, PROGRAMS)),
    ("function_reset", |w| {
        recover(w, Cause::FunctionReset, PROGRAMS)
    }),
    ("command_timeout", |w| {
        recover(w, Cause::CommandTimeout, PROGRAMS)
    }),
    ("device_reset_everything", |w| {
        recover(w, Cause::DeviceReset, ALL)
    }),
    ("function_reset_everything", |w| {
        recover(w, Cause::FunctionReset, ALL)
    }),
    ("command_timeout_everything", |w| {
        recover(w, Cause::CommandTimeout, but_lease(ALL))
    }),
    // A process that is frozen can't tell how long it has waited.
    ("suspend", |w| recover(w, Cause::Suspend, but_lease(ALL))),
    ("reload", |w| recover(w, Cause::Reload, PROGRAMS)),
    ("reload_everything", |w| recover(w, Cause::Reload, ALL)),
    ("second_attempt", second_attempt),
    ("given_up", given_up),
    ("stopped_briefly", |w| {
        stopped(w, Duration::from_secs(8), &[])
    }),
    ("stopped_for_a_minute", |w| {
        stopped(w, Duration::from_secs(60), but_lease(ALL))
    }),
    ("removed_while_recovering", removed_while_recovering),
    ("again_and_again", again_and_again),
];

/// The tests of emulators that end behind a supervisor (docs/recovery.md). All guests have the same.
pub const RESTARTS: &[(&str, Test)] = &[
    ("killed", |w| recover(w, Cause::ServerKilled, ALL)),
    ("killed_idle", |w| recover(w, Cause::ServerKilled, &[])),
    ("aborted", |w| recover(w, Cause::ServerAborted, PROGRAMS)),
    ("renewed", |w| recover(w, Cause::ServerRenewed, PROGRAMS)),
    ("aborted_everything", |w| {
        recover(w, Cause::ServerAborted, ALL)
    }),
    ("renewed_everything", |w| {
        recover(w, Cause::ServerRenewed, ALL)
    }),
    ("killed_100_times", killed_100_times),
];

/// What stops the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// A fatal error, of which an event tells the driver.
    Fatal,
    /// A reset that the driver finds out by the silence of the heartbeat.
    DeviceReset,
    /// A function-level reset by the guest's kernel.
    FunctionReset,
    /// A command that is never completed.
    CommandTimeout,
    /// Suspend of the guest to memory (ACPI S3).
    Suspend,
    /// `devlink dev reload`.
    Reload,
    /// `kill -9` of the server behind the supervisor.
    ServerKilled,
    /// The server aborts, as by a failed assertion of a C library or an overflown stack.
    ServerAborted,
    /// SIGHUP to the supervisor.
    ServerRenewed,
}

impl Cause {
    /// True if the driver reports it as a failure.
    fn is_failure(self) -> bool {
        !matches!(self, Self::Suspend | Self::Reload)
    }

    /// True if the devices of all guests stop.
    fn is_of_all(self) -> bool {
        matches!(
            self,
            Self::ServerKilled | Self::ServerAborted | Self::ServerRenewed
        )
    }
}

/// What uses the device meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Writes to the other guest.
    Traffic,
    /// Page faults that the driver has not been told yet.
    Faults,
    /// A program that listens for connections.
    Listener,
    /// A disk of the other guest.
    Disk,
    /// Files of the other guest, by NFS.
    Files,
    /// Messages by RDS, each of which the other guest returns.
    Rds,
    /// A change of memory that waits for a process with a lease on it.
    Lease,
}

impl Load {
    /// Its name for the script `recovery`, if that runs it.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Traffic | Self::Faults => None,
            Self::Listener => Some("listener"),
            Self::Disk => Some("disk"),
            Self::Files => Some("files"),
            Self::Rds => Some("rds"),
            Self::Lease => Some("lease"),
        }
    }

    /// What the other guest offers for it, from then on.
    fn server(self) -> Option<&'static str> {
        match self {
            Self::Disk => Some("ulp_nvme disk"),
            Self::Files => Some("ulp_nfs server"),
            _ => None,
        }
    }

    /// What starts and ends its peer in the other guest, if it has one.
    fn peer(self) -> Option<[&'static str; 2]> {
        (self == Self::Rds).then_some(["recovery offer_rds", "recovery end_rds"])
    }
}

/// Traffic makes the start of others slow. The lease is the last one: it has a time limit.
const ALL: &[Load] = &[
    Load::Listener,
    Load::Disk,
    Load::Files,
    Load::Rds,
    Load::Faults,
    Load::Traffic,
    Load::Lease,
];

/// Those without consumers in the kernel. What these see does not depend on the cause.
const PROGRAMS: &[Load] = &[Load::Listener, Load::Faults, Load::Traffic];

fn but_lease(loads: &'static [Load]) -> &'static [Load] {
    loads.strip_suffix(&[Load::Lease]).unwrap_or(loads)
}

/// The loads that a kernel can have. While RDS accepts a connection it destroys an identifier of the connection manager inside of a
/// handler of that, which lockdep takes for a deadlock (6.12), whatever the adapter.
fn loads_on(kernel: Kernel, loads: &[Load]) -> Vec<Load> {
    let has_lockdep = matches!(kernel, Kernel::Debug | Kernel::Races);
    let can = |load: &Load| *load != Load::Rds || !has_lockdep;
    loads.iter().copied().filter(can).collect()
}

/// The NIC of the second guest.
const NIC: &str = "nic1";

/// Starts what loads need in the first guest.
fn offer(watched: &Watched<'_>, loads: &[Load]) -> Result<()> {
    for command in loads.iter().filter_map(|load| load.server()) {
        watched.server.must(command, SHORT)?;
    }
    Ok(())
}

/// Loads that run in a pair.
struct Loads<'a> {
    watched: &'a Watched<'a>,
    loads: &'a [Load],
    programs: Vec<(Running<'a>, &'static str, bool)>,
}

impl<'a> Loads<'a> {
    /// Starts them. Where there are faults, a scenario runs, with the rules `more` too.
    fn start(watched: &'a Watched<'a>, loads: &'a [Load], more: &str) -> Result<Self> {
        let (server, client) = (watched.server, watched.client);
        let mut programs = Vec::new();
        for load in loads {
            match load {
                Load::Traffic => {
                    let (serving, sending) = traffic(server, client)?;
                    programs.push((serving, "the server of the traffic", false));
                    programs.push((sending, "the client of the traffic", true));
                }
                Load::Faults => {
                    let (serving, sending) = faults(watched, more)?;
                    programs.push((sending, "the sender of pages that are absent", false));
                    programs.push((serving, "the receiver into absent pages", true));
                }
                _ => (),
            }
            if let Some([start, _]) = load.peer() {
                server.must(start, SHORT)?;
            }
            if let Some(name) = load.name() {
                client.must(&format!("recovery load {name}"), 2 * SHORT)?;
            }
        }
        Ok(Self {
            watched,
            loads,
            programs,
        })
    }

    /// Programs whose queue pairs are gone have ended with an error; others go on.
    fn after_recovery(&mut self) -> Result<()> {
        for (running, name, fails) in self.programs.drain(..) {
            match fails {
                true => drop(must_fail(running, name)?),
                false => end(running, name)?,
            }
        }
        self.each("goes_on")
    }

    fn end(self) -> Result<()> {
        self.each("end")?;
        for [_, end] in self.loads.iter().filter_map(|load| load.peer()) {
            self.watched.server.must(end, SHORT)?;
        }
        Ok(())
    }

    fn each(&self, what: &str) -> Result<()> {
        for name in self.loads.iter().filter_map(|load| load.name()) {
            let command = format!("recovery {what} {name}");
            self.watched.client.must(&command, 2 * SHORT)?;
        }
        Ok(())
    }
}

/// Writes into on-demand memory of the second guest, whose driver is not told of a fault.
fn faults<'a>(watched: &'a Watched<'a>, more: &str) -> Result<(Running<'a>, Running<'a>)> {
    let scenario = r#"
title = "A page of the receiver goes, and the record of the fault is lost"
limit = "10m"

[[rule]]
nic = "nic1"
on = { qp = 0, dir = "rx", opcode = "any", nth = 1000 }
do = { evict = { region = 0 } }

[[rule]]
nic = "nic1"
on = { fault = "record", nth = 1 }
do = { drop = {} }
"#;
    start_scenario(watched, &format!("{scenario}{more}"))?;
    let start = |guest: &'a Guest, script: &str| {
        guest.start(&Exec {
            script: script.to_owned(),
            ..Exec::default()
        })
    };
    let command = "exec ib_write_bw --odp -p 18516 -d $RDMA_DEV -x $GID_INDEX -F -D 300";
    let serving = start(watched.client, command)?;
    watched
        .client
        .must("lab_until 10 lab_listens 18516", SHORT)?;
    let sending = start(watched.server, &format!("{command} $PEER_IP"))?;
    until("page faults of the device", SHORT, || {
        let faults = watched.ctl(&["faults", NIC])?;
        let any = faults.to_string().contains("token");
        Ok(any.then_some(()))
    })?;
    Ok((serving, sending))
}

fn start_scenario(watched: &Watched<'_>, text: &str) -> Result<()> {
    let file = watched.logs.join("scenario.toml");
    std::fs::write(&file, text).context("writing a scenario")?;
    watched.faultline(&["ctl", "scenario", "start", "scenario.toml"])?;
    Ok(())
}

fn stop_scenario(watched: &Watched<'_>) -> Result<()> {
    watched.faultline(&["ctl", "scenario", "stop"])?;
    Ok(())
}

/// Stops the device of the second guest.
fn stop(watched: &Watched<'_>, cause: Cause) -> Result<()> {
    let client = watched.client;
    match cause {
        Cause::Fatal => drop(watched.faultline(&["ctl", "action", NIC, "fatal"])?),
        Cause::DeviceReset => drop(watched.faultline(&["ctl", "action", NIC, "reset"])?),
        Cause::FunctionReset => drop(client.must("recovery reset", SHORT)?),
        Cause::Reload => drop(client.must("recovery reload", SHORT)?),
        Cause::Suspend => drop(client.must("recovery suspend", SHORT)?),
        Cause::ServerKilled => emulator(watched)?.end_server(Signal::KILL)?,
        Cause::ServerRenewed => emulator(watched)?.renew()?,
        Cause::ServerAborted => emulator(watched)?.end_server(Signal::ABORT)?,
        Cause::CommandTimeout => {
            let outcome = client.run(
                "timeout 40 ibv_srq_pingpong -n 1 -d $RDMA_DEV -g $GID_INDEX",
                SHORT,
            )?;
            ensure!(!outcome.success(), "a program got its receive queue");
        }
    }
    Ok(())
}

/// No other program of these tests creates a shared receive queue in the second guest.
const LOST_COMMAND: &str = r#"
[[rule]]
nic = "nic1"
on = { command = "create_srq", nth = 1 }
do = { drop = {} }
"#;

/// The device stops under loads, and works again afterwards as before.
fn recover(watched: &Watched<'_>, cause: Cause, loads: &[Load]) -> Result<()> {
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

/// The log, as `journalctl` shows it, explains for each NIC what has happened and how long it took.
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

fn emulator<'a>(watched: &Watched<'a>) -> Result<&'a Emulator> {
    let emulator = watched.cluster.emulator.as_ref();
    emulator.context("there is no emulator")
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

/// The emulator stands still for a while. It does not matter whether the driver takes the devices for dead, and connections for ended:
/// they work afterwards, and consumers in the kernel go on.
fn stopped(watched: &Watched<'_>, time: Duration, loads: &[Load]) -> Result<()> {
    let guests = [watched.server, watched.client];
    let loads = &loads_on(watched.plan.kernel, loads);
    works(watched.cluster)?;
    offer(watched, loads)?;
    for guest in guests {
        guest.must("recovery remember", SHORT)?;
    }
    let mut running = Loads::start(watched, loads, "")?;
    // A machine whose access to a register is not answered stands still, which looks like a stuck processor to its watchdogs.
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
fn removed_while_recovering(watched: &Watched<'_>) -> Result<()> {
    let client = watched.client;
    for moment in MOMENTS {
        let (serving, sending) = traffic(watched.server, client)?;
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

/// Failures of the test `again_and_again`.
pub const TIMES: usize = 50;
/// Prints what must be the same afterwards, with the objects of each kind.
const OBJECTS: &str = "recovery lasting; rdma resource show $RDMA_DEV | sed 's/^[0-9]*: //'";
/// KiB that a guest may have less at its end: caches, and memory that the kernel frees later.
const MEMORY_SLACK: i64 = 8192;
/// KASAN holds back so much of all memory after it was freed (`QUARANTINE_FRACTION` of the kernel). Leaks there are found by kmemleak.
const QUARANTINE_FRACTION: i64 = 32;

/// The memory that a guest has, in KiB, and who has the rest of it.
fn memory(guest: &Guest) -> Result<(i64, String)> {
    let text = guest.must(
        "sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; recovery memory
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
    let lost = before - now;
    say(format!("{TIMES} recoveries cost {lost} KiB"));
    let quarantine = match watched.plan.kernel {
        Kernel::Debug => i64::from(watched.plan.memory) * 1024 / QUARANTINE_FRACTION,
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

/// The server is killed again and again under traffic and with a disk. No guest has to be booted again, neither they nor the supervisor lose
/// anything, and the disk has what was written.
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
        .map(|(before, after)| before - after)
        .collect();
    say(format!(
        "{KILLS} kills: {} until a ping-pong has ended, {} until the disk is read; the guests lost {lost:?} KiB",
        median_and_worst(pings),
        median_and_worst(reads)
    ));
    ensure!(
        lost.iter().all(|kib| *kib < 2 * MEMORY_SLACK),
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

/// What the supervisor holds (descriptors and maps) with the objects of the guests' kernels; and the memory that each guest has, in KiB.
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
