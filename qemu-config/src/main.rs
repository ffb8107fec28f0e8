//! Guest images, QEMU command lines, and the project's test, demo and bench commands.
#![forbid(unsafe_code)]

mod agent;
mod cluster;
mod command;
mod driver;
mod emulator;
mod guest;
mod host;
mod image;
mod initrd;
mod protocol;
mod qemu;
mod run;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};

use cluster::{Nic, Plan};
use image::{Base, Image, Kernel};
use workspace::Workspace;

/// Boots Linux guests on the Faultline NIC and runs things in them.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a script as root in every guest and bring its artefacts back
    ///
    /// The script sees GUEST_INDEX, GUEST_COUNT, MY_IP, PEER_IP (and MY_IP6, PEER_IP6), NETDEV, RDMA_DEV, GID_INDEX and
    /// ARTEFACTS, a folder that comes back to the host; `lab barrier NAME` waits for all guests.
    Run {
        #[command(flatten)]
        guests: GuestOptions,
        /// The script
        #[arg(long, value_name = "FILE")]
        script: PathBuf,
        /// Seconds after which the script is killed
        #[arg(long, value_name = "S", default_value_t = 600)]
        timeout: u64,
    },
    /// Build the guest images and drivers and print what is in them
    Image {
        /// Packages to install on top of the base image
        #[arg(long, value_delimiter = ',')]
        packages: Vec<String>,
    },
    /// Inside a guest: serve the lab
    #[command(hide = true)]
    Agent { port: PathBuf },
    /// Inside a guest: wait until every guest has come here
    #[command(hide = true)]
    Barrier { name: String },
}

#[derive(Debug, Args)]
struct GuestOptions {
    /// How many guests to boot
    #[arg(long, value_name = "N", default_value_t = 2)]
    guests: usize,
    /// The guests' kernel
    #[arg(long, value_enum, default_value_t = Kernel::Stable)]
    kernel: Kernel,
    /// Packages to install into the guests (names, or paths of .deb files), separated by commas
    #[arg(long, value_delimiter = ',', value_name = "DEB,…")]
    packages: Vec<String>,
    /// Configuration file of the emulator
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What the guests' RDMA traffic runs on
    #[arg(long, value_enum, default_value_t = Nic::Faultline)]
    nic: Nic,
    /// Virtual CPUs of each guest
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Memory of each guest in MiB
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    memory: u32,
    /// MTU of the guests' interfaces
    #[arg(long)]
    mtu: Option<u32>,
    /// Additional kernel command line
    #[arg(long, default_value = "", value_name = "WORDS")]
    append: String,
}

impl GuestOptions {
    fn plan(self) -> Plan {
        Plan {
            guests: self.guests,
            kernel: self.kernel,
            packages: self.packages,
            config: self.config,
            nic: self.nic,
            cpus: self.cpus,
            memory: self.memory,
            mtu: self.mtu,
            append: self.append,
        }
    }
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one command; false if what it ran failed.
fn dispatch(command: Command) -> Result<bool> {
    match command {
        Command::Agent { port } => {
            agent::serve(&port)?;
            Ok(true)
        }
        Command::Barrier { name } => {
            agent::wait_at_barrier(&name)?;
            Ok(true)
        }
        Command::Run { guests, script, timeout } => {
            if !script.is_file() {
                bail!("there is no script {}", script.display());
            }
            run::run(&Workspace::find()?, &guests.plan(), &script, Duration::from_secs(timeout))
        }
        Command::Image { packages } => {
            let workspace = Workspace::find()?;
            host::ensure_packages(&workspace)?;
            println!("qemu {}", qemu::Qemu::obtain(&workspace)?.version);
            let base = Base::obtain(&workspace)?;
            let image = Image::obtain(&workspace, &base, &packages)?;
            for (name, version) in base.versions()? {
                println!("{name} {version}");
            }
            println!("image {}", workspace.shown(&image.disk));
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
