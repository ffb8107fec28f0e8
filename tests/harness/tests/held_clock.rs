//! A device clock that a test moves.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use faultline_harness::testbed::LONG;
use serde_json::Value;

use crate::observed::request;

/// The device clock of a process, which stands still from [`HeldClock::hold`] on and advances only as the test says. So a test about
/// time has the same result however busy the machine is. Several engines are one meanwhile.
pub struct HeldClock<'a> {
    socket: &'a Path,
    /// Steps are many, so they have a connection of their own, and how many it has had.
    steps: Mutex<(BufReader<UnixStream>, u32)>,
}

impl<'a> HeldClock<'a> {
    /// Passes of a step. If each has done something, there may be more to do.
    const PASSES: u32 = 64;
    /// Steps of a connection, which the server ends after a minute.
    const STEPS: u32 = 1000;

    pub fn hold(socket: &'a Path) -> Self {
        request(socket, "PUT", "/v1/engine", r#"{"paused": true}"#);
        Self {
            socket,
            steps: Mutex::new((Self::connect(socket), 0)),
        }
    }

    fn connect(socket: &Path) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        BufReader::new(stream)
    }

    /// Returns how many of the passes have done something.
    fn step(&self, advance_us: u128) -> u64 {
        let passes = Self::PASSES;
        let body = format!("{{\"passes\": {passes}, \"advance_us\": {advance_us}}}");
        let length = body.len();
        let mut steps = self.steps.lock().unwrap();
        let (stream, count) = &mut *steps;
        *count += 1;
        if *count > Self::STEPS {
            (*stream, *count) = (Self::connect(self.socket), 1);
        }
        write!(
            stream.get_mut(),
            "POST /v1/engine/step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let from = head.len();
            assert_ne!(stream.read_line(&mut head).unwrap(), 0, "{head}");
            let line = head[from..].to_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut stepped = vec![0; length];
        stream.read_exact(&mut stepped).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let stepped: Value = serde_json::from_slice(&stepped).unwrap();
        stepped["worked"].as_u64().unwrap()
    }

    /// Advances the clock at once, and lets the NICs do all that is due then. Returns true if that was anything.
    pub fn advance(&self, by: Duration) -> bool {
        let first = self.step(by.as_micros());
        let mut worked = first;
        while worked == u64::from(Self::PASSES) {
            worked = self.step(0);
        }
        first > 0
    }

    /// Lets the NICs work while the clock stands still, for something that waits for them.
    pub fn standing<R>(&self, work: impl FnOnce() -> R) -> R {
        /// Ends the thread also if `work` panics.
        struct Ended<'b>(&'b AtomicBool);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = self.advance(Duration::ZERO);
                }
            });
            let _ended = Ended(&is_over);
            work()
        })
    }

    /// Lets the clock go on.
    pub fn release(self) {
        request(self.socket, "PUT", "/v1/engine", r#"{"paused": false}"#);
    }
}
