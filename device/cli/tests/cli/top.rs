//! `faultline top` as a program, also in a terminal.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};

use crate::program::{printed_by, server};

const LONG: Duration = Duration::from_secs(30);
const COLUMNS: u16 = 100;
const LINES: u16 = 30;

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.arg("top").args(arguments);
    command.env_remove("RUST_BACKTRACE");
    command.env("FAULTLINE_CONTROL", directory.join("control"));
    command
}

fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = command(directory, arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn printed(directory: &Path, arguments: &[&str]) -> String {
    printed_by(run(directory, arguments), arguments)
}

#[test]
fn one_interval_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["a", "b c"]);
    let json = printed(path, &["--once", "--json", "--interval", "0.1"]);
    assert_eq!(json.lines().count(), 1);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["interval_s"].as_f64().unwrap() >= 0.1, "{json}");
    let names: Vec<_> = json["nics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|nic| &nic["name"])
        .collect();
    assert_eq!(names, ["a", "b c"]);
    assert_eq!(json["nics"][0]["state"], "disabled");
    assert_eq!(json["nics"][0]["link_up"], true);
    assert_eq!(json["nics"][0]["tx_packets_per_s"], 0.0);
    for list in ["queue_pairs", "faults", "regions"] {
        assert_eq!(json[list], json!([]), "{list}");
        assert_eq!(json["incomplete"][list], false, "{list}");
    }
    let one = printed(
        path,
        &["--once", "--json", "--interval", "0.1", "--nic", "b c"],
    );
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["nics"].as_array().unwrap().len(), 1);
    let text = printed(path, &["--once", "--interval", "0.1"]);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("engine "), "{text}");
    assert_eq!(lines[2], "NICs, per second (2)");
    let cells: Vec<_> = lines[4].split_whitespace().take(5).collect();
    assert_eq!(cells, ["a", "disabled", "up", "0", "0"], "{text}");
    let faults = lines[3].find(" NEW ").unwrap();
    assert!(faults < 75, "{text}");
    assert!(text.contains("\nRegions, pages present (0)\n"), "{text}");
}

#[test]
fn json_is_printed_for_each_interval() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["a", "b c"]);
    let mut child = command(path, &["--json", "--interval", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["nics"][1]["name"], "b c");
    }
    // Like other filters, it ends when nothing reads its output.
    drop(lines);
    assert!(wait(&mut child, || {}).success());
}

#[test]
fn mistakes_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let explained = |arguments: &[&str], part: &str| {
        let output = run(path, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        assert!(error.contains(part), "{arguments:?}: {error}");
    };
    explained(&[], "must be a terminal: use --once or --json");
    explained(&["--once"], "there is no socket");
    explained(&["--once", "--interval", "0"], "must be 0.1 to 60 seconds");
    explained(&["--once", "--interval", "x"], "must be 0.1 to 60 seconds");
    explained(&["--once", "--limit", "0"], "--limit");
    let _server = server(path, &["a", "b c"]);
    explained(
        &["--once", "--nic", "x"],
        "there is no NIC \"x\"; the NICs are: a, b c",
    );
}

/// Answers like a control server. Each sample has larger counters.
fn imitate(socket: PathBuf) {
    static SAMPLES: AtomicU64 = AtomicU64::new(0);
    let listener = UnixListener::bind(socket).unwrap();
    let serve = move |mut stream: UnixStream| {
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") {
            if stream.read(&mut byte).unwrap_or(0) == 0 {
                return;
            }
            request.push(byte[0]);
        }
        let request = String::from_utf8(request).unwrap();
        let path = request.split(' ').nth(1).unwrap();
        if path == "/v1/engine" {
            SAMPLES.fetch_add(1, Ordering::Relaxed);
        }
        let body = answer(path, SAMPLES.load(Ordering::Relaxed)).to_string();
        let length = body.len();
        let head =
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        let _ = stream.write_all((head + &body).as_bytes());
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            serve(stream.unwrap());
        }
    });
}

/// The answer to a request in this sample. There are more queue pairs than a snapshot has.
fn answer(path: &str, sample: u64) -> Value {
    let nic = "n\u{1b}[2Jic";
    let summary = json!({
        "name": nic, "mac": "02:00:00:00:00:01", "present": true, "state": "running", "link_up": true, "stalled": false,
        "queue_pairs": 1, "memory_keys": 1, "tx_packets": 1, "rx_packets": 1,
    });
    let link = json!({
        "up": true, "mtu": null, "speed_mbps": 1, "too_long": 0, "tx_dropped": 0, "rx_dropped": 0, "vlan_dropped": 0, "interrupts_lost": 0,
        "tx_drops_pending": 0, "rx_drops_pending": 0, "interrupt_losses_pending": 0,
    });
    let config = json!({
        "mac": "02:00:00:00:00:01", "on_demand": true, "fault_policy": "rnr", "fault_timeout_ns": 1, "stall_timeout_ns": 1,
        "pause_sharers": 1, "park_bytes": 1, "table_bytes": 1, "ready": "known", "mig_req": 1, "congestion_control": "none", "lookup_ns": 0, "pitfalls": [],
    });
    let objects = json!({
        "protection_domains": 1, "memory_keys": 1, "completion_queues": 1, "queue_pairs": 1, "shared_receive_queues": 0,
        "address_handles": 0, "contexts": 1, "timers": 0, "fault_waits": 0,
    });
    let pair = |qpn: u64| {
        json!({
            "qpn": qpn, "kind": "rc", "state": "RTS", "context": 1, "pd": 1, "send_cq": 0, "recv_cq": 0, "srq": null,
            "peer_qpn": 9, "path_mtu": 1024, "fault_policy": "stall", "sends_pending": 4, "waits_for_page": true,
            "tx_packets": sample * if qpn == 77 { 10_000 } else { 1000 },
            "tx_bytes": 0,
            "rx_packets": 1_000_000 - sample, "rx_bytes": 0,
        })
    };
    let (resource, query) = path.split_once('?').unwrap_or((path, ""));
    let from = query
        .strip_prefix("from=")
        .map_or(0, |from| from.parse::<u64>().unwrap());
    match resource.rsplit('/').next().unwrap() {
        "engine" => json!({
            "paused": false, "poll": "busy", "poll_time_us": 50, "uptime_ns": sample * 1_000_000, "device_time_ns": 1,
            "passes": 0, "sleeps": 0, "busy_ns": 0, "longest_pass_ns": 0, "control_requests": 0,
        }),
        "nics" => json!([summary]),
        "faults" => json!([{
            "token": 2049, "key": 517, "va": 12288, "pages": 1, "write": true, "context": 1, "age_ns": 2_500_000,
            "waiters": 1, "qpn": 77,
        }]),
        "contexts" => json!({"items": [
            {"context": 1, "objects": 3, "pid": 345, "program": "e\u{1b}]0;x\u{7}vil\u{9b}1m\n"},
        ], "next": null}),
        "queue-pairs" => json!({
            "items": (from..from + 256).map(pair).collect::<Vec<_>>(), "next": from + 256,
        }),
        "regions" => json!({"items": [{
            "key": 517, "pd": 1, "iova": 0, "length": 4096, "access": [], "on_demand": true, "present_entries": sample,
            "table_bytes": 0,
        }], "next": null}),
        _ => json!({
            "name": nic, "mac": "02:00:00:00:00:01", "state": "running", "fatal_cause": 0, "bus_master": true,
            "stalled": false, "heartbeat": 1, "held_memory": 0, "waiting_notices": 0, "lost_diagnostics": 0,
            "queue_depths": {"events": 3}, "fullest_cq_unread": 19, "fullest_cq_entries": 20,
            "tx_messages": sample, "rx_messages": 0, "link": link, "config": config, "objects": objects, "limits": {},
            "counters": {"tx_packets": 1000 * sample, "rnr_nak_sent": sample, "rx_packets": 100 - sample},
        }),
    }
}

#[test]
fn rates_are_shown_and_control_characters_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    imitate(path.join("control"));
    let json = printed(path, &["--once", "--json", "--interval", "0.1"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let nic = &json["nics"][0];
    assert_eq!(nic["name"], "n?[2Jic");
    let packets = nic["tx_packets_per_s"].as_f64().unwrap();
    // One sample has 1000 more than the one before, at least 0.1 s later.
    assert!(packets > 0.0 && packets <= 10_500.0, "{nic}");
    assert!(nic["rnr_naks_sent_per_s"].as_f64().unwrap() > 0.0, "{nic}");
    assert_eq!(nic["rx_packets_per_s"], Value::Null, "a reset counter");
    let pairs = json["queue_pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 4096);
    assert_eq!(json["incomplete"]["queue_pairs"], true);
    assert_eq!(pairs[0]["qpn"], 77, "the one with most packets");
    assert_eq!(pairs[0]["program"], "e?]0;x?vil?1m?");
    assert_eq!(json["faults"][0]["age_ms"], 2.5);
    assert!(json["regions"][0]["present_change_per_s"].as_f64().unwrap() > 0.0);
    let limited = printed(
        path,
        &[
            "--once",
            "--json",
            "--interval",
            "0.1",
            "--limit",
            "3",
            "--sort",
            "qpn",
        ],
    );
    let limited: Value = serde_json::from_str(&limited).unwrap();
    let pairs = limited["queue_pairs"].as_array().unwrap();
    assert_eq!((pairs.len(), &pairs[2]["qpn"]), (3, &json!(2)));
    let text = printed(path, &["--once", "--interval", "0.1", "--limit", "5"]);
    assert!(
        !text.contains(|c: char| c.is_control() && c != '\n'),
        "{text:?}"
    );
    assert!(text.contains("e?]0;x?vil?1m? 345"), "{text}");
    assert!(text.contains(" 95 %"), "{text}");
    assert!(text.contains("(4096, there are more)"), "{text}");
    assert!(
        text.contains("and 4091 more: --limit N prints more"),
        "{text}"
    );
}

/// Waits for the end of a process.
#[track_caller]
fn wait(child: &mut Child, mut meanwhile: impl FnMut()) -> ExitStatus {
    let start = Instant::now();
    while start.elapsed() < LONG {
        meanwhile();
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    panic!("it has not ended within {LONG:?}");
}

/// `faultline top` in a pseudo-terminal.
struct Terminal {
    child: Child,
    master: File,
    slave: File,
    output: Vec<u8>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Terminal {
    fn start(directory: &Path, variable: Option<&str>) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags =
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let slave: OwnedFd = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
        let size = Winsize {
            ws_row: LINES,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).unwrap();
        let slave = File::from(slave);
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let mut command = command(directory, &["--interval", "0.1"]);
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        if let Some(variable) = variable {
            command.env(variable, "1");
        }
        let child = command.spawn().unwrap();
        Self {
            child,
            master: File::from(master),
            slave,
            output: Vec::new(),
        }
    }

    /// Reads the output, and waits a moment if there is none.
    fn pump(&mut self) {
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).unwrap() > 0 {
            let mut buffer = [0; 4096];
            let count = self.master.read(&mut buffer).unwrap();
            self.output.extend_from_slice(&buffer[..count]);
        }
    }

    /// Waits for a screen.
    #[track_caller]
    fn expect(&mut self, what: &str, wanted: impl Fn(&Shown) -> bool) {
        let start = Instant::now();
        while start.elapsed() < LONG {
            self.pump();
            if wanted(&Shown::new(&self.output)) {
                return;
            }
        }
        panic!("no {what} within {LONG:?}: {:#?}", Shown::new(&self.output));
    }

    #[track_caller]
    fn expect_text(&mut self, text: &str) {
        self.expect(text, |shown| shown.alternate && shown.contains(text));
    }

    fn send(&mut self, bytes: &[u8]) {
        self.master.write_all(bytes).unwrap();
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Waits for the end of the program, and checks that the terminal is as before.
    #[track_caller]
    fn end(&mut self) -> (ExitStatus, Shown) {
        let start = Instant::now();
        let status = loop {
            self.pump();
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < LONG, "it has not ended");
        };
        // Whatever it has written is in the terminal now.
        self.pump();
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
        let shown = Shown::new(&self.output);
        assert!(!shown.alternate && shown.cursor, "{shown:#?}");
        (status, shown)
    }
}

/// The contents of a terminal.
#[derive(Debug)]
struct Shown {
    alternate: bool,
    cursor: bool,
    lines: Vec<String>,
    /// The text that was written outside of the alternate screen.
    plain: String,
}

impl Shown {
    fn new(output: &[u8]) -> Self {
        let blank = || vec![vec![' '; COLUMNS.into()]; LINES.into()];
        let mut cells = blank();
        let (mut alternate, mut cursor, mut plain) = (false, true, String::new());
        let (mut x, mut y) = (0, 0);
        let text = String::from_utf8_lossy(output).into_owned();
        let mut rest = text.as_str();
        while let Some(c) = rest.chars().next() {
            let Some(sequence) = rest.strip_prefix("\x1b[") else {
                if alternate {
                    assert!(!c.is_control(), "{c:?} in {text:?}");
                    cells[y][x] = c;
                    x += 1;
                } else {
                    plain.push(c);
                }
                rest = &rest[c.len_utf8()..];
                continue;
            };
            let Some(end) = sequence.find(|c: char| c.is_ascii_alphabetic()) else {
                break;
            };
            let parameters = &sequence[..end];
            match (parameters, sequence.as_bytes()[end]) {
                ("?1049", b'h') => alternate = true,
                ("?1049", b'l') => alternate = false,
                ("?25", b'h') => cursor = true,
                ("?25", b'l') => cursor = false,
                ("2", b'J') => cells = blank(),
                (place, b'H') => {
                    let (line, column) = place.split_once(';').unwrap();
                    y = line.parse::<usize>().unwrap() - 1;
                    x = column.parse::<usize>().unwrap() - 1;
                }
                (_, b'm') => {}
                other => panic!("unexpected sequence {other:?}"),
            }
            rest = &sequence[end + 1..];
        }
        let lines = cells.iter().map(|line| line.iter().collect::<String>());
        Self {
            alternate,
            cursor,
            lines: lines.map(|line| line.trim_end().to_owned()).collect(),
            plain,
        }
    }

    fn contains(&self, text: &str) -> bool {
        self.lines.iter().any(|line| line.contains(text))
    }
}

#[test]
fn keys_work_and_the_terminal_is_restored() {
    for quit in [&b"q"[..], b"\x1b", b"\x03"] {
        let directory = tempfile::tempdir().unwrap();
        let _server = server(directory.path(), &["a", "b c"]);
        let mut terminal = Terminal::start(directory.path(), None);
        terminal.expect_text("> Queue pairs, per second (0)");
        assert!(terminal.is_raw());
        let shown = Shown::new(&terminal.output);
        assert!(shown.contains("b c disabled up"), "{shown:#?}");
        assert!(!shown.cursor);
        terminal.send(b"\t");
        terminal.expect_text("> Page faults without an answer (0)");
        terminal.send(b"\x1b[D\x1b[D");
        terminal.expect_text("> NICs, per second (2)");
        terminal.send(b"p");
        terminal.expect_text("DISPLAY PAUSED");
        terminal.send(b"p");
        terminal.expect("end of the pause", |shown| {
            !shown.contains("DISPLAY PAUSED")
        });
        terminal.send(b"s");
        terminal.expect_text("by bytes");
        terminal.send(quit);
        let (status, shown) = terminal.end();
        assert_eq!(status.code(), Some(0), "{shown:#?}");
        assert_eq!(shown.plain, "");
    }
}

#[test]
fn the_view_survives_a_restart_of_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let first = server(directory.path(), &["a", "b c"]);
    let mut terminal = Terminal::start(directory.path(), None);
    terminal.expect_text("q quit");
    drop(first);
    terminal.expect_text("no connection, tries again: there is no socket");
    let _second = server(directory.path(), &["a", "b c"]);
    terminal.expect_text("q quit");
    let pid = Pid::from_child(&terminal.child);
    kill_process(pid, Signal::TERM).unwrap();
    let (status, _) = terminal.end();
    assert_eq!(status.code(), Some(0));
}

// A release build ignores the variable.
#[cfg(debug_assertions)]
#[test]
fn the_terminal_is_restored_before_a_panic_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let _server = server(directory.path(), &["a", "b c"]);
    let mut terminal = Terminal::start(directory.path(), Some("FAULTLINE_TEST_TOP_PANIC"));
    let (status, shown) = terminal.end();
    assert_eq!(status.code(), Some(101), "{shown:#?}");
    assert!(
        shown.plain.contains("FAULTLINE_TEST_TOP_PANIC is set"),
        "{shown:#?}"
    );
}

#[test]
fn without_a_process_the_terminal_is_not_taken() {
    let empty = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::start(empty.path(), None);
    let (status, shown) = terminal.end();
    assert_eq!(status.code(), Some(1));
    assert!(shown.plain.contains("there is no socket"), "{shown:#?}");
    assert!(!terminal.output.contains(&0x1b));
}
