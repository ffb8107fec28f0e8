//! The suite `iwarp-recover`: the iWARP adapter of a guest stops, or is removed, under connections. Those end at both ends,
//! listeners for any address exist again, and new connections work.

use anyhow::{Result, ensure};

use super::facts::{On, Row, Runs, SuiteFacts, by_name, row, runs};
use super::recover::loads::{Cause, Load, WRITES, start_scenario};
use super::recover::{recover, removed_while_recovering};
use super::sight::Test;
use super::sight::watched::{SHORT, Watched};
use super::traffic::{end, must_fail, traffic_of, works};
use crate::cluster::{Plan, configure};

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "iwarp-recover",
    shows: "An iWARP adapter works again after its device stopped, or was removed, under connections.",
    runs: runs(
        On::Nothing,
        On::First,
        "`recover` and `robustness` have them for RoCE",
    ),
};

/// The tests.
pub const TESTS: &[Row<Test>] = &[
    row::<Test>("fatal", PROGRAMS, |w| recover(w, Cause::Fatal, LOADS)),
    row::<Test>("device_reset", PROGRAMS, |w| {
        recover(w, Cause::DeviceReset, LOADS)
    }),
    row::<Test>("function_reset", PROGRAMS, |w| {
        recover(w, Cause::FunctionReset, LOADS)
    }),
    row::<Test>(
        "both_ends_fail",
        "The programs at both ends get an error.",
        both_ends_fail,
    ),
    row::<Test>(
        "removed_while_recovering",
        "The driver can be unbound at four moments of a recovery.",
        removed_while_recovering,
    ),
    row::<Test>("module_removed_under_traffic", REMOVED, |w| {
        removed(w, &MODULE)
    }),
    row::<Test>("device_unbound_under_traffic", REMOVED, |w| {
        removed(w, &UNBOUND)
    }),
    row::<Test>("device_removed_under_traffic", REMOVED, |w| {
        removed(w, &PCI_REMOVED)
    }),
    row::<Test>("fatal_disk", CONSUMER, |w| {
        recover(w, Cause::Fatal, &[Load::Disk])
    })
    .runs(CONSUMERS),
    row::<Test>("fatal_files", CONSUMER, |w| {
        recover(w, Cause::Fatal, &[Load::Files])
    })
    .runs(CONSUMERS),
    // The guest ends.
    row::<Test>(
        "unplugged_under_traffic",
        "Programs get an error, the device can be removed, and the guest shuts down.",
        unplugged,
    ),
    row::<Test>(SERVER_KILLED, PROGRAMS, |w| {
        recover(w, Cause::ServerKilled, LOADS)
    }),
    row::<Test>(SERVER_KILLED_DISK, CONSUMER, |w| {
        recover(w, Cause::ServerKilled, &[Load::Disk])
    })
    .runs(CONSUMERS),
];

const LOADS: &[Load] = &[Load::Listener, Load::Writes];

const PROGRAMS: &str = "A listener, and WRITEs in both directions, work again.";
const CONSUMER: &str = "The same under a consumer in the kernel.";
const REMOVED: &str = "Traffic ends at both ends, and a listener hears of the next device.";
const CONSUMERS: Runs = by_name("a minute each");

const SERVER_KILLED: &str = "server_killed";
const SERVER_KILLED_DISK: &str = "server_killed_disk";

/// The guests of a test.
pub fn plan_of(name: &str, plan: &Plan) -> Plan {
    Plan {
        supervisor: [SERVER_KILLED, SERVER_KILLED_DISK].contains(&name),
        ..plan.clone()
    }
}

/// How the device is taken from the second guest, and given back.
struct Removal {
    take: &'static str,
    give: &'static str,
}

const MODULE: Removal = Removal {
    take: "rmmod faultline",
    give: "modprobe faultline",
};

const UNBOUND: Removal = Removal {
    take: "driver_of_device unbind",
    give: "driver_of_device bind",
};

/// As an orderly hot removal.
const PCI_REMOVED: Removal = Removal {
    take: "driver_of_device remove",
    give: "driver_of_device rescan",
};

/// The device goes while programs and a listener of its guest use it, and comes back.
fn removed(watched: &Watched<'_>, removal: &Removal) -> Result<()> {
    let client = watched.client;
    works(watched.cluster)?;
    client.must("recovery load listener", SHORT)?;
    let (serving, sending) = traffic_of(watched.server, client, WRITES)?;
    client.must(removal.take, SHORT)?;
    must_fail(sending, "the client of the traffic")?;
    must_fail(serving, "the server of the traffic")?;
    client.must(removal.give, SHORT)?;
    configure(client, watched.plan)?;
    client.must("recovery goes_on listener && recovery end listener", SHORT)?;
    works(watched.cluster)
}

fn both_ends_fail(watched: &Watched<'_>) -> Result<()> {
    let client = watched.client;
    works(watched.cluster)?;
    client.must("recovery remember; fatal_event watch", SHORT)?;
    let (serving, sending) = traffic_of(watched.server, client, WRITES)?;
    watched.faultline(&["ctl", "action", NIC, "fatal"])?;
    must_fail(sending, "the client of the traffic")?;
    must_fail(serving, "the server of the traffic")?;
    client.must(
        "fatal_event wait; pkill -x ibv_asyncwatch; recovery counted 1",
        SHORT,
    )?;
    works(watched.cluster)
}

fn unplugged(watched: &Watched<'_>) -> Result<()> {
    let client = watched.client;
    works(watched.cluster)?;
    client.must("fatal_event watch; recovery load listener", SHORT)?;
    let (serving, sending) = traffic_of(watched.server, client, WRITES)?;
    start_scenario(watched, VANISHES)?;
    must_fail(sending, "the client of the traffic")?;
    client.must("fatal_event wait", SHORT)?;
    end(serving, "the server of the traffic")?;
    client.must("driver_of_device remove && recovery end listener", SHORT)?;
    let serial = client.serial();
    ensure!(
        !serial.contains("blocked for more than"),
        "a task hangs:\n{serial}"
    );
    let _ = client.run("echo o >/proc/sysrq-trigger && sleep 60", 2 * SHORT);
    client.wait_off(2 * SHORT)
}

const VANISHES: &str = r#"
title = "The device of the second guest is removed"
limit = "10m"

[[at]]
nic = "nic1"
time = "1ms"
do = { remove = {} }
"#;

/// The NIC of the second guest.
const NIC: &str = "nic1";
