//! Executes the commands of `docs/tutorial-sight.md`: each must succeed and print what the document shows.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use super::host_shell::HostShell;
use super::tutorial::{Place, Step, missing, steps};
use super::watched::{SHORT, Watched, picture};
use crate::command::tail;
use crate::guest::{Guest, Running};
use crate::protocol::Exec;

const DOCUMENT: &str = "docs/tutorial-sight.md";
/// The control socket in the document.
const SOCKET: &str = "/tmp/faultline.sock";
/// The pictures that the commands draw.
const PICTURES: [&str; 2] = ["latency.svg", "faults.svg"];

pub fn run(watched: &Watched<'_>) -> Result<()> {
    let root = watched.workspace.root();
    let text =
        fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("reading {DOCUMENT}"))?;
    let steps = steps(&text);
    let [boot, steps @ ..] = steps.as_slice() else {
        bail!("{DOCUMENT} has no commands")
    };
    check_boot(boot)?;
    let mut tour = Tour {
        watched,
        shell: HostShell::start(root)?,
        background: Vec::new(),
        log: String::new(),
    };
    let result = steps.iter().try_for_each(|step| {
        tour.step(step)
            .with_context(|| format!("{DOCUMENT}: {}", step.command))
    });
    fs::write(watched.logs.join("tour.log"), &tour.log).context("writing a log")?;
    // A storm that continues would disturb the next test. After a failure the guests end.
    result?;
    tour.end_background()?;
    tour.keep_files()
}

/// The guests have been booted already; the command must be one that boots them.
fn check_boot(step: &Step) -> Result<()> {
    let words = step.command.strip_prefix("cargo ").unwrap_or_default();
    let command = crate::Cli::try_parse_from(words.split_whitespace())
        .with_context(|| format!("{DOCUMENT}: {}", step.command))?;
    let socket = match command.command {
        crate::Command::Shell { guests } => guests.control,
        _ => None,
    };
    ensure!(
        socket.as_deref() == Some(Path::new(SOCKET)),
        "{DOCUMENT}: the first command must be `cargo lab shell` with the control socket {SOCKET}"
    );
    Ok(())
}

struct Tour<'a> {
    watched: &'a Watched<'a>,
    shell: HostShell,
    /// Commands with `&`, with how they are called.
    background: Vec<(String, Running<'a>)>,
    log: String,
}

impl<'a> Tour<'a> {
    /// Runs a command until it prints the output in the document. A first output may come too early: of a storm that
    /// has just begun there are no faults yet.
    fn step(&mut self, step: &Step) -> Result<()> {
        let started = Instant::now();
        loop {
            let output = match step.place {
                Place::Host => self.on_host(&step.command)?,
                Place::Guest(index) => {
                    let guests = [self.watched.server, self.watched.client];
                    let guest = *guests.get(index).context("there is no such guest")?;
                    self.in_guest(guest, &step.command)?
                }
            };
            self.log += &format!("--- {}\n{output}", step.command);
            let Some(line) = missing(&step.shown, &output) else {
                return Ok(());
            };
            // Commands that change something succeed once.
            let looks = ["faultline ctl ", "faultline top ", "curl ", "rdma "];
            let may_repeat = looks.iter().any(|word| step.command.starts_with(word));
            ensure!(
                may_repeat && started.elapsed() < SHORT / 2,
                "the output has no line like {line:?} in this place:\n{}",
                tail(output.as_bytes(), 40)
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn on_host(&mut self, command: &str) -> Result<String> {
        let control = self.watched.control.to_string_lossy();
        let mut command = command.replace(SOCKET, &control);
        if command.starts_with("export PATH=") {
            // The build may be in another folder.
            let folder = self
                .watched
                .program
                .parent()
                .context("a program has a folder")?;
            command = command.replace("$PWD/target/quick", &folder.to_string_lossy());
        }
        let ended = self.shell.run(&command, SHORT)?;
        ensure!(
            ended.status == 0,
            "exit status {}:\n{}",
            ended.status,
            ended.output
        );
        Ok(ended.output)
    }

    fn in_guest(&mut self, guest: &'a Guest, command: &str) -> Result<String> {
        if let Some(command) = command.strip_suffix('&') {
            let running = guest.start(&Exec {
                script: format!("exec {command}"),
                ..Exec::default()
            })?;
            self.background.push((command.to_owned(), running));
            return Ok(String::new());
        }
        guest.must(command, SHORT)
    }

    /// Waits for the ends of the commands that the document has ended.
    fn end_background(&mut self) -> Result<()> {
        for (command, running) in self.background.drain(..) {
            let outcome = running.wait_more(SHORT)?;
            ensure!(
                outcome.status != crate::guest::Status::TimedOut,
                "{command:?} goes on at the end of {DOCUMENT}"
            );
        }
        Ok(())
    }

    /// Moves the files to the logs.
    fn keep_files(&mut self) -> Result<()> {
        let logs = self.watched.logs.display().to_string();
        // The document has changed to a temporary directory.
        self.on_host(&format!(
            "mv -- * '{logs}' && directory=$PWD && cd / && rmdir \"$directory\""
        ))?;
        PICTURES
            .iter()
            .try_for_each(|name| picture(&self.watched.logs.join(name)).map(|_| ()))
    }
}
