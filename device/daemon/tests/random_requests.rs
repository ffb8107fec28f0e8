//! Random requests to the control server: each gets an answer or an end of its connection, and the server survives.

#![cfg(test)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use faultline::{Config, ControlSettings, Server};

const REQUESTS: u32 = 100_000;
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
    "/v1/engine/step",
    "/v1/nics/a/dump",
    "/v1/nics/a/faults",
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
];
const HEADERS: &[&str] = &[
    "",
    "",
    "",
    "content-type: text/plain\r\n",
    "accept: */*\r\n",
    "x:\r\n",
    "expect: 100-continue\r\n",
    "authorization: Bearer x\r\n",
];

fn request(random: &mut Random) -> Vec<u8> {
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
        "{method} {path}{query} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes();
    // Some are not HTTP any more.
    if random.below(100) == 0 {
        let at = random.below(bytes.len());
        bytes[at] = random.next().to_le_bytes()[0];
    }
    bytes
}

/// Reads one answer. `None`: the connection is of no further use.
fn answer(stream: &mut BufReader<UnixStream>) -> Option<u16> {
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

fn connect(socket: &Path) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(socket).unwrap();
    // A byte that was changed may make a request that the server waits for the rest of.
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    BufReader::new(stream)
}

#[test]
fn random_requests_are_survived() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let nic = |name: &str| format!("{name}={}", directory.path().join(name).display());
    let config = Config {
        nics: vec![nic("a").parse().unwrap(), nic("b").parse().unwrap()],
        control: ControlSettings {
            socket: Some(socket.clone()),
            ..ControlSettings::default()
        },
        ..Config::default()
    };
    let _server = Server::start(&config).unwrap();
    let mut random = Random(0x5eed_00c0_ffee);
    let mut stream = connect(&socket);
    let mut statuses = std::collections::BTreeMap::new();
    let mut sent = 0;
    while sent < REQUESTS {
        // Several at once, as a client that pipelines: it is also faster.
        let batch: Vec<u8> = (0..16).flat_map(|_| request(&mut random)).collect();
        sent += 16;
        let _ = stream.get_mut().write_all(&batch);
        for _ in 0..16 {
            match answer(&mut stream) {
                Some(status) => *statuses.entry(status).or_insert(0u32) += 1,
                None => {
                    stream = connect(&socket);
                    break;
                }
            }
        }
    }
    for expected in [200, 204, 400, 404, 405, 409] {
        assert!(statuses.contains_key(&expected), "{statuses:?}");
    }
    assert!(statuses.keys().all(|status| *status < 500), "{statuses:?}");
    let answered: u32 = statuses.values().sum();
    assert!(answered > REQUESTS / 2, "{statuses:?}");
    // It still works, and the engine too.
    let mut stream = connect(&socket);
    stream.get_ref().set_read_timeout(Some(LONG)).unwrap();
    let resume = b"PUT /v1/engine HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n{\"paused\": false}";
    stream.get_mut().write_all(resume).unwrap();
    assert_eq!(answer(&mut stream), Some(200));
}
