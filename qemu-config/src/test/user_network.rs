//! The suite `user-network`: a guest's netdev and the host reach each other through a stream port, behind which is QEMU's user
//! network.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::facts::{Facts, On, SuiteFacts, facts, runs};
use super::tally::{Tally, Verdict};
use crate::cluster::{Cluster, Plan, free_tcp_port};
use crate::command::{Owned, tail};
use crate::guest::{Guest, complaints};
use crate::protocol::Exec;
use crate::qemu::Qemu;
use crate::socket_folder::SocketFolder;
use crate::workspace::Workspace;
use crate::{progress, stream};

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "user-network",
    shows: "Guest and host reach each other through a stream port and QEMU's user \
        network.",
    runs: runs(
        On::Nothing,
        On::First,
        "a network of the host beyond a stream port",
    ),
};

/// Its tests.
pub const TESTS: &[Facts] = &[facts(
    "qemu",
    "64 MiB over TCP arrive unchanged, both ways.",
)];

/// The guest, the host as the guest sees it, and the network of both.
const GUEST: &str = "10.0.9.15";
const HOST: &str = "10.0.9.2";
const PREFIX: &str = "24";
/// Port of the guest.
const PORT: u16 = 5201;
/// Bytes in each direction.
const BYTES: u64 = 64 << 20;
/// For a step of a guest, on a busy machine.
const SHORT: Duration = Duration::from_secs(60);
/// For the bytes of one direction.
const LONG: Duration = Duration::from_secs(300);

/// Runs the steps whose names contain `filter`.
pub fn run(workspace: &Workspace, filter: &str, dir: &Path, tally: &mut Tally) {
    let names = TESTS.iter().map(|test| test.name);
    for name in names.filter(|name| name.contains(filter)) {
        let full = format!("user-network::{name}");
        progress::begin(&full);
        let started = Instant::now();
        let verdict = match check(workspace, name, &dir.join(format!("user-network-{name}"))) {
            Ok(()) => Verdict::Passed,
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        tally.add(&full, started.elapsed(), verdict);
    }
}

/// A stream in each direction, every byte of which is compared.
fn check(workspace: &Workspace, name: &str, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let sockets = SocketFolder::new()?;
    let socket = sockets.path().join("network");
    let config = dir.join("port.toml");
    let socket_text = socket.display();
    let port = format!(
        "[[port]]\nname = \"network\"\nkind = \"stream\"\nlisten = \"unix:{socket_text}\"\n"
    );
    fs::write(&config, port).with_context(|| format!("writing {}", config.display()))?;
    let plan = Plan {
        guests: 1,
        config: Some(config),
        ..Plan::default()
    };
    let cluster = Cluster::boot(workspace, &plan, dir)?;
    let forwarded = free_tcp_port()?;
    let mut command = user_network(workspace, &socket, forwarded)?;
    let log = dir.join("network.log");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).context("creating the log of the network")?);
    let mut network = Owned::spawn(&mut command)?;
    let result = exchange(&cluster, forwarded);
    cluster.save_logs();
    result.with_context(|| {
        let said = tail(&fs::read(&log).unwrap_or_default(), 20);
        match network.ended() {
            Some(status) => format!("{name} has ended ({status}): {said}"),
            None => format!("{name} runs: {said}"),
        }
    })
}

/// The user network of a QEMU that runs no machine.
fn user_network(workspace: &Workspace, socket: &Path, forwarded: u16) -> Result<Command> {
    let mut command = Qemu::obtain(workspace)?.command();
    command
        .args(["-machine", "none", "-nodefaults", "-display", "none"])
        .arg("-netdev")
        .arg(format!(
            "user,id=user,net=10.0.9.0/{PREFIX},host={HOST},hostfwd=tcp:127.0.0.1:{forwarded}-{GUEST}:{PORT}"
        ))
        .args(["-netdev", "hubport,id=a,hubid=0,netdev=user"])
        .arg("-netdev")
        .arg(format!(
            "stream,id=wire,server=off,addr.type=unix,addr.path={}",
            socket.display()
        ))
        .args(["-netdev", "hubport,id=b,hubid=0,netdev=wire"]);
    Ok(command)
}

fn exchange(cluster: &Cluster, forwarded: u16) -> Result<()> {
    let guest = cluster.guests.first().context("no guest")?;
    // The network may not be connected to the switch yet.
    guest.must(
        &format!(
            "ip address add {GUEST}/{PREFIX} dev \"$NETDEV\"\n\
             is_there() {{ ping -c 1 -W 1 {HOST}; ip neighbour show {HOST} | grep lladdr; }}\n\
             lab_until 20 is_there"
        ),
        SHORT,
    )?;
    from_guest(guest).context("from the guest to the host")?;
    to_guest(guest, forwarded).context("from the host to the guest")?;
    let complaints = complaints(&guest.serial());
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

fn from_guest(guest: &Guest) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listening")?;
    let port = listener.local_addr().context("listening")?.port();
    let receiver = thread::spawn(move || stream::receive_from(&listener));
    let sent = guest.run(&format!("lab stream-send {HOST}:{port} {BYTES}"), LONG)?;
    // If the guest has not connected, the receiver waits until the lab ends. If it has, the receiver reports the cause.
    if sent.success() || receiver.is_finished() {
        let received = receiver.join();
        received.map_err(|_| anyhow!("the receiver panicked"))??;
    }
    ensure!(sent.success(), "{}: {}", sent.describe(), sent.text());
    Ok(())
}

fn to_guest(guest: &Guest, forwarded: u16) -> Result<()> {
    let receiving = guest.start(&Exec {
        script: format!("lab stream-receive {PORT}"),
        ..Exec::default()
    })?;
    guest.must(&format!("lab_until 20 lab_listens {PORT}"), SHORT)?;
    let address = format!("127.0.0.1:{forwarded}");
    let sender = thread::spawn(move || stream::send(&address, BYTES, None));
    // When the receiver has ended, so does the sender.
    let received = receiving.wait_more(LONG)?;
    let said = received.text();
    ensure!(received.success(), "{}: {said}", received.describe());
    let sent = sender.join();
    sent.map_err(|_| anyhow!("the sender panicked"))?.map(drop)
}
