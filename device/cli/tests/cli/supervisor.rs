//! `faultline serve --supervisor`: clients whose server ends and comes back.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::running::{LONG, Program, call, client, request};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

const DMA_MAP: u16 = 2;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;

fn supervisor(sockets: &[&Path], arguments: &[&str]) -> Program {
    Program::start_with(sockets, |command| {
        command.arg("--supervisor").args(arguments);
    })
}

/// The server of a supervisor, if it has one.
fn server_of(supervisor: &Program) -> Option<Pid> {
    let pid = supervisor.child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child = children.split_whitespace().next()?;
    Pid::from_raw(child.parse().unwrap())
}

/// A server other than this one.
#[track_caller]
fn next_server(supervisor: &Program, before: Option<Pid>) -> Pid {
    let start = Instant::now();
    loop {
        if let Some(pid) = server_of(supervisor).filter(|pid| Some(*pid) != before) {
            return pid;
        }
        assert!(start.elapsed() < LONG, "no server is started");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[track_caller]
fn wait_for_end(pid: Pid) {
    let start = Instant::now();
    while test_kill_process(pid).is_ok() {
        assert!(start.elapsed() < LONG, "process {pid:?} does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

fn access(offset: u64, region: u32, count: u32) -> Vec<u8> {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend(region.to_le_bytes());
    body.extend(count.to_le_bytes());
    body
}

/// Reads a word of config space.
#[track_caller]
fn config(client: &mut UnixStream, offset: u64) -> u32 {
    let (errno, reply) = request(client, REGION_READ, &access(offset, 7, 4));
    assert_eq!(errno, 0);
    u32::from_le_bytes(reply[16..].try_into().unwrap())
}

#[test]
fn clients_outlive_servers_that_are_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (directory.path().join("a"), directory.path().join("b"));
    let supervisor = supervisor(&[&a, &b], &[]);
    supervisor.says("serving on");
    let mut client = client(&a);
    let mut map = 32u32.to_le_bytes().to_vec();
    map.extend(3u32.to_le_bytes());
    for value in [0u64, 0x10_0000, 0x1000] {
        map.extend(value.to_le_bytes());
    }
    assert_eq!(call(&mut client, DMA_MAP, &map), 0);
    // Address of BAR 0; memory access and bus mastering.
    for (offset, value) in [(0x10, 0xfe00_0000u32), (0x4, 6)] {
        let write = [access(offset, 7, 4), value.to_le_bytes().to_vec()].concat();
        assert_eq!(call(&mut client, REGION_WRITE, &write), 0);
    }
    let before = [0x10, 0x4, 0x0].map(|offset| config(&mut client, offset));
    let held = descriptors(supervisor.child.id());
    let mut server = next_server(&supervisor, None);
    for _ in 0..5 {
        // A server that ends at once is started again after a pause only.
        std::thread::sleep(Duration::from_millis(1050));
        kill_process(server, Signal::KILL).unwrap();
        let after = [0x10, 0x4, 0x0].map(|offset| config(&mut client, offset));
        assert_eq!(after, before);
        assert_eq!(call(&mut client, REGION_READ, &access(0, 0, 4)), 0);
        server = next_server(&supervisor, Some(server));
        supervisor.says("has the client's state");
    }
    assert_eq!(
        descriptors(supervisor.child.id()),
        held,
        "it leaks descriptors"
    );
    // The same client, and a new one after it.
    drop(client);
    let mut client = crate::running::client(&b);
    assert_eq!(config(&mut client, 0), before[2]);
    supervisor.signal(Signal::TERM);
    assert!(supervisor.ends().success());
    wait_for_end(server);
    assert!(!a.exists() && !b.exists());
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

/// The attached client is the one of the supervisor, also behind a second server.
#[test]
fn a_client_behind_a_supervisor_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (a, control) = (directory.path().join("a"), directory.path().join("control"));
    let supervisor = supervisor(&[&a], &["--control", control.to_str().unwrap()]);
    supervisor.says("serving on");
    let mut client = client(&a);
    let id = config(&mut client, 0);
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let own = format!("{} {} for ", name.trim_end(), std::process::id());
    let listed = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_faultline"));
        command
            .args(["ctl", "nics"])
            .env("FAULTLINE_CONTROL", &control);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let found = listed();
    assert!(found.contains(&own), "{found}");
    std::thread::sleep(Duration::from_millis(1050));
    let server = next_server(&supervisor, None);
    kill_process(server, Signal::KILL).unwrap();
    supervisor.says("has the client's state");
    assert_eq!(config(&mut client, 0), id);
    let found = listed();
    assert!(found.contains(&own), "{found}");
}

#[test]
fn sighup_starts_the_program_anew() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic");
    let supervisor = supervisor(&[&socket], &[]);
    supervisor.says("serving on");
    let mut client = client(&socket);
    let first = next_server(&supervisor, None);
    supervisor.signal(Signal::HUP);
    supervisor.says("has the client's state");
    assert_ne!(next_server(&supervisor, Some(first)), first);
    assert_eq!(call(&mut client, REGION_READ, &access(0, 0, 4)), 0);
    wait_for_end(first);
}

/// The configuration is checked first: a mistake in it must not end the running server.
#[test]
fn sighup_does_not_end_a_server_if_the_next_would_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic");
    let file = directory.path().join("faultline.toml");
    std::fs::write(&file, "engines = 1\n").unwrap();
    let supervisor = supervisor(&[&socket], &["--config", file.to_str().unwrap()]);
    supervisor.says("serving on");
    let server = next_server(&supervisor, None);
    for (mistake, named) in [
        ("engines = 65\n", "faultline.toml"),
        (
            "[[nic]]\nname = \"other\"\nsocket = \"other\"\n",
            "are not those of the supervisor",
        ),
    ] {
        std::fs::write(&file, mistake).unwrap();
        supervisor.signal(Signal::HUP);
        supervisor.says(named);
        supervisor.says("the old one continues");
        assert_eq!(next_server(&supervisor, None), server);
    }
    let mut client = client(&socket);
    assert_eq!(call(&mut client, REGION_READ, &access(0, 0, 4)), 0);
    std::fs::write(&file, "engines = 2\n").unwrap();
    supervisor.signal(Signal::HUP);
    supervisor.says("has the client's state");
    assert_ne!(next_server(&supervisor, Some(server)), server);
}

/// Once a server has run, the supervisor holds the clients' connections, even if the next ones fail.
#[test]
fn clients_outlive_servers_that_can_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic");
    let folder = directory.path().join("control");
    std::fs::create_dir(&folder).unwrap();
    let control = folder.join("socket");
    let supervisor = supervisor(&[&socket], &["--control", control.to_str().unwrap()]);
    supervisor.says("serving on");
    let mut client = client(&socket);
    // A first server that ends earlier is taken for one that can't start.
    std::thread::sleep(Duration::from_millis(1050));
    std::fs::remove_dir_all(&folder).unwrap();
    supervisor.signal(Signal::HUP);
    supervisor.says("starting it again, after 0ns");
    supervisor.says("starting it again, after 100ms");
    std::fs::create_dir(&folder).unwrap();
    supervisor.says("has the client's state");
    assert_eq!(call(&mut client, REGION_READ, &access(0, 0, 4)), 0);
}

#[test]
fn servers_end_with_their_supervisor() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic");
    let mut supervisor = supervisor(&[&socket], &[]);
    supervisor.says("serving on");
    let server = next_server(&supervisor, None);
    supervisor.child.kill().unwrap();
    wait_for_end(server);
}

#[test]
fn a_server_that_can_not_start_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic");
    let control = directory.path().join("none").join("control");
    let supervisor = supervisor(&[&socket], &["--control", control.to_str().unwrap()]);
    supervisor.says("none/control");
    supervisor.says("can't be started");
    assert_eq!(supervisor.ends().code(), Some(1));
    assert!(!socket.exists());
}
