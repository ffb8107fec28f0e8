//! Sockets of a served process: clients that are served or refused, and files that are left behind.

use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use faultline_config::{Config, NicEntry, PollMode};
use faultline_control::ServeError;
use faultline_daemon::server::StartError;
use faultline_harness::testbed::{Fabric, LONG, Node};
use faultline_harness::traffic::{Neighbours, Storm, exchange_anew};
use faultline_harness::{Nic, Rng};

fn config(sockets: &[PathBuf]) -> Config {
    let nics = sockets.iter().enumerate().map(|(i, socket)| NicEntry {
        name: format!("nic{i}"),
        socket: socket.clone(),
        ..NicEntry::default()
    });
    Config {
        nics: nics.collect(),
        ..Config::default()
    }
}

/// Starting must fail; returns the message.
#[track_caller]
fn refused(config: &Config) -> String {
    match faultline_control::serve(config) {
        Ok(_) => panic!("it serves"),
        // As the emulator prints it: the error and its cause.
        Err(error @ ServeError::Start(StartError::Listen { .. })) => {
            format!("{:#}", anyhow::Error::from(error))
        }
        Err(error) => panic!("{error}"),
    }
}

/// Two NICs at these sockets work together.
fn works(sockets: &[PathBuf]) {
    let node = |path: &PathBuf| Node::new(Nic::open(path).unwrap()).unwrap();
    let (mut a, mut b) = (node(&sockets[0]), node(&sockets[1]));
    exchange_anew(&mut a, &mut b, &mut Rng::new(1));
}

fn paths(directory: &Path, names: [&str; 2]) -> [PathBuf; 2] {
    names.map(|name| directory.join(name))
}

#[test]
fn sockets_are_private_and_go_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let sockets = paths(directory.path(), ["a", "b"]);
    let server = faultline_control::serve(&config(&sockets)).unwrap();
    for socket in &sockets {
        let found = std::fs::metadata(socket).unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!(found.mode() & 0o7777, 0o600);
    }
    let node = |path: &PathBuf| Node::new(Nic::open(path).unwrap()).unwrap();
    let (a, b) = (node(&sockets[0]), node(&sockets[1]));
    let mut storm = Storm::new([&a, &b], &mut Rng::new(2)).unwrap();
    for _ in 0..10 {
        storm.turn([&a, &b]);
    }
    // With clients, and with work under way; and it must come to an end.
    let (done, ended) = mpsc::channel();
    let stopping = std::thread::spawn(move || {
        drop(server);
        let _ = done.send(());
    });
    ended.recv_timeout(LONG).expect("the server does not end");
    stopping.join().unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    for node in [&a, &b] {
        assert!(node.nic.read_reg(0).is_err());
        assert!(node.nic.pd().is_err());
    }
    drop((storm, a, b));
    let _server = faultline_control::serve(&config(&sockets)).unwrap();
    works(&sockets);
}

#[test]
fn a_group_of_a_nic_is_for_its_socket_only() {
    let directory = tempfile::tempdir().unwrap();
    let sockets = paths(directory.path(), ["a", "b"]);
    let group = std::process::Command::new("id")
        .arg("-gn")
        .output()
        .unwrap();
    let group = String::from_utf8(group.stdout).unwrap();
    let mut config = config(&sockets);
    config.nics[0].socket_group = Some(group.trim().to_owned());
    let server = faultline_control::serve(&config).unwrap();
    let modes = sockets.each_ref().map(|socket| {
        let found = std::fs::metadata(socket).unwrap();
        found.mode() & 0o7777
    });
    assert_eq!(modes, [0o660, 0o600]);
    drop(server);
    config.nics[1].socket_group = Some("no-such-group".to_owned());
    let error = faultline_control::serve(&config).unwrap_err();
    assert!(error.to_string().contains("no-such-group"), "{error}");
}

#[test]
fn a_server_that_cannot_serve_all_nics_serves_none_and_harms_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let first = paths(directory.path(), ["a", "b"]);
    let _server = faultline_control::serve(&config(&first)).unwrap();
    let new = directory.path().join("new");
    let file = directory.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    for (taken, why) in [
        (&first[1], "in use by another process"),
        (&file, "is not a socket"),
        (&directory.path().join("no/nic"), "does not exist"),
    ] {
        let message = refused(&config(&[new.clone(), taken.clone()]));
        assert!(message.starts_with("NIC nic1: "), "{message}");
        assert!(message.contains(why), "{message}");
        assert!(message.contains(taken.to_str().unwrap()), "{message}");
        assert!(!new.exists(), "a socket without a server is left");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    // The second server probed the socket with a connection, which must not affect the first.
    works(&first);
}

#[test]
fn sockets_without_a_server_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let sockets = paths(directory.path(), ["a", "b"]);
    for socket in &sockets {
        drop(UnixListener::bind(socket).unwrap());
        assert!(socket.exists());
    }
    let _server = faultline_control::serve(&config(&sockets)).unwrap();
    works(&sockets);
}

#[test]
fn a_second_client_is_sent_away_and_the_first_does_not_notice() {
    let fabric = Fabric::start(PollMode::Adaptive, &["c", "d"]).unwrap();
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    for n in 0..200 {
        let socket = fabric.socket(["c", "d"][n % 2]);
        let mut second = UnixStream::connect(socket).unwrap();
        second.set_read_timeout(Some(LONG)).unwrap();
        let got = second.read(&mut [0]);
        assert!(matches!(got, Ok(0)), "not sent away: {got:?}");
        if n % 20 == 0 {
            assert!(Nic::open(&fabric.socket("c")).is_err());
            neighbours.unharmed();
        }
    }
    neighbours.finish();
    // Their places are free now.
    works(&[fabric.socket("c"), fabric.socket("d")]);
}
