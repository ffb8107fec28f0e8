//! `faultline serve` as a process, and a client of it.
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const LONG: Duration = Duration::from_secs(10);

pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) log: Receiver<String>,
}

impl Program {
    pub(crate) fn start(sockets: &[&Path]) -> Self {
        Self::start_with(sockets, |_| {})
    }

    pub(crate) fn start_with(sockets: &[&Path], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        command.arg("serve").env_remove("RUST_LOG");
        prepare(&mut command);
        for (i, socket) in sockets.iter().enumerate() {
            command.arg(format!("--nic=nic{i}={}", socket.display()));
        }
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tx, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = tx.send(line);
            }
        });
        Self { child, log }
    }

    /// Waits until it says this.
    #[track_caller]
    pub(crate) fn says(&self, what: &str) -> String {
        let mut before = Vec::new();
        loop {
            match self.log.recv_timeout(LONG) {
                Ok(line) if line.contains(what) => return line,
                Ok(line) => before.push(line),
                Err(_) => panic!("it never says {what:?}, but {before:#?}"),
            }
        }
    }

    #[track_caller]
    pub(crate) fn ends(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LONG, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A vfio-user request, and the errno of the reply.
pub(crate) fn call(stream: &mut UnixStream, command: u16, body: &[u8]) -> u32 {
    request(stream, command, body).0
}

/// The same with the body of the reply.
pub(crate) fn request(stream: &mut UnixStream, command: u16, body: &[u8]) -> (u32, Vec<u8>) {
    let mut message = vec![1, 0];
    message.extend(command.to_le_bytes());
    message.extend((16 + body.len() as u32).to_le_bytes());
    message.extend([0; 8]);
    message.extend(body);
    stream.write_all(&message).unwrap();
    let mut header = [0; 16];
    stream.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut rest = vec![0; word(4) as usize - 16];
    stream.read_exact(&mut rest).unwrap();
    (word(12), rest)
}

pub(crate) fn client(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(call(&mut stream, 1, &[0; 4]), 0);
    stream
}
