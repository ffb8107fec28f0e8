//! The reaction of QEMU to the migration of a machine with a NIC (docs/decisions/010-migration.md). No guest runs in
//! it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::command::{Owned, tail};
use crate::emulator::{self, Emulator, Profile, Settings};
use crate::qemu::Qemu;
use crate::socket_folder::SocketFolder;
use crate::workspace::Workspace;

/// For a step of QEMU, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// The options with which QEMU refuses to migrate a machine.
const GUARD: &[&str] = &[
    "-object",
    "memory-backend-memfd,id=guard,size=4096,share=on",
    "-device",
    "ivshmem-plain,memdev=guard",
];

/// A machine without an operating system, and the socket of its monitor.
struct Machine {
    _process: Owned,
    replies: BufReader<UnixStream>,
}

impl Machine {
    fn start(qemu: &Qemu, nic: &Path, dir: &Path, more: &[&str]) -> Result<Self> {
        let monitor = nic.with_extension("monitor");
        let _ = std::fs::remove_file(&monitor);
        let log = dir.join("migration.log");
        let device = json!({
            "driver": "vfio-user-pci",
            "socket": {"type": "unix", "path": nic.display().to_string()},
        });
        let mut command = qemu.command();
        command
            .args(["-nodefaults", "-display", "none", "-accel", "tcg"])
            .args(["-m", "64M", "-machine", "q35,memory-backend=ram"])
            .args(["-object", "memory-backend-memfd,id=ram,share=on,size=64M"])
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", monitor.display()))
            .args(["-device", &device.to_string()])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).context("creating QEMU's log")?);
        let mut process = Owned::spawn(&mut command).context("starting QEMU")?;
        let started = Instant::now();
        let stream = loop {
            match UnixStream::connect(&monitor) {
                Ok(stream) => break stream,
                Err(error) => {
                    let said = || tail(&std::fs::read(&log).unwrap_or_default(), 20);
                    if let Some(status) = process.ended() {
                        bail!("QEMU ended ({status}):\n{}", said());
                    }
                    ensure!(
                        started.elapsed() < LIMIT,
                        "no monitor ({error}): {}",
                        said()
                    );
                    thread::sleep(Duration::from_millis(20));
                }
            }
        };
        stream
            .set_read_timeout(Some(LIMIT))
            .context("setting the time limit of the monitor")?;
        let mut machine = Self {
            _process: process,
            replies: BufReader::new(stream),
        };
        machine.execute("qmp_capabilities", &json!({}))?;
        Ok(machine)
    }

    /// Executes a command of the QEMU machine protocol. Returns its reply, which may be an error.
    fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        let stream = self.replies.get_mut();
        stream
            .write_all(line.as_bytes())
            .context("writing to the monitor")?;
        loop {
            let mut line = String::new();
            let read = self.replies.read_line(&mut line);
            ensure!(
                read.context("reading from the monitor")? > 0,
                "QEMU has ended"
            );
            let reply: Value = serde_json::from_str(&line).context("parsing a reply")?;
            // Others are the greeting and events.
            if reply.get("return").is_some() || reply.get("error").is_some() {
                return Ok(reply);
            }
        }
    }

    /// Migrates the machine to /dev/null, and returns how that ended.
    fn migrate(&mut self) -> Result<String> {
        let reply = self.execute("migrate", &json!({"uri": "exec:cat >/dev/null"}))?;
        if let Some(error) = reply.get("error") {
            return Ok(error.to_string());
        }
        let started = Instant::now();
        loop {
            let reply = self.execute("query-migrate", &json!({}))?;
            let status = reply.pointer("/return/status").and_then(Value::as_str);
            match status {
                Some("setup" | "active" | "device") | None => {}
                Some(status) => return Ok(status.to_owned()),
            }
            ensure!(started.elapsed() < LIMIT, "the migration does not end");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// QEMU migrates a machine with a NIC and says nothing; with the guard it refuses to, and to make a snapshot.
pub fn check(workspace: &Workspace, dir: &Path) -> Result<()> {
    let program = emulator::build(workspace, Profile::Quick)?;
    let qemu = Qemu::obtain(workspace)?;
    let sockets = SocketFolder::new()?;
    let settings = Settings::default();
    let emulator = Emulator::start(&program, 0..1, &settings, sockets.path(), dir)?;
    let nic = emulator.sockets.first().context("no NIC")?;

    let mut plain = Machine::start(&qemu, nic, dir, &[])?;
    let ended = plain.migrate()?;
    ensure!(
        ended == "completed",
        "QEMU {} no longer migrates a NIC silently ({ended}): correct docs/decisions/010-migration.md",
        qemu.version
    );
    drop(plain);

    let mut guarded = Machine::start(&qemu, nic, dir, GUARD)?;
    let ended = guarded.migrate()?;
    ensure!(ended.contains("Migration is disabled"), "{ended}");
    let command = json!({"command-line": "savevm x"});
    let reply = guarded.execute("human-monitor-command", &command)?;
    ensure!(
        reply.to_string().contains("Migration is disabled"),
        "{reply}"
    );
    Ok(())
}
