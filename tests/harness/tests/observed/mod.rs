//! What a test sees of a process: its log, and the control server's answers.

#![allow(
    dead_code,
    reason = "a module of several test programs, each of which uses a part of it"
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use faultline_harness::testbed::LONG;
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

/// The log of the test's process, at all levels.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Starts to log, once: the tests of a program share it.
    pub fn start() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_ansi(false)
                .with_writer(log.clone())
                .init();
            log
        })
    }

    /// All messages until now.
    pub fn text(&self) -> String {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// The control server's answer to a request, with its head.
pub fn exchange(socket: &Path, method: &str, path: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The body of the answer to a request, which must succeed.
#[track_caller]
pub fn request(socket: &Path, method: &str, path: &str, body: &str) -> String {
    let answer = exchange(socket, method, path, body);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 20"), "{path}: {answer}");
    assert!(!head.to_lowercase().contains("chunked"), "{head}");
    body.to_owned()
}

/// Header and records of the trace, from this path of the control server.
#[track_caller]
pub fn trace(socket: &Path, path: &str) -> (Value, Vec<Value>) {
    let text = request(socket, "GET", path, "");
    let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    (lines.next().unwrap(), lines.collect())
}
