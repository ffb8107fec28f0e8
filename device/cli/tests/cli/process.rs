//! The program for an operator: it starts, reports mistakes, and removes its files at the end.

use std::io::Read;
use std::process::Command;

use crate::running::{Program, call, client};
use rustix::process::Signal;

#[test]
fn a_signal_ends_it_and_its_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (directory.path().join("a"), directory.path().join("b"));
    for signal in [Signal::TERM, Signal::INT] {
        let program = Program::start(&[&a, &b]);
        program.says("nic1");
        let mut client = client(&a);
        program.signal(signal);
        program.says("ending");
        assert!(program.ends().success());
        assert!(!a.exists() && !b.exists());
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn sockets_of_killed_processes_are_replaced_and_others_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic");
    let mut killed = Program::start(&[&socket]);
    killed.says("serving on");
    client(&socket);
    killed.child.kill().unwrap();
    assert!(!killed.ends().success());
    assert!(socket.exists(), "nobody could remove it");

    let alive = Program::start(&[&socket]);
    alive.says("serving on");
    client(&socket);
    let other = Program::start(&[&socket]);
    other.says("in use by another process");
    assert!(!other.ends().success());
    client(&socket);
}

/// Position, key and allowed values, once: the message of a configuration file that can't be used.
#[test]
fn a_mistake_in_the_configuration_file_is_located_and_named_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nics.toml");
    for (keys, message) in [
        (
            "fault_policy = \"lazy\"\n",
            "3:16: nic[0].fault_policy: invalid value: string \"lazy\", expected one of `rnr`, `drop`, `stall`, `terminate`",
        ),
        // The last one is found when the command line has been read as well.
        (
            "[[port]]\nname = \"p\"\nkind = \"vhost-user-net\"\nsocket = \"/a\"\n",
            "6:10: port[0].socket: the socket /a is taken by --nic a=/a: each NIC and port needs its own",
        ),
    ] {
        std::fs::write(&file, format!("[[nic]]\nname = \"a\"\n{keys}")).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_faultline"))
            .args(["serve", "--nic", "a=/a", "--config"])
            .arg(&file)
            .env_remove("RUST_BACKTRACE")
            .env_remove("RUST_LIB_BACKTRACE")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let message = format!("Error: {}:{message}\n", file.display());
        assert_eq!(String::from_utf8(output.stderr).unwrap(), message);
    }
}

/// QEMU without a shared memory backend: the guest would see errors only, so the log must tell the operator.
#[test]
fn memory_that_cannot_be_reached_is_reported_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic");
    let program = Program::start(&[&socket]);
    program.says("serving on");
    let mut client = client(&socket);
    let map = |iova: u64, size: u64| {
        let mut body = 32u32.to_le_bytes().to_vec();
        body.extend(3u32.to_le_bytes());
        for value in [0, iova, size] {
            body.extend(value.to_le_bytes());
        }
        body
    };
    // A device's BAR comes the same way and is no reason to complain.
    assert_eq!(call(&mut client, 2, &map(0xfe00_0000, 1 << 20)), 0);
    assert_eq!(call(&mut client, 2, &map(0x1_0000_0000, 1 << 30)), 0);
    let line = program.says("came without a descriptor");
    for part in [
        "ERROR",
        "0x100000000",
        "1024 MiB",
        "memory-backend-memfd",
        "share=on",
    ] {
        assert!(line.contains(part), "{line}");
    }
}

/// A guest can reset its device without end; the log is shared with others.
#[test]
fn repeated_events_of_a_guest_do_not_fill_the_log() {
    const RESET: u16 = 13;
    const UNKNOWN: u16 = 999;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nic");
    let program = Program::start(&[&socket]);
    program.says("serving on");
    let mut client = client(&socket);
    for _ in 0..500 {
        assert_eq!(call(&mut client, RESET, &[]), 0);
    }
    for _ in 0..500 {
        assert_ne!(call(&mut client, UNKNOWN, &[]), 0);
    }
    drop(client);
    let mut lines = 0;
    let line = loop {
        let line = program.says("");
        if line.contains("suppressed") {
            break line;
        }
        lines += 1;
        // 20 of each: requests, refusals, and resets as the NIC reports them.
        assert!(lines < 80, "{line}");
    };
    // One of the 20 was that of the connection.
    assert!(line.contains("981 messages"), "{line}");
    program.says("client disconnected");
}

/// A process without its engine would refuse its clients for ever: a supervisor must see that it failed. Release builds
/// have no way to provoke it.
#[cfg(debug_assertions)]
#[test]
fn the_end_of_the_engine_is_the_end_of_the_process() {
    // The only one, and one of two.
    for (thread, engines) in [("engine", "1"), ("engine-1", "2")] {
        let directory = tempfile::tempdir().unwrap();
        let sockets = ["nic", "other"].map(|name| directory.path().join(name));
        let program = Program::start_with(&[&sockets[0], &sockets[1]], |command| {
            command.args(["--engines", engines]);
            command.env("FAULTLINE_TEST_ENGINE_PANIC", thread);
        });
        program.says("panicked at");
        let line = program.says(&format!("thread {thread} has ended"));
        assert!(line.contains("ERROR"), "{line}");
        let status = program.ends();
        assert_eq!(status.code(), Some(1), "{status}");
        let are_gone = sockets.iter().all(|socket| !socket.exists());
        assert!(are_gone, "the sockets are gone");
    }
}
