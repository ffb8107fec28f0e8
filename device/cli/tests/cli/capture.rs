//! `faultline capture` as a program. Frames come in through a port.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use faultline_config::{Config, ControlSettings};
use faultline_daemon::Server;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

const LONG: Duration = Duration::from_secs(20);

/// A process with a NIC `a` and a port `wire`, and the other end of the port.
fn start(directory: &Path) -> (Server, UnixStream) {
    let wire = directory.join("wire");
    let text = format!(
        "[[port]]\nname = \"wire\"\nkind = \"stream\"\nlisten = \"unix:{}\"\n",
        wire.display()
    );
    let nic = format!("a={}", directory.join("a").display());
    let config = Config {
        nics: vec![nic.parse().unwrap()],
        control: ControlSettings {
            socket: Some(directory.join("control")),
            ..ControlSettings::default()
        },
        ..Config::from_toml(&text).unwrap()
    };
    let server = faultline_control::serve(&config).unwrap();
    (server, UnixStream::connect(&wire).unwrap())
}

/// A broadcast frame of no protocol.
fn send(wire: &mut UnixStream, octets: usize) {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    frame.resize(octets, 7);
    let length = u32::try_from(octets).unwrap();
    wire.write_all(&length.to_be_bytes()).unwrap();
    wire.write_all(&frame).unwrap();
}

fn capture(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.arg("capture").args(arguments);
    command.env("FAULTLINE_CONTROL", directory.join("control"));
    command.current_dir(directory).stderr(Stdio::piped());
    command
}

/// Sends frames until the program ends.
#[track_caller]
fn send_until_end(child: Child, wire: &mut UnixStream) -> Output {
    let mut child = child;
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < LONG);
        send(wire, 100);
        std::thread::yield_now();
    }
    child.wait_with_output().unwrap()
}

#[track_caller]
fn checked(directory: &Path, file: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    let command = command.arg("check").arg(directory.join(file));
    let output = command.output().unwrap();
    // No frame is RoCE.
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_file_has_as_many_frames_as_were_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (_server, mut wire) = start(path);
    let arguments = ["--nic", "wire", "--count", "5", "-w", "x.pcapng"];
    let child = capture(path, &arguments).spawn().unwrap();
    let output = send_until_end(child, &mut wire);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("5 frames captured"), "{said}");
    assert!(checked(path, "x.pcapng").starts_with("5 frames, 0 RoCE"));
}

#[test]
fn the_end_of_the_reader_ends_the_capture() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (_server, mut wire) = start(path);
    let mut command = capture(path, &["-w", "-"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // As `head -c 4`.
    let mut magic = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut magic).unwrap();
    assert_eq!(magic, [0x0a, 0x0d, 0x0d, 0x0a]);
    let output = send_until_end(child, &mut wire);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_fifo_is_written_from_when_it_has_a_reader_until_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (_server, mut wire) = start(path);
    mkfifoat(CWD, path.join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    let child = capture(path, &["--snaplen", "20", "-w", "fifo"])
        .spawn()
        .unwrap();
    let mut fifo = std::fs::File::open(path.join("fifo")).unwrap();
    // The beginning: the capture runs.
    let mut text = vec![0; 4];
    fifo.read_exact(&mut text).unwrap();
    send(&mut wire, 1000);
    let marker = [7; 6];
    let mut part = [0; 1000];
    while !text.windows(6).any(|window| window == marker) {
        let octets = fifo.read(&mut part).unwrap();
        assert_ne!(octets, 0);
        text.extend(&part[..octets]);
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    fifo.read_to_end(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    // At the port, and at the NIC unless it has no bus mastering.
    assert!(said.contains(" frames captured"), "{said}");
    std::fs::write(path.join("x"), text).unwrap();
    let said = checked(path, "x");
    assert!(said.contains("frames are cut"), "{said}");
}

#[test]
fn problems_are_reported_before_a_file_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (_server, _wire) = start(path);
    for (arguments, what) in [
        (
            ["--nic", "b"],
            "there is no NIC or port \"b\"; there are: a, wire",
        ),
        (["--opcode", "RNR"], "there is no opcode \"RNR\""),
    ] {
        let mut command = capture(path, &arguments);
        let output = command.args(["-w", "x"]).output().unwrap();
        assert!(!output.status.success());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(what), "{error}");
        assert!(!path.join("x").exists());
    }
}
