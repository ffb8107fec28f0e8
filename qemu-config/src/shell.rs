//! `cargo lab shell`: root shells in booted guests, on the terminal that the lab was started from.

use std::io::{IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};

use crate::cluster::{Cluster, Plan};
use crate::command::say;
use crate::workspace::Workspace;

/// Ctrl-], as in telnet.
const ESCAPE: u8 = 0x1d;

/// The meaning of a byte from the terminal.
#[derive(Debug, PartialEq, Eq)]
enum Key {
    /// For the guest.
    Pass(u8),
    /// Go to this guest.
    Switch(usize),
    /// Leave.
    Quit,
    /// Nothing yet.
    Pending,
}

/// Reads the escape sequences.
#[derive(Debug, Default)]
struct Keys {
    escaped: bool,
}

impl Keys {
    fn key(&mut self, byte: u8) -> Key {
        if !std::mem::take(&mut self.escaped) {
            if byte == ESCAPE {
                self.escaped = true;
                return Key::Pending;
            }
            return Key::Pass(byte);
        }
        match byte {
            ESCAPE => Key::Pass(ESCAPE),
            b'q' | b'.' => Key::Quit,
            b'0'..=b'9' => Key::Switch(usize::from(byte - b'0')),
            _ => Key::Pending,
        }
    }
}

/// The terminal in raw mode, restored when dropped. `stty`, because system calls would need unsafe
/// code here.
struct RawTerminal(Option<String>);

impl RawTerminal {
    fn enter() -> Self {
        if !std::io::stdin().is_terminal() {
            return Self(None);
        }
        let saved = stty(&["-g"]);
        stty(&["raw", "-echo"]);
        Self(saved)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(saved) = &self.0 {
            stty(&[saved.trim()]);
        }
    }
}

fn stty(words: &[&str]) -> Option<String> {
    let output = Command::new("stty")
        .args(words)
        .stdin(Stdio::inherit())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Boots the plan and connects the terminal to guest 0.
pub fn run(workspace: &Workspace, plan: &Plan) -> Result<bool> {
    let dir = workspace.new_run("shell")?;
    let cluster = Cluster::boot(workspace, plan, &dir)?;
    say(format!("logs: {}", workspace.shown(&dir)));
    say("Ctrl-] 0, 1, … switches guests; Ctrl-] q ends them all");
    let current = Arc::new(AtomicUsize::new(0));
    for (index, guest) in cluster.guests.iter().enumerate() {
        let mut console = guest.console.try_clone().context("duplicating a console")?;
        let current = current.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = console.read(&mut buffer) {
                if current.load(Ordering::Relaxed) == index {
                    let mut out = std::io::stdout().lock();
                    let _ = out.write_all(buffer.get(..length).unwrap_or_default());
                    let _ = out.flush();
                }
            }
        });
    }
    let terminal = RawTerminal::enter();
    let result = relay(&cluster, &current);
    drop(terminal);
    eprintln!();
    result.map(|()| true)
}

/// Carries keys to the current guest until the user leaves or standard input ends.
fn relay(cluster: &Cluster, current: &AtomicUsize) -> Result<()> {
    let mut keys = Keys::default();
    let send = |byte: u8| -> Result<()> {
        if let Some(guest) = cluster.guests.get(current.load(Ordering::Relaxed)) {
            (&guest.console)
                .write_all(&[byte])
                .with_context(|| format!("guest {} is gone", guest.index))?;
        }
        Ok(())
    };
    // The shells were started before the guests had addresses: set the variables that are known since.
    for guest in &cluster.guests {
        (&guest.console)
            .write_all(b" . /run/lab.env\n")
            .with_context(|| format!("guest {} is gone", guest.index))?;
    }
    let mut byte = [0];
    while std::io::stdin()
        .read(&mut byte)
        .context("reading the terminal")?
        == 1
    {
        let [byte] = byte;
        match keys.key(byte) {
            Key::Pass(byte) => send(byte)?,
            Key::Switch(index) if index < cluster.guests.len() => {
                current.store(index, Ordering::Relaxed);
                eprint!("\r\n[guest {index}]\r\n");
                send(b'\n')?;
            }
            Key::Switch(_) | Key::Pending => {}
            Key::Quit => return Ok(()),
        }
    }
    // Input from a pipe has ended: the guest has time to finish the commands in it.
    thread::sleep(std::time::Duration::from_secs(2));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_distinguished_from_text() {
        let mut keys = Keys::default();
        assert_eq!(keys.key(b'q'), Key::Pass(b'q'));
        assert_eq!(keys.key(ESCAPE), Key::Pending);
        assert_eq!(keys.key(b'1'), Key::Switch(1));
        assert_eq!(keys.key(ESCAPE), Key::Pending);
        assert_eq!(keys.key(ESCAPE), Key::Pass(ESCAPE));
        assert_eq!(keys.key(ESCAPE), Key::Pending);
        assert_eq!(keys.key(b'q'), Key::Quit);
    }
}
