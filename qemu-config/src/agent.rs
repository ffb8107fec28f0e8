//! The agent: this same program in a guest, which executes the lab's commands from a virtio-serial port.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::protocol::{CHUNK, Exec, Frame, Kind};

/// Socket at which commands in the guest wait for a barrier.
const BARRIER_SOCKET: &str = "/run/lab-barrier";
/// How long the output of background processes is passed on after a command has ended.
const LINGER: Duration = Duration::from_millis(300);

type Port = Arc<Mutex<File>>;

#[derive(Default)]
struct State {
    /// Process groups and standard inputs of running commands.
    running: HashMap<u32, (Pid, Option<ChildStdin>)>,
    /// Commands that wait at a barrier.
    waiting: HashMap<String, Vec<UnixStream>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(port: &Port, frame: &Frame) {
    // The write fails if the lab has ended, which needs no more frames.
    let _ = frame.write_to(&mut *lock(port));
}

/// Serves the port until it fails.
pub fn serve(path: &Path) -> Result<()> {
    let open = || {
        File::options()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))
    };
    // A virtio port can be opened once only: both directions share the descriptor.
    let reader = open()?;
    let port: Port = Arc::new(Mutex::new(
        reader.try_clone().context("duplicating the port")?,
    ));
    let state = Arc::new(Mutex::new(State::default()));
    serve_barriers(&port, &state)?;
    send(&port, &Frame::new(Kind::Ready, 0, ""));
    let mut reader = Patient(reader);
    loop {
        let frame = Frame::read_from(&mut reader).context("reading from the lab")?;
        handle(&port, &state, frame);
    }
}

/// Reads from a port that reports an end of file while the host's side is not connected: reads again until it is.
struct Patient(File);

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Ok(0) => thread::sleep(Duration::from_millis(50)),
                other => return other,
            }
        }
    }
}

fn handle(port: &Port, state: &Arc<Mutex<State>>, frame: Frame) {
    match frame.kind {
        Kind::Exec => {
            let id = frame.id;
            if let Err(error) = start(port, state, id, &frame.payload) {
                send(
                    port,
                    &Frame::new(Kind::Error, id, format!("lab agent: {error:#}\n")),
                );
                send(port, &Frame::new(Kind::Exit, id, "127"));
            }
        }
        Kind::Input => {
            let mut state = lock(state);
            if let Some((_, input)) = state.running.get_mut(&frame.id) {
                let closed = frame.payload.is_empty()
                    || input
                        .as_mut()
                        .is_some_and(|input| input.write_all(&frame.payload).is_err());
                if closed {
                    *input = None;
                }
            }
        }
        Kind::Kill => {
            if let Some((group, _)) = lock(state).running.get(&frame.id) {
                let _ = kill_process_group(*group, Signal::KILL);
            }
        }
        Kind::Release => {
            let name = String::from_utf8_lossy(&frame.payload).into_owned();
            for mut stream in lock(state).waiting.remove(&name).unwrap_or_default() {
                let _ = stream.write_all(b"go\n");
            }
        }
        Kind::Ready | Kind::Output | Kind::Error | Kind::Exit | Kind::Barrier => {}
    }
}

fn start(port: &Port, state: &Arc<Mutex<State>>, id: u32, payload: &[u8]) -> Result<()> {
    let exec: Exec = serde_json::from_slice(payload).context("decoding the command")?;
    let mut child = Command::new("/bin/bash")
        .args(["-c", ". /lab/lib.sh\neval \"$LAB_SCRIPT\""])
        .env("LAB_SCRIPT", &exec.script)
        .envs(exec.env)
        .current_dir("/root")
        .process_group(0)
        .stdin(if exec.input {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting bash")?;
    let group = Pid::from_child(&child);
    let (input, output, error) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    lock(state).running.insert(id, (group, input));
    let (done, both_done) = mpsc::channel();
    pump(port, id, Kind::Output, output, done.clone());
    pump(port, id, Kind::Error, error, done);
    let (port, state) = (port.clone(), state.clone());
    thread::spawn(move || {
        let status = match child.wait() {
            Ok(status) => status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            Err(_) => 127,
        };
        // The pipes may be held open by processes left in the background: wait for them, but not for ever.
        while both_done.recv_timeout(LINGER).is_ok() {}
        lock(&state).running.remove(&id);
        send(&port, &Frame::new(Kind::Exit, id, status.to_string()));
    });
    Ok(())
}

fn pump(
    port: &Port,
    id: u32,
    kind: Kind,
    pipe: Option<impl Read + Send + 'static>,
    done: mpsc::Sender<()>,
) {
    let Some(mut pipe) = pipe else { return };
    let port = port.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        while let Ok(length) = pipe.read(&mut buffer) {
            if length == 0 {
                break;
            }
            send(
                &port,
                &Frame::new(kind, id, buffer.get(..length).unwrap_or_default()),
            );
            // Reports to the waiter that output still comes, so that the last words of a fast writer are not
            // lost.
            let _ = done.send(());
        }
    });
}

fn serve_barriers(port: &Port, state: &Arc<Mutex<State>>) -> Result<()> {
    let _ = std::fs::remove_file(BARRIER_SOCKET);
    let listener =
        UnixListener::bind(BARRIER_SOCKET).with_context(|| format!("binding {BARRIER_SOCKET}"))?;
    let (port, state) = (port.clone(), state.clone());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = io::BufReader::new(stream);
            let mut name = String::new();
            if io::BufRead::read_line(&mut reader, &mut name).is_ok() {
                let name = name.trim().to_owned();
                lock(&state)
                    .waiting
                    .entry(name.clone())
                    .or_default()
                    .push(reader.into_inner());
                send(&port, &Frame::new(Kind::Barrier, 0, name));
            }
        }
    });
    Ok(())
}

/// Inside a guest: waits until every guest has reached the barrier `name`.
pub fn wait_at_barrier(name: &str) -> Result<()> {
    let mut stream =
        UnixStream::connect(BARRIER_SOCKET).context("no agent runs here: this is for guests")?;
    writeln!(stream, "{name}").context("asking the agent")?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .context("waiting for the other guests")?;
    anyhow::ensure!(answer == "go\n", "the agent ended while waiting");
    Ok(())
}
