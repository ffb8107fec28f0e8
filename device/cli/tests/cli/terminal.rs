//! Programs in a pseudo-terminal.

use std::fs::File;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Runs a program whose standard streams are a terminal. Returns its output, and its exit status.
pub(crate) fn run_in_terminal(command: &mut Command) -> (String, ExitStatus) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = File::from(rustix::fs::open(&name, flags, Mode::empty()).unwrap());
    let stdio = || Stdio::from(slave.try_clone().unwrap());
    command.stdin(stdio()).stdout(stdio()).stderr(stdio());
    let mut child = command.spawn().unwrap();
    // This process and its command hold the other end open.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    drop(slave);
    let mut output = Vec::new();
    let mut part = [0; 4096];
    let mut master = File::from(master);
    // An error: the last program has closed the terminal (EIO, pty(7)).
    while let Ok(n) = master.read(&mut part)
        && n > 0
    {
        output.extend_from_slice(&part[..n]);
    }
    (
        String::from_utf8_lossy(&output).into_owned(),
        child.wait().unwrap(),
    )
}
