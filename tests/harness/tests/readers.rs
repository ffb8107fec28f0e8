//! Clients of the control server that do not read, while two NICs exchange data as fast as they can.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use faultline_config::Config;
use faultline_harness::Rng;
use faultline_harness::testbed::{Fabric, LONG, Node, until};
use faultline_harness::traffic::Storm;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::Value;

use crate::alone;

/// Time for which data is exchanged between two looks at the server.
const WINDOW: Duration = Duration::from_millis(100);
/// How often readers come, stop, and go.
const ROUNDS: usize = 3;
/// The engine's thread must have had at least this multiple of the server's processor time.
const MORE: u32 = 4;
/// Records of the trace.
const RECORDS: u64 = 16_384;
/// Requests of the readers, which are more frequent than their sockets have room for answers.
const PATHS: [&str; 4] = [
    "/metrics",
    "/v1/trace?from=0&limit=4096",
    "/v1/nics/a/dump",
    "/v1/nics/b/queue-pairs",
];
/// Readers of each path. The server sends readers away that take nothing for some seconds: on a busy machine it must have filled the
/// buffers of all before.
const READERS: usize = 2;
/// Readers of snapshots: more than the server makes at a time.
const SNAPSHOTS: usize = 6;

/// A process with two NICs, and its control socket.
fn start() -> (Fabric, PathBuf) {
    let config = Config {
        trace_records: RECORDS as usize,
        ..Config::default()
    };
    let fabric = Fabric::start_controlled(config, &["a", "b"]).unwrap();
    let socket = fabric.control();
    (fabric, socket)
}

/// A client that asks again and again, and never reads.
fn silent(socket: &Path, path: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_nonblocking(true).unwrap();
    let requests = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").repeat(1000);
    // What finds no room is not sent.
    match stream.write(requests.as_bytes()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
    }
    stream
}

fn readers(socket: &Path) -> Vec<UnixStream> {
    let each = |path| (0..READERS).map(move |_| silent(socket, path));
    PATHS.iter().flat_map(|path| each(path)).collect()
}

/// The body of an answer.
#[track_caller]
fn answer(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // An answer to HTTP/1.0 has no chunks.
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.") && head.contains(" 200 "),
        "{head}"
    );
    body.to_owned()
}

/// First line of a part of the trace that begins at a record.
fn header(socket: &Path, from: u64) -> Value {
    let text = answer(socket, &format!("/v1/trace?from={from}&limit=1"));
    serde_json::from_str(text.lines().next().unwrap()).unwrap()
}

/// Lets the storm continue for a time; returns the messages of NIC `a` in it.
fn storm_for(storm: &mut Storm, nodes: [&Node; 2], time: Duration) -> u64 {
    let sent =
        |node: &Node| node.nic.counters().unwrap()[faultline_abi::admin::Counter::tx_packets];
    let before = sent(nodes[0]);
    let start = Instant::now();
    while start.elapsed() < time {
        storm.turn(nodes);
    }
    sent(nodes[0]) - before
}

/// Time that a thread of this process has had on a processor.
fn processor_time(name: &str) -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let text = threads.flatten().find_map(|thread| {
        let comm = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        let text = || std::fs::read_to_string(thread.path().join("schedstat")).ok();
        (comm.trim() == name).then(text)?
    });
    let text = text.expect("no such thread");
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Lets the storm go on until the server has filled the readers' buffers and waits for them: for as long as data is exchanged then,
/// it asks the engine for nothing, and its thread does nothing. However much else the machine does, that is what readers cost.
fn fill(storm: &mut Storm, nodes: [&Node; 2], socket: &Path) {
    let state = || {
        let text = answer(socket, "/v1/engine");
        let engine: Value = serde_json::from_str(&text).unwrap();
        let requests = engine["control_requests"].as_u64().unwrap();
        (requests, ["engine", "control"].map(processor_time))
    };
    until("the readers cost nothing", || {
        let (requests, times) = state();
        assert_ne!(storm_for(storm, nodes, WINDOW), 0, "the data stops");
        let now = ["engine", "control"].map(processor_time);
        let [engine, server] = [0, 1].map(|i: usize| now[i] - times[i]);
        // The request of this question is one.
        state().0 <= requests + 1 && engine > MORE * server
    });
}

/// True if the server has ended the connection.
fn is_sent_away(reader: &UnixStream) -> bool {
    let mut fds = [PollFd::new(reader, PollFlags::RDHUP)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents().contains(PollFlags::RDHUP)
}

#[test]
fn readers_that_do_not_read_hold_up_neither_data_nor_others() {
    let _alone = alone();
    let (fabric, socket) = start();
    let (a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let nodes = [&a, &b];
    let mut storm = Storm::new(nodes, &mut Rng::new(18)).unwrap();
    storm_for(&mut storm, nodes, WINDOW);
    let first = header(&socket, 0)["next"].as_u64().unwrap();

    let start = Instant::now();
    let mut shown = 0;
    while shown < ROUNDS {
        assert!(
            start.elapsed() < LONG,
            "readers are sent away in each round"
        );
        let silent = readers(&socket);
        fill(&mut storm, nodes, &socket);
        // Others are answered while the readers are there.
        for path in ["/v1/nics", "/metrics", "/v1/nics/a/dump"] {
            answer(&socket, path);
        }
        shown += usize::from(!silent.iter().any(is_sent_away));
    }
    fabric.assert_passes_are_short();

    // A reader that comes back later is told how much it has lost, and the rest is complete.
    let late = loop {
        let late = header(&socket, first);
        if late["lost"] != 0 {
            break late;
        }
        assert!(start.elapsed() < LONG, "{late}");
        storm_for(&mut storm, nodes, WINDOW);
    };
    let (next, lost) = (
        late["next"].as_u64().unwrap(),
        late["lost"].as_u64().unwrap(),
    );
    assert_eq!(late["first"].as_u64().unwrap(), first + lost);
    assert_eq!(next, first + lost + 1);
}

/// Status of a request.
fn status(socket: &Path, path: &str) -> u16 {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split_whitespace().nth(1);
    status.and_then(|status| status.parse().ok()).unwrap()
}

#[test]
fn snapshots_that_are_not_read_have_a_limit() {
    let _alone = alone();
    const SNAPSHOT: &str = "/v1/trace/snapshot";
    let (fabric, socket) = start();
    let (a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let mut storm = Storm::new([&a, &b], &mut Rng::new(18)).unwrap();
    // More than a socket has room for.
    until("a long snapshot", || {
        storm_for(&mut storm, [&a, &b], WINDOW);
        answer(&socket, SNAPSHOT).len() > 1 << 20
    });
    let start = Instant::now();
    // The server ends connections that do not read, so this may take several attempts.
    let mut refused = false;
    while !refused {
        assert!(start.elapsed() < LONG, "there is no limit");
        let ask = |_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            write!(stream, "GET {SNAPSHOT} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            stream
        };
        let silent: Vec<UnixStream> = (0..SNAPSHOTS).map(ask).collect();
        refused = (0..8).any(|_| status(&socket, SNAPSHOT) == 503);
        assert_eq!(status(&socket, "/metrics"), 200);
        drop(silent);
    }
    // The end of the connections makes room.
    while status(&socket, SNAPSHOT) != 200 {
        assert!(start.elapsed() < LONG, "the snapshots are kept");
    }
}
