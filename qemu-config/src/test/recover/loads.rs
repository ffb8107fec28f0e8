//! Causes that stop a device, and the programs that use it meanwhile.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::emulator::Emulator;
use crate::guest::{Guest, Running};
use crate::image::Kernel;
use crate::protocol::Exec;
use crate::test::sight::watched::{SHORT, Watched, until};
use crate::test::traffic::{end, must_fail, traffic, traffic_of};

/// What stops the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A fatal error, which an event reports to the driver.
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
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Suspend | Self::Reload)
    }

    /// True if the devices of all guests stop.
    pub fn is_of_all(self) -> bool {
        matches!(
            self,
            Self::ServerKilled | Self::ServerAborted | Self::ServerRenewed
        )
    }
}

/// What uses the device meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// SENDs to the other guest.
    Traffic,
    /// WRITEs to the other guest and from it. Over rdma_cm, a sender of perftest may wait for ever in a loop without a call of the library.
    Writes,
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
            Self::Traffic | Self::Writes | Self::Faults => None,
            Self::Listener => Some("listener"),
            Self::Disk => Some("disk"),
            Self::Files => Some("files"),
            Self::Rds => Some("rds"),
            Self::Lease => Some("lease"),
        }
    }

    /// The service of the other guest for it, from then on.
    fn server(self) -> Option<&'static str> {
        match self {
            Self::Disk => Some("ulp_nvme disk"),
            Self::Files => Some("ulp_nfs server"),
            _ => None,
        }
    }

    /// The start and the end of its peer in the other guest, if it has one.
    fn peer(self) -> Option<[&'static str; 2]> {
        (self == Self::Rds).then_some(["recovery offer_rds", "recovery end_rds"])
    }
}

/// Traffic makes the start of others slow. The lease is the last one: it has a time limit.
pub const ALL: &[Load] = &[
    Load::Listener,
    Load::Disk,
    Load::Files,
    Load::Rds,
    Load::Faults,
    Load::Traffic,
    Load::Lease,
];

/// Those without consumers in the kernel. The cause makes no difference for these.
pub const PROGRAMS: &[Load] = &[Load::Listener, Load::Faults, Load::Traffic];

pub fn but_lease(loads: &'static [Load]) -> &'static [Load] {
    loads.strip_suffix(&[Load::Lease]).unwrap_or(loads)
}

/// The loads that a kernel can have. While RDS accepts a connection it destroys an identifier of the connection manager inside of a
/// handler of that, which lockdep takes for a deadlock (6.12), whatever the adapter.
pub fn loads_on(kernel: Kernel, loads: &[Load]) -> Vec<Load> {
    let has_lockdep = matches!(kernel, Kernel::Debug | Kernel::Races);
    let can = |load: &Load| *load != Load::Rds || !has_lockdep;
    loads.iter().copied().filter(can).collect()
}

/// In both directions: an end that has nothing to send does not notice that its peer has vanished.
pub const WRITES: &str = "ib_write_bw -b";

/// The NIC of the second guest.
const NIC: &str = "nic1";

/// Starts the servers for loads in the first guest.
pub fn offer(watched: &Watched<'_>, loads: &[Load]) -> Result<()> {
    for command in loads.iter().filter_map(|load| load.server()) {
        watched.server.must(command, SHORT)?;
    }
    Ok(())
}

/// Loads that run in a pair.
pub struct Loads<'a> {
    watched: &'a Watched<'a>,
    loads: &'a [Load],
    /// Each with its name, and true if it must end with an error.
    pub programs: Vec<(Running<'a>, &'static str, bool)>,
}

impl<'a> Loads<'a> {
    /// Starts them. Where there are faults, a scenario runs, with the rules `more` too.
    pub fn start(watched: &'a Watched<'a>, loads: &'a [Load], more: &str) -> Result<Self> {
        let (server, client) = (watched.server, watched.client);
        let mut programs = Vec::new();
        for load in loads {
            match load {
                Load::Traffic => {
                    let (serving, sending) = traffic(server, client)?;
                    programs.push((serving, "the server of the traffic", false));
                    programs.push((sending, "the client of the traffic", true));
                }
                Load::Writes => {
                    let (serving, sending) = traffic_of(server, client, WRITES)?;
                    programs.push((serving, "the server of the writes", false));
                    programs.push((sending, "the client of the writes", true));
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

    /// Programs that have lost their queue pairs have ended with an error; others continue.
    pub fn after_recovery(&mut self) -> Result<()> {
        for (running, name, fails) in self.programs.drain(..) {
            match fails {
                true => drop(must_fail(running, name)?),
                false => end(running, name)?,
            }
        }
        self.each("goes_on")
    }

    pub fn end(self) -> Result<()> {
        self.each("end")?;
        for [_, end] in self.loads.iter().filter_map(|load| load.peer()) {
            self.watched.server.must(end, SHORT)?;
        }
        Ok(())
    }

    pub fn each(&self, what: &str) -> Result<()> {
        for name in self.loads.iter().filter_map(|load| load.name()) {
            let command = format!("recovery {what} {name}");
            self.watched.client.must(&command, 2 * SHORT)?;
        }
        Ok(())
    }
}

/// Writes into on-demand memory of the second guest, whose driver gets no event for the faults.
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

pub fn start_scenario(watched: &Watched<'_>, text: &str) -> Result<()> {
    let file = watched.logs.join("scenario.toml");
    std::fs::write(&file, text).context("writing a scenario")?;
    watched.faultline(&["ctl", "scenario", "start", "scenario.toml"])?;
    Ok(())
}

pub fn stop_scenario(watched: &Watched<'_>) -> Result<()> {
    watched.faultline(&["ctl", "scenario", "stop"])?;
    Ok(())
}

/// Stops the device of the second guest.
pub fn stop(watched: &Watched<'_>, cause: Cause) -> Result<()> {
    let client = watched.client;
    match cause {
        Cause::Fatal => drop(watched.faultline(&["ctl", "action", NIC, "fatal"])?),
        Cause::DeviceReset => drop(watched.faultline(&["ctl", "action", NIC, "reset"])?),
        Cause::FunctionReset => drop(client.must("recovery reset", SHORT)?),
        Cause::Reload => drop(client.must("recovery reload", SHORT)?),
        // Its attempts, with alarms after 4 to 32 s, may take more than a minute together.
        Cause::Suspend => drop(client.must("recovery suspend", 3 * SHORT)?),
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

/// The emulator of the pair.
pub fn emulator<'a>(watched: &Watched<'a>) -> Result<&'a Emulator> {
    let emulator = watched.cluster.emulator.as_ref();
    emulator.context("there is no emulator")
}
