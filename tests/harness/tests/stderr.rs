//! A reader of standard error that has stopped holds up neither NICs nor the end of the process.

use std::io::{PipeReader, Read, Write, pipe};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use faultline_config::{Config, ControlSettings, NicEntry, PollMode};
use faultline_harness::frames::{Frame, raw_qp, send};
use faultline_harness::testbed::{Node, connect_nodes, until};
use faultline_harness::traffic::exchange;
use faultline_harness::{Nic, QpType, Rng, SendWr};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tempfile::TempDir;

use crate::observed;

/// Directory of the sockets: this test program is the served process then.
const DIRECTORY: &str = "FAULTLINE_TEST_STDERR";

/// A process whose standard error is a full pipe.
struct Process {
    child: Child,
    directory: TempDir,
    /// Nothing is read from it.
    _reader: PipeReader,
}

/// A pipe in which there is no room.
fn full_pipe() -> (PipeReader, OwnedFd) {
    let (reader, mut writer) = pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    for chunk in [&[b'x'; 4096][..], b"x"] {
        while writer.write(chunk).is_ok() {}
    }
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer.into())
}

impl Process {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (reader, stderr) = full_pipe();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "stderr::be_the_process",
                "--nocapture",
            ])
            .env(DIRECTORY, directory.path())
            .env("RUST_LOG", "trace")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let process = Self {
            child,
            directory,
            _reader: reader,
        };
        process.wait_for_socket("control");
        process
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    #[track_caller]
    fn wait_for_socket(&self, name: &str) {
        until("it serves", || self.socket(name).exists());
    }

    fn node(&self, name: &str) -> Node {
        Node::new(Nic::open(&self.socket(name)).unwrap()).unwrap()
    }

    #[track_caller]
    fn ends(mut self) {
        drop(self.child.stdin.take());
        until("it ends", || self.child.try_wait().unwrap().is_some());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: the process of the others.
#[test]
#[ignore = "is started by another test"]
fn be_the_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let socket = |name: &str| Path::new(&directory).join(name);
    let nic = |name: &str| NicEntry {
        name: name.to_owned(),
        socket: socket(name),
        ..NicEntry::default()
    };
    let config = Config {
        poll: PollMode::Adaptive,
        nics: ["a", "b", "c"].map(nic).into(),
        control: ControlSettings {
            socket: Some(socket("control")),
            ..ControlSettings::default()
        },
        ..Config::default()
    };
    faultline_daemon::log::output::start(None);
    let server = faultline_control::serve(&config).unwrap();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(server);
    assert!(
        !faultline_daemon::log::output::finish(),
        "nothing reads the log"
    );
}

/// The value of a metric that has no label.
fn metric(process: &Process, name: &str) -> u64 {
    let text = observed::request(&process.socket("control"), "GET", "/metrics", "");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    value.trim().parse().unwrap()
}

#[test]
fn traffic_continues_while_standard_error_is_full() {
    let process = Process::start();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| process.node(name));
    let mut rng = Rng::new(1);
    let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);

    // The engine has something to say: a frame in the name of another NIC.
    let mut raw = raw_qp(&c, &c.cq, 6).unwrap();
    let forged = Frame {
        src: a.nic.mac(),
        dst: b.nic.mac(),
        ..Frame::to(&c.nic)
    };
    send(&mut c, &mut raw, &forged.bytes());
    exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);

    // Each key that is refused is several messages.
    for _ in 0..50 {
        let (mut qc, _peer) = connect_nodes(&c, &b, QpType::Rc).unwrap();
        let mut remote = b.mr.remote(0);
        remote.key ^= 1;
        qc.post_send(&SendWr::write_inline(b"refused", remote).signaled())
            .unwrap();
        assert!(!c.completion().is_ok());
    }
    exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
    until("a line is lost", || {
        // Each is a line.
        let (control, running) = (process.socket("control"), r#"{"paused": false}"#);
        for _ in 0..100 {
            observed::request(&control, "PUT", "/v1/engine", running);
        }
        metric(&process, "faultline_log_lines_lost_total") > 0
    });
    drop((qa, qb, raw, a, b, c));
    process.ends();
}
