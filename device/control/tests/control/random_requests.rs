//! Random requests to the control server: each gets an answer or an end of its connection, and the server survives.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use faultline_config::{Config, ControlSettings};
use faultline_daemon::Server;

const REQUESTS: u32 = 100_000;
const TCP_REQUESTS: u32 = 10_000;
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const LONG: Duration = Duration::from_secs(20);

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

const METHODS: &[&str] = &["GET", "GET", "GET", "PUT", "POST", "DELETE", "PATCH", "get"];
const PARTS: &[&str] = &[
    "v1",
    "nics",
    "a",
    "b",
    "queue-pairs",
    "1",
    "2",
    "4294967296",
    "-1",
    "fault-policy",
    "regions",
    "faults",
    "contexts",
    "counters",
    "actions",
    "link",
    "dump",
    "engine",
    "step",
    "trace",
    "metrics",
    "scenario",
    "rules",
    "signals",
    "%61",
    "%2f",
    "%zz",
    "..",
    "",
    "\u{e4}",
];
const KNOWN: &[&str] = &[
    "/v1/nics",
    "/v1/nics/a",
    "/v1/nics/a/queue-pairs",
    "/v1/nics/a/regions",
    "/v1/nics/b/link",
    "/v1/nics/b/actions",
    "/v1/nics/a/queue-pairs/1/fault-policy",
    "/v1/engine",
    "/v1/rules",
    "/v1/rules/1",
    "/v1/engine/step",
    "/v1/nics/a/dump",
    "/v1/nics/a/faults",
    "/v1/scenario",
    "/v1/scenario",
    "/v1/scenario/signals",
];
const QUERIES: &[&str] = &[
    "",
    "",
    "",
    "?",
    "?from=0",
    "?from=99999999999",
    "?limit=1",
    "?limit=0",
    "?limit=x",
    "?from=1&from=2",
    "?x",
    "?%",
    "?limit=256",
];
const BODIES: &[&str] = &[
    "{}",
    "[]",
    "null",
    "{",
    "\u{0}",
    "{\"paused\": true}",
    "{\"paused\": false}",
    "{\"passes\": 3}",
    "{\"passes\": -1}",
    "{\"passes\": 1e99}",
    "{\"up\": false}",
    "{\"up\": true, \"mtu\": 1500}",
    "{\"mtu\": 3}",
    "{\"action\": \"reset\"}",
    "{\"action\": \"fatal\"}",
    "{\"action\": \"fail_faults\"}",
    "{\"action\": {}}",
    "{\"action\": \"lose_interrupts\", \"count\": 1}",
    "{\"action\": \"drop_frames\", \"direction\": \"tx\", \"count\": 4294967295}",
    "{\"policy\": \"stall\"}",
    "\"\\ud800\"",
    "{\"passes\": 1, \"advance_us\": 3600000000}",
    "{\"name\": \"go\"}",
    "{\"name\": \"x\", \"text\": \"[[\"}",
    "{\"name\": \"x\", \"text\": \"\", \"seed\": 18446744073709551615}",
    "{\"name\": \"\\u001b[2J\", \"text\": \"[[rule]]\\nname = \\\"a\\\"\"}",
];
const HEADERS: &[&str] = &[
    "",
    "",
    "",
    "content-type: text/plain\r\n",
    "accept: */*\r\n",
    "x:\r\n",
    "expect: 100-continue\r\n",
    "x-other: y\r\n",
];

/// A request, and whether it is HTTP.
fn request(random: &mut Random, own_headers: &str) -> (Vec<u8>, bool) {
    let method = random.pick(METHODS);
    let path = match random.below(3) {
        0 => KNOWN[random.below(KNOWN.len())].to_owned(),
        _ => {
            let parts = 1 + random.below(6);
            (0..parts)
                .map(|_| format!("/{}", random.pick(PARTS)))
                .collect()
        }
    };
    let (query, headers) = (random.pick(QUERIES), random.pick(HEADERS));
    let body = if random.below(2) == 0 {
        random.pick(BODIES)
    } else {
        ""
    };
    let length = match random.below(400) {
        0 => "-1".to_owned(),
        1 => "99999999999999999999999".to_owned(),
        _ => body.len().to_string(),
    };
    let mut bytes = format!(
        "{method} {path}{query} HTTP/1.1\r\n{own_headers}content-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes();
    let is_http = random.below(100) > 0;
    if !is_http {
        let at = random.below(bytes.len());
        bytes[at] = random.next().to_le_bytes()[0];
    }
    (bytes, is_http)
}

/// Reads one answer. `None`: the connection is of no further use.
fn answer(stream: &mut BufReader<Box<dyn Stream>>) -> Option<u16> {
    let mut status = None;
    let (mut length, mut chunked, mut close) = (0, false, false);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        match line.split_once(": ") {
            _ if line.is_empty() && status == Some(100) => status = None,
            _ if line.is_empty() => break,
            _ if status.is_none() => status = Some(line.split(' ').nth(1)?.parse().ok()?),
            Some(("content-length", n)) => length = n.parse().ok()?,
            Some(("transfer-encoding", _)) => chunked = true,
            Some(("connection", "close")) => close = true,
            _ => {}
        }
    }
    while chunked {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.trim_end(), 16).ok()?;
        let mut part = vec![0; size + 2];
        stream.read_exact(&mut part).ok()?;
        chunked = size > 0;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    status.filter(|_| !close)
}

/// A connection.
trait Stream: Read + Write {
    /// Ends what this side sends.
    fn end(&self);
}

impl Stream for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Stream for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// Where the server listens.
enum Address {
    Unix(PathBuf),
    /// Port, and token.
    Tcp(u16, &'static str),
}

impl Address {
    fn connect(&self, timeout: Duration) -> BufReader<Box<dyn Stream>> {
        let timeout = Some(timeout);
        BufReader::new(match self {
            Self::Unix(socket) => {
                let stream = UnixStream::connect(socket).unwrap();
                stream.set_read_timeout(timeout).unwrap();
                Box::new(stream)
            }
            Self::Tcp(port, _) => {
                let stream = TcpStream::connect(("127.0.0.1", *port)).unwrap();
                stream.set_read_timeout(timeout).unwrap();
                Box::new(stream)
            }
        })
    }

    /// Headers with which a request is not refused.
    fn headers(&self) -> String {
        match self {
            Self::Unix(_) => "host: x\r\n".to_owned(),
            Self::Tcp(port, token) => {
                format!("host: localhost:{port}\r\nauthorization: Bearer {token}\r\n")
            }
        }
    }

    /// Sends random requests, and counts the statuses of the answers.
    fn send_random(&self, random: &mut Random, count: u32) -> BTreeMap<u16, u32> {
        let connect = || self.connect(LONG);
        let mut stream = connect();
        let mut statuses = BTreeMap::new();
        for _ in 0..count / 16 {
            // Several at once, as a client that pipelines: it is also faster.
            let mut batch = Vec::new();
            let mut all_http = true;
            for _ in 0..16 {
                let (bytes, is_http) = request(random, &self.headers());
                batch.extend(bytes);
                all_http &= is_http;
            }
            let _ = stream.get_mut().write_all(&batch);
            // The server may wait for the rest of a request with a changed byte.
            if !all_http {
                stream.get_ref().end();
            }
            for _ in 0..16 {
                match answer(&mut stream) {
                    Some(status) => *statuses.entry(status).or_insert(0) += 1,
                    None => {
                        stream = connect();
                        break;
                    }
                }
            }
        }
        statuses
    }

    /// The server still works, and the engine too.
    fn check(&self) {
        let mut stream = self.connect(LONG);
        let resume = format!(
            "PUT /v1/engine HTTP/1.1\r\n{}content-type: application/json\r\ncontent-length: 17\r\n\r\n{{\"paused\": false}}",
            self.headers()
        );
        stream.get_mut().write_all(resume.as_bytes()).unwrap();
        assert_eq!(answer(&mut stream), Some(200));
    }
}

/// A server on a unix socket and on a free port.
fn start(directory: &std::path::Path) -> (Server, [Address; 2]) {
    let socket = directory.join("control");
    let token_file = directory.join("token");
    std::fs::write(&token_file, TOKEN).unwrap();
    std::fs::set_permissions(&token_file, PermissionsExt::from_mode(0o600)).unwrap();
    let nic = |name: &str| format!("{name}={}", directory.join(name).display());
    loop {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let config = Config {
            nics: vec![nic("a").parse().unwrap(), nic("b").parse().unwrap()],
            control: ControlSettings {
                socket: Some(socket.clone()),
                listen: Some(([127, 0, 0, 1], port).into()),
                token_file: Some(token_file.clone()),
            },
            ..Config::default()
        };
        // Another process may have taken the port.
        if let Ok(server) = faultline_control::serve(&config) {
            return (server, [Address::Unix(socket), Address::Tcp(port, TOKEN)]);
        }
    }
}

#[test]
fn random_requests_are_survived() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, addresses) = start(directory.path());
    let mut random = Random(0x5eed_00c0_ffee);
    // Some answers are rare.
    let common = [200, 400, 404, 405];
    let all = [200, 204, 400, 404, 405, 409];
    let runs = [(REQUESTS, &all[..]), (TCP_REQUESTS, &common)];
    for (address, (count, expected)) in addresses.iter().zip(runs) {
        let statuses = address.send_random(&mut random, count);
        for status in expected {
            assert!(statuses.contains_key(status), "{status}: {statuses:?}");
        }
        assert!(statuses.keys().all(|status| *status < 500), "{statuses:?}");
        let answered: u32 = statuses.values().sum();
        assert!(answered > count / 2, "{statuses:?}");
        address.check();
    }
}

#[test]
fn random_requests_without_the_token_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (_server, [unix, tcp]) = start(directory.path());
    let Address::Tcp(port, _) = tcp else {
        unreachable!()
    };
    let stranger = Address::Tcp(port, "fedcba9876543210fedcba9876543210");
    let mut random = Random(0x5eed_0bad_cafe);
    // Each refusal ends its connection.
    for _ in 0..500 {
        let mut stream = stranger.connect(LONG);
        let (bytes, _) = request(&mut random, &stranger.headers());
        let _ = stream.get_mut().write_all(&bytes);
        stream.get_ref().end();
        let mut text = String::new();
        let _ = stream.read_line(&mut text);
        let allowed = [
            "",
            "HTTP/1.1 400",
            "HTTP/1.1 401",
            "HTTP/1.1 421",
            "HTTP/1.1 431",
        ];
        let is_allowed = text.is_empty() || allowed.iter().any(|start| text.starts_with(start));
        assert!(is_allowed, "{text}");
    }
    unix.check();
}
