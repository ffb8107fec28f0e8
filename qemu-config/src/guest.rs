//! A booted guest: its QEMU, its agent, and the messages of its kernel.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Pid;

use crate::command::{Owned, tail};
use crate::protocol::{CHUNK, Exec, Frame, Kind};
use crate::qemu::{Machine, Qemu};
use crate::races;

/// Time limit until a guest's agent answers. Far longer than usual, because the host may be busy.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// The end of a command in a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// It ended; 0 is success, 128 + n means signal n.
    Exited(i32),
    /// It was killed because it exceeded its time limit.
    TimedOut,
}

/// A finished command.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The end of the command.
    pub status: Status,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Standard output and standard error, in order of arrival.
    pub both: Vec<u8>,
}

impl Outcome {
    /// True if the exit status is 0.
    pub fn success(&self) -> bool {
        self.status == Status::Exited(0)
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The end of the command in words.
    pub fn describe(&self) -> String {
        match self.status {
            Status::Exited(code) if code > 128 => format!("killed by signal {}", code - 128),
            Status::Exited(code) => format!("exit status {code}"),
            Status::TimedOut => "timed out".to_owned(),
        }
    }
}

/// A message of the agent about one command.
type Events = Sender<Frame>;

/// The lab's half of the agent channel.
struct Channel {
    stream: Mutex<UnixStream>,
    commands: Mutex<(u32, HashMap<u32, Events>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channel {
    fn send(&self, frame: &Frame) -> Result<()> {
        frame
            .write_to(&mut *lock(&self.stream))
            .context("the guest's agent channel is closed")
    }
}

/// A running guest.
pub struct Guest {
    /// Its number, from 0.
    pub index: usize,
    /// Its logs.
    pub dir: PathBuf,
    /// The socket of its interactive console.
    pub console: UnixStream,
    qemu: Mutex<Owned>,
    channel: Arc<Channel>,
    serial: PathBuf,
}

/// A guest that has been started and not yet waited for.
pub struct Booting {
    index: usize,
    dir: PathBuf,
    serial: PathBuf,
    agent: UnixListener,
    console: UnixListener,
    qemu: Owned,
    started: Instant,
    limit: Duration,
}

/// Called when a command in a guest reaches a barrier: guest index and barrier name.
pub type OnBarrier = Arc<dyn Fn(usize, &str) + Send + Sync>;

impl Booting {
    /// Starts QEMU. Must be called on a thread that lives as long as the guest: QEMU dies with it. The guest may
    /// take `time_factor` times as long to boot as on a quiet machine.
    pub fn start(qemu: &Qemu, machine: &Machine, dir: &Path, time_factor: u32) -> Result<Self> {
        let bind = |path: &Path| {
            UnixListener::bind(path).with_context(|| format!("binding {}", path.display()))
        };
        let (agent, console) = (bind(&machine.agent)?, bind(&machine.console)?);
        let log = File::create(dir.join("qemu.log")).context("creating QEMU's log")?;
        let mut command = qemu.command();
        command
            .args(machine.arguments())
            .env("TMPDIR", dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("duplicating QEMU's log")?)
            .stderr(log);
        let words: Vec<String> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| format!("{word:?}"))
            .collect();
        fs::write(dir.join("qemu.command"), words.join(" \\\n  ") + "\n")
            .context("writing QEMU's command")?;
        let started = Instant::now();
        let qemu = Owned::spawn(&mut command).context("starting QEMU")?;
        Ok(Self {
            index: machine.index,
            dir: dir.to_owned(),
            serial: machine.serial.clone(),
            agent,
            console,
            qemu,
            started,
            limit: BOOT_LIMIT * time_factor,
        })
    }

    /// Its QEMU.
    pub fn qemu(&self) -> Pid {
        self.qemu.id()
    }

    /// Waits until the agent answers.
    pub fn ready(mut self, on_barrier: OnBarrier) -> Result<Guest> {
        let agent = self.accept(&self.agent.try_clone()?)?;
        let console = self.accept(&self.console.try_clone()?)?;
        let mut reader = agent.try_clone().context("duplicating the agent channel")?;
        reader.set_read_timeout(Some(Duration::from_millis(200)))?;
        loop {
            match Frame::read_from(&mut reader) {
                Ok(Frame {
                    kind: Kind::Ready, ..
                }) => break,
                Ok(frame) => bail!("the agent of guest {} began with {frame:?}", self.index),
                Err(error) if would_block(&error) => self.check_alive()?,
                Err(error) => {
                    // The channel has closed: QEMU's end, and with it the reason, follows.
                    for _ in 0..50 {
                        self.check_alive()?;
                        thread::sleep(Duration::from_millis(100));
                    }
                    return Err(error)
                        .with_context(|| format!("the agent of guest {}", self.index));
                }
            }
        }
        reader.set_read_timeout(None)?;
        let channel = Arc::new(Channel {
            stream: Mutex::new(agent),
            commands: Mutex::new((1, HashMap::new())),
        });
        let (listener, index) = (channel.clone(), self.index);
        thread::spawn(move || dispatch(&mut reader, &listener, index, &on_barrier));
        Ok(Guest {
            index: self.index,
            dir: self.dir,
            console,
            qemu: Mutex::new(self.qemu),
            channel,
            serial: self.serial,
        })
    }

    fn accept(&mut self, listener: &UnixListener) -> Result<UnixStream> {
        listener.set_nonblocking(true)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(stream);
                }
                Err(error) if would_block(&error) => {
                    self.check_alive()?;
                    thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error).context("waiting for QEMU to connect"),
            }
        }
    }

    fn check_alive(&mut self) -> Result<()> {
        let logs = || {
            let read = |path: &Path| fs::read(path).unwrap_or_default();
            let serial = read(&self.serial);
            format!(
                "QEMU said:\n{}\nthe kernel complained:\n{}\nthe serial console ends with:\n{}\n\
                 (logs: {})",
                tail(&read(&self.dir.join("qemu.log")), 25),
                complaints(&String::from_utf8_lossy(&serial)).join("\n"),
                tail(&serial, 25),
                self.dir.display()
            )
        };
        if let Some(status) = self.qemu.ended() {
            bail!(
                "guest {} ended while booting ({status}); {}",
                self.index,
                logs()
            );
        }
        ensure!(
            self.started.elapsed() < self.limit,
            "guest {} has not booted within {} s; {}",
            self.index,
            self.limit.as_secs(),
            logs()
        );
        Ok(())
    }
}

fn would_block(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
    )
}

/// Passes each frame of the agent to the thread that waits for it, until the connection to the guest ends.
fn dispatch(reader: &mut UnixStream, channel: &Channel, index: usize, on_barrier: &OnBarrier) {
    while let Ok(frame) = Frame::read_from(reader) {
        if frame.kind == Kind::Barrier {
            on_barrier(index, &String::from_utf8_lossy(&frame.payload));
            continue;
        }
        let mut commands = lock(&channel.commands);
        let id = frame.id;
        let last = frame.kind == Kind::Exit;
        if let Some(events) = commands.1.get(&id) {
            let _ = events.send(frame);
        }
        if last {
            commands.1.remove(&id);
        }
    }
    // Dropping the senders notifies every waiter of the end of the guest.
    lock(&channel.commands).1.clear();
}

impl Guest {
    /// Starts a script; its output comes through the returned value.
    pub fn start(&self, exec: &Exec) -> Result<Running<'_>> {
        let (events, receiver) = mpsc::channel();
        let id = {
            let mut commands = lock(&self.channel.commands);
            let id = commands.0;
            commands.0 += 1;
            commands.1.insert(id, events);
            id
        };
        let payload = serde_json::to_vec(exec).context("encoding the command")?;
        self.channel
            .send(&Frame::new(Kind::Exec, id, payload))
            .map_err(|error| self.gone(error))?;
        Ok(Running {
            guest: self,
            id,
            events: receiver,
            started: Instant::now(),
        })
    }

    /// Kills a command and its children.
    pub fn kill(&self, id: u32) {
        let _ = self.channel.send(&Frame::new(Kind::Kill, id, ""));
    }

    /// Runs a script to its end and returns its output.
    pub fn run(&self, script: &str, limit: Duration) -> Result<Outcome> {
        self.start(&Exec {
            script: script.to_owned(),
            ..Exec::default()
        })?
        .wait(limit, &mut |_| ())
    }

    /// Runs a script that must succeed and returns its standard output.
    pub fn must(&self, script: &str, limit: Duration) -> Result<String> {
        let outcome = self.run(script, limit)?;
        ensure!(
            outcome.success(),
            "guest {}: {} of {script:?}:\n{}",
            self.index,
            outcome.describe(),
            tail(&outcome.both, 30)
        );
        Ok(outcome.text())
    }

    /// Writes a file in the guest.
    pub fn put(&self, path: &str, content: &[u8]) -> Result<()> {
        let running = self.start(&Exec {
            script: format!("cat > '{path}'"),
            input: true,
            ..Exec::default()
        })?;
        running.input(content)?;
        let outcome = running.wait(Duration::from_secs(120), &mut |_| ())?;
        ensure!(
            outcome.success(),
            "writing {path} in guest {}: {}",
            self.index,
            outcome.describe()
        );
        Ok(())
    }

    /// Copies a folder of the guest to the host. A folder that does not exist counts as empty.
    pub fn fetch_folder(&self, path: &str, to: &Path) -> Result<()> {
        let outcome = self.run(
            &format!(
                "cd '{path}' 2>/dev/null && tar -c --no-same-owner -f - . || tar -c -T /dev/null"
            ),
            Duration::from_secs(300),
        )?;
        ensure!(
            outcome.success(),
            "packing {path} in guest {}: {}",
            self.index,
            outcome.describe()
        );
        fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
        let mut tar = Command::new("tar")
            .args(["-x", "--no-same-owner", "-f", "-", "-C"])
            .arg(to)
            .stdin(Stdio::piped())
            .spawn()
            .context("starting tar")?;
        if let Some(mut input) = tar.stdin.take() {
            std::io::Write::write_all(&mut input, &outcome.stdout)
                .context("unpacking artefacts")?;
        }
        ensure!(
            tar.wait()?.success(),
            "tar could not unpack into {}",
            to.display()
        );
        Ok(())
    }

    /// Shuts the guest down with systemctl and waits until QEMU has exited.
    pub fn power_off(&self, limit: Duration) -> Result<()> {
        // The agent is stopped as well, maybe before it says how the command has ended.
        let _ = self.run("systemctl poweroff", limit);
        self.wait_off(limit)
    }

    /// True if QEMU has exited.
    pub fn is_off(&self) -> bool {
        lock(&self.qemu).ended().is_some()
    }

    /// Waits until QEMU has exited.
    pub fn wait_off(&self, limit: Duration) -> Result<()> {
        let started = Instant::now();
        while !self.is_off() {
            ensure!(
                started.elapsed() < limit,
                "guest {} does not power off; its serial console ends with:\n{}",
                self.index,
                tail(self.serial().as_bytes(), 20)
            );
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Lets commands in this guest pass a barrier.
    pub fn release(&self, barrier: &str) {
        let _ = self.channel.send(&Frame::new(Kind::Release, 0, barrier));
    }

    /// The output of the serial console so far.
    pub fn serial(&self) -> String {
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(&self.serial) {
            let _ = file.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The message for a guest that has ended.
    fn gone(&self, error: anyhow::Error) -> anyhow::Error {
        let status = lock(&self.qemu)
            .ended()
            .unwrap_or_else(|| "still running".to_owned());
        error.context(format!(
            "guest {} is gone (QEMU: {status}); its serial console ends with:\n{}",
            self.index,
            tail(self.serial().as_bytes(), 40)
        ))
    }
}

/// Words in kernel messages about errors.
const TROUBLE: &[&str] = &[
    "BUG:",
    "Oops",
    "WARNING:",
    "Call Trace",
    "Kernel panic",
    "general protection fault",
    "INFO: task",
    "soft lockup",
    "UBSAN",
    "refcount_t",
    "list_add corruption",
    "list_del corruption",
];

/// The lines in which a kernel reports errors, except data races in which the driver under test has no part.
pub fn complaints(serial: &str) -> Vec<String> {
    let lines: Vec<&str> = serial.lines().collect();
    lines
        .iter()
        .enumerate()
        .filter(|(_, line)| TROUBLE.iter().any(|word| line.contains(word)))
        // Not about this machine's drivers: every virtual machine without mitigations prints these.
        .filter(|(_, line)| !line.contains("WARNING: Spectre") && !line.contains("lab:"))
        .filter(|&(at, line)| !races::is_headline(line) || races::is_of_driver(&lines[at..]))
        .map(|(_, line)| (*line).to_owned())
        .collect()
}

/// Removes the warnings of `rxe_completer()` from serial output. Returns the rest, and how many there were.
///
/// `rdma_rxe` gives them about a request that fails without a status, because it did not expect a response after another one. On a path that
/// loses packets this happens with correct peers; whether the project's NIC is one, the packet checker says.
pub fn without_rxe_warnings(serial: &str) -> (String, usize) {
    let lines: Vec<&str> = serial.lines().collect();
    let (mut rest, mut count, mut at) = (String::new(), 0, 0);
    while let Some(line) = lines.get(at) {
        if let Some(length) = lines.get(at..).and_then(rxe_warning) {
            count += 1;
            at += length;
            continue;
        }
        rest.push_str(line);
        rest.push('\n');
        at += 1;
    }
    (rest, count)
}

/// Number of lines of such a warning. `None`: there is none, or not a whole one, or another message is between.
fn rxe_warning(lines: &[&str]) -> Option<usize> {
    /// Lines of the longest warning.
    const LONGEST: usize = 80;
    let (first, rest) = lines.split_first()?;
    if !first.contains("WARNING:") || !first.contains(" rxe_completer+") {
        return None;
    }
    let mut begin = rest.iter().take(LONGEST);
    let end = begin.position(|line| line.contains("end trace"))?;
    let is_other = |line: &&str| {
        !line.contains("Call Trace") && TROUBLE.iter().any(|word| line.contains(word))
    };
    let has_other = rest.iter().take(end).any(is_other);
    (!has_other).then_some(end + 2)
}

/// A command that runs in a guest.
pub struct Running<'a> {
    guest: &'a Guest,
    id: u32,
    events: Receiver<Frame>,
    started: Instant,
}

impl Running<'_> {
    /// Sends all of standard input and ends it.
    pub fn input(&self, content: &[u8]) -> Result<()> {
        for chunk in content.chunks(CHUNK) {
            self.guest
                .channel
                .send(&Frame::new(Kind::Input, self.id, chunk))?;
        }
        self.guest
            .channel
            .send(&Frame::new(Kind::Input, self.id, ""))
    }

    /// Number of the command, for [`Guest::kill`].
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Kills the command and its children.
    pub fn kill(&self) {
        self.guest.kill(self.id);
    }

    /// Waits `limit` from now, then kills the command.
    pub fn wait_more(mut self, limit: Duration) -> Result<Outcome> {
        self.started = Instant::now();
        self.wait(limit, &mut |_| ())
    }

    /// Waits for the end; passes output to `sink` as it arrives. After `limit` the command is killed.
    pub fn wait(self, limit: Duration, sink: &mut dyn FnMut(&[u8])) -> Result<Outcome> {
        let mut outcome = Outcome {
            status: Status::TimedOut,
            stdout: Vec::new(),
            both: Vec::new(),
        };
        let mut deadline = self.started + limit;
        let mut killed = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Frame {
                    kind: Kind::Output,
                    payload,
                    ..
                }) => {
                    outcome.stdout.extend_from_slice(&payload);
                    outcome.both.extend_from_slice(&payload);
                    sink(&payload);
                }
                Ok(Frame {
                    kind: Kind::Error,
                    payload,
                    ..
                }) => {
                    outcome.both.extend_from_slice(&payload);
                    sink(&payload);
                }
                Ok(Frame {
                    kind: Kind::Exit,
                    payload,
                    ..
                }) => {
                    let code = String::from_utf8_lossy(&payload).parse().unwrap_or(127);
                    if !killed {
                        outcome.status = Status::Exited(code);
                    }
                    return Ok(outcome);
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if killed => {
                    bail!(
                        "guest {} does not answer: a command could not be killed; its serial console ends with:\n{}",
                        self.guest.index,
                        tail(self.guest.serial().as_bytes(), 40)
                    );
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    killed = true;
                    deadline = Instant::now() + Duration::from_secs(20);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    // QEMU's exit status follows its last bytes.
                    thread::sleep(Duration::from_millis(100));
                    return Err(self.guest.gone(anyhow::anyhow!("the agent channel closed")));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_complaints_are_found() {
        let serial = "[ 1.0] ok\n[ 2.0] BUG: kernel NULL pointer dereference\n[ 2.1] Call Trace:\n[ 3] fine\n";
        assert_eq!(complaints(serial).len(), 2);
        assert!(complaints("[ 1.0] Spectre V2 : WARNING: Spectre things").is_empty());
        let race =
            |function| format!("BUG: KCSAN: data-race in {function} / b\n====================\n");
        assert_eq!(complaints(&race("a [faultline]")).len(), 1);
        assert!(complaints(&[race("a"), race("c")].concat()).is_empty());
    }

    #[test]
    fn warnings_of_rxe_are_separated() {
        let head = "[ 1.0] WARNING: CPU: 0 PID: 2 at rxe_comp.c:827 rxe_completer+0xb9f/0xe40 [rdma_rxe]\n[ 1.1] Call Trace:\n";
        let end = "[ 1.2] ---[ end trace 0000000000000000 ]---\n";
        let other = "[ 2.0] WARNING: CPU: 0 PID: 2 at mr.c:1 faultline_x+0x1/0x2 [faultline]\n[ 2.1] Call Trace:\n";
        let whole = [head, end, other].concat();
        assert_eq!(without_rxe_warnings(&whole), (other.to_owned(), 1));
        for not_alone in [[head, other].concat(), [head, other, end].concat()] {
            assert_eq!(without_rxe_warnings(&not_alone), (not_alone, 0));
        }
    }

    #[test]
    fn outcomes_are_described() {
        let outcome = |status| Outcome {
            status,
            stdout: Vec::new(),
            both: Vec::new(),
        };
        assert_eq!(
            outcome(Status::Exited(139)).describe(),
            "killed by signal 11"
        );
        assert_eq!(outcome(Status::Exited(2)).describe(), "exit status 2");
        assert!(!outcome(Status::TimedOut).success());
    }
}
