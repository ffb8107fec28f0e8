//! Clients of the control server that occupy connections keep out no others.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use faultline_config::{Config, ControlSettings};
use faultline_daemon::Server;

/// Connections that a listener has at a time.
const PLACES: usize = 32;
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// More than an answer takes on a busy machine, and less than the time limits of connections.
const PROMPT: Duration = Duration::from_secs(2);
/// More than the time limit for a client that reads nothing (5 s), and less than the longest age of a connection (60 s).
const PATIENCE: Duration = Duration::from_secs(30);

struct Process {
    _server: Server,
    directory: tempfile::TempDir,
    port: u16,
}

impl Process {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let token_file = directory.path().join("token");
        std::fs::write(&token_file, TOKEN).unwrap();
        std::fs::set_permissions(&token_file, PermissionsExt::from_mode(0o600)).unwrap();
        loop {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let nic = format!("a={}", directory.path().join("a").display());
            let config = Config {
                nics: vec![nic.parse().unwrap()],
                control: ControlSettings {
                    socket: Some(directory.path().join("control")),
                    listen: Some(([127, 0, 0, 1], port).into()),
                    token_file: Some(token_file.clone()),
                },
                ..Config::default()
            };
            // Another process may have taken the port.
            if let Ok(server) = faultline_control::serve(&config) {
                return Self {
                    _server: server,
                    directory,
                    port,
                };
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("control")
    }

    fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A request with the token.
    fn request(&self) -> String {
        let port = self.port;
        format!(
            "GET /v1/nics HTTP/1.1\r\nhost: localhost:{port}\r\nauthorization: Bearer {TOKEN}\r\n"
        )
    }
}

fn unix(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a request and checks that it succeeds; how long this took.
#[track_caller]
fn answered(mut stream: impl Read + Write, head: &str) -> Duration {
    let start = Instant::now();
    write!(stream, "{head}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    start.elapsed()
}

/// Whether the server has closed a connection without an answer.
#[track_caller]
fn is_closed(mut stream: impl Read) {
    match stream.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("not closed: {other:?}"),
    }
}

#[test]
fn connections_without_the_token_keep_out_no_client() {
    let process = Process::start();
    // Each of them has its own way not to prove that it may ask.
    let half = format!(
        "GET /v1/nics HTTP/1.1\r\nhost: localhost:{}\r\n",
        process.port
    );
    let idle: Vec<TcpStream> = (0..3 * PLACES)
        .map(|n| {
            let mut stream = process.tcp();
            // The server may have closed it already.
            let _ = stream.write_all(&half.as_bytes()[..half.len() * (n % 2)]);
            stream
        })
        .collect();
    for _ in 0..3 {
        let took = answered(process.tcp(), &process.request());
        assert!(took < PROMPT, "{took:?}");
    }
    let took = answered(unix(&process.socket()), &process.request());
    assert!(took < PROMPT, "{took:?}");
    // None of them lives for long.
    let start = Instant::now();
    idle.iter().for_each(is_closed);
    assert!(start.elapsed() < PATIENCE / 3, "{:?}", start.elapsed());
}

#[test]
fn a_refused_request_is_the_last_of_its_connection() {
    let process = Process::start();
    let mut stream = process.tcp();
    let request = process.request().replace(TOKEN, "0123");
    write!(stream, "{request}\r\n{}\r\n", process.request()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
}

#[test]
fn a_connection_with_the_token_stays_open() {
    let process = Process::start();
    let mut stream = process.tcp();
    let read = |stream: &mut TcpStream| {
        let mut answer = Vec::new();
        while !answer.ends_with(b"]") {
            let mut part = [0; 4096];
            let length = stream.read(&mut part).unwrap();
            assert_ne!(length, 0, "closed");
            answer.extend_from_slice(&part[..length]);
        }
    };
    for _ in 0..2 {
        write!(stream, "{}\r\n", process.request()).unwrap();
        read(&mut stream);
        // More than the time for the first request with the token. Others that need places do not end it either.
        std::thread::sleep(Duration::from_secs(4));
        let idle: Vec<TcpStream> = (0..2 * PLACES).map(|_| process.tcp()).collect();
        answered(process.tcp(), &process.request());
        drop(idle);
    }
    write!(stream, "{}\r\n", process.request()).unwrap();
    read(&mut stream);
}

#[test]
fn clients_that_do_not_read_lose_their_places() {
    let process = Process::start();
    let many = format!("{}\r\n", process.request().replace("/nics", "/nics/a")).repeat(500);
    let silent: Vec<UnixStream> = (0..PLACES)
        .map(|_| {
            let mut stream = unix(&process.socket());
            stream.set_nonblocking(true).unwrap();
            // The server reads no further when its answers have no room.
            let _ = stream.write(many.as_bytes()).unwrap();
            stream
        })
        .collect();
    let took = answered(unix(&process.socket()), &process.request());
    assert!(took < PATIENCE, "{took:?}");
    // The other listener has places of its own.
    let took = answered(process.tcp(), &process.request());
    assert!(took < PROMPT, "{took:?}");
    drop(silent);
}
