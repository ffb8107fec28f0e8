//! `cargo lab demo`: two guests, a handful of stock tools, a table.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::{Cluster, Plan};
use crate::command::say;
use crate::exchange::{self, Exchange, Ready};
use crate::programs::Selection;
use crate::workspace::Workspace;
use crate::{figures, qemu};

/// MiB of swap that the demonstration needs in each guest.
pub const SWAP: u32 = 128;

/// The programs of `tests/guest` that it runs.
const PROGRAMS: Selection = Selection::Only(&["odp_story"]);

struct Step {
    what: &'static str,
    server: &'static str,
    client: &'static str,
    ready: Ready,
    figure: fn(&str) -> Option<String>,
}

const STEPS: &[Step] = &[
    Step {
        what: "ping over the NIC's Ethernet interface",
        server: "true",
        client: "ping -c 5 -i 0.2 $PEER_IP",
        ready: Ready::Now,
        figure: |text| Some(format!("{:.2} ms round trip", figures::ping(text)?)),
    },
    Step {
        what: "ibv_rc_pingpong, 4 KiB, data checked",
        server: "ibv_rc_pingpong -c -d $RDMA_DEV -g $GID_INDEX",
        client: "ibv_rc_pingpong -c -d $RDMA_DEV -g $GID_INDEX $PEER_IP",
        ready: Ready::Tcp(18515),
        figure: |text| Some(format!("{:.1} µs round trip", figures::pingpong(text)?)),
    },
    Step {
        what: "ibv_ud_pingpong, 1 KiB, data checked",
        server: "ibv_ud_pingpong -c -s 1024 -d $RDMA_DEV -g $GID_INDEX",
        client: "ibv_ud_pingpong -c -s 1024 -d $RDMA_DEV -g $GID_INDEX $PEER_IP",
        ready: Ready::Tcp(18515),
        figure: |text| Some(format!("{:.1} µs round trip", figures::pingpong(text)?)),
    },
    Step {
        what: "ib_write_bw, 64 KiB",
        server: "ib_write_bw -F -n 1000 -d $RDMA_DEV -x $GID_INDEX",
        client: "ib_write_bw -F -n 1000 -d $RDMA_DEV -x $GID_INDEX $PEER_IP",
        ready: Ready::Tcp(18515),
        figure: |text| {
            Some(format!(
                "{:.0} MiB/s",
                figures::bandwidth(text)?.mib_per_second
            ))
        },
    },
    Step {
        what: "rping, 100 rounds, connection manager, data checked",
        server: "rping -s -V -a $MY_IP -C 100",
        client: "rping -c -V -a $PEER_IP -C 100 && echo fine",
        ready: Ready::Cm("rping"),
        figure: |text| text.contains("fine").then(|| "all rounds right".to_owned()),
    },
    Step {
        what: "memory that is not there, written and read remotely",
        server: "odp_story",
        client: "odp_story $PEER_IP",
        ready: Ready::Tcp(18610),
        figure: |text| {
            let line = text
                .lines()
                .find(|line| line.contains("times a local touch"))?;
            let times = line.split_once(": ")?.1;
            text.contains("as it should be")
                .then(|| format!("4 KiB WRITE onto an absent page: {times}"))
        },
    },
];

/// Runs the demonstration; true if every step succeeded.
pub fn run(workspace: &Workspace, plan: &Plan) -> Result<bool> {
    let dir = workspace.new_run("demo")?;
    let started = Instant::now();
    let plan = Plan {
        programs: PROGRAMS,
        ..plan.clone()
    };
    let cluster = Cluster::boot(workspace, &plan, &dir)?;
    let [server, client] = cluster.guests.as_slice() else {
        bail!("the demonstration needs two guests")
    };
    let mut table = Vec::new();
    let mut good = true;
    for step in STEPS {
        say(step.what);
        let exchange = Exchange {
            server: step.server.to_owned(),
            client: step.client.to_owned(),
            ready: step.ready,
            limit: Duration::from_secs(60),
        };
        let report = exchange::run(server, client, &exchange).context(step.what)?;
        let text = report.client.text();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            println!("    {line}");
        }
        let result = match (step.figure)(&text) {
            Some(figure) if report.success() => figure,
            _ => {
                good = false;
                println!("{}", report.text(30));
                "FAILED".to_owned()
            }
        };
        table.push((step.what, result));
    }
    for trouble in cluster.troubles() {
        println!("{trouble}");
        good = false;
    }
    cluster.save_logs();
    println!("\nbetween two stock Debian guests:");
    for (what, result) in &table {
        println!("    {what:<52} {result}");
    }
    println!("\nbooted:");
    for (name, version) in &cluster.versions {
        println!("    {name:<20} {version}");
    }
    let socket = std::path::Path::new("/tmp/a.sock");
    println!(
        "\nto attach the NIC to a guest of your own, start the emulator\n    \
         cargo run --release -p faultline -- serve --nic a=/tmp/a.sock --nic b=/tmp/b.sock\n\
         and QEMU 10.1 or later with\n    {} …\nHere QEMU is\n    {}",
        qemu::attach_hint(socket),
        cluster.qemu.shown()
    );
    println!(
        "\n{:.0} s; logs: {}",
        started.elapsed().as_secs_f64(),
        workspace.shown(&dir)
    );
    Ok(good)
}
