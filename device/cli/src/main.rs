//! `faultline serve`: RDMA NICs for virtual machines.

#![forbid(unsafe_code)]
// Values of users and sockets reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod commands;
mod service_manager;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use commands::profile_names::ProfileNames;
use faultline_config::{Config, EngineCount, NamedProfile, NicEntry, PollMode};
use faultline_daemon::log::output;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;

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
    Serve(Box<Serve>),
    Ctl(commands::ctl::Ctl),
    Top(commands::top::Top),
    Trace(commands::trace::Save),
    Report(commands::trace::Show),
    Demo(commands::demo::Demo),
    Scenario(commands::scenario::Command),
    Capture(commands::capture::Save),
    Check(commands::check::Check),
    Vopr(commands::vopr::Vopr),
    /// Print a script that completes this program's arguments in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    #[command(hide = true)]
    Names(commands::completions::Names),
    /// Write the manual pages of this program and its commands to a folder.
    #[command(hide = true)]
    Manual {
        /// The folder.
        folder: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// A NIC and its vfio-user socket; may be given several times.
    #[arg(long = "nic", value_name = "NAME=SOCKET")]
    nics: Vec<NicEntry>,
    /// Configuration file (TOML). Options on the command line win.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Profile of NICs that have none in the file: the name of one that comes with Faultline, or the path of a file.
    #[arg(long, value_name = "NAME|FILE", value_parser = ProfileNames(NamedProfile::from_str))]
    profile: Option<NamedProfile>,
    /// Unix socket of the control server.
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Engine threads among which the NICs are divided, from 1 to 64.
    #[arg(long, value_name = "N")]
    engines: Option<EngineCount>,
    /// When to look for work.
    #[arg(long)]
    poll: Option<PollMode>,
    /// With --poll=adaptive: how long to look after the last work, in microseconds.
    #[arg(long, value_name = "US")]
    poll_time: Option<u64>,
    /// Log messages of this level and more important ones, whatever RUST_LOG says.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<LogLevel>,
    /// Check the configuration, and end.
    #[arg(long)]
    check: bool,
    /// Serve in a second process, and start it again when it has ended: the guests continue with a device that was
    /// reset.
    #[arg(long, conflicts_with = "kept_in")]
    supervisor: bool,
    /// Serve the clients of the supervisor that has this directory.
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    kept_in: Option<PathBuf>,
}

/// From which level on messages are logged.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Off => Self::OFF,
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

impl Serve {
    fn config(self) -> anyhow::Result<Config> {
        let kept_in = self.kept_in.clone();
        let mut config = self.own_config()?;
        if let Some(folder) = kept_in {
            faultline_daemon::server::supervisor::serve_supervised(&mut config, &folder)?;
        }
        Ok(config)
    }

    fn own_config(self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::from_file(path)?,
            None => Config::default(),
        };
        config.add(self.nics);
        if let Some(profile) = self.profile {
            config.set_profile(profile)?;
        }
        config.control.socket = self.control.or(config.control.socket);
        config.engines = self.engines.unwrap_or(config.engines);
        config.poll = self.poll.unwrap_or(config.poll);
        config.poll_time_us = self.poll_time.unwrap_or(config.poll_time_us);
        Ok(config)
    }

    fn run(self) -> anyhow::Result<()> {
        output::start(self.log_level.map(Into::into));
        let (only_checks, is_supervisor) = (self.check, self.supervisor);
        let config = self.config()?;
        config.check()?;
        if only_checks {
            return commands::print(b"the configuration can be used\n");
        }
        raise_open_files();
        match is_supervisor {
            true => commands::supervise::run(config),
            false => run(config),
        }
    }
}

fn main() -> ExitCode {
    let mut accepted = with_negative_numbers(Cli::command());
    let matches = accepted.try_get_matches_from_mut(std::env::args_os());
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    let parsed = parsed.unwrap_or_else(|error| with_commands(error, &accepted).exit());
    let command = parsed.command;
    let result = execute(command);
    let is_read = output::finish();
    let error = match result {
        Ok(status) => return status,
        Err(error) => error,
    };
    if !is_read {
        return ExitCode::FAILURE;
    }
    // It may repeat text of a server or a file.
    let text = match format!("{error:#}") {
        // A problem of a file, with the line where it is.
        drawn if drawn.starts_with("error: ") => drawn,
        text => format!("Error: {text}"),
    };
    commands::complain(commands::Printable::default().part(text.as_bytes()));
    commands::status::of_error(&error)
}

/// Lets each option take a negative number, so that its parser refuses it and names the allowed values. By default it
/// would be an unknown option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Adds the exit statuses to the manual page of each command.
fn with_statuses(command: clap::Command) -> clap::Command {
    let command = command.after_long_help(commands::status::section());
    command.mut_subcommands(with_statuses)
}

/// Adds the commands that are allowed to an error about one that does not exist.
fn with_commands(mut error: clap::Error, mut at: &clap::Command) -> clap::Error {
    for word in std::env::args_os().skip(1) {
        at = at.find_subcommand(word).unwrap_or(at);
    }
    // Where a command follows an argument, an unknown one counts as a further argument.
    let unknown = [ErrorKind::InvalidSubcommand, ErrorKind::UnknownArgument];
    if unknown.contains(&error.kind()) && at.has_subcommands() {
        let visible = at
            .get_subcommands()
            .filter(|command| !command.is_hide_set());
        let names: Vec<_> = visible.map(clap::Command::get_name).collect();
        let tip = format!("the commands are: {}", names.join(", "));
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::Demo(demo) => return demo.run(),
        Command::Scenario(scenario) => return scenario.run(),
        Command::Check(check) => return check.run(),
        Command::Vopr(vopr) => return vopr.run(),
        Command::Serve(serve) => serve.run(),
        Command::Ctl(ctl) => ctl.run(),
        Command::Top(top) => top.run(),
        Command::Trace(trace) => trace.run(),
        Command::Capture(capture) => capture.run(),
        Command::Report(report) => report.run(),
        Command::Names(names) => names.run(),
        Command::Completions { shell } => {
            commands::print(&commands::completions::script(shell, &mut Cli::command()))
        }
        Command::Manual { folder } => {
            clap_mangen::generate_to(with_statuses(Cli::command()), &folder)
                .with_context(|| format!("can't write manual pages to {}", folder.display()))
        }
    };
    done.map(|()| ExitCode::SUCCESS)
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
    let mut server = faultline_control::serve(&config)?;
    if let Some(address) = std::env::var_os(service_manager::SOCKET_VARIABLE)
        && let Err(error) = service_manager::notify_ready(&address)
    {
        tracing::warn!(
            "can't notify the service manager at {}: {error}",
            address.display()
        );
    }
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
