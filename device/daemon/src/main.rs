//! `faultline serve`: RDMA NICs for virtual machines.

#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use faultline::{Config, NicEntry, PollMode, Server};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// Software RDMA NICs that stock QEMU attaches as vfio-user PCI devices.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve NICs until SIGTERM or SIGINT.
    Serve(Serve),
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// A NIC and its vfio-user socket; may be given several times.
    #[arg(long = "nic", value_name = "NAME=SOCKET")]
    nics: Vec<NicEntry>,
    /// Configuration file (TOML). Options on the command line win.
    #[arg(long)]
    config: Option<PathBuf>,
    /// When to look for work.
    #[arg(long)]
    poll: Option<PollMode>,
    /// With --poll=adaptive: how long to look after the last work, in microseconds.
    #[arg(long, value_name = "US")]
    poll_time: Option<u64>,
}

impl Serve {
    fn config(self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::from_file(path)?,
            None => Config::default(),
        };
        config.add(self.nics);
        config.poll = self.poll.unwrap_or(config.poll);
        config.poll_time_us = self.poll_time.unwrap_or(config.poll_time_us);
        Ok(config)
    }
}

fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    raise_open_files();
    match Cli::parse().command {
        Command::Serve(serve) => run(serve.config()?),
    }
}

/// Takes as many descriptors as the process may have: QEMU sends some for each NIC, and its share of guest memory files
/// follows from the limit.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(errno) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("can't raise the limit of open files: {errno}");
    }
}

/// The control side: signals today. Data never waits for it.
#[tokio::main(flavor = "current_thread")]
async fn run(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("can't handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("can't handle SIGINT")?;
    let mut server = Server::start(&config)?;
    let ended = tokio::select! {
        _ = terminate.recv() => {
            tracing::info!("SIGTERM: ending");
            None
        }
        _ = interrupt.recv() => {
            tracing::info!("SIGINT: ending");
            None
        }
        thread = server.thread_ended() => {
            tracing::error!("thread {thread} has ended, so no NIC can be served: ending");
            Some(thread)
        }
    };
    drop(server);
    match ended {
        None => Ok(()),
        Some(thread) => anyhow::bail!("thread {thread} has ended, see above; restart faultline"),
    }
}
