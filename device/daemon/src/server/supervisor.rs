//! The supervisor: holds the connections of clients while the server ends and is started again (docs/recovery.md).

use std::fs::Permissions;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use faultline_memory::SharedPages;
use faultline_vfio_user::{Relay, Shutdown};
use rustix::process::{Signal, getppid, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

use crate::log::of_nic::nic_span;
use crate::nic::io::{bar_len, bar_pages_of};
use crate::server::{StartError, listen};
use faultline_config::{Config, SupervisedFiles};

/// Names of the NICs, in the order of the numbers of their files.
const NAMES: &str = "nics.json";

fn socket_path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number}.sock"))
}

fn bar_path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number}.bar2"))
}

/// The file with the number of the process that has attached a NIC.
fn client_path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number}.client"))
}

/// A folder that only this user can enter, with the names of the NICs. Below that of the service, if there is one: files in /tmp are
/// removed when they are old.
fn private_folder(config: &Config) -> std::result::Result<TempDir, StartError> {
    let parent =
        std::env::var_os("RUNTIME_DIRECTORY").map_or_else(std::env::temp_dir, PathBuf::from);
    let make = || {
        let folder = tempfile::Builder::new()
            .prefix("supervisor-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&parent)?;
        let names: Vec<&str> = config.nics.iter().map(|nic| nic.name.as_str()).collect();
        let names = serde_json::to_vec(&names).map_err(Error::other)?;
        std::fs::write(folder.path().join(NAMES), names)?;
        Ok(folder)
    };
    make().map_err(|source| StartError::SupervisorFolder {
        parent: parent.clone(),
        source,
    })
}

/// The connections of clients, and the state that survives their servers. Dropping it ends the connections.
#[derive(Debug)]
pub struct Supervisor {
    /// The folder with the sockets of servers and the files of BAR 2. Only this user can enter it.
    folder: TempDir,
    /// BAR 2 of each NIC.
    _bars: Vec<SharedPages>,
    shutdown: Shutdown,
    relays: Vec<JoinHandle<()>>,
}

impl Supervisor {
    /// Listens on the sockets of all NICs.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Server::start`] for the configuration and the sockets.
    pub fn start(config: &Config) -> std::result::Result<Self, StartError> {
        config.check()?;
        let mut supervisor = Self {
            folder: private_folder(config)?,
            _bars: Vec::new(),
            shutdown: Shutdown::new()?,
            relays: Vec::new(),
        };
        let pid = std::process::id();
        for ((number, nic), listener) in config.nics.iter().enumerate().zip(listen(config)?) {
            let bar = bar_pages_of(nic, config.nic_config(nic))?;
            // Servers open it by this name, each for itself.
            let file = format!("/proc/{pid}/fd/{}", bar.fd().as_raw_fd());
            std::os::unix::fs::symlink(file, bar_path(supervisor.folder(), number))?;
            supervisor._bars.push(bar);
            let kill = |server| {
                // It may have ended already.
                let _ = kill_process(server, Signal::KILL);
            };
            let folder = supervisor.folder();
            let file = client_path(folder, number);
            let attached = move |process: Option<i32>| {
                let text = process.map_or_else(String::new, |pid| pid.to_string());
                if let Err(error) = std::fs::write(&file, text) {
                    tracing::warn!("can't note which program has attached the NIC: {error}");
                }
            };
            let relay = Relay::new(listener, socket_path(folder, number), attached, kill);
            let (stop, span) = (supervisor.shutdown.clone(), nic_span(&nic.name));
            let thread = std::thread::Builder::new()
                .name(format!("keep-{}", nic.name))
                .spawn(move || span.in_scope(|| relay.run(&stop)))?;
            supervisor.relays.push(thread);
        }
        Ok(supervisor)
    }

    /// The folder, an argument of a server (see [`serve_supervised`]).
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shutdown.trigger();
        for relay in self.relays.drain(..) {
            if relay.join().is_err() {
                tracing::error!("the thread of a NIC panicked");
            }
        }
    }
}

/// Makes this process, which a supervisor has started, serve the supervisor's clients, and end when the supervisor does.
///
/// # Errors
///
/// The configuration has other NICs than the supervisor's, or NICs with more or less device memory or doorbell pages; or the folder is not
/// that of this process's parent.
pub fn serve_supervised(config: &mut Config, folder: &Path) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    let names: Vec<String> = serde_json::from_slice(&std::fs::read(folder.join(NAMES))?)?;
    if !names.iter().eq(config.nics.iter().map(|nic| &nic.name)) {
        return Err(Error::other(format!(
            "the NICs of the configuration are not those of the supervisor, which are {}: stop the supervisor and start it again",
            names.join(", ")
        )));
    }
    for (number, nic) in config.nics.iter().enumerate() {
        let (has, needs) = (
            std::fs::metadata(bar_path(folder, number))?.len(),
            bar_len(config.nic_config(nic)),
        );
        if has != needs {
            return Err(Error::other(format!(
                "BAR 2 of the NIC {} has {has} bytes, and would have {needs} with this configuration (device memory, doorbell pages): stop \
                 the supervisor and start it again",
                nic.name
            )));
        }
    }
    for (number, nic) in config.nics.iter_mut().enumerate() {
        nic.socket = socket_path(folder, number);
        nic.supervised = Some(SupervisedFiles {
            bar: bar_path(folder, number),
            client: client_path(folder, number),
        });
    }
    // It may have ended before the signal was set.
    let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let is_of_parent = |number| {
        let file = std::fs::read_link(bar_path(folder, number));
        file.is_ok_and(|file| file.starts_with(format!("/proc/{parent}/fd")))
    };
    match (0..config.nics.len()).all(is_of_parent) {
        true => Ok(()),
        false => Err(Error::other("the supervisor has ended")),
    }
}
